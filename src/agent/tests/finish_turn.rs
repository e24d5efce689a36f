//! Decisions of extensions on a turn that closes.

use super::*;
use crate::agent::entry::{PromptState, PromptStop};
use crate::agent::phase::Phase;
use crate::agent::step::FinishTurn;

const END: Input = Input::FinishTurn(FinishTurn::End);
const CONTINUE: Input = Input::FinishTurn(FinishTurn::Continue);
const MODEL: Phase = Phase::Model { attempt: 1, not_before: None };

fn queued(kind: &str, id: &str) -> InboxItem {
    let prompt = json!({"promptId": format!("pr_{id}"), "user": "default", "input": id, "visible": true, "source": "user"});
    item(id, json!({ kind: prompt }))
}

/// Queues items while the model responds: `DrainInbox` after the response applies them.
fn read_queue(draft: &mut Draft, items: &[InboxItem]) {
    step(draft, &looked(items));
}

fn stop_of_prompt() -> InboxItem {
    item("stop", json!({"abort": {"promptId": "pr_1"}}))
}

fn two_reads(draft: &mut Draft) {
    draft.rules.calls_at_once = 2;
    let gates = [gate(0, Effect::Read, None), gate(1, Effect::Read, None)];
    play(draft, &[prompt("go"), answer(&["look {}", "look {}"])]);
    play(draft, &gates);
}

fn ends(draft: &Draft) -> Vec<(PromptState, Option<PromptStop>)> {
    draft.head.prompts.iter().map(|span| (span.state, span.stop_reason)).collect()
}

const COMPLETED: (PromptState, Option<PromptStop>) =
    (PromptState::Completed, Some(PromptStop::End));
const RUNNING: (PromptState, Option<PromptStop>) = (PromptState::Running, None);

#[test]
fn end_leaves_queued_inputs_to_the_next_prompt() {
    for kind in ["followUp", "steer"] {
        let mut draft = draft();
        play(&mut draft, &[prompt("go")]);
        read_queue(&mut draft, &[queued(kind, "next")]);
        let events = play(&mut draft, &[END, answer(&["done"])]);
        let turn_end = events.iter().position(|event| event == "turn_end 0").unwrap();
        assert_eq!(
            events[turn_end + 1..],
            ["agent_end", "prompt.completed"],
            "{kind} is not polled"
        );
        assert_eq!((&draft.head.phase, draft.head.waiting), (&Phase::Idle, 1));
        assert_eq!(draft.head.owed_at(NOW), Some(NOW), "the queue is pending work");
        let events = play(&mut draft, &[Input::TakeIn]);
        assert_eq!(events[..3], ["prompt.created", "agent_start", "turn_start"], "{kind}");
        assert_eq!(ends(&draft), [COMPLETED, RUNNING]);
    }
}

#[test]
fn end_after_results_stops_the_prompt() {
    let mut draft = draft();
    two_reads(&mut draft);
    play(&mut draft, &[returned(1, "second")]);
    assert_eq!(draft.closed_turn, None, "a result is missing");
    let events = play(&mut draft, &[END, returned(0, "first")]);
    let turn_end = events.iter().position(|event| event == "turn_end 2").unwrap();
    assert_eq!(events[turn_end + 1..], ["agent_end", "prompt.completed", "agent_settled"]);
    assert_eq!(results(&draft.entries), ["first", "second"]);
    assert_eq!((ends(&draft), &draft.head.phase), (vec![COMPLETED], &Phase::Idle));
}

#[test]
fn decision_waits_for_the_last_result() {
    let mut draft = draft();
    two_reads(&mut draft);
    play(&mut draft, &[END, returned(1, "second"), returned(0, "first")]);
    assert_eq!(ends(&draft), [COMPLETED]);
}

