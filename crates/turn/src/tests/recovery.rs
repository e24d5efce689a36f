//! Deferred work: purges, notifications, start-up after a crash.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::call_approval::handle_nudges;
use super::test_env::{PauseFailPoint, TestEnv, call, text};
use crate::crash_count;
use crate::delivery::handle;
use turnwheel_commands::delete::{TOMBSTONE_RETENTION, delete_conversation};
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::inbox::{IdempotencyRecord, InboxBody, InboxItem};
use turnwheel_conversation::notification::Notification;
use turnwheel_conversation::phase::Phase;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::{ConversationKey, InputId, WorkerId};
use turnwheel_record::certain_write::with_inbox_count;
use turnwheel_record::documents;
use turnwheel_record::notifications::notify;
use turnwheel_record::notifications::sender::{NotificationSender, SendOutcome};
use turnwheel_record::services::{Limits, Services};
use turnwheel_storage::queue::{self, Queue as _};
use turnwheel_storage::store::{
    ConversationStore as _, Document, DocumentKind, HEAD_ID, Partition, StoreError, Write,
};

fn replies_hello(_results: usize, _input: &str) -> Vec<Value> {
    vec![text("hello")]
}

fn partition() -> Partition {
    Partition::Conversation(TestEnv::key())
}

#[tokio::test(start_paused = true)]
async fn late_items_are_refused_and_tombstone_expires() {
    let mut env = TestEnv::with_script(1, replies_hello);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    delete_conversation(&services, &TestEnv::key()).await.unwrap();
    // A worker that lost its lease to the deletion stores its result a moment later.
    let item = InboxItem {
        input_id: InputId::new("late-1"),
        accepted_at: env.clock.now(),
        idempotency: IdempotencyRecord::default(),
        traceparent: None,
        body: serde_json::from_value::<InboxBody>(json!({"abort": {}})).unwrap(),
    };
    let orphan = vec![Write::Create(documents::inbox_document(&item))];
    let orphan = with_inbox_count(orphan, Some(item.accepted_at));
    let refused = env.store.write(&partition(), orphan).await;
    assert!(matches!(refused, Err(StoreError::Conflict)), "{refused:?}");
    tokio::time::sleep(Duration::from_mins(2)).await;
    env.run_sweep().await;
    while env.deliver().await {}
    let left: Vec<_> = env.store.documents(&partition());
    let left: Vec<&str> = left.iter().map(|stored| stored.document.id.as_str()).collect();
    assert_eq!(left, [HEAD_ID]);
    tokio::time::sleep(TOMBSTONE_RETENTION).await;
    env.run_sweep().await;
    while env.deliver().await {}
    assert!(env.store.documents(&partition()).is_empty(), "the id can be used again");
}

#[tokio::test(start_paused = true)]
async fn unreadable_conversation_does_not_block_start_up() {
    let mut env = TestEnv::with_script(2, replies_hello);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let broken = Partition::Conversation(super::test_env::owner().conversation_key("broken"));
    let body = json!({"phase": "unheard of"});
    let head = Document {
        created_at: Some(env.clock.now()),
        state: Some("running".to_owned()),
        ..Document::new(HEAD_ID, DocumentKind::Head, &body, Some(env.clock.now()))
    };
    env.store.write(&broken, vec![Write::Create(head)]).await.unwrap();
    crash_count::recover_at_start_up(&services).await.unwrap();
    env.run_until_idle().await;
    assert_eq!(env.head().await.unwrap().phase, Phase::Idle);
}

fn calls_pay(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "look", 0)] } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn turn_of_a_dead_process_of_this_machine_continues_at_once() {
    for at in ["model.before", "model.after", "tool.before", "tool.after"] {
        let mut env = TestEnv::with_script(3, calls_pay);
        let pause = Arc::new(PauseFailPoint::new(at));
        let dying = env.new_worker(pause.clone());
        env.send_prompt(&dying).await;
        let nudge = TestEnv::nudge();
        let began = Instant::now();
        pause.kill(handle(&dying, &nudge)).await;
        // Its message stays hidden.
        let hidden = Duration::from_mins(10);
        while !env.queue.receive(queue::TURNS, 1, hidden).await.unwrap().is_empty() {}
        let lease = env.head().await.unwrap().lease.expect("a lease");

        let successor = env.new_worker(Arc::new(NoFailPoints));
        let (key, other) = (TestEnv::key(), WorkerId::new("another"));
        crash_count::recover_from_process(&successor, &key, &other).await.unwrap();
        assert_eq!(env.head().await.unwrap().lease.as_ref(), Some(&lease), "{at}: another's lease");
        crash_count::recover_from_process(&successor, &key, &dying.worker).await.unwrap();
        assert_eq!(env.head().await.unwrap().lease, None, "{at}");
        handle_nudges(&env, &successor).await;
        assert_eq!(env.head().await.unwrap().phase, Phase::Idle, "{at}");
        assert!(began.elapsed() < Duration::from_secs(10), "{at}: no lease was waited for");
    }
}

