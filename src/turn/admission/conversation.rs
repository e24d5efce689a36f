//! Command that creates a conversation: its id, its head and its first messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::agent::batch::AT_ONCE_MAX;
use crate::agent::budget::Books;
use crate::agent::entry::{Entry, EntryBase, EntryBody, MessageEntry};
use crate::agent::head::{Head, SCHEMA};
use crate::agent::message::Message;
use crate::agent::phase::Phase;
use crate::agent::raw::{Extra, RawJson};
use crate::agent::settings::{
    HARD_ROUNDS_MAX, LoopKind, OUTPUT_TOKENS_MAX, RETRIES_MAX, RETRY_DELAY_MAX_MS, Settings,
    model_mistake,
};
use crate::agent::strict;
use crate::agent::suspicion::Suspicion;
use crate::agent::usage::Usage;
use crate::agents::{Agent, NoAgent};
use crate::clock::Timestamp;
use crate::ids::{CommitId, ConversationKey, EntryId, is_plain};
use crate::store::{BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, Write};
use crate::tools::sha256_hex;
use crate::turn::admission::idempotency::{Idempotency, earlier};
use crate::turn::admission::input::message_faults;
use crate::turn::admission::write::{
    Written, bytes_of, head_document, receipt_document, write_surely,
};
use crate::turn::admission::{Answer, Fault, Owner, Refusal};
use crate::turn::admission::{held_key, import};
use crate::turn::views::conversation::fresh_view;
use crate::turn::views::etag_of;
use crate::turn::{World, record};

/// Maximum length of a conversation id, in characters.
pub const ID_MAX: usize = 128;
/// Maximum number of messages in a request that creates a conversation.
pub const MESSAGES_MAX: usize = 1_000;
const METADATA_ENTRIES_MAX: usize = 64;
/// Maximum bytes of all keys and values together.
const METADATA_BYTES_MAX: usize = 16 * 1024;
const SETTINGS_BYTES_MAX: usize = 16 * 1024;
pub(crate) const NAME_BYTES_MAX: usize = 512;

#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewConversation {
    /// 1 to 128 of `A-Z a-z 0-9 _ . -`; if absent, derived from owner and idempotency key.
    pub id: Option<String>,
    /// Name of an agent; if absent, the default agent.
    pub agent: Option<String>,
    pub settings: Option<Settings>,
    pub metadata: Option<BTreeMap<String, String>>,
    /// First messages, oldest first; at most 1,000 and 10 MB.
    #[schema(value_type = Option<Vec<Object>>)]
    pub messages: Option<Vec<RawJson>>,
}

/// Creates a conversation with at most [`MESSAGES_MAX`] messages.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn create_conversation(
    world: &World,
    owner: &Owner,
    request: NewConversation,
    idempotency: &Idempotency,
) -> Result<Answer, Refusal> {
    let count = request.messages.as_ref().map_or(0, Vec::len);
    if count > MESSAGES_MAX {
        let detail =
            format!("a new conversation may have {MESSAGES_MAX} messages, the request has {count}");
        return Err(Refusal::invalid("/messages", detail));
    }
    create_of_any_length(world, owner, request, idempotency).await
}

/// Creates a conversation with any number of messages, for callers in this process.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub(crate) async fn create_of_any_length(
    world: &World,
    owner: &Owner,
    mut request: NewConversation,
    idempotency: &Idempotency,
) -> Result<Answer, Refusal> {
    let is_named = request.id.is_some();
    let id = conversation_id(request.id.take(), owner, idempotency, "/id")?;
    if !is_named || !idempotency.is_repeatable {
        return create(world, &owner.key(&id), request, idempotency, false).await;
    }
    held_key::hold(world, owner, idempotency).await?;
    let outcome = create(world, &owner.key(&id), request, idempotency, true).await;
    if let Err(refusal) = &outcome {
        held_key::forget_refused(world, owner, idempotency, refusal).await;
    }
    outcome
}

