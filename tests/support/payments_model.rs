//! Fake model of a payments clerk. Its response depends only on the request, so that any number of
//! workers may call it in any order. It counts its requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::fake_model::{Call, ResponseScript, stream_script};

/// Response delay, long enough that faults occur during a response.
const RESPONSE_DELAY: Duration = Duration::from_millis(60);

/// Number of requests by conversation.
type RequestCounts = Arc<Mutex<BTreeMap<String, usize>>>;

/// Serves until it is dropped.
pub(crate) struct PaymentsModel {
    /// The base URL, including `/openai/v1`.
    pub(crate) url: String,
    requests: RequestCounts,
    server: JoinHandle<()>,
}

impl PaymentsModel {
    pub(crate) async fn start() -> Self {
        let requests = RequestCounts::default();
        let router = Router::new()
            .route("/openai/v1/responses", post(handle_request))
            .with_state(Arc::clone(&requests));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/openai/v1", listener.local_addr().unwrap());
        #[expect(clippy::disallowed_methods, reason = "a server beside the test, ended with it")]
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, requests, server }
    }

    /// Number of responses billed to this conversation.
    pub(crate) fn request_count(&self, conversation: &str) -> usize {
        self.requests.lock().unwrap().get(conversation).copied().unwrap_or_default()
    }
}

impl Drop for PaymentsModel {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn handle_request(
    State(requests): State<RequestCounts>,
    Json(body): Json<Value>,
) -> Response {
    let session = body["prompt_cache_key"].as_str().expect("a request must have a session");
    let (conversation, _incarnation) = session.split_once('-').unwrap();
    *requests.lock().unwrap().entry(conversation.to_owned()).or_default() += 1;
    tokio::time::sleep(RESPONSE_DELAY).await;
    stream_script(&next_response(body["input"].as_array().map_or(&[], Vec::as_slice)))
}

/// Pays everything requested and not called yet, all payments of one message at once. If nothing
/// remains, responds with `Done.`
fn next_response(input: &[Value]) -> ResponseScript {
    let is_called = |id: &str| {
        input.iter().any(|item| item["type"] == "function_call" && item["call_id"] == id)
    };
    let messages = input.iter().filter(|item| item["role"] == "user").enumerate();
    for (number, message) in messages {
        let calls: Vec<Call> = parse_payments(&message["content"])
            .into_iter()
            .enumerate()
            .map(|(part, (amount, to))| Call {
                id: format!("pay_{number}_{part}"),
                name: "send_payment".to_owned(),
                arguments: json!({"to": to, "amount": amount}),
            })
            .collect();
        if calls.iter().any(|call| !is_called(&call.id)) {
            return ResponseScript { calls, ..ResponseScript::default() };
        }
    }
    ResponseScript::text("Done.")
}

/// Parses `Pay 40 to Ada and 30 to Bob` into amounts and names.
fn parse_payments(content: &Value) -> Vec<(u64, String)> {
    let text = content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or_default();
    let Some(list) = text.strip_prefix("Pay ") else { return Vec::new() };
    let parse_payment = |part: &str| {
        let (amount, to) =
            part.split_once(" to ").expect("a payment must have an amount and a name");
        (amount.parse().expect("the amount must be a number"), to.to_owned())
    };
    list.split(" and ").map(parse_payment).collect()
}
