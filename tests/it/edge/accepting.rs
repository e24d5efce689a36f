//! Tests of admission: an accepted request is stored exactly once.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use turnwheel::queue::Faults as QueueFaults;
use turnwheel::queue::{self, Queue as _};
use turnwheel::settings::links::Auth;
use turnwheel::store::memory::MemoryStore;
use turnwheel::turn::Probe;

use super::rig::Rig;

#[tokio::test]
async fn a_prompt_is_accepted_answered_and_shown() {
    let rig = Rig::new();
    let answer =
        rig.post("/api/prompts", &json!({"input": "say hello"})).key("k1").send().await.is(202);
    let accepted = answer.json();
    assert_eq!(accepted["disposition"], "started");
    let location = answer.header("location").to_owned();
    assert_eq!(
        location,
        format!(
            "/api/conversations/{}/prompts/{}",
            accepted["conversationId"].as_str().unwrap(),
            accepted["promptId"].as_str().unwrap()
        )
    );
    let before = rig.seen(&location).await;
    assert_eq!((&before["state"], &before["input"]), (&json!("running"), &json!("say hello")));
    let conversation =
        format!("/api/conversations/{}", accepted["conversationId"].as_str().unwrap());
    assert_eq!(
        rig.seen(&conversation).await["state"],
        "running",
        "the state must be `running` before the worker reads the inbox"
    );
    rig.work().await;
    let after = rig.seen(&location).await;
    assert_eq!((&after["state"], &after["stopReason"]), (&json!("completed"), &json!("end")));
    assert_eq!(after["output"][0]["content"], "hello");
    let seen = rig.seen(&conversation).await;
    assert_eq!(
        (&seen["state"], &seen["prompts"][0]["state"]),
        (&json!("idle"), &json!("completed"))
    );
    let messages = rig.seen(&format!("{conversation}/messages")).await;
    assert_eq!(messages["items"][0]["role"], "user");
    assert_eq!(messages["items"][1]["role"], "assistant");
    let entries = rig.seen(&format!("{conversation}/entries?afterSeq=1")).await;
    assert_eq!(entries["items"][0]["seq"], 2);
    assert!(entries["items"][0]["id"].is_string() && entries["items"][0].get("entryId").is_none());
}

#[tokio::test]
async fn the_same_key_is_the_same_answer_and_another_body_is_refused() {
    let rig = Rig::new();
    let path = "/api/conversations/c/prompts";
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    let body = json!({"input": "say hello", "visible": true});
    let first = rig.post(path, &body).key("k").send().await.is(202);
    assert_eq!(first.header("idempotency-replayed"), "");
    for stage in ["waiting", "answered"] {
        let same = json!({"visible": true, "input": "say hello"});
        let again = rig.post(&format!("{path}?wait=0"), &same).key("\"k\"").send().await;
        let again = again.is(if stage == "waiting" { 202 } else { 200 });
        assert_eq!(again.header("idempotency-replayed"), "true", "{stage}");
        assert_eq!(again.header("location"), first.header("location"), "{stage}");
        let plain = rig.post(path, &same).key("k").send().await.is(202);
        assert_eq!(plain.text, first.text, "{stage}");
        rig.post(path, &json!({"input": "other"}))
            .key("k")
            .send()
            .await
            .fails(422, "idempotency-key-reused");
        rig.work().await;
    }
    assert_eq!(
        rig.seen("/api/conversations/c/prompts").await["items"].as_array().unwrap().len(),
        1
    );
}

#[tokio::test]
async fn the_hosts_invocation_is_the_key_when_there_is_none() {
    let rig = Rig::new();
    let ask = || {
        let body = json!({"input": "say hello"});
        rig.post("/api/prompts", &body).header("x-azure-functions-invocationid", "inv-1").send()
    };
    let (first, again) = (ask().await.is(202), ask().await.is(202));
    assert_eq!(first.text, again.text);
    assert_eq!(again.header("idempotency-replayed"), "true");
    let other = rig.post("/api/prompts", &json!({"input": "say hello"})).send().await.is(202);
    assert_ne!(other.text, first.text);
}

