//! Tests of the protocol's events of one stream.

#![expect(clippy::needless_pass_by_value, reason = "the helpers take `json!` values")]

use std::sync::Arc;

use super::*;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::{EntryId, PromptId};

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
    source(EventPayload::MessageStart {
        message_id: EntryId::new("e1"),
        message: None,
        input_id: None,
    })
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
    source(EventPayload::MessageEnd { message_id: EntryId::new("e1"), message, input_id: None })
}

/// The end of a response with these members of its message, as an entry with the flag `isRetried`.
fn end_of(message: Value, is_retried: bool) -> StreamEvent {
    let mut whole = json!({
        "role": "assistant", "api": "a", "provider": "p", "model": "m", "stopReason": "stop",
        "timestamp": 1, "usage": {"input": 7, "output": 3}, "content": [],
    });
    whole.as_object_mut().unwrap().extend(message.as_object().unwrap().clone());
    let entry: Entry = serde_json::from_value(json!({
        "type": "message", "entryId": "e1", "parentId": null, "seq": 1, "message": whole,
        "timestamp": "2026-11-23T12:00:00.000Z", "isRetried": is_retried,
    }))
    .unwrap();
    let message = Some(EventMessage::Stored(Arc::new(entry)));
    source(EventPayload::MessageEnd { message_id: EntryId::new("e1"), message, input_id: None })
}

/// The end of a response that failed after half a text and a call.
fn failed_end(is_retried: bool) -> StreamEvent {
    let content = json!([
        {"type": "text", "text": "I p"},
        {"type": "toolCall", "id": "c1", "name": "pay", "arguments": {}},
    ]);
    end_of(json!({"stopReason": "error", "errorMessage": "500", "content": content}), is_retried)
}

/// The end of the turn whose response ended with this event.
fn turn_end_of(end: StreamEvent) -> StreamEvent {
    let EventPayload::MessageEnd { message, .. } = end.payload else { panic!("no end") };
    source(EventPayload::TurnEnd { message, tool_results: Vec::new() })
}

fn reset() -> StreamEvent {
    source(EventPayload::MessageReset { message_id: EntryId::new("e1") })
}

fn call_end() -> StreamEvent {
    let call = serde_json::from_value(
        json!({"type": "toolCall", "id": "c1", "name": "pay", "arguments": {}}),
    );
    let tool_call = turnwheel_conversation::event::TypedToolCall { call: call.unwrap() };
    update(AssistantMessageEvent::ToolcallEnd { content_index: 2, tool_call })
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
    let mut view = ProtocolEvents::new(TextUnit::Event, false);
    let events = lines(&mut view, &[start(), text_delta("I "), end()]);
    assert_eq!(events, ["think Hm.", "respond I pay.", CALL, "execute", "metric"]);
}

#[test]
fn pieces_are_sent_once_and_the_end_has_the_rest() {
    let mut view = ProtocolEvents::new(TextUnit::Token, false);
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
    let mut view = ProtocolEvents::new(TextUnit::Token, false);
    let events = lines(&mut view, &[start(), text_delta("I "), reset.clone(), start(), end()]);
    assert_eq!(events[..4], ["respond I", "reset", "think Hm.", "respond I pay."]);
    let mut view = ProtocolEvents::new(TextUnit::Event, false);
    assert_eq!(lines(&mut view, &[start(), text_delta("I "), reset]), [""; 0]);
}

#[test]
fn failed_response_is_no_part_of_the_story_if_it_is_retried() {
    for unit in [TextUnit::Token, TextUnit::Event] {
        let mut view = ProtocolEvents::new(unit, false);
        let attempt = [start(), text_delta("I p"), call_end(), failed_end(true), reset()];
        let events = lines(&mut view, &attempt);
        let call = r#"call {"name": "pay", "args": {}}"#;
        let sent: &[&str] =
            if unit == TextUnit::Token { &["respond I p", call, "reset"] } else { &[] };
        assert_eq!(events, sent);
        let events = lines(&mut view, &[start(), end()]);
        assert_eq!(events, ["think Hm.", "respond I pay.", CALL, "execute", "metric"]);
    }
    // The tokens of the failed attempt are paid.
    let mut view = ProtocolEvents::new(TextUnit::Event, false);
    view.convert(&other(EventKind::PromptCreated, json!({})));
    view.convert(&failed_end(true));
    let metric = view.convert(&end()).pop().unwrap();
    assert_eq!(metric["total"], json!({"input": 14, "output": 6}));
}

#[test]
fn last_failed_response_has_its_text_without_calls() {
    let mut view = ProtocolEvents::new(TextUnit::Event, false);
    assert_eq!(lines(&mut view, &[start(), failed_end(false)]), ["respond I p", "metric"]);
    let mut view = ProtocolEvents::new(TextUnit::Token, false);
    let events = lines(&mut view, &[start(), call_end(), failed_end(false)]);
    assert_eq!(events[1..], ["reset", "respond I p", "metric"]);
}

