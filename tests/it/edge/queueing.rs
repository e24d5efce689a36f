//! Tests of steers, follow-ups and held inputs: acceptance, queue views, edits and receipts.

use std::time::Duration;

use serde_json::{Value, json};
use turnwheel::queue::{self, Queue as _};

use super::rig::Rig;

const PROMPTS: &str = "/api/conversations/c/prompts";
const INBOX: &str = "/api/conversations/c/inbox";
/// Two calls in one model response; the first waits for its release.
const TWO_CALLS: &str =
    r#"use pay with {"slowly": true} and use pay with {"amount": 1} then say paid"#;

impl Rig {
    async fn queue(&self, mode: &str, text: &str) -> Value {
        self.clock.advance(Duration::from_millis(1));
        let body = json!({"input": text, "mode": mode});
        self.post(PROMPTS, &body).send().await.is(202).json()
    }

    async fn hold(&self, mode: &str, text: &str) -> Value {
        self.clock.advance(Duration::from_millis(1));
        let body = json!({"input": text, "mode": mode, "whenIdle": "hold"});
        self.post(PROMPTS, &body).send().await.is(202).json()
    }

    /// Runs the worker and performs an action while the first slow call runs.
    async fn work_and_meanwhile<T>(&self, meanwhile: impl Future<Output = T>) -> T {
        let ((), told) = tokio::join!(self.work(), async {
            self.pay.is_under_way.notified().await;
            let told = meanwhile.await;
            self.pay.may_end.notify_one();
            told
        });
        told
    }

    /// Role and text of each message.
    async fn said(&self) -> Vec<String> {
        let messages = self.seen("/api/conversations/c/messages?limit=100").await;
        let line = |message: &Value| {
            let content = &message["content"];
            let text = content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or("…");
            format!("{}: {text}", message["role"].as_str().unwrap())
        };
        messages["items"].as_array().unwrap().iter().map(line).collect()
    }

    async fn events(&self) -> Vec<String> {
        let told = self.get("/api/conversations/c/events?follow=false").send().await.is(200);
        told.text
            .lines()
            .filter_map(|line| line.strip_prefix("event: "))
            .map(str::to_owned)
            .collect()
    }

    async fn input(&self, accepted: &Value) -> Value {
        self.seen(&format!("{INBOX}/{}", accepted["inputId"].as_str().unwrap())).await
    }

    async fn begin_with_call(&self) -> Value {
        let body = json!({"conversationId": "c", "input": TWO_CALLS});
        self.post("/api/prompts", &body).send().await.is(202).json()
    }
}

