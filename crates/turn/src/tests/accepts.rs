//! Inputs that are accepted at each moment of a delivery: none is lost, each joins the next commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::Barrier;

use super::test_env::{LoggedRequests as _, RequestLogStore, TestEnv, call, idempotency, text};
use crate::delivery::handle;
use turnwheel_commands::abort::{AbortRequest, abort};
use turnwheel_commands::inbox_clear::clear_input;
use turnwheel_commands::message::{MessageRequest, accept_message};
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::inbox::{
    DeliverAs, IdempotencyRecord, InboxItem, NEXT_TURN_MESSAGES_MAX,
};
use turnwheel_conversation::message::Message;
use turnwheel_extensions::{ClosingTurn, Extension, FinishTurn, HookContext, HookError};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::fail_points::{FailPoints, NoFailPoints};
use turnwheel_platform::ids::InputId;
use turnwheel_record::certain_write::with_inbox_count;
use turnwheel_record::contract::{CommandError, CommandResponse, INBOX_ITEMS_MAX};
use turnwheel_record::documents;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _};
use turnwheel_storage::store::interceptor::{InterceptedStore, StoreInterceptor, StoreRequest};
use turnwheel_storage::store::memory::MemoryStore;
use turnwheel_storage::store::{
    ConversationStore as _, DocumentKind, HEAD_ID, Partition, StoreError, Write,
};

const STEER: &str = "and hurry";

fn two_calls(results: usize, _input: &str) -> Vec<Value> {
    if results < 2 { vec![call("c1", "put", results)] } else { vec![text("done")] }
}

fn partition() -> Partition {
    Partition::Conversation(TestEnv::key())
}

/// Stores a steer as another instance does, without its nudge.
fn accept_steer(store: &MemoryStore, number: usize) {
    let body = json!({"steer": {
        "promptId": format!("pr_steer{number}"), "user": "u", "input": format!("{STEER} {number}"),
        "visible": true, "source": "user"
    }});
    let item = InboxItem {
        input_id: InputId::new(format!("in_steer{number}")),
        accepted_at: Timestamp(1_000),
        idempotency: IdempotencyRecord::default(),
        traceparent: None,
        body: serde_json::from_value(body).unwrap(),
    };
    let writes = vec![Write::Create(documents::inbox_document(&item))];
    let writes = with_inbox_count(writes, Some(item.accepted_at));
    let written = store.write(&partition(), writes).now_or_never();
    written.expect("the memory store needs no wait").unwrap();
}

/// Lets another instance accept steers before requests of the worker.
#[derive(Debug)]
struct AcceptingInstance {
    store: Arc<MemoryStore>,
    requests: AtomicUsize,
    accepted: AtomicUsize,
    when: When,
}

#[derive(Debug)]
enum When {
    /// Before the request with that number.
    Request(usize),
    /// Before each commit, so often.
    Commits(usize),
}

impl StoreInterceptor for AcceptingInstance {
    fn before_request(&self, request: &StoreRequest<'_>) -> Result<(), StoreError> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let accepted = self.accepted.load(Ordering::SeqCst);
        let is_commit = matches!(request, StoreRequest::Write(_, writes)
            if matches!(writes.first(), Some(Write::Replace(document, _)) if document.id == HEAD_ID));
        let accepts = match self.when {
            When::Request(wanted) => number == wanted,
            When::Commits(count) => is_commit && accepted < count,
        };
        if accepts {
            self.accepted.fetch_add(1, Ordering::SeqCst);
            accept_steer(&self.store, accepted);
        }
        Ok(())
    }
}

/// An environment with a prompt that calls a tool twice, and its worker's store.
async fn start(when: When) -> (TestEnv, Arc<InterceptedStore<AcceptingInstance>>) {
    let mut env = TestEnv::with_script(1, two_calls);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let instance = AcceptingInstance {
        store: env.store.clone(),
        requests: AtomicUsize::new(0),
        accepted: AtomicUsize::new(0),
        when,
    };
    let store = Arc::new(InterceptedStore::new(env.store.clone(), instance));
    env.worker_store = store.clone();
    (env, store)
}

