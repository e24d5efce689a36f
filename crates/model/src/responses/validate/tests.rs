//! Rejected inputs. No history produces one.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::catalogue::Catalogue;
use crate::chat::body::build_chat_body;
use crate::responses::body::build_request_body;
use crate::responses::config::CacheRetention;
use crate::responses::names::ToolNames;
use crate::{ModelRecord, ModelRequest, chat};
use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::projection::{project_messages, to_model_messages};
use turnwheel_json::text::repair_surrogates;

fn user_item(parts: Vec<ContentPart<'_>>) -> InputItem<'_> {
    InputItem::InputMessage { role: Role::User, content: MessageContent::Parts(parts) }
}

fn instructions(role: Role) -> InputItem<'static> {
    InputItem::InputMessage { role, content: MessageContent::Text("a") }
}

fn reasoning_item(encrypted_content: &str) -> InputItem<'static> {
    InputItem::Reasoning {
        id: Some("rs_1".to_owned()),
        summary: Vec::new(),
        content: Vec::new(),
        encrypted_content: encrypted_content.to_owned(),
    }
}

fn call_item<'a>(id: &'a str, call_id: &'a str, name: &'a str) -> InputItem<'a> {
    let arguments = "{}".into();
    InputItem::FunctionCall { id: Some(id), call_id: call_id.into(), name: name.into(), arguments }
}

fn output_item(text: &str) -> InputItem<'_> {
    InputItem::FunctionCallOutput { call_id: "c1".into(), output: text.into() }
}

fn message_item(id: &str) -> InputItem<'_> {
    InputItem::output_message("a", id.into(), None)
}

#[test]
fn violation_names_item_and_reason() {
    let go = || user_item(vec![ContentPart::text("go")]);
    let call_1 = || call_item("fc_1", "c1", "t");
    let (long, large) = ("x".repeat(65), "x".repeat(OUTPUT_CHARS_MAX + 1));
    assert_eq!(
        find_violation(&[
            go(),
            reasoning_item("E"),
            call_1(),
            output_item("x"),
            message_item("msg_1")
        ]),
        None
    );
    let cases = [
        (vec![], "the input is empty"),
        (vec![go(), call_1()], "the end of its input lacks the output"),
        (vec![go(), call_1(), go(), output_item("x")], "item 2 of its input separates a call"),
        (vec![go(), output_item("x")], "item 1 of its input is an output without its call"),
        (
            vec![go(), call_1(), output_item("x"), output_item("x")],
            "item 3 of its input is an output without its call",
        ),
        (
            vec![go(), call_1(), output_item("x"), call_1(), output_item("x")],
            "item 3 of its input has the id of an earlier",
        ),
        (
            vec![go(), call_1(), call_item("fc_2", "c1", "t")],
            "item 2 of its input has the call_id of an earlier call",
        ),
        (vec![go(), reasoning_item("E"), go()], "item 2 of its input separates a reasoning item"),
        (vec![go(), reasoning_item("E")], "the end of its input is a reasoning item"),
        (vec![reasoning_item(""), message_item("msg_1")], "without its content"),
        (vec![go(), call_item("msg_1", "c1", "t"), output_item("x")], "does not begin with fc"),
        (vec![go(), call_item("fc_1", "c1", "my.tool"), output_item("x")], "without a valid name"),
        (vec![go(), call_item("fc_1", "", "t"), output_item("x")], "without a valid call_id"),
        (vec![go(), message_item(&long)], "too long"),
        (vec![go(), message_item("msg_1"), message_item("msg_1")], "the id of an earlier item"),
        (vec![user_item(vec![])], "without content"),
        (vec![user_item(vec![ContentPart::text("a"), ContentPart::text("")])], "without content"),
        (vec![call_1(), output_item("")], "an output without content"),
        (vec![call_1(), output_item(&large)], "more than 10 million characters"),
        (vec![instructions(Role::System), go(), instructions(Role::Developer)], "mixes"),
    ];
    for (input, expected) in cases {
        let violation = find_violation(&input).unwrap_or_default();
        assert!(violation.contains(expected), "{expected}: {violation:?}");
    }
}

const IDS: [&str; 7] =
    ["c0|fc_0", "c0", "c1|fc_1", "", "\u{e9}|fc_1", "c2|rs_1", "call_id|fc of another make"];

