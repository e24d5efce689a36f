//! Recorded invocations: the local host sends the same requests, and the handler answers each of
//! them.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use turnwheel::testing::host::ScriptRoot;
use turnwheel::testing::queue::TURNS;

use super::handler::recording_handler;
use super::lenient_json::LENIENT;
use super::recorded_cases::{assert_no_differences, built_text, name, read_cases};
use super::recording_queue::TIMEOUT;
use super::test_host::{OK_RESPONSE, TestHost, TestHostConfig, client, serve};

/// The handler of the capture failed each delivery of this message.
pub(super) const FAILING_MESSAGE: &str = "A:status-500-always";

/// Failed deliveries after which a message is poison.
const DELIVERIES_MAX: usize = 5;

/// A request without what varies from run to run.
#[derive(Debug, PartialEq)]
struct MaskedRequest {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Value,
}

impl MaskedRequest {
    fn new(method: &str, path: &str, headers: Vec<(String, String)>, body: &str) -> Self {
        let mut headers: Vec<_> = headers
            .into_iter()
            .map(|(name, value)| {
                let name = name.to_ascii_lowercase();
                let value = match name.as_str() {
                    "host" => value.split(':').next().unwrap().to_owned(),
                    "x-azure-functions-invocationid" if value.len() == 36 => "ID".to_owned(),
                    _ => value,
                };
                (name, value)
            })
            .collect();
        headers.sort();
        let mut body =
            if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() };
        mask_body(&mut body);
        Self { method: method.to_owned(), path: path.to_owned(), headers, body }
    }

    fn recorded(case: &Value) -> Self {
        let request = &case["request"];
        let text = |name: &str| request[name].as_str().unwrap();
        let headers = request["headers"].as_array().unwrap().iter().map(|header| {
            (header[0].as_str().unwrap().to_owned(), header[1].as_str().unwrap().to_owned())
        });
        Self::new(text("method"), text("path"), headers.collect(), &recorded_body(case))
    }

    async fn received(request: Request) -> Self {
        let headers = request.headers().iter();
        let headers = headers
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
        Self::new(&method, &path, headers, std::str::from_utf8(&body).unwrap())
    }
}

fn recorded_body(case: &Value) -> String {
    let request = &case["request"];
    let body = request["body"].as_str().unwrap();
    match built_text(&request["body_run"]) {
        Some(run) => body.replace("<RUN>", &run),
        None => body.to_owned(),
    }
}

/// Masks members by their form. A member of the message that replaces one has another form.
fn mask_body(body: &mut Value) {
    let is_date = |value: &Value| {
        value.as_str().is_some_and(|text| text.len() == 25 && text.ends_with("+00:00"))
    };
    let has_length = |value: &Value, least: usize| {
        value.as_str().is_some_and(|text| text.starts_with('"') && text.len() >= least)
    };
    let metadata = body.get_mut("Metadata").and_then(Value::as_object_mut);
    for (name, value) in metadata.into_iter().flatten() {
        let is_masked = match name.as_str() {
            "ExpirationTime" | "InsertionTime" | "NextVisibleTime" => is_date(value),
            "Id" => has_length(value, 38),
            "PopReceipt" => has_length(value, 12),
            "sys" if value["RandGuid"].as_str().is_some_and(|id| id.len() == 36) => {
                value["RandGuid"] = json!("masked");
                value["UtcNow"] = json!("masked");
                false
            }
            _ => false,
        };
        if is_masked {
            *value = json!("masked");
        }
    }
    let status = body.pointer_mut("/Data/timer/ScheduleStatus");
    if let Some(status) = status.and_then(Value::as_object_mut) {
        for value in status.values_mut() {
            assert!(value.as_str().is_some_and(|text| text.ends_with("+00:00")), "{value}");
            *value = json!("masked");
        }
    }
}

/// Panics if the body of a timer's run differs from the recorded one.
pub(super) fn assert_recorded_run(run: &Value, case: &str) {
    let cases = read_cases("invocations.jsonl");
    let Some(recorded) = cases.iter().find(|recorded| name(recorded) == case) else { return };
    let mut run = run.clone();
    mask_body(&mut run);
    assert_eq!(run, MaskedRequest::recorded(recorded).body, "{case}");
}

