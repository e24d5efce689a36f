//! Command that creates a conversation: its id, its head and its first messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::import::{self, Import};
use crate::input::validate_message;
use crate::key_reservation;
use crate::pipeline::{CommandContext, Creation, Signal};
use turnwheel_agent_files::{AgentDefinition, AgentLookupError};
use turnwheel_conversation::budget::Metering;
use turnwheel_conversation::entry::{Entry, EntryBase, EntryBody, MessageEntry};
use turnwheel_conversation::head::{Head, SCHEMA_VERSION};
use turnwheel_conversation::message::{Message, StopReason};
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::settings::{
    CONCURRENCY_MAX, HARD_ROUNDS_MAX, OUTPUT_TOKENS_MAX, RETRIES_MAX, RETRY_DELAY_MAX_MS, Settings,
    model_id_error,
};
use turnwheel_conversation::suspicion::Suspicion;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_conversation::usage::Usage;
use turnwheel_json::raw::{RawJson, raw_object};
use turnwheel_json::strict;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{
    CommitId, ConversationKey, EntryId, IncarnationSearch, is_plain_text,
};
use turnwheel_queries::conversation::new_conversation_view;
use turnwheel_queries::conversation_etag;
use turnwheel_queries::models::find_model_error;
use turnwheel_record::certain_write::{receipt_document, write_size};
use turnwheel_record::contract::{CommandError, CommandResponse, FieldError, Owner};
use turnwheel_record::head_commit::HeadCommit;
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::load::any_head;
use turnwheel_record::services::Services;
use turnwheel_storage::store::{BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX};
use turnwheel_tools::sha256_hex;

/// Maximum length of a conversation id, in characters.
pub const ID_LENGTH_MAX: usize = 128;
/// Maximum number of messages in a request that creates a conversation.
pub const MESSAGES_MAX: usize = 1_000;
/// `/conversations/import` is the route that imports session files.
const RESERVED_ID: &str = "import";
/// Number of incarnations that are tried. About a thousand are enough.
const INCARNATIONS_MAX: usize = 100_000;
/// API, provider and model of a response that a client sends without them.
const IMPORTED_AUTHOR: &str = "imported";
const METADATA_ENTRIES_MAX: usize = 64;
/// Maximum bytes of all keys and values together.
const METADATA_BYTES_MAX: usize = 16 * 1024;
const SETTINGS_BYTES_MAX: usize = 16 * 1024;

#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewConversation {
    /// 1 to 128 of `A-Z a-z 0-9 _ . -`; if absent, derived from owner and idempotency key.
    pub id: Option<String>,
    /// The same as `id`.
    pub conversation_id: Option<String>,
    /// Name of an agent; if absent, the default agent.
    pub agent: Option<String>,
    pub settings: Option<Settings>,
    pub metadata: Option<BTreeMap<String, String>>,
    /// First messages, oldest first; at most 1,000 and 10 MB. `{role, content}` with a text is enough
    /// for the roles `user` and `assistant`.
    #[schema(value_type = Option<Vec<Object>>)]
    pub messages: Option<Vec<RawJson>>,
}

/// Creates a conversation with at most [`MESSAGES_MAX`] messages.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn create_conversation(
    services: &Services,
    owner: &Owner,
    request: NewConversation,
    idempotency: &Idempotency,
) -> Result<CommandResponse, CommandError> {
    let count = request.messages.as_ref().map_or(0, Vec::len);
    if count > MESSAGES_MAX {
        let detail =
            format!("a new conversation may have {MESSAGES_MAX} messages, the request has {count}");
        return Err(CommandError::invalid("/messages", detail));
    }
    create_conversation_of_any_length(services, owner, request, idempotency).await
}

/// Creates a conversation with any number of messages, for callers in this process.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn create_conversation_of_any_length(
    services: &Services,
    owner: &Owner,
    mut request: NewConversation,
    idempotency: &Idempotency,
) -> Result<CommandResponse, CommandError> {
    let given = merge_ids(request.id.take(), request.conversation_id.take())?;
    let has_given_id = given.is_some();
    let id = resolve_conversation_id(given, owner, idempotency, "/id")?;
    let key = owner.conversation_key(&id);
    if !has_given_id || !idempotency.is_repeatable {
        return Box::pin(write_conversation(services, &key, request, idempotency, false)).await;
    }
    let write = Box::pin(write_conversation(services, &key, request, idempotency, true));
    key_reservation::run_reserved(services, owner, idempotency, write).await
}

