//! Members of a request beside its input, and the exact bytes of a request with all features.

use serde_json::{Value, json};

use super::*;
use crate::catalogue::Catalogue;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::settings::ThinkingLevel;

fn body_text<'a>(model: &str, change: impl FnOnce(&mut ModelRequest<'a>)) -> String {
    let mut request = ModelRequest {
        temperature: Some(0.5),
        session_id: "conv-1",
        ..ModelRequest::new(
            Box::leak(Box::new(Catalogue::default().record(model, "my-deployment"))),
            &[],
        )
    };
    change(&mut request);
    let names = ToolNames::new(request.tools);
    String::from_utf8(build_request_body(&request, &names).to_bytes().unwrap()).unwrap()
}

fn body_json<'a>(model: &str, change: impl FnOnce(&mut ModelRequest<'a>)) -> Value {
    serde_json::from_str(&body_text(model, change)).unwrap()
}

fn tool_offer<'a>(name: &'a str, description: &'a str, parameters: &'a Value) -> ToolOffer<'a> {
    ToolOffer { name, description, parameters, strict: false }
}

#[test]
fn reasoning_model_gets_effort_without_temperature() {
    let body = body_json("gpt-5.1", |request| request.thinking = ThinkingLevel::High);
    assert_eq!(
        body,
        json!({
            "model": "my-deployment", "input": [], "stream": true, "store": false, "max_output_tokens": 32_000,
            "prompt_cache_key": "conv-1", "include": ["reasoning.encrypted_content"],
            "reasoning": { "effort": "high", "summary": "auto" },
        })
    );
}

#[test]
fn other_model_gets_temperature_without_effort() {
    let body = body_json("gpt-4o", |request| request.thinking = ThinkingLevel::High);
    assert_eq!(
        body,
        json!({
            "model": "my-deployment", "input": [], "stream": true, "store": false, "max_output_tokens": 16_384,
            "prompt_cache_key": "conv-1", "temperature": 0.5,
        })
    );
}

#[test]
fn thinking_off_disables_reasoning() {
    assert_eq!(body_json("gpt-5.1", |_| {})["reasoning"], json!({ "effort": "none" }));
    assert_eq!(body_json("gpt-5", |_| {}).get("reasoning"), None);
    assert_eq!(body_json("gpt-5", |_| {})["include"], json!(["reasoning.encrypted_content"]));
}

#[test]
fn output_limit_respects_service_and_model_bounds() {
    for (requested, sent) in
        [(Some(1), 16), (Some(500), 500), (Some(1_000_000), 128_000), (None, 32_000)]
    {
        assert_eq!(
            body_json("gpt-5", |request| request.max_output_tokens = requested)["max_output_tokens"],
            json!(sent)
        );
    }
}

#[test]
fn long_session_id_becomes_short_cache_key() {
    let long = "c".repeat(128);
    let body = body_json("gpt-5", |request| request.session_id = &long);
    assert_eq!(body["prompt_cache_key"].as_str().unwrap().len(), 64);
}

#[test]
fn tools_have_wire_names_and_strict_flag() {
    let parameters = json!({ "type": "object" });
    let tools = [tool_offer("payment.send", "Sends.", &parameters)];
    let body_with = |thinking| {
        body_json("gpt-5", |request| {
            request.tools = &tools;
            request.thinking = thinking;
        })
    };
    let sent = body_with(ThinkingLevel::Low);
    assert_eq!(
        sent["tools"],
        json!([{
            "type": "function", "name": "payment_send", "description": "Sends.",
            "parameters": { "type": "object", "properties": {} }, "strict": false,
        }])
    );
    assert_eq!(
        (&sent["tool_choice"], &sent["parallel_tool_calls"]),
        (&json!("auto"), &json!(true))
    );
    assert_eq!(body_with(ThinkingLevel::Minimal)["parallel_tool_calls"], json!(false));
}

