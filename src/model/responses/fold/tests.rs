//! Folding streams: shapes of the service, of compatible services and of errors.

#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better without `&`")]

use serde_json::json;

use super::*;
use crate::agent::content::joined_text;
use crate::model::Prices;

/// Folds the events as frames and as JSON trees, and asserts that both give the same result.
fn fold(events: &[Value]) -> (Vec<Value>, Folded) {
    let base = Prices { input: 1.0, output: 10.0, cache_read: 0.1, cache_write: 0.0 };
    let tariff = Tariff { base, long: None };
    let [mut fold, mut of_trees] =
        [(); 2].map(|()| Fold::new("gpt-5-mini", tariff, Names::default()));
    let mut heard = Vec::new();
    for event in events {
        let told = fold.push_frame(None, &event.to_string());
        let tree = Event::of(event.clone());
        assert_eq!(told, tree.map(|tree| of_trees.push(&tree)).unwrap_or_default(), "{event}");
        heard.extend(told.into_iter().map(|told| serde_json::to_value(told).unwrap()));
    }
    let folded = fold.finish();
    assert_eq!(folded.message, of_trees.finish().message);
    (heard, folded)
}

fn added(index: u64, item: Value) -> Value {
    json!({ "type": "response.output_item.added", "output_index": index, "item": item })
}

fn done(index: u64, item: Value) -> Value {
    json!({ "type": "response.output_item.done", "output_index": index, "item": item })
}

fn delta(kind: &str, index: u64, delta: &str) -> Value {
    json!({ "type": format!("response.{kind}.delta"), "output_index": index, "delta": delta })
}

fn message(id: &str, text: &str) -> Value {
    json!({ "type": "message", "id": id, "role": "assistant", "content": [{ "type": "output_text", "text": text }] })
}

fn call(id: &str, arguments: &str) -> Value {
    json!({ "type": "function_call", "id": format!("fc_{id}"), "call_id": format!("call_{id}"), "name": "echo", "arguments": arguments })
}

fn completed() -> Value {
    json!({ "type": "response.completed", "response": { "status": "completed" } })
}

fn content(folded: &Folded) -> Value {
    serde_json::to_value(&folded.message.content).unwrap()
}

