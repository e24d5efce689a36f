//! Tests of event streams: durable events once and in order on any instance, live events without
//! duplicates.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use turnwheel::events::AssistantMessageEvent;
use turnwheel::testing::ids::{EntryId, PromptId};
use turnwheel::testing::live::{LiveEvent, LiveResponse, ModelIdentity};
use turnwheel::testing::queries::event_stream::{EventReader, StreamEnd};

use super::test_app::TestApp;

/// One frame: its id, name and data. A frame with only an id has no name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Frame {
    pub(super) id: Option<u64>,
    pub(super) name: String,
    pub(super) data: Value,
}

pub(super) fn frames(text: &str) -> Vec<Frame> {
    text.split("\n\n")
        .filter(|frame| frame.contains("id:") || frame.contains("event:"))
        .map(|frame| {
            let line =
                |name: &str| frame.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            Frame {
                id: line("id:").map(|id| id.parse().unwrap()),
                name: line("event:").unwrap_or_default().to_owned(),
                data: line("data:").map_or(Value::Null, |data| serde_json::from_str(data).unwrap()),
            }
        })
        .collect()
}

const PAST: &str = "/api/conversations/c/events?follow=false";
const FOLLOW: &str = "/api/conversations/c/events?until=settled";

/// Browsers pass frames with a name only to the listeners of that name.
#[tokio::test]
async fn frames_have_no_names_on_request() {
    let app = TestApp::new();
    app.run("say hello").await;
    for path in [PAST.to_owned(), format!("{PAST}&format=protocol")] {
        let named = app.get(&path).send().await.expect_status(200).text;
        let unnamed = app.get(&format!("{path}&events=message")).send().await.expect_status(200);
        let lines = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| !line.starts_with("event:"));
            lines.map(str::to_owned).collect()
        };
        assert!(named.contains("\nevent: ") && !unnamed.text.contains("event: "), "{named}");
        assert_eq!(lines(&unnamed.text), lines(&named));
    }
    let other = app.get(&format!("{PAST}&events=named")).send().await;
    other.expect_problem(400, "bad-request");
}

#[tokio::test]
async fn past_events_are_streamed_in_order_with_content() {
    let app = TestApp::new();
    app.run("use pay with {\"amount\": 5} then say done").await;
    let response = app.get(PAST).send().await.expect_status(200);
    assert_eq!(response.header("content-type"), "text/event-stream");
    assert!(response.text.starts_with("retry: 1000\n\n"), "{}", response.text);
    let received = frames(&response.text);
    let ids: Vec<u64> = received.iter().filter_map(|frame| frame.id).collect();
    assert_eq!(ids, (1..=received.len() as u64).collect::<Vec<_>>());
    for frame in &received {
        assert_eq!(frame.data["type"], frame.name.as_str());
        assert!(frame.data["at"].as_str().unwrap().ends_with('Z') && frame.data["turn"].is_u64());
    }
    let one = |name: &str| {
        received
            .iter()
            .find(|frame| frame.name == name)
            .unwrap_or_else(|| panic!("no {name}"))
            .data
            .clone()
    };
    assert_eq!(one("tool_execution_start")["args"], json!({"amount": 5}));
    assert!(
        one("tool_execution_end")["result"]["content"][0]["text"].as_str().unwrap().contains("R-1")
    );
    assert_eq!(one("message_end")["message"]["role"], "user");
    assert_eq!(one("prompt.output")["output"]["function"], "pay");
    assert_eq!(one("turn_end")["toolResults"][0]["toolName"], "pay");
    assert_eq!(one("agent_end")["messages"].as_array().unwrap().len(), 4);
    assert_eq!(one("prompt.completed")["state"], "completed");
    assert_eq!(received.last().unwrap().name, "agent_settled");
}

