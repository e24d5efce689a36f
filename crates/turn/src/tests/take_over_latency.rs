//! Take-over latency: computed from the constants, and measured in virtual time.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::test_env::{DeterministicStore, PauseFailPoint, TestEnv, text};
use crate::delivery::handle;
use crate::{crash_count, sweep};
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::fail_points::{FailPoints, NoFailPoints};
use turnwheel_record::error::DeliveryOutcome;
use turnwheel_record::lease::LEASE_DURATION;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _, QueueFaults};
use turnwheel_storage::store::TAKE_OVER_DELAY;
use turnwheel_storage::store::outage_retry::DeliveryError as _;

/// Guaranteed latencies.
const TAKE_OVER_MAX_ON_AZURE: Duration = Duration::from_secs(75);
/// A lost nudge of work that no worker has leased.
const LOST_NUDGE_MAX_ON_AZURE: Duration = Duration::from_secs(80);
const TAKE_OVER_MAX_IN_DEV: Duration = Duration::from_secs(5);
/// The timer of `functions/sweep`.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);
/// Covered by the guarantee: time by which the timer or the scan of the store is late.
const SWEEP_LATENESS: Duration = Duration::from_secs(10);
/// Storage queues hide messages for whole seconds.
const QUEUE_DELAY_UNIT: Duration = Duration::from_secs(1);
/// `maxPollingInterval` of host.json.
const QUEUE_POLLING_INTERVAL: Duration = Duration::from_secs(2);

fn replies_hello(_results: usize, _input: &str) -> Vec<Value> {
    vec![text("hello")]
}

#[test]
fn take_over_bound_is_within_the_guarantee() {
    let sweep_function: Value =
        serde_json::from_str(include_str!("../../../../functions/sweep/function.json")).unwrap();
    assert_eq!(sweep_function["bindings"][0]["schedule"], json!("0 * * * * *"));
    let host: Value = serde_json::from_str(include_str!("../../../../host.json")).unwrap();
    assert_eq!(host["extensions"]["queues"]["maxPollingInterval"], json!("00:00:02"));

    // Worst case: the lease was just renewed. The sweep after that, however soon, enqueues the
    // conversation for the end of the lease.
    let lease_over = LEASE_DURATION + TAKE_OVER_DELAY;
    assert!(sweep::HORIZON >= lease_over);
    // A late sweep finds the lease overdue and enqueues the conversation at once.
    let enqueued = lease_over.max(SWEEP_INTERVAL + SWEEP_LATENESS);
    let longest = enqueued + QUEUE_DELAY_UNIT + QUEUE_POLLING_INTERVAL;
    assert_eq!(longest, Duration::from_secs(73));
    assert!(longest <= TAKE_OVER_MAX_ON_AZURE);

    // Work without a lease may have a nudge on its way.
    assert_eq!(sweep::GRACE_PERIOD + SWEEP_INTERVAL, LOST_NUDGE_MAX_ON_AZURE);
}

/// Kills a worker at the fail point, in the first turn of a prompt.
async fn kill_worker_at(env: &mut TestEnv, fail_point: &'static str) {
    let pause = Arc::new(PauseFailPoint::new(fail_point));
    let worker = env.new_worker(pause.clone() as Arc<dyn FailPoints>);
    let nudge = TestEnv::nudge();
    pause.kill(handle(&worker, &nudge)).await;
}

async fn send_first_prompt(env: &mut TestEnv) {
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
}

const FAIL_POINTS: [&str; 4] = ["lease.after", "pending-work.after", "model.before", "model.after"];

#[tokio::test(start_paused = true)]
async fn sweep_recovers_work_of_dead_worker_in_time() {
    let mut longest = Duration::ZERO;
    for fail_point in FAIL_POINTS {
        // Until its first commit, the worker has no lease in the head.
        let is_leased = fail_point != "lease.after";
        let limit = if is_leased { TAKE_OVER_MAX_ON_AZURE } else { LOST_NUDGE_MAX_ON_AZURE };
        for second in (0..60).step_by(5) {
            let mut env = TestEnv::with_script(1, replies_hello);
            send_first_prompt(&mut env).await;
            kill_worker_at(&mut env, fail_point).await;
            // The message is lost too, so that only the sweep starts another worker.
            env.queue.drop_queue(queue::TURNS);
            let died = env.clock.monotonic();
            tokio::time::sleep(Duration::from_secs(second)).await;
            while env.head().await.unwrap().prompts.last().is_none_or(|it| it.to_seq.is_none()) {
                if env.clock.monotonic().saturating_sub(died).as_secs() % 60 == second {
                    env.run_sweep().await;
                }
                while env.deliver().await {}
                tokio::time::sleep(Duration::from_secs(1)).await;
                let waited = env.clock.monotonic().saturating_sub(died);
                assert!(waited <= limit, "{fail_point} after {waited:?}: {:#?}", env.run_log);
            }
            longest = longest.max(env.clock.monotonic().saturating_sub(died));
        }
    }
    // Shown with `--nocapture`.
    let line = format!("slowest of 48 recoveries by the sweep alone: {longest:?}");
    writeln!(std::io::stderr(), "{line}").unwrap();
}

#[tokio::test(start_paused = true)]
async fn late_sweep_enqueues_overdue_lease_at_once() {
    let mut env = TestEnv::with_script(1, replies_hello);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let sweep = async || sweep::sweep(&services, sweep::GRACE_PERIOD).await.unwrap();
    assert_eq!(sweep().await, 0, "the nudge of the prompt is on its way");
    kill_worker_at(&mut env, "model.before").await;
    env.queue.drop_queue(queue::TURNS);
    tokio::time::sleep(LEASE_DURATION + TAKE_OVER_DELAY + Duration::from_secs(1)).await;
    assert_eq!(sweep().await, 1);
    while env.deliver().await {}
    assert!(env.head().await.unwrap().prompts[0].to_seq.is_some());
}

