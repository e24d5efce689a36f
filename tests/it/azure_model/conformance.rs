//! Conformance cases of the Azure provider, and a check that the fake model plays their scripts.

use serde_json::{Value, json};
use turnwheel::messages::Message;
use turnwheel::models::{Model, ModelRecord, Prices};
use turnwheel::testing::agent::content::joined_text;
use turnwheel::testing::model::responses::ModelApiClient;

use super::{RecordingListener, call_fake, call_model, config, expect_failure, user_message};
use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::shared_data::find_shared_data;

/// One script covers all cases: the fake model plays exactly the steps that a case lists.
#[tokio::test]
async fn fake_model_plays_conformance_scripts() {
    let script = json!([
        { "thinking": ["T"], "text": ["Hel", "lo"] },
        { "calls": [{ "id": "c1", "name": "test.echo", "arguments": { "value": "x" } }] },
        { "text": ["cut"], "stop": "length" },
        { "text": ["par"], "error": "503 service unavailable" },
        "throws: stream function blew up",
    ]);
    let fake = FakeModel::start(ScriptedResponse::parse_script(&script)).await;
    let mut results = Vec::new();
    for _ in 0..5 {
        let (response, _) = call_fake(&fake).await;
        let error = response.message.error_message.clone().unwrap_or_default();
        results.push(format!(
            "{:?} {} {error}",
            response.message.stop_reason,
            joined_text(&response.message.content)
        ));
    }
    assert_eq!(
        results,
        [
            "Stop Hello ",
            "ToolUse  ",
            "Length cut ",
            "Error par 503 service unavailable",
            "Error  HTTP 400: stream function blew up",
        ]
    );
}

fn find_case(id: &str) -> Option<Value> {
    let text = std::fs::read_to_string(find_shared_data("conformance/cases.json")?).unwrap();
    let cases: Value = serde_json::from_str(&text).unwrap();
    cases["cases"].as_array().unwrap().iter().find(|case| case["id"] == id).cloned()
}

fn record_with_prices(case: &Value, id: &str) -> ModelRecord {
    let model = ModelApiClient::new(&config("http://127.0.0.1:1"), None).unwrap();
    let cost: Prices =
        serde_json::from_value(case["given"]["model_cost_per_million"].clone()).unwrap_or_default();
    ModelRecord { cost, ..model.record(id).unwrap() }
}

#[tokio::test]
async fn conformance_a01_events_message_and_cost() {
    let Some(case) = find_case("A01") else { return };
    let events = case["given"]["sse_events"].as_array().unwrap().clone();
    let fake = FakeModel::start([ScriptedResponse::SseEvents(events)]).await;
    let model = ModelApiClient::new(&config(&fake.url), None).unwrap();
    let listener = RecordingListener::default();
    let response = call_model(
        &model,
        &record_with_prices(&case, "gpt-5-mini"),
        &[user_message("hi")],
        &listener,
    )
    .await;
    let expected = &case["expect"]["both"];
    for (event, expected) in
        listener.events_json().iter().zip(expected["stream_events"].as_array().unwrap())
    {
        assert_covers(event, expected);
    }
    assert_eq!(listener.events_json().len(), expected["stream_events"].as_array().unwrap().len());
    assert_covers(&serde_json::to_value(&response.message).unwrap(), &expected["message"]);
}

#[tokio::test]
async fn conformance_a03_error_texts() {
    let Some(case) = find_case("A03") else { return };
    let expected = &case["expect"]["both"];
    let plays =
        [case["given"]["sse_events"].clone(), expected["response_failed"]["sse_events"].clone()];
    let fake = FakeModel::start(
        plays.map(|events| ScriptedResponse::SseEvents(events.as_array().unwrap().clone())),
    )
    .await;
    let (response, listener) = call_fake(&fake).await;
    assert_eq!(json!(expect_failure(&response).0), expected["thrown"]);
    assert_eq!(json!(listener.events_json()), expected["stream_events"]);
    assert_covers(&json!(response.message.content), &expected["message"]["content"]);
    // The case notes that later versions include code and message here.
    assert_eq!(expect_failure(&call_fake(&fake).await.0).0, "server_error: x");
}

#[tokio::test]
async fn conformance_a04_history_as_input() {
    let Some(case) = find_case("A04") else { return };
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
    let fake = FakeModel::start([
        ScriptedResponse::Response(ResponseScript::text("x")),
        ScriptedResponse::Response(ResponseScript::text("x")),
    ])
    .await;
    let model = ModelApiClient::new(&config(&fake.url), None).unwrap();
    let rich = record_with_prices(&case, "gpt-5-mini");
    let plain = ModelRecord { reasoning: false, images: false, ..rich.clone() };
    for record in [&rich, &plain] {
        call_model(&model, record, &messages, &RecordingListener::default()).await;
    }
    let sent: Vec<Value> = fake.request_bodies().iter().map(|body| body["input"].clone()).collect();
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
