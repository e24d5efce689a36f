//! Retries of failed model calls.

use super::*;
use crate::entry::PromptState;
use crate::phase::Phase;
use crate::projection::{project_messages, to_model_messages};
use crate::prompt_view::RetryView;
use crate::settings::RetrySettings;

/// A response that breaks off with a transient failure.
fn failing_response(text: &str) -> Input {
    let Input::ResponseReceived(mut response) =
        response_with(&[json!({"type": "text", "text": text})], "error")
    else {
        panic!("not a response")
    };
    response.failure_kind =
        FailureKind::Transient { retry_after: None, jitter_share: 0.0, is_throttled: false };
    Input::ResponseReceived(response)
}

#[test]
fn model_call_succeeds_after_two_transient_failures() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    let events = apply_inputs(&mut transition, &[failing_response("par")]);
    assert_eq!(
        events,
        [
            "message_start assistant:par",
            "message_end assistant:par",
            "turn_end 0",
            "agent_end will retry",
            "message_reset",
            "auto_retry_start 1 of 3 in 2000",
        ]
    );
    assert_eq!(
        transition.head.next_due(NOW),
        Some(Timestamp(NOW.0 + 2_000)),
        "the phase stores the retry time"
    );
    assert_eq!(view(&transition)["state"], "running");
    assert_eq!(view(&transition)["retry"]["attempt"], 1);
    assert_eq!(view(&transition)["output"], json!([]), "the failed output is void");

    let events = apply_inputs(&mut transition, &[failing_response("part")]);
    assert_eq!(events[..2], ["agent_start", "turn_start"]);
    assert_eq!(events.last().unwrap(), "auto_retry_start 2 of 3 in 4000");
    let events = apply_inputs(&mut transition, &[response(&["partial no more"])]);
    assert_eq!(
        events,
        [
            "agent_start",
            "turn_start",
            "message_start assistant:partial no more",
            "message_end assistant:partial no more",
            "auto_retry_end 2 None",
            "prompt.output",
            "turn_end 0",
            "agent_end",
            "prompt.completed",
            "agent_settled",
        ]
    );
    let view = view(&transition);
    assert_eq!((&view["state"], &view["retry"]), (&json!("completed"), &json!(null)));
    assert_eq!(view["output"].as_array().unwrap().len(), 1);
    assert_eq!(view["usage"]["totalTokens"], 45, "failed attempts count too");
    assert_eq!(transition.head.turn, 3);
}

#[test]
fn failed_responses_are_stored_but_not_sent() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), failing_response("par"), response(&["whole"])]);
    let stored: Vec<_> = project_messages(&transition.entries);
    assert_eq!(stored.len(), 3);
    let sent = to_model_messages(stored);
    let roles: Vec<_> = sent.iter().map(|message| message.role()).collect();
    assert_eq!(roles, ["user", "assistant"]);
    let ids: std::collections::HashSet<_> =
        transition.entries.iter().map(|entry| entry.base.entry_id.clone()).collect();
    assert_eq!(ids.len(), transition.entries.len(), "each attempt is a separate message");
}

#[test]
fn agent_end_spans_messages_of_its_run() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), failing_response("par"), response(&["whole"])]);
    let spans: Vec<usize> = transition
        .events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::AgentEnd(end) => Some(end.from_seq..=end.to_seq),
            _ => None,
        })
        .map(|span| {
            let of_span = transition.entries.iter().filter(|entry| span.contains(&entry.base.seq));
            of_span.filter(|entry| entry.body.message().is_some()).count()
        })
        .collect();
    assert_eq!(spans, [2, 1], "user message and failure, then the response alone");
}

