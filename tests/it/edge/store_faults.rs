//! Tests of the API on a faulty store: every response to a client stays true.

use std::sync::Arc;

use http::StatusCode;
use serde_json::json;
use turnwheel::testing::fail_points::NoFailPoints;
use turnwheel::testing::settings::links::Auth;
use turnwheel::testing::store::memory::{MemoryStore, StoreFaults};

use super::test_app::{ApiResponse, TestApp};

const FREQUENT_FAULTS: StoreFaults = StoreFaults {
    throttled: 0.0,
    conflict: 0.1,
    conflict_after: 0.1,
    unavailable_before: 0.15,
    unavailable_after: 0.15,
    unavailable_late: 0.1,
    unavailable_reads: 0.1,
    stale_reads: 0.2,
    short_pages: 0.0,
    yield_to_others: 0.3,
};

/// Repeats a request while the service is unavailable.
async fn retry_while_unavailable<F: Future<Output = ApiResponse>>(
    send: impl Fn() -> F,
) -> ApiResponse {
    for _ in 0..40 {
        let response = send().await;
        let is_transient = response.status == StatusCode::SERVICE_UNAVAILABLE
            || (response.status == StatusCode::CONFLICT
                && !response.header("retry-after").is_empty());
        if !is_transient {
            return response;
        }
        assert!(!response.header("retry-after").is_empty(), "{}", response.text);
    }
    panic!("the service stayed unavailable");
}

#[tokio::test(start_paused = true)]
async fn idempotent_request_runs_once_despite_store_faults() {
    for seed in 0..60 {
        let app = TestApp::with(
            Arc::new(MemoryStore::with_faults(seed, FREQUENT_FAULTS)),
            Arc::new(NoFailPoints),
            Auth::Header,
        );
        let begun = retry_while_unavailable(|| {
            app.post("/api/prompts", &json!({"conversationId": "c", "input": "say hello"}))
                .key("k")
                .send()
        });
        let accepted = begun.await.expect_status(202).json();
        let patch = json!({"name": "Bills"});
        let named =
            retry_while_unavailable(|| app.patch("/api/conversations/c", &patch).key("n").send())
                .await
                .expect_status(200);
        assert_eq!(named.json()["name"], "Bills");
        let again = retry_while_unavailable(|| {
            app.post("/api/prompts", &json!({"conversationId": "c", "input": "say hello"}))
                .key("k")
                .send()
        });
        assert_eq!(again.await.expect_status(202).json(), accepted, "seed {seed}");
        app.store.set_faults(StoreFaults::default());
        app.work().await;
        app.store.set_faults(FREQUENT_FAULTS);
        let more = json!({"input": "say more"});
        let path = "/api/conversations/c/prompts";
        retry_while_unavailable(|| app.post(path, &more).key("more").send())
            .await
            .expect_status(202);
        app.store.set_faults(StoreFaults::default());
        app.work().await;
        let seen = app.get_json("/api/conversations/c/prompts").await;
        assert_eq!(seen["items"].as_array().unwrap().len(), 2, "seed {seed}");
        assert_eq!(seen["items"][1]["output"][0]["content"], "more", "seed {seed}");
        assert_eq!(seen["items"][0]["output"][0]["content"], "hello", "seed {seed}");
        let entries = app.get_json("/api/conversations/c/entries?limit=100").await;
        let named = entries["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["type"] == "session_info")
            .count();
        assert_eq!(named, 1, "seed {seed}: the name must change once");
    }
}

#[tokio::test(start_paused = true)]
async fn import_is_atomic_despite_store_faults() {
    let messages: Vec<_> = (0..250)
        .map(|number| json!({"role": "user", "content": number.to_string(), "timestamp": number}))
        .collect();
    for seed in 0..40 {
        let app = TestApp::with(
            Arc::new(MemoryStore::with_faults(seed, FREQUENT_FAULTS)),
            Arc::new(NoFailPoints),
            Auth::Header,
        );
        let body = json!({"id": "c", "messages": messages});
        retry_while_unavailable(|| app.post("/api/conversations", &body).key("k").send())
            .await
            .expect_status(201);
        app.store.set_faults(StoreFaults::default());
        let tail = app.get_json("/api/conversations/c/entries?afterSeq=200&limit=100").await;
        let contents: Vec<_> = tail["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["message"]["content"].clone())
            .collect();
        let expected: Vec<_> = (200..250).map(|number| json!(number.to_string())).collect();
        assert_eq!(contents, expected, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_two_concurrent_decisions_wins() {
    for seed in 0..40 {
        let app = TestApp::with(
            Arc::new(MemoryStore::with_faults(seed, StoreFaults::default())),
            Arc::new(NoFailPoints),
            Auth::Header,
        );
        app.run("use pay with {\"amount\": 500} then say done").await;
        let id =
            app.get_json("/api/approvals").await["items"][0]["id"].as_str().unwrap().to_owned();
        let path = format!("/api/conversations/c/approvals/{id}");
        app.store.set_faults(FREQUENT_FAULTS);
        let decide = |decision: &'static str| {
            let (app, path) = (&app, &path);
            retry_while_unavailable(move || app.post(path, &json!({"decision": decision})).send())
        };
        let (yes, no) = tokio::join!(decide("approve"), decide("reject"));
        let mut statuses = [yes.status.as_u16(), no.status.as_u16()];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409], "seed {seed}: {} {}", yes.text, no.text);
        app.store.set_faults(StoreFaults::default());
        app.work().await;
        let paid = app.pay.payments.lock().unwrap().len();
        assert_eq!(paid, usize::from(yes.status == StatusCode::OK), "seed {seed}");
    }
}
