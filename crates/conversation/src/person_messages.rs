//! Messages that a person wrote, among all user messages. `recall` finds only these.

use crate::content::Content;
use crate::entry::{Entry, EntryBody, Source};
use crate::message::Message;

/// True for the input of a visible prompt that neither a schedule nor an extension sent.
pub(crate) fn is_written_by_person(is_visible: bool, source: Source) -> bool {
    is_visible && matches!(source, Source::User | Source::Queue)
}

/// Selects the messages of persons among entries, which it reads in their order.
#[derive(Debug, Default)]
pub struct PersonMessages {
    /// The prompt whose input has not followed yet.
    started: Option<StartedPrompt>,
    /// `seq` of messages that no person wrote.
    excluded: Vec<u64>,
}

#[derive(Debug)]
struct StartedPrompt {
    is_by_person: bool,
    /// The input before a skill, a template or an extension changed it.
    original: Option<Content>,
}

impl PersonMessages {
    /// `excluded`: `seq` of messages that no person wrote.
    pub fn without(excluded: &[u64]) -> Self {
        Self { started: None, excluded: excluded.to_vec() }
    }

    /// The text of the next entry as the person wrote it. `None`: no person wrote the entry.
    pub fn text(&mut self, entry: &Entry) -> Option<String> {
        if let EntryBody::Prompt(prompt) = &entry.body {
            self.started = (!prompt.has_no_input).then(|| StartedPrompt {
                is_by_person: is_written_by_person(prompt.visible, prompt.source),
                original: prompt.original.clone(),
            });
            return None;
        }
        let Some(Message::User(message)) = entry.body.message() else { return None };
        let started = self.started.take();
        if self.excluded.contains(&entry.base.seq)
            || started.as_ref().is_some_and(|prompt| !prompt.is_by_person)
        {
            return None;
        }
        let original = started.and_then(|prompt| prompt.original);
        Some(original.as_ref().unwrap_or(&message.content).joined_text())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry(body: Value) -> Entry {
        let mut entry = json!({
            "entryId": "e", "parentId": null, "seq": 1, "timestamp": "2026-01-01T00:00:00.000Z",
        });
        let Value::Object(members) = body else { panic!("an entry is an object: {body}") };
        entry.as_object_mut().unwrap().extend(members);
        serde_json::from_value(entry).unwrap()
    }

    fn prompt(visible: bool, source: &str) -> Value {
        json!({
            "type": "prompt", "inputId": "i", "user": "u", "model": "m", "visible": visible,
            "source": source,
        })
    }

    fn user(text: &str) -> Entry {
        let message = json!({"role": "user", "content": text, "timestamp": 1});
        entry(json!({"type": "message", "message": message}))
    }

    #[test]
    fn only_messages_of_persons_have_a_text() {
        for (visible, source, expected) in [
            (true, "user", Some("Hi")),
            (true, "queue", Some("Hi")),
            (false, "user", None),
            (true, "schedule", None),
            (true, "plugin", None),
        ] {
            let mut messages = PersonMessages::default();
            assert_eq!(messages.text(&entry(prompt(visible, source))), None);
            assert_eq!(messages.text(&user("Hi")).as_deref(), expected, "{visible} {source}");
            // The next message of the prompt is a steer of a person.
            assert_eq!(messages.text(&user("Stop")).as_deref(), Some("Stop"));
        }
        assert_eq!(PersonMessages::without(&[1]).text(&user("Hi")), None);
    }

    #[test]
    fn input_has_the_text_that_the_person_wrote() {
        let mut messages = PersonMessages::default();
        let mut started = prompt(true, "user");
        started["original"] = "/skill:returns Article 7".into();
        assert_eq!(messages.text(&entry(started)), None);
        let text = messages.text(&user("<skill>…</skill> Article 7"));
        assert_eq!(text.as_deref(), Some("/skill:returns Article 7"));
        let mut without_input = prompt(false, "plugin");
        without_input["isWordless"] = true.into();
        assert_eq!(messages.text(&entry(without_input)), None);
        assert_eq!(messages.text(&user("Stop")).as_deref(), Some("Stop"));
    }
}