async fn write_conversation(
    services: &Services,
    key: &ConversationKey,
    request: NewConversation,
    idempotency: &Idempotency,
    is_key_reserved: bool,
) -> Result<CommandResponse, CommandError> {
    let context = CommandContext { services, key, idempotency, signal: Signal::None };
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
    let entries = build_first_entries(&mut head, request.messages.unwrap_or_default())?;
    let response = CommandResponse::new(201, &new_conversation_view(services, &head))
        .with_location(format!("conversations/{}", key.conversation_id))
        .with_etag(conversation_etag(&head));
    let receipt = receipt_document(idempotency, key, &response, head.created_at);
    let commit = HeadCommit::create(&head).with_entries(&entries).with_created([receipt.clone()]);
    let writes = commit.into_writes()?;
    let bytes: usize = writes.iter().map(write_size).sum();
    if writes.len() <= BATCH_OPERATIONS_MAX && bytes <= BATCH_BYTES_MAX {
        match context.create(writes).await? {
            Creation::Stored => {
                context.observe_creation(Some(&head)).await;
                return Ok(response);
            }
            Creation::Repeated(previous) => {
                let replayed = previous.replay(idempotency)?;
                let found = any_head(services, key).await?;
                let is_mine = found.is_some_and(|(found, _)| found.commit_id == head.commit_id);
                return Ok(if is_mine { response } else { replayed });
            }
            Creation::Blocked => {
                import::check_id_available(services, key, &context.input_id()).await?;
                tracing::debug!(conversation.id = %key, "stalled import taken over");
            }
        }
    }
    let mut import = Box::pin(Import::begin(services, &head, &context.input_id())).await?;
    for entry in &entries {
        import.add(entry).await?;
    }
    Box::pin(import.finish(head.clone(), receipt)).await?;
    context.observe_creation(Some(&head)).await;
    Ok(response)
}

/// Initial values of a new conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConversationInit {
    pub agent: Option<String>,
    pub settings: Settings,
    pub metadata: BTreeMap<String, String>,
}

/// The id of a new conversation, which a request has as `id` or `conversationId`.
///
/// # Errors
/// Both are given and differ: send one.
pub fn merge_ids(
    id: Option<String>,
    conversation_id: Option<String>,
) -> Result<Option<String>, CommandError> {
    match (id, conversation_id) {
        (Some(id), Some(other)) if id != other => {
            Err(CommandError::invalid("/id", "`id` and `conversationId` differ: send one of them"))
        }
        (id, other) => Ok(id.or(other)),
    }
}

/// Checks the given id; without one, derives the id from owner and key.
pub(crate) fn resolve_conversation_id(
    given: Option<String>,
    owner: &Owner,
    idempotency: &Idempotency,
    pointer: &str,
) -> Result<String, CommandError> {
    let Some(id) = given else { return Ok(idempotency.conversation_id(owner)) };
    if id == RESERVED_ID {
        let detail = format!("`{id}` is part of a path of the API: use another id");
        return Err(CommandError::invalid(pointer, detail));
    }
    if id.len() > ID_LENGTH_MAX || !is_plain_text(&id) {
        return Err(CommandError::invalid(
            pointer,
            "a conversation's id is 1 to 128 of the characters A-Z a-z 0-9 _ . - and not only dots",
        ));
    }
    Ok(id)
}

/// Builds a head without pending work.
pub(crate) fn build_head(
    services: &Services,
    key: &ConversationKey,
    init: ConversationInit,
) -> Result<Head, CommandError> {
    let agent = find_agent(services, init.agent.as_deref())?;
    let mut errors = validate_settings(services, &agent, &init.settings);
    errors.extend(validate_metadata(&init.metadata));
    if !errors.is_empty() {
        return Err(CommandError::Invalid(errors));
    }
    let now = services.clock.now();
    let mut head = Head {
        context_tokens: None,
        context: Vec::new(),
        schema: SCHEMA_VERSION,
        min_reader: SCHEMA_VERSION,
        tenant: key.tenant.clone(),
        user: key.user.clone(),
        conversation_id: key.conversation_id.clone(),
        incarnation: new_incarnation(services),
        commit_id: CommitId::new(services.ids.new_id()),
        revision: 1,
        lease: None,
        epoch: 0,
        leases_without_progress: 0,
        suspicion: Suspicion::default(),
        phase: Phase::Idle,
        leaf_id: None,
        seq: 0,
        event_seq: 0,
        turn: 0,
        response_count: 0,
        agent: agent.name.clone(),
        settings: init.settings,
        base_settings: None,
        usage: Usage::default(),
        prompt: None,
        prompts: Vec::new(),
        requests: Vec::new(),
        waiting_commands: Vec::new(),
        requests_made: 0,
        pause: None,
        deferral: None,
        profile_messages: None,
        indeterminate_writes: BTreeMap::new(),
        plugin_state: BTreeMap::new(),
        frame: None,
        items_made: 0,
        waiting_message: None,
        extension_chain: None,
        compaction_attempt_seq: None,
        compaction_note: None,
        compaction_declined: None,
        is_compacted: false,
        reservation: None,
        metering: Metering::default(),
        has_copied_response: false,
        name: None,
        labels: BTreeMap::new(),
        metadata: init.metadata,
        parent: None,
        waiting_items: 0,
        inbox_count: Some(0),
        due: None,
        created_at: now,
        updated_at: now,
        deleted_at: None,
        unreported_call: None,
        extra: Extra::new(),
    };
    head.min_reader = head.required_reader();
    Ok(head)
}

