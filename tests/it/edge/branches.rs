//! Tests of branches: moves of the leaf, writes left behind, labels, hooks.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use http::Method;
use serde_json::{Value, json};
use turnwheel::extensions::{
    Extension, HookContext, HookError, Observation, PendingLeafMove, SummaryOverride,
};

use super::commands::{PROMPTS, WAITING_PROMPT};
use super::test_app::{ApiResponse, TestApp};

const LEAF: &str = "/api/conversations/c/leaf";

impl TestApp {
    pub(super) async fn entry_items(&self) -> Vec<Value> {
        let entries = self.get_json("/api/conversations/c/entries?limit=100").await;
        entries["items"].as_array().unwrap().clone()
    }

    /// Id of the user message with this text.
    pub(super) async fn message_id(&self, text: &str) -> String {
        let entries = self.entry_items().await;
        let is_message = |entry: &&Value| {
            entry["message"]["role"] == "user" && entry["message"]["content"] == text
        };
        entries.iter().find(is_message).unwrap()["id"].as_str().unwrap().to_owned()
    }

    pub(super) async fn leaf_id(&self) -> Value {
        self.get_json("/api/conversations/c").await["leafId"].clone()
    }

    pub(super) async fn post_leaf(&self, body: &Value, key: &str) -> ApiResponse {
        self.post(LEAF, body).key(key).send().await
    }

    pub(super) async fn label(&self, entry_id: &str, label: &str) -> ApiResponse {
        let path = format!("/api/conversations/c/entries/{entry_id}/label");
        self.request(Method::PUT, &path).json(&json!({"label": label})).send().await
    }

    /// Texts of the messages of users and the model at the leaf.
    pub(super) async fn texts(&self) -> Vec<String> {
        let messages = self.get_json("/api/conversations/c/messages?limit=100").await;
        let text = |message: &Value| {
            let content = &message["content"];
            content.as_str().or(content[0]["text"].as_str()).unwrap_or_default().to_owned()
        };
        messages["items"].as_array().unwrap().iter().map(text).collect()
    }

    pub(super) async fn events_named(&self, name: &str) -> Vec<Value> {
        let events = self.get("/api/conversations/c/events?follow=false").send().await.text;
        let data = events.lines().filter_map(|line| line.strip_prefix("data:"));
        let parsed = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
        parsed.filter(|event| event["type"] == name).collect()
    }
}

#[tokio::test]
async fn leaf_moves_before_a_message_and_back() {
    let app = TestApp::new();
    app.run("say one").await;
    let one = app.leaf_id().await;
    app.run("say two").await;
    let two = app.leaf_id().await;
    let target = app.message_id("say two").await;
    let moved = app.post_leaf(&json!({"entryId": target}), "k").await.expect_status(200).json();
    assert_eq!(
        moved,
        json!({
            "conversationId": "c", "moved": true, "leafId": one, "oldLeafId": two, "text": "say two",
            "writesLeft": [], "writesLeftCount": 0
        }),
        "the start of the prompt is left, too"
    );
    assert_eq!(app.texts().await, ["say one", "one"]);
    app.run("say three").await;
    assert_eq!(app.texts().await, ["say one", "one", "say three", "three"]);
    let prompts = app.get_json("/api/conversations/c/prompts").await;
    let on_path: Vec<&Value> =
        prompts["items"].as_array().unwrap().iter().map(|prompt| &prompt["onPath"]).collect();
    assert_eq!(on_path, [true, false, true]);
    app.post_leaf(&json!({"entryId": two}), "back").await.expect_status(200);
    assert_eq!(app.texts().await, ["say one", "one", "say two", "two"]);
    let events = app.events_named("session_tree").await;
    assert_eq!(events.len(), 2);
    assert_eq!(
        (&events[0]["oldLeafId"], &events[0]["newLeafId"], &events[0]["summary"]),
        (&two, &one, &Value::Null)
    );
}

#[tokio::test]
async fn repeated_move_returns_the_first_response() {
    let app = TestApp::new();
    app.run("say one").await;
    let target = app.message_id("say one").await;
    let body = json!({"entryId": target});
    let first = app.post_leaf(&body, "k").await.expect_status(200).json();
    app.run("say two").await;
    let again = app.post_leaf(&body, "k").await.expect_status(200);
    assert_eq!((again.json(), again.header("idempotency-replayed")), (first, "true"));
    assert_eq!(app.texts().await, ["say two", "two"], "a repetition moves nothing");
    app.post_leaf(&json!({"entryId": "root"}), "k")
        .await
        .expect_problem(422, "idempotency-key-reused");
}

