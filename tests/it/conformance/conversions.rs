//! The case of messages of applications as the model receives them: from an imported file over HTTP,
//! and from the messages of the in-process `Agent`.

use std::sync::Arc;

use serde_json::{Value, json};
use turnwheel::Agent;
use turnwheel::agent_settings::Settings;
use turnwheel::messages::Message;
use turnwheel::testing::model::responses::client::ModelApiClient;
use turnwheel::testing::model::responses::config::{ResponsesConfig, SecretText};

use super::case::Case;
use super::test_app::{CaseConfig, TestApp};
use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::openapi_check::SendValidated as _;

pub(super) async fn run_case(case: &Case) {
    let messages: Vec<Value> = case.given("messages").as_array().unwrap().clone();
    let messages: Vec<Value> = messages
        .into_iter()
        .map(|mut message| {
            // The case leaves it out.
            message["timestamp"] = json!(1);
            message
        })
        .collect();
    run_over_http(case, &messages).await;
    run_in_process(case, &messages).await;
}

fn script() -> Vec<ScriptedResponse> {
    vec![ScriptedResponse::Response(ResponseScript::text("ok"))]
}

async fn run_over_http(case: &Case, messages: &[Value]) {
    let app = TestApp::start(case, script(), CaseConfig::for_loop("agent")).await;
    let mut lines = vec![
        json!({"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/"}),
    ];
    for (number, message) in messages.iter().enumerate() {
        let parent = number.checked_sub(1).map(|before| format!("m{before}"));
        lines.push(json!({
            "type": "message", "id": format!("m{number}"), "parentId": parent,
            "timestamp": "2026-01-01T00:00:01.000Z", "message": message,
        }));
    }
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    let url = format!("{}/api/conversations/import?conversationId=converted", app.service.base);
    let request = app.service.client.post(url).header("content-type", "application/x-ndjson");
    let imported: Value =
        request.body(lines.join("\n")).send_validated().await.unwrap().json().await.unwrap();
    assert_eq!(imported["imported"], messages.len(), "{}: {imported}", case.id());
    let path = "/api/conversations/converted/prompts";
    let (status, accepted) = app.service.post(path, &json!({"input": "next"})).await;
    assert_eq!(status, 202, "{accepted}");
    app.service.wait_for_prompt("converted", accepted["promptId"].as_str().unwrap()).await;
    assert_eq!(sent(&app.model), expected(case), "{} over HTTP", case.id());
    app.service.stop().await;
}

async fn run_in_process(case: &Case, messages: &[Value]) {
    let model = FakeModel::start(script()).await;
    let config = ResponsesConfig {
        base_url: Some(model.url.clone()),
        api_key: Some(SecretText::new("a-key")),
        ..ResponsesConfig::default()
    };
    let settings = Settings { model: Some("gpt-5.1".to_owned()), ..Settings::default() };
    let message = |line: &Value| serde_json::from_str::<Message>(&line.to_string()).unwrap();
    let agent = Agent::builder()
        .settings(settings)
        .messages(messages.iter().map(message).collect())
        .models(Arc::new(ModelApiClient::new(&config, None).unwrap()))
        .start()
        .await
        .unwrap();
    agent.prompt("next").await.unwrap();
    assert_eq!(sent(&model), expected(case), "{} in process", case.id());
}

/// Role and text of the input items between the system prompt and the new message.
fn sent(model: &FakeModel) -> Vec<(String, String)> {
    let request = model.request_bodies().remove(0);
    let items = request["input"].as_array().unwrap();
    let items = items.iter().filter(|item| item["role"] == "user" || item["role"] == "assistant");
    let mut sent: Vec<_> = items.map(role_and_text).collect();
    assert_eq!(sent.pop().map(|(_, text)| text).as_deref(), Some("next"));
    sent
}

fn expected(case: &Case) -> Vec<(String, String)> {
    case.expected().as_array().unwrap().iter().map(role_and_text).collect()
}

fn role_and_text(item: &Value) -> (String, String) {
    let content = &item["content"];
    let text = content.as_str().or(content[0]["text"].as_str()).unwrap_or_default();
    (item["role"].as_str().unwrap_or_default().to_owned(), text.to_owned())
}
