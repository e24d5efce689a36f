//! Tests of read models: prompts, approvals, conditional reads, message pages, pages for browsers.

use http::Method;
use serde_json::{Value, json};
use turnwheel::store::memory::Faults;

use super::rig::Rig;

const CONVERSATION: &str = "/api/conversations/c";
const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");

#[tokio::test]
async fn prompt_names_its_conversation_source_model_and_approvals() {
    let rig = Rig::new();
    let id = rig.run("use pay with {\"amount\": 500} then say done").await;
    let waiting = rig.seen(&format!("{CONVERSATION}/prompts/{id}")).await;
    let approval = rig.seen(CONVERSATION).await["pendingApprovals"][0].clone();
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
    rig.post(&decide, &json!({"decision": "approve"})).send().await.is(200);
    let decided = rig.seen(&format!("{CONVERSATION}/prompts/{id}")).await;
    assert_eq!(
        (&decided["state"], &decided["pendingApprovalIds"]),
        (&json!("running"), &json!([]))
    );
    rig.work().await;
    let receipt = rig.seen(&format!("{CONVERSATION}/prompts/{id}/receipt")).await;
    assert_eq!(
        (&receipt["source"], &receipt["resolvedModel"]),
        (&json!("user"), &json!("scripted"))
    );
    assert_eq!(receipt["requests"][0]["toolName"], "pay");
    let entries = rig.seen(&format!("{CONVERSATION}/entries?limit=100")).await;
    let entry = |kind: &str| {
        let items = entries["items"].as_array().unwrap().iter();
        items.clone().find(|entry| entry["type"] == kind).unwrap().clone()
    };
    assert_eq!(entry("prompt")["userId"], entry("prompt")["user"]);
    assert_eq!(entry("decision")["decision"]["approvalId"], approval["id"]);
    assert_eq!(entry("request")["request"]["toolName"], "pay");
    let past = rig.get(&format!("{CONVERSATION}/events?follow=false")).send().await.is(200);
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
    let rig = Rig::new();
    let id = rig.prompt("say hello").await;
    let seen = rig.seen(&format!("{CONVERSATION}/prompts/{id}")).await;
    assert_eq!((&seen["conversationId"], &seen["promptId"]), (&json!("c"), &json!(id)));
    assert_eq!((&seen["source"], &seen["pendingApprovalIds"]), (&json!("user"), &json!([])));
    assert_eq!(seen.get("resolvedModel"), None);
}

