//! Approval links. The token in the path is the only credential, and `GET` decides nothing.

use std::collections::HashSet;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};

use crate::approval_page::{self, PageState, RequestContext, page_response, set_security_headers};
use crate::problem::{self, Problem};
use crate::{Api, SharedApi, body, into_response, json};
use turnwheel_commands::decide::{DecisionRequest, DecisionSender, decide};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::request::RequestKind;
use turnwheel_json::raw::RawJson;
use turnwheel_queries::approvals::{ApprovalRecord, SettledView, load_approval};
use turnwheel_queries::tree::read_last_texts;
use turnwheel_record::contract::{CommandError, Decider, FieldError};
use turnwheel_record::load;

/// Get the approval request of a link, as a page or as JSON.
#[utoipa::path(
    get, path = "/approvals/{token}", operation_id = "getApprovalLink", tag = "approvals",
    params(("token" = String, Path, description = "Signed token, the only credential.")),
    responses((status = 200, content((SettledView = "application/json"), (String = "text/html"))), (status = 404))
)]
pub(crate) async fn get_approval(
    State(api): State<SharedApi>,
    Path(token): Path<String>,
    headers: HeaderMap,
) -> Response {
    let is_page = is_html_accepted(&headers);
    let outcome = read_link(&api, &token, is_page).await;
    set_security_headers(outcome.unwrap_or_else(|problem| problem_response(problem, is_page)))
}

/// Decide the approval request of a link, with the form of its page or with JSON.
#[utoipa::path(
    post, path = "/approvals/{token}", operation_id = "decideApprovalLink", tag = "approvals",
    params(("token" = String, Path, description = "Signed token, the only credential.")),
    request_body(content((DecisionRequest = "application/json"), (DecisionRequest = "application/x-www-form-urlencoded"))),
    responses((status = 200, content((SettledView = "application/json"), (String = "text/html"))), (status = 404), (status = 409), (status = 410))
)]
pub(crate) async fn post_decision(
    State(api): State<SharedApi>,
    Path(token): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let is_page = is_html_accepted(&headers);
    let outcome = decide_by_link(&api, &token, &headers, body, is_page).await;
    set_security_headers(outcome.unwrap_or_else(|problem| problem_response(problem, is_page)))
}

/// Renders a problem: as a page for browsers, as JSON for programs.
fn problem_response(problem: Problem, is_page: bool) -> Response {
    if is_page { approval_page::problem_page(problem) } else { problem.into_response() }
}

/// True if `Accept` allows HTML. Clients without `Accept` count as programs.
fn is_html_accepted(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|kind| {
        let mut parts = kind.split(';').map(str::trim);
        let is_html = matches!(parts.next(), Some("text/html" | "application/xhtml+xml"));
        is_html && !parts.any(|part| matches!(part, "q=0" | "q=0.0"))
    })
}

const INVALID_LINK: &str = "This approval link is not valid: it is incomplete, its time is over, or the conversation was deleted. Ask the sender for a new link.";

/// Messages of the conversation that the page of an open request shows.
const MESSAGES_SHOWN: usize = 3;

/// The request that a link selects.
struct LinkedApproval {
    approval: Box<ApprovalRecord>,
    head: Box<Head>,
}

impl LinkedApproval {
    async fn context(&self, api: &Api) -> Result<RequestContext, Problem> {
        let messages = read_last_texts(&api.services, &self.head, MESSAGES_SHOWN).await?;
        Ok(RequestContext { messages, now: api.services.clock.now() })
    }
}

/// Returns the approval of a token. A forged token, a deleted conversation and a request that links
/// may not decide give the same error.
async fn find_approval(api: &Api, token: &str) -> Result<LinkedApproval, Problem> {
    let invalid_link = || Problem::new(problem::NOT_FOUND, INVALID_LINK);
    let claims = api.signing_keys.verify(token).ok_or_else(invalid_link)?;
    let (head, _) = load::find_head(&api.services, &claims.key).await?.ok_or_else(invalid_link)?;
    let approval =
        load_approval(&api.services, &head, &claims.request_id).await?.ok_or_else(invalid_link)?;
    // Token and request must have the same expiry, so that the token belongs to this very request.
    let is_same = approval.request.expires_at.is_none_or(|at| at == claims.expires_at);
    let is_for_links = approval.request.approvers.iter().any(|approver| approver == "link");
    if !is_same || !is_for_links {
        return Err(invalid_link());
    }
    Ok(LinkedApproval { approval: Box::new(approval), head: Box::new(head) })
}

async fn read_link(api: &Api, token: &str, is_page: bool) -> Result<Response, Problem> {
    let found = find_approval(api, token).await?;
    render_approval(api, &found, is_page, StatusCode::OK).await
}