/// Responds slowly, with a retryable failure.
#[derive(Debug, Default)]
struct UnavailableSender {
    attempts: Mutex<u32>,
}

#[async_trait]
impl NotificationSender for UnavailableSender {
    async fn send(&self, _key: &ConversationKey, _notice: &Notification) -> SendOutcome {
        *self.attempts.lock().unwrap() += 1;
        tokio::time::sleep(Duration::from_secs(15)).await;
        SendOutcome::RetryLater("deaf".to_owned())
    }
}

/// Records the ids of the notifications sent to it.
#[derive(Debug, Default)]
struct RecordingSender {
    ids: Mutex<Vec<String>>,
}

#[async_trait]
impl NotificationSender for RecordingSender {
    async fn send(&self, _key: &ConversationKey, notice: &Notification) -> SendOutcome {
        self.ids.lock().unwrap().push(notice.id.clone());
        SendOutcome::Accepted
    }
}

fn create_notification(number: u32, env: &TestEnv) -> Write {
    let notification = Notification {
        id: format!("nt_{number}"),
        kind: "prompt.completed".to_owned(),
        at: env.clock.now(),
        data: RawJson::from_value(&json!({})),
        text: "A prompt is complete.".to_owned(),
        attempts: 0,
        settled_at: None,
        is_given_up: false,
    };
    Write::Create(documents::notice_document(&notification, Some(notification.at)))
}

#[tokio::test(start_paused = true)]
async fn unavailable_webhook_does_not_exceed_delivery_time() {
    let mut env = TestEnv::with_script(3, replies_hello);
    let sender = Arc::new(UnavailableSender::default());
    let mut services = env.new_worker(Arc::new(NoFailPoints));
    services.notification_sender = Some(sender.clone());
    let notifications = (0..40).map(|number| create_notification(number, &env)).collect();
    env.store.write(&partition(), notifications).await.unwrap();
    let began = Instant::now();
    notify(&services, &TestEnv::nudge()).await.unwrap();
    assert!(began.elapsed() < services.limits.turn_duration, "{:?}", began.elapsed());
    notify(&services, &TestEnv::nudge()).await.unwrap();
    notify(&services, &TestEnv::nudge()).await.unwrap();
    assert!(*sender.attempts.lock().unwrap() >= 30, "each notification is tried");
}

/// Each commit with a notification sends a wake-up message, and each delivery finds all that are due.
#[tokio::test(start_paused = true)]
async fn notifications_are_sent_once_by_concurrent_deliveries() {
    let mut env = TestEnv::with_script(3, replies_hello);
    let sender = Arc::new(RecordingSender::default());
    let mut services = env.new_worker(Arc::new(NoFailPoints));
    services.notification_sender = Some(sender.clone());
    let notifications = (0..3).map(|number| create_notification(number, &env)).collect();
    env.store.write(&partition(), notifications).await.unwrap();
    let nudge = TestEnv::nudge();
    let deliveries = (0..4).map(|_| notify(&services, &nudge));
    for delivery in futures_util::future::join_all(deliveries).await {
        delivery.unwrap();
    }
    let mut sent = sender.ids.lock().unwrap().clone();
    sent.sort();
    assert_eq!(sent, ["nt_0", "nt_1", "nt_2"]);
}

/// A worker that pauses once it has reserved the attempt of the only notification, `nt_1`.
struct Reserving {
    env: TestEnv,
    pause: Arc<PauseFailPoint>,
    sender: Arc<RecordingSender>,
    services: Services,
}

async fn reserve_notification() -> Reserving {
    let mut env = TestEnv::with_script(3, replies_hello);
    let pause = Arc::new(PauseFailPoint::new("notification.before"));
    let sender = Arc::new(RecordingSender::default());
    let mut services = env.new_worker(pause.clone());
    services.notification_sender = Some(sender.clone());
    let first = create_notification(1, &env);
    env.store.write(&partition(), vec![first]).await.unwrap();
    Reserving { env, pause, sender, services }
}

