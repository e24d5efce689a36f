//! Explanation of a conversation's state in one sentence. It is built from head and inbox alone, so
//! that every caller reads the same text.

mod cause;
mod leaf;
mod requests;
mod texts;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::conversation::OwnerView;
use crate::models::find_next_model_error;
use crate::why::leaf::{LeafFacts, find_leaf_facts};
use turnwheel_conversation::entry::{Entry, EntryBody, PromptState};
use turnwheel_conversation::event::EventBody;
use turnwheel_conversation::head::{Head, Lease, State};
use turnwheel_conversation::inbox::InboxItem;
use turnwheel_conversation::message::{AssistantMessage, IncompleteDetails, Message};
use turnwheel_conversation::phase::Phase;
use turnwheel_platform::clock::{Timestamp, iso, iso_option};
use turnwheel_platform::ids::{ConversationId, ConversationKey, WorkerId};
use turnwheel_record::contract::CommandError;
use turnwheel_record::documents::{self, EventsBody};
use turnwheel_record::event_log::truncate_error;
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::store::{
    ConversationStore, DocumentKind, Freshness, HEAD_ID, Partition, Selection, StoreError,
    TAKE_OVER_DELAY, events_id,
};

/// Delay after which pending work is overdue. By then the recovery sweep has had its time and one
/// more period, so the work needs an operator.
const OVERDUE_AFTER: Duration = Duration::from_secs(150);

/// Reason why a conversation waits or runs.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WhyView {
    #[schema(value_type = String)]
    pub id: ConversationId,
    pub owner: OwnerView,
    pub agent: String,
    /// `idle`, `running` or `waiting_for_approval`.
    #[schema(value_type = String)]
    pub state: State,
    /// One sentence for users and operators.
    pub why: String,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    pub waits_for: WaitsFor,
    /// Time when it continues by itself, or when a worker checks it again.
    #[serde(default, with = "iso_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub due: Option<Timestamp>,
    /// Lease of the worker that processes it, or that stopped without releasing it.
    #[serde(rename = "claim")]
    pub lease: Option<LeaseView>,
    /// Events or actions that let it continue, the most likely first.
    pub unblock: Vec<String>,
    /// The requests among these actions, ready to be sent.
    #[serde(default)]
    pub requests: Vec<UnblockRequest>,
}

/// A request that lets a conversation continue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnblockRequest {
    pub method: String,
    pub path: String,
    /// A JSON object.
    #[schema(value_type = Object)]
    pub body: serde_json::Value,
    /// Its effect, as a clause.
    pub effect: String,
    /// The command of `turnwheel` that sends it, without the options that select a service. Absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub command: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseView {
    #[schema(value_type = String)]
    pub worker: WorkerId,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub until: Timestamp,
    pub epoch: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// No work is pending.
    Nothing,
    /// The next prompt: inputs are held for it.
    NextPrompt,
    /// A worker: work is pending, and no worker has the lease.
    Nudge,
    /// The worker with the lease, which applies the newest input.
    Worker,
    /// The worker with the lease, which calls the model.
    Model,
    /// The worker with the lease, which runs tool calls.
    Tools,
    /// The worker with the lease, which summarises the conversation.
    Summary,
    /// Another worker, because the one with the lease stopped.
    TakeOver,
    /// The next attempt of a failed model call or summary.
    Retry,
    /// The next attempt, in isolation, of a step during which worker processes died.
    BackOff,
    /// An approver, who decides whether a call may run.
    Approval,
    /// An approver, who settles the outcome of a write.
    Outcome,
    /// An approver, who replies to a question of an extension.
    Answer,
    /// An approver, who decides whether a budget is extended.
    Budget,
    /// Running calls, which may use up the rest of a budget.
    BudgetInUse,
    /// The tenant's usage ledger.
    #[serde(rename = "books")]
    Ledger,
    /// The rate limit of model calls.
    Rate,
    /// The repair of what refuses a message of `agent-prompts`, such as an extension that is down.
    Message,
    /// The end of an operator's pause.
    Paused,
    /// A newer version of Turnwheel.
    NewerVersion,
}

impl WaitsFor {
    /// True if an approver must decide first.
    pub fn is_decision(self) -> bool {
        matches!(self, Self::Approval | Self::Outcome | Self::Answer | Self::Budget)
    }
}

/// Facts from which the sentence is built.
#[derive(Clone, Debug)]
pub(crate) struct WhyFacts {
    pub head: Head,
    /// Queued items, oldest first.
    pub inbox: Vec<InboxItem>,
    /// Tool names of the open response's calls, in source order; empty if there is no open
    /// response.
    pub tools: Vec<String>,
    /// Worker with the lease and its end, if the store keeps leases apart from heads.
    pub lease_holder: Option<(WorkerId, Timestamp)>,
    pub now: Timestamp,
    /// Error of the last failed prompt, or of the last attempt of the retried model call or
    /// summary.
    pub last_error: Option<String>,
    pub leaf: LeafFacts,
    /// Why the last response of the last prompt is incomplete, if nothing runs.
    pub incomplete: Option<IncompleteDetails>,
    /// Reason why the agent cannot accept a prompt.
    pub agent_problem: Option<String>,
    /// Reason why a prompt without a `model` is refused.
    pub model_problem: Option<String>,
    /// True if no process serves this store, so that every lease is void.
    pub is_service_stopped: bool,
}

