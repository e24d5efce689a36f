//! Command that decides an approval request. The first create of the inbox item
//! `decision-{requestId}` wins; later callers receive the first decision.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::pipeline::Signal;
use crate::waiting_client::WaitingClients;
use crate::wake_worker;
use turnwheel_conversation::entry::EntryBody;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{IdempotencyRecord, InboxBody, InboxItem};
use turnwheel_conversation::question::{ANSWER_BYTES_MAX, Answer};
use turnwheel_conversation::request::{Decision, Request, RequestKind, Verdict};
use turnwheel_json::raw::{BODY_DEPTH_MAX, RawJson, raw_object};
use turnwheel_json::strict::JsonError;
use turnwheel_platform::ids::{ConversationKey, RequestId};
use turnwheel_platform::telemetry::trace;
use turnwheel_queries::approvals::{ApprovalRecord, load_approval};
use turnwheel_record::certain_write::{BatchOutcome, with_inbox_count, write_until_certain};
use turnwheel_record::contract::{CommandError, CommandResponse, Decider, FieldError};
use turnwheel_record::documents;
use turnwheel_record::expiry::decision_id;
use turnwheel_record::idempotency::canonical_hash;
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::store::Write;
use turnwheel_tools::validate::bounded_schema::{BoundedSchema, SchemaVerdict};

/// Body of a decision.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DecisionRequest {
    /// One of the approval's `decisions`.
    pub decision: String,
    pub reason: Option<String>,
    /// Reply to a question, result of a write, or new limit of a budget.
    #[schema(value_type = Option<Object>)]
    pub value: Option<RawJson>,
}

/// Origin of a decision.
#[derive(Clone, Copy, Debug)]
pub struct DecisionSender<'a> {
    pub decider: &'a Decider,
    /// `None`: a worker takes the next turn.
    pub clients: Option<&'a WaitingClients>,
}

impl<'a> From<&'a Decider> for DecisionSender<'a> {
    fn from(decider: &'a Decider) -> Self {
        Self { decider, clients: None }
    }
}

const REASON_BYTES_MAX: usize = 4 * 1024;
/// Reported mistakes of a value.
const MISTAKES_MAX: usize = 50;
const VALUE_BYTES_MAX: usize = 64 * 1024;

/// Decides the request with that id, tool call id, or part of a tool call id before `|`. The
/// response body is the approval with its decision.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn decide(
    services: &Services,
    key: &ConversationKey,
    name: &str,
    body: DecisionRequest,
    sender: impl Into<DecisionSender<'_>>,
) -> Result<CommandResponse, CommandError> {
    let DecisionSender { decider, clients } = sender.into();
    let (head, _) = load::head(services, key).await?;
    let id =
        find_request_id(services, &head, name).await?.ok_or(CommandError::NotFound("approval"))?;
    let approval =
        load_approval(services, &head, &id).await?.ok_or(CommandError::NotFound("approval"))?;
    let request = &approval.request;
    if !decider.is_approver(key, request) {
        return Err(if decider.is_owner(key) {
            CommandError::Forbidden(format!(
                "You are not an approver of this request. Its approvers are: {}.",
                request.approvers.join(", ")
            ))
        } else {
            CommandError::NotFound("approval")
        });
    }
    if decider.is_excluded(request) {
        return Err(CommandError::Forbidden(
            "The user who started the prompt may not decide this request. Ask another approver."
                .to_owned(),
        ));
    }
    let verdict = parse_verdict(request.kind, &body.decision)?;
    validate_decision(request, verdict, &body)?;
    let now = services.clock.now();
    let decision = Decision {
        request_id: id.clone(),
        verdict,
        reason: body.reason,
        value: body.value,
        decided_by: decider.name().to_owned(),
        decided_at: now,
    };
    if let Some(first) = &approval.decision {
        if head.requests.iter().any(|open| open.id == id) {
            // No worker has applied the decision yet: its first nudge may be lost.
            wake_worker(services, key, prompt_traceparent(&head)).await;
        }
        return resolve_second_decision(&approval, first, &decision);
    }
    if request.has_expired(now) {
        // The recovery sweep records the expiry; this nudge only makes it earlier.
        wake_worker(services, key, prompt_traceparent(&head)).await;
        return Err(CommandError::Expired { at: request.expires_at });
    }
    let signal = Signal::start_or_wake(services, &head, clients, prompt_traceparent(&head));
    Box::pin(create_decision(services, &head, &approval, decision, signal)).await
}

fn prompt_traceparent(head: &Head) -> Option<&str> {
    head.prompt.as_ref()?.traceparent.as_deref()
}

