//! Folding streams: shapes of the service, of compatible services and of errors.

#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better without `&`")]

use serde_json::json;

use super::*;
use crate::Prices;
use turnwheel_conversation::content::joined_text;

/// [`fold_twice`] with the emitted events as values.
pub(super) fn fold_events(events: &[Value]) -> (Vec<Value>, FoldedResponse) {
    let (emitted, folded) = fold_twice(events);
    let emitted = emitted.into_iter().map(|event| serde_json::to_value(event).unwrap());
    (emitted.collect(), folded)
}

/// Folds the events as frames and as JSON trees, and asserts that both give the same result.
pub(super) fn fold_twice(events: &[Value]) -> (Vec<AssistantMessageEvent>, FoldedResponse) {
    let base = Prices { input: 1.0, output: 10.0, cache_read: 0.1, cache_write: 0.0 };
    let tariff = Tariff { base, long_context: None };
    let [mut fold, mut fold_of_trees] =
        [(); 2].map(|()| ResponseFold::new("gpt-5-mini", tariff, ToolNames::default()));
    let mut emitted = Vec::new();
    for event in events {
        let applied = fold.push_frame(None, &event.to_string());
        let tree = ProviderEvent::from_json(event.clone());
        assert_eq!(
            applied,
            tree.map(|tree| fold_of_trees.push_event(&tree)).unwrap_or_default(),
            "{event}"
        );
        emitted.extend(applied);
    }
    let folded = fold.finish();
    assert_eq!(folded.message, fold_of_trees.finish().message);
    (emitted, folded)
}

pub(super) fn item_added(index: u64, item: Value) -> Value {
    json!({ "type": "response.output_item.added", "output_index": index, "item": item })
}

pub(super) fn item_done(index: u64, item: Value) -> Value {
    json!({ "type": "response.output_item.done", "output_index": index, "item": item })
}

pub(super) fn item_delta(kind: &str, index: u64, delta: &str) -> Value {
    json!({ "type": format!("response.{kind}.delta"), "output_index": index, "delta": delta })
}

pub(super) fn message_item(id: &str, text: &str) -> Value {
    json!({ "type": "message", "id": id, "role": "assistant", "content": [{ "type": "output_text", "text": text }] })
}

pub(super) fn call_item(id: &str, arguments: &str) -> Value {
    json!({ "type": "function_call", "id": format!("fc_{id}"), "call_id": format!("call_{id}"), "name": "echo", "arguments": arguments })
}

pub(super) fn response_completed() -> Value {
    json!({ "type": "response.completed", "response": { "status": "completed" } })
}

pub(super) fn content_json(folded: &FoldedResponse) -> Value {
    serde_json::to_value(&folded.message.content).unwrap()
}

#[test]
fn fold_separates_interleaved_items_by_index() {
    let (heard, folded) = fold_events(&[
        item_added(0, message_item("a", "")),
        item_added(1, call_item("1", "")),
        item_delta("function_call_arguments", 1, "{\"v\":"),
        item_delta("output_text", 0, "he"),
        item_delta("function_call_arguments", 1, "1}"),
        item_delta("output_text", 0, "llo"),
        item_done(1, call_item("1", "{\"v\":1}")),
        item_done(0, message_item("a", "hello")),
        response_completed(),
    ]);
    assert_eq!(
        content_json(&folded),
        json!([
            { "type": "text", "text": "hello", "textSignature": "a" },
            { "type": "toolCall", "id": "call_1|fc_1", "name": "echo", "arguments": { "v": 1 } },
        ])
    );
    let indices: Vec<u64> =
        heard.iter().map(|event| event["contentIndex"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 1, 0, 1, 0, 1, 0]);
}