fn is_steer(entry: &Entry) -> bool {
    let message = entry.body.message();
    matches!(message, Some(Message::User(_))) && json!(entry).to_string().contains(STEER)
}

fn is_response(entry: &Entry) -> bool {
    matches!(entry.body.message(), Some(Message::Assistant(_)))
}

/// Everything is applied, and nothing is left to do.
async fn assert_settled(env: &TestEnv, case: &str) {
    let head = env.head().await.unwrap();
    let left = (head.inbox_count, head.waiting_items, head.lease.is_none(), head.prompt.is_none());
    assert_eq!(left, (Some(0), 0, true, true), "{case}");
    assert_eq!(head.due, head.metering.settle_at, "{case}");
    let inbox = env.store.documents(&partition());
    let inbox = inbox.iter().filter(|stored| stored.document.kind == DocumentKind::Inbox);
    assert_eq!(inbox.count(), 0, "{case}");
    assert_eq!(env.queue.length(queue::TURNS).await.unwrap(), 0, "{case}");
}

/// The steer is accepted before each store request of the deliveries in turn. Its own nudge is never
/// sent: while a worker has the lease, the delivery of that nudge would be turned away.
#[tokio::test(start_paused = true)]
async fn steer_accepted_at_any_request_joins_the_next_commit() {
    let mut cases = 0;
    for number in 0.. {
        let (mut env, store) = start(When::Request(number)).await;
        let services = env.new_worker(Arc::new(NoFailPoints));
        let mut accepted_at = None;
        while env.queue.length(queue::TURNS).await.unwrap() > 0 {
            deliver_next(&env, &services).await;
            let instance = &store.interceptor;
            if accepted_at.is_none() && instance.accepted.load(Ordering::SeqCst) > 0 {
                accepted_at = Some(env.head().await.unwrap().seq);
            }
        }
        if accepted_at.is_none() {
            break;
        }
        cases += 1;
        let case = format!("before request {number}");
        assert_settled(&env, &case).await;
        let entries = env.entries().await;
        assert_eq!(entries.iter().filter(|entry| is_steer(entry)).count(), 1, "{case}");
    }
    assert!(cases > 9, "only {cases} requests");
}

async fn deliver_next(env: &TestEnv, services: &Services) {
    let received = env.queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await.unwrap();
    let message = received.into_iter().next().expect("a nudge is queued");
    let nudge = serde_json::from_str(&message.text).unwrap();
    handle(services, &nudge).await.unwrap();
    env.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await.unwrap();
}

/// A commit that loses reads the inbox again, five times; then it commits without the inbox.
#[tokio::test(start_paused = true)]
async fn sender_that_always_comes_first_stops_no_commit() {
    for count in [3, 9] {
        let (mut env, store) = start(When::Commits(count)).await;
        let services = env.new_worker(Arc::new(NoFailPoints));
        while env.queue.length(queue::TURNS).await.unwrap() > 0 {
            deliver_next(&env, &services).await;
        }
        assert_eq!(store.interceptor.accepted.load(Ordering::SeqCst), count);
        let case = format!("{count} steers");
        assert_settled(&env, &case).await;
        let entries = env.entries().await;
        assert_eq!(entries.iter().filter(|entry| is_steer(entry)).count(), count, "{case}");
        let responses = entries.iter().filter(|entry| is_response(entry)).count();
        assert!(responses >= 3, "{case}: {responses} responses");
    }
}

/// A hook that takes so long that the lease is renewed, while a steer is accepted.
#[derive(Debug)]
struct SlowHook {
    store: Arc<MemoryStore>,
    calls: AtomicUsize,
}

#[async_trait]
impl Extension for SlowHook {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn timeout(&self) -> Option<Duration> {
        Some(Duration::from_secs(30))
    }

    async fn finish_turn(
        &self,
        _cx: &HookContext,
        _turn: &ClosingTurn<'_>,
    ) -> Result<Option<FinishTurn>, HookError> {
        if self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_secs(5)).await;
            accept_steer(&self.store, 0);
            tokio::time::sleep(Duration::from_secs(20)).await;
        }
        Ok(None)
    }
}

