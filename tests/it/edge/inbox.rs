//! Tests of steers, follow-ups and held inputs: acceptance, queue views, edits and receipts.

use std::time::Duration;

use serde_json::{Value, json};
use turnwheel::testing::queue;
use turnwheel::testing::queue::Queue as _;

use super::test_app::TestApp;

const PROMPTS: &str = "/api/conversations/c/prompts";
const INBOX: &str = "/api/conversations/c/inbox";
/// Two calls in one model response; the first waits for its release.
const TWO_CALLS: &str =
    r#"use pay with {"slowly": true} and use pay with {"amount": 1} then say paid"#;

impl TestApp {
    async fn queue(&self, mode: &str, text: &str) -> Value {
        self.clock.advance(Duration::from_millis(1));
        let body = json!({"input": text, "mode": mode});
        self.post(PROMPTS, &body).send().await.expect_status(202).json()
    }

    async fn queue_held(&self, mode: &str, text: &str) -> Value {
        self.clock.advance(Duration::from_millis(1));
        let body = json!({"input": text, "mode": mode, "whenIdle": "hold"});
        self.post(PROMPTS, &body).send().await.expect_status(202).json()
    }

    /// Runs the worker and performs an action while the first slow call runs.
    async fn work_during_slow_call<T>(&self, action: impl Future<Output = T>) -> T {
        let ((), output) = tokio::join!(self.work(), async {
            self.pay.has_started.notified().await;
            let output = action.await;
            self.pay.can_end.notify_one();
            output
        });
        output
    }

    /// Role and text of each message.
    async fn message_lines(&self) -> Vec<String> {
        let messages = self.get_json("/api/conversations/c/messages?limit=100").await;
        let line = |message: &Value| {
            let content = &message["content"];
            let text = content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or("…");
            format!("{}: {text}", message["role"].as_str().unwrap())
        };
        messages["items"].as_array().unwrap().iter().map(line).collect()
    }

    async fn event_names(&self) -> Vec<String> {
        let response =
            self.get("/api/conversations/c/events?follow=false").send().await.expect_status(200);
        response
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("event: "))
            .map(str::to_owned)
            .collect()
    }

    async fn receipt(&self, accepted: &Value) -> Value {
        self.get_json(&format!("{INBOX}/{}", accepted["inputId"].as_str().unwrap())).await
    }

    async fn prompt_two_calls(&self) -> Value {
        let body = json!({"conversationId": "c", "input": TWO_CALLS});
        self.post("/api/prompts", &body).send().await.expect_status(202).json()
    }
}

