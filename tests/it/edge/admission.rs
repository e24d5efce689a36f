//! Tests of admission: an accepted request is stored exactly once.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use turnwheel::testing::queue;
use turnwheel::testing::queue::{Queue as _, QueueFaults};
use turnwheel::testing::settings::links::Auth;
use turnwheel::testing::store::memory::MemoryStore;

use super::test_app::TestApp;
use super::waiting_clients::RequestPause;

#[tokio::test]
async fn prompt_is_accepted_and_completed() {
    let app = TestApp::new();
    let response = app
        .post("/api/prompts", &json!({"input": "say hello"}))
        .key("k1")
        .send()
        .await
        .expect_status(202);
    let accepted = response.json();
    assert_eq!(accepted["disposition"], "started");
    let location = response.header("location").to_owned();
    assert_eq!(
        location,
        format!(
            "/api/conversations/{}/prompts/{}",
            accepted["conversationId"].as_str().unwrap(),
            accepted["promptId"].as_str().unwrap()
        )
    );
    let before = app.get_json(&location).await;
    assert_eq!((&before["state"], &before["input"]), (&json!("running"), &json!("say hello")));
    let conversation =
        format!("/api/conversations/{}", accepted["conversationId"].as_str().unwrap());
    assert_eq!(
        app.get_json(&conversation).await["state"],
        "running",
        "the state must be `running` before the worker reads the inbox"
    );
    app.work().await;
    let after = app.get_json(&location).await;
    assert_eq!((&after["state"], &after["stopReason"]), (&json!("completed"), &json!("end")));
    assert_eq!(after["output"][0]["content"], "hello");
    let seen = app.get_json(&conversation).await;
    assert_eq!(
        (&seen["state"], &seen["prompts"][0]["state"]),
        (&json!("idle"), &json!("completed"))
    );
    let messages = app.get_json(&format!("{conversation}/messages")).await;
    assert_eq!(messages["items"][0]["role"], "user");
    assert_eq!(messages["items"][1]["role"], "assistant");
    let entries = app.get_json(&format!("{conversation}/entries?afterSeq=1")).await;
    assert_eq!(entries["items"][0]["seq"], 2);
    assert!(entries["items"][0]["id"].is_string() && entries["items"][0].get("entryId").is_none());
}

#[tokio::test]
async fn repeated_idempotency_key_returns_same_response() {
    let app = TestApp::new();
    let path = "/api/conversations/c/prompts";
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let body = json!({"input": "say hello", "visible": true});
    let first = app.post(path, &body).key("k").send().await.expect_status(202);
    assert_eq!(first.header("idempotency-replayed"), "");
    for stage in ["waiting", "answered"] {
        let same = json!({"visible": true, "input": "say hello"});
        let again = app.post(&format!("{path}?wait=0"), &same).key("\"k\"").send().await;
        let again = again.expect_status(if stage == "waiting" { 202 } else { 200 });
        assert_eq!(again.header("idempotency-replayed"), "true", "{stage}");
        assert_eq!(again.header("location"), first.header("location"), "{stage}");
        let plain = app.post(path, &same).key("k").send().await.expect_status(202);
        assert_eq!(plain.text, first.text, "{stage}");
        app.post(path, &json!({"input": "other"}))
            .key("k")
            .send()
            .await
            .expect_problem(422, "idempotency-key-reused");
        app.work().await;
    }
    assert_eq!(
        app.get_json("/api/conversations/c/prompts").await["items"].as_array().unwrap().len(),
        1
    );
}

/// A repetition may reach a newer version, which must find the input of the first request.
#[tokio::test]
async fn input_id_of_a_key_never_changes() {
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let message = json!({"customType": "note", "content": "x"});
    let sent = app.post("/api/conversations/c/messages", &message).key("k").send().await;
    assert_eq!(sent.expect_status(202).json()["inputId"], "in_66277eff17205b86ed81014c");
}

#[tokio::test]
async fn host_invocation_id_is_default_idempotency_key() {
    let app = TestApp::new();
    let send = || {
        let body = json!({"input": "say hello"});
        app.post("/api/prompts", &body).header("x-azure-functions-invocationid", "inv-1").send()
    };
    let (first, again) = (send().await.expect_status(202), send().await.expect_status(202));
    assert_eq!(first.text, again.text);
    assert_eq!(again.header("idempotency-replayed"), "true");
    let other =
        app.post("/api/prompts", &json!({"input": "say hello"})).send().await.expect_status(202);
    assert_ne!(other.text, first.text);
}

