//! Summaries in the usage ledger: each call is reserved and counted once, and its reservation is
//! released.

use super::super::budgets::{
    check_ledger, limit_everything, limit_users, pass_minutes, read_account,
};
use super::super::test_env::kill_at;
use super::*;
use turnwheel_conversation::usage::UsageTotals;
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::settings::budgets::Budgets;
use turnwheel_platform::settings::rate_limits::{Rate, RateLimits};

#[tokio::test(start_paused = true)]
async fn summary_usage_is_posted_once_without_stale_reservations() {
    let money = limit_everything();
    let (mut env, services, model) =
        new_env_with_budgets(SmallWindowModel::new(WINDOW), money, "begin").await;
    handle_until_idle(&env, &services).await;
    for number in 1..=40 {
        let input = format!("look once more, this is number {number}: {}", "words ".repeat(60));
        send_and_settle(&env, &services, &input).await;
        assert_eq!(env.head().await.unwrap().reservation, None, "{number}");
    }
    assert!(find_compactions(&env.entries().await).len() >= 2);
    let head = env.head().await.unwrap();
    let asked = model.requests.lock().unwrap().len();
    assert_eq!(head.metering.spent.calls, asked as u64, "each request counts as one call");
    assert_eq!(head.metering.spent.total_tokens, head.usage.total_tokens);
    pass_minutes(&mut env, 13).await;
    check_ledger(&env, &[TestEnv::key()], "summed up").await;
}

