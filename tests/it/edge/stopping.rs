//! Tests of abort, of `continue`, and of waiting for the idle state.

use serde_json::{Value, json};

use super::rig::Rig;

const ABORT: &str = "/api/conversations/c/abort";
const CONTINUE: &str = "/api/conversations/c/continue";
const CONVERSATION: &str = "/api/conversations/c";
/// Two calls in one model response; the first waits for its release.
const TWO_CALLS: &str =
    r#"use pay with {"slowly": true} and use pay with {"amount": 1} then say paid"#;

async fn receipt(rig: &Rig, accepted: &Value) -> Value {
    let id = accepted["inputId"].as_str().unwrap();
    rig.seen(&format!("{CONVERSATION}/inbox/{id}")).await
}

async fn begins_with(messages: Value) -> Rig {
    let rig = Rig::new();
    let body = json!({"id": "c", "messages": messages});
    rig.post("/api/conversations", &body).send().await.is(201);
    rig
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text, "timestamp": 1})
}

#[tokio::test]
async fn a_stop_from_another_process_says_what_had_happened() {
    let rig = Rig::new();
    let elsewhere = rig.elsewhere();
    let prompt = rig.prompt(TWO_CALLS).await;
    let ((), accepted) = tokio::join!(rig.work(), async {
        rig.pay.is_under_way.notified().await;
        let accepted = elsewhere.post(ABORT, &json!({})).send().await.is(202).json();
        assert_eq!(receipt(&elsewhere, &accepted).await["state"], "queued");
        rig.pay.may_end.notify_one();
        accepted
    });
    assert_eq!(accepted["promptId"], prompt.as_str());
    let told = receipt(&rig, &accepted).await;
    assert_eq!(told["state"], "landed");
    assert_eq!(told["ranCalls"].as_array().unwrap().len(), 1);
    assert_eq!(told["skippedCalls"].as_array().unwrap().len(), 1);
    assert_eq!(told.get("unknownCalls"), None);
    assert_eq!(rig.pay.made.lock().unwrap().len(), 1);
    let ended = rig.seen(&format!("{CONVERSATION}/prompts/{prompt}")).await;
    assert_eq!((&ended["state"], &ended["stopReason"]), (&json!("aborted"), &json!("aborted")));
    let last = ended["output"].as_array().unwrap().last().unwrap();
    assert_eq!(last["result"], json!({"type": "error", "error": "Operation aborted"}));
    assert_eq!(rig.seen(CONVERSATION).await["state"], "idle");
}