#[tokio::test]
async fn rejected_call_shows_who_rejected_it() {
    let rig = Rig::new();
    let id = rig.run("use pay with {\"amount\": 500} then say done").await;
    let approval = rig.seen(CONVERSATION).await["pendingApprovals"][0]["id"].clone();
    let decide = format!("{CONVERSATION}/approvals/{}", approval.as_str().unwrap());
    let no = json!({"decision": "reject", "reason": "paid by hand"});
    rig.post(&decide, &no).send().await.is(200);
    rig.work().await;
    let rejected = json!({"by": "default", "reason": "paid by hand"});
    let seen = rig.seen(&format!("{CONVERSATION}/prompts/{id}")).await;
    let result = json!({"type": "error", "error": "paid by hand", "rejected": rejected});
    assert_eq!(seen["output"][0]["result"], result);
    let past = rig.get(&format!("{CONVERSATION}/events?follow=false")).send().await.text;
    let end = past.lines().find(|line| line.contains("\"tool_execution_end\"")).unwrap();
    let end: Value = serde_json::from_str(end.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(end["rejected"], rejected);
    assert!(past.find("tool_execution_start").unwrap() < past.find("tool_execution_end").unwrap());
}

#[tokio::test]
async fn unchanged_resources_are_not_sent_again() {
    let rig = Rig::new();
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    let etag = rig.get(CONVERSATION).send().await.is(200).header("etag").to_owned();
    let same = rig.get(CONVERSATION).header("if-none-match", &etag).send().await.is(304);
    assert_eq!((same.header("etag"), same.text.as_str()), (etag.as_str(), ""));
    let patched = rig.patch(CONVERSATION, &json!({})).send().await.is(200);
    assert_eq!(patched.header("etag"), etag, "an empty patch must not change the version");
    let named = rig.patch(CONVERSATION, &json!({"metadata": {"a": "b"}})).send().await.is(200);
    assert_ne!(named.header("etag"), etag);
    rig.get(CONVERSATION).header("if-none-match", &etag).send().await.is(200);
    let added = rig
        .ask(Method::POST, "/api/conversations/c/artifacts?name=a.txt")
        .header("content-type", "text/plain")
        .body("0123456789");
    let path = added.send().await.is(201).header("location").to_owned();
    let etag = rig.get(&path).send().await.is(200).header("etag").to_owned();
    let same = rig.get(&path).header("if-none-match", &etag).send().await.is(304);
    assert_eq!((same.header("etag"), same.text.as_str()), (etag.as_str(), ""));
    rig.get(&path).header("if-none-match", "\"x\"").send().await.is(200);
}

#[tokio::test]
async fn pages_of_messages_go_on_after_the_last_one() {
    let rig = Rig::new();
    for word in ["one", "two", "three"] {
        rig.run(&format!("say {word}")).await;
    }
    let path = format!("{CONVERSATION}/messages");
    let whole = rig.seen(&path).await["items"].clone();
    let mut seen = Vec::new();
    let mut next = format!("{path}?limit=4");
    loop {
        let page = rig.seen(&next).await;
        seen.extend(page["items"].as_array().unwrap().clone());
        // New messages between two pages do not shift the pages.
        rig.run("say more").await;
        let Some(continuation) = page["continuation"].as_str() else { break };
        if seen.len() >= 6 {
            break;
        }
        next = format!("{path}?limit=4&continuation={continuation}");
    }
    assert_eq!(seen[..6], whole.as_array().unwrap()[..6]);
}

#[tokio::test]
async fn conversation_that_never_ran_is_settled() {
    let rig = Rig::new();
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    rig.get(&format!("{CONVERSATION}/events?until=settled")).send().await.is(204);
}

#[tokio::test]
async fn browsers_get_pages_for_links_that_fail() {
    let rig = Rig::new();
    rig.run("use pay with {\"amount\": 500} then say done").await;
    let link = rig.link().await;
    for path in [format!("{link}x"), "/api/approvals/abc.def".to_owned()] {
        let page = rig.get(&path).header(BROWSER.0, BROWSER.1).send().await.is(404);
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
        assert!(page.text.contains("<h1>Not Found</h1>") && page.text.contains("new link"));
        assert_eq!(page.header("cache-control"), "no-store");
        rig.get(&path).send().await.fails(404, "not-found");
    }
    let post = |body: &'static str| {
        let asking = rig.ask(Method::POST, &link).header(BROWSER.0, BROWSER.1);
        asking.header("content-type", "application/x-www-form-urlencoded").body(body).send()
    };
    let twice = post("decision=approve&decision=reject").await.is(400);
    assert!(twice.text.contains("`decision` more than once"), "{}", twice.text);
    assert_eq!(rig.seen(CONVERSATION).await["pendingApprovals"].as_array().unwrap().len(), 1);
    rig.post(&format!("{CONVERSATION}/abort"), &json!({})).send().await.is(202);
    rig.work().await;
    rig.delete(CONVERSATION).send().await.is(204);
    let gone = rig.get(&link).header(BROWSER.0, BROWSER.1).send().await.is(404);
    assert!(gone.text.contains("<!doctype html>"), "{}", gone.text);
}

#[tokio::test]
async fn agents_show_their_model_and_their_pause() {
    let rig = Rig::new();
    assert_eq!(rig.seen("/api/agents").await["items"][0]["model"], "normal");
    let paused = rig.with_world(|world| {
        let brakes = turnwheel::settings::brakes::parse("agent:clerk").unwrap();
        world.brakes = std::sync::Arc::new(brakes);
    });
    let agent = paused.seen("/api/agents").await["items"][0].clone();
    assert_eq!(agent["available"], false);
    assert!(agent["problem"].as_str().unwrap().contains("`agent:clerk`"), "{agent}");
}

#[tokio::test]
async fn health_fails_when_the_store_takes_no_writes() {
    let rig = Rig::new();
    let faults = Faults { unavailable_before: 1.0, ..Faults::default() };
    rig.store.set_faults(faults);
    let failed = rig.get("/api/health").send().await.is(503);
    assert_eq!(failed.json()["status"], "unavailable");
    rig.store.set_faults(Faults::default());
    rig.clock.advance(std::time::Duration::from_secs(29));
    rig.get("/api/health").send().await.is(503);
    rig.clock.advance(std::time::Duration::from_secs(2));
    rig.get("/api/health").send().await.is(200);
    // The second check replaces the document of the first one.
    rig.clock.advance(std::time::Duration::from_secs(31));
    rig.get("/api/health").send().await.is(200);
}
