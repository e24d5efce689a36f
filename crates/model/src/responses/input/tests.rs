//! Histories on the wire. No history gives an invalid request.

#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better without `&`")]

use serde_json::json;

use super::*;
use crate::catalogue::Catalogue;

fn input_for_model(model: &str, history: Value) -> Value {
    let record = Catalogue::default().record(model, "d");
    let messages: Vec<Message> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|message| {
            let mut message = message.clone();
            for (name, value) in [
                ("timestamp", json!(0)),
                ("api", json!(record.api)),
                ("provider", json!("azure")),
                ("isError", json!(false)),
            ] {
                if message.get(name).is_none() {
                    message[name] = value;
                }
            }
            serde_json::from_value(message).unwrap()
        })
        .collect();
    let messages: Vec<&Message> = messages.iter().collect();
    let request = ModelRequest::new(&record, &messages);
    serde_json::to_value(build_input(&request, &ToolNames::default())).unwrap()
}

fn input_of(history: Value) -> Value {
    input_for_model("gpt-5", history)
}

fn response_message(content: Value) -> Value {
    json!({ "role": "assistant", "model": "gpt-5", "stopReason": "toolUse", "content": content })
}

fn tool_result(id: &str, text: &str) -> Value {
    json!({ "role": "toolResult", "toolCallId": id, "toolName": "t", "content": [{ "type": "text", "text": text }] })
}

fn tool_call(id: &str) -> Value {
    json!({ "type": "toolCall", "id": id, "name": "t", "arguments": {} })
}

fn reasoning_block(encrypted: Value) -> Value {
    let item = json!({ "type": "reasoning", "id": "rs_1", "status": "completed", "summary": [], "content": [], "encrypted_content": encrypted });
    json!({ "type": "thinking", "thinking": "t", "thinkingSignature": item.to_string() })
}

fn item_kinds(items: &Value) -> Vec<String> {
    let kind = |item: &Value| {
        item.get("type").or_else(|| item.get("role")).unwrap().as_str().unwrap().to_owned()
    };
    items.as_array().unwrap().iter().map(kind).collect()
}

#[test]
fn reasoning_is_replayed_without_rejected_members() {
    let items = input_of(json!([
        response_message(json!([reasoning_block(json!("E")), tool_call("c|fc_1")])),
        tool_result("c|fc_1", "x")
    ]));
    assert_eq!(
        items[0],
        json!({ "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E" })
    );
    assert_eq!(items[1]["id"], "fc_1");
}

#[test]
fn unreplayable_reasoning_is_dropped_with_dependent_ids() {
    let items = input_of(json!([
        response_message(
            json!([reasoning_block(Value::Null), { "type": "text", "text": "a", "textSignature": "msg_x" }, tool_call("c|fc_1")])
        ),
        tool_result("c|fc_1", "x")
    ]));
    assert_eq!(item_kinds(&items), ["message", "function_call", "function_call_output"]);
    assert_eq!((&items[0]["id"], items[1].get("id")), (&json!("msg_0"), None));
}

#[test]
fn reasoning_without_successor_is_dropped() {
    assert_eq!(
        input_of(json!([response_message(json!([reasoning_block(json!("E"))]))])),
        json!([])
    );
    let odd = json!({ "type": "hologram" });
    let items = input_of(json!([response_message(
        json!([reasoning_block(json!("E")), odd, { "type": "text", "text": "a" }])
    )]));
    assert_eq!(item_kinds(&items), ["message"]);
}

#[test]
fn response_of_other_model_loses_signatures() {
    let mut foreign = response_message(json!([
        reasoning_block(json!("E")), { "type": "text", "text": "a", "textSignature": "msg_x" }, tool_call("call.1|fc_1"),
    ]));
    foreign["model"] = json!("gpt-4o");
    let items = input_of(json!([foreign, tool_result("call.1|fc_1", "x")]));
    assert_eq!(item_kinds(&items), ["message", "message", "function_call", "function_call_output"]);
    assert_eq!(items[0]["content"][0]["text"], "t", "its reasoning is sent as output text");
    assert_eq!((&items[0]["id"], &items[1]["id"]), (&json!("msg_0"), &json!("msg_0_2")));
    assert_eq!(
        items[2],
        json!({ "type": "function_call", "call_id": "call_1", "name": "t", "arguments": "{}" })
    );
    assert_eq!(items[3]["call_id"], "call_1");
}

