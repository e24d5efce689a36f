//! Tests of the state machine: they apply inputs and compare one line per event.

#![expect(
    clippy::wildcard_enum_match_arm,
    clippy::needless_pass_by_value,
    clippy::format_collect,
    reason = "test helpers favour readable tests over fast ones"
)]

mod abort;
mod action_bounds;
mod actions;
mod bash;
mod changed_calls;
mod compaction;
mod compaction_step;
mod failures;
mod finish_turn;
mod fork;
mod hidden_characters;
mod indeterminate_writes;
mod insert;
mod parallel_calls;
mod plugin_state;
mod projection;
mod prompt_lifecycle;
mod prompt_summary;
mod protocol;
mod questions;
mod retry;
mod steering;
mod stored_formats;
mod strict_json;
mod waiting_commands;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::entry::Entry;
use crate::event::{Event, EventBody};
use crate::head::Head;
use crate::inbox::{InboxBody, InboxItem};
use crate::message::{AssistantMessage, Message};
use crate::phase::OnUnknown;
use crate::prompt_view::build_prompt_view;
use crate::request::{Decision, Effect, Verdict};
use crate::settings::QueueMode;
use crate::step::{
    ApprovalSpec, CallPlan, CallResult, FailureKind, Input, Preflight, ResponseInput, step,
};
use crate::transition::{PendingItem, Policy, Transition};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{InputId, RequestId};

pub(super) const NOW: Timestamp = Timestamp(1_795_292_349_669);

pub(super) fn head() -> Head {
    serde_json::from_value(json!({
        "schema": 1, "minReader": 1, "tenant": "default", "user": "default", "conversationId": "c",
        "incarnation": "0a1b2c3d", "commitId": "first", "revision": 1, "phase": {"owed": "idle"},
        "seq": 0, "eventSeq": 0, "turn": 0, "agent": "clerk", "createdAt": NOW, "updatedAt": NOW,
    }))
    .unwrap()
}

/// The view of the first prompt.
pub(super) fn view(transition: &Transition) -> serde_json::Value {
    let id = turnwheel_platform::ids::PromptId::new("pr_1");
    serde_json::to_value(build_prompt_view(&id, &transition.head, &transition.entries).unwrap())
        .unwrap()
}

pub(super) fn policy() -> Policy {
    Policy {
        has_start_hook: false,
        is_protocol: false,
        is_resume: false,
        rounds_max: Some(25),
        context_budget: crate::compaction::ContextBudget::default(),
        hard_rounds_max: 200,
        concurrency: 1,
        retry: crate::settings::RetrySettings::default(),
        model: "normal".to_owned(),
        steering_mode: QueueMode::OneAtATime,
        follow_up_mode: QueueMode::OneAtATime,
        should_steer_skip_tools: true,
        drained_operations_max: 60,
        drained_bytes_max: 500_000,
        has_notification_receiver: false,
        learns_profile: false,
        should_notify_results: false,
        budget: None,
        settle_after: Duration::from_mins(10),
        extension_prompts_max: 8,
    }
}

pub(super) fn transition() -> Transition {
    Transition::new(head(), None, policy(), NOW)
}

pub(super) fn prompt(text: &str) -> Input {
    let body = json!({"prompt": {"promptId": "pr_1", "user": "default", "input": text, "visible": true, "source": "user"}});
    inbox_read_one(item("in_1", body))
}

/// An inbox read that returns one item.
pub(super) fn inbox_read_one(item: InboxItem) -> Input {
    inbox_read(&[item])
}

/// An inbox read that returns these items.
pub(super) fn inbox_read(items: &[InboxItem]) -> Input {
    let pending =
        |item: &InboxItem| PendingItem { item: Arc::new(item.clone()), bytes: 100, is_new: false };
    Input::InboxRead(items.iter().map(pending).collect())
}

fn item(id: &str, body: serde_json::Value) -> InboxItem {
    InboxItem {
        input_id: InputId::new(id),
        accepted_at: NOW,
        idempotency: crate::inbox::IdempotencyRecord::default(),
        traceparent: None,
        body: serde_json::from_str(&body.to_string()).unwrap(),
    }
}

pub(super) fn decision(transition: &Transition, verdict: Verdict, reason: Option<&str>) -> Input {
    let request_id = transition
        .head
        .requests
        .first()
        .map_or_else(|| RequestId::new("gone"), |request| request.id.clone());
    let decision = Decision {
        request_id: request_id.clone(),
        verdict,
        reason: reason.map(ToOwned::to_owned),
        value: None,
        decided_by: "default".to_owned(),
        decided_at: NOW,
    };
    inbox_read_one(InboxItem {
        traceparent: None,
        body: InboxBody::Decision(decision),
        ..item(&format!("decision-{request_id}"), json!({"abort": {}}))
    })
}

