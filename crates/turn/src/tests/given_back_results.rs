//! Results of writes that are in no commit when a turn is given back or taken over: a known outcome
//! stays known.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::time::Instant;

use super::call_approval::{handle_nudges, only_request};
use super::leases::lose_lease_before_results;
use super::parallel_calls::result_texts;
use super::result_hooks::calls_pay;
use super::test_env::{PauseFailPoint, Script, TestEnv, call, text};
use crate::crash_count;
use crate::delivery::handle;
use crate::late_result::LateResultWriter;
use crate::leased_conversation::acquire_lease_as;
use turnwheel_conversation::content::Block;
use turnwheel_conversation::event::EventKind;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::request::CallRef;
use turnwheel_conversation::step::CallResult;
use turnwheel_extensions::{
    ClosingTurn, Events, Extension, FinishTurn, FinishedToolCall, Hook, HookContext, HookError,
    ResultChanges,
};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::shutdown::StopTimes;
use turnwheel_record::services::Services;
use turnwheel_storage::store::memory::StoreFaults;
use turnwheel_storage::store::outage_retry::REPETITION_TIME;
use turnwheel_storage::store::{DocumentKind, Partition};

/// Longer than a write has after a stop signal.
const HOOK_TIME: Duration = Duration::from_secs(15);

fn calls_mail(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "mail", 0)] } else { vec![text("done")] }
}

fn pays_and_brews(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c1", "pay", 0), call("c2", "brew", 0)],
        _ => vec![text("done")],
    }
}

fn makes_three_times(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c0", "make", 0), call("c1", "make", 1), call("c2", "make", 2)],
        _ => vec![text("done")],
    }
}

/// A write whose unknown outcome creates a request, and one whose unknown outcome the model reads.
const WRITES: [(Script, &str); 2] = [(calls_pay, "pay done"), (calls_mail, "mail done")];

/// Takes long after each call. It has no hook on turns, so that a commit may close them.
#[derive(Debug)]
struct SlowResultHook;

#[async_trait]
impl Extension for SlowResultHook {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn events(&self) -> Events {
        Events::from([Hook::ToolResult])
    }

    async fn after_tool_call(
        &self,
        _cx: &HookContext,
        _call: &FinishedToolCall<'_>,
    ) -> Result<ResultChanges, HookError> {
        tokio::time::sleep(HOOK_TIME).await;
        Ok(ResultChanges::default())
    }
}

/// Takes long to decide on the first turn with results.
#[derive(Debug, Default)]
struct SlowDecision {
    turns: AtomicUsize,
}

#[async_trait]
impl Extension for SlowDecision {
    fn name(&self) -> &'static str {
        "slow"
    }

    async fn finish_turn(
        &self,
        _cx: &HookContext,
        turn: &ClosingTurn<'_>,
    ) -> Result<Option<FinishTurn>, HookError> {
        if !turn.tool_results.is_empty() && self.turns.fetch_add(1, Ordering::SeqCst) == 0 {
            tokio::time::sleep(HOOK_TIME).await;
        }
        Ok(None)
    }
}

/// An environment with an accepted prompt, and a worker with the extension.
async fn env_with(script: Script, extension: Arc<dyn Extension>) -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(42, script);
    env.enable_parallel_calls(8);
    let mut worker = env.new_worker(Arc::new(NoFailPoints));
    worker.extensions = vec![extension];
    worker.limits.hook_timeout = Duration::from_secs(30);
    env.send_prompt(&worker).await;
    (env, worker)
}

/// Handles the nudge while the process ends after one second, and a write under way is stopped.
async fn handle_until_stopped(worker: &Services) {
    let writes = Duration::from_secs(9);
    let nudge = TestEnv::nudge();
    let ends = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        worker.shutdown.begin(StopTimes { repeatable: Duration::from_secs(4), writes });
        Instant::now()
    };
    let (handled, ended) = tokio::join!(Box::pin(handle(worker, &nudge)), ends);
    handled.unwrap();
    assert_eq!(ended.elapsed(), writes);
}