#[tokio::test]
async fn any_instance_resumes_after_any_event_id() {
    let app = TestApp::new();
    app.run("use pay with {\"amount\": 5} then say done").await;
    let whole = frames(&app.get(PAST).send().await.expect_status(200).text);
    let other = app.second_instance();
    for after in 0..=whole.len() {
        let text = other.get(&format!("{PAST}&after={after}")).send().await.expect_status(200).text;
        assert_eq!(frames(&text), whole[after..], "after {after}");
        let text = other
            .get(&format!("{PAST}&after=0"))
            .header("last-event-id", &after.to_string())
            .send()
            .await
            .expect_status(200)
            .text;
        assert_eq!(frames(&text), whole[after..], "`Last-Event-ID` must override the query");
    }
    app.get(&format!("{PAST}&after={}", whole.len() + 1))
        .send()
        .await
        .expect_problem(400, "bad-request");
    app.get(&format!("{PAST}&after=x")).send().await.expect_problem(400, "bad-request");
    app.get("/api/conversations/other/events").send().await.expect_problem(404, "not-found");
}

/// The head has the spans of the last 20 prompts. Details of older ones come from the entries.
#[tokio::test]
async fn events_of_old_prompts_keep_their_details() {
    let app = TestApp::new();
    app.run("use pay with {\"amount\": 5} then say done").await;
    app.run("fail finally").await;
    let fresh = frames(&app.get(PAST).send().await.expect_status(200).text);
    let of_kind = |name: &str| -> Vec<&Value> {
        fresh.iter().filter(|frame| frame.name == name).map(|frame| &frame.data).collect()
    };
    for created in of_kind("prompt.created") {
        assert!(created["source"] == "user" && created["model"].is_string(), "{created}");
    }
    let [completed] = of_kind("prompt.completed")[..] else { panic!("{fresh:#?}") };
    assert_eq!(
        (&completed["state"], &completed["stopReason"]),
        (&json!("completed"), &json!("end"))
    );
    assert_eq!(completed["resolvedModel"], "scripted");
    let [failed] = of_kind("prompt.error")[..] else { panic!("{fresh:#?}") };
    assert_eq!((&failed["state"], &failed["stopReason"]), (&json!("failed"), &json!("error")));
    assert!(failed["error"]["message"].is_string(), "{failed}");
    for number in 0..25 {
        app.run(&format!("say {number}")).await;
    }
    let replayed = frames(&app.get(PAST).send().await.expect_status(200).text);
    assert_eq!(replayed[..fresh.len()], fresh);
    let ended = replayed.iter().filter(|frame| frame.data["state"] == "completed").count();
    assert_eq!(ended, 26);
}

#[tokio::test]
async fn stream_ends_when_settled() {
    let app = TestApp::new();
    app.prompt("say hello").await;
    let (response, ()) = tokio::join!(app.get(FOLLOW).send(), app.work());
    let received = frames(&response.expect_status(200).text);
    assert_eq!(received.last().unwrap().name, "agent_settled");
    let after = received.iter().filter_map(|frame| frame.id).max().unwrap();
    let path = format!("{FOLLOW}&after={after}");
    app.get(&path).send().await.expect_status(204);
    // A client that is no `EventSource` takes 204 for an error.
    let events = "/api/conversations/c/events?until=agent_settled";
    let again = app.get(events).header("last-event-id", &after.to_string()).send().await;
    let again = again.expect_status(200);
    assert_eq!(again.header("content-type"), "text/event-stream");
    let again = frames(&again.text);
    assert_eq!(again.len(), 1, "{again:?}");
    assert_eq!((again[0].name.as_str(), again[0].id), ("agent_settled", Some(after)));
    assert_eq!(again[0].data["promptId"], received.last().unwrap().data["promptId"]);
    let whole = app.get(events).send().await.expect_status(200);
    assert_eq!(frames(&whole.text).len() as u64, after, "the first request gets all events");
    app.prompt("say more").await;
    let (response, ()) = tokio::join!(app.get(&path).send(), app.work());
    let received = frames(&response.expect_status(200).text);
    assert_eq!(received.last().unwrap().name, "agent_settled");
    let after = received.iter().filter_map(|frame| frame.id).max().unwrap();
    let path = format!("/api/conversations/c/events?until=settled&after={after}");
    app.post("/api/conversations/c/compact", &json!({})).send().await.expect_status(202);
    let (response, ()) = tokio::join!(app.get(&path).send(), app.work());
    let received = frames(&response.expect_status(200).text);
    let received: Vec<&str> = received.iter().map(|frame| frame.name.as_str()).collect();
    assert_eq!(received, ["auto_compaction_start", "auto_compaction_end", "agent_settled"]);
}

