//! Forms of calls, texts and ends that other services send.

use http::HeaderMap;
use serde_json::{Value, json};

use super::tests::{arguments, call, calls_of, delta, finish, fold_chunks, new_fold, own};
use super::*;
use crate::responses::provider_error::classify;
use crate::{ModelFailure, ToolOffer};
use turnwheel_conversation::content::joined_text;
use turnwheel_test_support::numbers::ANY_NUMBER;

const A: &str = r#"{"to":"Ada"}"#;
const B: &str = r#"{"to":"Bob"}"#;

/// Name and arguments of the calls.
fn calls(chunks: &[Value]) -> Vec<(String, String)> {
    let mut fold = new_fold();
    for chunk in chunks {
        fold.push_frame(None, &chunk.to_string());
    }
    fold.push_frame(None, END_FRAME);
    let folded = fold.finish();
    assert_eq!(folded.error, None, "{chunks:?}");
    calls_of(&folded).into_iter().map(|(_, name, arguments)| (name, arguments)).collect()
}

/// Ids, names and arguments of the calls, with these tools.
fn calls_with_tools(chunks: &[Value], tools: &[&str]) -> Vec<(String, String, String)> {
    let schema = Value::Null;
    let offer = |name| ToolOffer { name, description: "", parameters: &schema, strict: false };
    let offers: Vec<ToolOffer<'_>> = tools.iter().copied().map(offer).collect();
    let mut fold = ChatFold::new("m", Tariff::default(), ToolNames::new(&offers));
    for chunk in chunks.iter().chain(&[finish("tool_calls")]) {
        fold.push_frame(None, &chunk.to_string());
    }
    calls_of(&fold.finish())
}

fn pay(arguments: &str) -> (String, String) {
    ("pay".to_owned(), arguments.to_owned())
}

