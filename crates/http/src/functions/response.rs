//! Responses to the Functions host. After an empty response the host would wait until
//! `functionTimeout` and then kill the process.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use turnwheel_storage::queue::output_binding::NUDGES;

/// The host accepts `application/json` and `text/json`, and fails the invocation for any other
/// type.
const JSON: &str = "application/json";

const SUCCESS: &str = r#"{"Outputs":{},"Logs":[],"ReturnValue":null}"#;

/// Response of a successful invocation. The host enqueues the nudges, then deletes the queue
/// message. Nudges are in an array, because the host would decode a single string that happens to
/// be base64.
pub(crate) fn success_response(nudges: &[&str]) -> Response {
    if nudges.is_empty() {
        return ([(CONTENT_TYPE, JSON)], SUCCESS).into_response();
    }
    let body =
        serde_json::json!({ "Outputs": { NUDGES: nudges }, "Logs": [], "ReturnValue": null });
    ([(CONTENT_TYPE, JSON)], body.to_string()).into_response()
}

/// Response of a failed invocation. The host delivers a queue message again. `text` is logged, so
/// it holds no content.
pub(crate) fn failure_response(text: &str) -> Response {
    let body = serde_json::json!({ "error": text }).to_string();
    (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, JSON)], body).into_response()
}
