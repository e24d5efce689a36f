//! Tests of the events of queued inputs, and of aborts that remove them.

use std::time::Duration;

use serde_json::{Value, json};

use super::test_app::TestApp;

const PROMPTS: &str = "/api/conversations/c/prompts";
const INBOX: &str = "/api/conversations/c/inbox";
const PAST: &str = "/api/conversations/c/events?follow=false";

impl TestApp {
    /// A prompt that waits for an approval; returns the path of its request.
    async fn wait_for_approval(&self) -> String {
        self.run(r#"use pay with {"amount": 500} then say paid"#).await;
        let seen = self.get_json("/api/conversations/c").await;
        let id = seen["pendingApprovals"][0]["id"].as_str().unwrap();
        format!("/api/conversations/c/approvals/{id}")
    }

    /// Queues an input; returns its id.
    async fn queue_input(&self, mode: &str, text: &str) -> String {
        self.clock.advance(Duration::from_millis(1));
        let body = json!({"input": text, "mode": mode});
        let accepted = self.post(PROMPTS, &body).send().await.expect_status(202).json();
        accepted["inputId"].as_str().unwrap().to_owned()
    }

    /// Type, input id and state of each event about an input.
    async fn input_events(&self) -> Vec<(String, String, Value)> {
        let text = self.get(PAST).send().await.expect_status(200).text;
        let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
        let events = data.map(|data| serde_json::from_str::<Value>(data).unwrap());
        let member = |event: &Value, name: &str| event[name].as_str().unwrap().to_owned();
        events
            .filter(|event| event["inputId"].is_string())
            .map(|event| {
                (member(&event, "type"), member(&event, "inputId"), event["item"]["state"].clone())
            })
            .collect()
    }
}

fn event(kind: &str, input: &str, state: &Value) -> (String, String, Value) {
    (kind.to_owned(), input.to_owned(), state.clone())
}

#[tokio::test]
async fn queued_inputs_have_events_until_they_join() {
    let app = TestApp::new();
    let approval = app.wait_for_approval().await;
    let before = app.input_events().await.len();
    let position = app.get_json("/api/conversations/c").await["lastEventId"].as_u64().unwrap();
    let steer = app.queue_input("steer", "say steered").await;
    let follow_up = app.queue_input("followUp", "say later").await;
    let removed = app.queue_input("followUp", "say never").await;
    let stream = app.get(&format!("{PAST}&after={position}")).send().await.text;
    assert!(stream.contains("event: input_queued") && stream.contains("say steered"), "{stream}");
    let path = format!("{INBOX}/{follow_up}");
    app.patch(&path, &json!({"input": "say last"})).send().await.expect_status(200);
    app.delete(&format!("{INBOX}/{removed}")).send().await.expect_status(204);
    let (queued, cleared) = (json!("queued"), json!("cleared"));
    assert_eq!(
        app.input_events().await[before..],
        [
            event("input_queued", &steer, &queued),
            event("input_queued", &follow_up, &queued),
            event("input_queued", &removed, &cleared),
            event("input_changed", &follow_up, &queued),
            event("input_cleared", &removed, &Value::Null),
        ]
    );
    let positions = app.get_json("/api/conversations/c").await;
    assert_eq!(positions["lastEventId"], position + 5, "readers see the position");
    app.post(&approval, &json!({"decision": "approve"})).send().await.expect_status(200);
    app.work().await;
    let events = app.input_events().await;
    let joined: Vec<_> = events[before + 5..].to_vec();
    assert_eq!(
        joined,
        [
            event("message_start", &steer, &Value::Null),
            event("message_end", &steer, &Value::Null),
            event("message_start", &follow_up, &Value::Null),
            event("message_end", &follow_up, &Value::Null),
        ]
    );
}

/// The message of a prompt names its input, so that a client finds the bubble that it has shown.
#[tokio::test]
async fn message_of_a_prompt_names_its_input() {
    let app = TestApp::new();
    let body = json!({"conversationId": "c", "input": "say hello"});
    let accepted = app.post("/api/prompts", &body).send().await.expect_status(202).json();
    let input = accepted["inputId"].as_str().unwrap();
    app.work().await;
    let expected =
        [event("message_start", input, &Value::Null), event("message_end", input, &Value::Null)];
    assert_eq!(app.input_events().await, expected, "neither the response nor the prompt has one");
}

#[tokio::test]
async fn abort_removes_queued_inputs_on_request() {
    let app = TestApp::new();
    app.wait_for_approval().await;
    let steer = app.queue_input("steer", "say steered").await;
    let follow_up = app.queue_input("followUp", "say later").await;
    let abort = json!({"clearInbox": true});
    let other = json!({"clearInbox": true, "promptId": "pr_other"});
    let path = "/api/conversations/c/abort";
    let nothing = app.post(path, &other).send().await.expect_status(202).json();
    assert!(nothing.get("clearedInputs").is_none(), "another prompt: {nothing}");
    let send = || app.post(path, &abort).key("k").send();
    let accepted = send().await.expect_status(202).json();
    assert_eq!(accepted["clearedInputs"], json!([steer, follow_up]));
    app.work().await;
    let prompts = app.get_json(PROMPTS).await;
    let states: Vec<&Value> =
        prompts["items"].as_array().unwrap().iter().map(|prompt| &prompt["state"]).collect();
    assert_eq!(states, ["aborted"], "no queued input starts a prompt");
    // A repetition removes nothing that was queued since.
    let held = json!({"input": "say held", "mode": "followUp", "whenIdle": "hold"});
    app.post(PROMPTS, &held).send().await.expect_status(202);
    assert_eq!(send().await.expect_status(202).json(), accepted);
    assert_eq!(app.get_json(INBOX).await["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn abort_keeps_queued_inputs_by_default() {
    let app = TestApp::new();
    app.wait_for_approval().await;
    app.queue_input("followUp", "say later").await;
    app.post("/api/conversations/c/abort", &json!({})).send().await.expect_status(202);
    app.work().await;
    assert_eq!(app.get_json(PROMPTS).await["items"].as_array().unwrap().len(), 2);
}

/// `lastEventId` of an accepted request is the position before its own events.
#[tokio::test]
async fn accepted_requests_name_the_newest_event() {
    let app = TestApp::new();
    app.run("say hello").await;
    let first = json!({"customType": "note", "content": "do it", "triggerTurn": true});
    for (name, body) in [
        ("messages", first),
        ("bash", json!({"command": "ls", "output": "a"})),
        ("compact", json!({})),
        ("abort", json!({})),
    ] {
        let newest = app.get_json("/api/conversations/c").await["lastEventId"].as_u64().unwrap();
        let request = app.post(&format!("/api/conversations/c/{name}"), &body);
        let accepted = request.send().await.expect_status(202).json();
        assert_eq!(accepted["lastEventId"], newest, "{name}: {accepted}");
        app.work().await;
        let events = app.get(&format!("{PAST}&after={newest}")).send().await.expect_status(200);
        let has_prompt = events.text.contains("event: prompt.created");
        assert_eq!(has_prompt, name == "messages", "{name}: {}", events.text);
    }
}
