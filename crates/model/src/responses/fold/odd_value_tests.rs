//! Numbers, Booleans, objects and lists in the place of texts and arguments, and content that a reader
//! would lose.

#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better without `&`")]

use http::HeaderMap;
use serde_json::json;

use super::merge_tests::{blocks, response_with};
use super::omitted::SILENT_ITEMS;
use super::tests::{
    fold_events, item_added, item_delta, item_done, message_item, response_completed,
};
use super::*;
use crate::ModelFailure;
use crate::responses::provider_error::classify;
use turnwheel_conversation::content::joined_text;

pub(super) fn call_with(arguments: Value) -> Value {
    json!({ "type": "function_call", "id": "fc_1", "call_id": "c", "name": "pay", "arguments": arguments })
}

pub(super) fn arguments_event(end: &str, member: &str, value: Value) -> Value {
    json!({ "type": format!("response.function_call_arguments.{end}"), "output_index": 0, member: value })
}

/// The calls of each form of a call with these arguments.
fn calls_of_each_form(value: &Value) -> Vec<String> {
    let call = || call_with(value.clone());
    let custom = json!({ "type": "custom_tool_call", "id": "fc_1", "call_id": "c", "name": "pay", "input": value });
    let streamed = |event: Value| {
        vec![item_added(0, call_with(json!(""))), event, item_done(0, call_with(json!("")))]
    };
    let forms = [
        vec![response_with(&[call()])],
        vec![item_done(0, call())],
        vec![item_added(0, call()), item_done(0, call_with(Value::Null))],
        vec![item_done(0, custom)],
        streamed(arguments_event("delta", "delta", value.clone())),
        streamed(arguments_event("done", "arguments", value.clone())),
        streamed(arguments_event("done", "input", value.clone())),
        streamed(
            json!({ "type": "response.function_call_arguments.done", "output_index": 0, "text": "", "arguments": value }),
        ),
    ];
    let calls = forms.map(|mut events| {
        events.push(response_completed());
        let (mut found, stop) = blocks(&events);
        assert_eq!((found.len(), stop), (1, StopReason::ToolUse), "{events:?}");
        found.remove(0)
    });
    calls.to_vec()
}

/// Folds frames and returns the message's text, its calls and the error.
pub(super) fn fold_frames(frames: &[String]) -> (String, Vec<String>, Option<ProviderError>) {
    let mut fold = ResponseFold::new("m", Tariff::default(), ToolNames::default());
    for frame in frames {
        fold.push_frame(None, frame);
    }
    let folded = fold.finish();
    let calls = folded.message.tool_calls();
    let calls = calls.map(|call| format!("{} {}", call.name, call.arguments.text())).collect();
    (joined_text(&folded.message.content), calls, folded.error)
}

pub(super) fn assert_lost(frames: &[String]) {
    let error = fold_frames(frames).2.unwrap_or_else(|| panic!("{frames:?}"));
    assert_eq!(error.text, LOST_EVENT, "{frames:?}");
    let class = classify(&error, &HeaderMap::new(), Timestamp(0));
    assert_eq!(class, ModelFailure::Retryable { after: None });
}

#[test]
fn arguments_of_another_type_are_kept_for_validation() {
    for value in
        [json!([{ "id": 7 }]), json!([[]]), json!(5), json!(true), json!(false), json!({ "id": 7 })]
    {
        let found = calls_of_each_form(&value);
        let expected = format!("pay {value}");
        assert!(found.iter().all(|call| *call == expected), "{value}: {found:?}");
    }
    for (value, expected) in [
        (json!([]), "pay {}"),
        (Value::Null, "pay {}"),
        (json!(""), "pay {}"),
        (json!("null"), "pay null"),
        (json!("5"), "pay 5"),
        (json!("soon"), "pay \"soon\""),
    ] {
        let found = calls_of_each_form(&value);
        assert!(found.iter().all(|call| call == expected), "{value}: {found:?}");
    }
    for (members, expected) in [
        (json!({ "arguments": null, "content": null }), "pay {}"),
        (json!({ "arguments": null, "input": "{\"id\":7}" }), "pay {\"id\":7}"),
        (json!({ "arguments": "", "input": { "id": 7 } }), "pay {\"id\":7}"),
        (json!({ "arguments": [], "input": [7] }), "pay [7]"),
        (json!({ "arguments": { "id": 7 }, "input": { "id": 8 } }), "pay {\"id\":7}"),
    ] {
        let mut call = members;
        call["type"] = json!("function_call");
        call["call_id"] = json!("c");
        call["name"] = json!("pay");
        assert_eq!(blocks(&[response_with(std::slice::from_ref(&call))]).0, [expected], "{call}");
        call.as_object_mut().unwrap().shift_remove("type");
        assert_eq!(blocks(&[response_with(std::slice::from_ref(&call))]).0, [expected], "{call}");
    }
}