#[test]
fn empty_or_redacted_reasoning_is_omitted() {
    let empty = json!({ "type": "thinking", "thinking": " \n" });
    let mut hidden = reasoning_block(json!("E"));
    hidden["redacted"] = json!(true);
    let mut foreign = response_message(json!([empty, hidden, { "type": "text", "text": "a" }]));
    assert_eq!(
        item_kinds(&input_of(json!([foreign.clone()]))),
        ["message"],
        "its own reasoning without a signature"
    );
    foreign["model"] = json!("gpt-4o");
    assert_eq!(item_kinds(&input_of(json!([foreign]))), ["message"]);
    // Its own reasoning with a signature is replayed, though it has no text.
    let mut silent = reasoning_block(json!("E"));
    silent["thinking"] = json!("");
    let items =
        input_of(json!([response_message(json!([silent, { "type": "text", "text": "a" }]))]));
    assert_eq!(item_kinds(&items), ["reasoning", "message"]);
}

#[test]
fn unknown_block_drops_all_reasoning_and_ids() {
    let items = input_of(json!([response_message(json!([
        reasoning_block(json!("E")), { "type": "hologram" }, { "type": "text", "text": "a", "textSignature": "msg_x" }, tool_call("c|fc_1"),
    ]))]));
    assert_eq!(item_kinds(&items), ["message", "function_call"]);
    assert_eq!((&items[0]["id"], items[1].get("id")), (&json!("msg_0"), None));
}

#[test]
fn unsupported_image_becomes_note() {
    let drawing = json!({ "type": "image", "data": "AAAA", "mimeType": "image/svg+xml" });
    let mut of_tool = tool_result("c", "");
    of_tool["content"] = json!([drawing]);
    let items = input_of(json!([
        { "role": "user", "content": [drawing] }, response_message(json!([tool_call("c")])), of_tool,
    ]));
    assert_eq!(items[0]["content"], json!([{ "type": "input_text", "text": UNSUPPORTED_IMAGE }]));
    assert_eq!(item_kinds(&items), ["user", "function_call", "function_call_output"]);
    assert_eq!(items[2]["output"], UNSUPPORTED_IMAGE);
}

#[test]
fn empty_content_is_not_sent() {
    let nothing = json!({ "role": "user", "content": [{ "type": "text", "text": "" }] });
    let items = input_of(json!([
        { "role": "user", "content": "" }, nothing, response_message(json!([tool_call("c")])), tool_result("c", ""),
    ]));
    assert_eq!(item_kinds(&items), ["function_call", "function_call_output"]);
    assert_eq!(items[1]["output"], "(no output)");
}

#[test]
fn failed_responses_and_custom_roles_are_omitted() {
    let mut failed = response_message(json!([{ "type": "text", "text": "half" }]));
    failed["stopReason"] = json!("error");
    let items = input_of(
        json!([failed, { "role": "custom", "customType": "x", "content": "c", "display": true }, { "role": "hologram" }]),
    );
    assert_eq!(items, json!([]));
}

#[test]
fn message_phase_is_replayed() {
    let signature = json!({ "v": 1, "id": "msg_1", "phase": "commentary" }).to_string();
    let items = input_of(json!([response_message(
        json!([{ "type": "text", "text": "a", "textSignature": signature }])
    )]));
    assert_eq!((&items[0]["id"], &items[0]["phase"]), (&json!("msg_1"), &json!("commentary")));
}

#[test]
fn ids_with_other_prefixes_are_not_sent() {
    let reasoning =
        json!({ "type": "reasoning", "id": "item_0", "summary": [], "encrypted_content": "E" });
    let signature = json!({ "v": 1, "id": "item_2", "phase": "commentary" }).to_string();
    let items = input_of(json!([
        response_message(json!([
            { "type": "thinking", "thinking": "t", "thinkingSignature": reasoning.to_string() },
            { "type": "text", "text": "a", "textSignature": "item_1" },
            { "type": "text", "text": "b", "textSignature": signature },
            { "type": "text", "text": "c", "textSignature": "msg_1.a" },
            tool_call("c|call_1"),
        ])),
        tool_result("c|call_1", "x")
    ]));
    assert_eq!(items[0], json!({ "type": "reasoning", "summary": [], "encrypted_content": "E" }));
    for (position, id) in [(1_usize, "item_1"), (2, "item_2"), (3, "msg_1.a")] {
        assert_eq!(items[position]["id"], format!("msg_{}", short_hash(id)), "{id}");
    }
    assert_eq!((&items[2]["phase"], items[4].get("id")), (&json!("commentary"), None));
}

