//! Deliveries while the store is away: each repeats its first request for a limited time.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::test_env::{PauseFailPoint, TestEnv, call, owner, text};
use crate::delivery::handle;
use turnwheel_commands::prompt_queue::{
    QueueMessageOutcome, accept_queue_message, put_back, put_back_or_repeat,
};
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::error::DeliveryOutcome;
use turnwheel_record::lease::LEASE_DURATION;
use turnwheel_record::notifications::notify;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, MESSAGE_BYTES_MAX, Queue as _};
use turnwheel_storage::store::TAKE_OVER_DELAY;
use turnwheel_storage::store::memory::{MemoryStore, StoreFaults};
use turnwheel_storage::store::outage_retry::REPETITION_TIME;

const OUTAGE: Duration = Duration::from_secs(20);

async fn services(env: &mut TestEnv) -> Services {
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    services
}

fn set_away(store: &MemoryStore, is_away: bool) {
    let unavailable_reads = if is_away { 1.0 } else { 0.0 };
    store.set_faults(StoreFaults { unavailable_reads, ..StoreFaults::default() });
}

/// Runs the delivery in an outage. Returns its result and the time that it took.
async fn deliver_in_outage<T>(
    env: &TestEnv,
    outage: Duration,
    delivery: impl Future<Output = T>,
) -> (T, Duration) {
    set_away(&env.store, true);
    let start = Instant::now();
    let timed = async { (delivery.await, start.elapsed()) };
    let store_returns = async {
        tokio::time::sleep(outage).await;
        set_away(&env.store, false);
    };
    let (result, ()) = tokio::join!(timed, store_returns);
    result
}

fn assert_waited(time: Duration, outage: Duration) {
    assert!(time >= outage && time < outage + Duration::from_secs(6), "{time:?}");
}

#[tokio::test(start_paused = true)]
async fn turn_continues_after_short_outage() {
    let mut env = TestEnv::new(1);
    let services = services(&mut env).await;
    let nudge = TestEnv::nudge();
    let (handled, time) = deliver_in_outage(&env, OUTAGE, handle(&services, &nudge)).await;
    assert_eq!(handled.unwrap(), DeliveryOutcome::Worked);
    assert_waited(time, OUTAGE);
}

