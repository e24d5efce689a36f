//! Tests of read models: prompts, approvals, conditional reads, message pages, pages for browsers.

use http::Method;
use serde_json::{Value, json};
use turnwheel::testing::store::memory::StoreFaults;

use super::test_app::TestApp;

const CONVERSATION: &str = "/api/conversations/c";
const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");

#[tokio::test]
async fn prompt_names_its_conversation_source_model_and_approvals() {
    let app = TestApp::new();
    let id = app.run("use pay with {\"amount\": 500} then say done").await;
    let waiting = app.get_json(&format!("{CONVERSATION}/prompts/{id}")).await;
    let approval = app.get_json(CONVERSATION).await["pendingApprovals"][0].clone();
    assert_eq!((&waiting["conversationId"], &waiting["promptId"]), (&json!("c"), &json!(id)));
    assert_eq!(waiting["pendingApprovalIds"], json!([approval["id"]]));
    assert_eq!(
        (&waiting["source"], &waiting["resolvedModel"]),
        (&json!("user"), &json!("scripted"))
    );
    assert_eq!((&approval["toolName"], &approval["tool"]), (&json!("pay"), &json!("pay")));
    let output = &waiting["output"][0];
    assert_eq!(output["toolCallId"], output["id"]);
    let decide = format!("{CONVERSATION}/approvals/{}", approval["id"].as_str().unwrap());
    app.post(&decide, &json!({"decision": "approve"})).send().await.expect_status(200);
    let decided = app.get_json(&format!("{CONVERSATION}/prompts/{id}")).await;
    assert_eq!(
        (&decided["state"], &decided["pendingApprovalIds"]),
        (&json!("running"), &json!([]))
    );
    app.work().await;
    let receipt = app.get_json(&format!("{CONVERSATION}/prompts/{id}/receipt")).await;
    assert_eq!(
        (&receipt["source"], &receipt["resolvedModel"]),
        (&json!("user"), &json!("scripted"))
    );
    assert_eq!(receipt["requests"][0]["toolName"], "pay");
    let entries = app.get_json(&format!("{CONVERSATION}/entries?limit=100")).await;
    let entry = |kind: &str| {
        let items = entries["items"].as_array().unwrap().iter();
        items.clone().find(|entry| entry["type"] == kind).unwrap().clone()
    };
    assert_eq!(entry("prompt")["userId"], entry("prompt")["user"]);
    assert_eq!(entry("decision")["decision"]["approvalId"], approval["id"]);
    assert_eq!(entry("request")["request"]["toolName"], "pay");
    let past =
        app.get(&format!("{CONVERSATION}/events?follow=false")).send().await.expect_status(200);
    let events: Vec<Value> = past
        .text
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .collect();
    let event = |kind: &str| events.iter().find(|event| event["type"] == kind).unwrap();
    assert_eq!(event("prompt.created")["source"], "user");
    assert_eq!(event("prompt.completed")["resolvedModel"], "scripted");
}

#[tokio::test]
async fn queued_prompt_names_its_conversation_and_source() {
    let app = TestApp::new();
    let id = app.prompt("say hello").await;
    let seen = app.get_json(&format!("{CONVERSATION}/prompts/{id}")).await;
    assert_eq!((&seen["conversationId"], &seen["promptId"]), (&json!("c"), &json!(id)));
    assert_eq!((&seen["source"], &seen["pendingApprovalIds"]), (&json!("user"), &json!([])));
    assert_eq!(seen.get("resolvedModel"), None);
}

