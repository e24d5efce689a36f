//! Problems: the only mapping from errors to RFC 9457 responses, and the only place that logs them.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Map, Value, json};

use crate::SharedApi;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::telemetry::{error_class, trace};
use turnwheel_record::contract::{CommandError, FieldError};
use turnwheel_record::error_domain;

/// A problem type: name, title and status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProblemKind {
    pub name: &'static str,
    pub title: &'static str,
    pub status: StatusCode,
}

macro_rules! kinds {
    ($($constant:ident $name:literal $title:literal $status:ident;)*) => {
        $(pub const $constant: ProblemKind = ProblemKind { name: $name, title: $title, status: StatusCode::$status };)*
    };
}

kinds! {
    BAD_REQUEST "bad-request" "Bad Request" BAD_REQUEST;
    UNAUTHORIZED "unauthorized" "Unauthorized" UNAUTHORIZED;
    FORBIDDEN "forbidden" "Forbidden" FORBIDDEN;
    NOT_FOUND "not-found" "Not Found" NOT_FOUND;
    METHOD_NOT_ALLOWED "method-not-allowed" "Method Not Allowed" METHOD_NOT_ALLOWED;
    REQUEST_TIMEOUT "request-timeout" "Request Timeout" REQUEST_TIMEOUT;
    CONFLICT "conflict" "Conflict" CONFLICT;
    ALREADY_PROCESSING "already-processing" "Conflict" CONFLICT;
    ALREADY_DECIDED "already-decided" "Conflict" CONFLICT;
    EFFECT_IN_FLIGHT "effect-in-flight" "Conflict" CONFLICT;
    APPROVAL_EXPIRED "approval-expired" "Gone" GONE;
    PRECONDITION_FAILED "precondition-failed" "Precondition Failed" PRECONDITION_FAILED;
    MISDIRECTED "misdirected-request" "Misdirected Request" MISDIRECTED_REQUEST;
    PAYLOAD_TOO_LARGE "payload-too-large" "Content Too Large" PAYLOAD_TOO_LARGE;
    UNSUPPORTED_MEDIA_TYPE "unsupported-media-type" "Unsupported Media Type" UNSUPPORTED_MEDIA_TYPE;
    RANGE_NOT_SATISFIABLE "range-not-satisfiable" "Range Not Satisfiable" RANGE_NOT_SATISFIABLE;
    KEY_REUSED "idempotency-key-reused" "Unprocessable Content" UNPROCESSABLE_ENTITY;
    RATE_LIMITED "rate-limited" "Too Many Requests" TOO_MANY_REQUESTS;
    INTERNAL "internal" "Internal Server Error" INTERNAL_SERVER_ERROR;
    UNAVAILABLE "unavailable" "Service Unavailable" SERVICE_UNAVAILABLE;
}

pub(crate) const NO_ROUTE: &str = "No such route. GET /api/openapi.json lists all routes.";
const UNEXPECTED_ERROR: &str = "The service failed unexpectedly. Try again, and report the `traceId` to an operator if it happens again.";
pub(crate) const MALFORMED: &str = "The path or a header is malformed.";
const PROBLEM_CONTENT_TYPE: &str = "application/problem+json";
/// Request headers that decide whose data a response has. With the platform's sign-in a browser sends
/// the session as a cookie.
const IDENTITY_HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, cookie, x-functions-key, x-ms-client-principal, turnwheel-tenant, turnwheel-user, turnwheel-roles",
);
/// Default `Retry-After` in seconds.
const RETRY_AFTER_SECONDS: u64 = 2;

#[derive(Clone, Debug)]
pub struct Problem {
    pub kind: ProblemKind,
    pub detail: String,
    extras: Box<ProblemExtras>,
}

/// Rarely used parts of a problem. Boxed, so that every `Result` stays small.
#[derive(Clone, Debug, Default)]
struct ProblemExtras {
    errors: Vec<FieldError>,
    members: Vec<(String, RawJson)>,
    headers: HeaderMap,
    /// Cause, for the log only.
    cause: Option<String>,
    /// Error class of a service failure, for the span.
    error_class: Option<error_class::ErrorClass>,
}

