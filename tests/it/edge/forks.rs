//! Tests of forks: copies of a conversation up to an entry.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use http::Method;
use serde_json::{Value, json};
use turnwheel::extensions::{
    Extension, ForkPosition, HookContext, HookError, Observation, PendingFork, SessionDecision,
};
use turnwheel::testing::fail_points::{FailPoints, NoFailPoints};
use turnwheel::testing::settings::links::Auth;
use turnwheel::testing::store::memory::MemoryStore;

use super::test_app::{ApiResponse, TestApp};

const FORK: &str = "/api/conversations/c/fork";

async fn entries(app: &TestApp, id: &str) -> Vec<Value> {
    let page = app.get_json(&format!("/api/conversations/{id}/entries?limit=100")).await;
    page["items"].as_array().unwrap().clone()
}

/// Ids of the user messages of conversation `c`.
async fn user_messages(app: &TestApp) -> Vec<String> {
    let entries = entries(app, "c").await;
    let of_user = entries.iter().filter(|entry| entry["message"]["role"] == "user");
    of_user.map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
}

async fn fork(app: &TestApp, entry: &str, position: &str, id: &str) -> ApiResponse {
    let body = json!({"entryId": entry, "position": position, "conversationId": id});
    app.post(FORK, &body).key(id).send().await
}

async fn texts(app: &TestApp, id: &str) -> Vec<Value> {
    let page = app.get_json(&format!("/api/conversations/{id}/messages?limit=100")).await;
    let items = page["items"].as_array().unwrap().clone();
    let text = |message: &Value| {
        let content = &message["content"];
        if content.is_string() { content.clone() } else { content[0]["text"].clone() }
    };
    items.iter().map(text).collect()
}

#[tokio::test]
async fn fork_before_message_copies_the_path_and_returns_text() {
    let app = TestApp::new();
    app.run("say one").await;
    app.run("say two").await;
    app.patch("/api/conversations/c", &json!({"metadata": {"a": "b"}})).send().await;
    let messages = user_messages(&app).await;
    let before = entries(&app, "c").await;
    let made = fork(&app, &messages[1], "before", "f").await.expect_status(201);
    assert_eq!(made.header("location"), "/api/conversations/f");
    let made = made.json();
    assert_eq!(made["text"], "say two");
    let copies = entries(&app, "f").await;
    let last = copies.last().unwrap();
    assert_eq!(copies, before[..copies.len()], "ids and numbers stay");
    assert_eq!(last["type"], "prompt_end");
    let conversation = app.get_json("/api/conversations/f").await;
    assert_eq!(conversation, made["conversation"]);
    assert_eq!(conversation["parent"], json!({"conversationId": "c", "entryId": last["id"]}));
    assert_eq!(conversation["usage"]["totalTokens"], 0, "the copy costs nothing");
    assert_eq!(conversation["metadata"], json!({"a": "b"}));
    assert_eq!(conversation["prompts"].as_array().unwrap().len(), 1);
    let prompt = conversation["prompts"][0]["id"].as_str().unwrap();
    let prompt = app.get_json(&format!("/api/conversations/f/prompts/{prompt}")).await;
    assert_eq!(
        (&prompt["state"], &prompt["output"][0]["content"]),
        (&json!("completed"), &json!("one"))
    );
    app.post("/api/conversations/f/prompts", &json!({"input": "say three"})).send().await;
    app.work().await;
    assert_eq!(texts(&app, "f").await, ["say one", "one", "say three", "three"]);
    assert_eq!(texts(&app, "c").await, ["say one", "one", "say two", "two"]);
    assert_eq!(entries(&app, "c").await, before);
    let first = fork(&app, &messages[0], "before", "empty").await.expect_status(201).json();
    assert_eq!(
        (&first["text"], &first["conversation"]["leafId"]),
        (&json!("say one"), &json!(null))
    );
    assert_eq!(first["conversation"]["parent"], json!({"conversationId": "c"}));
}

