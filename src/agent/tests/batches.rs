//! Parallel tool calls: end events in completion order, results in source order.

use super::*;
use crate::agent::entry::{Output, PromptState, WidgetOutput};
use crate::agent::head::State;
use crate::agent::phase::{CallStatus, Phase};
use crate::agent::raw::{Extra, RawJson};
use crate::agent::view::prompt_view;

fn at_once(most: u32) -> Draft {
    let mut draft = draft();
    draft.rules.calls_at_once = most;
    draft
}

/// A transition for the next commit: the entries of the last one are stored, and the driver loads
/// the buffered results that the phase names.
fn next_commit(draft: &Draft) -> Draft {
    let mut next =
        Draft::new(draft.head.clone(), draft.answer.clone(), draft.rules.clone(), draft.now);
    next.kept.clone_from(&draft.kept);
    next
}

fn ends(told: &[String]) -> Vec<&str> {
    let ends = told.iter().filter_map(|line| line.strip_prefix("tool_execution_end "));
    ends.collect()
}

fn view(draft: &Draft) -> serde_json::Value {
    let id = crate::ids::PromptId::new("pr_1");
    serde_json::to_value(prompt_view(&id, &draft.head, &draft.entries).unwrap()).unwrap()
}

fn reads(count: usize) -> Vec<Input> {
    (0..count).map(|index| gate(index, Effect::Read, None)).collect()
}

#[test]
fn ends_are_told_as_they_come_and_results_stand_in_source_order() {
    let mut draft = at_once(8);
    play(&mut draft, &[prompt("go"), answer(&["a {}", "b {}", "c {}"])]);
    let told = play(&mut draft, &reads(3));
    assert_eq!(
        told,
        ["tool_execution_start a", "tool_execution_start b", "tool_execution_start c"]
    );
    assert_eq!(
        play(&mut draft, &[returned(1, "B")]),
        ["tool_execution_end b", "prompt.output"],
        "its message waits for the result of a"
    );
    assert_eq!(view(&draft)["output"][0]["result"], json!({"type": "success", "output": "B"}));
    assert_eq!(
        play(&mut draft, &[returned(0, "A")]),
        [
            "tool_execution_end a",
            "message_start toolResult:A",
            "message_end toolResult:A",
            "prompt.output",
            "message_start toolResult:B",
            "message_end toolResult:B",
        ]
    );
    let told = play(&mut draft, &[returned(2, "C")]);
    assert_eq!(told.last().unwrap(), "turn_end 3");
    assert_eq!(results(&draft.entries), ["A", "B", "C"]);
    assert_eq!(draft.head.phase, Phase::Model { attempt: 1, not_before: None });
    let output = &view(&draft)["output"];
    let texts: Vec<_> = (0..3).map(|index| output[index]["result"]["output"].clone()).collect();
    assert_eq!(texts, ["A", "B", "C"]);
}

#[test]
fn a_kept_result_outlives_the_worker_that_had_it() {
    let mut first = at_once(8);
    play(&mut first, &[prompt("go"), answer(&["a {}", "b {}"])]);
    play(&mut first, &reads(2));
    play(&mut first, &[returned(1, "B")]);
    assert_eq!(first.head.reader_needed(), 2, "older workers do not process it");
    let mut next = next_commit(&first);
    play(&mut next, &[Input::TakenOver, gate(0, Effect::Read, None), returned(0, "A")]);
    assert_eq!(results(&next.entries), ["A", "B"]);
    assert_eq!(next.head.reader_needed(), 1);
    assert!(next.kept.is_empty());
}

#[test]
fn no_more_start_than_may_run_and_the_next_starts_when_one_has_ended() {
    let mut draft = at_once(2);
    play(&mut draft, &[prompt("go"), answer(&["a {}", "b {}", "c {}"])]);
    play(&mut draft, &reads(2));
    assert_eq!(draft.batch().next(None), None);
    play(&mut draft, &[returned(1, "B")]);
    assert_eq!(draft.batch().next(None), Some(2));
    assert_eq!(draft.batch().next(Some(2)), None, "its preflight already ran");
}

#[test]
fn a_call_that_waits_for_a_person_holds_nobody_else() {
    let mut draft = at_once(8);
    play(&mut draft, &[prompt("go"), answer(&["gated {}", "b {}", "nope {}"])]);
    let asked = gate(0, Effect::Write, Some("Gated"));
    let told = play(&mut draft, &[asked, gate(1, Effect::Read, None), refused(2, "no")]);
    assert_eq!(ends(&told), ["nope error"]);
    assert!(draft.batch().is_performing());
    play(&mut draft, &[returned(1, "B")]);
    assert_eq!(draft.head.state(), State::WaitingForApproval);
    assert!(!draft.batch().is_owed());
    assert_eq!(draft.head.owed_at(NOW), Some(Timestamp(NOW.0 + 1_000)), "only its expiry is due");
    let reject = decision(&draft, Verdict::Reject, None);
    let mut next = next_commit(&draft);
    play(&mut next, &[reject]);
    assert_eq!(results(&next.entries), ["Rejected by user", "B", "no"]);
    assert!(matches!(next.head.phase, Phase::Model { .. }));
}