impl Problem {
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), extras: Box::default() }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(BAD_REQUEST, detail)
    }

    /// The caller exceeds the rate limit. The next request is allowed after `wait`.
    pub(crate) fn rate_limited(wait: Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let detail =
            format!("The request rate exceeds TURNWHEEL_RATE_LIMITS. Try again in {seconds} s.");
        Self::new(RATE_LIMITED, detail).retry_after(seconds)
    }

    pub(crate) fn not_found(resource: &str) -> Self {
        Self::new(NOT_FOUND, format!("The {resource} does not exist, or belongs to another user."))
    }

    #[must_use]
    pub(crate) fn with_errors(mut self, errors: Vec<FieldError>) -> Self {
        self.extras.errors = errors;
        self
    }

    #[must_use]
    fn with_member(mut self, name: &str, value: RawJson) -> Self {
        self.extras.members.push((name.to_owned(), value));
        self
    }

    #[must_use]
    pub(crate) fn with_header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.extras.headers.insert(name, value);
        }
        self
    }

    #[must_use]
    pub fn retry_after(self, seconds: u64) -> Self {
        self.with_header(RETRY_AFTER, &seconds.max(1).to_string())
    }

    #[must_use]
    fn with_cause(mut self, cause: String) -> Self {
        self.extras.cause = Some(cause);
        self
    }

    /// Returns the problem as JSON, with `instance` and `traceId` if they are given.
    fn to_json(&self, instance: Option<&str>, trace_id: Option<&str>) -> RawJson {
        let mut body = json!({
            "type": format!("urn:turnwheel:problem:{}", self.kind.name),
            "title": self.kind.title,
            "status": self.kind.status.as_u16(),
            "detail": self.detail,
        });
        let optional = [("instance", instance), ("traceId", trace_id)];
        let mut added: Map<String, Value> = optional
            .into_iter()
            .filter_map(|(name, text)| Some((name.to_owned(), json!(text?))))
            .collect();
        if !self.extras.errors.is_empty() {
            let errors = self
                .extras
                .errors
                .iter()
                .map(|fault| json!({"pointer": fault.pointer, "detail": fault.detail}));
            added.insert("errors".to_owned(), errors.collect());
        }
        if let Some(members) = body.as_object_mut() {
            members.extend(added);
        }
        RawJson::from_value(&body).with_members(self.extras.members.clone())
    }

    fn to_response(&self, body: &RawJson) -> Response {
        let mut response = Response::new(Body::from(body.text().to_owned()));
        *response.status_mut() = self.kind.status;
        response.headers_mut().extend(self.extras.headers.clone());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_CONTENT_TYPE));
        response
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.to_response(&self.to_json(None, None));
        response.extensions_mut().insert(self);
        response
    }
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Self {
        let error_class = error_domain::classify_command_error(&error);
        let mut problem = Self::from_command_error(error);
        problem.extras.error_class = error_class;
        problem
    }
}

