//! Retries of failed model calls through the whole service: events, the record, the next request,
//! and a worker that is killed meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turnwheel::App;

use crate::support::fake_model::{FakeModel, Play, Script};
use crate::support::process::Dev;
use crate::support::service::Service;
use crate::support::stream::{Frame, Stream, numbers};

const AGENT: &str = "---\ndescription: Answers.\nmodel: gpt-5-mini\n---\nBe brief.\n";

struct Stage {
    service: Service,
    model: FakeModel,
    _folder: tempfile::TempDir,
}

impl Stage {
    /// Creates the conversation `c` with these retry settings.
    async fn set(plays: Vec<Play>, retry: Value) -> Self {
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

fn says(text: &str) -> Play {
    Play::Answer(Script::text(text))
}

/// A response that starts with this text and then fails.
fn breaks_off(text: &str, error: &str) -> Play {
    Play::Answer(Script { error: Some(error.to_owned()), ..Script::text(text) })
}

fn refuses(status: u16, headers: &[(&str, &str)], body: &Value) -> Play {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Play::Http { status, headers: headers.collect(), body: body.to_string() }
}

fn names(frames: &[Frame]) -> Vec<&str> {
    let named = frames.iter().filter(|frame| !matches!(frame.name.as_str(), "" | "message_update"));
    named.map(|frame| frame.name.as_str()).collect()
}

fn named<'a>(frames: &'a [Frame], name: &str) -> Vec<&'a Value> {
    frames.iter().filter(|frame| frame.name == name).map(|frame| &frame.data).collect()
}

#[tokio::test]
async fn an_endpoint_that_fails_twice_is_asked_a_third_time() {
    // A rate limit inside a response with status 200, then one as a status.
    let limited = json!({"type": "error", "error": {"type": "too_many_requests", "code": "too_many_requests", "message": "Slow down"}});
    let mut events = Script::text("par").events();
    events.pop();
    events.push(limited);
    let plays = vec![
        Play::SseEvents(events),
        refuses(503, &[("retry-after-ms", "30")], &json!({"error": {"message": "busy"}})),
        says("all of it"),
    ];
    let stage = Stage::set(plays, json!({"baseDelayMs": 20})).await;
    let mut stream = Stream::open(&stage.service, "c", "", None).await;
    let prompt_id = stage.prompt().await;
    let live = stream.until("agent_settled").await;
    let kept = Stream::open(&stage.service, "c", "?follow=false", None).await.rest().await;

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
    assert_eq!(names(&kept), expected);
    assert_eq!(names(&live), expected, "live events have the same order");
    let count = kept.len() as u64;
    assert_eq!(numbers(&kept), (1..=count).collect::<Vec<_>>());
    assert_eq!(numbers(&live), (1..=count).collect::<Vec<_>>());

    let starts = named(&kept, "auto_retry_start");
    let told: Vec<_> = starts
        .iter()
        .map(|start| {
            (&start["attempt"], &start["maxAttempts"], &start["delayMs"], &start["errorMessage"])
        })
        .collect();
    assert_eq!(
        told,
        [
            (&json!(1), &json!(3), &json!(20), &json!("Error Code too_many_requests: Slow down")),
            (&json!(2), &json!(3), &json!(30), &json!("HTTP 503: busy")),
        ]
    );
    let [end] = named(&kept, "auto_retry_end")[..] else { panic!("one end") };
    assert_eq!((&end["success"], &end["attempt"]), (&json!(true), &json!(2)));
    let ends = named(&kept, "agent_end");
    let ends: Vec<_> = ends
        .iter()
        .map(|end| (end["willRetry"].as_bool().unwrap(), end["messages"].as_array().unwrap().len()))
        .collect();
    assert_eq!(ends, [(true, 2), (true, 1), (false, 1)]);
    let ids: Vec<_> =
        named(&kept, "message_end").iter().map(|end| end["messageId"].clone()).collect();
    let resets: Vec<_> =
        named(&kept, "message_reset").iter().map(|reset| reset["messageId"].clone()).collect();
    assert_eq!(resets, ids[1..3], "failed responses are reset");

    let prompt = stage.service.settled("c", &prompt_id).await;
    assert_eq!((&prompt["state"], &prompt["retry"]), (&json!("completed"), &Value::Null));
    let outputs = prompt["output"].as_array().unwrap();
    assert_eq!((outputs.len(), &outputs[0]["content"]), (1, &json!("all of it")));
    let stops: Vec<_> =
        stage.messages().await.iter().map(|message| message["stopReason"].clone()).collect();
    assert_eq!(stops, [Value::Null, json!("error"), json!("error"), json!("stop")]);
    let requests = stage.model.requests();
    assert_eq!(requests.len(), 3);
    assert!(
        requests.iter().all(|request| request["input"] == requests[0]["input"]),
        "{requests:#?}"
    );
    stage.service.stop().await;
}

