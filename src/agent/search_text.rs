//! Texts by which earlier messages of a user are found: the beginning of each message that a person
//! wrote, in lower case.

use crate::agent::content::{Block, Content};
use crate::agent::entry::{Entry, EntryBody, Source};
use crate::agent::message::Message;

/// Characters of a message that a search finds.
pub(crate) const SEARCH_TEXT_CHARS_MAX: usize = 512;

/// True for the input of a visible prompt that no schedule and no extension sent.
pub(crate) fn is_written_by_person(is_visible: bool, source: Source) -> bool {
    is_visible && matches!(source, Source::User | Source::Queue)
}

/// A text in lower case, character by character: equal for a text and for each part of it.
pub(crate) fn lower_case(text: &str) -> impl Iterator<Item = char> {
    text.chars().flat_map(char::to_lowercase)
}

/// The search text of a message; `None` if the message has no text.
pub(crate) fn search_text_of(content: &Content) -> Option<String> {
    let found: String = match content {
        Content::Text(text) => lower_case(text).take(SEARCH_TEXT_CHARS_MAX).collect(),
        Content::Blocks(blocks) => {
            let mut texts = blocks.iter().filter_map(block_text);
            let first = texts.next().unwrap_or_default();
            let rest = texts.flat_map(|text| std::iter::once('\n').chain(lower_case(text)));
            lower_case(first).chain(rest).take(SEARCH_TEXT_CHARS_MAX).collect()
        }
    };
    (!found.trim().is_empty()).then_some(found)
}

fn block_text(block: &Block) -> Option<&str> {
    match block {
        Block::Text(text) => Some(&text.text),
        Block::Thinking(_)
        | Block::Image(_)
        | Block::ToolCall(_)
        | Block::File(_)
        | Block::Other(_) => None,
    }
}

/// Selects the messages of persons among entries, which it reads in their order.
#[derive(Debug, Default)]
pub(crate) struct PersonMessages {
    /// The prompt that has started and whose input has not followed yet.
    started: Option<StartedPrompt>,
    /// `seq` of messages that no person wrote.
    others: Vec<u64>,
}

#[derive(Debug)]
struct StartedPrompt {
    is_by_person: bool,
    /// Search text of the input before an extension, a skill or a template changed it.
    original: Option<String>,
}

impl PersonMessages {
    /// `others`: `seq` of messages that no person wrote.
    pub(crate) fn without(others: &[u64]) -> Self {
        Self { started: None, others: others.to_vec() }
    }

    /// The search text of the next entry. `None` if no person wrote it.
    pub(crate) fn search_text(&mut self, entry: &Entry) -> Option<String> {
        if let EntryBody::Prompt(prompt) = &entry.body {
            self.started = (!prompt.has_no_input).then(|| StartedPrompt {
                is_by_person: is_written_by_person(prompt.visible, prompt.source),
                original: prompt.original.as_ref().and_then(search_text_of),
            });
            return None;
        }
        let Some(Message::User(message)) = entry.body.message() else { return None };
        match self.started.take() {
            _ if self.others.contains(&entry.base.seq) => None,
            Some(prompt) if !prompt.is_by_person => None,
            Some(StartedPrompt { original: Some(original), .. }) => Some(original),
            Some(_) | None => search_text_of(&message.content),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(body: &serde_json::Value) -> Entry {
        let mut entry = json!({
            "entryId": "e", "parentId": null, "seq": 1, "timestamp": "2026-01-01T00:00:00.000Z",
        });
        entry.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        serde_json::from_value(entry).unwrap()
    }

    fn prompt(visible: bool, source: &str) -> Entry {
        entry(&json!({
            "type": "prompt", "inputId": "i", "user": "u", "model": "m", "visible": visible,
            "source": source,
        }))
    }

    fn user(text: &str) -> Entry {
        let message = json!({"role": "user", "content": text, "timestamp": 1});
        entry(&json!({"type": "message", "message": message}))
    }

    #[test]
    fn search_text_is_the_beginning_in_lower_case() {
        let text = |text: &str| search_text_of(&Content::Text(text.to_owned()));
        assert_eq!(text("GRÜẞE Ärger"), Some("grüße ärger".to_owned()));
        assert_eq!(text("ΟΔΟΣ"), Some("οδοσ".to_owned()), "equal at the end and within a text");
        assert_eq!(text(&"ÄB".repeat(600)), Some("äb".repeat(256)));
        assert_eq!((text(""), text(" \n")), (None, None));
        let image = json!({"type": "image", "data": "QUJD", "mimeType": "image/png"});
        let blocks =
            json!([{"type": "text", "text": "One"}, image, {"type": "text", "text": "Two"}]);
        let blocks: Content = serde_json::from_value(blocks).unwrap();
        assert_eq!(search_text_of(&blocks), Some("one\ntwo".to_owned()));
        assert_eq!(search_text_of(&serde_json::from_value(json!([image])).unwrap()), None);
    }

    #[test]
    fn only_messages_of_persons_have_a_search_text() {
        for (visible, source, expected) in [
            (true, "user", Some("hi")),
            (true, "queue", Some("hi")),
            (false, "user", None),
            (true, "schedule", None),
            (true, "plugin", None),
        ] {
            let mut messages = PersonMessages::default();
            assert_eq!(messages.search_text(&prompt(visible, source)), None);
            let found = messages.search_text(&user("Hi"));
            assert_eq!(found.as_deref(), expected, "{visible} {source}");
            // The next message of the prompt is a steer of a person.
            assert_eq!(messages.search_text(&user("Stop")).as_deref(), Some("stop"));
        }
        let assistant = json!({
            "role": "assistant", "content": [{"type": "text", "text": "Hi"}], "api": "a",
            "provider": "p", "model": "m", "stopReason": "stop", "timestamp": 1,
        });
        let response = entry(&json!({"type": "message", "message": assistant}));
        assert_eq!(PersonMessages::default().search_text(&response), None);
    }

    #[test]
    fn input_is_found_as_the_person_wrote_it() {
        let mut messages = PersonMessages::default();
        let started = entry(&json!({
            "type": "prompt", "inputId": "i", "user": "u", "model": "m", "visible": true,
            "source": "user", "original": "/skill:returns Article 7",
        }));
        assert_eq!(messages.search_text(&started), None);
        let found = messages.search_text(&user("<skill>…</skill> Article 7"));
        assert_eq!(found.as_deref(), Some("/skill:returns article 7"));
        let without_input = entry(&json!({
            "type": "prompt", "inputId": "i", "user": "u", "model": "m", "visible": false,
            "source": "plugin", "isWordless": true,
        }));
        assert_eq!(messages.search_text(&without_input), None);
        assert_eq!(messages.search_text(&user("Stop")).as_deref(), Some("stop"));
    }
}