#[tokio::test]
async fn fork_at_entry_ends_the_prompt_that_it_cuts() {
    let app = TestApp::new();
    app.run("use pay with {\"amount\": 5} then say done").await;
    let call = entries(&app, "c").await;
    let call = call.iter().find(|entry| entry["message"]["role"] == "assistant").unwrap();
    let id = call["id"].as_str().unwrap();
    let made = fork(&app, id, "at", "f").await.expect_status(201).json();
    assert!(made.get("text").is_none(), "{made}");
    let copies = entries(&app, "f").await;
    let [.., copied, end] = copies.as_slice() else { panic!("{copies:?}") };
    assert_eq!(copied, call);
    assert_eq!((&end["type"], &end["state"]), (&json!("prompt_end"), &json!("aborted")));
    let prompts = app.get_json("/api/conversations/f/prompts").await;
    assert_eq!(prompts["items"][0]["state"], "aborted");
    app.post("/api/conversations/f/prompts", &json!({"input": "say next"})).send().await;
    app.work().await;
    assert_eq!(texts(&app, "f").await.last().unwrap(), "next");
    assert_eq!(app.pay.payments.lock().unwrap().len(), 1, "a copied call does not run again");
}

#[tokio::test]
async fn fork_of_fork_renumbers_nothing_and_keeps_ids_apart() {
    let app = TestApp::new();
    app.run("say one").await;
    let mut source = "c".to_owned();
    for round in 0..5 {
        let leaf = app.get_json(&format!("/api/conversations/{source}")).await["leafId"].clone();
        let next = format!("f{round}");
        let body = json!({"entryId": leaf, "position": "at", "conversationId": next});
        app.post(&format!("/api/conversations/{source}/fork"), &body)
            .send()
            .await
            .expect_status(201);
        app.post(&format!("/api/conversations/{next}/prompts"), &json!({"input": "say more"}))
            .send()
            .await;
        app.work().await;
        source = next;
    }
    let all = entries(&app, &source).await;
    let mut ids: Vec<&str> = all.iter().map(|entry| entry["id"].as_str().unwrap()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
    assert_eq!(texts(&app, &source).await.len(), 12);
}

#[tokio::test]
async fn impossible_forks_are_refused() {
    let app = TestApp::new();
    app.run("say one").await;
    let message = user_messages(&app).await.remove(0);
    let leaf = app.get_json("/api/conversations/c").await["leafId"].as_str().unwrap().to_owned();
    for (entry, position) in [("nothing1", "at"), ("nothing1", "before"), (&*leaf, "before")] {
        let problem = fork(&app, entry, position, "f").await.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], "/entryId");
        assert_eq!(problem["errors"][0]["detail"], "Invalid entry ID for forking");
    }
    fork(&app, &message, "beside", "f").await.expect_problem(400, "bad-request");
    fork(&app, &message, "at", "a/b").await.expect_problem(400, "bad-request");
    fork(&app, &message, "at", "c").await.expect_problem(409, "conflict");
    let body = json!({"entryId": message});
    app.post(FORK, &body).user("eve", "").send().await.expect_problem(404, "not-found");
    let operator = app.post(FORK, &body).user("ops", "Turnwheel.Operator");
    operator.send().await.expect_problem(403, "forbidden");
    let made = app.post(FORK, &body).key("k").send().await.expect_status(201);
    let again = app.post(FORK, &body).key("k").send().await.expect_status(201);
    assert_eq!((again.header("idempotency-replayed"), again.json()), ("true", made.json()));
    let other = json!({"entryId": leaf, "position": "at"});
    app.post(FORK, &other).key("k").send().await.expect_problem(422, "idempotency-key-reused");
    app.delete("/api/conversations/c").send().await.expect_status(204);
    app.post(FORK, &body).send().await.expect_problem(404, "not-found");
    let list = app.get_json("/api/conversations").await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "only the one fork exists");
}

async fn run_with_file(app: &TestApp) -> String {
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let mut files = Vec::new();
    for name in ["a.txt", "b.txt"] {
        let path = format!("/api/conversations/c/artifacts?name={name}");
        let added = app.request(Method::POST, &path).header("content-type", "text/plain");
        let added = added.body(format!("text of {name}")).send().await.expect_status(201).json();
        files.push(json!({"type": "file", "artifactId": added["id"]}));
    }
    let text = json!({"type": "text", "text": "say seen"});
    let input = json!({"input": [text, files[0], files[1]]});
    app.post("/api/conversations/c/prompts", &input).send().await.expect_status(202);
    app.work().await;
    let unnamed = app.request(Method::POST, "/api/conversations/c/artifacts?name=c.txt");
    unnamed.header("content-type", "text/plain").body("unnamed").send().await.expect_status(201);
    app.get_json("/api/conversations/c").await["leafId"].as_str().unwrap().to_owned()
}