#[tokio::test]
async fn conversation_id_derives_from_owner_and_key() {
    let app = TestApp::new();
    let send = |user: &'static str| {
        app.post("/api/conversations", &json!({})).user(user, "").key("k").send()
    };
    let mine = send("ann").await.expect_status(201);
    assert!(mine.header("etag").starts_with('"'));
    assert_eq!(send("ann").await.expect_status(201).text, mine.text);
    assert_ne!(send("bob").await.expect_status(201).json()["id"], mine.json()["id"]);
    app.post("/api/conversations", &json!({"metadata": {"a": "b"}}))
        .user("ann", "")
        .key("k")
        .send()
        .await
        .expect_problem(422, "idempotency-key-reused");
}

#[tokio::test]
async fn idempotency_key_is_bound_to_one_body() {
    let app = TestApp::new();
    for (path, member, rest) in [
        ("/api/conversations", "id", json!({})),
        ("/api/prompts", "conversationId", json!({"input": "say x"})),
    ] {
        let send = |id: &str| {
            let mut body = rest.clone();
            body[member] = json!(format!("{member}-{id}"));
            app.post(path, &body).key("k").send()
        };
        let first = send("a").await;
        assert!(first.status.is_success(), "{}", first.text);
        send("b").await.expect_problem(422, "idempotency-key-reused");
        app.post(path, &rest).key("k").send().await.expect_problem(422, "idempotency-key-reused");
        assert_eq!(send("a").await.text, first.text);
        app.get(&format!("/api/conversations/{member}-b"))
            .send()
            .await
            .expect_problem(404, "not-found");
        app.work().await;
        app.delete(&format!("/api/conversations/{member}-a")).send().await.expect_status(204);
        assert!(send("b").await.status.is_success(), "the deletion must remove the key");
        app.work().await;
    }
    // A rejected request does not store its key.
    let send = |body: Value| app.post("/api/conversations", &body).key("other").send();
    send(json!({"id": "x", "agent": "nobody"})).await.expect_problem(400, "bad-request");
    send(json!({"id": "x"})).await.expect_status(201);
}

#[tokio::test]
async fn conversation_id_is_unique() {
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    app.post("/api/conversations", &json!({"id": "c"}))
        .send()
        .await
        .expect_problem(409, "conflict");
    app.post("/api/prompts", &json!({"conversationId": "c", "input": "x"}))
        .send()
        .await
        .expect_problem(409, "conflict");
}

#[tokio::test]
async fn second_prompt_conflicts_with_unfinished_prompt() {
    let app = TestApp::new();
    let first = app.prompt("use pay with {\"amount\": 500}").await;
    let send = |body: Value| {
        let app = &app;
        async move { app.post("/api/conversations/c/prompts", &body).key("next").send().await }
    };
    for stage in ["accepted", "waiting for a person"] {
        let problem = send(json!({"input": "x"})).await.expect_problem(409, "already-processing");
        assert_eq!(problem["promptId"], first.as_str(), "{stage}");
        app.work().await;
    }
    let approval = app.get_json("/api/conversations/c").await["pendingApprovals"][0]["id"].clone();
    let path = format!("/api/conversations/c/approvals/{}", approval.as_str().unwrap());
    app.post(&path, &json!({"decision": "reject"})).send().await.expect_status(200);
    app.work().await;
    send(json!({"input": "say again", "mode": "followUp"})).await.expect_status(202);
    app.work().await;
    assert_eq!(
        app.get_json("/api/conversations/c/prompts").await["items"][1]["output"][0]["content"],
        "again"
    );
}

