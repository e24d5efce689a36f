//! What the host is answered. An empty answer would make it wait until `functionTimeout` and then kill the process.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use crate::queue::doorbell::NUDGES;

/// The host takes `application/json` and `text/json`, and fails the invocation for every other type.
const JSON: &str = "application/json";

const SUCCESS: &str = r#"{"Outputs":{},"Logs":[],"ReturnValue":null}"#;

/// The invocation succeeded: the host puts the nudges on the queue, then deletes a queue message. In an array, because a
/// single string that happens to be base64 would be decoded.
pub fn answer_ok(nudges: &[&str]) -> Response {
    if nudges.is_empty() {
        return ([(CONTENT_TYPE, JSON)], SUCCESS).into_response();
    }
    let body =
        serde_json::json!({ "Outputs": { NUDGES: nudges }, "Logs": [], "ReturnValue": null });
    ([(CONTENT_TYPE, JSON)], body.to_string()).into_response()
}

/// The invocation failed: a queue message is delivered again. `text` is logged, so it holds no content.
pub fn answer_failed(text: &str) -> Response {
    let body = serde_json::json!({ "error": text }).to_string();
    (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, JSON)], body).into_response()
}
