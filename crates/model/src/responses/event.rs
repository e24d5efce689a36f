//! Lenient parser of Responses stream events: every member may be missing, and unknown ones are
//! ignored.

use std::borrow::Cow;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::lost_content::{has_each_member, loses_content};
use crate::response_text::{
    arguments_of_value, has_rounded_number, known_parts, scalar_text, text_of_value,
};
use crate::responses::fold::is_empty_object;
use turnwheel_json::foreign::read_foreign_json;
use turnwheel_json::text::repair_surrogates;

/// Kinds that end a response, or may end it.
const TERMINAL_KINDS: [&str; 4] =
    ["response.completed", "response.incomplete", "response.failed", "error"];

#[derive(Clone, PartialEq)]
pub struct ProviderEvent {
    pub kind: String,
    body: Value,
}

/// A delta of an item. Nearly all events are deltas; they are parsed without a JSON tree.
#[derive(Clone, Deserialize, PartialEq)]
pub struct DeltaEvent<'a> {
    #[serde(borrow, rename = "type")]
    pub kind: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "read_delta")]
    pub delta: Cow<'a, str>,
    #[serde(default)]
    pub output_index: Option<u64>,
    #[serde(borrow, default)]
    pub item_id: Option<&'a str>,
    #[serde(default)]
    pub content_index: Option<u64>,
    #[serde(default)]
    pub summary_index: Option<u64>,
}

/// Place of an item in the output, as an event names it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ItemAddress<'a> {
    pub index: Option<u64>,
    pub id: Option<&'a str>,
}

/// Index of the first part of the reasoning text, after all parts of the summary.
const REASONING_TEXT_INDEX: u64 = 1 << 32;

impl<'a> DeltaEvent<'a> {
    pub fn address(&self) -> ItemAddress<'a> {
        ItemAddress { index: self.output_index, id: self.item_id }
    }

    /// Index of the part of the item.
    pub(crate) fn part_index(&self) -> Option<u64> {
        part_index(&self.kind, self.content_index, self.summary_index)
    }
}

/// Reads the text of a delta. Some services send a number in its place.
fn read_delta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'de, str>, D::Error> {
    let raw = <&'de RawValue>::deserialize(deserializer)?;
    scalar_text(raw).ok_or_else(|| D::Error::custom("this is no text"))
}

fn part_index(kind: &str, content: Option<u64>, summary: Option<u64>) -> Option<u64> {
    if kind.starts_with("response.reasoning_text") {
        content.map(|index| index.saturating_add(REASONING_TEXT_INDEX))
    } else {
        summary.or(content)
    }
}

/// Type of the item to which the texts of an event belong.
pub(crate) fn item_type_of_text(kind: &str) -> Option<&'static str> {
    match kind.strip_prefix("response.")?.rsplit_once('.')?.0 {
        "output_text" | "refusal" | "content_part" => Some("message"),
        "reasoning_summary_text" | "reasoning_text" | "reasoning_summary_part" => Some("reasoning"),
        "function_call_arguments" | "custom_tool_call_input" => Some("function_call"),
        _ => None,
    }
}

impl fmt::Debug for ProviderEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProviderEvent").field(&self.kind).finish()
    }
}

impl fmt::Debug for DeltaEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeltaEvent").field(&self.kind).finish()
    }
}

/// A parsed frame.
#[derive(Debug, PartialEq)]
pub enum ParsedFrame<'a> {
    Delta(DeltaEvent<'a>),
    Event(ProviderEvent),
    /// Malformed, and not a terminal event: ignored.
    Ignored,
    /// A part of its content is lost: two members have one name, or a repair changed arguments.
    Lossy(ProviderEvent),
    /// A malformed terminal event: the end of the response is unknown.
    MalformedEnd {
        kind: &'static str,
    },
}

