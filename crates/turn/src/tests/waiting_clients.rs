//! Turns in the process at which a client waits for them (`execution: here`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::store_requests::{queued_nudges, replies_hello};
use super::test_env::{
    LoggedRequests as _, PauseFailPoint, RequestLogStore, Script, TURN_FAIL_POINTS, TestEnv, call,
    idempotency, owner, owner_decider, text,
};
use crate::delivery::{handle, handle_for_client};
use turnwheel_agent_files::Execution;
use turnwheel_commands::continue_prompt::accept_continue;
use turnwheel_commands::decide::{DecisionRequest, DecisionSender, decide};
use turnwheel_commands::prompt::{
    FirstPromptRequest, PromptRequest, Sender, WhenBusy, accept_prompt, begin_conversation,
};
use turnwheel_commands::waiting_client::{TurnRunner, WaitingClient, WaitingClients};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::Source;
use turnwheel_conversation::phase::Phase;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::error::DeliveryOutcome;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;

/// Keeps the turns that it has to start.
#[derive(Debug, Default)]
struct ListedTurns {
    started: Mutex<Vec<(Nudge, CancellationToken)>>,
    is_full: bool,
}

impl ListedTurns {
    fn take(&self) -> Vec<(Nudge, CancellationToken)> {
        std::mem::take(&mut self.started.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A sender whose request waits.
    fn sender(self: &Arc<Self>) -> (Sender, WaitingClient) {
        let clients = Arc::new(WaitingClients::new(Arc::clone(self) as _));
        let client = clients.add(&TestEnv::key());
        (sender_of(&clients), client)
    }
}

fn sender_of(clients: &Arc<WaitingClients>) -> Sender {
    let (source, when_busy) = (Source::User, WhenBusy::Queue);
    Sender { source, traceparent: None, when_busy, clients: Some(Arc::clone(clients)) }
}

impl TurnRunner for ListedTurns {
    fn start(&self, nudge: Nudge, gone: CancellationToken) -> bool {
        if !self.is_full {
            self.started.lock().unwrap_or_else(PoisonError::into_inner).push((nudge, gone));
        }
        !self.is_full
    }
}

fn new_env(seed: u64, script: Script) -> TestEnv {
    let mut env = TestEnv::with_script(seed, script);
    env.change_agent(|agent| agent.execution = Execution::Here);
    env
}

async fn begin(services: &Services, sender: &Sender) {
    let request = FirstPromptRequest {
        conversation_id: Some("c".to_owned()),
        input: Some(Content::Text("go".to_owned())),
        ..FirstPromptRequest::default()
    };
    let key = idempotency("first");
    Box::pin(begin_conversation(services, &owner(), request, &key, sender)).await.unwrap();
}

async fn send(services: &Services, text: &str, sender: &Sender) {
    let request =
        PromptRequest { input: Some(Content::Text(text.to_owned())), ..PromptRequest::default() };
    let (key, idempotency) = (TestEnv::key(), idempotency(text));
    Box::pin(accept_prompt(services, &key, request, &idempotency, sender)).await.unwrap();
}

fn calls_pay_then_put(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c1", "pay", 0)],
        1 => vec![call("c2", "put", 0)],
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn turns_for_a_client_need_no_message() {
    let mut env = new_env(1, calls_pay_then_put);
    let counting = RequestLogStore::wrap(env.store.clone());
    env.worker_store = counting.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    let runner = Arc::new(ListedTurns::default());
    let (sender, waiting_client) = runner.sender();
    begin(&services, &sender).await;
    insta::assert_snapshot!(counting.take_requests(), @r"
    write receipt
    read item
    write inbox, head
    ");
    let (nudge, gone) = runner.take().remove(0);
    let outcome = handle_for_client(&services, &nudge, Some(&gone)).await.unwrap();
    assert_eq!(outcome, DeliveryOutcome::Worked);
    insta::assert_snapshot!(counting.take_requests(), @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    write head, commit
    write head, commit
    write head, commit
    write head, commit
    write head, commit
    ");
    assert_eq!(env.head().await.unwrap().phase, Phase::Idle);
    assert_eq!(queued_nudges(&env).await, 0, "neither for the prompt nor for a further turn");
    drop(waiting_client);
    assert!(gone.is_cancelled());

    let (sender, _client) = runner.sender();
    counting.take_requests();
    send(&services, "again", &sender).await;
    assert_eq!((runner.take().len(), queued_nudges(&env).await), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn worker_is_woken_for_turns_that_do_not_run_here() {
    let mut env = new_env(2, replies_hello);
    let services = env.new_worker(Arc::new(NoFailPoints));
    // As many turns run here as may.
    let full = Arc::new(ListedTurns { is_full: true, ..ListedTurns::default() });
    let (sender, _client) = full.sender();
    begin(&services, &sender).await;
    assert_eq!(queued_nudges(&env).await, 1);
    env.run_until_idle().await;

    let runner = Arc::new(ListedTurns::default());
    let (sender, _client) = runner.sender();
    env.change_agent(|agent| agent.execution = Execution::Queue);
    send(&services, "second", &sender).await;
    assert_eq!((runner.take().len(), queued_nudges(&env).await), (0, 1), "`execution: queue`");
    // While a prompt runs, the worker that has its lease finds the input.
    env.change_agent(|agent| agent.execution = Execution::Here);
    send(&services, "third", &sender).await;
    assert_eq!((runner.take().len(), queued_nudges(&env).await), (0, 2));
    env.run_until_idle().await;
    // A repetition of an accepted request.
    send(&services, "fourth", &sender).await;
    assert_eq!(runner.take().len(), 1);
    send(&services, "fourth", &sender).await;
    assert_eq!((runner.take().len(), queued_nudges(&env).await), (0, 1));
    env.run_until_idle().await;
    let refused = accept_continue(&services, &TestEnv::key(), &idempotency("on"), &sender).await;
    assert!(refused.is_err(), "a response is the last message");
}

#[tokio::test(start_paused = true)]
async fn head_of_newer_version_wakes_worker() {
    let mut env = new_env(11, replies_hello);
    let services = env.new_worker(Arc::new(NoFailPoints));
    let runner = Arc::new(ListedTurns::default());
    let (sender, _client) = runner.sender();
    begin(&services, &sender).await;
    let (nudge, gone) = runner.take().remove(0);
    handle_for_client(&services, &nudge, Some(&gone)).await.unwrap();
    let mut older = services.clone();
    older.limits.reader_version = env.head().await.unwrap().min_reader - 1;
    send(&older, "again", &sender).await;
    assert_eq!((runner.take().len(), queued_nudges(&env).await), (0, 1));
}

/// A worker has continued since, so the head that this process wrote last is old.
#[tokio::test(start_paused = true)]
async fn turns_of_the_next_client_read_the_head() {
    let mut env = new_env(12, calls_pay_then_put);
    let counting = RequestLogStore::wrap(env.store.clone());
    env.worker_store = counting.clone();
    let pause = Arc::new(PauseFailPoint::new("tool.after"));
    let services = env.new_worker(pause.clone());
    let runner = Arc::new(ListedTurns::default());
    let (sender, waiting_client) = runner.sender();
    begin(&services, &sender).await;
    let (nudge, gone) = runner.take().remove(0);
    let leaves = async {
        pause.reached.notified().await;
        drop(waiting_client);
        pause.resume.notify_one();
    };
    let (handled, ()) = tokio::join!(handle_for_client(&services, &nudge, Some(&gone)), leaves);
    handled.unwrap();
    env.run_until_idle().await;

    let (sender, _client) = runner.sender();
    send(&services, "again", &sender).await;
    let (nudge, gone) = runner.take().remove(0);
    counting.take_requests();
    handle_for_client(&services, &nudge, Some(&gone)).await.unwrap();
    let requests = counting.take_requests();
    assert!(requests.starts_with("lease (head)"), "{requests}");
}

/// The client disconnects at each fail point of its turns: the effect under way ends here, and a
/// worker takes the next one.
#[tokio::test(start_paused = true)]
async fn turns_of_a_gone_client_continue_by_the_queue() {
    let mut lines = Vec::new();
    for at in TURN_FAIL_POINTS {
        let mut env = new_env(3, calls_pay_then_put);
        let pause = Arc::new(PauseFailPoint::new(at));
        let services = env.new_worker(pause.clone());
        let runner = Arc::new(ListedTurns::default());
        let (sender, waiting_client) = runner.sender();
        begin(&services, &sender).await;
        let (nudge, gone) = runner.take().remove(0);
        let mut waiting_client = Some(waiting_client);
        let (handled, ()) =
            tokio::join!(handle_for_client(&services, &nudge, Some(&gone)), async {
                // No nudge is sent by the turns of a client that stays.
                let reached = pause.reached.notified();
                let is_reached = tokio::time::timeout(Duration::from_mins(10), reached).await;
                waiting_client.take();
                pause.resume.notify_one();
                assert!(is_reached.is_ok() || at.starts_with("nudge"), "{at}");
            });
        handled.unwrap();
        let phase = env.head().await.unwrap().phase;
        let nudges = queued_nudges(&env).await;
        assert_eq!(nudges == 0, phase == Phase::Idle, "{at}: {phase:?}");
        lines
            .push(format!("{at}: {} calls, {nudges} nudges", env.executions.lock().unwrap().len()));
        env.run_until_idle().await;
        let executions = env.executions.lock().unwrap();
        assert_eq!(executions.len(), 2, "{at}");
        assert!(executions.values().all(|count| *count == 1), "{at}: {executions:?}");
    }
    insta::assert_snapshot!(lines.join("\n"), @r"
    lease.before: 0 calls, 1 nudges
    lease.after: 0 calls, 1 nudges
    inbox.after: 0 calls, 1 nudges
    pending-work.before: 0 calls, 1 nudges
    pending-work.after: 0 calls, 1 nudges
    model.before: 0 calls, 1 nudges
    model.after: 0 calls, 1 nudges
    response.before: 1 calls, 1 nudges
    response.after: 1 calls, 1 nudges
    tool.before: 1 calls, 1 nudges
    tool.after: 1 calls, 1 nudges
    result.before: 1 calls, 1 nudges
    result.after: 1 calls, 1 nudges
    release.before: 2 calls, 0 nudges
    release.after: 2 calls, 0 nudges
    nudge.before: 2 calls, 0 nudges
    nudge.after: 2 calls, 0 nudges
    ");
}

/// The process dies at each fail point while its client waits: the sweep finds the work, and no write is
/// repeated.
#[tokio::test(start_paused = true)]
async fn killed_turns_of_a_client_continue_by_the_sweep() {
    let accept = ["admission.accept", "admission.accepted"];
    // No nudge is sent for a client that stays.
    let of_turns = TURN_FAIL_POINTS.into_iter().filter(|at| !at.starts_with("nudge"));
    for at in accept.into_iter().chain(of_turns) {
        let mut env = new_env(4, calls_pay_then_put);
        let pause = Arc::new(PauseFailPoint::new(at));
        let services = env.new_worker(pause.clone());
        let runner = Arc::new(ListedTurns::default());
        let (sender, _client) = runner.sender();
        if accept.contains(&at) {
            pause.kill(begin(&services, &sender)).await;
            assert_eq!(runner.take().len(), 0, "{at}");
            // The client repeats its request, which may be stored already.
            let services = env.new_worker(Arc::new(NoFailPoints));
            begin(&services, &sender).await;
        } else {
            begin(&services, &sender).await;
            let (nudge, gone) = runner.take().remove(0);
            pause.kill(handle_for_client(&services, &nudge, Some(&gone))).await;
        }
        env.run_until_idle().await;
        let executions = env.executions.lock().unwrap();
        // The call under way at the kill is the write.
        assert!(executions.values().all(|count| *count == 1), "{at}: {executions:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn turn_of_a_client_that_is_gone_is_not_begun() {
    let mut env = new_env(6, replies_hello);
    let counting = RequestLogStore::wrap(env.store.clone());
    env.worker_store = counting.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    let runner = Arc::new(ListedTurns::default());
    let (sender, waiting_client) = runner.sender();
    begin(&services, &sender).await;
    drop(waiting_client);
    let (nudge, gone) = runner.take().remove(0);
    counting.take_requests();
    let outcome = handle_for_client(&services, &nudge, Some(&gone)).await.unwrap();
    assert_eq!((outcome, queued_nudges(&env).await), (DeliveryOutcome::NoWork, 1));
    assert_eq!(counting.take_requests(), "");
    env.run_until_idle().await;
}

/// A step in which a worker died must not end the process of other clients.
#[tokio::test(start_paused = true)]
async fn step_in_which_a_worker_died_goes_to_the_queue() {
    let mut env = new_env(5, calls_pay_then_put);
    let pause = Arc::new(PauseFailPoint::new("model.before"));
    let dying = env.new_worker(pause.clone());
    env.send_prompt(&dying).await;
    pause.kill(handle(&dying, &TestEnv::nudge())).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    let services = env.new_worker(Arc::new(NoFailPoints));
    let (before, lease) = (queued_nudges(&env).await, env.head().await.unwrap().lease);
    assert!(lease.is_some());
    let gone = CancellationToken::new();
    let handled = handle_for_client(&services, &TestEnv::nudge(), Some(&gone)).await.unwrap();
    assert_eq!(handled, DeliveryOutcome::NoWork);
    assert_eq!(env.head().await.unwrap().lease, lease, "the death is still to be counted");
    assert_eq!(queued_nudges(&env).await, before + 1);
    env.run_until_idle().await;
    assert_eq!(env.executions.lock().unwrap().len(), 2);
}

/// The new conversation, its nudges in the queue, and the turns that its client starts here.
struct StreamedConversation {
    env: TestEnv,
    services: Services,
    runner: Arc<ListedTurns>,
    clients: Arc<WaitingClients>,
}

impl StreamedConversation {
    fn new(seed: u64, script: Script) -> Self {
        let mut env = new_env(seed, script);
        let services = env.new_worker(Arc::new(NoFailPoints));
        let runner = Arc::new(ListedTurns::default());
        let clients = Arc::new(WaitingClients::new(Arc::clone(&runner) as _));
        Self { env, services, runner, clients }
    }

    fn sender(&self) -> Sender {
        sender_of(&self.clients)
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_and_decision_with_an_open_stream_need_no_message() {
    let script = |results, _input: &str| match results {
        0 => vec![call("c1", "gated", 0)],
        _ => vec![text("done")],
    };
    let StreamedConversation { env, services, runner, clients } =
        &StreamedConversation::new(7, script);
    let stream = clients.add(&TestEnv::key());
    let second = clients.add(&TestEnv::key());
    let other = clients.add(&owner().conversation_key("other"));
    let sender = sender_of(clients);
    begin(services, &sender).await;
    let (nudge, gone) = runner.take().remove(0);
    handle_for_client(services, &nudge, Some(&gone)).await.unwrap();
    let request = env.head().await.unwrap().requests.remove(0);
    assert_eq!(queued_nudges(env).await, 0);

    let body = DecisionRequest { decision: "approve".to_owned(), reason: None, value: None };
    let decider = DecisionSender { decider: &owner_decider(), clients: Some(clients) };
    decide(services, &TestEnv::key(), request.id.as_str(), body, decider).await.unwrap();
    let (nudge, gone) = runner.take().remove(0);
    drop((stream, other));
    assert!(!gone.is_cancelled(), "one stream of the conversation is open");
    handle_for_client(services, &nudge, Some(&gone)).await.unwrap();
    assert_eq!(env.head().await.unwrap().phase, Phase::Idle);
    assert_eq!(queued_nudges(env).await, 0);
    drop(second);
    assert!(gone.is_cancelled());
    send(services, "again", &sender).await;
    assert_eq!((runner.take().len(), queued_nudges(env).await), (0, 1), "no stream is open");
}

/// A client learns the id of a new conversation from the response, then opens its stream. The worker that
/// has the message and this process take the turns once.
#[tokio::test(start_paused = true)]
async fn stream_that_opens_after_its_prompt_starts_the_turns() {
    let mut streamed = StreamedConversation::new(8, calls_pay_then_put);
    begin(&streamed.services, &streamed.sender()).await;
    assert_eq!((streamed.runner.take().len(), queued_nudges(&streamed.env).await), (0, 1));
    let _stream = streamed.clients.add(&TestEnv::key());
    let (nudge, gone) = streamed.runner.take().remove(0);
    let services = streamed.services.clone();
    let here = handle_for_client(&services, &nudge, Some(&gone));
    let (handled, ()) = tokio::join!(here, streamed.env.run_until_idle());
    handled.unwrap();
    let _second = streamed.clients.add(&TestEnv::key());
    assert_eq!(streamed.runner.take().len(), 0, "the turns have started once");
    let executions = streamed.env.executions.lock().unwrap();
    assert_eq!(executions.len(), 2);
    assert!(executions.values().all(|count| *count == 1), "{executions:?}");
}

#[tokio::test(start_paused = true)]
async fn streams_that_open_late_are_left_to_workers() {
    let mut streamed = StreamedConversation::new(9, replies_hello);
    begin(&streamed.services, &streamed.sender()).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let _stream = streamed.clients.add(&TestEnv::key());
    assert_eq!((streamed.runner.take().len(), queued_nudges(&streamed.env).await), (0, 1));
    streamed.env.run_until_idle().await;
}

#[tokio::test(start_paused = true)]
async fn newest_64_requests_may_be_followed_by_a_stream() {
    let streamed = StreamedConversation::new(10, replies_hello);
    for number in 0..65 {
        let id = format!("c{number}");
        let key = idempotency(&id);
        let request = FirstPromptRequest {
            conversation_id: Some(id),
            input: Some(Content::Text("go".to_owned())),
            ..FirstPromptRequest::default()
        };
        let (services, sender) = (&streamed.services, streamed.sender());
        Box::pin(begin_conversation(services, &owner(), request, &key, &sender)).await.unwrap();
    }
    let opened = ["c0", "c1", "c64"].map(|id| {
        drop(streamed.clients.add(&owner().conversation_key(id)));
        streamed.runner.take().len()
    });
    assert_eq!(opened, [0, 1, 1]);
}
