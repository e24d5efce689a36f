//! Moves messages from a poison queue back to their queue.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_PAD_INDIFFERENT, URL_SAFE_PAD_INDIFFERENT};
use serde::{Deserialize, Serialize};

use crate::queue::{PROMPTS, Queue, QueueError, QueueMessage, poison_queue, validate_text};
use turnwheel_platform::clock::{Timestamp, iso};
use turnwheel_platform::text_encoding::{decode_utf8, trim_text};

/// Time for which messages are hidden during the move. After a crash they are visible again on the
/// poison queue.
const HIDE: Duration = Duration::from_mins(1);
const BATCH_MAX: usize = 32;

/// A poison message with a reason. The host writes the bare text instead.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrappedPoisonMessage {
    Whole {
        original: String,
        #[serde(rename = "messageId")]
        message_id: Option<String>,
        #[expect(dead_code, reason = "its presence distinguishes a wrapped text from a bare one")]
        reason: String,
    },
    /// The reason of another message, which has no room for it.
    Reason {
        #[expect(dead_code, reason = "its presence distinguishes the reason from a bare text")]
        #[serde(rename = "originalSha256")]
        original_sha256: String,
        #[expect(dead_code, reason = "its presence distinguishes the reason from a bare text")]
        reason: String,
    },
}

/// The member with which a message keeps its id on a new copy. `prompt_queue` of the package `commands`
/// reads it, and adds it to messages that wait.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Deferral<'a> {
    message_id: &'a str,
    attempts: u32,
    #[serde(with = "iso")]
    since: Timestamp,
}

impl Deferral<'_> {
    /// Returns the message with this member. `None`: it has one already, is no JSON object, or has no
    /// room for it.
    fn add_to(&self, text: &str) -> Option<String> {
        let json = decode_json(text)?;
        let members = json.strip_prefix('{')?.trim_start();
        if members.starts_with("\"deferral\"") {
            return None;
        }
        let comma = if members.starts_with('}') { "" } else { "," };
        let text = format!("{{\"deferral\":{}{comma}{members}", serde_json::to_string(self).ok()?);
        validate_text(&text).is_ok().then_some(text)
    }
}

/// Decodes a message that is JSON, or base64 of it.
fn decode_json(text: &str) -> Option<Cow<'_, str>> {
    let text = trim_text(text);
    if text.starts_with('{') {
        return Some(Cow::Borrowed(text));
    }
    let packed: String = text.split_ascii_whitespace().collect();
    let bytes = [STANDARD_PAD_INDIFFERENT, URL_SAFE_PAD_INDIFFERENT]
        .iter()
        .find_map(|encoding| encoding.decode(&packed).ok())?;
    Some(Cow::Owned(decode_utf8(&bytes).ok()?.trim().to_owned()))
}

/// Returns the text to send for a poison message. A prompt keeps the id under which it was rejected, or
/// that of the poison message, so that all its copies start one prompt. `None`: the message is only the
/// reason of another one.
fn text_to_send(queue: &str, message: &QueueMessage) -> Option<String> {
    let (original, first_id) = match serde_json::from_str(&message.text) {
        Ok(WrappedPoisonMessage::Whole { original, message_id, .. }) => (original, message_id),
        Ok(WrappedPoisonMessage::Reason { .. }) => return None,
        Err(_) => (message.text.clone(), None),
    };
    if queue != PROMPTS {
        return Some(original);
    }
    let message_id = first_id.as_deref().unwrap_or(&message.id);
    let deferral = Deferral { message_id, attempts: 0, since: message.inserted_at };
    Some(deferral.add_to(&original).unwrap_or(original))
}

