//! Parallel tool calls: end events in completion order, results in source order.

use super::*;
use crate::entry::{Output, PromptState, WidgetOutput};
use crate::head::State;
use crate::phase::{CallStatus, Phase};
use crate::unknown_members::Extra;
use turnwheel_json::raw::RawJson;

fn with_concurrency(concurrency: u32) -> Transition {
    let mut transition = transition();
    transition.policy.concurrency = concurrency;
    transition
}

/// A transition for the next commit: the entries of the last one are stored, and the driver loads
/// the buffered results that the phase names.
fn next_commit(transition: &Transition) -> Transition {
    let mut next = Transition::new(
        transition.head.clone(),
        transition.response.clone(),
        transition.policy.clone(),
        transition.now,
    );
    next.buffered.clone_from(&transition.buffered);
    next
}

fn end_events(events: &[String]) -> Vec<&str> {
    let ends = events.iter().filter_map(|line| line.strip_prefix("tool_execution_end "));
    ends.collect()
}

fn admitted_reads(count: usize) -> Vec<Input> {
    (0..count).map(|index| admitted_call(index, Effect::Read, None)).collect()
}

#[test]
fn parallel_results_are_appended_in_source_order() {
    let mut transition = with_concurrency(8);
    apply_inputs(&mut transition, &[prompt("go"), response(&["a {}", "b {}", "c {}"])]);
    let events = apply_inputs(&mut transition, &admitted_reads(3));
    assert_eq!(
        events,
        ["tool_execution_start a", "tool_execution_start b", "tool_execution_start c"]
    );
    assert_eq!(
        apply_inputs(&mut transition, &[returned_call(1, "B")]),
        ["tool_execution_end b", "prompt.output"],
        "its message waits for the result of a"
    );
    assert_eq!(view(&transition)["output"][0]["result"], json!({"type": "success", "output": "B"}));
    assert_eq!(
        apply_inputs(&mut transition, &[returned_call(0, "A")]),
        [
            "tool_execution_end a",
            "message_start toolResult:A",
            "message_end toolResult:A",
            "prompt.output",
            "message_start toolResult:B",
            "message_end toolResult:B",
        ]
    );
    let events = apply_inputs(&mut transition, &[returned_call(2, "C")]);
    assert_eq!(events.last().unwrap(), "turn_end 3");
    assert_eq!(result_texts(&transition.entries), ["A", "B", "C"]);
    assert_eq!(transition.head.phase, Phase::Model { attempt: 1, not_before: None });
    let output = &view(&transition)["output"];
    let texts: Vec<_> = (0..3).map(|index| output[index]["result"]["output"].clone()).collect();
    assert_eq!(texts, ["A", "B", "C"]);
}

#[test]
fn buffered_result_survives_take_over() {
    let mut first = with_concurrency(8);
    apply_inputs(&mut first, &[prompt("go"), response(&["a {}", "b {}"])]);
    apply_inputs(&mut first, &admitted_reads(2));
    apply_inputs(&mut first, &[returned_call(1, "B")]);
    assert_eq!(first.head.required_reader(), 2, "older workers do not process it");
    let mut next = next_commit(&first);
    apply_inputs(
        &mut next,
        &[Input::LeaseTakenOver, admitted_call(0, Effect::Read, None), returned_call(0, "A")],
    );
    assert_eq!(result_texts(&next.entries), ["A", "B"]);
    assert_eq!(next.head.required_reader(), 1);
    assert!(next.buffered.is_empty());
}

#[test]
fn concurrency_limit_bounds_started_calls() {
    let mut transition = with_concurrency(2);
    apply_inputs(&mut transition, &[prompt("go"), response(&["a {}", "b {}", "c {}"])]);
    apply_inputs(&mut transition, &admitted_reads(2));
    assert_eq!(transition.call_batch().next_startable(None), None);
    apply_inputs(&mut transition, &[returned_call(1, "B")]);
    assert_eq!(transition.call_batch().next_startable(None), Some(2));
    assert_eq!(transition.call_batch().next_startable(Some(2)), None, "its preflight already ran");
}

#[test]
fn call_waiting_for_approval_blocks_no_other_call() {
    let mut transition = with_concurrency(8);
    apply_inputs(&mut transition, &[prompt("go"), response(&["gated {}", "b {}", "nope {}"])]);
    let gated_call = admitted_call(0, Effect::Write, Some("Gated"));
    let events = apply_inputs(
        &mut transition,
        &[gated_call, admitted_call(1, Effect::Read, None), rejected_call(2, "no")],
    );
    assert_eq!(end_events(&events), ["nope error"]);
    assert!(transition.call_batch().is_in_progress());
    apply_inputs(&mut transition, &[returned_call(1, "B")]);
    assert_eq!(transition.head.state(), State::WaitingForApproval);
    assert!(!transition.call_batch().has_pending_work());
    assert_eq!(
        transition.head.next_due(NOW),
        Some(Timestamp(NOW.0 + 1_000)),
        "only its expiry is due"
    );
    let reject = decision(&transition, Verdict::Reject, None);
    let mut next = next_commit(&transition);
    apply_inputs(&mut next, &[reject]);
    assert_eq!(result_texts(&next.entries), ["Rejected by user", "B", "no"]);
    assert!(matches!(next.head.phase, Phase::Model { .. }));
}

