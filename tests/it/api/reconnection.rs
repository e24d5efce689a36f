//! Tests of reconnecting event streams: no gap and no duplicate after the last event id.

use serde_json::{Value, json};

use super::test_app::{PacedResponse, TestApp, respond_call, respond_text};
use crate::support::event_stream::{EventStream, Frame, frame_ids};

const SETTLED: &str = "agent_settled";

/// Starts a service and completes a prompt with one tool call.
async fn app_with_completed_prompt() -> TestApp {
    let app =
        TestApp::start([respond_call("echo", json!({"value": "x"})), respond_text("Done")]).await;
    let body = json!({"conversationId": "c", "input": "Go"});
    let response = app.post("/api/prompts?wait=60", &[], &body).await;
    assert_eq!(response.body["state"], "completed", "{}", response.body);
    app
}

async fn read_past_events(app: &TestApp) -> Vec<Frame> {
    EventStream::open(&app.service, "c", "?follow=false", None).await.read_rest().await
}

#[tokio::test]
async fn stream_continues_after_last_event_id() {
    let app = app_with_completed_prompt().await;
    let past = read_past_events(&app).await;
    assert_eq!(frame_ids(&past), (1..=past.len() as u64).collect::<Vec<_>>());
    for received in 0..past.len() {
        let after = received as u64;
        let mut stream = EventStream::open(&app.service, "c", "", Some(after)).await;
        assert_eq!(stream.read_until(SETTLED).await, past[received..], "by header, after {after}");
        let query = format!("?follow=false&after={after}");
        let rest = EventStream::open(&app.service, "c", &query, None).await.read_rest().await;
        assert_eq!(rest, past[received..], "by query, after {after}");
    }
    // The header overrides the query.
    let rest = EventStream::open(&app.service, "c", "?follow=false&after=1", Some(5))
        .await
        .read_rest()
        .await;
    assert_eq!(rest, past[5..]);
    app.service.stop().await;
}

#[tokio::test]
async fn stream_ends_when_settled() {
    let app = app_with_completed_prompt().await;
    let past = read_past_events(&app).await;
    let mut stream = EventStream::open(&app.service, "c", "?until=settled", None).await;
    assert_eq!(stream.read_rest().await, past);
    let last = frame_ids(&past).pop();
    let mut over = EventStream::open(&app.service, "c", "?until=settled", last).await;
    assert_eq!((over.status, over.next_frame().await), (204, None));
    let mut before =
        EventStream::open(&app.service, "c", "?until=settled", Some(last.unwrap() - 1)).await;
    assert_eq!((before.status, before.read_rest().await), (200, past[past.len() - 1..].to_vec()));
    app.service.stop().await;
}

#[tokio::test]
async fn reconnecting_after_every_frame_loses_nothing() {
    let app =
        TestApp::start([respond_call("echo", json!({"value": "x"})), respond_text("Done")]).await;
    app.service.post("/api/conversations", &json!({"id": "c"})).await;
    let body = json!({"input": "Go"});
    let path = "/api/conversations/c/prompts";
    let (frames, response) = tokio::join!(read_with_reconnects(&app), app.post(path, &[], &body));
    assert_eq!(response.status, 202);
    let past = read_past_events(&app).await;
    let numbered: Vec<u64> = frame_ids(&frames);
    assert_eq!(numbered, frame_ids(&past), "no gap and no repeat");
    for frame in frames.iter().filter(|frame| frame.id.is_some() && !frame.name.is_empty()) {
        let number = usize::try_from(frame.id.unwrap()).unwrap();
        assert_eq!(frame, &past[number - 1]);
    }
    app.service.stop().await;
}

/// Opens a new connection for every frame with an id, until the agent has settled.
async fn read_with_reconnects(app: &TestApp) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut last = 0;
    loop {
        let mut stream = EventStream::open(&app.service, "c", "", Some(last)).await;
        loop {
            let frame = stream.next_frame().await.expect("a following stream must not end");
            let number = frame.id;
            let is_over = frame.name == SETTLED;
            frames.push(frame);
            if is_over {
                return frames;
            }
            if let Some(number) = number {
                last = number;
                break;
            }
        }
    }
}