#[tokio::test]
async fn move_to_the_leaf_changes_nothing() {
    let app = TestApp::new();
    app.run("say one").await;
    let leaf = app.leaf_id().await;
    let before = app.get_json("/api/conversations/c").await;
    let body = json!({"entryId": leaf, "summary": "left"});
    let moved = app.post_leaf(&body, "k").await.expect_status(200).json();
    assert_eq!((&moved["moved"], &moved["leafId"]), (&json!(false), &leaf));
    assert_eq!(app.get_json("/api/conversations/c").await, before);
    assert!(app.events_named("session_tree").await.is_empty());
}

#[tokio::test]
async fn invalid_moves_say_what_to_do() {
    let app = TestApp::new();
    app.run("say one").await;
    let leaf = app.leaf_id().await;
    let unknown = app.post_leaf(&json!({"entryId": "zzz"}), "1").await;
    assert_eq!(unknown.expect_problem(404, "not-found")["detail"], "Entry zzz not found");
    for (body, pointer, detail) in [
        (json!({}), "/entryId", "missing"),
        (json!({"entryId": 5}), "/entryId", "text"),
        (json!({"entryId": "root", "label": "a"}), "/label", "name one in `entryId`"),
        (json!({"entryId": "root", "summary": " "}), "/summary", "leave it out"),
        (json!({"entryId": "root", "summary": "x".repeat(70_000)}), "/summary", "65536"),
        (
            json!({"entryId": app.message_id("say one").await, "label": "x".repeat(65)}),
            "/label",
            "64 characters",
        ),
        (json!({"entryId": "root", "more": 1}), "/more", "unknown"),
    ] {
        let problem = app.post_leaf(&body, &detail.replace(' ', "-")).await;
        let problem = problem.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(detail), "{problem}");
    }
    assert_eq!(app.leaf_id().await, leaf);
    app.post_leaf(&json!({"entryId": "root"}), "null").await.expect_status(200);
    let problem = app.post_leaf(&json!({"entryId": leaf, "summary": "left"}), "none").await;
    let problem = problem.expect_problem(400, "bad-request");
    assert_eq!(problem["errors"][0]["pointer"], "/summary", "no branch is left");
}

#[tokio::test]
async fn move_waits_for_the_end_of_prompts() {
    let app = TestApp::new();
    app.run("say one").await;
    let target = json!({"entryId": app.message_id("say one").await});
    app.prompt("say two").await;
    let queued = app.post_leaf(&target, "queued").await.expect_problem(409, "conflict");
    assert!(queued["detail"].as_str().unwrap().contains("Wait until they are applied"), "{queued}");
    app.work().await;
    app.run(WAITING_PROMPT).await;
    let running = app.post_leaf(&target, "running").await;
    let running = running.expect_problem(409, "already-processing");
    assert!(running["detail"].as_str().unwrap().contains("abort it"), "{running}");
    assert_eq!(app.texts().await.len(), 6);
}

#[tokio::test]
async fn writes_left_behind_are_listed_and_not_repeated() {
    let app = TestApp::new();
    app.run("say one").await;
    app.run("use pay with {\"amount\": 50} then say done").await;
    let entries = app.entry_items().await;
    let started = entries.iter().find(|entry| entry["type"] == "tool_started").unwrap();
    let result = entries.iter().find(|entry| entry["message"]["role"] == "toolResult").unwrap();
    let write = json!({
        "tool": "pay", "toolCallId": result["message"]["toolCallId"], "effectId": started["effectId"],
        "outcome": "done"
    });
    let before = app.leaf_id().await;
    // Between the response and the result: the start stays on the path, the result does not.
    let inside = app.post_leaf(&json!({"entryId": started["id"]}), "inside").await;
    assert_eq!(inside.expect_status(200).json()["writesLeft"], json!([write]));
    app.run("say closed").await;
    assert_eq!(app.texts().await.last().unwrap(), "closed", "an open call is closed for the model");
    app.post_leaf(&json!({"entryId": before}), "back").await.expect_status(200);
    let away = app.post_leaf(&json!({"entryId": "root"}), "away").await.expect_status(200).json();
    assert_eq!((&away["writesLeft"], &away["writesLeftCount"]), (&json!([write]), &json!(1)));
    app.post_leaf(&json!({"entryId": before}), "again").await.expect_status(200);
    app.run("say more").await;
    assert_eq!(app.pay.payments.lock().unwrap().len(), 1, "no write is repeated");
}