#[tokio::test]
async fn a_conversation_without_an_id_takes_it_from_owner_and_key() {
    let rig = Rig::new();
    let ask = |user: &'static str| {
        rig.post("/api/conversations", &json!({})).user(user, "").key("k").send()
    };
    let mine = ask("ann").await.is(201);
    assert!(mine.header("etag").starts_with('"'));
    assert_eq!(ask("ann").await.is(201).text, mine.text);
    assert_ne!(ask("bob").await.is(201).json()["id"], mine.json()["id"]);
    rig.post("/api/conversations", &json!({"metadata": {"a": "b"}}))
        .user("ann", "")
        .key("k")
        .send()
        .await
        .fails(422, "idempotency-key-reused");
}

#[tokio::test]
async fn a_key_is_for_one_body_whatever_ids_the_bodies_name() {
    let rig = Rig::new();
    for (path, member) in [("/api/conversations", "id"), ("/api/prompts", "conversationId")] {
        let ask =
            |id: &str| rig.post(path, &json!({member: format!("{member}-{id}")})).key("k").send();
        let first = ask("a").await;
        assert!(first.status.is_success(), "{}", first.text);
        ask("b").await.fails(422, "idempotency-key-reused");
        rig.post(path, &json!({})).key("k").send().await.fails(422, "idempotency-key-reused");
        assert_eq!(ask("a").await.text, first.text);
        rig.get(&format!("/api/conversations/{member}-b")).send().await.fails(404, "not-found");
        rig.work().await;
        rig.delete(&format!("/api/conversations/{member}-a")).send().await.is(204);
        assert!(ask("b").await.status.is_success(), "the deletion must remove the key");
        rig.work().await;
    }
    // A rejected request does not store its key.
    let ask = |body: Value| rig.post("/api/conversations", &body).key("other").send();
    ask(json!({"id": "x", "agent": "nobody"})).await.fails(400, "bad-request");
    ask(json!({"id": "x"})).await.is(201);
}

#[tokio::test]
async fn an_id_is_given_once() {
    let rig = Rig::new();
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.fails(409, "conflict");
    rig.post("/api/prompts", &json!({"conversationId": "c", "input": "x"}))
        .send()
        .await
        .fails(409, "conflict");
}

#[tokio::test]
async fn while_one_prompt_has_not_ended_another_is_refused_with_its_id() {
    let rig = Rig::new();
    let first = rig.prompt("use pay with {\"amount\": 500}").await;
    let ask = |body: Value| {
        let rig = &rig;
        async move { rig.post("/api/conversations/c/prompts", &body).key("next").send().await }
    };
    for stage in ["accepted", "waiting for a person"] {
        let told = ask(json!({"input": "x"})).await.fails(409, "already-processing");
        assert_eq!(told["promptId"], first.as_str(), "{stage}");
        rig.work().await;
    }
    let approval = rig.seen("/api/conversations/c").await["pendingApprovals"][0]["id"].clone();
    let path = format!("/api/conversations/c/approvals/{}", approval.as_str().unwrap());
    rig.post(&path, &json!({"decision": "reject"})).send().await.is(200);
    rig.work().await;
    ask(json!({"input": "say again", "mode": "followUp"})).await.is(202);
    rig.work().await;
    assert_eq!(
        rig.seen("/api/conversations/c/prompts").await["items"][1]["output"][0]["content"],
        "again"
    );
}

#[tokio::test]
async fn a_lost_nudge_is_not_the_clients_business() {
    let rig = Rig::new();
    rig.queue.set_faults(QueueFaults { unavailable: 100, ..QueueFaults::default() });
    rig.post("/api/prompts", &json!({"conversationId": "c", "input": "say hello"}))
        .key("k")
        .send()
        .await
        .is(202);
    rig.queue.set_faults(QueueFaults::default());
    rig.queue.drop_queue(queue::TURNS);
    // The repeated request sends the nudge again, because its prompt is still queued.
    rig.post("/api/prompts", &json!({"conversationId": "c", "input": "say hello"}))
        .key("k")
        .send()
        .await
        .is(202);
    rig.work().await;
    assert_eq!(rig.seen("/api/conversations/c").await["state"], "idle");
    assert_eq!(rig.queue.length(queue::TURNS).await.unwrap(), 0);
}

#[tokio::test]
async fn waiting_ends_when_the_prompt_does() {
    let rig = Rig::new();
    let asked = json!({"conversationId": "c", "input": "say hello"});
    let ask = rig.post("/api/prompts?wait=60", &asked).key("k").send();
    let (answer, ()) = tokio::join!(ask, async {
        // The request is accepted first; then the worker receives the nudge.
        while rig.queue.length(queue::TURNS).await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
        rig.work().await;
    });
    assert_eq!(answer.is(200).json()["output"][0]["content"], "hello");
    rig.post("/api/prompts?wait=61", &asked).send().await.fails(400, "bad-request");
}

