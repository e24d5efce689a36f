//! Store requests of a turn, one by one: on Cosmos each costs money and milliseconds, so these
//! tests pin them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::test_env::{
    LoggedRequests as _, PauseFailPoint, RequestLogStore, Script, TestEnv, call, idempotency, text,
};
use crate::delivery::handle;
use crate::sweep;
use turnwheel_commands::patch::patch_conversation;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::phase::Phase;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::telemetry::cost_meter::{CostMeter, with_meter};
use turnwheel_queries::event_stream::{EventReader, StreamEnd, StreamItem};
use turnwheel_record::error::{DeliveryOutcome, TurnError};
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _};
use turnwheel_storage::store::cosmos::testing::{connect_store, start_in_process};

pub(super) fn replies_hello(_results: usize, _input: &str) -> Vec<Value> {
    vec![text("hello")]
}

pub(super) fn calls_look_twice(results: usize, _input: &str) -> Vec<Value> {
    if results < 2 { vec![call("c1", "look", results)] } else { vec![text("done")] }
}

pub(super) fn calls_gated(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "gated", 0)] } else { vec![text("done")] }
}

/// Returns an environment that records store requests, one worker, and an accepted prompt.
pub(super) async fn new_env(script: Script) -> (TestEnv, Services, Arc<RequestLogStore>) {
    let mut env = TestEnv::with_script(1, script);
    let counting = RequestLogStore::wrap(env.store.clone());
    env.worker_store = counting.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    (env, services, counting)
}

/// Handles the waiting nudge as the host does; returns the store requests of the delivery.
pub(super) async fn handle_next_nudge(
    env: &TestEnv,
    services: &Services,
    counting: &RequestLogStore,
) -> String {
    counting.take_requests();
    let received = env.queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await.unwrap();
    let message = received.into_iter().next().expect("no nudge is queued");
    let nudge = serde_json::from_str(&message.text).unwrap();
    assert_eq!(handle(services, &nudge).await.unwrap(), DeliveryOutcome::Worked);
    env.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await.unwrap();
    counting.take_requests()
}