#[tokio::test]
async fn lost_nudge_does_not_fail_the_request() {
    let app = TestApp::new();
    app.queue.set_faults(QueueFaults { unavailable: 100, ..QueueFaults::default() });
    app.post("/api/prompts", &json!({"conversationId": "c", "input": "say hello"}))
        .key("k")
        .send()
        .await
        .expect_status(202);
    app.queue.set_faults(QueueFaults::default());
    app.queue.drop_queue(queue::TURNS);
    // The repeated request sends the nudge again, because its prompt is still queued.
    app.post("/api/prompts", &json!({"conversationId": "c", "input": "say hello"}))
        .key("k")
        .send()
        .await
        .expect_status(202);
    app.work().await;
    assert_eq!(app.get_json("/api/conversations/c").await["state"], "idle");
    assert_eq!(app.queue.length(queue::TURNS).await.unwrap(), 0);
}

#[tokio::test]
async fn wait_ends_with_the_prompt() {
    let app = TestApp::new();
    let body = json!({"conversationId": "c", "input": "say hello"});
    let request = app.post("/api/prompts?wait=60", &body).key("k").send();
    let (response, ()) = tokio::join!(request, async {
        // The request is accepted first; then the worker receives the nudge.
        while app.queue.length(queue::TURNS).await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
        app.work().await;
    });
    assert_eq!(response.expect_status(200).json()["output"][0]["content"], "hello");
    app.post("/api/prompts?wait=61", &body).send().await.expect_problem(400, "bad-request");
}

fn messages(count: usize) -> Vec<Value> {
    (0..count)
        .map(|number| json!({"role": "user", "content": format!("message {number}"), "timestamp": number}))
        .collect()
}

