//! Tests of two instances over one store: one runs the turn, a reader on the other follows it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt as _;
use serde_json::json;
use turnwheel::events::AssistantMessageEvent;
use turnwheel::models::{Listener, Model, ModelRecord, ModelRequest, ModelResponse, ScriptedModel};
use turnwheel::testing::ids::WorkerId;
use turnwheel::testing::live::SharedLive;
use turnwheel::testing::store::{DocumentKind, Partition};
use turnwheel::testing::turn::delivery;
use turnwheel::testing::turn::nudge::Nudge;

use super::event_streams::{Frame, frames};
use super::test_app::TestApp;

/// The scripted model with a delay of 300 ms between two events.
#[derive(Debug)]
struct SlowModel(ScriptedModel);

#[derive(Default)]
struct RecordedEvents(Mutex<Vec<AssistantMessageEvent>>);

impl Listener for RecordedEvents {
    fn on_event(&self, event: AssistantMessageEvent) {
        self.0.lock().unwrap().push(event);
    }
}

#[async_trait]
impl Model for SlowModel {
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        let recorded = RecordedEvents::default();
        let response = self.0.respond(request, &recorded).await;
        for event in recorded.0.into_inner().unwrap() {
            tokio::time::sleep(Duration::from_millis(300)).await;
            listener.on_event(event);
        }
        response
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        self.0.record(model)
    }
}

/// Two instances that share only the store.
fn instances() -> [TestApp; 2] {
    let local = TestApp::new();
    let remote = local.second_instance();
    [(local, "w1"), (remote, "w2")].map(|(app, name)| {
        app.with_services(|services| {
            let instance = WorkerId::new(name);
            let live =
                SharedLive::new(Arc::clone(&services.store), Arc::clone(&services.clock), instance);
            services.live = Arc::new(live);
            services.worker = WorkerId::new(name);
            services.model = Arc::new(SlowModel(ScriptedModel));
        })
    })
}

/// Builds the text of the last message from live events only; returns it with the number of
/// snapshots.
fn live_text_and_snapshot_count(frames: &[Frame]) -> (String, usize) {
    let (mut text, mut snapshots) = (String::new(), 0);
    for frame in frames {
        match frame.name.as_str() {
            "message_start" => text.clear(),
            "message_snapshot" => {
                let so_far = frame.data["content"][0]["text"].as_str();
                so_far.unwrap_or_default().clone_into(&mut text);
                snapshots += 1;
            }
            "message_update" => {
                let delta = &frame.data["assistantMessageEvent"]["delta"];
                text += delta.as_str().unwrap_or_default();
            }
            _ => {}
        }
    }
    (text, snapshots)
}

/// The text of the last message must be streamed from its beginning, and more than half of it.
/// Returns the number of snapshots.
fn check_live_text(frames: &[Frame]) -> usize {
    let end = frames.iter().rfind(|frame| frame.name == "message_end").unwrap();
    let whole = end.data["message"]["content"][0]["text"].as_str().unwrap();
    let (text, snapshots) = live_text_and_snapshot_count(frames);
    assert!(whole.starts_with(&text) && text.len() * 2 > whole.len(), "{text} of {whole}");
    snapshots
}

const FOLLOW: &str = "/api/conversations/c/events?until=settled";

#[tokio::test(start_paused = true)]
async fn remote_reader_receives_live_deltas() {
    let [local, remote] = instances();
    local.prompt("use pay with {\"amount\": 5} then say one two three four five six seven").await;
    let (response, own, ()) =
        tokio::join!(remote.get(FOLLOW).send(), local.get(FOLLOW).send(), local.work());
    let (received, own) =
        (frames(&response.expect_status(200).text), frames(&own.expect_status(200).text));

    for received in [&received, &own] {
        let ids: Vec<u64> = received.iter().filter_map(|frame| frame.id).collect();
        assert_eq!(
            ids,
            (1..=ids.len() as u64).collect::<Vec<_>>(),
            "each event must arrive once and in order"
        );
        for name in ["message_end", "turn_end", "tool_execution_end", "agent_settled"] {
            let count = received.iter().filter(|frame| frame.name == name).count();
            assert_eq!(count, own.iter().filter(|frame| frame.name == name).count(), "{name}");
        }
        assert!(check_live_text(received) <= 1, "at most one snapshot is expected");
    }
    assert!(
        received.iter().filter(|frame| frame.name == "message_update").count() > 3,
        "{received:#?}"
    );
    let starts = received.iter().filter(|frame| frame.name == "message_start").count();
    assert_eq!(starts, own.iter().filter(|frame| frame.name == "message_start").count());
}

