//! Commands that remove queued inputs, until a worker applies them. The first writer wins: both sides
//! replace the item only in the version that they have read.

use std::time::Duration;

use crate::input_events::{InputChangeKind, emit_input_event, emit_input_events};
use crate::prompt_request::Mode;
use crate::wake_worker;
use turnwheel_conversation::inbox::{InboxItem, InputOutcome, InputQueue, Receipt};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::{ConversationKey, InputId};
use turnwheel_queries::inbox::{
    InputView, StoredInput, find_input, is_user_input, queued_view, receipt_view,
};
use turnwheel_record::certain_write::{BatchOutcome, write_until_certain};
use turnwheel_record::contract::CommandError;
use turnwheel_record::documents;
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::store::Write;
use turnwheel_storage::store::conditional::{back_off, compare_and_set};

/// Number of lost writes after which a change gives up.
pub(super) const ATTEMPTS_MAX: usize = 10;
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(10);
/// Member of a receipt: a random id of the removal that wrote it.
const REMOVAL: &str = "removal";

/// Removes a queued input. Succeeds if it was removed before.
///
/// # Errors
/// Returns [`CommandError::AlreadyApplied`] if the input is no longer queued, and otherwise the
/// [`CommandError`] to report to the client.
pub async fn clear_input(
    services: &Services,
    key: &ConversationKey,
    id: &str,
) -> Result<(), CommandError> {
    load::head(services, key).await?;
    match clear_item(services, key, id).await? {
        ClearOutcome::Cleared(item) => {
            emit_input_event(services, key, &item.input_id, InputChangeKind::Cleared).await;
            Ok(())
        }
        ClearOutcome::HasReceipt(receipt) if receipt.outcome == InputOutcome::Cleared => Ok(()),
        ClearOutcome::HasReceipt(receipt) => Err(already_applied_error(&receipt)),
    }
}

/// Removes all queued steers and follow-ups, or those of one queue. Returns the removed inputs,
/// oldest first, without those that a worker applies meanwhile.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn clear_queues(
    services: &Services,
    key: &ConversationKey,
    queue: Option<Mode>,
) -> Result<Vec<InputView>, CommandError> {
    load::head(services, key).await?;
    let is_selected = |item: &InboxItem| match item.queue() {
        Some(InputQueue::Steering) => queue != Some(Mode::FollowUp),
        Some(InputQueue::FollowUp) => queue != Some(Mode::Steer),
        Some(InputQueue::Prompt | InputQueue::NextTurn) | None => false,
    };
    let mut cleared = Vec::new();
    for item in load::inbox(services, key).await?.iter().filter(|item| is_selected(item)) {
        if let ClearOutcome::Cleared(item) =
            clear_item(services, key, item.input_id.as_str()).await?
        {
            cleared.push(queued_view(&item));
        }
    }
    let ids: Vec<InputId> = cleared.iter().map(|input| input.input_id.clone()).collect();
    emit_input_events(services, key, &ids, InputChangeKind::Cleared).await;
    Ok(cleared)
}

enum ClearOutcome {
    Cleared(Box<InboxItem>),
    /// The input had a receipt already.
    HasReceipt(Box<Receipt>),
}

/// Replaces the item by its receipt, which keeps the idempotency key valid.
async fn clear_item(
    services: &Services,
    key: &ConversationKey,
    id: &str,
) -> Result<ClearOutcome, CommandError> {
    let waits = back_off(ATTEMPTS_MAX, RETRY_DELAY);
    compare_and_set(waits, || try_clear(services, key, id)).await
}

/// Tries the removal once. `None`: another writer came first.
async fn try_clear(
    services: &Services,
    key: &ConversationKey,
    id: &str,
) -> Result<Option<ClearOutcome>, CommandError> {
    let (item, stored) = match find_changeable(services, key, id).await? {
        StoredInput::Queued(item, stored) => (item, stored),
        StoredInput::Finished(receipt) => return Ok(Some(ClearOutcome::HasReceipt(receipt))),
    };
    let (input_id, admission) = (item.input_id.clone(), item.idempotency.clone());
    let mut receipt = Receipt::new(input_id, item.accepted_at, admission, InputOutcome::Cleared);
    let removal = services.ids.new_id();
    receipt.extra.insert(REMOVAL.to_owned(), removal.as_str().into());
    let document = documents::receipt_document(&receipt);
    services.fail_points.hit("admission.clear").await;
    // A worker may have read the item and rely on it: another delivery counts the rest.
    let due = item.has_effect_when_idle().then(|| services.clock.now());
    let count = Write::CountInboxChange { due, room: None };
    let writes = vec![Write::Replace(document, Some(stored.etag)), count];
    if let BatchOutcome::Lost = write_until_certain(services, key, writes).await?
        && !is_removed_by(services, key, id, &removal).await?
    {
        return Ok(None);
    }
    if due.is_some() {
        wake_worker(services, key, None).await;
    }
    Ok(Some(ClearOutcome::Cleared(item)))
}

/// True if that removal has won: its response was lost.
async fn is_removed_by(
    services: &Services,
    key: &ConversationKey,
    id: &str,
    removal: &str,
) -> Result<bool, CommandError> {
    Ok(match find_input(services, key, id).await? {
        StoredInput::Queued(..) => false,
        StoredInput::Finished(receipt) => {
            receipt.extra.get(REMOVAL).and_then(|it| it.as_str()) == Some(removal)
        }
    })
}

/// Like [`find_input`], but rejects queued items that cannot be changed.
pub(super) async fn find_changeable(
    services: &Services,
    key: &ConversationKey,
    id: &str,
) -> Result<StoredInput, CommandError> {
    let found = find_input(services, key, id).await?;
    match &found {
        StoredInput::Queued(item, _) if !is_user_input(item) => Err(CommandError::Conflict {
            detail: "only a prompt, steer, follow-up or custom message can be changed or removed"
                .to_owned(),
            retry_after: None,
        }),
        StoredInput::Queued(..) | StoredInput::Finished(_) => Ok(found),
    }
}

/// Error for an input that is no longer queued.
pub(super) fn already_applied_error(receipt: &Receipt) -> CommandError {
    let detail = match (receipt.outcome, &receipt.prompt_id) {
        (InputOutcome::Applied, Some(prompt_id)) => {
            format!("The input joined prompt {prompt_id} in turn {}", receipt.turn)
        }
        (InputOutcome::Applied, None) => format!("The input was applied in turn {}", receipt.turn),
        (InputOutcome::Ignored, _) => "The input was applied without effect".to_owned(),
        (InputOutcome::Cleared, _) => "The input was removed".to_owned(),
    };
    CommandError::AlreadyApplied { detail, input: RawJson::from_value(&receipt_view(receipt)) }
}
