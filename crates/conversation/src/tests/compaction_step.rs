//! Compaction as a step: when it starts, and the effects of its outcome.

use serde_json::Value;

use super::*;
use crate::compaction::prospects::CompactionNote;
use crate::compaction::{ContextBudget, detect_silent_overflow};
use crate::entry::{Compaction, PromptState};
use crate::input_repair::{InputRepair, RefusedInput, RefusedPart};
use crate::phase::CompactionReason;
use crate::settings::CompactionSettings;
use crate::step::{CompactInput, FailureKind, FinishedSummary, SummaryAttempt, SummaryOutcome};
use crate::unknown_members::Extra;
use crate::usage::Usage;

fn with_context_window(tokens: u64) -> Transition {
    let mut transition = transition();
    transition.policy.context_budget = ContextBudget::new(tokens, &CompactionSettings::default());
    transition
}

fn overflow_response() -> Input {
    let Input::ResponseReceived(mut response_input) = response_with(&[], "error") else {
        unreachable!()
    };
    response_input.failure_kind = FailureKind::ContextOverflow;
    response_input.message.error_message =
        Some("Your input exceeds the context window.".to_owned());
    Input::ResponseReceived(response_input)
}

fn finished_summary(transition: &Transition) -> Input {
    let first = transition.entries.first().unwrap().base.entry_id.clone();
    let usage = Usage { input: 7, total_tokens: 7, ..Usage::default() };
    let entry = Compaction {
        summary: "S".to_owned(),
        first_kept_entry_id: first,
        tokens_before: 9,
        details: None,
        from_hook: None,
        usage: Some(usage.into()),
        calls: Some(1),
        workspace: None,
        extra: Extra::new(),
    };
    let outcome =
        SummaryOutcome::Done(Box::new(FinishedSummary { compaction: entry, context: Vec::new() }));
    Input::SummaryFinished(Box::new(SummaryAttempt { usage, calls: 1, outcome, oversized: None }))
}

fn failed_summary(text: &str, failure_kind: FailureKind) -> Input {
    let outcome = SummaryOutcome::Failed { text: text.to_owned(), failure_kind };
    let usage = Usage { input: 3, total_tokens: 3, ..Usage::default() };
    Input::SummaryFinished(Box::new(SummaryAttempt { usage, calls: 1, outcome, oversized: None }))
}

fn last_compaction_end(transition: &Transition) -> Value {
    let end = transition
        .events
        .iter()
        .rev()
        .find(|event| matches!(event.body, EventBody::AutoCompactionEnd(_)));
    serde_json::to_value(&end.expect("the compaction has an end event").body).unwrap()
}

fn prompt_error(transition: &Transition) -> Option<String> {
    transition.entries.iter().rev().find_map(|entry| match &entry.body {
        crate::entry::EntryBody::PromptEnd(end) => {
            end.error.as_ref().map(|error| error.message.clone())
        }
        _ => None,
    })
}

