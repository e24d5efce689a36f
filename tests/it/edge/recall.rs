//! Tests of the tool `recall` over HTTP: two users, forks, deletion, and the responses of the API.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use turnwheel::testing::tools::recall::recall_tool;

use super::test_app::TestApp;

const NOTHING: &str = "No past references found outside current conversation";

fn app() -> TestApp {
    TestApp::new().with_agent(|agent| agent.tools.extend(recall_tool()))
}

/// Runs a prompt of a user in a new conversation.
async fn say(app: &TestApp, user: &str, id: &str, text: &str) {
    let body = json!({"conversationId": id, "input": text});
    app.post("/api/prompts", &body).user(user, "").send().await.expect_status(202);
    app.work().await;
}

/// The result of a call of `recall` in a new conversation.
async fn recall(app: &TestApp, user: &str, id: &str, query: &str) -> Value {
    let arguments = json!({"query": query});
    say(app, user, id, &format!("use recall with {arguments} then say done")).await;
    let path = format!("/api/conversations/{id}/messages");
    let page = app.get(&path).user(user, "").send().await.expect_status(200).json();
    let messages = page["items"].as_array().unwrap();
    messages.iter().find(|it| it["role"] == "toolResult").unwrap().clone()
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}

#[tokio::test]
async fn users_recall_only_their_own_conversations() {
    let app = app();
    say(&app, "ada", "of-ada", "say I like GREEN tea").await;
    say(&app, "eve", "of-eve", "say I like black TEA").await;
    app.clock.advance(Duration::from_hours(2));
    let of_ada = recall(&app, "ada", "ada-asks", "Tea").await;
    assert_eq!(text(&of_ada), "2h ago: say I like GREEN tea");
    assert_eq!(of_ada["details"]["outcome"], "Memory searched for 'Tea' (1 matches)");
    let of_eve = recall(&app, "eve", "eve-asks", "tea").await;
    assert_eq!(text(&of_eve), "2h ago: say I like black TEA");
    assert_eq!(text(&recall(&app, "eve", "eve-spies", "green").await), NOTHING);
    let other = json!({"conversationId": "x", "input": r#"use recall with {"query": "tea"}"#});
    let request = app.post("/api/prompts", &other).user("ada", "");
    request.header("turnwheel-tenant", "other").send().await.expect_status(202);
    app.work().await;
    let read = app.get("/api/conversations/x/messages").user("ada", "");
    let page = read.header("turnwheel-tenant", "other").send().await.expect_status(200).json();
    assert!(page.to_string().contains(NOTHING), "{page}");
    assert!(!page.to_string().contains("green") && !page.to_string().contains("black"));
}

#[tokio::test]
async fn copies_of_a_fork_are_one_match_and_deletion_removes_it() {
    let app = app();
    say(&app, "ada", "one", "say One Two Three Four").await;
    let entries = app.get("/api/conversations/one/entries?limit=100").user("ada", "").send().await;
    let leaf = entries.json()["items"].as_array().unwrap().last().unwrap()["id"].clone();
    for id in ["fork-1", "fork-2"] {
        let body = json!({"entryId": leaf, "position": "at", "conversationId": id});
        let fork = app.post("/api/conversations/one/fork", &body).user("ada", "").key(id);
        fork.send().await.expect_status(201);
    }
    let message = "<1min ago: say One Two Three Four";
    assert_eq!(text(&recall(&app, "ada", "now", "say one").await), message);
    // Each query is new: the prompts of the others contain theirs.
    for (deleted, query, expected) in [
        ("one", "one two", message),
        ("fork-1", "two three", message),
        ("fork-2", "three four", NOTHING),
    ] {
        let path = format!("/api/conversations/{deleted}");
        app.delete(&path).user("ada", "").send().await.expect_status(204);
        let found = recall(&app, "ada", &format!("without-{deleted}"), query).await;
        assert_eq!(text(&found), expected, "after the deletion of {deleted}");
    }
}

#[tokio::test]
async fn hidden_prompts_are_not_found() {
    let app = app();
    for (id, is_visible) in [("hidden", false), ("shown", true)] {
        let body =
            json!({"conversationId": id, "input": format!("say {id} tea"), "visible": is_visible});
        app.post("/api/prompts", &body).user("ada", "").send().await.expect_status(202);
        app.work().await;
    }
    assert_eq!(text(&recall(&app, "ada", "now", "tea").await), "<1min ago: say shown tea");
}

#[tokio::test]
async fn imported_messages_are_found_by_their_importer() {
    let app = app();
    say(&app, "ada", "one", "say One Two Three Four").await;
    let export = app
        .get("/api/conversations/one/export?format=turnwheel")
        .user("ada", "")
        .send_unvalidated()
        .await;
    let file = export.expect_status(200).text;
    assert!(file.contains("One Two") && !file.contains("one two"), "{file}");
    app.clock.advance(Duration::from_hours(1));
    for user in ["ada", "eve"] {
        let import = app.request(Method::POST, "/api/conversations/import?conversationId=copy");
        let import = import.header("content-type", "application/x-ndjson");
        import.user(user, "").body(file.clone()).send().await.expect_status(201);
        let found = recall(&app, user, "now", "two three").await;
        assert_eq!(text(&found), "1h ago: say One Two Three Four", "{user}");
    }
}

#[tokio::test]
async fn responses_of_the_api_have_no_search_text() {
    let app = app();
    let input = "say GREEN tea";
    say(&app, "default", "c", input).await;
    let mut texts = Vec::new();
    for path in ["", "/messages", "/entries?limit=100", "/prompts", "/tree", "/export?format=pi"] {
        let response = app.get(&format!("/api/conversations/c{path}")).send_unvalidated().await;
        texts.push(response.expect_status(200).text);
    }
    let all = texts.concat();
    assert!(all.contains(input) && !all.contains("say green tea") && !all.contains("searchText"));
}
