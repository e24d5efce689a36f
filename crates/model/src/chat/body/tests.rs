//! Members of a Chat Completions request, and its messages compared with the Responses input.

#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better without `&`")]

use serde_json::{Value, json};

use super::*;
use crate::ModelRecord;
use crate::catalogue::Catalogue;
use crate::chat::API;
use crate::responses::body::build_request_body;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::settings::ThinkingLevel;

fn record(model: &str) -> ModelRecord {
    ModelRecord { api: API.to_owned(), ..Catalogue::default().record(model, "my-deployment") }
}

fn request<'a>(model: &'a ModelRecord, messages: &'a [&'a Message]) -> ModelRequest<'a> {
    ModelRequest {
        thinking: ThinkingLevel::High,
        temperature: Some(0.5),
        session_id: "conv-1",
        ..ModelRequest::new(model, messages)
    }
}

fn body_text(request: &ModelRequest<'_>, retention: CacheRetention) -> String {
    let names = ToolNames::new(request.tools);
    let body = build_chat_body(request, &names, retention);
    assert!(body.messages.is_empty() || body.find_violation().is_none());
    String::from_utf8(body.to_bytes().unwrap()).unwrap()
}

fn body_json(request: &ModelRequest<'_>) -> Value {
    serde_json::from_str(&body_text(request, CacheRetention::Short)).unwrap()
}

fn message(json: Value) -> Message {
    serde_json::from_str(&json.to_string()).unwrap()
}

fn messages_of(model: &ModelRecord, history: &[Message]) -> Value {
    let messages: Vec<&Message> = history.iter().collect();
    body_json(&request(model, &messages))["messages"].clone()
}

fn response(model: &str, content: Value) -> Message {
    message(json!({
        "role": "assistant", "api": API, "provider": "azure", "model": model, "content": content,
        "stopReason": "toolUse", "timestamp": 0,
    }))
}

fn tool_result(id: &str, text: &str) -> Message {
    message(json!({
        "role": "toolResult", "toolCallId": id, "toolName": "look", "isError": false,
        "content": [{ "type": "text", "text": text }], "timestamp": 0,
    }))
}

#[test]
fn members_follow_model_family() {
    let (gpt, deepseek, llama) =
        (record("gpt-5.1"), record("deepseek-v4-pro"), record("Llama-4-Maverick"));
    assert_eq!(
        body_json(&request(&gpt, &[])),
        json!({
            "model": "my-deployment", "messages": [], "stream": true,
            "stream_options": { "include_usage": true }, "max_completion_tokens": 32_000,
            "prompt_cache_key": "conv-1", "reasoning_effort": "high",
        })
    );
    let plain = |limit: u64| {
        json!({
            "model": "my-deployment", "messages": [], "stream": true,
            "stream_options": { "include_usage": true }, "max_tokens": limit, "temperature": 0.5,
        })
    };
    assert_eq!(body_json(&request(&deepseek, &[])), plain(32_000));
    assert_eq!(body_json(&request(&llama, &[])), plain(16_384));
}

#[test]
fn compat_overrides_members() {
    let prices = r#"{"mine": {"reasoning": true, "compat": {"supportsUsageInStreaming": false,
        "supportsReasoningEffort": true, "maxTokensField": "max_completion_tokens"}}}"#;
    let record = Catalogue::new(Some(prices)).unwrap().record("mine", "d");
    assert_eq!(
        body_json(&request(&record, &[])),
        json!({
            "model": "d", "messages": [], "stream": true, "max_completion_tokens": 16_384,
            "reasoning_effort": "high", "temperature": 0.5,
        })
    );
    let price_only = r#"{"deepseek-v4-pro": {"input": 1}}"#;
    let kept = Catalogue::new(Some(price_only)).unwrap().record("deepseek-v4-pro", "d").compat;
    assert!(kept.requires_reasoning_content_on_assistant_messages, "a price keeps abilities");
}

