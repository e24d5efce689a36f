//! Lenient parser of Responses stream events: every member may be missing, and unknown ones are
//! ignored.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::agent::text::repair_surrogates;

/// Kinds that end a response, or may end it.
const TERMINAL: [&str; 4] =
    ["response.completed", "response.incomplete", "response.failed", "error"];

#[derive(Clone, PartialEq)]
pub struct Event {
    pub kind: String,
    body: Value,
}

/// A delta of an item. Nearly all events are deltas; they are parsed without a JSON tree.
#[derive(Clone, Deserialize, PartialEq)]
pub struct Piece<'a> {
    #[serde(borrow, rename = "type")]
    pub kind: Cow<'a, str>,
    #[serde(borrow)]
    pub delta: Cow<'a, str>,
    pub output_index: Option<u64>,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProviderEvent").field(&self.kind).finish()
    }
}

impl fmt::Debug for Piece<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeltaEvent").field(&self.kind).finish()
    }
}

/// A parsed frame.
#[derive(Debug, PartialEq)]
pub enum Frame<'a> {
    Piece(Piece<'a>),
    Event(Event),
    /// Malformed, and not a terminal event: ignored.
    Noise,
    /// A malformed terminal event: the end of the response is unknown.
    BrokenEnd {
        kind: &'static str,
    },
}

impl Event {
    pub fn of(body: Value) -> Option<Self> {
        let kind = body.get("type")?.as_str()?.to_owned();
        Some(Self { kind, body })
    }

    /// Parses a frame. `name` is its `event:` line, if it has one.
    pub fn read<'a>(name: Option<&str>, data: &'a str) -> Frame<'a> {
        let repaired = repair_surrogates(data);
        if let Cow::Borrowed(text) = repaired
            && name.is_none_or(is_of_piece)
            && let Ok(piece) = serde_json::from_str::<Piece<'_>>(text)
            && is_of_piece(&piece.kind)
        {
            return Frame::Piece(piece);
        }
        let body = serde_json::from_str::<Value>(&repaired).ok();
        let event = body.and_then(|mut body| {
            if let (Some(object), Some(name)) = (body.as_object_mut(), name) {
                object.entry("type").or_insert_with(|| Value::from(name));
            }
            Self::of(body)
        });
        if let Some(event) = event {
            return Frame::Event(event);
        }
        let head: String =
            data.chars().take(200).filter(|letter| !letter.is_whitespace()).collect();
        let end = TERMINAL
            .into_iter()
            .find(|kind| name == Some(kind) || head.contains(&format!("\"type\":\"{kind}\"")));
        end.map_or(Frame::Noise, |kind| Frame::BrokenEnd { kind })
    }

    /// The whole event.
    pub fn body(&self) -> &Value {
        &self.body
    }

    pub fn get(&self, field: &str) -> Option<&Value> {
        self.body.get(field).filter(|value| !value.is_null())
    }

    pub fn text(&self, field: &str) -> Option<&str> {
        self.get(field)?.as_str()
    }

    /// Returns the delta, if the event is one.
    pub fn piece(&self) -> Option<Piece<'_>> {
        let delta = self.text("delta").filter(|_| is_of_piece(&self.kind))?.into();
        Some(Piece { kind: self.kind.as_str().into(), delta, output_index: self.output_index() })
    }

    pub fn output_index(&self) -> Option<u64> {
        self.get("output_index")?.as_u64()
    }

    /// Returns the item and its `type`.
    pub fn item(&self) -> Option<(&Value, &str)> {
        let item = self.get("item")?;
        Some((item, item.get("type")?.as_str()?))
    }
}

fn is_of_piece(kind: &str) -> bool {
    kind.rsplit_once('.').is_some_and(|(_, what)| what == "delta")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_frame_is_noise_unless_it_was_to_end_the_answer() {
        let cases = [
            (Some("response.output_text.delta"), "{\"delta\":", Frame::Noise),
            (None, "[DONE]", Frame::Noise),
            (None, "5", Frame::Noise),
            (
                Some("response.completed"),
                "{\"type\":",
                Frame::BrokenEnd { kind: "response.completed" },
            ),
            (None, "{\"type\": \"error\", \"message\": ", Frame::BrokenEnd { kind: "error" }),
        ];
        for (name, data, expected) in cases {
            assert_eq!(Event::read(name, data), expected, "{data}");
        }
    }

    #[test]
    fn halves_of_surrogates_do_not_make_a_frame_unreadable() {
        let Frame::Event(event) = Event::read(None, r#"{"type":"x","delta":"a\ud83d"}"#) else {
            panic!()
        };
        assert_eq!(event.text("delta"), Some("a"));
    }

    #[test]
    fn a_piece_is_read_without_a_tree_and_an_odd_one_with_it() {
        let data =
            r#"{"type":"x.delta","item_id":"i","output_index":2,"delta":"a\n","logprobs":[]}"#;
        let piece = Piece { kind: "x.delta".into(), delta: "a\n".into(), output_index: Some(2) };
        for name in [None, Some("x.delta")] {
            assert_eq!(Event::read(name, data), Frame::Piece(piece.clone()));
        }
        let odd = [
            (Some("message"), data),
            (Some("x.delta"), r#"{"output_index":2,"delta":"a\n"}"#),
            (None, r#"{"type":"x.delta","output_index":0,"output_index":2,"delta":"a\n"}"#),
            (None, r#"{"type":"x.delta","output_index":2,"delta":"a\n\ud83d"}"#),
        ];
        for (name, data) in odd {
            let Frame::Event(event) = Event::read(name, data) else { panic!("{data}") };
            assert_eq!(event.piece(), Some(piece.clone()), "{data}");
        }
    }

    #[test]
    fn the_event_line_names_a_frame_whose_data_has_no_type() {
        let Frame::Event(event) = Event::read(Some("error"), r#"{"message":"x"}"#) else {
            panic!()
        };
        assert_eq!(event.kind, "error");
    }
}
