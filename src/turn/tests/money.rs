//! Budgets and the usage ledger: usage is counted exactly once, and an exhausted budget requests an
//! approval instead of failing the prompt.

mod alerts;
mod asking;
mod deleting;
mod shut;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use self::shut::Shut;
use super::bench::{Bench, PauseProbe, Script, bad_store, call, die, owner, text};
use crate::agent::budget::Books;
use crate::agent::entry::{EntryBody, PromptState, PromptStop};
use crate::agent::head::{Head, State};
use crate::agent::raw::RawJson;
use crate::agent::request::RequestKind;
use crate::agent::usage::{Cost, Tally, Usage};
use crate::clock::Clock as _;
use crate::ids::{ConversationKey, TenantId, UserId};
use crate::queue::{self, Queue as _};
use crate::settings::budgets::{Bound, Bounds, Budgets};
use crate::settings::rates::{Rate, RateLimits};
use crate::store::memory::Faults;
use crate::store::watched::Watched;
use crate::store::{Freshness, Partition};
use crate::turn::admission::decide::{Decider, Said, decide};
use crate::turn::admission::delete::delete_conversation;
use crate::turn::books::account::Account;
use crate::turn::delivery::handle;
use crate::turn::money::Money;
use crate::turn::views::load::head as head_of;
use crate::turn::views::usage::{By, Days, UsageReport, Whose, usage};
use crate::turn::{NoProbe, Nudge, World, record};

const CALL_TOKENS: u64 = 100;

fn says_hello(_results: usize, _said: &str) -> Vec<Value> {
    vec![text("hello")]
}

fn looks_then_says(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "look", 0)] } else { vec![text("done")] }
}

/// Each response has 100 tokens and costs a cent.
fn stage(script: Script) -> Bench {
    let bench = Bench::with(1, script);
    *bench.model.usage.lock().unwrap() = Usage {
        input: 60,
        output: 40,
        total_tokens: CALL_TOKENS,
        cost: Cost { total: 0.01, ..Cost::default() },
        ..Usage::default()
    };
    bench
}

fn tokens(count: u64) -> Bounds {
    let bound = Bound { tokens: Some(count), usd: None };
    Bounds { total: Some(bound), ..Bounds::default() }
}

/// Limits each user to `count` tokens in total.
pub(super) fn users_have(count: u64) -> Arc<Money> {
    let budgets = Budgets { user: tokens(count), ..Budgets::default() };
    Arc::new(Money::new(&budgets, &RateLimits::default()))
}

pub(super) async fn account(bench: &Bench, id: &str) -> Account {
    let partition = Partition::Scope(TenantId::new("t"));
    let stored = bench.shared.read(&partition, id, Freshness::Latest).await.unwrap();
    stored.map_or_else(Account::default, |stored| record::read(&stored.document).unwrap())
}

async fn report(bench: &Bench, by: By) -> UsageReport {
    let whose = Whose { tenant: TenantId::new("t"), user: None };
    let now = bench.clock.now();
    let days = Days::read(None, None, now).unwrap();
    usage(&*bench.shared, &whose, by, days).await.unwrap()
}

async fn tokens_in_the_books(bench: &Bench) -> u64 {
    report(bench, By::Tenant).await.items.iter().map(|item| item.usage.total_tokens).sum()
}

/// Passes `minutes` of virtual time, with deliveries and sweeps, without decisions.
pub(super) async fn pass(bench: &mut Bench, minutes: u32) {
    for _ in 0..minutes {
        while bench.deliver().await {}
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            while bench.deliver().await {}
        }
        bench.sweep().await;
    }
    while bench.deliver().await {}
}

async fn say(world: &World, key: &ConversationKey, decision: &str, value: Option<Value>) {
    let (head, _) = head_of(world, key).await.unwrap();
    let request = head.requests.first().expect("no request is open").id.clone();
    let said = Said {
        decision: decision.to_owned(),
        reason: None,
        value: value.map(|value| RawJson::of(&value)),
    };
    let who =
        Decider::Person { tenant: TenantId::new("t"), user: UserId::new("u"), roles: Vec::new() };
    decide(world, key, request.as_str(), said, &who).await.unwrap();
}

