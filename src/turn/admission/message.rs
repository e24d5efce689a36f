//! Command that adds a custom message: a message from a program, with a type of its own.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::content::Content;
use crate::agent::entry::CustomMessageEntry;
use crate::agent::head::Head;
use crate::agent::inbox::{Admission, CustomInput, DeliverAs, InboxBody, InboxItem, Queue};
use crate::agent::raw::RawJson;
use crate::ids::{ConversationId, ConversationKey, InputId, PromptId};
use crate::turn::World;
use crate::turn::admission::idempotency::{Idempotency, earlier};
use crate::turn::admission::place::busy_with;
use crate::turn::admission::prompt::{Disposition, keep, repeated};
use crate::turn::admission::{Answer, Fault, Refusal, input};
use crate::turn::views::load;

const CUSTOM_TYPE_BYTES_MAX: usize = 128;
const DETAILS_BYTES_MAX: usize = 64 * 1024;

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
}

/// Accepts a custom message for an existing conversation.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn accept_message(
    world: &World,
    key: &ConversationKey,
    request: MessageRequest,
    idempotency: &Idempotency,
    traceparent: Option<String>,
) -> Result<Answer, Refusal> {
    let input_id = idempotency.input_id(key);
    let (head, earlier) =
        tokio::join!(load::head(world, key), earlier(world, key, input_id.as_str()));
    let (head, _) = head?;
    if let Some(earlier) = earlier? {
        return repeated(world, key, &earlier, idempotency, traceparent.as_deref()).await;
    }
    check(&request)?;
    let item = inbox_item(world, &head, input_id, request, traceparent.clone()).await?;
    let answer = accepted(world, &head, &item).await?;
    keep(world, key, item, None, (answer, idempotency, traceparent.as_deref())).await
}

fn check(request: &MessageRequest) -> Result<(), Refusal> {
    let mut faults = Vec::new();
    if request.custom_type.is_empty() || request.custom_type.len() > CUSTOM_TYPE_BYTES_MAX {
        faults.push(Fault::at("/customType", "`customType` is a text of 1 to 128 bytes"));
    }
    let details = request.details.as_ref().map_or(0, |details| details.text().len());
    if details > DETAILS_BYTES_MAX {
        faults.push(Fault::at("/details", "`details` may be at most 64 KB"));
    }
    if request.trigger_turn == Some(true) && request.deliver_as == Some(DeliverAs::NextTurn) {
        faults.push(Fault::at(
            "/triggerTurn",
            "a `nextTurn` message starts no turn: leave out `triggerTurn` or `deliverAs`",
        ));
    }
    if faults.is_empty() { Ok(()) } else { Err(Refusal::Invalid(faults)) }
}

async fn inbox_item(
    world: &World,
    head: &Head,
    input_id: InputId,
    request: MessageRequest,
    traceparent: Option<String>,
) -> Result<InboxItem, Refusal> {
    let content = input::admit(world, head, &input_id, request.content).await;
    let content = content.map_err(at_content)?;
    let body = InboxBody::Custom(CustomInput {
        prompt_id: PromptId::of(&input_id),
        user: head.user.clone(),
        message: CustomMessageEntry {
            custom_type: request.custom_type,
            content,
            display: request.display.unwrap_or(true),
            details: request.details,
        },
        deliver_as: request.deliver_as,
        trigger_turn: request.trigger_turn.unwrap_or(false),
    });
    let accepted_at = world.clock.now();
    Ok(InboxItem { input_id, accepted_at, admission: Admission::default(), traceparent, body })
}

/// Moves the pointers of input errors from `/input` to `/content`.
fn at_content(refusal: Refusal) -> Refusal {
    let Refusal::Invalid(faults) = refusal else { return refusal };
    let moved = |fault: Fault| match fault.pointer.strip_prefix("/input") {
        Some("") => Fault::at("/content", "the message is empty: add `content`"),
        Some(rest) => Fault::at(format!("/content{rest}"), fault.detail),
        None => fault,
    };
    Refusal::Invalid(faults.into_iter().map(moved).collect())
}

async fn accepted(world: &World, head: &Head, item: &InboxItem) -> Result<Answer, Refusal> {
    let busy_with = busy_with(world, head).await?;
    let own = PromptId::of(&item.input_id);
    let (prompt_id, disposition) = match (item.queue(), busy_with) {
        (Some(Queue::NextTurn), _) => (None, Disposition::Queued),
        // Without `triggerTurn`, the message is only recorded if the running prompt fails.
        (Some(Queue::FollowUp), Some(_)) => {
            (item.begins_prompt().then_some(own), Disposition::Queued)
        }
        (_, Some(running)) => (Some(running), Disposition::Queued),
        (_, None) if item.begins_prompt() => (Some(own), Disposition::Started),
        (_, None) => (None, Disposition::Queued),
    };
    let body = MessageAccepted {
        conversation_id: head.conversation_id.clone(),
        input_id: item.input_id.clone(),
        prompt_id,
        disposition,
    };
    Ok(Answer {
        status: 202,
        body: Some(RawJson::of(&body)),
        location: Some(format!("conversations/{}/inbox/{}", head.conversation_id, item.input_id)),
        etag: None,
        is_replayed: false,
    })
}
