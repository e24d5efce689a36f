//! Budgets and the usage ledger: usage is counted exactly once, and an exhausted budget requests an
//! approval instead of failing the prompt.

mod alerts;
mod approvals;
mod cached_ledger;
mod deletion;
mod ledger_outage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use self::ledger_outage::LedgerOutage;
use super::test_env::{
    DeterministicStore, PauseFailPoint, Script, TestEnv, call, kill_at, owner, text,
    usual_store_faults,
};
use crate::delivery::handle;
use turnwheel_commands::decide::{DecisionRequest, decide};
use turnwheel_commands::delete::delete_conversation;
use turnwheel_conversation::budget::Metering;
use turnwheel_conversation::entry::{EntryBody, PromptState, PromptStop};
use turnwheel_conversation::head::{Head, State};
use turnwheel_conversation::request::RequestKind;
use turnwheel_conversation::usage::{Cost, Usage, UsageTotals};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::{ConversationKey, TenantId, UserId};
use turnwheel_platform::settings::budgets::{Budgets, ConfiguredLimit, ConfiguredLimits};
use turnwheel_platform::settings::rate_limits::{Rate, RateLimits};
use turnwheel_queries::usage::{DayRange, UsageGrouping, UsageReport, UsageScope, report_usage};
use turnwheel_record::contract::Decider;
use turnwheel_record::documents;
use turnwheel_record::ledger::account::Account;
use turnwheel_record::ledger::spending_limits::SpendingLimits;
use turnwheel_record::load::head as head_of;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _};
use turnwheel_storage::store::interceptor::InterceptedStore;
use turnwheel_storage::store::memory::StoreFaults;
use turnwheel_storage::store::{Freshness, Partition};

const CALL_TOKENS: u64 = 100;

fn replies_hello(_results: usize, _input: &str) -> Vec<Value> {
    vec![text("hello")]
}

fn calls_look_then_replies(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "look", 0)] } else { vec![text("done")] }
}

/// Each response has 100 tokens and costs a cent.
fn new_env(script: Script) -> TestEnv {
    let env = TestEnv::with_script(1, script);
    *env.model.usage.lock().unwrap() = Usage {
        input: 60,
        output: 40,
        total_tokens: CALL_TOKENS,
        cost: Cost { total: 0.01, ..Cost::default() },
        ..Usage::default()
    };
    env
}

fn token_bounds(count: u64) -> ConfiguredLimits {
    let bound = ConfiguredLimit { tokens: Some(count), usd: None };
    ConfiguredLimits { total: Some(bound), ..ConfiguredLimits::default() }
}

/// Limits each user to `count` tokens in total.
pub(super) fn limit_users(count: u64) -> Arc<SpendingLimits> {
    let budgets = Budgets { user: token_bounds(count), ..Budgets::default() };
    Arc::new(SpendingLimits::new(&budgets, &RateLimits::default()))
}

pub(super) async fn read_account(env: &TestEnv, id: &str) -> Account {
    let partition = Partition::Scope(TenantId::new("t"));
    let stored = env.worker_store.read(&partition, id, Freshness::Latest).await.unwrap();
    stored.map_or_else(Account::default, |stored| documents::read(&stored.document).unwrap())
}

async fn usage_report(env: &TestEnv, by: UsageGrouping) -> UsageReport {
    let whose = UsageScope { tenant: TenantId::new("t"), user: None };
    let now = env.clock.now();
    let days = DayRange::parse(None, None, now).unwrap();
    report_usage(&*env.worker_store, &whose, by, days).await.unwrap()
}

async fn ledger_tokens(env: &TestEnv) -> u64 {
    usage_report(env, UsageGrouping::Tenant)
        .await
        .items
        .iter()
        .map(|item| item.usage.total_tokens)
        .sum()
}

/// Passes `minutes` of virtual time, with deliveries and sweeps, without decisions.
pub(super) async fn pass_minutes(env: &mut TestEnv, minutes: u32) {
    for _ in 0..minutes {
        while env.deliver().await {}
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            while env.deliver().await {}
        }
        env.run_sweep().await;
    }
    while env.deliver().await {}
}

async fn decide_first_request(
    services: &Services,
    key: &ConversationKey,
    decision: &str,
    value: Option<Value>,
) {
    let (head, _) = head_of(services, key).await.unwrap();
    let request = head.requests.first().expect("no request is open").id.clone();
    let request_body = DecisionRequest {
        decision: decision.to_owned(),
        reason: None,
        value: value.map(|value| RawJson::from_value(&value)),
    };
    let approver =
        Decider::User { tenant: TenantId::new("t"), user: UserId::new("u"), roles: Vec::new() };
    decide(services, key, request.as_str(), request_body, &approver).await.unwrap();
}

