//! Tests of custom messages: queued, with the next turn, recorded only, or starting a prompt.

use std::time::Duration;

use serde_json::{Value, json};

use super::rig::Rig;

const MESSAGES: &str = "/api/conversations/c/messages";

impl Rig {
    async fn add(&self, more: Value) -> Value {
        self.clock.advance(Duration::from_millis(1));
        let mut body = json!({"customType": "note", "content": "say noted", "details": {"a": 1}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.post(MESSAGES, &body).send().await.is(202).json()
    }

    async fn roles(&self) -> Vec<String> {
        let messages = self.seen(&format!("{MESSAGES}?limit=100")).await;
        let messages = messages["items"].as_array().unwrap();
        messages.iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect()
    }

    async fn outcome(&self, accepted: &Value) -> Value {
        let path = format!("/api/conversations/c/inbox/{}", accepted["inputId"].as_str().unwrap());
        self.seen(&path).await
    }
}

#[tokio::test]
async fn when_nothing_runs_a_message_is_only_put_on_record() {
    let rig = Rig::new();
    rig.run("say hello").await;
    let accepted = rig.add(json!({"display": false})).await;
    assert_eq!((&accepted["disposition"], accepted.get("promptId")), (&json!("queued"), None));
    rig.work().await;
    assert_eq!(rig.roles().await, ["user", "assistant", "custom"]);
    let message = rig.seen(&format!("{MESSAGES}?limit=100")).await["items"][2].clone();
    assert_eq!(
        (&message["customType"], &message["content"], &message["display"], &message["details"]),
        (&json!("note"), &json!("say noted"), &json!(false), &json!({"a": 1}))
    );
    let outcome = rig.outcome(&accepted).await;
    assert_eq!((&outcome["state"], outcome.get("promptId")), (&json!("landed"), None));
    assert_eq!(rig.seen("/api/conversations/c").await["state"], "idle");
    let told = rig.get("/api/conversations/c/events?follow=false").send().await.is(200).text;
    let last = told.lines().rev().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!(
        (&last["type"], &last["message"]["role"]),
        (&json!("message_end"), &json!("custom"))
    );
}

#[tokio::test]
async fn a_message_may_begin_a_prompt_and_the_model_reads_it_as_a_persons() {
    let rig = Rig::new();
    rig.run("say hello").await;
    let accepted = rig.add(json!({"triggerTurn": true})).await;
    assert_eq!(accepted["disposition"], "started");
    let path = format!("/api/conversations/c/prompts/{}", accepted["promptId"].as_str().unwrap());
    assert_eq!(rig.seen(&path).await["state"], "running");
    rig.work().await;
    let prompt = rig.seen(&path).await;
    assert_eq!((&prompt["state"], prompt.get("input")), (&json!("completed"), None));
    assert_eq!(prompt["output"][0]["content"], "noted");
    assert_eq!(rig.roles().await, ["user", "assistant", "custom", "assistant"]);
}

#[tokio::test]
async fn a_message_waits_for_the_next_turn_and_follows_the_persons_words() {
    let rig = Rig::new();
    rig.run("say hello").await;
    let accepted = rig.add(json!({"deliverAs": "nextTurn"})).await;
    rig.work().await;
    assert_eq!(rig.outcome(&accepted).await["state"], "queued");
    assert_eq!(rig.seen("/api/conversations/c").await["state"], "idle");
    // A turn started by a custom message is not started by a user.
    rig.add(json!({"triggerTurn": true})).await;
    rig.work().await;
    assert_eq!(rig.outcome(&accepted).await["state"], "queued");
    rig.run("say hello").await;
    assert_eq!(rig.roles().await[4..], ["user", "custom", "assistant"]);
    assert_eq!(rig.outcome(&accepted).await["state"], "landed");
}

#[tokio::test]
async fn while_a_prompt_runs_a_message_steers_it_or_follows_it() {
    let rig = Rig::new();
    let prompt = rig.prompt(r#"use pay with {"amount": 500} then say paid"#).await;
    rig.work().await;
    let follow = rig.add(json!({"deliverAs": "followUp", "content": "say followed"})).await;
    let steer = rig.add(json!({"content": "say steered"})).await;
    assert_eq!(steer["promptId"], prompt.as_str());
    assert_eq!(follow.get("promptId"), None, "a follow-up without `triggerTurn` promises no prompt");
    let promised = json!({"deliverAs": "followUp", "triggerTurn": true, "content": "say more"});
    let promised = rig.add(promised).await;
    let path = format!("/api/conversations/c/prompts/{}", promised["promptId"].as_str().unwrap());
    assert_eq!(rig.seen(&path).await["state"], "running", "a promised prompt must be readable at once");
    let waiting = rig.seen("/api/conversations/c/inbox").await;
    assert_eq!(
        (&waiting["items"][0]["kind"], &waiting["items"][0]["deliverAs"]),
        (&json!("custom"), &json!("followUp"))
    );
    let approval = rig.seen("/api/conversations/c").await["pendingApprovals"][0]["id"].clone();
    let path = format!("/api/conversations/c/approvals/{}", approval.as_str().unwrap());
    rig.post(&path, &json!({"decision": "approve"})).send().await.is(200);
    rig.work().await;
    let said = rig.roles().await;
    assert_eq!(said[..4], ["user", "assistant", "toolResult", "custom"]);
    assert_eq!(said[4..], ["assistant", "custom", "assistant", "custom", "assistant"]);
    assert_eq!(rig.outcome(&steer).await["promptId"], prompt.as_str());
    let followed = rig.outcome(&follow).await;
    assert_eq!(followed["state"], "landed");
    assert_ne!(followed["promptId"], prompt.as_str(), "the follow-up must be a separate prompt");
    assert_eq!(rig.outcome(&promised).await["promptId"], promised["promptId"]);
}

#[tokio::test]
async fn a_message_that_cannot_be_taken_is_refused_with_the_place_of_the_mistake() {
    let rig = Rig::new();
    rig.run("say hello").await;
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
        let told = rig.post(MESSAGES, &body).send().await.fails(400, "bad-request");
        assert_eq!(told["errors"][0]["pointer"], pointer, "{told}");
    }
    rig.post("/api/conversations/d/messages", &json!({"customType": "a", "content": "x"}))
        .send()
        .await
        .fails(404, "not-found");
    let body = json!({"customType": "a", "content": "x", "deliverAs": "nextTurn"});
    let first = rig.post(MESSAGES, &body).key("k").send().await.is(202);
    let again = rig.post(MESSAGES, &body).key("k").send().await.is(202);
    assert_eq!((again.header("idempotency-replayed"), &again.text), ("true", &first.text));
    let path = first.header("location").to_owned();
    let told = rig.patch(&path, &json!({"visible": false})).send().await.fails(409, "conflict");
    assert!(told["detail"].as_str().unwrap().contains("send it again"), "{told}");
    rig.delete(&path).send().await.is(204);
    rig.run("say hello").await;
    assert!(!rig.roles().await.contains(&"custom".to_owned()));
}
