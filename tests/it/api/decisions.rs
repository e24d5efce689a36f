//! Tests of approval decisions: the first one counts; later callers receive it or a conflict.

use serde_json::json;

use super::test_app::{TestApp, respond_call, respond_text};
use crate::support::event_stream::EventStream;

const APPROVAL: &str = "/api/conversations/c/approvals/c1";

async fn start_prompt(app: &TestApp) -> String {
    let body = json!({"conversationId": "c", "input": "Go"});
    let response = app.post("/api/prompts?wait=60", &[], &body).await;
    assert_eq!(response.status, 200, "{}", response.body);
    response.body["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn repeated_decision_is_accepted_and_other_conflicts() {
    let app =
        TestApp::start([respond_call("test.gated", json!({"value": "x"})), respond_text("Done")])
            .await;
    let prompt = start_prompt(&app).await;
    let open = app.get("/api/approvals", &[]).await;
    assert_eq!(open.body["items"].as_array().unwrap().len(), 1, "{}", open.body);

    let approve = json!({"decision": "approve"});
    let first = app.post(APPROVAL, &[], &approve).await;
    assert_eq!((first.status, &first.body["decision"]), (200, &json!("approve")), "{}", first.body);
    let again = app.post(APPROVAL, &[], &approve).await;
    assert_eq!((again.status, &again.body), (200, &first.body));
    let other = app.post(APPROVAL, &[], &json!({"decision": "reject"})).await;
    assert_eq!((other.status, other.problem()), (409, "already-decided"));
    for member in ["decision", "decidedBy", "decidedAt"] {
        assert_eq!(other.body[member], first.body[member], "{}", other.body);
    }

    // The same holds after the prompt has completed.
    let done = app.service.wait_for_prompt("c", &prompt).await;
    assert_eq!(done["state"], "completed");
    let late = app.post(APPROVAL, &[], &approve).await;
    assert_eq!((late.status, late.body), (200, first.body));
    assert_eq!(app.post(APPROVAL, &[], &json!({"decision": "reject"})).await.status, 409);
    assert_eq!(*app.runs.lock().unwrap(), ["gated x"]);
    assert_eq!(app.get("/api/approvals", &[]).await.body["items"], json!([]));
    app.service.stop().await;
}

#[tokio::test]
async fn invalid_decision_is_rejected() {
    let app = TestApp::start([respond_call("test.gated", json!({"value": "x"}))]).await;
    start_prompt(&app).await;
    for body in
        [json!({"decision": "happened"}), json!({"decision": "approve", "why": "so"}), json!({})]
    {
        let refused = app.post(APPROVAL, &[], &body).await;
        assert_eq!((refused.status, refused.problem()), (400, "bad-request"), "{body}");
    }
    let approve = json!({"decision": "approve"});
    let nobody = app.post("/api/conversations/c/approvals/c2", &[], &approve).await;
    assert_eq!((nobody.status, nobody.problem()), (404, "not-found"));
    assert_eq!(app.get("/api/conversations/c", &[]).await.body["state"], "waiting_for_approval");
    app.service.stop().await;
}

#[tokio::test]
async fn undecided_approval_expires_and_prompt_continues() {
    let app =
        TestApp::start([respond_call("hasty", json!({})), respond_text("Too late, then")]).await;
    let prompt = start_prompt(&app).await;
    EventStream::open(&app.service, "c", "?until=settled", None)
        .await
        .read_until("agent_settled")
        .await;
    let done = app.service.wait_for_prompt("c", &prompt).await;
    assert_eq!(done["output"][0]["result"], json!({"type": "error", "error": "Approval expired"}));
    assert_eq!(done["state"], "completed");
    for decision in ["approve", "reject"] {
        let late = app.post(APPROVAL, &[], &json!({"decision": decision})).await;
        assert_eq!((late.status, late.problem()), (410, "approval-expired"), "{}", late.body);
    }
    assert!(app.runs.lock().unwrap().is_empty());
    app.service.stop().await;
}