#[tokio::test]
async fn message_import_is_complete_or_rejected() {
    let app = TestApp::new();
    let body = json!({"id": "c", "messages": messages(500)});
    app.post("/api/conversations", &body).key("k").send().await.expect_status(201);
    let again = app.post("/api/conversations", &body).key("k").send().await.expect_status(201);
    assert_eq!(again.header("idempotency-replayed"), "true");
    let mut path = "/api/conversations/c/messages?limit=100".to_owned();
    let mut read = Vec::new();
    loop {
        let page = app.get(&path).send().await.expect_status(200);
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
    app.run("say hello").await;
    assert_eq!(app.get_json("/api/conversations/c").await["state"], "idle");
    let too_many = json!({"messages": messages(1_001)});
    app.post("/api/conversations", &too_many).send().await.expect_problem(400, "bad-request");
    let wrong =
        json!({"messages": [{"role": "user", "content": "x", "timestamp": 1}, {"content": "x"}]});
    let problem =
        app.post("/api/conversations", &wrong).send().await.expect_problem(400, "bad-request");
    assert_eq!(problem["errors"][0]["pointer"], "/messages/1/role");
}

#[tokio::test(start_paused = true)]
async fn interrupted_import_is_invisible_and_repeatable() {
    let store = Arc::new(MemoryStore::new());
    let crashed =
        TestApp::with(Arc::clone(&store), RequestPause::new("admission.import"), Auth::Header);
    let body = json!({"id": "c", "messages": messages(300)});
    let import = crashed.post("/api/conversations", &body).key("k").send();
    assert!(tokio::time::timeout(Duration::from_millis(50), import).await.is_err());
    let app = crashed.second_instance();
    app.get("/api/conversations/c").send().await.expect_problem(404, "not-found");
    assert_eq!(app.get_json("/api/conversations").await["items"], json!([]));
    let other = json!({"id": "c", "messages": messages(2)});
    let response = app.post("/api/conversations", &other).key("other").send().await;
    assert_eq!(response.header("retry-after"), "60");
    response.expect_problem(409, "conflict");
    app.post("/api/conversations", &body).key("k").send().await.expect_status(201);
    let last = app.get_json("/api/conversations/c/entries?afterSeq=299").await;
    assert_eq!(last["items"][0]["message"]["content"], "message 299");
    assert_eq!(last["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn abandoned_import_releases_its_id() {
    let store = Arc::new(MemoryStore::new());
    let crashed =
        TestApp::with(Arc::clone(&store), RequestPause::new("admission.import"), Auth::Header);
    let body = json!({"id": "c", "messages": messages(300)});
    let import = crashed.post("/api/conversations", &body).key("k").send();
    assert!(tokio::time::timeout(Duration::from_millis(50), import).await.is_err());
    let app = crashed.second_instance();
    app.clock.advance(Duration::from_secs(61));
    let other = json!({"id": "c", "messages": messages(2)});
    app.post("/api/conversations", &other).key("other").send().await.expect_status(201);
    let seen = app.get_json("/api/conversations/c/messages").await;
    assert_eq!(seen["items"], json!(messages(2)), "messages of the first import must be absent");
}

#[tokio::test]
async fn long_prompt_text_is_spilled_to_a_file() {
    let app = TestApp::new().with_file_tools();
    let long = "x".repeat(300 * 1024);
    app.post("/api/prompts", &json!({"conversationId": "c", "input": long}))
        .send()
        .await
        .expect_status(202);
    app.work().await;
    let input = app.get_json("/api/conversations/c/prompts").await["items"][0]["input"].clone();
    assert!(input[0]["text"].as_str().unwrap().contains("307200 bytes"), "{input}");
    let id = input[1]["artifactId"].as_str().unwrap();
    let file =
        app.get(&format!("/api/conversations/c/artifacts/{id}")).send().await.expect_status(200);
    assert_eq!(file.text, long);
}

#[tokio::test]
async fn file_block_must_name_an_artifact() {
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let file = app
        .request(http::Method::POST, "/api/conversations/c/artifacts?name=a.txt")
        .body("hello")
        .send()
        .await;
    let id = file.expect_status(201).json()["id"].clone();
    let block = |id: &Value| json!({"input": [{"type": "text", "text": "say seen"}, {"type": "file", "artifactId": id}]});
    let gone = format!("up_x.{}", "0".repeat(64));
    let problem = app
        .post("/api/conversations/c/prompts", &block(&json!(gone)))
        .send()
        .await
        .expect_problem(400, "bad-request");
    assert_eq!(problem["errors"][0]["pointer"], "/input/1/artifactId");
    app.post("/api/conversations/c/prompts", &block(&id)).send().await.expect_status(202);
    let odd = json!({"input": [{"type": "toolCall", "id": "x", "name": "y", "arguments": {}}]});
    app.work().await;
    let problem = app
        .post("/api/conversations/c/prompts", &odd)
        .send()
        .await
        .expect_problem(400, "bad-request");
    assert_eq!(problem["errors"][0]["pointer"], "/input/0/type");
}

#[tokio::test]
async fn patch_changes_named_members_and_checks_version() {
    let app = TestApp::new();
    let created = app
        .post(
            "/api/conversations",
            &json!({"id": "c", "metadata": {"a": "1", "b": "2"}, "settings": {"maxRounds": 3}}),
        )
        .send()
        .await
        .expect_status(201);
    let etag = created.header("etag").to_owned();
    let patch = json!({"metadata": {"a": null, "c": "3"}, "name": "Bills", "settings": {"thinkingLevel": "high", "model": "other"}});
    let changed = app
        .patch("/api/conversations/c", &patch)
        .header("if-match", &etag)
        .key("p")
        .send()
        .await
        .expect_status(200);
    let seen = changed.json();
    assert_eq!(seen["metadata"], json!({"b": "2", "c": "3"}));
    assert_eq!(
        seen["settings"],
        json!({"model": "other", "thinkingLevel": "high", "maxRounds": 3})
    );
    assert_eq!(seen["name"], "Bills");
    assert_ne!(changed.header("etag"), etag);
    assert_eq!(app.get("/api/conversations/c").send().await.header("etag"), changed.header("etag"));
    let again = app
        .patch("/api/conversations/c", &patch)
        .header("if-match", &etag)
        .key("p")
        .send()
        .await
        .expect_status(200);
    assert_eq!(again.header("idempotency-replayed"), "true");
    let stale = app
        .patch("/api/conversations/c", &json!({"name": "x"}))
        .header("if-match", &etag)
        .send()
        .await;
    stale.expect_problem(412, "precondition-failed");
    let kinds: Vec<Value> = app.get_json("/api/conversations/c/entries").await["items"]
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
        (json!({"settings": {"loop": "endless"}}), "/settings/loop"),
    ] {
        let problem =
            app.patch("/api/conversations/c", &bad).send().await.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{bad}");
    }
    let active = json!({"settings": {"activeTools": ["nope"]}});
    let patched = app.patch("/api/conversations/c", &active).send().await.expect_status(200).json();
    assert_eq!(patched["unknownTools"], json!(["nope"]), "unknown tools must be reported");
}
