//! Tests of abort, of `continue`, and of waiting for the idle state.

use serde_json::{Value, json};

use super::test_app::TestApp;

const ABORT: &str = "/api/conversations/c/abort";
const CONTINUE: &str = "/api/conversations/c/continue";
const CONVERSATION: &str = "/api/conversations/c";
/// Two calls in one model response; the first waits for its release.
const TWO_CALLS: &str =
    r#"use pay with {"slowly": true} and use pay with {"amount": 1} then say paid"#;

async fn receipt(app: &TestApp, accepted: &Value) -> Value {
    let id = accepted["inputId"].as_str().unwrap();
    app.get_json(&format!("{CONVERSATION}/inbox/{id}")).await
}

async fn app_with_messages(messages: Value) -> TestApp {
    let app = TestApp::new();
    let body = json!({"id": "c", "messages": messages});
    app.post("/api/conversations", &body).send().await.expect_status(201);
    app
}

fn user_message(text: &str) -> Value {
    json!({"role": "user", "content": text, "timestamp": 1})
}

#[tokio::test]
async fn abort_from_another_process_lists_completed_calls() {
    let app = TestApp::new();
    let other = app.second_instance();
    let prompt = app.prompt(TWO_CALLS).await;
    let ((), accepted) = tokio::join!(app.work(), async {
        app.pay.has_started.notified().await;
        let accepted = other.post(ABORT, &json!({})).send().await.expect_status(202).json();
        assert_eq!(receipt(&other, &accepted).await["state"], "queued");
        app.pay.can_end.notify_one();
        accepted
    });
    assert_eq!(accepted["promptId"], prompt.as_str());
    let abort_receipt = receipt(&app, &accepted).await;
    assert_eq!(abort_receipt["state"], "landed");
    assert_eq!(abort_receipt["ranCalls"].as_array().unwrap().len(), 1);
    assert_eq!(abort_receipt["skippedCalls"].as_array().unwrap().len(), 1);
    assert_eq!(abort_receipt.get("unknownCalls"), None);
    assert_eq!(app.pay.payments.lock().unwrap().len(), 1);
    let ended = app.get_json(&format!("{CONVERSATION}/prompts/{prompt}")).await;
    assert_eq!((&ended["state"], &ended["stopReason"]), (&json!("aborted"), &json!("aborted")));
    let last = ended["output"].as_array().unwrap().last().unwrap();
    assert_eq!(last["result"], json!({"type": "error", "error": "Operation aborted"}));
    assert_eq!(app.get_json(CONVERSATION).await["state"], "idle");
}

