//! Budget alerts: each threshold is reported once, wherever a worker dies between the ledger and
//! the conversation.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::super::store_requests;
use super::approvals::set_budget;
use super::*;
use turnwheel_commands::delete::TOMBSTONE_RETENTION;
use turnwheel_conversation::notification::Notification;
use turnwheel_platform::telemetry::testing::Recorder;
use turnwheel_record::notifications::sender::{NotificationSender, SendOutcome};
use turnwheel_storage::store::{ConversationStore as _, DocumentKind, Selection};
use turnwheel_test_support::captured_log::CapturedLog;

#[derive(Debug)]
struct AcceptingSender;

#[async_trait]
impl NotificationSender for AcceptingSender {
    async fn send(&self, _key: &ConversationKey, _notice: &Notification) -> SendOutcome {
        SendOutcome::Accepted
    }
}

fn env_with_webhook(script: Script) -> TestEnv {
    let mut env = new_env(script);
    env.notifier = Some(Arc::new(AcceptingSender));
    env
}

fn limit_users_by_bounds(user: ConfiguredLimits) -> Arc<SpendingLimits> {
    let budgets = Budgets { user, ..Budgets::default() };
    Arc::new(SpendingLimits::new(&budgets, &RateLimits::default()))
}

/// Data of the alerts of a conversation, oldest first.
async fn read_alerts(env: &TestEnv, key: &ConversationKey) -> Vec<Value> {
    let partition = Partition::Conversation(key.clone());
    let all = Selection::all(DocumentKind::Notification);
    let stored = env.store.select(&partition, &all, Freshness::Latest).await.unwrap();
    let notices = stored.iter().map(|it| documents::read::<Notification>(&it.document).unwrap());
    let mut alerts: Vec<Notification> = notices.filter(|it| it.kind == "budget.alert").collect();
    alerts.sort_by_key(|alert| (alert.at, alert.id.clone()));
    alerts.iter().map(|alert| alert.data.to_value()).collect()
}

/// `user day usd 50`.
fn summarise_alert(alert: &Value) -> String {
    let name = |name: &str| alert[name].as_str().map(|text| format!("{text} "));
    let names = ["level", "period", "unit"].map(|member| name(member).unwrap_or_default());
    format!("{}{}", names.concat(), alert["percent"])
}

async fn alert_summaries(env: &TestEnv) -> Vec<String> {
    read_alerts(env, &TestEnv::key()).await.iter().map(summarise_alert).collect()
}

/// Checks that each account reported its highest threshold, and no threshold twice. Returns the
/// number of alerts.
async fn check_alerts(env: &TestEnv, limits: &[(&str, u64)], at: &str) -> usize {
    let mut reported: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for key in &env.conversations {
        for alert in read_alerts(env, key).await {
            let percent = alert["percent"].as_u64().unwrap();
            reported.entry(alert["level"].as_str().unwrap().to_owned()).or_default().push(percent);
        }
    }
    for (level, limit) in limits {
        let id = if *level == "user" { "account-user-u" } else { "account-tenant" };
        let used = read_account(env, id).await.total.total_tokens;
        let expected = [100, 80, 50].into_iter().find(|percent| used * 100 >= limit * percent);
        let percents = reported.entry((*level).to_owned()).or_default();
        percents.sort_unstable();
        assert_eq!(percents.last().copied(), expected, "{at}: {level} {used} of {limit}");
        assert!(percents.is_sorted_by(|one, next| one < next), "{at}: {level} {percents:?}");
    }
    reported.values().map(Vec::len).sum()
}