#[test]
fn interleaved_items_are_kept_apart_by_their_index() {
    let (heard, folded) = fold(&[
        added(0, message("a", "")),
        added(1, call("1", "")),
        delta("function_call_arguments", 1, "{\"v\":"),
        delta("output_text", 0, "he"),
        delta("function_call_arguments", 1, "1}"),
        delta("output_text", 0, "llo"),
        done(1, call("1", "{\"v\":1}")),
        done(0, message("a", "hello")),
        completed(),
    ]);
    assert_eq!(
        content(&folded),
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
fn ids_may_change_under_way_and_the_last_one_holds() {
    let (_, folded) = fold(&[
        added(0, call("1", "")),
        json!({ "type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "other", "delta": "{}" }),
        done(
            0,
            json!({ "type": "function_call", "id": "fc_9", "call_id": "call_9", "name": "echo", "arguments": "{}" }),
        ),
        completed(),
    ]);
    assert_eq!(folded.message.tool_calls().next().unwrap().id, "call_9|fc_9");
    assert_eq!(folded.message.stop_reason, StopReason::ToolUse);
}

#[test]
fn the_items_own_text_wins_and_refusals_are_text() {
    let (heard, folded) = fold(&[
        added(0, message("m", "")),
        delta("output_text", 0, "dra"),
        done(
            0,
            json!({ "type": "message", "id": "m", "phase": "commentary", "content": [
            { "type": "output_text", "text": "Final. " }, { "type": "refusal", "refusal": "No." } ] }),
        ),
        completed(),
    ]);
    assert_eq!(
        content(&folded),
        json!([{ "type": "text", "text": "Final. No.", "textSignature": r#"{"v":1,"id":"m","phase":"commentary"}"# }])
    );
    assert_eq!(heard.last().unwrap()["content"], "Final. No.");
}

#[test]
fn encrypted_thoughts_are_taken_from_the_item_and_else_from_the_end() {
    let reasoning = |encrypted: Value| json!({ "type": "reasoning", "id": "rs", "summary": [], "encrypted_content": encrypted });
    for (at_done, at_end, kept) in [(json!("A"), json!("B"), "A"), (Value::Null, json!("B"), "B")] {
        let (_, folded) = fold(&[
            added(0, reasoning(json!("short"))),
            done(0, reasoning(at_done)),
            json!({ "type": "response.completed", "response": { "status": "completed", "output": [reasoning(at_end)] } }),
        ]);
        let signature: Value =
            serde_json::from_str(content(&folded)[0]["thinkingSignature"].as_str().unwrap())
                .unwrap();
        assert_eq!(signature["encrypted_content"], kept);
    }
}

#[test]
fn an_answer_cut_by_the_limit_keeps_its_calls_and_says_so() {
    let (_, folded) = fold(&[
        added(0, call("1", "")),
        delta("function_call_arguments", 0, "{\"va"),
        done(0, call("1", "{\"va")),
        json!({ "type": "response.incomplete", "response": { "status": "incomplete", "incomplete_details": { "reason": "max_output_tokens" } } }),
    ]);
    assert_eq!(folded.message.stop_reason, StopReason::Length);
    assert_eq!(
        content(&folded)[0]["arguments"],
        json!("{\"va"),
        "arguments that are not JSON become a string"
    );
    assert!(folded.fault.is_none() && folded.message.error_message.is_none());
}

#[test]
fn a_call_whose_end_never_came_is_not_for_running() {
    let (_, folded) =
        fold(&[added(0, call("1", "")), delta("function_call_arguments", 0, "{}"), completed()]);
    assert_eq!(folded.message.stop_reason, StopReason::Length);
    assert_eq!(folded.message.tool_calls().count(), 1);
}

#[test]
fn a_filtered_answer_says_that_it_was_filtered() {
    let (_, folded) = fold(&[json!({ "type": "response.incomplete", "response": {
        "status": "incomplete", "incomplete_details": { "reason": "content_filter" } } })]);
    assert_eq!(folded.message.stop_reason, StopReason::Length);
    assert!(folded.message.error_message.unwrap().contains("content filter"));
}

#[test]
fn failures_keep_what_came_before_and_the_first_reason() {
    let failed = |error: Value| json!({ "type": "response.failed", "response": { "status": "failed", "error": error } });
    let error = json!({ "type": "error", "error": { "type": "too_many_requests", "code": "rate_limit_exceeded", "message": "Slow" } });
    let start = [added(0, message("m", "")), delta("output_text", 0, "par")];
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
        let (_, folded) = fold(&[&start[..], &events].concat());
        assert_eq!(folded.message.error_message.as_deref(), Some(text));
        assert_eq!(folded.message.stop_reason, StopReason::Error);
        assert_eq!(joined_text(&folded.message.content), "par");
        assert_eq!(folded.fault.unwrap().text, text);
    }
}

#[test]
fn what_is_not_known_passes() {
    let (heard, folded) = fold(&[
        json!({ "type": "codex.rate_limits", "x": 1 }),
        added(0, json!({ "type": "hologram", "id": "h" })),
        delta("output_text", 0, "not for anybody"),
        added(1, message("m", "")),
        json!({ "type": "response.output_text.delta", "output_index": 1, "delta": { "not": "text" } }),
        done(0, json!({ "type": "hologram", "id": "h" })),
        done(1, message("m", "hi")),
        completed(),
    ]);
    assert_eq!(content(&folded), json!([{ "type": "text", "text": "hi", "textSignature": "m" }]));
    assert_eq!(heard.len(), 2, "{heard:?}");
}

#[test]
fn an_unreadable_delta_is_passed_over_and_an_unreadable_end_is_a_failure() {
    let mut fold = Fold::new("m", Tariff::default(), Names::default());
    assert!(fold.push_frame(Some("response.output_text.delta"), "{").is_empty());
    assert!(!fold.is_over());
    assert!(fold.push_frame(Some("response.completed"), "{").is_empty());
    assert_eq!(fold.finish().fault.unwrap().text, "the response.completed event could not be parsed");
}

#[test]
fn halves_of_surrogates_are_taken_out_of_text_and_arguments() {
    let mut fold = Fold::new("m", Tariff::default(), Names::default());
    fold.push_frame(None, r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"message","id":"m","content":[{"type":"output_text","text":"a\ud83d"}]}}"#);
    fold.push_frame(None, r#"{"type":"response.output_item.done","output_index":1,"item":{"type":"function_call","id":"fc","call_id":"c","name":"e","arguments":"{\"v\":\"b\\ude00\",\"n\":1.10}"}}"#);
    fold.push_frame(None, &completed().to_string());
    let folded = fold.finish();
    assert_eq!(joined_text(&folded.message.content), "a");
    assert_eq!(
        folded.message.tool_calls().next().unwrap().arguments.text(),
        r#"{"v":"b","n":1.10}"#
    );
}

#[test]
fn an_end_without_any_item_before_it_brings_its_own() {
    let (heard, folded) =
        fold(&[json!({ "type": "response.completed", "response": { "status": "completed",
        "output": [message("m", "hi"), call("1", "")] } })]);
    assert_eq!(joined_text(&folded.message.content), "hi");
    assert_eq!(content(&folded)[1]["arguments"], json!({}), "missing arguments become an empty object");
    assert_eq!(heard.len(), 4);
    assert_eq!(folded.message.stop_reason, StopReason::ToolUse);
}

#[test]
fn cached_tokens_are_not_counted_twice() {
    let (_, folded) = fold(&[
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
fn nonsense_in_usage_is_no_failure() {
    let (_, folded) = fold(&[
        json!({ "type": "response.completed", "response": { "status": "completed", "usage": {
        "input_tokens": 5, "input_tokens_details": { "cached_tokens": 600 }, "output_tokens": "many" } } }),
    ]);
    assert_eq!([folded.message.usage.input, folded.message.usage.cache_read], [0, 5]);
    assert_eq!(folded.message.stop_reason, StopReason::Stop);
}

#[test]
fn names_are_the_tools_own() {
    let offer = crate::model::ToolOffer {
        name: "test.echo",
        description: "",
        parameters: &Value::Null,
        strict: false,
    };
    let mut fold = Fold::new("m", Tariff::default(), Names::new(&[offer]));
    let item = json!({ "type": "function_call", "id": "fc", "call_id": "c", "name": "test_echo", "arguments": "" });
    let start = fold.push_frame(None, &added(0, item.clone()).to_string());
    assert!(
        matches!(&start[..], [AnswerEvent::ToolcallStart { tool_name, .. }] if tool_name == "test.echo")
    );
    let end = fold.push_frame(None, &done(0, item).to_string());
    assert!(
        matches!(&end[..], [AnswerEvent::ToolcallEnd { tool_call, .. }] if tool_call.call.name == "test.echo")
    );
}

#[test]
fn items_that_the_service_needs_back_are_kept_for_it() {
    let item = json!({ "type": "compaction", "id": "cmp", "encrypted_content": "E" });
    let (heard, folded) = fold(&[added(0, item.clone()), done(0, item.clone()), completed()]);
    assert_eq!(content(&folded), json!([{ "type": "providerItem", "item": item }]));
    assert!(heard.is_empty());
}

proptest::proptest! {
    /// Any order of frames, malformed ones too, gives a response without a panic, and indices that
    /// match its blocks.
    #[test]
    fn any_order_of_events_gives_an_answer(picks in proptest::collection::vec((0_usize..18, 0_u64..3), 0..40)) {
        let pool = |at: usize, index: u64| match at {
            0 => added(index, message("m", "")),
            1 => added(index, call("1", "")),
            2 => added(index, json!({ "type": "reasoning", "id": "r" })),
            3 => added(index, json!({ "type": "compaction" })),
            4 => done(index, message("m", "x")),
            5 => done(index, call("1", "{")),
            6 => done(index, json!({ "type": "reasoning", "id": "r", "summary": [{ "text": "t" }] })),
            7 => delta("output_text", index, "a"),
            8 => delta("function_call_arguments", index, "{"),
            9 => delta("reasoning_summary_text", index, "é"),
            10 => json!({ "type": "response.reasoning_summary_part.done" }),
            11 => json!({ "type": "response.output_item.done", "item": message("n", "y") }),
            12 => json!({ "type": "response.failed" }),
            13 => json!({ "type": "response.output_text.delta", "delta": "z" }),
            14 => json!({ "type": "response.output_text.delta", "output_index": 1.0, "delta": "\n" }),
            15 => json!({ "type": "response.output_text.delta", "output_index": null, "delta": null }),
            16 => completed(),
            _ => json!({ "type": "response.output_item.added", "item": 5 }),
        };
        let events: Vec<Value> = picks.into_iter().map(|(at, index)| pool(at, index)).collect();
        let (heard, folded) = fold(&events);
        let blocks = content(&folded);
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
fn an_answer_of_endless_items_is_given_up() {
    let mut events: Vec<Value> = (0..2_000).map(|index| added(index, message("m", "x"))).collect();
    events.push(completed());
    let (heard, folded) = fold(&events);
    assert_eq!(heard.len(), ITEMS_MAX);
    assert!(folded.message.error_message.unwrap().contains("more than 1024 items"));
    assert!(!folded.fault.unwrap().is_lost, "a retry would return as many items");
    let output: Vec<Value> = (0..2_000).map(|_| message("m", "x")).collect();
    let whole = json!({ "type": "response.completed", "response": { "status": "completed", "output": output } });
    let (_, folded) = fold(&[whole]);
    assert_eq!(folded.message.stop_reason, StopReason::Error);
    assert_eq!(folded.message.content.len(), ITEMS_MAX);
}