#[test]
fn compaction_precedes_agent_settled_after_full_window() {
    let mut transition = with_context_window(100_000);
    let mut events = apply_inputs(
        &mut transition,
        &[prompt("go"), response(&["done"]), Input::ContextWindowExceeded],
    );
    assert_eq!(transition.head.required_reader(), 2, "older workers do not process it");
    let summary = finished_summary(&transition);
    events.extend(apply_inputs(&mut transition, &[summary]));
    insta::assert_snapshot!(events[8..].join("\n"), @r"
    turn_end 0
    agent_end
    prompt.completed
    auto_compaction_start
    auto_compaction_end
    agent_settled
    ");
    assert_eq!(transition.head.phase, crate::phase::Phase::Idle);
    assert_eq!(transition.head.usage.total_tokens, 15 + 7, "the summary counts too");
    assert_eq!(last_compaction_end(&transition)["willRetry"], false);
    let numbers: Vec<u64> = transition.events.iter().map(|event| event.n).collect();
    assert_eq!(numbers, (1..=transition.head.event_seq).collect::<Vec<_>>());
}

#[test]
fn compaction_after_tool_round_keeps_prompt_running() {
    let mut transition = with_context_window(100_000);
    let round = [
        prompt("go"),
        response(&["look {}"]),
        admitted_call(0, Effect::Read, None),
        returned_call(0, "seen"),
    ];
    apply_inputs(&mut transition, &round);
    apply_inputs(&mut transition, &[Input::ContextWindowExceeded]);
    let summary = finished_summary(&transition);
    let events = apply_inputs(
        &mut transition,
        &[summary, Input::ContextWindowExceeded, response(&["done"])],
    );
    assert_eq!(events[0], "auto_compaction_end");
    assert!(events.contains(&"agent_settled".to_owned()), "{events:?}");
    assert!(
        !events.contains(&"auto_compaction_start".to_owned()),
        "no new entry since: {events:?}"
    );
    let usage = transition.entries.iter().find_map(|entry| entry.body.compaction()?.usage.clone());
    assert_eq!(usage.unwrap().input, 7);
}

#[test]
fn context_overflow_is_compacted_and_requested_again() {
    let mut transition = with_context_window(100_000);
    let mut events = apply_inputs(&mut transition, &[prompt("go"), overflow_response()]);
    let summary_1 = finished_summary(&transition);
    events.extend(apply_inputs(&mut transition, &[summary_1, response(&["done"])]));
    let events: Vec<&str> =
        events.iter().map(String::as_str).filter(|line| !line.starts_with("prompt.")).collect();
    assert_eq!(last_compaction_end(&transition)["willRetry"], true);
    assert!(
        events.contains(&"auto_compaction_start") && events.last() == Some(&"agent_settled"),
        "{events:?}"
    );
    assert!(!events.iter().any(|line| line.starts_with("auto_retry")), "no retry in addition");
}

#[test]
fn second_context_overflow_fails_prompt() {
    let mut transition = with_context_window(100_000);
    apply_inputs(&mut transition, &[prompt("go"), overflow_response()]);
    let summary = finished_summary(&transition);
    apply_inputs(&mut transition, &[summary, overflow_response()]);
    assert_eq!(
        prompt_error(&transition).unwrap(),
        "Context overflow recovery failed: Your input exceeds the context window."
    );
    assert!(transition.head.prompt.is_none());
}

#[test]
fn failed_compaction_ends_prompt_only_after_overflow() {
    let failure = failed_summary("Summarization failed: no", FailureKind::Permanent);
    let mut transition = with_context_window(100_000);
    apply_inputs(&mut transition, &[prompt("go"), overflow_response(), failure.clone()]);
    let text = "Context overflow recovery failed: Summarization failed: no";
    assert_eq!(prompt_error(&transition).unwrap(), text);
    assert_eq!(last_compaction_end(&transition)["errorMessage"], text);
    let mut transition = with_context_window(100_000);
    apply_inputs(&mut transition, &[prompt("go"), Input::ContextWindowExceeded, failure]);
    assert_eq!(
        last_compaction_end(&transition)["errorMessage"],
        "Auto-compaction failed: Summarization failed: no"
    );
    assert!(matches!(transition.head.phase, crate::phase::Phase::Model { .. }));
    apply_inputs(&mut transition, &[response(&["done"])]);
    assert_eq!(prompt_error(&transition), None, "the prompt continued");
}

#[test]
fn failed_summary_is_retried() {
    let mut transition = with_context_window(100_000);
    let transient =
        FailureKind::Transient { retry_after: None, jitter_share: 0.0, is_throttled: false };
    apply_inputs(&mut transition, &[prompt("go"), Input::ContextWindowExceeded]);
    let events = apply_inputs(&mut transition, &[failed_summary("503", transient)]);
    assert_eq!(events, ["summarization_retry_scheduled"]);
    assert_eq!(transition.head.next_due(NOW), Some(Timestamp(NOW.0 + 2_000)));
    for _ in 0..2 {
        apply_inputs(&mut transition, &[failed_summary("503", transient)]);
    }
    let events = apply_inputs(&mut transition, &[failed_summary("503", transient)]);
    assert_eq!(events, ["summarization_retry_finished", "auto_compaction_end"], "four attempts");
}

#[test]
fn poisoned_compaction_fails_without_its_prompt() {
    let mut transition = with_context_window(100_000);
    let poison = Input::Poisoned { reason: "5 workers tried".to_owned() };
    apply_inputs(&mut transition, &[prompt("go"), Input::ContextWindowExceeded, poison]);
    assert_eq!(
        last_compaction_end(&transition)["errorMessage"],
        "Auto-compaction failed: 5 workers tried"
    );
    assert!(transition.head.prompt.is_some());
}

#[test]
fn abort_during_compaction_ends_summary_and_prompt() {
    let aborted_summary = || {
        let outcome = SummaryOutcome::Aborted;
        Input::SummaryFinished(Box::new(SummaryAttempt {
            usage: Usage::default(),
            calls: 1,
            outcome,
            oversized: None,
        }))
    };
    let transient =
        FailureKind::Transient { retry_after: None, jitter_share: 0.0, is_throttled: false };
    let end = [
        "auto_compaction_end",
        "message_start assistant:",
        "message_end assistant:",
        "turn_end 0",
        "agent_end",
        "prompt.completed",
        "agent_settled",
    ];
    for before in [vec![], vec![aborted_summary()], vec![failed_summary("503", transient)]] {
        let mut transition = with_context_window(100_000);
        apply_inputs(&mut transition, &[prompt("go"), Input::ContextWindowExceeded]);
        let is_retried = matches!(&before[..], [Input::SummaryFinished(it)] if matches!(it.outcome, SummaryOutcome::Failed { .. }));
        apply_inputs(&mut transition, &before);
        let abort = item("stop-pr_1", json!({"abort": {"promptId": "pr_1"}}));
        let events = apply_inputs(&mut transition, &[inbox_read(&[abort])]);
        let finished = is_retried.then_some("summarization_retry_finished");
        let expected: Vec<&str> = finished.into_iter().chain(end).collect();
        assert_eq!(events, expected);
        assert_eq!(last_compaction_end(&transition)["aborted"], true);
        let state = transition.head.prompts.last().unwrap().state;
        assert_eq!(state, PromptState::Aborted);
        assert_eq!(transition.head.phase, crate::phase::Phase::Idle);
        assert_eq!(
            (transition.head.reservation.clone(), transition.head.prompt.is_none()),
            (None, true)
        );
    }
}

#[test]
fn prompt_usage_includes_summaries_and_failed_attempts() {
    let mut transition = with_context_window(100_000);
    let transient =
        FailureKind::Transient { retry_after: None, jitter_share: 0.0, is_throttled: false };
    apply_inputs(
        &mut transition,
        &[
            prompt("go"),
            response(&["look {}"]),
            admitted_call(0, Effect::Read, None),
            returned_call(0, "seen"),
        ],
    );
    apply_inputs(
        &mut transition,
        &[Input::ContextWindowExceeded, failed_summary("503", transient)],
    );
    let summary = finished_summary(&transition);
    apply_inputs(&mut transition, &[summary, response(&["done"])]);
    let id = turnwheel_platform::ids::PromptId::new("pr_1");
    let view = build_prompt_view(&id, &transition.head, &transition.entries).unwrap();
    assert_eq!(view.usage.total_tokens, 15 + 3 + 7 + 15);
    assert_eq!(view.usage, transition.head.usage);
    let prompt_summary = crate::prompt_receipt::build_receipt(&id, &transition.entries).unwrap();
    assert_eq!(
        (prompt_summary.usage, prompt_summary.model_calls, prompt_summary.turns),
        (view.usage, 4, 2)
    );
    assert_eq!(transition.head.metering.spent.calls, 4);
    assert_eq!(transition.head.metering.spent.total_tokens, 40);
}

fn compact(instructions: Option<&str>) -> Vec<Input> {
    let input = CompactInput { instructions: instructions.map(ToOwned::to_owned) };
    vec![inbox_read_one(InboxItem {
        body: input.to_inbox_body(),
        ..item("in_9", json!({"abort": {}}))
    })]
}

#[test]
fn compact_command_starts_compaction_when_idle() {
    let mut transition = with_context_window(100_000);
    apply_inputs(&mut transition, &[prompt("go"), response(&["done"])]);
    let events = apply_inputs(&mut transition, &compact(Some("the prices")));
    assert_eq!(events, ["auto_compaction_start"]);
    let crate::phase::Phase::Summary { reason, instructions, .. } = &transition.head.phase else {
        panic!()
    };
    assert_eq!((*reason, instructions.as_deref()), (CompactionReason::Manual, Some("the prices")));
    let events = apply_inputs(
        &mut transition,
        &[failed_summary("Already compacted", FailureKind::Permanent)],
    );
    assert_eq!(events, ["auto_compaction_end", "agent_settled"]);
    assert_eq!(last_compaction_end(&transition)["errorMessage"], "Already compacted");
    apply_inputs(&mut transition, &compact(None));
    let outcome = SummaryOutcome::Cancelled;
    let cancelled = SummaryAttempt { usage: Usage::default(), calls: 0, outcome, oversized: None };
    apply_inputs(&mut transition, &[Input::SummaryFinished(Box::new(cancelled))]);
    assert_eq!(last_compaction_end(&transition)["errorMessage"], "Compaction cancelled");
    assert_eq!(last_compaction_end(&transition)["aborted"], true);
}

#[test]
fn silent_overflow_is_detected_from_usage() {
    let response = |stop: &str, usage: Value| -> AssistantMessage {
        serde_json::from_str(&json!({"content": [], "api": "a", "provider": "p", "model": "m", "stopReason": stop, "timestamp": 0, "usage": usage}).to_string()).unwrap()
    };
    let is_overflow = |stop, usage| detect_silent_overflow(&response(stop, usage), 1_000).is_some();
    assert!(!is_overflow("stop", json!({"input": 900_000})), "a complete response stays");
    assert!(is_overflow("length", json!({"input": 900, "output": 95})));
    assert!(
        !is_overflow("length", json!({"input": 500, "output": 95})),
        "the output limit was reached, not the window"
    );
    assert!(
        !is_overflow("toolUse", json!({"input": 5_000}))
            && !is_overflow("error", json!({"input": 5_000}))
    );
    let mut transition = with_context_window(100_000);
    let with_large_usage = |input: Input| {
        let Input::ResponseReceived(mut response_input) = input else { unreachable!() };
        response_input.message.usage = Usage { input: 100_001, ..Usage::default() }.into();
        response_input
    };
    let response_input =
        with_large_usage(response_with(&[json!({"type": "text", "text": "cut"})], "length"));
    apply_inputs(&mut transition, &[prompt("go"), Input::ResponseReceived(response_input)]);
    assert!(matches!(
        transition.head.phase,
        crate::phase::Phase::Summary { reason: CompactionReason::Overflow, .. }
    ));
    let mut transition = with_context_window(100_000);
    let complete = with_large_usage(super::response(&["paid"]));
    let events = apply_inputs(&mut transition, &[prompt("go"), Input::ResponseReceived(complete)]);
    assert!(events.contains(&"prompt.output".to_owned()), "the text is shown: {events:?}");
    assert_eq!(transition.head.prompts.last().unwrap().state, PromptState::Completed);
}

fn oversized(part: RefusedPart, is_repeatable: bool) -> RefusedInput {
    let repair =
        InputRepair { part, from_seq: 0, to_seq: 9, images_max: None, tool: None, schema: None };
    RefusedInput { repair, is_repeatable, is_too_large: true }
}

fn failed_recovery(text: &str, oversized: Option<RefusedInput>) -> Input {
    let outcome =
        SummaryOutcome::Failed { text: text.to_owned(), failure_kind: FailureKind::Permanent };
    let attempt = SummaryAttempt { usage: Usage::default(), calls: 0, outcome, oversized };
    Input::SummaryFinished(Box::new(attempt))
}

fn count_repairs(transition: &Transition) -> usize {
    let entries = transition.entries.iter();
    entries.filter(|entry| serde_json::to_string(entry).unwrap().contains("inputRepair")).count()
}

#[test]
fn oversized_message_is_left_out_of_later_requests() {
    let mut transition = with_context_window(100_000);
    let message = oversized(RefusedPart::Messages, false);
    let failure = failed_recovery("Nothing to compact", Some(message));
    apply_inputs(&mut transition, &[prompt("go"), overflow_response(), failure]);
    let error = prompt_error(&transition).unwrap();
    assert!(
        error.starts_with(
            "Context overflow recovery failed: Nothing to compact. The input is too large"
        ) && error.contains("Send a shorter one"),
        "{error}"
    );
    assert_eq!(count_repairs(&transition), 1);
    // The same for an overflow after the compaction.
    let mut transition = with_context_window(100_000);
    apply_inputs(&mut transition, &[prompt("go"), overflow_response()]);
    let summary = finished_summary(&transition);
    let Input::ResponseReceived(mut second) = overflow_response() else { unreachable!() };
    second.refused = Some(oversized(RefusedPart::Messages, false));
    apply_inputs(&mut transition, &[summary, Input::ResponseReceived(second)]);
    assert_eq!(count_repairs(&transition), 1);
}

#[test]
fn oversized_result_costs_one_more_call() {
    let mut transition = with_context_window(100_000);
    let result = oversized(RefusedPart::ToolResults, true);
    let failure = failed_recovery("Nothing to compact", Some(result));
    apply_inputs(&mut transition, &[prompt("go"), overflow_response(), failure]);
    assert!(matches!(transition.head.phase, crate::phase::Phase::Model { .. }));
    apply_inputs(&mut transition, &[response(&["done"])]);
    assert_eq!(prompt_error(&transition), None);
    assert_eq!(count_repairs(&transition), 1);
}

#[test]
fn failure_outlives_note_of_fixed_part() {
    let mut transition = with_context_window(100_000);
    let measured = Input::FixedPartMeasured(Some("The instructions exceed it.".to_owned()));
    let failure = failed_recovery("no such deployment", None);
    apply_inputs(&mut transition, &[prompt("go"), measured, overflow_response(), failure]);
    let note = transition.head.compaction_note.clone().unwrap();
    assert!(note.is_fixed_part, "{}", note.text);
    let unchanged = "nothing has changed since the last attempt. no such deployment";
    assert_eq!(note.unchanged_text(), unchanged);
    apply_inputs(&mut transition, &[Input::FixedPartMeasured(None)]);
    let note = transition.head.compaction_note.unwrap();
    assert!(!note.is_fixed_part, "{}", note.text);
    assert_eq!(note.unchanged_text(), unchanged);
}

#[test]
fn reason_of_failed_recovery_is_not_nested() {
    let note = |text: &str| CompactionNote::new(1, None, text).unchanged_text();
    let once = note("Context overflow recovery failed: no room");
    assert_eq!(once, "nothing has changed since the last attempt. no room");
    assert_eq!(note(&format!("Context overflow recovery failed: {once}")), once);
}
