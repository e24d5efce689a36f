//! Tests of custom messages: queued, with the next turn, recorded only, or starting a prompt.

use std::time::Duration;

use serde_json::{Value, json};

use super::test_app::TestApp;

const MESSAGES: &str = "/api/conversations/c/messages";

impl TestApp {
    async fn add_custom_message(&self, more: Value) -> Value {
        self.clock.advance(Duration::from_millis(1));
        let mut body = json!({"customType": "note", "content": "say noted", "details": {"a": 1}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.post(MESSAGES, &body).send().await.expect_status(202).json()
    }

    async fn message_roles(&self) -> Vec<String> {
        let messages = self.get_json(&format!("{MESSAGES}?limit=100")).await;
        let messages = messages["items"].as_array().unwrap();
        messages.iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect()
    }

    async fn input_receipt(&self, accepted: &Value) -> Value {
        let path = format!("/api/conversations/c/inbox/{}", accepted["inputId"].as_str().unwrap());
        self.get_json(&path).await
    }
}

#[tokio::test]
async fn custom_message_is_only_recorded_when_idle() {
    let app = TestApp::new();
    app.run("say hello").await;
    let accepted = app.add_custom_message(json!({"display": false})).await;
    assert_eq!((&accepted["disposition"], accepted.get("promptId")), (&json!("queued"), None));
    app.work().await;
    assert_eq!(app.message_roles().await, ["user", "assistant", "custom"]);
    let message = app.get_json(&format!("{MESSAGES}?limit=100")).await["items"][2].clone();
    assert_eq!(
        (&message["customType"], &message["content"], &message["display"], &message["details"]),
        (&json!("note"), &json!("say noted"), &json!(false), &json!({"a": 1}))
    );
    let outcome = app.input_receipt(&accepted).await;
    assert_eq!((&outcome["state"], outcome.get("promptId")), (&json!("landed"), None));
    assert_eq!(app.get_json("/api/conversations/c").await["state"], "idle");
    let stream =
        app.get("/api/conversations/c/events?follow=false").send().await.expect_status(200).text;
    let last = stream.lines().rev().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!(
        (&last["type"], &last["message"]["role"]),
        (&json!("message_end"), &json!("custom"))
    );
}

#[tokio::test]
async fn custom_message_can_start_a_prompt() {
    let app = TestApp::new();
    app.run("say hello").await;
    let accepted = app.add_custom_message(json!({"triggerTurn": true})).await;
    assert_eq!(accepted["disposition"], "started");
    let path = format!("/api/conversations/c/prompts/{}", accepted["promptId"].as_str().unwrap());
    assert_eq!(app.get_json(&path).await["state"], "running");
    app.work().await;
    let prompt = app.get_json(&path).await;
    assert_eq!((&prompt["state"], prompt.get("input")), (&json!("completed"), None));
    assert_eq!(prompt["output"][0]["content"], "noted");
    assert_eq!(app.message_roles().await, ["user", "assistant", "custom", "assistant"]);
}

#[tokio::test]
async fn next_turn_message_follows_the_user_message() {
    let app = TestApp::new();
    app.run("say hello").await;
    let accepted = app.add_custom_message(json!({"deliverAs": "nextTurn"})).await;
    app.work().await;
    assert_eq!(app.input_receipt(&accepted).await["state"], "queued");
    assert_eq!(app.get_json("/api/conversations/c").await["state"], "idle");
    // A turn started by a custom message is not started by a user.
    app.add_custom_message(json!({"triggerTurn": true})).await;
    app.work().await;
    assert_eq!(app.input_receipt(&accepted).await["state"], "queued");
    app.run("say hello").await;
    assert_eq!(app.message_roles().await[4..], ["user", "custom", "assistant"]);
    assert_eq!(app.input_receipt(&accepted).await["state"], "landed");
}

#[tokio::test]
async fn custom_message_steers_or_follows_running_prompt() {
    let app = TestApp::new();
    let prompt = app.prompt(r#"use pay with {"amount": 500} then say paid"#).await;
    app.work().await;
    let follow =
        app.add_custom_message(json!({"deliverAs": "followUp", "content": "say followed"})).await;
    let steer = app.add_custom_message(json!({"content": "say steered"})).await;
    assert_eq!(steer["promptId"], prompt.as_str());
    assert_eq!(
        follow.get("promptId"),
        None,
        "a follow-up without `triggerTurn` promises no prompt"
    );
    let promised = json!({"deliverAs": "followUp", "triggerTurn": true, "content": "say more"});
    let promised = app.add_custom_message(promised).await;
    let path = format!("/api/conversations/c/prompts/{}", promised["promptId"].as_str().unwrap());
    assert_eq!(
        app.get_json(&path).await["state"],
        "running",
        "a promised prompt must be readable at once"
    );
    let waiting = app.get_json("/api/conversations/c/inbox").await;
    assert_eq!(
        (&waiting["items"][0]["kind"], &waiting["items"][0]["deliverAs"]),
        (&json!("custom"), &json!("followUp"))
    );
    let approval = app.get_json("/api/conversations/c").await["pendingApprovals"][0]["id"].clone();
    let path = format!("/api/conversations/c/approvals/{}", approval.as_str().unwrap());
    app.post(&path, &json!({"decision": "approve"})).send().await.expect_status(200);
    app.work().await;
    let roles = app.message_roles().await;
    assert_eq!(roles[..4], ["user", "assistant", "toolResult", "custom"]);
    assert_eq!(roles[4..], ["assistant", "custom", "assistant", "custom", "assistant"]);
    assert_eq!(app.input_receipt(&steer).await["promptId"], prompt.as_str());
    let followed = app.input_receipt(&follow).await;
    assert_eq!(followed["state"], "landed");
    assert_ne!(followed["promptId"], prompt.as_str(), "the follow-up must be a separate prompt");
    assert_eq!(app.input_receipt(&promised).await["promptId"], promised["promptId"]);
}

#[tokio::test]
async fn invalid_custom_message_names_the_member() {
    let app = TestApp::new();
    app.run("say hello").await;
    for (body, pointer) in [
        (json!({"content": "x"}), "/customType"),
        (json!({"customType": "", "content": "x"}), "/customType"),
        (json!({"customType": "a", "content": ""}), "/content"),
        (
            json!({"customType": "a", "content": [{"type": "image", "data": "!", "mimeType": "image/png"}]}),
            "/content/0/data",
        ),
        (json!({"customType": "a", "content": "x", "deliverAs": "soon"}), "/deliverAs"),
        (
            json!({"customType": "a", "content": "x", "deliverAs": "nextTurn", "triggerTurn": true}),
            "/triggerTurn",
        ),
    ] {
        let problem = app.post(MESSAGES, &body).send().await.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    app.post("/api/conversations/d/messages", &json!({"customType": "a", "content": "x"}))
        .send()
        .await
        .expect_problem(404, "not-found");
    let body = json!({"customType": "a", "content": "x", "deliverAs": "nextTurn"});
    let first = app.post(MESSAGES, &body).key("k").send().await.expect_status(202);
    let again = app.post(MESSAGES, &body).key("k").send().await.expect_status(202);
    assert_eq!((again.header("idempotency-replayed"), &again.text), ("true", &first.text));
    let path = first.header("location").to_owned();
    let problem =
        app.patch(&path, &json!({"visible": false})).send().await.expect_problem(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains("send it again"), "{problem}");
    app.delete(&path).send().await.expect_status(204);
    app.run("say hello").await;
    assert!(!app.message_roles().await.contains(&"custom".to_owned()));
}