#[tokio::test(start_paused = true)]
async fn prompt_and_conversation_report_each_threshold_once() {
    let mut env = env_with_webhook(calls_look_then_replies);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let budget = json!({"prompt": {"tokens": 200}, "conversation": {"tokens": 400, "usd": 0.05}});
    set_budget(&services, budget).await;
    env.run_until_idle().await;
    let first = read_alerts(&env, &TestEnv::key()).await.remove(0);
    let prompt = env.head().await.unwrap().prompts[0].id.clone();
    let expected = json!({
        "conversationId": "c", "tenantId": "t", "userId": "u", "agent": "clerk", "promptId": prompt,
        "level": "prompt", "unit": "tokens", "percent": 50, "used": 100, "limit": 200,
    });
    assert_eq!(first, expected);
    env.queue_prompt(&services, &TestEnv::key(), "again").await.unwrap();
    env.run_until_idle().await;
    let expected = [
        "prompt tokens 50",
        "prompt tokens 100",
        "conversation tokens 50",
        "prompt tokens 50",
        "conversation usd 50",
        "prompt tokens 100",
        "conversation usd 80",
        "conversation tokens 100",
    ];
    assert_eq!(alert_summaries(&env).await, expected);
}

#[tokio::test(start_paused = true)]
async fn account_alert_survives_a_crash_at_every_boundary() {
    let fail_points = [
        "reservation.before",
        "reservation.after",
        "model.before",
        "model.after",
        "response.before",
        "response.after",
        "settle.before",
        "settle.after",
        "renew.before",
        "renew.after",
    ];
    for fail_point in fail_points {
        let mut env = env_with_webhook(replies_hello);
        let client = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&client).await;
        env.run_until_idle().await;
        // The next post to the ledger includes the cost of the first prompt, and reaches a
        // threshold.
        let budgets =
            Budgets { user: token_bounds(200), tenant: token_bounds(125), ..Budgets::default() };
        env.budget_limits = Arc::new(SpendingLimits::new(&budgets, &RateLimits::default()));
        let client = env.new_worker(Arc::new(NoFailPoints));
        env.queue_prompt(&client, &TestEnv::key(), "again").await.unwrap();
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let victim = env.new_worker(pause.clone());
        kill_at(victim, &pause).await;
        pass_minutes(&mut env, 15).await;
        let count = check_alerts(&env, &[("user", 200), ("tenant", 125)], fail_point).await;
        assert!(count >= 2, "{fail_point}: {count}");
    }
}

#[tokio::test(start_paused = true)]
async fn store_faults_and_crashes_repeat_no_alert() {
    let mut count = 0;
    for seed in 1..=20 {
        let mut env = TestEnv::new(seed);
        env.notifier = Some(Arc::new(AcceptingSender));
        *env.model.usage.lock().unwrap() = Usage { total_tokens: CALL_TOKENS, ..Usage::default() };
        let budgets =
            Budgets { user: token_bounds(1_500), tenant: token_bounds(900), ..Budgets::default() };
        env.budget_limits = Arc::new(SpendingLimits::new(&budgets, &RateLimits::default()));
        env.conversations = ["c", "d", "e"].map(|id| owner().conversation_key(id)).to_vec();
        let services = env.new_worker(Arc::new(NoFailPoints));
        for key in env.conversations.clone() {
            env.send_prompt_to(&services, key.conversation_id.as_str(), "go").await;
        }
        env.store.set_faults(usual_store_faults());
        env.crash_percent = 2;
        pass_minutes(&mut env, 5).await;
        env.store.set_faults(StoreFaults::default());
        env.crash_percent = 0;
        pass_minutes(&mut env, 15).await;
        let limits = [("user", 1_500), ("tenant", 900)];
        count += check_alerts(&env, &limits, &format!("seed {seed}")).await;
    }
    assert!(count > 20, "{count}");
}

#[tokio::test(start_paused = true)]
async fn new_day_reports_its_thresholds_anew() {
    let mut env = env_with_webhook(replies_hello);
    let day = Some(ConfiguredLimit { tokens: Some(200), usd: None });
    env.budget_limits =
        limit_users_by_bounds(ConfiguredLimits { day, ..ConfiguredLimits::default() });
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    pass_minutes(&mut env, 1).await;
    tokio::time::sleep(Duration::from_hours(24)).await;
    env.queue_prompt(&services, &TestEnv::key(), "again").await.unwrap();
    pass_minutes(&mut env, 1).await;
    let alerts = read_alerts(&env, &TestEnv::key()).await;
    let dates: Vec<_> =
        alerts.iter().map(|alert| (summarise_alert(alert), alert["date"].clone())).collect();
    let expected =
        ["2027-01-15", "2027-01-16"].map(|date| ("user day tokens 50".to_owned(), json!(date)));
    assert_eq!(dates, expected);
}

