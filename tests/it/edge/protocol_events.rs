//! Tests of events and history in the form of the streaming text protocol.

use serde_json::{Value, json};

use super::event_streams::{Frame, frames};
use super::test_app::TestApp;

const EVENTS: &str = "/api/conversations/c/events?follow=false&format=protocol";
const HISTORY: &str = "/api/conversations/c/history?format=protocol";

async fn events(app: &TestApp, query: &str) -> Vec<Frame> {
    frames(&app.get(&format!("{EVENTS}{query}")).send().await.expect_status(200).text)
}

/// The events without their times.
fn without_time(events: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let events = events.into_iter().map(|mut event| {
        let time = event.as_object_mut().unwrap().remove("timestamp");
        assert!(time.unwrap().as_f64().unwrap() > 1e9, "seconds since 1970");
        event
    });
    events.collect()
}

#[tokio::test]
async fn prompt_has_the_events_of_the_protocol() {
    let app = TestApp::new();
    app.run("use pay with {\"amount\": 5} then say done").await;
    let frames = events(&app, "").await;
    let named = frames.iter().filter(|frame| !frame.name.is_empty());
    let named: Vec<Value> = without_time(named.map(|frame| frame.data.clone()));
    let kinds: Vec<&str> = named.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let expected = ["user", "call", "execute", "metric", "result", "respond", "metric", "end"];
    assert_eq!(kinds, expected, "{named:?}");
    assert_eq!(named[1]["content"], r#"{"name": "pay", "args": {"amount": 5}}"#);
    let counts = json!({"tools_executed": 1, "success_count": 1, "failure_count": 0});
    assert_eq!(named[4]["payload"], counts);
    let result = named[4]["content"].as_str().unwrap();
    assert!(
        result.starts_with("<results>\n[{\"tool\": \"pay\", \"status\": \"success\""),
        "{result}"
    );
    for total in ["input", "output"] {
        let of_step = |index: usize| named[index]["step"][total].as_u64().unwrap();
        assert_eq!(named[6]["total"][total], of_step(3) + of_step(6));
    }
    // A reader continues after any id, as in the other form.
    let ids: Vec<u64> = frames.iter().filter_map(|frame| frame.id).collect();
    assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<_>>());
    let end = frames.iter().find(|frame| frame.name == "end").unwrap().id.unwrap();
    let rest = events(&app, &format!("&after={}", end - 1)).await;
    assert_eq!(rest[0].name, "end");

    let history = app.get_json(HISTORY).await["items"].as_array().unwrap().clone();
    let stored = ["user", "call", "result", "respond"];
    let of_events = named.into_iter().filter(|event| stored.iter().any(|it| event["type"] == *it));
    assert_eq!(without_time(history), of_events.collect::<Vec<_>>());
}

#[tokio::test]
async fn history_is_read_in_pages() {
    let app = TestApp::new();
    for amount in 1..4 {
        app.run(&format!(
            "use pay with {{\"amount\": {amount}}} and use pay with {{}} then say done"
        ))
        .await;
    }
    let whole = app.get_json(&format!("{HISTORY}&limit=100")).await["items"].clone();
    let (mut seen, mut next) = (Vec::new(), format!("{HISTORY}&limit=2"));
    loop {
        let page = app.get_json(&next).await;
        seen.extend(page["items"].as_array().unwrap().clone());
        let Some(continuation) = page["continuation"].as_str() else { break };
        next = format!("{HISTORY}&limit=2&continuation={continuation}");
    }
    assert_eq!(json!(seen), whole);
    let results = seen.iter().filter(|event| event["type"] == "result");
    let executed: Vec<&Value> = results.map(|it| &it["payload"]["tools_executed"]).collect();
    assert_eq!(executed, [2, 2, 2]);
}

/// The results of a response are stored together: a page never has a part of them.
#[tokio::test]
async fn history_leaves_out_results_of_an_open_batch() {
    let app = TestApp::new();
    app.run("use pay with {\"amount\": 5} and use pay with {\"amount\": 500} then say done").await;
    let kinds = |history: &Value| {
        let items = history["items"].as_array().unwrap();
        items.iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&app.get_json(HISTORY).await), ["user", "call", "call"]);
    let approval = app.get_json("/api/conversations/c").await["pendingApprovals"][0].clone();
    let path = format!("/api/conversations/c/approvals/{}", approval["id"].as_str().unwrap());
    app.post(&path, &json!({"decision": "reject"})).send().await.expect_status(200);
    app.work().await;
    let history = app.get_json(HISTORY).await;
    assert_eq!(kinds(&history), ["user", "call", "call", "result", "respond"]);
    let counts = json!({"tools_executed": 2, "success_count": 1, "failure_count": 1});
    assert_eq!(history["items"][3]["payload"], counts);
}

#[tokio::test]
async fn aborted_prompt_is_interrupted_and_cancelled() {
    let app = TestApp::new();
    app.run("use pay with {\"amount\": 500} then say done").await;
    app.post("/api/conversations/c/abort", &json!({})).send().await.expect_status(202);
    app.work().await;
    let interrupted = events(&app, "").await.into_iter().find(|frame| frame.name == "interrupt");
    let text = "Task interrupted by user";
    assert_eq!(interrupted.unwrap().data["content"], text);
    let history = app.get_json(HISTORY).await["items"].as_array().unwrap().clone();
    let kinds: Vec<&str> = history.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["user", "call", "result", "cancelled"]);
    assert_eq!(history[3]["content"], text);
}

#[tokio::test]
async fn invalid_formats_are_refused() {
    let app = TestApp::new();
    app.run("say done").await;
    for query in ["events?format=xml", "events?stream=token", "history", "history?format=x"] {
        let path = format!("/api/conversations/c/{query}");
        app.get(&path).send().await.expect_problem(400, "bad-request");
    }
    let path = "/api/conversations/c/events?format=protocol&stream=words";
    app.get(path).send().await.expect_problem(400, "bad-request");
}

#[tokio::test]
async fn only_token_mode_sends_texts_in_pieces() {
    for (mode, is_in_pieces) in [("none", false), ("event", false), ("token", true)] {
        let app = TestApp::new();
        app.prompt("say one two three four five six seven").await;
        let path =
            format!("/api/conversations/c/events?until=settled&format=protocol&stream={mode}");
        let (response, ()) = tokio::join!(app.get(&path).send(), app.work());
        let received = frames(&response.expect_status(200).text);
        let texts = received.iter().filter(|frame| frame.name == "respond");
        let texts: Vec<&str> = texts.map(|frame| frame.data["content"].as_str().unwrap()).collect();
        assert!(texts.concat().contains("one two three four five six seven"), "{mode}: {texts:?}");
        assert_eq!(texts.len() > 1, is_in_pieces, "{mode}: {texts:?}");
        assert!(received.iter().any(|frame| frame.name == "end"), "{mode}: {received:?}");
    }
}