/// The renewal reads the head with the steer, so that the commit after the hook would win.
#[tokio::test(start_paused = true)]
async fn steer_accepted_before_a_renewal_in_a_hook_joins_the_commit() {
    let mut env = TestEnv::with_script(1, two_calls);
    let calls = AtomicUsize::new(0);
    env.extensions = vec![Arc::new(SlowHook { store: env.store.clone(), calls })];
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    while env.queue.length(queue::TURNS).await.unwrap() > 0 {
        deliver_next(&env, &services).await;
    }
    assert_settled(&env, "the end").await;
    let entries = env.entries().await;
    assert_eq!(entries.iter().filter(|entry| is_steer(entry)).count(), 1);
    let steer = entries.iter().position(is_steer).unwrap();
    let before = entries[..steer].iter().filter(|entry| is_response(entry)).count();
    assert_eq!(before, 1, "the steer joins the first turn, in which the hook ran");
}

/// Two instances in turn: the cached head of each is old, so that its first commit loses.
#[tokio::test(start_paused = true)]
async fn worker_with_an_old_head_reads_the_new_one() {
    fn calls_six_times(results: usize, _input: &str) -> Vec<Value> {
        if results < 6 { vec![call("c1", "put", results)] } else { vec![text("done")] }
    }
    let mut env = TestEnv::with_script(1, calls_six_times);
    let log = RequestLogStore::wrap(env.store.clone());
    env.worker_store = log.clone();
    let instances =
        [env.new_worker(Arc::new(NoFailPoints)), env.new_worker(Arc::new(NoFailPoints))];
    env.send_prompt(&instances[0]).await;
    // The first instance takes two turns, so that it has a head in its cache.
    let mut requests = Vec::new();
    for instance in [0, 0, 1, 1, 0, 0, 1] {
        log.take_requests();
        deliver_next(&env, &instances[instance]).await;
        requests.push(log.take_requests());
    }
    assert_settled(&env, "the end").await;
    let warm = "write head\nwrite head, commit\nwrite head, commit";
    assert_eq!(requests[1], warm, "its own head");
    let cold = warm.replacen('\n', "\nselect entry\n", 1);
    assert_eq!(requests[2], format!("lease (head)\n{cold}"), "no head");
    let old = format!("write head\nread head\nlease (head)\n{cold}");
    assert_eq!(requests[4], old, "an old head");
    let entries = env.entries().await;
    assert_eq!(entries.iter().filter(|entry| is_response(entry)).count(), 7);
}

/// Sends inputs behind the prompt until one is refused.
async fn fill_inbox(env: &mut TestEnv, services: &Services) {
    let mut accepted = 1;
    let refused = loop {
        match env.steer(services, &format!("{STEER} {accepted}")).await {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, CommandError::InboxFull { .. }), "{refused}");
    assert!(refused.to_string().contains("64 inputs wait"), "{refused}");
    assert_eq!(accepted, INBOX_ITEMS_MAX);
}

#[tokio::test(start_paused = true)]
async fn full_inbox_refuses_inputs_but_no_abort() {
    let mut env = TestEnv::with_script(1, two_calls);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    fill_inbox(&mut env, &services).await;
    let request = AbortRequest::default();
    abort(&services, &TestEnv::key(), request, &idempotency("stop")).await.unwrap();
    env.run_until_idle().await;
    let again = env.queue_prompt(&services, &TestEnv::key(), "again").await;
    again.expect("there is room again");
}

#[tokio::test(start_paused = true)]
async fn refused_input_wakes_a_worker_for_those_that_wait() {
    let mut env = TestEnv::with_script(1, two_calls);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    fill_inbox(&mut env, &services).await;
    env.queue.drop_queue(queue::TURNS);
    env.steer(&services, "refused").await.unwrap_err();
    assert_eq!(env.queue.length(queue::TURNS).await.unwrap(), 1);
}

async fn send_next_turn_message(
    services: &Services,
    number: u32,
) -> Result<CommandResponse, CommandError> {
    let text = format!("note {number}");
    let own = idempotency(&text);
    let deliver_as = Some(DeliverAs::NextTurn);
    let message = MessageRequest { deliver_as, ..MessageRequest::new("note", text) };
    Box::pin(accept_message(services, &TestEnv::key(), message, &own, None)).await
}

