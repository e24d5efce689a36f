//! Histories on the wire. No history gives an invalid request.

#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better without `&`")]

use serde_json::json;

use super::*;
use crate::agent::settings::ThinkingLevel;
use crate::model::catalogue::Catalogue;

fn plan_for(model: &str, history: Value) -> Value {
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
    let request = ModelRequest {
        model: &record,
        system: None,
        messages: &messages,
        tools: &[],
        thinking: ThinkingLevel::Off,
        temperature: None,
        max_output_tokens: None,
        response_schema: None,
        session_id: "",
        traceparent: None,
        payload: None,
    };
    serde_json::to_value(plan_input(&request, &Names::default())).unwrap()
}

fn plan(history: Value) -> Value {
    plan_for("gpt-5", history)
}

fn answer(content: Value) -> Value {
    json!({ "role": "assistant", "model": "gpt-5", "stopReason": "toolUse", "content": content })
}

fn result(id: &str, text: &str) -> Value {
    json!({ "role": "toolResult", "toolCallId": id, "toolName": "t", "content": [{ "type": "text", "text": text }] })
}

fn call(id: &str) -> Value {
    json!({ "type": "toolCall", "id": id, "name": "t", "arguments": {} })
}

fn thought(encrypted: Value) -> Value {
    let item = json!({ "type": "reasoning", "id": "rs_1", "status": "completed", "summary": [], "content": [], "encrypted_content": encrypted });
    json!({ "type": "thinking", "thinking": "t", "thinkingSignature": item.to_string() })
}

fn kinds(items: &Value) -> Vec<String> {
    let kind = |item: &Value| {
        item.get("type").or_else(|| item.get("role")).unwrap().as_str().unwrap().to_owned()
    };
    items.as_array().unwrap().iter().map(kind).collect()
}

#[test]
fn thoughts_go_back_whole_but_for_what_the_service_does_not_take() {
    let items =
        plan(json!([answer(json!([thought(json!("E")), call("c|fc_1")])), result("c|fc_1", "x")]));
    assert_eq!(
        items[0],
        json!({ "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E" })
    );
    assert_eq!(items[1]["id"], "fc_1");
}

#[test]
fn thoughts_that_cannot_be_sent_again_are_dropped_with_the_ids_they_led_to() {
    let items = plan(json!([
        answer(
            json!([thought(Value::Null), { "type": "text", "text": "a", "textSignature": "msg_x" }, call("c|fc_1")])
        ),
        result("c|fc_1", "x")
    ]));
    assert_eq!(kinds(&items), ["message", "function_call", "function_call_output"]);
    assert_eq!((&items[0]["id"], items[1].get("id")), (&json!("msg_0"), None));
}

#[test]
fn thoughts_without_what_followed_them_are_dropped() {
    assert_eq!(plan(json!([answer(json!([thought(json!("E"))]))])), json!([]));
    let odd = json!({ "type": "hologram" });
    let items =
        plan(json!([answer(json!([thought(json!("E")), odd, { "type": "text", "text": "a" }]))]));
    assert_eq!(kinds(&items), ["message"]);
}

#[test]
fn another_models_answer_is_plain() {
    let mut foreign = answer(json!([
        thought(json!("E")), { "type": "text", "text": "a", "textSignature": "msg_x" }, call("call.1|fc_1"),
    ]));
    foreign["model"] = json!("gpt-4o");
    let items = plan(json!([foreign, result("call.1|fc_1", "x")]));
    assert_eq!(kinds(&items), ["message", "message", "function_call", "function_call_output"]);
    assert_eq!(items[0]["content"][0]["text"], "t", "its reasoning is sent as output text");
    assert_eq!((&items[0]["id"], &items[1]["id"]), (&json!("msg_0"), &json!("msg_0_2")));
    assert_eq!(
        items[2],
        json!({ "type": "function_call", "call_id": "call_1", "name": "t", "arguments": "{}" })
    );
    assert_eq!(items[3]["call_id"], "call_1");
}

#[test]
fn a_thought_that_says_nothing_to_this_model_is_left_out() {
    let empty = json!({ "type": "thinking", "thinking": " \n" });
    let mut hidden = thought(json!("E"));
    hidden["redacted"] = json!(true);
    let mut foreign = answer(json!([empty, hidden, { "type": "text", "text": "a" }]));
    assert_eq!(kinds(&plan(json!([foreign.clone()]))), ["message"], "its own reasoning without a signature");
    foreign["model"] = json!("gpt-4o");
    assert_eq!(kinds(&plan(json!([foreign]))), ["message"]);
    // Its own reasoning with a signature is replayed, though it has no text.
    let mut silent = thought(json!("E"));
    silent["thinking"] = json!("");
    let items = plan(json!([answer(json!([silent, { "type": "text", "text": "a" }]))]));
    assert_eq!(kinds(&items), ["reasoning", "message"]);
}

#[test]
fn where_one_thought_cannot_go_back_none_does_and_no_id_that_it_led_to() {
    let items = plan(json!([answer(json!([
        thought(json!("E")), { "type": "hologram" }, { "type": "text", "text": "a", "textSignature": "msg_x" }, call("c|fc_1"),
    ]))]));
    assert_eq!(kinds(&items), ["message", "function_call"]);
    assert_eq!((&items[0]["id"], items[1].get("id")), (&json!("msg_0"), None));
}