/// Fails [`FAILING_MESSAGE`] on its own queue, and reports every invocation.
fn reporting_handler() -> (Router, mpsc::UnboundedReceiver<MaskedRequest>) {
    let (sender, requests) = mpsc::unbounded_channel();
    let respond = move |request: Request| {
        let sender = sender.clone();
        async move {
            let received = MaskedRequest::received(request).await;
            let text = received.body["Data"]["message"].as_str().unwrap_or_default();
            let fails = received.path == "/turn" && text.contains(FAILING_MESSAGE);
            if received.method == "POST" && !received.body["Data"]["timer"].is_object() {
                sender.send(received).unwrap();
            }
            if fails { StatusCode::INTERNAL_SERVER_ERROR.into_response() } else { ok_response() }
        }
    };
    (Router::new().fallback(respond), requests)
}

fn ok_response() -> Response {
    ([(CONTENT_TYPE, "application/json")], OK_RESPONSE).into_response()
}

fn lenient_config() -> TestHostConfig {
    TestHostConfig { json: LENIENT, ..TestHostConfig::default() }
}

fn recorded_message(case: &Value) -> Option<String> {
    built_text(&case["message"]).or_else(|| built_text(&case["message_made_of"]))
}

fn queue_of(function: &str) -> String {
    let root = ScriptRoot::embedded();
    let json: Value = serde_json::from_str(&root.functions[function]).unwrap();
    json["bindings"][0]["queueName"].as_str().unwrap().to_owned()
}

async fn next_request(requests: &mut mpsc::UnboundedReceiver<MaskedRequest>) -> MaskedRequest {
    tokio::time::timeout(TIMEOUT, requests.recv()).await.expect("no invocation").unwrap()
}

#[tokio::test]
async fn recorded_messages_get_equal_envelopes() {
    let cases = read_cases("invocations.jsonl");
    let (router, mut requests) = reporting_handler();
    let host = TestHost::start_with(router, lenient_config()).await;
    let (mut count, mut differences) = (0, Vec::new());
    for case in &cases {
        let Some(message) = recorded_message(case) else { continue };
        // The local host follows no redirect: `recorded_answers` has their outcome.
        if name(case).starts_with("redirected-") {
            continue;
        }
        // Later deliveries come by themselves, in the order of the capture.
        let is_first = case["after_s"].as_f64().is_none_or(|after| after == 0.0);
        if is_first {
            host.queue.put(&queue_of(case["function"].as_str().unwrap()), &message).await;
        }
        let (received, recorded) =
            (next_request(&mut requests).await, MaskedRequest::recorded(case));
        if received != recorded {
            differences.push(format!("{}: {received:#?}\nrecorded: {recorded:#?}", name(case)));
        }
        count += 1;
    }
    assert_no_differences(&differences, count);
    assert!(cases.is_empty() || count > 195, "{count}");
}

/// Runs that an operator starts. Where the Functions host accepts a run and never starts it, the
/// local host refuses it.
#[tokio::test]
async fn recorded_manual_runs_get_equal_envelopes() {
    let cases = read_cases("invocations.jsonl");
    let (router, mut requests) = reporting_handler();
    let host = TestHost::start_with(router, lenient_config()).await;
    let mut count = 0;
    for case in cases.iter().filter(|case| case["sent"].is_object()) {
        let target = case["sent"]["target"].as_str().unwrap();
        let body = case["sent"]["body"].as_str().unwrap().to_owned();
        let (status, _) = host.post(target, body).await;
        let recorded = case["answered"]["status"].as_u64().unwrap();
        let is_started = case["request"].is_object();
        if recorded == 202 && !is_started {
            assert!([400, 404].contains(&status), "{}: {status}", name(case));
        } else {
            assert_eq!(u64::from(status), recorded, "{}", name(case));
        }
        // The capture of timers has its own test.
        if is_started && case["function"] != "sweep" {
            let received = next_request(&mut requests).await;
            assert_eq!(received, MaskedRequest::recorded(case), "{}", name(case));
        }
        count += 1;
    }
    assert!(requests.try_recv().is_err(), "a refused run was started");
    assert!(cases.is_empty() || count == 19, "{count}");
}

