//! Texts and arguments of model responses that are not sent as strings.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::raw::text_depth;
use turnwheel_json::text::sanitize_line;

/// Members with the text of a part.
const TEXTS: [&str; 3] = ["text", "refusal", "transcript"];
/// Members that only a part has, beside [`TEXTS`].
const MARKS: [&str; 2] = ["type", "thinking"];
/// Types of parts without visible content.
const SILENT_PARTS: [&str; 7] = [
    "thinking",
    "redacted_thinking",
    "reasoning",
    "reference",
    "signature",
    // Services send the call in `tool_calls`, too.
    "tool_use",
    "tool_reference",
];
/// Types of texts. Some services put the text into another member.
const TEXT_PARTS: [&str; 5] = ["text", "output_text", "input_text", "summary_text", "refusal"];
/// Values without content, which some services send in the place of a text.
const EMPTY: [&str; 5] = ["null", "false", "\"\"", "[]", "{}"];
/// Bytes of an empty list or object, with white space.
const PLACEHOLDER_BYTES_MAX: usize = 16;
/// Bytes of a part of an unknown type that is shown as JSON. Larger ones are images and the like.
const PART_BYTES_MAX: usize = 4 * 1024;
/// Levels of a list or an object in which parts are searched: each one is parsed again.
const PART_DEPTH_MAX: usize = 64;
/// Characters of an unknown type that a text quotes.
const KIND_CHARS_MAX: usize = 64;
/// Member of a recorded response: types of its output that the content lacks.
const OMITTED_OUTPUT: &str = "omittedOutput";
/// Types in [`OMITTED_OUTPUT`].
const OMITTED_KINDS_MAX: usize = 32;

/// Borrows a string without escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

type Members<'a> = BTreeMap<String, &'a RawValue>;

/// A part of an unknown type.
pub(crate) struct OmittedPart {
    pub(crate) kind: String,
    pub(crate) text: String,
}

impl fmt::Debug for OmittedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OmittedPart(…)")
    }
}

/// The text of a value in the place of a text. A number or a JSON object that a gateway has parsed
/// becomes the text that was received. `None`: there is no visible content.
pub(crate) fn text_of(raw: &RawValue) -> Option<Cow<'_, str>> {
    let json = raw.get();
    let text = if json.starts_with(['[', '{']) && text_depth(json) > PART_DEPTH_MAX {
        Some(Cow::Borrowed(json))
    } else if json.starts_with('[') {
        list_text(raw)
    } else if json.starts_with('{') {
        object_text(raw)
    } else {
        scalar_text(raw)
    };
    text.filter(|text| !text.is_empty())
}

/// The text of a value of a tree, as of [`text_of`]. Decimal numbers have the digits of their float.
pub(crate) fn text_of_value(value: &Value) -> Option<Cow<'_, str>> {
    if let Some(text) = plain_text(value) {
        return Some(Cow::Borrowed(text));
    }
    let joined: Option<String> =
        value.as_array().and_then(|parts| parts.iter().map(plain_text).collect());
    if let Some(text) = joined.filter(|text| !text.is_empty()) {
        return Some(Cow::Owned(text));
    }
    let raw = to_raw_value(value).ok()?;
    text_of(&raw).map(|text| Cow::Owned(text.into_owned()))
}

/// The text of a string or of a usual part.
fn plain_text(value: &Value) -> Option<&str> {
    let member = || TEXTS.iter().find_map(|name| value.get(*name)?.as_str());
    value.as_str().or_else(member).filter(|text| !text.is_empty())
}

/// A string, which may be empty, the digits of a number, or `true`.
pub(crate) fn scalar_text(raw: &RawValue) -> Option<Cow<'_, str>> {
    let json = raw.get();
    if json.starts_with('"') {
        let Text(text) = serde_json::from_str(json).ok()?;
        return Some(text);
    }
    let is_scalar = !json.starts_with(['[', '{']) && !EMPTY.contains(&json);
    is_scalar.then_some(Cow::Borrowed(json))
}

/// The items of a list with parts. `None`: the value is no list, or a list of other data.
fn parts_of(raw: &RawValue) -> Option<Vec<&RawValue>> {
    items_of(raw).filter(|items| items.iter().any(|item| is_part(item)))
}

fn items_of(raw: &RawValue) -> Option<Vec<&RawValue>> {
    let json = raw.get();
    json.starts_with('[').then(|| serde_json::from_str(json).ok()).flatten()
}

