//! Lifecycle of prompts, as events and views.

use super::*;
use crate::entry::{EntryBody, PromptState};
use crate::message::Rejection;
use crate::phase::{CallStatus, Phase};

#[test]
fn prompt_emits_events_in_order() {
    let mut transition = transition();
    let events = apply_inputs(&mut transition, &[prompt("Hi"), response(&["Hello"])]);
    assert_eq!(
        events,
        [
            "prompt.created",
            "agent_start",
            "turn_start",
            "message_start user:Hi",
            "message_end user:Hi",
            "message_start assistant:Hello",
            "message_end assistant:Hello",
            "prompt.output",
            "turn_end 0",
            "agent_end",
            "prompt.completed",
            "agent_settled",
        ]
    );
    assert_eq!(transition.head.phase, Phase::Idle);
    assert_eq!(view(&transition)["state"], "completed");
    assert_eq!(view(&transition)["output"][0]["content"], "Hello");
}

#[test]
fn event_numbers_and_entry_seqs_have_no_gaps() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[
            prompt("go"),
            response(&["echo {}"]),
            admitted_call(0, Effect::Read, None),
            returned_call(0, "x"),
            response(&["done"]),
        ],
    );
    assert!(transition.events.iter().map(|event| event.n).eq(1..=transition.head.event_seq));
    assert!(transition.entries.iter().map(|entry| entry.base.seq).eq(1..=transition.head.seq));
}

#[test]
fn tool_round_is_a_separate_turn() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), response(&["echo {}"])]);
    let events = apply_inputs(
        &mut transition,
        &[admitted_call(0, Effect::Read, None), returned_call(0, "echo:x"), response(&["done"])],
    );
    assert_eq!(
        events,
        [
            "tool_execution_start echo",
            "tool_execution_end echo",
            "message_start toolResult:echo:x",
            "message_end toolResult:echo:x",
            "prompt.output",
            "turn_end 1",
            "turn_start",
            "message_start assistant:done",
            "message_end assistant:done",
            "prompt.output",
            "turn_end 0",
            "agent_end",
            "prompt.completed",
            "agent_settled",
        ]
    );
    assert_eq!(transition.head.turn, 2);
}

#[test]
fn tool_intent_is_stored_before_result() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[prompt("go"), response(&["pay {}"]), admitted_call(0, Effect::Write, None)],
    );
    assert!(matches!(transition.entries.last().unwrap().body, EntryBody::ToolStarted(_)));
    assert!(matches!(transition.calls()[0].status, CallStatus::Started { .. }));
}

#[test]
fn every_call_gets_exactly_one_result() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), response(&["a {}", "b {}", "c {}"])]);
    let inputs = [
        rejected_call(0, "no"),
        admitted_call(1, Effect::Read, None),
        returned_call(1, "1"),
        returned_call(1, "again"),
        admitted_call(2, Effect::Read, None),
        returned_call(2, "2"),
    ];
    apply_inputs(&mut transition, &inputs);
    let results: Vec<String> = transition
        .entries
        .iter()
        .filter_map(|entry| entry.body.message())
        .filter(|message| message.role() == "toolResult")
        .map(|message| {
            serde_json::to_value(message).unwrap()["content"][0]["text"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(results, ["no", "1", "2"]);
}

#[test]
fn gated_call_blocks_later_calls() {
    let mut transition = transition();
    let events = apply_inputs(
        &mut transition,
        &[
            prompt("Go"),
            response(&["first {}", "gated {}", "last {}"]),
            admitted_call(0, Effect::Read, None),
            returned_call(0, "1"),
            admitted_call(1, Effect::Write, Some("Gated")),
        ],
    );
    assert_eq!(events.last().unwrap(), "prompt.approval-requested");
    assert_eq!(transition.head.state(), crate::head::State::WaitingForApproval);
    assert_eq!(transition.head.next_due(NOW), Some(Timestamp(NOW.0 + 1_000)));
    let output = &view(&transition)["output"];
    assert_eq!(output[0]["result"]["type"], "success");
    assert_eq!(output[1]["result"], json!({"type": "pending", "reason": "Gated"}));
    assert_eq!(output.as_array().unwrap().len(), 2);
    // The call does not start while its request is open.
    assert!(
        apply_inputs(&mut transition, &[admitted_call(1, Effect::Write, Some("Gated"))]).is_empty()
    );
}

#[test]
fn approved_call_runs_and_updates_its_output() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[prompt("Go"), response(&["gated {}"]), admitted_call(0, Effect::Write, Some("Gated"))],
    );
    let approve = decision(&transition, Verdict::Approve, None);
    let events = apply_inputs(
        &mut transition,
        &[approve, admitted_call(0, Effect::Write, Some("Gated")), returned_call(0, "paid")],
    );
    assert_eq!(events[..2], ["prompt.approval-settled", "tool_execution_start gated"]);
    assert!(events.contains(&"prompt.output-updated".to_owned()));
    assert_eq!(
        view(&transition)["output"][0]["result"],
        json!({"type": "success", "output": "paid"})
    );
    assert!(transition.head.requests.is_empty());
}

