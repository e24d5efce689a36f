//! Malformed chunks: empty values of a wrong type, errors without details, and invalid JSON.

use http::HeaderMap;
use serde_json::json;

use super::tests::{call, calls_of, delta, finish, fold_chunks, new_fold, own};
use super::*;
use crate::ModelFailure;
use crate::responses::provider_error::classify;
use turnwheel_conversation::content::joined_text;

/// Folds the frames, which have no error, and `[DONE]`.
pub(super) fn fold_frames(frames: &[String]) -> FoldedResponse {
    let mut fold = new_fold();
    for frame in frames {
        fold.push_frame(None, frame);
    }
    fold.push_frame(None, END_FRAME);
    let folded = fold.finish();
    assert_eq!(folded.error, None, "{frames:?}");
    folded
}

#[test]
fn error_without_details_beside_choices_is_ignored() {
    let first = json!({ "choices": [], "prompt_filter_results": [] });
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": 4, "completion_tokens": 2 } });
    for error in [
        json!(""),
        json!({}),
        json!([]),
        json!(false),
        json!(0),
        json!({ "message": "", "type": "", "param": "", "code": null }),
        json!({ "message": "", "code": 0 }),
    ] {
        let text = delta(json!({ "content": "Paid." }));
        let chunks = [first.clone(), text, finish("stop"), usage.clone()];
        let frames = chunks.map(|mut chunk| {
            chunk["error"] = error.clone();
            chunk.to_string()
        });
        let folded = fold_frames(&frames);
        assert_eq!(joined_text(&folded.message.content), "Paid.", "{error}");
        assert_eq!(folded.message.usage.input, 4, "{error}");
    }
    for (name, code, text) in [
        ("code", json!(0), "message"),
        ("code", json!(200), "msg"),
        ("code", json!("0"), "message"),
        ("code", json!("Success"), "msg"),
        ("code", json!(null), "title"),
        ("error_code", json!(0), "error_msg"),
    ] {
        let mut last = usage.clone();
        last[name] = code;
        last[text] = json!("success");
        let frames = [last.clone(), delta(json!({ "content": "Paid." })), finish("stop"), last];
        fold_frames(&frames.map(|frame| frame.to_string()));
    }
    for name in ["code", "error_code"] {
        let failed = json!({ "choices": [], name: "x", "msg": "team-7 is out" });
        let fault = fold_chunks(&[failed]).1.finish().error.unwrap();
        assert_eq!(fault.message, "team-7 is out", "{name}");
    }
    let mut failed = delta(json!({ "content": "half" }));
    failed["error"] = json!({ "message": "team-7 is out" });
    let fault = fold_chunks(&[failed]).1.finish().error.unwrap();
    assert_eq!(fault.message, "team-7 is out");
}