/// Each recorded request reaches its function with the exact message, and gets a JSON body. Where the
/// function fails, the status is 500: the host keeps the message.
#[tokio::test]
async fn handler_answers_every_recorded_invocation() {
    let cases = read_cases("invocations.jsonl");
    let (functions, router) = recording_handler();
    let (address, _server) = serve(router).await;
    let (mut count, mut kept) = (0, 0);
    for case in cases.iter().filter(|case| case["request"]["method"] == "POST") {
        if name(case).starts_with("redirected-") {
            continue;
        }
        let path = case["request"]["path"].as_str().unwrap();
        let mut request = client().post(format!("http://{address}{path}"));
        for header in case["request"]["headers"].as_array().unwrap() {
            let (header, value) = (header[0].as_str().unwrap(), header[1].as_str().unwrap());
            if !["Host", "Transfer-Encoding"].contains(&header) {
                request = request.header(header, value);
            }
        }
        let answer = request.body(recorded_body(case)).send().await.unwrap();
        let (function, text) = functions.texts().pop().unwrap();
        let is_kept = function == "turn" && text == FAILING_MESSAGE;
        assert_eq!(answer.status(), if is_kept { 500 } else { 200 }, "{}", name(case));
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/json");
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["Outputs"].is_object(), !is_kept, "{}: {answer}", name(case));
        kept += usize::from(is_kept);
        assert_eq!(path, format!("/{function}"));
        if function == "sweep" {
            assert_eq!(text, (name(case) == "timer-past-due").to_string(), "{}", name(case));
        } else if let Some(message) = recorded_message(case) {
            assert_eq!(text, message, "{}", name(case));
        }
        count += 1;
    }
    assert!(cases.is_empty() || (count > 205 && kept == DELIVERIES_MAX), "{count}, {kept}");
}

/// The handler's 500 keeps the message on its queue, and the last one moves it to the poison queue,
/// whose function gets the same text.
#[tokio::test]
async fn failed_invocations_are_repeated_and_end_in_poison() {
    let (functions, router) = recording_handler();
    let host = TestHost::start_with(router, lenient_config()).await;
    host.queue.put(TURNS, FAILING_MESSAGE).await;
    host.queue.until("the poison function has it", |state| state.deletions == 2).await;
    let mut received = functions.texts();
    received.retain(|(function, _)| *function != "sweep");
    let mut expected = vec![("turn", FAILING_MESSAGE.to_owned()); DELIVERIES_MAX];
    expected.push(("turn-poison", FAILING_MESSAGE.to_owned()));
    assert_eq!(received, expected);
    let errors = host.errors().await;
    assert_eq!(errors.len(), DELIVERIES_MAX, "{errors:?}");
}

/// The probe has no header of the host.
#[tokio::test]
async fn probe_is_equal_to_the_recorded_one() {
    let cases = read_cases("invocations.jsonl");
    let Some(recorded) = cases.iter().find(|case| name(case) == "probe") else { return };
    let (sender, mut probes) = mpsc::unbounded_channel();
    let sender = Arc::new(sender);
    let router = Router::new().fallback(move |request: Request| {
        let sender = Arc::clone(&sender);
        async move {
            let _ = sender.send(MaskedRequest::received(request).await);
            ok_response()
        }
    });
    let mut config = TestHostConfig::default();
    // The timer would run within the test.
    config.root.functions.remove("sweep");
    let _host = TestHost::start_with(router, config).await;
    assert_eq!(next_request(&mut probes).await, MaskedRequest::recorded(recorded));
}

#[tokio::test]
async fn recorded_timer_runs_get_equal_envelopes() {
    let cases = read_cases("invocations.jsonl");
    let Some(recorded) = cases.iter().find(|case| name(case) == "admin-sweep-text") else { return };
    let (sender, mut requests) = mpsc::unbounded_channel();
    let router = Router::new().fallback(move |request: Request| {
        let sender = sender.clone();
        async move {
            let received = MaskedRequest::received(request).await;
            if received.body["Metadata"]["timer"].is_string() {
                sender.send(received).unwrap();
            }
            ok_response()
        }
    });
    let host = TestHost::start_with(router, lenient_config()).await;
    assert_eq!(host.post("/admin/functions/sweep", r#"{"input":"x"}"#).await.0, 202);
    assert_eq!(next_request(&mut requests).await, MaskedRequest::recorded(recorded));
}
