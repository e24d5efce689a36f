//! Responses of a handler that cannot reach its store yet.

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::CACHE_CONTROL;
use tokio::time::Instant;

use crate::functions::{
    ArrivedAt, ENVELOPE_BYTES_MAX, FUNCTION_NAMES, failure_response, success_response,
};
use crate::problem::{Problem, UNAVAILABLE, complete_problem, problem_instance};
use turnwheel_platform::ids::{Ids as _, SystemIds};

/// `Retry-After` in seconds.
const RETRY_AFTER: u64 = 10;

/// True for the path of a function whose message the host keeps after a failure.
pub fn is_message_function(path: &str) -> bool {
    let name = path.trim_matches('/');
    name != "sweep" && FUNCTION_NAMES.contains(&name)
}

/// The request with its whole body in memory, and its arrival: the Functions host counts the time
/// until it is routed. `None`: the body is cut or too large.
pub async fn buffer_invocation(request: Request) -> Option<Request> {
    let (mut parts, body) = request.into_parts();
    parts.extensions.insert(ArrivedAt(Instant::now()));
    let body = axum::body::to_bytes(body, ENVELOPE_BYTES_MAX).await.ok()?;
    Some(Request::from_parts(parts, Body::from(body)))
}

/// The response to a request with that path. `awaited`: the part that the service cannot reach.
pub fn waiting_response(path: &str, awaited: &str) -> Response {
    match path.trim_matches('/') {
        // The host's start-up check.
        "" => "Turnwheel is connecting.\n".into_response(),
        // Without the store there is nothing to do; the next sweep follows within a minute.
        "sweep" => success_response(&[]),
        // The host keeps the message.
        name if FUNCTION_NAMES.contains(&name) => {
            failure_response(&format!("the service waits for {awaited}"))
        }
        _ => {
            let detail = format!(
                "The service waits for {awaited}, and connects as soon as it responds. Try again later."
            );
            let problem = Problem::new(UNAVAILABLE, detail)
                .retry_after(RETRY_AFTER)
                .with_header(CACHE_CONTROL, "no-store");
            let response = problem.clone().into_response();
            complete_problem(&problem, response, &problem_instance(path), &SystemIds.new_id())
        }
    }
}
