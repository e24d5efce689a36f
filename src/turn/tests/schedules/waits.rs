//! Waits of weeks and years: they hold no queue message and no memory, and any worker of a later
//! process continues them.

use std::sync::Arc;
use std::time::Duration;

use super::{Bench, answers, asks_first, live, order_in_c, ordered, schedule, ticks};
use crate::agent::entry::EntryBody;
use crate::agent::head::State;
use crate::clock::Clock as _;
use crate::queue::{self, Queue as _};
use crate::turn::tests::bench::{PATIENCE, Steady};
use crate::turn::{NoProbe, sweep};

const DAY: Duration = Duration::from_hours(24);

/// Passes days; each starts with a new process, whose recovery sweep enqueues nothing.
async fn days_pass(bench: &mut Bench, days: u32) {
    for _ in 0..days {
        tokio::time::sleep(DAY).await;
        bench.start_again().await;
        bench.sweep().await;
        let length = bench.queue.length(queue::TURNS).await.unwrap_or(0);
        assert_eq!(length, 0, "a wait holds no message");
    }
}

/// Returns an environment whose workers are one process with an embedded store.
fn embedded(script: super::super::bench::Script) -> (Bench, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::with(1, script);
    bench.use_steady(Steady::open(folder.path().to_owned()));
    (bench, folder)
}

async fn asked(bench: &mut Bench) {
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    drop(world);
    while bench.deliver().await {}
    // Usage is posted to the tenant's ledger.
    live(bench, Duration::from_mins(12)).await;
}

#[tokio::test(start_paused = true)]
async fn a_schedule_a_year_ahead_outlives_its_processes() {
    let (mut bench, _folder) = embedded(answers);
    asked(&mut bench).await;
    let world = bench.worker(Arc::new(NoProbe));
    let made = ordered(&world, order_in_c("P1Y", "")).await;
    drop(world);
    days_pass(&mut bench, 364).await;
    live(&mut bench, Duration::from_mins(24 * 60 - 5)).await;
    assert!(ticks(&bench, &Bench::key()).await.is_empty(), "the schedule never fires early");
    live(&mut bench, Duration::from_mins(10)).await;
    let ticks = ticks(&bench, &Bench::key()).await;
    assert_eq!(ticks.len(), 1);
    assert!(made.next_at.unwrap().until(ticks[0]) <= Duration::from_secs(5));
    let world = bench.worker(Arc::new(NoProbe));
    assert_eq!(schedule(&world).await.due(), None);
}

#[tokio::test(start_paused = true)]
async fn an_approval_of_thirty_days_expires_on_time_and_the_prompt_goes_on() {
    let (mut bench, _folder) = embedded(asks_first);
    asked(&mut bench).await;
    let head = bench.head().await.unwrap();
    let expires_at = head.requests[0].expires_at.unwrap();
    assert_eq!(head.due, Some(expires_at));
    days_pass(&mut bench, 29).await;
    assert_eq!(bench.head().await.unwrap().state(), State::WaitingForApproval);
    let left = bench.clock.now().until(expires_at);
    live(&mut bench, left + Duration::from_mins(2)).await;
    let entries = bench.entries().await;
    let decided = entries.iter().find_map(|entry| match &entry.body {
        EntryBody::Decision(decided) => Some(&decided.decision),
        _ => None,
    });
    let decided = decided.unwrap();
    assert_eq!(decided.decided_by, "expiry");
    assert!(expires_at <= decided.decided_at);
    assert!(expires_at.until(decided.decided_at) <= Duration::from_mins(1));
    let head = bench.head().await.unwrap();
    assert_eq!((head.state(), head.due), (State::Idle, head.books.settle_at));
    assert!(bench.done.lock().unwrap().is_empty(), "a call without approval never ran");
}

#[tokio::test(start_paused = true)]
async fn a_decision_after_weeks_finds_everything_where_it_was() {
    let (mut bench, _folder) = embedded(asks_first);
    asked(&mut bench).await;
    days_pass(&mut bench, u32::try_from(PATIENCE.as_secs() / DAY.as_secs()).unwrap() - 1).await;
    bench.decide().await;
    while bench.deliver().await {}
    assert_eq!(bench.head().await.unwrap().state(), State::Idle);
    assert!(bench.done.lock().unwrap().values().eq([&1]), "the call ran once");
}

#[tokio::test(start_paused = true)]
async fn a_lost_queue_costs_a_schedule_nothing() {
    let (mut bench, _folder) = embedded(answers);
    asked(&mut bench).await;
    let world = bench.worker(Arc::new(NoProbe));
    ordered(&world, order_in_c("PT1M", "")).await;
    bench.queue.drop_queue(queue::TURNS);
    tokio::time::sleep(Duration::from_mins(1)).await;
    // What `rebuild-queue` and a start-up do.
    assert_eq!(sweep::sweep(&world, Duration::ZERO).await.unwrap(), 1);
    drop(world);
    while bench.deliver().await {}
    assert_eq!(ticks(&bench, &Bench::key()).await.len(), 1);
}
