//! Merging deltas, ends of items and the whole response.

use serde_json::json;

use super::tests::{
    call_item, content_json, fold_events, fold_twice, item_added, item_delta, item_done,
    message_item, response_completed,
};
use super::*;
use turnwheel_conversation::content::joined_text;
use turnwheel_test_support::numbers::ANY_NUMBER;

pub(super) fn response_with(output: &[Value]) -> Value {
    json!({ "type": "response.completed", "response": { "status": "completed", "output": output } })
}

fn call_of(call_id: &str, item_id: &str, arguments: &str) -> Value {
    json!({ "type": "function_call", "id": item_id, "call_id": call_id, "name": "pay", "arguments": arguments })
}

/// The announcement, a delta and the end of a call.
fn streamed_call(index: u64, call: &Value) -> [Value; 3] {
    let mut announced = call.clone();
    announced["arguments"] = json!("");
    [
        item_added(index, announced),
        json!({ "type": "response.function_call_arguments.delta", "output_index": index, "item_id": call["id"], "delta": call["arguments"] }),
        item_done(index, call.clone()),
    ]
}

/// Texts, and names with arguments of calls, in order.
pub(super) fn blocks(events: &[Value]) -> (Vec<String>, StopReason) {
    let (_, folded) = fold_twice(events);
    let lines = folded.message.content.iter().map(|block| match block {
        Block::Text(text) => text.text.clone(),
        Block::ToolCall(call) => format!("{} {}", call.name, call.arguments.text()),
        Block::Thinking(thinking) => format!("({})", thinking.thinking),
        Block::Image(_) | Block::File(_) | Block::Other(_) => "?".to_owned(),
    });
    (lines.collect(), folded.message.stop_reason)
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(50))]

    #[test]
    fn any_number_in_a_call_stays_as_written(number in ANY_NUMBER) {
        let whole = format!(r#"{{"n":{number}}}"#);
        let call = call_of("call_1", "fc_1", &whole);
        let events = [&streamed_call(0, &call)[..], &[response_with(std::slice::from_ref(&call))]].concat();
        proptest::prop_assert_eq!(blocks(&events).0, [format!("pay {whole}")]);
    }
}

#[test]
fn paid_content_of_other_forms_is_shown() {
    let shortcut = json!({ "type": "response.completed", "response": { "status": "completed", "output": [], "output_text": "shortcut" } });
    assert_eq!(
        blocks(std::slice::from_ref(&shortcut)),
        (vec!["shortcut".to_owned()], StopReason::Stop)
    );
    let mut repeated = shortcut;
    repeated["response"]["output"] = json!([message_item("m", "text")]);
    assert_eq!(blocks(&[repeated]).0, ["text"], "it repeats the items");
    let image = json!({ "type": "image_generation_call", "id": "ig", "result": "aGk=" });
    let note = "(output of the type `image_generation_call` omitted: this runtime cannot show it)";
    assert_eq!(blocks(&[response_with(std::slice::from_ref(&image))]).0, [note]);
    assert_eq!(blocks(&[response_with(&[image, message_item("m", "text")])]).0, ["text"]);
    let custom = json!({ "type": "custom_tool_call", "id": "ct", "call_id": "c9", "name": "pay", "input": "{\"a\":1}" });
    let call = (vec!["pay {\"a\":1}".to_owned()], StopReason::ToolUse);
    assert_eq!(blocks(&[response_with(std::slice::from_ref(&custom))]), call);
    let mut announced = custom.clone();
    announced["input"] = json!("");
    let streamed = [
        item_added(0, announced),
        json!({ "type": "response.custom_tool_call_input.delta", "output_index": 0, "item_id": "ct", "delta": "{\"a\":" }),
        json!({ "type": "response.custom_tool_call_input.delta", "output_index": 0, "item_id": "ct", "delta": "1}" }),
        json!({ "type": "response.custom_tool_call_input.done", "output_index": 0, "item_id": "ct", "input": "{\"a\":1}" }),
        item_done(0, custom),
        response_with(&[]),
    ];
    assert_eq!(blocks(&streamed), call);
}

#[test]
fn items_that_only_the_end_has_are_added_in_order() {
    let call = call_of("call_1", "fc_1", "{\"a\":1}");
    let reasoning = json!({ "type": "reasoning", "id": "rs", "summary": [{ "type": "summary_text", "text": "Hm" }] });
    let output = [reasoning, message_item("m", "I pay."), call.clone(), message_item("n", "Done.")];
    let events = [&streamed_call(2, &call)[..], &[response_with(&output)]].concat();
    let expected = ["(Hm)", "I pay.", "pay {\"a\":1}", "Done."].map(str::to_owned).to_vec();
    assert_eq!(blocks(&events), (expected, StopReason::ToolUse));
    let text = [item_added(0, message_item("m", "")), item_delta("output_text", 0, "I pay.")];
    let events = [&text[..], &[response_with(&[message_item("m", "I pay."), call])]].concat();
    let expected = ["I pay.", "pay {\"a\":1}"].map(str::to_owned).to_vec();
    assert_eq!(blocks(&events), (expected, StopReason::ToolUse));
}