#[test]
fn model_compat_limits_request_body() {
    let prices = r#"{"gpt-5":{"compat":{"supportsDeveloperRole":false,"supportsLongCacheRetention":false,"supportsStrictMode":false}}}"#;
    let limited = Catalogue::new(Some(prices)).unwrap().record("gpt-5", "d");
    let able = Catalogue::default().record("gpt-5", "d");
    let parameters = json!({ "type": "object" });
    let tools = [ToolOffer { strict: true, ..tool_offer("a", "A.", &parameters) }];
    let sent = |record| {
        let request = ModelRequest {
            system: Some("SYS"),
            tools: &tools,
            session_id: "s",
            ..ModelRequest::new(record, &[])
        };
        let names = ToolNames::new(&tools);
        let body = build_request_body(&request, &names)
            .with_cache_retention(CacheRetention::Long, record.compat);
        serde_json::to_value(&body).unwrap()
    };
    let (limited, able) = (sent(&limited), sent(&able));
    assert_eq!(
        (&limited["input"][0]["role"], &able["input"][0]["role"]),
        (&json!("system"), &json!("developer"))
    );
    assert_eq!(
        (limited["tools"][0].get("strict"), &able["tools"][0]["strict"]),
        (None, &json!(true))
    );
    let retention = |body: &Value| body.get("prompt_cache_retention").cloned();
    assert_eq!((retention(&limited), retention(&able)), (None, Some(json!("24h"))));
    assert!(limited["prompt_cache_key"].is_string());
}

#[test]
fn response_schema_becomes_text_format() {
    let schema = json!({ "type": "object" });
    let body = body_json("gpt-4o", |request| request.response_schema = Some(&schema));
    assert_eq!(body["text"]["format"]["schema"], schema);
    assert_eq!(body["text"]["format"]["strict"], json!(false));
}

/// A history with every kind of content.
fn full_history() -> Vec<Message> {
    let thought = r#"{ "type": "reasoning", "id": "rs_1", "status": null, "content": [{"type":"reasoning_text","text":"\u0041\/"}],
        "summary": [{"text": "Hm\n", "type": "summary_text", "score": 1e2}], "encrypted_content": "E\u0000\"" }"#;
    let commentary = r#"{"v":1,"id":"msg_a","phase":"commentary"}"#;
    let long = format!("call {}", "x".repeat(70));
    let picture =
        |kind: &str, data: &str| json!({ "type": "image", "data": data, "mimeType": kind });
    let text = |text: &str| json!({ "type": "text", "text": text });
    let history = json!([
        { "role": "user", "content": [text("Look:\t\"\u{1f600}\"\u{7f}\u{1}"), picture("image/png", "iVBOR+/="), text(""),
            picture("image/svg+xml", "PHN2Zz4="), { "type": "file", "artifactId": "x.1", "path": "a.csv", "mimeType": "text/csv", "size": 12 }] },
        { "role": "assistant", "model": "gpt-5", "content": [
            { "type": "thinking", "thinking": "Hm", "thinkingSignature": thought },
            { "type": "text", "text": "I \\ look.", "textSignature": commentary },
            { "type": "toolCall", "id": "call_1|fc_1", "name": "look.up", "arguments": { "b": 1, "a": "HALF" } },
            { "type": "toolCall", "id": "call_1|fc_1", "name": "gone tool", "arguments": "{\"a" },
            { "type": "toolCall", "id": long, "name": "look_up", "arguments": {} }] },
        { "role": "toolResult", "toolCallId": "call_1|fc_1", "content": [text("one"), { "type": "file", "artifactId": "x.2" }, text("two")] },
        { "role": "toolResult", "toolCallId": "call_1|fc_1", "content": [picture("image/jpeg", "/9j/"), picture("image/webp", "A\"\\")] },
        { "role": "toolResult", "toolCallId": long, "content": [picture("image/tiff", "SUkq")] },
        { "role": "assistant", "model": "gpt-5", "content": [
            { "type": "providerItem", "item": { "type": "web_search_call", "id": "ws_1", "action": { "q": [1.0, 1e-7, true, null], "a": {} } } },
            { "type": "text", "text": "Found.", "textSignature": "m".repeat(80) },
            { "type": "providerItem", "item": { "type": "compaction", "id": "ws_1", "encrypted_content": "C" } },
            { "type": "text", "text": "", "textSignature": "msg_a" }] },
        { "role": "assistant", "model": "gpt-4o", "content": [
            { "type": "thinking", "thinking": "Another's thought." },
            { "type": "toolCall", "id": "", "name": "look.up", "arguments": [1, 2.50] }] },
        { "role": "toolResult", "toolCallId": "", "content": [] },
        { "role": "user", "content": "And\u{2028} now?" },
    ]);
    let with_the_rest = |message: &Value| {
        let mut message = message.clone();
        for (name, value) in [
            ("timestamp", json!(0)),
            ("api", json!("azure-openai-responses")),
            ("provider", json!("azure")),
            ("stopReason", json!("toolUse")),
            ("toolName", json!("look.up")),
            ("isError", json!(false)),
        ] {
            message[name] = value;
        }
        // Only raw JSON can contain an unpaired surrogate.
        serde_json::from_str(&message.to_string().replace("HALF", r"\ud83d")).unwrap()
    };
    history.as_array().unwrap().iter().map(with_the_rest).collect()
}