fn input_texts(inbox: &Value) -> Vec<&str> {
    inbox["items"].as_array().unwrap().iter().map(|item| item["input"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn steer_skips_pending_calls_and_receipt_lists_them() {
    let app = TestApp::new();
    let first = app.prompt_two_calls().await;
    let steer = app
        .work_during_slow_call(async {
            let steer = app.queue("steer", "say stopped").await;
            let seen = app.get_json(INBOX).await;
            assert_eq!(input_texts(&seen), ["say stopped"]);
            let item = &seen["items"][0];
            assert_eq!(
                (&item["kind"], &item["state"], &item["whenIdle"], &item["inputId"]),
                (&json!("steer"), &json!("queued"), &json!("start"), &steer["inputId"])
            );
            assert_eq!(app.get_json(PROMPTS).await["items"].as_array().unwrap().len(), 1);
            steer
        })
        .await;
    assert_eq!((&steer["disposition"], &steer["promptId"]), (&json!("queued"), &first["promptId"]));
    assert_eq!(app.pay.payments.lock().unwrap().len(), 1);
    assert_eq!(
        app.message_lines().await[2..],
        [
            r#"toolResult: {"receipt":"R-1"}"#,
            "toolResult: Skipped due to queued user message.",
            "user: say stopped",
            "assistant: stopped",
        ]
    );
    let receipt = app.receipt(&steer).await;
    assert_eq!(
        (&receipt["state"], &receipt["turn"], &receipt["promptId"]),
        (&json!("landed"), &json!(2), &first["promptId"])
    );
    assert_eq!(receipt["ranCalls"].as_array().unwrap().len(), 1, "{receipt}");
    assert_eq!(receipt["skippedCalls"].as_array().unwrap().len(), 1, "{receipt}");
    assert_ne!(receipt["ranCalls"], receipt["skippedCalls"]);
    assert_eq!(
        app.get_json(INBOX).await["items"],
        json!([]),
        "an applied input must leave the queue"
    );
}

#[tokio::test]
async fn steer_waits_for_batch_when_configured() {
    let app = TestApp::new();
    let settings = json!({"steeringSkipsTools": false});
    app.post("/api/conversations", &json!({"id": "c", "settings": settings}))
        .send()
        .await
        .expect_status(201);
    app.post(PROMPTS, &json!({"input": TWO_CALLS})).send().await.expect_status(202);
    let steer = app.work_during_slow_call(app.queue("steer", "say stopped")).await;
    assert_eq!(app.pay.payments.lock().unwrap().len(), 2);
    assert_eq!(app.message_lines().await[4..], ["user: say stopped", "assistant: stopped"]);
    let receipt = app.receipt(&steer).await;
    assert_eq!(receipt["skippedCalls"], json!([]));
    assert_eq!(receipt["ranCalls"].as_array().unwrap().len(), 2, "{receipt}");
}

#[tokio::test]
async fn held_input_joins_the_next_prompt() {
    let app = TestApp::new();
    app.run("say hello").await;
    let held = app.queue_held("steer", "say extra").await;
    assert_eq!(held["disposition"], "queued");
    app.work().await;
    assert_eq!(
        app.queue.length(queue::TURNS).await.unwrap(),
        0,
        "a held input must not enqueue a nudge"
    );
    assert_eq!(app.get_json("/api/conversations/c").await["state"], "idle");
    assert_eq!(app.receipt(&held).await["whenIdle"], "hold");
    let promised = format!("{PROMPTS}/{}", held["promptId"].as_str().unwrap());
    assert_eq!(app.get_json(&promised).await["state"], "running");
    // Neither the recovery sweep nor the next day starts it.
    app.clock.advance(Duration::from_hours(24));
    turnwheel::testing::turn::sweep::sweep(&*app.services, Duration::ZERO).await.unwrap();
    app.work().await;
    assert_eq!(app.get_json("/api/conversations/c").await["state"], "idle");
    let now = app.services.clock.now();
    let due =
        turnwheel::testing::store::ConversationStore::list_due(&*app.store, now, 10, None).await;
    assert!(due.unwrap().items.is_empty());
    let next = app.run("say next").await;
    assert_eq!(
        app.message_lines().await[2..],
        ["user: say next", "user: say extra", "assistant: extra"]
    );
    assert_eq!(
        app.get_json(&promised).await["id"],
        next.as_str(),
        "the input must join that prompt"
    );
}

#[tokio::test]
async fn steer_and_follow_up_start_prompt_when_idle() {
    let app = TestApp::new();
    for mode in ["steer", "followUp"] {
        let body = json!({"conversationId": mode, "input": "say hello", "mode": mode});
        let first = app.post("/api/prompts", &body).send().await.expect_status(202).json();
        assert_eq!(first["disposition"], "started");
        app.work().await;
        let prompts = format!("/api/conversations/{mode}/prompts");
        let body = json!({"input": "say again", "mode": mode, "whenIdle": "start"});
        let second = app.post(&prompts, &body).send().await.expect_status(202).json();
        assert_eq!(second["disposition"], "started");
        assert_eq!(app.get_json(&format!("/api/conversations/{mode}")).await["state"], "running");
        app.work().await;
        let path = format!("{prompts}/{}", second["promptId"].as_str().unwrap());
        assert_eq!(app.get_json(&path).await["output"][0]["content"], "again");
    }
    let body = json!({"input": "x", "whenIdle": "hold"});
    app.post("/api/prompts", &body).send().await.expect_problem(400, "bad-request");
}

/// Starts a prompt that waits for an approval; returns the path of the approval request.
async fn prompt_waiting_for_approval(app: &TestApp, settings: Value) -> String {
    app.post("/api/conversations", &json!({"id": "c", "settings": settings}))
        .send()
        .await
        .expect_status(201);
    app.run(r#"use pay with {"amount": 500} then say paid"#).await;
    let seen = app.get_json("/api/conversations/c").await;
    let id = seen["pendingApprovals"][0]["id"].as_str().unwrap();
    format!("/api/conversations/c/approvals/{id}")
}

#[tokio::test]
async fn follow_ups_are_separate_prompts_in_one_run() {
    let app = TestApp::new();
    let approval = prompt_waiting_for_approval(&app, json!({})).await;
    let one = app.queue("followUp", "say one").await;
    let two = app.queue("followUp", "say two").await;
    app.work().await;
    assert_eq!(input_texts(&app.get_json(INBOX).await), ["say one", "say two"]);
    let prompts = app.get_json(PROMPTS).await;
    let states: Vec<&Value> =
        prompts["items"].as_array().unwrap().iter().map(|prompt| &prompt["state"]).collect();
    assert_eq!(states, ["waiting_for_approval", "running", "running"]);
    app.post(&approval, &json!({"decision": "approve"})).send().await.expect_status(200);
    app.work().await;
    for (accepted, text) in [(&one, "one"), (&two, "two")] {
        assert_eq!(accepted["disposition"], "queued");
        let id = accepted["promptId"].as_str().unwrap();
        let prompt = app.get_json(&format!("{PROMPTS}/{id}")).await;
        assert_eq!((&prompt["id"], &prompt["state"]), (&json!(id), &json!("completed")));
        assert_eq!(prompt["output"][0]["content"], text);
        assert_eq!(app.receipt(accepted).await["promptId"], id);
    }
    let events = app.event_names().await;
    let count = |name: &str| events.iter().filter(|event| *event == name).count();
    assert_eq!((count("agent_start"), count("agent_end"), count("agent_settled")), (1, 1, 1));
    assert_eq!((count("prompt.created"), count("prompt.completed")), (3, 3));
}

#[tokio::test]
async fn combined_follow_ups_share_one_prompt() {
    let app = TestApp::new();
    let approval = prompt_waiting_for_approval(&app, json!({"followUpMode": "all"})).await;
    let one = app.queue("followUp", "say one").await;
    let two = app.queue("followUp", "say two").await;
    app.post(&approval, &json!({"decision": "approve"})).send().await.expect_status(200);
    app.work().await;
    let lines = app.message_lines().await;
    assert_eq!(lines[lines.len() - 3..], ["user: say one", "user: say two", "assistant: two"]);
    for accepted in [&one, &two] {
        let path = format!("{PROMPTS}/{}?wait=5", accepted["promptId"].as_str().unwrap());
        let prompt = app.get_json(&path).await;
        assert_eq!((&prompt["id"], &prompt["state"]), (&one["promptId"], &json!("completed")));
    }
    assert_eq!(app.get_json(PROMPTS).await["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn steers_are_applied_singly_or_together() {
    for (mode, expected) in [
        (
            "one-at-a-time",
            vec!["user: say one", "assistant: one", "user: say two", "assistant: two"],
        ),
        ("all", vec!["user: say one", "user: say two", "assistant: two"]),
    ] {
        let app = TestApp::new();
        let approval = prompt_waiting_for_approval(&app, json!({"steeringMode": mode})).await;
        app.queue("steer", "say one").await;
        app.queue("steer", "say two").await;
        app.work().await;
        assert_eq!(app.message_lines().await.len(), 2, "steers must wait for the decision");
        app.post(&approval, &json!({"decision": "approve"})).send().await.expect_status(200);
        app.work().await;
        assert_eq!(app.pay.payments.lock().unwrap().len(), 1, "the approved call must run");
        assert_eq!(app.message_lines().await[3..], expected, "{mode}");
    }
}

#[tokio::test]
async fn held_input_stays_queued_after_failed_prompt() {
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c", "settings": {"retry": {"enabled": false}}}))
        .send()
        .await
        .expect_status(201);
    let held = app.queue_held("followUp", "say held").await;
    let failing = app.prompt("fail finally").await;
    let waiting = app.queue("followUp", "say waited").await;
    app.work().await;
    assert_eq!(app.get_json(&format!("{PROMPTS}/{failing}")).await["state"], "failed");
    let path = format!("{PROMPTS}/{}", waiting["promptId"].as_str().unwrap());
    assert_eq!(app.get_json(&path).await["output"][0]["content"], "waited");
    assert_eq!(app.receipt(&waiting).await["state"], "landed");
    // The prompt that started by itself succeeded and included the held input.
    assert_eq!(app.receipt(&held).await["state"], "landed");
    let held = app.queue_held("followUp", "say held").await;
    app.run("fail finally").await;
    assert_eq!(app.receipt(&held).await["state"], "queued");
    assert_eq!(app.get_json("/api/conversations/c").await["state"], "idle");
}

#[tokio::test]
async fn second_prompt_conflict_names_the_remedy() {
    let app = TestApp::new();
    let first = app.prompt("say hello").await;
    let problem = app.post(PROMPTS, &json!({"input": "x"})).send().await;
    let problem = problem.expect_problem(409, "already-processing");
    assert_eq!(problem["promptId"], first.as_str());
    assert_eq!(problem["title"], "Conflict");
    let detail = format!(
        "A prompt is already running in this conversation ({first}). Send `mode: steer` to join it, `mode: followUp` to queue the input, or wait."
    );
    assert_eq!(problem["detail"], detail);
}

#[tokio::test]
async fn queued_input_can_be_edited_and_deleted() {
    let app = TestApp::new();
    app.run("say hello").await;
    let body = json!({"input": "say wrong", "mode": "steer", "whenIdle": "hold"});
    let held = app.post(PROMPTS, &body).key("k").send().await.expect_status(202);
    let path = format!("{INBOX}/{}", held.json()["inputId"].as_str().unwrap());
    let etag = app.get(&path).send().await.expect_status(200).header("etag").to_owned();
    let edit = json!({"input": "say right", "mode": "followUp", "visible": false});
    let edited =
        app.patch(&path, &edit).key("e").header("if-match", &etag).send().await.expect_status(200);
    assert_ne!(edited.header("etag"), etag);
    let seen = app.get_json(&path).await;
    assert_eq!(seen, edited.json());
    assert_eq!(
        (&seen["input"], &seen["kind"], &seen["visible"]),
        (&json!("say right"), &json!("followUp"), &json!(false))
    );
    let again =
        app.patch(&path, &edit).key("e").header("if-match", &etag).send().await.expect_status(200);
    assert_eq!(again.header("idempotency-replayed"), "true");
    app.patch(&path, &edit)
        .header("if-match", &etag)
        .send()
        .await
        .expect_problem(412, "precondition-failed");
    for (wrong, pointer) in [
        (json!({"mode": "prompt"}), "/mode"),
        (json!({"input": ""}), "/input"),
        (json!({"text": "x"}), "/text"),
    ] {
        let problem = app.patch(&path, &wrong).send().await.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    for _ in 0..2 {
        app.delete(&path).send().await.expect_status(204);
    }
    assert_eq!(app.get_json(&path).await["state"], "cleared");
    assert_eq!(app.get_json(INBOX).await["items"], json!([]));
    let problem = app.patch(&path, &edit).send().await.expect_problem(409, "conflict");
    assert_eq!(problem["input"]["state"], "cleared");
    // The key still identifies the same request, and the promised prompt id resolves.
    let repeated = app.post(PROMPTS, &body).key("k").send().await.expect_status(202);
    assert_eq!((repeated.header("idempotency-replayed"), &repeated.text), ("true", &held.text));
    let promised = format!("{PROMPTS}/{}?wait=5", held.json()["promptId"].as_str().unwrap());
    let prompt = app.get_json(&promised).await;
    assert_eq!((&prompt["state"], &prompt["output"]), (&json!("aborted"), &json!([])));
    app.run("say next").await;
    assert_eq!(app.message_lines().await.len(), 4);
}

#[tokio::test]
async fn held_input_starts_after_edit() {
    let app = TestApp::new();
    app.run("say hello").await;
    let held = app.queue_held("followUp", "say now").await;
    let path = format!("{INBOX}/{}", held["inputId"].as_str().unwrap());
    app.patch(&path, &json!({"whenIdle": "start"})).send().await.expect_status(200);
    app.work().await;
    assert_eq!(app.message_lines().await[2..], ["user: say now", "assistant: now"]);
    for change in [app.patch(&path, &json!({"visible": true})), app.delete(&path)] {
        let problem = change.send().await.expect_problem(409, "conflict");
        assert_eq!(
            (&problem["input"]["state"], &problem["input"]["promptId"]),
            (&json!("landed"), &held["promptId"])
        );
    }
}

#[tokio::test]
async fn inbox_is_cleared_by_mode_or_completely() {
    let app = TestApp::new();
    let approval = prompt_waiting_for_approval(&app, json!({})).await;
    for number in 0..3 {
        app.queue("steer", &format!("steer {number}")).await;
        app.queue("followUp", &format!("follow {number}")).await;
    }
    app.work().await;
    let problem =
        app.delete(&format!("{INBOX}?mode=prompt")).send().await.expect_problem(400, "bad-request");
    assert_eq!(problem["errors"][0]["pointer"], "?mode");
    let cleared = app.delete(&format!("{INBOX}?mode=steer")).send().await.expect_status(200).json();
    assert_eq!(input_texts(&cleared), ["steer 0", "steer 1", "steer 2"]);
    let page = app.get(&format!("{INBOX}?limit=2")).send().await.expect_status(200);
    assert_eq!(input_texts(&page.json()), ["follow 0", "follow 1"]);
    let next = page.header("link").trim_start_matches('<').split('>').next().unwrap().to_owned();
    // An input deleted after the first page is absent from the next page.
    let first = page.json()["items"][0]["inputId"].as_str().unwrap().to_owned();
    app.delete(&format!("{INBOX}/{first}")).send().await.expect_status(204);
    assert_eq!(input_texts(&app.get_json(&next).await), ["follow 2"]);
    let cleared = app.delete(INBOX).send().await.expect_status(200).json();
    assert_eq!(input_texts(&cleared), ["follow 1", "follow 2"]);
    app.post(&approval, &json!({"decision": "approve"})).send().await.expect_status(200);
    app.work().await;
    assert_eq!(app.message_lines().await.last().unwrap(), "assistant: paid");
    assert_eq!(app.event_names().await.last().unwrap(), "agent_settled");
}

#[tokio::test]
async fn only_owner_changes_queued_input() {
    let app = TestApp::new();
    app.run("say hello").await;
    let held = app.queue_held("steer", "say later").await;
    let path = format!("{INBOX}/{}", held["inputId"].as_str().unwrap());
    for (user, roles, status) in [("eve", "", 404), ("olga", "Turnwheel.Operator", 403)] {
        let name = if status == 404 { "not-found" } else { "forbidden" };
        let edit = app.patch(&path, &json!({"visible": false}));
        for change in [edit, app.delete(&path), app.delete(INBOX)] {
            change.user(user, roles).send().await.expect_problem(status, name);
        }
        for read in [app.get(&path), app.get(INBOX)] {
            let response = read.user(user, roles).send().await;
            assert_eq!(response.status.as_u16(), if status == 404 { 404 } else { 200 });
        }
    }
    for unknown in ["in_nothing", "head", "000000000001", "a%2Fb"] {
        let path = format!("{INBOX}/{unknown}");
        app.get(&path).send().await.expect_problem(404, "not-found");
        app.delete(&path).send().await.expect_problem(404, "not-found");
    }
}

#[tokio::test]
async fn queue_messages_steer_and_follow_up() {
    let app = TestApp::new();
    let approval = prompt_waiting_for_approval(&app, json!({})).await;
    let accept = async |id: &str, message: Value| {
        app.clock.advance(Duration::from_millis(1));
        let text = message.to_string();
        turnwheel::testing::commands::prompt_queue::accept_queue_message(&app.services, &text, id)
            .await
            .unwrap()
    };
    accept("m1", json!({"conversationId": "c", "input": "say later"})).await;
    accept("m2", json!({"conversationId": "c", "input": "say steered", "mode": "steer"})).await;
    accept("m3", json!({"conversationId": "c", "input": "say last", "mode": "followUp"})).await;
    let kinds = app.get_json(INBOX).await;
    let kinds: Vec<&Value> =
        kinds["items"].as_array().unwrap().iter().map(|item| &item["kind"]).collect();
    assert_eq!(kinds, ["followUp", "steer", "followUp"]);
    app.post(&approval, &json!({"decision": "approve"})).send().await.expect_status(200);
    app.work().await;
    assert_eq!(
        app.message_lines().await[3..],
        [
            "user: say steered",
            "assistant: steered",
            "user: say later",
            "assistant: later",
            "user: say last",
            "assistant: last",
        ]
    );
}
