//! Summaries in the usage ledger: each call is reserved and counted once, and its reservation is
//! released.

use super::super::bench::die;
use super::super::money::{account, check_books, everything_is_bounded, pass, users_have};
use super::*;
use crate::agent::usage::Tally;
use crate::clock::Clock as _;
use crate::settings::budgets::Budgets;
use crate::settings::rates::{Rate, RateLimits};

#[tokio::test(start_paused = true)]
async fn what_summaries_took_reaches_the_books_once_and_nothing_stays_held() {
    let money = everything_is_bounded();
    let (mut bench, world, model) = bounded_stage(Windowed::of(WINDOW), money, "begin").await;
    settle(&bench, &world).await;
    for number in 1..=40 {
        let said = format!("look once more, this is number {number}: {}", "words ".repeat(60));
        say(&bench, &world, &said).await;
        assert_eq!(bench.head().await.unwrap().held, None, "{number}");
    }
    assert!(compactions(&bench.entries().await).len() >= 2);
    let head = bench.head().await.unwrap();
    let asked = model.asked.lock().unwrap().len();
    assert_eq!(head.books.spent.calls, asked as u64, "each request counts as one call");
    assert_eq!(head.books.spent.total_tokens, head.usage.total_tokens);
    pass(&mut bench, 13).await;
    check_books(&bench, &[Bench::key()], "summed up").await;
}

/// Kills a worker at the fail point; other workers take over, and each call must be in the ledger.
async fn crash(mut bench: Bench, model: &Windowed, boundary: &'static str) {
    let pause = Arc::new(PauseProbe::new(boundary));
    let victim = bench.worker(pause.clone());
    die(victim, &pause).await;
    let held = bench.head().await.unwrap().held;
    tokio::time::sleep(Duration::from_secs(66)).await;
    bench.run().await;
    pass(&mut bench, 15).await;
    check_books(&bench, &[Bench::key()], boundary).await;
    assert_eq!(compactions(&bench.entries().await).len(), 1, "{boundary}");
    let head = bench.head().await.unwrap();
    let asked = model.asked.lock().unwrap().len() as u64;
    assert!(head.books.spent.calls >= asked, "{boundary}: a call is missing in the ledger");
    if boundary.starts_with("summing") {
        assert_eq!(head.books.lost, held.expect(boundary).estimate, "a lost call counts with its estimate");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_boundary_of_a_summary_leaves_books_that_agree() {
    let boundaries = [
        "take-in.after",
        "hold.before",
        "hold.after",
        "summing.before",
        "summing.after",
        "summary.before",
        "summary.after",
        "model.after",
        "answer.after",
        "settle.before",
        "settle.after",
        "release.before",
    ];
    for boundary in boundaries {
        let money = everything_is_bounded();
        let (bench, _, model) = bounded_brimful(Windowed::of(WINDOW), money).await;
        crash(bench, &model, boundary).await;
    }
    for boundary in boundaries {
        if boundary.starts_with("model") || boundary.starts_with("answer") {
            continue;
        }
        let money = everything_is_bounded();
        let (bench, world, model) = bounded_stage(Windowed::of(WINDOW), money, &many_words()).await;
        settle(&bench, &world).await;
        patch(&world, 1).await;
        let key = idempotency("by hand");
        compact(&world, &Bench::key(), CompactRequest::default(), &key).await.unwrap();
        crash(bench, &model, boundary).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_summary_that_no_model_made_holds_nothing() {
    let own = Instead::Summary { summary: "mine".to_owned(), details: None };
    for instead in [Instead::Cancel, own] {
        let money = everything_is_bounded();
        let (bench, mut world, model) = bounded_brimful(Windowed::of(WINDOW), money).await;
        world.extensions = vec![Arc::new(Opinion { instead, heard: Mutex::default() })];
        settle(&bench, &world).await;
        assert_eq!(model.summaries(), 0);
        let head = bench.head().await.unwrap();
        assert_eq!(head.held, None);
        let asked = model.asked.lock().unwrap().len() as u64;
        assert_eq!(head.books.spent.calls, asked, "only responses are counted");
        let account = account(&bench, "account-user-u").await;
        assert_eq!((account.held, account.total), (Tally::default(), head.books.spent));
    }
}

#[tokio::test(start_paused = true)]
async fn the_call_after_a_summary_has_a_check_and_a_rate_of_its_own() {
    let (bench, mut world, model) = bounded_brimful(Windowed::of(WINDOW), Arc::default()).await;
    let before = model.asked.lock().unwrap().len();
    let rate = Rate { count: 1, period: Duration::from_mins(1) };
    let rates = RateLimits { requests: None, model_calls: Some(rate) };
    world.money = Arc::new(Money::new(&Budgets::default(), &rates));
    for _ in 0..3 {
        handle(&world, &Bench::nudge()).await.unwrap();
    }
    assert_eq!(model.summaries(), 1);
    assert_eq!(model.asked.lock().unwrap().len(), before + 1, "the response waits for its rate");
    let head = bench.head().await.unwrap();
    let left = bench.clock.now().until(head.due.unwrap());
    assert!(left > Duration::from_secs(50) && left <= Duration::from_mins(1), "{left:?}");
    settle(&bench, &world).await;
    assert_eq!(bench.head().await.unwrap().prompts.last().unwrap().state, PromptState::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_summary_between_tools_and_answer_uses_up_what_the_answer_would_have() {
    let (bench, mut world, model) = bounded_brimful(Windowed::of(WINDOW), Arc::default()).await;
    let head = bench.head().await.unwrap();
    world.money = users_have(head.books.spent.total_tokens + 1);
    for _ in 0..3 {
        handle(&world, &Bench::nudge()).await.unwrap();
    }
    assert_eq!(model.summaries(), 1);
    let head = bench.head().await.unwrap();
    assert!(head.is_paused(), "the response is another call and requests an approval: {:?}", head.phase);
    let account = account(&bench, "account-user-u").await;
    assert_eq!((account.held, account.total), (Tally::default(), head.books.spent));
}

#[tokio::test(start_paused = true)]
async fn a_summary_that_belongs_to_no_prompt_is_counted_and_not_refused() {
    for is_by_hand in [true, false] {
        // In the second case the response fills the window, so that compaction runs when the prompt
        // ends.
        let said = if is_by_hand { many_words() } else { "begin with many words ".repeat(380) };
        let (mut bench, world, model) =
            bounded_stage(Windowed::of(WINDOW), users_have(1), &said).await;
        patch(&world, 10).await;
        settle(&bench, &world).await;
        if is_by_hand {
            let done = ask_for_it(&bench, &world, "1").await;
            assert!(done["errorMessage"].is_null(), "{done}");
        }
        assert_eq!(compactions(&bench.entries().await).len(), 1, "by hand: {is_by_hand}");
        let head = bench.head().await.unwrap();
        assert_eq!((head.held, head.claims), (None, 0));
        assert_eq!(head.books.spent.calls, model.asked.lock().unwrap().len() as u64);
        assert_eq!(told(&bench).await.last().unwrap(), "agent_settled");
        // The next prompt requests an approval of the budget.
        bench.queue_up(&world, &Bench::key(), "and on").await.unwrap();
        pass(&mut bench, 1).await;
        assert!(bench.head().await.unwrap().is_paused());
        bench.money = everything_is_bounded();
        pass(&mut bench, 16).await;
        let head = bench.head().await.unwrap();
        assert_eq!(head.prompts.last().unwrap().state, PromptState::Completed);
        let account = account(&bench, "account-user-u").await;
        assert_eq!((account.held, account.total), (Tally::default(), head.books.spent));
    }
}
