//! Steers and follow-ups: when they are appended, and which calls they skip.

use super::*;
use crate::entry::EntryBody;
use crate::phase::Phase;
use crate::prompt_view::build_prompt_view;

fn steer(id: &str, text: &str) -> InboxItem {
    item(
        id,
        json!({"steer": {"promptId": format!("pr_{id}"), "user": "default", "input": text, "visible": true, "source": "user"}}),
    )
}

fn steer_when_idle_hold(id: &str, text: &str) -> InboxItem {
    item(
        id,
        json!({"steer": {"promptId": format!("pr_{id}"), "user": "default", "whenIdle": "hold", "input": text, "visible": true, "source": "user"}}),
    )
}

fn follow_up(id: &str, text: &str) -> InboxItem {
    item(
        id,
        json!({"followUp": {"promptId": format!("pr_{id}"), "user": "default", "input": text, "visible": true, "source": "user"}}),
    )
}

/// Role and text of each stored message, in order.
fn message_lines(transition: &Transition) -> Vec<String> {
    let messages = transition.entries.iter().filter_map(|entry| entry.body.message());
    messages
        .map(|message| {
            let message = serde_json::to_value(message).unwrap();
            let content = &message["content"];
            let text = content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or("");
            format!("{}:{text}", message["role"].as_str().unwrap())
        })
        .collect()
}

#[test]
fn steers_of_persons_are_told_from_those_of_extensions() {
    let by_extension = item(
        "in_3",
        json!({"steer": {"promptId": "pr_3", "user": "default", "input": "of an extension", "visible": true, "source": "plugin"}}),
    );
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[
            prompt("go"),
            response(&["echo {}"]),
            admitted_call(0, Effect::Read, None),
            returned_call(0, "echo:1"),
            inbox_read(&[by_extension]),
        ],
    );
    assert!(message_lines(&transition).contains(&"user:of an extension".to_owned()));
    let mut messages = transition.person_messages();
    let texts: Vec<String> =
        transition.entries.iter().filter_map(|entry| messages.text(entry)).collect();
    assert_eq!(texts, ["go"]);
}

const SKIPPED: &str = "toolResult:Skipped due to queued user message.";

#[test]
fn steer_skips_calls_that_have_not_started() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[
            prompt("go"),
            response(&["echo {}", "echo {}", "echo {}"]),
            admitted_call(0, Effect::Read, None),
        ],
    );
    let events = apply_inputs(
        &mut transition,
        &[returned_call(0, "echo:1"), inbox_read(&[steer("in_2", "stop, do this")])],
    );
    assert_eq!(
        events,
        [
            "tool_execution_end echo",
            "message_start toolResult:echo:1",
            "message_end toolResult:echo:1",
            "prompt.output",
            "tool_execution_start echo",
            "tool_execution_end echo error",
            "message_start toolResult:Skipped due to queued user message.",
            "message_end toolResult:Skipped due to queued user message.",
            "prompt.output",
            "tool_execution_start echo",
            "tool_execution_end echo error",
            "message_start toolResult:Skipped due to queued user message.",
            "message_end toolResult:Skipped due to queued user message.",
            "prompt.output",
            "turn_end 3",
            "turn_start",
            "message_start user:stop, do this",
            "message_end user:stop, do this",
        ]
    );
    let receipt = transition.receipts.last().unwrap();
    assert_eq!(receipt.ran_calls, ["c0|fc_0"]);
    assert_eq!(receipt.skipped_calls, ["c1|fc_1", "c2|fc_2"]);
    assert_eq!(receipt.prompt_id, Some(turnwheel_platform::ids::PromptId::new("pr_1")));
    assert_eq!(transition.head.phase, Phase::Model { attempt: 1, not_before: None });
}

#[test]
fn steer_during_response_skips_all_its_calls() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[prompt("go"), response(&["pay {}", "pay {}"]), inbox_read(&[steer("in_2", "no")])],
    );
    assert_eq!(message_lines(&transition), ["user:go", "assistant:", SKIPPED, SKIPPED, "user:no"]);
}