#[tokio::test]
async fn page_of_messages_ends_with_a_move() {
    let app = TestApp::new();
    app.run("say one").await;
    app.run("say two").await;
    let path = "/api/conversations/c/messages?limit=3";
    let page = app.get_json(path).await;
    let next = page["continuation"].as_str().unwrap();
    let entries = app.get_json("/api/conversations/c/entries?limit=3").await;
    let target = app.message_id("say two").await;
    app.post_leaf(&json!({"entryId": target}), "k").await.expect_status(200);
    app.run("say three").await;
    let problem = app.get(&format!("{path}&continuation={next}")).send().await;
    let problem = problem.expect_problem(400, "bad-request");
    assert!(problem["detail"].as_str().unwrap().contains("another branch"), "{problem}");
    let next = entries["continuation"].as_str().unwrap();
    let rest = format!("/api/conversations/c/entries?limit=100&continuation={next}");
    let rest = app.get_json(&rest).await;
    assert_eq!(rest["items"][0]["seq"], 4, "entries of all branches have one order");
    assert_eq!(3 + rest["items"].as_array().unwrap().len(), app.entry_items().await.len());
}

#[tokio::test]
async fn label_is_set_cleared_and_bounded() {
    let app = TestApp::new();
    app.run("say one").await;
    let target = app.message_id("say one").await;
    let set = app.label(&target, " start ").await.expect_status(200).json();
    assert_eq!((&set["label"], &set["leafId"]), (&json!("start"), &app.leaf_id().await));
    let entry = app.entry_items().await.pop().unwrap();
    assert_eq!(
        (&entry["type"], &entry["targetId"], &entry["label"]),
        (&json!("label"), &json!(target), &json!("start"))
    );
    let before = app.entry_items().await.len();
    app.label(&target, "start").await.expect_status(200);
    assert_eq!(app.entry_items().await.len(), before, "an equal label is no entry");
    let cleared = app.label(&target, "").await.expect_status(200).json();
    assert_eq!(cleared["label"], Value::Null);
    app.label("zzz", "x").await.expect_problem(404, "not-found");
    for (bad, detail) in [("x".repeat(65), "64 characters"), ("a\nb".to_owned(), "one line")] {
        let problem = app.label(&target, &bad).await.expect_problem(400, "bad-request");
        assert!(problem["detail"].as_str().unwrap().contains(detail), "{problem}");
    }
    app.label(&target, &"ü".repeat(64)).await.expect_status(200);
    for number in 0..99 {
        let label = app.leaf_id().await;
        app.label(label.as_str().unwrap(), &number.to_string()).await.expect_status(200);
    }
    let last = app.leaf_id().await;
    let full = app.label(last.as_str().unwrap(), "more").await.expect_problem(400, "bad-request");
    assert!(full["detail"].as_str().unwrap().contains("remove one first"), "{full}");
    app.label(&target, "replaced").await.expect_status(200);
}

#[tokio::test]
async fn label_between_call_and_result_changes_nothing_for_the_model() {
    let app = TestApp::new();
    let id = app.run(WAITING_PROMPT).await;
    let target = app.message_id(WAITING_PROMPT).await;
    app.label(&target, "payment").await.expect_status(200);
    let link = app.approval_link().await;
    app.post(&link, &json!({"decision": "approve"})).send().await.expect_status(200);
    app.work().await;
    let prompt = app.get_json(&format!("/api/conversations/c/prompts/{id}")).await;
    assert_eq!(prompt["state"], "completed");
    assert_eq!(app.pay.payments.lock().unwrap().len(), 1);
}