#[test]
fn cache_retention_selects_members() {
    let record = record("gpt-5.1");
    let request = request(&record, &[]);
    let [none, short, long] = [CacheRetention::None, CacheRetention::Short, CacheRetention::Long]
        .map(|retention| body_text(&request, retention));
    assert!(!none.contains("prompt_cache"), "{none}");
    assert!(short.contains(r#""prompt_cache_key":"conv-1","reasoning"#), "{short}");
    assert!(
        long.contains(r#""prompt_cache_key":"conv-1","prompt_cache_retention":"24h""#),
        "{long}"
    );
}

#[test]
fn tools_are_nested_and_strict_only_if_they_qualify() {
    let model = record("gpt-5");
    let (schema, empty) = (json!({ "type": "object", "properties": {} }), json!({}));
    let tools = [
        ToolOffer { name: "a.b", description: "Looks.", parameters: &schema, strict: true },
        ToolOffer { name: "c", description: "", parameters: &empty, strict: false },
    ];
    let format = json!({ "type": "object" });
    let request = ModelRequest {
        tools: &tools,
        response_schema: Some(&format),
        thinking: ThinkingLevel::Minimal,
        ..request(&model, &[])
    };
    let body = body_json(&request);
    assert_eq!(
        body["tools"],
        json!([
            { "type": "function", "function": { "name": "a_b", "description": "Looks.", "parameters": schema, "strict": true } },
            { "type": "function", "function": { "name": "c", "description": "", "parameters": schema } },
        ])
    );
    assert_eq!(body["parallel_tool_calls"], json!(false), "minimal effort forbids parallel calls");
    assert_eq!(
        body["response_format"],
        json!({ "type": "json_schema", "json_schema": { "name": "answer", "schema": format, "strict": false } })
    );
    let other = ModelRequest { thinking: ThinkingLevel::Low, ..request };
    assert_eq!(body_json(&other).get("parallel_tool_calls"), None);
}

#[test]
fn history_becomes_messages() {
    let model = ModelRecord { images: true, ..record("gpt-4o") };
    let image = json!({ "type": "image", "data": "AAAA", "mimeType": "image/png" });
    let history = [
        message(
            json!({ "role": "user", "timestamp": 0, "content": [{ "type": "text", "text": "Look" }, image] }),
        ),
        response(
            "gpt-4o",
            json!([
                { "type": "thinking", "thinking": "Hm", "thinkingSignature": "reasoning_content" },
                { "type": "text", "text": "I look." },
                { "type": "toolCall", "id": "call_1", "name": "a.b", "arguments": { "x": 1 } },
                { "type": "toolCall", "id": "call_2", "name": "look", "arguments": {} },
            ]),
        ),
        tool_result("call_1", "seen"),
        message(json!({
            "role": "toolResult", "toolCallId": "call_2", "toolName": "look", "isError": false,
            "content": [image], "timestamp": 0,
        })),
        message(
            json!({ "role": "user", "content": [{ "type": "text", "text": "And" }, { "type": "text", "text": "now?" }], "timestamp": 0 }),
        ),
    ];
    let picture = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,AAAA", "detail": "auto" } });
    let text = |text: &str| json!({ "type": "text", "text": text });
    let call = |id: &str, name: &str, arguments: &str| json!({ "type": "function", "id": id, "function": { "name": name, "arguments": arguments } });
    assert_eq!(
        messages_of(&model, &history),
        json!([
            { "role": "user", "content": [text("Look"), picture] },
            { "role": "assistant", "content": "I look.", "tool_calls": [call("call_1", "a_b", r#"{"x":1}"#), call("call_2", "look", "{}")] },
            { "role": "tool", "tool_call_id": "call_1", "content": "seen" },
            { "role": "tool", "tool_call_id": "call_2", "content": "(see attached image)" },
            { "role": "user", "content": [text("Attached image(s) from tool result:"), picture] },
            { "role": "user", "content": "And\nnow?" },
        ])
    );
    let messages: Vec<&Message> = history.iter().collect();
    let with_system = ModelRequest { system: Some("SYS"), ..request(&model, &messages) };
    assert_eq!(
        body_json(&with_system)["messages"][0],
        json!({ "role": "system", "content": "SYS" })
    );
}

#[test]
fn reasoning_returns_only_where_required() {
    let thinking = json!({ "type": "thinking", "thinking": "Hm" });
    let call = json!({ "type": "toolCall", "id": "c1", "name": "look", "arguments": {} });
    let history = |model: &str| {
        vec![
            response(model, json!([thinking, call])),
            tool_result("c1", "seen"),
            response(model, json!([{ "type": "text", "text": "Done" }])),
            message(json!({ "role": "user", "content": "Go on", "timestamp": 0 })),
            response(model, json!([thinking])),
        ]
    };
    let deepseek = record("deepseek-v4-pro");
    let sent = messages_of(&deepseek, &history("deepseek-v4-pro"));
    assert_eq!(
        sent.as_array().unwrap().len(),
        4,
        "a response of reasoning alone is omitted: {sent}"
    );
    assert_eq!((&sent[0]["reasoning_content"], &sent[0]["content"]), (&json!("Hm"), &Value::Null));
    assert_eq!((&sent[2]["reasoning_content"], &sent[2]["content"]), (&json!(""), &json!("Done")));
    let of_other_model = messages_of(&deepseek, &history("gpt-5"));
    assert_eq!(of_other_model[0]["reasoning_content"], "");
    let llama = messages_of(&record("Llama-4"), &history("Llama-4"));
    assert!(
        !llama.to_string().contains("reasoning") && !llama.to_string().contains("Hm"),
        "{llama}"
    );
}

#[test]
fn calls_of_other_model_get_short_distinct_ids() {
    let call = |id: &str| json!({ "type": "toolCall", "id": id, "name": "look", "arguments": {} });
    let history = [
        response("gpt-5", json!([call("call_1|fc_1"), call("call_1|fc_1"), call("call_2|fc_2")])),
        tool_result("call_1|fc_1", "one"),
        tool_result("call_1|fc_1", "two"),
        tool_result("call_2|fc_2", "three"),
    ];
    let sent = messages_of(&record("Mistral-Large-3"), &history);
    let ids: Vec<&str> =
        (0..3).map(|at| sent[0]["tool_calls"][at]["id"].as_str().unwrap()).collect();
    for (at, id) in ids.iter().enumerate() {
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert_eq!(sent[at + 1]["tool_call_id"], **id);
        assert_eq!(ids.iter().filter(|other| *other == id).count(), 1, "{ids:?}");
    }
    assert_eq!(sent, messages_of(&record("Mistral-Large-3"), &history), "ids are stable");
    let own = [response("gpt-5", json!([call("call_1")])), tool_result("call_1", "one")];
    assert_eq!(messages_of(&record("gpt-5"), &own)[0]["tool_calls"][0]["id"], "call_1");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(50))]

    /// The call of an earlier turn, in both APIs.
    #[test]
    fn any_number_of_the_history_stays_as_written(number in turnwheel_test_support::numbers::ANY_NUMBER) {
        let arguments = format!(r#"{{"n":{number}}}"#);
        let call = format!(
            r#"{{"role":"assistant","api":"{API}","provider":"azure","model":"gpt-5","stopReason":"toolUse","timestamp":0,"content":[{{"type":"toolCall","id":"c1","name":"seek","arguments":{arguments}}}]}}"#
        );
        let call: Message = serde_json::from_str(&call).unwrap();
        let (model, result) = (record("gpt-5"), tool_result("c1", "seen"));
        let history = [&call, &result];
        let request = request(&model, &history);
        let sent = json!(arguments).to_string();
        let chat = body_text(&request, CacheRetention::Short);
        proptest::prop_assert!(chat.contains(&sent), "{}", chat);
        let names = ToolNames::new(&[]);
        let responses = build_request_body(&request, &names).to_bytes().unwrap();
        let responses = String::from_utf8(responses).unwrap();
        proptest::prop_assert!(responses.contains(&sent), "{}", responses);
    }
}

/// All texts of a request, in order: members `text`, `content`, `output` and `arguments`.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(list) => list.iter().flat_map(texts).collect(),
        Value::Object(members) => members
            .iter()
            .flat_map(|(name, value)| match (name.as_str(), value.as_str()) {
                ("text" | "content" | "output" | "arguments" | "url" | "image_url", Some(text)) => {
                    text.split('\n').map(ToOwned::to_owned).collect()
                }
                _ => texts(value),
            })
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

#[test]
fn texts_and_order_equal_those_of_responses_input() {
    let file = json!({ "type": "file", "artifactId": "sha256-1", "path": "report.pdf", "mimeType": "application/pdf", "size": 9 });
    let history = [
        message(
            json!({ "role": "user", "timestamp": 0, "content": [file, { "type": "text", "text": "Read it" },
            { "type": "image", "data": "AAAA", "mimeType": "image/png" }] }),
        ),
        response(
            "gpt-5",
            json!([{ "type": "text", "text": "I read." },
            { "type": "toolCall", "id": "c1", "name": "look", "arguments": { "a": 1 } }]),
        ),
        tool_result("c1", "Shown to the user: a chart"),
        message(json!({ "role": "user", "content": "Thanks", "timestamp": 0 })),
    ];
    let messages: Vec<&Message> = history.iter().collect();
    let chat = record("gpt-5");
    let responses = Catalogue::default().record("gpt-5", "my-deployment");
    let names = ToolNames::default();
    let body = build_request_body(&request(&responses, &messages), &names).to_bytes().unwrap();
    let input: Value = serde_json::from_slice(&body).unwrap();
    let mut expected = texts(&input["input"]);
    let mut sent = texts(&messages_of(&chat, &history));
    for list in [&mut expected, &mut sent] {
        assert!(list.iter().any(|text| text.contains("report.pdf")), "{list:?}");
    }
    assert_eq!(sent, expected);
}

#[test]
fn longer_history_keeps_prefix_bytes() {
    let model = record("DeepSeek-V3.2");
    let history = [
        message(json!({ "role": "user", "content": "Go", "timestamp": 0 })),
        response(
            "DeepSeek-V3.2",
            json!([{ "type": "toolCall", "id": "c1", "name": "look", "arguments": {} }]),
        ),
        tool_result("c1", "seen"),
    ];
    let text = |count: usize| {
        let messages: Vec<&Message> = history.iter().take(count).collect();
        let names = ToolNames::default();
        let body = build_chat_body(&request(&model, &messages), &names, CacheRetention::Short);
        String::from_utf8(body.to_bytes().unwrap()).unwrap()
    };
    let (short, long) = (text(1), text(3));
    let prefix = short.split_once("],\"stream\"").unwrap().0;
    assert!(long.starts_with(prefix), "{prefix}\n{long}");
}