/// Kills a worker at the fail point; other workers take over, and each call must be in the ledger.
async fn crash_and_check_ledger(
    mut env: TestEnv,
    model: &SmallWindowModel,
    fail_point: &'static str,
) {
    let pause = Arc::new(PauseFailPoint::new(fail_point));
    let victim = env.new_worker(pause.clone());
    kill_at(victim, &pause).await;
    let reservation = env.head().await.unwrap().reservation;
    tokio::time::sleep(Duration::from_secs(66)).await;
    env.run_until_idle().await;
    pass_minutes(&mut env, 15).await;
    check_ledger(&env, &[TestEnv::key()], fail_point).await;
    assert_eq!(find_compactions(&env.entries().await).len(), 1, "{fail_point}");
    let head = env.head().await.unwrap();
    let asked = model.requests.lock().unwrap().len() as u64;
    assert!(head.metering.spent.calls >= asked, "{fail_point}: a call is missing in the ledger");
    if fail_point.starts_with("compaction") {
        assert_eq!(
            head.metering.lost,
            reservation.expect(fail_point).estimate,
            "a lost call counts with its estimate"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn crash_during_compaction_keeps_ledger_consistent() {
    let fail_points = [
        "pending-work.after",
        "reservation.before",
        "reservation.after",
        "compaction.before",
        "compaction.after",
        "summary.before",
        "summary.after",
        "model.after",
        "response.after",
        "settle.before",
        "settle.after",
        "release.before",
    ];
    for fail_point in fail_points {
        let money = limit_everything();
        let (env, _, model) =
            env_with_full_window_and_budgets(SmallWindowModel::new(WINDOW), money).await;
        crash_and_check_ledger(env, &model, fail_point).await;
    }
    for fail_point in fail_points {
        if fail_point.starts_with("model") || fail_point.starts_with("response") {
            continue;
        }
        let money = limit_everything();
        let (env, services, model) =
            new_env_with_budgets(SmallWindowModel::new(WINDOW), money, &long_text()).await;
        handle_until_idle(&env, &services).await;
        patch_compaction(&services, 1).await;
        let key = idempotency("by hand");
        compact(&services, &TestEnv::key(), CompactRequest::default(), &key).await.unwrap();
        crash_and_check_ledger(env, &model, fail_point).await;
    }
}

#[tokio::test(start_paused = true)]
async fn summary_without_model_call_reserves_nothing() {
    let own = SummaryOverride::Summary { summary: "mine".to_owned(), details: None };
    for decision in [SummaryOverride::Cancel, own] {
        let money = limit_everything();
        let (env, mut services, model) =
            env_with_full_window_and_budgets(SmallWindowModel::new(WINDOW), money).await;
        services.extensions = vec![Arc::new(CompactionHook { decision, calls: Mutex::default() })];
        handle_until_idle(&env, &services).await;
        assert_eq!(model.summary_count(), 0);
        let head = env.head().await.unwrap();
        assert_eq!(head.reservation, None);
        let asked = model.requests.lock().unwrap().len() as u64;
        assert_eq!(head.metering.spent.calls, asked, "only responses are counted");
        let account = read_account(&env, "account-user-u").await;
        assert_eq!(
            (account.reserved, account.total),
            (UsageTotals::default(), head.metering.spent)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn model_call_after_summary_has_own_rate_check() {
    let (env, mut services, model) =
        env_with_full_window_and_budgets(SmallWindowModel::new(WINDOW), Arc::default()).await;
    let before = model.requests.lock().unwrap().len();
    let rate = Rate { count: 1, period: Duration::from_mins(1) };
    let rates = RateLimits { requests: None, model_calls: Some(rate) };
    services.spending_limits = Arc::new(SpendingLimits::new(&Budgets::default(), &rates));
    for _ in 0..3 {
        handle(&services, &TestEnv::nudge()).await.unwrap();
    }
    assert_eq!(model.summary_count(), 1);
    assert_eq!(model.requests.lock().unwrap().len(), before + 1, "the response waits for its rate");
    let head = env.head().await.unwrap();
    let left = env.clock.now().until(head.due.unwrap());
    assert!(left > Duration::from_secs(50) && left <= Duration::from_mins(1), "{left:?}");
    handle_until_idle(&env, &services).await;
    assert_eq!(env.head().await.unwrap().prompts.last().unwrap().state, PromptState::Completed);
}

#[tokio::test(start_paused = true)]
async fn summary_exhausts_budget_of_the_following_response() {
    let (env, mut services, model) =
        env_with_full_window_and_budgets(SmallWindowModel::new(WINDOW), Arc::default()).await;
    let head = env.head().await.unwrap();
    services.spending_limits = limit_users(head.metering.spent.total_tokens + 1);
    for _ in 0..3 {
        handle(&services, &TestEnv::nudge()).await.unwrap();
    }
    assert_eq!(model.summary_count(), 1);
    let head = env.head().await.unwrap();
    assert!(
        head.is_waiting_for_budget(),
        "the response is another call and requests an approval: {:?}",
        head.phase
    );
    let account = read_account(&env, "account-user-u").await;
    assert_eq!((account.reserved, account.total), (UsageTotals::default(), head.metering.spent));
}

#[tokio::test(start_paused = true)]
async fn summary_outside_prompt_is_counted_despite_exhausted_budget() {
    for is_by_hand in [true, false] {
        // In the second case the response fills the window, so that compaction runs when the prompt
        // ends.
        let input = if is_by_hand { long_text() } else { "begin with many words ".repeat(380) };
        let (mut env, services, model) =
            new_env_with_budgets(SmallWindowModel::new(WINDOW), limit_users(1), &input).await;
        patch_compaction(&services, 10).await;
        handle_until_idle(&env, &services).await;
        if is_by_hand {
            let done = request_compaction(&env, &services, "1").await;
            assert!(done["errorMessage"].is_null(), "{done}");
        }
        assert_eq!(find_compactions(&env.entries().await).len(), 1, "by hand: {is_by_hand}");
        let head = env.head().await.unwrap();
        assert_eq!((head.reservation, head.leases_without_progress), (None, 0));
        assert_eq!(head.metering.spent.calls, model.requests.lock().unwrap().len() as u64);
        assert_eq!(event_names(&env).await.last().unwrap(), "agent_settled");
        // The next prompt requests an approval of the budget.
        env.queue_prompt(&services, &TestEnv::key(), "and on").await.unwrap();
        pass_minutes(&mut env, 1).await;
        assert!(env.head().await.unwrap().is_waiting_for_budget());
        env.budget_limits = limit_everything();
        pass_minutes(&mut env, 16).await;
        let head = env.head().await.unwrap();
        assert_eq!(head.prompts.last().unwrap().state, PromptState::Completed);
        let account = read_account(&env, "account-user-u").await;
        assert_eq!(
            (account.reserved, account.total),
            (UsageTotals::default(), head.metering.spent)
        );
    }
}
