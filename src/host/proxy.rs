//! HTTP triggers: requests below the route prefix are sent to the handler unchanged, streamed both
//! ways.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use http_body_util::{LengthLimitError, Limited};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::invoke::{HOST_VERSION, HOST_VERSION_HEADER, INVOCATION_ID_HEADER};
use super::routes::segments_below_prefix;
use super::{Function, HostState, InvocationError, envelope};
use crate::error_chain::has_cause;
use crate::server::is_client_too_slow;

/// The Functions host's size limit of a request body.
const BODY_BYTES_MAX: usize = 104_857_600;
/// The Functions host closes a response that sends no data for this long.
const IDLE_MAX: Duration = Duration::from_mins(4);
/// Without `functionTimeout`: longer than any process runs, and small enough for an `Instant`.
const UNLIMITED_TIMEOUT: Duration = Duration::from_hours(24 * 365);

/// Headers that belong to one connection. `Expect` is handled here.
const HOP_BY_HOP: [HeaderName; 10] = [
    CONNECTION,
    http::header::PROXY_AUTHENTICATE,
    http::header::PROXY_AUTHORIZATION,
    http::header::TE,
    http::header::TRAILER,
    http::header::TRANSFER_ENCODING,
    http::header::UPGRADE,
    http::header::EXPECT,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

pub(super) async fn forward_request(
    State(host): State<Arc<HostState>>,
    request: Request,
) -> Response {
    let Some(function) = find_function(&host, request.method(), request.uri().path()) else {
        let prefix = &host.config.route_prefix;
        let text = format!("No route matches. Routes begin with /{prefix}/.\n");
        return (StatusCode::NOT_FOUND, text).into_response();
    };
    if let (Some(keys), Some(trigger)) = (&host.keys, function.http())
        && !keys.allow(function, trigger, (request.headers(), request.uri()))
    {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let too_large =
        |length: &u64| usize::try_from(*length).map_or(true, |length| length > BODY_BYTES_MAX);
    if content_length(request.headers()).as_ref().is_some_and(too_large) {
        return reject_size();
    }
    let name = function.name.clone();
    let id = envelope::new_guid(host.ids.as_ref());
    let path = request.uri().path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
    let request = outgoing_request(request, &id);
    let timeout = host.config.function_timeout;
    let deadline = Instant::now() + timeout.unwrap_or(UNLIMITED_TIMEOUT);
    let sending = host.handler.send(request, path);
    let first = deadline.min(Instant::now() + IDLE_MAX);
    match tokio::time::timeout_at(first, Box::pin(sending)).await {
        Ok(Ok(response)) => {
            let invocation = HttpInvocation { host, name, id, deadline };
            stream_response(response, invocation)
        }
        Ok(Err(error)) if has_cause::<LengthLimitError>(&error) => reject_size(),
        Ok(Err(error)) if is_client_too_slow(&error) => {
            (StatusCode::REQUEST_TIMEOUT, "The request body arrived too slowly.\n").into_response()
        }
        Ok(Err(error)) => {
            host.handler.record_failure(&name, &id, &error);
            (StatusCode::BAD_GATEWAY, format!("{error}\n")).into_response()
        }
        Err(_) => {
            let error = timeout_error(timeout.filter(|_| first == deadline));
            host.handler.record_failure(&name, &id, &error);
            (StatusCode::GATEWAY_TIMEOUT, format!("{error}\n")).into_response()
        }
    }
}

/// Finds the function for a request. The method is part of the route: with another method the next
/// route is tried. Functions are in the order of their names, and the first that matches decides.
fn find_function<'a>(host: &'a HostState, method: &Method, path: &str) -> Option<&'a Function> {
    let path = segments_below_prefix(path, &host.config.route_prefix)?;
    host.functions.iter().find(|function| {
        function
            .http()
            .is_some_and(|http| http.accepts_method(method.as_str()) && http.route.matches(&path))
    })
}

fn reject_size() -> Response {
    let text = format!("The Functions host accepts bodies of at most {BODY_BYTES_MAX} bytes.\n");
    (StatusCode::PAYLOAD_TOO_LARGE, text).into_response()
}

/// `timeout` is the function's time-out if that ended the request.
fn timeout_error(timeout: Option<Duration>) -> InvocationError {
    timeout.map_or(InvocationError::Idle(IDLE_MAX), InvocationError::TimedOut)
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn outgoing_request(request: Request, id: &str) -> http::Request<Body> {
    let (mut head, body) = request.into_parts();
    drop_hop_by_hop(&mut head.headers);
    head.version = Version::HTTP_11;
    head.extensions.clear();
    head.headers.insert(HOST_VERSION_HEADER, HOST_VERSION);
    if let Ok(id) = HeaderValue::try_from(id) {
        head.headers.insert(INVOCATION_ID_HEADER, id);
    }
    http::Request::from_parts(head, Body::new(Limited::new(body, BODY_BYTES_MAX)))
}

fn drop_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

/// A running HTTP invocation. Dropping it closes the connection to the handler, which thus notices
/// that the client left.
struct HttpInvocation {
    host: Arc<HostState>,
    name: String,
    id: String,
    deadline: Instant,
}

struct ResponseStream {
    invocation: HttpInvocation,
    body: BodyDataStream,
    /// Ends an event stream when the host stops; the host waits for other responses.
    stop: Option<CancellationToken>,
    has_ended: bool,
}

fn stream_response(response: http::Response<Body>, invocation: HttpInvocation) -> Response {
    let (mut head, body) = response.into_parts();
    drop_hop_by_hop(&mut head.headers);
    head.extensions.clear();
    let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_events = content_type.is_some_and(|text| text.starts_with("text/event-stream"));
    let stop = is_events.then(|| invocation.host.stop.clone());
    let response =
        ResponseStream { invocation, body: body.into_data_stream(), stop, has_ended: false };
    Response::from_parts(head, Body::from_stream(stream::unfold(response, next_bytes)))
}

/// Passes bytes on as they arrive, without buffering.
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
    let until = response.invocation.deadline.min(Instant::now() + IDLE_MAX);
    let next = tokio::select! {
        () = ended => return None,
        next = tokio::time::timeout_at(until, response.body.next()) => next,
    };
    let HttpInvocation { host, name, id, deadline } = &response.invocation;
    let bytes = match next {
        Ok(None) => return None,
        Ok(Some(Ok(bytes))) => Ok(bytes),
        Ok(Some(Err(error))) => Err(error),
        Err(_) => {
            let error = timeout_error(host.config.function_timeout.filter(|_| until == *deadline));
            host.handler.record_failure(name, id, &error);
            Err(axum::Error::new(error))
        }
    };
    response.has_ended = bytes.is_err();
    Some((bytes, response))
}