#[test]
fn request_bytes_are_stable() {
    let history = full_history();
    let messages: Vec<&Message> = history.iter().collect();
    let parameters = json!({ "properties": { "q": { "type": "string" } }, "required": ["q"] });
    let listed = json!({ "type": ["object", "null"], "$id": "x" });
    let tools = [
        tool_offer("look.up", "Looks \"up\".", &parameters),
        tool_offer("look_up", "", &Value::Null),
        tool_offer("any", "\u{e9}", &listed),
    ];
    let schema = json!({ "type": "object", "properties": { "z": {}, "a": { "maximum": 1.0 } } });
    let sent = body_text("gpt-5", |request| {
        request.system = Some("Be \"brief\".\n");
        request.messages = &messages;
        request.tools = &tools;
        request.thinking = ThinkingLevel::High;
        request.response_schema = Some(&schema);
    });
    let expected = concat!(
        r#"{"model":"my-deployment","input":["#,
        r#"{"role":"developer","content":"Be \"brief\".\n"},"#,
        "{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"Look:\\t\\\"😀\\\"\u{7f}\\u0001\"},{\"type\":\"input_image\",\"detail\":\"auto\",\"image_url\":\"data:image/png;base64,iVBOR+/=\"},{\"type\":\"input_text\",\"text\":\"(image omitted: it is not a PNG, JPEG, GIF or WebP picture)\"},{\"type\":\"input_text\",\"text\":\"[File \\\"a.csv\\\" (text/csv, 12 bytes). Its content is not visible to you: this agent has no tool `read`. Say so where it matters.]\"}]},",
        r#"{"type":"reasoning","id":"rs_1","summary":[{"text":"Hm\n","type":"summary_text","score":100.0}],"content":[{"type":"reasoning_text","text":"A/"}],"encrypted_content":"E\u0000\""},"#,
        r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I \\ look.","annotations":[]}],"status":"completed","id":"msg_a","phase":"commentary"},"#,
        r#"{"type":"function_call","id":"fc_1","call_id":"call_1","name":"look_up_2","arguments":"{\"b\":1,\"a\":\"\"}"},"#,
        r#"{"type":"function_call","call_id":"call_1_2","name":"gone_tool","arguments":"{}"},"#,
        r#"{"type":"function_call","call_id":"call_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-27cc568ce78ac9a6","name":"look_up","arguments":"{}"},"#,
        r#"{"type":"function_call_output","call_id":"call_1","output":"one\n[File \"file\" (unknown type). Its content is not visible to you: this agent has no tool `read`. Say so where it matters.]\ntwo"},"#,
        r#"{"type":"function_call_output","call_id":"call_1_2","output":"(see attached image)"},"#,
        r#"{"type":"function_call_output","call_id":"call_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-27cc568ce78ac9a6","output":"(image omitted: it is not a PNG, JPEG, GIF or WebP picture)"},"#,
        r#"{"role":"user","content":[{"type":"input_text","text":"Attached image(s) from tool result:"},{"type":"input_image","detail":"auto","image_url":"data:image/jpeg;base64,/9j/"},{"type":"input_image","detail":"auto","image_url":"data:image/webp;base64,A\"\\"}]},"#,
        r#"{"type":"web_search_call","id":"ws_1","action":{"q":[1.0,1e-7,true,null],"a":{}}},"#,
        r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Found.","annotations":[]}],"status":"completed","id":"msg_76bf4d2072b03374"},"#,
        r#"{"type":"compaction","encrypted_content":"C"},"#,
        r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"","annotations":[]}],"status":"completed","id":"msg_a_2"},"#,
        r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Another's thought.","annotations":[]}],"status":"completed","id":"msg_6"},"#,
        r#"{"type":"function_call","call_id":"call_e3b0c44298fc1c14","name":"look_up_2","arguments":"{}"},"#,
        r#"{"type":"function_call_output","call_id":"call_e3b0c44298fc1c14","output":"(no output)"},"#,
        "{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"And\u{2028} now?\"}]}",
        r#"],"stream":true,"store":false,"max_output_tokens":32000,"prompt_cache_key":"conv-1","include":["reasoning.encrypted_content"],"reasoning":{"effort":"high","summary":"auto"},"#,
        r#""tools":[{"type":"function","name":"look_up_2","description":"Looks \"up\".","parameters":{"properties":{"q":{"type":"string"}},"required":["q"],"type":"object"},"strict":false},"#,
        r#"{"type":"function","name":"look_up","description":"","parameters":{"type":"object","properties":{}},"strict":false},"#,
        r#"{"type":"function","name":"any","description":"é","parameters":{"$id":"x","type":"object","properties":{}},"strict":false}],"#,
        r#""tool_choice":"auto","parallel_tool_calls":true,"#,
        r#""text":{"format":{"type":"json_schema","name":"answer","schema":{"type":"object","properties":{"z":{},"a":{"maximum":1.0}}},"strict":false}}}"#,
    );
    assert_eq!(sent, expected);
}