/// Creates the inbox item of the decision. The create is the arbiter.
async fn create_decision(
    services: &Services,
    head: &Head,
    approval: &ApprovalRecord,
    decision: Decision,
    signal: Signal<'_>,
) -> Result<CommandResponse, CommandError> {
    let key = &head.key();
    let response = decision_response(approval, &decision, false);
    let body = raw_object!({
        "decision": decision.verdict, "reason": decision.reason, "value": decision.value,
    });
    let item = InboxItem {
        input_id: decision_id(&decision.request_id),
        accepted_at: decision.decided_at,
        idempotency: IdempotencyRecord {
            body_hash: canonical_hash(&body),
            status: 200,
            response: None,
            location: None,
        },
        traceparent: trace::current_traceparent(),
        body: InboxBody::Decision(decision.clone()),
    };
    services.fail_points.hit("admission.decide").await;
    let writes = vec![Write::Create(documents::inbox_document(&item))];
    let writes = with_inbox_count(writes, Some(item.accepted_at));
    if let BatchOutcome::Lost = write_until_certain(services, key, writes).await? {
        let (head, _) = load::head(services, key).await?;
        let found = load_approval(services, &head, &decision.request_id).await?;
        let Some((found, first)) =
            found.and_then(|found| found.decision.clone().map(|first| (found, first)))
        else {
            return Err(CommandError::contended());
        };
        if first != decision {
            return resolve_second_decision(&found, &first, &decision);
        }
    }
    services.fail_points.hit("admission.decided").await;
    signal.emit(services, key).await;
    Ok(response)
}

/// Resolves a second decision: an equal one gets the first response again, another one an error
/// with the first decision.
fn resolve_second_decision(
    approval: &ApprovalRecord,
    first: &Decision,
    second: &Decision,
) -> Result<CommandResponse, CommandError> {
    if first.has_same_content(second) {
        return Ok(decision_response(approval, first, true));
    }
    if first.verdict == Verdict::Expired {
        return Err(CommandError::Expired { at: approval.request.expires_at });
    }
    Err(CommandError::AlreadyDecided(RawJson::from_value(&approval.settled_view(first))))
}

fn decision_response(
    approval: &ApprovalRecord,
    decision: &Decision,
    is_replayed: bool,
) -> CommandResponse {
    let response = CommandResponse::new(200, &approval.settled_view(decision));
    CommandResponse { is_replayed, ..response }
}

fn parse_verdict(kind: RequestKind, text: &str) -> Result<Verdict, CommandError> {
    let offered = kind.decisions();
    let found = offered.iter().find(|verdict| verdict.name() == text);
    found.copied().ok_or_else(|| {
        let names: Vec<String> =
            offered.iter().map(|verdict| format!("`{}`", verdict.name())).collect();
        CommandError::invalid("/decision", format!("`decision` is one of: {}", names.join(", ")))
    })
}

/// Checks that reason and value fit the verdict.
fn validate_decision(
    request: &Request,
    verdict: Verdict,
    body: &DecisionRequest,
) -> Result<(), CommandError> {
    if body.reason.as_ref().is_some_and(|reason| reason.len() > REASON_BYTES_MAX) {
        return Err(CommandError::invalid("/reason", "`reason` may be at most 4 KB"));
    }
    if let Some(value) = &body.value {
        validate_json(value)?;
    }
    let needs_value = verdict == Verdict::Answer
        || (verdict == Verdict::Approve && request.kind == RequestKind::Budget);
    let takes_value = needs_value || verdict == Verdict::Happened;
    match &body.value {
        None if needs_value => {
            Err(CommandError::invalid("/value", "this decision needs a `value`"))
        }
        Some(_) if !takes_value => {
            Err(CommandError::invalid("/value", "this decision takes no `value`"))
        }
        Some(value) => validate_value(request, value),
        None => Ok(()),
    }
}

/// Checks the bounds of a value, and that its approver and each later reader find the same in it.
fn validate_json(value: &RawJson) -> Result<(), CommandError> {
    if value.text().len() > VALUE_BYTES_MAX {
        return Err(CommandError::invalid("/value", "`value` may be at most 64 KB"));
    }
    // The body of a request has one level more.
    if value.depth() >= BODY_DEPTH_MAX {
        let detail = format!("`value` may nest at most {} levels", BODY_DEPTH_MAX - 1);
        return Err(CommandError::invalid("/value", detail));
    }
    value.check_unambiguous().map_err(|error| {
        let JsonError { pointer, detail } = error.with_parent_pointer("/value");
        CommandError::invalid(pointer, detail)
    })
}

