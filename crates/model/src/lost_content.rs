//! Content of a frame that a reader or a repair of its JSON would lose.

use serde_json::Value;

use turnwheel_json::foreign::{ForeignJson, string_length};
use turnwheel_json::raw::RawJson;

/// Members that are objects or lists, on the way from a frame to a call or a text of either API.
const STRUCTURES: [&str; 12] = [
    "choices",
    "delta",
    "message",
    "tool_calls",
    "function_call",
    "function",
    "custom",
    "response",
    "output",
    "item",
    "part",
    "content",
];
/// Members that may not be lost, beside [`STRUCTURES`].
const CONTENTS: [&str; 8] =
    ["name", "arguments", "input", "text", "refusal", "output_text", "finish_reason", "error"];
/// Members of a response with content of the model. It repeats its configuration beside them.
const OF_RESPONSE: [&str; 2] = ["output", "output_text"];
/// Levels from a list of frames to the function of a call.
const LEVELS: usize = 8;

/// True if the reader of the text loses content: of members with one name only the last counts, and a
/// repaired value changes the arguments of a call.
pub(crate) fn loses_content(text: &str, foreign: &ForeignJson) -> bool {
    foreign.has_duplicates() && has_lost_member(text, &foreign.json)
        || foreign.value_note().is_some() && has_changed_arguments(text, &foreign.json)
}

/// True if the tree has each member of its text, so that no name is repeated.
pub(crate) fn has_each_member(tree: &Value, text: &str) -> bool {
    let mut rest = text.as_bytes();
    let mut colons = 0;
    while let Some(byte) = rest.first() {
        let length = if *byte == b'"' { string_length(rest).unwrap_or(rest.len()) } else { 1 };
        colons += usize::from(*byte == b':');
        rest = rest.get(length..).unwrap_or_default();
    }
    colons == count_members(tree)
}

fn count_members(tree: &Value) -> usize {
    match tree {
        Value::Object(members) => {
            members.len() + members.values().map(count_members).sum::<usize>()
        }
        Value::Array(items) => items.iter().map(count_members).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// True if a removed member may have had content.
fn has_lost_member(text: &str, repaired: &RawJson) -> bool {
    let Ok(original) = RawJson::from_text(text) else {
        return STRUCTURES.iter().chain(&CONTENTS).any(|name| {
            let name = format!("\"{name}\"");
            let count = |text: &str| text.matches(name.as_str()).count();
            count(text) != count(repaired.text())
        });
    };
    any_object(&original, "", LEVELS, &|parent: &str, members: &Members| {
        let is_response = parent == "response" || members.iter().any(|(name, _)| name == "output");
        let is_content = |name: &str| {
            if is_response {
                OF_RESPONSE.contains(&name)
            } else {
                STRUCTURES.contains(&name) || CONTENTS.contains(&name)
            }
        };
        members.iter().enumerate().any(|(index, (name, value))| {
            let mut later = members.iter().skip(index + 1);
            is_content(name)
                && !is_empty(value)
                && later.any(|(other, later)| other == name && later != value)
        })
    })
}

/// True if arguments in the form of an object or a list are not as in the original text.
fn has_changed_arguments(text: &str, repaired: &RawJson) -> bool {
    let without_space = |text: &str| text.split_whitespace().collect::<String>();
    let original = without_space(text);
    any_object(repaired, "", LEVELS, &|_: &str, members: &Members| {
        members.iter().any(|(name, value)| {
            matches!(name.as_str(), "arguments" | "input")
                && value.text().starts_with(['{', '['])
                && !original.contains(&without_space(value.text()))
        })
    })
}

type Members = [(String, RawJson)];

/// True if an object from the frame to the function of a call passes the test. `parent`: the name of
/// its member.
fn any_object(
    json: &RawJson,
    parent: &str,
    levels: usize,
    test: &dyn Fn(&str, &Members) -> bool,
) -> bool {
    if levels == 0 {
        return false;
    }
    if let Some(members) = json.members() {
        return test(parent, &members)
            || members.iter().any(|(name, value)| {
                STRUCTURES.contains(&name.as_str()) && any_object(value, name, levels - 1, test)
            });
    }
    let items = json.read::<Vec<RawJson>>().unwrap_or_default();
    items.iter().any(|item| any_object(item, "", levels - 1, test))
}

/// True for a value that services send in the place of another type without content.
pub(crate) fn is_empty(json: &RawJson) -> bool {
    is_empty_value(&json.to_value())
}

/// True for such a value of a tree.
pub(crate) fn is_empty_value(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}
