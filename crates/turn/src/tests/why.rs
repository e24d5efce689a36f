//! The explanation of a conversation's state, from the first prompt until it is idle.

mod requests;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::test_env::{DeterministicStore, PauseFailPoint, Script, TestEnv, call, text};
use crate::delivery::handle;
use turnwheel_commands::decide::{DecisionRequest, decide};
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::fail_points::{FailPoints, NoFailPoints};
use turnwheel_platform::settings::budgets::Budgets;
use turnwheel_platform::settings::rate_limits::{Rate, RateLimits};
use turnwheel_queries::why::{ServiceStatus, WhyView, explain_conversation};
use turnwheel_record::contract::Decider;
use turnwheel_record::ledger::spending_limits::SpendingLimits;
use turnwheel_record::services::Services;
use turnwheel_test_support::captured_log::CapturedLog;

fn replies_hello(_results: usize, _input: &str) -> Vec<Value> {
    vec![text("hello")]
}

fn replies_nothing(_results: usize, _input: &str) -> Vec<Value> {
    Vec::new()
}

fn calls_gated(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "gated", 0)] } else { vec![text("done")] }
}

fn calls_look(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "look", 0)] } else { vec![text("done")] }
}

async fn new_env(script: Script) -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(1, script);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    (env, services)
}

pub(super) async fn why_view(env: &TestEnv) -> WhyView {
    explain_conversation(
        &*env.worker_store,
        &TestEnv::key(),
        ServiceStatus::Remote,
        env.clock.now(),
    )
    .await
    .unwrap()
}

/// Returns the state that the conversation waits for, and true if a worker has its lease.
async fn wait_state(env: &TestEnv) -> (Value, bool) {
    let view = why_view(env).await;
    assert!(view.why.ends_with('.') && view.why.contains("2027-01-15T08:"), "{}", view.why);
    (serde_json::to_value(view.waits_for).unwrap(), view.lease.is_some())
}

/// Starts a delivery and drops it at the fail point.
async fn drop_delivery_at(env: &mut TestEnv, fail_point: &'static str) {
    let pause = Arc::new(PauseFailPoint::new(fail_point));
    let worker = env.new_worker(pause.clone() as Arc<dyn FailPoints>);
    let nudge = TestEnv::nudge();
    pause.kill(handle(&worker, &nudge)).await;
}

#[tokio::test(start_paused = true)]
async fn why_explains_each_state_of_a_prompt() {
    let (mut env, services) = new_env(calls_gated).await;
    assert_eq!(wait_state(&env).await, ("nudge".into(), false));
    drop_delivery_at(&mut env, "model.before").await;
    assert_eq!(wait_state(&env).await, ("model".into(), true));
    tokio::time::sleep(Duration::from_secs(66)).await;
    assert_eq!(wait_state(&env).await, ("take_over".into(), true));
    handle(&services, &TestEnv::nudge()).await.unwrap();
    assert_eq!(wait_state(&env).await, ("approval".into(), false));
    let request = env.head().await.unwrap().requests[0].id.clone();
    let request_body =
        DecisionRequest { decision: "approve".to_owned(), reason: None, value: None };
    let approver = Decider::User {
        tenant: super::test_env::owner().tenant,
        user: super::test_env::owner().user,
        roles: Vec::new(),
    };
    decide(&services, &TestEnv::key(), request.as_str(), request_body, &approver).await.unwrap();
    assert_eq!(wait_state(&env).await, ("nudge".into(), false));
    drop_delivery_at(&mut env, "tool.before").await;
    assert_eq!(wait_state(&env).await, ("tools".into(), true));
    tokio::time::sleep(Duration::from_mins(5)).await;
    let view = why_view(&env).await;
    assert!(view.why.ends_with("That is overdue."), "{}", view.why);
    assert!(view.unblock[0].contains("rebuild-queue"), "{:?}", view.unblock);
    handle(&services, &TestEnv::nudge()).await.unwrap();
    assert_eq!(wait_state(&env).await, ("outcome".into(), false), "a write had started");
    env.run_until_idle().await;
    assert_eq!(wait_state(&env).await, ("nothing".into(), false));
}

#[tokio::test(start_paused = true)]
async fn why_names_retry_and_rate_limit() {
    let (env, services) = new_env(replies_hello).await;
    *env.model.failures_left.lock().unwrap() = 1;
    handle(&services, &TestEnv::nudge()).await.unwrap();
    assert_eq!(wait_state(&env).await, ("retry".into(), false));

    let rate = Rate { count: 1, period: Duration::from_mins(1) };
    let rates = RateLimits { requests: None, model_calls: Some(rate) };
    let mut env = TestEnv::with_script(1, calls_look);
    env.budget_limits = Arc::new(SpendingLimits::new(&Budgets::default(), &rates));
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    for _ in 0..2 {
        handle(&services, &TestEnv::nudge()).await.unwrap();
    }
    assert_eq!(wait_state(&env).await, ("rate".into(), false));
    tokio::time::sleep(Duration::from_mins(2)).await;
    env.run_until_idle().await;
    assert_eq!(env.head().await.unwrap().deferral(), None);
}

#[tokio::test(start_paused = true)]
async fn why_names_a_suspect_step_and_its_next_try() {
    let (mut env, services) = new_env(replies_hello).await;
    for _ in 0..2 {
        drop_delivery_at(&mut env, "model.before").await;
        tokio::time::sleep(Duration::from_secs(66)).await;
    }
    handle(&services, &TestEnv::nudge()).await.unwrap();
    let view = why_view(&env).await;
    assert_eq!(serde_json::to_value(view.waits_for).unwrap(), "back_off");
    let retried_at = env.clock.now().plus(Duration::from_secs(5));
    assert_eq!(
        view.why,
        format!(
            "The worker process died twice while it ran this step: the model response is pending; it is retried in isolation at {retried_at}."
        )
    );
    assert_eq!(view.due, Some(retried_at));
}

#[tokio::test(start_paused = true)]
async fn why_reports_leases_of_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    let mut env = TestEnv::with_script(1, calls_look);
    env.use_embedded_store(DeterministicStore::open(folder.path().to_owned()));
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    handle(&services, &TestEnv::nudge()).await.unwrap();
    drop(services);
    // The second turn applies no input, so no commit contains its lease.
    let pause = Arc::new(PauseFailPoint::new("model.before"));
    let worker = env.new_worker(pause.clone() as Arc<dyn FailPoints>);
    let nudge = TestEnv::nudge();
    let delivery = handle(&worker, &nudge);
    tokio::pin!(delivery);
    tokio::select! {
        outcome = &mut delivery => panic!("{outcome:?}"),
        () = pause.reached.notified() => {}
    }
    assert!(env.head().await.unwrap().lease.is_none());
    assert_eq!(wait_state(&env).await, ("model".into(), true));
    pause.resume.notify_one();
    delivery.await.unwrap();
    assert_eq!(wait_state(&env).await, ("nothing".into(), false));
}

#[tokio::test(start_paused = true)]
async fn log_names_incomplete_response_of_a_prompt() {
    let scripts: [(Script, bool); 2] = [(replies_nothing, true), (replies_hello, false)];
    for (script, is_incomplete) in scripts {
        let log = CapturedLog::start();
        let (mut env, _services) = new_env(script).await;
        env.run_until_idle().await;
        let text = log.text();
        let line = text.lines().find(|line| line.contains("prompt completed")).unwrap();
        assert_eq!(line.contains("incomplete="), is_incomplete, "{line}");
        assert_eq!(line.contains(r#"incomplete="empty""#), is_incomplete, "{line}");
    }
}
