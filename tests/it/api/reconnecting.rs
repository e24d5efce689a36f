//! Tests of reconnecting event streams: no gap and no duplicate after the last event id.

use serde_json::{Value, json};

use super::stage::{Paced, Stage, calls, says};
use crate::support::stream::{Frame, Stream, numbers};

const SETTLED: &str = "agent_settled";

/// Starts a service and completes a prompt with one tool call.
async fn told() -> Stage {
    let stage = Stage::set([calls("echo", json!({"value": "x"})), says("Done")]).await;
    let body = json!({"conversationId": "c", "input": "Go"});
    let asked = stage.post("/api/prompts?wait=30", &[], &body).await;
    assert_eq!(asked.body["state"], "completed", "{}", asked.body);
    stage
}

async fn past(stage: &Stage) -> Vec<Frame> {
    Stream::open(&stage.service, "c", "?follow=false", None).await.rest().await
}

#[tokio::test]
async fn cut_after_any_event_the_stream_goes_on_with_the_next() {
    let stage = told().await;
    let past = past(&stage).await;
    assert_eq!(numbers(&past), (1..=past.len() as u64).collect::<Vec<_>>());
    for seen in 0..past.len() {
        let after = seen as u64;
        let mut stream = Stream::open(&stage.service, "c", "", Some(after)).await;
        assert_eq!(stream.until(SETTLED).await, past[seen..], "by header, after {after}");
        let query = format!("?follow=false&after={after}");
        let rest = Stream::open(&stage.service, "c", &query, None).await.rest().await;
        assert_eq!(rest, past[seen..], "by query, after {after}");
    }
    // The header overrides the query.
    let rest =
        Stream::open(&stage.service, "c", "?follow=false&after=1", Some(5)).await.rest().await;
    assert_eq!(rest, past[5..]);
    stage.service.stop().await;
}

#[tokio::test]
async fn until_settled_ends_and_then_there_is_nothing() {
    let stage = told().await;
    let past = past(&stage).await;
    let mut stream = Stream::open(&stage.service, "c", "?until=settled", None).await;
    assert_eq!(stream.rest().await, past);
    let last = numbers(&past).pop();
    let mut over = Stream::open(&stage.service, "c", "?until=settled", last).await;
    assert_eq!((over.status, over.next().await), (204, None));
    let mut before =
        Stream::open(&stage.service, "c", "?until=settled", Some(last.unwrap() - 1)).await;
    assert_eq!((before.status, before.rest().await), (200, past[past.len() - 1..].to_vec()));
    stage.service.stop().await;
}

#[tokio::test]
async fn a_line_that_breaks_after_every_frame_loses_nothing_while_it_happens() {
    let stage = Stage::set([calls("echo", json!({"value": "x"})), says("Done")]).await;
    stage.service.post("/api/conversations", &json!({"id": "c"})).await;
    let body = json!({"input": "Go"});
    let path = "/api/conversations/c/prompts";
    let (heard, asked) = tokio::join!(hear_in_pieces(&stage), stage.post(path, &[], &body));
    assert_eq!(asked.status, 202);
    let past = past(&stage).await;
    let numbered: Vec<u64> = numbers(&heard);
    assert_eq!(numbered, numbers(&past), "no gap and no repeat");
    for frame in heard.iter().filter(|frame| frame.id.is_some() && !frame.name.is_empty()) {
        let number = usize::try_from(frame.id.unwrap()).unwrap();
        assert_eq!(frame, &past[number - 1]);
    }
    stage.service.stop().await;
}

/// Opens a new connection for every frame with an id, until the agent has settled.
async fn hear_in_pieces(stage: &Stage) -> Vec<Frame> {
    let mut heard = Vec::new();
    let mut last = 0;
    loop {
        let mut stream = Stream::open(&stage.service, "c", "", Some(last)).await;
        loop {
            let frame = stream.next().await.expect("a following stream must not end");
            let number = frame.id;
            let is_over = frame.name == SETTLED;
            heard.push(frame);
            if is_over {
                return heard;
            }
            if let Some(number) = number {
                last = number;
                break;
            }
        }
    }
}

#[tokio::test]
async fn who_joins_in_the_middle_of_an_answer_gets_it_so_far_and_then_only_what_comes() {
    let pieces: Vec<String> = (0..6).map(|number| format!("piece {number}, ")).collect();
    let (paced, play) = Paced::answer(&pieces);
    let stage = Stage::set([play]).await;
    stage.service.post("/api/conversations", &json!({"id": "c"})).await;
    let mut first = Stream::open(&stage.service, "c", "", None).await;
    let asked = stage.post("/api/conversations/c/prompts", &[], &json!({"input": "Go"})).await;
    assert_eq!(asked.status, 202);
    let begun = first.until_answer().await;
    let last = numbers(&begun).pop();
    paced.begin();

    let mut said = String::new();
    let mut whole = begun;
    let mut joined = Vec::new();
    for piece in &pieces {
        paced.one();
        whole.extend(first.until_delta().await);
        said.push_str(piece);
        // Connects, reads the response so far, and stays connected.
        let mut other = Stream::open(&stage.service, "c", "", last).await;
        let frames = other.until("message_snapshot").await;
        let snapshot = frames.last().unwrap();
        assert_eq!(snapshot.id, None);
        assert_eq!(snapshot.data["content"], json!([{"type": "text", "text": said}]));
        assert!(frames.iter().all(|frame| frame.name != "message_update"), "{frames:#?}");
        joined.push((other, said.clone(), frames));
    }
    paced.all();
    whole.extend(first.until(SETTLED).await);
    let past = past(&stage).await;
    assert_eq!(numbers(&whole), numbers(&past));
    assert_eq!(text_of(&whole), said);
    for (mut other, mut text, mut frames) in joined {
        let rest = other.until(SETTLED).await;
        text.push_str(&text_of(&rest));
        assert_eq!(text, said, "the snapshot and the later deltas form the whole text");
        frames.extend(rest);
        assert_eq!(numbers(&frames), numbers(&past)[usize::try_from(last.unwrap()).unwrap()..]);
    }
    stage.service.stop().await;
}

/// The concatenated deltas.
fn text_of(frames: &[Frame]) -> String {
    let deltas = frames.iter().map(|frame| &frame.data["assistantMessageEvent"]["delta"]);
    deltas.filter_map(Value::as_str).collect()
}

impl Stream {
    /// Reads up to the start of a model response.
    async fn until_answer(&mut self) -> Vec<Frame> {
        self.until_frame(|frame| {
            frame.name == "message_start" && frame.data["message"]["role"] == "assistant"
        })
        .await
    }

    /// Reads up to the next text delta.
    async fn until_delta(&mut self) -> Vec<Frame> {
        self.until_frame(|frame| frame.data["assistantMessageEvent"]["type"] == "text_delta").await
    }

    async fn until_frame(&mut self, is_it: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            let frame = self.next().await.expect("a following stream must not end");
            let is_last = is_it(&frame);
            frames.push(frame);
            if is_last {
                return frames;
            }
        }
    }
}