#[test]
fn items_with_other_ids_at_the_end_are_not_added() {
    let [a, b] = [call_of("call_1", "fc_1", "{\"a\":1}"), call_of("call_2", "fc_2", "{\"a\":2}")];
    let streamed = [&streamed_call(0, &a)[..], &streamed_call(1, &b)].concat();
    let both = ["pay {\"a\":1}", "pay {\"a\":2}"].map(str::to_owned).to_vec();
    let outputs = [
        vec![call_of("call_1", "fc_7", "{\"a\":1}"), b.clone()],
        vec![call_of("x", "fc_7", "{\"a\": 1}"), call_of("y", "fc_8", "{\"a\":2}")],
        vec![json!({ "type": "reasoning" }), call_of("x", "", "{\"a\":1}"), b.clone()],
        vec![a.clone(), b.clone()],
        vec![],
    ];
    for output in outputs {
        let (mut found, stop) = blocks(&[&streamed[..], &[response_with(&output)]].concat());
        found.retain(|line| line != "()");
        assert_eq!((found, stop), (both.clone(), StopReason::ToolUse), "{output:?}");
    }
    // One more call with the same arguments is another call.
    let output = [a, b, call_of("call_3", "fc_3", "{\"a\":2}")];
    let (found, _) = blocks(&[&streamed[..], &[response_with(&output)]].concat());
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn items_with_one_index_or_one_id_are_kept_apart() {
    let a = call_of("call_1", "fc_1", "{\"a\":1}");
    let expected =
        (["pay {\"a\":1}", "pay {\"a\":2}"].map(str::to_owned).to_vec(), StopReason::ToolUse);
    let others = [
        ("one index", 0, call_of("call_2", "fc_2", "{\"a\":2}")),
        ("one call id", 1, call_of("call_1", "fc_2", "{\"a\":2}")),
        ("one item id", 1, call_of("call_2", "fc_1", "{\"a\":2}")),
        ("both ids", 1, call_of("call_1", "fc_1", "{\"a\":2}")),
        ("one index and item id", 0, call_of("call_2", "fc_1", "{\"a\":2}")),
    ];
    for (what, index, b) in others {
        let end = response_with(&[a.clone(), b.clone()]);
        let streamed =
            [&streamed_call(0, &a)[..], &streamed_call(index, &b), std::slice::from_ref(&end)];
        assert_eq!(blocks(&streamed.concat()), expected, "{what}");
        let ends = [item_done(0, a.clone()), item_done(index, b.clone()), end];
        assert_eq!(blocks(&ends), expected, "{what}, ends only");
    }
    let b = call_of("call_2", "fc_2", "{\"a\":2}");
    let [first, second] = [streamed_call(0, &a), streamed_call(0, &b)];
    let mixed = first.into_iter().zip(second).flat_map(|(one, other)| [one, other]);
    let mixed: Vec<Value> = mixed.chain([response_completed()]).collect();
    assert_eq!(blocks(&mixed), expected, "interleaved with one index");
    let repeated = [&streamed_call(0, &a)[..], &streamed_call(0, &a)[2..], &[response_completed()]];
    assert_eq!(blocks(&repeated.concat()).0.len(), 1, "the end of a call, twice");
}

#[test]
fn texts_are_merged_in_any_order() {
    let delta = |id: &str, text: &str| json!({ "type": "response.output_text.delta", "item_id": id, "delta": text });
    let text_done =
        json!({ "type": "response.output_text.done", "output_index": 0, "text": "Hello" });
    let part_done = json!({ "type": "response.content_part.done", "output_index": 0, "part": { "type": "output_text", "text": "Hello" } });
    let empty = item_done(0, json!({ "type": "message", "id": "m", "content": [] }));
    let blank = item_done(0, message_item("m", ""));
    let added = item_added(0, message_item("m", ""));
    let pieces = [item_delta("output_text", 0, "Hel"), item_delta("output_text", 0, "lo")];
    let cases = [
        ("only the end of the text", vec![added.clone(), text_done.clone()]),
        ("only the end of the part", vec![added.clone(), part_done.clone()]),
        ("no announcement", vec![pieces[0].clone(), pieces[1].clone()]),
        ("announced after a delta", vec![pieces[0].clone(), added.clone(), pieces[1].clone()]),
        ("announced with its text", vec![item_added(0, message_item("m", "Hello"))]),
        ("empty end", vec![added.clone(), pieces[0].clone(), pieces[1].clone(), empty.clone()]),
        ("blank end", vec![added.clone(), pieces[0].clone(), pieces[1].clone(), blank]),
        (
            "deltas after the end",
            vec![added.clone(), empty.clone(), pieces[0].clone(), pieces[1].clone()],
        ),
        ("text after the end", vec![added.clone(), empty, text_done.clone()]),
        (
            "end repeats the deltas",
            vec![added.clone(), pieces[0].clone(), pieces[1].clone(), text_done, part_done],
        ),
        (
            "index as text",
            vec![
                json!({ "type": "response.output_text.delta", "output_index": "0", "delta": "Hello" }),
            ],
        ),
        ("ids without indices", vec![delta("a", "Hel"), delta("a", "lo")]),
    ];
    for (what, events) in cases {
        let events = [&events[..], &[response_completed()]].concat();
        assert_eq!(blocks(&events), (vec!["Hello".to_owned()], StopReason::Stop), "{what}");
    }
    let part = |index: u64, text: &str| json!({ "type": "response.output_text.delta", "output_index": 0, "content_index": index, "delta": text });
    let parts = [part(1, "wor"), part(0, "Hello "), part(1, "ld"), response_completed()];
    assert_eq!(blocks(&parts).0, ["Hello world"]);
    let one_index = [
        item_added(0, json!({ "type": "reasoning", "id": "r" })),
        item_delta("output_text", 0, "Hello"),
        item_done(0, json!({ "type": "reasoning", "id": "r", "summary": [] })),
        response_completed(),
    ];
    assert_eq!(blocks(&one_index).0, ["()", "Hello"], "a text with the index of the reasoning");
}

#[test]
fn whole_arguments_replace_deltas_unless_they_lack_something() {
    let added = |arguments: &str| item_added(0, call_of("c", "f", arguments));
    let delta = |text: &str| item_delta("function_call_arguments", 0, text);
    let end = |text: &str| json!({ "type": "response.function_call_arguments.done", "output_index": 0, "arguments": text });
    let done = |text: &str| item_done(0, call_of("c", "f", text));
    let whole = "{\"a\":1}";
    let cases = [
        (
            "announced whole, then again",
            vec![added(whole), delta("{\"a\""), delta(":1}"), done("")],
        ),
        ("placeholder, then deltas", vec![added("{}"), delta(whole), done("{}")]),
        ("the end of the arguments is all", vec![added(""), end(whole)]),
        ("the end of the item is cut", vec![added(""), delta(whole), done("{\"a\"")]),
        ("the end has more than the deltas", vec![added(""), delta("{\"a\""), done(whole)]),
        (
            "deltas before the announcement",
            vec![delta("{\"a\""), added(""), delta(":1}"), done("")],
        ),
        (
            "the whole response has them",
            vec![added(""), delta("{\"a\""), response_with(&[call_of("c", "f", whole)])],
        ),
    ];
    for (what, events) in cases {
        let events = [&events[..], &[response_completed()]].concat();
        let expected = (vec![format!("pay {whole}")], StopReason::ToolUse);
        assert_eq!(blocks(&events), expected, "{what}");
    }
    let object =
        json!({ "type": "function_call", "call_id": "c", "name": "pay", "arguments": { "a": 1 } });
    assert_eq!(blocks(&[response_with(&[object])]).0, ["pay {\"a\":1}"]);
    let rounded = json!({ "type": "function_call", "call_id": "c", "name": "pay", "arguments": { "a": 0.1 } });
    let (found, _) = blocks(&[response_with(&[rounded])]);
    assert!(found[0].starts_with("pay \""), "no number that may be rounded: {found:?}");
}

#[test]
fn ends_and_errors_in_other_forms_are_read() {
    let fold = |event: Value| {
        let (_, folded) = fold_events(&[item_delta("output_text", 0, "half"), event]);
        (joined_text(&folded.message.content), folded.message.error_message)
    };
    let ends = [
        json!({ "type": "response.done", "response": { "status": "completed", "output": [message_item("m", "half")] } }),
        json!({ "object": "response", "status": "completed", "output": [message_item("m", "half")] }),
        json!({ "response": { "status": "completed", "output": [] } }),
        json!({ "type": "response.completed", "output": [message_item("m", "half")] }),
    ];
    for end in ends {
        assert_eq!(fold(end.clone()), ("half".to_owned(), None), "{end}");
    }
    let errors = [
        (
            json!({ "error": { "message": "team-7 is out", "code": "x" } }),
            "Error Code x: team-7 is out",
        ),
        (json!({ "error": "team-7 is out" }), "team-7 is out"),
        (json!({ "detail": "team-7 is out" }), "team-7 is out"),
        (json!({ "message": "team-7 is out" }), "team-7 is out"),
        (json!([{ "error": { "message": "team-7 is out" } }]), "team-7 is out"),
        (
            json!({ "type": "exception", "message": "team-7 is out" }),
            "Error Code exception: team-7 is out",
        ),
        (
            json!({ "type": "response.failed", "error": { "message": "team-7 is out" } }),
            "team-7 is out",
        ),
        (
            json!({ "type": "response.error", "error": { "message": "team-7 is out" } }),
            "team-7 is out",
        ),
        (
            json!({ "type": "response.failed", "response": { "error": "team-7 is out" } }),
            "team-7 is out",
        ),
    ];
    for (error, text) in errors {
        let mut fold = ResponseFold::new("m", Tariff::default(), ToolNames::default());
        fold.push_frame(None, &error.to_string());
        let found = fold.finish().message.error_message.unwrap();
        assert_eq!(found, text, "{error}");
    }
    let mut fold = ResponseFold::new("m", Tariff::default(), ToolNames::default());
    fold.push_frame(Some("error"), "team-7 is out");
    assert_eq!(fold.finish().message.error_message.as_deref(), Some("team-7 is out"));
    for harmless in [
        json!({ "heartbeat": 1 }),
        json!({ "type": "codex.rate_limits", "error": null }),
        json!({ "type": "response.mcp_call.failed", "error": "a server" }),
        json!({ "type": "log", "detail": "started" }),
    ] {
        let (_, folded) = fold_events(&[harmless.clone(), response_completed()]);
        assert!(folded.error.is_none(), "{harmless}");
    }
}

#[test]
fn lost_frame_fails_only_an_item_without_end() {
    let fold = |frames: &[&str]| {
        let mut fold = ResponseFold::new("m", Tariff::default(), ToolNames::default());
        for frame in frames {
            fold.push_frame(None, frame);
        }
        let folded = fold.finish();
        (joined_text(&folded.message.content), folded.message.error_message)
    };
    let piece = item_delta("output_text", 0, "Hel").to_string();
    let lost = "{\"type\":\"response.output_text.delta\",\"del";
    let done = item_done(0, message_item("m", "Hello")).to_string();
    let end = response_completed().to_string();
    assert_eq!(fold(&[&piece, lost, &done, &end]), ("Hello".to_owned(), None));
    let (_, error) = fold(&[&piece, lost, &end]);
    assert_eq!(error.as_deref(), Some("an event of the response could not be parsed"));
    assert_eq!(fold(&[&piece, &end, "[DONE]"]), ("Hel".to_owned(), None));
}

#[test]
fn halves_of_a_character_in_two_deltas_are_joined() {
    let mut fold = ResponseFold::new("m", Tariff::default(), ToolNames::default());
    for frame in [
        r#"{"type":"response.output_text.delta","output_index":0,"delta":"a\ud83d"}"#,
        r#"{"type":"response.function_call_arguments.delta","output_index":1,"delta":"{\"b\":\"\ud83d"}"#,
        r#"{"type":"response.output_text.delta","output_index":0,"delta":"\ude00!"}"#,
        r#"{"type":"response.function_call_arguments.delta","output_index":1,"delta":"\ude01\"}"}"#,
    ] {
        fold.push_frame(None, frame);
    }
    fold.push_frame(None, &response_completed().to_string());
    let folded = fold.finish();
    assert_eq!(joined_text(&folded.message.content), "a😀!");
    assert_eq!(content_json(&folded)[1]["arguments"], json!({ "b": "😁" }));
}

#[test]
fn usage_of_an_earlier_event_is_kept() {
    let usage = json!({ "input_tokens": 10, "output_tokens": 5 });
    let progress = json!({ "type": "response.in_progress", "response": { "status": "in_progress", "usage": usage } });
    for end in
        [response_completed(), json!({ "type": "response.failed", "response": { "usage": null } })]
    {
        let (_, folded) = fold_events(&[progress.clone(), end]);
        assert_eq!(folded.message.usage.total_tokens, 15);
    }
    let (_, folded) = fold_events(&[
        json!({ "type": "response.completed", "usage": usage, "response": { "output": [] } }),
    ]);
    assert_eq!(folded.message.usage.total_tokens, 15);
    let (_, folded) = fold_events(&[item_added(0, call_item("1", "{}")), response_completed()]);
    assert_eq!(folded.message.usage.total_tokens, 0);
}