#[tokio::test]
async fn rejected_call_names_its_approver() {
    let app = TestApp::new();
    let id = app.run("use pay with {\"amount\": 500} then say done").await;
    let approval = app.get_json(CONVERSATION).await["pendingApprovals"][0]["id"].clone();
    let decide = format!("{CONVERSATION}/approvals/{}", approval.as_str().unwrap());
    let no = json!({"decision": "reject", "reason": "paid by hand"});
    app.post(&decide, &no).send().await.expect_status(200);
    app.work().await;
    let rejected = json!({"by": "default", "reason": "paid by hand"});
    let seen = app.get_json(&format!("{CONVERSATION}/prompts/{id}")).await;
    let result = json!({"type": "error", "error": "paid by hand", "rejected": rejected});
    assert_eq!(seen["output"][0]["result"], result);
    let past = app.get(&format!("{CONVERSATION}/events?follow=false")).send().await.text;
    let end = past.lines().find(|line| line.contains("\"tool_execution_end\"")).unwrap();
    let end: Value = serde_json::from_str(end.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(end["rejected"], rejected);
    assert!(past.find("tool_execution_start").unwrap() < past.find("tool_execution_end").unwrap());
}

#[tokio::test]
async fn unchanged_resources_are_not_sent_again() {
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let etag = app.get(CONVERSATION).send().await.expect_status(200).header("etag").to_owned();
    let same = app.get(CONVERSATION).header("if-none-match", &etag).send().await.expect_status(304);
    assert_eq!((same.header("etag"), same.text.as_str()), (etag.as_str(), ""));
    let patched = app.patch(CONVERSATION, &json!({})).send().await.expect_status(200);
    assert_eq!(patched.header("etag"), etag, "an empty patch must not change the version");
    let named =
        app.patch(CONVERSATION, &json!({"metadata": {"a": "b"}})).send().await.expect_status(200);
    assert_ne!(named.header("etag"), etag);
    app.get(CONVERSATION).header("if-none-match", &etag).send().await.expect_status(200);
    let added = app
        .request(Method::POST, "/api/conversations/c/artifacts?name=a.txt")
        .header("content-type", "text/plain")
        .body("0123456789");
    let path = added.send().await.expect_status(201).header("location").to_owned();
    let etag = app.get(&path).send().await.expect_status(200).header("etag").to_owned();
    let same = app.get(&path).header("if-none-match", &etag).send().await.expect_status(304);
    assert_eq!((same.header("etag"), same.text.as_str()), (etag.as_str(), ""));
    app.get(&path).header("if-none-match", "\"x\"").send().await.expect_status(200);
}

#[tokio::test]
async fn message_pages_continue_after_last_message() {
    let app = TestApp::new();
    for word in ["one", "two", "three"] {
        app.run(&format!("say {word}")).await;
    }
    let path = format!("{CONVERSATION}/messages");
    let whole = app.get_json(&path).await["items"].clone();
    let mut seen = Vec::new();
    let mut next = format!("{path}?limit=4");
    loop {
        let page = app.get_json(&next).await;
        seen.extend(page["items"].as_array().unwrap().clone());
        // New messages between two pages do not shift the pages.
        app.run("say more").await;
        let Some(continuation) = page["continuation"].as_str() else { break };
        if seen.len() >= 6 {
            break;
        }
        next = format!("{path}?limit=4&continuation={continuation}");
    }
    assert_eq!(seen[..6], whole.as_array().unwrap()[..6]);
}

#[tokio::test]
async fn list_hides_conversations_without_answer_on_request() {
    let app = TestApp::new();
    let user = json!({"role": "user", "content": "hi", "timestamp": 1});
    let assistant = json!({
        "role": "assistant", "content": [{"type": "text", "text": "ho"}], "api": "openai-responses",
        "provider": "openai", "model": "m", "usage": {}, "stopReason": "stop", "timestamp": 2,
    });
    for number in 0..25 {
        let messages = if number % 12 == 0 { json!([user, assistant]) } else { json!([user]) };
        let body = json!({"id": format!("c{number}"), "messages": messages});
        app.post("/api/conversations", &body).send().await.expect_status(201);
    }
    app.run("say one").await;
    let leaf = app.leaf_id().await;
    let fork = json!({"entryId": leaf, "position": "at", "conversationId": "f"});
    app.post("/api/conversations/c/fork", &fork).send().await.expect_status(201);
    let list = async |filter: &str, limit: usize| {
        let mut ids = Vec::new();
        let mut path = format!("/api/conversations?limit={limit}{filter}");
        loop {
            let page = app.get_json(&path).await;
            let items = page["items"].as_array().unwrap();
            assert!(items.len() <= limit);
            ids.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
            let Some(next) = page["continuation"].as_str() else { return ids };
            path = format!("/api/conversations?limit={limit}{filter}&continuation={next}");
        }
    };
    for limit in [1, 3, 100] {
        let mut answered = list("&hasAnswer=true", limit).await;
        let other = list("&hasAnswer=false", limit).await;
        assert_eq!((other.len(), list("", limit).await.len()), (22, 27));
        assert!(!other.iter().any(|id| answered.contains(id)));
        answered.sort();
        assert_eq!(answered, ["c", "c0", "c12", "c24", "f"]);
    }
    let first = app.get_json("/api/conversations?hasAnswer=true&limit=1").await;
    let other =
        format!("/api/conversations?continuation={}", first["continuation"].as_str().unwrap());
    app.get(&other).send().await.expect_problem(400, "bad-request");
    app.get("/api/conversations?hasAnswer=x").send().await.expect_problem(400, "bad-request");
}

#[tokio::test]
async fn change_of_name_is_an_event() {
    let app = TestApp::new();
    app.run("say one").await;
    for name in [json!(" Invoices "), json!("Invoices"), json!(null)] {
        app.patch(CONVERSATION, &json!({"name": name})).send().await.expect_status(200);
    }
    app.patch(CONVERSATION, &json!({"metadata": {"a": "b"}})).send().await.expect_status(200);
    let events = app.events_named("session_info_changed").await;
    let names: Vec<&Value> = events.iter().map(|event| &event["name"]).collect();
    assert_eq!(names, [&json!("Invoices"), &json!(null)]);
}

#[tokio::test]
async fn conversation_without_prompts_is_settled() {
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    app.get(&format!("{CONVERSATION}/events?until=settled")).send().await.expect_status(204);
}

#[tokio::test]
async fn browsers_get_pages_for_invalid_links() {
    let app = TestApp::new();
    app.run("use pay with {\"amount\": 500} then say done").await;
    let link = app.approval_link().await;
    for path in [format!("{link}x"), "/api/approvals/abc.def".to_owned()] {
        let page = app.get(&path).header(BROWSER.0, BROWSER.1).send().await.expect_status(404);
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
        assert!(page.text.contains("<h1>Not Found</h1>") && page.text.contains("new link"));
        assert_eq!(page.header("cache-control"), "no-store");
        app.get(&path).send().await.expect_problem(404, "not-found");
    }
    let post = |body: &'static str| {
        let request = app.request(Method::POST, &link).header(BROWSER.0, BROWSER.1);
        request.header("content-type", "application/x-www-form-urlencoded").body(body).send()
    };
    let twice = post("decision=approve&decision=reject").await.expect_status(400);
    assert!(twice.text.contains("`decision` more than once"), "{}", twice.text);
    assert_eq!(app.get_json(CONVERSATION).await["pendingApprovals"].as_array().unwrap().len(), 1);
    app.post(&format!("{CONVERSATION}/abort"), &json!({})).send().await.expect_status(202);
    app.work().await;
    app.delete(CONVERSATION).send().await.expect_status(204);
    let gone = app.get(&link).header(BROWSER.0, BROWSER.1).send().await.expect_status(404);
    assert!(gone.text.contains("<!doctype html>"), "{}", gone.text);
}