#[test]
fn fold_uses_last_item_id() {
    let (_, folded) = fold_events(&[
        item_added(0, call_item("1", "")),
        json!({ "type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "other", "delta": "{}" }),
        item_done(
            0,
            json!({ "type": "function_call", "id": "fc_9", "call_id": "call_9", "name": "echo", "arguments": "{}" }),
        ),
        response_completed(),
    ]);
    assert_eq!(folded.message.tool_calls().next().unwrap().id, "call_9|fc_9");
    assert_eq!(folded.message.stop_reason, StopReason::ToolUse);
}

#[test]
fn fold_prefers_final_text_and_includes_refusals() {
    let (heard, folded) = fold_events(&[
        item_added(0, message_item("m", "")),
        item_delta("output_text", 0, "dra"),
        item_done(
            0,
            json!({ "type": "message", "id": "m", "phase": "commentary", "content": [
            { "type": "output_text", "text": "Final. " }, { "type": "refusal", "refusal": "No." } ] }),
        ),
        response_completed(),
    ]);
    assert_eq!(
        content_json(&folded),
        json!([{ "type": "text", "text": "Final. No.", "textSignature": r#"{"v":1,"id":"m","phase":"commentary"}"# }])
    );
    assert_eq!(heard.last().unwrap()["content"], "Final. No.");
}

#[test]
fn fold_takes_encrypted_reasoning_from_item_or_end() {
    let reasoning = |encrypted: Value| json!({ "type": "reasoning", "id": "rs", "summary": [], "encrypted_content": encrypted });
    for (at_done, at_end, kept) in [(json!("A"), json!("B"), "A"), (Value::Null, json!("B"), "B")] {
        let (_, folded) = fold_events(&[
            item_added(0, reasoning(json!("short"))),
            item_done(0, reasoning(at_done)),
            json!({ "type": "response.completed", "response": { "status": "completed", "output": [reasoning(at_end)] } }),
        ]);
        let signature: Value =
            serde_json::from_str(content_json(&folded)[0]["thinkingSignature"].as_str().unwrap())
                .unwrap();
        assert_eq!(signature["encrypted_content"], kept);
    }
}

#[test]
fn truncated_response_keeps_calls_with_stop_length() {
    let (_, folded) = fold_events(&[
        item_added(0, call_item("1", "")),
        item_delta("function_call_arguments", 0, "{\"va"),
        item_done(0, call_item("1", "{\"va")),
        json!({ "type": "response.incomplete", "response": { "status": "incomplete", "incomplete_details": { "reason": "max_output_tokens" } } }),
    ]);
    assert_eq!(folded.message.stop_reason, StopReason::Length);
    assert_eq!(
        content_json(&folded)[0]["arguments"],
        json!("{\"va"),
        "arguments that are not JSON become a string"
    );
    assert!(folded.error.is_none() && folded.message.error_message.is_none());
}

#[test]
fn incomplete_call_is_not_executable() {
    let (_, folded) = fold_events(&[
        item_added(0, call_item("1", "")),
        item_delta("function_call_arguments", 0, "{}"),
        response_completed(),
    ]);
    assert_eq!(folded.message.stop_reason, StopReason::Length);
    assert_eq!(folded.message.tool_calls().count(), 1);
}

#[test]
fn filtered_response_names_content_filter() {
    let (_, folded) = fold_events(&[json!({ "type": "response.incomplete", "response": {
        "status": "incomplete", "incomplete_details": { "reason": "content_filter" } } })]);
    assert_eq!(folded.message.stop_reason, StopReason::Length);
    assert!(folded.message.error_message.unwrap().contains("content filter"));
}

#[test]
fn failed_response_keeps_content_and_first_reason() {
    let failed = |error: Value| json!({ "type": "response.failed", "response": { "status": "failed", "error": error } });
    let error = json!({ "type": "error", "error": { "type": "too_many_requests", "code": "rate_limit_exceeded", "message": "Slow" } });
    let start = [item_added(0, message_item("m", "")), item_delta("output_text", 0, "par")];
    let cases = [
        (
            vec![error.clone(), failed(json!({ "code": "other", "message": "x" }))],
            "Error Code rate_limit_exceeded: Slow",
        ),
        (vec![failed(Value::Null), error], "Error Code rate_limit_exceeded: Slow"),
        (vec![failed(json!({ "code": "server_error", "message": "x" }))], "server_error: x"),
        (
            vec![failed(Value::Null)],
            "Unknown error: the response has the status `failed` and no explanation",
        ),
        (vec![], "stream closed before response.completed"),
        (
            vec![json!({ "type": "response.completed", "response": "?" })],
            "the response.completed event contains no response",
        ),
    ];
    for (events, text) in cases {
        let (_, folded) = fold_events(&[&start[..], &events].concat());
        assert_eq!(folded.message.error_message.as_deref(), Some(text));
        assert_eq!(folded.message.stop_reason, StopReason::Error);
        assert_eq!(joined_text(&folded.message.content), "par");
        assert_eq!(folded.error.unwrap().text, text);
    }
}

#[test]
fn transcript_of_speech_becomes_text() {
    let part = json!({ "type": "output_audio", "data": "AAAA", "transcript": "Paid 40." });
    let item = json!({ "type": "message", "id": "a", "role": "assistant", "content": [part] });
    let (_, folded) = fold_events(&[item_done(0, item), response_completed()]);
    assert_eq!(joined_text(&folded.message.content), "Paid 40.");
}

#[test]
fn fold_ignores_unknown_events() {
    let (heard, folded) = fold_events(&[
        json!({ "type": "codex.rate_limits", "x": 1 }),
        item_added(0, json!({ "type": "hologram", "id": "h" })),
        item_delta("output_text", 0, "not for anybody"),
        item_added(1, message_item("m", "")),
        json!({ "type": "response.output_text.delta", "output_index": 1, "delta": { "not": "text" } }),
        item_done(0, json!({ "type": "hologram", "id": "h" })),
        item_done(1, message_item("m", "hi")),
        response_completed(),
    ]);
    assert_eq!(
        content_json(&folded),
        json!([{ "type": "text", "text": "hi", "textSignature": "m" }])
    );
    assert_eq!(heard.len(), 3, "{heard:?}");
}

#[test]
fn malformed_delta_is_ignored_malformed_end_fails() {
    let mut fold = ResponseFold::new("m", Tariff::default(), ToolNames::default());
    assert!(fold.push_frame(Some("response.output_text.delta"), "{").is_empty());
    assert!(!fold.is_finished());
    assert!(fold.push_frame(Some("response.completed"), "{").is_empty());
    assert_eq!(
        fold.finish().error.unwrap().text,
        "the response.completed event could not be parsed"
    );
}

#[test]
fn fold_removes_unpaired_surrogates() {
    let mut fold = ResponseFold::new("m", Tariff::default(), ToolNames::default());
    fold.push_frame(None, r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"message","id":"m","content":[{"type":"output_text","text":"a\ud83d"}]}}"#);
    fold.push_frame(None, r#"{"type":"response.output_item.done","output_index":1,"item":{"type":"function_call","id":"fc","call_id":"c","name":"e","arguments":"{\"v\":\"b\\ude00\",\"n\":1.10}"}}"#);
    fold.push_frame(None, &response_completed().to_string());
    let folded = fold.finish();
    assert_eq!(joined_text(&folded.message.content), "a");
    assert_eq!(
        folded.message.tool_calls().next().unwrap().arguments.text(),
        r#"{"v":"b","n":1.10}"#
    );
}

#[test]
fn terminal_event_supplies_missing_items() {
    let (heard, folded) =
        fold_events(&[json!({ "type": "response.completed", "response": { "status": "completed",
        "output": [message_item("m", "hi"), call_item("1", "")] } })]);
    assert_eq!(joined_text(&folded.message.content), "hi");
    assert_eq!(
        content_json(&folded)[1]["arguments"],
        json!({}),
        "missing arguments become an empty object"
    );
    assert_eq!(heard.len(), 4);
    assert_eq!(folded.message.stop_reason, StopReason::ToolUse);
}

#[test]
fn fold_counts_cached_tokens_once() {
    let (_, folded) = fold_events(&[
        json!({ "type": "response.completed", "response": { "status": "completed", "usage": {
        "input_tokens": 1000, "input_tokens_details": { "cached_tokens": 600, "cache_write_tokens": 100 },
        "output_tokens": 50, "output_tokens_details": { "reasoning_tokens": 20 }, "total_tokens": 1050 } } }),
    ]);
    let usage = folded.message.usage;
    assert_eq!(
        [
            usage.input,
            usage.cache_read,
            usage.cache_write,
            usage.output,
            usage.reasoning,
            usage.total_tokens
        ],
        [300, 600, 100, 50, 20, 1050]
    );
    assert!((usage.cost.total - (0.0003 + 0.00006 + 0.0005)).abs() < 1e-12);
}

#[test]
fn invalid_usage_does_not_fail_response() {
    let (_, folded) = fold_events(&[
        json!({ "type": "response.completed", "response": { "status": "completed", "usage": {
        "input_tokens": 5, "input_tokens_details": { "cached_tokens": 600 }, "output_tokens": "many" } } }),
    ]);
    assert_eq!([folded.message.usage.input, folded.message.usage.cache_read], [0, 5]);
    assert_eq!(folded.message.stop_reason, StopReason::Stop);
}

#[test]
fn fold_maps_wire_names_to_tool_names() {
    let offer = crate::ToolOffer {
        name: "test.echo",
        description: "",
        parameters: &Value::Null,
        strict: false,
    };
    let mut fold = ResponseFold::new("m", Tariff::default(), ToolNames::new(&[offer]));
    let item = json!({ "type": "function_call", "id": "fc", "call_id": "c", "name": "test_echo", "arguments": "" });
    let start = fold.push_frame(None, &item_added(0, item.clone()).to_string());
    assert!(
        matches!(&start[..], [AssistantMessageEvent::ToolcallStart { tool_name, .. }] if tool_name == "test.echo")
    );
    let end = fold.push_frame(None, &item_done(0, item).to_string());
    assert!(
        matches!(&end[..], [AssistantMessageEvent::ToolcallEnd { tool_call, .. }] if tool_call.call.name == "test.echo")
    );
}

#[test]
fn fold_keeps_provider_items() {
    let item = json!({ "type": "compaction", "id": "cmp", "encrypted_content": "E" });
    let (heard, folded) = fold_events(&[
        item_added(0, item.clone()),
        item_done(0, item.clone()),
        response_completed(),
    ]);
    assert_eq!(content_json(&folded), json!([{ "type": "providerItem", "item": item }]));
    assert!(heard.is_empty());
}

proptest::proptest! {
    /// Any order of frames, malformed ones too, gives a response without a panic, and indices that
    /// match its blocks.
    #[test]
    fn any_event_order_gives_response(picks in proptest::collection::vec((0_usize..18, 0_u64..3), 0..40)) {
        let pool = |at: usize, index: u64| match at {
            0 => item_added(index, message_item("m", "")),
            1 => item_added(index, call_item("1", "")),
            2 => item_added(index, json!({ "type": "reasoning", "id": "r" })),
            3 => item_added(index, json!({ "type": "compaction" })),
            4 => item_done(index, message_item("m", "x")),
            5 => item_done(index, call_item("1", "{")),
            6 => item_done(index, json!({ "type": "reasoning", "id": "r", "summary": [{ "text": "t" }] })),
            7 => item_delta("output_text", index, "a"),
            8 => item_delta("function_call_arguments", index, "{"),
            9 => item_delta("reasoning_summary_text", index, "é"),
            10 => json!({ "type": "response.reasoning_summary_part.done" }),
            11 => json!({ "type": "response.output_item.done", "item": message_item("n", "y") }),
            12 => json!({ "type": "response.failed" }),
            13 => json!({ "type": "response.output_text.delta", "delta": "z" }),
            14 => json!({ "type": "response.output_text.delta", "output_index": 1.0, "delta": "\n" }),
            15 => json!({ "type": "response.output_text.delta", "output_index": null, "delta": null }),
            16 => response_completed(),
            _ => json!({ "type": "response.output_item.added", "item": 5 }),
        };
        let events: Vec<Value> = picks.into_iter().map(|(at, index)| pool(at, index)).collect();
        let (heard, folded) = fold_events(&events);
        let blocks = content_json(&folded);
        for event in heard.iter().filter(|event| event["type"] == "text_end") {
            let at = usize::try_from(event["contentIndex"].as_u64().unwrap()).unwrap();
            // Only provider items that never ended shift the indices of later blocks.
            if !events.iter().any(|event| event["item"]["type"] == "compaction") {
                proptest::prop_assert_eq!(&blocks[at]["text"], &event["content"]);
            }
        }
    }
}

#[test]
fn response_fails_above_item_limit() {
    let mut events: Vec<Value> =
        (0..2_000).map(|index| item_added(index, message_item("m", "x"))).collect();
    events.push(response_completed());
    let (heard, folded) = fold_events(&events);
    assert_eq!(heard.len(), ITEMS_MAX);
    assert!(folded.message.error_message.unwrap().contains("more than 1024 items"));
    assert!(!folded.error.unwrap().is_connection_lost, "a retry would return as many items");
    let output: Vec<Value> = (0..2_000).map(|_| message_item("m", "x")).collect();
    let whole = json!({ "type": "response.completed", "response": { "status": "completed", "output": output } });
    let (_, folded) = fold_events(&[whole]);
    assert_eq!(folded.message.stop_reason, StopReason::Error);
    assert_eq!(folded.message.content.len(), ITEMS_MAX);
}