fn texts(inbox: &Value) -> Vec<&str> {
    inbox["items"].as_array().unwrap().iter().map(|item| item["input"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_steer_skips_the_calls_that_have_not_begun_and_its_receipt_says_which() {
    let rig = Rig::new();
    let first = rig.begin_with_call().await;
    let steer = rig
        .work_and_meanwhile(async {
            let steer = rig.queue("steer", "say stopped").await;
            let seen = rig.seen(INBOX).await;
            assert_eq!(texts(&seen), ["say stopped"]);
            let item = &seen["items"][0];
            assert_eq!(
                (&item["kind"], &item["state"], &item["whenIdle"], &item["inputId"]),
                (&json!("steer"), &json!("queued"), &json!("start"), &steer["inputId"])
            );
            assert_eq!(rig.seen(PROMPTS).await["items"].as_array().unwrap().len(), 1);
            steer
        })
        .await;
    assert_eq!((&steer["disposition"], &steer["promptId"]), (&json!("queued"), &first["promptId"]));
    assert_eq!(rig.pay.made.lock().unwrap().len(), 1);
    assert_eq!(
        rig.said().await[2..],
        [
            r#"toolResult: {"receipt":"R-1"}"#,
            "toolResult: Skipped due to queued user message.",
            "user: say stopped",
            "assistant: stopped",
        ]
    );
    let receipt = rig.input(&steer).await;
    assert_eq!(
        (&receipt["state"], &receipt["turn"], &receipt["promptId"]),
        (&json!("landed"), &json!(2), &first["promptId"])
    );
    assert_eq!(receipt["ranCalls"].as_array().unwrap().len(), 1, "{receipt}");
    assert_eq!(receipt["skippedCalls"].as_array().unwrap().len(), 1, "{receipt}");
    assert_ne!(receipt["ranCalls"], receipt["skippedCalls"]);
    assert_eq!(rig.seen(INBOX).await["items"], json!([]), "an applied input must leave the queue");
}

#[tokio::test]
async fn a_batch_is_finished_first_where_the_setting_says_so() {
    let rig = Rig::new();
    let settings = json!({"steeringSkipsTools": false});
    rig.post("/api/conversations", &json!({"id": "c", "settings": settings})).send().await.is(201);
    rig.post(PROMPTS, &json!({"input": TWO_CALLS})).send().await.is(202);
    let steer = rig.work_and_meanwhile(rig.queue("steer", "say stopped")).await;
    assert_eq!(rig.pay.made.lock().unwrap().len(), 2);
    assert_eq!(rig.said().await[4..], ["user: say stopped", "assistant: stopped"]);
    let receipt = rig.input(&steer).await;
    assert_eq!(receipt["skippedCalls"], json!([]));
    assert_eq!(receipt["ranCalls"].as_array().unwrap().len(), 2, "{receipt}");
}

#[tokio::test]
async fn what_is_held_waits_for_the_next_prompt_and_joins_its_first_turn() {
    let rig = Rig::new();
    rig.run("say hello").await;
    let held = rig.hold("steer", "say extra").await;
    assert_eq!(held["disposition"], "queued");
    rig.work().await;
    assert_eq!(rig.queue.length(queue::TURNS).await.unwrap(), 0, "a held input must not enqueue a nudge");
    assert_eq!(rig.seen("/api/conversations/c").await["state"], "idle");
    assert_eq!(rig.input(&held).await["whenIdle"], "hold");
    let promised = format!("{PROMPTS}/{}", held["promptId"].as_str().unwrap());
    assert_eq!(rig.seen(&promised).await["state"], "running");
    // Neither the recovery sweep nor the next day starts it.
    rig.clock.advance(Duration::from_hours(24));
    turnwheel::turn::sweep::sweep(&rig.world, Duration::ZERO).await.unwrap();
    rig.work().await;
    assert_eq!(rig.seen("/api/conversations/c").await["state"], "idle");
    let now = rig.world.clock.now();
    let owed = turnwheel::store::ConversationStore::due(&*rig.store, now, 10, None).await;
    assert!(owed.unwrap().items.is_empty());
    let next = rig.run("say next").await;
    assert_eq!(rig.said().await[2..], ["user: say next", "user: say extra", "assistant: extra"]);
    assert_eq!(rig.seen(&promised).await["id"], next.as_str(), "the input must join that prompt");
}

#[tokio::test]
async fn in_an_idle_conversation_a_steer_or_a_follow_up_begins_a_prompt() {
    let rig = Rig::new();
    for mode in ["steer", "followUp"] {
        let body = json!({"conversationId": mode, "input": "say hello", "mode": mode});
        let first = rig.post("/api/prompts", &body).send().await.is(202).json();
        assert_eq!(first["disposition"], "started");
        rig.work().await;
        let prompts = format!("/api/conversations/{mode}/prompts");
        let body = json!({"input": "say again", "mode": mode, "whenIdle": "start"});
        let second = rig.post(&prompts, &body).send().await.is(202).json();
        assert_eq!(second["disposition"], "started");
        assert_eq!(rig.seen(&format!("/api/conversations/{mode}")).await["state"], "running");
        rig.work().await;
        let path = format!("{prompts}/{}", second["promptId"].as_str().unwrap());
        assert_eq!(rig.seen(&path).await["output"][0]["content"], "again");
    }
    let body = json!({"input": "x", "whenIdle": "hold"});
    rig.post("/api/prompts", &body).send().await.fails(400, "bad-request");
}

/// Starts a prompt that waits for an approval; returns the path of the approval request.
async fn waiting_for_a_person(rig: &Rig, settings: Value) -> String {
    rig.post("/api/conversations", &json!({"id": "c", "settings": settings})).send().await.is(201);
    rig.run(r#"use pay with {"amount": 500} then say paid"#).await;
    let seen = rig.seen("/api/conversations/c").await;
    let id = seen["pendingApprovals"][0]["id"].as_str().unwrap();
    format!("/api/conversations/c/approvals/{id}")
}

#[tokio::test]
async fn follow_ups_are_prompts_of_their_own_in_the_same_run() {
    let rig = Rig::new();
    let approval = waiting_for_a_person(&rig, json!({})).await;
    let one = rig.queue("followUp", "say one").await;
    let two = rig.queue("followUp", "say two").await;
    rig.work().await;
    assert_eq!(texts(&rig.seen(INBOX).await), ["say one", "say two"]);
    let prompts = rig.seen(PROMPTS).await;
    let states: Vec<&Value> =
        prompts["items"].as_array().unwrap().iter().map(|prompt| &prompt["state"]).collect();
    assert_eq!(states, ["waiting_for_approval", "running", "running"]);
    rig.post(&approval, &json!({"decision": "approve"})).send().await.is(200);
    rig.work().await;
    for (accepted, said) in [(&one, "one"), (&two, "two")] {
        assert_eq!(accepted["disposition"], "queued");
        let id = accepted["promptId"].as_str().unwrap();
        let prompt = rig.seen(&format!("{PROMPTS}/{id}")).await;
        assert_eq!((&prompt["id"], &prompt["state"]), (&json!(id), &json!("completed")));
        assert_eq!(prompt["output"][0]["content"], said);
        assert_eq!(rig.input(accepted).await["promptId"], id);
    }
    let events = rig.events().await;
    let count = |name: &str| events.iter().filter(|event| *event == name).count();
    assert_eq!((count("agent_start"), count("agent_end"), count("agent_settled")), (1, 1, 1));
    assert_eq!((count("prompt.created"), count("prompt.completed")), (3, 3));
}

#[tokio::test]
async fn follow_ups_taken_together_share_the_first_ones_prompt() {
    let rig = Rig::new();
    let approval = waiting_for_a_person(&rig, json!({"followUpMode": "all"})).await;
    let one = rig.queue("followUp", "say one").await;
    let two = rig.queue("followUp", "say two").await;
    rig.post(&approval, &json!({"decision": "approve"})).send().await.is(200);
    rig.work().await;
    let said = rig.said().await;
    assert_eq!(said[said.len() - 3..], ["user: say one", "user: say two", "assistant: two"]);
    for accepted in [&one, &two] {
        let path = format!("{PROMPTS}/{}?wait=5", accepted["promptId"].as_str().unwrap());
        let prompt = rig.seen(&path).await;
        assert_eq!((&prompt["id"], &prompt["state"]), (&one["promptId"], &json!("completed")));
    }
    assert_eq!(rig.seen(PROMPTS).await["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn steers_land_one_at_a_time_or_all_at_once() {
    for (mode, expected) in [
        (
            "one-at-a-time",
            vec!["user: say one", "assistant: one", "user: say two", "assistant: two"],
        ),
        ("all", vec!["user: say one", "user: say two", "assistant: two"]),
    ] {
        let rig = Rig::new();
        let approval = waiting_for_a_person(&rig, json!({"steeringMode": mode})).await;
        rig.queue("steer", "say one").await;
        rig.queue("steer", "say two").await;
        rig.work().await;
        assert_eq!(rig.said().await.len(), 2, "steers must wait for the decision");
        rig.post(&approval, &json!({"decision": "approve"})).send().await.is(200);
        rig.work().await;
        assert_eq!(rig.pay.made.lock().unwrap().len(), 1, "the approved call must run");
        assert_eq!(rig.said().await[3..], expected, "{mode}");
    }
}

#[tokio::test]
async fn after_a_failed_prompt_what_is_held_stays_and_the_rest_begins_by_itself() {
    let rig = Rig::new();
    rig.post("/api/conversations", &json!({"id": "c", "settings": {"retry": {"enabled": false}}}))
        .send()
        .await
        .is(201);
    let held = rig.hold("followUp", "say held").await;
    let failing = rig.prompt("fail finally").await;
    let waiting = rig.queue("followUp", "say waited").await;
    rig.work().await;
    assert_eq!(rig.seen(&format!("{PROMPTS}/{failing}")).await["state"], "failed");
    let path = format!("{PROMPTS}/{}", waiting["promptId"].as_str().unwrap());
    assert_eq!(rig.seen(&path).await["output"][0]["content"], "waited");
    assert_eq!(rig.input(&waiting).await["state"], "landed");
    // The prompt that started by itself succeeded and included the held input.
    assert_eq!(rig.input(&held).await["state"], "landed");
    let held = rig.hold("followUp", "say held").await;
    rig.run("fail finally").await;
    assert_eq!(rig.input(&held).await["state"], "queued");
    assert_eq!(rig.seen("/api/conversations/c").await["state"], "idle");
}

#[tokio::test]
async fn second_prompt_is_refused_with_its_remedy() {
    let rig = Rig::new();
    let first = rig.prompt("say hello").await;
    let told = rig.post(PROMPTS, &json!({"input": "x"})).send().await;
    let told = told.fails(409, "already-processing");
    assert_eq!(told["promptId"], first.as_str());
    assert_eq!(told["title"], "Conflict");
    let detail = format!(
        "A prompt is already running in this conversation ({first}). Send `mode: steer` to join it, `mode: followUp` to queue the input, or wait."
    );
    assert_eq!(told["detail"], detail);
}

#[tokio::test]
async fn what_waits_can_be_edited_and_taken_back() {
    let rig = Rig::new();
    rig.run("say hello").await;
    let body = json!({"input": "say wrong", "mode": "steer", "whenIdle": "hold"});
    let held = rig.post(PROMPTS, &body).key("k").send().await.is(202);
    let path = format!("{INBOX}/{}", held.json()["inputId"].as_str().unwrap());
    let etag = rig.get(&path).send().await.is(200).header("etag").to_owned();
    let edit = json!({"input": "say right", "mode": "followUp", "visible": false});
    let edited = rig.patch(&path, &edit).key("e").header("if-match", &etag).send().await.is(200);
    assert_ne!(edited.header("etag"), etag);
    let seen = rig.seen(&path).await;
    assert_eq!(seen, edited.json());
    assert_eq!(
        (&seen["input"], &seen["kind"], &seen["visible"]),
        (&json!("say right"), &json!("followUp"), &json!(false))
    );
    let again = rig.patch(&path, &edit).key("e").header("if-match", &etag).send().await.is(200);
    assert_eq!(again.header("idempotency-replayed"), "true");
    rig.patch(&path, &edit)
        .header("if-match", &etag)
        .send()
        .await
        .fails(412, "precondition-failed");
    for (wrong, pointer) in [
        (json!({"mode": "prompt"}), "/mode"),
        (json!({"input": ""}), "/input"),
        (json!({"text": "x"}), "/text"),
    ] {
        let told = rig.patch(&path, &wrong).send().await.fails(400, "bad-request");
        assert_eq!(told["errors"][0]["pointer"], pointer, "{told}");
    }
    for _ in 0..2 {
        rig.delete(&path).send().await.is(204);
    }
    assert_eq!(rig.seen(&path).await["state"], "cleared");
    assert_eq!(rig.seen(INBOX).await["items"], json!([]));
    let told = rig.patch(&path, &edit).send().await.fails(409, "conflict");
    assert_eq!(told["input"]["state"], "cleared");
    // The key still identifies the same request, and the promised prompt id resolves.
    let repeated = rig.post(PROMPTS, &body).key("k").send().await.is(202);
    assert_eq!((repeated.header("idempotency-replayed"), &repeated.text), ("true", &held.text));
    let promised = format!("{PROMPTS}/{}?wait=5", held.json()["promptId"].as_str().unwrap());
    let prompt = rig.seen(&promised).await;
    assert_eq!((&prompt["state"], &prompt["output"]), (&json!("aborted"), &json!([])));
    rig.run("say next").await;
    assert_eq!(rig.said().await.len(), 4);
}

#[tokio::test]
async fn a_held_input_that_may_begin_begins() {
    let rig = Rig::new();
    rig.run("say hello").await;
    let held = rig.hold("followUp", "say now").await;
    let path = format!("{INBOX}/{}", held["inputId"].as_str().unwrap());
    rig.patch(&path, &json!({"whenIdle": "start"})).send().await.is(200);
    rig.work().await;
    assert_eq!(rig.said().await[2..], ["user: say now", "assistant: now"]);
    for change in [rig.patch(&path, &json!({"visible": true})), rig.delete(&path)] {
        let told = change.send().await.fails(409, "conflict");
        assert_eq!(
            (&told["input"]["state"], &told["input"]["promptId"]),
            (&json!("landed"), &held["promptId"])
        );
    }
}

#[tokio::test]
async fn queues_are_cleared_alone_or_together() {
    let rig = Rig::new();
    let approval = waiting_for_a_person(&rig, json!({})).await;
    for number in 0..3 {
        rig.queue("steer", &format!("steer {number}")).await;
        rig.queue("followUp", &format!("follow {number}")).await;
    }
    rig.work().await;
    let told = rig.delete(&format!("{INBOX}?mode=prompt")).send().await.fails(400, "bad-request");
    assert_eq!(told["errors"][0]["pointer"], "?mode");
    let cleared = rig.delete(&format!("{INBOX}?mode=steer")).send().await.is(200).json();
    assert_eq!(texts(&cleared), ["steer 0", "steer 1", "steer 2"]);
    let page = rig.get(&format!("{INBOX}?limit=2")).send().await.is(200);
    assert_eq!(texts(&page.json()), ["follow 0", "follow 1"]);
    let next = page.header("link").trim_start_matches('<').split('>').next().unwrap().to_owned();
    // An input deleted after the first page is absent from the next page.
    let first = page.json()["items"][0]["inputId"].as_str().unwrap().to_owned();
    rig.delete(&format!("{INBOX}/{first}")).send().await.is(204);
    assert_eq!(texts(&rig.seen(&next).await), ["follow 2"]);
    let cleared = rig.delete(INBOX).send().await.is(200).json();
    assert_eq!(texts(&cleared), ["follow 1", "follow 2"]);
    rig.post(&approval, &json!({"decision": "approve"})).send().await.is(200);
    rig.work().await;
    assert_eq!(rig.said().await.last().unwrap(), "assistant: paid");
    assert_eq!(rig.events().await.last().unwrap(), "agent_settled");
}

#[tokio::test]
async fn only_the_owner_changes_what_waits_and_an_operator_reads_it() {
    let rig = Rig::new();
    rig.run("say hello").await;
    let held = rig.hold("steer", "say later").await;
    let path = format!("{INBOX}/{}", held["inputId"].as_str().unwrap());
    for (user, roles, status) in [("eve", "", 404), ("olga", "Turnwheel.Operator", 403)] {
        let name = if status == 404 { "not-found" } else { "forbidden" };
        let edit = rig.patch(&path, &json!({"visible": false}));
        for change in [edit, rig.delete(&path), rig.delete(INBOX)] {
            change.user(user, roles).send().await.fails(status, name);
        }
        for read in [rig.get(&path), rig.get(INBOX)] {
            let answer = read.user(user, roles).send().await;
            assert_eq!(answer.status.as_u16(), if status == 404 { 404 } else { 200 });
        }
    }
    for unknown in ["in_nothing", "head", "000000000001", "a%2Fb"] {
        let path = format!("{INBOX}/{unknown}");
        rig.get(&path).send().await.fails(404, "not-found");
        rig.delete(&path).send().await.fails(404, "not-found");
    }
}

#[tokio::test]
async fn messages_of_the_queue_steer_and_follow_up() {
    let rig = Rig::new();
    let approval = waiting_for_a_person(&rig, json!({})).await;
    let accept = async |id: &str, message: Value| {
        rig.clock.advance(Duration::from_millis(1));
        let text = message.to_string();
        turnwheel::turn::admission::queued::accept_queued(&rig.world, &text, id).await.unwrap()
    };
    accept("m1", json!({"conversationId": "c", "input": "say later"})).await;
    accept("m2", json!({"conversationId": "c", "input": "say steered", "mode": "steer"})).await;
    accept("m3", json!({"conversationId": "c", "input": "say last", "mode": "followUp"})).await;
    let kinds = rig.seen(INBOX).await;
    let kinds: Vec<&Value> =
        kinds["items"].as_array().unwrap().iter().map(|item| &item["kind"]).collect();
    assert_eq!(kinds, ["followUp", "steer", "followUp"]);
    rig.post(&approval, &json!({"decision": "approve"})).send().await.is(200);
    rig.work().await;
    assert_eq!(
        rig.said().await[3..],
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
