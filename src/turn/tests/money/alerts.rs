//! Budget alerts: each threshold is reported once, wherever a worker dies between the ledger and
//! the conversation.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

use async_trait::async_trait;

use super::super::economy;
use super::asking::set_budget;
use super::*;
use crate::agent::notice::Notice;
use crate::store::{ConversationStore as _, Kind, Selection};
use crate::telemetry::testing::Recorder;
use crate::turn::admission::delete::TOMBSTONE;
use crate::turn::notify::{Herald, Told};

#[derive(Debug)]
struct Receiver;

#[async_trait]
impl Herald for Receiver {
    async fn tell(&self, _key: &ConversationKey, _notice: &Notice) -> Told {
        Told::Taken
    }
}

fn notifying(script: Script) -> Bench {
    let mut bench = stage(script);
    bench.notifier = Some(Arc::new(Receiver));
    bench
}

fn of_users(user: Bounds) -> Arc<Money> {
    let budgets = Budgets { user, ..Budgets::default() };
    Arc::new(Money::new(&budgets, &RateLimits::default()))
}

/// Data of the alerts of a conversation, oldest first.
async fn alerts(bench: &Bench, key: &ConversationKey) -> Vec<Value> {
    let partition = Partition::Conversation(key.clone());
    let all = Selection::all(Kind::Notice);
    let stored = bench.store.select(&partition, &all, Freshness::Latest).await.unwrap();
    let notices = stored.iter().map(|it| record::read::<Notice>(&it.document).unwrap());
    let mut alerts: Vec<Notice> = notices.filter(|it| it.kind == "budget.alert").collect();
    alerts.sort_by_key(|alert| (alert.at, alert.id.clone()));
    alerts.iter().map(|alert| alert.data.value()).collect()
}

/// `user day usd 50`.
fn brief(alert: &Value) -> String {
    let name = |name: &str| alert[name].as_str().map(|text| format!("{text} "));
    let names = ["level", "period", "unit"].map(|member| name(member).unwrap_or_default());
    format!("{}{}", names.concat(), alert["percent"])
}

async fn briefs(bench: &Bench) -> Vec<String> {
    alerts(bench, &Bench::key()).await.iter().map(brief).collect()
}