fn is_paused(head: &Head) -> bool {
    head.state() == State::WaitingForApproval
        && head.requests.iter().all(|request| request.kind == RequestKind::Budget)
}

#[tokio::test(start_paused = true)]
async fn usage_reaches_the_books_once_and_nobody_waits_for_it() {
    let mut bench = stage(looks_then_says);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.run().await;
    assert_eq!(report(&bench, By::Tenant).await.items.len(), 0, "usage is posted later");
    let due = bench.head().await.unwrap().due.unwrap();
    assert!(due > bench.clock.now(), "the sweep finds it later");
    pass(&mut bench, 13).await;
    let head = bench.head().await.unwrap();
    assert_eq!((head.books.settle_at, head.due), (None, None), "no pending work is left");
    for by in [By::Tenant, By::User, By::Agent, By::Day] {
        let report = report(&bench, by).await;
        let [item] = report.items.as_slice() else { panic!("{report:?}") };
        let expected = match by {
            By::Tenant => "t",
            By::User => "u",
            By::Agent => "clerk",
            By::Day => "2027-01-15",
        };
        assert_eq!(
            (item.name.as_str(), item.model_calls, item.usage.total_tokens),
            (expected, 2, 2 * CALL_TOKENS)
        );
        assert!((item.usage.cost.total - 0.02).abs() < 1e-9);
    }
    bench.queue_up(&world, &Bench::key(), "again").await.unwrap();
    pass(&mut bench, 13).await;
    assert_eq!(tokens_in_the_books(&bench).await, 4 * CALL_TOKENS);
}

/// Checks that ledger and conversations agree once everything is idle.
pub(super) async fn check_books(bench: &Bench, keys: &[ConversationKey], told: &str) {
    let mut spent = Tally::default();
    for key in keys {
        let head = bench.head_of(key).await.unwrap();
        assert_eq!(head.held, None, "{told}");
        assert!(head.books.days.is_empty() && head.books.settle_at.is_none(), "{told}: {head:?}");
        spent = spent.plus(head.books.spent);
    }
    let report = report(bench, By::Tenant).await;
    let in_books: u64 = report.items.iter().map(|item| item.usage.total_tokens).sum();
    let calls: u64 = report.items.iter().map(|item| item.model_calls).sum();
    assert_eq!((calls, in_books), (spent.calls, spent.total_tokens), "{told}");
    for id in ["account-user-u", "account-tenant", "account-agent-clerk"] {
        let account = account(bench, id).await;
        assert_eq!(account.held, Tally::default(), "{told}: {id} has a stale reservation");
        assert_eq!(account.total, spent, "{told}: {id}");
    }
}

