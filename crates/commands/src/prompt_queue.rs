//! Command that accepts prompts from the queue `agent-prompts`. No caller waits for a response, so
//! unusable messages move to the poison queue with the reason.

mod deferral;
#[cfg(test)]
mod fuzz;
mod rejection;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine as _, alphabet};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

pub use self::deferral::put_back;
use self::deferral::split_original;
use self::rejection::{describe_rejection, reject};
use crate::conversation::validate_metadata;
use crate::prompt::{
    FirstPromptRequest, Mode, PromptRequest, Sender, WhenBusy, accept_prompt, begin_conversation,
};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::Source;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::settings::Settings;
use turnwheel_json::raw::{BODY_DEPTH_MAX, text_depth};
use turnwheel_json::strict;
use turnwheel_json::text::repair_surrogates;
use turnwheel_platform::ids::{TenantId, UserId, is_plain_text};
use turnwheel_platform::telemetry::trace;
use turnwheel_platform::text_encoding::{decode_utf8, skip_byte_order_mark};
use turnwheel_record::contract::{CommandError, CommandResponse, Owner};
use turnwheel_record::idempotency::{
    Idempotency, KEY_BYTES_MAX, QUEUE_ROUTE, hash_body, is_client_key,
};
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::PROMPTS;
use turnwheel_storage::store::outage_retry::{DeliveryError as _, repeat_while_store_is_away};

/// Bytes of the reason in a poison message. It may name each block of an input.
const REASON_BYTES_MAX: usize = 4_000;

/// Outcome of a message. Acknowledge the message in either case.
#[derive(Debug)]
pub enum QueueMessageOutcome {
    Accepted(CommandResponse),
    /// The message is in `agent-prompts-poison`, with the reason.
    Rejected {
        reason: String,
    },
}

/// A message of the queue `agent-prompts`: a prompt, and the conversation that is created with it.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PromptMessage {
    /// Tenant of the owner. Absent: `default`.
    #[schema(max_length = 128, pattern = r"^\.*[A-Za-z0-9_-][A-Za-z0-9_.-]*$")]
    tenant_id: Option<String>,
    /// Owner of the conversation. Absent: `default`.
    #[schema(max_length = 128, pattern = r"^\.*[A-Za-z0-9_-][A-Za-z0-9_.-]*$")]
    user_id: Option<String>,
    /// Conversation of the prompt, created if it does not exist. Absent: a new one with a generated id.
    #[schema(max_length = 128, pattern = r"^\.*[A-Za-z0-9_-][A-Za-z0-9_.-]*$")]
    conversation_id: Option<String>,
    /// Name of the agent. Absent: the agent of the conversation, or the default agent.
    agent: Option<String>,
    #[schema(value_type = Object, required = true)]
    input: Option<Content>,
    /// Absent: `prompt` if nothing runs, otherwise `followUp`.
    mode: Option<Mode>,
    /// A model id for this prompt only.
    model: Option<String>,
    /// True if clients show the input; the default is true.
    visible: Option<bool>,
    /// A second message with this key and the same content starts nothing. Absent: the id of the
    /// queue message.
    #[schema(min_length = 1, max_length = 255, pattern = "^[!-~]+$")]
    idempotency_key: Option<String>,
    /// Settings of a new conversation.
    settings: Option<Settings>,
    /// Labels of a new conversation.
    metadata: Option<BTreeMap<String, String>>,
}

/// Accepts a message of `agent-prompts`. `message_id` is its id on the queue. An id that is no
/// [key of a client](is_client_key) identifies only repetitions of this delivery.
///
/// # Errors
/// Returns an error if the store or the queue did not respond. Leave the message on its queue: it
/// is delivered again.
pub async fn accept_queue_message(
    services: &Services,
    text: &str,
    message_id: &str,
) -> Result<QueueMessageOutcome, CommandError> {
    let error = match Box::pin(accept_text(services, text, message_id)).await {
        Ok(answer) => return Ok(QueueMessageOutcome::Accepted(answer)),
        Err(error) => error,
    };
    let log_reason = log_reason(&error);
    let reason = match error {
        // Transient errors, and errors that a deployment or an operator repairs. The message is the
        // only copy.
        error @ (CommandError::Unavailable { .. }
        | CommandError::AgentUnavailable(_)
        | CommandError::ExtensionFailed(_)
        | CommandError::Corrupt(_)
        | CommandError::InboxFull { .. }
        | CommandError::Conflict { retry_after: Some(_), .. }) => return Err(error),
        error @ (CommandError::NotFound(_)
        | CommandError::UnknownCommand
        | CommandError::EntryNotFound(_)
        | CommandError::Invalid(_)
        | CommandError::Conflict { .. }
        | CommandError::AlreadyProcessing { .. }
        | CommandError::AlreadyApplied { .. }
        | CommandError::AlreadyDecided(_)
        | CommandError::Expired { .. }
        | CommandError::Forbidden(_)
        | CommandError::KeyReused
        | CommandError::EffectInFlight { .. }
        | CommandError::PreconditionFailed { .. }
        | CommandError::TooLarge(_)) => describe_rejection(&error),
    };
    reject(services, text, message_id, &reason).await?;
    if let Some(metrics) = services.telemetry.metrics() {
        metrics.record_poison(PROMPTS);
    }
    tracing::warn!(
        message.id = message_id,
        "message of agent-prompts rejected: {log_reason}; agent-prompts-poison has it with the reason"
    );
    Ok(QueueMessageOutcome::Rejected { reason })
}