fn members_of(raw: &RawValue) -> Option<Members<'_>> {
    let json = raw.get();
    json.starts_with('{').then(|| serde_json::from_str(json).ok()).flatten()
}

fn is_part(item: &RawValue) -> bool {
    let is_object_of_part =
        |members: Members<'_>| TEXTS.iter().chain(&MARKS).any(|name| members.contains_key(*name));
    item.get().starts_with('"') || members_of(item).is_some_and(is_object_of_part)
}

fn is_empty(raw: &RawValue) -> bool {
    let json = raw.get();
    let is_short = json.starts_with(['[', '{']) && json.len() < PLACEHOLDER_BYTES_MAX;
    let is_spaced = || EMPTY.contains(&json.split_whitespace().collect::<String>().as_str());
    EMPTY.contains(&json) || is_short && is_spaced()
}

/// The joined texts of the parts, without parts of unknown types if there is another text: its readers
/// would take them for content. A list of other data is the JSON that a gateway has parsed.
fn list_text(raw: &RawValue) -> Option<Cow<'_, str>> {
    if let Some(parts) = parts_of(raw) {
        let (known, unknown) = split_list(parts);
        let text: String = known.into_iter().filter_map(text_of).collect();
        let is_alone = text.trim().is_empty() && !unknown.is_empty();
        return Some(Cow::Owned(if is_alone {
            unknown.into_iter().map(|part| part.text).collect()
        } else {
            text
        }));
    }
    let has_data = items_of(raw)?.into_iter().any(|item| !is_empty(item));
    has_data.then_some(Cow::Borrowed(raw.get()))
}

/// The text of a part. Another object is the JSON that a gateway has parsed.
fn object_text(raw: &RawValue) -> Option<Cow<'_, str>> {
    let members = members_of(raw)?;
    if TEXTS.iter().any(|name| members.contains_key(*name)) {
        return TEXTS.iter().find_map(|name| member_text(members.get(*name).copied()?));
    }
    let kind = members.get("type").copied().and_then(scalar_text);
    let is_silent = kind.as_deref().is_some_and(|kind| SILENT_PARTS.contains(&kind));
    let has_content = members.iter().any(|(name, value)| name != "type" && !is_empty(value));
    if is_silent || !has_content {
        return None;
    }
    Some(match kind {
        Some(kind) if raw.get().len() > PART_BYTES_MAX => Cow::Owned(omitted_text(&kind)),
        Some(_) | None => Cow::Borrowed(raw.get()),
    })
}

/// The type of a part with content of an unknown type. `None` for every other part.
fn unknown_kind(part: &RawValue) -> Option<String> {
    let members = members_of(part)?;
    if TEXTS.iter().chain(&["thinking"]).any(|name| members.contains_key(*name)) {
        return None;
    }
    let kind = members.get("type").copied().and_then(scalar_text)?;
    let has_content = members.iter().any(|(name, value)| name != "type" && !is_empty(value));
    let is_known = SILENT_PARTS.iter().chain(&TEXT_PARTS).any(|known| *known == kind);
    (has_content && !is_known).then(|| kind.into_owned())
}

/// The types of the parts of unknown types, each at the place of its part. A list that also has other
/// data has none: a gateway may have parsed it from the model's JSON.
fn unknown_kinds(parts: &[&RawValue]) -> Vec<Option<String>> {
    let kinds: Vec<Option<String>> = parts.iter().map(|part| unknown_kind(part)).collect();
    let is_data = || parts.iter().any(|part| !is_part(part) && !is_empty(part));
    let has_none = kinds.iter().all(Option::is_none) || is_data();
    if has_none { vec![None; parts.len()] } else { kinds }
}

/// The types of such parts of a tree.
pub(crate) fn unknown_kinds_of_values(parts: &[Value]) -> Vec<Option<String>> {
    let is_plain = parts.iter().all(|part| plain_text(part).is_some());
    let raw: Option<Vec<Box<RawValue>>> =
        if is_plain { None } else { parts.iter().map(|part| to_raw_value(part).ok()).collect() };
    let Some(raw) = raw else { return vec![None; parts.len()] };
    unknown_kinds(&raw.iter().map(AsRef::as_ref).collect::<Vec<&RawValue>>())
}

