//! Single deliveries and their effects.

use std::sync::Arc;

use super::bench::Bench;
use crate::agent::head::State;
use crate::agent::phase::Phase;
use crate::queue::{self, Queue as _};
use crate::turn::views::conversation::current_view;
use crate::turn::views::prompts::prompts;
use crate::turn::{NoProbe, sweep};

#[tokio::test(start_paused = true)]
async fn a_prompt_comes_to_its_end_without_faults() {
    let mut bench = Bench::new(1);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.run().await;
    let head = bench.head().await.unwrap();
    assert_eq!(head.phase, Phase::Idle);
    assert_eq!(head.claim, None);
    assert_eq!(head.due, head.books.settle_at, "no other work is pending");
    assert_eq!(*bench.model.answers.lock().unwrap(), 3);
    assert_eq!(bench.done.lock().unwrap().len(), 4, "look, pay, gated, put");
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_disposable() {
    let mut bench = Bench::new(2);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.queue.drop_queue(queue::TURNS);
    tokio::time::sleep(sweep::GRACE * 2).await;
    assert_eq!(sweep::sweep(&world, sweep::GRACE).await.unwrap(), 1);
    bench.run().await;
    assert_eq!(bench.head().await.unwrap().phase, Phase::Idle);
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_changes_nothing_sends_nothing() {
    let mut bench = Bench::new(3);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.run().await;
    let commits = bench.store.commits();
    let nudge = Bench::nudge();
    let handled = crate::turn::delivery::handle(&world, &nudge).await.unwrap();
    assert_eq!(handled, crate::turn::delivery::Handled::Nothing);
    assert_eq!(bench.store.commits(), commits);
    assert_eq!(bench.queue.length(queue::TURNS).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn events_have_consecutive_numbers() {
    let mut bench = Bench::new(4);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.run().await;
    let events = bench.events().await;
    assert!(events.iter().map(|event| event.n).eq(1..=events.len() as u64));
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_is_taken_in_while_somebody_looks_is_not_missed() {
    let mut bench = Bench::new(5);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    let before = bench.head().await.unwrap();
    assert_eq!(before.phase, Phase::Idle);
    // A delivery between a reader's read of the head and its read of the inbox.
    let nudge = Bench::nudge();
    crate::turn::delivery::handle(&world, &nudge).await.unwrap();
    let (seen, _) = current_view(&world, &before.key()).await.unwrap();
    assert_eq!((seen.state, seen.prompts.len()), (State::Running, 1));
    let (listed, _) = prompts(&world, &before, 0, 10).await.unwrap();
    assert_eq!(listed.len(), 1);
}