#[tokio::test]
async fn live_events_are_not_sent_twice() {
    let app = TestApp::new();
    app.prompt("use pay with {\"amount\": 5} then say one two three").await;
    let stream = app.get("/api/conversations/c/events?until=settled").send();
    let (response, ()) = tokio::join!(stream, app.work());
    let received = frames(&response.expect_status(200).text);
    let ids: Vec<u64> = received.iter().filter_map(|frame| frame.id).collect();
    assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<_>>(), "ids must be consecutive");
    let deltas = received.iter().filter(|frame| frame.name == "message_update").count();
    assert!(deltas > 2, "the model response must be streamed: {received:#?}");
    assert!(
        received.iter().any(|frame| frame.name.is_empty()),
        "events already sent live must become frames with only an id"
    );
    // Each message starts and ends once, and each turn starts once, as in the durable events.
    let past = frames(&app.get(PAST).send().await.expect_status(200).text);
    for name in ["message_start", "message_end", "turn_start", "turn_end"] {
        let count = |frames: &[Frame]| frames.iter().filter(|frame| frame.name == name).count();
        assert_eq!(count(&received), count(&past), "{name}");
    }
    let named: BTreeSet<&str> = received.iter().map(|frame| frame.name.as_str()).collect();
    assert!(named.contains("message_update"));
    // Every delta is between the start and the end of its message.
    let mut open: Option<String> = None;
    for frame in &received {
        let id = frame.data["messageId"].as_str().map(ToOwned::to_owned);
        match frame.name.as_str() {
            "message_start" => open = id,
            "message_update" => assert_eq!(open, id),
            "message_end" => open = None,
            _ => {}
        }
    }
}

/// The response `0a0b0c0d` of prompt `pr_1` in turn 1, or of `pr_2` in turn 2.
fn live_response(turn: u64) -> LiveResponse {
    LiveResponse {
        epoch: 1,
        event_seq: 0,
        message_id: EntryId::new("0a0b0c0d"),
        number: turn,
        prompt_id: PromptId::new(format!("pr_{turn}")),
        turn,
        is_turn_start: true,
        is_agent_start: false,
        identity: ModelIdentity::default(),
    }
}

#[tokio::test]
async fn late_reader_receives_response_snapshot() {
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let (key, message_id) = (TestApp::conversation_key(), EntryId::new("0a0b0c0d"));
    let delta = |text: &str| LiveEvent::Delta {
        message_id: message_id.clone(),
        event: AssistantMessageEvent::TextDelta { content_index: 0, delta: text.to_owned() },
    };
    app.services.live.publish(&key, LiveEvent::ResponseStarted(live_response(1)));
    let start = LiveEvent::Delta {
        message_id: message_id.clone(),
        event: AssistantMessageEvent::TextStart { content_index: 0 },
    };
    app.services.live.publish(&key, start);
    app.services.live.publish(&key, delta("Hel"));
    let response = app.get("/api/conversations/c/events").send_streaming().await;
    let mut body = response.into_body().into_data_stream();
    let mut text = String::new();
    while !text.contains("message_snapshot") {
        text.push_str(&utf8(&body.next().await.unwrap().unwrap()));
    }
    app.services.live.publish(&key, delta("lo"));
    while !text.contains("message_update") {
        text.push_str(&utf8(&body.next().await.unwrap().unwrap()));
    }
    let received = frames(&text);
    let names: Vec<&str> = received.iter().map(|frame| frame.name.as_str()).collect();
    assert_eq!(names, ["turn_start", "message_start", "message_snapshot", "message_update"]);
    assert_eq!(received[2].data["content"][0]["text"], "Hel");
    assert_eq!(received[3].data["assistantMessageEvent"]["delta"], "lo");
    assert_eq!(received[3].data["promptId"], "pr_1");
}