pub(crate) fn new_incarnation(services: &Services) -> String {
    let mut incarnation = sha256_hex(services.ids.new_id().as_bytes());
    incarnation.truncate(8);
    incarnation
}

/// An incarnation whose new entry ids differ from those of copied entries: `first` if possible.
pub(crate) fn find_suitable_incarnation<'a>(
    services: &Services,
    first: Option<String>,
    copied: impl IntoIterator<Item = &'a EntryId>,
) -> Result<String, CommandError> {
    let search = IncarnationSearch::new(copied);
    let new = std::iter::repeat_with(|| new_incarnation(services));
    first
        .into_iter()
        .chain(new)
        .take(INCARNATIONS_MAX)
        .find(|incarnation| search.is_suitable(incarnation))
        .ok_or_else(CommandError::contended)
}

pub(crate) fn find_agent(
    services: &Services,
    name: Option<&str>,
) -> Result<Arc<AgentDefinition>, CommandError> {
    services.agents.find(name).map_err(|missing| match missing {
        AgentLookupError::Unknown { .. } | AgentLookupError::Ambiguous { .. } => {
            CommandError::invalid("/agent", missing.to_string())
        }
        AgentLookupError::Broken(_) => CommandError::AgentUnavailable(missing.to_string()),
    })
}

pub fn validate_settings(
    services: &Services,
    agent: &AgentDefinition,
    settings: &Settings,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut add_error = |member: &str, detail: String| {
        errors.push(FieldError::new(format!("/settings/{member}"), detail));
    };
    if let Some(model) = &settings.model
        && let Some(why) = find_model_error(services, model)
    {
        add_error("model", why);
    }
    if settings.temperature.is_some_and(|value| !(0.0..=2.0).contains(&value)) {
        add_error("temperature", "`temperature` is 0 to 2".to_owned());
    }
    if settings.max_output_tokens.is_some_and(|tokens| !(1..=OUTPUT_TOKENS_MAX).contains(&tokens)) {
        add_error("maxOutputTokens", format!("`maxOutputTokens` is 1 to {OUTPUT_TOKENS_MAX}"));
    }
    if settings.max_rounds == Some(0) {
        add_error("maxRounds", "`maxRounds` is at least 1".to_owned());
    }
    if settings.history_window == Some(0) {
        add_error("historyWindow", "`historyWindow` is at least 1".to_owned());
    }
    if settings.protocol_mode.is_some()
        && let Some(mistake) = settings.with_fallback(&agent.settings).protocol_mode_error()
    {
        add_error("protocolMode", mistake.to_owned());
    }
    if settings.hard_rounds_max.is_some_and(|rounds| !(1..=HARD_ROUNDS_MAX).contains(&rounds)) {
        add_error("hardRoundsMax", format!("`hardRoundsMax` is 1 to {HARD_ROUNDS_MAX}"));
    }
    if settings.parallel_tools_max.is_some_and(|calls| !(1..=CONCURRENCY_MAX).contains(&calls)) {
        add_error("parallelToolsMax", format!("`parallelToolsMax` is 1 to {CONCURRENCY_MAX}"));
    }
    if settings.retry.as_ref().is_some_and(|retry| !(0.0..=1.0).contains(&retry.jitter)) {
        add_error("retry/jitter", "`jitter` is 0 to 1".to_owned());
    }
    if let Some(mistake) = settings.budget_error() {
        add_error(&format!("budget{}", mistake.pointer), mistake.detail);
    }
    if settings.retry.as_ref().is_some_and(|retry| retry.max_retries > RETRIES_MAX) {
        add_error("retry/maxRetries", format!("`maxRetries` is 0 to {RETRIES_MAX}"));
    }
    if settings.retry.as_ref().is_some_and(|retry| retry.max_delay_ms > RETRY_DELAY_MAX_MS) {
        add_error("retry/maxDelayMs", format!("`maxDelayMs` is 0 to {RETRY_DELAY_MAX_MS}, a day"));
    }
    agent.log_unknown_tools(settings);
    if RawJson::from_value(settings).text().len() > SETTINGS_BYTES_MAX {
        errors.push(FieldError::new("/settings", "settings may be at most 16 KB"));
    }
    errors
}