#[test]
fn steer_waits_for_open_approval_request() {
    let mut transition = transition();
    let gated_call = admitted_call(0, Effect::Write, Some("much"));
    apply_inputs(&mut transition, &[prompt("go"), response(&["pay {}", "pay {}"]), gated_call]);
    assert!(apply_inputs(&mut transition, &[inbox_read(&[steer("in_2", "wait")])]).is_empty());
    assert_eq!(transition.head.waiting_items, 1);
    let rejection = decision(&transition, Verdict::Reject, Some("no"));
    apply_inputs(&mut transition, &[rejection, inbox_read(&[steer("in_2", "wait")])]);
    assert_eq!(message_lines(&transition)[2..], ["toolResult:no", SKIPPED, "user:wait"]);
    let receipt = transition.receipts.last().unwrap();
    assert!(receipt.ran_calls.is_empty(), "a rejected call did not run");
    assert_eq!(receipt.skipped_calls, ["c1|fc_1"]);
}

#[test]
fn steer_waits_for_batch_when_skipping_is_disabled() {
    let mut transition = transition();
    transition.policy.should_steer_skip_tools = false;
    apply_inputs(
        &mut transition,
        &[prompt("go"), response(&["a {}", "b {}"]), admitted_call(0, Effect::Read, None)],
    );
    apply_inputs(&mut transition, &[returned_call(0, "1"), inbox_read(&[steer("in_2", "then")])]);
    apply_inputs(&mut transition, &[admitted_call(1, Effect::Read, None), returned_call(1, "2")]);
    step(&mut transition, &Input::DrainInbox);
    assert_eq!(message_lines(&transition)[2..], ["toolResult:1", "toolResult:2", "user:then"]);
    assert_eq!(transition.receipts.last().unwrap().ran_calls.len(), 2);
}

#[test]
fn steering_mode_appends_one_or_all_steers() {
    for (mode, expected) in [
        (QueueMode::OneAtATime, vec!["user:go", "user:a", "assistant:1", "user:b", "assistant:2"]),
        (QueueMode::All, vec!["user:go", "user:a", "user:b", "assistant:1"]),
    ] {
        let mut transition = transition();
        transition.policy.steering_mode = mode;
        apply_inputs(
            &mut transition,
            &[prompt("go"), inbox_read(&[steer("in_2", "a"), steer("in_3", "b")])],
        );
        // A second drain before the response appends no other steer: repeated deliveries are safe.
        step(&mut transition, &Input::DrainInbox);
        apply_inputs(&mut transition, &[response(&["1"])]);
        if mode == QueueMode::OneAtATime {
            apply_inputs(&mut transition, &[response(&["2"])]);
        }
        assert_eq!(message_lines(&transition), expected);
        assert_eq!(transition.head.phase, Phase::Idle);
    }
}

#[test]
fn steer_continues_prompt_after_final_response() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), inbox_read(&[])]);
    step(
        &mut transition,
        &Input::InboxRead(vec![PendingItem {
            item: Arc::new(steer("in_2", "more")),
            bytes: 1,
            is_new: false,
        }]),
    );
    let events = apply_inputs(&mut transition, &[response(&["done"])]);
    let end = events.iter().position(|event| event == "turn_end 0").unwrap();
    assert_eq!(
        events[end + 1..],
        ["turn_start", "message_start user:more", "message_end user:more"]
    );
    assert_eq!(transition.head.prompts.len(), 1);
}

#[test]
fn follow_ups_in_mode_all_share_one_prompt() {
    let mut transition = transition();
    transition.policy.follow_up_mode = QueueMode::All;
    let waiting = inbox_read(&[follow_up("in_2", "f1"), follow_up("in_3", "f2")]);
    apply_inputs(&mut transition, &[prompt("go"), waiting, response(&["r1"]), response(&["r2"])]);
    assert_eq!(
        message_lines(&transition),
        ["user:go", "assistant:r1", "user:f1", "user:f2", "assistant:r2"]
    );
    let first = Some(turnwheel_platform::ids::PromptId::new("pr_in_2"));
    assert!(transition.receipts[1..].iter().all(|receipt| receipt.prompt_id == first));
    assert_eq!(transition.receipts.len(), 3);
}