async fn artifact_names(app: &TestApp, id: &str) -> Vec<String> {
    let list = app.get_json(&format!("/api/conversations/{id}/artifacts")).await;
    let items = list["items"].as_array().unwrap();
    let mut names: Vec<String> =
        items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn fork_copies_named_artifacts() {
    let app = TestApp::new().with_file_tools();
    let leaf = run_with_file(&app).await;
    fork(&app, &leaf, "at", "f").await.expect_status(201);
    app.delete("/api/conversations/c").send().await.expect_status(204);
    assert_eq!(artifact_names(&app, "f").await, ["a.txt", "b.txt"]);
    let list = app.get_json("/api/conversations/f/artifacts").await;
    let id = list["items"][0]["id"].as_str().unwrap();
    let path = format!("/api/conversations/f/artifacts/{id}");
    assert!(app.get(&path).send().await.expect_status(200).text.starts_with("text of "));
}

#[tokio::test]
async fn fork_that_names_too_many_artifacts_is_refused() {
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    for first in [0, 501] {
        let ids = (first..first + 501).map(|number| format!("effect.{number:064x}"));
        let details: Vec<String> = ids.collect();
        let content = json!({"customType": "list", "content": "files", "details": details});
        app.post("/api/conversations/c/messages", &content).send().await.expect_status(202);
    }
    app.work().await;
    let leaf = app.get_json("/api/conversations/c").await["leafId"].as_str().unwrap().to_owned();
    let problem = fork(&app, &leaf, "at", "f").await.expect_problem(413, "payload-too-large");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.starts_with("The entries to copy name more than 1000 artifacts."), "{detail}");
    app.get("/api/conversations/f").send().await.expect_status(404);
}

/// Suspends a fork at a fail point for ever, as if the process were killed.
#[derive(Debug)]
struct ForkCrash {
    at: &'static str,
    /// Hits before that one.
    passed: Mutex<u32>,
}