#[tokio::test(start_paused = true)]
async fn notification_is_not_sent_late_in_its_reservation() {
    let Reserving { env, pause, sender, services } = reserve_notification().await;
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(notify(&services, &nudge), async {
        pause.reached.notified().await;
        // The write of the reservation takes long.
        tokio::time::sleep(Duration::from_secs(11)).await;
        pause.resume.notify_one();
    });
    handled.unwrap();
    assert!(sender.ids.lock().unwrap().is_empty());
    tokio::time::sleep(Duration::from_secs(30)).await;
    let message = env.queue.receive(queue::NOTIFY, 1, Duration::from_secs(1)).await.unwrap();
    assert_eq!(message.len(), 1, "a wake-up message at the end of the reservation");
    notify(&services, &nudge).await.unwrap();
    assert_eq!(*sender.ids.lock().unwrap(), ["nt_1"]);
}

/// The wake-up message of a killed delivery is delivered again while the attempt is reserved.
#[tokio::test(start_paused = true)]
async fn notification_of_killed_delivery_is_sent_after_reservation() {
    let Reserving { env, pause, sender, mut services } = reserve_notification().await;
    let nudge = TestEnv::nudge();
    tokio::select! {
        _ = notify(&services, &nudge) => panic!("the delivery ends before its kill"),
        () = pause.reached.notified() => {}
    }
    services.fail_points = Arc::new(NoFailPoints);
    tokio::time::sleep(Duration::from_secs(15)).await;
    notify(&services, &nudge).await.unwrap();
    assert!(sender.ids.lock().unwrap().is_empty(), "the attempt is reserved");
    tokio::time::sleep(Duration::from_secs(15)).await;
    let message = env.queue.receive(queue::NOTIFY, 1, Duration::from_secs(1)).await.unwrap();
    assert_eq!(message.len(), 1, "a wake-up message at the end of the reservation");
    notify(&services, &nudge).await.unwrap();
    assert_eq!(*sender.ids.lock().unwrap(), ["nt_1"]);
}

#[tokio::test(start_paused = true)]
async fn notification_retry_is_sent_once_by_concurrent_deliveries() {
    let mut env = TestEnv::with_script(3, replies_hello);
    let sender = Arc::new(UnavailableSender::default());
    let mut services = env.new_worker(Arc::new(NoFailPoints));
    services.notification_sender = Some(sender.clone());
    let first = create_notification(1, &env);
    env.store.write(&partition(), vec![first]).await.unwrap();
    let nudge = TestEnv::nudge();
    notify(&services, &nudge).await.unwrap();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let (one, other) = tokio::join!(notify(&services, &nudge), notify(&services, &nudge));
    assert!(one.is_ok() && other.is_ok());
    assert_eq!(*sender.attempts.lock().unwrap(), 2, "the first try and one retry");
}

#[tokio::test(start_paused = true)]
async fn notifications_wait_while_no_webhook_is_configured() {
    let mut env = TestEnv::with_script(4, replies_hello);
    let mut services = env.new_worker(Arc::new(NoFailPoints));
    let first = create_notification(1, &env);
    env.store.write(&partition(), vec![first]).await.unwrap();
    notify(&services, &TestEnv::nudge()).await.unwrap();
    let due = env.store.documents(&partition())[0].document.due.unwrap();
    assert!(due > env.clock.now(), "the retry is deferred");
    let sender = Arc::new(RecordingSender::default());
    services.notification_sender = Some(sender.clone());
    tokio::time::sleep(Duration::from_mins(1)).await;
    notify(&services, &TestEnv::nudge()).await.unwrap();
    notify(&services, &TestEnv::nudge()).await.unwrap();
    assert_eq!(*sender.ids.lock().unwrap(), ["nt_1"], "sent once");
}

#[tokio::test(start_paused = true)]
async fn worker_stalled_beyond_its_turn_fails_no_prompt() {
    let mut env = TestEnv::new(1);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let pause = Arc::new(PauseFailPoint::new("model.before"));
    let worker = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        tokio::time::sleep(Limits::default().turn_duration + Duration::from_secs(10)).await;
        pause.resume.notify_one();
    });
    handled.unwrap();
    env.run_until_idle().await;
    let head = env.head().await.unwrap();
    assert_eq!(head.prompts.last().unwrap().state, PromptState::Completed, "{:#?}", env.run_log);
}
