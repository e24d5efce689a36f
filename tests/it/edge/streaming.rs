//! Tests of event streams: durable events once and in order on any instance, live events without
//! duplicates.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use turnwheel::http::events::{Feed, Until};

use super::rig::Rig;

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

#[tokio::test]
async fn the_past_is_told_in_order_with_what_the_entries_hold() {
    let rig = Rig::new();
    rig.run("use pay with {\"amount\": 5} then say done").await;
    let answer = rig.get(PAST).send().await.is(200);
    assert_eq!(answer.header("content-type"), "text/event-stream");
    assert!(answer.text.starts_with("retry: 1000\n\n"), "{}", answer.text);
    let told = frames(&answer.text);
    let ids: Vec<u64> = told.iter().filter_map(|frame| frame.id).collect();
    assert_eq!(ids, (1..=told.len() as u64).collect::<Vec<_>>());
    for frame in &told {
        assert_eq!(frame.data["type"], frame.name.as_str());
        assert!(frame.data["at"].as_str().unwrap().ends_with('Z') && frame.data["turn"].is_u64());
    }
    let one = |name: &str| {
        told.iter()
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
    assert_eq!(told.last().unwrap().name, "agent_settled");
}

#[tokio::test]
async fn from_any_number_on_the_rest_is_told_by_any_instance() {
    let rig = Rig::new();
    rig.run("use pay with {\"amount\": 5} then say done").await;
    let whole = frames(&rig.get(PAST).send().await.is(200).text);
    let other = rig.elsewhere();
    for after in 0..=whole.len() {
        let text = other.get(&format!("{PAST}&after={after}")).send().await.is(200).text;
        assert_eq!(frames(&text), whole[after..], "after {after}");
        let text = other
            .get(&format!("{PAST}&after=0"))
            .header("last-event-id", &after.to_string())
            .send()
            .await
            .is(200)
            .text;
        assert_eq!(frames(&text), whole[after..], "`Last-Event-ID` must override the query");
    }
    rig.get(&format!("{PAST}&after={}", whole.len() + 1)).send().await.fails(400, "bad-request");
    rig.get(&format!("{PAST}&after=x")).send().await.fails(400, "bad-request");
    rig.get("/api/conversations/other/events").send().await.fails(404, "not-found");
}

#[tokio::test]
async fn a_settled_stream_ends_and_then_there_is_nothing() {
    let rig = Rig::new();
    rig.prompt("say hello").await;
    let stream = rig.get("/api/conversations/c/events?until=settled").send();
    let (answer, ()) = tokio::join!(stream, rig.work());
    let told = frames(&answer.is(200).text);
    assert_eq!(told.last().unwrap().name, "agent_settled");
    let after = told.iter().filter_map(|frame| frame.id).max().unwrap();
    let path = format!("/api/conversations/c/events?until=settled&after={after}");
    rig.get(&path).send().await.is(204);
    rig.prompt("say more").await;
    let (answer, ()) = tokio::join!(rig.get(&path).send(), rig.work());
    let told = frames(&answer.is(200).text);
    assert_eq!(told.last().unwrap().name, "agent_settled");
    let after = told.iter().filter_map(|frame| frame.id).max().unwrap();
    let path = format!("/api/conversations/c/events?until=settled&after={after}");
    rig.post("/api/conversations/c/compact", &json!({})).send().await.is(202);
    let (answer, ()) = tokio::join!(rig.get(&path).send(), rig.work());
    let told = frames(&answer.is(200).text);
    let told: Vec<&str> = told.iter().map(|frame| frame.name.as_str()).collect();
    assert_eq!(told, ["auto_compaction_start", "auto_compaction_end", "agent_settled"]);
}

#[tokio::test]
async fn what_was_told_live_is_not_told_again() {
    let rig = Rig::new();
    rig.prompt("use pay with {\"amount\": 5} then say one two three").await;
    let stream = rig.get("/api/conversations/c/events?until=settled").send();
    let (answer, ()) = tokio::join!(stream, rig.work());
    let told = frames(&answer.is(200).text);
    let ids: Vec<u64> = told.iter().filter_map(|frame| frame.id).collect();
    assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<_>>(), "ids must be consecutive");
    let deltas = told.iter().filter(|frame| frame.name == "message_update").count();
    assert!(deltas > 2, "the model response must be streamed: {told:#?}");
    assert!(
        told.iter().any(|frame| frame.name.is_empty()),
        "events already sent live must become frames with only an id"
    );
    // Each message starts and ends once, and each turn starts once, as in the durable events.
    let past = frames(&rig.get(PAST).send().await.is(200).text);
    for name in ["message_start", "message_end", "turn_start", "turn_end"] {
        let count = |frames: &[Frame]| frames.iter().filter(|frame| frame.name == name).count();
        assert_eq!(count(&told), count(&past), "{name}");
    }
    let named: BTreeSet<&str> = told.iter().map(|frame| frame.name.as_str()).collect();
    assert!(named.contains("message_update"));
    // Every delta is between the start and the end of its message.
    let mut open: Option<String> = None;
    for frame in &told {
        let id = frame.data["messageId"].as_str().map(ToOwned::to_owned);
        match frame.name.as_str() {
            "message_start" => open = id,
            "message_update" => assert_eq!(open, id),
            "message_end" => open = None,
            _ => {}
        }
    }
}

