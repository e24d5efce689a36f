//! Cases of the Responses API: response streams and request bodies.

use serde_json::{Value, json};

use super::case::Case;
use super::compare::assert_fits;
use super::stage::{CONVERSATION, Needs, Stage};
use crate::support::fake_model::{Play, Script};
use crate::support::stream::{Frame, Stream};

/// A response stream becomes live events and a stored message; a failure becomes its error.
pub(super) async fn streams(case: &Case) {
    let expected = case.expected();
    let answer = Answer::of(case, case.given("sse_events")).await;
    assert_fits(case.id(), &json!(answer.updates), &expected["stream_events"]);
    match expected["thrown"].as_str() {
        None => assert_fits(case.id(), &answer.message, &expected["message"]),
        Some(thrown) => {
            assert_fits(case.id(), &answer.message["content"], &expected["message"]["content"]);
            answer.failed_with(&[thrown]);
        }
    }
    let failed = &expected["response_failed"];
    if !failed.is_null() {
        let answer = Answer::of(case, &failed["sse_events"]).await;
        // Later releases quote the service; "Unknown error" is the text of the source's release.
        let error = &failed["sse_events"][0]["response"]["error"];
        let told = [&error["code"], &error["message"]].map(|text| text.as_str().unwrap());
        answer.failed_with(&[failed["thrown"].as_str().unwrap(), &told.join(": ")]);
    }
}

/// The first model response: its message and its updates.
struct Answer {
    message: Value,
    updates: Vec<Value>,
}

impl Answer {
    async fn of(case: &Case, events: &Value) -> Self {
        let mut events = events.as_array().unwrap().clone();
        // The cases omit the sequence numbers.
        for (number, event) in events.iter_mut().enumerate() {
            event["sequence_number"] = json!(number);
        }
        let plays = vec![Play::SseEvents(events), Play::Answer(Script::text("ok"))];
        let cost = case.given("model_cost_per_million");
        let needs = Needs { facts: cost.clone(), ..Needs::of_loop("agent") };
        let stage = Stage::set(case, plays, needs).await;
        let mut stream = Stream::open(&stage.service, CONVERSATION, "", None).await;
        stage.prompt(&json!("go")).await;
        let live = stream.until("agent_settled").await;
        let messages = stage.messages().await;
        stage.service.stop().await;
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

    fn failed_with(&self, texts: &[&str]) {
        assert_eq!(self.message["stopReason"], "error");
        let error = self.message["errorMessage"].as_str().unwrap();
        assert!(texts.contains(&error), "{error}");
    }
}

/// A conversation that starts with the case's messages: checks the input of the next request.
pub(super) async fn history(case: &Case) {
    let plain = case.expected_beside("non_reasoning_text_only_model");
    for (model, facts, expected) in [
        ("gpt-5-mini", json!({"reasoning": true, "images": true}), case.expected()),
        ("plain-mini", json!({"reasoning": false, "images": false}), plain),
    ] {
        let mut messages = case.given("messages").as_array().unwrap().clone();
        let last = messages.pop().unwrap();
        for message in &mut messages {
            complete(message, model);
        }
        let needs = Needs { model, facts, messages, ..Needs::of_loop("agent") };
        let plays = vec![Play::Answer(Script::text("ok"))];
        let stage = Stage::set(case, plays, needs).await;
        let prompt = stage.prompt(&last["content"]).await;
        stage.service.settled(CONVERSATION, &prompt).await;
        let requests = stage.model.requests();
        assert_eq!(&requests[0]["input"], expected, "{}: {model}", case.id());
        stage.service.stop().await;
    }
}

/// Adds the members that every stored message has and the case omits.
fn complete(message: &mut Value, model: &str) {
    message["timestamp"] = json!(1);
    if message["role"] == "assistant" {
        message["api"] = json!("azure-openai-responses");
        message["provider"] = json!("azure");
        message["model"] = json!(model);
    }
}
