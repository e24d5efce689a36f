//! Views of approvals: open requests, decisions, and the requests that a caller may decide.

use serde::Serialize;
use utoipa::ToSchema;

use crate::agent::budget::Shortage;
use crate::agent::entry::{Entry, EntryBody};
use crate::agent::head::{Head, State};
use crate::agent::inbox::InboxBody;
use crate::agent::message::Message;
use crate::agent::raw::RawJson;
use crate::agent::request::{Decision, Effect, Request, RequestKind, Verdict};
use crate::clock::{Timestamp, iso, iso_option};
use crate::ids::{ConversationId, ConversationKey, PromptId, RequestId, TenantId, UserId};
use crate::store::HeadQuery;
use crate::turn::World;
use crate::turn::admission::Refusal;
use crate::turn::admission::decide::Decider;
use crate::turn::admission::idempotency::{Earlier, earlier};
use crate::turn::expiry::decision_id;
use crate::turn::views::{load, state_name};

/// Maximum number of heads that one list of all approvals reads.
const HEADS_READ_MAX: usize = 1_000;
const PAGE: usize = 100;

/// A request with its decision, if there is one.
#[derive(Clone, Debug)]
pub struct Approval {
    pub key: ConversationKey,
    /// Name of the conversation's agent.
    pub agent: String,
    pub request: Request,
    pub arguments: Option<RawJson>,
    pub decision: Option<Decision>,
    /// The open request that replaced this one: the tool changed after the approval.
    pub replaced_by: Option<RequestId>,
}

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
    /// `tool`, `outcome`, `budget` or `question`.
    #[schema(value_type = String)]
    pub kind: RequestKind,
    pub title: String,
    pub reason: String,
    #[schema(value_type = String)]
    pub prompt_id: PromptId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// Former name of `toolName`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(deprecated)]
    pub tool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<RawJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub effect: Option<Effect>,
    #[schema(value_type = Vec<String>)]
    pub decisions: &'static [Verdict],
    /// The exceeded budget: `level`, `period`, `unit` (`tokens` or `usd`), `limit` and `used`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub budget: Option<RawJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub schema: Option<RawJson>,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub requested_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none", with = "iso_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    pub approvers: Vec<String>,
    pub not_requester: bool,
}

/// An approval with its decision.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SettledView {
    #[serde(flatten)]
    pub approval: ApprovalView,
    #[schema(value_type = String)]
    pub decision: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub value: Option<RawJson>,
    /// A user's id, `link`, `expiry` or `abort`.
    pub decided_by: String,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub decided_at: Timestamp,
    /// The open approval request that replaced this one because the tool changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub replaced_by: Option<RequestId>,
}

