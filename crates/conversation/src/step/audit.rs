//! The notification of tool results (`audit: { notify: true }`): one for each commit that stores
//! results.

use serde_json::{Value, json};

use crate::entry::{Entry, EntryBody};
use crate::event::{Event, EventBody, ToolExecutionEnd};
use crate::request::CallRef;
use crate::transition::Transition;
use turnwheel_platform::ids::EffectId;

/// Adds the notification. Call it once, after the last input of the commit.
pub(super) fn notify_results(transition: &mut Transition) {
    if !transition.policy.should_notify_results {
        return;
    }
    let ended = |event: &Event| {
        let EventBody::ToolExecutionEnd(end) = &event.body else { return None };
        Some((event.prompt_id.clone(), end.clone()))
    };
    let ended: Vec<_> = transition.events.iter().filter_map(ended).collect();
    let Some((prompt_id, _)) = ended.first() else { return };
    let prompt_id = prompt_id.clone();
    let results: Vec<Value> = ended.iter().map(|(_, end)| result(transition, end)).collect();
    let lines = ended.iter().map(|(_, end)| {
        format!("{}: {}", end.tool_name, if end.is_error { "FAILED" } else { "OK" })
    });
    let text = lines.collect::<Vec<_>>().join(", ");
    let data = json!({"promptId": prompt_id, "results": results});
    transition.enqueue_notification("tool.result", &data, &text);
}

fn result(transition: &Transition, end: &ToolExecutionEnd) -> Value {
    let entry = transition.entries.iter().find(|entry| entry.base.seq == end.result);
    let effect_id = entry.and_then(|entry| call_of(entry)).map(|call| {
        let head = &transition.head;
        EffectId::from_call(&head.conversation_id, &head.incarnation, call.response_seq, call.index)
    });
    json!({
        "toolCallId": end.tool_call_id, "toolName": end.tool_name, "isError": end.is_error,
        "effectId": effect_id, "seq": end.result,
    })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "most kinds of entry are no result")]
fn call_of(entry: &Entry) -> Option<CallRef> {
    match &entry.body {
        EntryBody::Message(message) => message.call,
        EntryBody::ToolReturned(returned) => Some(returned.call),
        _ => None,
    }
}
