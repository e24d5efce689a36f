//! The local host on queues of a storage account, which it polls.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use turnwheel::testing::azure::storage::TransportSettings;
use turnwheel::testing::clock::SystemClock;
use turnwheel::testing::host::{
    HostOptions, IDLE_MAX, JsonReader, LEASE, ScriptRoot, TimerStatuses,
};
use turnwheel::testing::ids::SeededIds;
use turnwheel::testing::queue::{Queue, StorageQueue, TURNS, poison_queue};
use turnwheel::testing::server::ServerLimits;
use turnwheel::testing::settings::origins::AllowedOrigins;

use super::recording_queue::TIMEOUT;
use super::test_host::{EditHostJson as _, OK_RESPONSE, serve};
use crate::support::azurite::shared_azurite;

const TEXT: &str = r#"{"conversationId":"<&> ü"}"#;

/// A handler that reports its calls: `turn` fails, every other function succeeds.
fn handler(sender: mpsc::UnboundedSender<(String, Value)>) -> Router {
    let act = move |request: Request| {
        let sender = sender.clone();
        async move {
            let path = request.uri().path().to_owned();
            if request.method() == Method::POST && path.starts_with("/turn") {
                let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
                sender.send((path.clone(), serde_json::from_slice(&body).unwrap())).unwrap();
            }
            if path == "/turn" {
                return StatusCode::INTERNAL_SERVER_ERROR.into_response();
            }
            ([(CONTENT_TYPE, "application/json")], OK_RESPONSE).into_response()
        }
    };
    Router::new().route("/", get(|| async { Json(()) })).fallback(act)
}

async fn until_empty(queue: &StorageQueue, name: &str) {
    let polling = async { while queue.length(name).await.unwrap() > 0 {} };
    tokio::time::timeout(TIMEOUT, polling).await.unwrap();
}

#[tokio::test]
async fn failing_message_passes_storage_poison_queue() {
    let account = shared_azurite().await.account();
    let queue = StorageQueue::connect(&account, None, "poison-", &TransportSettings::default());
    let queue = Arc::new(queue.unwrap());
    queue.send(TURNS, TEXT.to_owned(), Duration::ZERO).await.unwrap();
    let (sender, mut calls) = mpsc::unbounded_channel();
    let (address, _handler) = serve(handler(sender)).await;
    let mut root = ScriptRoot::embedded();
    root.replace("00:00:15", "00:00:00");
    let options = HostOptions {
        port: 0,
        port_wait: Duration::ZERO,
        root,
        handler: address.to_string().parse().unwrap(),
        queues: Arc::clone(&queue) as _,
        clock: Arc::new(SystemClock::default()),
        ids: Arc::new(SeededIds::new(7)),
        keys: None,
        timers: TimerStatuses::default(),
        json: JsonReader::default(),
        host_names: Vec::new(),
        allowed_origins: AllowedOrigins::default(),
        lease: LEASE,
        idle_max: IDLE_MAX,
        grace: TIMEOUT,
        bounds: ServerLimits::LOCAL_HOST,
    };
    let running = turnwheel::testing::host::start(options).await.unwrap();
    let stop = CancellationToken::new();
    let mut host = JoinSet::new();
    host.spawn(running.run(stop.clone()));

    for path in ["/turn", "/turn", "/turn", "/turn", "/turn", "/turn-poison"] {
        let (called, body) = tokio::time::timeout(TIMEOUT, calls.recv()).await.unwrap().unwrap();
        assert_eq!(called, path);
        let message: String =
            serde_json::from_str(body["Data"]["message"].as_str().unwrap()).unwrap();
        assert_eq!(message, TEXT, "the text moves unchanged");
    }
    until_empty(&queue, TURNS).await;
    until_empty(&queue, &poison_queue(TURNS)).await;
    stop.cancel();
    host.join_next().await.unwrap().unwrap().unwrap();
    assert!(calls.try_recv().is_err(), "the message was delivered once more");
}