impl ProviderEvent {
    /// The kind of an object without a type is empty. `None`: the JSON is no object.
    pub fn from_json(body: Value) -> Option<Self> {
        match body {
            Value::Object(_) => {
                let kind = body.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
                Some(Self { kind, body })
            }
            // Some gateways put an error into a list.
            Value::Array(items) => items.into_iter().find_map(Self::from_json),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    }

    /// Parses a frame. `name` is its `event:` line, if it has one.
    pub fn parse<'a>(name: Option<&str>, data: &'a str) -> ParsedFrame<'a> {
        let repaired = repair_surrogates(data);
        if let Cow::Borrowed(text) = repaired
            && name.is_none_or(is_delta_kind)
            && let Ok(piece) = serde_json::from_str::<DeltaEvent<'_>>(text)
            && is_delta_kind(&piece.kind)
        {
            return ParsedFrame::Delta(piece);
        }
        let strict = serde_json::from_str::<Value>(&repaired).ok();
        let is_exact = strict.as_ref().is_some_and(|body| has_each_member(body, &repaired));
        let foreign = if is_exact { None } else { read_foreign_json(&repaired) };
        let body = strict.or_else(|| foreign.as_ref()?.json.read().ok());
        let event = body.and_then(|mut body| {
            if let (Some(object), Some(name)) = (body.as_object_mut(), name) {
                object.entry("type").or_insert_with(|| Value::from(name));
            }
            Self::from_json(body)
        });
        if let Some(event) = event {
            let is_lossy = foreign.is_some_and(|foreign| loses_content(&repaired, &foreign));
            return if is_lossy { ParsedFrame::Lossy(event) } else { ParsedFrame::Event(event) };
        }
        let head: String =
            data.chars().take(200).filter(|letter| !letter.is_whitespace()).collect();
        let end = TERMINAL_KINDS
            .into_iter()
            .find(|kind| name == Some(kind) || head.contains(&format!("\"type\":\"{kind}\"")));
        end.map_or(ParsedFrame::Ignored, |kind| ParsedFrame::MalformedEnd { kind })
    }

    /// The whole event.
    pub fn body(&self) -> &Value {
        &self.body
    }

    pub fn member(&self, field: &str) -> Option<&Value> {
        self.body.get(field).filter(|value| !value.is_null())
    }

    pub fn string_member(&self, field: &str) -> Option<&str> {
        self.member(field)?.as_str()
    }

    /// Returns the delta, if the event is one that can be read.
    pub(crate) fn as_delta(&self) -> Option<DeltaEvent<'_>> {
        let delta = self.member("delta").filter(|_| is_delta_kind(&self.kind))?;
        let delta = match delta.as_str() {
            Some(text) => Cow::Borrowed(text),
            None if self.has_lost_delta() => return None,
            None if self.is_about_call() => arguments_of_value(delta)?,
            None if self.text_delta().is_some() => {
                Cow::Owned(text_of_value(&known_parts(delta))?.into_owned())
            }
            None => text_of_value(delta)?,
        };
        Some(DeltaEvent {
            kind: self.kind.as_str().into(),
            delta,
            output_index: self.index_member("output_index"),
            item_id: self.string_member("item_id"),
            content_index: self.index_member("content_index"),
            summary_index: self.index_member("summary_index"),
        })
    }

    /// The delta of a text of a message.
    pub(crate) fn text_delta(&self) -> Option<&Value> {
        self.member("delta").filter(|_| self.kind == "response.output_text.delta")
    }

    /// True for a piece of arguments with a number that was rounded, or in another member. There,
    /// services also send the `{}` of a call without arguments.
    pub(crate) fn has_lost_delta(&self) -> bool {
        if !self.is_about_call() {
            return false;
        }
        if let Some(delta) = self.member("delta") {
            return has_rounded_number(delta);
        }
        let is_piece = |text: Cow<'_, str>| !is_empty_object(&text);
        is_delta_kind(&self.kind) && self.whole_text().is_some_and(is_piece)
    }

    fn is_about_call(&self) -> bool {
        item_type_of_text(&self.kind) == Some("function_call")
    }

    /// The whole text, or the whole arguments, of the event that ends them.
    pub(crate) fn whole_text(&self) -> Option<Cow<'_, str>> {
        let has_text = ["text", "refusal"].into_iter().any(|name| self.member(name).is_some());
        if has_text && !self.is_about_call() {
            return text_of_value(&self.body);
        }
        let members = ["arguments", "input"].into_iter();
        members.filter_map(|name| self.member(name)).find_map(arguments_of_value)
    }

    /// The place of the item of a text event.
    pub fn address(&self) -> ItemAddress<'_> {
        ItemAddress { index: self.index_member("output_index"), id: self.string_member("item_id") }
    }

    /// Index of the part of a text event.
    pub(crate) fn part_index(&self) -> Option<u64> {
        let [content, summary] =
            ["content_index", "summary_index"].map(|name| self.index_member(name));
        part_index(&self.kind, content, summary)
    }

    /// An index. Some services send it as a text or as a decimal number.
    fn index_member(&self, name: &str) -> Option<u64> {
        let value = self.member(name)?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.strip_suffix(".0").unwrap_or(&text).parse().ok()
    }

    /// Returns the place of the item in the output, and the item.
    pub fn item(&self) -> Option<(Option<u64>, &Value)> {
        let has_members = |item: &&Value| item.as_object().is_some_and(|it| !it.is_empty());
        let item = self.member("item").filter(has_members)?;
        Some((self.index_member("output_index"), item))
    }

    /// The whole response of an event. Some gateways send it without an event around it.
    pub fn response(&self) -> Option<&Value> {
        let is_response = |body: &&Value| {
            body.get("object").and_then(Value::as_str) == Some("response")
                || body.get("output").is_some_and(Value::is_array)
        };
        self.member("response")
            .filter(|response| response.is_object())
            .or_else(|| Some(&self.body).filter(is_response))
    }
}