#[test]
fn what_is_no_picture_is_named_and_not_sent() {
    let drawing = json!({ "type": "image", "data": "AAAA", "mimeType": "image/svg+xml" });
    let mut of_tool = result("c", "");
    of_tool["content"] = json!([drawing]);
    let items = plan(json!([
        { "role": "user", "content": [drawing] }, answer(json!([call("c")])), of_tool,
    ]));
    assert_eq!(items[0]["content"], json!([{ "type": "input_text", "text": NO_PICTURE }]));
    assert_eq!(kinds(&items), ["user", "function_call", "function_call_output"]);
    assert_eq!(items[2]["output"], NO_PICTURE);
}

#[test]
fn nothing_that_is_sent_is_empty() {
    let nothing = json!({ "role": "user", "content": [{ "type": "text", "text": "" }] });
    let items = plan(json!([
        { "role": "user", "content": "" }, nothing, answer(json!([call("c")])), result("c", ""),
    ]));
    assert_eq!(kinds(&items), ["function_call", "function_call_output"]);
    assert_eq!(items[1]["output"], "(no output)");
}

#[test]
fn failed_answers_and_silent_roles_are_left_out() {
    let mut failed = answer(json!([{ "type": "text", "text": "half" }]));
    failed["stopReason"] = json!("error");
    let items = plan(
        json!([failed, { "role": "custom", "customType": "x", "content": "c", "display": true }, { "role": "hologram" }]),
    );
    assert_eq!(items, json!([]));
}

#[test]
fn a_messages_phase_goes_back_with_it() {
    let signature = json!({ "v": 1, "id": "msg_1", "phase": "commentary" }).to_string();
    let items =
        plan(json!([answer(json!([{ "type": "text", "text": "a", "textSignature": signature }]))]));
    assert_eq!((&items[0]["id"], &items[0]["phase"]), (&json!("msg_1"), &json!("commentary")));
}

#[test]
fn every_output_finds_its_call_though_ids_repeat_or_are_too_long() {
    let long = "x".repeat(90);
    let items = plan(json!([
        answer(json!([call("same|fc_1"), call("same|fc_1")])),
        result("same|fc_1", "1"),
        result("same|fc_1", "2"),
        answer(json!([call("same|fc_2"), call(&long)])),
        result("same|fc_2", "3"),
        result(&long, "4"),
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
fn images_of_results_come_behind_the_last_output() {
    let image = |data: &str| json!({ "type": "image", "data": data, "mimeType": "image/png" });
    let mut first = result("a", "");
    first["content"] = json!([image("AAAA")]);
    let history = json!([answer(json!([call("a"), call("b")])), first, result("b", "x"), { "role": "user", "content": [image("BBBB")] }]);
    let items = plan(history.clone());
    assert_eq!(
        kinds(&items)[2..],
        ["function_call_output", "function_call_output", "user", "user"]
    );
    assert_eq!(items[2]["output"], "(see attached image)");
    assert_eq!(items[4]["content"][0]["text"], "Attached image(s) from tool result:");
    assert_eq!(items[4]["content"][1]["image_url"], "data:image/png;base64,AAAA");

    let blind = plan_for("gpt-3.5-turbo", history);
    assert_eq!(kinds(&blind)[2..], ["function_call_output", "function_call_output", "user"]);
    assert_eq!(blind[2]["output"], NO_IMAGES);
    assert_eq!(blind[4]["content"], json!([{ "type": "input_text", "text": NO_IMAGES }]));
}

#[test]
fn arguments_go_back_as_the_model_wrote_them() {
    let with = |arguments: Value| {
        let items = plan(json!([answer(
            json!([{ "type": "toolCall", "id": "c", "name": "my.tool", "arguments": arguments }])
        )]));
        (
            items[0]["name"].as_str().unwrap().to_owned(),
            items[0]["arguments"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(with(json!({ "a": 1 })), ("my_tool".to_owned(), "{\"a\":1}".to_owned()));
    assert_eq!(with(json!("{\"a")).1, "{\"a");
}

#[test]
fn files_are_named_and_not_sent() {
    let items = plan(
        json!([{ "role": "user", "content": [{ "type": "file", "artifactId": "x.1", "path": "a.csv", "mimeType": "text/csv", "size": 12 }] }]),
    );
    assert_eq!(
        items[0]["content"][0]["text"],
        "[File \"a.csv\" (text/csv, 12 bytes). Its content is not visible to you: this agent has no tool `read`. Say so where it matters.]"
    );
}

#[test]
fn items_of_the_service_go_back_as_they_came() {
    let item = json!({ "type": "compaction", "id": "cmp_1", "encrypted_content": "E" });
    let items = plan(json!([answer(
        json!([{ "type": "text", "text": "a", "textSignature": "m" }, { "type": "providerItem", "item": item }])
    )]));
    assert_eq!(items[1], item);
    let owed = json!({ "type": "custom_tool_call", "call_id": "c" });
    assert_eq!(plan(json!([answer(json!([{ "type": "providerItem", "item": owed }]))])), json!([]));
}
