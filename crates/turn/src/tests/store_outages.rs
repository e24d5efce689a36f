//! Deliveries while the store is away: each repeats its first request for a limited time.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::test_env::{TestEnv, owner};
use crate::delivery::handle;
use turnwheel_commands::prompt_queue::{
    QueueMessageOutcome, accept_queue_message, put_back, put_back_or_repeat,
};
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::error::DeliveryOutcome;
use turnwheel_record::notifications::notify;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, MESSAGE_BYTES_MAX, Queue as _};
use turnwheel_storage::store::first_request::REPETITION_TIME;
use turnwheel_storage::store::memory::{MemoryStore, StoreFaults};

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