async fn create(
    world: &World,
    key: &ConversationKey,
    request: NewConversation,
    idempotency: &Idempotency,
    is_key_held: bool,
) -> Result<Answer, Refusal> {
    let input_id = idempotency.input_id(key);
    if let Some(earlier) = earlier(world, key, input_id.as_str()).await? {
        return earlier.replay(idempotency);
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
    let entries = first_entries(&mut head, request.messages.unwrap_or_default())?;
    let answer = Answer {
        status: 201,
        body: Some(RawJson::of(&fresh_view(world, &head))),
        location: Some(format!("conversations/{}", key.conversation_id)),
        etag: Some(etag_of(&head)),
        is_replayed: false,
    };
    let receipt = receipt_document(idempotency, key, &answer, head.created_at);
    let mut writes: Vec<Write> =
        entries.iter().map(|entry| Write::Create(record::entry_document(entry))).collect();
    writes.push(Write::Create(receipt.clone()));
    writes.push(Write::Create(head_document(&head)?));
    let bytes: usize = writes.iter().map(bytes_of).sum();
    if writes.len() <= BATCH_OPERATIONS_MAX && bytes <= BATCH_BYTES_MAX {
        match write_surely(world, key, writes).await? {
            Written::Won(_) => return Ok(answer),
            Written::Lost => {
                let settled = conclude(world, key, &head.commit_id, &answer, idempotency).await?;
                if let Some(settled) = settled {
                    return Ok(settled);
                }
                tracing::debug!(conversation.id = %key, "stalled import taken over");
            }
        }
    }
    import::import(world, head, &entries, receipt, idempotency).await?;
    Ok(answer)
}

/// Resolves a creation that lost its write. Returns the response if this request had won before, an
/// error if another request has the id, and `None` if a stalled import can be taken over.
async fn conclude(
    world: &World,
    key: &ConversationKey,
    commit: &CommitId,
    answer: &Answer,
    idempotency: &Idempotency,
) -> Result<Option<Answer>, Refusal> {
    let input_id = idempotency.input_id(key);
    if let Some(earlier) = earlier(world, key, input_id.as_str()).await? {
        let replayed = earlier.replay(idempotency)?;
        let found = crate::turn::views::load::any_head(world, key).await?;
        let is_mine = found.is_some_and(|(head, _)| &head.commit_id == commit);
        return Ok(Some(if is_mine { answer.clone() } else { replayed }));
    }
    import::may_begin(world, key, &input_id).await.map(|()| None)
}

/// Initial values of a new conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beginning {
    pub(crate) agent: Option<String>,
    pub(crate) settings: Settings,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// Checks the given id; without one, derives the id from owner and key.
pub(crate) fn conversation_id(
    given: Option<String>,
    owner: &Owner,
    idempotency: &Idempotency,
    pointer: &str,
) -> Result<String, Refusal> {
    let Some(id) = given else { return Ok(idempotency.conversation_id(owner)) };
    if id.len() > ID_MAX || !is_plain(&id) {
        return Err(Refusal::invalid(
            pointer,
            "a conversation's id is 1 to 128 of the characters A-Z a-z 0-9 _ . - and not only dots",
        ));
    }
    Ok(id)
}

/// Builds a head without pending work.
pub(crate) fn new_head(
    world: &World,
    key: &ConversationKey,
    beginning: Beginning,
) -> Result<Head, Refusal> {
    let agent = agent_named(world, beginning.agent.as_deref())?;
    let mut faults = settings_faults(world, &agent, &beginning.settings);
    faults.extend(metadata_faults(&beginning.metadata));
    if !faults.is_empty() {
        return Err(Refusal::Invalid(faults));
    }
    let now = world.clock.now();
    let mut incarnation = sha256_hex(world.ids.fresh().as_bytes());
    incarnation.truncate(8);
    Ok(Head {
        schema: SCHEMA,
        min_reader: SCHEMA,
        tenant: key.tenant.clone(),
        user: key.user.clone(),
        conversation_id: key.conversation_id.clone(),
        incarnation,
        commit_id: CommitId::new(world.ids.fresh()),
        revision: 1,
        claim: None,
        epoch: 0,
        claims: 0,
        suspicion: Suspicion::default(),
        phase: Phase::Idle,
        leaf_id: None,
        seq: 0,
        event_seq: 0,
        turn: 0,
        answers: 0,
        agent: agent.name.clone(),
        settings: beginning.settings,
        usage: Usage::default(),
        prompt: None,
        prompts: Vec::new(),
        requests: Vec::new(),
        requests_made: 0,
        brake: None,
        put_off: None,
        unknown_writes: BTreeMap::new(),
        plugin_state: BTreeMap::new(),
        provider_state: None,
        compaction_tried: None,
        is_compacted: false,
        hold: None,
        held: None,
        books: Books::default(),
        name: None,
        labels: BTreeMap::new(),
        metadata: beginning.metadata,
        parent: None,
        waiting: 0,
        due: None,
        created_at: now,
        updated_at: now,
        deleted_at: None,
        unreported_call: None,
        extra: Extra::new(),
    })
}

pub(crate) fn agent_named(world: &World, name: Option<&str>) -> Result<Arc<Agent>, Refusal> {
    world.agents.find(name).map_err(|missing| match missing {
        NoAgent::Unknown { .. } | NoAgent::Ambiguous { .. } => {
            Refusal::invalid("/agent", missing.to_string())
        }
        NoAgent::Broken(_) => Refusal::AgentUnavailable(missing.to_string()),
    })
}

pub(crate) fn settings_faults(world: &World, agent: &Agent, settings: &Settings) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |member: &str, detail: String| {
        faults.push(Fault::at(format!("/settings/{member}"), detail));
    };
    if let Some(model) = &settings.model
        && let Some(why) = model_fault(world, model)
    {
        fault("model", why);
    }
    if let Some(mistake) = settings.loop_kind.and_then(LoopKind::mistake) {
        fault("loop", mistake.to_owned());
    }
    if settings.temperature.is_some_and(|value| !(0.0..=2.0).contains(&value)) {
        fault("temperature", "`temperature` is 0 to 2".to_owned());
    }
    if settings.max_output_tokens.is_some_and(|tokens| !(1..=OUTPUT_TOKENS_MAX).contains(&tokens)) {
        fault("maxOutputTokens", format!("`maxOutputTokens` is 1 to {OUTPUT_TOKENS_MAX}"));
    }
    if settings.max_rounds == Some(0) {
        fault("maxRounds", "`maxRounds` is at least 1".to_owned());
    }
    if settings.hard_rounds_max.is_some_and(|rounds| !(1..=HARD_ROUNDS_MAX).contains(&rounds)) {
        fault("hardRoundsMax", format!("`hardRoundsMax` is 1 to {HARD_ROUNDS_MAX}"));
    }
    if settings.parallel_tools_max.is_some_and(|calls| !(1..=AT_ONCE_MAX).contains(&calls)) {
        fault("parallelToolsMax", format!("`parallelToolsMax` is 1 to {AT_ONCE_MAX}"));
    }
    if settings.retry.as_ref().is_some_and(|retry| !(0.0..=1.0).contains(&retry.jitter)) {
        fault("retry/jitter", "`jitter` is 0 to 1".to_owned());
    }
    if let Some(mistake) = settings.budget_mistake() {
        fault(&format!("budget{}", mistake.pointer), mistake.detail);
    }
    if settings.retry.as_ref().is_some_and(|retry| retry.max_retries > RETRIES_MAX) {
        fault("retry/maxRetries", format!("`maxRetries` is 0 to {RETRIES_MAX}"));
    }
    if settings.retry.as_ref().is_some_and(|retry| retry.max_delay_ms > RETRY_DELAY_MAX_MS) {
        fault("retry/maxDelayMs", format!("`maxDelayMs` is 0 to {RETRY_DELAY_MAX_MS}, a day"));
    }
    let unknown = agent.unknown_tools(settings);
    if !unknown.is_empty() {
        let names = unknown.join(", ");
        tracing::warn!(
            gen_ai.agent.name = agent.name,
            tools = names,
            "unknown tools in `activeTools` ignored: the agent {} has no {names}",
            agent.name
        );
    }
    if RawJson::of(settings).text().len() > SETTINGS_BYTES_MAX {
        faults.push(Fault::at("/settings", "settings may be at most 16 KB"));
    }
    faults
}