/// The text of a frame that a delta continues, for characters that two frames share.
pub(crate) fn text_address(frame: &Value) -> String {
    let member = |name: &str| frame.get(name).map(Value::to_string).unwrap_or_default();
    ["type", "output_index", "content_index", "summary_index"].map(member).join(" ")
}

fn is_delta_kind(kind: &str) -> bool {
    kind.rsplit_once('.').is_some_and(|(_, what)| what == "delta")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_frame_is_ignored_unless_terminal() {
        let cases = [
            (Some("response.output_text.delta"), "{\"delta\":", ParsedFrame::Ignored),
            (None, "[DONE]", ParsedFrame::Ignored),
            (None, "5", ParsedFrame::Ignored),
            (
                Some("response.completed"),
                "{\"type\":",
                ParsedFrame::MalformedEnd { kind: "response.completed" },
            ),
            (
                None,
                "{\"type\": \"error\", \"message\": ",
                ParsedFrame::MalformedEnd { kind: "error" },
            ),
        ];
        for (name, data, expected) in cases {
            assert_eq!(ProviderEvent::parse(name, data), expected, "{data}");
        }
    }

    #[test]
    fn frame_with_unpaired_surrogate_is_parsed() {
        let ParsedFrame::Event(event) =
            ProviderEvent::parse(None, r#"{"type":"x","delta":"a\ud83d"}"#)
        else {
            panic!()
        };
        assert_eq!(event.string_member("delta"), Some("a"));
    }

    #[test]
    fn frame_of_invalid_json_is_repaired() {
        for data in [
            r#"{"type":"x.delta","output_index":2,"delta":"a b","logprobs":[NaN,-Infinity,1e999]}"#,
            "{\"type\":\"x.delta\",\"output_index\":2,\"delta\":\"a b\",\"note\":\"line\none\"}",
            r#"{"type":"x.delta","output_index":2,"delta":"a b",}"#,
        ] {
            let ParsedFrame::Event(event) = ProviderEvent::parse(None, data) else {
                panic!("{data}")
            };
            let piece = event.as_delta().unwrap();
            assert_eq!((piece.output_index, piece.delta.as_ref()), (Some(2), "a b"), "{data}");
        }
    }

    #[test]
    fn delta_is_parsed_directly_or_by_tree() {
        let data =
            r#"{"type":"x.delta","item_id":"i","output_index":2,"delta":"a\n","logprobs":[]}"#;
        let piece = DeltaEvent {
            kind: "x.delta".into(),
            delta: "a\n".into(),
            output_index: Some(2),
            item_id: Some("i"),
            content_index: None,
            summary_index: None,
        };
        for name in [None, Some("x.delta")] {
            assert_eq!(ProviderEvent::parse(name, data), ParsedFrame::Delta(piece.clone()));
        }
        let odd = [
            (Some("message"), data),
            (Some("x.delta"), r#"{"item_id":"i","output_index":2,"delta":"a\n"}"#),
            (
                None,
                r#"{"type":"x.delta","item_id":"i","output_index":0,"output_index":2,"delta":"a\n"}"#,
            ),
            (None, r#"{"type":"x.delta","item_id":"i","output_index":2,"delta":"a\n\ud83d"}"#),
            (None, r#"{"type":"x.delta","item_id":"i","output_index":"2","delta":"a\n"}"#),
            (None, r#"{"type":"x.delta","item_id":"i","output_index":2.0,"delta":"a\n"}"#),
        ];
        for (name, data) in odd {
            let ParsedFrame::Event(event) = ProviderEvent::parse(name, data) else {
                panic!("{data}")
            };
            assert_eq!(event.as_delta(), Some(piece.clone()), "{data}");
        }
    }

    #[test]
    fn event_line_replaces_missing_type() {
        let ParsedFrame::Event(event) = ProviderEvent::parse(Some("error"), r#"{"message":"x"}"#)
        else {
            panic!()
        };
        assert_eq!(event.kind, "error");
    }
}