/// Splits a content into the parts that can be read, and those of unknown types. Another value than a
/// list is a list of one.
pub(crate) fn split_parts(raw: &RawValue) -> (Vec<&RawValue>, Vec<OmittedPart>) {
    split_list(parts_of(raw).unwrap_or_else(|| vec![raw]))
}

fn split_list(parts: Vec<&RawValue>) -> (Vec<&RawValue>, Vec<OmittedPart>) {
    let kinds = unknown_kinds(&parts);
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for (part, kind) in parts.into_iter().zip(kinds) {
        match kind {
            Some(kind) => {
                let text = text_of(part).map(Cow::into_owned);
                unknown.extend(text.map(|text| OmittedPart { kind, text }));
            }
            None => known.push(part),
        }
    }
    (known, unknown)
}

/// The parts of a content in a tree. Another value than a list is a list of one.
pub(crate) fn parts_of_value(content: &Value) -> &[Value] {
    content.as_array().map_or(std::slice::from_ref(content), Vec::as_slice)
}

/// The content without its parts of unknown types.
pub(crate) fn known_parts(content: &Value) -> Cow<'_, Value> {
    let parts = parts_of_value(content);
    let kinds = unknown_kinds_of_values(parts);
    if kinds.iter().all(Option::is_none) {
        return Cow::Borrowed(content);
    }
    let known = parts.iter().zip(kinds).filter(|(_, kind)| kind.is_none());
    Cow::Owned(known.map(|(part, _)| part.clone()).collect())
}

/// The text of a member of a part. In the Assistants API it is in an object.
fn member_text(raw: &RawValue) -> Option<Cow<'_, str>> {
    let value = members_of(raw).and_then(|members| members.get("value").copied());
    text_of(value.unwrap_or(raw))
}

/// The type of an output for people.
fn kind_line(kind: &str) -> String {
    let kind = sanitize_line(kind, KIND_CHARS_MAX);
    if kind.is_empty() { "unknown".to_owned() } else { kind }
}

/// Names the types of omitted output in a member of the message, and in the log.
pub(crate) fn omitted_extra(kinds: impl IntoIterator<Item = String>) -> Extra {
    let mut extra = Extra::new();
    let mut types: Vec<String> = Vec::new();
    for kind in kinds.into_iter().map(|kind| kind_line(&kind)) {
        if types.len() < OMITTED_KINDS_MAX && !types.contains(&kind) {
            types.push(kind);
        }
    }
    if !types.is_empty() {
        let names = types.join(" ");
        tracing::warn!(types = names, "model response has output of an unknown type");
        extra.insert(OMITTED_OUTPUT.to_owned(), Value::from(types));
    }
    extra
}

/// The text in place of an output of an unknown type.
pub(crate) fn omitted_text(kind: &str) -> String {
    let kind = kind_line(kind);
    format!("(output of the type `{kind}` omitted: this runtime cannot show it)")
}

/// Arguments, or a part of them. Validation refuses a value that is no object. `None`: there is no
/// value; PHP writes an empty object as `[]`.
pub(crate) fn arguments_of(raw: &RawValue) -> Option<Cow<'_, str>> {
    let json = raw.get();
    let text = if json.starts_with('"') { scalar_text(raw)? } else { Cow::Borrowed(json) };
    let items = json.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_empty = json == "null" || items.is_some_and(|items| items.trim().is_empty());
    (!is_empty && !text.is_empty()).then_some(text)
}

/// True if the received arguments are a placeholder of the object that the delta begins: PHP writes
/// `false` in place of a text.
pub(crate) fn is_placeholder_of(delta: &str, received: &str) -> bool {
    received == "false" && delta.trim_start().starts_with('{')
}

/// The arguments in a value of a tree, as of [`arguments_of`]. A value with a number that was rounded
/// becomes a string, which validation refuses.
pub(crate) fn arguments_of_value(value: &Value) -> Option<Cow<'_, str>> {
    if let Some(text) = value.as_str() {
        return (!text.is_empty()).then_some(Cow::Borrowed(text));
    }
    let raw = to_raw_value(value).ok()?;
    let text = arguments_of(&raw)?.into_owned();
    Some(Cow::Owned(if has_rounded_number(value) { Value::String(text).to_string() } else { text }))
}

/// True if the tree has a number whose digits may differ from those that were received.
pub(crate) fn has_rounded_number(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(items) => items.iter().any(has_rounded_number),
        Value::Object(members) => members.values().any(has_rounded_number),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}