#[tokio::test]
async fn late_reader_receives_snapshot_then_deltas() {
    let pieces: Vec<String> = (0..6).map(|number| format!("piece {number}, ")).collect();
    let (paced, play) = PacedResponse::new(&pieces);
    let app = TestApp::start([play]).await;
    app.service.post("/api/conversations", &json!({"id": "c"})).await;
    let mut first = EventStream::open(&app.service, "c", "", None).await;
    let response = app.post("/api/conversations/c/prompts", &[], &json!({"input": "Go"})).await;
    assert_eq!(response.status, 202);
    let begun = first.read_until_response().await;
    let last = frame_ids(&begun).pop();
    paced.release_start();

    let mut expected_text = String::new();
    let mut whole = begun;
    let mut joined = Vec::new();
    for piece in &pieces {
        paced.release_next();
        whole.extend(first.read_until_delta().await);
        expected_text.push_str(piece);
        // Connects, reads the response so far, and stays connected.
        let mut other = EventStream::open(&app.service, "c", "", last).await;
        let frames = other.read_until("message_snapshot").await;
        let snapshot = frames.last().unwrap();
        assert_eq!(snapshot.id, None);
        assert_eq!(snapshot.data["content"], json!([{"type": "text", "text": expected_text}]));
        assert!(frames.iter().all(|frame| frame.name != "message_update"), "{frames:#?}");
        joined.push((other, expected_text.clone(), frames));
    }
    paced.release_all();
    whole.extend(first.read_until(SETTLED).await);
    let past = read_past_events(&app).await;
    assert_eq!(frame_ids(&whole), frame_ids(&past));
    assert_eq!(delta_text(&whole), expected_text);
    for (mut other, mut text, mut frames) in joined {
        let rest = other.read_until(SETTLED).await;
        text.push_str(&delta_text(&rest));
        assert_eq!(text, expected_text, "the snapshot and the later deltas form the whole text");
        frames.extend(rest);
        assert_eq!(frame_ids(&frames), frame_ids(&past)[usize::try_from(last.unwrap()).unwrap()..]);
    }
    app.service.stop().await;
}

/// The text of a response as a client of the protocol shows it.
#[derive(Default)]
struct ShownText {
    text: String,
    resets: usize,
}

impl ShownText {
    fn add(&mut self, frame: &Frame) {
        match frame.name.as_str() {
            "reset" => {
                self.text.clear();
                self.resets += 1;
            }
            "respond" => self.text.push_str(frame.data["content"].as_str().unwrap()),
            _ => {}
        }
    }
}

#[tokio::test]
async fn protocol_reader_that_reconnects_shows_text_once() {
    let pieces: Vec<String> = (0..6).map(|number| format!("piece{number}.")).collect();
    let (paced, play) = PacedResponse::new(&pieces);
    let app = TestApp::start([play]).await;
    app.service.post("/api/conversations", &json!({"id": "c"})).await;
    let query = "?format=protocol&stream=token";
    let mut stream = EventStream::open(&app.service, "c", query, None).await;
    let response = app.post("/api/conversations/c/prompts", &[], &json!({"input": "Go"})).await;
    assert_eq!(response.status, 202);
    paced.release_start();
    let (mut shown, mut expected, mut last) = (ShownText::default(), String::new(), None);
    for piece in &pieces {
        paced.release_next();
        expected.push_str(piece);
        while shown.text.len() < expected.len() {
            let frame = stream.next_frame().await.expect("a following stream must not end");
            last = frame.id.or(last);
            shown.add(&frame);
        }
        assert_eq!(shown.text, expected);
        stream = EventStream::open(&app.service, "c", query, last).await;
    }
    paced.release_all();
    for frame in stream.read_until("end").await {
        shown.add(&frame);
    }
    assert_eq!((shown.text, shown.resets), (expected, pieces.len()), "one for each connection");
    app.service.stop().await;
}

/// The concatenated deltas.
fn delta_text(frames: &[Frame]) -> String {
    let deltas = frames.iter().map(|frame| &frame.data["assistantMessageEvent"]["delta"]);
    deltas.filter_map(Value::as_str).collect()
}

impl EventStream {
    /// Reads up to the start of a model response.
    async fn read_until_response(&mut self) -> Vec<Frame> {
        self.read_until_frame(|frame| {
            frame.name == "message_start" && frame.data["message"]["role"] == "assistant"
        })
        .await
    }

    /// Reads up to the next text delta.
    async fn read_until_delta(&mut self) -> Vec<Frame> {
        self.read_until_frame(|frame| frame.data["assistantMessageEvent"]["type"] == "text_delta")
            .await
    }

    async fn read_until_frame(&mut self, matches: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            let frame = self.next_frame().await.expect("a following stream must not end");
            let is_last = matches(&frame);
            frames.push(frame);
            if is_last {
                return frames;
            }
        }
    }
}
