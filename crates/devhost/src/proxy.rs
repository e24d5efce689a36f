//! HTTP triggers: requests below the route prefix are sent to the handler, streamed both ways, with
//! the changes of the Functions host.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::{
    ALLOW, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, UPGRADE, USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, request};
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::invoke::{HOST_VERSION, HOST_VERSION_HEADER, INVOCATION_ID_HEADER};
use super::request_path::RequestPath;
use super::routes::segments_below_prefix;
use super::{Function, HostState, InvocationError, envelope};
use turnwheel_platform::error_chain::has_cause;

/// The Functions host's size limit of a request body.
const BODY_BYTES_MAX: usize = 104_857_600;
/// Without `functionTimeout`: longer than any process runs, and small enough for an `Instant`.
const UNLIMITED_TIMEOUT: Duration = Duration::from_hours(24 * 365);

/// Headers that the host passes on in neither direction.
///
/// Source: YARP's `RequestUtilities`.
const DROPPED_HEADERS: [&str; 17] = [
    "connection",
    "transfer-encoding",
    "keep-alive",
    "upgrade",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-features",
    "proxy-instruction",
    "security-scheme",
    "alpn",
    "close",
    "http2-settings",
    "upgrade-insecure-requests",
    "te",
    "alt-svc",
];
/// Headers of a request that the host replaces or drops.
const REPLACED_HEADERS: [&str; 9] = [
    "host",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-prefix",
    INVOCATION_ID_HEADER,
    HOST_VERSION_HEADER,
    "x-ms-invocation-id",
];
/// Every client of the local host is on this machine.
const CLIENT_ADDRESS: HeaderValue = HeaderValue::from_static("127.0.0.1");
/// Bytes of the first line of a request, and of its headers.
const REQUEST_LINE_BYTES_MAX: usize = 8 * 1024;
const HEADER_BYTES_MAX: usize = 32 * 1024;

/// Responds as the Functions host does: a failure is an empty 500, and its reason is in the log.
pub(super) async fn forward_request(
    State(host): State<Arc<HostState>>,
    mut request: Request,
) -> Response {
    let is_text = |(_, value): (_, &HeaderValue)| value.as_bytes().is_ascii();
    if let Some(status) = find_excess(&request) {
        return status.into_response();
    }
    if request.uri().path() == "*" {
        return respond_to_asterisk(request.method());
    }
    *request.method_mut() = canonical_method(request.method());
    let path = RequestPath::parse(request.uri());
    let Some(path) = path.filter(|_| request.headers().iter().all(is_text)) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let Some(function) = find_function(&host, request.method(), &path) else {
        tracing::info!(prefix = %host.config.route_prefix, "no route matches the request");
        return StatusCode::NOT_FOUND.into_response();
    };
    if let (Some(keys), Some(trigger)) = (&host.keys, function.http())
        && !keys.allow(function, trigger, request.headers(), request.uri())
    {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let invocation = HttpInvocation::new(&host, function);
    let too_large =
        |length: &u64| usize::try_from(*length).map_or(true, |length| length > BODY_BYTES_MAX);
    if content_length(request.headers()).as_ref().is_some_and(too_large) {
        return invocation.fail(&InvocationError::RequestTooLarge);
    }
    if request.method() == Method::CONNECT {
        return invocation.fail(&InvocationError::Tunnel);
    }
    let Some(path) = path.to_path_and_query() else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let (head, body) = outgoing_request(request, &invocation);
    let sending = host.handler.send_with_repeats(head, body, path);
    let first = invocation.next_data_until();
    match tokio::time::timeout_at(first, Box::pin(sending)).await {
        Ok(Ok(response)) => Box::pin(stream_response(response, invocation)).await,
        Ok(Err(error)) if has_cause::<LengthLimitError>(&error) => {
            invocation.fail(&InvocationError::RequestTooLarge)
        }
        Ok(Err(error)) => invocation.fail(&error),
        Err(_) => invocation.fail(&invocation.timeout_error(first)),
    }
}

/// Responds to a request for the server itself, which no function takes.
fn respond_to_asterisk(method: &Method) -> Response {
    if method == Method::OPTIONS {
        return StatusCode::NOT_FOUND.into_response();
    }
    (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "OPTIONS")]).into_response()
}