impl WhyFacts {
    /// The newest lease that was not released.
    fn lease(&self) -> Option<LeaseView> {
        let from_holder = |(worker, until): &(WorkerId, Timestamp)| LeaseView {
            worker: worker.clone(),
            until: *until,
            epoch: self.head.epoch.max(1),
        };
        let from_lease = |Lease { worker, epoch, until }| LeaseView { worker, until, epoch };
        self.lease_holder
            .as_ref()
            .map(from_holder)
            .or_else(|| self.head.lease.clone().map(from_lease))
    }

    /// True if the worker with the lease may still act, so that no other worker may.
    fn is_live(&self, lease: &LeaseView) -> bool {
        !self.is_service_stopped && self.now < lease.until.plus(TAKE_OVER_DELAY)
    }
}

/// Service that processes the conversations, as far as the caller knows.
#[derive(Clone, Copy, Debug)]
pub enum ServiceStatus<'a> {
    /// It runs in another process.
    Remote,
    /// It runs in this process.
    Local(&'a Services),
    /// It does not run.
    Stopped,
}

/// Explains the state of one conversation. Makes two reads and one query, and one more query after a
/// completed prompt. After a failure, or while inputs are held, it also reads the context of the
/// leaf, and up to two entries.
///
/// # Errors
/// Returns [`CommandError::NotFound`], or `Unavailable` if the store does not respond: repeat the
/// request.
pub async fn explain_conversation(
    store: &dyn ConversationStore,
    key: &ConversationKey,
    service: ServiceStatus<'_>,
    now: Timestamp,
) -> Result<WhyView, CommandError> {
    let mut facts = load_facts(store, key, now).await?;
    match service {
        ServiceStatus::Remote => {}
        ServiceStatus::Local(services) => {
            (facts.agent_problem, facts.model_problem) = find_problems(services, &facts.head);
        }
        ServiceStatus::Stopped => facts.is_service_stopped = true,
    }
    Ok(build_view(&facts))
}

/// Returns the sentence for a list. Reads more than the head only if work is pending.
pub(crate) async fn explain_head(services: &Services, head: &Head) -> Result<String, CommandError> {
    let now = services.clock.now();
    if head.phase != Phase::Idle || !head.requests.is_empty() {
        let status = ServiceStatus::Local(services);
        return match explain_conversation(&*services.store, &head.key(), status, now).await {
            Ok(view) => Ok(view.why),
            // It was deleted since the list was read.
            Err(CommandError::NotFound(_)) => Ok(String::new()),
            Err(error) => Err(error),
        };
    }
    let facts = WhyFacts {
        head: head.clone(),
        inbox: Vec::new(),
        tools: Vec::new(),
        lease_holder: services.store.lease_holder(&head.key()),
        now,
        last_error: None,
        leaf: LeafFacts::default(),
        incomplete: None,
        agent_problem: None,
        model_problem: None,
        is_service_stopped: false,
    };
    Ok(build_view(&facts).why)
}

/// Returns the problems of the agent and of the model of the next prompt.
fn find_problems(services: &Services, head: &Head) -> (Option<String>, Option<String>) {
    match services.agents.find(Some(&head.agent)) {
        Ok(agent) => (None, find_next_model_error(services, head, &agent)),
        Err(problem) => (Some(problem.to_string()), None),
    }
}

async fn load_facts(
    store: &dyn ConversationStore,
    key: &ConversationKey,
    now: Timestamp,
) -> Result<WhyFacts, CommandError> {
    let partition = Partition::Conversation(key.clone());
    // In this order: an item that is applied between the two reads is in the head.
    let all = Selection::all(DocumentKind::Inbox);
    let found = store.select(&partition, &all, Freshness::Latest).await?;
    let lease_holder = store.lease_holder(key);
    let stored = store.read(&partition, HEAD_ID, Freshness::Latest).await?;
    let head = stored.map(|stored| documents::read_head(&stored)).transpose()?;
    let head = head.filter(|head| head.phase != Phase::Deleted);
    let head = head.ok_or(CommandError::NotFound("conversation"))?;
    let mut inbox: Vec<InboxItem> = found.iter().map(load::parse_body).collect::<Result<_, _>>()?;
    inbox.retain(|item| !load::has_begun(&head, item));
    inbox.sort_by(|one, other| {
        (one.accepted_at, &one.input_id).cmp(&(other.accepted_at, &other.input_id))
    });
    let tools = match head.phase {
        Phase::Calls { response_seq: response, .. } => {
            let response = read_entry(store, &partition, response).await?;
            response.as_deref().map(tool_names).unwrap_or_default()
        }
        Phase::Idle | Phase::Model { .. } | Phase::Summary { .. } | Phase::Deleted => Vec::new(),
    };
    let last_error = find_last_error(store, &partition, &head).await?;
    let leaf = find_leaf_facts(store, &partition, &head, &inbox).await?;
    Ok(WhyFacts {
        inbox,
        tools,
        lease_holder,
        now,
        last_error,
        leaf,
        incomplete: find_incomplete(store, &partition, &head).await?,
        head,
        agent_problem: None,
        model_problem: None,
        is_service_stopped: false,
    })
}

