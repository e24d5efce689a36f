//! Tests of messages that arrive, or are under way, while the process ends.

use serde_json::{Value, json};

use crate::start::function_handlers::tests::handlers_of;
use crate::start::function_handlers::*;
use turnwheel_model::scripted::ScriptedModel;
use turnwheel_platform::clock::{Clock, ManualClock, Timestamp};
use turnwheel_platform::ids::{SystemIds, WorkerId};
use turnwheel_platform::shutdown::StopTimes;
use turnwheel_record::services::ServicePorts;
use turnwheel_storage::artifacts::MemoryArtifacts;
use turnwheel_storage::live::EmbeddedLive;
use turnwheel_storage::queue::{MemoryQueue, Queue as _, QueueFaults};
use turnwheel_storage::store::memory::MemoryStore;

const NUDGE: &str = r#"{"tenant":"t","user":"u","conversationId":"c"}"#;

fn handlers() -> (FunctionHandlers, Arc<MemoryQueue>, Arc<ManualClock>) {
    let manual = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000)));
    let clock: Arc<dyn Clock> = Arc::clone(&manual) as _;
    let queue = Arc::new(MemoryQueue::new(Arc::clone(&clock), 0, QueueFaults::default()));
    let ports = ServicePorts {
        store: Arc::new(MemoryStore::new()),
        queue: Arc::clone(&queue) as _,
        artifacts: Arc::new(MemoryArtifacts::new(0, 0)),
        live: Arc::new(EmbeddedLive::default()),
        model: Arc::new(ScriptedModel),
        clock,
        ids: Arc::new(SystemIds),
    };
    (handlers_of(Services::new(WorkerId::new("w1"), ports)), queue, manual)
}

async fn receive(queue: &MemoryQueue, name: &str) -> Option<String> {
    let found = queue.receive(name, 1, Duration::from_secs(1)).await.unwrap();
    found.into_iter().next().map(|message| message.text)
}

/// The messages that are visible after the delay of a message that is put back.
async fn receive_later(queue: &MemoryQueue, clock: &ManualClock) -> [Option<String>; 3] {
    let names = [queue::TURNS, queue::NOTIFY, queue::PROMPTS];
    for name in names {
        assert_eq!(receive(queue, name).await, None, "{name}: not yet");
    }
    clock.advance(Duration::from_secs(5));
    let mut found = [None, None, None];
    for (name, found) in names.into_iter().zip(&mut found) {
        *found = receive(queue, name).await;
    }
    found
}

#[tokio::test]
async fn messages_are_put_back_while_the_process_ends() {
    let (handlers, queue, clock) = handlers();
    let seconds = Duration::from_secs;
    handlers.services.shutdown.begin(StopTimes { repeatable: seconds(4), writes: seconds(9) });
    let meta = InvocationMeta::default;
    handlers.notify(NUDGE.to_owned(), meta()).await.unwrap();
    handlers.turn(NUDGE.to_owned(), meta()).await.unwrap();
    handlers.sweep(TimerInfo::default(), meta()).await.unwrap();
    let prompt = json!({"input": "Hello", "conversationId": "c"}).to_string();
    let from_host = InvocationMeta { message_id: Some("m-1".to_owned()), ..meta() };
    handlers.put_back("prompt", prompt, from_host).await.unwrap();
    let [turn, notification, prompt] = receive_later(&queue, &clock).await;
    assert_eq!((turn.as_deref(), notification.as_deref()), (Some(NUDGE), Some(NUDGE)));
    // The prompt is accepted once, under the id of its first message.
    let prompt: Value = serde_json::from_str(&prompt.unwrap()).unwrap();
    assert_eq!(prompt["deferral"]["messageId"], "m-1");
    assert_eq!(prompt["input"], "Hello");
}

#[tokio::test]
async fn unfinished_nudges_return_to_their_queues() {
    let (handlers, queue, clock) = handlers();
    for function in ["notify", "notify-poison", "turn-poison"] {
        let meta = InvocationMeta::default();
        handlers.put_back(function, NUDGE.to_owned(), meta).await.unwrap();
    }
    let [turn, notification, prompt] = receive_later(&queue, &clock).await;
    let texts = [turn.as_deref(), notification.as_deref(), prompt.as_deref()];
    assert_eq!(texts, [Some(NUDGE), Some(NUDGE), None]);
}
