//! Model input is always well-formed (invariant 8).

use std::borrow::Cow;

use proptest::prelude::*;

use super::*;
use crate::content::joined_text;
use crate::entry::Entry;
use crate::message::Message;
use crate::path::path_to_leaf;
use crate::projection::{entry_messages, project_messages, to_model_messages};

fn message_lines(messages: &[Cow<'_, Message>]) -> Vec<String> {
    messages
        .iter()
        .map(|message| match message.as_ref() {
            Message::User(user) => format!("user:{}", user.content.joined_text()),
            Message::Assistant(response) => {
                let calls: String =
                    response.tool_calls().map(|call| format!("<{}>", call.name)).collect();
                format!("assistant:{}{calls}", joined_text(&response.content))
            }
            Message::ToolResult(result) => format!("result:{}", joined_text(&result.content)),
            other => format!("{}:?", other.role()),
        })
        .collect()
}

fn model_input(transition: &Transition) -> Vec<String> {
    let path = path_to_leaf(&transition.entries, transition.head.leaf_id.as_ref());
    message_lines(&to_model_messages(project_messages(&path)))
}

fn from_json(text: &serde_json::Value) -> Message {
    serde_json::from_str(&text.to_string()).unwrap()
}

#[test]
fn model_input_has_call_and_result() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[
            prompt("go"),
            response(&["echo {}"]),
            admitted_call(0, Effect::Read, None),
            returned_call(0, "echo:x"),
        ],
    );
    assert_eq!(model_input(&transition), ["user:go", "assistant:<echo>", "result:echo:x"]);
}

#[test]
fn model_input_omits_failed_response() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[
            prompt("go"),
            response_with(&[json!({"type": "text", "text": "par"})], "error"),
            prompt("again"),
        ],
    );
    assert_eq!(model_input(&transition), ["user:go", "user:again"]);
}

