//! Views of a conversation, its messages and its entries.

use std::collections::BTreeMap;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::approvals::{ApprovalRecord, ApprovalView, pending_approvals};
use crate::why::explain_head;
use turnwheel_conversation::entry::{Entry, EntryBody, PromptState};
use turnwheel_conversation::head::{Head, Parent, State};
use turnwheel_conversation::inbox::InboxItem;
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::settings::Settings;
use turnwheel_conversation::usage::Usage;
use turnwheel_json::raw::{RawJson, raw_object};
use turnwheel_platform::clock::{Timestamp, iso};
use turnwheel_platform::ids::{
    ConversationId, ConversationKey, EntryId, PromptId, TenantId, UserId,
};
use turnwheel_record::contract::CommandError;
use turnwheel_record::load;
use turnwheel_record::services::Services;

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConversationView {
    #[schema(value_type = String)]
    pub id: ConversationId,
    pub agent: String,
    pub owner: OwnerView,
    /// `idle`, `running` or `waiting_for_approval`.
    #[schema(value_type = String)]
    pub state: State,
    /// Number of turns started.
    pub turn: u64,
    #[schema(value_type = Option<String>, required = true)]
    pub leaf_id: Option<EntryId>,
    /// Newest entry: `GET …/entries?afterSeq=` continues after it.
    pub seq: u64,
    /// Newest event: `GET …/events?after=` continues after it.
    pub last_event_id: u64,
    pub settings: Settings,
    /// Names in `settings.activeTools` for which the agent has no tool; they are ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_tools: Vec<String>,
    #[schema(value_type = Object)]
    pub usage: Usage,
    pub metadata: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Beginning of the input of the newest prompt. Absent: it has none, or an earlier version started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// Only in lists: the sentence of `GET …/why`. While nothing runs it leaves out the reason of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The conversation and the entry from which this one was copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub parent: Option<Parent>,
    pub pending_approvals: Vec<ApprovalView>,
    /// The last 20 prompts, oldest first.
    pub prompts: Vec<PromptSummary>,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OwnerView {
    #[schema(value_type = String)]
    pub tenant_id: TenantId,
    #[schema(value_type = String)]
    pub user_id: UserId,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromptSummary {
    #[schema(value_type = String)]
    pub id: PromptId,
    /// `running`, `waiting_for_approval`, `completed`, `failed` or `aborted`.
    #[schema(value_type = String)]
    pub state: PromptState,
}

/// View of a new conversation.
pub fn new_conversation_view(services: &Services, head: &Head) -> ConversationView {
    build_view(services, head, head.state(), prompt_summaries(head, head.state()), &[])
}

/// View for lists. It is built without the inbox, so the state may be one turn old.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub(crate) async fn conversation_list_view(
    services: &Services,
    head: &Head,
) -> Result<ConversationView, CommandError> {
    let pending = pending_approvals(services, head).await?;
    let state = effective_state(head, &pending);
    let why = Some(explain_head(services, head).await?);
    let prompts = prompt_summaries(head, state);
    Ok(ConversationView { why, ..build_view(services, head, state, prompts, &pending) })
}

/// View of a head with the queued inbox items.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn conversation_view(
    services: &Services,
    head: &Head,
) -> Result<ConversationView, CommandError> {
    let inbox = load::inbox_of(services, head).await?;
    view_with_inbox(services, head, &inbox).await
}

/// Current view of a conversation, and the head that it shows.
///
/// # Errors
/// Returns [`CommandError::NotFound`], or `Unavailable` if the store does not respond: repeat the
/// request.
pub async fn current_view(
    services: &Services,
    key: &ConversationKey,
) -> Result<(ConversationView, Head), CommandError> {
    let (inbox, head) = load::inbox_then_head(services, key).await?;
    Ok((view_with_inbox(services, &head, &inbox).await?, head))
}

async fn view_with_inbox(
    services: &Services,
    head: &Head,
    inbox: &[InboxItem],
) -> Result<ConversationView, CommandError> {
    let pending = pending_approvals(services, head).await?;
    let queued: Vec<&PromptId> =
        load::queued_prompts(head, inbox).map(|coming| coming.prompt_id).collect();
    let state = match effective_state(head, &pending) {
        State::Idle if load::has_pending_work(head, inbox) => State::Running,
        State::Idle if !pending.is_empty() => State::WaitingForApproval,
        state @ (State::Idle | State::Running | State::WaitingForApproval) => state,
    };
    let mut prompts = prompt_summaries(head, effective_state(head, &pending));
    for id in queued {
        if !prompts.iter().any(|prompt| &prompt.id == id) {
            prompts.push(PromptSummary { id: id.clone(), state: PromptState::Running });
        }
    }
    Ok(build_view(services, head, state, prompts, &pending))
}

/// State that includes decisions not yet applied by a worker: once all requests are decided, a
/// waiting conversation is running again.
pub fn effective_state(head: &Head, pending: &[ApprovalRecord]) -> State {
    match head.state() {
        State::WaitingForApproval if !pending.iter().any(is_of_step) => State::Running,
        state @ (State::Idle | State::Running | State::WaitingForApproval) => state,
    }
}

/// False for the question of a command, for which no prompt waits.
fn is_of_step(approval: &ApprovalRecord) -> bool {
    approval.request.input_id.is_none()
}

