//! Single deliveries and their effects.

use std::sync::Arc;

use super::test_env::TestEnv;
use crate::sweep;
use turnwheel_conversation::head::State;
use turnwheel_conversation::phase::Phase;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_queries::conversation::current_view;
use turnwheel_queries::prompts::list_prompts;
use turnwheel_storage::queue::{self, Queue as _};

#[tokio::test(start_paused = true)]
async fn prompt_completes_without_faults() {
    let mut env = TestEnv::new(1);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    let head = env.head().await.unwrap();
    assert_eq!(head.phase, Phase::Idle);
    assert_eq!(head.lease, None);
    assert_eq!(head.due, head.metering.settle_at, "no other work is pending");
    assert_eq!(*env.model.calls.lock().unwrap(), 3);
    assert_eq!(env.executions.lock().unwrap().len(), 4, "look, pay, gated, put");
}

#[tokio::test(start_paused = true)]
async fn turn_queue_is_disposable() {
    let mut env = TestEnv::new(2);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.queue.drop_queue(queue::TURNS);
    tokio::time::sleep(sweep::GRACE_PERIOD * 2).await;
    assert_eq!(sweep::sweep(&services, sweep::GRACE_PERIOD).await.unwrap(), 1);
    env.run_until_idle().await;
    assert_eq!(env.head().await.unwrap().phase, Phase::Idle);
}

#[tokio::test(start_paused = true)]
async fn delivery_without_changes_sends_no_nudge() {
    let mut env = TestEnv::new(3);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    let commits = env.store.commit_count();
    let nudge = TestEnv::nudge();
    let handled = crate::delivery::handle(&services, &nudge).await.unwrap();
    assert_eq!(handled, turnwheel_record::error::DeliveryOutcome::NoWork);
    assert_eq!(env.store.commit_count(), commits);
    assert_eq!(env.queue.length(queue::TURNS).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn events_have_consecutive_numbers() {
    let mut env = TestEnv::new(4);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    let events = env.events().await;
    assert!(events.iter().map(|event| event.n).eq(1..=events.len() as u64));
}

#[tokio::test(start_paused = true)]
async fn reader_sees_prompt_applied_during_its_reads() {
    let mut env = TestEnv::new(5);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let before = env.head().await.unwrap();
    assert_eq!(before.phase, Phase::Idle);
    // A delivery between a reader's read of the head and its read of the inbox.
    let nudge = TestEnv::nudge();
    crate::delivery::handle(&services, &nudge).await.unwrap();
    let (seen, _) = current_view(&services, &before.key()).await.unwrap();
    assert_eq!((seen.state, seen.prompts.len()), (State::Running, 1));
    let (listed, _) = list_prompts(&services, &before, 0, 10).await.unwrap();
    assert_eq!(listed.len(), 1);
}
