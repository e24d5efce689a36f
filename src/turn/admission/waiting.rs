//! Commands that edit and remove queued inputs, until a worker applies them. The first writer wins:
//! both sides replace the item only in the version that they have read.

use std::time::Duration;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::agent::content::Content;
use crate::agent::head::Head;
use crate::agent::inbox::{InboxBody, InboxItem, Outcome, PromptInput, Queue, Receipt, WhenIdle};
use crate::agent::raw::RawJson;
use crate::ids::ConversationKey;
use crate::store::Write;
use crate::turn::admission::idempotency::{Idempotency, earlier};
use crate::turn::admission::prompt::Mode;
use crate::turn::admission::write::{Written, receipt_document, write_surely};
use crate::turn::admission::{Answer, Refusal, SAYS_NOTHING, input, nudge};
use crate::turn::views::inbox::{Found, InputView, etag_of, find, is_said, queued, settled};
use crate::turn::views::load;
use crate::turn::{World, record};

/// Number of lost writes after which a change gives up.
const TRIES_MAX: u32 = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// Change of a queued input. Absent members stay as they are.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InputChange {
    /// Text, or text, image and file blocks.
    #[schema(value_type = Option<Object>)]
    pub input: Option<Content>,
    /// `steer` or `followUp`.
    pub mode: Option<Mode>,
    pub when_idle: Option<WhenIdle>,
    pub visible: Option<bool>,
}

/// Like [`find_input`], but rejects queued items that cannot be changed.
async fn changeable(world: &World, key: &ConversationKey, id: &str) -> Result<Found, Refusal> {
    let found = find(world, key, id).await?;
    match &found {
        Found::Waiting(item, _) if !is_said(item) => Err(Refusal::Conflict {
            detail: "only a prompt, steer, follow-up or custom message can be changed or removed"
                .to_owned(),
            retry_after: None,
        }),
        Found::Waiting(..) | Found::Settled(_) => Ok(found),
    }
}

/// Error for an input that is no longer queued.
fn too_late(receipt: &Receipt) -> Refusal {
    let detail = match (receipt.outcome, &receipt.prompt_id) {
        (Outcome::Landed, Some(prompt_id)) => {
            format!("The input joined prompt {prompt_id} in turn {}", receipt.turn)
        }
        (Outcome::Landed, None) => format!("The input was applied in turn {}", receipt.turn),
        (Outcome::Ignored, _) => "The input was applied without effect".to_owned(),
        (Outcome::Cleared, _) => "The input was removed".to_owned(),
    };
    Refusal::Landed { detail, input: RawJson::of(&settled(receipt)) }
}