#[test]
fn whole_calls_with_one_index_and_no_ids_are_two_calls() {
    let end = finish("tool_calls");
    let both = [pay(A), pay(B)];
    let pairs = [
        [call(0, "", "pay", A), call(0, "", "pay", B), end.clone()].to_vec(),
        [call(0, "", "pay", A), call(0, "", "pay", ""), arguments(0, B), end.clone()].to_vec(),
        [call(0, "a", "pay", A), call(0, "a", "pay", B), end.clone()].to_vec(),
        [
            call(0, "", "pay", r#"{"to":"#),
            arguments(0, r#""Ada"}"#),
            call(0, "", "pay", B),
            end.clone(),
        ]
        .to_vec(),
    ];
    for chunks in pairs {
        assert_eq!(calls(&chunks), both, "{chunks:?}");
    }
    assert_eq!(calls(&[call(0, "", "pay", A), call(0, "", "pay", A), end.clone()]).len(), 2);
    // A repeated id repeats the call.
    assert_eq!(calls(&[call(0, "a", "pay", A), call(0, "a", "pay", A), end.clone()]), [pay(A)]);
    assert_eq!(calls(&[call(0, "a", "pay", A), call(0, "a", "pay", ""), end.clone()]), [pay(A)]);
    let pieces = [call(0, "", "pay", r#"{"to":"#), call(0, "", "pay", r#""Ada"}"#), end.clone()];
    assert_eq!(calls(&pieces), [pay(A)]);
    // The id assigns each piece to its call.
    let piece = |id: &str, arguments: &str| {
        let function = json!({ "arguments": arguments });
        delta(json!({ "tool_calls": [{ "index": 0, "id": id, "function": function }] }))
    };
    let interleaved = [
        call(0, "a", "pay", r#"{"to":"#),
        call(0, "b", "pay", r#"{"to":"#),
        piece("a", r#""Ada"}"#),
        piece("b", r#""Bob"}"#),
        end.clone(),
    ];
    assert_eq!(calls(&interleaved), both);
    let named = [
        call(0, "a", "pay", r#"{"to":"#),
        call(0, "b", "pay", r#"{"to":"#),
        call(0, "a", "pay", r#""Ada"}"#),
        call(0, "b", "pay", r#""Bob"}"#),
        end.clone(),
    ];
    assert_eq!(calls(&named), both);
    let glued = calls(&[call(0, "a", "pay", &format!("{A}{B}")), end]);
    assert!(glued[0].1.starts_with('"'), "two objects in one call are no arguments: {glued:?}");
}

#[test]
fn index_as_text_and_older_call_are_read() {
    let text_index = delta(
        json!({ "tool_calls": [{ "index": "0", "id": "a", "function": { "name": "pay", "arguments": A } }] }),
    );
    assert_eq!(calls(&[text_index, finish("tool_calls")]), [pay(A)]);
    let older = |function: Value| delta(json!({ "function_call": function }));
    let pieces = [
        older(json!({ "name": "pay", "arguments": "" })),
        older(json!({ "arguments": r#"{"to":"# })),
        older(json!({ "arguments": r#""Ada"}"# })),
        finish("function_call"),
    ];
    assert_eq!(calls(&pieces), [pay(A)]);
    let both_forms = [
        call(0, "a", "pay", A),
        older(json!({ "name": "pay", "arguments": A })),
        finish("tool_calls"),
    ];
    assert_eq!(calls(&both_forms), [pay(A)], "one call in both forms");
    let mut choice = delta(json!({ "content": "hi" }));
    choice["choices"][0]["index"] = json!("0");
    let folded = fold_chunks(&[choice, finish("stop")]).1.finish();
    assert_eq!(joined_text(&folded.message.content), "hi");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(50))]

    #[test]
    fn any_number_in_a_call_stays_as_written(number in ANY_NUMBER, cut in 1_usize..20) {
        let whole = format!(r#"{{"n":{number}}}"#);
        let (first, rest) = whole.split_at(cut.min(whole.len() - 1));
        let chunks = [call(0, "a", "pay", first), arguments(0, rest), finish("tool_calls")];
        proptest::prop_assert_eq!(calls(&chunks), [pay(&whole)]);
    }
}

#[test]
fn spoken_and_older_texts_are_content() {
    let audio = |transcript: &str| {
        delta(json!({ "audio": { "id": "a", "data": "AA", "transcript": transcript } }))
    };
    let spoken = [audio("spoken "), audio("words"), finish("stop")];
    let both = delta(json!({ "content": "written", "audio": { "transcript": "spoken" } }));
    let older = |text: &str, reason: Value| json!({ "choices": [{ "index": 0, "text": text, "finish_reason": reason }] });
    let whole = json!({ "choices": [{ "message": { "content": null, "audio": { "transcript": "spoken words" } }, "finish_reason": "stop" }] });
    for (chunks, expected) in [
        (spoken.to_vec(), "spoken words"),
        (vec![both, finish("stop")], "written"),
        (vec![older("legacy ", Value::Null), older("text", json!("stop"))], "legacy text"),
        (vec![whole], "spoken words"),
    ] {
        let folded = fold_chunks(&chunks).1.finish();
        assert_eq!(folded.error, None, "{chunks:?}");
        assert_eq!(joined_text(&folded.message.content), expected);
        assert_eq!(folded.message.incomplete_details(), None);
    }
}

#[test]
fn unknown_finish_reason_is_noted() {
    let chunks = |reason: &str| [delta(json!({ "content": "hi" })), finish(reason)];
    let folded = fold_chunks(&chunks("weird_reason")).1.finish();
    let details = folded.message.incomplete_details().unwrap();
    assert_eq!(details.reason, "unknown");
    assert!(details.message.contains("`weird_reason`"), "{details:?}");
    for known in ["stop", "STOP", "end_turn", "eos"] {
        let folded = fold_chunks(&chunks(known)).1.finish();
        assert_eq!((folded.message.incomplete_details(), folded.error), (None, None), "{known}");
    }
}

#[test]
fn message_of_the_last_chunk_adds_what_deltas_lack() {
    let last = |message: Value| json!({ "choices": [{ "index": 0, "delta": {}, "message": message, "finish_reason": "stop" }] });
    let tool_call = |id: &str, to: &str| json!({ "id": id, "type": "function", "function": { "name": "pay", "arguments": to } });
    let text = delta(json!({ "content": "I " }));
    let cases = [
        (vec![text.clone()], json!({ "content": "I pay." }), "I pay.", vec![]),
        (vec![], json!({ "content": "I pay." }), "I pay.", vec![]),
        (vec![text.clone()], json!({ "content": "I " }), "I ", vec![]),
        (vec![text.clone()], json!({ "tool_calls": [tool_call("a", A)] }), "I ", vec![pay(A)]),
        (
            vec![call(0, "a", "pay", A)],
            json!({ "tool_calls": [tool_call("a", A)] }),
            "",
            vec![pay(A)],
        ),
        (
            vec![call(0, "", "pay", A)],
            json!({ "tool_calls": [tool_call("a", A)] }),
            "",
            vec![pay(A)],
        ),
        (
            vec![call(0, "a", "pay", "{")],
            json!({ "tool_calls": [tool_call("a", A)] }),
            "",
            vec![pay(A)],
        ),
        (
            vec![call(0, "a", "pay", A)],
            json!({ "tool_calls": [tool_call("a", A), tool_call("b", B)] }),
            "",
            vec![pay(A), pay(B)],
        ),
        (
            vec![],
            json!({ "tool_calls": [tool_call("", A), tool_call("", A)] }),
            "",
            vec![pay(A), pay(A)],
        ),
        (vec![], json!({ "function_call": { "name": "pay", "arguments": A } }), "", vec![pay(A)]),
    ];
    for (mut chunks, message, text, expected) in cases {
        chunks.push(last(message));
        assert_eq!(calls(&chunks), expected, "{chunks:?}");
        let folded = fold_chunks(&chunks).1.finish();
        assert_eq!(joined_text(&folded.message.content), text, "{chunks:?}");
    }
}

#[test]
fn content_after_the_finish_reason_is_read() {
    let with_stop = |content: Value| json!({ "choices": [{ "index": 0, "delta": content, "finish_reason": "stop" }] });
    let texts: Vec<Value> = ["one ", "two ", "three"]
        .iter()
        .map(|text| with_stop(json!({ "content": text })))
        .collect();
    let folded = fold_chunks(&texts).1.finish();
    assert_eq!(
        (joined_text(&folded.message.content).as_str(), folded.error),
        ("one two three", None)
    );
    let each = |id: &str, to: &str, reason: &str| {
        let mut chunk = call(0, id, "pay", to);
        chunk["choices"][0]["finish_reason"] = json!(reason);
        chunk
    };
    assert_eq!(calls(&[each("a", A, "tool_calls"), each("b", B, "tool_calls")]), [pay(A), pay(B)]);
    let late = [delta(json!({ "content": "I pay." })), finish("stop"), call(0, "a", "pay", A)];
    assert_eq!(calls(&late), [pay(A)]);
    let (_, folded) = fold_chunks(&late);
    assert_eq!(folded.finish().message.stop_reason, StopReason::ToolUse);
    let cut = [texts[0].clone(), finish("length"), finish("stop")];
    assert_eq!(fold_chunks(&cut).1.finish().message.stop_reason, StopReason::Length);
    // Only a stream that ends with its finish reason is complete when the connection breaks.
    let mut fold = new_fold();
    for chunk in &texts[..2] {
        fold.push_frame(None, &chunk.to_string());
    }
    assert!(!fold.is_awaiting_usage(), "more may follow, at the pace of the model");
    fold.fail(ProviderError::connection_lost("cut"));
    assert_eq!(fold.finish().error.unwrap().text, "cut");
}

#[test]
fn late_content_ends_with_the_stream() {
    let with_stop = |text: &str| json!({ "choices": [{ "index": 0, "delta": { "content": text }, "finish_reason": "stop" }] });
    let mut fold = new_fold();
    let mut events = Vec::new();
    for frame in [with_stop("a").to_string(), with_stop("b").to_string(), END_FRAME.to_owned()] {
        events.extend(fold.push_frame(None, &frame));
    }
    let last = serde_json::to_value(events.last().unwrap()).unwrap();
    assert_eq!((&last["type"], &last["content"]), (&json!("text_end"), &json!("ab")));
}

#[test]
fn name_in_pieces_is_joined_unless_it_is_repeated() {
    let name = |name: &str, arguments: &str| {
        delta(
            json!({ "tool_calls": [{ "index": 0, "id": "a", "function": { "name": name, "arguments": arguments } }] }),
        )
    };
    let names = calls_with_tools;
    for known in [&["pay", "pay_later"][..], &[]] {
        assert_eq!(names(&[name("pa", ""), name("y", A)], known), [own("a", "pay", A)]);
        assert_eq!(
            names(&[name("pay", r#"{"to":"#), name("pay", r#""Ada"}"#)], known),
            [own("a", "pay", A)]
        );
        assert_eq!(
            names(&[name("p", ""), name("a", ""), name("y", ""), arguments(0, A)], known),
            [own("a", "pay", A)]
        );
        assert_eq!(names(&[name("pay", ""), name("_later", A)], known), [own("a", "pay_later", A)]);
    }
    assert_eq!(
        names(&[name("pa", ""), name("pay", A)], &["pay"]),
        [own("a", "pay", A)],
        "a growing name"
    );
}

#[test]
fn other_name_after_whole_arguments_begins_another_call() {
    let (first, second) = (r#"{"o":1}"#, r#"{"o":2}"#);
    let pair =
        |id: &str| vec![call(0, id, "get", first), call(0, id, "cancel", ""), arguments(0, second)];
    let pieces = vec![
        call(0, "", "get", ""),
        arguments(0, r#"{"o""#),
        arguments(0, ":1}"),
        call(0, "", "cancel", ""),
        arguments(0, r#"{"o":"#),
        arguments(0, "2}"),
    ];
    let mut no_index = pair("");
    for chunk in &mut no_index {
        chunk["choices"][0]["delta"]["tool_calls"][0]["index"].take();
    }
    let older = |name: &str, arguments: &str| {
        delta(json!({ "function_call": { "name": name, "arguments": arguments } }))
    };
    let older = vec![older("get", first), older("cancel", ""), older("", second)];
    let expected = [("get", first), ("cancel", second)];
    let both = expected.map(|(name, arguments)| (name.to_owned(), arguments.to_owned()));
    let named = |chunks: &[Value], tools: &[&str]| -> Vec<(String, String)> {
        let calls = calls_with_tools(chunks, tools).into_iter();
        calls.map(|(_, name, arguments)| (name, arguments)).collect()
    };
    for chunks in [pair(""), pair("a"), pieces, no_index, older] {
        for tools in [&["get", "cancel"][..], &[]] {
            assert_eq!(named(&chunks, tools), both, "{chunks:?}");
        }
    }
    let tools = ["get", "cancel"];
    // The first call has no arguments.
    let bare = [call(0, "", "get", ""), call(0, "", "cancel", second)];
    let expected = [("get".to_owned(), "{}".to_owned()), both[1].clone()];
    assert_eq!(named(&bare, &tools), expected);
    // The first call was cut. Its arguments are no part of the second one.
    let cut = [call(0, "", "get", r#"{"o":"#), call(0, "", "cancel", second)];
    assert_eq!(named(&cut, &tools)[1..], both[1..]);
    // A name in pieces after its arguments is one name.
    let late = [arguments(0, first), call(0, "", "ge", ""), call(0, "", "t", "")];
    assert_eq!(named(&late, &tools), both[..1]);
}

#[test]
fn error_of_a_choice_keeps_reason_and_class() {
    let retry = ModelFailure::Retryable { after: None };
    let details = |code: u64| json!({ "code": code, "message": "flagged by moderation" });
    for (error, text, expected) in [
        (details(403), "Error Code 403: flagged by moderation", ModelFailure::Permanent),
        (details(502), "Error Code 502: flagged by moderation", retry.clone()),
        (json!({}), "the service ended the response with the reason `error`", retry),
    ] {
        let choice = |member: &str| json!({ "choices": [{ "index": 0, member: { "content": "" }, "finish_reason": "error", "error": error }] });
        let mut whole = new_fold();
        assert!(whole.push_whole(&[&choice("message").to_string()]).0);
        let half = delta(json!({ "content": "half" }));
        for fold in [whole, fold_chunks(&[half, choice("delta")]).1] {
            let fault = fold.finish().error.unwrap();
            assert_eq!(fault.text, text);
            assert_eq!(classify(&fault, &HeaderMap::new(), Timestamp(0)), expected, "{text}");
        }
    }
    let harmless = json!({ "choices": [{ "delta": { "content": "hi" }, "finish_reason": "stop", "error": null }] });
    assert_eq!(fold_chunks(&[harmless]).1.finish().error, None);
}

#[test]
fn whole_response_without_reason_ends_with_note() {
    let choice = |choice: Value| {
        json!({ "choices": [choice], "usage": { "prompt_tokens": 4, "completion_tokens": 2 } })
            .to_string()
    };
    let message = json!({ "content": "Paid." });
    for body in [
        choice(json!({ "message": message, "finish_reason": null })),
        choice(json!({ "message": message, "finish_reason": "" })),
        choice(json!({ "message": message })),
        choice(json!({ "text": "Paid." })),
    ] {
        let mut fold = new_fold();
        let (is_response, events) = fold.push_whole(&[&body]);
        assert!(is_response && !fold.lacks_usage(), "{body}");
        assert!(matches!(events.last(), Some(AssistantMessageEvent::TextEnd { .. })), "{body}");
        let FoldedResponse { message, error, .. } = fold.finish();
        assert_eq!((message.stop_reason, error), (StopReason::Stop, None), "{body}");
        assert_eq!(joined_text(&message.content), "Paid.");
        let details = message.incomplete_details().unwrap();
        assert_eq!(
            (details.reason.as_str(), details.message.as_str()),
            ("unknown", NO_REASON_NOTE)
        );
    }
    let function = json!({ "name": "pay", "arguments": A });
    let body =
        choice(json!({ "message": { "tool_calls": [{ "id": "a", "function": function }] } }));
    let mut fold = new_fold();
    assert!(fold.push_whole(&[&body]).0);
    let folded = fold.finish();
    assert_eq!(folded.message.stop_reason, StopReason::ToolUse);
    assert_eq!(calls_of(&folded), [own("a", "pay", A)]);
    // Chunks without the last one were cut.
    let lines = ["Pa", "id."].map(|text| delta(json!({ "content": text })).to_string());
    let mut fold = new_fold();
    assert!(fold.push_whole(&[&lines[0], &lines[1]]).0);
    let fault = fold.finish().error.unwrap();
    assert_eq!(fault, ProviderError::connection_lost("stream closed before the finish reason"));
    for other in [r#"{"choices":[]}"#, r#"{"choices":null,"usage":{}}"#] {
        assert!(!new_fold().push_whole(&[other]).0, "{other}");
    }
}

#[test]
fn halves_of_a_character_and_odd_parts_are_read() {
    let mut fold = new_fold();
    for frame in [
        r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"a\ud83d"}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"\ude00"}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"pay","arguments":"{\"to\":\"\ud83d"}}]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\ude01\"}"}}]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
    ] {
        fold.push_frame(None, frame);
    }
    let folded = fold.finish();
    assert_eq!(joined_text(&folded.message.content), "a😀");
    assert_eq!(calls_of(&folded), [own("c", "pay", "{\"to\":\"😁\"}")]);
    let parts = [
        delta(json!({ "content": ["one", { "type": "text", "text": " two" }, 3] })),
        delta(json!({ "content": { "type": "text", "text": " three" } })),
        finish("stop"),
    ];
    assert_eq!(joined_text(&fold_chunks(&parts).1.finish().message.content), "one two3 three");
}

#[test]
fn errors_of_other_forms_keep_their_reason() {
    for frame in [
        r#"{"detail":"team-7 is out"}"#,
        r#"{"message":"team-7 is out"}"#,
        r#"{"error":"team-7 is out","choices":"none"}"#,
        r#"[{"error":{"message":"team-7 is out"}}]"#,
        r#"{"choices":null,"errors":[{"message":"team-7 is out"}]}"#,
        r#"{"object":"error","message":{"detail":[{"msg":"team-7 is out"}]}}"#,
        r#"{"choices":null,"base_resp":{"status_code":1008,"status_msg":"team-7 is out"}}"#,
        r#"{"choices":[],"base_resp":{"status_code":1008,"status_msg":"team-7 is out"}}"#,
        r#"{"choices":[],"error_type":"BadRequestError","error_message":"team-7 is out"}"#,
        r#"{"choices":[],"error":{"code":0,"message":"team-7 is out"}}"#,
    ] {
        let mut fold = new_fold();
        fold.push_frame(None, frame);
        assert_eq!(fold.finish().error.unwrap().message, "team-7 is out", "{frame}");
    }
    let mut fold = new_fold();
    fold.push_frame(Some("error"), "team-7 is out");
    assert_eq!(fold.finish().error.unwrap().text, "team-7 is out");
    let mut last = finish("stop");
    last["base_resp"] = json!({ "status_code": 0, "status_msg": "success" });
    assert_eq!(fold_chunks(&[delta(json!({ "content": "hi" })), last]).1.finish().error, None);
}
