//! Wall clocks that are set back or ahead: no wait lasts until the clock has caught up, and none is
//! skipped.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::store_requests::replies_hello;
use super::test_env::{PauseFailPoint, TestEnv, idempotency, owner};
use crate::clock_change::{ClockWatch, end_waits};
use crate::crash_count;
use crate::delivery::handle;
use turnwheel_commands::schedules::create::{NewSchedule, accept_schedule};
use turnwheel_commands::schedules::load_schedule;
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::notification::Notification;
use turnwheel_conversation::phase::Phase;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::fail_points::{FailPoints, NoFailPoints};
use turnwheel_platform::ids::ConversationKey;
use turnwheel_record::documents;
use turnwheel_record::error::DeliveryOutcome;
use turnwheel_record::lease::LEASE_DURATION;
use turnwheel_record::notifications::notify;
use turnwheel_record::notifications::sender::{NotificationSender, SendOutcome};
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _};
use turnwheel_storage::store::{ConversationStore as _, Partition, Write};

const AHEAD: Duration = Duration::from_hours(72);

/// A worker whose clock is ahead of that of the environment.
fn worker_ahead(env: &mut TestEnv) -> Services {
    worker_ahead_with(env, Arc::new(NoFailPoints))
}

fn worker_ahead_with(env: &mut TestEnv, fail_points: Arc<dyn FailPoints>) -> Services {
    let services = env.new_worker(fail_points);
    Services { clock: Arc::new(env.clock.ahead(AHEAD)), ..services }
}

#[tokio::test(start_paused = true)]
async fn retry_and_settlement_survive_clock_set_back() {
    for is_restarted in [true, false] {
        let mut env = TestEnv::with_script(1, replies_hello);
        let ahead = worker_ahead(&mut env);
        env.send_prompt(&ahead).await;
        *env.model.failures_left.lock().unwrap() = 1;
        handle(&ahead, &TestEnv::nudge()).await.unwrap();
        let head = env.head().await.unwrap();
        assert!(matches!(head.phase, Phase::Model { attempt: 2, not_before: Some(_) }));
        assert!(head.due.unwrap() > env.clock.now().plus(AHEAD));
        let services = env.new_worker(Arc::new(NoFailPoints));
        if is_restarted {
            crash_count::recover_at_start_up(&services).await.unwrap();
        } else {
            end_waits(&services).await.unwrap();
        }
        let began = env.clock.monotonic();
        env.run_until_idle().await;
        let head = env.head().await.unwrap();
        assert_eq!(head.prompts[0].state, PromptState::Completed);
        assert!(env.clock.monotonic().saturating_sub(began) < Duration::from_mins(15));
        let soon = env.clock.now().plus(Duration::from_mins(15));
        assert!(head.updated_at <= soon && head.due.is_none_or(|due| due <= soon));
    }
}