/// Checks that each account reported its highest threshold, and no threshold twice. Returns the
/// number of alerts.
async fn check_alerts(bench: &Bench, limits: &[(&str, u64)], at: &str) -> usize {
    let mut reported: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for key in &bench.conversations {
        for alert in alerts(bench, key).await {
            let percent = alert["percent"].as_u64().unwrap();
            reported.entry(alert["level"].as_str().unwrap().to_owned()).or_default().push(percent);
        }
    }
    for (level, limit) in limits {
        let id = if *level == "user" { "account-user-u" } else { "account-tenant" };
        let used = account(bench, id).await.total.total_tokens;
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
    let mut bench = notifying(looks_then_says);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    let budget = json!({"prompt": {"tokens": 200}, "conversation": {"tokens": 400, "usd": 0.05}});
    set_budget(&world, budget).await;
    bench.run().await;
    let first = alerts(&bench, &Bench::key()).await.remove(0);
    let prompt = bench.head().await.unwrap().prompts[0].id.clone();
    let expected = json!({
        "conversationId": "c", "tenantId": "t", "userId": "u", "agent": "clerk", "promptId": prompt,
        "level": "prompt", "unit": "tokens", "percent": 50, "used": 100, "limit": 200,
    });
    assert_eq!(first, expected);
    bench.queue_up(&world, &Bench::key(), "again").await.unwrap();
    bench.run().await;
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
    assert_eq!(briefs(&bench).await, expected);
}

#[tokio::test(start_paused = true)]
async fn account_alert_survives_a_crash_at_every_boundary() {
    let boundaries = [
        "hold.before",
        "hold.after",
        "model.before",
        "model.after",
        "answer.before",
        "answer.after",
        "settle.before",
        "settle.after",
        "renew.before",
        "renew.after",
    ];
    for boundary in boundaries {
        let mut bench = notifying(says_hello);
        let client = bench.worker(Arc::new(NoProbe));
        bench.ask(&client).await;
        bench.run().await;
        // The next post to the ledger includes the cost of the first prompt, and reaches a
        // threshold.
        let budgets = Budgets { user: tokens(200), tenant: tokens(125), ..Budgets::default() };
        bench.money = Arc::new(Money::new(&budgets, &RateLimits::default()));
        let client = bench.worker(Arc::new(NoProbe));
        bench.queue_up(&client, &Bench::key(), "again").await.unwrap();
        let pause = Arc::new(PauseProbe::new(boundary));
        let victim = bench.worker(pause.clone());
        die(victim, &pause).await;
        pass(&mut bench, 15).await;
        let count = check_alerts(&bench, &[("user", 200), ("tenant", 125)], boundary).await;
        assert!(count >= 2, "{boundary}: {count}");
    }
}

#[tokio::test(start_paused = true)]
async fn store_faults_and_crashes_repeat_no_alert() {
    let mut count = 0;
    for seed in 1..=20 {
        let mut bench = Bench::new(seed);
        bench.notifier = Some(Arc::new(Receiver));
        *bench.model.usage.lock().unwrap() =
            Usage { total_tokens: CALL_TOKENS, ..Usage::default() };
        let budgets = Budgets { user: tokens(1_500), tenant: tokens(900), ..Budgets::default() };
        bench.money = Arc::new(Money::new(&budgets, &RateLimits::default()));
        bench.conversations = ["c", "d", "e"].map(|id| owner().key(id)).to_vec();
        let world = bench.worker(Arc::new(NoProbe));
        for key in bench.conversations.clone() {
            bench.ask_in(&world, key.conversation_id.as_str(), "go").await;
        }
        bench.store.set_faults(bad_store());
        bench.crash_in_a_hundred = 2;
        pass(&mut bench, 5).await;
        bench.store.set_faults(Faults::default());
        bench.crash_in_a_hundred = 0;
        pass(&mut bench, 15).await;
        let limits = [("user", 1_500), ("tenant", 900)];
        count += check_alerts(&bench, &limits, &format!("seed {seed}")).await;
    }
    assert!(count > 20, "{count}");
}

#[tokio::test(start_paused = true)]
async fn new_day_reports_its_thresholds_anew() {
    let mut bench = notifying(says_hello);
    let day = Some(Bound { tokens: Some(200), usd: None });
    bench.money = of_users(Bounds { day, ..Bounds::default() });
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    pass(&mut bench, 1).await;
    tokio::time::sleep(Duration::from_hours(24)).await;
    bench.queue_up(&world, &Bench::key(), "again").await.unwrap();
    pass(&mut bench, 1).await;
    let alerts = alerts(&bench, &Bench::key()).await;
    let dates: Vec<_> = alerts.iter().map(|alert| (brief(alert), alert["date"].clone())).collect();
    let expected =
        ["2027-01-15", "2027-01-16"].map(|date| ("user day tokens 50".to_owned(), json!(date)));
    assert_eq!(dates, expected);
}

#[tokio::test(start_paused = true)]
async fn limit_increase_reports_later_crossings_of_the_account() {
    let mut bench = notifying(looks_then_says);
    bench.money = users_have(100);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    pass(&mut bench, 1).await;
    assert!(is_paused(&bench.head().await.unwrap()));
    assert_eq!(briefs(&bench).await, ["user total tokens 100"]);
    say(&world, &Bench::key(), "approve", Some(json!({"tokens": 250}))).await;
    pass(&mut bench, 1).await;
    let alerts = alerts(&bench, &Bench::key()).await;
    let figures: Vec<_> = alerts.iter().map(|it| (brief(it), &it["used"], &it["limit"])).collect();
    let expected = [("100", json!(100), json!(100)), ("80", json!(200), json!(250))];
    let expected: Vec<_> = expected
        .iter()
        .map(|(percent, used, limit)| (format!("user total tokens {percent}"), used, limit))
        .collect();
    assert_eq!(figures, expected);
}

#[tokio::test(start_paused = true)]
async fn deletion_reports_the_thresholds_that_it_settles() {
    let mut bench = notifying(says_hello);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    bench.run().await;
    bench.money = users_have(200);
    let client = bench.worker(Arc::new(NoProbe));
    delete_conversation(&client, &Bench::key()).await.unwrap();
    // A wake-up message that was sent before the deletion.
    handle(&client, &Bench::nudge()).await.unwrap();
    assert_eq!(briefs(&bench).await, ["user total tokens 50"]);
    tokio::time::sleep(TOMBSTONE).await;
    pass(&mut bench, 2).await;
    assert_eq!((briefs(&bench).await.len(), bench.head().await.is_none()), (0, true));
}

#[tokio::test(start_paused = true)]
async fn threshold_costs_no_request_of_its_own() {
    let mut deliveries = Vec::new();
    for limit in [1_000_000, 200] {
        let (mut bench, _, counting) = economy::stage(economy::looks_twice).await;
        bench.model.usage.lock().unwrap().total_tokens = CALL_TOKENS;
        bench.notifier = Some(Arc::new(Receiver));
        bench.money = users_have(limit);
        let world = bench.worker(Arc::new(NoProbe));
        economy::turn(&bench, &world, &counting).await;
        deliveries.push(economy::turn(&bench, &world, &counting).await);
    }
    assert!(deliveries[1].contains("2 entry, events, notice"), "{}", deliveries[1]);
    assert_eq!(deliveries[0], deliveries[1].replace(", notice", ""));
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn alert_is_logged_and_counted_without_a_webhook() {
    let recorder = Recorder::new();
    let mut bench = stage(says_hello);
    bench.telemetry = recorder.telemetry();
    let usd = Some(Bound { tokens: None, usd: Some(0.0125) });
    bench.money = of_users(Bounds { month: usd, ..Bounds::default() });
    let log = Log::default();
    let out = log.clone();
    let lines =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || out.clone()).finish();
    // With a second dispatcher, callsites ask every subscriber, not only the one of the thread that
    // hits them first.
    let _other = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let guard = tracing::subscriber::set_default(lines);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    pass(&mut bench, 1).await;
    drop(guard);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("budget alert")).collect();
    let fields = r#"budget alert conversation.id=c level="user" subject=u period="month" date="2027-01" percent=80 used=0.01 limit=0.0125 unit="usd""#;
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(line.contains("WARN") && line.contains(fields), "{line}");
    let counted = recorder.metrics().into_iter().filter(|(name, _)| name.contains("budget"));
    let name = "turnwheel.budget.alerts{turnwheel.budget.level=user,turnwheel.budget.percent=80,turnwheel.budget.period=month}";
    assert_eq!(counted.collect::<Vec<_>>(), [(name.to_owned(), 1.0)]);
    assert_eq!(briefs(&bench).await.len(), 0, "no notifications are written without a webhook");
}
