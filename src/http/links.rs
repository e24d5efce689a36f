//! Approval links. The token in the path is the only credential, and `GET` decides nothing.

use std::collections::HashSet;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};

use crate::agent::raw::RawJson;
use crate::agent::request::RequestKind;
use crate::http::page::{self, Showing, page, seal};
use crate::http::problem::{self, Problem};
use crate::http::{Api, Shared, answered, body, json};
use crate::turn::admission::decide::{Decider, Said, decide};
use crate::turn::admission::{Fault, Refusal};
use crate::turn::views::approvals::{Approval, SettledView, approval};
use crate::turn::views::load;

/// Get the approval request of a link, as a page or as JSON.
#[utoipa::path(
    get, path = "/approvals/{token}", operation_id = "getApprovalLink", tag = "approvals",
    params(("token" = String, Path, description = "Signed token, the only credential.")),
    responses((status = 200, content((SettledView = "application/json"), (String = "text/html"))), (status = 404))
)]
pub(crate) async fn look(
    State(api): State<Shared>,
    Path(token): Path<String>,
    headers: HeaderMap,
) -> Response {
    let is_page = wants_page(&headers);
    let outcome = shown(&api, &token, is_page).await;
    seal(outcome.unwrap_or_else(|problem| failed(problem, is_page)))
}

/// Decide the approval request of a link, with the form of its page or with JSON.
#[utoipa::path(
    post, path = "/approvals/{token}", operation_id = "decideApprovalLink", tag = "approvals",
    params(("token" = String, Path, description = "Signed token, the only credential.")),
    request_body(content((Said = "application/json"), (Said = "application/x-www-form-urlencoded"))),
    responses((status = 200, content((SettledView = "application/json"), (String = "text/html"))), (status = 404), (status = 409), (status = 410))
)]
pub(crate) async fn settle(
    State(api): State<Shared>,
    Path(token): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let is_page = wants_page(&headers);
    let outcome = settled(&api, &token, (&headers, body), is_page).await;
    seal(outcome.unwrap_or_else(|problem| failed(problem, is_page)))
}

/// Renders a problem: as a page for browsers, as JSON for programs.
fn failed(problem: Problem, is_page: bool) -> Response {
    if is_page { page::problem_page(problem) } else { problem.into_response() }
}

/// True if `Accept` allows HTML. Clients without `Accept` count as programs.
fn wants_page(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|kind| {
        let mut parts = kind.split(';').map(str::trim);
        let is_html = matches!(parts.next(), Some("text/html" | "application/xhtml+xml"));
        is_html && !parts.any(|part| matches!(part, "q=0" | "q=0.0"))
    })
}

const GONE: &str = "This approval link is not valid: it is incomplete, its time is over, or the conversation was deleted. Ask the sender for a new link.";

/// Returns the approval of a token. A forged token, a deleted conversation and a request that links
/// may not decide give the same error.
async fn behind(api: &Api, token: &str) -> Result<Approval, Problem> {
    let gone = || Problem::new(problem::NOT_FOUND, GONE);
    let claims = api.keys.verify(token).ok_or_else(gone)?;
    let (head, _) = load::find_head(&api.world, &claims.key).await?.ok_or_else(gone)?;
    let found = approval(&api.world, &head, &claims.request_id).await?.ok_or_else(gone)?;
    // Token and request must have the same expiry, so that the token belongs to this very request.
    let is_same = found.request.expires_at.is_none_or(|at| at == claims.expires_at);
    let is_for_links = found.request.approvers.iter().any(|approver| approver == "link");
    if !is_same || !is_for_links {
        return Err(gone());
    }
    Ok(found)
}

async fn shown(api: &Api, token: &str, is_page: bool) -> Result<Response, Problem> {
    let found = behind(api, token).await?;
    Ok(show(api, &found, is_page, StatusCode::OK))
}

fn is_expired(api: &Api, approval: &Approval) -> bool {
    let now = api.world.clock.now();
    approval.decision.is_none() && approval.request.expires_at.is_some_and(|at| at <= now)
}

