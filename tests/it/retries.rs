//! Retries of failed model calls through the whole service: events, the record, the next request,
//! and a worker that is killed meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turnwheel::App;

use crate::support::dev_process::DevProcess;
use crate::support::event_stream::{EventStream, Frame, frame_ids};
use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::openapi_check::{self, SendValidated as _};
use crate::support::service::Service;

const AGENT: &str = "---\ndescription: Answers.\nmodel: gpt-5-mini\n---\nBe brief.\n";

struct TestApp {
    service: Service,
    model: FakeModel,
    _folder: tempfile::TempDir,
}

impl TestApp {
    /// Creates the conversation `c` with these retry settings.
    async fn start(plays: Vec<ScriptedResponse>, retry: Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("agents")).unwrap();
        std::fs::write(folder.path().join("agents/helper.agent.md"), AGENT).unwrap();
        let model = FakeModel::start(plays).await;
        let settings =
            [("AZURE_OPENAI_BASE_URL", model.url.as_str()), ("AZURE_OPENAI_API_KEY", "a-key")];
        let service = Service::start(App::new(), folder.path(), &settings).await;
        let body = json!({"id": "c", "settings": {"retry": retry}});
        assert_eq!(service.post("/api/conversations", &body).await.0, 201);
        Self { service, model, _folder: folder }
    }

    async fn prompt(&self) -> String {
        let body = json!({"input": "go"});
        let (status, answer) = self.service.post("/api/conversations/c/prompts", &body).await;
        assert_eq!(status, 202, "{answer}");
        answer["promptId"].as_str().unwrap().to_owned()
    }

    async fn messages(&self) -> Vec<Value> {
        let list = self.service.get("/api/conversations/c/messages").await;
        list["items"].as_array().unwrap().clone()
    }
}

fn text_response(text: &str) -> ScriptedResponse {
    ScriptedResponse::Response(ResponseScript::text(text))
}

/// A response that starts with this text and then fails.
fn broken_response(text: &str, error: &str) -> ScriptedResponse {
    ScriptedResponse::Response(ResponseScript {
        error: Some(error.to_owned()),
        ..ResponseScript::text(text)
    })
}

fn http_error(status: u16, headers: &[(&str, &str)], body: &Value) -> ScriptedResponse {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    ScriptedResponse::Http { status, headers: headers.collect(), body: body.to_string() }
}

fn event_names(frames: &[Frame]) -> Vec<&str> {
    let named = frames.iter().filter(|frame| !matches!(frame.name.as_str(), "" | "message_update"));
    named.map(|frame| frame.name.as_str()).collect()
}

fn event_data<'a>(frames: &'a [Frame], name: &str) -> Vec<&'a Value> {
    frames.iter().filter(|frame| frame.name == name).map(|frame| &frame.data).collect()
}

/// A response with status 200 that fails with a rate limit after its first text.
fn rate_limited_stream() -> ScriptedResponse {
    let limited = json!({"type": "error", "error": {"type": "too_many_requests", "code": "too_many_requests", "message": "Slow down"}});
    let mut events = ResponseScript::text("par").events();
    events.pop();
    events.push(limited);
    ScriptedResponse::SseEvents(events)
}

#[tokio::test]
async fn model_call_is_retried_after_two_failures() {
    let plays = vec![
        rate_limited_stream(),
        http_error(503, &[("retry-after-ms", "30")], &json!({"error": {"message": "busy"}})),
        text_response("all of it"),
    ];
    let app = TestApp::start(plays, json!({"baseDelayMs": 20})).await;
    let mut stream = EventStream::open(&app.service, "c", "", None).await;
    let prompt_id = app.prompt().await;
    let live = stream.read_until("agent_settled").await;
    let stored =
        EventStream::open(&app.service, "c", "?follow=false", None).await.read_rest().await;

    let again = ["agent_start", "turn_start", "message_start", "message_end"];
    let failed = ["turn_end", "agent_end", "message_reset", "auto_retry_start"];
    let mut expected = vec!["prompt.created", "agent_start", "turn_start"];
    expected.extend(["message_start", "message_end", "message_start", "message_end"]);
    expected.extend(failed);
    expected.extend(again);
    expected.extend(failed);
    expected.extend(again);
    expected.extend(["auto_retry_end", "prompt.output", "turn_end", "agent_end"]);
    expected.extend(["prompt.completed", "agent_settled"]);
    assert_eq!(event_names(&stored), expected);
    assert_eq!(event_names(&live), expected, "live events have the same order");
    let count = stored.len() as u64;
    assert_eq!(frame_ids(&stored), (1..=count).collect::<Vec<_>>());
    assert_eq!(frame_ids(&live), (1..=count).collect::<Vec<_>>());

    let starts = event_data(&stored, "auto_retry_start");
    let reported: Vec<_> = starts
        .iter()
        .map(|start| (&start["attempt"], &start["maxAttempts"], &start["errorMessage"]))
        .collect();
    // After 429 and 503 the wait is up to 250 ms longer.
    let delays: Vec<u64> = starts.iter().map(|it| it["delayMs"].as_u64().unwrap()).collect();
    assert!((20..=270).contains(&delays[0]) && (30..=280).contains(&delays[1]), "{delays:?}");
    assert_eq!(
        reported,
        [
            (&json!(1), &json!(3), &json!("Error Code too_many_requests: Slow down")),
            (&json!(2), &json!(3), &json!("HTTP 503: busy")),
        ]
    );
    let [end] = event_data(&stored, "auto_retry_end")[..] else { panic!("one end") };
    assert_eq!((&end["success"], &end["attempt"]), (&json!(true), &json!(2)));
    let ends = event_data(&stored, "agent_end");
    let ends: Vec<_> = ends
        .iter()
        .map(|end| (end["willRetry"].as_bool().unwrap(), end["messages"].as_array().unwrap().len()))
        .collect();
    assert_eq!(ends, [(true, 2), (true, 1), (false, 1)]);
    let ids: Vec<_> =
        event_data(&stored, "message_end").iter().map(|end| end["messageId"].clone()).collect();
    let resets: Vec<_> = event_data(&stored, "message_reset")
        .iter()
        .map(|reset| reset["messageId"].clone())
        .collect();
    assert_eq!(resets, ids[1..3], "failed responses are reset");

    let prompt = app.service.wait_for_prompt("c", &prompt_id).await;
    assert_eq!((&prompt["state"], &prompt["retry"]), (&json!("completed"), &Value::Null));
    let outputs = prompt["output"].as_array().unwrap();
    assert_eq!((outputs.len(), &outputs[0]["content"]), (1, &json!("all of it")));
    let stops: Vec<_> =
        app.messages().await.iter().map(|message| message["stopReason"].clone()).collect();
    assert_eq!(stops, [Value::Null, json!("error"), json!("error"), json!("stop")]);
    let requests = app.model.request_bodies();
    assert_eq!(requests.len(), 3);
    assert!(
        requests.iter().all(|request| request["input"] == requests[0]["input"]),
        "{requests:#?}"
    );
    app.service.stop().await;
}

