//! Waits of weeks and years: they hold no queue message and no memory, and any worker of a later
//! process continues them.

use std::sync::Arc;
use std::time::Duration;

use super::{
    TestEnv, calls_patient_first, create_schedule, echoes_input, firing_times, new_schedule_in_c,
    pass_time, read_schedule,
};
use crate::sweep;
use crate::tests::test_env::{DeterministicStore, LONG_APPROVAL_EXPIRES};
use turnwheel_conversation::entry::EntryBody;
use turnwheel_conversation::head::State;
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_storage::queue::{self, Queue as _};

const DAY: Duration = Duration::from_hours(24);

/// Passes days; each starts with a new process, whose recovery sweep enqueues nothing.
async fn pass_days(env: &mut TestEnv, days: u32) {
    for _ in 0..days {
        tokio::time::sleep(DAY).await;
        env.restart_process().await;
        env.run_sweep().await;
        let length = env.queue.length(queue::TURNS).await.unwrap_or(0);
        assert_eq!(length, 0, "a wait holds no message");
    }
}

/// Returns an environment whose workers are one process with an embedded store.
fn env_with_embedded_store(script: super::super::test_env::Script) -> (TestEnv, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut env = TestEnv::with_script(1, script);
    env.use_embedded_store(DeterministicStore::open(folder.path().to_owned()));
    (env, folder)
}

async fn send_first_prompt(env: &mut TestEnv) {
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    drop(services);
    while env.deliver().await {}
    // Usage is posted to the tenant's ledger.
    pass_time(env, Duration::from_mins(12)).await;
}

#[tokio::test(start_paused = true)]
async fn schedule_fires_after_a_year_of_restarts() {
    let (mut env, _folder) = env_with_embedded_store(echoes_input);
    send_first_prompt(&mut env).await;
    let services = env.new_worker(Arc::new(NoFailPoints));
    let made = create_schedule(&services, new_schedule_in_c("P1Y", "")).await;
    drop(services);
    pass_days(&mut env, 364).await;
    pass_time(&mut env, Duration::from_mins(24 * 60 - 5)).await;
    assert!(firing_times(&env, &TestEnv::key()).await.is_empty(), "the schedule never fires early");
    pass_time(&mut env, Duration::from_mins(10)).await;
    let ticks = firing_times(&env, &TestEnv::key()).await;
    assert_eq!(ticks.len(), 1);
    assert!(made.next_at.unwrap().until(ticks[0]) <= Duration::from_secs(5));
    let services = env.new_worker(Arc::new(NoFailPoints));
    assert_eq!(read_schedule(&services).await.due(), None);
}

#[tokio::test(start_paused = true)]
async fn thirty_day_approval_expires_on_time() {
    let (mut env, _folder) = env_with_embedded_store(calls_patient_first);
    send_first_prompt(&mut env).await;
    let head = env.head().await.unwrap();
    let expires_at = head.requests[0].expires_at.unwrap();
    assert_eq!(head.due, Some(expires_at));
    pass_days(&mut env, 29).await;
    assert_eq!(env.head().await.unwrap().state(), State::WaitingForApproval);
    let left = env.clock.now().until(expires_at);
    pass_time(&mut env, left + Duration::from_mins(2)).await;
    let entries = env.entries().await;
    let decided = entries.iter().find_map(|entry| match &entry.body {
        EntryBody::Decision(decided) => Some(&decided.decision),
        _ => None,
    });
    let decided = decided.unwrap();
    assert_eq!(decided.decided_by, "expiry");
    assert!(expires_at <= decided.decided_at);
    assert!(expires_at.until(decided.decided_at) <= Duration::from_mins(1));
    let head = env.head().await.unwrap();
    assert_eq!((head.state(), head.due), (State::Idle, head.metering.settle_at));
    assert!(env.executions.lock().unwrap().is_empty(), "a call without approval never ran");
}

#[tokio::test(start_paused = true)]
async fn decision_after_weeks_continues_the_prompt() {
    let (mut env, _folder) = env_with_embedded_store(calls_patient_first);
    send_first_prompt(&mut env).await;
    pass_days(
        &mut env,
        u32::try_from(LONG_APPROVAL_EXPIRES.as_secs() / DAY.as_secs()).unwrap() - 1,
    )
    .await;
    env.decide_requests().await;
    while env.deliver().await {}
    assert_eq!(env.head().await.unwrap().state(), State::Idle);
    assert!(env.executions.lock().unwrap().values().eq([&1]), "the call ran once");
}

#[tokio::test(start_paused = true)]
async fn schedule_survives_a_lost_queue() {
    let (mut env, _folder) = env_with_embedded_store(echoes_input);
    send_first_prompt(&mut env).await;
    let services = env.new_worker(Arc::new(NoFailPoints));
    create_schedule(&services, new_schedule_in_c("PT1M", "")).await;
    env.queue.drop_queue(queue::TURNS);
    tokio::time::sleep(Duration::from_mins(1)).await;
    // What `rebuild-queue` and a start-up do.
    assert_eq!(sweep::sweep(&services, Duration::ZERO).await.unwrap(), 1);
    drop(services);
    while env.deliver().await {}
    assert_eq!(firing_times(&env, &TestEnv::key()).await.len(), 1);
}