#[test]
fn empty_value_of_another_type_is_absent() {
    let chunk = |choice: &str| format!(r#"{{"choices":[{choice}]}}"#);
    let text = |member: &str| chunk(&format!(r#"{{"delta":{{"content":"Paid."{member}}}}}"#));
    let end = finish("stop").to_string();
    for frames in [
        vec![text(r#","tool_calls":{}"#), end.clone()],
        vec![text(r#","tool_calls":"""#), end.clone()],
        vec![text(r#","tool_calls":[null,{},""]"#), end.clone()],
        vec![text(r#","function_call":"""#), end.clone()],
        vec![text(r#","function_call":{}"#), end.clone()],
        vec![text(""), end.clone(), r#"{"choices":{},"usage":{}}"#.to_owned()],
        vec![r#"{"choices":[null]}"#.to_owned(), text(""), end.clone()],
        vec![chunk(r#"{"delta":{"content":"Paid."},"message":""}"#), end.clone()],
        vec![text(""), chunk(r#"{"delta":"","finish_reason":"stop"}"#)],
    ] {
        let folded = fold_frames(&frames);
        assert_eq!(joined_text(&folded.message.content), "Paid.", "{frames:?}");
        assert_eq!(folded.message.content.len(), 1, "{frames:?}");
        assert_eq!(folded.message.stop_reason, StopReason::Stop, "{frames:?}");
    }
    let arguments = r#"{"n":12345678901234567890.50}"#;
    let function = format!(r#"{{"name":"pay","arguments":{arguments}}}"#);
    let call = format!(r#"{{"index":0,"id":"a","function":{function}}}"#);
    let frame = chunk(&format!(r#"{{"delta":{{"tool_calls":[{call},null]}},"score":NaN}}"#));
    let folded = fold_frames(&[frame, end]);
    assert_eq!(calls_of(&folded), [own("a", "pay", arguments)], "each digit stays");
}

#[test]
fn chunk_of_invalid_json_is_repaired() {
    for frame in [
        r#"{"choices":[{"delta":{"content":"Paid."},"logprobs":{"token":NaN}}]}"#,
        r#"{"choices":[{"delta":{"content":"Paid."}}],"score":-Infinity}"#,
        r#"{"id":"a","id":"a","choices":[{"index":0,"index":0,"delta":{"content":"Paid."}}]}"#,
        r#"{"choices":[{"delta":{"role":"assistant","content":"Paid.","role":"assistant"}}],}"#,
        r#"{"choices":[{"delta":{"content":"","content":"Paid.","content":"Paid."}}]}"#,
    ] {
        let folded = fold_frames(&[frame.to_owned(), finish("stop").to_string()]);
        assert_eq!(joined_text(&folded.message.content), "Paid.", "{frame}");
    }
    let raw = "{\"choices\":[{\"delta\":{\"content\":\"one\ttwo\nthree\"}}]}".to_owned();
    let folded = fold_frames(&[raw, finish("stop").to_string()]);
    assert_eq!(joined_text(&folded.message.content), "one\ttwo\nthree");
    let mut fold = new_fold();
    fold.push_frame(None, r#"{"error":{"message":"team-7 is out","score":NaN}}"#);
    assert_eq!(fold.finish().error.unwrap().message, "team-7 is out");
}

#[test]
fn chunk_whose_repair_loses_content_fails() {
    let choice = |delta: &str| format!(r#"{{"choices":[{{"delta":{{{delta}}}}}]}}"#);
    let call = |id: &str, arguments: &str| {
        format!(
            r#""tool_calls":[{{"index":0,"id":"{id}","function":{{"name":"pay",{arguments}}}}}]"#
        )
    };
    let (first, second) = (call("a", r#""arguments":"{}""#), call("b", r#""arguments":"{}""#));
    let doubled = choice(r#""content":"Paid.","content":"""#);
    for frame in [
        choice(&format!("{first},{second}")),
        choice(&call("a", r#""arguments":"{\"n\":1}","arguments":"{}""#)),
        choice(&call("a", r#""arguments":{"n":NaN}"#)),
        choice(&call("a", r#""arguments":{"n":007}"#)),
        format!("{doubled},").replace("},", ",}"),
        doubled,
        r#"{"choices":[{"delta":{"content":"Paid."}}],"choices":[]}"#.to_owned(),
    ] {
        let mut fold = new_fold();
        fold.push_frame(None, &frame);
        let fault = fold.finish().error.unwrap();
        assert!(fault.message.contains("could not be parsed"), "{frame} {}", fault.message);
    }
}

#[test]
fn full_window_without_output_is_an_overflow() {
    let reason = "model_context_window_exceeded";
    for chunks in
        [vec![finish(reason)], vec![delta(json!({ "reasoning_content": "Hm" })), finish(reason)]]
    {
        let fault = fold_chunks(&chunks).1.finish().error.unwrap();
        let class = classify(&fault, &HeaderMap::new(), Timestamp(0));
        assert_eq!(class, ModelFailure::ContextOverflow, "{chunks:?}");
    }
    let with_call = [call(0, "a", "pay", "{}"), finish(reason)];
    assert_eq!(fold_chunks(&with_call).1.finish().message.stop_reason, StopReason::Length);
}