/// The commit before a response may be announced before the reader subscribes: its events come first.
#[tokio::test]
async fn stored_events_precede_response_that_began_after_them() {
    let app = TestApp::new();
    app.run("say hello").await;
    let stored = frames(&app.get(PAST).send().await.expect_status(200).text);
    let begin = |event_seq| {
        let response = LiveResponse { event_seq, is_turn_start: false, ..live_response(2) };
        let event = LiveEvent::ResponseStarted(response);
        app.services.live.publish(&TestApp::conversation_key(), event);
    };
    for last_id in [0, 2, stored.len()] {
        let request = app.get("/api/conversations/c/events");
        let request = request.header("last-event-id", &last_id.to_string());
        // It subscribes here, and reads when its body is read.
        let mut body = request.send_streaming().await.into_body().into_data_stream();
        begin(stored.len() as u64);
        let mut text = String::new();
        while !text.contains("0a0b0c0d") {
            text.push_str(&utf8(&body.next().await.unwrap().unwrap()));
        }
        let mut received = frames(&text);
        assert_eq!(received.pop().unwrap().name, "message_start", "{text}");
        assert_eq!(received, stored[last_id..], "{text}");
    }
}

/// An announced event is not stored if the conversation was deleted meanwhile. It costs no reads
/// without a pause: this clock stands still while a task runs.
#[tokio::test(start_paused = true)]
async fn announced_event_that_is_not_stored_is_not_awaited() {
    let app = TestApp::new();
    app.run("say hello").await;
    let stored = frames(&app.get(PAST).send().await.expect_status(200).text);
    let response = app.get("/api/conversations/c/events").send_streaming().await;
    let announced =
        LiveEvent::Committed { event_seq: 99, running_prompt: None, ended_response: None };
    app.services.live.publish(&TestApp::conversation_key(), announced);
    let (chunks, end) = read_timed_chunks(response.into_body()).await;
    let text: String = chunks.iter().map(|(_, text)| &**text).collect();
    let received: Vec<Frame> =
        frames(&text).into_iter().filter(|frame| frame.id.is_some()).collect();
    assert_eq!((received, end), (stored, 200), "{text}");
}