fn show(api: &Api, approval: &Approval, is_page: bool, status: StatusCode) -> Response {
    if !is_page {
        return match &approval.decision {
            Some(decision) => json(status, &approval.settled_view(decision)),
            None => json(status, &approval.view()),
        };
    }
    match &approval.decision {
        Some(decision) => page(status, &Showing::Settled(approval, decision)),
        None if is_expired(api, approval) => page(status, &Showing::Expired(approval)),
        None => page(status, &Showing::Open(approval)),
    }
}

async fn settled(
    api: &Api,
    token: &str,
    (headers, body): (&HeaderMap, Body),
    is_page: bool,
) -> Result<Response, Problem> {
    let found = behind(api, token).await?;
    let said = said(api, (headers, body), &found).await?;
    let id = found.request.id.as_str();
    match decide(&api.world, &found.key, id, said, &Decider::Link).await {
        Ok(_) if is_page => Ok(show(api, &behind(api, token).await?, true, StatusCode::OK)),
        Ok(answer) => Ok(answered(answer)),
        Err(refusal) if is_page => refused(api, token, &found, refusal).await,
        Err(refusal) => Err(refusal.into()),
    }
}

/// Renders the current state of the request, with the status that a program would get.
async fn refused(
    api: &Api,
    token: &str,
    found: &Approval,
    refusal: Refusal,
) -> Result<Response, Problem> {
    if matches!(refusal, Refusal::AlreadyDecided(_) | Refusal::Expired { .. }) {
        let status = Problem::from(refusal).kind.status;
        return Ok(show(api, &behind(api, token).await?, true, status));
    }
    if matches!(refusal, Refusal::Invalid(_)) {
        let why = refusal.to_string();
        return Ok(page(StatusCode::BAD_REQUEST, &Showing::Refused(found, &why)));
    }
    Err(refusal.into())
}

/// Parses the decision from the form or the JSON body.
async fn said(
    api: &Api,
    (headers, body): (&HeaderMap, Body),
    approval: &Approval,
) -> Result<Said, Problem> {
    let bytes = body::read(&api.bodies, headers, body).await?;
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" {
        return Ok(body::parse::<Said>(&bytes)?.value);
    }
    if essence != "application/x-www-form-urlencoded" {
        return Err(Problem::new(
            problem::UNSUPPORTED_MEDIA_TYPE,
            "Send the decision as application/json or as a form.",
        ));
    }
    let mut said = Said { decision: String::new(), reason: None, value: None };
    let mut seen = HashSet::new();
    for (name, value) in url::form_urlencoded::parse(&bytes) {
        if !seen.insert(name.clone()) {
            return Err(twice(&name));
        }
        match name.as_ref() {
            "decision" => said.decision = value.into_owned(),
            "reason" => {
                said.reason = Some(value.into_owned()).filter(|text| !text.trim().is_empty());
            }
            "value" if !value.trim().is_empty() => said.value = Some(typed(&value, approval)),
            _ => {}
        }
    }
    // The page sends this field with every button. These decisions have no value.
    if matches!(said.decision.as_str(), "did_not_happen" | "again" | "reject") {
        said.value = None;
    }
    Ok(said)
}

fn twice(name: &str) -> Problem {
    let name: String = name.chars().take(50).collect();
    let detail = format!("The form has `{name}` more than once. Send each field once.");
    Problem::bad_request(detail.clone()).with_faults(vec![Fault::at(format!("/{name}"), detail)])
}

/// Converts text from the form. If JSON is expected and the text is JSON, it is parsed.
fn typed(text: &str, approval: &Approval) -> RawJson {
    let wants_text = approval
        .request
        .schema
        .as_ref()
        .and_then(|schema| schema.value().get("type").cloned())
        .is_some_and(|kind| kind == "string");
    let is_open =
        approval.request.kind == RequestKind::Question && approval.request.schema.is_none();
    if !wants_text
        && !is_open
        && let Ok(json) = RawJson::from_text(text.trim())
    {
        return json;
    }
    RawJson::of(&text)
}
