//! One event of a Responses stream, read leniently: every field may be missing, and new ones come.

use serde_json::Value;

use crate::agent::text::repair_surrogates;

/// Kinds that end an answer, or may.
const TERMINAL: [&str; 4] =
    ["response.completed", "response.incomplete", "response.failed", "error"];

#[derive(Clone, PartialEq)]
pub struct Event {
    pub kind: String,
    body: Value,
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Event").field(&self.kind).finish()
    }
}

/// What a frame turned out to be.
#[derive(Debug, PartialEq)]
pub enum Frame {
    Event(Event),
    /// Broken, and no event that ends an answer: passed over.
    Noise,
    /// Broken, and it was to end the answer: nobody knows how.
    BrokenEnd {
        kind: &'static str,
    },
}

impl Event {
    pub fn of(body: Value) -> Option<Self> {
        let kind = body.get("type")?.as_str()?.to_owned();
        Some(Self { kind, body })
    }

    /// `name` is the frame's `event:` line, if it had one.
    pub fn read(name: Option<&str>, data: &str) -> Frame {
        let repaired = repair_surrogates(data);
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

    pub fn output_index(&self) -> Option<u64> {
        self.get("output_index")?.as_u64()
    }

    /// The item and its `type`.
    pub fn item(&self) -> Option<(&Value, &str)> {
        let item = self.get("item")?;
        Some((item, item.get("type")?.as_str()?))
    }
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
    fn the_event_line_names_a_frame_whose_data_has_no_type() {
        let Frame::Event(event) = Event::read(Some("error"), r#"{"message":"x"}"#) else {
            panic!()
        };
        assert_eq!(event.kind, "error");
    }
}
