//! Model input is always well-formed (invariant 8).

use std::borrow::Cow;

use proptest::prelude::*;

use super::*;
use crate::agent::content::joined_text;
use crate::agent::entry::Entry;
use crate::agent::message::Message;
use crate::agent::path::path;
use crate::agent::projection::{convert, messages};

fn said(messages: &[Cow<'_, Message>]) -> Vec<String> {
    messages
        .iter()
        .map(|message| match message.as_ref() {
            Message::User(user) => format!("user:{}", user.content.joined_text()),
            Message::Assistant(answer) => {
                let calls: String =
                    answer.tool_calls().map(|call| format!("<{}>", call.name)).collect();
                format!("assistant:{}{calls}", joined_text(&answer.content))
            }
            Message::ToolResult(result) => format!("result:{}", joined_text(&result.content)),
            other => format!("{}:?", other.role()),
        })
        .collect()
}

fn sent(draft: &Draft) -> Vec<String> {
    let path = path(&draft.entries, draft.head.leaf_id.as_ref());
    said(&convert(messages(&path)))
}

fn from_json(text: &serde_json::Value) -> Message {
    serde_json::from_str(&text.to_string()).unwrap()
}

#[test]
fn a_tool_round_is_sent_as_call_and_result() {
    let mut draft = draft();
    play(
        &mut draft,
        &[prompt("go"), answer(&["echo {}"]), gate(0, Effect::Read, None), returned(0, "echo:x")],
    );
    assert_eq!(sent(&draft), ["user:go", "assistant:<echo>", "result:echo:x"]);
}

#[test]
fn a_failed_answer_is_left_out() {
    let mut draft = draft();
    play(
        &mut draft,
        &[
            prompt("go"),
            answer_with(&[json!({"type": "text", "text": "par"})], "error"),
            prompt("again"),
        ],
    );
    assert_eq!(sent(&draft), ["user:go", "user:again"]);
}

#[test]
fn a_file_speaks_after_the_results_of_its_batch_and_a_widget_is_silent() {
    let mut draft = draft();
    let outputs = serde_json::from_str(r#"[{"type":"file","artifactId":"e.1","path":"a.pdf","mimeType":"application/pdf","size":3,"description":"the report"},{"type":"widget","widget":"w","data":{},"fallback":"-"},{"type":"hologram"}]"#).unwrap();
    let result = CallResult {
        content: vec![crate::agent::content::Block::text("1")],
        outputs,
        ..CallResult::default()
    };
    play(
        &mut draft,
        &[
            prompt("go"),
            answer(&["a {}", "b {}"]),
            gate(0, Effect::Read, None),
            Input::Returned { index: 0, result: Box::new(result) },
            gate(1, Effect::Read, None),
            returned(1, "2"),
        ],
    );
    assert_eq!(
        sent(&draft),
        [
            "user:go",
            "assistant:<a><b>",
            "result:1",
            "result:2",
            "assistant:[File sent to user: \"a.pdf\" — the report]"
        ]
    );
    let view = crate::agent::view::prompt_view(
        &crate::ids::PromptId::new("pr_1"),
        &draft.head,
        &draft.entries,
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

#[test]
fn a_call_without_a_result_gets_one_in_place() {
    let call = json!({"role": "assistant", "content": [{"type": "toolCall", "id": "c1", "name": "x", "arguments": {}}], "api": "a", "provider": "p", "model": "m", "stopReason": "toolUse", "timestamp": 0});
    let user = json!({"role": "user", "content": "next", "timestamp": 0});
    let messages = [from_json(&call), from_json(&user)];
    assert_eq!(
        said(&convert(messages.iter().map(Cow::Borrowed).collect())),
        ["assistant:<x>", "result:No result provided", "user:next"]
    );
}

#[test]
fn unknown_roles_speak_to_nobody() {
    let odd = json!({"role": "hologram", "content": 12.50, "big": 123_456_789_012_345_678_901_234_567_890_f64});
    let hidden = json!({"role": "bashExecution", "command": "ls", "output": "x", "cancelled": false, "truncated": false, "excludeFromContext": true, "timestamp": 0});
    let messages = [from_json(&odd), from_json(&hidden)];
    assert!(convert(messages.iter().map(Cow::Borrowed).collect()).is_empty());
}

#[test]
fn a_branch_does_not_hear_the_other() {
    let mut draft = draft();
    play(&mut draft, &[prompt("one"), answer(&["first"])]);
    let fork = draft.entries[1].base.entry_id.clone();
    draft.head.leaf_id = Some(fork);
    play(&mut draft, &[prompt("two")]);
    assert_eq!(sent(&draft), ["user:one", "user:two"]);
}

/// A random tree: the parent of each entry is a random earlier one.
fn tree() -> impl Strategy<Value = Vec<Arc<Entry>>> {
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
    fn whatever_the_tree_the_model_input_is_well_formed(entries in tree(), leaf in any::<prop::sample::Index>()) {
        let leaf = leaf.get(&entries).base.entry_id.clone();
        let path = path(&entries, Some(&leaf));
        prop_assert_eq!(&path.last().unwrap().base.entry_id, &leaf);
        prop_assert!(path[0].base.parent_id.is_none());
        for pair in path.windows(2) {
            prop_assert_eq!(pair[1].base.parent_id.as_ref(), Some(&pair[0].base.entry_id));
        }
        let converted = convert(messages(&path));
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