/// A steer adds events to the conversation while the response streams.
#[tokio::test(start_paused = true)]
async fn steer_does_not_interrupt_streamed_text() {
    let [local, remote] = instances();
    let words = ["word"; 24].join(" ");
    local.prompt(&format!("say {words}")).await;
    let steer = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let body = json!({"input": "say more", "mode": "steer"});
        local.post("/api/conversations/c/prompts", &body).send().await.expect_status(202);
    };
    let (response, own, (), ()) =
        tokio::join!(remote.get(FOLLOW).send(), local.get(FOLLOW).send(), local.work(), steer);
    for (reader, response) in [("remote", response), ("local", own)] {
        let received = frames(&response.expect_status(200).text);
        let position = |frames: &[Frame], name: &str| {
            frames.iter().position(|frame| frame.name == name).expect("the event arrives")
        };
        let after = &received[position(&received, "input_queued")..];
        let until_end = &after[..position(after, "message_end")];
        let updates = until_end.iter().filter(|frame| frame.name == "message_update").count();
        assert!(updates > 5, "{reader}: {updates} after the steer: {received:#?}");
    }
}

/// Without its registration the worker of another instance would send nothing in the first 20 s.
#[tokio::test(start_paused = true)]
async fn accepted_prompt_registers_readers_of_its_instance() {
    let [local, remote] = instances();
    local.run("say hello").await;
    for app in [&local, &remote] {
        app.clock.advance(Duration::from_mins(6));
    }
    let stream = remote.get("/api/conversations/c/events").send_streaming().await;
    let is_registered = || {
        let documents =
            remote.store.documents(&Partition::Conversation(TestApp::conversation_key()));
        documents.iter().any(|stored| stored.document.kind == DocumentKind::Watch)
    };
    // The head is read each 5 s, next after 17 s.
    tokio::time::sleep(Duration::from_secs(13)).await;
    assert!(!is_registered(), "the conversation is quiet");
    remote.prompt("say one two three four five six seven").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(is_registered());
    let nudge = Nudge::for_conversation(TestApp::conversation_key(), None);
    let work = Box::pin(delivery::handle(&local.services, &nudge));
    let (received, outcome) = tokio::join!(stream.into_body().collect(), work);
    outcome.unwrap();
    let received = frames(&String::from_utf8_lossy(&received.unwrap().to_bytes()));
    check_live_text(&received);
    assert!(received.iter().any(|frame| frame.name == "message_update"), "{received:#?}");
}

#[tokio::test(start_paused = true)]
async fn remote_wait_returns_when_prompt_ends() {
    let [local, remote] = instances();
    let id = local.prompt("say hello to everyone here").await;
    let path = format!("/api/conversations/c/prompts/{id}?wait=60");
    let began = tokio::time::Instant::now();
    let (response, ()) = tokio::join!(remote.get(&path).send(), local.work());
    assert_eq!(response.expect_status(200).json()["state"], "completed");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn deletion_ends_remote_streams() {
    let [local, remote] = instances();
    local.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let began = tokio::time::Instant::now();
    let stream = remote.get("/api/conversations/c/events").send();
    let delete = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        local.delete("/api/conversations/c").send().await.expect_status(204);
    };
    let (_, ()) = tokio::join!(stream, delete);
    assert!(began.elapsed() < Duration::from_secs(26), "{:?}", began.elapsed());
}