#[test]
fn prompt_fails_with_last_error_when_retries_end() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[prompt("go"), failing_response("1"), failing_response("2"), failing_response("3")],
    );
    let events = apply_inputs(&mut transition, &[failing_response("4")]);
    assert_eq!(
        events[2..],
        [
            "message_start assistant:4",
            "message_end assistant:4",
            "prompt.output",
            "turn_end 0",
            "agent_end",
            "auto_retry_end 3 Some(\"503 service unavailable\")",
            "prompt.error",
            "agent_settled",
        ]
    );
    assert_eq!(
        (view(&transition)["state"].as_str(), transition.head.phase),
        (Some("failed"), Phase::Idle)
    );
}

#[test]
fn retry_count_resets_after_response() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[prompt("go"), failing_response("1"), failing_response("2"), response(&["echo {}"])],
    );
    apply_inputs(&mut transition, &[admitted_call(0, Effect::Read, None), returned_call(0, "x")]);
    let events = apply_inputs(&mut transition, &[failing_response("3")]);
    assert_eq!(events.last().unwrap(), "auto_retry_start 1 of 3 in 2000");
    assert_eq!(
        transition.head.prompt.as_ref().unwrap().rounds,
        1,
        "a failure does not count as a round"
    );
}

#[test]
fn permanent_failure_is_not_retried() {
    let without = RetrySettings { enabled: false, ..RetrySettings::default() };
    for (retry, input) in [
        (without, failing_response("par")),
        (
            RetrySettings::default(),
            response_with(&[json!({"type": "text", "text": "par"})], "error"),
        ),
    ] {
        let mut transition = transition();
        transition.policy.retry = retry;
        let events = apply_inputs(&mut transition, &[prompt("go"), input]);
        assert!(!events.iter().any(|line| line.contains("retry")), "{events:?}");
        assert_eq!(transition.head.prompts[0].state, PromptState::Failed);
    }
}

#[test]
fn steer_during_retry_delay_keeps_delay() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), failing_response("par")]);
    let body = json!({"promptId": "pr_2", "user": "default", "input": "also", "visible": true, "source": "user"});
    let events =
        apply_inputs(&mut transition, &[inbox_read(&[item("in_2", json!({"steer": body}))])]);
    assert_eq!(
        events,
        ["agent_start", "turn_start", "message_start user:also", "message_end user:also"]
    );
    assert_eq!(transition.head.next_due(NOW), Some(Timestamp(NOW.0 + 2_000)));
    let events = apply_inputs(&mut transition, &[response(&["both"])]);
    assert_eq!(
        events[..3],
        ["message_start assistant:both", "message_end assistant:both", "auto_retry_end 1 None"]
    );
}

#[test]
fn retry_state_survives_storage() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), failing_response("par")]);
    let stored = serde_json::to_string(&transition.head).unwrap();
    assert_eq!(serde_json::from_str::<Head>(&stored).unwrap(), transition.head);
    let failed = transition.entries.last().unwrap();
    let stored = serde_json::to_string(failed).unwrap();
    let read: Entry = serde_json::from_str(&stored).unwrap();
    assert_eq!(&read, failed.as_ref());
    assert!(stored.contains("\"isRetried\":true"), "{stored}");
}

#[test]
fn prompt_end_during_retry_delay_is_emitted_once() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), failing_response("par")]);
    assert!(RetryView::from_head(&transition.head).is_some());
    let events =
        apply_inputs(&mut transition, &[Input::Poisoned { reason: "five workers".to_owned() }]);
    assert_eq!(
        events,
        ["auto_retry_end 1 Some(\"five workers\")", "prompt.error", "agent_settled"],
        "the run ended with the failed response"
    );
    assert_eq!(RetryView::from_head(&transition.head), None);
}

/// The text of the source (RE-05).
#[test]
fn abort_during_retry_delay_cancels_the_retry() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), failing_response("par")]);
    let abort = item("stop", json!({"abort": {"promptId": "pr_1"}}));
    let events = apply_inputs(&mut transition, &[inbox_read(&[abort])]);
    let end = "auto_retry_end 1 Some(\"Retry cancelled\")".to_owned();
    assert!(events.contains(&end), "{events:?}");
    assert_eq!(transition.head.prompts[0].state, PromptState::Aborted);
}