#[tokio::test(start_paused = true)]
async fn lease_of_dead_worker_with_a_clock_ahead_ends_after_its_duration() {
    let mut env = TestEnv::with_script(4, replies_hello);
    let pause = Arc::new(PauseFailPoint::new("model.before"));
    let ahead = worker_ahead_with(&mut env, pause.clone());
    env.send_prompt(&ahead).await;
    pause.kill(handle(&ahead, &TestEnv::nudge())).await;
    let lease = env.head().await.unwrap().lease.unwrap();
    assert!(lease.until > env.clock.now().plus(AHEAD));
    let began = env.clock.monotonic();
    env.run_until_idle().await;
    let head = env.head().await.unwrap();
    assert_eq!((head.prompts[0].state, head.lease), (PromptState::Completed, None));
    assert_eq!(*env.model.calls.lock().unwrap(), 1);
    let wait = env.clock.monotonic().saturating_sub(began);
    assert!(wait >= LEASE_DURATION && wait < LEASE_DURATION * 3, "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn renewed_lease_of_a_clock_ahead_is_not_over() {
    let mut env = TestEnv::with_script(5, replies_hello);
    let pause = Arc::new(PauseFailPoint::new("model.before"));
    let ahead = worker_ahead_with(&mut env, pause.clone());
    env.send_prompt(&ahead).await;
    let other = env.new_worker(Arc::new(NoFailPoints));
    let first = TestEnv::nudge();
    let (finished, ()) = tokio::join!(handle(&ahead, &first), async {
        pause.reached.notified().await;
        let until = env.head().await.unwrap().lease.unwrap().until;
        let expired_lease = Some(until.minus(Duration::from_secs(1)));
        let nudge = Nudge { expired_lease, ..TestEnv::nudge() };
        assert_eq!(handle(&other, &nudge).await.unwrap(), DeliveryOutcome::NoWork);
        pause.resume.notify_one();
    });
    assert_eq!(finished.unwrap(), DeliveryOutcome::Worked);
    assert_eq!(*env.model.calls.lock().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn schedule_fired_by_a_clock_ahead_fires_on_time_again() {
    let mut env = TestEnv::with_script(2, replies_hello);
    let services = env.new_worker(Arc::new(NoFailPoints));
    let request = NewSchedule {
        id: Some("s".to_owned()),
        input: Some(Content::Text("tick".to_owned())),
        every: Some("* * * * *".to_owned()),
        ..NewSchedule::default()
    };
    accept_schedule(&services, &owner(), request, &idempotency("s"), None).await.unwrap();
    let ahead = worker_ahead(&mut env);
    crate::sweep::sweep(&ahead, Duration::ZERO).await.unwrap();
    for message in env.queue.receive(queue::TURNS, 9, Duration::from_mins(1)).await.unwrap() {
        handle(&ahead, &serde_json::from_str(&message.text).unwrap()).await.unwrap();
    }
    let fired = load_schedule(&services, &owner(), "s").await.unwrap();
    assert!(fired.next_at.unwrap() > env.clock.now().plus(AHEAD), "{fired:?}");
    end_waits(&services).await.unwrap();
    let corrected = load_schedule(&services, &owner(), "s").await.unwrap();
    let wait = env.clock.now().until(corrected.next_at.unwrap());
    assert!(wait <= Duration::from_mins(1), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn schedule_created_by_a_clock_ahead_fires_on_time() {
    let mut env = TestEnv::with_script(6, replies_hello);
    let ahead = worker_ahead(&mut env);
    for (id, at, every) in [
        ("cron", None, Some("* * * * *")),
        ("interval", None, Some("PT15M")),
        ("once", Some("PT10M"), None),
    ] {
        let request = NewSchedule {
            id: Some(id.to_owned()),
            input: Some(Content::Text("tick".to_owned())),
            at: at.map(str::to_owned),
            every: every.map(str::to_owned),
            ..NewSchedule::default()
        };
        accept_schedule(&ahead, &owner(), request, &idempotency(id), None).await.unwrap();
        let services = env.new_worker(Arc::new(NoFailPoints));
        end_waits(&services).await.unwrap();
        let corrected = load_schedule(&services, &owner(), id).await.unwrap();
        let now = env.clock.now();
        let wait = now.until(corrected.next_at.unwrap());
        assert!(wait <= Duration::from_mins(15) && corrected.created_at <= now, "{corrected:?}");
    }
}

#[derive(Debug)]
struct UnavailableSender;

#[async_trait]
impl NotificationSender for UnavailableSender {
    async fn send(&self, _key: &ConversationKey, _notification: &Notification) -> SendOutcome {
        SendOutcome::RetryLater("unavailable".to_owned())
    }
}

/// Creates the notification `nt_1`, which is due. Returns its partition.
async fn create_notification(env: &TestEnv) -> Partition {
    let at = env.clock.now();
    let notification = Notification {
        id: "nt_1".to_owned(),
        kind: "prompt.completed".to_owned(),
        at,
        data: RawJson::from_value(&serde_json::json!({})),
        text: "A prompt is complete.".to_owned(),
        attempts: 0,
        settled_at: None,
        is_given_up: false,
    };
    let partition = Partition::Conversation(TestEnv::key());
    let write = Write::Create(documents::notice_document(&notification, Some(at)));
    env.store.write(&partition, vec![write]).await.unwrap();
    partition
}

/// The notification was made before the clock went ahead, and the receiver is away all the time.
#[tokio::test(start_paused = true)]
async fn notification_tried_by_a_clock_ahead_is_sent_on_time() {
    let mut env = TestEnv::with_script(7, replies_hello);
    env.notifier = Some(Arc::new(UnavailableSender));
    let services = env.new_worker(Arc::new(NoFailPoints));
    let clock = Arc::new(env.clock.ahead(Duration::from_hours(3)));
    let ahead = Services { clock, ..env.new_worker(Arc::new(NoFailPoints)) };
    let made_at = env.clock.now();
    let partition = create_notification(&env).await;
    let (store, nudge) = (env.store.clone(), TestEnv::nudge());
    let stored = || store.read_newest(&partition, "nt_1").unwrap().document;
    for worker in [&services, &services, &services, &services, &ahead] {
        tokio::time::sleep(Duration::from_mins(6)).await;
        end_waits(&services).await.unwrap();
        notify(worker, &nudge).await.unwrap();
    }
    let due = stored().due.unwrap();
    assert!(due > env.clock.now().plus(Duration::from_hours(3)), "{due:?}");
    end_waits(&services).await.unwrap();
    assert_eq!(stored().due, Some(env.clock.now()), "the attempt is made now");
    let corrected: Notification = documents::read(&stored()).unwrap();
    assert_eq!((corrected.at, corrected.attempts), (made_at, 5));
    notify(&services, &nudge).await.unwrap();
    let due = stored().due.unwrap();
    assert!(due > env.clock.now().plus(Duration::from_hours(1)), "{due:?}");
    end_waits(&services).await.unwrap();
    assert_eq!(stored().due, Some(due), "an ordinary wait stays");
}

#[tokio::test(start_paused = true)]
async fn notification_has_all_attempts_after_clock_set_ahead() {
    let mut env = TestEnv::with_script(8, replies_hello);
    env.notifier = Some(Arc::new(UnavailableSender));
    let services = env.new_worker(Arc::new(NoFailPoints));
    let ahead = worker_ahead(&mut env);
    let partition = create_notification(&env).await;
    let (store, nudge) = (env.store.clone(), TestEnv::nudge());
    let attempts = || {
        let stored = store.read_newest(&partition, "nt_1").unwrap().document;
        let notification: Notification = documents::read(&stored).unwrap();
        (notification.attempts, notification.is_given_up)
    };
    notify(&ahead, &nudge).await.unwrap();
    assert_eq!(attempts(), (1, false));
    end_waits(&services).await.unwrap();
    for attempt in 2..=13 {
        tokio::time::sleep(Duration::from_hours(11)).await;
        notify(&services, &nudge).await.unwrap();
        assert_eq!(attempts(), (attempt, attempt == 13), "the last attempt gives it up");
    }
}

#[tokio::test(start_paused = true)]
async fn clock_watch_notices_only_clocks_set_back() {
    let env = TestEnv::new(3);
    let ahead = env.clock.ahead(AHEAD);
    let watch = ClockWatch::new(&env.clock);
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!(!watch.was_set_back(&env.clock));
    assert!(!watch.was_set_back(&ahead), "set ahead");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(watch.was_set_back(&env.clock));
    assert!(!watch.was_set_back(&env.clock));
}
