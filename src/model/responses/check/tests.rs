//! What is objected to, and that no history whatever leads to it.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::agent::entry::Entry;
use crate::agent::message::Message;
use crate::agent::path::path;
use crate::agent::projection::{convert, messages};
use crate::agent::settings::ThinkingLevel;
use crate::agent::text::repair_surrogates;
use crate::model::ModelRequest;
use crate::model::catalogue::Catalogue;
use crate::model::responses::body::request_body;
use crate::model::responses::names::Names;

fn objects(input: &Value) -> String {
    objection(&json!({ "input": input })).unwrap_or_default()
}

#[test]
fn what_the_service_would_refuse_is_named_with_its_place() {
    let user = json!({"role": "user", "content": [{"type": "input_text", "text": "go"}]});
    let thought =
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E"});
    let call = json!({"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "t", "arguments": "{}"});
    let output = json!({"type": "function_call_output", "call_id": "c1", "output": "x"});
    let said = json!({"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "a", "annotations": []}]});
    let with = |item: &Value, member: &str, value: Value| {
        let mut changed = item.clone();
        changed[member] = value;
        changed
    };
    assert_eq!(objects(&json!([user, thought, call, output, said])), "");
    let cases = [
        (json!([]), "there is nothing to answer"),
        (json!([user, call]), "the end of its input comes before the output"),
        (json!([user, call, user, output]), "item 2 of its input stands between a call"),
        (json!([user, output]), "item 1 of its input is an output without its call"),
        (json!([user, call, output, output]), "item 3 of its input is an output without its call"),
        (json!([user, call, output, call, output]), "item 3 of its input has the id of an earlier"),
        (json!([user, thought, user]), "item 2 of its input stands between a thought"),
        (json!([user, thought]), "the end of its input is a thought"),
        (json!([with(&thought, "encrypted_content", Value::Null), said]), "without its content"),
        (json!([user, with(&call, "id", json!("msg_1")), output]), "none of a call"),
        (json!([user, with(&call, "name", json!("my.tool")), output]), "without a legal name"),
        (json!([user, with(&call, "call_id", json!("")), output]), "without a legal call_id"),
        (json!([user, with(&said, "id", json!("x".repeat(65)))]), "too long"),
        (json!([user, said, said]), "the id of an earlier one"),
        (json!([with(&user, "content", json!([]))]), "without content"),
        (
            json!([with(&user, "content", json!([{"type": "input_text", "text": ""}]))]),
            "without content",
        ),
        (json!([call, with(&output, "output", json!(""))]), "an output without content"),
        (
            json!([{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}]),
            "mixes",
        ),
        (json!([{"role": "tool", "content": "a"}]), "unknown role"),
    ];
    for (input, expected) in cases {
        let told = objects(&input);
        assert!(told.contains(expected), "{expected}: {told:?} of {input}");
    }
}

const IDS: [&str; 7] =
    ["c0|fc_0", "c0", "c1|fc_1", "", "\u{e9}|fc_1", "c2|rs_1", "call_id|fc of another make"];

fn thought(number: u8) -> Value {
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

fn block(kind: u8, number: u8) -> Value {
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
        _ => thought(number),
    }
}

/// What tools and people give.
fn given(number: u8) -> Value {
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

fn answer(blocks: &[(u8, u8)], number: u8) -> Value {
    let content: Vec<Value> = blocks.iter().map(|(kind, number)| block(*kind, *number)).collect();
    let stops = ["stop", "toolUse", "toolUse", "length", "error", "aborted"];
    let apis = ["azure-openai-responses", "azure-openai-responses", "openai-completions", ""];
    json!({
        "role": "assistant", "content": content, "provider": "azure", "timestamp": 0,
        "api": apis[usize::from(number / 8) % 4], "model": if number.is_multiple_of(3) { "gpt-4o" } else { "gpt-5" },
        "stopReason": stops[usize::from(number) % 6],
    })
}

type Node = (u8, prop::sample::Index, u8, Vec<(u8, u8)>);

fn body_of((kind, _, number, blocks): &Node, earlier: &str) -> Value {
    let id = IDS[usize::from(*number) % IDS.len()];
    let message = |message: Value| json!({"type": "message", "message": message});
    match kind % 18 {
        0 => message(json!({"role": "user", "content": given(*number), "timestamp": 0})),
        1 => message(
            json!({"role": "user", "content": if number.is_multiple_of(2) { "" } else { "u" }, "timestamp": 0}),
        ),
        2..=5 => message(answer(blocks, *number)),
        6..=8 => message(
            json!({"role": "toolResult", "toolCallId": id, "toolName": "my.tool", "content": given(*number), "isError": false, "timestamp": 0}),
        ),
        9 => message(
            json!({"role": "bashExecution", "command": "ls", "output": "", "cancelled": false, "truncated": false, "timestamp": 0}),
        ),
        10 => message(
            json!({"role": "custom", "customType": "x", "content": given(*number), "display": true, "timestamp": 0}),
        ),
        11 => message(
            json!({"role": "branchSummary", "summary": "s", "fromId": earlier, "timestamp": 0}),
        ),
        12 => {
            json!({"type": "compaction", "summary": "s", "firstKeptEntryId": earlier, "tokensBefore": 9})
        }
        13 => json!({"type": "branch_summary", "fromId": earlier, "summary": "s"}),
        14 => {
            json!({"type": "custom_message", "customType": "x", "content": given(*number), "display": false})
        }
        15 => json!({"type": "model_change", "provider": "azure", "modelId": "gpt-4o"}),
        16 => {
            json!({"type": "output", "output": {"type": "file", "artifactId": "e.1", "path": "a.pdf", "mimeType": "application/pdf", "size": 3}})
        }
        _ => message(json!({"role": "hologram"})),
    }
}

/// A tree of random shape: each entry hangs on a random earlier one, mostly on the last.
fn tree() -> impl Strategy<Value = Vec<Arc<Entry>>> {
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
            let body = body_of(node, earlier);
            whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
            // Half a character can stand in what is kept as it was written, and nowhere else.
            let text = whole.to_string().replace(r#"{"a":"HALF"}"#, r#"{"a":"\ud83d"}"#);
            entries.push(Arc::new(serde_json::from_str(&text).unwrap()));
        }
        entries
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_history_makes_a_request_that_the_service_would_refuse(
        entries in tree(), leaf in any::<prop::sample::Index>(), model in 0..3_usize,
    ) {
        let leaf = leaf.get(&entries).base.entry_id.clone();
        let path = path(&entries, Some(&leaf));
        let record = Catalogue::default().record(["gpt-5", "gpt-4o", "gpt-3.5-turbo"][model], "d");
        let converted = convert(messages(&path));
        let sent: Vec<&Message> = converted.iter().map(AsRef::as_ref).collect();
        let request = ModelRequest {
            model: &record,
            system: Some("SYS"),
            messages: &sent,
            tools: &[],
            thinking: ThinkingLevel::Off,
            temperature: None,
            max_output_tokens: None,
            response_schema: None,
            session_id: "",
            traceparent: None,
        };
        let body = request_body(&request, &Names::default());
        prop_assert_eq!(objection(&body), None, "{:#}", body);
        let text = body.to_string();
        prop_assert!(repair_surrogates(&text) == text, "{}", text);
        let is_halved = body["input"].as_array().unwrap().iter().any(|item| {
            item["arguments"].as_str().is_some_and(|arguments| arguments.contains("ud83d"))
        });
        prop_assert!(!is_halved, "{:#}", body);
    }
}
