//! Tests of prompt admission: repeated requests are accepted once.

use serde_json::json;

use super::test_app::{PacedResponse, TestApp, respond_text};

#[tokio::test]
async fn repeated_idempotency_key_runs_prompt_once() {
    let app = TestApp::start([respond_text("Hello")]).await;
    let body = json!({"conversationId": "c", "input": "Hi", "metadata": {"a": "1", "b": "2"}});
    let key = [("idempotency-key", "order-7")];
    let first = app.post("/api/prompts", &key, &body).await;
    assert_eq!((first.status, first.is_replayed()), (202, false), "{}", first.body);
    assert!(first.headers.contains_key("location"));

    // The key quoted, as in the draft standard, and the members in another order.
    let same = json!({"metadata": {"b": "2", "a": "1"}, "input": "Hi", "conversationId": "c"});
    let again = app.post("/api/prompts", &[("idempotency-key", "\"order-7\"")], &same).await;
    assert_eq!((again.status, again.is_replayed()), (202, true));
    assert_eq!(again.body, first.body);
    assert_eq!(again.headers["location"], first.headers["location"]);

    // `wait` is not part of the request that the key identifies.
    let waited = app.post("/api/prompts?wait=60", &key, &body).await;
    assert_eq!(
        (waited.status, &waited.body["state"]),
        (200, &json!("completed")),
        "{}",
        waited.body
    );
    assert_eq!(waited.body["id"], first.body["promptId"]);
    let late = app.post("/api/prompts", &key, &body).await;
    assert_eq!((late.status, late.is_replayed(), late.body), (202, true, first.body));
    assert_eq!(app.model.request_bodies().len(), 1);
    app.service.stop().await;
}

#[tokio::test]
async fn idempotency_key_with_other_body_is_rejected() {
    let app = TestApp::start([respond_text("Hello"), respond_text("Again")]).await;
    let key = [("idempotency-key", "k")];
    let refused =
        app.post("/api/prompts", &key, &json!({"conversationId": "c", "inptu": "Hi"})).await;
    assert_eq!((refused.status, refused.problem()), (400, "bad-request"));
    assert!(refused.body.to_string().contains("inptu"), "{}", refused.body);

    let body = json!({"conversationId": "c", "input": "Hi"});
    let first = app.post("/api/prompts?wait=60", &key, &body).await;
    assert_eq!((first.status, first.is_replayed()), (200, false), "{}", first.body);
    let other = json!({"conversationId": "c", "input": "Ho"});
    let reused = app.post("/api/prompts", &key, &other).await;
    assert_eq!((reused.status, reused.problem()), (422, "idempotency-key-reused"));
    // Another route is another scope of keys.
    let path = "/api/conversations/c/prompts?wait=60";
    let elsewhere = app.post(path, &key, &json!({"input": "Ho"})).await;
    assert_eq!((elsewhere.status, &elsewhere.body["state"]), (200, &json!("completed")));
    assert_eq!(app.model.request_bodies().len(), 2);
    app.service.stop().await;
}

#[tokio::test]
async fn second_prompt_conflicts_with_running_prompt() {
    let (paced, play) = PacedResponse::new(&["Hel".to_owned(), "lo".to_owned()]);
    let app = TestApp::start([play, respond_text("Next")]).await;
    let first = app.post("/api/prompts", &[], &json!({"conversationId": "c", "input": "Hi"})).await;
    assert_eq!(first.status, 202);
    let path = "/api/conversations/c/prompts";
    let key = [("idempotency-key", "k")];
    let second = app.post(path, &key, &json!({"input": "Me too"})).await;
    assert_eq!((second.status, second.problem()), (409, "already-processing"), "{}", second.body);
    assert_eq!(second.body["promptId"], first.body["promptId"]);
    // The wait ends first: the response is the accepted prompt.
    let prompt = first.body["promptId"].as_str().unwrap();
    let running = app.get(&format!("{path}/{prompt}?wait=0"), &[]).await;
    assert_eq!((running.status, &running.body["state"]), (200, &json!("running")));

    paced.release_all();
    assert_eq!(app.service.wait_for_prompt("c", prompt).await["output"][0]["content"], "Hello");
    let second = app.post(&format!("{path}?wait=60"), &key, &json!({"input": "Me too"})).await;
    assert_eq!(
        (second.status, second.is_replayed()),
        (200, false),
        "a rejected request must not store its key"
    );
    app.service.stop().await;
}

#[tokio::test]
async fn invalid_wait_is_rejected_before_admission() {
    let app = TestApp::start([]).await;
    let body = json!({"conversationId": "c", "input": "Hi"});
    for wait in ["61", "-1", "soon"] {
        let refused = app.post(&format!("/api/prompts?wait={wait}"), &[], &body).await;
        assert_eq!((refused.status, refused.problem()), (400, "bad-request"), "{wait}");
    }
    assert_eq!(app.get("/api/conversations/c", &[]).await.status, 404);
    app.service.stop().await;
}