pub(super) fn everything_is_bounded() -> Arc<Money> {
    let budgets = Budgets {
        user: tokens(1_000_000),
        tenant: tokens(1_000_000),
        agents: vec![("clerk".to_owned(), tokens(1_000_000))],
        ..Budgets::default()
    };
    Arc::new(Money::new(&budgets, &RateLimits::default()))
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_boundary_of_the_books_loses_nothing_and_counts_nothing_twice() {
    let boundaries = [
        "take-in.after",
        "hold.before",
        "hold.after",
        "model.before",
        "model.after",
        "answer.before",
        "answer.after",
        "result.after",
        "settle.before",
        "settle.after",
        "renew.before",
        "renew.after",
        "release.before",
    ];
    for boundary in boundaries {
        let mut bench = stage(looks_then_says);
        bench.money = everything_is_bounded();
        let client = bench.worker(Arc::new(NoProbe));
        bench.ask(&client).await;
        let pause = Arc::new(PauseProbe::new(boundary));
        let victim = bench.worker(pause.clone());
        die(victim, &pause).await;
        bench.run().await;
        pass(&mut bench, 15).await;
        let head = bench.head().await.unwrap();
        assert_eq!(head.prompts.last().unwrap().state, PromptState::Completed, "{boundary}");
        check_books(&bench, &[Bench::key()], boundary).await;
        let answers = u64::from(*bench.model.answers.lock().unwrap());
        assert!(head.books.spent.calls >= answers, "{boundary}: a call is missing in the ledger");
    }
}

#[tokio::test(start_paused = true)]
async fn a_take_over_settles_at_the_estimate() {
    let mut bench = stage(says_hello);
    bench.money = everything_is_bounded();
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let pause = Arc::new(PauseProbe::new("model.after"));
    let victim = bench.worker(pause.clone());
    let nudge = Bench::nudge();
    tokio::select! {
        handled = handle(&victim, &nudge) => panic!("{handled:?}"),
        () = pause.reached.notified() => {}
    }
    let held = bench.head().await.unwrap().held.expect("the call has no reservation").estimate;
    assert_eq!(account(&bench, "account-user-u").await.held, held);
    assert!(held.total_tokens > CALL_TOKENS, "the estimate covers the longest response: {held:?}");
    bench.run().await;
    pass(&mut bench, 12).await;
    let head = bench.head().await.unwrap();
    assert_eq!(head.books.lost, held);
    assert_eq!(head.usage.total_tokens, CALL_TOKENS, "only committed responses count");
    assert_eq!(head.books.spent.total_tokens, CALL_TOKENS + held.total_tokens);
    let lost = bench.entries().await.into_iter().find_map(|entry| match entry.body {
        EntryBody::LostCall(lost) => Some(lost.estimate.total_tokens),
        _ => None,
    });
    assert_eq!(lost, Some(held.total_tokens), "the lost call is recorded");
    check_books(&bench, &[Bench::key()], "taken over").await;
}

#[tokio::test(start_paused = true)]
async fn bad_days_leave_books_that_agree() {
    for seed in 1..=25 {
        let mut bench = Bench::new(seed);
        *bench.model.usage.lock().unwrap() = Usage { total_tokens: 7, ..Usage::default() };
        bench.money = everything_is_bounded();
        bench.store.set_faults(bad_store());
        bench.crash_in_a_hundred = 4;
        bench.conversations = ["c", "d", "e"].map(|id| owner().key(id)).to_vec();
        let world = bench.worker(Arc::new(NoProbe));
        for key in bench.conversations.clone() {
            bench.ask_in(&world, key.conversation_id.as_str(), "go").await;
        }
        bench.run().await;
        bench.store.set_faults(Faults::default());
        bench.crash_in_a_hundred = 0;
        pass(&mut bench, 15).await;
        check_books(&bench, &bench.conversations, &format!("seed {seed}")).await;
    }
}

/// Creates fifty conversations of one user, each with a prompt.
async fn fifty(bench: &mut Bench) -> (Vec<ConversationKey>, World) {
    let world = bench.worker(Arc::new(NoProbe));
    let keys: Vec<ConversationKey> =
        (0..50).map(|number| owner().key(&format!("c{number}"))).collect();
    for key in &keys {
        bench.ask_in(&world, key.conversation_id.as_str(), "go").await;
    }
    (keys, world)
}

/// Runs one delivery per conversation concurrently.
async fn all_at_once(bench: &mut Bench, keys: &[ConversationKey]) {
    let workers: Vec<World> = keys.iter().map(|_| bench.worker(Arc::new(NoProbe))).collect();
    bench.queue.drop_queue(queue::TURNS);
    let deliveries = keys.iter().zip(&workers).map(|(key, world)| async move {
        let nudge = Nudge { key: key.clone(), traceparent: None, schedule: None };
        handle(world, &nudge).await
    });
    for handled in join_all(deliveries).await {
        handled.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn fifty_prompts_at_once_overspend_by_one_call_at_most_and_a_raise_frees_them_all() {
    const LIMIT: u64 = 1_050;
    let mut bench = stage(says_hello);
    bench.money = users_have(LIMIT);
    let (keys, world) = fifty(&mut bench).await;
    for _ in 0..40 {
        all_at_once(&mut bench, &keys).await;
        let held = account(&bench, "account-user-u").await;
        assert!(held.total.total_tokens < LIMIT + CALL_TOKENS, "{held:?}");
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
    let account_of_user = account(&bench, "account-user-u").await;
    assert_eq!(account_of_user.total.total_tokens, 1_100, "the limit is used up, plus one call");
    assert_eq!(*bench.model.answers.lock().unwrap(), 11);
    let mut paused = Vec::new();
    for key in &keys {
        let head = bench.head_of(key).await.unwrap();
        if is_paused(&head) {
            let request = &head.requests[0];
            assert_eq!(request.reason, "The budget of the user is used up: 1100 of 1050 tokens.");
            assert_eq!(head.min_reader, 2, "an older worker would continue");
            paused.push(key.clone());
        } else {
            assert_eq!(head.prompts[0].state, PromptState::Completed);
        }
    }
    assert_eq!(paused.len(), 39, "each has its own approval request");
    // One request is decided; the other prompts continue because the limit has room.
    say(&world, &paused[0], "approve", Some(json!(100_000))).await;
    bench.conversations.clone_from(&keys);
    pass(&mut bench, 25).await;
    for key in &keys {
        let head = bench.head_of(key).await.unwrap();
        assert_eq!(head.prompts[0].stop_reason, Some(PromptStop::End), "{key}");
        assert_eq!(head.min_reader, 1, "{key}");
    }
    assert_eq!(*bench.model.answers.lock().unwrap(), 50);
    assert_eq!(account(&bench, "account-user-u").await.total.total_tokens, 5_000);
    let decided =
        bench.entries_of(&paused[1]).await.into_iter().find_map(|entry| match entry.body {
            EntryBody::Decision(decided) => Some(decided.decision.decided_by),
            _ => None,
        });
    assert_eq!(decided.as_deref(), Some("budget"), "the decision of the budget is recorded");
}

#[tokio::test(start_paused = true)]
async fn a_model_call_over_its_rate_waits_and_holds_nobody() {
    let mut bench = stage(looks_then_says);
    let rate = Rate { count: 1, period: Duration::from_mins(1) };
    let rates = RateLimits { requests: None, model_calls: Some(rate) };
    bench.money = Arc::new(Money::new(&Budgets::default(), &rates));
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    let nudge = Bench::nudge();
    for _ in 0..3 {
        handle(&world, &nudge).await.unwrap();
    }
    let head = bench.head().await.unwrap();
    assert_eq!(*bench.model.answers.lock().unwrap(), 1);
    assert_eq!((head.claim.is_none(), head.claims), (true, 0));
    let left = bench.clock.now().until(head.due.unwrap());
    assert!(left > Duration::from_secs(50) && left <= Duration::from_mins(1), "{left:?}");
    pass(&mut bench, 2).await;
    assert_eq!(bench.head().await.unwrap().prompts[0].stop_reason, Some(PromptStop::End));
}

#[tokio::test(start_paused = true)]
async fn no_call_is_made_while_the_books_do_not_answer_and_none_is_lost() {
    let mut bench = stage(says_hello);
    let shut = Arc::new(Watched { inner: bench.store.clone(), watch: Shut(AtomicBool::new(true)) });
    bench.shared = shut.clone();
    bench.money = everything_is_bounded();
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    pass(&mut bench, 20).await;
    let head = bench.head().await.unwrap();
    assert_eq!((*bench.model.answers.lock().unwrap(), head.claims), (0, 0), "the prompt waits");
    assert!(head.held.is_some() && head.due.is_some());
    shut.watch.0.store(false, Ordering::SeqCst);
    pass(&mut bench, 14).await;
    let head = bench.head().await.unwrap();
    assert_eq!(head.prompts[0].stop_reason, Some(PromptStop::End));
    assert_eq!(head.books.lost, Tally::default(), "no call was lost");
    check_books(&bench, &[Bench::key()], "shut").await;
}

#[tokio::test(start_paused = true)]
async fn what_a_deleted_conversation_spent_stays_in_the_books() {
    let mut bench = stage(says_hello);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.run().await;
    delete_conversation(&world, &Bench::key()).await.unwrap();
    assert_eq!(tokens_in_the_books(&bench).await, CALL_TOKENS);
    let head = bench.head().await.unwrap();
    assert_eq!(head.books, Books { spent: head.books.spent, ..Books::default() });
    pass(&mut bench, 3).await;
    assert_eq!(tokens_in_the_books(&bench).await, CALL_TOKENS);
    assert_eq!(bench.queue.length(queue::TURNS).await.unwrap(), 0);
}