pub(super) async fn queued_nudges(env: &TestEnv) -> u64 {
    env.queue.length(queue::TURNS).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn prompt_without_tools_costs_four_requests() {
    let (env, services, counting) = new_env(replies_hello).await;
    insta::assert_snapshot!(counting.take_requests(), @r"
    write receipt
    read item
    write inbox, head
    ");
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    write head, commit
    ");
    assert_eq!(queued_nudges(&env).await, 0);
    env.queue_prompt(&services, &TestEnv::key(), "again").await.unwrap();
    insta::assert_snapshot!(counting.take_requests(), @r"
    read head
    read item
    write inbox, head (count)
    ");
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    write head, commit
    ");
}

#[tokio::test(start_paused = true)]
async fn warm_tool_round_costs_three_requests_one_nudge() {
    let (env, services, counting) = new_env(calls_look_twice).await;
    handle_next_nudge(&env, &services, &counting).await;
    assert_eq!(queued_nudges(&env).await, 1);
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    write head
    write head, commit
    write head, commit
    ");
    assert_eq!(queued_nudges(&env).await, 1, "one nudge is enqueued");
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    write head
    write head, commit
    ");
    assert_eq!(queued_nudges(&env).await, 0);
}

#[tokio::test(start_paused = true)]
async fn cosmos_tool_round_sends_three_requests() {
    let emulator = start_in_process(1);
    let mut env = TestEnv::with_script(1, calls_look_twice);
    let counting = RequestLogStore::wrap(Arc::new(connect_store(&emulator, Vec::new()).await));
    env.worker_store = counting.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    handle_next_nudge(&env, &services, &counting).await;
    let meter = Arc::new(CostMeter::default());
    with_meter(Arc::clone(&meter), handle_next_nudge(&env, &services, &counting)).await;
    let costs = meter.costs();
    let sent: Vec<_> = costs.iter().map(|(operation, cost)| (*operation, cost.requests)).collect();
    assert_eq!(sent, [("cosmos.write", 3)]);
    assert!(costs.values().all(|cost| cost.request_units > 0.0), "{costs:?}");
}

#[tokio::test(start_paused = true)]
async fn cold_worker_adds_one_read_of_entries() {
    let (mut env, services, counting) = new_env(calls_look_twice).await;
    handle_next_nudge(&env, &services, &counting).await;
    let cold = env.new_worker(Arc::new(NoFailPoints));
    insta::assert_snapshot!(handle_next_nudge(&env, &cold, &counting).await, @r"
    lease (head)
    write head
    select entry
    write head, commit
    write head, commit
    ");
}

#[tokio::test(start_paused = true)]
async fn inline_tool_round_costs_two_requests() {
    let (env, services, counting) = new_env(calls_look_twice).await;
    let patch = json!({"settings": {"continuation": "inline"}});
    let key = idempotency("patch");
    patch_conversation(&services, &TestEnv::key(), patch.as_object().unwrap(), &key, |_| true)
        .await
        .unwrap();
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    write head, commit
    write head, commit
    write head, commit
    write head, commit
    write head, commit
    ");
    assert_eq!(queued_nudges(&env).await, 0);
}

#[tokio::test(start_paused = true)]
async fn approval_costs_one_more_turn_and_no_waiting() {
    let (mut env, services, counting) = new_env(calls_gated).await;
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    write head, commit
    ");
    assert_eq!(queued_nudges(&env).await, 0, "a wait sends no nudge");
    env.decide_requests().await;
    insta::assert_snapshot!(counting.take_requests(), @r"
    read head
    read head
    read item
    select entry
    write inbox, head (count)
    ");
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    lease (head)
    select inbox
    write head, commit, receipt
    write head, commit
    write head, commit
    ");
}

#[tokio::test(start_paused = true)]
async fn late_or_duplicate_nudge_costs_one_request() {
    let (env, services, counting) = new_env(replies_hello).await;
    handle_next_nudge(&env, &services, &counting).await;
    assert_eq!(handle(&services, &TestEnv::nudge()).await.unwrap(), DeliveryOutcome::NoWork);
    insta::assert_snapshot!(counting.take_requests(), @"lease (head)");
    sweep::sweep(&services, sweep::GRACE_PERIOD).await.unwrap();
    insta::assert_snapshot!(counting.take_requests(), @"due");
}

#[tokio::test(start_paused = true)]
async fn lost_race_for_lease_costs_two_reads() {
    let (mut env, quick, counting) = new_env(replies_hello).await;
    let pause = Arc::new(PauseFailPoint::new("pending-work.before"));
    let slow = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    let (slow_result, ()) = tokio::join!(handle(&slow, &nudge), async {
        pause.reached.notified().await;
        handle(&quick, &nudge).await.unwrap();
        counting.take_requests();
        pause.resume.notify_one();
    });
    assert!(matches!(slow_result, Err(TurnError::LeaseLost { .. })), "{slow_result:?}");
    insta::assert_snapshot!(counting.take_requests(), @r"
    write head, entry, commit, receipt
    read head
    read ev-000000000001
    ");
}

/// Requests of a delivery after its model call, while a client changes the head.
async fn requests_after_concurrent_patch(patch: Value) -> (Head, String) {
    let (mut env, client, counting) = new_env(replies_hello).await;
    let pause = Arc::new(PauseFailPoint::new("model.after"));
    let worker = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        let key = idempotency("patch");
        patch_conversation(&client, &TestEnv::key(), patch.as_object().unwrap(), &key, |_| true)
            .await
            .unwrap();
        counting.take_requests();
        pause.resume.notify_one();
    });
    assert_eq!(handled.unwrap(), DeliveryOutcome::Worked);
    let requests = counting.take_requests();
    (env.head().await.unwrap(), requests)
}

#[tokio::test(start_paused = true)]
async fn concurrent_patch_costs_one_read_and_one_commit() {
    let patch = json!({"metadata": {"team": "payments"}});
    let (head, requests) = requests_after_concurrent_patch(patch).await;
    insta::assert_snapshot!(requests, @r"
    write head, commit
    read head
    write head, commit
    ");
    assert_eq!((head.phase, head.metadata.len()), (Phase::Idle, 1));
}

#[tokio::test(start_paused = true)]
async fn concurrent_rename_costs_two_reads_and_one_commit() {
    let (head, requests) = requests_after_concurrent_patch(json!({"name": "renamed"})).await;
    // The new name has taken the number of the worker's event: its document names the winner.
    insta::assert_snapshot!(requests, @r"
    write head, commit
    read head
    read ev-000000000006
    write head, commit
    ");
    assert_eq!((head.phase, head.name.as_deref()), (Phase::Idle, Some("renamed")));
}

#[tokio::test(start_paused = true)]
async fn next_delivery_reads_input_sent_during_round() {
    let (mut env, client, counting) = new_env(calls_look_twice).await;
    let pause = Arc::new(PauseFailPoint::new("result.after"));
    let worker = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    env.queue.drop_queue(queue::TURNS);
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        // The lease is released, but its nudge is not yet sent.
        env.queue_prompt(&client, &TestEnv::key(), "and this").await.unwrap();
        env.queue.drop_queue(queue::TURNS);
        pause.resume.notify_one();
    });
    assert_eq!(handled.unwrap(), DeliveryOutcome::Worked);
    assert_eq!(queued_nudges(&env).await, 1);
    let requests = handle_next_nudge(&env, &client, &counting).await;
    assert!(requests.contains("select inbox"), "the delivery did not read the item: {requests}");
    env.run_until_idle().await;
    assert_eq!(env.head().await.unwrap().prompts.len(), 2);
}

/// The requests of a reader of all events after one, and the number of events.
async fn read_events(
    services: &Services,
    counting: &RequestLogStore,
    after: u64,
) -> (String, usize) {
    let (head, _) = load::head(services, &TestEnv::key()).await.unwrap();
    counting.take_requests();
    let end = StreamEnd::AfterEvent(head.event_seq);
    let mut reader = EventReader::new(services.clone(), TestEnv::key(), after, end);
    let mut events = 0;
    while let Some(item) = reader.next().await {
        events += usize::from(matches!(item, StreamItem::Event(_)));
    }
    assert_eq!(events as u64, head.event_seq - after);
    (counting.take_requests(), events)
}

/// Entries that events refer to are in the documents of the events, except messages of a person.
#[tokio::test(start_paused = true)]
async fn reader_of_events_needs_no_query_for_their_entries() {
    let (env, services, counting) = new_env(calls_look_twice).await;
    for _ in 0..3 {
        handle_next_nudge(&env, &services, &counting).await;
    }
    let (requests, events) = read_events(&services, &counting, 0).await;
    insta::assert_snapshot!(requests, @r"
    select events
    read head
    select entry
    read head
    ");
    // Each other place in the middle, of a document or between two.
    for after in (1..events as u64).rev() {
        let (requests, _) = read_events(&services, &counting, after).await;
        let reads = requests.matches("select events").count();
        assert!(reads <= 2, "after {after}: {requests}");
    }
}