/// A model response. `content`: texts, or calls as `name {json}`.
pub(super) fn response(content: &[&str]) -> Input {
    let blocks: Vec<serde_json::Value> = content
        .iter()
        .enumerate()
        .map(|(number, part)| match part.split_once(" {") {
            Some((name, rest)) => {
                let arguments: serde_json::Value = serde_json::from_str(&format!("{{{rest}")).unwrap();
                json!({"type": "toolCall", "id": format!("c{number}|fc_{number}"), "name": name, "arguments": arguments})
            }
            None => json!({"type": "text", "text": part}),
        })
        .collect();
    let stop =
        if blocks.iter().any(|block| block["type"] == "toolCall") { "toolUse" } else { "stop" };
    response_with(&blocks, stop)
}

pub(super) fn response_with(blocks: &[serde_json::Value], stop: &str) -> Input {
    let message: AssistantMessage = serde_json::from_str(
        &json!({
            "content": blocks, "api": "a", "provider": "p", "model": "m", "stopReason": stop, "timestamp": 0,
            "errorMessage": (stop == "error").then_some("503 service unavailable"),
            "usage": {"input": 10, "output": 5, "totalTokens": 15},
        })
        .to_string(),
    )
    .unwrap();
    let failure_kind = FailureKind::Permanent;
    Input::ResponseReceived(Box::new(ResponseInput {
        refused: None,
        message,
        revision: "r1".to_owned(),
        started_at: NOW,
        failure_kind,
        error_type: "model",
        schema_error: None,
        frame: None,
        plugin_state: Vec::new(),
    }))
}

pub(super) fn admitted_call(index: usize, effect: Effect, approval_reason: Option<&str>) -> Input {
    let approval = approval_reason.map(|reason| ApprovalSpec {
        reason: reason.to_owned(),
        approvers: vec!["owner".to_owned()],
        not_requester: false,
        refusal: None,
        expires_at: Timestamp(NOW.0 + 1_000),
    });
    Input::ToolCallChecked {
        index,
        preflight: Preflight::Admitted(Box::new(CallPlan {
            effect,
            on_unknown: OnUnknown::Ask,
            until: Timestamp(NOW.0 + 30_000),
            binding: "bound".to_owned(),
            destination: None,
            label: None,
            changed_arguments: None,
            sent_arguments: None,
            fingerprint: "print".to_owned(),
            approval,
        })),
    }
}

pub(super) fn rejected_call(index: usize, text: &str) -> Input {
    Input::ToolCallChecked {
        index,
        preflight: Preflight::Rejected { text: text.to_owned(), terminate: false },
    }
}

pub(super) fn returned_call(index: usize, text: &str) -> Input {
    let content = vec![crate::content::Block::text(text)];
    Input::ToolCallReturned {
        index,
        result: Box::new(CallResult { content, ..CallResult::default() }),
    }
}

pub(super) fn lost_result(index: usize) -> Input {
    Input::ToolOutcomeUnknown {
        index,
        reason: "time-out".to_owned(),
        expires_at: Timestamp(NOW.0 + 9_000),
    }
}

/// Applies the inputs and returns one line per event. After an inbox read, it drains the inbox.
pub(super) fn apply_inputs(transition: &mut Transition, inputs: &[Input]) -> Vec<String> {
    let before = transition.events.len();
    for input in inputs {
        step(transition, input);
        if matches!(input, Input::InboxRead(_)) {
            step(transition, &Input::DrainInbox);
        }
    }
    transition.finish();
    transition.events.iter().skip(before).map(|event| event_line(transition, event)).collect()
}

fn event_line(transition: &Transition, event: &Event) -> String {
    let name = event.body.name();
    let message_line = |seq: u64| {
        let entry = transition.entries.iter().find(|entry| entry.base.seq == seq).unwrap();
        let Some(message) = entry.body.message() else { return "custom".to_owned() };
        let message = serde_json::to_value(message).unwrap();
        let content = &message["content"];
        let text = content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or("");
        format!("{}:{text}", message["role"].as_str().unwrap())
    };
    match &event.body {
        EventBody::MessageStart(message) | EventBody::MessageEnd(message) => {
            format!("{name} {}", message_line(message.seq))
        }
        EventBody::ToolExecutionStart(start) => format!("{name} {}", start.tool_name),
        EventBody::ToolExecutionEnd(end) => {
            format!("{name} {}{}", end.tool_name, if end.is_error { " error" } else { "" })
        }
        EventBody::TurnEnd(end) => format!("{name} {}", end.tool_results.len()),
        EventBody::AgentEnd(end) if end.will_retry => format!("{name} will retry"),
        EventBody::AutoRetryStart(start) => {
            format!("{name} {} of {} in {}", start.attempt, start.max_attempts, start.delay_ms)
        }
        EventBody::AutoRetryEnd(end) => {
            format!("{name} {} {:?}", end.attempt, end.final_error)
        }
        _ => name,
    }
}

/// The texts of the results on the path, in its order.
pub(super) fn result_texts(entries: &[Arc<Entry>]) -> Vec<String> {
    let results = entries.iter().filter_map(|entry| match entry.body.message() {
        Some(Message::ToolResult(result)) => Some(crate::content::joined_text(&result.content)),
        _ => None,
    });
    results.collect()
}