#[tokio::test(start_paused = true)]
async fn limit_increase_reports_later_account_thresholds() {
    let mut env = env_with_webhook(calls_look_then_replies);
    env.budget_limits = limit_users(100);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    pass_minutes(&mut env, 1).await;
    assert!(waits_for_budget(&env.head().await.unwrap()));
    assert_eq!(alert_summaries(&env).await, ["user total tokens 100"]);
    decide_first_request(&services, &TestEnv::key(), "approve", Some(json!({"tokens": 250}))).await;
    pass_minutes(&mut env, 1).await;
    let alerts = read_alerts(&env, &TestEnv::key()).await;
    let figures: Vec<_> =
        alerts.iter().map(|it| (summarise_alert(it), &it["used"], &it["limit"])).collect();
    let expected = [("100", json!(100), json!(100)), ("80", json!(200), json!(250))];
    let expected: Vec<_> = expected
        .iter()
        .map(|(percent, used, limit)| (format!("user total tokens {percent}"), used, limit))
        .collect();
    assert_eq!(figures, expected);
}

#[tokio::test(start_paused = true)]
async fn deletion_reports_the_thresholds_that_it_settles() {
    let mut env = env_with_webhook(replies_hello);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    env.run_until_idle().await;
    env.budget_limits = limit_users(200);
    let client = env.new_worker(Arc::new(NoFailPoints));
    delete_conversation(&client, &TestEnv::key()).await.unwrap();
    // A wake-up message that was sent before the deletion.
    handle(&client, &TestEnv::nudge()).await.unwrap();
    assert_eq!(alert_summaries(&env).await, ["user total tokens 50"]);
    tokio::time::sleep(TOMBSTONE_RETENTION).await;
    pass_minutes(&mut env, 2).await;
    assert_eq!((alert_summaries(&env).await.len(), env.head().await.is_none()), (0, true));
}

#[tokio::test(start_paused = true)]
async fn threshold_costs_no_request_of_its_own() {
    let mut deliveries = Vec::new();
    for limit in [1_000_000, 200] {
        let (mut env, _, counting) =
            store_requests::new_env(store_requests::calls_look_twice).await;
        env.model.usage.lock().unwrap().total_tokens = CALL_TOKENS;
        env.notifier = Some(Arc::new(AcceptingSender));
        env.budget_limits = limit_users(limit);
        let services = env.new_worker(Arc::new(NoFailPoints));
        store_requests::handle_next_nudge(&env, &services, &counting).await;
        deliveries.push(store_requests::handle_next_nudge(&env, &services, &counting).await);
    }
    assert!(deliveries[1].contains("commit, notice"), "{}", deliveries[1]);
    assert_eq!(deliveries[0], deliveries[1].replace(", notice", ""));
}

#[tokio::test(start_paused = true)]
async fn alert_is_logged_and_counted_without_a_webhook() {
    let recorder = Recorder::new();
    let mut env = new_env(replies_hello);
    env.telemetry = recorder.telemetry();
    let usd = Some(ConfiguredLimit { tokens: None, usd: Some(0.0125) });
    env.budget_limits =
        limit_users_by_bounds(ConfiguredLimits { month: usd, ..ConfiguredLimits::default() });
    let log = CapturedLog::start();
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    pass_minutes(&mut env, 1).await;
    let text = log.text();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("budget alert")).collect();
    let fields = r#"budget alert conversation.id=c level="user" subject=u period="month" date="2027-01" percent=80 used=0.01 limit=0.0125 unit="usd""#;
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(line.contains("WARN") && line.contains(fields), "{line}");
    let counted = recorder.metrics().into_iter().filter(|(name, _)| name.contains("budget"));
    let name = "turnwheel.budget.alerts{turnwheel.budget.level=user,turnwheel.budget.percent=80,turnwheel.budget.period=month}";
    assert_eq!(counted.collect::<Vec<_>>(), [(name.to_owned(), 1.0)]);
    assert_eq!(
        alert_summaries(&env).await.len(),
        0,
        "no notifications are written without a webhook"
    );
}