fn is_expired(api: &Api, approval: &ApprovalRecord) -> bool {
    let now = api.services.clock.now();
    approval.decision.is_none() && approval.request.has_expired(now)
}

async fn render_approval(
    api: &Api,
    found: &LinkedApproval,
    is_page: bool,
    status: StatusCode,
) -> Result<Response, Problem> {
    let approval = &found.approval;
    if !is_page {
        return Ok(match &approval.decision {
            Some(decision) => json(status, &approval.settled_view(decision)),
            None => json(status, &approval.view()),
        });
    }
    Ok(match &approval.decision {
        Some(decision) => page_response(status, &PageState::Decided(approval, decision)),
        None if is_expired(api, approval) => page_response(status, &PageState::Expired(approval)),
        None => {
            let context = found.context(api).await?;
            page_response(status, &PageState::Open(approval, &context))
        }
    })
}

async fn decide_by_link(
    api: &Api,
    token: &str,
    headers: &HeaderMap,
    body: Body,
    is_page: bool,
) -> Result<Response, Problem> {
    let found = find_approval(api, token).await?;
    let approval = &found.approval;
    let request = parse_decision(api, headers, body, approval).await?;
    let id = approval.request.id.as_str();
    let sender =
        DecisionSender { decider: &Decider::Link, clients: api.waiting_clients.as_deref() };
    match decide(&api.services, &approval.key, id, request, sender).await {
        Ok(_) if is_page => {
            render_approval(api, &find_approval(api, token).await?, true, StatusCode::OK).await
        }
        Ok(result) => Ok(into_response(result)),
        Err(refusal) if is_page => render_command_error(api, token, &found, refusal).await,
        Err(refusal) => Err(refusal.into()),
    }
}

/// Renders the current state of the request, with the status that a program would get.
async fn render_command_error(
    api: &Api,
    token: &str,
    found: &LinkedApproval,
    refusal: CommandError,
) -> Result<Response, Problem> {
    if matches!(refusal, CommandError::AlreadyDecided(_) | CommandError::Expired { .. }) {
        let status = Problem::from(refusal).kind.status;
        return render_approval(api, &find_approval(api, token).await?, true, status).await;
    }
    if matches!(refusal, CommandError::Invalid(_)) {
        let reason = refusal.to_string();
        let context = found.context(api).await?;
        let state = PageState::InvalidDecision(&found.approval, &context, &reason);
        return Ok(page_response(StatusCode::BAD_REQUEST, &state));
    }
    Err(refusal.into())
}

/// Parses the decision from the form or the JSON body.
async fn parse_decision(
    api: &Api,
    headers: &HeaderMap,
    body: Body,
    approval: &ApprovalRecord,
) -> Result<DecisionRequest, Problem> {
    let bytes = body::read_body(&api.body_kib, headers, body).await?;
    let content_type =
        headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" {
        return Ok(body::parse_json::<DecisionRequest>(&bytes)?.value);
    }
    if essence != "application/x-www-form-urlencoded" {
        return Err(Problem::new(
            problem::UNSUPPORTED_MEDIA_TYPE,
            "Send the decision as application/json or as a form.",
        ));
    }
    let mut request = DecisionRequest { decision: String::new(), reason: None, value: None };
    let mut seen = HashSet::new();
    for (name, value) in url::form_urlencoded::parse(&bytes) {
        if !seen.insert(name.clone()) {
            return Err(duplicate_field(&name));
        }
        match name.as_ref() {
            "decision" => request.decision = value.into_owned(),
            "reason" => {
                request.reason = Some(value.into_owned()).filter(|text| !text.trim().is_empty());
            }
            "value" if !value.trim().is_empty() => {
                request.value = Some(parse_value(&value, approval));
            }
            _ => {}
        }
    }
    // The page sends this field with every button. These decisions have no value.
    if matches!(request.decision.as_str(), "did_not_happen" | "again" | "reject") {
        request.value = None;
    }
    Ok(request)
}

fn duplicate_field(name: &str) -> Problem {
    let name: String = name.chars().take(50).collect();
    let detail = format!("The form has `{name}` more than once. Send each field once.");
    Problem::bad_request(detail.clone())
        .with_errors(vec![FieldError::new(format!("/{name}"), detail)])
}

/// Converts text from the form. If JSON is expected and the text is JSON, it is parsed.
fn parse_value(text: &str, approval: &ApprovalRecord) -> RawJson {
    let wants_text = approval
        .request
        .schema
        .as_ref()
        .and_then(|schema| schema.to_value().get("type").cloned())
        .is_some_and(|kind| kind == "string");
    let is_open =
        approval.request.kind == RequestKind::Question && approval.request.schema.is_none();
    if !wants_text
        && !is_open
        && let Ok(json) = RawJson::from_text(text.trim())
    {
        return json;
    }
    RawJson::from_value(&text)
}