/// Puts a message that cannot be accepted yet back on its queue. One that its queue does not take back
/// is accepted again while the store is away, as the first request of any other delivery is.
///
/// # Errors
/// See [`accept_queue_message`].
pub async fn put_back_or_repeat(
    services: &Services,
    text: &str,
    message_id: &str,
    error: CommandError,
) -> Result<(), CommandError> {
    let Err(error) = put_back(services, text, message_id, error).await else { return Ok(()) };
    if !error.is_store_away() {
        return Err(error);
    }
    let accept = || Box::pin(accept_queue_message(services, text, message_id));
    repeat_while_store_is_away(&services.shutdown, accept).await.map(drop)
}

async fn accept_text(
    services: &Services,
    text: &str,
    message_id: &str,
) -> Result<CommandResponse, CommandError> {
    let json = decode_text(text)?;
    let (json, message_id) = split_original(&json, message_id);
    let mut message: PromptMessage = parse_message(&json)?;
    let owner = take_owner(&mut message)?;
    let mut body: Map<String, Value> = serde_json::from_str(&json)
        .map_err(|error| CommandError::invalid("", error.to_string()))?;
    body.retain(|_, value| !value.is_null());
    let (key, is_repeatable) = take_key(services, &mut message, &message_id)?;
    let route = QUEUE_ROUTE.to_owned();
    let idempotency = Idempotency { key, is_repeatable, route, body_hash: hash_body(&json, body) };
    let sender = Sender {
        source: Source::Queue,
        traceparent: trace::current_traceparent(),
        when_busy: WhenBusy::Queue,
        clients: None,
    };
    if let Some(id) = &message.conversation_id
        && is_plain_text(id)
    {
        let key = owner.conversation_key(id);
        if let Some((head, _)) = load::find_head(services, &key).await? {
            reject_other_agent(&message, &head)?;
            let request = PromptRequest {
                input: message.input,
                mode: message.mode,
                model: message.model,
                visible: message.visible,
                ..PromptRequest::default()
            };
            return accept_prompt(services, &key, request, &idempotency, &sender).await;
        }
    }
    let request = FirstPromptRequest {
        agent: message.agent,
        conversation_id: message.conversation_id,
        settings: message.settings,
        metadata: add_message_id(message.metadata, &message_id),
        input: message.input,
        mode: message.mode,
        model: message.model,
        visible: message.visible,
        ..FirstPromptRequest::default()
    };
    begin_conversation(services, &owner, request, &idempotency, &sender).await
}

/// The idempotency key of the sender, or the id of the message. Without both a fresh key, which no
/// repetition has; it contains a space, as no key of a sender does.
fn take_key(
    services: &Services,
    message: &mut PromptMessage,
    message_id: &str,
) -> Result<(String, bool), CommandError> {
    let given = message.idempotency_key.take();
    if given.as_deref().is_some_and(|key| !is_client_key(key)) {
        let detail = format!("`idempotencyKey` is 1 to {KEY_BYTES_MAX} visible ASCII characters");
        return Err(CommandError::invalid("/idempotencyKey", detail));
    }
    // A sender can write the id of a message that was put back.
    let is_usable = (1..=KEY_BYTES_MAX).contains(&message_id.len());
    let key = given.or_else(|| is_usable.then(|| message_id.to_owned()));
    let is_repeatable = key.is_some();
    Ok((key.unwrap_or_else(|| format!("fresh {}", services.ids.new_id())), is_repeatable))
}

/// Adds the id of the queue message, by which its sender finds the conversation. A member of the
/// sender stays. Without an id of the queue nothing is added.
fn add_message_id(
    metadata: Option<BTreeMap<String, String>>,
    message_id: &str,
) -> Option<BTreeMap<String, String>> {
    if !is_client_key(message_id) {
        return metadata;
    }
    let given = metadata.unwrap_or_default();
    let mut labels = given.clone();
    labels.entry("messageId".to_owned()).or_insert_with(|| message_id.to_owned());
    // Labels at their bound are stored as they are.
    Some(if validate_metadata(&labels).is_empty() { labels } else { given })
}

