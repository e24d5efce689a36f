//! Cases of the loop: live and stored events, model requests, the record, and tool runs.

use serde_json::{Value, json};

use super::actions::{self, ActionResults};
use super::case::Case;
use super::compare::assert_same;
use super::notation::{self, is_live_only, sequential_order};
use super::protocol::{self, Translation};
use super::test_app::{CONVERSATION, CaseConfig, TestApp};
use crate::support::event_stream::{EventStream, Frame, frame_ids};

pub(super) async fn run_case(case: &Case) {
    let plays = protocol::model_script(case);
    let loop_kind = if case.is_protocol() { "protocol" } else { "agent" };
    let config = CaseConfig { messages: history(case), ..CaseConfig::for_loop(loop_kind) };
    let app = TestApp::start(case, plays, config).await;
    let stream = EventStream::open(&app.service, CONVERSATION, "", None).await;
    let ActionResults { live, errors } = actions::perform_actions(case, &app, stream).await;
    check_results(case, &app, &live, &errors).await;
    app.service.stop().await;
}

/// Maps an error text of the source to that of the API, which names no functions of a language. The
/// in-process `Agent` keeps the source's text.
fn api_error_text(refused: &str) -> &str {
    match refused {
        "Agent is already processing. Wait for completion before continuing."
        | "Agent is already processing a prompt. Use steer() or followUp() to queue messages, or wait for completion." => {
            "A prompt is already running in this conversation"
        }
        refused => refused,
    }
}

/// Compares events, stored events, requests, messages and tool runs with the case.
pub(super) async fn check_results(case: &Case, app: &TestApp, live: &[Frame], errors: &[String]) {
    let id = case.id();
    let stored = EventStream::open(&app.service, CONVERSATION, "?follow=false", None)
        .await
        .read_rest()
        .await;

    let translation = Translation::new(case, &app.messages().await);
    let expected = &translation.expected(&with_http_error_text(case));
    let events = expected_events(case, expected);
    let live_events = translation.restore_ids(&notation::events(live));
    assert_same(&format!("{id}: events as they happen"), &live_events, &events);
    let stored_events: Vec<Value> =
        events.iter().filter(|event| !is_live_only(event)).cloned().collect();
    let actual_events = translation.restore_ids(&notation::events(&stored));
    assert_same(&format!("{id}: stored events"), &actual_events, &stored_events);
    let count = stored.len() as u64;
    assert_eq!(frame_ids(&stored), (1..=count).collect::<Vec<_>>(), "{id}: stored event numbers");
    assert_eq!(frame_ids(live), (1..=count).collect::<Vec<_>>(), "{id}: live event numbers");

    let list = |name: &str| expected[name].as_array().unwrap().clone();
    let expected_errors = expected["errors"].as_array().cloned().unwrap_or_default();
    assert_eq!(errors.len(), expected_errors.len(), "{id}: errors {errors:?}");
    for (actual, expected_errors) in errors.iter().zip(&expected_errors) {
        let expected_errors = api_error_text(expected_errors.as_str().unwrap());
        assert!(
            actual.contains(expected_errors),
            "{id}: {actual} does not contain {expected_errors}"
        );
    }
    let bodies = app.model.request_bodies();
    let requests: Vec<Value> = bodies.iter().map(|body| translation.request(body)).collect();
    assert_same(&format!("{id}: requests"), &requests, &list("model_requests"));
    let messages: Vec<Value> = app.messages().await.iter().map(notation::message).collect();
    let messages = translation.restore_ids(&messages);
    assert_same(&format!("{id}: messages"), &messages, &list("messages_after"));
    let mut runs: Vec<Value> = list("tool_runs").iter().map(tool_run).collect();
    // The cases do not list the runs of `prog`.
    let mut ran: Vec<Value> =
        app.runs().into_iter().filter(|run| run != "prog").map(Value::from).collect();
    if case.is_parallel() {
        // The start order of parallel calls is not specified.
        runs.sort_by_key(Value::to_string);
        ran.sort_by_key(Value::to_string);
    }
    assert_same(&format!("{id}: tool runs"), &ran, &runs);
    assert_end_state(app, expected).await;
}

