//! Requests that start turns in the process at which their clients wait (`execution: here`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use turnwheel::testing::agents::Execution;
use turnwheel::testing::commands::waiting_client::{TurnRunner, WaitingClients};
use turnwheel::testing::http::api::Api;
use turnwheel::testing::http::auth::Access;
use turnwheel::testing::http::router;
use turnwheel::testing::queue::{Queue as _, TURNS};
use turnwheel::testing::services::Services;
use turnwheel::testing::turn::nudge::Nudge;

use super::test_app::TestApp;

/// Counts the turns that it has to start.
#[derive(Debug, Default)]
struct CountedTurns(AtomicUsize);

impl TurnRunner for CountedTurns {
    fn start(&self, _: Nudge, _: CancellationToken) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
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
