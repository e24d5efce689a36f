//! Cases of the Responses API: response streams and request bodies.

use serde_json::{Value, json};

use super::case::Case;
use super::compare::assert_covers;
use super::test_app::{CONVERSATION, CaseConfig, TestApp};
use crate::support::event_stream::{EventStream, Frame};
use crate::support::fake_model::{ResponseScript, ScriptedResponse};

/// A response stream becomes live events and a stored message; a failure becomes its error.
pub(super) async fn run_stream_case(case: &Case) {
    let expected = case.expected();
    let response = StreamedResponse::run(case, case.given("sse_events")).await;
    assert_covers(case.id(), &json!(response.updates), &expected["stream_events"]);
    match expected["thrown"].as_str() {
        None => assert_covers(case.id(), &response.message, &expected["message"]),
        Some(thrown) => {
            assert_covers(case.id(), &response.message["content"], &expected["message"]["content"]);
            response.assert_error(&[thrown]);
        }
    }
    let failed = &expected["response_failed"];
    if !failed.is_null() {
        let response = StreamedResponse::run(case, &failed["sse_events"]).await;
        // Later releases quote the service; "Unknown error" is the text of the source's release.
        let error = &failed["sse_events"][0]["response"]["error"];
        let parts = [&error["code"], &error["message"]].map(|text| text.as_str().unwrap());
        response.assert_error(&[failed["thrown"].as_str().unwrap(), &parts.join(": ")]);
    }
}

/// The first model response: its message and its updates.
struct StreamedResponse {
    message: Value,
    updates: Vec<Value>,
}

impl StreamedResponse {
    async fn run(case: &Case, events: &Value) -> Self {
        let mut events = events.as_array().unwrap().clone();
        // The cases omit the sequence numbers.
        for (number, event) in events.iter_mut().enumerate() {
            event["sequence_number"] = json!(number);
        }
        let plays = vec![
            ScriptedResponse::SseEvents(events),
            ScriptedResponse::Response(ResponseScript::text("ok")),
        ];
        let cost = case.given("model_cost_per_million");
        let config = CaseConfig { price_entry: cost.clone(), ..CaseConfig::for_loop("agent") };
        let app = TestApp::start(case, plays, config).await;
        let mut stream = EventStream::open(&app.service, CONVERSATION, "", None).await;
        app.prompt(&json!("go")).await;
        let live = stream.read_until("agent_settled").await;
        let messages = app.messages().await;
        app.service.stop().await;
        let is_start = |frame: &&Frame| {
            frame.name == "message_start" && frame.data["message"]["role"] == "assistant"
        };
        let first = &live.iter().find(is_start).unwrap().data["messageId"];
        let is_update =
            |frame: &&Frame| frame.name == "message_update" && &frame.data["messageId"] == first;
        let updates = live.iter().filter(is_update);
        Self {
            message: messages[1].clone(),
            updates: updates.map(|frame| frame.data["assistantMessageEvent"].clone()).collect(),
        }
    }

    fn assert_error(&self, texts: &[&str]) {
        assert_eq!(self.message["stopReason"], "error");
        let error = self.message["errorMessage"].as_str().unwrap();
        assert!(texts.contains(&error), "{error}");
    }
}

/// A conversation that starts with the case's messages: checks the input of the next request.
pub(super) async fn run_history_case(case: &Case) {
    let plain = case.other_expectation("non_reasoning_text_only_model");
    for (model, facts, expected) in [
        ("gpt-5-mini", json!({"reasoning": true, "images": true}), case.expected()),
        ("plain-mini", json!({"reasoning": false, "images": false}), plain),
    ] {
        let mut messages = case.given("messages").as_array().unwrap().clone();
        let last = messages.pop().unwrap();
        for message in &mut messages {
            complete_message(message, model);
        }
        let config =
            CaseConfig { model, price_entry: facts, messages, ..CaseConfig::for_loop("agent") };
        let plays = vec![ScriptedResponse::Response(ResponseScript::text("ok"))];
        let app = TestApp::start(case, plays, config).await;
        let prompt = app.prompt(&last["content"]).await;
        app.service.wait_for_prompt(CONVERSATION, &prompt).await;
        let requests = app.model.request_bodies();
        assert_eq!(&requests[0]["input"], expected, "{}: {model}", case.id());
        app.service.stop().await;
    }
}

/// Adds the members that every stored message has and the case omits.
fn complete_message(message: &mut Value, model: &str) {
    message["timestamp"] = json!(1);
    if message["role"] == "assistant" {
        message["api"] = json!("azure-openai-responses");
        message["provider"] = json!("azure");
        message["model"] = json!(model);
    }
}
