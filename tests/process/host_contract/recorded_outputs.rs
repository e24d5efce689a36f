//! Recorded outputs: the local host writes the messages that the Functions host wrote.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use serde_json::Value;
use turnwheel::testing::queue::PROMPTS;

use super::lenient_json::LENIENT;
use super::recorded_cases::{assert_no_differences, built_text, name, read_cases};
use super::test_host::{OK_RESPONSE, TestHost, TestHostConfig};

/// The queue of the output binding, which no function reads.
const OUTPUTS: &str = "captured-outputs";

/// Texts that the Functions host takes for base64: it writes other bytes, or fails. The local host
/// fails the invocation.
const REFUSED: [&str; 26] = [
    "text-white-space",
    "text-space",
    "base64-own-nudge",
    "text-base64like-test",
    "text-base64like-deadbeef",
    "text-base64like-jobs",
    "text-base64like-12345678",
    "text-base64like-abcd_efgh",
    "text-base64like-QUI_",
    "text-base64like-QQ__",
    "text-base64like-AAECAw__",
    "text-base64like-true",
    "text-base64like-null",
    "text-base64like-1234",
    "text-base64like-Zm9v_YmFy",
    "text-base64-utf8",
    "text-base64-bytes",
    "text-base64-of-object",
    "text-base64-of-array",
    "size-49152-base64",
    "text-base64-padding-slash",
    "text-base64-two-pads",
    "text-base64-spaces-inside",
    "text-base64-long-word",
    "text-hex-32",
    "text-long-40k",
];

/// The response of the capture.
fn answer(case: &Value) -> String {
    if let Some(answer) = case["answer"].as_str() {
        return answer.to_owned();
    }
    let json = |value: &Value| match built_text(value) {
        Some(text) => Value::from(text),
        None => value.clone(),
    };
    let value = match (&case["value_text"], &case["value"]) {
        (Value::String(text), _) => text.clone(),
        (_, Value::Array(elements)) => elements.iter().map(json).collect::<Value>().to_string(),
        (_, value) => json(value).to_string(),
    };
    format!(r#"{{"Outputs":{{"nudges":{value}}},"Logs":[],"ReturnValue":null}}"#)
}

fn expected(case: &Value) -> (Vec<String>, usize) {
    if REFUSED.contains(&name(case)) {
        return (Vec::new(), 2);
    }
    let messages = case["messages"].as_array().unwrap().iter();
    let is_written = case["outcome"] == "written";
    (messages.map(|text| built_text(text).unwrap()).collect(), if is_written { 1 } else { 2 })
}

#[tokio::test]
async fn recorded_outputs_become_equal_messages() {
    let cases = read_cases("outputs.jsonl");
    // Only the first delivery of a message gets the response of its case.
    let answers = Arc::new(Mutex::new(Vec::<String>::new()));
    let given = Arc::clone(&answers);
    let prompt = move || {
        let body = given.lock().unwrap().pop().unwrap_or_else(|| OK_RESPONSE.to_owned());
        async { ([(CONTENT_TYPE, "application/json")], body) }
    };
    let mut config = TestHostConfig { json: LENIENT, ..TestHostConfig::default() };
    let function = config.root.functions.get_mut("prompt").unwrap();
    *function = function.replace("agent-turns", OUTPUTS);
    let host = TestHost::start_with(Router::new().route("/prompt", post(prompt)), config).await;
    let mut differences = Vec::new();
    for case in &cases {
        answers.lock().unwrap().push(answer(case));
        let before = host.queue.change(|state| state.deliveries);
        host.queue.put(PROMPTS, "go").await;
        host.queue.until("the message is deleted", |state| state.texts(PROMPTS).is_empty()).await;
        let (messages, after) =
            host.queue.change(|state| (state.take_texts(OUTPUTS), state.deliveries));
        if (&messages, after - before) != (&expected(case).0, expected(case).1) {
            differences.push(format!(
                "{}: {messages:?} in {} deliveries; recorded {:?}",
                name(case),
                after - before,
                expected(case)
            ));
        }
    }
    assert_no_differences(&differences, cases.len());
    assert!(cases.is_empty() || cases.len() == 124, "{}", cases.len());
}
