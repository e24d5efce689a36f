//! Command that decides an approval request. The first create of the inbox item
//! `decision-{requestId}` wins; later callers receive the first decision.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::agent::entry::EntryBody;
use crate::agent::head::Head;
use crate::agent::inbox::{Admission, InboxBody, InboxItem};
use crate::agent::raw::RawJson;
use crate::agent::request::{Decision, Request, RequestKind, Verdict};
use crate::ids::{ConversationKey, RequestId, TenantId, UserId};
use crate::store::Write;
use crate::telemetry::trace;
use crate::turn::admission::idempotency::canonical_hash;
use crate::turn::admission::write::{Written, write_surely};
use crate::turn::admission::{Answer, Refusal, nudge};
use crate::turn::expiry::decision_id;
use crate::turn::views::approvals::{Approval, approval};
use crate::turn::views::load;
use crate::turn::{World, record};

/// Caller that sends a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decider {
    Person {
        tenant: TenantId,
        user: UserId,
        roles: Vec<String>,
    },
    /// Any caller with a signed link.
    Link,
}

impl Decider {
    fn name(&self) -> &str {
        match self {
            Self::Person { user, .. } => user.as_str(),
            Self::Link => "link",
        }
    }

    /// True if the caller may learn that the conversation exists.
    fn owns(&self, key: &ConversationKey) -> bool {
        match self {
            Self::Person { tenant, user, .. } => tenant == &key.tenant && user == &key.user,
            Self::Link => true,
        }
    }

    /// True if the request names the caller and does not exclude it.
    pub fn may_decide(&self, key: &ConversationKey, request: &Request) -> bool {
        self.is_named(key, request) && !self.is_excluded(request)
    }

    fn is_named(&self, key: &ConversationKey, request: &Request) -> bool {
        request.approvers.iter().any(|approver| match self {
            Self::Link => approver == "link",
            Self::Person { tenant, roles, .. } => {
                let by_role = approver.strip_prefix("role:").is_some_and(|role| {
                    tenant == &key.tenant && roles.iter().any(|mine| mine == role)
                });
                by_role || (approver == "owner" && self.owns(key))
            }
        })
    }

    fn is_excluded(&self, request: &Request) -> bool {
        match self {
            Self::Person { user, .. } => request.not_requester && user == &request.requested_by,
            Self::Link => false,
        }
    }
}

/// Body of a decision.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Said {
    /// One of the approval's `decisions`.
    pub decision: String,
    pub reason: Option<String>,
    /// Reply to a question, result of a write, or new limit of a budget.
    #[schema(value_type = Option<Object>)]
    pub value: Option<RawJson>,
}

const REASON_BYTES_MAX: usize = 4 * 1024;
const VALUE_BYTES_MAX: usize = 64 * 1024;

/// Decides the request with that id, tool call id, or part of a tool call id before `|`. The
/// response body is the approval with its decision.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn decide(
    world: &World,
    key: &ConversationKey,
    name: &str,
    said: Said,
    who: &Decider,
) -> Result<Answer, Refusal> {
    let (head, _) = load::head(world, key).await?;
    let id = request_id(world, &head, name).await?.ok_or(Refusal::NotFound("approval"))?;
    let approval = approval(world, &head, &id).await?.ok_or(Refusal::NotFound("approval"))?;
    let request = &approval.request;
    if !who.is_named(key, request) {
        return Err(if who.owns(key) {
            Refusal::Forbidden(format!(
                "You are not an approver of this request. Its approvers are: {}.",
                request.approvers.join(", ")
            ))
        } else {
            Refusal::NotFound("approval")
        });
    }
    if who.is_excluded(request) {
        return Err(Refusal::Forbidden(
            "The user who started the prompt may not decide this request. Ask another approver."
                .to_owned(),
        ));
    }
    let verdict = verdict(request.kind, &said.decision)?;
    check(request, verdict, &said)?;
    let now = world.clock.now();
    let decision = Decision {
        request_id: id.clone(),
        verdict,
        reason: said.reason,
        value: said.value,
        decided_by: who.name().to_owned(),
        decided_at: now,
    };
    if let Some(settled) = &approval.decision {
        if head.requests.iter().any(|open| open.id == id) {
            // No worker has applied the decision yet: its first nudge may be lost.
            nudge(world, key, of_prompt(&head)).await;
        }
        return conclude(&approval, settled, &decision);
    }
    if request.expires_at.is_some_and(|at| at <= now) {
        // The recovery sweep records the expiry; this nudge only makes it earlier.
        nudge(world, key, of_prompt(&head)).await;
        return Err(Refusal::Expired { at: request.expires_at });
    }
    create(world, &head, &approval, decision).await
}

fn of_prompt(head: &Head) -> Option<&str> {
    head.prompt.as_ref()?.traceparent.as_deref()
}

/// Creates the inbox item of the decision. The create is the arbiter.
async fn create(
    world: &World,
    head: &Head,
    approval: &Approval,
    decision: Decision,
) -> Result<Answer, Refusal> {
    let key = &head.key();
    let answer = settled(approval, &decision, false);
    let body = serde_json::json!({
        "decision": decision.verdict, "reason": decision.reason, "value": decision.value,
    });
    let item = InboxItem {
        input_id: decision_id(&decision.request_id),
        accepted_at: decision.decided_at,
        admission: Admission {
            body_hash: canonical_hash(&body),
            status: 200,
            answer: None,
            location: None,
        },
        traceparent: trace::traceparent(),
        body: InboxBody::Decision(decision.clone()),
    };
    world.probe.reached("admission.decide").await;
    let writes = vec![Write::Create(record::inbox_document(&item, Some(item.accepted_at)))];
    if let Written::Lost = write_surely(world, key, writes).await? {
        let (head, _) = load::head(world, key).await?;
        let found =
            crate::turn::views::approvals::approval(world, &head, &decision.request_id).await?;
        let Some((found, first)) =
            found.and_then(|found| found.decision.clone().map(|first| (found, first)))
        else {
            return Err(Refusal::contended());
        };
        if first != decision {
            return conclude(&found, &first, &decision);
        }
    }
    world.probe.reached("admission.decided").await;
    nudge(world, key, of_prompt(head)).await;
    Ok(answer)
}