fn stored_reasoning(number: u8) -> Value {
    let item = |encrypted: Value| {
        json!({"type": "reasoning", "id": format!("rs_{number}"), "summary": [], "encrypted_content": encrypted}).to_string()
    };
    match number % 5 {
        0 => json!({"type": "thinking", "thinking": "hm", "thinkingSignature": item(json!("E"))}),
        1 => json!({"type": "thinking", "thinking": "hm", "thinkingSignature": item(Value::Null)}),
        2 => json!({"type": "thinking", "thinking": "hm", "thinkingSignature": "{"}),
        3 => json!({"type": "thinking", "thinking": " "}),
        _ => json!({"type": "thinking", "thinking": "", "thinkingSignature": item(json!("E"))}),
    }
}

fn stored_block(kind: u8, number: u8) -> Value {
    let long = format!("msg_{}", "x".repeat(90));
    match kind % 9 {
        0 => json!({"type": "text", "text": "said HALF"}),
        1 => json!({"type": "text", "text": "said", "textSignature": "msg_1"}),
        2 => json!({"type": "text", "text": "", "textSignature": long}),
        3 => json!({"type": "text", "text": ""}),
        4 | 5 => {
            let id = IDS[usize::from(number) % IDS.len()];
            json!({"type": "toolCall", "id": id, "name": "my.tool", "arguments": {"a": "HALF"}})
        }
        6 => {
            json!({"type": "providerItem", "item": {"type": "compaction", "id": "cmp_1", "encrypted_content": "E"}})
        }
        7 => json!({"type": "hologram"}),
        _ => stored_reasoning(number),
    }
}