fn prompt_summaries(head: &Head, state: State) -> Vec<PromptSummary> {
    let running = head.prompt.as_ref().map(|run| &run.id);
    head.prompts
        .iter()
        .map(|span| PromptSummary {
            id: span.id.clone(),
            state: match (running == Some(&span.id), state) {
                (true, State::WaitingForApproval) => PromptState::WaitingForApproval,
                (true, State::Idle | State::Running) => PromptState::Running,
                (false, _) => span.state,
            },
        })
        .collect()
}

fn build_view(
    services: &Services,
    head: &Head,
    state: State,
    prompts: Vec<PromptSummary>,
    pending: &[ApprovalRecord],
) -> ConversationView {
    let agent = services.agents.find(Some(&head.agent));
    ConversationView {
        unknown_tools: agent.map(|agent| agent.unknown_tools(&head.settings)).unwrap_or_default(),
        id: head.conversation_id.clone(),
        agent: head.agent.clone(),
        owner: OwnerView { tenant_id: head.tenant.clone(), user_id: head.user.clone() },
        state,
        turn: head.turn,
        leaf_id: head.leaf_id.clone(),
        seq: head.seq,
        last_event_id: head.event_seq,
        settings: head.settings.clone(),
        usage: head.usage,
        metadata: head.metadata.clone(),
        name: head.name.clone(),
        preview: head.preview().map(ToOwned::to_owned),
        why: None,
        parent: head.parent.clone(),
        pending_approvals: pending.iter().map(ApprovalRecord::view).collect(),
        prompts,
        created_at: head.created_at,
        updated_at: head.updated_at,
    }
}

/// Messages on the path to the leaf, with their stored roles and shapes. If another page follows,
/// also returns the id of the last entry of the page. Pages that start after an entry id stay
/// complete when the leaf moves between them.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn read_messages(
    services: &Services,
    head: &Head,
    after: Option<&str>,
    limit: usize,
) -> Result<(Vec<RawJson>, Option<String>), CommandError> {
    let entries = load::all_entries(services, head).await?;
    let path = path_to_leaf(&entries, head.leaf_id.as_ref());
    let start = page_start(&path, after)?;
    let mut rest = path
        .iter()
        .skip(start)
        .filter_map(|entry| Some((&entry.base.entry_id, entry_as_message(entry)?)));
    let page: Vec<_> = rest.by_ref().take(limit).collect();
    let next = page.last().map(|(id, _)| id.to_string()).filter(|_| rest.next().is_some());
    Ok((page.into_iter().map(|(_, message)| message).collect(), next))
}

/// Index of the first entry of a page, which follows the entry `after`.
///
/// # Errors
/// The entry is not on the path.
pub(crate) fn page_start(path: &[Arc<Entry>], after: Option<&str>) -> Result<usize, CommandError> {
    let Some(after) = after else { return Ok(0) };
    let last = path.iter().position(|entry| entry.base.entry_id.as_str() == after);
    Ok(1 + last.ok_or_else(|| CommandError::invalid("?continuation", LEAF_MOVED))?)
}

const LEAF_MOVED: &str = "The conversation moved to another branch since the last page. Start again without a continuation.";

/// Message of an entry; `None` for entries without one.
#[expect(clippy::wildcard_enum_match_arm, reason = "only these kinds have a message")]
pub(crate) fn entry_as_message(entry: &Entry) -> Option<RawJson> {
    let at = entry.base.timestamp;
    match &entry.body {
        // Imports of earlier versions stored values without a role.
        EntryBody::Message(message) if message.message.role().is_empty() => None,
        EntryBody::Message(message) => Some(RawJson::from_value(&message.message)),
        EntryBody::CustomMessage(custom) => Some(raw_object!({
            "role": "custom", "customType": custom.custom_type, "content": custom.content,
            "display": custom.display, "details": custom.details, "timestamp": at,
        })),
        EntryBody::BranchSummary(branch) => Some(raw_object!({
            "role": "branchSummary", "summary": branch.summary, "fromId": branch.from_id, "timestamp": at,
        })),
        EntryBody::Compaction(compaction) => Some(raw_object!({
            "role": "compactionSummary", "summary": compaction.summary,
            "tokensBefore": compaction.tokens_before, "timestamp": at,
        })),
        _ => None,
    }
}

/// Members with a public name besides the stored one: the member that has them (none: the entry),
/// stored name, public name.
const PUBLIC_NAMES: [(Option<&str>, &str, &str); 3] = [
    (None, "user", "userId"),
    (Some("decision"), "requestId", "approvalId"),
    (Some("request"), "tool", "toolName"),
];

/// View of an entry, with `id` instead of `entryId`, and with public names besides stored names.
pub fn entry_view(entry: &Entry) -> RawJson {
    let mut view = RawJson::from_value(entry).members().unwrap_or_default();
    for (part, stored, public) in PUBLIC_NAMES {
        let Some(part) = part else {
            copy_member(&mut view, stored, public);
            continue;
        };
        let found = view.iter_mut().find(|(name, _)| name == part);
        if let Some((value, mut members)) = found.and_then(|(_, it)| it.members().map(|m| (it, m)))
        {
            copy_member(&mut members, stored, public);
            *value = RawJson::from_members(members);
        }
    }
    for (name, _) in &mut view {
        if name == "entryId" {
            "id".clone_into(name);
        }
    }
    RawJson::from_members(view)
}

fn copy_member(members: &mut Vec<(String, RawJson)>, stored: &str, public: &str) {
    let value = members.iter().find(|(name, _)| name == stored).map(|(_, value)| value.clone());
    members.extend(value.map(|value| (public.to_owned(), value)));
}