/// Moves the messages that are on the poison queue now, and returns their number. Messages that are
/// rejected again meanwhile stay. Each message is sent before it is deleted, so an interruption
/// duplicates at most one message; its copies have one id.
///
/// # Errors
/// The queue is unavailable. The remaining messages are still on the poison queue: try again.
pub async fn redrive(queues: &dyn Queue, queue: &str) -> Result<u64, QueueError> {
    let poison = poison_queue(queue);
    let total = queues.length(&poison).await?;
    let (mut taken, mut moved) = (0, 0);
    while taken < total {
        let batch = usize::try_from(total - taken).unwrap_or(BATCH_MAX).min(BATCH_MAX);
        let received = queues.receive(&poison, batch, HIDE).await?;
        if received.is_empty() {
            break;
        }
        for message in received {
            if let Some(text) = text_to_send(queue, &message) {
                queues.send(queue, text, Duration::ZERO).await?;
                moved += 1;
            }
            match queues.delete(&poison, &message.id, &message.pop_receipt).await {
                // Another process has moved it too. The message is sent twice; the second copy has
                // no effect.
                Ok(()) | Err(QueueError::Gone) => taken += 1,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::queue::{MESSAGE_BYTES_MAX, MemoryQueue, QueueFaults, TURNS};
    use turnwheel_platform::clock::ManualClock;

    /// Removes the member with the id.
    fn without_id(text: &str) -> String {
        let Some(rest) = text.strip_prefix(r#"{"deferral":{"#) else { return text.to_owned() };
        let (_, rest) = rest.split_once('}').unwrap();
        format!("{{{}", rest.strip_prefix(',').unwrap_or(rest))
    }

    #[tokio::test]
    async fn redriven_messages_are_unchanged() {
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        let queues = MemoryQueue::new(clock, 1, QueueFaults::default());
        let poison = poison_queue(PROMPTS);
        let wrapped = r#"{"reason":"no such agent","original":"{\"agent\":\"clerk\"}","receivedAt":"2026-01-01T00:00:00Z"}"#;
        let bare = r#"{"agent":"clerk","original":"unknown member"}"#;
        let reason = r#"{"reason":"no such agent","originalSha256":"ab","receivedAt":"2026-01-01T00:00:00Z"}"#;
        for text in [wrapped, reason, bare, "not json"] {
            queues.send(&poison, text.to_owned(), Duration::ZERO).await.unwrap();
        }
        assert_eq!(redrive(&queues, PROMPTS).await.unwrap(), 3);
        assert_eq!(queues.length(&poison).await.unwrap(), 0);
        let back = queues.receive(PROMPTS, 32, HIDE).await.unwrap();
        let mut texts: Vec<_> = back.into_iter().map(|message| without_id(&message.text)).collect();
        texts.sort();
        assert_eq!(
            texts,
            [
                "not json",
                r#"{"agent":"clerk","original":"unknown member"}"#,
                r#"{"agent":"clerk"}"#
            ]
        );
        assert_eq!(redrive(&queues, PROMPTS).await.unwrap(), 0);
    }

    #[test]
    fn redriven_message_keeps_its_first_id() {
        let message = |text: &str| QueueMessage {
            id: "p1".to_owned(),
            pop_receipt: "r".to_owned(),
            dequeue_count: 1,
            text: text.to_owned(),
            inserted_at: Timestamp(1_000),
            expires_at: Timestamp(2_000),
            next_visible_at: Timestamp(1_000),
        };
        let wrapped = |original: &str, id: Option<&str>| {
            let id = id.map(|id| format!(r#","messageId":"{id}""#)).unwrap_or_default();
            let original = serde_json::to_string(original).unwrap();
            format!(r#"{{"reason":"r"{id},"original":{original},"receivedAt":"1970"}}"#)
        };
        let sent = |text: &str| text_to_send(PROMPTS, &message(text)).unwrap();
        let kept = |id: &str, rest: &str| {
            format!(
                r#"{{"deferral":{{"messageId":"{id}","attempts":0,"since":"1970-01-01T00:00:01.000Z"}}{rest}"#
            )
        };
        let json = r#"{"input":"Pay 250 to Ada"}"#;
        let members = r#","input":"Pay 250 to Ada"}"#;
        let padded = STANDARD_PAD_INDIFFERENT.encode(format!("\u{feff} {json}\n"));
        let (first, second) = padded.trim_end_matches('=').split_at(10);
        for original in [json, &format!(" {json}"), &padded, &format!("{first}\r\n{second}")] {
            assert_eq!(sent(&wrapped(original, Some("m1"))), kept("m1", members), "{original}");
            // Without an earlier id, each move of the poison message uses the same one.
            assert_eq!(sent(&wrapped(original, None)), kept("p1", members), "{original}");
            assert_eq!(sent(original), kept("p1", members), "{original}");
        }
        assert_eq!(sent("{ }"), kept("p1", "}"));

        let waiting = kept("m0", members);
        assert_eq!(sent(&wrapped(&waiting, Some("m0"))), waiting);
        let full = format!(r#"{{"input":"{}"}}"#, "x".repeat(MESSAGE_BYTES_MAX - 20));
        let control = STANDARD_PAD_INDIFFERENT.encode("{\"input\":\"\u{1}\"}");
        for unchanged in ["[1]", "%%%", &full, &control] {
            assert_eq!(sent(unchanged), unchanged);
        }
        assert_eq!(text_to_send(TURNS, &message(json)).as_deref(), Some(json));
    }
}