#[test]
fn a_call_behind_another_is_looked_at_when_that_one_is_done() {
    let mut draft = at_once(8);
    play(&mut draft, &[prompt("go"), answer(&["edit {}", "edit {}", "c {}"])]);
    let behind = Input::Prepared { index: 1, gate: Gate::Behind { earlier: 0 } };
    play(&mut draft, &[gate(0, Effect::Idempotent, Some("May I?")), behind]);
    assert_eq!(draft.batch().next(None), Some(2));
    play(&mut draft, &[gate(2, Effect::Read, None), returned(2, "C")]);
    assert!(!draft.batch().is_owed(), "a call that cannot start is no pending work");
    let approve = decision(&draft, Verdict::Approve, None);
    play(&mut draft, &[approve, gate(0, Effect::Idempotent, None)]);
    assert_eq!(draft.batch().next(None), None);
    play(&mut draft, &[returned(0, "A")]);
    assert_eq!(draft.batch().next(None), Some(1));
}

#[test]
fn after_a_take_over_each_call_is_judged_by_its_own_effect() {
    let mut draft = at_once(8);
    play(&mut draft, &[prompt("go"), answer(&["look {}", "put {}", "pay {}", "wire {}", "e {}"])]);
    let effects = [Effect::Read, Effect::Idempotent, Effect::Write, Effect::Write, Effect::Read];
    for (index, effect) in effects.into_iter().enumerate() {
        play(&mut draft, &[gate(index, effect, None)]);
    }
    play(&mut draft, &[returned(4, "E"), Input::TakenOver, lost(2), lost(3)]);
    let mut kinds = draft.calls().iter().map(|call| match call.status {
        CallStatus::Ready => "ready",
        CallStatus::Waiting { .. } => "asked",
        CallStatus::Started { .. } => "started",
        CallStatus::Done { .. } => "done",
    });
    assert!(kinds.by_ref().eq(["ready", "ready", "asked", "asked", "done"]));
    assert_eq!(draft.head.requests.len(), 2, "each has its own request");
}

fn asks_for_an_end(index: usize) -> Input {
    let Input::Returned { mut result, .. } = returned(index, "over") else { panic!() };
    result.terminate = true;
    Input::Returned { index, result }
}

#[test]
fn a_prompt_ends_without_another_answer_when_all_results_ask_for_it() {
    for most in [1, 8] {
        let mut draft = at_once(most);
        play(&mut draft, &[prompt("go"), answer(&["a {}", "b {}"])]);
        let refusal = Gate::Refused { text: "no".to_owned(), terminate: true };
        let blocked = Input::Prepared { index: 1, gate: refusal };
        let told = play(&mut draft, &[gate(0, Effect::Read, None), asks_for_an_end(0), blocked]);
        let last: Vec<&str> = told.iter().rev().take(4).rev().map(String::as_str).collect();
        assert_eq!(last, ["turn_end 2", "agent_end", "prompt.completed", "agent_settled"]);
        assert_eq!(
            (&view(&draft)["state"], &view(&draft)["stopReason"]),
            (&json!("completed"), &json!("end"))
        );
    }
}

#[test]
fn one_result_that_does_not_ask_for_an_end_is_answered() {
    let mut draft = at_once(8);
    play(&mut draft, &[prompt("go"), answer(&["a {}", "b {}"])]);
    play(&mut draft, &reads(2));
    play(&mut draft, &[asks_for_an_end(1), returned(0, "A")]);
    assert_eq!(draft.head.phase, Phase::Model { attempt: 1, not_before: None });
}

/// A result with this number of widgets and bytes.
fn large(index: usize, widgets: usize, bytes: usize) -> Input {
    let Input::Returned { mut result, .. } = returned(index, &"x".repeat(bytes)) else { panic!() };
    let widget = Output::Widget(WidgetOutput {
        widget: "w".to_owned(),
        data: RawJson::of(&json!({})),
        fallback: "w".to_owned(),
        extra: Extra::new(),
    });
    result.outputs = vec![widget; widgets];
    Input::Returned { index, result }
}