#[tokio::test]
async fn tries_that_are_used_up_end_the_prompt_with_the_last_error() {
    let plays = vec![breaks_off("a", "503 one"), breaks_off("b", "503 two"), says("never requested")];
    let stage = Stage::set(plays, json!({"maxRetries": 1, "baseDelayMs": 1})).await;
    let prompt_id = stage.prompt().await;
    let prompt = stage.service.settled("c", &prompt_id).await;
    assert_eq!((&prompt["state"], &prompt["stopReason"]), (&json!("failed"), &json!("error")));
    assert_eq!(prompt["error"], json!({"type": "model", "message": "503 two"}));
    assert_eq!(prompt["output"][0]["content"], "b", "only the output of the last attempt remains");
    assert_eq!(prompt["output"].as_array().unwrap().len(), 1);
    let kept = Stream::open(&stage.service, "c", "?follow=false", None).await.rest().await;
    let [end] = named(&kept, "auto_retry_end")[..] else { panic!("one end") };
    assert_eq!(
        (&end["success"], &end["attempt"], &end["finalError"]),
        (&json!(false), &json!(1), &json!("503 two"))
    );
    assert_eq!(
        names(&kept)[names(&kept).len() - 4..],
        ["agent_end", "auto_retry_end", "prompt.error", "agent_settled"]
    );
    assert_eq!(stage.model.requests().len(), 2);
    stage.service.stop().await;
}

#[tokio::test]
async fn a_quota_that_is_used_up_is_final_and_says_what_to_do() {
    let spent = json!({"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}});
    let stage =
        Stage::set(vec![refuses(429, &[("retry-after", "1")], &spent), says("no")], json!({}))
            .await;
    let prompt_id = stage.prompt().await;
    let prompt = stage.service.settled("c", &prompt_id).await;
    assert_eq!(prompt["state"], "failed");
    let error = prompt["error"]["message"].as_str().unwrap();
    assert!(error.contains("raise the quota of the deployment"), "{error}");
    assert_eq!(stage.model.requests().len(), 1);
    stage.service.stop().await;
}

/// Polls a running `dev` until the response satisfies the condition.
async fn until(dev: &Dev, path: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    let client = reqwest::Client::new();
    loop {
        assert!(Instant::now() < deadline, "{path} never matched: {}", dev.log());
        let answer =
            client.get(dev.url(path)).timeout(Duration::from_secs(5)).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        if is_wanted(&answer) {
            return answer;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_retry_survives_the_worker_that_was_killed_while_it_waited() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(folder.path().join("agents/helper.agent.md"), AGENT).unwrap();
    let model =
        FakeModel::start([refuses(503, &[("retry-after-ms", "1500")], &json!({})), says("done")])
            .await;
    let settings = [
        ("TURNWHEEL_MODEL", "gpt-5-mini".to_owned()),
        ("AZURE_OPENAI_BASE_URL", model.url.clone()),
        ("AZURE_OPENAI_API_KEY", "a-key".to_owned()),
    ];
    let start = |data: &Path| Dev::start_in(folder.path(), data, &settings);
    let data = folder.path().join("data");
    let mut dev = start(&data);
    let body = json!({"conversationId": "c", "input": "go"});
    let accepted = reqwest::Client::new().post(dev.url("/api/prompts")).json(&body).send().await;
    let accepted: Value = accepted.unwrap().json().await.unwrap();
    let path = format!("/api/conversations/c/prompts/{}", accepted["promptId"].as_str().unwrap());
    let waiting = until(&dev, &path, |prompt| !prompt["retry"].is_null()).await;
    assert_eq!((&waiting["state"], &waiting["retry"]["attempt"]), (&json!("running"), &json!(1)));
    dev.kill();
    assert_eq!(model.requests().len(), 1);
    let dev = start(&data);
    let ended = until(&dev, &path, |prompt| prompt["state"] != "running").await;
    assert_eq!(ended["output"][0]["content"], "done", "{ended}");
    let not_before = waiting["retry"]["at"].as_str().unwrap();
    assert!(
        ended["output"][0]["startedAt"].as_str().unwrap() >= not_before,
        "{ended} {not_before}"
    );
    assert_eq!(model.requests().len(), 2);
}