/// Resolves a second decision: an equal one gets the first response again, another one an error
/// with the first decision.
fn conclude(approval: &Approval, first: &Decision, second: &Decision) -> Result<Answer, Refusal> {
    if first.says_the_same(second) {
        return Ok(settled(approval, first, true));
    }
    if first.verdict == Verdict::Expired {
        return Err(Refusal::Expired { at: approval.request.expires_at });
    }
    Err(Refusal::AlreadyDecided(RawJson::of(&approval.settled_view(first))))
}

fn settled(approval: &Approval, decision: &Decision, is_replayed: bool) -> Answer {
    let body = RawJson::of(&approval.settled_view(decision));
    Answer { status: 200, body: Some(body), location: None, etag: None, is_replayed }
}

fn verdict(kind: RequestKind, text: &str) -> Result<Verdict, Refusal> {
    let offered = kind.decisions();
    let found = offered.iter().find(|verdict| verdict.name() == text);
    found.copied().ok_or_else(|| {
        let names: Vec<String> =
            offered.iter().map(|verdict| format!("`{}`", verdict.name())).collect();
        Refusal::invalid("/decision", format!("`decision` is one of: {}", names.join(", ")))
    })
}

/// Checks that reason and value fit the verdict.
fn check(request: &Request, verdict: Verdict, said: &Said) -> Result<(), Refusal> {
    if said.reason.as_ref().is_some_and(|reason| reason.len() > REASON_BYTES_MAX) {
        return Err(Refusal::invalid("/reason", "`reason` may be at most 4 KB"));
    }
    if said.value.as_ref().is_some_and(|value| value.text().len() > VALUE_BYTES_MAX) {
        return Err(Refusal::invalid("/value", "`value` may be at most 64 KB"));
    }
    let needs_value = verdict == Verdict::Answer
        || (verdict == Verdict::Approve && request.kind == RequestKind::Budget);
    let takes_value = needs_value || verdict == Verdict::Happened;
    match &said.value {
        None if needs_value => Err(Refusal::invalid("/value", "this decision needs a `value`")),
        Some(_) if !takes_value => {
            Err(Refusal::invalid("/value", "this decision takes no `value`"))
        }
        Some(value) => fits(request, value),
        None => Ok(()),
    }
}

/// Checks the value against the schema of its request.
fn fits(request: &Request, value: &RawJson) -> Result<(), Refusal> {
    let Some(schema) = &request.schema else { return Ok(()) };
    let Ok(validator) = jsonschema::validator_for(&schema.value()) else {
        tracing::warn!(request.id = %request.id, "request schema invalid: any value is accepted");
        return Ok(());
    };
    let value = value.value();
    if let Some(shortage) = &request.budget {
        let limit = value.get(shortage.unit.name()).unwrap_or(&value).as_f64();
        if validator.is_valid(&value) && limit.is_some_and(|limit| limit <= shortage.unit.max()) {
            return Ok(());
        }
        let (unit, used) = (shortage.unit.name(), shortage.unit.told(shortage.used));
        let detail = format!(
            "the new limit in {unit} is a number above {used} (used so far) and up to {}; a bare number, or {{\"{unit}\": number}}",
            shortage.unit.max()
        );
        return Err(Refusal::invalid("/value", detail));
    }
    let faults: Vec<_> = validator
        .iter_errors(&value)
        .map(|error| {
            crate::turn::admission::Fault::at(
                format!("/value{}", error.instance_path()),
                error.to_string(),
            )
        })
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(Refusal::Invalid(faults)) }
}

/// Finds the request with that name: an open one first, else the newest.
async fn request_id(world: &World, head: &Head, name: &str) -> Result<Option<RequestId>, Refusal> {
    if let Some(id) = named(head.requests.iter(), name)? {
        return Ok(Some(id));
    }
    let entries = load::all_entries(world, head).await?;
    let asked: Vec<&Request> = entries
        .iter()
        .rev()
        .filter_map(|entry| {
            if let EntryBody::Request(asked) = &entry.body { Some(&asked.request) } else { None }
        })
        .collect();
    if let Some(exact) = asked.iter().find(|request| is_exactly(request, name)) {
        return Ok(Some(exact.id.clone()));
    }
    named(asked.into_iter(), name)
}

fn is_exactly(request: &Request, name: &str) -> bool {
    request.id.as_str() == name || request.tool_call_id.as_deref() == Some(name)
}

fn named<'a>(
    requests: impl Iterator<Item = &'a Request> + Clone,
    name: &str,
) -> Result<Option<RequestId>, Refusal> {
    let by_id = requests.clone().find(|request| request.id.as_str() == name);
    if let Some(request) = by_id {
        return Ok(Some(request.id.clone()));
    }
    let means = |request: &Request| {
        request.tool_call_id.as_deref().is_some_and(|call| {
            call == name || call.split_once('|').is_some_and(|(before, _)| before == name)
        })
    };
    let mut found = requests.filter(|request| means(request));
    match (found.next(), found.next()) {
        (None, _) => Ok(None),
        (Some(request), None) => Ok(Some(request.id.clone())),
        (Some(_), Some(_)) => Err(Refusal::Conflict {
            detail: format!("`{name}` means more than one approval: use the approval's id"),
            retry_after: None,
        }),
    }
}