#[test]
fn file_message_follows_results_and_widget_is_omitted() {
    let mut transition = transition();
    let outputs = serde_json::from_str(r#"[{"type":"file","artifactId":"e.1","path":"a.pdf","mimeType":"application/pdf","size":3,"description":"the report"},{"type":"widget","widget":"w","data":{},"fallback":"-"},{"type":"hologram"}]"#).unwrap();
    let result = CallResult {
        content: vec![crate::content::Block::text("1")],
        outputs,
        ..CallResult::default()
    };
    apply_inputs(
        &mut transition,
        &[
            prompt("go"),
            response(&["a {}", "b {}"]),
            admitted_call(0, Effect::Read, None),
            Input::ToolCallReturned { index: 0, result: Box::new(result) },
            admitted_call(1, Effect::Read, None),
            returned_call(1, "2"),
        ],
    );
    assert_eq!(
        model_input(&transition),
        [
            "user:go",
            "assistant:<a><b>",
            "result:1",
            "result:2",
            "assistant:[File sent to user: \"a.pdf\" — the report]"
        ]
    );
    let view = build_prompt_view(
        &turnwheel_platform::ids::PromptId::new("pr_1"),
        &transition.head,
        &transition.entries,
    )
    .unwrap();
    let kinds: Vec<String> = serde_json::to_value(&view.output)
        .unwrap()
        .as_array()
        .unwrap()
        .iter()
        .map(|output| output["type"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kinds, ["tool", "file", "widget", "hologram", "tool"]);
}

/// The text of the source (PR-05), for a conversation that continues without the decision.
#[test]
fn model_input_shows_undecided_call_as_pending() {
    let mut transition = transition();
    let gated = admitted_call(0, Effect::Write, Some("Gated"));
    apply_inputs(&mut transition, &[prompt("go"), response(&["pay {}"]), gated]);
    let is_user = |entry: &&Arc<Entry>| matches!(entry.body.message(), Some(Message::User(_)));
    let next = transition.entries.iter().find(is_user);
    let messages = entry_messages(transition.entries.iter().chain(next));
    assert_eq!(
        message_lines(&to_model_messages(messages)),
        ["user:go", "assistant:<pay>", r#"result:{"pending":true,"reason":"Gated"}"#, "user:go"]
    );
}

#[test]
fn call_without_result_gets_synthetic_result() {
    let call = json!({"role": "assistant", "content": [{"type": "toolCall", "id": "c1", "name": "x", "arguments": {}}], "api": "a", "provider": "p", "model": "m", "stopReason": "toolUse", "timestamp": 0});
    let user = json!({"role": "user", "content": "next", "timestamp": 0});
    let messages = [from_json(&call), from_json(&user)];
    assert_eq!(
        message_lines(&to_model_messages(messages.iter().map(Cow::Borrowed).collect())),
        ["assistant:<x>", "result:No result provided", "user:next"]
    );
}

#[test]
fn displaced_results_are_moved_to_their_calls() {
    let call = |id: &str| json!({"role": "assistant", "content": [{"type": "toolCall", "id": id, "name": id, "arguments": {}}], "api": "a", "provider": "p", "model": "m", "stopReason": "toolUse", "timestamp": 0});
    let text = |text: &str| json!({"role": "assistant", "content": [{"type": "text", "text": text}], "api": "a", "provider": "p", "model": "m", "stopReason": "stop", "timestamp": 0});
    let user = |text: &str| json!({"role": "user", "content": text, "timestamp": 0});
    let result = |id: &str, text: &str| json!({"role": "toolResult", "toolCallId": id, "toolName": "t", "content": [{"type": "text", "text": text}], "isError": false, "timestamp": 0});
    let cases: [(Vec<serde_json::Value>, &[&str]); 8] = [
        (
            vec![call("x"), text("t"), result("x", "1")],
            &["assistant:<x>", "result:1", "assistant:t"],
        ),
        (vec![call("x"), user("u"), result("x", "1")], &["assistant:<x>", "result:1", "user:u"]),
        (
            vec![call("x"), call("y"), result("x", "1"), result("y", "2")],
            &["assistant:<x>", "result:1", "assistant:<y>", "result:2"],
        ),
        (
            vec![call("x"), result("x", "1"), call("x"), result("x", "2")],
            &["assistant:<x>", "result:1", "assistant:<x>", "result:2"],
        ),
        (
            vec![call("x"), user("u"), call("x"), result("x", "2")],
            &["assistant:<x>", "result:No result provided", "user:u", "assistant:<x>", "result:2"],
        ),
        (
            vec![call("x"), result("x", "1"), result("x", "again"), user("u")],
            &["assistant:<x>", "result:1", "user:u"],
        ),
        (vec![result("x", "1"), user("u"), call("x")], &["user:u", "assistant:<x>", "result:1"]),
        (
            vec![result("x", "0"), call("x"), user("u"), result("x", "1")],
            &["assistant:<x>", "result:1", "user:u"],
        ),
    ];
    for (messages, expected) in cases {
        let messages: Vec<Message> = messages.iter().map(from_json).collect();
        let converted = to_model_messages(messages.iter().map(Cow::Borrowed).collect());
        assert_eq!(message_lines(&converted), expected);
    }
}

#[test]
fn model_input_omits_unknown_roles() {
    let odd = json!({"role": "hologram", "content": 12.50, "big": 123_456_789_012_345_678_901_234_567_890_f64});
    let hidden = json!({"role": "bashExecution", "command": "ls", "output": "x", "cancelled": false, "truncated": false, "excludeFromContext": true, "timestamp": 0});
    let messages = [from_json(&odd), from_json(&hidden)];
    assert!(to_model_messages(messages.iter().map(Cow::Borrowed).collect()).is_empty());
}

#[test]
fn model_input_omits_other_branches() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("one"), response(&["first"])]);
    let fork = transition.entries[1].base.entry_id.clone();
    transition.head.leaf_id = Some(fork);
    apply_inputs(&mut transition, &[prompt("two")]);
    assert_eq!(model_input(&transition), ["user:one", "user:two"]);
}

