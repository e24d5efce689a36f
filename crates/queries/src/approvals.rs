//! Views of approvals: open requests, decisions, and the requests that a caller may decide.

use std::borrow::Cow;

use serde::Serialize;
use utoipa::ToSchema;

use crate::state_name;
use turnwheel_conversation::budget::BudgetExceeded;
use turnwheel_conversation::destination::Destination;
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::head::{Head, State};
use turnwheel_conversation::inbox::InboxBody;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::request::{Decision, Effect, Request, RequestKind, Verdict};
use turnwheel_json::raw::RawJson;
use turnwheel_json::text::{LINE_CHARS_MAX, escape_hidden, sanitize_line, sanitize_lines};
use turnwheel_platform::clock::{Timestamp, iso, iso_option};
use turnwheel_platform::ids::{
    ConversationId, ConversationKey, EffectId, InputId, PromptId, RequestId, TenantId, UserId,
};
use turnwheel_record::contract::{CommandError, Decider};
use turnwheel_record::expiry::decision_id;
use turnwheel_record::idempotency::{PreviousRequest, find_previous_request};
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::store::HeadQuery;

/// Maximum number of heads that one list of all approvals reads.
const HEADS_READ_MAX: usize = 1_000;
const PAGE_SIZE: usize = 100;

/// A request with its decision, if there is one.
#[derive(Clone, Debug)]
pub struct ApprovalRecord {
    pub key: ConversationKey,
    /// Name of the conversation's agent.
    pub agent: String,
    pub request: Request,
    pub arguments: Option<RawJson>,
    /// Set for the outcome of a write.
    pub sent: Option<SentCall>,
    pub decision: Option<Decision>,
    /// The open request that replaced this one: the tool changed after the approval.
    pub replaced_by: Option<RequestId>,
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalView {
    #[schema(value_type = String)]
    pub id: RequestId,
    #[schema(value_type = String)]
    pub conversation_id: ConversationId,
    /// Owner of the conversation; if that is another user, send it as `?userId=`.
    #[schema(value_type = String)]
    pub user_id: UserId,
    /// Agent of the conversation.
    pub agent: String,
    /// True if the caller may decide it. Absent in events, and in responses to a decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub can_decide: Option<bool>,
    /// `tool`, `outcome`, `budget` or `question`.
    #[schema(value_type = String)]
    pub kind: RequestKind,
    pub title: String,
    pub reason: String,
    /// The prompt that waits for the decision. Absent: none does.
    #[schema(value_type = Option<String>)]
    pub prompt_id: Option<PromptId>,
    /// The command that waits for the answer.
    #[schema(value_type = Option<String>)]
    pub input_id: Option<InputId>,
    pub tool_call_id: Option<String>,
    pub tool_name: Option<String>,
    /// Display name of the tool. Absent: it has none but its name.
    pub tool_label: Option<String>,
    /// Former name of `toolName`.
    #[schema(deprecated)]
    pub tool: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<RawJson>,
    #[schema(value_type = Option<String>)]
    pub effect: Option<Effect>,
    /// Only for the outcome of a write: the call that was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub sent: Option<SentCall>,
    /// The place to which the call is sent. Absent: the app itself runs it.
    #[schema(nullable = false)]
    pub destination: Option<Destination>,
    #[schema(value_type = Vec<String>)]
    pub decisions: &'static [Verdict],
    /// The exceeded budget: `level`, `period`, `unit` (`tokens` or `usd`), `limit` and `used`.
    #[schema(value_type = Option<Object>)]
    pub budget: Option<RawJson>,
    #[schema(value_type = Option<Object>)]
    pub schema: Option<RawJson>,
    /// The extension that asks a question.
    pub extension: Option<String>,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub requested_at: Timestamp,
    #[serde(with = "iso_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    pub approvers: Vec<String>,
    pub not_requester: bool,
}

/// A call that was sent, and whose response was lost.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SentCall {
    /// `Idempotency-Key` of its request, the same for each attempt.
    #[schema(value_type = String)]
    pub effect_id: EffectId,
    /// From 1.
    pub attempt: u32,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub sent_at: Timestamp,
}

/// An approval with its decision.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SettledView {
    #[serde(flatten)]
    pub approval: ApprovalView,
    #[schema(value_type = String)]
    pub decision: Verdict,
    pub decision_reason: Option<String>,
    #[schema(value_type = serde_json::Value, required = false)]
    pub value: Option<RawJson>,
    /// A user's id, `link`, `expiry` or `abort`.
    pub decided_by: String,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub decided_at: Timestamp,
    /// The open approval request that replaced this one because the tool changed.
    #[schema(value_type = Option<String>)]
    pub replaced_by: Option<RequestId>,
}