#[tokio::test(start_paused = true)]
async fn embedded_store_continues_at_once_after_restart() {
    for fail_point in FAIL_POINTS {
        let folder = tempfile::tempdir().unwrap();
        let mut env = TestEnv::with_script(1, replies_hello);
        env.use_embedded_store(DeterministicStore::open(folder.path().to_owned()));
        send_first_prompt(&mut env).await;
        kill_worker_at(&mut env, fail_point).await;
        let died = env.clock.monotonic();
        env.restart_process().await;
        while env.head().await.unwrap().prompts.last().is_none_or(|it| it.to_seq.is_none()) {
            while env.deliver().await {}
            let waited = env.clock.monotonic().saturating_sub(died);
            assert!(
                waited <= TAKE_OVER_MAX_IN_DEV,
                "{fail_point} after {waited:?}: {:#?}",
                env.run_log
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Delivers the messages of the queue until the prompt has ended. The sweep does not run.
async fn deliver_without_sweep(env: &mut TestEnv, time_max: Duration) {
    let began = env.clock.monotonic();
    while env.head().await.unwrap().prompts.last().is_none_or(|it| it.to_seq.is_none()) {
        while env.deliver().await {}
        let waited = env.clock.monotonic().saturating_sub(began);
        assert!(waited <= time_max, "after {waited:?}: {:#?}", env.run_log);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The sweep has aimed its nudge at the moment of the take-over.
#[tokio::test(start_paused = true)]
async fn receiver_with_clock_behind_takes_over_in_time() {
    let mut env = TestEnv::with_script(1, replies_hello);
    send_first_prompt(&mut env).await;
    let clock = Arc::new(env.clock.ahead(Duration::from_millis(500)));
    let pause = Arc::new(PauseFailPoint::new("model.before"));
    let worker = env.new_worker(pause.clone() as Arc<dyn FailPoints>);
    let worker = Services { clock, ..worker };
    let nudge = TestEnv::nudge();
    pause.kill(handle(&worker, &nudge)).await;
    env.queue.drop_queue(queue::TURNS);
    assert_eq!(sweep::sweep(&worker, sweep::GRACE_PERIOD).await.unwrap(), 1);
    let longest = LEASE_DURATION + TAKE_OVER_DELAY + Duration::from_secs(3);
    deliver_without_sweep(&mut env, longest).await;
}

/// As the message of a failed delivery, which the host delivers again after 15 s.
#[tokio::test(start_paused = true)]
async fn delivery_just_before_the_take_over_is_repeated() {
    let mut env = TestEnv::with_script(1, replies_hello);
    send_first_prompt(&mut env).await;
    kill_worker_at(&mut env, "model.before").await;
    env.queue.drop_queue(queue::TURNS);
    tokio::time::sleep(LEASE_DURATION + Duration::from_secs(2)).await;
    let receiver = env.new_worker(Arc::new(NoFailPoints));
    let nudge = TestEnv::nudge();
    assert_eq!(handle(&receiver, &nudge).await.unwrap(), DeliveryOutcome::NoWork);
    assert_eq!(env.queue.length(queue::TURNS).await.unwrap(), 1);
    deliver_without_sweep(&mut env, TAKE_OVER_DELAY).await;
}

#[tokio::test(start_paused = true)]
async fn delivery_during_a_live_lease_enqueues_nothing() {
    let mut env = TestEnv::with_script(1, replies_hello);
    send_first_prompt(&mut env).await;
    *env.model.response_time.lock().unwrap() = Duration::from_secs(100);
    let worker = env.new_worker(Arc::new(NoFailPoints));
    let receiver = env.new_worker(Arc::new(NoFailPoints));
    env.queue.drop_queue(queue::TURNS);
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        for _ in 0..9 {
            tokio::time::sleep(Duration::from_secs(11)).await;
            assert_eq!(handle(&receiver, &nudge).await.unwrap(), DeliveryOutcome::NoWork);
        }
    });
    assert_eq!(handled.unwrap(), DeliveryOutcome::Worked);
    assert_eq!(env.queue.length(queue::TURNS).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn recovery_repeats_while_queue_refuses_its_nudge() {
    let mut env = TestEnv::with_script(1, replies_hello);
    send_first_prompt(&mut env).await;
    let pause = Arc::new(PauseFailPoint::new("model.before"));
    let dying = env.new_worker(pause.clone() as Arc<dyn FailPoints>);
    let nudge = TestEnv::nudge();
    pause.kill(handle(&dying, &nudge)).await;
    let successor = env.new_worker(Arc::new(NoFailPoints));
    env.queue.set_faults(QueueFaults { unavailable: 100, ..QueueFaults::default() });
    for _ in 0..2 {
        let recovered =
            crash_count::recover_from_process(&successor, &nudge.key, &dying.worker).await;
        assert!(recovered.unwrap_err().is_store_away());
        assert_eq!(env.head().await.unwrap().lease, None);
    }
    env.queue.set_faults(QueueFaults::default());
    // A refused message may have arrived.
    env.queue.drop_queue(queue::TURNS);
    crash_count::recover_from_process(&successor, &nudge.key, &dying.worker).await.unwrap();
    deliver_without_sweep(&mut env, Duration::from_secs(2)).await;
}