fn messages(count: usize) -> Vec<Value> {
    (0..count)
        .map(|number| json!({"role": "user", "content": format!("message {number}"), "timestamp": number}))
        .collect()
}

#[tokio::test]
async fn a_conversation_begins_with_hundreds_of_messages_or_not_at_all() {
    let rig = Rig::new();
    let body = json!({"id": "c", "messages": messages(500)});
    rig.post("/api/conversations", &body).key("k").send().await.is(201);
    let again = rig.post("/api/conversations", &body).key("k").send().await.is(201);
    assert_eq!(again.header("idempotency-replayed"), "true");
    let mut path = "/api/conversations/c/messages?limit=100".to_owned();
    let mut read = Vec::new();
    loop {
        let page = rig.get(&path).send().await.is(200);
        let json = page.json();
        read.extend(json["items"].as_array().unwrap().clone());
        let Some(next) =
            page.header("link").strip_prefix('<').and_then(|link| link.split('>').next())
        else {
            break;
        };
        assert!(json["continuation"].is_string());
        path = next.to_owned();
    }
    assert_eq!(read, messages(500));
    rig.run("say hello").await;
    assert_eq!(rig.seen("/api/conversations/c").await["state"], "idle");
    let too_many = json!({"messages": messages(1_001)});
    rig.post("/api/conversations", &too_many).send().await.fails(400, "bad-request");
    let wrong =
        json!({"messages": [{"role": "user", "content": "x", "timestamp": 1}, {"content": "x"}]});
    let told = rig.post("/api/conversations", &wrong).send().await.fails(400, "bad-request");
    assert_eq!(told["errors"][0]["pointer"], "/messages/1/role");
}

/// Suspends an import at its fail point for ever, as if the process were killed.
#[derive(Debug)]
struct DiesWhileImporting;

#[async_trait]
impl Probe for DiesWhileImporting {
    async fn reached(&self, boundary: &'static str) {
        if boundary == "admission.import" {
            std::future::pending::<()>().await;
        }
    }
}

