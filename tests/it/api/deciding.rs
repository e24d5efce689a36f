//! Tests of approval decisions: the first one counts; later callers receive it or a conflict.

use serde_json::json;

use super::stage::{Stage, calls, says};
use crate::support::stream::Stream;

const APPROVAL: &str = "/api/conversations/c/approvals/c1";

async fn ask(stage: &Stage) -> String {
    let body = json!({"conversationId": "c", "input": "Go"});
    let asked = stage.post("/api/prompts?wait=30", &[], &body).await;
    assert_eq!(asked.status, 200, "{}", asked.body);
    asked.body["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_decision_sent_twice_is_one_and_another_one_is_told_of_it() {
    let stage = Stage::set([calls("test.gated", json!({"value": "x"})), says("Done")]).await;
    let prompt = ask(&stage).await;
    let open = stage.get("/api/approvals", &[]).await;
    assert_eq!(open.body["items"].as_array().unwrap().len(), 1, "{}", open.body);

    let approve = json!({"decision": "approve"});
    let first = stage.post(APPROVAL, &[], &approve).await;
    assert_eq!((first.status, &first.body["decision"]), (200, &json!("approve")), "{}", first.body);
    let again = stage.post(APPROVAL, &[], &approve).await;
    assert_eq!((again.status, &again.body), (200, &first.body));
    let other = stage.post(APPROVAL, &[], &json!({"decision": "reject"})).await;
    assert_eq!((other.status, other.problem()), (409, "already-decided"));
    for member in ["decision", "decidedBy", "decidedAt"] {
        assert_eq!(other.body[member], first.body[member], "{}", other.body);
    }

    // The same holds after the prompt has completed.
    let done = stage.service.settled("c", &prompt).await;
    assert_eq!(done["state"], "completed");
    let late = stage.post(APPROVAL, &[], &approve).await;
    assert_eq!((late.status, late.body), (200, first.body));
    assert_eq!(stage.post(APPROVAL, &[], &json!({"decision": "reject"})).await.status, 409);
    assert_eq!(*stage.runs.lock().unwrap(), ["gated x"]);
    assert_eq!(stage.get("/api/approvals", &[]).await.body["items"], json!([]));
    stage.service.stop().await;
}

#[tokio::test]
async fn what_is_no_decision_decides_nothing() {
    let stage = Stage::set([calls("test.gated", json!({"value": "x"}))]).await;
    ask(&stage).await;
    for body in
        [json!({"decision": "happened"}), json!({"decision": "approve", "why": "so"}), json!({})]
    {
        let refused = stage.post(APPROVAL, &[], &body).await;
        assert_eq!((refused.status, refused.problem()), (400, "bad-request"), "{body}");
    }
    let approve = json!({"decision": "approve"});
    let nobody = stage.post("/api/conversations/c/approvals/c2", &[], &approve).await;
    assert_eq!((nobody.status, nobody.problem()), (404, "not-found"));
    assert_eq!(stage.get("/api/conversations/c", &[]).await.body["state"], "waiting_for_approval");
    stage.service.stop().await;
}

#[tokio::test]
async fn an_approval_that_nobody_decides_in_time_expires_and_the_prompt_goes_on() {
    let stage = Stage::set([calls("hasty", json!({})), says("Too late, then")]).await;
    let prompt = ask(&stage).await;
    Stream::open(&stage.service, "c", "?until=settled", None).await.until("agent_settled").await;
    let done = stage.service.settled("c", &prompt).await;
    assert_eq!(done["output"][0]["result"], json!({"type": "error", "error": "Approval expired"}));
    assert_eq!(done["state"], "completed");
    for decision in ["approve", "reject"] {
        let late = stage.post(APPROVAL, &[], &json!({"decision": decision})).await;
        assert_eq!((late.status, late.problem()), (410, "approval-expired"), "{}", late.body);
    }
    assert!(stage.runs.lock().unwrap().is_empty());
    stage.service.stop().await;
}