#[tokio::test]
async fn abort_is_ignored_when_idle() {
    let app = TestApp::new();
    app.post(ABORT, &json!({})).send().await.expect_problem(404, "not-found");
    let prompt = app.run("say hello").await;
    for body in [json!({}), json!({"promptId": prompt}), json!({"promptId": "pr_other"})] {
        let accepted = app.post(ABORT, &body).send().await.expect_status(202).json();
        assert_eq!(accepted.get("promptId"), None, "{body}");
        assert_eq!(receipt(&app, &accepted).await["state"], "ignored", "{body}");
    }
    let wrong =
        app.post(ABORT, &json!({"prompt": "x"})).send().await.expect_problem(400, "bad-request");
    assert_eq!(wrong["errors"][0]["pointer"], "/prompt");
    let first = app.post(ABORT, &json!({})).key("k").send().await.expect_status(202);
    let again = app.post(ABORT, &json!({})).key("k").send().await.expect_status(202);
    assert_eq!((again.text.clone(), again.header("idempotency-replayed")), (first.text, "true"));
    let other = app.post(ABORT, &json!({"promptId": "x"})).key("k").send().await;
    other.expect_problem(422, "idempotency-key-reused");
    app.work().await;
    assert_eq!(app.get_json(CONVERSATION).await["prompts"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn queued_prompt_is_aborted_before_model_call() {
    let app = TestApp::new();
    let prompt = app.prompt(TWO_CALLS).await;
    let accepted =
        app.post(ABORT, &json!({"promptId": prompt})).send().await.expect_status(202).json();
    assert_eq!(accepted["promptId"], prompt.as_str());
    app.work().await;
    let ended = app.get_json(&format!("{CONVERSATION}/prompts/{prompt}")).await;
    assert_eq!((&ended["state"], &ended["output"]), (&json!("aborted"), &json!([])));
    assert_eq!(ended["input"], TWO_CALLS);
    assert!(app.pay.payments.lock().unwrap().is_empty());
}

#[tokio::test]
async fn continue_responds_to_unanswered_message() {
    let app = app_with_messages(json!([user_message("say it")])).await;
    let accepted = app.post(CONTINUE, &json!({})).send().await.expect_status(202);
    let prompt = accepted.json()["promptId"].as_str().unwrap().to_owned();
    assert!(accepted.header("location").ends_with(&format!("/prompts/{prompt}")));
    let path = format!("{CONVERSATION}/prompts/{prompt}");
    assert_eq!(
        app.get_json(&path).await["state"],
        "running",
        "the state must be `running` before the start"
    );
    let problem =
        app.post(CONTINUE, &json!({})).send().await.expect_problem(409, "already-processing");
    assert_eq!(problem["promptId"], prompt.as_str());
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains(prompt.as_str()) && detail.ends_with("or abort it."), "{problem}");
    app.work().await;
    let ended = app.get_json(&path).await;
    assert_eq!((&ended["state"], ended.get("input")), (&json!("completed"), None));
    assert_eq!(ended["output"][0]["content"], "it");
}

#[tokio::test]
async fn continue_retries_a_failed_prompt() {
    let app = TestApp::new();
    let failed = app.run("fail finally").await;
    assert_eq!(app.get_json(&format!("{CONVERSATION}/prompts/{failed}")).await["state"], "failed");
    app.post(CONTINUE, &json!({})).send().await.expect_status(202);
}

#[tokio::test]
async fn continue_after_response_requires_held_input() {
    let app = app_with_messages(json!([])).await;
    let problem = app.post(CONTINUE, &json!({})).send().await.expect_problem(409, "conflict");
    assert_eq!(problem["detail"], "No messages to continue from");
    app.run("say one").await;
    let problem = app.post(CONTINUE, &json!({})).send().await.expect_problem(409, "conflict");
    assert_eq!(problem["detail"], "Cannot continue from message role: assistant");
    for (mode, text) in [("followUp", "say three"), ("steer", "say two")] {
        let held = json!({"input": text, "mode": mode, "whenIdle": "hold"});
        app.post("/api/conversations/c/prompts", &held).send().await.expect_status(202);
    }
    app.post(CONTINUE, &json!({})).send().await.expect_status(202);
    app.work().await;
    let messages = app.get_json("/api/conversations/c/messages?limit=100").await;
    let texts: Vec<&str> = messages["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "user")
        .map(|message| message["content"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["say one", "say two", "say three"], "steers must precede follow-ups");
    assert_eq!(app.get_json(&format!("{CONVERSATION}/inbox")).await["items"], json!([]));
}

#[tokio::test]
async fn conversation_wait_returns_when_idle() {
    let app = TestApp::new();
    app.prompt("say hello").await;
    assert_eq!(app.get_json(&format!("{CONVERSATION}?wait=0")).await["state"], "running");
    let waiting = format!("{CONVERSATION}?wait=20");
    let (seen, ()) = tokio::join!(app.get_json(&waiting), app.work());
    assert_eq!(seen["state"], "idle");
    assert_eq!(
        app.get_json(&waiting).await["state"],
        "idle",
        "an idle conversation must return at once"
    );
    app.post("/api/conversations/c/compact", &json!({})).send().await.expect_status(202);
    assert_eq!(app.get_json(&format!("{CONVERSATION}?wait=0")).await["state"], "running");
    let (seen, ()) = tokio::join!(app.get_json(&waiting), app.work());
    assert_eq!(seen["state"], "idle");
    app.get(&format!("{CONVERSATION}?wait=61")).send().await.expect_problem(400, "bad-request");
}

/// The abort that precedes a compaction would decide the request of an approver.
#[tokio::test]
async fn compaction_waits_for_the_decision_of_an_approver() {
    let app = TestApp::new();
    app.run("use pay with {\"amount\": 500} then say done").await;
    let compact = "/api/conversations/c/compact";
    let problem = app.post(compact, &json!({})).send().await.expect_problem(409, "conflict");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("Decide the request, or abort the prompt first."), "{detail}");
    let seen = app.get_json(CONVERSATION).await;
    assert_eq!(seen["state"], "waiting_for_approval");
    let id = seen["pendingApprovals"][0]["id"].as_str().unwrap();
    let decide = format!("{CONVERSATION}/approvals/{id}");
    app.post(&decide, &json!({"decision": "approve"})).send().await.expect_status(200);
    app.work().await;
    app.post(compact, &json!({})).send().await.expect_status(202);
}

/// 500 waits may use connections; a further one gets the present state at once.
#[tokio::test(start_paused = true)]
async fn waits_beyond_the_limit_respond_at_once() {
    let app = TestApp::new();
    app.prompt("say hello").await;
    let waiting = format!("{CONVERSATION}?wait=60");
    let mut waits: Vec<_> = (0..500).map(|_| Box::pin(app.get(&waiting).send())).collect();
    for wait in &mut waits {
        assert!(futures_util::poll!(wait).is_pending());
    }
    let started_at = tokio::time::Instant::now();
    assert_eq!(app.get_json(&waiting).await["state"], "running");
    assert!(started_at.elapsed() < std::time::Duration::from_secs(1));
    waits.pop();
    assert_eq!(app.get_json(&waiting).await["state"], "running");
    assert!(started_at.elapsed() >= std::time::Duration::from_mins(1));
}