fn take_owner(message: &mut PromptMessage) -> Result<Owner, CommandError> {
    Ok(Owner {
        tenant: TenantId::new(parse_plain_id(message.tenant_id.take(), "tenantId")?),
        user: UserId::new(parse_plain_id(message.user_id.take(), "userId")?),
    })
}

/// The conversation that the message names, if it exists.
async fn find_conversation(services: &Services, json: &str) -> Result<Option<Head>, CommandError> {
    let mut message: PromptMessage = parse_message(json)?;
    let owner = take_owner(&mut message)?;
    let Some(id) = message.conversation_id.filter(|id| is_plain_text(id)) else { return Ok(None) };
    let found = load::find_head(services, &owner.conversation_key(&id)).await?;
    Ok(found.map(|(head, _)| head))
}

/// Rejects a message that names another agent than its conversation, which keeps its agent.
fn reject_other_agent(message: &PromptMessage, head: &Head) -> Result<(), CommandError> {
    match &message.agent {
        Some(agent) if agent != &head.agent => Err(CommandError::invalid(
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
/// clients of Storage queues send it. A byte order mark may precede both.
fn decode_text(text: &str) -> Result<String, CommandError> {
    let text = skip_byte_order_mark(text.trim()).trim();
    if text.starts_with('{') {
        return Ok(repair_surrogates(text).into_owned());
    }
    let invalid = |reason: String| CommandError::invalid("", reason);
    if let Some(reason) = describe_other_json(text) {
        return Err(invalid(reason));
    }
    // Some encoders break lines.
    let packed: String = text.split_ascii_whitespace().collect();
    let bytes = QUEUE_BASE64
        .iter()
        .find_map(|encoding| encoding.decode(&packed).ok())
        .ok_or_else(|| invalid("the message is neither JSON nor base64 of JSON".to_owned()))?;
    let json = decode_utf8(&bytes).map_err(|error| invalid(format!("the message {error}")))?;
    match describe_other_json(json) {
        Some(reason) => Err(invalid(reason)),
        None => Ok(repair_surrogates(json).into_owned()),
    }
}

/// Why JSON without an object is refused. `None`: the text is an object, or no JSON.
fn describe_other_json(text: &str) -> Option<String> {
    let kind = match serde_json::from_str::<Value>(text).ok()? {
        Value::Object(_) => return None,
        Value::String(inner) if serde_json::from_str::<Map<String, Value>>(&inner).is_ok() => {
            return Some(
                "the message is a JSON text that contains a JSON object: it was serialised twice"
                    .to_owned(),
            );
        }
        Value::String(_) => "text",
        Value::Array(_) => "list",
        Value::Number(_) => "number",
        Value::Bool(_) => "boolean",
        Value::Null => return Some("the message is null, not an object".to_owned()),
    };
    Some(format!("the message is a JSON {kind}, not an object"))
}

/// Standard and URL-safe base64, with or without padding.
const QUEUE_BASE64: [GeneralPurpose; 2] = {
    let lenient = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    [
        GeneralPurpose::new(&alphabet::STANDARD, lenient),
        GeneralPurpose::new(&alphabet::URL_SAFE, lenient),
    ]
};

/// Members of a message. Other names in an error pointer are content from the sender.
const MESSAGE_MEMBERS: [&str; 11] = [
    "tenantId",
    "userId",
    "conversationId",
    "agent",
    "input",
    "mode",
    "model",
    "visible",
    "idempotencyKey",
    "settings",
    "metadata",
];

/// Reason of a rejection for the log, without content of the message.
fn log_reason(error: &CommandError) -> String {
    let CommandError::Invalid(errors) = error else { return error.to_string() };
    let members: BTreeSet<&str> = errors
        .iter()
        .filter_map(|fault| fault.pointer.split('/').nth(1))
        .filter(|member| MESSAGE_MEMBERS.contains(member))
        .collect();
    if members.is_empty() {
        return "invalid message".to_owned();
    }
    let members: Vec<&str> = members.into_iter().collect();
    format!("invalid members {}", members.join(", "))
}

fn parse_message(json: &str) -> Result<PromptMessage, CommandError> {
    if text_depth(json) > BODY_DEPTH_MAX {
        let detail = format!("the message nests over {BODY_DEPTH_MAX} levels");
        return Err(CommandError::invalid("", detail));
    }
    strict::from_request(json).map_err(|mistake| {
        let detail = format!("the message is invalid: {}", mistake.detail);
        CommandError::invalid(mistake.pointer, detail)
    })
}

fn parse_plain_id(value: Option<String>, member: &str) -> Result<String, CommandError> {
    let text = value.unwrap_or_else(|| "default".to_owned());
    if text.len() <= 128 && is_plain_text(&text) {
        return Ok(text);
    }
    Err(CommandError::invalid(
        format!("/{member}"),
        format!("`{member}` is 1 to 128 of the characters A-Z a-z 0-9 _ . - and not only dots"),
    ))
}
