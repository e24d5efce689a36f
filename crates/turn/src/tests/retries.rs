//! Retries of model calls: a failed call is repeated when it is due, by any worker.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::store_requests::replies_hello;
use super::test_env::{TestEnv, call, idempotency, text};
use crate::delivery::handle;
use turnwheel_commands::patch::patch_conversation;
use turnwheel_conversation::content::joined_text;
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::event::{AssistantMessageEvent, EventBody};
use turnwheel_conversation::message::StopReason;
use turnwheel_conversation::phase::Phase;
use turnwheel_model::{Listener, Model, ModelRecord, ModelRequest, ModelResponse};
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_queries::event_stream::{EventReader, StreamEnd, StreamItem};
use turnwheel_queries::protocol_events::{ProtocolEvents, TextUnit, read_history};
use turnwheel_record::error::DeliveryOutcome;
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _};

/// Accepts a prompt in a conversation with the retry settings; the next `failures` responses fail.
async fn new_env(retry: serde_json::Value, failures: u32) -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(7, replies_hello);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let patch = json!({"settings": {"retry": retry}});
    let key = idempotency("patch");
    patch_conversation(&services, &TestEnv::key(), patch.as_object().unwrap(), &key, |_| true)
        .await
        .unwrap();
    *env.model.failures_left.lock().unwrap() = failures;
    (env, services)
}

fn model_calls(env: &TestEnv) -> u32 {
    *env.model.calls.lock().unwrap()
}

async fn prompt_state(env: &TestEnv) -> PromptState {
    env.head().await.unwrap().prompts[0].state
}

#[tokio::test(start_paused = true)]
async fn no_worker_waits_until_retry_is_due() {
    let (mut env, services) = new_env(json!({}), 1).await;
    env.deliver().await;
    let head = env.head().await.unwrap();
    assert_eq!(
        (head.lease.is_none(), head.leases_without_progress),
        (true, 0),
        "no worker has the lease"
    );
    assert!(matches!(head.phase, Phase::Model { attempt: 2, not_before: Some(_) }));
    assert_eq!(head.due.unwrap(), head.updated_at.plus(Duration::from_secs(2)));
    // A nudge before that time changes nothing.
    let commits = env.store.commit_count();
    assert_eq!(handle(&services, &TestEnv::nudge()).await.unwrap(), DeliveryOutcome::NoWork);
    assert_eq!((env.store.commit_count(), model_calls(&env)), (commits, 1));
    assert!(!env.deliver().await, "the nudge is delayed");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(env.deliver().await, "the nudge arrives when the retry is due");
    assert_eq!((prompt_state(&env).await, model_calls(&env)), (PromptState::Completed, 2));
}

