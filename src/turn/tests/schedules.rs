//! Schedules: fired once and on time, with any faults; and long waits without memory or messages.

mod keeping;
mod ordering;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::bench::{Bench, PauseProbe, call, idempotency, owner, text};
use crate::agent::content::Content;
use crate::agent::entry::{EntryBody, Source};
use crate::agent::inbox::Receipt;
use crate::agent::schedule::Schedule;
use crate::clock::{Clock as _, Timestamp};
use crate::ids::ConversationKey;
use crate::queue::{self, Queue as _};
use crate::store::memory::Faults;
use crate::store::{Freshness, Kind, Partition, Selection};
use crate::turn::admission::Refusal;
use crate::turn::delivery::{Handled, handle};
use crate::turn::schedules::create::{NewSchedule, create};
use crate::turn::schedules::{cancel, id_of, read};
use crate::turn::{NoProbe, Nudge, World, record};

fn answers(_results: usize, said: &str) -> Vec<Value> {
    vec![text(said)]
}

/// The first prompt requests an approval; all others get a text.
fn asks_first(results: usize, said: &str) -> Vec<Value> {
    if said == "go" && results == 0 { vec![call("c1", "patient", 0)] } else { vec![text(said)] }
}

/// A request for the schedule `s` with the input `tick`.
fn order(at: &str, every: &str) -> NewSchedule {
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
fn order_in_c(at: &str, every: &str) -> NewSchedule {
    NewSchedule { conversation_id: Some("c".to_owned()), ..order(at, every) }
}

async fn ordered(world: &World, request: NewSchedule) -> Schedule {
    let id = request.id.clone().unwrap();
    create(world, &owner(), request, &idempotency(&id), None).await.unwrap();
    read(world, &owner(), &id).await.unwrap()
}

async fn schedule(world: &World) -> Schedule {
    read(world, &owner(), "s").await.unwrap()
}

fn bell(schedule: &Schedule) -> Nudge {
    Nudge::of_schedule(&owner().tenant, &id_of(&schedule.user, &schedule.id))
}

/// Times at which prompts of schedules were applied.
async fn ticks(bench: &Bench, key: &ConversationKey) -> Vec<Timestamp> {
    let entries = bench.entries_of(key).await;
    let ticks = entries.iter().filter_map(|entry| match &entry.body {
        EntryBody::Prompt(prompt) if prompt.source == Source::Schedule => {
            Some(entry.base.timestamp)
        }
        _ => None,
    });
    ticks.collect()
}

/// Times at which firings into `c` were accepted.
async fn accepted(bench: &Bench) -> Vec<Timestamp> {
    let entries = bench.entries().await;
    let is_tick = |receipt: &Receipt| {
        entries.iter().any(|entry| {
            matches!(&entry.body, EntryBody::Prompt(prompt)
                if prompt.source == Source::Schedule && prompt.input_id == receipt.input_id)
        })
    };
    let partition = Partition::Conversation(Bench::key());
    let all = Selection::all(Kind::Receipt);
    let found = bench.shared.select(&partition, &all, Freshness::Latest).await.unwrap();
    let receipts = found.iter().map(|stored| record::read::<Receipt>(&stored.document).unwrap());
    let mut times: Vec<Timestamp> =
        receipts.filter(is_tick).map(|receipt| receipt.accepted_at).collect();
    times.sort();
    times
}

/// Passes time: delivers all nudges, and runs the recovery sweep each minute.
async fn live(bench: &mut Bench, span: Duration) {
    let ends = bench.clock.monotonic() + span;
    let mut swept = bench.clock.monotonic();
    while bench.clock.monotonic() < ends {
        while bench.deliver().await {}
        if bench.clock.monotonic() >= swept + Duration::from_mins(1) {
            swept = bench.clock.monotonic();
            bench.sweep().await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Returns an environment with the conversation `c`; all deliveries of its first prompt are done.
async fn stage(seed: u64, script: super::bench::Script) -> (Bench, World) {
    let mut bench = Bench::with(seed, script);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    while bench.deliver().await {}
    (bench, world)
}

#[tokio::test(start_paused = true)]
async fn a_schedule_fires_within_a_minute_and_never_early() {
    for (at, number) in [("PT1M", 1), ("PT100S", 2), ("PT10M", 3), ("PT25H", 4)] {
        let (mut bench, world) = stage(number, answers).await;
        let made = ordered(&world, order_in_c(at, "")).await;
        let due = made.next_at.unwrap();
        live(&mut bench, world.clock.now().until(due) + Duration::from_mins(2)).await;
        let ticks = ticks(&bench, &Bench::key()).await;
        assert_eq!(ticks.len(), 1, "{at}");
        assert!(
            ticks[0] >= due && due.until(ticks[0]) <= Duration::from_secs(5),
            "{at}: {ticks:?}"
        );
        let fired = schedule(&world).await;
        assert_eq!((fired.due(), fired.last_problem), (None, None), "{at}");
        let fired = fired.last_fired.unwrap();
        let head = bench.head().await.unwrap();
        assert_eq!(fired.prompt_id, head.prompts.last().unwrap().id);
        assert!(fired.at >= due);
    }
}

#[tokio::test(start_paused = true)]
async fn without_its_own_bell_the_sweep_fires_it_within_a_minute_too() {
    let (mut bench, world) = stage(1, answers).await;
    let made = ordered(&world, order_in_c("", "PT10M")).await;
    let due = made.next_at.unwrap();
    tokio::time::sleep(Duration::from_secs(10 * 60 - 91)).await;
    bench.sweep().await;
    assert_eq!(bench.queue.length(queue::TURNS).await.unwrap(), 0, "too early to enqueue it");
    for second in 0..=150 {
        // The last sweep before the due time comes less than a minute before it, and its nudge is
        // lost. The next sweep comes just after.
        if [50, 110].contains(&second) {
            bench.sweep().await;
        }
        if second == 60 {
            bench.queue.drop_queue(queue::TURNS);
        }
        while bench.deliver().await {}
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let ticks = ticks(&bench, &Bench::key()).await;
    assert!(due.until(ticks[0]) <= Duration::from_mins(1), "{:?}", due.until(ticks[0]));
    assert_eq!(ticks.len(), 1);
}

/// A schedule that fires every three minutes, with crashes and with lost, duplicated and late
/// nudges, fires once for each time, in order.
#[tokio::test(start_paused = true)]
async fn on_bad_days_each_firing_is_one_prompt() {
    for seed in 0..12 {
        let (mut bench, world) = stage(seed, answers).await;
        bench.crash_in_a_hundred = 5;
        bench.queue.set_faults(queue::Faults {
            lose: 20,
            double: 30,
            delay: 20,
            delay_max: Duration::from_secs(50),
            reorder: 20,
            unavailable: 5,
        });
        bench.store.set_faults(Faults {
            conflict: 0.02,
            conflict_after: 0.02,
            unavailable_before: 0.02,
            unavailable_after: 0.02,
            ..Default::default()
        });
        let request = NewSchedule { until: Some("PT31M".to_owned()), ..order_in_c("", "PT3M") };
        // The client repeats the request with the same key until it is accepted.
        while create(&world, &owner(), request.clone(), &idempotency("s"), None).await.is_err() {}
        live(&mut bench, Duration::from_hours(1)).await;
        bench.store.set_faults(Faults::default());
        let made = schedule(&world).await;
        assert_eq!(made.due(), None, "{seed}: {:#?}", bench.story);
        let ticks = ticks(&bench, &Bench::key()).await;
        let regular: Vec<Timestamp> =
            (1..=10_u32).map(|n| made.created_at.plus(Duration::from_mins(3) * n)).collect();
        // A very late firing replaces the ones missed before it; none is early, none is repeated.
        let number = |time: &Timestamp| regular.iter().filter(|regular| *regular <= time).count();
        let served: Vec<usize> = accepted(&bench).await.iter().map(number).collect();
        assert!(served.len() >= 8 && served[0] >= 1, "{seed}: {served:?}");
        assert!(served.windows(2).all(|two| two[0] < two[1]), "{seed}: {served:?}");
        assert_eq!(served.len(), ticks.len(), "{seed}");
        let heads = bench.head().await.unwrap();
        assert_eq!(heads.prompts.len(), ticks.len() + 1, "{seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_prompt_and_move_is_one_firing() {
    for boundary in ["admission.accepted", "schedule.fired", "schedule.moved"] {
        let (mut bench, world) = stage(1, answers).await;
        let made = ordered(&world, order_in_c("PT5M", "PT1H")).await;
        tokio::time::sleep(Duration::from_mins(5)).await;
        let pause = Arc::new(PauseProbe::new(boundary));
        let doomed = bench.worker(pause.clone());
        let nudge = bell(&made);
        tokio::select! {
            _ = handle(&doomed, &nudge) => panic!("the worker was not killed"),
            () = pause.reached.notified() => {}
        }
        live(&mut bench, Duration::from_mins(3)).await;
        assert_eq!(ticks(&bench, &Bench::key()).await.len(), 1, "{boundary}");
        let moved = schedule(&world).await;
        assert_eq!(moved.next_at, made.next_at.map(|at| at.plus(Duration::from_hours(1))));
        assert!(moved.last_fired.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn two_workers_at_once_make_one_firing_and_one_move() {
    let (mut bench, world) = stage(1, answers).await;
    let made = ordered(&world, order_in_c("PT5M", "P1D")).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let pause = Arc::new(PauseProbe::new("schedule.fired"));
    let slow = bench.worker(pause.clone());
    let nudge = bell(&made);
    let (was_slow, ()) = tokio::join!(handle(&slow, &nudge), async {
        pause.reached.notified().await;
        assert_eq!(handle(&world, &nudge).await.unwrap(), Handled::Worked);
        pause.go.notify_one();
    });
    assert_eq!(was_slow.unwrap(), Handled::Nothing, "the other worker has moved the schedule");
    while bench.deliver().await {}
    assert_eq!(ticks(&bench, &Bench::key()).await.len(), 1);
    assert_eq!(
        schedule(&world).await.next_at,
        made.next_at.map(|at| at.plus(Duration::from_hours(24)))
    );
    // One more nudge, long after the firing.
    assert_eq!(handle(&world, &nudge).await.unwrap(), Handled::Nothing);
    assert_eq!(bench.queue.length(queue::TURNS).await.unwrap(), 0, "a late nudge sends no further one");
}

#[tokio::test(start_paused = true)]
async fn a_bell_of_a_fast_clock_rings_again_when_the_time_has_come() {
    let (bench, world) = stage(1, answers).await;
    let made = ordered(&world, order_in_c("PT1H", "")).await;
    tokio::time::sleep(Duration::from_secs(3600 - 4)).await;
    assert_eq!(handle(&world, &bell(&made)).await.unwrap(), Handled::Nothing);
    assert_eq!(bench.queue.length(queue::TURNS).await.unwrap(), 1);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(handle(&world, &bell(&made)).await.unwrap(), Handled::Worked);
}

#[tokio::test(start_paused = true)]
async fn what_is_cancelled_never_fires() {
    let (mut bench, world) = stage(1, answers).await;
    let made = ordered(&world, order_in_c("PT1M", "PT1M")).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    cancel(&world, &owner(), "s").await.unwrap();
    assert!(matches!(cancel(&world, &owner(), "s").await, Err(Refusal::NotFound("schedule"))));
    live(&mut bench, Duration::from_mins(5)).await;
    assert_eq!(ticks(&bench, &Bench::key()).await.len(), 0);
    assert_eq!(handle(&world, &bell(&made)).await.unwrap(), Handled::Nothing);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_cancelled_in_the_middle_of_a_firing_stays_cancelled() {
    let (mut bench, world) = stage(1, answers).await;
    let made = ordered(&world, order_in_c("PT5M", "PT1M")).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let pause = Arc::new(PauseProbe::new("schedule.fired"));
    let worker = bench.worker(pause.clone());
    let nudge = bell(&made);
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        cancel(&world, &owner(), "s").await.unwrap();
        pause.go.notify_one();
    });
    handled.unwrap();
    live(&mut bench, Duration::from_mins(5)).await;
    assert_eq!(ticks(&bench, &Bench::key()).await.len(), 1, "the firing before the cancellation");
    assert!(matches!(read(&world, &owner(), "s").await, Err(Refusal::NotFound(_))));
}

#[tokio::test(start_paused = true)]
async fn hours_without_service_are_one_late_firing() {
    let (mut bench, world) = stage(1, answers).await;
    let made = ordered(&world, order_in_c("", "PT30M")).await;
    tokio::time::sleep(Duration::from_hours(5) + Duration::from_mins(10)).await;
    live(&mut bench, Duration::from_mins(25)).await;
    let ticks = ticks(&bench, &Bench::key()).await;
    assert_eq!(ticks.len(), 2, "the late firing and the next regular one: {ticks:?}");
    let regular = made.created_at.plus(Duration::from_mins(330));
    assert!(ticks[1] >= regular && regular.until(ticks[1]) < Duration::from_secs(5));
}