impl Problem {
    fn from_command_error(error: CommandError) -> Self {
        let detail = error.to_string();
        match error {
            CommandError::NotFound(_)
            | CommandError::EntryNotFound(_)
            | CommandError::UnknownCommand => Self::new(NOT_FOUND, detail),
            CommandError::Invalid(errors) => Self::new(BAD_REQUEST, detail).with_errors(errors),
            CommandError::Conflict { retry_after: None, .. } => Self::new(CONFLICT, detail),
            CommandError::Conflict { retry_after: Some(span), .. } => {
                Self::new(CONFLICT, detail).retry_after(span.as_secs())
            }
            CommandError::AlreadyProcessing { prompt_id, .. } => {
                Self::new(ALREADY_PROCESSING, detail)
                    .with_member("promptId", RawJson::from_value(&prompt_id))
            }
            CommandError::AlreadyApplied { input, .. } => {
                Self::new(CONFLICT, detail).with_member("input", input)
            }
            CommandError::AlreadyDecided(approval) => {
                let mut problem = Self::new(ALREADY_DECIDED, detail);
                for (name, value) in approval.members().unwrap_or_default() {
                    if ["decision", "decidedBy", "decidedAt"].contains(&name.as_str()) {
                        problem = problem.with_member(&name, value);
                    }
                }
                problem.with_member("approval", approval)
            }
            CommandError::Expired { .. } => Self::new(APPROVAL_EXPIRED, detail),
            CommandError::Forbidden(_) => Self::new(FORBIDDEN, detail),
            CommandError::KeyReused => Self::new(KEY_REUSED, detail),
            CommandError::EffectInFlight { retry_after, .. } => {
                Self::new(EFFECT_IN_FLIGHT, detail).retry_after(retry_after.as_secs())
            }
            CommandError::InboxFull { retry_after, .. } => {
                Self::new(RATE_LIMITED, detail).retry_after(retry_after.as_secs())
            }
            CommandError::PreconditionFailed { etag } => {
                Self::new(PRECONDITION_FAILED, detail).with_header(http::header::ETAG, &etag)
            }
            CommandError::TooLarge(_) => Self::new(PAYLOAD_TOO_LARGE, detail),
            CommandError::AgentUnavailable(_) | CommandError::ExtensionFailed(_) => {
                Self::new(UNAVAILABLE, detail).retry_after(RETRY_AFTER_SECONDS)
            }
            CommandError::Unavailable { source, .. } => {
                let cause = source.map(|source| error_chain(source.as_ref())).unwrap_or_default();
                Self::new(UNAVAILABLE, detail).retry_after(RETRY_AFTER_SECONDS).with_cause(cause)
            }
            CommandError::Corrupt(source) => {
                Self::new(INTERNAL, detail).with_cause(error_chain(&source))
            }
        }
    }
}

/// Outermost middleware: completes every error to a problem with its address and logs it once.
pub(crate) async fn finish_response(
    State(api): State<SharedApi>,
    request: Request,
    next: Next,
) -> Response {
    let instance = problem_instance(request.uri().path());
    let trace_id =
        trace::current_ids().map_or_else(|| api.services.ids.new_id(), |(trace_id, _)| trace_id);
    let method = request.method().clone();
    let mut response = next.run(request).await;
    if let Some(problem) = find_problem(&response) {
        let status = problem.kind.status.as_u16();
        if let Some(cause) = &problem.extras.cause {
            tracing::error!(%method, path = %instance, status, trace.id = %trace_id, error = %cause, detail = %problem.detail, "request failed");
        } else {
            tracing::debug!(%method, path = %instance, status, trace.id = %trace_id, detail = %problem.detail, "request rejected");
        }
        // An HTML page stays unchanged.
        if !is_html(&response) {
            response = complete_problem(&problem, response, &instance, &trace_id);
        }
        if let Some(error_class) = problem.extras.error_class {
            response.extensions_mut().insert(error_class);
        }
    }
    let headers = response.headers_mut();
    let removed = remove_unreadable_headers(headers);
    // Tests find a handler that puts the text of a user into a header.
    debug_assert!(removed.is_empty(), "response headers are not ASCII: {removed:?}");
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("private, no-store"));
    headers.append(VARY, IDENTITY_HEADERS);
    response
}

/// Removes headers that are not ASCII: the Functions host would respond with 500 and an empty body.
/// Returns their names.
fn remove_unreadable_headers(headers: &mut HeaderMap) -> Vec<HeaderName> {
    let is_unreadable = |(_, value): &(&HeaderName, &HeaderValue)| value.to_str().is_err();
    let unreadable: Vec<HeaderName> =
        headers.iter().filter(is_unreadable).map(|(name, _)| name.clone()).collect();
    for name in &unreadable {
        tracing::warn!(header = %name, "response header removed: it is not ASCII");
        headers.remove(name);
    }
    unreadable
}

fn is_html(response: &Response) -> bool {
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|text| text.starts_with("text/html"))
}

