//! Errors of services, the part that each names, and the input without it.

#![expect(clippy::needless_pass_by_value, reason = "the helpers take `json!` values")]

mod responses;
mod wordings;

use serde_json::{Value, json};

use super::*;
use crate::entry::EntryBase;
use crate::projection::project_messages;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::EntryId;

fn path(bodies: Vec<Value>) -> Vec<Arc<Entry>> {
    let entry = |(seq, body): (u64, Value)| {
        let base = EntryBase {
            entry_id: EntryId::from_seq("0a1b2c3d", seq),
            parent_id: None,
            seq,
            timestamp: Timestamp(seq),
            prompt_id: None,
        };
        Arc::new(Entry { base, body: EntryBody::from_raw(RawJson::from_value(&body)).unwrap() })
    };
    (1..).zip(bodies).map(entry).collect()
}

fn user(content: Value) -> Value {
    json!({"type": "message", "message": {"role": "user", "content": content, "timestamp": 0}})
}

fn response(content: Value) -> Value {
    json!({"type": "message", "revision": "r", "message": {
        "role": "assistant", "content": content, "api": "a", "provider": "p", "model": "m", "stopReason": "stop", "timestamp": 0,
    }})
}

fn result(content: Value) -> Value {
    json!({"type": "message", "message": {
        "role": "toolResult", "toolCallId": "c", "toolName": "t", "content": content, "isError": false, "timestamp": 0,
    }})
}

fn repair(repair: &InputRepair) -> Value {
    serde_json::to_value(repair.to_entry()).unwrap()
}

fn image() -> Value {
    json!({"type": "image", "data": "AA", "mimeType": "image/png"})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn signed() -> Value {
    json!({"type": "thinking", "thinking": "hm", "thinkingSignature": "{\"encrypted_content\":\"E\"}"})
}

fn find(path: &[Arc<Entry>], code: &str, param: &str, text: &str) -> Option<RefusedInput> {
    find_in_request(path, false, Refusal { code, param, text })
}

fn find_in_request(
    path: &[Arc<Entry>],
    has_instructions: bool,
    refusal: Refusal<'_>,
) -> Option<RefusedInput> {
    let tool = |name: &'static str| RequestTool {
        wire_name: name.replace('.', "_").into(),
        name,
        revision: "1",
        schema_bytes: name.len(),
    };
    let tools = [tool("pay"), tool("orders.get")];
    let request = RefusedRequest { tools: &tools, response_schema: None, has_instructions };
    find_refused_input(path, &request, refusal)
}

#[test]
fn repairs_of_one_wording_come_to_an_end() {
    let call = json!({"type": "toolCall", "id": "c", "name": "t", "arguments": {}});
    let mut bodies =
        vec![user(json!("q")), response(json!([signed(), call])), result(json!([text("r")]))];
    let mut parts = Vec::new();
    let error = "Invalid 'input[2]': it cannot be read.";
    while let Some(found) = find(&path(bodies.clone()), "", "", error) {
        parts.push(found.repair.part);
        bodies.push(repair(&found.repair));
        assert!(parts.len() < 9, "{parts:?}");
    }
    assert_eq!(
        parts,
        [
            RefusedPart::ToolResults,
            RefusedPart::Responses,
            RefusedPart::ToolCalls,
            RefusedPart::Reasoning
        ]
    );
    let input = input_of(&path(bodies));
    assert!(!input.concat().contains("other"), "no call is left: {input:?}");
}

#[test]
fn oversized_input_is_found_in_its_newest_part() {
    let bodies = vec![user(json!("q")), response(json!([text("a")])), user(json!("large"))];
    let found = find_oversized_input(&path(bodies.clone()), Refusal::default()).unwrap();
    assert_eq!((found.repair.part, found.repair.from_seq), (RefusedPart::Messages, 3));
    assert!(!found.is_repeatable && found.advice().contains("Send a shorter one"));
    let with_result = [bodies, vec![result(json!([text("large")]))]].concat();
    let found = find_oversized_input(&path(with_result), Refusal::default()).unwrap();
    assert_eq!((found.repair.part, found.is_repeatable), (RefusedPart::ToolResults, true));
}

