//! Calls of a model client with one tool, and the events of their responses.

use std::sync::Mutex;

use serde_json::{Value, json};
use tokio::sync::Notify;
use turnwheel::agent_settings::ThinkingLevel;
use turnwheel::events::AssistantMessageEvent;
use turnwheel::messages::{Message, StopReason};
use turnwheel::models::{
    Listener, Model, ModelFailure, ModelRecord, ModelRequest, ModelResponse, ToolOffer,
};

#[derive(Default)]
pub(crate) struct RecordingListener {
    events: Mutex<Vec<AssistantMessageEvent>>,
    pub(crate) event_added: Notify,
}

impl Listener for RecordingListener {
    fn on_event(&self, event: AssistantMessageEvent) {
        self.events.lock().unwrap().push(event);
        self.event_added.notify_one();
    }
}

impl RecordingListener {
    pub(crate) fn events_json(&self) -> Vec<Value> {
        let events = self.events.lock().unwrap();
        events.iter().map(|event| serde_json::to_value(event).unwrap()).collect()
    }

    pub(crate) fn kinds(&self) -> Vec<String> {
        let events = self.events_json();
        events.iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }
}

pub(crate) fn user_message(text: &str) -> Message {
    serde_json::from_value(json!({ "role": "user", "content": text, "timestamp": 0 })).unwrap()
}

pub(crate) async fn call_model(
    model: &dyn Model,
    record: &ModelRecord,
    messages: &[Message],
    listener: &RecordingListener,
) -> ModelResponse {
    let messages: Vec<&Message> = messages.iter().collect();
    let tools = [ToolOffer {
        name: "test.echo",
        description: "Echoes.",
        parameters: &json!({ "type": "object" }),
        strict: false,
    }];
    let request = ModelRequest {
        system: Some("SYS"),
        tools: &tools,
        thinking: ThinkingLevel::Low,
        session_id: "conversation-1",
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ..ModelRequest::new(record, &messages)
    };
    model.respond(request, listener).await
}

/// The text and the class of a failed call.
pub(crate) fn expect_failure(response: &ModelResponse) -> (&str, &ModelFailure) {
    assert_eq!(response.message.stop_reason, StopReason::Error);
    (response.message.error_message.as_deref().unwrap(), response.failure.as_ref().unwrap())
}