/// Adds `instance` and `traceId` to a problem response. Its other headers stay (caching, CORS, `Allow`),
/// and its extensions: the server enforces the bounds of the request with one of them.
pub(super) fn complete_problem(
    problem: &Problem,
    mut response: Response,
    instance: &str,
    trace_id: &str,
) -> Response {
    let headers = std::mem::take(response.headers_mut());
    let mut complete = problem.to_response(&problem.to_json(Some(instance), Some(trace_id)));
    *complete.extensions_mut() = std::mem::take(response.extensions_mut());
    for (name, value) in &headers {
        if name != CONTENT_TYPE && name != CONTENT_LENGTH {
            complete.headers_mut().insert(name, value.clone());
        }
    }
    complete
}

/// Returns the problem of a handler, or one for an error response of the framework.
fn find_problem(response: &Response) -> Option<Problem> {
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
        status if status.is_client_error() => (BAD_REQUEST, MALFORMED),
        _ => (INTERNAL, UNEXPECTED_ERROR),
    };
    Some(Problem::new(kind, detail))
}

/// Returns the path without the token of an approval link: a reader of logs must not be able to
/// decide.
pub(super) fn problem_instance(path: &str) -> String {
    match path.split_once("/api/approvals/") {
        Some((before, token)) if !token.is_empty() => format!("{before}/api/approvals/…"),
        Some(_) | None => path.to_owned(),
    }
}

/// Response for a handler that panicked. The panic message may quote content, so it is not sent.
pub(crate) fn panic_response(_: Box<dyn std::any::Any + Send>) -> Response {
    Problem::new(INTERNAL, UNEXPECTED_ERROR)
        .with_cause("a request handler panicked".to_owned())
        .into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;
    use tokio::time::Instant;
    use turnwheel_platform::server::ResponseBounds;

    use super::*;

    /// The server cuts the response in time, and frees the slot when it is sent.
    #[test]
    fn completed_problem_keeps_its_bounds() {
        let slots = Arc::new(Semaphore::new(1));
        let slot = Arc::clone(&slots).try_acquire_owned().unwrap();
        let problem = Problem::not_found("input");
        let mut response = problem.clone().into_response();
        let bounds = ResponseBounds::new(Instant::now(), Some(Arc::new(slot)));
        response.extensions_mut().insert(bounds);
        let complete = complete_problem(&problem, response, "/api/x", "t");
        assert!(complete.extensions().get::<ResponseBounds>().is_some());
        assert_eq!(slots.available_permits(), 0);
        drop(complete);
        assert_eq!(slots.available_permits(), 1);
    }

    proptest::proptest! {
        /// Values of handlers: ids and names of users, types of artifacts, links.
        #[test]
        fn response_headers_are_ascii(values in proptest::collection::vec(".{0,30}", 1..6)) {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static("2"));
            for (number, value) in values.iter().enumerate() {
                let name = HeaderName::try_from(format!("x-header-{number}")).unwrap();
                if let Ok(value) = HeaderValue::from_str(value) {
                    headers.insert(name, value);
                }
            }
            remove_unreadable_headers(&mut headers);
            proptest::prop_assert!(headers.values().all(|value| value.to_str().is_ok()));
            proptest::prop_assert!(headers.contains_key(RETRY_AFTER));
            for (number, value) in values.iter().enumerate() {
                let is_plain = value.bytes().all(|byte| (0x20..0x7f).contains(&byte));
                let name = format!("x-header-{number}");
                proptest::prop_assert!(!is_plain || headers.contains_key(&name), "{value}");
            }
        }
    }

    #[test]
    fn problem_instance_hides_link_token() {
        assert_eq!(problem_instance("/api/approvals/abc.def"), "/api/approvals/…");
        assert_eq!(problem_instance("/api/approvals"), "/api/approvals");
        assert_eq!(
            problem_instance("/api/conversations/c/approvals/r"),
            "/api/conversations/c/approvals/r"
        );
    }
}