#[test]
fn request_bytes_are_stable_for_basic_model() {
    let history = full_history();
    let messages: Vec<&Message> = history.iter().take(4).collect();
    let parameters = json!({ "type": "object" });
    let tools = [tool_offer("look_up", "", &parameters)];
    let schema = json!({ "type": "object" });
    let sent = body_text("gpt-3.5-turbo", |request| {
        request.system = Some("Be brief.");
        request.messages = &messages;
        request.tools = &tools;
        request.temperature = Some(1.0);
        request.response_schema = Some(&schema);
    });
    let expected = concat!(
        r#"{"model":"my-deployment","input":["#,
        r#"{"role":"system","content":"Be brief."},"#,
        "{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"Look:\\t\\\"😀\\\"\u{7f}\\u0001\"},{\"type\":\"input_text\",\"text\":\"(image omitted: it is not a PNG, JPEG, GIF or WebP picture)\"},{\"type\":\"input_text\",\"text\":\"[File \\\"a.csv\\\" (text/csv, 12 bytes). Its content is not visible to you: this agent has no tool `read`. Say so where it matters.]\"}]},",
        r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Hm","annotations":[]}],"status":"completed","id":"msg_1"},"#,
        r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I \\ look.","annotations":[]}],"status":"completed","id":"msg_1_2"},"#,
        r#"{"type":"function_call","call_id":"call_1","name":"look_up","arguments":"{\"b\":1,\"a\":\"\"}"},"#,
        r#"{"type":"function_call","call_id":"call_1_2","name":"gone_tool","arguments":"{}"},"#,
        r#"{"type":"function_call","call_id":"call_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-27cc568ce78ac9a6","name":"look_up","arguments":"{}"},"#,
        r#"{"type":"function_call_output","call_id":"call_1","output":"one\n[File \"file\" (unknown type). Its content is not visible to you: this agent has no tool `read`. Say so where it matters.]\ntwo"},"#,
        r#"{"type":"function_call_output","call_id":"call_1_2","output":"(image omitted: this model takes no images)"}"#,
        r#"],"stream":true,"store":false,"max_output_tokens":16384,"prompt_cache_key":"conv-1","temperature":1.0,"#,
        r#""tools":[{"type":"function","name":"look_up","description":"","parameters":{"type":"object","properties":{}},"strict":false}],"#,
        r#""tool_choice":"auto","parallel_tool_calls":true,"#,
        r#""text":{"format":{"type":"json_schema","name":"answer","schema":{"type":"object"},"strict":false}}}"#,
    );
    assert_eq!(sent, expected);
}