/// Cancels moves with the label `no`, replaces summaries, and records what it sees.
#[derive(Debug, Default)]
struct Guide(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl Extension for Guide {
    fn name(&self) -> &'static str {
        "guide"
    }

    async fn before_leaf_move(
        &self,
        cx: &HookContext,
        pending: &PendingLeafMove<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        let left = pending.entries_left.len();
        self.0.lock().unwrap().push(format!("{} {left}", cx.hook().name()));
        if pending.label == Some("no") {
            return Ok(Some(SummaryOverride::Cancel));
        }
        Ok(Some(SummaryOverride::Summary { summary: "guided".to_owned(), details: None }))
    }

    async fn observe(&self, cx: &HookContext, fact: &Observation) -> Result<(), HookError> {
        if let Observation::SessionTree { summary, .. } = fact {
            self.0.lock().unwrap().push(format!("{} {summary:?}", cx.hook().name()));
        }
        Ok(())
    }
}

#[tokio::test]
async fn extension_cancels_and_summarises_moves() {
    let (seen, later) = (Guide::default(), Guide::default());
    let (log, later_log) = (Arc::clone(&seen.0), Arc::clone(&later.0));
    let app = TestApp::new().with_services(|services| {
        services.extensions.push(Arc::new(seen));
        services.extensions.push(Arc::new(later));
    });
    app.run("say one").await;
    let leaf = app.leaf_id().await;
    let target = app.message_id("say one").await;
    let cancelled = app.post_leaf(&json!({"entryId": target, "label": "no"}), "no").await;
    let cancelled = cancelled.expect_status(200).json();
    assert_eq!((&cancelled["cancelled"], &cancelled["moved"]), (&json!(true), &json!(false)));
    assert_eq!(app.leaf_id().await, leaf);
    assert!(later_log.lock().unwrap().is_empty(), "the first cancellation ends the move");
    let body = json!({"entryId": target, "summary": "mine"});
    app.post_leaf(&body, "yes").await.expect_status(200);
    let summary = app.entry_items().await.pop().unwrap();
    assert_eq!(
        (&summary["summary"], &summary["fromHook"], &summary["fromId"]),
        (&json!("guided"), &json!(true), &leaf)
    );
    assert_eq!(app.events_named("session_tree").await[0]["summary"], "guided");
    app.post_leaf(&json!({"entryId": leaf}), "plain").await.expect_status(200);
    assert_eq!(app.texts().await, ["say one", "one"], "no summary without a wish for one");
    let log = log.lock().unwrap().clone();
    assert_eq!(log[2], "session_tree Some(\"guided\")", "{log:?}");
    assert_eq!(log.last().unwrap(), "session_tree None");
}

#[tokio::test]
async fn edited_prompt_starts_at_the_position_of_the_original() {
    let app = TestApp::new();
    app.run("say one").await;
    app.run("use pay with {\"amount\": 50} then say done").await;
    let target = app.message_id("use pay with {\"amount\": 50} then say done").await;
    let body = json!({"input": "say edited", "at": target});
    let accepted = app.post(PROMPTS, &body).key("k").send().await.expect_status(202).json();
    assert_eq!(accepted["writesLeft"][0]["tool"], "pay");
    let queued = app.get_json("/api/conversations/c/inbox").await["items"][0].clone();
    assert_eq!((&queued["kind"], &queued["input"]), (&json!("prompt"), &json!("say edited")));
    let conversation = app.get_json("/api/conversations/c").await;
    assert_eq!(conversation["state"], "running", "an accepted edit counts as a prompt");
    let path = format!("/api/conversations/c/inbox/{}", accepted["inputId"].as_str().unwrap());
    let edit = app.patch(&path, &json!({"input": "say other"})).send().await;
    edit.expect_problem(409, "conflict");
    let busy = app.post(PROMPTS, &json!({"input": "say", "at": "root"})).send().await;
    busy.expect_problem(409, "already-processing");
    app.work().await;
    assert_eq!(app.texts().await, ["say one", "one", "say edited", "edited"]);
    let id = accepted["promptId"].as_str().unwrap();
    assert_eq!(app.get_json(&format!("{PROMPTS}/{id}")).await["state"], "completed");
    assert_eq!(app.events_named("session_tree").await.len(), 1);
    let again = app.post(PROMPTS, &body).key("k").send().await.expect_status(202).json();
    assert_eq!(again, accepted);
    app.run("say more").await;
    assert_eq!(app.texts().await.len(), 6, "a repetition moves nothing");
}