#[tokio::test]
async fn exhausted_retries_fail_prompt_with_last_error() {
    let plays = vec![
        broken_response("a", "503 one"),
        broken_response("b", "503 two"),
        text_response("never requested"),
    ];
    let app = TestApp::start(plays, json!({"maxRetries": 1, "baseDelayMs": 1})).await;
    let prompt_id = app.prompt().await;
    let prompt = app.service.wait_for_prompt("c", &prompt_id).await;
    assert_eq!((&prompt["state"], &prompt["stopReason"]), (&json!("failed"), &json!("error")));
    assert_eq!(prompt["error"], json!({"type": "model", "message": "503 two"}));
    assert_eq!(prompt["output"][0]["content"], "b", "only the output of the last attempt remains");
    assert_eq!(prompt["output"].as_array().unwrap().len(), 1);
    let stored =
        EventStream::open(&app.service, "c", "?follow=false", None).await.read_rest().await;
    let [end] = event_data(&stored, "auto_retry_end")[..] else { panic!("one end") };
    assert_eq!(
        (&end["success"], &end["attempt"], &end["finalError"]),
        (&json!(false), &json!(1), &json!("503 two"))
    );
    assert_eq!(
        event_names(&stored)[event_names(&stored).len() - 4..],
        ["agent_end", "auto_retry_end", "prompt.error", "agent_settled"]
    );
    assert_eq!(app.model.request_bodies().len(), 2);
    app.service.stop().await;
}

#[tokio::test]
async fn exhausted_quota_fails_permanently_with_advice() {
    let spent = json!({"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}});
    let app = TestApp::start(
        vec![http_error(429, &[("retry-after", "1")], &spent), text_response("no")],
        json!({}),
    )
    .await;
    let prompt_id = app.prompt().await;
    let prompt = app.service.wait_for_prompt("c", &prompt_id).await;
    assert_eq!(prompt["state"], "failed");
    let error = prompt["error"]["message"].as_str().unwrap();
    assert!(error.contains("raise the quota of the deployment"), "{error}");
    assert_eq!(app.model.request_bodies().len(), 1);
    app.service.stop().await;
}

/// Polls a running `dev` until the response satisfies the condition.
async fn poll_until(dev: &DevProcess, path: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_mins(1);
    let client = reqwest::Client::new();
    loop {
        assert!(Instant::now() < deadline, "{path} never matched: {}", dev.log());
        let request = client.get(dev.url(path)).timeout(Duration::from_mins(1));
        let answer = openapi_check::send(request).await.unwrap().json();
        if is_wanted(&answer) {
            return answer;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn scheduled_retry_survives_worker_kill() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(folder.path().join("agents/helper.agent.md"), AGENT).unwrap();
    let model = FakeModel::start([
        http_error(503, &[("retry-after-ms", "1500")], &json!({})),
        text_response("done"),
    ])
    .await;
    let settings = [
        ("TURNWHEEL_MODEL", "gpt-5-mini".to_owned()),
        ("AZURE_OPENAI_BASE_URL", model.url.clone()),
        ("AZURE_OPENAI_API_KEY", "a-key".to_owned()),
    ];
    let start = |data: &Path| DevProcess::start_in(folder.path(), data, &settings);
    let data = folder.path().join("data");
    let mut dev = start(&data);
    let body = json!({"conversationId": "c", "input": "go"});
    let accepted =
        reqwest::Client::new().post(dev.url("/api/prompts")).json(&body).send_validated().await;
    let accepted: Value = accepted.unwrap().json().await.unwrap();
    let path = format!("/api/conversations/c/prompts/{}", accepted["promptId"].as_str().unwrap());
    let waiting = poll_until(&dev, &path, |prompt| !prompt["retry"].is_null()).await;
    assert_eq!((&waiting["state"], &waiting["retry"]["attempt"]), (&json!("running"), &json!(1)));
    dev.kill();
    assert_eq!(model.request_bodies().len(), 1);
    let dev = start(&data);
    let ended = poll_until(&dev, &path, |prompt| prompt["state"] != "running").await;
    assert_eq!(ended["output"][0]["content"], "done", "{ended}");
    let not_before = waiting["retry"]["at"].as_str().unwrap();
    assert!(
        ended["output"][0]["startedAt"].as_str().unwrap() >= not_before,
        "{ended} {not_before}"
    );
    assert_eq!(model.request_bodies().len(), 2);
}
