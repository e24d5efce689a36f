//! Conformance cases of the Azure provider, and a check that the fake model plays their scripts.

use serde_json::{Value, json};
use turnwheel::agent::content::joined_text;
use turnwheel::agent::message::Message;
use turnwheel::model::responses::AzureResponses;
use turnwheel::model::{Model, ModelRecord, Prices};

use super::{Heard, ask, call, config, failed, user};
use crate::support::fake_model::{FakeModel, Play, Script};
use crate::support::shared::shared;

/// One script covers all cases: the fake model plays exactly the steps that a case lists.
#[tokio::test]
async fn conformance_scripts_are_played() {
    let script = json!([
        { "thinking": ["T"], "text": ["Hel", "lo"] },
        { "calls": [{ "id": "c1", "name": "test.echo", "arguments": { "value": "x" } }] },
        { "text": ["cut"], "stop": "length" },
        { "text": ["par"], "error": "503 service unavailable" },
        "throws: stream function blew up",
    ]);
    let fake = FakeModel::start(Play::script(&script)).await;
    let mut told = Vec::new();
    for _ in 0..5 {
        let (answer, _) = ask(&fake).await;
        let error = answer.message.error_message.clone().unwrap_or_default();
        told.push(format!(
            "{:?} {} {error}",
            answer.message.stop_reason,
            joined_text(&answer.message.content)
        ));
    }
    assert_eq!(
        told,
        [
            "Stop Hello ",
            "ToolUse  ",
            "Length cut ",
            "Error par 503 service unavailable",
            "Error  HTTP 400: stream function blew up",
        ]
    );
}

fn case(id: &str) -> Option<Value> {
    let text = std::fs::read_to_string(shared("conformance/cases.json")?).unwrap();
    let cases: Value = serde_json::from_str(&text).unwrap();
    cases["cases"].as_array().unwrap().iter().find(|case| case["id"] == id).cloned()
}

fn priced(case: &Value, id: &str) -> ModelRecord {
    let model = AzureResponses::new(&config("http://127.0.0.1:1"), None).unwrap();
    let cost: Prices =
        serde_json::from_value(case["given"]["model_cost_per_million"].clone()).unwrap_or_default();
    ModelRecord { cost, ..model.record(id).unwrap() }
}

#[tokio::test]
async fn conformance_a01_events_message_and_cost() {
    let Some(case) = case("A01") else { return };
    let events = case["given"]["sse_events"].as_array().unwrap().clone();
    let fake = FakeModel::start([Play::SseEvents(events)]).await;
    let model = AzureResponses::new(&config(&fake.url), None).unwrap();
    let heard = Heard::default();
    let answer = call(&model, &priced(&case, "gpt-5-mini"), &[user("hi")], &heard).await;
    let expected = &case["expect"]["both"];
    for (told, expected) in heard.json().iter().zip(expected["stream_events"].as_array().unwrap()) {
        assert_covers(told, expected);
    }
    assert_eq!(heard.json().len(), expected["stream_events"].as_array().unwrap().len());
    assert_covers(&serde_json::to_value(&answer.message).unwrap(), &expected["message"]);
}

#[tokio::test]
async fn conformance_a03_error_texts() {
    let Some(case) = case("A03") else { return };
    let expected = &case["expect"]["both"];
    let plays =
        [case["given"]["sse_events"].clone(), expected["response_failed"]["sse_events"].clone()];
    let fake =
        FakeModel::start(plays.map(|events| Play::SseEvents(events.as_array().unwrap().clone())))
            .await;
    let (answer, heard) = ask(&fake).await;
    assert_eq!(json!(failed(&answer).0), expected["thrown"]);
    assert_eq!(json!(heard.json()), expected["stream_events"]);
    assert_covers(&json!(answer.message.content), &expected["message"]["content"]);
    // The case notes that later versions include code and message here.
    assert_eq!(failed(&ask(&fake).await.0).0, "server_error: x");
}

#[tokio::test]
async fn conformance_a04_history_as_input() {
    let Some(case) = case("A04") else { return };
    let messages: Vec<Message> = case["given"]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| {
            let mut message = message.clone();
            message["timestamp"] = json!(0);
            if message["role"] == "assistant" {
                (message["api"], message["provider"]) = (json!(""), json!(""));
            }
            serde_json::from_value(message).unwrap()
        })
        .collect();
    let fake =
        FakeModel::start([Play::Answer(Script::text("x")), Play::Answer(Script::text("x"))]).await;
    let model = AzureResponses::new(&config(&fake.url), None).unwrap();
    let rich = priced(&case, "gpt-5-mini");
    let plain = ModelRecord { reasoning: false, images: false, ..rich.clone() };
    for record in [&rich, &plain] {
        call(&model, record, &messages, &Heard::default()).await;
    }
    let sent: Vec<Value> = fake.requests().iter().map(|body| body["input"].clone()).collect();
    assert_eq!(
        sent,
        ["both", "non_reasoning_text_only_model"].map(|name| case["expect"][name].clone())
    );
}

/// Asserts that `found` contains everything expected; it may contain more.
fn assert_covers(found: &Value, expected: &Value) {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            for (name, expected) in expected {
                assert_covers(found.get(name).unwrap_or(&Value::Null), expected);
            }
        }
        (Value::Array(found), Value::Array(expected)) => {
            assert_eq!(found.len(), expected.len(), "{found:?}");
            found.iter().zip(expected).for_each(|(found, expected)| assert_covers(found, expected));
        }
        (Value::Number(found), Value::Number(expected)) => {
            assert!(
                (found.as_f64().unwrap() - expected.as_f64().unwrap()).abs() < 1e-15,
                "{found} {expected}"
            );
        }
        _ => assert_eq!(found, expected),
    }
}
