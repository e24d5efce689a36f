//! Command that accepts a prompt into the inbox and wakes a worker.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::content::Content;
use crate::agent::entry::Source;
use crate::agent::head::Head;
use crate::agent::inbox::{InboxBody, InboxItem, PromptInput, WhenIdle};
use crate::agent::settings::Settings;
use crate::commands::contract::{CommandError, CommandResponse, Owner};
use crate::commands::conversation::{ConversationInit, build_head, resolve_conversation_id};
use crate::commands::idempotency::Idempotency;
use crate::commands::pipeline::{CommandContext, Signal};
use crate::commands::routing::{Route, check_model, route_first_input, route_input};
use crate::commands::{input, key_reservation};
use crate::ids::{ConversationKey, InputId, PromptId};
use crate::services::Services;

#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PromptRequest {
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
    pub(crate) fn to_inbox_body(self, prompt: PromptInput) -> InboxBody {
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
    Reject,
    Queue,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PromptAccepted {
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
pub(crate) enum Disposition {
    Started,
    Queued,
}

/// Accepts a prompt for an existing conversation.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub(crate) async fn accept_prompt(
    services: &Services,
    key: &ConversationKey,
    request: PromptRequest,
    idempotency: &Idempotency,
    sender: &Sender,
) -> Result<CommandResponse, CommandError> {
    let signal = Signal::Wake(sender.traceparent.as_deref());
    let context = CommandContext { services, key, idempotency, signal };
    let accepted = context.accept(|head| async move {
        let route = route_input(services, &head, &request, sender).await?;
        check_model(services, &head, &request, &route)?;
        let input_id = context.input_id();
        let item = build_item(services, &head, &input_id, request, (sender, &route)).await?;
        let response = accepted_response(key, &item, route);
        context.store_item(item, None, response).await
    });
    accepted.await
}

/// Creates a conversation together with its first prompt, in one batch.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn begin_conversation(
    services: &Services,
    owner: &Owner,
    mut request: FirstPromptRequest,
    idempotency: &Idempotency,
    sender: &Sender,
) -> Result<CommandResponse, CommandError> {
    let has_given_id = request.conversation_id.is_some();
    let given = request.conversation_id.take();
    let id = resolve_conversation_id(given, owner, idempotency, "/conversationId")?;
    let key = owner.conversation_key(&id);
    if !has_given_id || !idempotency.is_repeatable {
        return begin_with_id(services, &key, request, (idempotency, false), sender).await;
    }
    key_reservation::reserve(services, owner, idempotency).await?;
    let outcome = begin_with_id(services, &key, request, (idempotency, true), sender).await;
    if let Err(error) = &outcome {
        key_reservation::release_if_rejected(services, owner, idempotency, error).await;
    }
    outcome
}

async fn begin_with_id(
    services: &Services,
    key: &ConversationKey,
    request: FirstPromptRequest,
    (idempotency, is_key_reserved): (&Idempotency, bool),
    sender: &Sender,
) -> Result<CommandResponse, CommandError> {
    let signal = Signal::Wake(sender.traceparent.as_deref());
    let context = CommandContext { services, key, idempotency, signal };
    if let Some(replayed) = context.find_response().await? {
        return Ok(replayed);
    }
    let init = ConversationInit {
        agent: request.agent,
        settings: request.settings.unwrap_or_default(),
        metadata: request.metadata.unwrap_or_default(),
    };
    let mut head = build_head(services, key, init)?;
    if is_key_reserved {
        key_reservation::add_to_head(&mut head, &Owner::from_key(key), idempotency);
    }
    let request = PromptRequest {
        input: request.input,
        mode: request.mode,
        when_idle: request.when_idle,
        visible: request.visible,
        model: request.model,
    };
    let route = route_first_input(services, &request)?;
    check_model(services, &head, &request, &route)?;
    let input_id = context.input_id();
    let item = build_item(services, &head, &input_id, request, (sender, &route)).await?;
    let response = accepted_response(key, &item, route);
    context.store_item(item, Some(head), response).await
}

pub(super) fn accepted_response(
    key: &ConversationKey,
    item: &InboxItem,
    route: Route,
) -> CommandResponse {
    let prompt_id = route.joins.unwrap_or_else(|| PromptId::from_input(&item.input_id));
    let location = format!("conversations/{}/prompts/{prompt_id}", key.conversation_id);
    let body = PromptAccepted {
        conversation_id: key.conversation_id.clone(),
        prompt_id,
        input_id: item.input_id.clone(),
        disposition: route.disposition,
    };
    CommandResponse::new(202, &body).with_location(location)
}

async fn build_item(
    services: &Services,
    head: &Head,
    input_id: &InputId,
    request: PromptRequest,
    (sender, route): (&Sender, &Route),
) -> Result<InboxItem, CommandError> {
    let input = match request.input {
        Some(input) => Some(input::prepare_input(services, head, input_id, input).await?),
        None => None,
    };
    let prompt = PromptInput {
        prompt_id: PromptId::from_input(input_id),
        user: head.user.clone(),
        when_idle: request.when_idle.unwrap_or_default(),
        input,
        visible: request.visible.unwrap_or(true),
        model: request.model,
        source: sender.source,
        traceparent: sender.traceparent.clone(),
        original: None,
    };
    Ok(InboxItem {
        input_id: input_id.clone(),
        accepted_at: services.clock.now(),
        idempotency: crate::agent::inbox::IdempotencyRecord::default(),
        traceparent: None,
        body: route.mode.to_inbox_body(prompt),
    })
}
