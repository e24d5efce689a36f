//! Cases of session files: import, export, and the input of the next model call.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::case::Case;
use super::test_app::{CaseConfig, TestApp};
use crate::support::fake_model::{ResponseScript, ScriptedResponse};
use crate::support::openapi_check::SendValidated as _;

/// Imports the file, exports it in the newest version and continues the conversation.
pub(super) async fn run_case(case: &Case) {
    let lines = case.given("lines").as_array().unwrap();
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    let file = lines.join("\n");
    let plays = vec![ScriptedResponse::Response(ResponseScript::text("ok"))];
    let app = TestApp::start(case, plays, CaseConfig::for_loop("agent")).await;
    let url = format!("{}/api/conversations/import?conversationId=imported", app.service.base);
    let request = app.service.client.post(url).header("content-type", "application/x-ndjson");
    let imported: Value = request.body(file).send_validated().await.unwrap().json().await.unwrap();
    assert_eq!(imported["skipped"], json!([]), "{}: {imported}", case.id());
    let url = format!("{}/api/conversations/imported/export?format=pi", app.service.base);
    let exported =
        app.service.client.get(url).send_validated().await.unwrap().text().await.unwrap();
    let expected = case.expected();
    let exported: Vec<Value> =
        exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rename_ids(&exported), rename_ids(expected["migrated"].as_array().unwrap()));
    let path = "/api/conversations/imported/prompts";
    let (status, accepted) = app.service.post(path, &json!({"input": "next"})).await;
    assert_eq!(status, 202, "{accepted}");
    app.service.wait_for_prompt("imported", accepted["promptId"].as_str().unwrap()).await;
    let request = app.model.request_bodies().remove(0);
    let context = expected["context"].as_array().unwrap();
    let items = request["input"].as_array().unwrap();
    // The system prompt precedes the context, and the new message follows it.
    let start = items.len() - context.len() - 1;
    for (item, expected) in items[start..].iter().zip(context) {
        let (role, text) = expected.as_str().unwrap().split_once(':').unwrap();
        let role = if role == "compactionSummary" { "user" } else { role };
        let content = item["content"].to_string();
        assert!(item["role"] == role && content.contains(text), "{}: {item}", case.id());
    }
    app.service.stop().await;
}

/// The lines with ids in the order of the lines.
fn rename_ids(lines: &[Value]) -> Vec<Value> {
    let mut names = HashMap::new();
    let mut lines = lines.to_vec();
    for line in lines.iter_mut().skip(1) {
        let id = line["id"].as_str().unwrap().to_owned();
        names.insert(id, format!("id{}", names.len() + 1));
        for member in ["id", "parentId", "firstKeptEntryId"] {
            if let Some(name) =
                line.get(member).and_then(Value::as_str).and_then(|id| names.get(id))
            {
                line[member] = json!(name);
            }
        }
    }
    lines
}