/// The Functions host reads the names of known methods without case.
fn canonical_method(method: &Method) -> Method {
    let known = [
        Method::CONNECT,
        Method::DELETE,
        Method::GET,
        Method::HEAD,
        Method::OPTIONS,
        Method::PATCH,
        Method::POST,
        Method::PUT,
        Method::TRACE,
    ];
    let found = known.into_iter().find(|one| one.as_str().eq_ignore_ascii_case(method.as_str()));
    found.unwrap_or_else(|| method.clone())
}

/// Returns the status for a request whose head is too large.
fn find_excess(request: &Request) -> Option<StatusCode> {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let line = request.method().as_str().len() + target + "  HTTP/1.1\r\n".len();
    let headers = request.headers().iter();
    let headers: usize =
        headers.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len()).sum();
    if line > REQUEST_LINE_BYTES_MAX {
        return Some(StatusCode::URI_TOO_LONG);
    }
    (headers > HEADER_BYTES_MAX).then_some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
}

/// Finds the function for a request. The method is part of the route: with another method the next
/// route is tried. Functions are in the order of their names, and the first that matches decides.
fn find_function<'a>(
    host: &'a HostState,
    method: &Method,
    path: &RequestPath<'_>,
) -> Option<&'a Function> {
    let path = segments_below_prefix(path.decoded(), &host.config.route_prefix)?;
    host.functions.iter().find(|function| {
        function
            .http()
            .is_some_and(|http| http.accepts_method(method.as_str()) && http.route.matches(&path))
    })
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn outgoing_request(request: Request, invocation: &HttpInvocation) -> (request::Parts, Body) {
    let (mut head, body) = request.into_parts();
    let mut headers = HeaderMap::new();
    for name in head.headers.keys() {
        let is_passed = |list: &[&str]| !list.contains(&name.as_str());
        if is_passed(&DROPPED_HEADERS) && is_passed(&REPLACED_HEADERS) {
            headers.insert(name, joined_values(&head.headers, name));
        }
    }
    let values = [
        ("host", HeaderValue::try_from(invocation.host.handler.authority()).ok()),
        ("x-forwarded-for", Some(CLIENT_ADDRESS)),
        ("x-forwarded-host", head.headers.get(HOST).cloned()),
        ("x-forwarded-proto", Some(HeaderValue::from_static("http"))),
        (HOST_VERSION_HEADER, Some(HOST_VERSION)),
        (INVOCATION_ID_HEADER, HeaderValue::try_from(&invocation.id).ok()),
        ("x-ms-invocation-id", HeaderValue::try_from(&invocation.id).ok()),
    ];
    for (name, value) in values {
        headers.extend(value.map(|value| (HeaderName::from_static(name), value)));
    }
    if is_websocket_request(&head.headers) {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    let body = if body.is_end_stream() {
        // .NET states the length of an empty body where a body is usual.
        if ![Method::GET, Method::HEAD, Method::DELETE, Method::OPTIONS].contains(&head.method) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        Body::empty()
    } else {
        // A stream of data has no trailers: the host passes none on.
        Body::from_stream(Limited::new(body, BODY_BYTES_MAX).into_data_stream())
    };
    head.headers = headers;
    head.version = Version::HTTP_11;
    head.extensions.clear();
    (head, body)
}

fn is_websocket_request(headers: &HeaderMap) -> bool {
    headers.get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// The values of a repeated header as one.
fn joined_values(headers: &HeaderMap, name: &HeaderName) -> HeaderValue {
    let values: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    let separator = match name {
        name if name == USER_AGENT => " ",
        name if name == COOKIE => "; ",
        _ => ", ",
    };
    HeaderValue::from_bytes(&values.join(separator.as_bytes()))
        .unwrap_or(HeaderValue::from_static(""))
}

/// A running HTTP invocation. Dropping it closes the connection to the handler, which thus notices
/// that the client left.
struct HttpInvocation {
    host: Arc<HostState>,
    name: String,
    id: String,
    deadline: Instant,
}

impl HttpInvocation {
    fn new(host: &Arc<HostState>, function: &Function) -> Self {
        let timeout = host.config.function_timeout.unwrap_or(UNLIMITED_TIMEOUT);
        Self {
            name: function.name.clone(),
            id: envelope::new_guid(host.ids.as_ref()),
            deadline: Instant::now() + timeout,
            host: Arc::clone(host),
        }
    }

    /// The time until which the handler must send data.
    fn next_data_until(&self) -> Instant {
        self.deadline.min(Instant::now() + self.host.idle_max)
    }

    /// The reason why nothing arrived until this time.
    fn timeout_error(&self, until: Instant) -> InvocationError {
        let timeout = self.host.config.function_timeout.filter(|_| until == self.deadline);
        timeout.map_or(InvocationError::Idle(self.host.idle_max), InvocationError::TimedOut)
    }

    fn record(&self, error: &InvocationError) {
        self.host.handler.record_failure(&self.name, &self.id, error);
    }

    fn fail(&self, error: &InvocationError) -> Response {
        self.record(error);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

struct ResponseStream {
    invocation: HttpInvocation,
    body: BodyDataStream,
    /// Ends an event stream when the host stops; the host waits for other responses.
    stop: Option<CancellationToken>,
    has_ended: bool,
}

/// Waits for the first bytes of the body: the Functions host sends the head with them, and an empty
/// 500 if there are none.
async fn stream_response(response: http::Response<Body>, invocation: HttpInvocation) -> Response {
    let (mut head, body) = response.into_parts();
    for name in DROPPED_HEADERS {
        head.headers.remove(name);
    }
    head.extensions.clear();
    head.version = Version::HTTP_11;
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return invocation.fail(&InvocationError::WebSocket);
    }
    let has_text = head.headers.values().all(|value| value.as_bytes().is_ascii());
    let length = content_length(&head.headers).unwrap_or_default();
    if !has_text || (head.status == StatusCode::NO_CONTENT && length > 0) {
        return invocation.fail(&InvocationError::ResponseHead);
    }
    let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_events = content_type.is_some_and(|text| text.starts_with("text/event-stream"));
    let stop = is_events.then(|| invocation.host.stop.clone());
    let response =
        ResponseStream { invocation, body: body.into_data_stream(), stop, has_ended: false };
    match next_bytes(response).await {
        None => Response::from_parts(head, Body::empty()),
        Some((Err(_), _)) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Some((first, rest)) => {
            let first = stream::once(std::future::ready(first));
            let bytes = first.chain(stream::unfold(rest, next_bytes));
            Response::from_parts(head, Body::from_stream(bytes))
        }
    }
}

/// Passes bytes on as they arrive, without buffering. A failure is logged.
async fn next_bytes(
    mut response: ResponseStream,
) -> Option<(Result<Bytes, axum::Error>, ResponseStream)> {
    if response.has_ended {
        return None;
    }
    let stop = response.stop.clone();
    let ended = async {
        match &stop {
            Some(stop) => stop.cancelled().await,
            None => std::future::pending().await,
        }
    };
    let until = response.invocation.next_data_until();
    let next = tokio::select! {
        () = ended => return None,
        next = tokio::time::timeout_at(until, response.body.next()) => next,
    };
    let bytes = match next {
        Ok(None) => return None,
        Ok(Some(Ok(bytes))) => Ok(bytes),
        Ok(Some(Err(error))) => {
            let error = InvocationError::Unreadable(error.into());
            response.invocation.record(&error);
            Err(axum::Error::new(error))
        }
        Err(_) => {
            let error = response.invocation.timeout_error(until);
            response.invocation.record(&error);
            Err(axum::Error::new(error))
        }
    };
    response.has_ended = bytes.is_err();
    Some((bytes, response))
}
