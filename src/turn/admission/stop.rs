//! Command that aborts a prompt. The abort names its prompt, so that a late abort never ends the
//! next prompt.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::inbox::{AbortInput, Admission, InboxBody, InboxItem, Outcome, Receipt};
use crate::agent::raw::RawJson;
use crate::ids::{ConversationKey, InputId, PromptId};
use crate::store::{Document, Write};
use crate::telemetry::trace;
use crate::turn::admission::idempotency::{Earlier, Idempotency, earlier};
use crate::turn::admission::place::busy_with;
use crate::turn::admission::write::{Written, write_surely};
use crate::turn::admission::{Answer, Refusal, nudge};
use crate::turn::stopping::stop_id;
use crate::turn::views::load;
use crate::turn::{World, record};

#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AbortRequest {
    /// Prompt to end; absent: the prompt that runs or waits now. The id of any other prompt changes
    /// nothing.
    #[schema(value_type = Option<String>)]
    pub prompt_id: Option<PromptId>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stopping {
    /// Id of the receipt that lists what had already happened.
    #[schema(value_type = String)]
    pub input_id: InputId,
    /// Prompt that ends; absent if nothing ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub prompt_id: Option<PromptId>,
}

/// Stores an abort of the prompt that has not ended. If there is none, or the request names another
/// prompt, the receipt records that nothing was aborted.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn abort(
    world: &World,
    key: &ConversationKey,
    request: AbortRequest,
    idempotency: &Idempotency,
) -> Result<Answer, Refusal> {
    let input_id = idempotency.input_id(key);
    let (head, before) =
        tokio::join!(load::head(world, key), earlier(world, key, input_id.as_str()));
    let (head, _) = head?;
    if let Some(before) = before? {
        return repeated(world, key, &before, idempotency).await;
    }
    let current = busy_with(world, &head).await?;
    let named = request.prompt_id;
    let prompt_id = current.filter(|current| named.as_ref().is_none_or(|named| named == current));
    let answer = answer(&input_id, prompt_id.as_ref());
    // A repeated request receives the same response, whichever prompt runs by then.
    let admission = idempotency.admission(&answer);
    let receipt = receipt(world, input_id.clone(), admission, prompt_id.clone());
    let document = record::receipt_document(&receipt);
    if let Some(found) = with_stop(world, key, (&document, &input_id), prompt_id.as_ref()).await? {
        return repeated(world, key, &found, idempotency).await;
    }
    if prompt_id.is_some() {
        ring(world, key).await;
    }
    Ok(answer)
}

/// Stores the document of a request, and an abort of the prompt. Returns an earlier request with
/// the same key, if there is one.
pub(super) async fn with_stop(
    world: &World,
    key: &ConversationKey,
    (document, input_id): (&Document, &InputId),
    prompt_id: Option<&PromptId>,
) -> Result<Option<Earlier>, Refusal> {
    let own = || Write::Create(document.clone());
    let stop = prompt_id.map(|prompt_id| Write::Create(stop_document(world, prompt_id)));
    world.probe.reached("admission.accept").await;
    let writes = std::iter::once(own()).chain(stop).collect();
    if let Written::Lost = write_surely(world, key, writes).await? {
        let found = earlier(world, key, input_id.as_str()).await?;
        if found.is_some() {
            return Ok(found);
        }
        // Another request aborts the same prompt: one abort is enough.
        if let Written::Lost = write_surely(world, key, vec![own()]).await? {
            let found = earlier(world, key, input_id.as_str()).await?;
            return found.ok_or_else(Refusal::contended).map(Some);
        }
    }
    world.probe.reached("admission.accepted").await;
    Ok(None)
}

/// Stops the effects that run in this process at once. Also wakes a worker, whose delivery ends an
/// idle prompt.
pub(super) async fn ring(world: &World, key: &ConversationKey) {
    world.stops.tell(key);
    nudge(world, key, trace::traceparent().as_deref()).await;
}

async fn repeated(
    world: &World,
    key: &ConversationKey,
    before: &Earlier,
    idempotency: &Idempotency,
) -> Result<Answer, Refusal> {
    let answer = before.replay(idempotency)?;
    // The first nudge may be lost.
    ring(world, key).await;
    Ok(answer)
}

fn answer(input_id: &InputId, prompt_id: Option<&PromptId>) -> Answer {
    let input_id = prompt_id.map_or_else(|| input_id.clone(), stop_id);
    let body = Stopping { input_id, prompt_id: prompt_id.cloned() };
    Answer {
        status: 202,
        body: Some(RawJson::of(&body)),
        location: None,
        etag: None,
        is_replayed: false,
    }
}

/// Receipt of the request. The abort has a receipt under its own id.
fn receipt(
    world: &World,
    input_id: InputId,
    admission: Admission,
    prompt_id: Option<PromptId>,
) -> Receipt {
    let outcome = if prompt_id.is_some() { Outcome::Landed } else { Outcome::Ignored };
    Receipt { prompt_id, ..Receipt::new(input_id, world.clock.now(), admission, outcome) }
}

fn stop_document(world: &World, prompt_id: &PromptId) -> Document {
    let now = world.clock.now();
    let item = InboxItem {
        input_id: stop_id(prompt_id),
        accepted_at: now,
        admission: Admission::default(),
        traceparent: trace::traceparent(),
        body: InboxBody::Abort(AbortInput { prompt_id: Some(prompt_id.clone()) }),
    };
    record::inbox_document(&item, Some(now))
}
