//! Problems: the only mapping from errors to RFC 9457 responses, and the only place that logs them.

use std::error::Error;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Map, Value, json};

use crate::http::Shared;
use crate::telemetry::{fault as trace_fault, trace};
use crate::turn::admission::{Fault, Refusal};
use crate::turn::faults;

/// A problem type: name, title and status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub name: &'static str,
    pub title: &'static str,
    pub status: StatusCode,
}

macro_rules! kinds {
    ($($constant:ident $name:literal $title:literal $status:ident;)*) => {
        $(pub const $constant: Kind = Kind { name: $name, title: $title, status: StatusCode::$status };)*
    };
}

kinds! {
    BAD_REQUEST "bad-request" "Bad Request" BAD_REQUEST;
    UNAUTHORIZED "unauthorized" "Unauthorized" UNAUTHORIZED;
    FORBIDDEN "forbidden" "Forbidden" FORBIDDEN;
    NOT_FOUND "not-found" "Not Found" NOT_FOUND;
    METHOD_NOT_ALLOWED "method-not-allowed" "Method Not Allowed" METHOD_NOT_ALLOWED;
    TOO_SLOW "request-timeout" "Request Timeout" REQUEST_TIMEOUT;
    CONFLICT "conflict" "Conflict" CONFLICT;
    ALREADY_PROCESSING "already-processing" "Conflict" CONFLICT;
    ALREADY_DECIDED "already-decided" "Conflict" CONFLICT;
    EFFECT_IN_FLIGHT "effect-in-flight" "Conflict" CONFLICT;
    APPROVAL_EXPIRED "approval-expired" "Gone" GONE;
    PRECONDITION_FAILED "precondition-failed" "Precondition Failed" PRECONDITION_FAILED;
    PAYLOAD_TOO_LARGE "payload-too-large" "Content Too Large" PAYLOAD_TOO_LARGE;
    UNSUPPORTED_MEDIA_TYPE "unsupported-media-type" "Unsupported Media Type" UNSUPPORTED_MEDIA_TYPE;
    RANGE_NOT_SATISFIABLE "range-not-satisfiable" "Range Not Satisfiable" RANGE_NOT_SATISFIABLE;
    KEY_REUSED "idempotency-key-reused" "Unprocessable Content" UNPROCESSABLE_ENTITY;
    RATE_LIMITED "rate-limited" "Too Many Requests" TOO_MANY_REQUESTS;
    INTERNAL "internal" "Internal Server Error" INTERNAL_SERVER_ERROR;
    UNAVAILABLE "unavailable" "Service Unavailable" SERVICE_UNAVAILABLE;
}

pub(crate) const NO_ROUTE: &str = "No such route. GET /api/openapi.json lists all routes.";
const UNEXPECTED: &str = "The service failed unexpectedly. Try again, and report the `traceId` to an operator if it happens again.";
const CONTENT: &str = "application/problem+json";
/// Default `Retry-After` in seconds.
const RETRY_AFTER_SECONDS: u64 = 2;

#[derive(Clone, Debug)]
pub struct Problem {
    pub kind: Kind,
    pub detail: String,
    more: Box<More>,
}

/// Rarely used parts of a problem. Boxed, so that every `Result` stays small.
#[derive(Clone, Debug, Default)]
struct More {
    faults: Vec<Fault>,
    members: Map<String, Value>,
    headers: HeaderMap,
    /// Cause, for the log only.
    cause: Option<String>,
    /// Error class of a service failure, for the span.
    fault: Option<trace_fault::Fault>,
}