/// Checks the value against the schema of its request.
fn validate_value(request: &Request, raw: &RawJson) -> Result<(), CommandError> {
    let Some(schema) = &request.schema else { return Ok(()) };
    let Ok(bounded) = BoundedSchema::new(&schema.to_value()) else {
        tracing::warn!(request.id = %request.id, "request schema invalid: any value is accepted");
        return Ok(());
    };
    let value = raw.to_value();
    let verdict = bounded.check_written(raw, &value);
    if let Some(exceeded) = &request.budget {
        let limit = value.get(exceeded.unit.name()).unwrap_or(&value).as_f64();
        if verdict == SchemaVerdict::Valid
            && limit.is_some_and(|limit| limit <= exceeded.unit.max())
        {
            return Ok(());
        }
        let (unit, used) = (exceeded.unit.name(), exceeded.unit.to_display(exceeded.used));
        let detail = format!(
            "the new limit in {unit} is a number above {used} (used so far) and up to {}; a bare number, or {{\"{unit}\": number}}",
            exceeded.unit.max()
        );
        return Err(CommandError::invalid("/value", detail));
    }
    let mistakes = bounded.find_mistakes(&value, MISTAKES_MAX);
    let errors: Vec<_> = mistakes
        .into_iter()
        .map(|mistake| FieldError::new(format!("/value{}", mistake.pointer), mistake.text))
        .collect();
    if !errors.is_empty() {
        return Err(CommandError::Invalid(errors));
    }
    if verdict != SchemaVerdict::Valid {
        let detail = "a number with more than 15 digits does not satisfy the schema";
        return Err(CommandError::invalid("/value", detail));
    }
    let bytes = Answer::from_value(&value).byte_count();
    if request.kind == RequestKind::Question && bytes > ANSWER_BYTES_MAX {
        let detail =
            format!("an answer has at most {ANSWER_BYTES_MAX} bytes; this one has {bytes}");
        return Err(CommandError::invalid("/value", detail));
    }
    Ok(())
}

/// Finds the request with that name, which is its id or the id of its tool call. The Functions host passes `%2F` of a path
/// on as `%252F`, so a slash in a tool call's id may arrive as `%2F`.
async fn find_request_id(
    services: &Services,
    head: &Head,
    name: &str,
) -> Result<Option<RequestId>, CommandError> {
    if let Some(id) = find_exact_request_id(services, head, name).await? {
        return Ok(Some(id));
    }
    let with_slashes = name.replace("%2F", "/").replace("%2f", "/");
    if with_slashes == name {
        return Ok(None);
    }
    find_exact_request_id(services, head, &with_slashes).await
}

/// Finds the request with exactly that name: an open one first, else the newest.
async fn find_exact_request_id(
    services: &Services,
    head: &Head,
    name: &str,
) -> Result<Option<RequestId>, CommandError> {
    if let Some(id) = find_by_name(head.requests.iter(), name)? {
        return Ok(Some(id));
    }
    let entries = load::all_entries(services, head).await?;
    let recorded: Vec<&Request> = entries
        .iter()
        .rev()
        .filter_map(|entry| {
            if let EntryBody::Request(recorded) = &entry.body {
                Some(&*recorded.request)
            } else {
                None
            }
        })
        .collect();
    if let Some(exact) = recorded.iter().find(|request| has_exact_name(request, name)) {
        return Ok(Some(exact.id.clone()));
    }
    find_by_name(recorded.into_iter(), name)
}

fn has_exact_name(request: &Request, name: &str) -> bool {
    request.id.as_str() == name || request.tool_call_id.as_deref() == Some(name)
}

fn find_by_name<'a>(
    requests: impl Iterator<Item = &'a Request> + Clone,
    name: &str,
) -> Result<Option<RequestId>, CommandError> {
    let by_id = requests.clone().find(|request| request.id.as_str() == name);
    if let Some(request) = by_id {
        return Ok(Some(request.id.clone()));
    }
    let matches_call = |request: &Request| {
        request.tool_call_id.as_deref().is_some_and(|call| {
            call == name || call.split_once('|').is_some_and(|(before, _)| before == name)
        })
    };
    let mut found = requests.filter(|request| matches_call(request));
    match (found.next(), found.next()) {
        (None, _) => Ok(None),
        (Some(request), None) => Ok(Some(request.id.clone())),
        (Some(_), Some(_)) => Err(CommandError::Conflict {
            detail: format!("`{name}` means more than one approval: use the approval's id"),
            retry_after: None,
        }),
    }
}