impl ApprovalRecord {
    pub fn view(&self) -> ApprovalView {
        let view = approval_view(&self.key, &self.request, self.arguments.clone());
        ApprovalView { agent: self.agent.clone(), sent: self.sent.clone(), ..view }
    }

    pub fn settled_view(&self, decision: &Decision) -> SettledView {
        SettledView {
            approval: self.view(),
            decision: decision.verdict,
            decision_reason: decision.reason.clone(),
            value: decision.value.clone(),
            decided_by: decision.decided_by.clone(),
            decided_at: decision.decided_at,
            replaced_by: self.replaced_by.clone(),
        }
    }
}

fn approval_view(
    key: &ConversationKey,
    request: &Request,
    arguments: Option<RawJson>,
) -> ApprovalView {
    let asker = request.asker.as_ref();
    ApprovalView {
        id: request.id.clone(),
        conversation_id: key.conversation_id.clone(),
        user_id: key.user.clone(),
        agent: String::new(),
        can_decide: None,
        kind: request.kind,
        title: sanitize_line(&request.title, LINE_CHARS_MAX),
        reason: sanitize_lines(&request.reason, LINE_CHARS_MAX),
        prompt_id: request.running_prompt().cloned(),
        input_id: request.input_id.clone(),
        tool_call_id: request.tool_call_id.clone(),
        tool_name: request.tool.clone(),
        tool_label: request.label.clone(),
        tool: request.tool.clone(),
        arguments: arguments.map(with_escapes),
        effect: request.effect,
        sent: None,
        destination: request.destination.clone(),
        decisions: request.kind.decisions(),
        budget: request.budget.as_ref().map(BudgetExceeded::to_json),
        schema: request.schema.clone(),
        extension: asker.map(|asker| sanitize_line(&asker.extension, LINE_CHARS_MAX)),
        requested_at: request.requested_at,
        expires_at: request.expires_at,
        approvers: request.approvers.clone(),
        not_requester: request.is_requester_excluded,
    }
}

fn with_escapes(arguments: RawJson) -> RawJson {
    let escaped = match escape_hidden(arguments.text()) {
        Cow::Borrowed(_) => None,
        Cow::Owned(text) => RawJson::from_text(text).ok(),
    };
    escaped.unwrap_or(arguments)
}

/// Loads the approval with that id, open or decided.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn load_approval(
    services: &Services,
    head: &Head,
    id: &RequestId,
) -> Result<Option<ApprovalRecord>, CommandError> {
    let key = head.key();
    let open = head.requests.iter().find(|request| &request.id == id).cloned();
    let mut recorded_decision = None;
    let request = if let Some(request) = open {
        request
    } else {
        let entries = load::all_entries(services, head).await?;
        let recorded_request = entries.iter().rev().find_map(|entry| request_in(entry, id));
        recorded_decision = entries.iter().rev().find_map(|entry| decision_in(entry, id));
        let Some(request) = recorded_request else { return Ok(None) };
        request
    };
    let decision = match find_decision(services, &key, id).await? {
        Some(decision) => Some(decision),
        None => recorded_decision,
    };
    let (arguments, sent) = load_call(services, head, &request).await?;
    let replaced_by = find_replacement(head, &request);
    let agent = head.agent.clone();
    Ok(Some(ApprovalRecord { key, agent, request, arguments, sent, decision, replaced_by }))
}

/// Finds the open approval of the same call as a decided one.
fn find_replacement(head: &Head, decided: &Request) -> Option<RequestId> {
    let call = decided.call.filter(|_| decided.kind == RequestKind::Tool)?;
    let is_newer = |open: &&Request| {
        open.call == Some(call) && open.kind == RequestKind::Tool && open.id != decided.id
    };
    head.requests.iter().find(is_newer).map(|open| open.id.clone())
}

fn request_in(entry: &Entry, id: &RequestId) -> Option<Request> {
    let EntryBody::Request(entry_body) = &entry.body else { return None };
    (&entry_body.request.id == id).then(|| Request::clone(&entry_body.request))
}

fn decision_in(entry: &Entry, id: &RequestId) -> Option<Decision> {
    let EntryBody::Decision(decided) = &entry.body else { return None };
    (&decided.decision.request_id == id).then(|| Decision::clone(&decided.decision))
}

/// Finds the accepted decision, even if no worker has applied it.
pub(crate) async fn find_decision(
    services: &Services,
    key: &ConversationKey,
    id: &RequestId,
) -> Result<Option<Decision>, CommandError> {
    Ok(match find_previous_request(services, key, decision_id(id).as_str()).await? {
        Some(PreviousRequest::Queued(item)) => match item.body {
            InboxBody::Decision(decision) => Some(decision),
            InboxBody::Prompt(_)
            | InboxBody::Steer(_)
            | InboxBody::FollowUp(_)
            | InboxBody::Abort(_)
            | InboxBody::Continue(_)
            | InboxBody::LateResult(_)
            | InboxBody::Command(_)
            | InboxBody::Custom(_) => None,
        },
        Some(PreviousRequest::Finished(receipt)) => receipt.decision,
        None => None,
    })
}