/// True if the settings of the app or an agent file name the model. Only such a model is taken over
/// from a path.
pub fn is_model_configured(services: &Services, model: &str) -> bool {
    let catalog = services.agents.current();
    let is_of_agent = || {
        let mut models = catalog.agents.values().map(|agent| agent.settings.model.as_deref());
        models.any(|name| name == Some(model)) && services.model.record(model).is_ok()
    };
    model_id_error(model).is_none() && (services.model.is_configured(model) || is_of_agent())
}

pub(crate) fn validate_metadata(metadata: &BTreeMap<String, String>) -> Vec<FieldError> {
    let bytes: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if metadata.len() > METADATA_ENTRIES_MAX || bytes > METADATA_BYTES_MAX {
        return vec![FieldError::new(
            "/metadata",
            "metadata may have at most 64 members and 16 KB",
        )];
    }
    Vec::new()
}

/// Builds the entries of the first messages as one path and makes its end the leaf.
fn build_first_entries(
    head: &mut Head,
    messages: Vec<RawJson>,
) -> Result<Vec<Entry>, CommandError> {
    let mut errors = Vec::new();
    let mut entries = Vec::with_capacity(messages.len());
    for (position, raw) in messages.into_iter().enumerate() {
        let pointer = format!("/messages/{position}");
        if raw.text().len() > BATCH_BYTES_MAX - 64 * 1024 {
            return Err(CommandError::TooLarge(format!(
                "message {position} is too large for one entry (1.4 MB): add large content as an artifact"
            )));
        }
        let raw = complete_message(raw, head.created_at);
        if let Err(mistake) = Message::check(&raw) {
            let mistake = mistake.with_parent_pointer(&pointer);
            errors.push(FieldError::new(mistake.pointer, mistake.detail));
            continue;
        }
        match Message::from_raw(raw) {
            Ok(message) if message.role().is_empty() => {
                errors.push(FieldError::new(format!("{pointer}/role"), "a message has a `role`"));
            }
            Ok(message) => {
                errors.extend(validate_message(&message, &pointer));
                entries.push(append_message(head, message));
            }
            Err(error) => {
                errors.push(FieldError::new(pointer, strict::plain_message(&error.to_string())));
            }
        }
    }
    if errors.is_empty() { Ok(entries) } else { Err(CommandError::Invalid(errors)) }
}

/// Completes the short form `{role, content}` of a message of the user or the model: its time, and
/// for the model its blocks, author and stop reason. Members that are given stay as they are; null
/// counts as absent.
fn complete_message(raw: RawJson, now: Timestamp) -> RawJson {
    let role = raw.string_member("role");
    let timestamp = ("timestamp".to_owned(), RawJson::from_value(&now));
    match (role.as_deref(), raw.members()) {
        (Some("user"), Some(_)) => raw.without_null_members(1).with_members(vec![timestamp]),
        (Some("assistant"), Some(mut members)) => {
            members.retain(|(_, value)| value.text() != "null");
            for (_, value) in members.iter_mut().filter(|(name, _)| name == "content") {
                if let Ok(text) = value.read::<String>() {
                    *value = raw_object!({"type": "text", "text": text});
                    *value = RawJson::from_value(&[&*value]);
                }
            }
            let author = || RawJson::from_value(&IMPORTED_AUTHOR);
            let optional = [("api", author()), ("provider", author()), ("model", author())];
            let optional = optional.map(|(name, value)| (name.to_owned(), value));
            let stop = ("stopReason".to_owned(), RawJson::from_value(&StopReason::Stop));
            let added = optional.into_iter().chain([stop, timestamp]).collect();
            RawJson::from_members(members).with_members(added)
        }
        (_, _) => raw,
    }
}

fn append_message(head: &mut Head, message: Message) -> Entry {
    let body = EntryBody::Message(MessageEntry::new(message));
    head.record_copied_entry(&body);
    append_entry(head, body, head.created_at)
}

/// Appends an entry after the leaf and makes it the leaf.
pub fn append_entry(head: &mut Head, body: EntryBody, now: Timestamp) -> Entry {
    head.seq += 1;
    let entry_id = EntryId::from_seq(&head.incarnation, head.seq);
    let base = EntryBase {
        entry_id: entry_id.clone(),
        parent_id: head.leaf_id.replace(entry_id),
        seq: head.seq,
        timestamp: now,
        prompt_id: head.prompt.as_ref().map(|run| run.id.clone()),
    };
    Entry { base, body }
}