#[test]
fn blocked_call_is_checked_after_its_dependency() {
    let mut transition = with_concurrency(8);
    apply_inputs(&mut transition, &[prompt("go"), response(&["edit {}", "edit {}", "c {}"])]);
    let blocked =
        Input::ToolCallChecked { index: 1, preflight: Preflight::BlockedBy { earlier: 0 } };
    apply_inputs(&mut transition, &[admitted_call(0, Effect::Idempotent, Some("May I?")), blocked]);
    assert_eq!(transition.call_batch().next_startable(None), Some(2));
    apply_inputs(&mut transition, &[admitted_call(2, Effect::Read, None), returned_call(2, "C")]);
    assert!(
        !transition.call_batch().has_pending_work(),
        "a call that cannot start is no pending work"
    );
    let approve = decision(&transition, Verdict::Approve, None);
    apply_inputs(&mut transition, &[approve, admitted_call(0, Effect::Idempotent, None)]);
    assert_eq!(transition.call_batch().next_startable(None), None);
    apply_inputs(&mut transition, &[returned_call(0, "A")]);
    assert_eq!(transition.call_batch().next_startable(None), Some(1));
}

#[test]
fn take_over_recovers_each_call_by_its_effect() {
    let mut transition = with_concurrency(8);
    apply_inputs(
        &mut transition,
        &[prompt("go"), response(&["look {}", "put {}", "pay {}", "wire {}", "e {}"])],
    );
    let effects = [Effect::Read, Effect::Idempotent, Effect::Write, Effect::Write, Effect::Read];
    for (index, effect) in effects.into_iter().enumerate() {
        apply_inputs(&mut transition, &[admitted_call(index, effect, None)]);
    }
    apply_inputs(
        &mut transition,
        &[returned_call(4, "E"), Input::LeaseTakenOver, lost_result(2), lost_result(3)],
    );
    let mut kinds = transition.calls().iter().map(|call| match call.status {
        CallStatus::Ready => "ready",
        CallStatus::Waiting { .. } => "asked",
        CallStatus::Started { .. } => "started",
        CallStatus::Done { .. } => "done",
    });
    assert!(kinds.by_ref().eq(["ready", "ready", "asked", "asked", "done"]));
    assert_eq!(transition.head.requests.len(), 2, "each has its own request");
}

fn terminating_call(index: usize) -> Input {
    let Input::ToolCallReturned { mut result, .. } = returned_call(index, "over") else { panic!() };
    result.terminate = true;
    Input::ToolCallReturned { index, result }
}

#[test]
fn prompt_ends_when_all_results_terminate() {
    for concurrency in [1, 8] {
        let mut transition = with_concurrency(concurrency);
        apply_inputs(&mut transition, &[prompt("go"), response(&["a {}", "b {}"])]);
        let rejection = Preflight::Rejected { text: "no".to_owned(), terminate: true };
        let blocked = Input::ToolCallChecked { index: 1, preflight: rejection };
        let events = apply_inputs(
            &mut transition,
            &[admitted_call(0, Effect::Read, None), terminating_call(0), blocked],
        );
        let last: Vec<&str> = events.iter().rev().take(4).rev().map(String::as_str).collect();
        assert_eq!(last, ["turn_end 2", "agent_end", "prompt.completed", "agent_settled"]);
        assert_eq!(
            (&view(&transition)["state"], &view(&transition)["stopReason"]),
            (&json!("completed"), &json!("end"))
        );
    }
}

#[test]
fn prompt_continues_unless_all_results_terminate() {
    let mut transition = with_concurrency(8);
    apply_inputs(&mut transition, &[prompt("go"), response(&["a {}", "b {}"])]);
    apply_inputs(&mut transition, &admitted_reads(2));
    apply_inputs(&mut transition, &[terminating_call(1), returned_call(0, "A")]);
    assert_eq!(transition.head.phase, Phase::Model { attempt: 1, not_before: None });
}

/// A result with this number of widgets and bytes.
fn large_result(index: usize, widgets: usize, bytes: usize) -> Input {
    let Input::ToolCallReturned { mut result, .. } = returned_call(index, &"x".repeat(bytes))
    else {
        panic!()
    };
    let widget = Output::Widget(WidgetOutput {
        widget: "w".to_owned(),
        data: RawJson::from_value(&json!({})),
        fallback: "w".to_owned(),
        extra: Extra::new(),
    });
    result.outputs = vec![widget; widgets];
    Input::ToolCallReturned { index, result }
}