/// Entries after a model response in which its calls have started.
const ENTRIES_OF_CALLS_MAX: u64 = 500;

/// Loads the arguments of the requested call: those that were sent, else those of the model response
/// that contains it; and for the outcome of a write, its last attempt.
async fn load_call(
    services: &Services,
    head: &Head,
    request: &Request,
) -> Result<(Option<RawJson>, Option<SentCall>), CommandError> {
    let is_sent = request.kind == RequestKind::Outcome;
    let Some(call) = request.call.filter(|_| is_sent || request.arguments.is_none()) else {
        return Ok((request.arguments.clone(), None));
    };
    let from = call.response_seq;
    let to = if is_sent { head.seq.min(from + ENTRIES_OF_CALLS_MAX) } else { from };
    let entries = load::entries(services, &head.key(), from, to).await?;
    let started = entries.iter().rev().find_map(|entry| {
        let EntryBody::ToolStarted(started) = &entry.body else { return None };
        (started.call == call).then_some((started, entry.base.timestamp))
    });
    let changed = started.and_then(|(started, _)| started.arguments.clone());
    let of_model = || entries.first().and_then(|entry| call_arguments(entry, call.index));
    let sent = started.map(|(started, sent_at)| SentCall {
        effect_id: started.effect_id.clone(),
        attempt: started.attempt,
        sent_at,
    });
    Ok((request.arguments.clone().or(changed).or_else(of_model), sent))
}

/// Arguments of a call of a model response.
pub fn call_arguments(entry: &Entry, index: usize) -> Option<RawJson> {
    let Some(Message::Assistant(response)) = entry.body.message() else { return None };
    response.tool_calls().nth(index).map(|call| call.arguments.clone())
}

/// Requests of a conversation without a decision.
///
/// # Errors
/// The store is unavailable.
pub async fn pending_approvals(
    services: &Services,
    head: &Head,
) -> Result<Vec<ApprovalRecord>, CommandError> {
    let key = head.key();
    let mut pending = Vec::with_capacity(head.requests.len());
    for request in &head.requests {
        if find_decision(services, &key, &request.id).await?.is_none() {
            let (arguments, sent) = load_call(services, head, request).await?;
            let (key, agent, request) = (key.clone(), head.agent.clone(), request.clone());
            pending.push(ApprovalRecord {
                key,
                agent,
                request,
                arguments,
                sent,
                decision: None,
                replaced_by: None,
            });
        }
    }
    Ok(pending)
}

/// Requests that the user may decide, oldest first. Without roles, reads only the user's own
/// conversations.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn list_decidable(
    services: &Services,
    tenant: &TenantId,
    user: &UserId,
    roles: &[String],
) -> Result<Vec<ApprovalRecord>, CommandError> {
    let decider =
        Decider::User { tenant: tenant.clone(), user: user.clone(), roles: roles.to_vec() };
    let of_user = roles.is_empty().then(|| user.clone());
    let can_decide = |key: &ConversationKey, request: &Request| decider.can_decide(key, request);
    list_open(services, tenant, of_user, can_decide).await
}

/// Open requests of a tenant, or of one of its users, that `is_wanted` selects, oldest first.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn list_open(
    services: &Services,
    tenant: &TenantId,
    user: Option<UserId>,
    is_wanted: impl Fn(&ConversationKey, &Request) -> bool,
) -> Result<Vec<ApprovalRecord>, CommandError> {
    let mut query = HeadQuery {
        tenant: tenant.clone(),
        user,
        state: Some(state_name(State::WaitingForApproval).to_owned()),
        limit: PAGE_SIZE,
        continuation: None,
    };
    let now = services.clock.now();
    let mut found = Vec::new();
    let mut heads_read = 0;
    loop {
        let page = services.store.list_heads(&query).await?;
        heads_read += page.items.len();
        for stored in &page.items {
            let head: Head = turnwheel_record::documents::read_head(stored)?;
            let key = head.key();
            let can_decide =
                |request: &Request| is_wanted(&key, request) && !request.has_expired(now);
            if head.requests.iter().any(can_decide) {
                let pending = pending_approvals(services, &head).await?;
                found.extend(pending.into_iter().filter(|approval| can_decide(&approval.request)));
            }
        }
        query.continuation = page.continuation;
        if query.continuation.is_none() || heads_read >= HEADS_READ_MAX {
            break;
        }
    }
    found.sort_by(|one, other| sort_key(one).cmp(&sort_key(other)));
    Ok(found)
}

fn sort_key(approval: &ApprovalRecord) -> (Timestamp, &ConversationKey, &RequestId) {
    (approval.request.requested_at, &approval.key, &approval.request.id)
}
