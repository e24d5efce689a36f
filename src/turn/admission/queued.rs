//! Command that accepts prompts from the queue `agent-prompts`. No caller waits for a response, so
//! unusable messages move to the poison queue with the reason.

#[cfg(test)]
mod fuzz;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine as _;
use serde::{Deserialize, Serialize};

use crate::agent::content::Content;
use crate::agent::entry::Source;
use crate::agent::raw::RawJson;
use crate::agent::settings::Settings;
use crate::agent::strict;
use crate::agent::text::repair_surrogates;
use crate::ids::{TenantId, UserId, is_plain};
use crate::queue::{MESSAGE_BYTES_MAX, PROMPTS, poison_of};
use crate::telemetry::trace;
use crate::turn::World;
use crate::turn::admission::idempotency::{Idempotency, canonical_hash};
use crate::turn::admission::prompt::{
    FirstPromptRequest, Mode, PromptRequest, Sender, WhenBusy, accept_prompt, begin_conversation,
};
use crate::turn::admission::{Answer, Owner, Refusal};
use crate::turn::views::load;

const ROUTE: &str = "queue agent-prompts";

/// Outcome of a message. Acknowledge the message in either case.
#[derive(Debug)]
pub enum Queued {
    Accepted(Answer),
    /// The message is in `agent-prompts-poison`, with the reason.
    Rejected {
        reason: String,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Message {
    tenant_id: Option<String>,
    user_id: Option<String>,
    conversation_id: Option<String>,
    agent: Option<String>,
    input: Option<Content>,
    mode: Option<Mode>,
    idempotency_key: Option<String>,
    settings: Option<Settings>,
    metadata: Option<BTreeMap<String, String>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rejected<'a> {
    reason: &'a str,
    original: &'a str,
    #[serde(with = "crate::clock::iso")]
    received_at: crate::clock::Timestamp,
}

/// Accepts a message of `agent-prompts`.
///
/// # Errors
/// Returns an error if the store or the queue did not respond. Leave the message on its queue: it
/// is delivered again.
pub async fn accept_queued(world: &World, text: &str, message_id: &str) -> Result<Queued, Refusal> {
    let refusal = match accept(world, text, message_id).await {
        Ok(answer) => return Ok(Queued::Accepted(answer)),
        Err(refusal) => refusal,
    };
    let told = told(&refusal);
    let reason = match refusal {
        // Transient errors, and errors that a deployment or an operator repairs. The message is the
        // only copy.
        refusal @ (Refusal::Unavailable { .. }
        | Refusal::AgentUnavailable(_)
        | Refusal::Corrupt(_)
        | Refusal::Conflict { retry_after: Some(_), .. }) => return Err(refusal),
        refusal @ (Refusal::NotFound(_)
        | Refusal::Invalid(_)
        | Refusal::Conflict { .. }
        | Refusal::AlreadyProcessing { .. }
        | Refusal::Landed { .. }
        | Refusal::AlreadyDecided(_)
        | Refusal::Expired { .. }
        | Refusal::Forbidden(_)
        | Refusal::KeyReused
        | Refusal::EffectInFlight { .. }
        | Refusal::PreconditionFailed { .. }
        | Refusal::TooLarge(_)) => refusal.to_string(),
    };
    put_aside(world, text, &reason).await?;
    if let Some(metrics) = world.telemetry.metrics() {
        metrics.poison(PROMPTS);
    }
    tracing::warn!(
        message.id = message_id,
        "message of agent-prompts rejected: {told}; agent-prompts-poison has it with the reason"
    );
    Ok(Queued::Rejected { reason })
}

async fn accept(world: &World, text: &str, message_id: &str) -> Result<Answer, Refusal> {
    let json = accepted_json(text)?;
    let mut message: Message = parse(&json)?;
    let owner = Owner {
        tenant: TenantId::new(plain(message.tenant_id.take(), "tenantId")?),
        user: UserId::new(plain(message.user_id.take(), "userId")?),
    };
    let body =
        serde_json::from_str(&json).map_err(|error| Refusal::invalid("", error.to_string()))?;
    let idempotency = Idempotency {
        key: message.idempotency_key.take().unwrap_or_else(|| message_id.to_owned()),
        is_repeatable: true,
        route: ROUTE,
        body_hash: canonical_hash(&body),
    };
    let sender = Sender {
        source: Source::Queue,
        traceparent: trace::traceparent(),
        when_busy: WhenBusy::WaitItsTurn,
    };
    if let Some(id) = &message.conversation_id
        && is_plain(id)
    {
        let key = owner.key(id);
        if let Some((head, _)) = load::find_head(world, &key).await? {
            refuse_other_beginning(&message, &head)?;
            let request = PromptRequest {
                input: message.input,
                mode: message.mode,
                ..PromptRequest::default()
            };
            return accept_prompt(world, &key, request, &idempotency, &sender).await;
        }
    }
    let request = FirstPromptRequest {
        agent: message.agent,
        conversation_id: message.conversation_id,
        settings: message.settings,
        metadata: message.metadata,
        input: message.input,
        mode: message.mode,
        ..FirstPromptRequest::default()
    };
    begin_conversation(world, &owner, request, &idempotency, &sender).await
}

/// Rejects a message that names another agent than its conversation, which keeps its agent.
fn refuse_other_beginning(
    message: &Message,
    head: &crate::agent::head::Head,
) -> Result<(), Refusal> {
    match &message.agent {
        Some(agent) if agent != &head.agent => Err(Refusal::invalid(
            "/agent",
            format!(
                "Conversation `{}` belongs to agent `{}`, and the message names `{agent}`. Leave `agent` out, or use another `conversationId`.",
                head.conversation_id, head.agent
            ),
        )),
        Some(_) | None => Ok(()),
    }
}

/// Decodes a message. Text that starts with `{` is JSON; other text is base64 of JSON, as most
/// clients of Storage queues send it.
fn accepted_json(text: &str) -> Result<String, Refusal> {
    let text = text.trim();
    if text.starts_with('{') {
        return Ok(repair_surrogates(text).into_owned());
    }
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .map(|text| repair_surrogates(&text).into_owned())
        .ok_or_else(|| Refusal::invalid("", "the message is neither JSON nor base64 of JSON"))
}

/// Members of a message. Other names in an error pointer are content from the sender.
const MEMBERS: [&str; 9] = [
    "tenantId",
    "userId",
    "conversationId",
    "agent",
    "input",
    "mode",
    "idempotencyKey",
    "settings",
    "metadata",
];

/// Reason of a rejection for the log, without content of the message.
fn told(refusal: &Refusal) -> String {
    let Refusal::Invalid(faults) = refusal else { return refusal.to_string() };
    let members: BTreeSet<&str> = faults
        .iter()
        .filter_map(|fault| fault.pointer.split('/').nth(1))
        .filter(|member| MEMBERS.contains(member))
        .collect();
    if members.is_empty() {
        return "invalid message".to_owned();
    }
    let members: Vec<&str> = members.into_iter().collect();
    format!("invalid members {}", members.join(", "))
}

fn parse(json: &str) -> Result<Message, Refusal> {
    strict::read(json).map_err(|mistake| {
        Refusal::invalid(
            mistake.pointer.clone(),
            format!("the message is invalid: {mistake}"),
        )
    })
}

fn plain(given: Option<String>, member: &str) -> Result<String, Refusal> {
    let text = given.unwrap_or_else(|| "default".to_owned());
    if text.len() <= 128 && is_plain(&text) {
        return Ok(text);
    }
    Err(Refusal::invalid(
        format!("/{member}"),
        format!("`{member}` is 1 to 128 of the characters A-Z a-z 0-9 _ . -"),
    ))
}

async fn put_aside(world: &World, original: &str, reason: &str) -> Result<(), Refusal> {
    let rejected = Rejected { reason, original, received_at: world.clock.now() };
    let mut text = RawJson::of(&rejected).text().to_owned();
    if text.len() > MESSAGE_BYTES_MAX {
        // The wrapped message exceeds the limit. Keep the original without the reason, because the
        // log has part of the reason.
        original.clone_into(&mut text);
    }
    world
        .queue
        .send(&poison_of(PROMPTS), text, Duration::ZERO)
        .await
        .map_err(|error| Refusal::Unavailable { what: "The queue", source: Some(Box::new(error)) })
}
