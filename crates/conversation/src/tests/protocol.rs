//! The loop `protocol`: failures in a row, malformed calls and the reader version.

use super::*;
use crate::entry::PromptState;
use crate::phase::Phase;

fn protocol_transition() -> Transition {
    let mut transition = transition();
    transition.policy.is_protocol = true;
    transition.policy.rounds_max = Some(10);
    transition
}

/// A response whose calls could not be read.
fn malformed_response(has_end: bool) -> Input {
    let Input::ResponseReceived(mut input) = response(&["Error: Malformed tool call syntax. …"])
    else {
        unreachable!()
    };
    let details = json!({"hasMalformedCalls": true, "hasEnd": has_end});
    input.message.extra.insert("protocolDetails".to_owned(), details);
    Input::ResponseReceived(input)
}

fn failed_call(index: usize) -> Input {
    rejected_call(index, "Tool 'nope' not registered")
}

fn state(transition: &Transition) -> PromptState {
    transition.head.prompts.last().unwrap().state
}

/// G05, in one response: all calls of the batch run, and the prompt ends.
#[test]
fn three_failures_in_a_row_end_the_prompt() {
    let mut transition = protocol_transition();
    let calls = response(&["a {}", "b {}", "c {}", "d {}"]);
    apply_inputs(&mut transition, &[prompt("go"), calls]);
    let ok = [admitted_call(0, Effect::Read, None), returned_call(0, "A")];
    apply_inputs(&mut transition, &ok);
    let events = apply_inputs(&mut transition, &[failed_call(1), failed_call(2), failed_call(3)]);
    assert_eq!(
        events[events.len() - 7..],
        [
            "turn_end 4",
            "message_start assistant:Max failures. Terminating.",
            "message_end assistant:Max failures. Terminating.",
            "prompt.output",
            "agent_end",
            "prompt.error",
            "agent_settled",
        ]
    );
    let view = view(&transition);
    assert_eq!(view["state"], "failed");
    assert_eq!(
        view["error"],
        json!({"type": "max_failures", "message": "Max failures. Terminating."})
    );
}

#[test]
fn failures_are_counted_over_turns_and_a_success_resets_them() {
    let mut transition = protocol_transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    for _ in 0..2 {
        apply_inputs(&mut transition, &[response(&["a {}"]), failed_call(0)]);
    }
    let success =
        [response(&["a {}"]), admitted_call(0, Effect::Read, None), returned_call(0, "A")];
    apply_inputs(&mut transition, &success);
    for failures in 1..=3 {
        assert_eq!(state(&transition), PromptState::Running, "{failures}");
        apply_inputs(&mut transition, &[response(&["a {}"]), failed_call(0)]);
    }
    assert_eq!(state(&transition), PromptState::Failed);
    // The other loops have no such limit.
    let mut other = super::transition();
    apply_inputs(&mut other, &[prompt("go")]);
    for _ in 0..4 {
        apply_inputs(&mut other, &[response(&["a {}"]), failed_call(0)]);
    }
    assert_eq!(state(&other), PromptState::Running);
    assert_eq!(other.head.prompt.unwrap().failures_in_row, 0);
}

#[test]
fn rejected_calls_and_steers_are_no_failures() {
    let mut transition = protocol_transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    for _ in 0..3 {
        let gated = admitted_call(0, Effect::Write, Some("Gated"));
        apply_inputs(&mut transition, &[response(&["a {}"]), gated]);
        let reject = decision(&transition, Verdict::Reject, None);
        apply_inputs(&mut transition, &[reject]);
    }
    assert_eq!(state(&transition), PromptState::Running);
    let body = json!({"steer": {"promptId": "pr_2", "user": "default", "input": "stop", "visible": true, "source": "user"}});
    apply_inputs(&mut transition, &[response(&["a {}", "b {}", "c {}"])]);
    let steer = inbox_read_one(item("in_2", body));
    apply_inputs(&mut transition, &[steer]);
    assert_eq!(state(&transition), PromptState::Running, "skipped calls");
}

#[test]
fn steer_starts_the_count_of_failures_anew() {
    let mut transition = protocol_transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    apply_inputs(&mut transition, &[malformed_response(false), malformed_response(false)]);
    let body = json!({"steer": {"promptId": "pr_2", "user": "default", "input": "try", "visible": true, "source": "user"}});
    apply_inputs(&mut transition, &[inbox_read_one(item("in_2", body))]);
    apply_inputs(&mut transition, &[malformed_response(false), malformed_response(false)]);
    assert_eq!(state(&transition), PromptState::Running);
    apply_inputs(&mut transition, &[malformed_response(false)]);
    assert_eq!(state(&transition), PromptState::Failed);
}

#[test]
fn model_is_called_again_after_malformed_calls() {
    let mut transition = protocol_transition();
    let events = apply_inputs(&mut transition, &[prompt("go"), malformed_response(false)]);
    assert_eq!(events.last().unwrap(), "turn_end 0");
    assert_eq!(transition.head.phase, Phase::MODEL_CALL);
    apply_inputs(&mut transition, &[malformed_response(false), response(&["done"])]);
    assert_eq!(state(&transition), PromptState::Completed);
    // Three in a row end the prompt, and so does `<end>`.
    let mut transition = protocol_transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    apply_inputs(&mut transition, &[malformed_response(false), malformed_response(false)]);
    assert_eq!(state(&transition), PromptState::Running);
    apply_inputs(&mut transition, &[malformed_response(false)]);
    assert_eq!(state(&transition), PromptState::Failed);
    let mut transition = protocol_transition();
    apply_inputs(&mut transition, &[prompt("go"), malformed_response(true)]);
    assert_eq!(state(&transition), PromptState::Completed);
    // Only in this loop.
    let mut transition = super::transition();
    apply_inputs(&mut transition, &[prompt("go"), malformed_response(false)]);
    assert_eq!(state(&transition), PromptState::Completed);
}

#[test]
fn malformed_calls_respect_the_round_limit() {
    let mut transition = protocol_transition();
    transition.policy.rounds_max = Some(2);
    apply_inputs(&mut transition, &[prompt("go")]);
    apply_inputs(&mut transition, &[malformed_response(false), malformed_response(false)]);
    let view = view(&transition);
    assert_eq!((&view["state"], &view["stopReason"]), (&json!("completed"), &json!("max_rounds")));
}

#[test]
fn protocol_prompt_requires_reader_8() {
    let mut transition = protocol_transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    crate::step::finish_commit(&mut transition);
    assert_eq!(transition.head.required_reader(), 8);
    apply_inputs(&mut transition, &[response(&["done"])]);
    crate::step::finish_commit(&mut transition);
    assert_eq!(transition.head.required_reader(), 1, "without a prompt");
    for settings in
        [r#"{"loop": "protocol"}"#, r#"{"historyWindow": 2}"#, r#"{"protocolMode": "auto"}"#]
    {
        transition.head.settings = serde_json::from_str(settings).unwrap();
        assert_eq!(transition.head.required_reader(), 8, "{settings}");
    }
}
