//! Usage of conversations that are deleted while the model responds: recorded once, and no
//! reservation stays.

use tokio::time::Instant;

use super::*;
use crate::turn::sweep;

/// A response takes two minutes; all its tokens cost the same.
fn slow_stage() -> Bench {
    let bench = stage(says_hello);
    *bench.model.span.lock().unwrap() = Duration::from_mins(2);
    bench
}

async fn calls_in_the_ledger(bench: &Bench) -> u64 {
    report(bench, By::Tenant).await.items.iter().map(|item| item.model_calls).sum()
}

/// Passes time with sweeps, which also find purges.
async fn rest(bench: &mut Bench) {
    for _ in 0..4 {
        tokio::time::sleep(sweep::GRACE * 2).await;
        bench.sweep().await;
        while bench.deliver().await {}
    }
}

#[tokio::test(start_paused = true)]
async fn deletion_cuts_the_model_response_and_its_usage_counts_once() {
    for (is_same_process, is_bounded) in
        [(true, false), (false, false), (true, true), (false, true)]
    {
        let mut bench = slow_stage();
        if is_bounded {
            bench.money = everything_is_bounded();
        }
        let worker = bench.worker(Arc::new(NoProbe));
        let elsewhere = bench.worker(Arc::new(NoProbe));
        bench.ask(&elsewhere).await;
        let nudge = Bench::nudge();
        let (handled, deleted_at) = tokio::join!(handle(&worker, &nudge), async {
            tokio::time::sleep(Duration::from_millis(7_300)).await;
            let client = if is_same_process { &worker } else { &elsewhere };
            delete_conversation(client, &Bench::key()).await.unwrap();
            Instant::now()
        });
        drop(handled);
        let within = Duration::from_secs(if is_same_process { 1 } else { 6 });
        assert!(deleted_at.elapsed() < within, "{:?}", deleted_at.elapsed());
        let tokens = tokens_in_the_books(&bench).await;
        assert!(tokens > 0, "{is_same_process} {is_bounded}");
        rest(&mut bench).await;
        let counted = (calls_in_the_ledger(&bench).await, tokens_in_the_books(&bench).await);
        assert_eq!(counted, (1, tokens));
        if is_bounded {
            let user = account(&bench, "account-user-u").await;
            assert_eq!((user.held, user.total.total_tokens), (Tally::default(), tokens));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn response_that_comes_before_the_deletion_is_noticed_counts_exactly() {
    for is_bounded in [false, true] {
        let mut bench = stage(says_hello);
        if is_bounded {
            bench.money = everything_is_bounded();
        }
        let pause = Arc::new(PauseProbe::new("model.after"));
        let (worker, client) = (bench.worker(pause.clone()), bench.worker(Arc::new(NoProbe)));
        bench.ask(&client).await;
        let nudge = Bench::nudge();
        let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
            pause.reached.notified().await;
            delete_conversation(&client, &Bench::key()).await.unwrap();
            pause.go.notify_one();
        });
        drop(handled);
        rest(&mut bench).await;
        let counted = (calls_in_the_ledger(&bench).await, tokens_in_the_books(&bench).await);
        assert_eq!(counted, (1, CALL_TOKENS));
    }
}

#[tokio::test(start_paused = true)]
async fn reservation_counts_for_a_call_whose_worker_died_and_is_released() {
    let mut bench = stage(says_hello);
    bench.money = everything_is_bounded();
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let pause = Arc::new(PauseProbe::new("model.after"));
    let victim = bench.worker(pause.clone());
    die(victim, &pause).await;
    let held = bench.head().await.unwrap().held.expect("a reservation").estimate;
    delete_conversation(&client, &Bench::key()).await.unwrap();
    assert_eq!(account(&bench, "account-user-u").await.held, held, "its worker may be alive");
    rest(&mut bench).await;
    let user = account(&bench, "account-user-u").await;
    assert_eq!((user.held, user.total), (Tally::default(), held));
    assert_eq!(tokens_in_the_books(&bench).await, held.total_tokens);
}
