//! Tests of two instances over one store: one runs the turn, a reader on the other follows it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use turnwheel::agent::event::AnswerEvent;
use turnwheel::ids::WorkerId;
use turnwheel::live::SharedLive;
use turnwheel::model::scripted::ScriptedModel;
use turnwheel::model::{Answer, Listener, Model, ModelRecord, ModelRequest};

use super::rig::Rig;
use super::streaming::{Frame, frames};

/// The scripted model with a delay of 300 ms between two events.
#[derive(Debug)]
struct Slowly(ScriptedModel);

#[derive(Default)]
struct Heard(Mutex<Vec<AnswerEvent>>);

impl Listener for Heard {
    fn hear(&self, event: AnswerEvent) {
        self.0.lock().unwrap().push(event);
    }
}

#[async_trait]
impl Model for Slowly {
    async fn answer(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> Answer {
        let heard = Heard::default();
        let answer = self.0.answer(request, &heard).await;
        for event in heard.0.into_inner().unwrap() {
            tokio::time::sleep(Duration::from_millis(300)).await;
            listener.hear(event);
        }
        answer
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        self.0.record(model)
    }
}

/// Two instances that share only the store.
fn instances() -> [Rig; 2] {
    let here = Rig::new();
    let there = here.elsewhere();
    [(here, "w1"), (there, "w2")].map(|(rig, name)| {
        rig.with_world(|world| {
            let instance = WorkerId::new(name);
            let live =
                SharedLive::new(Arc::clone(&world.store), Arc::clone(&world.clock), instance);
            world.live = Arc::new(live);
            world.worker = WorkerId::new(name);
            world.model = Arc::new(Slowly(ScriptedModel));
        })
    })
}

/// Builds the text of the last message from live events only; returns it with the number of
/// snapshots.
fn streamed(told: &[Frame]) -> (String, usize) {
    let (mut text, mut times) = (String::new(), 0);
    for frame in told {
        match frame.name.as_str() {
            "message_start" => text.clear(),
            "message_snapshot" => {
                let so_far = frame.data["content"][0]["text"].as_str();
                so_far.unwrap_or_default().clone_into(&mut text);
                times += 1;
            }
            "message_update" => {
                let delta = &frame.data["assistantMessageEvent"]["delta"];
                text += delta.as_str().unwrap_or_default();
            }
            _ => {}
        }
    }
    (text, times)
}

const FOLLOW: &str = "/api/conversations/c/events?until=settled";

#[tokio::test(start_paused = true)]
async fn a_reader_on_another_instance_sees_the_answer_as_it_is_written() {
    let [here, there] = instances();
    here.prompt("use pay with {\"amount\": 5} then say one two three four five six seven").await;
    let (answer, own, ()) =
        tokio::join!(there.get(FOLLOW).send(), here.get(FOLLOW).send(), here.work());
    let (told, own) = (frames(&answer.is(200).text), frames(&own.is(200).text));

    for told in [&told, &own] {
        let ids: Vec<u64> = told.iter().filter_map(|frame| frame.id).collect();
        assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<_>>(), "each event must arrive once and in order");
        for name in ["message_end", "turn_end", "tool_execution_end", "agent_settled"] {
            let count = told.iter().filter(|frame| frame.name == name).count();
            assert_eq!(count, own.iter().filter(|frame| frame.name == name).count(), "{name}");
        }
        let end = told.iter().rfind(|frame| frame.name == "message_end").unwrap();
        let whole = end.data["message"]["content"][0]["text"].as_str().unwrap();
        let (text, times) = streamed(told);
        assert!(whole.starts_with(&text) && text.len() * 2 > whole.len(), "{text} of {whole}");
        assert!(times <= 1, "at most one snapshot is expected");
    }
    assert!(told.iter().filter(|frame| frame.name == "message_update").count() > 3, "{told:#?}");
    let starts = told.iter().filter(|frame| frame.name == "message_start").count();
    assert_eq!(starts, own.iter().filter(|frame| frame.name == "message_start").count());
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_prompt_hears_of_its_end_on_another_instance() {
    let [here, there] = instances();
    let id = here.prompt("say hello to everyone here").await;
    let path = format!("/api/conversations/c/prompts/{id}?wait=60");
    let began = tokio::time::Instant::now();
    let (answer, ()) = tokio::join!(there.get(&path).send(), here.work());
    assert_eq!(answer.is(200).json()["state"], "completed");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_deletion_on_one_instance_ends_the_streams_of_another() {
    let [here, there] = instances();
    here.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    let began = tokio::time::Instant::now();
    let stream = there.get("/api/conversations/c/events").send();
    let delete = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        here.delete("/api/conversations/c").send().await.is(204);
    };
    let (_, ()) = tokio::join!(stream, delete);
    assert!(began.elapsed() < Duration::from_secs(26), "{:?}", began.elapsed());
}