#[test]
fn what_has_no_room_in_one_commit_is_put_in_its_place_by_the_next() {
    for (widgets, bytes) in [(40, 1), (0, 300 * 1024)] {
        let mut draft = at_once(8);
        play(&mut draft, &[prompt("go"), answer(&["a {}", "b {}", "c {}", "d {}"])]);
        play(&mut draft, &reads(4));
        for index in [3, 2, 1] {
            draft = next_commit(&draft);
            play(&mut draft, &[large(index, widgets, bytes)]);
        }
        draft = next_commit(&draft);
        let mut told = play(&mut draft, &[large(0, widgets, bytes)]);
        let mut commits = 1;
        while draft.batch().is_placing() {
            assert_eq!(draft.head.owed_at(NOW), Some(NOW));
            draft = next_commit(&draft);
            told.extend(play(&mut draft, &[Input::Placing]));
            assert!(draft.operations() <= 70, "{}", draft.operations());
            commits += 1;
        }
        assert!(commits > 1, "{widgets} widgets and {bytes} bytes each");
        assert_eq!(told.last().unwrap(), "turn_end 4");
        let starts = told.iter().filter(|line| line.starts_with("message_start"));
        assert_eq!(starts.count(), 4);
        assert_eq!(told.iter().filter(|line| *line == "prompt.output").count(), 1 + 4 * widgets);
    }
}

#[test]
fn a_prompt_that_is_given_up_names_the_results_for_which_there_is_no_room() {
    let mut draft = at_once(8);
    let calls: Vec<String> = (0..CALLS).map(|number| format!("t{number} {{}}")).collect();
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    play(&mut draft, &[prompt("go"), answer(&calls), gate(0, Effect::Read, None)]);
    for index in 1..5 {
        play(&mut draft, &[gate(index, Effect::Read, None), large(index, 3, 200 * 1024)]);
    }
    draft = next_commit(&draft);
    play(&mut draft, &[Input::Poisoned { reason: "five claims".to_owned() }]);
    assert!(draft.operations() <= 80, "{}", draft.operations());
    let results = results(&draft.entries);
    assert_eq!(results.len(), CALLS);
    assert!(results[0].contains("did not finish") && results[CALLS - 1].contains("was not run"));
    assert!(results[4].contains("is stored as entry"), "{}", results[4]);
    assert_eq!(draft.head.prompts[0].state, PromptState::Failed);
}

const CALLS: usize = crate::agent::step::CALLS_MAX;

#[test]
fn side_outputs_follow_their_call_though_later_ones_are_settled_before() {
    let mut draft = at_once(8);
    play(&mut draft, &[prompt("go"), answer(&["a {}", "b {}"])]);
    play(&mut draft, &reads(2));
    play(&mut draft, &[large(1, 1, 1), large(0, 2, 1)]);
    let output = view(&draft)["output"].as_array().unwrap().clone();
    let kinds: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["tool", "widget", "widget", "tool", "widget"]);
}

/// Random orders of ends, commits, take-overs and rejections: each call has one end and one result,
/// in source order.
#[test]
fn any_order_of_ends_gives_each_call_one_result_in_source_order() {
    for seed in 0..300 {
        let mut dice = fastrand::Rng::with_seed(seed);
        let count = dice.usize(1..=9);
        let calls: Vec<String> = (0..count).map(|number| format!("t{number} {{}}")).collect();
        let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
        let mut draft = at_once(dice.u32(1..=4));
        let (mut told, mut entries) = (Vec::new(), Vec::new());
        play(&mut draft, &[prompt("go"), answer(&calls)]);
        let mut steps = 0;
        while matches!(draft.head.phase, Phase::Calls { .. }) {
            steps += 1;
            assert!(steps < 500, "seed {seed} does not end");
            entries.append(&mut draft.entries);
            draft = next_commit(&draft);
            let started: Vec<usize> = draft.batch().started().collect();
            let input = match (draft.batch().next(None), dice.u8(0..10)) {
                (_, 0) => Input::TakenOver,
                (Some(index), 1..=2) => refused(index, &index.to_string()),
                (Some(index), 3..) => gate(index, Effect::Read, None),
                _ if started.is_empty() => Input::Placing,
                _ => {
                    let index = started[dice.usize(0..started.len())];
                    returned(index, &index.to_string())
                }
            };
            told.extend(play(&mut draft, &[input]));
        }
        entries.append(&mut draft.entries);
        let expected: Vec<String> = (0..count).map(|index| index.to_string()).collect();
        assert_eq!(results(&entries), expected, "seed {seed}");
        let mut ends: Vec<&str> =
            ends(&told).iter().map(|end| end.split(' ').next().unwrap()).collect();
        ends.sort_unstable();
        ends.dedup();
        assert_eq!(ends.len(), count, "seed {seed}");
        assert_eq!(
            told.iter().filter(|line| line.starts_with("tool_execution_end")).count(),
            count
        );
        assert!(entries.iter().map(|entry| entry.base.seq).eq(1..=draft.head.seq));
    }
}
