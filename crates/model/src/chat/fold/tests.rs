//! Folding chunks: shapes of Azure, of open models and of errors.

#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better without `&`")]

use std::time::Duration;

use http::HeaderMap;
use serde_json::{Value, json};

use super::*;
use crate::responses::provider_error::classify;
use crate::{ModelFailure, Prices};
use turnwheel_conversation::content::{Block, joined_text};
use turnwheel_conversation::usage::Usage;

pub(super) fn new_fold() -> ChatFold {
    let base = Prices { input: 1.0, output: 10.0, cache_read: 0.1, cache_write: 0.0 };
    ChatFold::new("gpt-4o", Tariff { base, long_context: None }, ToolNames::default())
}

pub(super) fn delta(delta: Value) -> Value {
    json!({ "id": "chatcmpl-1", "model": "gpt-4o-2024", "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] })
}

pub(super) fn finish(reason: &str) -> Value {
    json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })
}

pub(super) fn call(index: u64, id: &str, name: &str, arguments: &str) -> Value {
    delta(
        json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": arguments } }] }),
    )
}

pub(super) fn arguments(index: u64, arguments: &str) -> Value {
    delta(json!({ "tool_calls": [{ "index": index, "function": { "arguments": arguments } }] }))
}

fn usage(usage: Value) -> Value {
    json!({ "choices": [], "usage": usage })
}

/// Folds the chunks and `[DONE]`.
pub(super) fn fold_chunks(chunks: &[Value]) -> (Vec<Value>, ChatFold) {
    let mut fold = new_fold();
    let mut events = Vec::new();
    for chunk in chunks {
        let applied = fold.push_frame(None, &chunk.to_string());
        events.extend(applied.into_iter().map(|event| serde_json::to_value(event).unwrap()));
    }
    fold.push_frame(None, END_FRAME);
    (events, fold)
}

pub(super) fn calls_of(folded: &FoldedResponse) -> Vec<(String, String, String)> {
    let calls = folded.message.tool_calls();
    calls
        .map(|call| (call.id.clone(), call.name.clone(), call.arguments.text().to_owned()))
        .collect()
}

pub(super) fn own(id: &str, name: &str, arguments: &str) -> (String, String, String) {
    (id.to_owned(), name.to_owned(), arguments.to_owned())
}