#[test]
fn continue_after_text_requests_one_more_response() {
    let mut draft = draft();
    let events = play(&mut draft, &[prompt("go"), CONTINUE, answer(&["one"])]);
    assert_eq!(events.last().unwrap(), "turn_end 0");
    assert_eq!((ends(&draft), &draft.head.phase), (vec![RUNNING], &MODEL));
    let closed = draft.closed_turn.unwrap();
    assert_eq!((closed.rounds, draft.events[closed.event].body.name().as_str()), (1, "turn_end"));
    let events = play(&mut draft, &[answer(&["two"])]);
    assert_eq!(events[0], "turn_start");
    assert_eq!(ends(&draft), [COMPLETED], "the decision was for one turn");
}

#[test]
fn continue_lets_steers_join_and_follow_ups_wait() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go")]);
    read_queue(&mut draft, &[queued("followUp", "later"), queued("steer", "now")]);
    play(&mut draft, &[CONTINUE, answer(&["one"]), Input::TakeIn]);
    assert_eq!((ends(&draft), draft.head.waiting), (vec![RUNNING], 1));
    assert_eq!(draft.receipts.last().unwrap().input_id.as_str(), "now");
}

#[test]
fn continue_overrides_results_that_terminate() {
    let terminating = |index| {
        let result = CallResult { terminate: true, ..CallResult::default() };
        Input::Returned { index, result: Box::new(result) }
    };
    for (decision, phase) in [(None, Phase::Idle), (Some(CONTINUE), MODEL)] {
        let mut draft = draft();
        two_reads(&mut draft);
        play(&mut draft, &decision.into_iter().collect::<Vec<_>>());
        play(&mut draft, &[terminating(0), terminating(1)]);
        assert_eq!(draft.head.phase, phase);
    }
}

#[test]
fn continue_stops_at_the_round_limits() {
    for (rounds_max, hard_rounds_max) in [(Some(3), 200), (None, 3)] {
        let mut draft = draft();
        (draft.rules.rounds_max, draft.rules.hard_rounds_max) = (rounds_max, hard_rounds_max);
        play(&mut draft, &[prompt("go")]);
        let mut responses = 0;
        while draft.head.phase == MODEL {
            play(&mut draft, &[CONTINUE, answer(&["more"])]);
            responses += 1;
        }
        assert_eq!(responses, 3);
        assert_eq!(ends(&draft), [(PromptState::Completed, Some(PromptStop::MaxRounds))]);
    }
}

#[test]
fn failed_response_leaves_nothing_to_decide() {
    for stop in ["error", "aborted"] {
        let mut draft = draft();
        play(&mut draft, &[prompt("go"), CONTINUE, answer_with(&[], stop)]);
        assert_eq!(draft.closed_turn, None, "{stop}");
        assert_eq!(draft.head.phase, Phase::Idle);
    }
}

#[test]
fn stopped_or_poisoned_prompt_leaves_nothing_to_decide() {
    let mut stopped = draft();
    two_reads(&mut stopped);
    read_queue(&mut stopped, &[stop_of_prompt()]);
    play(&mut stopped, &[END, returned(0, "1"), returned(1, "2"), Input::TakeIn]);
    assert_eq!(ends(&stopped), [(PromptState::Aborted, Some(PromptStop::Aborted))]);
    let mut poisoned = draft();
    two_reads(&mut poisoned);
    play(&mut poisoned, &[CONTINUE, Input::Poisoned { reason: "it kills".to_owned() }]);
    assert_eq!(ends(&poisoned), [(PromptState::Failed, Some(PromptStop::Error))]);
    assert_eq!((stopped.closed_turn, poisoned.closed_turn), (None, None));
}

#[test]
fn end_on_a_misfit_fails_the_prompt() {
    let misfit = |decision: Input| {
        let Input::Answered(mut answered) = answer(&["no JSON"]) else { panic!("not a response") };
        answered.misfit = Some("it is not JSON".to_owned());
        let mut draft = draft();
        play(&mut draft, &[prompt("go"), decision, Input::Answered(answered)]);
        draft
    };
    let failed = (PromptState::Failed, Some(PromptStop::Error));
    assert_eq!(ends(&misfit(END)), [failed], "a completed response fits the schema");
    let corrected = misfit(CONTINUE);
    assert_eq!((ends(&corrected), &corrected.head.phase), (vec![RUNNING], &MODEL));
    assert!(corrected.head.prompt.unwrap().is_repaired);
}