/// Returns the reason why the model cannot be called, or `None` if it can.
pub(super) fn model_fault(world: &World, model: &str) -> Option<String> {
    model_mistake(model).or_else(|| world.model.record(model).err())
}

pub(crate) fn metadata_faults(metadata: &BTreeMap<String, String>) -> Vec<Fault> {
    let bytes: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if metadata.len() > METADATA_ENTRIES_MAX || bytes > METADATA_BYTES_MAX {
        return vec![Fault::at("/metadata", "metadata may have at most 64 members and 16 KB")];
    }
    Vec::new()
}

/// Builds the entries of the first messages as one path and makes its end the leaf.
fn first_entries(head: &mut Head, messages: Vec<RawJson>) -> Result<Vec<Entry>, Refusal> {
    let mut faults = Vec::new();
    let mut entries = Vec::with_capacity(messages.len());
    for (position, raw) in messages.into_iter().enumerate() {
        let pointer = format!("/messages/{position}");
        if raw.text().len() > BATCH_BYTES_MAX - 64 * 1024 {
            return Err(Refusal::TooLarge(format!(
                "message {position} is too large for one entry (1.4 MB): add large content as an artifact"
            )));
        }
        if let Err(mistake) = Message::check(&raw) {
            let mistake = mistake.below(&pointer);
            faults.push(Fault::at(mistake.pointer, mistake.detail));
            continue;
        }
        match Message::from_raw(raw) {
            Ok(message) if message.role().is_empty() => {
                faults.push(Fault::at(format!("{pointer}/role"), "a message has a `role`"));
            }
            Ok(message) => {
                faults.extend(message_faults(&message, &pointer));
                entries.push(append(head, message));
            }
            Err(error) => faults.push(Fault::at(pointer, strict::plain(&error.to_string()))),
        }
    }
    if faults.is_empty() { Ok(entries) } else { Err(Refusal::Invalid(faults)) }
}

fn append(head: &mut Head, message: Message) -> Entry {
    append_entry(head, EntryBody::Message(MessageEntry::plain(message)), head.created_at)
}

/// Appends an entry after the leaf and makes it the leaf.
pub(crate) fn append_entry(head: &mut Head, body: EntryBody, now: Timestamp) -> Entry {
    head.seq += 1;
    let entry_id = EntryId::of_entry(&head.incarnation, head.seq);
    let base = EntryBase {
        entry_id: entry_id.clone(),
        parent_id: head.leaf_id.replace(entry_id),
        seq: head.seq,
        timestamp: now,
        prompt_id: head.prompt.as_ref().map(|run| run.id.clone()),
    };
    Entry { base, body }
}