#[test]
fn end_of_another_type_replaces_no_whole_arguments() {
    let whole = "{\"id\":7}";
    for (announced, deltas, end, expected) in [
        (json!(""), vec![whole], json!(5), whole),
        (json!(""), vec![whole], json!([]), whole),
        (json!(""), vec![whole], json!([7]), whole),
        (json!(""), vec![whole], json!("{ }"), whole),
        (json!(whole), vec![""], json!(""), whole),
        (json!(whole), vec!["{}"], json!("{}"), whole),
        (json!(""), vec!["{\"id\""], json!(5), "5"),
        (json!(""), vec!["{\"id\""], json!({ "id": 7 }), whole),
        (json!(""), vec!["[{\"id\":7}]"], json!("{}"), "[{\"id\":7}]"),
        (json!(""), vec!["[{\"id\":7}]"], json!({}), "[{\"id\":7}]"),
        (json!([7]), vec![], json!(whole), whole),
        (json!({}), vec![whole], json!({}), whole),
        (json!(false), vec!["{\"id\"", ":7}"], json!(""), whole),
        (json!(false), vec![], json!("{}"), "{}"),
        (json!(""), vec!["false"], json!({}), "{}"),
    ] {
        for is_item in [true, false] {
            let mut events = vec![item_added(0, call_with(announced.clone()))];
            events.extend(deltas.iter().map(|it| item_delta("function_call_arguments", 0, it)));
            if is_item {
                events.push(item_done(0, call_with(end.clone())));
            } else {
                events.push(arguments_event("done", "arguments", end.clone()));
                events.push(item_done(0, call_with(json!(""))));
            }
            events.push(response_completed());
            assert_eq!(blocks(&events).0, [format!("pay {expected}")], "{events:?}");
        }
    }
}

/// A piece of arguments, as written, with this index of its item.
pub(super) fn piece(index: &str, delta: &str) -> String {
    format!(
        r#"{{"type":"response.function_call_arguments.delta","output_index":{index},"delta":{delta}}}"#
    )
}