/// Edits a queued input. Before each attempt `is_etag_accepted` checks its `ETag`.
///
/// # Errors
/// Returns [`CommandError::AlreadyApplied`] if the input is no longer queued, and otherwise the
/// [`CommandError`] to report to the client.
pub async fn edit(
    world: &World,
    key: &ConversationKey,
    id: &str,
    change: &InputChange,
    (idempotency, is_wanted): (&Idempotency, impl Fn(&str) -> bool + Send + Sync),
) -> Result<Answer, Refusal> {
    let (head, _) = load::head(world, key).await?;
    let own = idempotency.input_id(key);
    let mut pause = PAUSE;
    for _ in 0..TRIES_MAX {
        if let Some(earlier) = earlier(world, key, own.as_str()).await? {
            return earlier.replay(idempotency);
        }
        let (item, stored) = match changeable(world, key, id).await? {
            Found::Waiting(item, stored) => (item, stored),
            Found::Settled(receipt) => return Err(too_late(&receipt)),
        };
        if !is_wanted(&etag_of(&item)) {
            return Err(Refusal::PreconditionFailed { etag: etag_of(&item) });
        }
        let edited = edited(world, &head, &item, change).await?;
        let answer = Answer {
            status: 200,
            body: Some(RawJson::of(&queued(&edited))),
            location: None,
            etag: Some(etag_of(&edited)),
            is_replayed: false,
        };
        // An item that a worker has read has no `due`; an item that was held gets one.
        let begins = edited.starts_when_idle() && !item.starts_when_idle();
        let due = if begins { Some(world.clock.now()) } else { stored.document.due };
        let due = due.filter(|_| edited.starts_when_idle());
        let writes = vec![
            Write::Replace(record::inbox_document(&edited, due), Some(stored.etag)),
            Write::Create(receipt_document(idempotency, key, &answer, world.clock.now())),
        ];
        world.probe.reached("admission.edit").await;
        if let Written::Won(_) = write_surely(world, key, writes).await? {
            if begins {
                nudge(world, key, None).await;
            }
            return Ok(answer);
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Err(Refusal::contended())
}

async fn edited(
    world: &World,
    head: &Head,
    item: &InboxItem,
    change: &InputChange,
) -> Result<InboxItem, Refusal> {
    let (mode, mut prompt) = match &item.body {
        InboxBody::Prompt(prompt) => (Mode::Prompt, prompt.clone()),
        InboxBody::Steer(prompt) => (Mode::Steer, prompt.clone()),
        InboxBody::FollowUp(prompt) => (Mode::FollowUp, prompt.clone()),
        InboxBody::Custom(_) => {
            return Err(Refusal::Conflict {
                detail: "a custom message cannot be edited: remove it and send it again".to_owned(),
                retry_after: None,
            });
        }
        InboxBody::Decision(_)
        | InboxBody::Abort(_)
        | InboxBody::Continue(_)
        | InboxBody::LateResult(_)
        | InboxBody::Command(_) => return Err(Refusal::NotFound("input")),
    };
    let mode = mode_of(mode, change)?;
    if let Some(input) = &change.input {
        prompt.input = Some(input::admit(world, head, &item.input_id, input.clone()).await?);
    }
    if mode == Mode::Steer && prompt.input.is_none() {
        return Err(Refusal::invalid("/input", SAYS_NOTHING));
    }
    let prompt = PromptInput {
        when_idle: change.when_idle.unwrap_or(prompt.when_idle),
        visible: change.visible.unwrap_or(prompt.visible),
        ..prompt
    };
    Ok(InboxItem { body: mode.body(prompt), ..item.clone() })
}

fn mode_of(mode: Mode, change: &InputChange) -> Result<Mode, Refusal> {
    let mode = match change.mode {
        Some(Mode::Prompt) if mode != Mode::Prompt => {
            return Err(Refusal::invalid(
                "/mode",
                "a queued input is `steer` or `followUp`; with whenIdle `start` it starts a prompt when nothing runs",
            ));
        }
        changed => changed.unwrap_or(mode),
    };
    if mode == Mode::Prompt && change.when_idle == Some(WhenIdle::Hold) {
        return Err(Refusal::invalid(
            "/whenIdle",
            "`hold` is for the modes `steer` and `followUp`: change the mode too",
        ));
    }
    Ok(mode)
}

/// Removes a queued input. Succeeds if it was removed before.
///
/// # Errors
/// Returns [`CommandError::AlreadyApplied`] if the input is no longer queued, and otherwise the
/// [`CommandError`] to report to the client.
pub async fn clear(world: &World, key: &ConversationKey, id: &str) -> Result<(), Refusal> {
    load::head(world, key).await?;
    match take_back(world, key, id).await? {
        TakenBack::Now(_) => Ok(()),
        TakenBack::Before(receipt) if receipt.outcome == Outcome::Cleared => Ok(()),
        TakenBack::Before(receipt) => Err(too_late(&receipt)),
    }
}

/// Removes all queued steers and follow-ups, or those of one queue. Returns the removed inputs,
/// oldest first, without those that a worker applies meanwhile.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn clear_all(
    world: &World,
    key: &ConversationKey,
    queue: Option<Mode>,
) -> Result<Vec<InputView>, Refusal> {
    load::head(world, key).await?;
    let is_meant = |item: &InboxItem| match item.queue() {
        Some(Queue::Steering) => queue != Some(Mode::FollowUp),
        Some(Queue::FollowUp) => queue != Some(Mode::Steer),
        Some(Queue::Prompt | Queue::NextTurn) | None => false,
    };
    let mut cleared = Vec::new();
    for item in load::inbox(world, key).await?.iter().filter(|item| is_meant(item)) {
        if let TakenBack::Now(item) = take_back(world, key, item.input_id.as_str()).await? {
            cleared.push(queued(&item));
        }
    }
    Ok(cleared)
}

enum TakenBack {
    Now(Box<InboxItem>),
    /// The input had a receipt already.
    Before(Box<Receipt>),
}

/// Replaces the item by its receipt, which keeps the idempotency key valid.
async fn take_back(world: &World, key: &ConversationKey, id: &str) -> Result<TakenBack, Refusal> {
    let mut pause = PAUSE;
    for _ in 0..TRIES_MAX {
        let (item, stored) = match changeable(world, key, id).await? {
            Found::Waiting(item, stored) => (item, stored),
            Found::Settled(receipt) => return Ok(TakenBack::Before(receipt)),
        };
        let (input_id, admission) = (item.input_id.clone(), item.admission.clone());
        let receipt = Receipt::new(input_id, item.accepted_at, admission, Outcome::Cleared);
        let document = record::receipt_document(&receipt);
        world.probe.reached("admission.clear").await;
        let writes = vec![Write::Replace(document, Some(stored.etag))];
        if let Written::Won(_) = write_surely(world, key, writes).await? {
            if stored.document.due.is_none() && item.starts_when_idle() {
                // A worker has read the item and relies on it: another delivery must drain the
                // inbox.
                nudge(world, key, None).await;
            }
            return Ok(TakenBack::Now(item));
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Err(Refusal::contended())
}