/// A message of `agent-prompts` goes back to its queue at once: the host counts no failed delivery.
#[tokio::test(start_paused = true)]
async fn queued_prompts_wait_in_their_queue_during_outage() {
    let mut env = TestEnv::new(1);
    let services = services(&mut env).await;
    let known = json!({"tenantId": "t", "userId": "u", "conversationId": "c", "input": "x"});
    let new = json!({"tenantId": "t", "userId": "u", "agent": "clerk", "input": "x"});
    for message in [known, new] {
        env.queue.send(queue::PROMPTS, message.to_string(), Duration::ZERO).await.unwrap();
    }
    let outage = Duration::from_mins(10);
    let mut accepted = 0;
    let deliver = async {
        while env.queue.length(queue::PROMPTS).await.unwrap() > 0 {
            let received = env.queue.receive(queue::PROMPTS, 1, Duration::from_mins(1)).await;
            for message in received.unwrap() {
                let (text, id) = (&*message.text, &*message.id);
                let start = Instant::now();
                match accept_queue_message(&services, text, id).await {
                    Ok(QueueMessageOutcome::Accepted(_)) => accepted += 1,
                    Ok(QueueMessageOutcome::Rejected { reason }) => panic!("{reason}"),
                    Err(error) => put_back(&services, text, id, error).await.unwrap(),
                }
                assert_eq!(start.elapsed(), Duration::ZERO, "a delivery does not wait");
                let deleted = env.queue.delete(queue::PROMPTS, id, &message.pop_receipt);
                deleted.await.unwrap();
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let ((), time) = Box::pin(deliver_in_outage(&env, outage, deliver)).await;
    assert_eq!(accepted, 2);
    // The longest delay of the first hour is a minute.
    assert!(time >= outage && time < outage + Duration::from_secs(62), "{time:?}");
}

/// A message without room for the record of its deliveries stays on its queue.
#[tokio::test(start_paused = true)]
async fn largest_queued_prompt_is_accepted_after_short_outage() {
    let mut env = TestEnv::new(1);
    let services = services(&mut env).await;
    let message = |input: &str| {
        json!({"tenantId": "t", "userId": "u", "conversationId": "c", "input": input}).to_string()
    };
    let text = message(&"x".repeat(MESSAGE_BYTES_MAX - message("").len()));
    let deliver = async {
        let error = accept_queue_message(&services, &text, "m").await.unwrap_err();
        put_back_or_repeat(&services, &text, "m", error).await
    };
    let (accepted, time) = Box::pin(deliver_in_outage(&env, OUTAGE, deliver)).await;
    accepted.unwrap();
    assert_waited(time, OUTAGE);
    assert_eq!(env.queue.length(queue::PROMPTS).await.unwrap_or(0), 0);
}

#[tokio::test(start_paused = true)]
async fn every_delivery_fails_after_thirty_seconds() {
    let mut env = TestEnv::new(1);
    let services = services(&mut env).await;
    let nudge = TestEnv::nudge();
    let schedule = Nudge::for_schedule(&owner().tenant, "schedule-u-s");
    let hour = Duration::from_hours(1);
    let fail = async |delivery: &mut (dyn Future<Output = Option<String>> + Send + Unpin)| {
        let (failure, time) = deliver_in_outage(&env, hour, delivery).await;
        assert_eq!(time, REPETITION_TIME, "{failure:?}");
        assert!(failure.unwrap().contains("injected read failure"));
    };
    fail(&mut Box::pin(async { handle(&services, &nudge).await.err().map(|it| error_chain(&it)) }))
        .await;
    fail(&mut Box::pin(async {
        handle(&services, &schedule).await.err().map(|it| error_chain(&it))
    }))
    .await;
    fail(&mut Box::pin(async { notify(&services, &nudge).await.err().map(|it| error_chain(&it)) }))
        .await;
}

fn calls_put(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "put", 0)] } else { vec![text("done")] }
}

/// The store goes away at the fail point of a turn, longer than the turn can wait. Returns the time
/// until the prompt has ended: neither the sweep nor another delivery of the message helps.
async fn recovery_time(fail_point: &'static str, outage: Duration) -> Duration {
    let mut env = TestEnv::with_script(1, calls_put);
    let pause = Arc::new(PauseFailPoint::new(fail_point));
    let worker = env.new_worker(pause.clone());
    env.send_prompt(&worker).await;
    env.queue.drop_queue(queue::TURNS);
    *env.model.response_time.lock().unwrap() = Duration::from_secs(1);
    let start = Instant::now();
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(Box::pin(handle(&worker, &nudge)), async {
        pause.reached.notified().await;
        if fail_point == "model.before" {
            *env.model.response_time.lock().unwrap() = Duration::from_mins(4);
        }
        env.store.set_faults(StoreFaults::unavailable());
        pause.resume.notify_one();
        tokio::time::sleep(outage).await;
        env.store.set_faults(StoreFaults::default());
    });
    assert!(handled.is_err(), "{handled:?}");
    *env.model.response_time.lock().unwrap() = Duration::from_secs(1);
    while env.head().await.unwrap().prompts.last().is_none_or(|it| it.to_seq.is_none()) {
        while env.deliver().await {}
        let time = start.elapsed();
        assert!(time < Duration::from_mins(3), "{fail_point}: {:#?}", env.run_log);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn turn_continues_after_outage_beyond_its_lease() {
    for fail_point in ["model.before", "result.before"] {
        for outage in [Duration::from_secs(55), Duration::from_secs(80)] {
            let time = Box::pin(recovery_time(fail_point, outage)).await;
            let taken_over = outage.max(LEASE_DURATION + TAKE_OVER_DELAY);
            assert!(time >= taken_over, "{fail_point} {outage:?}: {time:?}");
            // The lease began a second later at most. Two model calls follow.
            let longest = taken_over + Duration::from_secs(8);
            assert!(time < longest, "{fail_point} {outage:?}: {time:?}");
        }
    }
}