#[test]
fn piece_of_arguments_keeps_its_digits_or_is_lost() {
    let added = item_added(0, call_with(json!(""))).to_string();
    let done = |arguments: &str| item_done(0, call_with(json!(arguments))).to_string();
    let end = response_completed().to_string();
    let long = "12345678901234567890.50";
    let pieces = [r#""{\"n\":""#, long, r#""}""#].map(|delta| piece("0", delta));
    let frames = [&[added.clone()][..], &pieces[..], &[done(""), end.clone()]].concat();
    assert_eq!(fold_frames(&frames).1, [format!("pay {{\"n\":{long}}}")]);
    // A tree would round these.
    for lost in [piece("0", r#"{"n":0.10}"#), piece("0", "[0.10]"), piece("\"0\"", "0.10")] {
        for ends in [vec![done("")], vec![done("{}")], vec![]] {
            let frames =
                [&[added.clone(), lost.clone()][..], &ends[..], std::slice::from_ref(&end)]
                    .concat();
            assert_lost(&frames);
        }
        assert_lost(&[lost.clone(), end.clone()]);
        let text = item_done(1, message_item("m", "I pay.")).to_string();
        assert_lost(&[text, lost.clone(), end.clone()]);
        let whole = r#"{"n":0.10}"#;
        let frames = [added.clone(), lost, done(whole), end.clone()];
        assert_eq!(fold_frames(&frames).1, [format!("pay {whole}")]);
    }
}

#[test]
fn arguments_around_a_lost_piece_are_not_whole() {
    let added = item_added(0, call_with(json!(""))).to_string();
    let done = |arguments: &str| item_done(0, call_with(json!(arguments))).to_string();
    let end = response_completed().to_string();
    let whole = r#"{"list":[{"n":0.10}]}"#;
    for lost in [piece("0", r#"{"n":0.10}"#), piece("\"0\"", "0.10")] {
        let mut frames = vec![added.clone(), piece("0", r#""{\"list\":[""#), lost];
        frames.push(piece("0", r#""]}""#));
        assert_lost(&[&frames[..], &[done(""), end.clone()]].concat());
        assert_lost(&[&frames[..], &[done("{}"), end.clone()]].concat());
        let response = response_with(&[call_with(json!(whole))]).to_string();
        for ends in [
            vec![done(whole), end.clone()],
            vec![response.clone()],
            vec![done(""), response.clone()],
        ] {
            let found = fold_frames(&[&frames[..], &ends[..]].concat());
            assert_eq!(found, (String::new(), vec![format!("pay {whole}")], None), "{ends:?}");
        }
    }
}

#[test]
fn lost_frame_without_any_other_content_fails() {
    let lost = "{\"type\":\"response.output_text.delta\",\"del".to_owned();
    let end = response_completed().to_string();
    assert_lost(&[lost.clone(), end.clone()]);
    let empty = item_done(0, json!({ "type": "message", "id": "m", "content": [] })).to_string();
    let text = item_done(1, message_item("n", "Hello")).to_string();
    assert_lost(&[lost.clone(), empty.clone(), text.clone(), end.clone()]);
    // A frame that names no content has none.
    let ping = "{type: ping}".to_owned();
    let plain = [empty, text.clone(), end.clone()];
    let found = fold_frames(&[&[ping.clone()][..], &plain].concat());
    assert_eq!((found.0.trim(), &found), ("Hello", &fold_frames(&plain)));
    for (frame, arguments) in [(&ping, "{}"), (&ping, ""), (&lost, "{}")] {
        let call = item_done(0, call_with(json!(arguments))).to_string();
        let expected = (String::new(), vec!["pay {}".to_owned()], None);
        assert_eq!(fold_frames(&[frame.clone(), call, end.clone()]), expected, "{frame}");
    }
    let call = item_done(0, call_with(json!(""))).to_string();
    assert_lost(&[lost.clone(), call, end.clone()]);
    assert_eq!(fold_frames(&[lost, text, end]), ("Hello".to_owned(), vec![], None));
}

#[test]
fn text_of_another_type_is_read() {
    let data = json!([{ "total": "12.50" }, { "total": "1" }]);
    for (content, expected) in [
        (json!("hi"), "hi".to_owned()),
        (json!({ "type": "output_text", "text": "hi" }), "hi".to_owned()),
        (json!({ "text": "hi" }), "hi".to_owned()),
        (json!({ "type": "refusal", "refusal": "hi" }), "hi".to_owned()),
        (json!(["h", "i"]), "hi".to_owned()),
        (
            json!([{ "type": "output_text", "text": { "value": "hi", "annotations": [] } }]),
            "hi".to_owned(),
        ),
        (json!([{ "type": "output_text", "text": 42 }, " ok"]), "42 ok".to_owned()),
        (json!(42), "42".to_owned()),
        (json!(true), "true".to_owned()),
        (json!({ "total": "12.50" }), json!({ "total": "12.50" }).to_string()),
        (data.clone(), data.to_string()),
        (json!([{ "text": "a" }, { "total": 1 }, null, {}]), "a{\"total\":1}".to_owned()),
        (
            json!([{ "type": "invoice", "n": 1 }, { "total": 2 }]),
            "{\"type\":\"invoice\",\"n\":1}{\"total\":2}".to_owned(),
        ),
        (
            json!([{ "text": "a" }, { "type": "text", "content": "b" }]),
            "a{\"type\":\"text\",\"content\":\"b\"}".to_owned(),
        ),
        (
            json!([{ "text": "a" }, { "type": "output_image", "data": "A".repeat(5_000) }]),
            "a".to_owned(),
        ),
    ] {
        let item = json!({ "type": "message", "id": "m", "content": content });
        let part =
            json!({ "type": "response.content_part.done", "output_index": 0, "part": content });
        let text =
            json!({ "type": "response.output_text.done", "output_index": 0, "text": content });
        let added = item_added(0, message_item("m", ""));
        for mut events in [
            vec![response_with(std::slice::from_ref(&item))],
            vec![item_done(0, item.clone())],
            vec![item_added(0, item)],
            vec![added.clone(), part],
            vec![added, text],
        ] {
            events.push(response_completed());
            assert_eq!(blocks(&events), (vec![expected.clone()], StopReason::Stop), "{events:?}");
        }
    }
}

#[test]
fn part_or_text_in_place_of_an_item_is_a_message() {
    for item in [
        json!("hi"),
        json!({ "type": "output_text", "text": "hi" }),
        json!({ "type": "text", "text": "hi" }),
        json!({ "type": "refusal", "refusal": "hi" }),
        json!({ "type": "message", "text": "hi" }),
        json!({ "text": { "value": "hi" } }),
    ] {
        let events = [response_with(&[Value::Null, item.clone(), json!({})])];
        assert_eq!(blocks(&events), (vec!["hi".to_owned()], StopReason::Stop), "{item}");
    }
    for output in [message_item("m", "hi"), json!("hi")] {
        let end = json!({ "type": "response.completed", "response": { "status": "completed", "output": output } });
        assert_eq!(blocks(&[end]).0, ["hi"], "{output}");
    }
}

#[test]
fn delta_of_another_type_is_text_or_a_placeholder() {
    let delta = |delta: Value| json!({ "type": "response.output_text.delta", "output_index": 0, "delta": delta });
    for (odd, expected) in [
        (json!(42), "a42b"),
        (json!(12.5), "a12.5b"),
        (json!(true), "atrueb"),
        (json!({ "text": "x" }), "axb"),
        (json!({ "type": "output_text", "text": { "value": "x" } }), "axb"),
        (json!({ "total": 1 }), "a{\"total\":1}b"),
        (json!({}), "ab"),
        (json!([]), "ab"),
        (json!(false), "ab"),
        (json!(""), "ab"),
        (Value::Null, "ab"),
    ] {
        let events =
            [delta(json!("a")), delta(odd.clone()), delta(json!("b")), response_completed()];
        assert_eq!(blocks(&events), (vec![expected.to_owned()], StopReason::Stop), "{odd}");
    }
    assert_eq!(blocks(&[delta(json!(42)), response_completed()]).0, ["42"]);
    let long = "12345678901234567890.10";
    let frame =
        format!(r#"{{"type":"response.output_text.delta","output_index":0,"delta":{long}}}"#);
    assert_eq!(fold_frames(&[frame, response_completed().to_string()]).0, long);
}

#[test]
fn placeholder_of_a_text_replaces_nothing() {
    for content in
        [json!({}), json!(false), json!(""), json!([]), json!([{}]), json!([null]), Value::Null]
    {
        let events = [
            item_added(0, json!({ "type": "message", "id": "m", "content": content })),
            item_delta("output_text", 0, "hi"),
            json!({ "type": "response.content_part.done", "output_index": 0, "part": content }),
            json!({ "type": "response.output_text.done", "output_index": 0, "text": content }),
            item_done(0, json!({ "type": "message", "id": "m", "content": content })),
            json!({ "type": "response.output_item.added", "output_index": 1, "item": {} }),
            response_with(&[json!({ "type": "message", "id": "m", "content": content })]),
        ];
        assert_eq!(blocks(&events).0, ["hi"], "{content}");
    }
}

#[test]
fn reasoning_of_another_type_is_read() {
    for summary in [
        json!("Hm"),
        json!(["Hm"]),
        json!({ "type": "summary_text", "text": "Hm" }),
        json!([{ "type": "summary_text", "text": { "value": "Hm" } }]),
    ] {
        for member in ["summary", "content"] {
            let item = json!({ "type": "reasoning", "id": "r", "summary": [], member: summary });
            let events = [item_done(0, item), response_completed()];
            assert_eq!(blocks(&events).0, ["(Hm)"], "{summary}");
        }
    }
}

#[test]
fn unknown_item_is_named_once_beside_other_output() {
    let note =
        |kind: &str| format!("(output of the type `{kind}` omitted: this runtime cannot show it)");
    let reasoning = json!({ "type": "reasoning", "id": "r", "summary": ["Hm"] });
    let text = message_item("m", "text");
    let call = call_with(json!("{}"));
    let function = json!({ "type": "function", "function": { "name": "pay", "arguments": "{}" } });
    let untyped = json!({ "id": "x", "result": 1 });
    for (item, kind) in [
        (function, "function"),
        (untyped, "unknown"),
        (json!({ "type": "computer_call", "call_id": "c2", "action": {} }), "computer_call"),
        (json!({ "type": "mcp_approval_request", "name": "pay" }), "mcp_approval_request"),
    ] {
        let expected = vec!["(Hm)".to_owned(), note(kind)];
        let output = [item.clone(), reasoning.clone(), item.clone()];
        assert_eq!(blocks(&[response_with(&output)]), (expected, StopReason::Stop));
        let events =
            [item_added(0, item.clone()), item_done(0, item.clone()), response_completed()];
        assert_eq!(blocks(&events).0, [note(kind)]);
        // A reader of the response would take the note for the text.
        for (other, expected) in [(&text, "text"), (&call, "pay {}")] {
            let output = [item.clone(), other.clone(), item.clone()];
            assert_eq!(blocks(&[response_with(&output)]).0, [expected]);
        }
    }
    for kind in REPLAYABLE_ITEMS.iter().chain(&SILENT_ITEMS) {
        let item = json!({ "type": kind, "id": "x", "output": "found" });
        let (_, folded) = fold_events(&[response_with(&[item])]);
        assert_eq!(joined_text(&folded.message.content), "", "{kind}");
    }
}

#[test]
fn item_announced_without_its_type_is_not_named() {
    let added = item_added(0, json!({ "id": "m", "status": "in_progress" }));
    let done = item_done(0, message_item("m", "hi"));
    assert_eq!(blocks(&[added.clone(), done, response_completed()]).0, ["hi"]);
    assert_eq!(blocks(&[added, response_completed()]).0, [""; 0]);
    let empty = [json!(false), json!([]), json!(""), json!({}), Value::Null];
    assert_eq!(blocks(&[response_with(&empty)]).0, [""; 0]);
}

#[test]
fn duplicate_member_with_content_fails_the_call() {
    let call = |members: &str| {
        format!(r#"{{"type":"function_call","call_id":"c","name":"pay",{members}}}"#)
    };
    let item_event = |item: &str| {
        format!(r#"{{"type":"response.output_item.done","output_index":0,"item":{item}}}"#)
    };
    let whole = |item: &str| {
        format!(
            r#"{{"type":"response.completed","response":{{"status":"completed","output":[{item}]}}}}"#
        )
    };
    let text = item_done(1, message_item("m", "I pay.")).to_string();
    let end = response_completed().to_string();
    let odd = call(r#""arguments":"{\"n\":1}","arguments":"{\"n\":2}""#);
    for frame in [
        item_event(&odd),
        whole(&odd),
        item_event(&call(r#""arguments":{"n":1},"arguments":{}"#)),
        item_event(&call(r#""arguments":"{}","name":"cancel""#)),
        item_event(&call(r#""input":"{\"n\":1}","input":"""#)),
        item_event(&call(r#""arguments":{"n":NaN}"#)),
        item_event(r#"{"type":"message","content":[{"text":"a","text":"b"}]}"#),
        r#"{"type":"response.function_call_arguments.done","output_index":0,"arguments":"{}","arguments":"{\"n\":1}"}"#.to_owned(),
        r#"{"type":"response.output_text.delta","output_index":0,"delta":"a","delta":"b"}"#.to_owned(),
        format!(r#"{{"type":"response.output_item.done","item":{odd},"item":{}}}"#, call(r#""arguments":"{}""#)),
    ] {
        assert_lost(&[text.clone(), frame, end.clone()]);
    }
    for frame in [
        item_event(&call(r#""arguments":"","arguments":"{\"n\":1}""#)),
        item_event(&call(r#""arguments":null,"arguments":{"n":1}"#)),
        item_event(&call(r#""arguments":"{\"n\":1}","arguments":"{\"n\":1}""#)),
        item_event(&call(r#""status":"in_progress","arguments":"{\"n\":1}","status":"completed""#)),
        item_event(&call(r#""arguments":"{\"n\":1}","score":NaN"#)),
    ] {
        let frames = [frame.clone(), end.clone()];
        let expected = (String::new(), vec!["pay {\"n\":1}".to_owned()], None);
        assert_eq!(fold_frames(&frames), expected, "{frame}");
    }
}

#[test]
fn event_with_lost_content_ends_no_response() {
    let item = r#"{"type":"function_call","call_id":"c","name":"pay","name":"cancel"}"#;
    let done = format!(r#"{{"type":"response.output_item.done","output_index":0,"item":{item}}}"#);
    let usage = r#"{"input_tokens":10,"output_tokens":5}"#;
    let end = format!(
        r#"{{"type":"response.completed","response":{{"output":[{item}],"usage":{usage}}}}}"#
    );
    let mut fold = ResponseFold::new("m", Tariff::default(), ToolNames::default());
    fold.push_frame(None, &done);
    assert!(!fold.is_finished());
    fold.push_frame(None, &end);
    assert!(fold.is_finished());
    let folded = fold.finish();
    assert_eq!(folded.error.unwrap().text, LOST_EVENT);
    assert_eq!(folded.message.usage.total_tokens, 15);
}

#[test]
fn duplicate_member_without_content_is_read() {
    let error = r#""error":{"message":"m"},"error":{"code":"insufficient_quota","message":"m"}"#;
    for frame in [
        format!(r#"{{"type":"error",{error}}}"#),
        format!("{{{error}}}"),
        format!(r#"{{"type":"response.failed","response":{{"status":"failed",{error}}}}}"#),
    ] {
        let fault = fold_frames(std::slice::from_ref(&frame)).2.unwrap();
        assert_eq!(fault.code.as_deref(), Some("insufficient_quota"), "{frame}");
    }
    let text = r#""text":{"format":{"type":"text"}},"text":{"format":{"type":"json_schema"}}"#;
    let event = |kind: &str, status: &str| {
        format!(r#"{{"type":"response.{kind}","response":{{"status":"{status}",{text}}}}}"#)
    };
    let frames = [
        event("created", "in_progress"),
        item_done(0, message_item("m", "hi")).to_string(),
        event("completed", "completed"),
    ];
    assert_eq!(fold_frames(&frames), ("hi".to_owned(), vec![], None));
}

#[test]
fn usage_without_counts_replaces_none() {
    let usage = json!({ "prompt_tokens": 10.0, "completion_tokens": 5 });
    let progress = json!({ "type": "response.in_progress", "response": { "usage": usage } });
    for last in [json!({}), Value::Null, json!({ "input_tokens": 0, "output_tokens": 0 })] {
        let end =
            json!({ "type": "response.completed", "response": { "output": [], "usage": last } });
        let (_, folded) = fold_events(&[progress.clone(), end]);
        let found = *folded.message.usage;
        assert_eq!((found.input, found.output, found.total_tokens), (10, 5, 15), "{last}");
    }
    let end = json!({ "type": "response.completed", "usage": usage, "response": { "output": [], "usage": null } });
    assert_eq!(fold_events(&[end]).1.message.usage.total_tokens, 15);
}
