//! Queue outputs: the host writes them after a successful response and wakes its listener at once.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::sync::mpsc;
use turnwheel::testing::http::functions::{
    FunctionFailure, Functions, InvocationMeta, TimerInfo, binding_text, functions_router,
};
use turnwheel::testing::queue::output_binding::OutputBindingQueue;
use turnwheel::testing::queue::{Queue, TURNS};
use turnwheel::testing::shutdown::Shutdown;

use super::recording_queue::{RecordingQueue, TIMEOUT};
use super::test_host::{OK_RESPONSE, TestHost, client, serve};

const PROMPTS: &str = "agent-prompts";

fn json_response(status: StatusCode, body: &str) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], body.to_owned()).into_response()
}

/// `prompt` returns this response; `turn` sends the received texts to the channel.
fn handler(status: StatusCode, body: &'static str) -> (Router, mpsc::UnboundedReceiver<String>) {
    let (sender, texts) = mpsc::unbounded_channel();
    let turn = move |request: Request| {
        let sender = sender.clone();
        async move {
            let body = axum::body::to_bytes(request.into_body(), 1_000_000).await.unwrap();
            let envelope: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let message = turnwheel::messages::RawJson::from_value(&envelope["Data"]["message"]);
            sender.send(binding_text(&message)).unwrap();
            json_response(StatusCode::OK, OK_RESPONSE)
        }
    };
    let router = Router::new()
        .route("/", get(|| async { "here" }))
        .route("/prompt", post(move || async move { json_response(status, body) }))
        .route("/turn", post(turn));
    (router, texts)
}

#[tokio::test]
async fn declared_outputs_are_delivered_and_undeclared_ones_reported() {
    let body = r#"{"Outputs":{"nudges":["{\"n\":1}","jobs"],"other":["lost"]},"Logs":[],"ReturnValue":null}"#;
    let (router, mut texts) = handler(StatusCode::OK, body);
    let host = TestHost::start(router).await;
    host.queue.put(PROMPTS, "go").await;
    // The test host polls once an hour: only a woken listener receives them in time.
    let mut received = Vec::new();
    for _ in 0..2 {
        received.push(tokio::time::timeout(TIMEOUT, texts.recv()).await.unwrap().unwrap());
    }
    received.sort();
    assert_eq!(received, ["jobs", r#"{"n":1}"#]);
    host.queue.until("all are deleted", |state| state.deletions == 3).await;
    let errors = host.errors().await;
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].starts_with("prompt: function.json declares no output `other`"),
        "{errors:?}"
    );
}

#[tokio::test]
async fn outputs_of_failed_response_are_ignored() {
    let body = r#"{"Outputs":{"nudges":["never"]}}"#;
    let (router, _texts) = handler(StatusCode::INTERNAL_SERVER_ERROR, body);
    let host = TestHost::start(router).await;
    host.queue.put(PROMPTS, "go").await;
    host.queue
        .until("the message is in the poison queue", |state| {
            state.texts("agent-prompts-poison") == ["go"]
        })
        .await;
    assert_eq!(host.queue.change(|state| state.texts(TURNS).len()), 0);
}

/// Sends a nudge without delay; fails for the text `fail`.
#[derive(Debug)]
struct NudgingFunctions(Arc<dyn Queue>);

impl NudgingFunctions {
    async fn send_nudge(&self, text: String) -> Result<(), FunctionFailure> {
        self.0.send(TURNS, text.clone(), Duration::ZERO).await.unwrap();
        if text == "fail" { Err(FunctionFailure("failure requested".into())) } else { Ok(()) }
    }
}

#[async_trait]
impl Functions for NudgingFunctions {
    async fn turn(&self, message: String, _meta: InvocationMeta) -> Result<(), FunctionFailure> {
        self.send_nudge(message).await
    }
    async fn prompt(&self, message: String, _meta: InvocationMeta) -> Result<(), FunctionFailure> {
        self.send_nudge(message).await
    }
    async fn notify(&self, message: String, _meta: InvocationMeta) -> Result<(), FunctionFailure> {
        self.send_nudge(message).await
    }
    async fn sweep(&self, _timer: TimerInfo, _meta: InvocationMeta) -> Result<(), FunctionFailure> {
        self.send_nudge("swept".to_owned()).await
    }
    async fn turn_poison(
        &self,
        message: String,
        _meta: InvocationMeta,
    ) -> Result<(), FunctionFailure> {
        self.send_nudge(message).await
    }
    async fn notify_poison(
        &self,
        message: String,
        _meta: InvocationMeta,
    ) -> Result<(), FunctionFailure> {
        self.send_nudge(message).await
    }
}

#[tokio::test]
async fn function_nudges_are_returned_or_sent_on_failure() {
    let queue = Arc::new(RecordingQueue::default());
    let functions = NudgingFunctions(OutputBindingQueue::wrap(Arc::clone(&queue) as _));
    let (address, _server) =
        serve(functions_router(Arc::new(functions), Shutdown::default(), Duration::from_mins(5)))
            .await;
    let invoke = async |name: &str, message: &str| {
        let envelope = format!(r#"{{"Data":{{"message":"{message}"}},"Metadata":{{}}}}"#);
        let request = client().post(format!("http://{address}/{name}")).body(envelope);
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    for name in ["turn", "prompt", "notify", "turn-poison", "notify-poison"] {
        let (status, body) = invoke(name, "hello").await;
        let expected = r#"{"Logs":[],"Outputs":{"nudges":["hello"]},"ReturnValue":null}"#;
        let same = serde_json::from_str::<serde_json::Value>(&body).unwrap()
            == serde_json::from_str::<serde_json::Value>(expected).unwrap();
        assert!(status == 200 && same, "{name}: {status} {body}");
    }
    let (_, body) = invoke("sweep", "").await;
    assert!(body.contains(r#""nudges":["swept"]"#), "{body}");
    assert_eq!(queue.change(|state| state.texts(TURNS).len()), 0, "the host writes them");
    let (status, _) = invoke("turn", "fail").await;
    assert_eq!((status, queue.change(|state| state.texts(TURNS).join(","))), (500, "fail".into()));
}