impl Approval {
    pub fn view(&self) -> ApprovalView {
        view(&self.key, &self.request, self.arguments.clone())
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

fn view(key: &ConversationKey, request: &Request, arguments: Option<RawJson>) -> ApprovalView {
    ApprovalView {
        id: request.id.clone(),
        conversation_id: key.conversation_id.clone(),
        user_id: key.user.clone(),
        kind: request.kind,
        title: request.title.clone(),
        reason: request.reason.clone(),
        prompt_id: request.prompt_id.clone(),
        tool_call_id: request.tool_call_id.clone(),
        tool_name: request.tool.clone(),
        tool: request.tool.clone(),
        arguments,
        effect: request.effect,
        decisions: request.kind.decisions(),
        budget: request.budget.as_ref().map(Shortage::view),
        schema: request.schema.clone(),
        requested_at: request.requested_at,
        expires_at: request.expires_at,
        approvers: request.approvers.clone(),
        not_requester: request.not_requester,
    }
}

/// Loads the approval with that id, open or decided.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn approval(
    world: &World,
    head: &Head,
    id: &RequestId,
) -> Result<Option<Approval>, Refusal> {
    let key = head.key();
    let open = head.requests.iter().find(|request| &request.id == id).cloned();
    let mut on_record = None;
    let request = if let Some(request) = open {
        request
    } else {
        let entries = load::all_entries(world, head).await?;
        let asked = entries.iter().rev().find_map(|entry| asked_in(entry, id));
        on_record = entries.iter().rev().find_map(|entry| decided_in(entry, id));
        let Some(request) = asked else { return Ok(None) };
        request
    };
    let decision = match decided(world, &key, id).await? {
        Some(decision) => Some(decision),
        None => on_record,
    };
    let arguments = arguments_of(world, &key, &request).await?;
    let replaced_by = replacement(head, &request);
    let agent = head.agent.clone();
    Ok(Some(Approval { key, agent, request, arguments, decision, replaced_by }))
}

/// Finds the open request about the same call as a decided request.
fn replacement(head: &Head, decided: &Request) -> Option<RequestId> {
    let call = decided.call?;
    let is_newer = |open: &&Request| open.call == Some(call) && open.id != decided.id;
    head.requests.iter().find(is_newer).map(|open| open.id.clone())
}

fn asked_in(entry: &Entry, id: &RequestId) -> Option<Request> {
    let EntryBody::Request(asked) = &entry.body else { return None };
    (&asked.request.id == id).then(|| asked.request.clone())
}

fn decided_in(entry: &Entry, id: &RequestId) -> Option<Decision> {
    let EntryBody::Decision(decided) = &entry.body else { return None };
    (&decided.decision.request_id == id).then(|| decided.decision.clone())
}

/// Finds the accepted decision, even if no worker has applied it.
pub(crate) async fn decided(
    world: &World,
    key: &ConversationKey,
    id: &RequestId,
) -> Result<Option<Decision>, Refusal> {
    Ok(match earlier(world, key, decision_id(id).as_str()).await? {
        Some(Earlier::Waiting(item)) => match item.body {
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
        Some(Earlier::Settled(receipt)) => receipt.decision,
        None => None,
    })
}

/// Loads the arguments of the requested call from the model response that contains it.
async fn arguments_of(
    world: &World,
    key: &ConversationKey,
    request: &Request,
) -> Result<Option<RawJson>, Refusal> {
    let Some(call) = request.call else { return Ok(None) };
    let entries = load::entries(world, key, call.answer, call.answer).await?;
    Ok(entries.first().and_then(|entry| call_arguments(entry, call.index)))
}

/// Arguments of a call of a model response.
pub fn call_arguments(entry: &Entry, index: usize) -> Option<RawJson> {
    let Some(Message::Assistant(answer)) = entry.body.message() else { return None };
    answer.tool_calls().nth(index).map(|call| call.arguments.clone())
}

/// Requests of a conversation without a decision.
pub(crate) async fn pending(world: &World, head: &Head) -> Result<Vec<Approval>, Refusal> {
    let key = head.key();
    let mut pending = Vec::with_capacity(head.requests.len());
    for request in &head.requests {
        if decided(world, &key, &request.id).await?.is_none() {
            let arguments = arguments_of(world, &key, request).await?;
            let (key, agent, request) = (key.clone(), head.agent.clone(), request.clone());
            pending.push(Approval {
                key,
                agent,
                request,
                arguments,
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
pub async fn decidable(
    world: &World,
    tenant: &TenantId,
    user: &UserId,
    roles: &[String],
) -> Result<Vec<Approval>, Refusal> {
    let who = Decider::Person { tenant: tenant.clone(), user: user.clone(), roles: roles.to_vec() };
    let mut query = HeadQuery {
        tenant: tenant.clone(),
        user: roles.is_empty().then(|| user.clone()),
        state: Some(state_name(State::WaitingForApproval).to_owned()),
        limit: PAGE,
        continuation: None,
    };
    let now = world.clock.now();
    let mut found = Vec::new();
    let mut heads_read = 0;
    loop {
        let page = world.store.heads(&query).await?;
        heads_read += page.items.len();
        for stored in &page.items {
            let head: Head = crate::turn::record::read_head(stored)?;
            let key = head.key();
            let is_mine = |request: &Request| {
                who.may_decide(&key, request) && request.expires_at.is_none_or(|at| at > now)
            };
            if head.requests.iter().any(is_mine) {
                let pending = pending(world, &head).await?;
                found.extend(pending.into_iter().filter(|approval| is_mine(&approval.request)));
            }
        }
        query.continuation = page.continuation;
        if query.continuation.is_none() || heads_read >= HEADS_READ_MAX {
            break;
        }
    }
    found.sort_by(|one, other| order(one).cmp(&order(other)));
    Ok(found)
}

fn order(approval: &Approval) -> (Timestamp, &ConversationKey, &RequestId) {
    (approval.request.requested_at, &approval.key, &approval.request.id)
}