impl Problem {
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), more: Box::default() }
    }

    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(BAD_REQUEST, detail)
    }

    /// The caller exceeds the rate limit. The next request is allowed after `wait`.
    pub fn too_fast(wait: Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let detail =
            format!("The request rate exceeds TURNWHEEL_RATE_LIMITS. Try again in {seconds} s.");
        Self::new(RATE_LIMITED, detail).retry_after(seconds)
    }

    pub fn not_found(what: &str) -> Self {
        Self::new(NOT_FOUND, format!("The {what} does not exist, or belongs to another user."))
    }

    #[must_use]
    pub fn with_faults(mut self, faults: Vec<Fault>) -> Self {
        self.more.faults = faults;
        self
    }

    #[must_use]
    fn with_member(mut self, name: &str, value: Value) -> Self {
        self.more.members.insert(name.to_owned(), value);
        self
    }

    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.more.headers.insert(name, value);
        }
        self
    }

    #[must_use]
    pub fn retry_after(self, seconds: u64) -> Self {
        self.with_header(RETRY_AFTER, &seconds.max(1).to_string())
    }

    #[must_use]
    fn because(mut self, cause: String) -> Self {
        self.more.cause = Some(cause);
        self
    }

    /// Returns the problem as JSON, with `instance` and `traceId` if they are given.
    fn body(&self, instance: Option<&str>, trace_id: Option<&str>) -> Value {
        let mut body = json!({
            "type": format!("urn:turnwheel:problem:{}", self.kind.name),
            "title": self.kind.title,
            "status": self.kind.status.as_u16(),
            "detail": self.detail,
        });
        let Some(members) = body.as_object_mut() else { return body };
        members.extend(instance.map(|instance| ("instance".to_owned(), json!(instance))));
        members.extend(trace_id.map(|id| ("traceId".to_owned(), json!(id))));
        if !self.more.faults.is_empty() {
            let faults: Vec<Value> = self
                .more
                .faults
                .iter()
                .map(|fault| json!({"pointer": fault.pointer, "detail": fault.detail}))
                .collect();
            members.insert("errors".to_owned(), Value::Array(faults));
        }
        members.extend(self.more.members.clone());
        body
    }

    fn response(&self, body: &Value) -> Response {
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = self.kind.status;
        response.headers_mut().extend(self.more.headers.clone());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT));
        response
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.response(&self.body(None, None));
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let fault = faults::of_refusal(&refusal);
        let mut problem = Self::refused(refusal);
        problem.more.fault = fault;
        problem
    }
}

impl Problem {
    fn refused(refusal: Refusal) -> Self {
        let detail = refusal.to_string();
        match refusal {
            Refusal::NotFound(_) => Self::new(NOT_FOUND, detail),
            Refusal::Invalid(faults) => Self::new(BAD_REQUEST, detail).with_faults(faults),
            Refusal::Conflict { retry_after: None, .. } => Self::new(CONFLICT, detail),
            Refusal::Conflict { retry_after: Some(span), .. } => {
                Self::new(CONFLICT, detail).retry_after(span.as_secs())
            }
            Refusal::AlreadyProcessing { prompt_id, .. } => {
                Self::new(ALREADY_PROCESSING, detail).with_member("promptId", json!(prompt_id))
            }
            Refusal::Landed { input, .. } => {
                Self::new(CONFLICT, detail).with_member("input", input.value())
            }
            Refusal::AlreadyDecided(approval) => {
                let approval = approval.value();
                let mut problem = Self::new(ALREADY_DECIDED, detail);
                for member in ["decision", "decidedBy", "decidedAt"] {
                    if let Some(value) = approval.get(member) {
                        problem = problem.with_member(member, value.clone());
                    }
                }
                problem.with_member("approval", approval)
            }
            Refusal::Expired { .. } => Self::new(APPROVAL_EXPIRED, detail),
            Refusal::Forbidden(_) => Self::new(FORBIDDEN, detail),
            Refusal::KeyReused => Self::new(KEY_REUSED, detail),
            Refusal::EffectInFlight { retry_after, .. } => {
                Self::new(EFFECT_IN_FLIGHT, detail).retry_after(retry_after.as_secs())
            }
            Refusal::PreconditionFailed { etag } => {
                Self::new(PRECONDITION_FAILED, detail).with_header(http::header::ETAG, &etag)
            }
            Refusal::TooLarge(_) => Self::new(PAYLOAD_TOO_LARGE, detail),
            Refusal::AgentUnavailable(_) => {
                Self::new(UNAVAILABLE, detail).retry_after(RETRY_AFTER_SECONDS)
            }
            Refusal::Unavailable { source, .. } => {
                let cause = source.map(|source| chain(source.as_ref())).unwrap_or_default();
                Self::new(UNAVAILABLE, detail).retry_after(RETRY_AFTER_SECONDS).because(cause)
            }
            Refusal::Corrupt(source) => Self::new(INTERNAL, detail).because(chain(&source)),
        }
    }
}

