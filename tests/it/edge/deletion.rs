//! Tests of deletion: a deleted conversation disappears at once; a running write delays it.

use std::time::Duration;

use serde_json::json;
use turnwheel::testing::commands::delete::purge;
use turnwheel::testing::store::Partition;

use super::test_app::TestApp;

#[tokio::test]
async fn deleted_conversation_is_gone_and_id_reserved() {
    let app = TestApp::new();
    let prompt = app.run("say hello").await;
    app.request(http::Method::POST, "/api/conversations/c/artifacts")
        .body("hello")
        .send()
        .await
        .expect_status(201);
    app.delete("/api/conversations/c").send().await.expect_status(204);
    for path in [
        "",
        "/messages",
        "/history?format=protocol",
        "/entries",
        "/prompts",
        "/artifacts",
        "/events",
        &format!("/prompts/{prompt}"),
    ] {
        app.get(&format!("/api/conversations/c{path}"))
            .send()
            .await
            .expect_problem(404, "not-found");
    }
    app.post("/api/conversations/c/prompts", &json!({"input": "x"}))
        .send()
        .await
        .expect_problem(404, "not-found");
    app.delete("/api/conversations/c").send().await.expect_problem(404, "not-found");
    assert_eq!(app.get_json("/api/conversations").await["items"], json!([]));
    app.post("/api/conversations", &json!({"id": "c"}))
        .send()
        .await
        .expect_problem(409, "conflict");
    let partition = Partition::Conversation(TestApp::conversation_key());
    let left = app.store.documents(&partition);
    assert_eq!(left.iter().map(|stored| stored.document.id.as_str()).collect::<Vec<_>>(), ["head"]);
    assert!(!left[0].document.body.text().contains("hello"));
    app.clock.advance(Duration::from_hours(8 * 24));
    purge(&app.services, &TestApp::conversation_key()).await.unwrap();
    assert!(app.store.documents(&partition).is_empty());
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
}

#[tokio::test]
async fn deletion_conflicts_with_running_write() {
    let app = TestApp::new();
    app.prompt("use pay with {\"amount\": 5, \"slowly\": true} then say done").await;
    let deletion = async {
        app.pay.has_started.notified().await;
        let response = app.delete("/api/conversations/c").send().await;
        assert!(response.header("retry-after").parse::<u64>().unwrap() >= 1);
        response.expect_problem(409, "effect-in-flight");
        app.pay.can_end.notify_one();
    };
    tokio::join!(app.work(), deletion);
    assert_eq!(app.pay.payments.lock().unwrap().len(), 1);
    app.delete("/api/conversations/c").send().await.expect_status(204);
}