#[test]
fn steer_with_hold_joins_next_prompt() {
    let mut transition = transition();
    assert!(
        apply_inputs(&mut transition, &[inbox_read(&[steer_when_idle_hold("in_2", "extra")])])
            .is_empty()
    );
    assert_eq!((transition.head.waiting_items, transition.head.next_due(NOW)), (0, None));
    let first = item(
        "in_3",
        json!({"prompt": {"promptId": "pr_1", "user": "default", "input": "go", "visible": true, "source": "user"}}),
    );
    apply_inputs(
        &mut transition,
        &[inbox_read(&[steer_when_idle_hold("in_2", "extra"), first]), response(&["ok"])],
    );
    assert_eq!(message_lines(&transition), ["user:go", "user:extra", "assistant:ok"]);
    assert_eq!(transition.head.turn, 1, "in the first turn");
}

#[test]
fn steer_starts_prompt_when_idle() {
    let mut transition = transition();
    let events = apply_inputs(&mut transition, &[inbox_read(&[steer("in_2", "hello")])]);
    assert_eq!(events[..3], ["prompt.created", "agent_start", "turn_start"]);
}

#[test]
fn failed_response_leaves_follow_ups_queued() {
    let mut transition = transition();
    let waiting = inbox_read(&[follow_up("in_2", "f1")]);
    apply_inputs(&mut transition, &[prompt("go"), waiting, response_with(&[], "error")]);
    assert_eq!((transition.head.phase.clone(), transition.head.waiting_items), (Phase::Idle, 1));
    assert_eq!(transition.receipts.len(), 1);
}

#[test]
fn round_limit_ends_prompt_with_steer_waiting() {
    let mut transition = transition();
    transition.policy.rounds_max = Some(1);
    let waiting = Input::InboxRead(vec![PendingItem {
        item: Arc::new(steer("in_2", "more")),
        bytes: 1,
        is_new: false,
    }]);
    apply_inputs(&mut transition, &[prompt("go")]);
    step(&mut transition, &waiting);
    let events = apply_inputs(&mut transition, &[response(&["done"])]);
    assert!(events.contains(&"agent_end".to_owned()));
    assert_eq!((transition.head.waiting_items, transition.head.next_due(NOW)), (1, Some(NOW)));
}

fn next_turn_message(id: &str, text: &str) -> InboxItem {
    let message = json!({"customType": "note", "content": text, "display": true});
    let custom = json!({"promptId": format!("pr_{id}"), "user": "default", "message": message, "deliverAs": "nextTurn"});
    item(id, json!({ "custom": custom }))
}

#[test]
fn next_turn_message_joins_user_prompts_only() {
    let note = next_turn_message("in_2", "by the way");
    let prompt_from = |source: &str| {
        let prompt = json!({"promptId": "pr_3", "user": "default", "input": "go", "visible": true, "source": source});
        item("in_3", json!({ "prompt": prompt }))
    };
    let continue_input =
        json!({"promptId": "pr_3", "user": "default", "isAnswered": true, "turn": 0});
    let failing_continue = item("in_3", json!({ "continue": continue_input }));
    for (starter, joins) in [
        (prompt_from("user"), true),
        (prompt_from("queue"), true),
        (prompt_from("schedule"), false),
        (failing_continue, false),
    ] {
        let mut transition = transition();
        step(&mut transition, &inbox_read(&[note.clone(), starter]));
        step(&mut transition, &Input::DrainInbox);
        let has_message =
            transition.entries.iter().any(|it| matches!(it.body, EntryBody::CustomMessage(_)));
        assert_eq!((has_message, transition.pending.len()), (joins, usize::from(!joins)));
    }
}

#[test]
fn steer_is_not_input_of_prompt_without_input() {
    let mut transition = transition();
    let prompt_without_input = item(
        "in_1",
        json!({"prompt": {"promptId": "pr_1", "user": "default", "visible": true, "source": "user"}}),
    );
    apply_inputs(
        &mut transition,
        &[inbox_read(&[prompt_without_input, steer("in_2", "more")]), response(&["done"])],
    );
    assert_eq!(message_lines(&transition), ["user:more", "assistant:done"]);
    let view = build_prompt_view(
        &turnwheel_platform::ids::PromptId::new("pr_1"),
        &transition.head,
        &transition.entries,
    );
    assert_eq!(view.unwrap().input, None);
}