#[test]
fn changed_tool_definition_needs_new_approval() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[prompt("Go"), response(&["gated {}"]), admitted_call(0, Effect::Write, Some("Gated"))],
    );
    let approve = decision(&transition, Verdict::Approve, None);
    let Input::ToolCallChecked { preflight: Preflight::Admitted(mut changed), .. } =
        admitted_call(0, Effect::Write, Some("Changed"))
    else {
        panic!()
    };
    changed.binding = "another".to_owned();
    let events = apply_inputs(
        &mut transition,
        &[approve, Input::ToolCallChecked { index: 0, preflight: Preflight::Admitted(changed) }],
    );
    assert_eq!(events.last().unwrap(), "prompt.approval-requested");
    assert_eq!(transition.head.requests.len(), 1);
    assert_eq!(
        transition.head.requests[0].reason,
        "The tool changed after this call was approved, so it needs a new decision. Its definition or its arguments changed. Changed"
    );
}

#[test]
fn label_of_a_tool_is_shown_beside_its_name() {
    let mut transition = transition();
    transition.policy.has_notification_receiver = true;
    let Input::ToolCallChecked { preflight: Preflight::Admitted(mut plan), .. } =
        admitted_call(0, Effect::Write, Some("Gated"))
    else {
        panic!()
    };
    plan.label = Some("Pay money out".to_owned());
    let checked = Input::ToolCallChecked { index: 0, preflight: Preflight::Admitted(plan) };
    apply_inputs(&mut transition, &[prompt("Go"), response(&["gated {}"]), checked.clone()]);
    let request = &transition.head.requests[0];
    assert_eq!(request.title, "May Pay money out (gated) run?");
    assert_eq!(request.label.as_deref(), Some("Pay money out"));
    let data = transition.notifications.last().unwrap().data.to_value();
    assert_eq!(data["approval"]["toolLabel"], "Pay money out");
    let approve = decision(&transition, Verdict::Approve, None);
    apply_inputs(&mut transition, &[approve, checked]);
    let labels: Vec<_> = transition
        .events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::ToolExecutionStart(start) => Some(start.label.as_deref()),
            _ => None,
        })
        .collect();
    assert_eq!(labels, [Some("Pay money out")]);
    let lost = Input::ToolOutcomeUnknown {
        index: 0,
        reason: "cut".to_owned(),
        expires_at: Timestamp(NOW.0 + 9_000),
    };
    apply_inputs(&mut transition, &[lost]);
    assert_eq!(transition.head.requests[0].title, "Did Pay money out (gated) happen?");
}

#[test]
fn refusal_of_an_extension_precedes_the_reason() {
    let text = |reason: Option<&str>, refusal| {
        let reason = reason.map(ToOwned::to_owned);
        Rejection { by: "ann".to_owned(), reason }.result_text(refusal)
    };
    assert_eq!(text(None, None), "Rejected by user");
    assert_eq!(text(Some("no"), None), "no");
    assert_eq!(text(None, Some("Blocked by guardrails")), "Blocked by guardrails");
    assert_eq!(text(Some("no"), Some("Blocked by guardrails")), "Blocked by guardrails: no");
}

#[test]
fn rejected_call_never_runs_and_model_receives_rejection() {
    let rejection = |reason: Option<&str>| match reason {
        Some(reason) => json!({"by": "default", "reason": reason}),
        None => json!({"by": "default"}),
    };
    for (verdict, reason, result, model_text) in [
        (
            Verdict::Reject,
            None,
            json!({"type": "error", "error": "Rejected by user", "rejected": rejection(None)}),
            "Rejected by user",
        ),
        (
            Verdict::Reject,
            Some("paid by hand"),
            json!({"type": "error", "error": "paid by hand", "rejected": rejection(Some("paid by hand"))}),
            "paid by hand",
        ),
        (
            Verdict::Expired,
            None,
            json!({"type": "error", "error": "Approval expired"}),
            "Approval expired",
        ),
    ] {
        let mut transition = transition();
        apply_inputs(
            &mut transition,
            &[
                prompt("Go"),
                response(&["gated {}"]),
                admitted_call(0, Effect::Write, Some("Gated")),
            ],
        );
        let decision_input = decision(&transition, verdict, reason);
        let events = apply_inputs(&mut transition, &[decision_input]);
        let position = |event: &str| events.iter().position(|it| it == event);
        let (start, end) =
            (position("tool_execution_start gated"), position("tool_execution_end gated error"));
        assert!(start.is_some() && start < end, "{events:?}");
        assert_eq!(view(&transition)["output"][0]["result"], result);
        assert_eq!(result_texts(&transition.entries), [model_text]);
        assert_eq!(transition.head.phase, Phase::Model { attempt: 1, not_before: None });
    }
}

