//! Frame documents over HTTP: after a change of the agent, in exports, imports and deletions.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use turnwheel::testing::http::api::Api;
use turnwheel::testing::http::auth::Access;
use turnwheel::testing::services::Services;

use super::test_app::TestApp;

const OLD: &str = "Pay on request.";

async fn entries(app: &TestApp, id: &str) -> Vec<Value> {
    let list = app.get_json(&format!("/api/conversations/{id}/entries?limit=100")).await;
    list["items"].as_array().unwrap().clone()
}

/// `document` of the frame entries.
async fn documents(app: &TestApp, id: &str) -> Vec<String> {
    let entries = entries(app, id).await;
    let frames = entries.iter().filter(|entry| entry["type"] == "frame");
    frames.map(|frame| frame["document"].as_str().unwrap().to_owned()).collect()
}

async fn export(app: &TestApp, id: &str, format: &str) -> Vec<Value> {
    let path = format!("/api/conversations/{id}/export?format={format}");
    let file = app.get(&path).send().await.expect_status(200).text;
    file.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn frame_path(id: &str, document: &str) -> String {
    format!("/api/conversations/{id}/frames/{document}")
}

/// A conversation with a prompt before and one after a change of the instructions.
async fn changed_app() -> TestApp {
    let app = TestApp::new().with_agent(|agent| agent.instructions = OLD.into());
    app.run("say hello").await;
    let app = app.with_agent(|agent| {
        agent.instructions = "Refuse everything.".into();
        "r2".clone_into(&mut agent.revision);
    });
    app.run("say on").await;
    app
}

#[tokio::test]
async fn changed_agent_file_leaves_stored_frames() {
    let app = changed_app().await;
    let documents = documents(&app, "c").await;
    let [old, new] = documents.as_slice() else { panic!("{documents:?}") };
    let shown = app.get_json(&frame_path("c", old)).await;
    assert_eq!(shown["systemPrompt"], OLD);
    assert_eq!(shown["agent"], json!({"name": "clerk", "revision": "r1"}));
    assert_eq!(shown["tools"][0]["description"], "Pays.");
    assert_eq!(app.get_json(&frame_path("c", new)).await["systemPrompt"], "Refuse everything.");
    let entries = entries(&app, "c").await;
    let seqs = entries.iter().filter(|entry| entry["type"] == "frame").map(|entry| &entry["seq"]);
    let responses = entries.iter().filter(|entry| entry["message"]["role"] == "assistant");
    let named: Vec<&Value> = responses.map(|entry| &entry["frame"]).collect();
    assert_eq!(named, seqs.collect::<Vec<_>>());
    // The files of artifacts have none, and no id of an artifact reads one.
    assert_eq!(app.get_json("/api/conversations/c/artifacts").await["items"], json!([]));
    let artifact = format!("/api/conversations/c/artifacts/frame.{old}");
    app.get(&artifact).send().await.expect_problem(404, "not-found");
}

#[tokio::test]
async fn exported_documents_are_imported_again() {
    let app = changed_app().await;
    let lines = export(&app, "c", "turnwheel").await;
    let at = |kind: &str| lines.iter().position(|line| line["type"] == kind).unwrap();
    assert_eq!(at("frame_document") + 1, at("frame"));
    assert_eq!(lines[at("frame_document")]["document"]["systemPrompt"], OLD);
    let pi = export(&app, "c", "pi").await;
    let frames = pi.iter().filter(|line| line["customType"] == "turnwheel/frame");
    let prompts: Vec<&Value> =
        frames.map(|line| &line["data"]["frameDocument"]["systemPrompt"]).collect();
    assert_eq!(prompts, [OLD, "Refuse everything."]);
    // Into another installation.
    let other = TestApp::new();
    let mut text: Vec<String> = lines.iter().map(ToString::to_string).collect();
    // A line that is repeated stores nothing.
    let repeated = vec![text[at("frame_document")].clone(); 30];
    text.splice(at("frame")..at("frame"), repeated);
    let import = other.request(Method::POST, "/api/conversations/import?conversationId=i");
    let import = import.header("content-type", "application/x-ndjson").body(text.join("\n"));
    let report = import.send().await.expect_status(201).json();
    assert_eq!(report["skippedCount"], 0, "{report}");
    let imported = documents(&other, "i").await;
    assert_eq!(imported, documents(&app, "c").await);
    assert_eq!(other.get_json(&frame_path("i", &imported[0])).await["systemPrompt"], OLD);
    let again = export(&other, "i", "turnwheel").await;
    assert_eq!(again[1..], lines[1..]);
}

#[tokio::test]
async fn lost_documents_are_named_as_missing() {
    let app = changed_app().await;
    let documents = documents(&app, "c").await;
    let lost = TestApp::new();
    let app =
        app.with_services(|services| services.artifacts = Arc::clone(&lost.services.artifacts));
    let problem = app.get(&frame_path("c", &documents[0])).send().await;
    let problem = problem.expect_problem(404, "not-found");
    assert!(problem["detail"].as_str().unwrap().contains("no frame document"), "{problem}");
    app.get(&frame_path("c", "..%2Fx")).send().await.expect_problem(404, "not-found");
    let lines = export(&app, "c", "turnwheel").await;
    let missing: Vec<&Value> =
        lines.iter().filter(|line| line["type"] == "frame_document").collect();
    assert_eq!(missing.len(), 2);
    assert_eq!(missing[0]["missing"], true);
}

#[tokio::test]
async fn only_operators_read_frames() {
    let mut app = changed_app().await;
    let document = documents(&app, "c").await.remove(0);
    let access = Access { is_dev: false, ..Access::dev() };
    let api = Api::new(Services::clone(&app.services), access, app.keys.clone());
    app.router = turnwheel::testing::http::router(Arc::new(api));
    let path = frame_path("c", &document);
    let owner = app.get(&path).user("default", "").send().await;
    owner.expect_problem(403, "forbidden");
    app.get(&path).user("eve", "").send().await.expect_problem(404, "not-found");
    let operator = app.get(&path).user("boss", "Turnwheel.Operator").send().await;
    assert_eq!(operator.expect_status(200).json()["systemPrompt"], OLD);
    for format in ["turnwheel", "pi"] {
        let path = format!("/api/conversations/c/export?format={format}");
        let own = app.get(&path).user("default", "").send().await.expect_status(200).text;
        assert!(own.contains(&document) && !own.contains(OLD), "{own}");
        let all = app.get(&path).user("boss", "Turnwheel.Operator").send().await;
        assert!(all.expect_status(200).text.contains(OLD), "{format}");
    }
}

#[tokio::test]
async fn frames_are_deleted_with_their_conversation() {
    let app = changed_app().await;
    let documents = documents(&app, "c").await;
    app.post("/api/conversations/c/fork", &json!({"entryId": entries(&app, "c").await.last().unwrap()["id"], "position": "at", "conversationId": "f"}))
        .send()
        .await
        .expect_status(201);
    app.delete("/api/conversations/c").send().await.expect_status(204);
    app.get(&frame_path("c", &documents[0])).send().await.expect_problem(404, "not-found");
    assert_eq!(app.get_json(&frame_path("f", &documents[0])).await["systemPrompt"], OLD);
}
