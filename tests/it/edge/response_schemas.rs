//! Tests of response schemas and of truncated model responses.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use turnwheel::messages::{AssistantMessage, Block, StopReason};
use turnwheel::models::{
    CallMetadata, Listener, Model, ModelRecord, ModelRequest, ModelResponse, ScriptedModel,
};

use super::test_app::TestApp;

fn app_with_schema(schema: Value) -> TestApp {
    TestApp::new().with_agent(|agent| agent.response_schema = Some(schema))
}

fn number_schema() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"], "additionalProperties": false})
}

async fn run_prompt(app: &TestApp, text: &str) -> Value {
    let id = app.run(text).await;
    app.get_json(&format!("/api/conversations/c/prompts/{id}")).await
}

async fn read_events(app: &TestApp) -> String {
    app.get("/api/conversations/c/events?follow=false").send().await.expect_status(200).text
}

#[tokio::test]
async fn valid_result_is_returned_without_correction() {
    let app = app_with_schema(number_schema());
    let prompt = run_prompt(&app, r#"say {"a": 5}"#).await;
    assert_eq!((&prompt["state"], &prompt["result"]), (&json!("completed"), &json!({"a": 5})));
    assert_eq!(
        app.get_json("/api/conversations/c/messages").await["items"].as_array().unwrap().len(),
        2
    );
}

#[tokio::test]
async fn invalid_result_is_corrected_once() {
    for wrong in [r#"{"a":"notnum"}"#, "5", r#"{"a":5,"b":1}"#] {
        let app = app_with_schema(number_schema());
        let prompt = run_prompt(&app, &format!("say {wrong}")).await;
        assert_eq!(prompt["state"], "completed", "{prompt}");
        assert!(prompt["result"]["a"].is_number(), "{prompt}");
        let messages = app.get_json("/api/conversations/c/messages").await["items"].clone();
        let roles: Vec<&str> =
            messages.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["user", "assistant", "custom", "assistant"]);
        assert_eq!(messages[2]["customType"], "response_schema");
        let shown = messages[2]["content"].as_str().unwrap();
        assert!(
            shown.starts_with("Your response does not fit the required JSON schema: "),
            "{shown}"
        );
        let receipt =
            format!("/api/conversations/c/prompts/{}/receipt", prompt["id"].as_str().unwrap());
        assert_eq!(
            app.get_json(&receipt).await["modelCalls"],
            2,
            "the correction must be a separate model call"
        );
    }
}

#[tokio::test]
async fn second_invalid_result_fails_the_prompt() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^Z9$"}}, "required": ["a"]});
    let app = app_with_schema(schema);
    let prompt = run_prompt(&app, r#"say {"a": "x"}"#).await;
    assert_eq!((&prompt["state"], &prompt["error"]["type"]), (&json!("failed"), &json!("schema")));
    assert_eq!((prompt.get("result"), &prompt["stopReason"]), (None, &json!("error")));
    let message = prompt["error"]["message"].as_str().unwrap();
    assert!(message.contains("/a"), "{message}");
    let next = run_prompt(&app, r#"say {"a": "Z9"}"#).await;
    assert_eq!(
        (&next["state"], &next["result"]),
        (&json!("completed"), &json!({"a": "Z9"})),
        "{next}"
    );
}

/// A model whose every response is truncated.
#[derive(Debug)]
struct TruncatedModel(Option<&'static str>);

#[async_trait]
impl Model for TruncatedModel {
    async fn respond(&self, request: ModelRequest<'_>, _: &dyn Listener) -> ModelResponse {
        let content = vec![Block::text("The first half")];
        let message = AssistantMessage {
            error_message: self.0.map(ToOwned::to_owned),
            ..AssistantMessage::new_synthetic(&request.model.id, content, StopReason::Length)
        };
        ModelResponse { message, failure: None, metadata: CallMetadata::default() }
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        ScriptedModel.record(model)
    }
}

#[tokio::test]
async fn truncated_response_is_reported_in_prompt_and_event() {
    for (note, reason) in [
        (None, "max_output_tokens"),
        (Some("The content filter of the service cut off this response."), "content_filter"),
    ] {
        let app = TestApp::new()
            .with_services(|services| services.model = Arc::new(TruncatedModel(note)));
        let prompt = run_prompt(&app, "go").await;
        assert_eq!((&prompt["state"], &prompt["stopReason"]), (&json!("completed"), &json!("end")));
        assert_eq!(prompt["incomplete"]["reason"], reason);
        assert!(prompt["incomplete"]["message"].as_str().is_some_and(|text| text.len() > 20));
        let events = read_events(&app).await;
        let end = events.lines().find(|line| line.contains(r#""prompt.completed""#)).unwrap();
        assert!(end.contains(&format!(r#""reason":"{reason}""#)), "{end}");
        let app = app.with_services(|services| services.model = Arc::new(ScriptedModel));
        assert!(run_prompt(&app, "say whole").await.get("incomplete").is_none());
    }
}