#[test]
fn refused_calls_become_notes_with_their_results() {
    let call = json!({"type": "toolCall", "id": "c", "name": "pay", "arguments": {"a": 1}});
    let bodies =
        vec![user(json!("q")), response(json!([text("a"), call])), result(json!([text("r")]))];
    let (input, repeats) =
        repaired(bodies, "", "No tool call found for function call output with call_id c.");
    assert!(repeats);
    let note = "(call of the tool `pay` omitted: the model service refused it)";
    assert_eq!(input, ["q", "a", note, RESULT_NOTE]);
}

#[test]
fn refused_response_schema_is_left_out_until_it_changes() {
    let find = |bodies: &[Value], hash: &str, param: &str, text: &str| {
        let request =
            RefusedRequest { tools: &[], response_schema: Some(hash), has_instructions: false };
        find_refused_input(&path(bodies.to_vec()), &request, Refusal { code: "", param, text })
    };
    let mut bodies = vec![user(json!("q"))];
    for (param, text) in [
        ("text.format.schema", "Invalid schema for response_format 'x': 'not' is not permitted."),
        ("response_format", "Invalid schema"),
        ("", "Invalid schema for response_format 'response': schema must be of type object"),
    ] {
        let found = find(&bodies, "h1", param, text).unwrap();
        assert_eq!((found.repair.part, found.is_repeatable), (RefusedPart::ResponseSchema, true));
    }
    assert_eq!(find(&bodies, "h1", "temperature", "response_format is fine"), None);
    let found = find(&bodies, "h1", "text.format.schema", "x").unwrap();
    bodies.push(repair(&found.repair));
    assert_eq!(find(&bodies, "h1", "text.format.schema", "x"), None);
    assert!(find(&bodies, "h2", "text.format.schema", "x").is_some());
    let repairs = InputRepairs::of(&path(bodies));
    assert!(repairs.refuse_schema("h1") && !repairs.refuse_schema("h2"));
}

#[test]
fn tool_is_found_by_name_or_index() {
    let path = path(vec![user(json!("q"))]);
    for (param, message, name) in [
        ("", "Invalid schema for function 'orders_get': x", "orders.get"),
        ("tools[1].function.parameters", "schema", "orders.get"),
        ("tools.0.parameters", "schema", "pay"),
        ("", "tools[1].function.parameters: bad", "orders.get"),
        ("", "Invalid schema for tool parameters: unsupported keyword", "orders.get"),
        ("", "tools.1.custom.input_schema: JSON schema is invalid", "orders.get"),
        ("", "Invalid value at 'tools[0].function_declarations[1].parameters'", "orders.get"),
    ] {
        let found = find(&path, "", param, message).unwrap();
        assert_eq!(found.repair.tool.unwrap().name, name);
        assert!(found.is_repeatable);
    }
}

/// Texts of the input, images as `image`.
fn input_of(path: &[Arc<Entry>]) -> Vec<String> {
    let shown = |block: &Block| match block {
        Block::Text(text) => text.text.clone(),
        Block::Image(_) => "image".to_owned(),
        Block::Thinking(thinking) => format!("signed {}", thinking.thinking_signature.is_some()),
        Block::ToolCall(_) | Block::File(_) | Block::Other(_) => "other".to_owned(),
    };
    let texts = |message: Cow<'_, Message>| match message.into_owned() {
        Message::User(user) => match user.content {
            Content::Text(text) => vec![text],
            Content::Blocks(blocks) => blocks.iter().map(shown).collect(),
        },
        Message::Assistant(response) => response.content.iter().map(shown).collect(),
        Message::ToolResult(result) => result.content.iter().map(shown).collect(),
        Message::CompactionSummary(summary) => vec![summary.summary],
        other @ (Message::BashExecution(_)
        | Message::Custom(_)
        | Message::BranchSummary(_)
        | Message::Other(_)) => panic!("{other:?}"),
    };
    project_messages(path).into_iter().flat_map(texts).collect()
}

fn repaired(mut bodies: Vec<Value>, code: &str, message: &str) -> (Vec<String>, bool) {
    let found = find(&path(bodies.clone()), code, "", message).unwrap();
    bodies.push(repair(&found.repair));
    (input_of(&path(bodies)), found.is_repeatable)
}