fn waits_for_budget(head: &Head) -> bool {
    head.state() == State::WaitingForApproval
        && head.requests.iter().all(|request| request.kind == RequestKind::Budget)
}

#[tokio::test(start_paused = true)]
async fn usage_is_posted_once_in_the_background() {
    let mut env = new_env(calls_look_then_replies);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    assert_eq!(
        usage_report(&env, UsageGrouping::Tenant).await.items.len(),
        0,
        "usage is posted later"
    );
    let due = env.head().await.unwrap().due.unwrap();
    assert!(due > env.clock.now(), "the sweep finds it later");
    pass_minutes(&mut env, 13).await;
    let head = env.head().await.unwrap();
    assert_eq!((head.metering.settle_at, head.due), (None, None), "no pending work is left");
    for by in [UsageGrouping::Tenant, UsageGrouping::User, UsageGrouping::Agent, UsageGrouping::Day]
    {
        let report = usage_report(&env, by).await;
        let [item] = report.items.as_slice() else { panic!("{report:?}") };
        let expected = match by {
            UsageGrouping::Tenant => "t",
            UsageGrouping::User => "u",
            UsageGrouping::Agent => "clerk",
            UsageGrouping::Day => "2027-01-15",
        };
        assert_eq!(
            (item.name.as_str(), item.model_calls, item.usage.total_tokens),
            (expected, 2, 2 * CALL_TOKENS)
        );
        assert!((item.usage.cost.total - 0.02).abs() < 1e-9);
    }
    env.queue_prompt(&services, &TestEnv::key(), "again").await.unwrap();
    pass_minutes(&mut env, 13).await;
    assert_eq!(ledger_tokens(&env).await, 4 * CALL_TOKENS);
}

/// Checks that ledger and conversations agree once everything is idle.
pub(super) async fn check_ledger(env: &TestEnv, keys: &[ConversationKey], context: &str) {
    let mut usage = UsageTotals::default();
    for key in keys {
        let head = env.head_of(key).await.unwrap();
        assert_eq!(head.reservation, None, "{context}");
        assert!(
            head.metering.days.is_empty() && head.metering.settle_at.is_none(),
            "{context}: {head:?}"
        );
        usage = usage.plus(head.metering.spent);
    }
    let report = usage_report(env, UsageGrouping::Tenant).await;
    let ledger_tokens: u64 = report.items.iter().map(|item| item.usage.total_tokens).sum();
    let calls: u64 = report.items.iter().map(|item| item.model_calls).sum();
    assert_eq!((calls, ledger_tokens), (usage.calls, usage.total_tokens), "{context}");
    for id in ["account-user-u", "account-tenant", "account-agent-clerk"] {
        let account = read_account(env, id).await;
        assert_eq!(
            account.reserved,
            UsageTotals::default(),
            "{context}: {id} has a stale reservation"
        );
        assert_eq!(account.total, usage, "{context}: {id}");
    }
}

pub(super) fn limit_everything() -> Arc<SpendingLimits> {
    let budgets = Budgets {
        user: token_bounds(1_000_000),
        tenant: token_bounds(1_000_000),
        agents: vec![("clerk".to_owned(), token_bounds(1_000_000))],
        ..Budgets::default()
    };
    Arc::new(SpendingLimits::new(&budgets, &RateLimits::default()))
}