#[test]
fn azure_response_becomes_message_and_events() {
    let (events, fold) = fold_chunks(&[
        json!({ "choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": [{ "prompt_index": 0 }] }),
        delta(json!({ "role": "assistant", "content": "", "refusal": null })),
        delta(json!({ "reasoning_content": "Hm" })),
        delta(json!({ "content": "Hel" })),
        delta(json!({ "content": "lo" })),
        call(0, "call_1", "look", ""),
        arguments(0, "{\"a\""),
        arguments(0, ":1}"),
        finish("tool_calls"),
        json!({ "choices": [{ "index": 0, "content_filter_results": {}, "finish_reason": null }] }),
        usage(json!({
            "prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 27,
            "prompt_tokens_details": { "cached_tokens": 5 },
            "completion_tokens_details": { "reasoning_tokens": 3 },
        })),
    ]);
    assert!(fold.is_finished() && !fold.lacks_usage());
    let folded = fold.finish();
    assert_eq!(folded.error, None);
    assert_eq!(folded.message.stop_reason, StopReason::ToolUse);
    assert_eq!(calls_of(&folded), [own("call_1", "look", r#"{"a":1}"#)]);
    let spent = *folded.message.usage;
    assert_eq!(
        (spent.input, spent.cache_read, spent.output, spent.reasoning, spent.total_tokens),
        (15, 5, 7, 3, 27)
    );
    assert!((spent.cost.total - 0.000_085_5).abs() < 1e-12, "{:?}", spent.cost);
    assert_eq!(
        (folded.metadata.id.as_deref(), folded.metadata.model.as_deref()),
        (Some("chatcmpl-1"), Some("gpt-4o-2024"))
    );
    let kinds: Vec<(&str, u64)> = events
        .iter()
        .map(|event| (event["type"].as_str().unwrap(), event["contentIndex"].as_u64().unwrap()))
        .collect();
    assert_eq!(
        kinds,
        [
            ("thinking_start", 0),
            ("thinking_delta", 0),
            ("thinking_end", 0),
            ("text_start", 1),
            ("text_delta", 1),
            ("text_delta", 1),
            ("text_end", 1),
            ("toolcall_start", 2),
            ("toolcall_delta", 2),
            ("toolcall_delta", 2),
            ("toolcall_end", 2),
        ]
    );
    assert_eq!(events[6]["content"], "Hello");
}

#[test]
fn parallel_calls_are_kept_apart() {
    let interleaved = [
        call(0, "a", "look", ""),
        call(1, "b", "say", "{\"x\":"),
        arguments(0, "{\"y\":1}"),
        arguments(1, "2}"),
        finish("stop"),
    ];
    let expected = [own("a", "look", r#"{"y":1}"#), own("b", "say", r#"{"x":2}"#)];
    let folded = fold_chunks(&interleaved).1.finish();
    assert_eq!(calls_of(&folded), expected);
    assert_eq!(folded.message.stop_reason, StopReason::ToolUse, "`stop` with calls runs them");
    // All calls with the index 0, or without any index.
    let one_index = [
        call(0, "a", "look", r#"{"y":1}"#),
        call(0, "b", "say", r#"{"x":2}"#),
        finish("tool_calls"),
    ];
    assert_eq!(calls_of(&fold_chunks(&one_index).1.finish()), expected);
    let mut no_index = one_index;
    for chunk in &mut no_index[..2] {
        chunk["choices"][0]["delta"]["tool_calls"][0]["index"].take();
    }
    assert_eq!(calls_of(&fold_chunks(&no_index).1.finish()), expected);
}

#[test]
fn repeated_ids_and_late_names_are_one_call() {
    let function = |function: Value| {
        delta(json!({ "tool_calls": [{ "index": 0, "id": "a", "function": function }] }))
    };
    let (events, fold) = fold_chunks(&[
        function(json!({ "arguments": "{" })),
        function(json!({ "name": "look" })),
        function(json!({ "name": "look", "arguments": "}" })),
        finish("tool_calls"),
    ]);
    assert_eq!(calls_of(&fold.finish()), [own("a", "look", "{}")]);
    assert_eq!(events[0]["type"], "toolcall_start");
    assert_eq!(events[0]["toolName"], "look");
    let object = function(json!({ "name": "look", "arguments": { "a": 1 } }));
    let folded = fold_chunks(&[object, finish("tool_calls")]).1.finish();
    assert_eq!(calls_of(&folded), [own("a", "look", r#"{"a":1}"#)]);
}

#[test]
fn finish_reasons_become_stop_reasons() {
    let cases = [
        ("stop", StopReason::Stop, None),
        ("eos_token", StopReason::Stop, None),
        ("length", StopReason::Length, None),
        ("model_length", StopReason::Length, None),
        ("LENGTH", StopReason::Length, None),
        ("max_tokens", StopReason::Length, None),
        ("MAX_TOKENS", StopReason::Length, None),
        ("model_context_window_exceeded", StopReason::Length, None),
        ("content_filter", StopReason::Length, Some(CONTENT_FILTER_NOTE)),
        ("sensitive", StopReason::Length, Some(CONTENT_FILTER_NOTE)),
        ("SAFETY", StopReason::Length, Some(CONTENT_FILTER_NOTE)),
        (
            "network_error",
            StopReason::Error,
            Some("the service ended the response with the reason `network_error`"),
        ),
        (
            "insufficient_system_resource",
            StopReason::Error,
            Some("the service ended the response with the reason `insufficient_system_resource`"),
        ),
    ];
    for (reason, expected, text) in cases {
        let folded = fold_chunks(&[delta(json!({ "content": "x" })), finish(reason)]).1.finish();
        assert_eq!(folded.message.stop_reason, expected, "{reason}");
        assert_eq!(folded.message.error_message.as_deref(), text, "{reason}");
        assert_eq!(joined_text(&folded.message.content), "x", "{reason}");
    }
    let late = [delta(json!({ "content": "x" })), finish("stop"), finish("content_filter")];
    let folded = fold_chunks(&late).1.finish();
    assert_eq!(folded.message.stop_reason, StopReason::Length);
    let cut = [call(0, "a", "look", "{\"a\":"), finish("length")];
    let folded = fold_chunks(&cut).1.finish();
    assert_eq!(folded.message.stop_reason, StopReason::Length, "a truncated call does not run");
    assert_eq!(calls_of(&folded)[0].2, r#""{\"a\":""#);
}

#[test]
fn reasoning_members_and_parts_are_read() {
    let thinking = |content: &[Block]| match content {
        [Block::Thinking(thinking), Block::Text(text)] => (
            thinking.thinking.clone(),
            thinking.thinking_signature.clone().unwrap(),
            text.text.clone(),
        ),
        other => panic!("{other:?}"),
    };
    let parts = json!({ "content": [
        { "type": "thinking", "thinking": [{ "type": "text", "text": "Hm" }] }, { "type": "text", "text": "Yes" },
    ] });
    for (first, second, member) in [
        (
            json!({ "reasoning_content": "Hm", "reasoning": "Hm" }),
            json!({ "content": "Yes" }),
            "reasoning_content",
        ),
        (json!({ "reasoning": "Hm" }), json!({ "content": "Yes", "reasoning": null }), "reasoning"),
        (
            json!({ "reasoning_text": "H" }),
            json!({ "reasoning_text": "m", "content": "Yes" }),
            "reasoning_text",
        ),
        (parts, json!({ "content": [] }), "thinking"),
    ] {
        let folded = fold_chunks(&[delta(first), delta(second), finish("stop")]).1.finish();
        let expected = ("Hm".to_owned(), member.to_owned(), "Yes".to_owned());
        assert_eq!(thinking(&folded.message.content), expected);
    }
}

#[test]
fn refusal_becomes_text() {
    let chunks =
        [delta(json!({ "refusal": "I can" })), delta(json!({ "refusal": "not." })), finish("stop")];
    assert_eq!(joined_text(&fold_chunks(&chunks).1.finish().message.content), "I cannot.");
}

#[test]
fn usage_of_other_services_is_counted() {
    let cases = [
        // Reasoning beside the completion, as xAI reports it.
        (
            json!({ "prompt_tokens": 307, "completion_tokens": 26, "total_tokens": 560,
            "prompt_tokens_details": { "cached_tokens": 306 },
            "completion_tokens_details": { "reasoning_tokens": 227 } }),
            (1, 306, 253, 227),
        ),
        // DeepSeek's members.
        (
            json!({ "prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14, "prompt_tokens_details": null,
            "prompt_cache_hit_tokens": 8, "reasoning_tokens": 3 }),
            (2, 8, 4, 3),
        ),
        (json!({ "prompt_tokens": 10, "completion_tokens": 4 }), (10, 0, 4, 0)),
        (
            json!({ "prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": { "cached_tokens": 99 } }),
            (0, 10, 4, 0),
        ),
    ];
    for (reported, expected) in cases {
        let fold = fold_chunks(&[finish("stop"), usage(reported.clone())]).1;
        assert!(!fold.lacks_usage());
        let counted = *fold.finish().message.usage;
        assert_eq!(
            (counted.input, counted.cache_read, counted.output, counted.reasoning),
            expected,
            "{reported}"
        );
    }
    let mut in_choice = finish("stop");
    in_choice["choices"][0]["usage"] = json!({ "prompt_tokens": 3, "completion_tokens": 2 });
    assert_eq!(fold_chunks(&[in_choice]).1.finish().message.usage.input, 3);
}

#[test]
fn malformed_usage_is_missing_usage() {
    for reported in [
        Value::Null,
        json!("many"),
        json!({}),
        json!({ "prompt_tokens": 0, "completion_tokens": 0 }),
        json!({ "prompt_tokens": -4, "completion_tokens": 1 }),
        json!({ "prompt_tokens": 4, "completion_tokens": "1" }),
    ] {
        let fold = fold_chunks(&[finish("stop"), usage(reported.clone())]).1;
        assert!(fold.lacks_usage(), "{reported}");
    }
    let valid = usage(json!({ "prompt_tokens": 4, "completion_tokens": 1 }));
    let fold = fold_chunks(&[finish("stop"), valid, usage(Value::Null)]).1;
    assert!(!fold.lacks_usage(), "a later chunk without usage changes nothing");
    assert!(!new_fold().lacks_usage(), "a failed response has no usage to estimate");
}

#[test]
fn errors_in_stream_are_classified() {
    let retry = ModelFailure::Retryable { after: None };
    let cases = [
        (
            json!({ "error": { "code": "content_filter", "message": "Filtered." } }),
            ModelFailure::Permanent,
        ),
        (
            json!({ "error": { "code": "rate_limit_exceeded", "message": "Slow down." } }),
            retry.clone(),
        ),
        (
            json!({ "error": { "code": 429, "message": "Please retry after 2 seconds" } }),
            ModelFailure::Retryable { after: Some(Duration::from_secs(2)) },
        ),
        (
            json!({ "object": "error", "message": "the maximum context length is 10", "code": 400 }),
            ModelFailure::ContextOverflow,
        ),
        (json!({ "error": {} }), ModelFailure::Permanent),
        (
            json!({ "choices": null, "error_type": "RateLimitError", "error_message": "Busy." }),
            retry.clone(),
        ),
        (
            json!({ "choices": [], "error_type": "RateLimitError", "error_message": "Busy." }),
            retry.clone(),
        ),
        (
            json!({ "choices": [], "error_type": "BadRequestError", "detail": "No." }),
            ModelFailure::Permanent,
        ),
    ];
    for (chunk, expected) in cases {
        let (_, fold) = fold_chunks(&[delta(json!({ "content": "half" })), chunk.clone()]);
        let folded = fold.finish();
        assert_eq!(joined_text(&folded.message.content), "half");
        let fault = folded.error.unwrap();
        assert_eq!(classify(&fault, &HeaderMap::new(), Timestamp(0)), expected, "{chunk}");
    }
    let mut fold = new_fold();
    fold.push_frame(Some("error"), r#"{"code":"server_error","message":"x"}"#);
    assert_eq!(fold.finish().error.unwrap().code.as_deref(), Some("server_error"));
}

#[test]
fn broken_streams_are_retryable_failures() {
    let half = delta(json!({ "content": "half" })).to_string();
    for (frames, text) in [
        (vec![half.as_str()], "stream closed before the finish reason"),
        (vec![half.as_str(), END_FRAME], "stream closed before the finish reason"),
        (vec![half.as_str(), "{\"choices\":"], "a chunk of the response could not be parsed"),
        (vec![half.as_str(), "ping"], "a chunk of the response could not be parsed"),
        (
            vec![half.as_str(), r#"{"choices":[{"delta":"x"}]}"#],
            "a chunk of the response could not be parsed",
        ),
    ] {
        let mut fold = new_fold();
        for frame in frames {
            fold.push_frame(None, frame);
        }
        let folded = fold.finish();
        let fault = folded.error.unwrap();
        assert_eq!(fault.text, text);
        assert_eq!(
            classify(&fault, &HeaderMap::new(), Timestamp(0)),
            ModelFailure::Retryable { after: None }
        );
        assert_eq!(*folded.message.usage, Usage::default());
        assert_eq!(joined_text(&folded.message.content), "half");
    }
}

#[test]
fn complete_response_survives_break_before_usage() {
    let mut fold = new_fold();
    for chunk in [delta(json!({ "content": "all" })), finish("stop")] {
        fold.push_frame(None, &chunk.to_string());
    }
    assert!(fold.is_awaiting_usage() && !fold.is_finished());
    fold.fail(ProviderError::connection_lost("cut"));
    assert!(fold.lacks_usage());
    let folded = fold.finish();
    assert_eq!((folded.error, folded.message.stop_reason), (None, StopReason::Stop));
}

#[test]
fn other_choices_are_ignored() {
    let mut other = delta(json!({ "content": "second" }));
    other["choices"][0]["index"] = json!(1);
    let chunks = [delta(json!({ "content": "first" })), other, finish("stop")];
    assert_eq!(joined_text(&fold_chunks(&chunks).1.finish().message.content), "first");
}

#[test]
fn endless_calls_fail_permanently() {
    let mut fold = new_fold();
    for number in 0..2_000 {
        fold.push_frame(None, &call(number, &format!("c{number}"), "look", "{}").to_string());
    }
    let folded = fold.finish();
    assert_eq!(folded.message.content.len(), ITEMS_MAX);
    let failure = classify(&folded.error.unwrap(), &HeaderMap::new(), Timestamp(0));
    assert_eq!(failure, ModelFailure::Permanent);
}

#[test]
fn whole_response_is_read_without_stream() {
    let message = json!({ "role": "assistant", "content": "hi", "tool_calls": [
        { "id": "a", "type": "function", "function": { "name": "look", "arguments": "{}" } },
        { "id": "b", "type": "function", "function": { "name": "look", "arguments": "{}" } },
    ] });
    let body = json!({ "object": "chat.completion", "choices": [{ "index": 0, "message": message, "finish_reason": "tool_calls" }],
        "usage": { "prompt_tokens": 4, "completion_tokens": 2 } });
    let mut fold = new_fold();
    assert!(fold.push_whole(&[&body.to_string()]).0);
    let folded = fold.finish();
    assert_eq!(joined_text(&folded.message.content), "hi");
    assert_eq!(calls_of(&folded), [own("a", "look", "{}"), own("b", "look", "{}")]);
    assert!(!new_fold().push_whole(&[r#"{"hello":"I am another service"}"#]).0);
    assert!(new_fold().push_whole(&[r#"{"error":{"code":"x","message":"y"}}"#]).0);
}