#[test]
fn decision_without_open_request_is_ignored() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[prompt("Go"), response(&["gated {}"]), admitted_call(0, Effect::Write, Some("Gated"))],
    );
    let approve = decision(&transition, Verdict::Approve, None);
    apply_inputs(
        &mut transition,
        &[
            approve.clone(),
            admitted_call(0, Effect::Write, Some("Gated")),
            returned_call(0, "paid"),
        ],
    );
    assert!(apply_inputs(&mut transition, &[approve]).is_empty());
    assert_eq!(transition.receipts.last().unwrap().outcome, crate::inbox::InputOutcome::Ignored);
}

#[test]
fn failed_response_fails_prompt_and_is_stored() {
    let mut transition = transition();
    let events = apply_inputs(
        &mut transition,
        &[prompt("go"), response_with(&[json!({"type": "text", "text": "par"})], "error")],
    );
    assert_eq!(
        events[5..],
        [
            "message_start assistant:par",
            "message_end assistant:par",
            "prompt.output",
            "turn_end 0",
            "agent_end",
            "prompt.error",
            "agent_settled"
        ]
    );
    let view = view(&transition);
    assert_eq!(view["state"], "failed");
    assert_eq!(view["error"], json!({"type": "model", "message": "503 service unavailable"}));
}

#[test]
fn calls_of_truncated_response_are_not_executed() {
    let mut transition = transition();
    let call = json!({"type": "toolCall", "id": "c1", "name": "pay", "arguments": {}});
    apply_inputs(&mut transition, &[prompt("go"), response_with(&[call], "length")]);
    assert!(
        !transition.entries.iter().any(|entry| matches!(entry.body, EntryBody::ToolStarted(_)))
    );
    assert_eq!(view(&transition)["output"][0]["result"]["type"], "error");
    assert_eq!(transition.head.phase, Phase::Model { attempt: 1, not_before: None });
}

#[test]
fn round_limit_ends_prompt_with_message() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    for _ in 0..25 {
        apply_inputs(
            &mut transition,
            &[response(&["echo {}"]), admitted_call(0, Effect::Read, None), returned_call(0, "x")],
        );
    }
    let view = view(&transition);
    assert_eq!((&view["state"], &view["stopReason"]), (&json!("completed"), &json!("max_rounds")));
    let last = view["output"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["content"], "Exceeded maximum number of rounds (25). Stopping.");
}

#[test]
fn hard_round_limit_has_its_own_message() {
    let mut transition = transition();
    transition.policy.rounds_max = None;
    transition.policy.hard_rounds_max = 2;
    apply_inputs(&mut transition, &[prompt("go")]);
    for _ in 0..2 {
        apply_inputs(
            &mut transition,
            &[response(&["echo {}"]), admitted_call(0, Effect::Read, None), returned_call(0, "x")],
        );
    }
    let last = view(&transition)["output"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["content"], "Stopped after 2 rounds: the service's hard limit.");
}

#[test]
fn poisoned_step_fails_prompt_and_conversation_continues() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[
            prompt("go"),
            response(&["a {}", "b {}"]),
            admitted_call(0, Effect::Write, None),
            Input::Poisoned { reason: "five claims".to_owned() },
        ],
    );
    let view = view(&transition);
    assert_eq!(view["state"], "failed");
    assert_eq!(view["error"]["type"], "poisoned");
    assert_eq!(view["output"].as_array().unwrap().len(), 2);
    assert_eq!(transition.head.phase, Phase::Idle);
    let events = apply_inputs(&mut transition, &[prompt("next")]);
    assert_eq!(events[0], "prompt.created");
}

#[test]
fn poisoned_model_call_ends_turn_with_failure() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    let events =
        apply_inputs(&mut transition, &[Input::Poisoned { reason: "five claims".to_owned() }]);
    let expected = [
        "message_start assistant:",
        "message_end assistant:",
        "turn_end 0",
        "agent_end",
        "prompt.error",
        "agent_settled",
    ];
    assert_eq!(events, expected);
    let view = view(&transition);
    assert_eq!((&view["state"], &view["error"]["type"]), (&json!("failed"), &json!("poisoned")));
    assert_eq!(view["output"], json!([]));
}

#[test]
fn second_prompt_waits_for_first() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("one")]);
    assert!(apply_inputs(&mut transition, &[prompt("two")]).is_empty());
    assert_eq!((transition.receipts.len(), transition.head.waiting_items), (1, 1));
    // A failed response ends the run; the waiting prompt is pending work.
    let events = apply_inputs(&mut transition, &[response_with(&[], "error")]);
    assert!(events.contains(&"agent_end".to_owned()));
    assert!(!events.contains(&"agent_settled".to_owned()), "a prompt still waits");
    assert_eq!(transition.head.next_due(NOW), Some(NOW));
    assert_eq!(transition.head.prompts[0].state, PromptState::Failed);
}

#[test]
fn same_inputs_give_same_transition() {
    let inputs = [
        prompt("go"),
        response(&["x {\"a\":1}"]),
        admitted_call(0, Effect::Read, None),
        returned_call(0, "r"),
        response(&["done"]),
    ];
    let (mut one, mut two) = (transition(), transition());
    apply_inputs(&mut one, &inputs);
    apply_inputs(&mut two, &inputs);
    assert_eq!((one.head, one.entries, one.events), (two.head, two.entries, two.events));
}