#[test]
fn refused_parts_are_left_out_of_the_input() {
    let call = || response(json!([signed(), text("a")]));
    let bodies = || {
        vec![
            user(json!("q")),
            call(),
            user(json!([text("look"), image()])),
            result(json!([text("r"), image()])),
        ]
    };
    let (input, repeats) = repaired(bodies(), "invalid_encrypted_content", "");
    assert_eq!((input[1].as_str(), repeats), ("signed false", true));
    let (input, _) = repaired(bodies(), "invalid_image", "");
    assert_eq!(input[3..], ["look", IMAGE_NOTE, "r", IMAGE_NOTE]);
    let (input, repeats) = repaired(bodies(), "content_filter", "");
    assert_eq!(
        (&input[3..], repeats),
        (&["look", "image", RESULT_NOTE].map(str::to_owned)[..], true)
    );
    let (input, repeats) =
        repaired(vec![user(json!("q")), call(), user(json!("bad"))], "content_filter", "");
    assert_eq!((&input[3..], repeats), (&[MESSAGE_NOTE.to_owned()][..], false), "its prompt fails");
}

#[test]
fn newest_images_are_kept() {
    let many = |count: usize| {
        let mut bodies = vec![user(json!("q"))];
        bodies.extend((0..count).map(|_| result(json!([image()]))));
        bodies
    };
    for (count, message, kept) in [
        (60, "contains 60 images, exceeding the maximum of 50", 50),
        (60, "at most 20 images", 20),
        (9, "Too many images", 4),
    ] {
        let (input, _) = repaired(many(count), "", message);
        let images: Vec<bool> = input[1..].iter().map(|text| text == "image").collect();
        assert_eq!(images.iter().filter(|is_image| **is_image).count(), kept, "{message}");
        assert!(images.is_sorted(), "the newest ones");
    }
}

#[test]
fn older_parts_are_left_out_if_input_was_lost_in_vain() {
    // A file's tool result is refused. The first prompt loses its input, the next one finds it.
    let imported = json!({"type": "message", "message": {
        "role": "assistant", "content": [text("a")], "api": "a", "provider": "p", "model": "m", "stopReason": "stop", "timestamp": 0,
    }});
    let mut bodies = vec![user(json!("old")), response(json!([text("a")])), user(json!("one"))];
    bodies.insert(1, result(json!([text("bad")])));
    bodies.insert(2, imported);
    let mut repeats = Vec::new();
    for next in ["two", "three", "four"] {
        let mut is_repeatable = true;
        // A prompt makes one more call. The second refusal ends it.
        for _call in 0..2 {
            if is_repeatable {
                let found = find(&path(bodies.clone()), "content_filter", "", "").unwrap();
                is_repeatable = found.is_repeatable;
                repeats.push((found.repair.part, is_repeatable));
                bodies.push(repair(&found.repair));
            }
        }
        bodies.push(user(json!(next)));
    }
    assert_eq!(
        repeats,
        [
            (RefusedPart::Messages, false),
            (RefusedPart::Responses, true),
            (RefusedPart::Messages, false),
            (RefusedPart::ToolResults, true),
            (RefusedPart::Messages, false),
        ]
    );
    let input = input_of(&path(bodies));
    let expected =
        ["old", RESULT_NOTE, "a", RESPONSE_NOTE, MESSAGE_NOTE, MESSAGE_NOTE, MESSAGE_NOTE, "four"];
    assert_eq!(input, expected, "the own input of each failed prompt is left out");
}

#[test]
fn same_refusal_twice_leaves_out_nothing_twice() {
    let mut bodies = vec![user(json!([image()]))];
    let found = find(&path(bodies.clone()), "invalid_image", "", "").unwrap();
    bodies.push(repair(&found.repair));
    assert_eq!(find(&path(bodies), "invalid_image", "", ""), None);
}

#[test]
fn stored_repairs_stay_readable() {
    let fixtures = include_str!("../../../../tests/fixtures/input-repairs-v1.jsonl");
    let bodies: Vec<Value> = fixtures
        .lines()
        .map(|line| json!({"type": "custom", "customType": REPAIR_ENTRY, "data": serde_json::from_str::<Value>(line).unwrap()}))
        .collect();
    let repairs = InputRepairs::of(&path(bodies));
    let parts: Vec<RefusedPart> = repairs.0.iter().map(|repair| repair.part).collect();
    assert_eq!(
        parts,
        [
            RefusedPart::Reasoning,
            RefusedPart::Images,
            RefusedPart::ImageCount,
            RefusedPart::ToolResults,
            RefusedPart::Messages,
            RefusedPart::Tool,
            RefusedPart::ToolCalls,
            RefusedPart::ResponseSchema,
            RefusedPart::Responses
        ],
        "a repair of a later version is skipped"
    );
    assert_eq!((repairs.images_max(), repairs.0[0].to_seq), (Some(50), 9));
}
