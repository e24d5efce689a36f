//! What the host is answered. An empty answer would make it wait until `functionTimeout` and then kill the process.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

/// The host takes `application/json` and `text/json`, and fails the invocation for every other type.
const JSON: &str = "application/json";

/// No outputs ever: a string in them that happens to be base64 would be decoded, and a delay cannot be asked for.
const SUCCESS: &str = r#"{"Outputs":{},"Logs":[],"ReturnValue":null}"#;

/// The invocation succeeded: a queue message is deleted.
pub fn answer_ok() -> Response {
    ([(CONTENT_TYPE, JSON)], SUCCESS).into_response()
}

/// The invocation failed: a queue message is delivered again. `text` is logged, so it holds no content.
pub fn answer_failed(text: &str) -> Response {
    let body = serde_json::json!({ "error": text }).to_string();
    (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, JSON)], body).into_response()
}
