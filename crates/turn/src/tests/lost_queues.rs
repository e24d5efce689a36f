//! Deletion of the turn and notify queues: the recovery sweep, or an immediate rebuild, enqueues
//! exactly the pending work, and all of it completes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use super::invariant_checks;
use super::test_env::{PauseFailPoint, TestEnv, call, idempotency, owner, text};
use crate::delivery::handle;
use crate::sweep;
use turnwheel_commands::schedules::create::{NewSchedule, accept_schedule};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::notification::Notification;
use turnwheel_conversation::phase::Phase;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_record::notifications::notify;
use turnwheel_record::notifications::sender::{NotificationSender, SendOutcome};
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _};

/// One conversation per kind of pending work.
const CONVERSATIONS: [&str; 8] =
    ["accepted", "midway", "person", "decided", "c", "retry", "webhook", "rest"];

/// Conversations with pending work; `schedule` stands for a schedule's nudge.
const TURNS_PENDING: [&str; 6] = ["accepted", "c", "decided", "midway", "retry", "schedule"];
const NOTIFY_PENDING: [&str; 1] = ["webhook"];

fn run_tools_by_input(results: usize, input: &str) -> Vec<Value> {
    match (input, results) {
        ("look", 0) => vec![call("c1", "look", 0), call("c2", "put", 0)],
        ("ask", 0) => vec![call("c1", "gated", 0)],
        _ => vec![text("done")],
    }
}

#[derive(Debug, Default)]
struct RecordingSender(Mutex<Vec<String>>);

#[async_trait]
impl NotificationSender for RecordingSender {
    async fn send(&self, _key: &ConversationKey, notice: &Notification) -> SendOutcome {
        self.0.lock().unwrap().push(notice.kind.clone());
        SendOutcome::Accepted
    }
}

fn nudge(id: &str) -> Nudge {
    Nudge::for_conversation(owner().conversation_key(id), None)
}

/// Returns the conversations in their states, and the worker with a webhook.
async fn new_env() -> (TestEnv, Services, Arc<RecordingSender>) {
    let mut env = TestEnv::with_script(9, run_tools_by_input);
    env.conversations = CONVERSATIONS.map(|id| owner().conversation_key(id)).to_vec();
    let sender = Arc::new(RecordingSender::default());
    let services = env.new_worker(Arc::new(NoFailPoints));
    let with_webhook = Services {
        notification_sender: Some(sender.clone()),
        ..env.new_worker(Arc::new(NoFailPoints))
    };
    for (id, input) in [
        ("accepted", "hi"),
        ("midway", "look"),
        ("person", "ask"),
        ("decided", "ask"),
        ("c", "look"),
        ("retry", "hi"),
        ("webhook", "hi"),
        ("rest", "hi"),
    ] {
        env.send_prompt_to(&services, id, input).await;
    }
    for id in ["midway", "person", "decided", "rest"] {
        handle(&services, &nudge(id)).await.unwrap();
    }
    handle(&with_webhook, &nudge("webhook")).await.unwrap();
    *env.model.failures_left.lock().unwrap() = 1;
    handle(&services, &nudge("retry")).await.unwrap();
    env.decide_conversation("decided").await;
    // The worker of `c` dies during a call, and a client steers.
    let pause = Arc::new(PauseFailPoint::new("tool.after"));
    let victim = env.new_worker(pause.clone());
    let nudge_of_c = nudge("c");
    pause.kill(handle(&victim, &nudge_of_c)).await;
    env.steer(&services, "and quickly").await.unwrap();
    let tick = NewSchedule {
        id: Some("s".to_owned()),
        input: Some(Content::Text("tick".to_owned())),
        at: Some("PT1M".to_owned()),
        conversation_id: Some("rest".to_owned()),
        ..NewSchedule::default()
    };
    accept_schedule(&services, &owner(), tick, &idempotency("s"), None).await.unwrap();
    (env, with_webhook, sender)
}

/// Returns the conversations of the queued nudges, sorted, with repetitions.
async fn queued_conversations(env: &TestEnv, queue: &str) -> Vec<String> {
    let received = env.queue.receive(queue, 32, Duration::from_secs(1)).await.unwrap();
    let ids = received.iter().map(|message| {
        let nudge: Nudge = serde_json::from_str(&message.text).unwrap();
        match nudge.schedule {
            Some(_) => "schedule".to_owned(),
            None => nudge.key.conversation_id.as_str().to_owned(),
        }
    });
    let mut ids: Vec<String> = ids.collect();
    ids.sort();
    ids
}

/// Deletes both queues, waits, and runs the recovery sweep with `grace`.
async fn delete_and_rebuild_queues(wait: Duration, grace: Duration) {
    let (mut env, services, sender) = new_env().await;
    for lost in [queue::TURNS, queue::NOTIFY] {
        env.queue.drop_queue(lost);
    }
    tokio::time::sleep(wait).await;
    let count = sweep::sweep(&services, grace).await.unwrap();
    assert_eq!(count, TURNS_PENDING.len() + NOTIFY_PENDING.len());
    // Work that falls due soon is enqueued with a delay.
    tokio::time::sleep(sweep::HORIZON).await;
    assert_eq!(queued_conversations(&env, queue::TURNS).await, TURNS_PENDING);
    assert_eq!(queued_conversations(&env, queue::NOTIFY).await, NOTIFY_PENDING);
    tokio::time::sleep(Duration::from_secs(2)).await;
    notify(&services, &nudge("webhook")).await.unwrap();
    assert_eq!(*sender.0.lock().unwrap(), ["prompt.completed"]);
    // No further sweep is needed.
    while env.deliver().await {}
    for (id, prompts) in
        [("accepted", 1), ("midway", 1), ("decided", 1), ("c", 1), ("retry", 1), ("rest", 2)]
    {
        let head = env.head_of(&owner().conversation_key(id)).await.unwrap();
        assert_eq!((head.phase, head.prompts.len()), (Phase::Idle, prompts), "{id}");
    }
    env.run_until_idle().await;
    for key in env.conversations.clone() {
        let prompts = if key.conversation_id.as_str() == "rest" { 2 } else { 1 };
        let violations = invariant_checks::violation_lines(&env, &key, (prompts, 0)).await;
        assert_eq!(violations, Vec::<String>::new(), "{:#?}", env.run_log);
    }
    assert_eq!(
        env.executions.lock().unwrap().len(),
        5,
        "every call runs except the one that the steer skips"
    );
}

#[tokio::test(start_paused = true)]
async fn sweep_enqueues_exactly_the_pending_work() {
    Box::pin(delete_and_rebuild_queues(Duration::from_mins(3), sweep::GRACE_PERIOD)).await;
}

#[tokio::test(start_paused = true)]
async fn rebuilt_queue_contains_exactly_the_pending_work() {
    Box::pin(delete_and_rebuild_queues(Duration::ZERO, Duration::ZERO)).await;
}
