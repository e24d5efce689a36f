//! Lenient parser of Responses stream events: every member may be missing, and unknown ones are
//! ignored.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::agent::text::repair_surrogates;

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
    #[serde(borrow)]
    pub delta: Cow<'a, str>,
    pub output_index: Option<u64>,
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
    /// A malformed terminal event: the end of the response is unknown.
    MalformedEnd {
        kind: &'static str,
    },
}

impl ProviderEvent {
    pub fn from_json(body: Value) -> Option<Self> {
        let kind = body.get("type")?.as_str()?.to_owned();
        Some(Self { kind, body })
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
        let body = serde_json::from_str::<Value>(&repaired).ok();
        let event = body.and_then(|mut body| {
            if let (Some(object), Some(name)) = (body.as_object_mut(), name) {
                object.entry("type").or_insert_with(|| Value::from(name));
            }
            Self::from_json(body)
        });
        if let Some(event) = event {
            return ParsedFrame::Event(event);
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

    /// Returns the delta, if the event is one.
    pub fn as_delta(&self) -> Option<DeltaEvent<'_>> {
        let delta = self.string_member("delta").filter(|_| is_delta_kind(&self.kind))?.into();
        Some(DeltaEvent {
            kind: self.kind.as_str().into(),
            delta,
            output_index: self.output_index(),
        })
    }

    pub fn output_index(&self) -> Option<u64> {
        self.member("output_index")?.as_u64()
    }

    /// Returns the item and its `type`.
    pub fn item(&self) -> Option<(&Value, &str)> {
        let item = self.member("item")?;
        Some((item, item.get("type")?.as_str()?))
    }
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
    fn delta_is_parsed_directly_or_by_tree() {
        let data =
            r#"{"type":"x.delta","item_id":"i","output_index":2,"delta":"a\n","logprobs":[]}"#;
        let piece =
            DeltaEvent { kind: "x.delta".into(), delta: "a\n".into(), output_index: Some(2) };
        for name in [None, Some("x.delta")] {
            assert_eq!(ProviderEvent::parse(name, data), ParsedFrame::Delta(piece.clone()));
        }
        let odd = [
            (Some("message"), data),
            (Some("x.delta"), r#"{"output_index":2,"delta":"a\n"}"#),
            (None, r#"{"type":"x.delta","output_index":0,"output_index":2,"delta":"a\n"}"#),
            (None, r#"{"type":"x.delta","output_index":2,"delta":"a\n\ud83d"}"#),
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
