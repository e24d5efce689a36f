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
use turnwheel::http::functions::{
    FunctionFailure, Functions, Meta, TimerInfo, functions_router, text_of,
};
use turnwheel::queue::doorbell::Doorbell;
use turnwheel::queue::{Queue, TURNS};

use super::rig::{GOOD, Rig, client, serve};
use super::shelf::{SOON, Shelf};

const PROMPTS: &str = "agent-prompts";

fn answer(status: StatusCode, body: &str) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], body.to_owned()).into_response()
}

/// `prompt` returns this response; `turn` sends the received texts to the channel.
fn handler(status: StatusCode, body: &'static str) -> (Router, mpsc::UnboundedReceiver<String>) {
    let (heard, texts) = mpsc::unbounded_channel();
    let turn = move |request: Request| {
        let heard = heard.clone();
        async move {
            let body = axum::body::to_bytes(request.into_body(), 1_000_000).await.unwrap();
            let envelope: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let message = turnwheel::agent::raw::RawJson::of(&envelope["Data"]["message"]);
            heard.send(text_of(&message)).unwrap();
            answer(StatusCode::OK, GOOD)
        }
    };
    let router = Router::new()
        .route("/", get(|| async { "here" }))
        .route("/prompt", post(move || async move { answer(status, body) }))
        .route("/turn", post(turn));
    (router, texts)
}

#[tokio::test]
async fn outputs_of_a_good_answer_ring_at_once_and_undeclared_ones_are_dropped_aloud() {
    let body = r#"{"Outputs":{"nudges":["{\"n\":1}","jobs"],"other":["lost"]},"Logs":[],"ReturnValue":null}"#;
    let (router, mut texts) = handler(StatusCode::OK, body);
    let rig = Rig::start(router).await;
    rig.shelf.put(PROMPTS, "go").await;
    // The test host polls once an hour: only a woken listener receives them in time.
    let mut heard = Vec::new();
    for _ in 0..2 {
        heard.push(tokio::time::timeout(SOON, texts.recv()).await.unwrap().unwrap());
    }
    heard.sort();
    assert_eq!(heard, ["jobs", r#"{"n":1}"#]);
    rig.shelf.until("all are deleted", |state| state.deletions == 3).await;
    let told = rig.errors().await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("prompt: function.json declares no output `other`"), "{told:?}");
}

#[tokio::test]
async fn outputs_of_a_failed_answer_are_ignored() {
    let body = r#"{"Outputs":{"nudges":["never"]}}"#;
    let (router, _texts) = handler(StatusCode::INTERNAL_SERVER_ERROR, body);
    let rig = Rig::start(router).await;
    rig.shelf.put(PROMPTS, "go").await;
    rig.shelf.until("the message is in the poison queue", |state| state.texts("agent-prompts-poison") == ["go"]).await;
    assert_eq!(rig.shelf.change(|state| state.texts(TURNS).len()), 0);
}

/// Sends a nudge without delay; fails for the text `fail`.
#[derive(Debug)]
struct Ringing(Arc<dyn Queue>);

impl Ringing {
    async fn ring(&self, text: String) -> Result<(), FunctionFailure> {
        self.0.send(TURNS, text.clone(), Duration::ZERO).await.unwrap();
        if text == "fail" { Err(FunctionFailure("failure requested".into())) } else { Ok(()) }
    }
}

#[async_trait]
impl Functions for Ringing {
    async fn turn(&self, message: String, _meta: Meta) -> Result<(), FunctionFailure> {
        self.ring(message).await
    }
    async fn prompt(&self, message: String, _meta: Meta) -> Result<(), FunctionFailure> {
        self.ring(message).await
    }
    async fn notify(&self, message: String, _meta: Meta) -> Result<(), FunctionFailure> {
        self.ring(message).await
    }
    async fn sweep(&self, _timer: TimerInfo, _meta: Meta) -> Result<(), FunctionFailure> {
        self.ring("swept".to_owned()).await
    }
    async fn turn_poison(&self, message: String, _meta: Meta) -> Result<(), FunctionFailure> {
        self.ring(message).await
    }
    async fn notify_poison(&self, message: String, _meta: Meta) -> Result<(), FunctionFailure> {
        self.ring(message).await
    }
}

#[tokio::test]
async fn what_a_function_rings_with_is_answered_and_sent_only_when_it_fails() {
    let shelf = Arc::new(Shelf::default());
    let ringing = Ringing(Doorbell::over(Arc::clone(&shelf) as _));
    let (address, _server) = serve(functions_router(Arc::new(ringing))).await;
    let invoke = async |name: &str, message: &str| {
        let envelope = format!(r#"{{"Data":{{"message":"{message}"}},"Metadata":{{}}}}"#);
        let request = client().post(format!("http://{address}/{name}")).body(envelope);
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    for name in ["turn", "prompt", "notify", "turn-poison", "notify-poison"] {
        let (status, body) = invoke(name, "hello").await;
        let wanted = r#"{"Logs":[],"Outputs":{"nudges":["hello"]},"ReturnValue":null}"#;
        let same = serde_json::from_str::<serde_json::Value>(&body).unwrap()
            == serde_json::from_str::<serde_json::Value>(wanted).unwrap();
        assert!(status == 200 && same, "{name}: {status} {body}");
    }
    let (_, body) = invoke("sweep", "").await;
    assert!(body.contains(r#""nudges":["swept"]"#), "{body}");
    assert_eq!(shelf.change(|state| state.texts(TURNS).len()), 0, "the host writes them");
    let (status, _) = invoke("turn", "fail").await;
    assert_eq!((status, shelf.change(|state| state.texts(TURNS).join(","))), (500, "fail".into()));
}
