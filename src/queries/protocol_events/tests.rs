//! Tests of the protocol's events of one stream.

use std::sync::Arc;

use super::*;
use crate::agent::raw::RawJson;
use crate::ids::{EntryId, PromptId};

const AT: Timestamp = Timestamp(1_795_292_349_669);

fn source(payload: EventPayload) -> StreamEvent {
    let prompt_id = Some(PromptId::new("pr_1"));
    StreamEvent { number: None, at: AT, prompt_id, turn: 1, payload }
}

fn other(kind: EventKind, members: Value) -> StreamEvent {
    source(EventPayload::Other { kind, members: RawJson::from_value(&members) })
}

fn update(event: AssistantMessageEvent) -> StreamEvent {
    source(EventPayload::MessageUpdate { message_id: EntryId::new("e1"), event })
}

fn text_delta(delta: &str) -> StreamEvent {
    update(AssistantMessageEvent::TextDelta { content_index: 1, delta: delta.to_owned() })
}

fn start() -> StreamEvent {
    source(EventPayload::MessageStart { message_id: EntryId::new("e1"), message: None })
}

/// The end of a response with thinking, text and a call.
fn end() -> StreamEvent {
    let entry: Entry = serde_json::from_value(json!({
        "type": "message", "entryId": "e1", "parentId": null, "seq": 1,
        "timestamp": "2026-11-23T12:00:00.000Z",
        "message": {
            "role": "assistant", "api": "a", "provider": "p", "model": "m", "stopReason": "toolUse",
            "timestamp": 1, "usage": {"input": 7, "output": 3},
            "content": [
                {"type": "thinking", "thinking": "Hm."},
                {"type": "text", "text": "I pay."},
                {"type": "toolCall", "id": "c1", "name": "pay", "arguments": {"to": "Zo\u{eb}"}},
            ],
        },
    }))
    .unwrap();
    let message = Some(EventMessage::Stored(Arc::new(entry)));
    source(EventPayload::MessageEnd { message_id: EntryId::new("e1"), message })
}

/// Type and content of the events, in lines.
fn lines(view: &mut ProtocolEvents, sources: &[StreamEvent]) -> Vec<String> {
    let events = sources.iter().flat_map(|source| view.convert(source));
    let line = |event: Value| {
        assert_eq!(event["timestamp"], json!(1_795_292_349.669));
        let content = event["content"].as_str().unwrap_or_default();
        format!("{} {content}", event["type"].as_str().unwrap()).trim_end().to_owned()
    };
    events.map(line).collect()
}

const CALL: &str = r#"call {"name": "pay", "args": {"to": "Zo\u00eb"}}"#;

#[test]
fn complete_texts_come_with_the_end_of_the_response() {
    let mut view = ProtocolEvents::new(TextUnit::Event);
    let events = lines(&mut view, &[start(), text_delta("I "), end()]);
    assert_eq!(events, ["think Hm.", "respond I pay.", CALL, "execute", "metric"]);
}

#[test]
fn pieces_are_sent_once_and_the_end_has_the_rest() {
    let mut view = ProtocolEvents::new(TextUnit::Token);
    let events = lines(&mut view, &[start(), text_delta("I "), text_delta("pa"), end()]);
    let expected =
        ["respond I", "respond pa", "think Hm.", "respond y.", CALL, "execute", "metric"];
    assert_eq!(events, expected);
    // A reader that comes later has the content so far from a snapshot.
    let content = json!([{"type": "thinking", "thinking": "H"}, {"type": "text", "text": "I p"}]);
    let snapshot =
        other(EventKind::MessageSnapshot, json!({"messageId": "e1", "content": content}));
    let events = lines(&mut view, &[start(), snapshot.clone(), text_delta("ay"), snapshot, end()]);
    let expected = ["think H", "respond I p", "respond ay", "think m.", "respond .", CALL];
    assert_eq!(events[..6], expected);
}

#[test]
fn repeated_response_is_reset_if_pieces_were_sent() {
    let reset = source(EventPayload::MessageReset { message_id: EntryId::new("e1") });
    let mut view = ProtocolEvents::new(TextUnit::Token);
    let events = lines(&mut view, &[start(), text_delta("I "), reset.clone(), start(), end()]);
    assert_eq!(events[..4], ["respond I", "reset", "think Hm.", "respond I pay."]);
    let mut view = ProtocolEvents::new(TextUnit::Event);
    assert_eq!(lines(&mut view, &[start(), text_delta("I "), reset]), [""; 0]);
}

#[test]
fn ends_of_prompts_have_their_events() {
    let mut view = ProtocolEvents::new(TextUnit::Event);
    let sources = [
        other(EventKind::PromptCompleted, json!({"state": "completed"})),
        other(EventKind::PromptCompleted, json!({"state": "aborted"})),
        other(EventKind::PromptError, json!({"error": {"message": "no model"}})),
    ];
    let expected = ["end", "interrupt Task interrupted by user", "error no model"];
    assert_eq!(lines(&mut view, &sources), expected);
}

#[test]
fn total_is_that_of_a_prompt_from_its_start() {
    let mut view = ProtocolEvents::new(TextUnit::Event);
    let metric = |view: &mut ProtocolEvents| view.convert(&end()).pop().unwrap();
    assert_eq!(metric(&mut view)["step"], json!({"input": 7, "output": 3}));
    assert!(metric(&mut view).get("total").is_none(), "the stream began within the prompt");
    view.convert(&other(EventKind::PromptCreated, json!({})));
    metric(&mut view);
    assert_eq!(metric(&mut view)["total"], json!({"input": 14, "output": 6}));
}
