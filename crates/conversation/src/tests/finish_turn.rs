//! Decisions of extensions on a turn that closes.

use super::*;
use crate::entry::{PromptState, PromptStop};
use crate::phase::Phase;
use crate::step::FinishTurn;

const END: Input = Input::FinishTurn(FinishTurn::End);
const CONTINUE: Input = Input::FinishTurn(FinishTurn::Continue);
const MODEL: Phase = Phase::Model { attempt: 1, not_before: None };

fn queued(kind: &str, id: &str) -> InboxItem {
    let prompt = json!({"promptId": format!("pr_{id}"), "user": "default", "input": id, "visible": true, "source": "user"});
    item(id, json!({ kind: prompt }))
}

/// Queues items while the model responds: `DrainInbox` after the response applies them.
fn queue_items(transition: &mut Transition, items: &[InboxItem]) {
    step(transition, &inbox_read(items));
}

fn abort() -> InboxItem {
    item("stop", json!({"abort": {"promptId": "pr_1"}}))
}

fn start_two_reads(transition: &mut Transition) {
    transition.policy.concurrency = 2;
    let gates = [admitted_call(0, Effect::Read, None), admitted_call(1, Effect::Read, None)];
    apply_inputs(transition, &[prompt("go"), response(&["look {}", "look {}"])]);
    apply_inputs(transition, &gates);
}

fn prompt_ends(transition: &Transition) -> Vec<(PromptState, Option<PromptStop>)> {
    transition.head.prompts.iter().map(|span| (span.state, span.stop_reason)).collect()
}

const COMPLETED: (PromptState, Option<PromptStop>) =
    (PromptState::Completed, Some(PromptStop::End));
const RUNNING: (PromptState, Option<PromptStop>) = (PromptState::Running, None);

#[test]
fn end_leaves_queued_inputs_to_the_next_prompt() {
    for kind in ["followUp", "steer"] {
        let mut transition = transition();
        apply_inputs(&mut transition, &[prompt("go")]);
        queue_items(&mut transition, &[queued(kind, "next")]);
        let events = apply_inputs(&mut transition, &[END, response(&["done"])]);
        let turn_end = events.iter().position(|event| event == "turn_end 0").unwrap();
        assert_eq!(
            events[turn_end + 1..],
            ["agent_end", "prompt.completed"],
            "{kind} is not polled"
        );
        assert_eq!((&transition.head.phase, transition.head.waiting_items), (&Phase::Idle, 1));
        assert_eq!(transition.head.next_due(NOW), Some(NOW), "the queue is pending work");
        let events = apply_inputs(&mut transition, &[Input::DrainInbox]);
        assert_eq!(events[..3], ["prompt.created", "agent_start", "turn_start"], "{kind}");
        assert_eq!(prompt_ends(&transition), [COMPLETED, RUNNING]);
    }
}

#[test]
fn end_after_results_stops_the_prompt() {
    let mut transition = transition();
    start_two_reads(&mut transition);
    apply_inputs(&mut transition, &[returned_call(1, "second")]);
    assert_eq!(transition.closed_turn, None, "a result is missing");
    let events = apply_inputs(&mut transition, &[END, returned_call(0, "first")]);
    let turn_end = events.iter().position(|event| event == "turn_end 2").unwrap();
    assert_eq!(events[turn_end + 1..], ["agent_end", "prompt.completed", "agent_settled"]);
    assert_eq!(result_texts(&transition.entries), ["first", "second"]);
    assert_eq!((prompt_ends(&transition), &transition.head.phase), (vec![COMPLETED], &Phase::Idle));
}

#[test]
fn decision_waits_for_the_last_result() {
    let mut transition = transition();
    start_two_reads(&mut transition);
    apply_inputs(&mut transition, &[END, returned_call(1, "second"), returned_call(0, "first")]);
    assert_eq!(prompt_ends(&transition), [COMPLETED]);
}

#[test]
fn continue_after_text_requests_one_more_response() {
    let mut transition = transition();
    let events = apply_inputs(&mut transition, &[prompt("go"), CONTINUE, response(&["one"])]);
    assert_eq!(events.last().unwrap(), "turn_end 0");
    assert_eq!((prompt_ends(&transition), &transition.head.phase), (vec![RUNNING], &MODEL));
    let closed = transition.closed_turn.unwrap();
    assert_eq!(
        (closed.rounds, transition.events[closed.event].body.name().as_str()),
        (1, "turn_end")
    );
    let events = apply_inputs(&mut transition, &[response(&["two"])]);
    assert_eq!(events[0], "turn_start");
    assert_eq!(prompt_ends(&transition), [COMPLETED], "the decision was for one turn");
}