#[test]
fn buffered_results_flush_over_several_commits() {
    for (widgets, bytes) in [(40, 1), (0, 300 * 1024)] {
        let mut transition = with_concurrency(8);
        apply_inputs(&mut transition, &[prompt("go"), response(&["a {}", "b {}", "c {}", "d {}"])]);
        apply_inputs(&mut transition, &admitted_reads(4));
        for index in [3, 2, 1] {
            transition = next_commit(&transition);
            apply_inputs(&mut transition, &[large_result(index, widgets, bytes)]);
        }
        transition = next_commit(&transition);
        let mut events = apply_inputs(&mut transition, &[large_result(0, widgets, bytes)]);
        let mut commits = 1;
        while transition.call_batch().is_flushing() {
            assert_eq!(transition.head.next_due(NOW), Some(NOW));
            transition = next_commit(&transition);
            events.extend(apply_inputs(&mut transition, &[Input::FlushBufferedResults]));
            assert!(transition.operation_count() <= 70, "{}", transition.operation_count());
            commits += 1;
        }
        assert!(commits > 1, "{widgets} widgets and {bytes} bytes each");
        assert_eq!(events.last().unwrap(), "turn_end 4");
        let starts = events.iter().filter(|line| line.starts_with("message_start"));
        assert_eq!(starts.count(), 4);
        assert_eq!(events.iter().filter(|line| *line == "prompt.output").count(), 1 + 4 * widgets);
    }
}

#[test]
fn poisoned_prompt_references_results_without_room() {
    let mut transition = with_concurrency(8);
    let calls: Vec<String> = (0..CALLS).map(|number| format!("t{number} {{}}")).collect();
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    apply_inputs(
        &mut transition,
        &[prompt("go"), response(&calls), admitted_call(0, Effect::Read, None)],
    );
    for index in 1..5 {
        apply_inputs(
            &mut transition,
            &[admitted_call(index, Effect::Read, None), large_result(index, 3, 200 * 1024)],
        );
    }
    transition = next_commit(&transition);
    apply_inputs(&mut transition, &[Input::Poisoned { reason: "five claims".to_owned() }]);
    assert!(transition.operation_count() <= 80, "{}", transition.operation_count());
    let results = result_texts(&transition.entries);
    assert_eq!(results.len(), CALLS);
    assert!(results[0].contains("did not finish") && results[CALLS - 1].contains("was not run"));
    assert!(results[4].contains("is stored as entry"), "{}", results[4]);
    assert_eq!(transition.head.prompts[0].state, PromptState::Failed);
}

const CALLS: usize = crate::step::CALLS_MAX;

#[test]
fn side_outputs_follow_their_call_in_source_order() {
    let mut transition = with_concurrency(8);
    apply_inputs(&mut transition, &[prompt("go"), response(&["a {}", "b {}"])]);
    apply_inputs(&mut transition, &admitted_reads(2));
    apply_inputs(&mut transition, &[large_result(1, 1, 1), large_result(0, 2, 1)]);
    let output = view(&transition)["output"].as_array().unwrap().clone();
    let kinds: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["tool", "widget", "widget", "tool", "widget"]);
}

/// Random orders of ends, commits, take-overs and rejections: each call has one end and one result,
/// in source order.
#[test]
fn random_completion_order_keeps_source_order() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let count = rng.usize(1..=9);
        let calls: Vec<String> = (0..count).map(|number| format!("t{number} {{}}")).collect();
        let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
        let mut transition = with_concurrency(rng.u32(1..=4));
        let (mut reported, mut entries) = (Vec::new(), Vec::new());
        apply_inputs(&mut transition, &[prompt("go"), response(&calls)]);
        let mut steps = 0;
        while matches!(transition.head.phase, Phase::Calls { .. }) {
            steps += 1;
            assert!(steps < 500, "seed {seed} does not end");
            entries.append(&mut transition.entries);
            transition = next_commit(&transition);
            let started: Vec<usize> = transition.call_batch().started_calls().collect();
            let input = match (transition.call_batch().next_startable(None), rng.u8(0..10)) {
                (_, 0) => Input::LeaseTakenOver,
                (Some(index), 1..=2) => rejected_call(index, &index.to_string()),
                (Some(index), 3..) => admitted_call(index, Effect::Read, None),
                _ if started.is_empty() => Input::FlushBufferedResults,
                _ => {
                    let index = started[rng.usize(0..started.len())];
                    returned_call(index, &index.to_string())
                }
            };
            reported.extend(apply_inputs(&mut transition, &[input]));
        }
        entries.append(&mut transition.entries);
        let expected: Vec<String> = (0..count).map(|index| index.to_string()).collect();
        assert_eq!(result_texts(&entries), expected, "seed {seed}");
        let mut ends: Vec<&str> =
            end_events(&reported).iter().map(|end| end.split(' ').next().unwrap()).collect();
        ends.sort_unstable();
        ends.dedup();
        assert_eq!(ends.len(), count, "seed {seed}");
        assert_eq!(
            reported.iter().filter(|line| line.starts_with("tool_execution_end")).count(),
            count
        );
        assert!(entries.iter().map(|entry| entry.base.seq).eq(1..=transition.head.seq));
    }
}
