//! Requests that start turns in the process at which their clients wait (`execution: here`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use turnwheel::testing::agents::Execution;
use turnwheel::testing::commands::waiting_client::{TurnRunner, WaitingClients};
use turnwheel::testing::fail_points::FailPoints;
use turnwheel::testing::http::api::Api;
use turnwheel::testing::http::auth::Access;
use turnwheel::testing::http::router;
use turnwheel::testing::queue::{Queue as _, TURNS};
use turnwheel::testing::services::Services;
use turnwheel::testing::turn::nudge::Nudge;

use super::test_app::{TestApp, TestRequest};

/// Counts the turns that it has to start, and keeps the token of the last client.
#[derive(Debug, Default)]
struct CountedTurns(AtomicUsize, Mutex<Option<CancellationToken>>);

impl TurnRunner for CountedTurns {
    fn start(&self, _: Nudge, gone: CancellationToken) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        *self.1.lock().unwrap() = Some(gone);
        true
    }
}

impl CountedTurns {
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

fn app_with_runner() -> (TestApp, Arc<CountedTurns>) {
    let mut app = TestApp::new().with_agent(|agent| agent.execution = Execution::Here);
    let runner = Arc::new(CountedTurns::default());
    let clients = Arc::new(WaitingClients::new(Arc::clone(&runner) as _));
    let api = Api::new(Services::clone(&app.services), Access::dev(), app.keys.clone());
    app.router = router(Arc::new(Api { waiting_clients: Some(clients), ..api }));
    (app, runner)
}

async fn has_message(app: &TestApp) -> bool {
    !app.queue.receive(TURNS, 1, Duration::from_secs(1)).await.unwrap().is_empty()
}

#[tokio::test]
async fn decision_continues_where_an_event_stream_is_open() {
    for is_by_link in [false, true] {
        let (app, runner) = app_with_runner();
        app.run("use pay with {\"amount\": 500} then say done").await;
        let _ends_itself =
            app.get("/api/conversations/c/events?follow=false").send_streaming().await;
        assert_eq!(runner.take(), 0, "neither for the prompt nor for a stream that ends itself");
        let _stream = app.get("/api/conversations/c/events").send_streaming().await;
        assert_eq!(runner.take(), 1, "the prompt was accepted less than 5 s before");
        let path = if is_by_link {
            app.approval_link().await
        } else {
            let seen = app.get_json("/api/conversations/c").await;
            let id = seen["pendingApprovals"][0]["id"].as_str().unwrap();
            format!("/api/conversations/c/approvals/{id}")
        };
        app.post(&path, &json!({"decision": "approve"})).send().await.expect_status(200);
        assert_eq!((runner.take(), has_message(&app).await), (1, false), "{path}");
    }
}

#[tokio::test]
async fn prompt_starts_turns_for_a_request_that_waits() {
    let (app, runner) = app_with_runner();
    let body = json!({"conversationId": "waits", "input": "say hello"});
    app.post("/api/prompts?wait=1", &body).send().await.expect_status(202);
    assert_eq!((runner.take(), has_message(&app).await), (1, false));
    let body = json!({"conversationId": "other", "input": "say hello"});
    app.post("/api/prompts?wait=0", &body).send().await.expect_status(202);
    assert_eq!((runner.take(), has_message(&app).await), (0, true));
    let _stream = app.get("/api/conversations/other/events?until=settled").send_streaming().await;
    assert_eq!(runner.take(), 1);
}

/// Pauses a request at its fail point.
#[derive(Debug)]
pub(super) struct RequestPause {
    at: &'static str,
    reached: Notify,
    resume: Notify,
}

impl RequestPause {
    pub(super) fn new(at: &'static str) -> Arc<Self> {
        Arc::new(Self { at, reached: Notify::new(), resume: Notify::new() })
    }
}

#[async_trait]
impl FailPoints for RequestPause {
    async fn hit(&self, name: &'static str) {
        if name == self.at {
            self.reached.notify_one();
            self.resume.notified().await;
        }
    }
}

/// Disconnects the client of the request at the fail point.
async fn disconnect(pause: &RequestPause, request: TestRequest<'_>) {
    tokio::select! {
        response = request.send_streaming() => panic!("{}: {}", pause.at, response.status()),
        () = pause.reached.notified() => {}
    }
    // The server has dropped the request with the connection.
    pause.resume.notify_one();
}

async fn wait_for_messages(app: &TestApp, count: u64) {
    let sent = async {
        while app.queue.length(TURNS).await.unwrap() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), sent).await.unwrap();
}

#[tokio::test]
async fn prompt_of_disconnected_client_wakes_worker() {
    for at in ["admission.accept", "admission.accepted"] {
        let pause = RequestPause::new(at);
        let fail_points = Arc::clone(&pause);
        let app = TestApp::new().with_services(|services| services.fail_points = fail_points);
        let body = json!({"conversationId": "c", "input": "say hello"});
        disconnect(&pause, app.post("/api/prompts", &body)).await;
        wait_for_messages(&app, 1).await;
        app.work().await;
        assert_eq!(app.get_json("/api/conversations/c").await["state"], "idle", "{at}");
    }
}

#[tokio::test]
async fn abort_of_disconnected_client_ends_prompt() {
    for at in ["admission.accept", "admission.accepted"] {
        let app = TestApp::new();
        let prompt = app.prompt("say hello").await;
        let pause = RequestPause::new(at);
        let fail_points = Arc::clone(&pause);
        let app = app.with_services(|services| services.fail_points = fail_points);
        disconnect(&pause, app.post("/api/conversations/c/abort", &json!({}))).await;
        wait_for_messages(&app, 2).await;
        app.work().await;
        let ended = app.get_json(&format!("/api/conversations/c/prompts/{prompt}")).await;
        assert_eq!(ended["state"], "aborted", "{at}");
    }
}

#[tokio::test]
async fn wait_of_a_request_ends_with_its_connection() {
    let (app, runner) = app_with_runner();
    let body = json!({"conversationId": "waits", "input": "say hello"});
    let started = async {
        while runner.take() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        response = app.post("/api/prompts?wait=60", &body).send_streaming() => panic!("{}", response.status()),
        () = started => {}
    }
    let gone = runner.1.lock().unwrap().take().unwrap();
    tokio::time::timeout(Duration::from_secs(10), gone.cancelled()).await.unwrap();
}
