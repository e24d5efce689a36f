//! Messages that cannot be accepted yet: they go back to their queue with a growing delay, for as long
//! as the cause lasts. The host counts no failed delivery, so that none moves to the poison queue.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::prompt_queue::{decode_text, find_conversation};
use crate::unleased_change::{UnleasedChange, change_without_lease};
use turnwheel_conversation::waits::WaitingMessage;
use turnwheel_platform::clock::{Timestamp, iso};
use turnwheel_record::contract::CommandError;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{MESSAGE_BYTES_MAX, PROMPTS};

/// The member that the service adds, always the first one.
const PREFIX: &str = "{\"deferral\":";
const FIRST_DELAY: Duration = Duration::from_secs(5);
/// Longest delay of the first attempts.
const DELAY_MAX: Duration = Duration::from_mins(1);
/// Attempts after which the delay is the longest one: about an hour.
const PATIENT_AFTER: u32 = 60;
const PATIENT_DELAY: Duration = Duration::from_mins(5);
/// Time after the next attempt until which `why` names the message.
const MARK_MARGIN: Duration = Duration::from_mins(10);

/// The earlier deliveries of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct MessageDeferral {
    /// Id of the message as its sender put it, which identifies a repetition. Empty: unknown.
    pub(super) message_id: String,
    /// Number of refused deliveries.
    attempts: u32,
    /// Time of the first one.
    #[serde(with = "iso")]
    since: Timestamp,
}

impl MessageDeferral {
    /// Delay after so many attempts.
    fn delay(&self) -> Duration {
        if self.attempts > PATIENT_AFTER {
            return PATIENT_DELAY;
        }
        let doublings = self.attempts.saturating_sub(1).min(8);
        (FIRST_DELAY * (1 << doublings)).min(DELAY_MAX)
    }

    /// Adds the record to a JSON object.
    fn add_to(&self, json: &str) -> Option<String> {
        let rest = json.trim_start().strip_prefix('{')?.trim_start();
        let comma = if rest.starts_with('}') { "" } else { "," };
        Some(format!("{PREFIX}{}{comma}{rest}", serde_json::to_string(self).ok()?))
    }
}

/// The message as its sender put it, and the id that it had then. `message_id`: its id on the queue.
pub(super) fn split_original<'m>(
    json: &'m str,
    message_id: &'m str,
) -> (Cow<'m, str>, Cow<'m, str>) {
    let (deferral, json) = split_deferral(json);
    let first_id = deferral.map(|deferral| deferral.message_id).filter(|id| !id.is_empty());
    (json, first_id.map_or(Cow::Borrowed(message_id), Cow::Owned))
}

/// Splits the record from the message of the sender.
fn split_deferral(json: &str) -> (Option<MessageDeferral>, Cow<'_, str>) {
    let unchanged = (None, Cow::Borrowed(json));
    let Some(text) = json.strip_prefix(PREFIX) else { return unchanged };
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<MessageDeferral>();
    let Some(Ok(deferral)) = values.next() else { return unchanged };
    let rest = text.get(values.byte_offset()..).unwrap_or_default();
    let members = rest.strip_prefix(',').unwrap_or(rest);
    (Some(deferral), Cow::Owned(format!("{{{members}")))
}

/// Puts a message that cannot be accepted yet back on its queue.
///
/// # Errors
/// Returns the given error if the message cannot be put back: leave it on its queue.
pub async fn put_back(
    services: &Services,
    text: &str,
    message_id: &str,
    error: CommandError,
) -> Result<(), CommandError> {
    let Ok(json) = decode_text(text) else { return Err(error) };
    let (earlier, json) = split_deferral(&json);
    let now = services.clock.now();
    let deferral = match earlier {
        Some(earlier) => {
            MessageDeferral { attempts: earlier.attempts.saturating_add(1), ..earlier }
        }
        None => MessageDeferral { message_id: message_id.to_owned(), attempts: 1, since: now },
    };
    let Some(text) = deferral.add_to(&json).filter(|text| text.len() <= MESSAGE_BYTES_MAX) else {
        return Err(error);
    };
    let delay = deferral.delay();
    if let Err(failure) = services.queue.send(PROMPTS, text, delay).await {
        tracing::warn!(message.id = deferral.message_id, error = %failure, "message of agent-prompts not put back");
        return Err(error);
    }
    tracing::warn!(
        message.id = deferral.message_id,
        attempt = deferral.attempts,
        retry_in_s = delay.as_secs(),
        error = %error,
        "message of agent-prompts waits"
    );
    let until = now.plus(delay).plus(MARK_MARGIN);
    mark_conversation(services, &json, &deferral, &error, until).await;
    Ok(())
}

/// Records in the conversation of the message, if it exists, that the message waits. A failure is
/// only logged.
async fn mark_conversation(
    services: &Services,
    json: &str,
    deferral: &MessageDeferral,
    error: &CommandError,
    until: Timestamp,
) {
    // Without the store the mark cannot be written either.
    if matches!(error, CommandError::Unavailable { .. }) {
        return;
    }
    let Ok(Some(head)) = find_conversation(services, json).await else { return };
    let reason = error.to_string();
    let marked = change_without_lease(services, &head, |head, now| {
        let mark = WaitingMessage { since: deferral.since, reason: reason.clone(), until };
        // Not at each attempt.
        let is_known = head.waiting_message.as_ref().is_some_and(|known| {
            known.reason == mark.reason && known.until.minus(MARK_MARGIN / 2) > now
        });
        if is_known {
            return None;
        }
        head.waiting_message = Some(Box::new(mark));
        head.due = head.due.into_iter().chain([until]).min();
        Some(UnleasedChange { has_news: true, ..UnleasedChange::default() })
    });
    if let Err(error) = marked.await {
        tracing::warn!(conversation.id = %head.conversation_id, error = %error, "waiting message not recorded in its conversation");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_keeps_its_text_and_counts_attempts() {
        let deferral =
            MessageDeferral { message_id: "m1".to_owned(), attempts: 1, since: Timestamp(1_000) };
        for json in ["{}", "{ }", "{\"input\":\"a\"}", " {\n\"n\": 1.50e400, \"deferral\":1}"] {
            let deferred = deferral.add_to(json).unwrap();
            let (found, rest) = split_deferral(&deferred);
            assert_eq!(found.as_ref(), Some(&deferral));
            assert_eq!(
                rest.trim_start_matches('{').trim_start(),
                json.trim_start().trim_start_matches('{').trim_start()
            );
        }
        for foreign in ["{\"deferral\":1}", "{\"deferral\":{\"messageId\":\"x\"}}", "{\"a\":1}"] {
            assert_eq!(split_deferral(foreign), (None, Cow::Borrowed(foreign)));
        }
    }

    #[test]
    fn delay_grows_up_to_a_bound() {
        let delay = |attempts| {
            let since = Timestamp(0);
            MessageDeferral { message_id: String::new(), attempts, since }.delay().as_secs()
        };
        assert_eq!([1, 2, 3, 4, 5, 60, 61, u32::MAX].map(delay), [5, 10, 20, 40, 60, 60, 300, 300]);
    }
}