/// A random tree: the parent of each entry is a random earlier one.
fn entry_tree() -> impl Strategy<Value = Vec<Arc<Entry>>> {
    let kind = prop_oneof![
        Just("user"),
        Just("text"),
        Just("call"),
        Just("result"),
        Just("error"),
        Just("custom"),
        Just("odd")
    ];
    prop::collection::vec((kind, any::<prop::sample::Index>(), 0..4_u8), 1..40).prop_map(|nodes| {
        let mut entries: Vec<Arc<Entry>> = Vec::new();
        for (number, (kind, parent, id)) in nodes.into_iter().enumerate() {
            let parent_id = (!entries.is_empty()).then(|| parent.get(&entries).base.entry_id.clone());
            let call_id = format!("c{id}");
            let message = match kind {
                "user" => json!({"role": "user", "content": "u", "timestamp": 0}),
                "call" => json!({"role": "assistant", "content": [{"type": "toolCall", "id": call_id, "name": "t", "arguments": {}}, {"type": "toolCall", "id": "c9", "name": "t", "arguments": {}}], "api": "a", "provider": "p", "model": "m", "stopReason": "toolUse", "timestamp": 0}),
                "result" => json!({"role": "toolResult", "toolCallId": call_id, "toolName": "t", "content": [], "isError": false, "timestamp": 0}),
                "error" => json!({"role": "assistant", "content": [{"type": "toolCall", "id": call_id, "name": "t", "arguments": {}}], "api": "a", "provider": "p", "model": "m", "stopReason": "error", "timestamp": 0}),
                "odd" => json!({"role": "odd"}),
                _ => json!({"role": "assistant", "content": [{"type": "text", "text": "t"}], "api": "a", "provider": "p", "model": "m", "stopReason": "stop", "timestamp": 0}),
            };
            let body = if kind == "custom" { json!({"type": "custom", "customType": "x"}) } else { json!({"type": "message", "message": message}) };
            let mut whole = json!({"entryId": format!("{number:08x}"), "parentId": parent_id, "seq": number + 1, "timestamp": "2026-11-21T20:19:09.669Z"});
            whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
            entries.push(Arc::new(serde_json::from_str(&whole.to_string()).unwrap()));
        }
        entries
    })
}

proptest! {
    #[test]
    fn model_input_is_well_formed_for_any_tree(entries in entry_tree(), leaf in any::<prop::sample::Index>()) {
        let leaf = leaf.get(&entries).base.entry_id.clone();
        let path = path_to_leaf(&entries, Some(&leaf));
        prop_assert_eq!(&path.last().unwrap().base.entry_id, &leaf);
        prop_assert!(path[0].base.parent_id.is_none());
        for pair in path.windows(2) {
            prop_assert_eq!(pair[1].base.parent_id.as_ref(), Some(&pair[0].base.entry_id));
        }
        let converted = to_model_messages(project_messages(&path));
        let mut open: Vec<String> = Vec::new();
        for message in &converted {
            match message.as_ref() {
                Message::ToolResult(result) => {
                    let position = open.iter().position(|id| *id == result.tool_call_id);
                    prop_assert!(position.is_some(), "a result without its call");
                    open.remove(position.unwrap());
                }
                Message::Assistant(answer) => {
                    prop_assert!(open.is_empty(), "a call without its result");
                    prop_assert!(!answer.is_failed());
                    open = answer.tool_calls().map(|call| call.id.clone()).collect();
                }
                Message::User(_) => prop_assert!(open.is_empty(), "a call without its result"),
                other => prop_assert!(false, "role {} was sent", other.role()),
            }
        }
        prop_assert!(open.is_empty());
    }
}
