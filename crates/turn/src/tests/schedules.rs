//! Schedules: fired once and on time, with any faults; and long waits without memory or messages.

mod creation;
mod long_waits;
mod targets;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::test_env::{PauseFailPoint, TestEnv, call, idempotency, owner, text};
use crate::delivery::handle;
use turnwheel_commands::schedules::create::{NewSchedule, accept_schedule};
use turnwheel_commands::schedules::{cancel_schedule, load_schedule, schedule_document_id};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::{EntryBody, Source};
use turnwheel_conversation::inbox::Receipt;
use turnwheel_conversation::schedule::Schedule;
use turnwheel_platform::clock::{Clock as _, Timestamp};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_record::contract::CommandError;
use turnwheel_record::documents;
use turnwheel_record::error::DeliveryOutcome;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _};
use turnwheel_storage::store::memory::StoreFaults;
use turnwheel_storage::store::{DocumentKind, Freshness, Partition, Selection};

fn echoes_input(_results: usize, input: &str) -> Vec<Value> {
    vec![text(input)]
}

/// The first prompt requests an approval; all others get a text.
fn calls_patient_first(results: usize, input: &str) -> Vec<Value> {
    if input == "go" && results == 0 { vec![call("c1", "patient", 0)] } else { vec![text(input)] }
}

/// A request for the schedule `s` with the input `tick`.
fn new_schedule(at: &str, every: &str) -> NewSchedule {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    NewSchedule {
        id: Some("s".to_owned()),
        input: Some(Content::Text("tick".to_owned())),
        at: given(at),
        every: given(every),
        ..NewSchedule::default()
    }
}

/// A request for the schedule `s` in the conversation `c`.
fn new_schedule_in_c(at: &str, every: &str) -> NewSchedule {
    NewSchedule { conversation_id: Some("c".to_owned()), ..new_schedule(at, every) }
}

async fn create_schedule(services: &Services, request: NewSchedule) -> Schedule {
    let id = request.id.clone().unwrap();
    accept_schedule(services, &owner(), request, &idempotency(&id), None).await.unwrap();
    load_schedule(services, &owner(), &id).await.unwrap()
}

async fn read_schedule(services: &Services) -> Schedule {
    load_schedule(services, &owner(), "s").await.unwrap()
}

fn schedule_nudge(schedule: &Schedule) -> Nudge {
    Nudge::for_schedule(&owner().tenant, &schedule_document_id(&schedule.user, &schedule.id))
}

/// Times at which prompts of schedules were applied.
async fn firing_times(env: &TestEnv, key: &ConversationKey) -> Vec<Timestamp> {
    let entries = env.entries_of(key).await;
    let ticks = entries.iter().filter_map(|entry| match &entry.body {
        EntryBody::Prompt(prompt) if prompt.source == Source::Schedule => {
            Some(entry.base.timestamp)
        }
        _ => None,
    });
    ticks.collect()
}

/// Times at which firings into `c` were accepted.
async fn acceptance_times(env: &TestEnv) -> Vec<Timestamp> {
    let entries = env.entries().await;
    let is_tick = |receipt: &Receipt| {
        entries.iter().any(|entry| {
            matches!(&entry.body, EntryBody::Prompt(prompt)
                if prompt.source == Source::Schedule && prompt.input_id == receipt.input_id)
        })
    };
    let partition = Partition::Conversation(TestEnv::key());
    let all = Selection::all(DocumentKind::Receipt);
    let found = env.worker_store.select(&partition, &all, Freshness::Latest).await.unwrap();
    let receipts = found.iter().map(|stored| documents::read::<Receipt>(&stored.document).unwrap());
    let mut times: Vec<Timestamp> =
        receipts.filter(is_tick).map(|receipt| receipt.accepted_at).collect();
    times.sort();
    times
}

