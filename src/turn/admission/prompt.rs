//! Command that accepts a prompt into the inbox and wakes a worker.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::content::Content;
use crate::agent::entry::Source;
use crate::agent::head::Head;
use crate::agent::inbox::{InboxBody, InboxItem, PromptInput, WhenIdle};
use crate::agent::raw::RawJson;
use crate::agent::settings::Settings;
use crate::ids::{ConversationKey, InputId, PromptId};
use crate::store::Write;
use crate::turn::admission::conversation::{Beginning, conversation_id, new_head};
use crate::turn::admission::idempotency::{Earlier, Idempotency, earlier};
use crate::turn::admission::place::{Place, first_place, place};
use crate::turn::admission::write::{Written, head_document, write_surely};
use crate::turn::admission::{Answer, Owner, Refusal, held_key, import, input, nudge};
use crate::turn::event_log::log_accepted;
use crate::turn::views::load;
use crate::turn::{World, record};

#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PromptRequest {
    /// Text, or text, image and file blocks; absent: the prompt starts without a user message.
    #[schema(value_type = Option<Object>)]
    pub input: Option<Content>,
    /// Absent: `prompt`.
    pub mode: Option<Mode>,
    /// For `steer` and `followUp`; absent: `start`.
    pub when_idle: Option<WhenIdle>,
    /// True if clients show it; the default is true.
    pub visible: Option<bool>,
    /// A model id for this prompt only.
    pub model: Option<String>,
}

/// A prompt, and the conversation that is created with it.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FirstPromptRequest {
    pub agent: Option<String>,
    pub conversation_id: Option<String>,
    pub settings: Option<Settings>,
    pub metadata: Option<BTreeMap<String, String>>,
    #[schema(value_type = Option<Object>)]
    pub input: Option<Content>,
    pub mode: Option<Mode>,
    pub when_idle: Option<WhenIdle>,
    pub visible: Option<bool>,
    pub model: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// Starts a prompt in a conversation without a running prompt.
    Prompt,
    /// Joins the running prompt before its next model call.
    Steer,
    /// Starts a prompt of its own when the running prompt would end.
    FollowUp,
}

impl Mode {
    pub(crate) fn body(self, prompt: PromptInput) -> InboxBody {
        match self {
            Self::Prompt => InboxBody::Prompt(prompt),
            Self::Steer => InboxBody::Steer(prompt),
            Self::FollowUp => InboxBody::FollowUp(prompt),
        }
    }
}

/// Origin of a prompt.
#[derive(Clone, Debug)]
pub struct Sender {
    pub source: Source,
    pub traceparent: Option<String>,
    pub when_busy: WhenBusy,
}

/// Handling of a prompt while another prompt has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenBusy {
    Refuse,
    WaitItsTurn,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Accepted {
    #[schema(value_type = String)]
    pub conversation_id: crate::ids::ConversationId,
    /// Prompt that it starts or joins.
    #[schema(value_type = String)]
    pub prompt_id: PromptId,
    /// Id of the input; `GET …/inbox/{inputId}` returns its state.
    #[schema(value_type = String)]
    pub input_id: InputId,
    pub disposition: Disposition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Disposition {
    Started,
    Queued,
}

/// Accepts a prompt for an existing conversation.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn accept_prompt(
    world: &World,
    key: &ConversationKey,
    request: PromptRequest,
    idempotency: &Idempotency,
    sender: &Sender,
) -> Result<Answer, Refusal> {
    let input_id = idempotency.input_id(key);
    let (head, earlier) =
        tokio::join!(load::head(world, key), earlier(world, key, input_id.as_str()));
    let (head, _) = head?;
    if let Some(earlier) = earlier? {
        return repeated(world, key, &earlier, idempotency, sender.traceparent.as_deref()).await;
    }
    let place = place(world, &head, &request, sender).await?;
    let item = inbox_item(world, &head, &input_id, request, (sender, &place)).await?;
    let answer = accepted(key, &item, place);
    keep(world, key, item, None, (answer, idempotency, sender.traceparent.as_deref())).await
}

/// Creates a conversation together with its first prompt, in one batch.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn begin_conversation(
    world: &World,
    owner: &Owner,
    mut request: FirstPromptRequest,
    idempotency: &Idempotency,
    sender: &Sender,
) -> Result<Answer, Refusal> {
    let is_named = request.conversation_id.is_some();
    let given = request.conversation_id.take();
    let id = conversation_id(given, owner, idempotency, "/conversationId")?;
    let key = owner.key(&id);
    if !is_named || !idempotency.is_repeatable {
        return begin(world, &key, request, (idempotency, false), sender).await;
    }
    held_key::hold(world, owner, idempotency).await?;
    let outcome = begin(world, &key, request, (idempotency, true), sender).await;
    if let Err(refusal) = &outcome {
        held_key::forget_refused(world, owner, idempotency, refusal).await;
    }
    outcome
}

