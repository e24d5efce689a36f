//! Repair of chunks that cannot be parsed as they are.

use serde_json::Value;

use turnwheel_json::foreign::read_foreign_json;
use turnwheel_json::raw::RawJson;

/// Members that are objects or lists. In place of one, some services send an empty value of another
/// type: `{}` for a list, or an empty text.
const STRUCTURES: [&str; 6] =
    ["choices", "delta", "message", "tool_calls", "function_call", "function"];
/// Members that may not be lost, beside [`STRUCTURES`].
const CONTENTS: [&str; 7] =
    ["name", "arguments", "content", "text", "refusal", "finish_reason", "error"];
/// Levels from a chunk to the function of a call.
const LEVELS: usize = 7;

/// The chunk as valid JSON without empty structures. `None`: it is not JSON, or the repair would lose
/// content or change the arguments of a call.
pub(super) fn repair_chunk(text: &str) -> Option<RawJson> {
    let foreign = read_foreign_json(text)?;
    let has_lost_content = foreign.has_duplicates() && has_lost_content(text, &foreign.json);
    let has_new_value = foreign.value_note().is_some();
    if has_lost_content || (has_new_value && has_changed_arguments(text, &foreign.json)) {
        return None;
    }
    Some(without_empty_structures(foreign.json, LEVELS))
}

/// True if the repair may have removed content: of members with one name it keeps the last.
fn has_lost_content(text: &str, repaired: &RawJson) -> bool {
    let Ok(original) = RawJson::from_text(text) else {
        return STRUCTURES.iter().chain(&CONTENTS).any(|name| {
            let name = format!("\"{name}\"");
            let count = |text: &str| text.matches(name.as_str()).count();
            count(text) != count(repaired.text())
        });
    };
    any_object(&original, LEVELS, &|members: &Members| {
        members.iter().enumerate().any(|(index, (name, value))| {
            let mut later = members.iter().skip(index + 1);
            STRUCTURES.iter().chain(&CONTENTS).any(|content| *content == name)
                && !is_empty(value)
                && later.any(|(other, later)| other == name && later != value)
        })
    })
}

/// True if arguments in the form of an object are not as in the original text.
fn has_changed_arguments(text: &str, repaired: &RawJson) -> bool {
    let without_space = |text: &str| text.split_whitespace().collect::<String>();
    let original = without_space(text);
    any_object(repaired, LEVELS, &|members: &Members| {
        members.iter().any(|(name, value)| {
            name == "arguments"
                && value.text().starts_with('{')
                && !original.contains(&without_space(value.text()))
        })
    })
}

type Members = [(String, RawJson)];

/// True if an object from the chunk to the function of a call passes the test.
fn any_object(json: &RawJson, levels: usize, test: &dyn Fn(&Members) -> bool) -> bool {
    if levels == 0 {
        return false;
    }
    if let Some(members) = json.members() {
        return test(&members)
            || members.iter().any(|(name, value)| {
                STRUCTURES.contains(&name.as_str()) && any_object(value, levels - 1, test)
            });
    }
    let items = json.read::<Vec<RawJson>>().unwrap_or_default();
    items.iter().any(|item| any_object(item, levels - 1, test))
}

/// Removes empty structures and empty items of lists. A value of a wrong type that is not empty
/// stays: content would be lost with it.
fn without_empty_structures(json: RawJson, levels: usize) -> RawJson {
    if levels == 0 {
        return json;
    }
    if let Some(members) = json.members() {
        let kept = members.into_iter().filter_map(|(name, value)| {
            if !STRUCTURES.contains(&name.as_str()) {
                return Some((name, value));
            }
            (!is_empty(&value)).then(|| (name, without_empty_structures(value, levels - 1)))
        });
        return RawJson::from_members(kept.collect());
    }
    let Ok(items) = json.read::<Vec<RawJson>>() else { return json };
    let items = items.into_iter().filter(|item| !is_empty(item));
    let items: Vec<RawJson> =
        items.map(|item| without_empty_structures(item, levels - 1)).collect();
    RawJson::from_value(&items)
}

fn is_empty(json: &RawJson) -> bool {
    match json.to_value() {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}