async fn assert_end_state(app: &TestApp, expected: &Value) {
    let path = format!("/api/conversations/{CONVERSATION}");
    let conversation = app.service.get(&path).await;
    assert_eq!(conversation["state"], "idle");
    let last = conversation["prompts"].as_array().unwrap().last().unwrap();
    let prompt_id = last["id"].as_str().unwrap();
    let prompt = app.service.get(&format!("{path}/prompts/{prompt_id}")).await;
    let error = &expected["state_after"]["error"];
    match error.as_str() {
        None => assert_eq!(prompt["state"], "completed", "{prompt}"),
        // A requested abort is not an error of the prompt.
        Some("Request was aborted") => assert_eq!(prompt["state"], "aborted", "{prompt}"),
        Some(_) => {
            assert_eq!(prompt["state"], "failed", "{prompt}");
            assert_eq!(&prompt["error"]["message"], error, "{prompt}");
        }
    }
}

/// Returns the expected events in this service's order. Calls run in sequence unless a setting says
/// otherwise, and a response that failed before its first event is a message and a turn.
pub(super) fn expected_events(case: &Case, expected: &Value) -> Vec<Value> {
    let mut events = expected["events"].as_array().unwrap().clone();
    if case.is_from_later_release() && !case.is_parallel() {
        events = sequential_order(&events);
    }
    let failed = expected["messages_after"].as_array().unwrap().iter().rfind(|message| {
        message["stop"] == "error" && events.iter().all(|event| event["role"] != "assistant")
    });
    if let Some(failed) = failed {
        let mut end = failed.clone();
        end["type"] = json!("message_end");
        let last = events.len() - 1;
        events.splice(
            last..,
            [
                json!({"type": "message_start", "role": "assistant"}),
                end,
                json!({"type": "turn_end", "stop": "error", "tool_results": []}),
                json!({"type": "agent_end", "messages": ["user", "assistant"]}),
            ],
        );
    }
    events
}

/// Replaces an error that the source's stream function throws: here it is a rejected HTTP request.
pub(super) fn with_http_error_text(case: &Case) -> Value {
    let mut expected = case.expected().clone();
    let script = case.given("model_script").as_array().unwrap();
    if script.iter().any(Value::is_string) {
        let text = format!("HTTP 400: {}", expected["state_after"]["error"].as_str().unwrap());
        for message in expected["messages_after"].as_array_mut().unwrap() {
            if message["stop"] == "error" {
                message["error"] = json!(text);
            }
        }
        expected["state_after"]["error"] = json!(text);
    }
    expected
}

/// Converts `["echo", {"value": "x"}]` to the notation of the test tools.
pub(super) fn tool_run(run: &Value) -> Value {
    let name = run[0].as_str().unwrap();
    let value = run[1]["value"].as_str().or(run[1].as_str());
    Value::from(value.map_or_else(|| name.to_owned(), |value| format!("{name} {value}")))
}

/// Parses the history of a case; a line is such as `user: o1`.
pub(super) fn history(case: &Case) -> Vec<Value> {
    let lines = case.given("history").as_array().cloned().unwrap_or_default();
    lines.iter().map(|line| parse_message(line.as_str().unwrap())).collect()
}

fn parse_message(line: &str) -> Value {
    let (role, text) = line.split_once(": ").unwrap();
    match role {
        "user" => json!({"role": "user", "content": text, "timestamp": 1}),
        "assistant" => json!({
            "role": "assistant", "content": [{"type": "text", "text": text}], "timestamp": 1,
            "api": "openai-responses", "provider": "openai", "model": "gpt-4o", "stopReason": "stop",
        }),
        other => panic!("unknown role: {other}"),
    }
}