async fn begin(
    world: &World,
    key: &ConversationKey,
    request: FirstPromptRequest,
    (idempotency, is_key_held): (&Idempotency, bool),
    sender: &Sender,
) -> Result<Answer, Refusal> {
    let input_id = idempotency.input_id(key);
    if let Some(earlier) = earlier(world, key, input_id.as_str()).await? {
        return repeated(world, key, &earlier, idempotency, sender.traceparent.as_deref()).await;
    }
    let beginning = Beginning {
        agent: request.agent,
        settings: request.settings.unwrap_or_default(),
        metadata: request.metadata.unwrap_or_default(),
    };
    let mut head = new_head(world, key, beginning)?;
    if is_key_held {
        held_key::note(&mut head, &Owner::of(key), idempotency);
    }
    let request = PromptRequest {
        input: request.input,
        mode: request.mode,
        when_idle: request.when_idle,
        visible: request.visible,
        model: request.model,
    };
    let place = first_place(world, &request)?;
    let item = inbox_item(world, &head, &input_id, request, (sender, &place)).await?;
    let answer = accepted(key, &item, place);
    keep(world, key, item, Some(head), (answer, idempotency, sender.traceparent.as_deref())).await
}

/// Stores the item, with the head of a new conversation, and then wakes a worker.
pub(super) async fn keep(
    world: &World,
    key: &ConversationKey,
    item: InboxItem,
    new_head: Option<Head>,
    (answer, idempotency, traceparent): (Answer, &Idempotency, Option<&str>),
) -> Result<Answer, Refusal> {
    let mut item = item;
    item.admission = idempotency.admission(&answer);
    let input_id = item.input_id.clone();
    // A held item is no pending work: the next delivery of the conversation applies it.
    let due = item.starts_when_idle().then_some(item.accepted_at);
    let mut writes = vec![Write::Create(record::inbox_document(&item, due))];
    if let Some(head) = &new_head {
        writes.push(Write::Create(head_document(head)?));
    }
    world.probe.reached("admission.accept").await;
    if let Written::Lost = write_surely(world, key, writes).await? {
        let Some(found) = earlier(world, key, input_id.as_str()).await? else {
            // Only an existing head can prevent the create of an absent item.
            import::may_begin(world, key, &input_id).await?;
            return Err(Refusal::contended());
        };
        let replayed = repeated(world, key, &found, idempotency, traceparent).await?;
        let is_mine = matches!(&found, Earlier::Waiting(found) if **found == item);
        return Ok(Answer { is_replayed: !is_mine, ..replayed });
    }
    log_accepted(key, &item, new_head.as_ref());
    world.probe.reached("admission.accepted").await;
    if item.starts_when_idle() {
        nudge(world, key, traceparent).await;
    }
    Ok(answer)
}

/// Returns the first response again. If the item is still queued, wakes a worker again, because the
/// first nudge may be lost.
pub(super) async fn repeated(
    world: &World,
    key: &ConversationKey,
    earlier: &Earlier,
    idempotency: &Idempotency,
    traceparent: Option<&str>,
) -> Result<Answer, Refusal> {
    let answer = earlier.replay(idempotency)?;
    if earlier.is_waiting() {
        nudge(world, key, traceparent).await;
    }
    Ok(answer)
}

pub(super) fn accepted(key: &ConversationKey, item: &InboxItem, place: Place) -> Answer {
    let prompt_id = place.joins.unwrap_or_else(|| PromptId::of(&item.input_id));
    let location = format!("conversations/{}/prompts/{prompt_id}", key.conversation_id);
    let body = Accepted {
        conversation_id: key.conversation_id.clone(),
        prompt_id,
        input_id: item.input_id.clone(),
        disposition: place.disposition,
    };
    Answer {
        status: 202,
        body: Some(RawJson::of(&body)),
        location: Some(location),
        etag: None,
        is_replayed: false,
    }
}

async fn inbox_item(
    world: &World,
    head: &Head,
    input_id: &InputId,
    request: PromptRequest,
    (sender, place): (&Sender, &Place),
) -> Result<InboxItem, Refusal> {
    let input = match request.input {
        Some(input) => Some(input::admit(world, head, input_id, input).await?),
        None => None,
    };
    let prompt = PromptInput {
        prompt_id: PromptId::of(input_id),
        user: head.user.clone(),
        when_idle: request.when_idle.unwrap_or_default(),
        input,
        visible: request.visible.unwrap_or(true),
        model: request.model,
        source: sender.source,
        traceparent: sender.traceparent.clone(),
    };
    Ok(InboxItem {
        input_id: input_id.clone(),
        accepted_at: world.clock.now(),
        admission: crate::agent::inbox::Admission::default(),
        traceparent: None,
        body: place.mode.body(prompt),
    })
}