/// A reader that reconnects during a model response sends its last event id. Live events have no
/// id, so they are sent again under the same names. A snapshot replaces the text sent before.
#[tokio::test]
async fn reconnecting_reader_receives_current_snapshot() {
    for begins_turn in [true, false] {
        let app = TestApp::new();
        app.run("say hello").await;
        let (key, message_id) = (TestApp::conversation_key(), EntryId::new("0a0b0c0d"));
        let delta = |text: &str| LiveEvent::Delta {
            message_id: message_id.clone(),
            event: AssistantMessageEvent::TextEnd { content_index: 0, content: text.to_owned() },
        };
        let last = frames(&app.get(PAST).send().await.expect_status(200).text).len().to_string();
        let until = async |word: &str| {
            let reader = app
                .get("/api/conversations/c/events")
                .header("last-event-id", &last)
                .send_streaming()
                .await;
            let mut body = reader.into_body().into_data_stream();
            let mut text = String::new();
            while !text.contains(word) {
                text.push_str(&utf8(&body.next().await.unwrap().unwrap()));
            }
            frames(&text)
        };
        app.services.live.publish(
            &key,
            LiveEvent::ResponseStarted(LiveResponse {
                is_turn_start: begins_turn,
                identity: ModelIdentity { model: "m".to_owned(), ..ModelIdentity::default() },
                ..live_response(2)
            }),
        );
        app.services.live.publish(&key, delta("Hel"));
        let before = until("message_snapshot").await;
        app.services.live.publish(&key, delta("Hello"));
        let again = until("message_snapshot").await;
        // A turn started by a numbered event is not started again.
        let begun = if begins_turn { vec!["turn_start"] } else { Vec::new() };
        let expected = [begun, vec!["message_start", "message_snapshot"]].concat();
        for received in [&before, &again] {
            assert_eq!(received.iter().map(|frame| &*frame.name).collect::<Vec<_>>(), expected);
            assert!(received.iter().all(|frame| frame.id.is_none() && frame.data["turn"] == 2));
            let start = received.iter().find(|frame| frame.name == "message_start").unwrap();
            assert_eq!(start.data["messageId"], "0a0b0c0d");
            assert_eq!(start.data["message"]["model"], "m");
        }
        assert_eq!(again.last().unwrap().data["content"][0]["text"], "Hello");
    }
}

fn utf8(bytes: &Bytes) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Chunks of a stream with their arrival in seconds, and the second at which the stream ended.
async fn read_timed_chunks(body: axum::body::Body) -> (Vec<(u64, String)>, u64) {
    let began = tokio::time::Instant::now();
    let mut chunks = Vec::new();
    let mut body = body.into_data_stream();
    while let Some(chunk) = body.next().await {
        chunks.push((began.elapsed().as_secs(), utf8(&chunk.unwrap())));
    }
    (chunks, began.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn silent_stream_sends_pings_until_200_seconds() {
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    for (query, data) in [
        ("", r#"{"type":"ping"}"#),
        ("?format=protocol", r#"{"type":"ping","timestamp":1700000000.0}"#),
    ] {
        let path = format!("/api/conversations/c/events{query}");
        let body = app.get(&path).send_streaming().await.into_body();
        let (chunks, ended_at) = read_timed_chunks(body).await;
        assert_eq!(ended_at, 200);
        assert_eq!(chunks[0], (0, "retry: 1000\n\n".to_owned()));
        let pings: Vec<u64> = chunks[1..]
            .iter()
            .map(|(at, text)| {
                assert_eq!(text, &format!("event: ping\ndata: {data}\n\n"));
                *at
            })
            .collect();
        assert_eq!(pings, (15..200).step_by(15).collect::<Vec<u64>>());
    }
}

#[tokio::test(start_paused = true)]
async fn in_process_reader_has_no_time_limit() {
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let mut feed = EventReader::new(
        (*app.services).clone(),
        TestApp::conversation_key(),
        0,
        StreamEnd::OnDrop,
    );
    let ends = async { while feed.next().await.is_some() {} };
    let hour = std::time::Duration::from_hours(1);
    assert!(tokio::time::timeout(hour, ends).await.is_err(), "the stream must not end");
}

#[tokio::test]
async fn streams_above_instance_limit_are_rejected() {
    const STREAMS_MAX: usize = 500;
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let path = "/api/conversations/c/events";
    let mut open = Vec::new();
    for _ in 0..STREAMS_MAX {
        open.push(app.get(path).send_streaming().await);
        assert_eq!(open.last().unwrap().status(), 200);
    }
    let refused = app.get(path).send().await;
    assert_eq!(refused.header("retry-after"), "5");
    let problem = refused.expect_problem(503, "unavailable");
    assert!(problem["detail"].as_str().unwrap().contains("500 event streams"), "{problem}");
    open.pop();
    app.get(PAST).send().await.expect_status(200);
    open.push(app.get(path).send_streaming().await);
    assert_eq!(open.last().unwrap().status(), 200, "a closed stream must free its slot");
}