#[test]
fn continue_lets_steers_join_and_follow_ups_wait() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    queue_items(&mut transition, &[queued("followUp", "later"), queued("steer", "now")]);
    apply_inputs(&mut transition, &[CONTINUE, response(&["one"]), Input::DrainInbox]);
    assert_eq!((prompt_ends(&transition), transition.head.waiting_items), (vec![RUNNING], 1));
    assert_eq!(transition.receipts.last().unwrap().input_id.as_str(), "now");
}

#[test]
fn continue_overrides_results_that_terminate() {
    let terminating = |index| {
        let result = CallResult { terminate: true, ..CallResult::default() };
        Input::ToolCallReturned { index, result: Box::new(result) }
    };
    for (decision, phase) in [(None, Phase::Idle), (Some(CONTINUE), MODEL)] {
        let mut transition = transition();
        start_two_reads(&mut transition);
        apply_inputs(&mut transition, &decision.into_iter().collect::<Vec<_>>());
        apply_inputs(&mut transition, &[terminating(0), terminating(1)]);
        assert_eq!(transition.head.phase, phase);
    }
}

#[test]
fn continue_stops_at_the_round_limits() {
    for (rounds_max, hard_rounds_max) in [(Some(3), 200), (None, 3)] {
        let mut transition = transition();
        (transition.policy.rounds_max, transition.policy.hard_rounds_max) =
            (rounds_max, hard_rounds_max);
        apply_inputs(&mut transition, &[prompt("go")]);
        let mut responses = 0;
        while transition.head.phase == MODEL {
            apply_inputs(&mut transition, &[CONTINUE, response(&["more"])]);
            responses += 1;
        }
        assert_eq!(responses, 3);
        assert_eq!(
            prompt_ends(&transition),
            [(PromptState::Completed, Some(PromptStop::MaxRounds))]
        );
    }
}

#[test]
fn failed_response_leaves_nothing_to_decide() {
    for stop in ["error", "aborted"] {
        let mut transition = transition();
        apply_inputs(&mut transition, &[prompt("go"), CONTINUE, response_with(&[], stop)]);
        assert_eq!(transition.closed_turn, None, "{stop}");
        assert_eq!(transition.head.phase, Phase::Idle);
    }
}

#[test]
fn aborted_or_poisoned_prompt_leaves_nothing_to_decide() {
    let mut aborted = transition();
    start_two_reads(&mut aborted);
    queue_items(&mut aborted, &[abort()]);
    apply_inputs(
        &mut aborted,
        &[END, returned_call(0, "1"), returned_call(1, "2"), Input::DrainInbox],
    );
    assert_eq!(prompt_ends(&aborted), [(PromptState::Aborted, Some(PromptStop::Aborted))]);
    let mut poisoned = transition();
    start_two_reads(&mut poisoned);
    apply_inputs(&mut poisoned, &[CONTINUE, Input::Poisoned { reason: "it kills".to_owned() }]);
    assert_eq!(prompt_ends(&poisoned), [(PromptState::Failed, Some(PromptStop::Error))]);
    assert_eq!((aborted.closed_turn, poisoned.closed_turn), (None, None));
}

#[test]
fn end_after_schema_error_fails_prompt() {
    let respond_with_schema_error = |decision: Input| {
        let Input::ResponseReceived(mut response_input) = response(&["no JSON"]) else {
            panic!("not a response")
        };
        response_input.schema_error = Some("it is not JSON".to_owned());
        let mut transition = transition();
        apply_inputs(
            &mut transition,
            &[prompt("go"), decision, Input::ResponseReceived(response_input)],
        );
        transition
    };
    let failed = (PromptState::Failed, Some(PromptStop::Error));
    assert_eq!(
        prompt_ends(&respond_with_schema_error(END)),
        [failed],
        "a completed response fits the schema"
    );
    let corrected = respond_with_schema_error(CONTINUE);
    assert_eq!((prompt_ends(&corrected), &corrected.head.phase), (vec![RUNNING], &MODEL));
    assert!(corrected.head.prompt.unwrap().has_requested_repair);
}