#[tokio::test(start_paused = true)]
async fn messages_for_next_turn_leave_room_for_inputs() {
    let mut env = TestEnv::with_script(1, |_, _| vec![text("done")]);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    for number in 0..NEXT_TURN_MESSAGES_MAX {
        send_next_turn_message(&services, number).await.expect("there is room");
    }
    let refused = send_next_turn_message(&services, NEXT_TURN_MESSAGES_MAX).await.unwrap_err();
    let wait = Duration::from_mins(1);
    assert!(
        matches!(refused, CommandError::InboxFull { retry_after, .. } if retry_after == wait),
        "{refused}"
    );
    let text = "64 messages wait for the next prompt of a user, which is the limit. Send a prompt, or delete one of them.";
    assert_eq!(refused.to_string(), text);
    assert_eq!(env.queue.length(queue::TURNS).await.unwrap(), 0, "no worker has anything to do");
    let prompt = env.queue_prompt(&services, &TestEnv::key(), "again").await;
    prompt.expect("a prompt is accepted");
    env.run_until_idle().await;
    let entries = env.entries().await;
    let messages = entries.iter().filter(|it| matches!(it.body, EntryBody::CustomMessage(_)));
    assert_eq!(messages.count(), 28, "of 60 operations the prompt takes five, and a message two");
    let again = send_next_turn_message(&services, NEXT_TURN_MESSAGES_MAX + 1).await;
    again.expect("there is room again");
}

#[tokio::test(start_paused = true)]
async fn inputs_beside_messages_for_next_turn_are_bounded() {
    let mut env = TestEnv::with_script(1, two_calls);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    for number in 0..NEXT_TURN_MESSAGES_MAX {
        send_next_turn_message(&services, number).await.expect("there is room");
    }
    fill_inbox(&mut env, &services).await;
}

/// Edits and withdrawals count in the head, too, while a long model call keeps a worker from counting
/// anew.
#[tokio::test(start_paused = true)]
async fn withdrawn_inputs_take_no_room() {
    let mut env = TestEnv::with_script(1, two_calls);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    for number in 0..INBOX_ITEMS_MAX {
        let text = format!("withdrawn {number}");
        env.steer(&services, &text).await.expect("the inbox has one input");
        let input_id = idempotency(&text).input_id(&TestEnv::key());
        clear_input(&services, &TestEnv::key(), input_id.as_str()).await.unwrap();
    }
    let count = env.head().await.unwrap().inbox_count;
    assert_eq!(count, Some(1 + 2 * INBOX_ITEMS_MAX), "the prompt, and two changes for each steer");
    fill_inbox(&mut env, &services).await;
}

/// Lets no request store its input before all have read the head.
#[derive(Debug)]
struct SimultaneousRequests(Barrier);

#[async_trait]
impl FailPoints for SimultaneousRequests {
    async fn hit(&self, name: &'static str) {
        if name == "admission.accept" {
            self.0.wait().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn simultaneous_inputs_stay_within_the_bound() {
    const SENDERS: usize = 100;
    let mut env = TestEnv::with_script(1, two_calls);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let services = env.new_worker(Arc::new(SimultaneousRequests(Barrier::new(SENDERS))));
    let texts: Vec<String> = (0..SENDERS).map(|number| format!("{STEER} {number}")).collect();
    let sent = join_all(texts.iter().map(|text| env.steer(&services, text)));
    let sent = tokio::time::timeout(Duration::from_mins(1), sent).await;
    let (accepted, refused): (Vec<_>, Vec<_>) =
        sent.expect("all requests read the head").into_iter().partition(Result::is_ok);
    assert_eq!(accepted.len() + 1, INBOX_ITEMS_MAX as usize, "the prompt waits, too");
    for response in refused {
        let error = response.unwrap_err();
        assert!(matches!(error, CommandError::InboxFull { .. }), "{error}");
    }
    let inbox = env.store.documents(&partition());
    let waiting = inbox.iter().filter(|stored| stored.document.kind == DocumentKind::Inbox);
    assert_eq!(waiting.count(), INBOX_ITEMS_MAX as usize);
}
