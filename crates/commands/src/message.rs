//! Command that adds a custom message: a message from a program, with a type of its own.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::input;
use crate::pipeline::{CommandContext, Signal};
use crate::prompt_request::Disposition;
use crate::routing::find_running_prompt;
use turnwheel_conversation::action::is_message_type;
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::CustomMessageEntry;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{
    CustomInput, DeliverAs, IdempotencyRecord, InboxBody, InboxItem, InputQueue,
};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::{ConversationId, ConversationKey, InputId, PromptId};
use turnwheel_record::contract::{CommandError, CommandResponse, FieldError};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::services::Services;

const DETAILS_BYTES_MAX: usize = 64 * 1024;

/// A custom message: a message from a program, with a type of its own.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MessageRequest {
    /// Type name for programs; 1 to 128 bytes.
    pub custom_type: String,
    /// Text, or text, image and file blocks; the model receives it like a user message.
    #[schema(value_type = Object)]
    pub content: Content,
    /// True if clients show it; the default is true.
    pub display: Option<bool>,
    /// Data for programs, never sent to the model; at most 64 KB.
    #[schema(value_type = Option<Object>)]
    pub details: Option<RawJson>,
    /// While a prompt runs: `steer` (the default) or `followUp`. `nextTurn` waits for the next
    /// prompt of a user.
    pub deliver_as: Option<DeliverAs>,
    /// True if it starts a prompt when nothing runs. The default is false: it is only recorded.
    pub trigger_turn: Option<bool>,
}

impl MessageRequest {
    /// A message that is only recorded if the agent is idle.
    pub fn new(custom_type: impl Into<String>, content: impl Into<Content>) -> Self {
        Self {
            custom_type: custom_type.into(),
            content: content.into(),
            display: None,
            details: None,
            deliver_as: None,
            trigger_turn: None,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageAccepted {
    #[schema(value_type = String)]
    pub conversation_id: ConversationId,
    /// Id of the input; `GET …/inbox/{inputId}` returns its state.
    #[schema(value_type = String)]
    pub input_id: InputId,
    /// Prompt that it starts or joins; absent if there is none.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<PromptId>,
    pub disposition: Disposition,
    /// Newest event of the conversation before this input: events of the input come after it.
    pub last_event_id: u64,
}

/// Accepts a custom message for an existing conversation.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn accept_message(
    services: &Services,
    key: &ConversationKey,
    request: MessageRequest,
    idempotency: &Idempotency,
    traceparent: Option<String>,
) -> Result<CommandResponse, CommandError> {
    let signal = Signal::Wake(traceparent.as_deref());
    let context = CommandContext { services, key, idempotency, signal };
    let sender_trace = traceparent.clone();
    let accepted = context.accept(|head| async move {
        validate_request(&request)?;
        let item = build_item(services, &head, context.input_id(), request, sender_trace).await?;
        let response = build_response(services, &head, &item).await?;
        context.store(item.into(), response).await
    });
    accepted.await
}

fn validate_request(request: &MessageRequest) -> Result<(), CommandError> {
    let mut errors = Vec::new();
    if !is_message_type(&request.custom_type) {
        errors.push(FieldError::new("/customType", "`customType` is a text of 1 to 128 bytes"));
    }
    let details = request.details.as_ref().map_or(0, |details| details.text().len());
    if details > DETAILS_BYTES_MAX {
        errors.push(FieldError::new("/details", "`details` may be at most 64 KB"));
    }
    if request.trigger_turn == Some(true) && request.deliver_as == Some(DeliverAs::NextTurn) {
        errors.push(FieldError::new(
            "/triggerTurn",
            "a `nextTurn` message starts no turn: leave out `triggerTurn` or `deliverAs`",
        ));
    }
    if errors.is_empty() { Ok(()) } else { Err(CommandError::Invalid(errors)) }
}

async fn build_item(
    services: &Services,
    head: &Head,
    input_id: InputId,
    request: MessageRequest,
    traceparent: Option<String>,
) -> Result<InboxItem, CommandError> {
    let content = input::prepare_input(services, head, &input_id, request.content).await;
    let content = content.map_err(move_errors_to_content)?;
    let body = InboxBody::Custom(CustomInput {
        prompt_id: PromptId::from_input(&input_id),
        user: head.user.clone(),
        message: CustomMessageEntry {
            custom_type: request.custom_type,
            content,
            display: request.display.unwrap_or(true),
            details: request.details,
            extra: Extra::new(),
        },
        deliver_as: request.deliver_as,
        trigger_turn: request.trigger_turn.unwrap_or(false),
    });
    let accepted_at = services.clock.now();
    Ok(InboxItem {
        input_id,
        accepted_at,
        idempotency: IdempotencyRecord::default(),
        traceparent,
        body,
    })
}

/// Moves the pointers of input errors from `/input` to `/content`.
fn move_errors_to_content(error: CommandError) -> CommandError {
    let CommandError::Invalid(errors) = error else { return error };
    let move_error = |fault: FieldError| match fault.pointer.strip_prefix("/input") {
        Some("") => FieldError::new("/content", "the message is empty: add `content`"),
        Some(rest) => FieldError::new(format!("/content{rest}"), fault.detail),
        None => fault,
    };
    CommandError::Invalid(errors.into_iter().map(move_error).collect())
}

async fn build_response(
    services: &Services,
    head: &Head,
    item: &InboxItem,
) -> Result<CommandResponse, CommandError> {
    let running_prompt = find_running_prompt(services, head).await?;
    let own_prompt = PromptId::from_input(&item.input_id);
    let (prompt_id, disposition) = match (item.queue(), running_prompt) {
        (Some(InputQueue::NextTurn), _) => (None, Disposition::Queued),
        // Without `triggerTurn`, the message is only recorded if the running prompt fails.
        (Some(InputQueue::FollowUp), Some(_)) => {
            (item.can_start_prompt().then_some(own_prompt), Disposition::Queued)
        }
        (_, Some(running)) => (Some(running), Disposition::Queued),
        (_, None) if item.can_start_prompt() => (Some(own_prompt), Disposition::Started),
        (_, None) => (None, Disposition::Queued),
    };
    let body = MessageAccepted {
        conversation_id: head.conversation_id.clone(),
        input_id: item.input_id.clone(),
        prompt_id,
        disposition,
        last_event_id: head.event_seq,
    };
    let location = format!("conversations/{}/inbox/{}", head.conversation_id, item.input_id);
    Ok(CommandResponse::new(202, &body).with_location(location))
}