#[test]
fn resumed_stream_resets_before_the_response_in_progress() {
    let turn_end = || source(EventPayload::TurnEnd { message: None, tool_results: Vec::new() });
    let whole = ["reset", "think Hm.", "respond I pay.", CALL, "execute", "metric"];
    for unit in [TextUnit::Token, TextUnit::Event] {
        // The response ended while the client was away.
        let mut view = ProtocolEvents::new(unit, true);
        assert_eq!(lines(&mut view, &[start(), end()]), whole);
        assert_eq!(lines(&mut view, &[start(), end()]), whole[1..], "only before the first one");
        // Another worker repeats it.
        let mut view = ProtocolEvents::new(unit, true);
        assert_eq!(lines(&mut view, &[reset(), start(), end()]), whole);
        // The client knows that it has not begun.
        for first in [other(EventKind::PromptCreated, json!({})), turn_end()] {
            let mut view = ProtocolEvents::new(unit, true);
            assert_eq!(lines(&mut view, &[first, start(), end()]), whole[1..]);
        }
    }
    let content = json!([{"type": "thinking", "thinking": ""}, {"type": "text", "text": "I p"}]);
    let snapshot =
        other(EventKind::MessageSnapshot, json!({"messageId": "e1", "content": content}));
    let mut view = ProtocolEvents::new(TextUnit::Token, true);
    let events = lines(&mut view, &[start(), snapshot, text_delta("ay"), end()]);
    assert_eq!(events[..4], ["reset", "respond I p", "respond ay", "think Hm."]);
    let mut view = ProtocolEvents::new(TextUnit::Token, true);
    assert_eq!(lines(&mut view, &[start(), text_delta("I ")]), ["reset", "respond I"]);
}

#[test]
fn resumed_stream_resets_retried_response() {
    let whole = ["reset", "think Hm.", "respond I pay.", CALL, "execute", "metric"];
    for unit in [TextUnit::Token, TextUnit::Event] {
        // The order of the stored events. The client has the first ones from its earlier stream.
        for received in 0..4 {
            let agent_end = EventPayload::AgentEnd { messages: Vec::new(), will_retry: true };
            let failed =
                [failed_end(true), turn_end_of(failed_end(true)), source(agent_end), reset()];
            let sources = failed.into_iter().skip(received).chain([start(), end()]);
            let sources: Vec<StreamEvent> = sources.collect();
            let mut view = ProtocolEvents::new(unit, true);
            assert_eq!(lines(&mut view, &sources), whole, "{received}");
            assert_eq!(lines(&mut view, &[start(), end()]), whole[1..], "only once");
        }
        // No attempt follows the last one, so the next response is that of another turn.
        let mut view = ProtocolEvents::new(unit, true);
        let last = turn_end_of(failed_end(false));
        assert_eq!(lines(&mut view, &[last, start(), end()]), whole[1..]);
    }
}

#[test]
fn response_that_differs_from_its_pieces_is_reset() {
    let mut view = ProtocolEvents::new(TextUnit::Token, false);
    let events = lines(&mut view, &[start(), text_delta("You "), end()]);
    assert_eq!(events[..4], ["respond You", "reset", "think Hm.", "respond I pay."]);
    // The end may trim the text.
    let trimmed = end_of(json!({"content": [{"type": "text", "text": "I"}]}), false);
    let delta = |text: &str| {
        update(AssistantMessageEvent::TextDelta { content_index: 0, delta: text.to_owned() })
    };
    let mut view = ProtocolEvents::new(TextUnit::Token, false);
    let events = lines(&mut view, &[start(), delta("I"), delta(" \n"), trimmed]);
    assert_eq!(events, ["respond I", "respond", "metric"]);
}

#[test]
fn third_failure_ends_with_result_and_end() {
    let text = json!([{"type": "text", "text": "Max failures. Terminating."}]);
    let of_service = end_of(json!({"provider": "turnwheel", "content": text}), false);
    let error = json!({"error": {"type": "max_failures", "message": "Max failures. Terminating."}});
    let ended = other(EventKind::PromptError, error);
    let mut view = ProtocolEvents::new(TextUnit::Event, false);
    let expected = ["result Max failures. Terminating.", "end"];
    assert_eq!(lines(&mut view, &[of_service, ended]), expected);
    let of_model = end_of(json!({"content": text}), false);
    let events = lines(&mut view, &[of_model]);
    assert_eq!(events, ["respond Max failures. Terminating.", "metric"]);
}

#[test]
fn ends_of_prompts_have_their_events() {
    let mut view = ProtocolEvents::new(TextUnit::Event, false);
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
    let mut view = ProtocolEvents::new(TextUnit::Event, false);
    let metric = |view: &mut ProtocolEvents| view.convert(&end()).pop().unwrap();
    assert_eq!(metric(&mut view)["step"], json!({"input": 7, "output": 3}));
    assert!(metric(&mut view).get("total").is_none(), "the stream began within the prompt");
    view.convert(&other(EventKind::PromptCreated, json!({})));
    metric(&mut view);
    assert_eq!(metric(&mut view)["total"], json!({"input": 14, "output": 6}));
}
