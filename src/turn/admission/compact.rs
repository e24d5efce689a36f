//! Command that requests a summary of a conversation.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::inbox::InboxItem;
use crate::agent::raw::RawJson;
use crate::agent::step::CompactInput;
use crate::ids::{ConversationKey, InputId};
use crate::telemetry::trace;
use crate::turn::admission::idempotency::{Earlier, Idempotency, earlier};
use crate::turn::admission::place::busy_with;
use crate::turn::admission::stop::{ring, with_stop};
use crate::turn::admission::{Answer, Refusal};
use crate::turn::views::load;
use crate::turn::{World, record};

const INSTRUCTIONS_BYTES_MAX: usize = 4 * 1024;

#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompactRequest {
    /// Topics that the summary should emphasise.
    pub instructions: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Compacting {
    #[schema(value_type = String)]
    pub input_id: InputId,
}

/// Stores the request and an abort of the running prompt, because the source document aborts it
/// first, too. The conversation's events report the result.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn compact(
    world: &World,
    key: &ConversationKey,
    request: CompactRequest,
    idempotency: &Idempotency,
) -> Result<Answer, Refusal> {
    let input_id = idempotency.input_id(key);
    if let Some(before) = earlier(world, key, input_id.as_str()).await? {
        return repeated(world, key, &before, idempotency).await;
    }
    let instructions = request.instructions.filter(|text| !text.trim().is_empty());
    if instructions.as_ref().is_some_and(|text| text.len() > INSTRUCTIONS_BYTES_MAX) {
        return Err(Refusal::invalid(
            "/instructions",
            format!("`instructions` may be at most {INSTRUCTIONS_BYTES_MAX} bytes"),
        ));
    }
    let (head, _) = load::head(world, key).await?;
    let running = busy_with(world, &head).await?;
    let answer = answer(&input_id);
    let item = InboxItem {
        input_id: input_id.clone(),
        accepted_at: world.clock.now(),
        admission: idempotency.admission(&answer),
        traceparent: trace::traceparent(),
        body: CompactInput { instructions }.body(),
    };
    let document = record::inbox_document(&item, Some(item.accepted_at));
    if let Some(found) = with_stop(world, key, (&document, &input_id), running.as_ref()).await? {
        return repeated(world, key, &found, idempotency).await;
    }
    ring(world, key).await;
    Ok(answer)
}

async fn repeated(
    world: &World,
    key: &ConversationKey,
    before: &Earlier,
    idempotency: &Idempotency,
) -> Result<Answer, Refusal> {
    let answer = before.replay(idempotency)?;
    if before.is_waiting() {
        ring(world, key).await;
    }
    Ok(answer)
}

fn answer(input_id: &InputId) -> Answer {
    Answer {
        status: 202,
        body: Some(RawJson::of(&Compacting { input_id: input_id.clone() })),
        location: None,
        etag: None,
        is_replayed: false,
    }
}