async fn read_entry(
    store: &dyn ConversationStore,
    partition: &Partition,
    seq: u64,
) -> Result<Option<Arc<Entry>>, StoreError> {
    Ok(load::stored_entries(store, partition, seq, seq).await?.pop())
}

/// Maximum number of entries between a failed model call and its retry.
const ENTRIES_AFTER_FAILURE: u64 = 8;
/// Maximum number of events between a failed summary and its retry.
const EVENTS_AFTER_FAILURE: u64 = 64;

async fn find_last_error(
    store: &dyn ConversationStore,
    partition: &Partition,
    head: &Head,
) -> Result<Option<String>, CommandError> {
    if let Phase::Summary { attempt: 2.., .. } = head.phase {
        return find_last_summary_error(store, partition, head).await;
    }
    let newest = match &head.phase {
        Phase::Idle => head.prompts.last().filter(|last| last.state == PromptState::Failed),
        Phase::Model { attempt, .. } if *attempt > 1 => head.prompts.last(),
        Phase::Model { .. } | Phase::Summary { .. } | Phase::Calls { .. } | Phase::Deleted => None,
    };
    let Some(span) = newest else { return Ok(None) };
    let newest = span.to_seq.unwrap_or(head.seq);
    let from = newest.saturating_sub(ENTRIES_AFTER_FAILURE);
    let entries = load::stored_entries(store, partition, from, newest).await?;
    Ok(entries.iter().rev().find_map(|entry| entry_error(entry)).map(to_clause))
}

/// Finds the reason why the last completed prompt is incomplete, if it is.
async fn find_incomplete(
    store: &dyn ConversationStore,
    partition: &Partition,
    head: &Head,
) -> Result<Option<IncompleteDetails>, CommandError> {
    let last = head.prompts.last().filter(|last| last.state == PromptState::Completed);
    let Some(end) = last.filter(|_| head.phase == Phase::Idle).and_then(|last| last.to_seq) else {
        return Ok(None);
    };
    let entry = read_entry(store, partition, end).await?;
    let Some(EntryBody::PromptEnd(end)) = entry.as_deref().map(|entry| &entry.body) else {
        return Ok(None);
    };
    Ok(end.incomplete.as_deref().cloned())
}

/// Finds the error of a failed summary in the event of its retry, because no entry has it.
async fn find_last_summary_error(
    store: &dyn ConversationStore,
    partition: &Partition,
    head: &Head,
) -> Result<Option<String>, CommandError> {
    let from = head.event_seq.saturating_sub(EVENTS_AFTER_FAILURE);
    let newest =
        Selection { from_id: Some(events_id(from)), ..Selection::all(DocumentKind::Events) };
    let mut error = None;
    for stored in store.select(partition, &newest, Freshness::Any).await? {
        let body: EventsBody = documents::read(&stored.document)?;
        for event in body.events {
            if let EventBody::SummarizationRetryScheduled(retry) = event.body {
                error = Some(to_clause(&retry.error_message));
            }
        }
    }
    Ok(error)
}

/// Error as one line without a full stop, for use inside a sentence.
fn to_clause(error: &str) -> String {
    let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
    truncate_error(&error).trim_end_matches('.').to_owned()
}

fn entry_error(entry: &Entry) -> Option<&str> {
    if let EntryBody::PromptEnd(end) = &entry.body {
        return end.error.as_ref().map(|error| error.message.as_str());
    }
    let message = entry.body.message().and_then(Message::as_assistant)?;
    message.error_message.as_deref()
}

/// Tool names of a response's calls.
fn tool_names(response: &Entry) -> Vec<String> {
    let message = response.body.message().and_then(Message::as_assistant);
    let calls = message.into_iter().flat_map(AssistantMessage::tool_calls);
    calls.map(|call| call.name.clone()).collect()
}

/// Builds the view. No other function builds the sentence.
pub(crate) fn build_view(facts: &WhyFacts) -> WhyView {
    let head = &facts.head;
    let lease = facts.lease();
    let cause = cause::explain(facts, lease.as_ref());
    let waits_for = cause.waits_for;
    let has_queued_prompt = || load::queued_prompts(head, &facts.inbox).next().is_some();
    let state = if waits_for.is_decision() {
        State::WaitingForApproval
    } else if head.phase == Phase::Idle && !has_queued_prompt() {
        State::Idle
    } else {
        State::Running
    };
    WhyView {
        id: head.conversation_id.clone(),
        owner: OwnerView { tenant_id: head.tenant.clone(), user_id: head.user.clone() },
        agent: head.agent.clone(),
        state,
        requests: requests::unblock_requests(&cause, facts),
        why: cause.sentence,
        since: cause.since,
        waits_for,
        due: cause.due,
        lease,
        unblock: cause.hints,
    }
}

#[cfg(test)]
mod tests;
