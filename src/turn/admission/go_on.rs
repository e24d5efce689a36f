//! Command that continues a conversation without new input, as a prompt of its own.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::agent::head::Head;
use crate::agent::inbox::{Admission, ContinueInput, InboxBody, InboxItem};
use crate::agent::message::Message;
use crate::agent::path::path;
use crate::agent::projection;
use crate::ids::{ConversationKey, PromptId};
use crate::turn::World;
use crate::turn::admission::idempotency::{Idempotency, earlier};
use crate::turn::admission::place::{Place, busy_with};
use crate::turn::admission::prompt::{Disposition, Mode, Sender, accepted, keep, repeated};
use crate::turn::admission::{Answer, Intent, Refusal};
use crate::turn::views::load;

/// Texts of the source document (s3 §1.5).
const EMPTY: &str = "No messages to continue from";
const ANSWERED: &str = "Cannot continue from message role: assistant";

/// Body without members.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ContinueRequest {}

/// Continues a conversation: from an input or results without a response, or from a response if
/// inputs are queued.
///
/// # Errors
/// Returns [`CommandError::AlreadyProcessing`] and [`CommandError::Conflict`] with the texts of the
/// source document. Returns any other [`CommandError`] to report to the client.
pub async fn go_on(
    world: &World,
    key: &ConversationKey,
    idempotency: &Idempotency,
    sender: &Sender,
) -> Result<Answer, Refusal> {
    let input_id = idempotency.input_id(key);
    let (head, before) =
        tokio::join!(load::head(world, key), earlier(world, key, input_id.as_str()));
    let (head, _) = head?;
    if let Some(before) = before? {
        return repeated(world, key, &before, idempotency, sender.traceparent.as_deref()).await;
    }
    if let Some(prompt_id) = busy_with(world, &head).await? {
        return Err(Refusal::AlreadyProcessing { prompt_id, intent: Intent::Continue });
    }
    let is_answered = is_answered(world, &head).await?;
    if is_answered && !has_queued(world, key).await? {
        return Err(Refusal::Conflict { detail: ANSWERED.to_owned(), retry_after: None });
    }
    let prompt_id = PromptId::of(&input_id);
    let item = InboxItem {
        input_id,
        accepted_at: world.clock.now(),
        admission: Admission::default(),
        traceparent: sender.traceparent.clone(),
        body: InboxBody::Continue(ContinueInput {
            prompt_id,
            user: head.user.clone(),
            is_answered,
            turn: Some(head.turn),
        }),
    };
    let place = Place { mode: Mode::Prompt, disposition: Disposition::Started, joins: None };
    let answer = accepted(key, &item, place);
    keep(world, key, item, None, (answer, idempotency, sender.traceparent.as_deref())).await
}

/// True if the last message of the model input is a response. Failed responses are not in the model
/// input, so to continue is to retry.
async fn is_answered(world: &World, head: &Head) -> Result<bool, Refusal> {
    let entries = load::all_entries(world, head).await?;
    let path = path(&entries, head.leaf_id.as_ref());
    let messages = projection::convert(projection::messages(&path));
    match messages.last().map(AsRef::as_ref) {
        None => Err(Refusal::Conflict { detail: EMPTY.to_owned(), retry_after: None }),
        Some(last) => Ok(matches!(last, Message::Assistant(_))),
    }
}

async fn has_queued(world: &World, key: &ConversationKey) -> Result<bool, Refusal> {
    let is_queued =
        |item: &InboxItem| matches!(item.body, InboxBody::Steer(_) | InboxBody::FollowUp(_));
    Ok(load::inbox(world, key).await?.iter().any(is_queued))
}
