//! A custom message: something that a program says in a conversation, of a kind of its own.

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
    /// What programs know it by; 1 to 128 bytes.
    pub custom_type: String,
    /// Text, or text, image and file blocks: the model reads it as it reads a person's message.
    #[schema(value_type = Object)]
    pub content: Content,
    /// Whether clients show it; the default is yes.
    pub display: Option<bool>,
    /// For programs; never sent to the model; at most 64 KB.
    #[schema(value_type = Option<Object>)]
    pub details: Option<RawJson>,
    /// While a prompt runs: `steer` (the default) or `followUp`. `nextTurn` waits for the next prompt of a person.
    pub deliver_as: Option<DeliverAs>,
    /// Whether it begins a prompt when nothing runs; the default is no: it is only put on record.
    pub trigger_turn: Option<bool>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageAccepted {
    #[schema(value_type = String)]
    pub conversation_id: ConversationId,
    /// What became of it is told under this id by `GET …/inbox/{inputId}`.
    #[schema(value_type = String)]
    pub input_id: InputId,
    /// Of the prompt that it begins or joins; absent where there is none.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<PromptId>,
    pub disposition: Disposition,
}

/// Keeps a message for a conversation.
///
/// # Errors
/// As [`Refusal`] says.
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
        faults.push(Fault::at("/details", "`details` may be 64 KB long"));
    }
    if request.trigger_turn == Some(true) && request.deliver_as == Some(DeliverAs::NextTurn) {
        faults.push(Fault::at(
            "/triggerTurn",
            "what is delivered with the next turn begins none: leave one of both out",
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

/// What is wrong with an input is wrong with the content here.
fn at_content(refusal: Refusal) -> Refusal {
    let Refusal::Invalid(faults) = refusal else { return refusal };
    let moved = |fault: Fault| match fault.pointer.strip_prefix("/input") {
        Some("") => Fault::at("/content", "the message is empty: give it a content"),
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
        // Without `triggerTurn` it may come to stand on record alone, where the prompt before it fails.
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
