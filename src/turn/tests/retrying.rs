//! Retries of model calls: a failed call is repeated when it is due, by any worker.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::bench::{Bench, idempotency};
use super::economy::says_hello;
use crate::agent::entry::PromptState;
use crate::agent::event::EventBody;
use crate::agent::phase::Phase;
use crate::clock::Clock as _;
use crate::queue::{self, Queue as _};
use crate::turn::admission::patch::patch_conversation;
use crate::turn::delivery::{Handled, handle};
use crate::turn::{NoProbe, World};

/// Accepts a prompt in a conversation with the retry settings; the next `failures` responses fail.
async fn stage(retry: serde_json::Value, failures: u32) -> (Bench, World) {
    let mut bench = Bench::with(7, says_hello);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    let patch = json!({"settings": {"retry": retry}});
    let key = idempotency("patch");
    patch_conversation(&world, &Bench::key(), patch.as_object().unwrap(), &key, |_| true)
        .await
        .unwrap();
    *bench.model.failures.lock().unwrap() = failures;
    (bench, world)
}

fn asked(bench: &Bench) -> u32 {
    *bench.model.answers.lock().unwrap()
}

async fn state(bench: &Bench) -> PromptState {
    bench.head().await.unwrap().prompts[0].state
}

#[tokio::test(start_paused = true)]
async fn nobody_sleeps_until_a_retry_is_due() {
    let (mut bench, world) = stage(json!({}), 1).await;
    bench.deliver().await;
    let head = bench.head().await.unwrap();
    assert_eq!((head.claim.is_none(), head.claims), (true, 0), "no worker has the lease");
    assert!(matches!(head.phase, Phase::Model { attempt: 2, not_before: Some(_) }));
    assert_eq!(head.due.unwrap(), head.updated_at.plus(Duration::from_secs(2)));
    // A nudge before that time changes nothing.
    let commits = bench.store.commits();
    assert_eq!(handle(&world, &Bench::nudge()).await.unwrap(), Handled::Nothing);
    assert_eq!((bench.store.commits(), asked(&bench)), (commits, 1));
    assert!(!bench.deliver().await, "the nudge is delayed");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(bench.deliver().await, "the nudge arrives when the retry is due");
    assert_eq!((state(&bench).await, asked(&bench)), (PromptState::Completed, 2));
}

#[tokio::test(start_paused = true)]
async fn a_wait_longer_than_a_nudge_is_brought_back_by_the_sweep() {
    let retry = json!({"baseDelayMs": 300_000, "maxDelayMs": 600_000});
    let (mut bench, _world) = stage(retry, 1).await;
    let began = bench.clock.monotonic();
    bench.deliver().await;
    assert_eq!(bench.queue.length(queue::TURNS).await.unwrap(), 0, "a delay of this length sends no nudge");
    bench.run().await;
    assert_eq!((state(&bench).await, asked(&bench)), (PromptState::Completed, 2));
    let took = bench.clock.monotonic().saturating_sub(began);
    let expected = Duration::from_mins(5)..Duration::from_mins(5) + Duration::from_secs(90);
    assert!(expected.contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn many_retries_of_a_step_are_no_poison() {
    let (mut bench, _world) = stage(json!({"maxRetries": 20, "baseDelayMs": 1_000}), 15).await;
    bench.run().await;
    assert_eq!((state(&bench).await, asked(&bench)), (PromptState::Completed, 16));
    let events = bench.events().await;
    let begun = events.iter().filter(|event| matches!(event.body, EventBody::AutoRetryStart(_)));
    assert_eq!(begun.count(), 15);
    assert!(events.iter().map(|event| event.n).eq(1..=events.len() as u64));
}

#[tokio::test(start_paused = true)]
async fn workers_that_stop_while_a_retry_is_owed_do_not_lose_it() {
    for seed in 0..20 {
        let mut bench = Bench::new(seed);
        let world = bench.worker(Arc::new(NoProbe));
        bench.ask(&world).await;
        *bench.model.failures.lock().unwrap() = 2;
        bench.crash_in_a_hundred = 3;
        bench.run().await;
        // A worker that stops before its commit has called the model in vain, so a failure may
        // never be recorded.
        let ended = state(&bench).await;
        assert_eq!(ended, PromptState::Completed, "{seed}: {:#?}", bench.story);
    }
}