/// Renders an error and its sources in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(source) = at {
        text.push_str(": ");
        text.push_str(&source.to_string());
        at = source.source();
    }
    text
}

/// Outermost middleware: completes every error to a problem with its address and logs it once.
pub(crate) async fn finish(State(api): State<Shared>, request: Request, next: Next) -> Response {
    let instance = instance_of(request.uri().path());
    let trace_id = trace::ids().map_or_else(|| api.world.ids.fresh(), |(trace_id, _)| trace_id);
    let method = request.method().clone();
    let mut response = next.run(request).await;
    if let Some(problem) = problem_of(&response) {
        let status = problem.kind.status.as_u16();
        if let Some(cause) = &problem.more.cause {
            tracing::error!(%method, path = %instance, status, trace.id = %trace_id, error = %cause, detail = %problem.detail, "request failed");
        } else {
            tracing::debug!(%method, path = %instance, status, trace.id = %trace_id, detail = %problem.detail, "request rejected");
        }
        // An HTML page stays unchanged.
        if !is_page(&response) {
            response = complete(&problem, response, (&instance, &trace_id));
        }
        if let Some(fault) = problem.more.fault {
            response.extensions_mut().insert(fault);
        }
    }
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn is_page(response: &Response) -> bool {
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|text| text.starts_with("text/html"))
}

/// Adds `instance` and `traceId` to a problem response. Other headers of the response stay:
/// caching, CORS, `Allow`.
fn complete(
    problem: &Problem,
    mut response: Response,
    (instance, trace_id): (&str, &str),
) -> Response {
    let headers = std::mem::take(response.headers_mut());
    let mut complete = problem.response(&problem.body(Some(instance), Some(trace_id)));
    for (name, value) in &headers {
        if name != CONTENT_TYPE && name != CONTENT_LENGTH {
            complete.headers_mut().insert(name, value.clone());
        }
    }
    complete
}

/// Returns the problem of a handler, or one for an error response of the framework.
fn problem_of(response: &Response) -> Option<Problem> {
    if let Some(problem) = response.extensions().get::<Problem>() {
        return Some(problem.clone());
    }
    let is_typed = response.headers().get(CONTENT_TYPE).is_some_and(|value| {
        value.to_str().is_ok_and(|text| text.contains("json") || text.contains("html"))
    });
    let status = response.status();
    if is_typed || !(status.is_client_error() || status.is_server_error()) {
        return None;
    }
    let (kind, detail) = match status {
        StatusCode::METHOD_NOT_ALLOWED => (
            METHOD_NOT_ALLOWED,
            "The route does not support this method. Use one of the methods in `Allow`.",
        ),
        StatusCode::NOT_FOUND => (NOT_FOUND, NO_ROUTE),
        StatusCode::PAYLOAD_TOO_LARGE => (PAYLOAD_TOO_LARGE, "The body is longer than 10 MB."),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            (UNSUPPORTED_MEDIA_TYPE, "Send the body as application/json.")
        }
        status if status.is_client_error() => (BAD_REQUEST, "The path or a header is malformed."),
        _ => (INTERNAL, UNEXPECTED),
    };
    Some(Problem::new(kind, detail))
}

/// Returns the path without the token of an approval link: a reader of logs must not be able to
/// decide.
fn instance_of(path: &str) -> String {
    match path.split_once("/api/approvals/") {
        Some((before, token)) if !token.is_empty() => format!("{before}/api/approvals/…"),
        Some(_) | None => path.to_owned(),
    }
}

/// Response for a handler that panicked. The panic message may quote content, so it is not sent.
pub(crate) fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    Problem::new(INTERNAL, UNEXPECTED)
        .because("a request handler panicked".to_owned())
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_never_becomes_an_instance() {
        assert_eq!(instance_of("/api/approvals/abc.def"), "/api/approvals/…");
        assert_eq!(instance_of("/api/approvals"), "/api/approvals");
        assert_eq!(
            instance_of("/api/conversations/c/approvals/r"),
            "/api/conversations/c/approvals/r"
        );
    }
}