/// Content of tool results and user messages.
fn stored_content(number: u8) -> Value {
    match number % 6 {
        0 => json!([]),
        1 => json!([{"type": "text", "text": ""}]),
        2 => json!([{"type": "text", "text": "HALF"}]),
        3 => json!([{"type": "image", "data": "AAAA", "mimeType": "image/png"}]),
        4 => {
            json!([{"type": "file", "artifactId": "x.1", "path": "a.csv"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"}])
        }
        _ => json!([{"type": "text", "text": "x"}, {"type": "hologram"}]),
    }
}

fn stored_response(blocks: &[(u8, u8)], number: u8) -> Value {
    let content: Vec<Value> =
        blocks.iter().map(|(kind, number)| stored_block(*kind, *number)).collect();
    let stops = ["stop", "toolUse", "toolUse", "length", "error", "aborted"];
    let apis = ["azure-openai-responses", "azure-openai-responses", "openai-completions", ""];
    json!({
        "role": "assistant", "content": content, "provider": "azure", "timestamp": 0,
        "api": apis[usize::from(number / 8) % 4], "model": if number.is_multiple_of(3) { "gpt-4o" } else { "gpt-5" },
        "stopReason": stops[usize::from(number) % 6],
    })
}

type TreeNode = (u8, prop::sample::Index, u8, Vec<(u8, u8)>);

fn entry_body((kind, _, number, blocks): &TreeNode, earlier: &str) -> Value {
    let id = IDS[usize::from(*number) % IDS.len()];
    let message = |message: Value| json!({"type": "message", "message": message});
    match kind % 18 {
        0 => message(json!({"role": "user", "content": stored_content(*number), "timestamp": 0})),
        1 => message(
            json!({"role": "user", "content": if number.is_multiple_of(2) { "" } else { "u" }, "timestamp": 0}),
        ),
        2..=5 => message(stored_response(blocks, *number)),
        6..=8 => message(
            json!({"role": "toolResult", "toolCallId": id, "toolName": "my.tool", "content": stored_content(*number), "isError": false, "timestamp": 0}),
        ),
        9 => message(
            json!({"role": "bashExecution", "command": "ls", "output": "", "cancelled": false, "truncated": false, "timestamp": 0}),
        ),
        10 => message(
            json!({"role": "custom", "customType": "x", "content": stored_content(*number), "display": true, "timestamp": 0}),
        ),
        11 => message(
            json!({"role": "branchSummary", "summary": "s", "fromId": earlier, "timestamp": 0}),
        ),
        12 => {
            json!({"type": "compaction", "summary": "s", "firstKeptEntryId": earlier, "tokensBefore": 9})
        }
        13 => json!({"type": "branch_summary", "fromId": earlier, "summary": "s"}),
        14 => {
            json!({"type": "custom_message", "customType": "x", "content": stored_content(*number), "display": false})
        }
        15 => json!({"type": "model_change", "provider": "azure", "modelId": "gpt-4o"}),
        16 => {
            json!({"type": "output", "output": {"type": "file", "artifactId": "e.1", "path": "a.pdf", "mimeType": "application/pdf", "size": 3}})
        }
        _ => message(json!({"role": "hologram"})),
    }
}

/// A tree of random shape: the parent of each entry is a random earlier one, mostly the last.
fn entry_tree() -> impl Strategy<Value = Vec<Arc<Entry>>> {
    let blocks = prop::collection::vec((any::<u8>(), any::<u8>()), 0..5);
    let node = (any::<u8>(), any::<prop::sample::Index>(), any::<u8>(), blocks);
    prop::collection::vec(node, 1..30).prop_map(|nodes| {
        let mut entries: Vec<Arc<Entry>> = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            let last = entries.last().map(|entry| entry.base.entry_id.clone());
            let parent_id = match &last {
                Some(_) if node.2.is_multiple_of(5) => Some(node.1.get(&entries).base.entry_id.clone()),
                last => last.clone(),
            };
            let earlier = parent_id.as_ref().map_or("00000000", |id| id.as_str());
            let mut whole = json!({"entryId": format!("{number:08x}"), "parentId": parent_id, "seq": number + 1, "timestamp": "2026-11-21T20:19:09.669Z"});
            let body = entry_body(node, earlier);
            whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
            // Only raw JSON can contain an unpaired surrogate.
            let text = whole.to_string().replace(r#"{"a":"HALF"}"#, r#"{"a":"\ud83d"}"#);
            entries.push(Arc::new(serde_json::from_str(&text).unwrap()));
        }
        entries
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_history_gives_invalid_request(
        entries in entry_tree(), leaf in any::<prop::sample::Index>(), model in 0..3_usize,
    ) {
        let leaf = leaf.get(&entries).base.entry_id.clone();
        let path = path_to_leaf(&entries, Some(&leaf));
        let record = Catalogue::default().record(["gpt-5", "gpt-4o", "gpt-3.5-turbo"][model], "d");
        let converted = to_model_messages(project_messages(&path));
        let sent: Vec<&Message> = converted.iter().map(AsRef::as_ref).collect();
        let request = ModelRequest { system: Some("SYS"), ..ModelRequest::new(&record, &sent) };
        let names = ToolNames::default();
        let body = build_request_body(&request, &names);
        let text = String::from_utf8(body.to_bytes().unwrap()).unwrap();
        prop_assert_eq!(body.find_violation(), None, "{}", text);
        prop_assert!(repair_surrogates(&text) == text, "{}", text);
        let body: Value = serde_json::from_str(&text).unwrap();
        let is_halved = body["input"].as_array().unwrap().iter().any(|item| {
            item["arguments"].as_str().is_some_and(|arguments| arguments.contains("ud83d"))
        });
        prop_assert!(!is_halved, "{:#}", body);

        let mut chat_record = ModelRecord { api: chat::API.to_owned(), ..record.clone() };
        chat_record.compat.requires_reasoning_content_on_assistant_messages = model == 0;
        let request = ModelRequest { model: &chat_record, ..request };
        let body = build_chat_body(&request, &names, CacheRetention::Short);
        prop_assert_eq!(body.find_violation(), None);
        let text = String::from_utf8(body.to_bytes().unwrap()).unwrap();
        prop_assert!(repair_surrogates(&text) == text, "{}", text);
        let body: Value = serde_json::from_str(&text).unwrap();
        let violation = find_chat_violation(body["messages"].as_array().unwrap(), model == 0);
        prop_assert_eq!(violation, None, "{:#}", body);
    }
}

/// The first reason why a Chat Completions service would reject the messages.
fn find_chat_violation(messages: &[Value], needs_reasoning: bool) -> Option<String> {
    let mut open: Vec<&str> = Vec::new();
    let mut last_role = "";
    for message in messages {
        let role = message["role"].as_str().unwrap();
        let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_empty = message["content"].as_str() == Some("") || message["content"] == json!([]);
        let problem = match role {
            "tool" => {
                let id = message["tool_call_id"].as_str().unwrap();
                let Some(at) = open.iter().position(|open| *open == id) else {
                    return Some(format!("{message} has no call"));
                };
                open.remove(at);
                is_empty
            }
            _ if !open.is_empty() => true,
            "assistant" => {
                last_role == "assistant"
                    || (message["content"].is_null() && calls.is_empty())
                    || message.get("reasoning_content").is_some() != needs_reasoning
            }
            _ => is_empty,
        };
        if problem {
            return Some(message.to_string());
        }
        open.extend(calls.iter().map(|call| call["id"].as_str().unwrap()));
        last_role = role;
    }
    (!open.is_empty()).then(|| format!("calls without result: {open:?}"))
}