#[tokio::test]
async fn removed_edit_leaves_the_leaf() {
    let app = TestApp::new();
    app.run("say one").await;
    let leaf = app.leaf_id().await;
    let body = json!({"input": "say edited", "at": "root"});
    let accepted = app.post(PROMPTS, &body).send().await.expect_status(202).json();
    let path = format!("/api/conversations/c/inbox/{}", accepted["inputId"].as_str().unwrap());
    app.delete(&path).send().await.expect_status(204);
    app.work().await;
    assert_eq!(app.leaf_id().await, leaf);
    let prompt = format!("{PROMPTS}/{}", accepted["promptId"].as_str().unwrap());
    assert_eq!(app.get_json(&prompt).await["state"], "aborted");
}

#[tokio::test]
async fn invalid_positions_of_prompts_say_what_to_do() {
    let app = TestApp::new();
    app.run("say one").await;
    let unknown = app.post(PROMPTS, &json!({"input": "say", "at": "zzz"})).send().await;
    assert_eq!(unknown.expect_problem(404, "not-found")["detail"], "Entry zzz not found");
    for mode in ["steer", "followUp"] {
        let body = json!({"input": "say", "at": "root", "mode": mode});
        let problem = app.post(PROMPTS, &body).send().await.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], "/at", "{problem}");
    }
    let leaf = app.leaf_id().await;
    let body = json!({"input": "say here", "at": leaf});
    app.post(PROMPTS, &body).send().await.expect_status(202);
    app.work().await;
    assert_eq!(app.texts().await, ["say one", "one", "say here", "here"]);
    assert!(app.events_named("session_tree").await.is_empty(), "the leaf was there already");
}

#[tokio::test]
async fn extension_cancels_an_edit() {
    let app = TestApp::new().with_services(|services| {
        services.extensions.push(Arc::new(Closed));
    });
    app.run("say one").await;
    let problem = app.post(PROMPTS, &json!({"input": "say", "at": "root"})).send().await;
    let problem = problem.expect_problem(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains("cancelled"), "{problem}");
}

/// Cancels every move.
#[derive(Debug)]
struct Closed;

#[async_trait]
impl Extension for Closed {
    fn name(&self) -> &'static str {
        "closed"
    }

    async fn before_leaf_move(
        &self,
        _cx: &HookContext,
        _pending: &PendingLeafMove<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        Ok(Some(SummaryOverride::Cancel))
    }
}

#[tokio::test]
async fn model_summarises_the_branch_left_behind() {
    let app = TestApp::new();
    app.run("say one").await;
    app.run("say two").await;
    let target = app.message_id("say two").await;
    let body =
        json!({"entryId": target, "summarize": true, "instructions": "numbers", "label": "left"});
    let accepted = app.post_leaf(&body, "k").await.expect_status(202);
    let path = format!("/api/{}", accepted.header("location").trim_start_matches("/api/"));
    let accepted = accepted.json();
    assert_eq!((&accepted["moved"], &accepted["text"]), (&json!(false), &json!("say two")));
    assert_eq!(app.get_json("/api/conversations/c").await["state"], "running");
    app.work().await;
    assert_eq!(app.get_json(&path).await["state"], "landed");
    let entries = app.entry_items().await;
    let kinds: Vec<&str> =
        entries.iter().rev().take(2).map(|entry| entry["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["label", "branch_summary"]);
    assert_eq!(app.events_named("branch_summary_end").await[0]["aborted"], false);
    assert_eq!(app.texts().await[..2], ["say one", "one"]);
}

#[tokio::test]
async fn invalid_summary_requests_say_what_to_do() {
    let app = TestApp::new();
    app.run("say one").await;
    for (body, pointer) in [
        (json!({"entryId": "root", "summarize": true, "summary": "mine"}), "/summarize"),
        (json!({"entryId": "root", "instructions": "short"}), "/instructions"),
        (
            json!({"entryId": "root", "summarize": true, "instructions": "x".repeat(5_000)}),
            "/instructions",
        ),
        (json!({"entryId": "root", "summarize": true, "label": "a\nb"}), "/label"),
    ] {
        let problem = app.post_leaf(&body, pointer.trim_start_matches('/')).await;
        let problem = problem.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    // Nothing is left on the way back, so nothing is summarised.
    let leaf = app.leaf_id().await;
    app.post_leaf(&json!({"entryId": "root"}), "away").await.expect_status(200);
    let back = json!({"entryId": leaf, "summarize": true});
    app.post_leaf(&back, "back").await.expect_status(200);
    assert_eq!(app.texts().await, ["say one", "one"]);
}
