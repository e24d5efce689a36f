//! Events of queued inputs: a reader learns of an input that waits, of its change and of its removal.
//! They follow the write of the input, and are left out if they cannot be written.

use std::time::Duration;

use crate::head_change::{new_event, publish_events};
use turnwheel_conversation::event::{EventBody, InputRef};
use turnwheel_platform::ids::{ConversationKey, InputId};
use turnwheel_queries::inbox::{StoredInput, find_input};
use turnwheel_record::certain_write::write_and_confirm_head;
use turnwheel_record::contract::CommandError;
use turnwheel_record::head_commit::{HeadCommit, stamp_head};
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::store::conditional::{back_off, compare_and_set};

/// Number of lost writes after which the event is left out. A running turn writes often.
const ATTEMPTS_MAX: usize = 5;
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// Events of one write.
const EVENTS_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputChangeKind {
    Queued,
    Changed,
    Cleared,
}

impl InputChangeKind {
    fn to_event(self, input: InputRef) -> EventBody {
        match self {
            Self::Queued => EventBody::InputQueued(input),
            Self::Changed => EventBody::InputChanged(input),
            Self::Cleared => EventBody::InputCleared(input),
        }
    }
}

/// Emits the event of a change. The change itself is stored, so a failure is only logged.
pub(super) async fn emit_input_event(
    services: &Services,
    key: &ConversationKey,
    input_id: &InputId,
    kind: InputChangeKind,
) {
    emit_input_events(services, key, std::slice::from_ref(input_id), kind).await;
}

/// As [`emit_input_event`], for several inputs.
pub(super) async fn emit_input_events(
    services: &Services,
    key: &ConversationKey,
    input_ids: &[InputId],
    kind: InputChangeKind,
) {
    for input_ids in input_ids.chunks(EVENTS_MAX) {
        let waits = back_off(ATTEMPTS_MAX, RETRY_DELAY);
        let attempt = || Box::pin(try_emit(services, key, input_ids, kind));
        if let Err(error) = compare_and_set(waits, attempt).await {
            tracing::warn!(conversation.id = %key.conversation_id, count = input_ids.len(), error = %error, "events of queued inputs not written");
        }
    }
}

/// Tries once. `None`: another writer came first.
async fn try_emit(
    services: &Services,
    key: &ConversationKey,
    input_ids: &[InputId],
    kind: InputChangeKind,
) -> Result<Option<()>, CommandError> {
    let Some((mut head, etag)) = load::find_head(services, key).await? else { return Ok(Some(())) };
    // A write by this version would drop the members that only a newer version supports.
    if head.min_reader > services.limits.reader_version {
        return Ok(Some(()));
    }
    let now = services.clock.now();
    let mut events = Vec::with_capacity(input_ids.len());
    for input_id in input_ids {
        // A worker applies an input and writes the head together. So an input that is queued after
        // this read of the head is queued at the event, too.
        if kind == InputChangeKind::Cleared || is_queued(services, key, input_id).await? {
            let body = kind.to_event(InputRef { input_id: input_id.clone() });
            events.push(new_event(&mut head, body, now));
        }
    }
    if events.is_empty() {
        return Ok(Some(()));
    }
    stamp_head(services, &mut head, Some(now));
    let commit = HeadCommit::replace(&head, etag).with_events(&events);
    let written = write_and_confirm_head(services, key, commit).await?;
    if written.is_some() {
        publish_events(services, &head);
    }
    Ok(written.map(|_| ()))
}

async fn is_queued(
    services: &Services,
    key: &ConversationKey,
    input_id: &InputId,
) -> Result<bool, CommandError> {
    match find_input(services, key, input_id.as_str()).await {
        Ok(StoredInput::Queued(..)) => Ok(true),
        Ok(StoredInput::Finished(_)) | Err(CommandError::NotFound(_)) => Ok(false),
        Err(error) => Err(error),
    }
}