async fn assert_no_question(env: &TestEnv) {
    let head = env.head().await.unwrap();
    assert_eq!((head.requests.len(), &head.lease), (0, &None));
    let events = env.events().await;
    assert!(events.iter().all(|event| event.body.kind() != EventKind::PromptApprovalRequested));
}

async fn assert_result(env: &TestEnv, expected: &str) {
    assert_eq!(result_texts(env).await, [expected]);
    assert_eq!(env.executions.lock().unwrap().values().sum::<u32>(), 1);
    let head = env.head().await.unwrap();
    assert_eq!(head.phase, Phase::Idle);
    assert!(head.indeterminate_writes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn result_whose_hook_is_stopped_stays_known() {
    for (script, expected) in WRITES {
        let (mut env, worker) = env_with(script, Arc::new(SlowResultHook)).await;
        handle_until_stopped(&worker).await;
        assert_no_question(&env).await;
        let next = env.new_worker(Arc::new(NoFailPoints));
        handle_nudges(&env, &next).await;
        assert_no_question(&env).await;
        assert_result(&env, expected).await;
    }
}

/// The next worker runs the hook on the turn that the result closes.
#[tokio::test(start_paused = true)]
async fn result_whose_turn_hook_is_stopped_stays_known() {
    for (script, expected) in WRITES {
        let hook = Arc::new(SlowDecision::default());
        let (mut env, worker) = env_with(script, hook.clone()).await;
        handle_until_stopped(&worker).await;
        assert_no_question(&env).await;
        let mut next = env.new_worker(Arc::new(NoFailPoints));
        next.extensions = vec![hook.clone()];
        handle_nudges(&env, &next).await;
        assert_no_question(&env).await;
        assert_result(&env, expected).await;
        assert_eq!(hook.turns.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_running_write_becomes_a_question() {
    let (mut env, worker) = env_with(pays_and_brews, Arc::new(SlowResultHook)).await;
    handle_until_stopped(&worker).await;
    assert_eq!(only_request(&env).await.tool.as_deref(), Some("brew"));
    assert_eq!(result_texts(&env).await, Vec::<String>::new());
    let next = env.new_worker(Arc::new(NoFailPoints));
    handle_nudges(&env, &next).await;
    assert_eq!(result_texts(&env).await, ["pay done"]);
    assert_eq!(only_request(&env).await.tool.as_deref(), Some("brew"));
    assert!(env.executions.lock().unwrap().values().eq([&1, &1]));
}

/// Stores the result of the open call, as a worker does that has lost its lease.
async fn store_late_result(env: &TestEnv, services: &Services) {
    let worker = env.head().await.unwrap().lease.unwrap().worker;
    let ends = Duration::from_hours(1);
    let leased = acquire_lease_as(services, worker, &TestEnv::key(), ends, None).await;
    let mut conversation = leased.unwrap().unwrap();
    let state = &mut conversation.state;
    state.load_run(services).await.unwrap();
    let call = state.open_call(0).cloned().unwrap();
    let Phase::Calls { response_seq, .. } = state.head.phase else { panic!("no open calls") };
    let result = CallResult { content: vec![Block::text("paid")], ..CallResult::default() };
    let call_ref = CallRef { response_seq, index: 0 };
    LateResultWriter::new(services, state, call_ref, &call).store(&result).await;
}

#[tokio::test(start_paused = true)]
async fn result_stored_during_a_take_over_is_used() {
    for is_process_dead in [true, false] {
        let mut env = TestEnv::with_script(44, calls_pay);
        let death = Arc::new(PauseFailPoint::new("tool.after"));
        let dying = env.new_worker(death.clone());
        env.send_prompt(&dying).await;
        let nudge = TestEnv::nudge();
        death.kill(handle(&dying, &nudge)).await;
        if !is_process_dead {
            tokio::time::sleep(Duration::from_secs(70)).await;
        }
        let pause = Arc::new(PauseFailPoint::new("pending-work.before"));
        let other = env.new_worker(pause.clone());
        let key = TestEnv::key();
        let taken_over = async {
            if is_process_dead {
                crash_count::recover_from_process(&other, &key, &dying.worker).await.unwrap();
            } else {
                handle(&other, &nudge).await.unwrap();
            }
        };
        let stored = async {
            pause.reached.notified().await;
            store_late_result(&env, &dying).await;
            pause.resume.notify_one();
        };
        tokio::join!(Box::pin(taken_over), stored);
        assert_no_question(&env).await;
        handle_nudges(&env, &other).await;
        assert_no_question(&env).await;
        assert_result(&env, "paid").await;
    }
}

/// Each result has so many outputs that one commit has room for two.
#[tokio::test(start_paused = true)]
async fn results_without_room_in_one_commit_repeat_no_write() {
    let mut env = TestEnv::with_script(7, makes_three_times);
    env.enable_parallel_calls(8);
    lose_lease_before_results(&mut env).await;
    assert!(env.executions.lock().unwrap().values().eq([&1, &1, &1]), "each was sent once");
    assert!(!env.has_outcome_request, "the results are known: {:#?}", env.run_log);
    assert_eq!(result_texts(&env).await.len(), 3);
}

/// Handles the nudge of a prompt in an outage of the store, which begins before the first commit of a
/// result. Returns the time that the delivery took.
async fn handle_in_outage(env: &mut TestEnv, outage: Duration) -> Duration {
    let pause = Arc::new(PauseFailPoint::new("result.before"));
    let worker = env.new_worker(pause.clone());
    env.send_prompt(&worker).await;
    let nudge = TestEnv::nudge();
    let began = Instant::now();
    let delivery = async { (handle(&worker, &nudge).await, began.elapsed()) };
    let ((handled, time), ()) = tokio::join!(Box::pin(delivery), async {
        pause.reached.notified().await;
        env.store.set_faults(StoreFaults::unavailable());
        pause.resume.notify_one();
        tokio::time::sleep(outage).await;
        env.store.set_faults(StoreFaults::default());
    });
    assert!(handled.is_err(), "{handled:?}");
    time
}

/// The store is away until after the last attempt to commit the result.
#[tokio::test(start_paused = true)]
async fn tool_result_is_stored_after_store_outage() {
    for (script, expected) in WRITES {
        let mut env = TestEnv::with_script(45, script);
        handle_in_outage(&mut env, Duration::from_secs(55)).await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        let next = env.new_worker(Arc::new(NoFailPoints));
        handle_nudges(&env, &next).await;
        assert_no_question(&env).await;
        assert_result(&env, expected).await;
    }
}

#[tokio::test(start_paused = true)]
async fn parallel_results_are_stored_after_store_outage() {
    let mut env = TestEnv::with_script(47, makes_three_times);
    env.enable_parallel_calls(8);
    handle_in_outage(&mut env, Duration::from_secs(55)).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let next = env.new_worker(Arc::new(NoFailPoints));
    handle_nudges(&env, &next).await;
    assert_no_question(&env).await;
    assert_eq!(result_texts(&env).await.len(), 3);
    assert!(env.executions.lock().unwrap().values().eq([&1, &1, &1]), "each was sent once");
}

#[tokio::test(start_paused = true)]
async fn parallel_results_wait_together_for_the_store() {
    let mut times = Vec::new();
    for script in [calls_pay as Script, makes_three_times] {
        let mut env = TestEnv::with_script(48, script);
        env.enable_parallel_calls(8);
        times.push(handle_in_outage(&mut env, Duration::from_mins(10)).await);
    }
    assert!(times[1] < times[0] + REPETITION_TIME, "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn late_result_is_written_again_after_a_conflict() {
    let mut env = TestEnv::with_script(46, calls_pay);
    let death = Arc::new(PauseFailPoint::new("tool.after"));
    let dying = env.new_worker(death.clone());
    env.send_prompt(&dying).await;
    let nudge = TestEnv::nudge();
    death.kill(handle(&dying, &nudge)).await;
    // Others write the head.
    env.store.set_faults(StoreFaults { conflict: 1.0, ..StoreFaults::default() });
    tokio::join!(store_late_result(&env, &dying), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        env.store.set_faults(StoreFaults::default());
    });
    let partition = Partition::Conversation(TestEnv::key());
    assert_eq!(env.store.select_newest(&partition, DocumentKind::Inbox).len(), 1);
}