#[tokio::test]
async fn an_import_that_stopped_is_seen_by_nobody_and_can_be_repeated() {
    let store = Arc::new(MemoryStore::new());
    let dying = Rig::with(Arc::clone(&store), Arc::new(DiesWhileImporting), Auth::Header);
    let body = json!({"id": "c", "messages": messages(300)});
    let import = dying.post("/api/conversations", &body).key("k").send();
    assert!(tokio::time::timeout(Duration::from_millis(50), import).await.is_err());
    let rig = dying.elsewhere();
    rig.get("/api/conversations/c").send().await.fails(404, "not-found");
    assert_eq!(rig.seen("/api/conversations").await["items"], json!([]));
    let other = json!({"id": "c", "messages": messages(2)});
    let told = rig.post("/api/conversations", &other).key("other").send().await;
    assert_eq!(told.header("retry-after"), "60");
    told.fails(409, "conflict");
    rig.post("/api/conversations", &body).key("k").send().await.is(201);
    let last = rig.seen("/api/conversations/c/entries?afterSeq=299").await;
    assert_eq!(last["items"][0]["message"]["content"], "message 299");
    assert_eq!(last["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn an_import_that_stopped_long_ago_gives_its_id_away() {
    let store = Arc::new(MemoryStore::new());
    let dying = Rig::with(Arc::clone(&store), Arc::new(DiesWhileImporting), Auth::Header);
    let body = json!({"id": "c", "messages": messages(300)});
    let import = dying.post("/api/conversations", &body).key("k").send();
    assert!(tokio::time::timeout(Duration::from_millis(50), import).await.is_err());
    let rig = dying.elsewhere();
    rig.clock.advance(Duration::from_secs(61));
    let other = json!({"id": "c", "messages": messages(2)});
    rig.post("/api/conversations", &other).key("other").send().await.is(201);
    let seen = rig.seen("/api/conversations/c/messages").await;
    assert_eq!(seen["items"], json!(messages(2)), "messages of the first import must be absent");
}

#[tokio::test]
async fn long_text_becomes_a_file_before_the_prompt_is_kept() {
    let rig = Rig::new().with_file_tools();
    let long = "x".repeat(300 * 1024);
    rig.post("/api/prompts", &json!({"conversationId": "c", "input": long})).send().await.is(202);
    rig.work().await;
    let input = rig.seen("/api/conversations/c/prompts").await["items"][0]["input"].clone();
    assert!(input[0]["text"].as_str().unwrap().contains("307200 bytes"), "{input}");
    let id = input[1]["artifactId"].as_str().unwrap();
    let file = rig.get(&format!("/api/conversations/c/artifacts/{id}")).send().await.is(200);
    assert_eq!(file.text, long);
}

#[tokio::test]
async fn a_file_block_names_an_artifact_of_the_conversation() {
    let rig = Rig::new();
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    let file = rig
        .ask(http::Method::POST, "/api/conversations/c/artifacts?name=a.txt")
        .body("hello")
        .send()
        .await;
    let id = file.is(201).json()["id"].clone();
    let block = |id: &Value| json!({"input": [{"type": "text", "text": "say seen"}, {"type": "file", "artifactId": id}]});
    let gone = format!("up_x.{}", "0".repeat(64));
    let told = rig
        .post("/api/conversations/c/prompts", &block(&json!(gone)))
        .send()
        .await
        .fails(400, "bad-request");
    assert_eq!(told["errors"][0]["pointer"], "/input/1/artifactId");
    rig.post("/api/conversations/c/prompts", &block(&id)).send().await.is(202);
    let odd = json!({"input": [{"type": "toolCall", "id": "x", "name": "y", "arguments": {}}]});
    rig.work().await;
    let told =
        rig.post("/api/conversations/c/prompts", &odd).send().await.fails(400, "bad-request");
    assert_eq!(told["errors"][0]["pointer"], "/input/0/type");
}

#[tokio::test]
async fn a_patch_changes_what_it_names_and_respects_versions() {
    let rig = Rig::new();
    let created = rig
        .post(
            "/api/conversations",
            &json!({"id": "c", "metadata": {"a": "1", "b": "2"}, "settings": {"maxRounds": 3}}),
        )
        .send()
        .await
        .is(201);
    let etag = created.header("etag").to_owned();
    let patch = json!({"metadata": {"a": null, "c": "3"}, "name": "Bills", "settings": {"thinkingLevel": "high", "model": "other"}});
    let changed = rig
        .patch("/api/conversations/c", &patch)
        .header("if-match", &etag)
        .key("p")
        .send()
        .await
        .is(200);
    let seen = changed.json();
    assert_eq!(seen["metadata"], json!({"b": "2", "c": "3"}));
    assert_eq!(
        seen["settings"],
        json!({"model": "other", "thinkingLevel": "high", "maxRounds": 3})
    );
    assert_eq!(seen["name"], "Bills");
    assert_ne!(changed.header("etag"), etag);
    assert_eq!(rig.get("/api/conversations/c").send().await.header("etag"), changed.header("etag"));
    let again = rig
        .patch("/api/conversations/c", &patch)
        .header("if-match", &etag)
        .key("p")
        .send()
        .await
        .is(200);
    assert_eq!(again.header("idempotency-replayed"), "true");
    let stale = rig
        .patch("/api/conversations/c", &json!({"name": "x"}))
        .header("if-match", &etag)
        .send()
        .await;
    stale.fails(412, "precondition-failed");
    let kinds: Vec<Value> = rig.seen("/api/conversations/c/entries").await["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["type"].clone())
        .collect();
    assert_eq!(kinds, ["model_change", "thinking_level_change", "session_info"]);
    for (bad, pointer) in [
        (json!({"agent": "x"}), "/agent"),
        (json!({"settings": {"maxRounds": "x"}}), "/settings/maxRounds"),
        (json!({"settings": {"nope": 1}}), "/settings/nope"),
        (json!({"metadata": {"a": 1}}), "/metadata/a"),
        (json!({"name": 1}), "/name"),
        (json!({"settings": {"loop": "protocol"}}), "/settings/loop"),
    ] {
        let told = rig.patch("/api/conversations/c", &bad).send().await.fails(400, "bad-request");
        assert_eq!(told["errors"][0]["pointer"], pointer, "{bad}");
    }
    let active = json!({"settings": {"activeTools": ["nope"]}});
    let patched = rig.patch("/api/conversations/c", &active).send().await.is(200).json();
    assert_eq!(patched["unknownTools"], json!(["nope"]), "unknown tools must be reported");
}