#[tokio::test]
async fn who_joins_in_the_middle_gets_the_answer_so_far() {
    use turnwheel::agent::event::AnswerEvent;
    use turnwheel::ids::{EntryId, PromptId};
    use turnwheel::live::{Author, LiveAnswer, LiveEvent};

    let rig = Rig::new();
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    let (key, message_id) = (Rig::key(), EntryId::new("0a0b0c0d"));
    let answer = LiveAnswer {
        epoch: 1,
        message_id: message_id.clone(),
        prompt_id: PromptId::new("pr_1"),
        turn: 1,
        begins_turn: true,
        begins_agent: false,
        author: Author::default(),
    };
    let delta = |text: &str| LiveEvent::Delta {
        message_id: message_id.clone(),
        event: AnswerEvent::TextDelta { content_index: 0, delta: text.to_owned() },
    };
    rig.world.live.publish(&key, LiveEvent::AnswerStarted(answer));
    let start = LiveEvent::Delta {
        message_id: message_id.clone(),
        event: AnswerEvent::TextStart { content_index: 0 },
    };
    rig.world.live.publish(&key, start);
    rig.world.live.publish(&key, delta("Hel"));
    let response = rig.get("/api/conversations/c/events").response().await;
    let mut body = response.into_body().into_data_stream();
    let mut text = String::new();
    while !text.contains("message_snapshot") {
        text.push_str(&utf8(&body.next().await.unwrap().unwrap()));
    }
    rig.world.live.publish(&key, delta("lo"));
    while !text.contains("message_update") {
        text.push_str(&utf8(&body.next().await.unwrap().unwrap()));
    }
    let told = frames(&text);
    let names: Vec<&str> = told.iter().map(|frame| frame.name.as_str()).collect();
    assert_eq!(names, ["turn_start", "message_start", "message_snapshot", "message_update"]);
    assert_eq!(told[2].data["content"][0]["text"], "Hel");
    assert_eq!(told[3].data["assistantMessageEvent"]["delta"], "lo");
    assert_eq!(told[3].data["promptId"], "pr_1");
}