#[tokio::test]
async fn a_stop_where_nothing_runs_is_harmless() {
    let rig = Rig::new();
    rig.post(ABORT, &json!({})).send().await.fails(404, "not-found");
    let prompt = rig.run("say hello").await;
    for body in [json!({}), json!({"promptId": prompt}), json!({"promptId": "pr_other"})] {
        let accepted = rig.post(ABORT, &body).send().await.is(202).json();
        assert_eq!(accepted.get("promptId"), None, "{body}");
        assert_eq!(receipt(&rig, &accepted).await["state"], "ignored", "{body}");
    }
    let wrong = rig.post(ABORT, &json!({"prompt": "x"})).send().await.fails(400, "bad-request");
    assert_eq!(wrong["errors"][0]["pointer"], "/prompt");
    let first = rig.post(ABORT, &json!({})).key("k").send().await.is(202);
    let again = rig.post(ABORT, &json!({})).key("k").send().await.is(202);
    assert_eq!((again.text.clone(), again.header("idempotency-replayed")), (first.text, "true"));
    let other = rig.post(ABORT, &json!({"promptId": "x"})).key("k").send().await;
    other.fails(422, "idempotency-key-reused");
    rig.work().await;
    assert_eq!(rig.seen(CONVERSATION).await["prompts"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_prompt_that_nobody_has_begun_is_stopped_before_it_asks_anything() {
    let rig = Rig::new();
    let prompt = rig.prompt(TWO_CALLS).await;
    let accepted = rig.post(ABORT, &json!({"promptId": prompt})).send().await.is(202).json();
    assert_eq!(accepted["promptId"], prompt.as_str());
    rig.work().await;
    let ended = rig.seen(&format!("{CONVERSATION}/prompts/{prompt}")).await;
    assert_eq!((&ended["state"], &ended["output"]), (&json!("aborted"), &json!([])));
    assert_eq!(ended["input"], TWO_CALLS);
    assert!(rig.pay.made.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_nobody_has_answered_is_gone_on_from() {
    let rig = begins_with(json!([user("say it")])).await;
    let accepted = rig.post(CONTINUE, &json!({})).send().await.is(202);
    let prompt = accepted.json()["promptId"].as_str().unwrap().to_owned();
    assert!(accepted.header("location").ends_with(&format!("/prompts/{prompt}")));
    let path = format!("{CONVERSATION}/prompts/{prompt}");
    assert_eq!(rig.seen(&path).await["state"], "running", "the state must be `running` before the start");
    let told = rig.post(CONTINUE, &json!({})).send().await.fails(409, "already-processing");
    assert_eq!(told["promptId"], prompt.as_str());
    let detail = told["detail"].as_str().unwrap();
    assert!(detail.contains(prompt.as_str()) && detail.ends_with("or abort it."), "{told}");
    rig.work().await;
    let ended = rig.seen(&path).await;
    assert_eq!((&ended["state"], ended.get("input")), (&json!("completed"), None));
    assert_eq!(ended["output"][0]["content"], "it");
}

#[tokio::test]
async fn a_failed_prompt_is_tried_again_by_going_on() {
    let rig = Rig::new();
    let failed = rig.run("fail finally").await;
    assert_eq!(rig.seen(&format!("{CONVERSATION}/prompts/{failed}")).await["state"], "failed");
    rig.post(CONTINUE, &json!({})).send().await.is(202);
}

#[tokio::test]
async fn an_answer_is_gone_on_from_with_what_is_held_and_not_otherwise() {
    let rig = begins_with(json!([])).await;
    let told = rig.post(CONTINUE, &json!({})).send().await.fails(409, "conflict");
    assert_eq!(told["detail"], "No messages to continue from");
    rig.run("say one").await;
    let told = rig.post(CONTINUE, &json!({})).send().await.fails(409, "conflict");
    assert_eq!(told["detail"], "Cannot continue from message role: assistant");
    for (mode, text) in [("followUp", "say three"), ("steer", "say two")] {
        let held = json!({"input": text, "mode": mode, "whenIdle": "hold"});
        rig.post("/api/conversations/c/prompts", &held).send().await.is(202);
    }
    rig.post(CONTINUE, &json!({})).send().await.is(202);
    rig.work().await;
    let messages = rig.seen("/api/conversations/c/messages?limit=100").await;
    let said: Vec<&str> = messages["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "user")
        .map(|message| message["content"].as_str().unwrap())
        .collect();
    assert_eq!(said, ["say one", "say two", "say three"], "steers must precede follow-ups");
    assert_eq!(rig.seen(&format!("{CONVERSATION}/inbox")).await["items"], json!([]));
}

#[tokio::test]
async fn a_client_waits_until_nothing_runs() {
    let rig = Rig::new();
    rig.prompt("say hello").await;
    assert_eq!(rig.seen(&format!("{CONVERSATION}?wait=0")).await["state"], "running");
    let waiting = format!("{CONVERSATION}?wait=20");
    let (seen, ()) = tokio::join!(rig.seen(&waiting), rig.work());
    assert_eq!(seen["state"], "idle");
    assert_eq!(rig.seen(&waiting).await["state"], "idle", "an idle conversation must return at once");
    rig.post("/api/conversations/c/compact", &json!({})).send().await.is(202);
    assert_eq!(rig.seen(&format!("{CONVERSATION}?wait=0")).await["state"], "running");
    let (seen, ()) = tokio::join!(rig.seen(&waiting), rig.work());
    assert_eq!(seen["state"], "idle");
    rig.get(&format!("{CONVERSATION}?wait=61")).send().await.fails(400, "bad-request");
}