#[tokio::test(start_paused = true)]
async fn ledger_crash_neither_loses_nor_duplicates_usage() {
    let fail_points = [
        "pending-work.after",
        "reservation.before",
        "reservation.after",
        "model.before",
        "model.after",
        "response.before",
        "response.after",
        "result.after",
        "settle.before",
        "settle.after",
        "renew.before",
        "renew.after",
        "release.before",
    ];
    for fail_point in fail_points {
        let mut env = new_env(calls_look_then_replies);
        env.budget_limits = limit_everything();
        let client = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&client).await;
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let victim = env.new_worker(pause.clone());
        kill_at(victim, &pause).await;
        env.run_until_idle().await;
        pass_minutes(&mut env, 15).await;
        let head = env.head().await.unwrap();
        assert_eq!(head.prompts.last().unwrap().state, PromptState::Completed, "{fail_point}");
        check_ledger(&env, &[TestEnv::key()], fail_point).await;
        let answers = u64::from(*env.model.calls.lock().unwrap());
        assert!(
            head.metering.spent.calls >= answers,
            "{fail_point}: a call is missing in the ledger"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn take_over_settles_reservation_at_its_estimate() {
    let mut env = new_env(replies_hello);
    env.budget_limits = limit_everything();
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let pause = Arc::new(PauseFailPoint::new("model.after"));
    let victim = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    pause.kill(handle(&victim, &nudge)).await;
    let reserved =
        env.head().await.unwrap().reservation.expect("the call has no reservation").estimate;
    assert_eq!(read_account(&env, "account-user-u").await.reserved, reserved);
    assert!(
        reserved.total_tokens > CALL_TOKENS,
        "the estimate covers the longest response: {reserved:?}"
    );
    env.run_until_idle().await;
    pass_minutes(&mut env, 12).await;
    let head = env.head().await.unwrap();
    assert_eq!(head.metering.lost, reserved);
    assert_eq!(head.usage.total_tokens, CALL_TOKENS, "only committed responses count");
    assert_eq!(head.metering.spent.total_tokens, CALL_TOKENS + reserved.total_tokens);
    let lost = env.entries().await.into_iter().find_map(|entry| match entry.body {
        EntryBody::LostCall(lost) => Some(lost.estimate.total_tokens),
        _ => None,
    });
    assert_eq!(lost, Some(reserved.total_tokens), "the lost call is recorded");
    check_ledger(&env, &[TestEnv::key()], "taken over").await;
}

#[tokio::test(start_paused = true)]
async fn ledger_stays_consistent_with_injected_faults() {
    for seed in 1..=25 {
        let mut env = TestEnv::new(seed);
        *env.model.usage.lock().unwrap() = Usage { total_tokens: 7, ..Usage::default() };
        env.budget_limits = limit_everything();
        env.store.set_faults(usual_store_faults());
        env.crash_percent = 4;
        env.conversations = ["c", "d", "e"].map(|id| owner().conversation_key(id)).to_vec();
        let services = env.new_worker(Arc::new(NoFailPoints));
        for key in env.conversations.clone() {
            env.send_prompt_to(&services, key.conversation_id.as_str(), "go").await;
        }
        env.run_until_idle().await;
        env.store.set_faults(StoreFaults::default());
        env.crash_percent = 0;
        pass_minutes(&mut env, 15).await;
        check_ledger(&env, &env.conversations, &format!("seed {seed}")).await;
    }
}

/// Creates fifty conversations of one user, each with a prompt.
async fn create_fifty_prompts(env: &mut TestEnv) -> (Vec<ConversationKey>, Services) {
    let services = env.new_worker(Arc::new(NoFailPoints));
    let keys: Vec<ConversationKey> =
        (0..50).map(|number| owner().conversation_key(&format!("c{number}"))).collect();
    for key in &keys {
        env.send_prompt_to(&services, key.conversation_id.as_str(), "go").await;
    }
    (keys, services)
}

/// Runs one delivery per conversation concurrently.
async fn deliver_all_concurrently(env: &mut TestEnv, keys: &[ConversationKey]) {
    let workers: Vec<Services> =
        keys.iter().map(|_| env.new_worker(Arc::new(NoFailPoints))).collect();
    env.queue.drop_queue(queue::TURNS);
    let deliveries = keys.iter().zip(&workers).map(|(key, services)| async move {
        let nudge = Nudge::for_conversation(key.clone(), None);
        handle(services, &nudge).await
    });
    for handled in join_all(deliveries).await {
        handled.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn fifty_concurrent_prompts_overspend_by_one_call() {
    const LIMIT: u64 = 1_050;
    let mut env = new_env(replies_hello);
    env.budget_limits = limit_users(LIMIT);
    let (keys, services) = create_fifty_prompts(&mut env).await;
    for _ in 0..40 {
        deliver_all_concurrently(&mut env, &keys).await;
        let user_account = read_account(&env, "account-user-u").await;
        assert!(user_account.total.total_tokens < LIMIT + CALL_TOKENS, "{user_account:?}");
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
    let account_of_user = read_account(&env, "account-user-u").await;
    assert_eq!(account_of_user.total.total_tokens, 1_100, "the limit is used up, plus one call");
    assert_eq!(*env.model.calls.lock().unwrap(), 11);
    let mut waiting = Vec::new();
    for key in &keys {
        let head = env.head_of(key).await.unwrap();
        if waits_for_budget(&head) {
            let request = &head.requests[0];
            assert_eq!(request.reason, "The budget of the user is used up: 1100 of 1050 tokens.");
            assert_eq!(head.min_reader, 2, "an older worker would continue");
            waiting.push(key.clone());
        } else {
            assert_eq!(head.prompts[0].state, PromptState::Completed);
        }
    }
    assert_eq!(waiting.len(), 39, "each has its own approval request");
    // One request is decided; the other prompts continue because the limit has room.
    decide_first_request(&services, &waiting[0], "approve", Some(json!(100_000))).await;
    env.conversations.clone_from(&keys);
    pass_minutes(&mut env, 25).await;
    for key in &keys {
        let head = env.head_of(key).await.unwrap();
        assert_eq!(head.prompts[0].stop_reason, Some(PromptStop::End), "{key}");
        assert_eq!(head.min_reader, 1, "{key}");
    }
    assert_eq!(*env.model.calls.lock().unwrap(), 50);
    assert_eq!(read_account(&env, "account-user-u").await.total.total_tokens, 5_000);
    let decided =
        env.entries_of(&waiting[1]).await.into_iter().find_map(|entry| match entry.body {
            EntryBody::Decision(decided) => Some(decided.decision.decided_by.clone()),
            _ => None,
        });
    assert_eq!(decided.as_deref(), Some("budget"), "the decision of the budget is recorded");
}

#[tokio::test(start_paused = true)]
async fn rate_limited_model_call_waits_without_lease() {
    let mut env = new_env(calls_look_then_replies);
    let rate = Rate { count: 1, period: Duration::from_mins(1) };
    let rates = RateLimits { requests: None, model_calls: Some(rate) };
    env.budget_limits = Arc::new(SpendingLimits::new(&Budgets::default(), &rates));
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let nudge = TestEnv::nudge();
    for _ in 0..3 {
        handle(&services, &nudge).await.unwrap();
    }
    let head = env.head().await.unwrap();
    assert_eq!(*env.model.calls.lock().unwrap(), 1);
    assert_eq!((head.lease.is_none(), head.leases_without_progress), (true, 0));
    let left = env.clock.now().until(head.due.unwrap());
    assert!(left > Duration::from_secs(50) && left <= Duration::from_mins(1), "{left:?}");
    pass_minutes(&mut env, 2).await;
    assert_eq!(env.head().await.unwrap().prompts[0].stop_reason, Some(PromptStop::End));
}

#[tokio::test(start_paused = true)]
async fn model_calls_wait_while_ledger_is_unavailable() {
    let mut env = new_env(replies_hello);
    let outage =
        Arc::new(InterceptedStore::new(env.store.clone(), LedgerOutage(AtomicBool::new(true))));
    env.worker_store = outage.clone();
    env.budget_limits = limit_everything();
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    pass_minutes(&mut env, 20).await;
    let head = env.head().await.unwrap();
    assert_eq!(
        (*env.model.calls.lock().unwrap(), head.leases_without_progress),
        (0, 0),
        "the prompt waits"
    );
    assert!(head.reservation.is_some() && head.due.is_some());
    outage.interceptor.0.store(false, Ordering::SeqCst);
    pass_minutes(&mut env, 14).await;
    let head = env.head().await.unwrap();
    assert_eq!(head.prompts[0].stop_reason, Some(PromptStop::End));
    assert_eq!(head.metering.lost, UsageTotals::default(), "no call was lost");
    check_ledger(&env, &[TestEnv::key()], "shut").await;
}

/// The lease is outside the head, so the retry commits nothing before it checks the budget.
#[tokio::test(start_paused = true)]
async fn deferred_call_beside_prompt_is_due_at_retry() {
    let folder = tempfile::tempdir().unwrap();
    let store = DeterministicStore::open(folder.path().to_owned());
    let mut env = new_env(replies_hello);
    env.worker_store = Arc::new(InterceptedStore::new(store, LedgerOutage(AtomicBool::new(true))));
    env.budget_limits = limit_everything();
    let services = env.new_worker(Arc::new(NoFailPoints));
    let nudge = TestEnv::nudge();
    env.send_prompt(&services).await;
    handle(&services, &nudge).await.unwrap();
    env.queue_prompt(&services, &TestEnv::key(), "next").await.unwrap();
    handle(&services, &nudge).await.unwrap();
    for _ in 0..2 {
        let head = env.head().await.unwrap();
        assert!(head.reservation.is_some() && head.inbox_count == Some(1), "both wait: {head:?}");
        assert!(head.due.is_some_and(|due| due > env.clock.now()), "{:?}", head.due);
        tokio::time::sleep(Duration::from_secs(15)).await;
        handle(&services, &nudge).await.unwrap();
    }
    let due = env.head().await.unwrap().due;
    assert!(due.is_some_and(|due| due > env.clock.now()), "{due:?}");
}

#[tokio::test(start_paused = true)]
async fn usage_of_deleted_conversation_stays_in_ledger() {
    let mut env = new_env(replies_hello);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    delete_conversation(&services, &TestEnv::key()).await.unwrap();
    assert_eq!(ledger_tokens(&env).await, CALL_TOKENS);
    let head = env.head().await.unwrap();
    assert_eq!(head.metering, Metering { spent: head.metering.spent, ..Metering::default() });
    pass_minutes(&mut env, 3).await;
    assert_eq!(ledger_tokens(&env).await, CALL_TOKENS);
    assert_eq!(env.queue.length(queue::TURNS).await.unwrap(), 0);
}