#[test]
fn outputs_match_calls_despite_repeated_or_long_ids() {
    let long = "x".repeat(90);
    let items = input_of(json!([
        response_message(json!([tool_call("same|fc_1"), tool_call("same|fc_1")])),
        tool_result("same|fc_1", "1"),
        tool_result("same|fc_1", "2"),
        response_message(json!([tool_call("same|fc_2"), tool_call(&long)])),
        tool_result("same|fc_2", "3"),
        tool_result(&long, "4"),
    ]));
    let of = |kind: &str| -> Vec<String> {
        let items = items.as_array().unwrap().iter().filter(|item| item["type"] == kind);
        items.map(|item| item["call_id"].as_str().unwrap().to_owned()).collect()
    };
    let calls = of("function_call");
    assert_eq!(calls, of("function_call_output"));
    assert_eq!(calls.iter().collect::<HashSet<_>>().len(), 4, "{calls:?}");
    assert!(calls.iter().all(|id| id.len() <= 64));
    let ids: Vec<&Value> =
        items.as_array().unwrap().iter().filter_map(|item| item.get("id")).collect();
    assert_eq!(ids, ["fc_1", "fc_2"], "an item id occurs once in a request");
}

#[test]
fn result_images_follow_last_output() {
    let image = |data: &str| json!({ "type": "image", "data": data, "mimeType": "image/png" });
    let mut first = tool_result("a", "");
    first["content"] = json!([image("AAAA")]);
    let history = json!([response_message(json!([tool_call("a"), tool_call("b")])), first, tool_result("b", "x"), { "role": "user", "content": [image("BBBB")] }]);
    let items = input_of(history.clone());
    assert_eq!(
        item_kinds(&items)[2..],
        ["function_call_output", "function_call_output", "user", "user"]
    );
    assert_eq!(items[2]["output"], "(see attached image)");
    assert_eq!(items[4]["content"][0]["text"], "Attached image(s) from tool result:");
    assert_eq!(items[4]["content"][1]["image_url"], "data:image/png;base64,AAAA");

    let without_images = input_for_model("gpt-3.5-turbo", history);
    assert_eq!(
        item_kinds(&without_images)[2..],
        ["function_call_output", "function_call_output", "user"]
    );
    assert_eq!(without_images[2]["output"], IMAGES_NOT_ACCEPTED);
    assert_eq!(
        without_images[4]["content"],
        json!([{ "type": "input_text", "text": IMAGES_NOT_ACCEPTED }])
    );
}

#[test]
fn arguments_are_replayed_as_object() {
    let with = |arguments: Value| {
        let items = input_of(json!([response_message(
            json!([{ "type": "toolCall", "id": "c", "name": "my.tool", "arguments": arguments }])
        )]));
        (
            items[0]["name"].as_str().unwrap().to_owned(),
            items[0]["arguments"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(with(json!({ "a": 1 })), ("my_tool".to_owned(), "{\"a\":1}".to_owned()));
    for (stored, sent) in [
        (json!("{\"a\":[1"), "{\"a\":[1]}"),
        (json!(["Ada"]), "{}"),
        (json!(null), "{}"),
        (json!("Ada"), "{}"),
    ] {
        assert_eq!(with(stored.clone()).1, sent, "{stored}");
    }
}

#[test]
fn files_become_notes() {
    let items = input_of(
        json!([{ "role": "user", "content": [{ "type": "file", "artifactId": "x.1", "path": "a.csv", "mimeType": "text/csv", "size": 12 }] }]),
    );
    assert_eq!(
        items[0]["content"][0]["text"],
        "[File \"a.csv\" (text/csv, 12 bytes). Its content is not visible to you: this agent has no tool `read`. Say so where it matters.]"
    );
}

#[test]
fn provider_items_are_replayed_unchanged() {
    let item = json!({ "type": "compaction", "id": "cmp_1", "encrypted_content": "E" });
    let items = input_of(json!([response_message(
        json!([{ "type": "text", "text": "a", "textSignature": "m" }, { "type": "providerItem", "item": item }])
    )]));
    assert_eq!(items[1], item);
    let item = json!({ "type": "custom_tool_call", "call_id": "c" });
    assert_eq!(
        input_of(json!([response_message(json!([{ "type": "providerItem", "item": item }]))])),
        json!([])
    );
}