#[async_trait]
impl FailPoints for ForkCrash {
    async fn hit(&self, name: &'static str) {
        if name != self.at {
            return;
        }
        let is_reached = {
            let mut passed = self.passed.lock().unwrap();
            let is_reached = *passed == 0;
            *passed = passed.saturating_sub(1);
            is_reached
        };
        if is_reached {
            std::future::pending::<()>().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn killed_fork_is_invisible_and_repeatable() {
    let cases = [("fork.begun", 0), ("fork.artifact", 0), ("fork.artifact", 1), ("fork.commit", 0)];
    for (at, passed) in cases {
        let crash = ForkCrash { at, passed: Mutex::new(passed) };
        let store = Arc::new(MemoryStore::new());
        let app = TestApp::with(store, Arc::new(crash), Auth::Header).with_file_tools();
        let leaf = run_with_file(&app).await;
        let killed = fork(&app, &leaf, "at", "f");
        assert!(tokio::time::timeout(Duration::from_millis(50), killed).await.is_err(), "{at}");
        let app = app.with_services(|services| services.fail_points = Arc::new(NoFailPoints));
        app.get("/api/conversations/f").send().await.expect_problem(404, "not-found");
        let other = json!({"entryId": leaf, "position": "at", "conversationId": "f"});
        let other = app.post(FORK, &other).key("other").send().await;
        assert_eq!(other.header("retry-after"), "60", "{at}");
        fork(&app, &leaf, "at", "f").await.expect_status(201);
        assert_eq!(artifact_names(&app, "f").await, ["a.txt", "b.txt"], "{at}");
        assert_eq!(entries(&app, "f").await, entries(&app, "c").await, "{at}");
    }
}

#[tokio::test(start_paused = true)]
async fn abandoned_fork_is_taken_over_with_its_artifacts() {
    let crash = ForkCrash { at: "fork.commit", passed: Mutex::new(0) };
    let store = Arc::new(MemoryStore::new());
    let app = TestApp::with(store, Arc::new(crash), Auth::Header).with_file_tools();
    let leaf = run_with_file(&app).await;
    let message = user_messages(&app).await.remove(0);
    let killed = fork(&app, &leaf, "at", "f");
    assert!(tokio::time::timeout(Duration::from_millis(50), killed).await.is_err());
    let app = app.with_services(|services| services.fail_points = Arc::new(NoFailPoints));
    app.clock.advance(Duration::from_secs(61));
    let body = json!({"entryId": message, "conversationId": "f"});
    app.post(FORK, &body).key("other").send().await.expect_status(201);
    assert_eq!(artifact_names(&app, "f").await, [""; 0], "those of the first request are gone");
    assert_eq!(entries(&app, "f").await, [json!(null); 0]);
}

/// Cancels forks of the conversation `c` before a message, and records events.
#[derive(Debug, Clone, Default)]
struct Guard(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl Extension for Guard {
    fn name(&self) -> &'static str {
        "guard"
    }

    async fn before_session_fork(
        &self,
        cx: &HookContext,
        fork: &PendingFork<'_>,
    ) -> Result<SessionDecision, HookError> {
        let line = format!(
            "{} {} {:?}",
            cx.hook().name(),
            cx.conversation().conversation_id,
            fork.position
        );
        self.0.lock().unwrap().push(line);
        let is_cancelled = fork.position == ForkPosition::Before;
        Ok(if is_cancelled { SessionDecision::Cancel } else { SessionDecision::Continue })
    }

    async fn observe(&self, cx: &HookContext, fact: &Observation) -> Result<(), HookError> {
        let text = if let Observation::SessionStart { reason } = fact {
            format!("{reason:?}")
        } else if let Observation::SessionFork { previous } = fact {
            format!("of {previous}")
        } else {
            return Ok(());
        };
        let line = format!("{} {} {text}", cx.hook().name(), cx.conversation().conversation_id);
        self.0.lock().unwrap().push(line);
        Ok(())
    }
}

#[tokio::test]
async fn extension_cancels_and_observes_forks() {
    let guard = Guard::default();
    let added = guard.clone();
    let app = TestApp::new().with_services(|services| services.extensions.push(Arc::new(added)));
    app.run("say one").await;
    let message = user_messages(&app).await.remove(0);
    let cancelled = fork(&app, &message, "before", "f").await.expect_status(200).json();
    assert_eq!(cancelled, json!({"cancelled": true}));
    app.get("/api/conversations/f").send().await.expect_problem(404, "not-found");
    fork(&app, &message, "at", "f").await.expect_status(201);
    assert_eq!(
        *guard.0.lock().unwrap(),
        [
            "session_start c New",
            "session_before_fork c Before",
            "session_before_fork c At",
            "session_start f Fork",
            "session_fork f of c"
        ]
    );
}

/// Programs that write session files may end with an empty name, which counts for nothing.
#[tokio::test]
async fn fork_of_imported_conversation_keeps_its_name() {
    let app = TestApp::new();
    let at = "2026-01-01T00:00:00Z";
    let mut lines = vec![
        json!({"type": "session", "version": 3, "id": "s", "timestamp": at, "cwd": "/w"}),
        json!({"type": "message", "id": "a1", "parentId": null, "timestamp": at,
            "message": {"role": "user", "content": "u", "timestamp": 1}}),
    ];
    for (parent, id, name) in [("a1", "a2", " A "), ("a2", "a3", ""), ("a3", "a4", " ")] {
        lines.push(json!({"type": "session_info", "id": id, "parentId": parent, "timestamp": at, "name": name}));
    }
    let file = lines.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    let import = app.request(Method::POST, "/api/conversations/import?conversationId=c");
    let import = import.header("content-type", "application/x-ndjson").body(file);
    import.send().await.expect_status(201);
    assert_eq!(app.get_json("/api/conversations/c").await["name"], "A");
    let newest = async || {
        let entries = entries(&app, "c").await;
        entries.last().unwrap()["id"].as_str().unwrap().to_owned()
    };
    let forked = fork(&app, &newest().await, "at", "f").await.expect_status(201).json();
    assert_eq!(forked["conversation"]["name"], "A");
    // A name that a client removed stays removed.
    app.patch("/api/conversations/c", &json!({"name": null})).send().await.expect_status(200);
    let forked = fork(&app, &newest().await, "at", "g").await.expect_status(201).json();
    assert!(forked["conversation"].get("name").is_none_or(Value::is_null), "{forked}");
}