#[tokio::test]
async fn agent_list_shows_model_and_pause() {
    let app = TestApp::new();
    assert_eq!(app.get_json("/api/agents").await["items"][0]["model"], "normal");
    let paused = app.with_services(|services| {
        let pauses = turnwheel::testing::settings::pauses::parse("agent:clerk").unwrap();
        services.pauses = std::sync::Arc::new(pauses);
    });
    let agent = paused.get_json("/api/agents").await["items"][0].clone();
    assert_eq!(agent["available"], false);
    assert!(agent["problem"].as_str().unwrap().contains("`agent:clerk`"), "{agent}");
}

#[tokio::test]
async fn health_fails_when_store_rejects_writes() {
    let app = TestApp::new();
    let faults = StoreFaults { unavailable_before: 1.0, ..StoreFaults::default() };
    app.store.set_faults(faults);
    let failed = app.get("/api/health").send().await.expect_status(503);
    assert_eq!(failed.json()["status"], "unavailable");
    app.store.set_faults(StoreFaults::default());
    app.clock.advance(std::time::Duration::from_secs(29));
    app.get("/api/health").send().await.expect_status(503);
    app.clock.advance(std::time::Duration::from_secs(2));
    app.get("/api/health").send().await.expect_status(200);
    // The second check replaces the document of the first one.
    app.clock.advance(std::time::Duration::from_secs(31));
    app.get("/api/health").send().await.expect_status(200);
}