#[tokio::test(start_paused = true)]
async fn sweep_enqueues_retry_with_long_delay() {
    let retry = json!({"baseDelayMs": 300_000, "maxDelayMs": 600_000});
    let (mut env, _world) = new_env(retry, 1).await;
    let began = env.clock.monotonic();
    env.deliver().await;
    assert_eq!(
        env.queue.length(queue::TURNS).await.unwrap(),
        0,
        "a delay of this length sends no nudge"
    );
    env.run_until_idle().await;
    assert_eq!((prompt_state(&env).await, model_calls(&env)), (PromptState::Completed, 2));
    let took = env.clock.monotonic().saturating_sub(began);
    let expected = Duration::from_mins(5)..Duration::from_mins(5) + Duration::from_secs(90);
    assert!(expected.contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn many_retries_do_not_poison_a_step() {
    let (mut env, _world) = new_env(json!({"maxRetries": 20, "baseDelayMs": 1_000}), 15).await;
    env.run_until_idle().await;
    assert_eq!((prompt_state(&env).await, model_calls(&env)), (PromptState::Completed, 16));
    let events = env.events().await;
    let begun = events.iter().filter(|event| matches!(event.body, EventBody::AutoRetryStart(_)));
    assert_eq!(begun.count(), 15);
    assert!(events.iter().map(|event| event.n).eq(1..=events.len() as u64));
}

#[tokio::test(start_paused = true)]
async fn crashed_workers_do_not_lose_pending_retry() {
    for seed in 0..20 {
        let mut env = TestEnv::new(seed);
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        *env.model.failures_left.lock().unwrap() = 2;
        env.crash_percent = 3;
        env.run_until_idle().await;
        // A worker that stops before its commit has called the model in vain, so a failure may
        // never be recorded.
        let ended = prompt_state(&env).await;
        assert_eq!(ended, PromptState::Completed, "{seed}: {:#?}", env.run_log);
    }
}

fn looks_once(results: usize, _input: &str) -> Vec<serde_json::Value> {
    match results {
        0 => vec![text("I look."), call("c1", "look", 0)],
        _ => vec![text("done")],
    }
}

/// Types of the protocol events of all stored events after a number.
async fn protocol_types(services: &Services, unit: TextUnit, after: u64) -> Vec<String> {
    let (head, _) = load::head(services, &TestEnv::key()).await.unwrap();
    let end = StreamEnd::AfterEvent(head.event_seq);
    let mut reader = EventReader::new(services.clone(), TestEnv::key(), after, end);
    let mut view = ProtocolEvents::new(unit, after > 0);
    let mut types = Vec::new();
    while let Some(item) = reader.next().await {
        if let StreamItem::Event(event) = item {
            let events = view.convert(&event);
            types.extend(events.iter().map(|event| event["type"].as_str().unwrap().to_owned()));
        }
    }
    types
}

#[tokio::test(start_paused = true)]
async fn retried_response_is_no_part_of_the_protocol_story() {
    let mut env = TestEnv::with_script(7, looks_once);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    *env.model.failures_left.lock().unwrap() = 1;
    env.run_until_idle().await;
    assert_eq!((prompt_state(&env).await, model_calls(&env)), (PromptState::Completed, 3));
    let story =
        ["user", "respond", "call", "execute", "metric", "result", "respond", "metric", "end"];
    for unit in [TextUnit::Event, TextUnit::Token] {
        assert_eq!(protocol_types(&services, unit, 0).await, story);
    }
    let (head, _) = load::head(&services, &TestEnv::key()).await.unwrap();
    let (history, _) = read_history(&services, &head, None, 100).await.unwrap();
    let types: Vec<&str> = history.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["user", "respond", "call", "result", "respond"]);
}

/// Publishes a text, and never ends its response.
#[derive(Debug)]
struct EndlessModel(Arc<dyn Model>);

#[async_trait]
impl Model for EndlessModel {
    async fn respond(&self, _request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        let (content_index, delta) = (0, "half a text".to_owned());
        listener.on_event(AssistantMessageEvent::TextStart { content_index });
        listener.on_event(AssistantMessageEvent::TextDelta { content_index, delta });
        std::future::pending().await
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        self.0.record(model)
    }
}

#[tokio::test(start_paused = true)]
async fn response_cut_by_turn_deadline_keeps_text_and_usage() {
    let mut env = TestEnv::with_script(7, replies_hello);
    let scripted: Arc<dyn Model> = env.model.clone();
    env.model_override = Some(Arc::new(EndlessModel(scripted)));
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    assert_eq!(prompt_state(&env).await, PromptState::Failed);
    let entries = env.entries().await;
    let mut responses = entries.iter().rev().filter_map(|it| it.body.message()?.as_assistant());
    let response = responses.next().unwrap();
    assert_eq!(joined_text(&response.content), "half a text");
    assert_eq!((response.stop_reason, response.provider.as_str()), (StopReason::Error, "p"));
    let text = response.error_message.as_deref().unwrap_or_default();
    assert!(text.starts_with("The model did not finish within"), "{text}");
    assert!(response.usage.input > 0 && response.usage.output > 0, "{:?}", response.usage);
}