/// A reader that reconnects during a model response sends its last event id. Live events have no
/// id, so they are sent again under the same names. A snapshot replaces the text sent before.
#[tokio::test]
async fn who_comes_back_in_the_middle_of_an_answer_is_told_where_it_stands() {
    use turnwheel::agent::event::AnswerEvent;
    use turnwheel::ids::{EntryId, PromptId};
    use turnwheel::live::{Author, LiveAnswer, LiveEvent};

    for begins_turn in [true, false] {
        let rig = Rig::new();
        rig.run("say hello").await;
        let (key, message_id) = (Rig::key(), EntryId::new("0a0b0c0d"));
        let delta = |text: &str| LiveEvent::Delta {
            message_id: message_id.clone(),
            event: AnswerEvent::TextEnd { content_index: 0, content: text.to_owned() },
        };
        let last = frames(&rig.get(PAST).send().await.is(200).text).len().to_string();
        let until = async |word: &str| {
            let reader = rig
                .get("/api/conversations/c/events")
                .header("last-event-id", &last)
                .response()
                .await;
            let mut body = reader.into_body().into_data_stream();
            let mut text = String::new();
            while !text.contains(word) {
                text.push_str(&utf8(&body.next().await.unwrap().unwrap()));
            }
            frames(&text)
        };
        rig.world.live.publish(
            &key,
            LiveEvent::AnswerStarted(LiveAnswer {
                epoch: 1,
                message_id: message_id.clone(),
                prompt_id: PromptId::new("pr_2"),
                turn: 2,
                begins_turn,
                begins_agent: false,
                author: Author { model: "m".to_owned(), ..Author::default() },
            }),
        );
        rig.world.live.publish(&key, delta("Hel"));
        let before = until("message_snapshot").await;
        rig.world.live.publish(&key, delta("Hello"));
        let again = until("message_snapshot").await;
        // A turn started by a numbered event is not started again.
        let begun = if begins_turn { vec!["turn_start"] } else { Vec::new() };
        let expected = [begun, vec!["message_start", "message_snapshot"]].concat();
        for told in [&before, &again] {
            assert_eq!(told.iter().map(|frame| &*frame.name).collect::<Vec<_>>(), expected);
            assert!(told.iter().all(|frame| frame.id.is_none() && frame.data["turn"] == 2));
            let start = told.iter().find(|frame| frame.name == "message_start").unwrap();
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
async fn timed(body: axum::body::Body) -> (Vec<(u64, String)>, u64) {
    let began = tokio::time::Instant::now();
    let mut chunks = Vec::new();
    let mut body = body.into_data_stream();
    while let Some(chunk) = body.next().await {
        chunks.push((began.elapsed().as_secs(), utf8(&chunk.unwrap())));
    }
    (chunks, began.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_says_that_it_is_there_and_ends_after_200_seconds() {
    let rig = Rig::new();
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    let body = rig.get("/api/conversations/c/events").response().await.into_body();
    let (chunks, ended_at) = timed(body).await;
    assert_eq!(ended_at, 200);
    assert_eq!(chunks[0], (0, "retry: 1000\n\n".to_owned()));
    let comments: Vec<u64> = chunks[1..]
        .iter()
        .map(|(at, text)| {
            assert_eq!(text, ": still here\n\n");
            *at
        })
        .collect();
    assert_eq!(comments, (15..200).step_by(15).collect::<Vec<u64>>());
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_the_process_itself_is_not_sent_away() {
    let rig = Rig::new();
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    let mut feed = Feed::new((*rig.world).clone(), Rig::key(), 0, Until::Dropped);
    let ends = async { while feed.next().await.is_some() {} };
    let hour = std::time::Duration::from_hours(1);
    assert!(tokio::time::timeout(hour, ends).await.is_err(), "the stream must not end");
}

#[tokio::test]
async fn more_streams_than_an_instance_can_serve_are_refused() {
    const STREAMS_MAX: usize = 500;
    let rig = Rig::new();
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    let path = "/api/conversations/c/events";
    let mut open = Vec::new();
    for _ in 0..STREAMS_MAX {
        open.push(rig.get(path).response().await);
        assert_eq!(open.last().unwrap().status(), 200);
    }
    let refused = rig.get(path).send().await;
    assert_eq!(refused.header("retry-after"), "5");
    let problem = refused.fails(503, "unavailable");
    assert!(problem["detail"].as_str().unwrap().contains("500 event streams"), "{problem}");
    open.pop();
    rig.get(PAST).send().await.is(200);
    open.push(rig.get(path).response().await);
    assert_eq!(open.last().unwrap().status(), 200, "a closed stream must free its slot");
}
