//! Tests of response schemas and of truncated model responses.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use turnwheel::agent::content::Block;
use turnwheel::agent::message::{AssistantMessage, StopReason};
use turnwheel::model::scripted::ScriptedModel;
use turnwheel::model::{Answer, Listener, Model, ModelRecord, ModelRequest, Reply};

use super::rig::Rig;

fn rig(schema: Value) -> Rig {
    Rig::new().with_agent(|agent| agent.response_schema = Some(schema))
}

fn numbers() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"], "additionalProperties": false})
}

async fn seen(rig: &Rig, text: &str) -> Value {
    let id = rig.run(text).await;
    rig.seen(&format!("/api/conversations/c/prompts/{id}")).await
}

async fn events(rig: &Rig) -> String {
    rig.get("/api/conversations/c/events?follow=false").send().await.is(200).text
}

#[tokio::test]
async fn result_fits_its_schema_at_once() {
    let rig = rig(numbers());
    let prompt = seen(&rig, r#"say {"a": 5}"#).await;
    assert_eq!((&prompt["state"], &prompt["result"]), (&json!("completed"), &json!({"a": 5})));
    assert_eq!(
        rig.seen("/api/conversations/c/messages").await["items"].as_array().unwrap().len(),
        2
    );
}

#[tokio::test]
async fn misfit_is_shown_to_the_model_once_and_corrected() {
    for wrong in [r#"{"a":"notnum"}"#, "5", r#"{"a":5,"b":1}"#] {
        let rig = rig(numbers());
        let prompt = seen(&rig, &format!("say {wrong}")).await;
        assert_eq!(prompt["state"], "completed", "{prompt}");
        assert!(prompt["result"]["a"].is_number(), "{prompt}");
        let messages = rig.seen("/api/conversations/c/messages").await["items"].clone();
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
            rig.seen(&receipt).await["modelCalls"],
            2,
            "the correction must be a separate model call"
        );
    }
}

#[tokio::test]
async fn second_misfit_fails_the_prompt_with_reason_schema() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^Z9$"}}, "required": ["a"]});
    let rig = rig(schema);
    let prompt = seen(&rig, r#"say {"a": "x"}"#).await;
    assert_eq!((&prompt["state"], &prompt["error"]["type"]), (&json!("failed"), &json!("schema")));
    assert_eq!((prompt.get("result"), &prompt["stopReason"]), (None, &json!("error")));
    let message = prompt["error"]["message"].as_str().unwrap();
    assert!(message.contains("/a"), "{message}");
    let next = seen(&rig, r#"say {"a": "Z9"}"#).await;
    assert_eq!(
        (&next["state"], &next["result"]),
        (&json!("completed"), &json!({"a": "Z9"})),
        "{next}"
    );
}

/// A model whose every response is truncated.
#[derive(Debug)]
struct Cut(Option<&'static str>);

#[async_trait]
impl Model for Cut {
    async fn answer(&self, request: ModelRequest<'_>, _: &dyn Listener) -> Answer {
        let content = vec![Block::text("The first half")];
        let message = AssistantMessage {
            error_message: self.0.map(ToOwned::to_owned),
            ..AssistantMessage::of_ours(&request.model.id, content, StopReason::Length)
        };
        Answer { message, failure: None, reply: Reply::default() }
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        ScriptedModel.record(model)
    }
}

#[tokio::test]
async fn cut_response_is_visible_in_prompt_and_event() {
    for (note, reason) in [
        (None, "max_output_tokens"),
        (Some("The content filter of the service cut off this response."), "content_filter"),
    ] {
        let rig = Rig::new().with_world(|world| world.model = Arc::new(Cut(note)));
        let prompt = seen(&rig, "go").await;
        assert_eq!((&prompt["state"], &prompt["stopReason"]), (&json!("completed"), &json!("end")));
        assert_eq!(prompt["incomplete"]["reason"], reason);
        assert!(prompt["incomplete"]["message"].as_str().is_some_and(|text| text.len() > 20));
        let events = events(&rig).await;
        let end = events.lines().find(|line| line.contains(r#""prompt.completed""#)).unwrap();
        assert!(end.contains(&format!(r#""reason":"{reason}""#)), "{end}");
        let rig = rig.with_world(|world| world.model = Arc::new(ScriptedModel));
        assert!(seen(&rig, "say whole").await.get("incomplete").is_none());
    }
}