/// Passes time: delivers all nudges, and runs the recovery sweep each minute.
async fn pass_time(env: &mut TestEnv, span: Duration) {
    let ends = env.clock.monotonic() + span;
    let mut swept = env.clock.monotonic();
    while env.clock.monotonic() < ends {
        while env.deliver().await {}
        if env.clock.monotonic() >= swept + Duration::from_mins(1) {
            swept = env.clock.monotonic();
            env.run_sweep().await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Returns an environment with the conversation `c`; all deliveries of its first prompt are done.
async fn new_env(seed: u64, script: super::test_env::Script) -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(seed, script);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    while env.deliver().await {}
    (env, services)
}

#[tokio::test(start_paused = true)]
async fn schedule_fires_within_a_minute_and_never_early() {
    for (at, number) in [("PT1M", 1), ("PT100S", 2), ("PT10M", 3), ("PT25H", 4)] {
        let (mut env, services) = new_env(number, echoes_input).await;
        let made = create_schedule(&services, new_schedule_in_c(at, "")).await;
        let due = made.next_at.unwrap();
        pass_time(&mut env, services.clock.now().until(due) + Duration::from_mins(2)).await;
        let ticks = firing_times(&env, &TestEnv::key()).await;
        assert_eq!(ticks.len(), 1, "{at}");
        assert!(
            ticks[0] >= due && due.until(ticks[0]) <= Duration::from_secs(5),
            "{at}: {ticks:?}"
        );
        let fired = read_schedule(&services).await;
        assert_eq!((fired.due(), fired.last_problem), (None, None), "{at}");
        let fired = fired.last_firing.unwrap();
        let head = env.head().await.unwrap();
        assert_eq!(fired.prompt_id, head.prompts.last().unwrap().id);
        assert!(fired.at >= due);
    }
}

#[tokio::test(start_paused = true)]
async fn sweep_fires_schedule_within_a_minute_without_nudge() {
    let (mut env, services) = new_env(1, echoes_input).await;
    let made = create_schedule(&services, new_schedule_in_c("", "PT10M")).await;
    let due = made.next_at.unwrap();
    tokio::time::sleep(Duration::from_secs(10 * 60 - 91)).await;
    env.run_sweep().await;
    assert_eq!(env.queue.length(queue::TURNS).await.unwrap(), 0, "too early to enqueue it");
    for second in 0..=150 {
        // The last sweep before the due time comes less than a minute before it, and its nudge is
        // lost. The next sweep comes just after.
        if [50, 110].contains(&second) {
            env.run_sweep().await;
        }
        if second == 60 {
            env.queue.drop_queue(queue::TURNS);
        }
        while env.deliver().await {}
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let ticks = firing_times(&env, &TestEnv::key()).await;
    assert!(due.until(ticks[0]) <= Duration::from_mins(1), "{:?}", due.until(ticks[0]));
    assert_eq!(ticks.len(), 1);
}

/// A schedule that fires every three minutes, with crashes and with lost, duplicated and late
/// nudges, fires once for each time, in order.
#[tokio::test(start_paused = true)]
async fn schedule_fires_once_each_time_with_injected_faults() {
    for seed in 0..12 {
        let (mut env, services) = new_env(seed, echoes_input).await;
        env.crash_percent = 5;
        env.queue.set_faults(queue::QueueFaults {
            lose: 20,
            double: 30,
            delay: 20,
            delay_max: Duration::from_secs(50),
            reorder: 20,
            unavailable: 5,
        });
        env.store.set_faults(StoreFaults {
            conflict: 0.02,
            conflict_after: 0.02,
            unavailable_before: 0.02,
            unavailable_after: 0.02,
            ..Default::default()
        });
        let request =
            NewSchedule { until: Some("PT31M".to_owned()), ..new_schedule_in_c("", "PT3M") };
        // The client repeats the request with the same key until it is accepted.
        while accept_schedule(&services, &owner(), request.clone(), &idempotency("s"), None)
            .await
            .is_err()
        {}
        pass_time(&mut env, Duration::from_hours(1)).await;
        env.store.set_faults(StoreFaults::default());
        let made = read_schedule(&services).await;
        assert_eq!(made.due(), None, "{seed}: {:#?}", env.run_log);
        let ticks = firing_times(&env, &TestEnv::key()).await;
        let regular: Vec<Timestamp> =
            (1..=10_u32).map(|n| made.created_at.plus(Duration::from_mins(3) * n)).collect();
        // A very late firing replaces the ones missed before it; none is early, none is repeated.
        let number = |time: &Timestamp| regular.iter().filter(|regular| *regular <= time).count();
        let served: Vec<usize> = acceptance_times(&env).await.iter().map(number).collect();
        assert!(served.len() >= 8 && served[0] >= 1, "{seed}: {served:?}");
        assert!(served.windows(2).all(|two| two[0] < two[1]), "{seed}: {served:?}");
        assert_eq!(served.len(), ticks.len(), "{seed}");
        let heads = env.head().await.unwrap();
        assert_eq!(heads.prompts.len(), ticks.len() + 1, "{seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn crash_between_prompt_and_update_fires_once() {
    for fail_point in ["admission.accepted", "schedule.fired", "schedule.moved"] {
        let (mut env, services) = new_env(1, echoes_input).await;
        let made = create_schedule(&services, new_schedule_in_c("PT5M", "PT1H")).await;
        tokio::time::sleep(Duration::from_mins(5)).await;
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let victim = env.new_worker(pause.clone());
        let nudge = schedule_nudge(&made);
        pause.kill(handle(&victim, &nudge)).await;
        pass_time(&mut env, Duration::from_mins(3)).await;
        assert_eq!(firing_times(&env, &TestEnv::key()).await.len(), 1, "{fail_point}");
        let moved = read_schedule(&services).await;
        assert_eq!(moved.next_at, made.next_at.map(|at| at.plus(Duration::from_hours(1))));
        assert!(moved.last_firing.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn two_concurrent_workers_fire_schedule_once() {
    let (mut env, services) = new_env(1, echoes_input).await;
    let made = create_schedule(&services, new_schedule_in_c("PT5M", "P1D")).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let pause = Arc::new(PauseFailPoint::new("schedule.fired"));
    let slow = env.new_worker(pause.clone());
    let nudge = schedule_nudge(&made);
    let (slow_result, ()) = tokio::join!(handle(&slow, &nudge), async {
        pause.reached.notified().await;
        assert_eq!(handle(&services, &nudge).await.unwrap(), DeliveryOutcome::Worked);
        pause.resume.notify_one();
    });
    assert_eq!(
        slow_result.unwrap(),
        DeliveryOutcome::NoWork,
        "the other worker has moved the schedule"
    );
    while env.deliver().await {}
    assert_eq!(firing_times(&env, &TestEnv::key()).await.len(), 1);
    assert_eq!(
        read_schedule(&services).await.next_at,
        made.next_at.map(|at| at.plus(Duration::from_hours(24)))
    );
    // One more nudge, long after the firing.
    assert_eq!(handle(&services, &nudge).await.unwrap(), DeliveryOutcome::NoWork);
    assert_eq!(
        env.queue.length(queue::TURNS).await.unwrap(),
        0,
        "a late nudge sends no further one"
    );
}

#[tokio::test(start_paused = true)]
async fn early_nudge_is_sent_again_when_due() {
    let (env, services) = new_env(1, echoes_input).await;
    let made = create_schedule(&services, new_schedule_in_c("PT1H", "")).await;
    tokio::time::sleep(Duration::from_secs(3600 - 4)).await;
    assert_eq!(handle(&services, &schedule_nudge(&made)).await.unwrap(), DeliveryOutcome::NoWork);
    assert_eq!(env.queue.length(queue::TURNS).await.unwrap(), 1);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(handle(&services, &schedule_nudge(&made)).await.unwrap(), DeliveryOutcome::Worked);
}

#[tokio::test(start_paused = true)]
async fn cancelled_schedule_never_fires() {
    let (mut env, services) = new_env(1, echoes_input).await;
    let made = create_schedule(&services, new_schedule_in_c("PT1M", "PT1M")).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    cancel_schedule(&services, &owner(), "s").await.unwrap();
    assert!(matches!(
        cancel_schedule(&services, &owner(), "s").await,
        Err(CommandError::NotFound("schedule"))
    ));
    pass_time(&mut env, Duration::from_mins(5)).await;
    assert_eq!(firing_times(&env, &TestEnv::key()).await.len(), 0);
    assert_eq!(handle(&services, &schedule_nudge(&made)).await.unwrap(), DeliveryOutcome::NoWork);
}

#[tokio::test(start_paused = true)]
async fn schedule_cancelled_during_firing_stays_cancelled() {
    let (mut env, services) = new_env(1, echoes_input).await;
    let made = create_schedule(&services, new_schedule_in_c("PT5M", "PT1M")).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let pause = Arc::new(PauseFailPoint::new("schedule.fired"));
    let worker = env.new_worker(pause.clone());
    let nudge = schedule_nudge(&made);
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        cancel_schedule(&services, &owner(), "s").await.unwrap();
        pause.resume.notify_one();
    });
    handled.unwrap();
    pass_time(&mut env, Duration::from_mins(5)).await;
    assert_eq!(
        firing_times(&env, &TestEnv::key()).await.len(),
        1,
        "the firing before the cancellation"
    );
    assert!(matches!(
        load_schedule(&services, &owner(), "s").await,
        Err(CommandError::NotFound(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn schedule_fires_once_late_after_an_outage() {
    let (mut env, services) = new_env(1, echoes_input).await;
    let made = create_schedule(&services, new_schedule_in_c("", "PT30M")).await;
    tokio::time::sleep(Duration::from_hours(5) + Duration::from_mins(10)).await;
    pass_time(&mut env, Duration::from_mins(25)).await;
    let ticks = firing_times(&env, &TestEnv::key()).await;
    assert_eq!(ticks.len(), 2, "the late firing and the next regular one: {ticks:?}");
    let regular = made.created_at.plus(Duration::from_mins(330));
    assert!(ticks[1] >= regular && regular.until(ticks[1]) < Duration::from_secs(5));
}
