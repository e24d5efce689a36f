//! Usage of conversations that are deleted while the model responds: recorded once, and no
//! reservation stays.

use tokio::time::Instant;

use super::*;
use crate::sweep;

/// A response takes two minutes; all its tokens cost the same.
fn env_with_slow_model() -> TestEnv {
    let env = new_env(replies_hello);
    *env.model.response_time.lock().unwrap() = Duration::from_mins(2);
    env
}

async fn ledger_calls(env: &TestEnv) -> u64 {
    usage_report(env, UsageGrouping::Tenant).await.items.iter().map(|item| item.model_calls).sum()
}

/// Passes time with sweeps, which also find purges.
async fn pass_sweeps(env: &mut TestEnv) {
    for _ in 0..4 {
        tokio::time::sleep(sweep::GRACE_PERIOD * 2).await;
        env.run_sweep().await;
        while env.deliver().await {}
    }
}

#[tokio::test(start_paused = true)]
async fn deletion_cancels_model_call_and_counts_usage_once() {
    for (is_same_process, is_bounded) in
        [(true, false), (false, false), (true, true), (false, true)]
    {
        let mut env = env_with_slow_model();
        if is_bounded {
            env.budget_limits = limit_everything();
        }
        let worker = env.new_worker(Arc::new(NoFailPoints));
        let elsewhere = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&elsewhere).await;
        let nudge = TestEnv::nudge();
        let (handled, deleted_at) = tokio::join!(handle(&worker, &nudge), async {
            tokio::time::sleep(Duration::from_millis(7_300)).await;
            let client = if is_same_process { &worker } else { &elsewhere };
            delete_conversation(client, &TestEnv::key()).await.unwrap();
            Instant::now()
        });
        drop(handled);
        let within = Duration::from_secs(if is_same_process { 1 } else { 6 });
        assert!(deleted_at.elapsed() < within, "{:?}", deleted_at.elapsed());
        let tokens = ledger_tokens(&env).await;
        assert!(tokens > 0, "{is_same_process} {is_bounded}");
        pass_sweeps(&mut env).await;
        let counted = (ledger_calls(&env).await, ledger_tokens(&env).await);
        assert_eq!(counted, (1, tokens));
        if is_bounded {
            let user = read_account(&env, "account-user-u").await;
            assert_eq!((user.reserved, user.total.total_tokens), (UsageTotals::default(), tokens));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn response_before_deletion_is_detected_counts_exactly() {
    for is_bounded in [false, true] {
        let mut env = new_env(replies_hello);
        if is_bounded {
            env.budget_limits = limit_everything();
        }
        let pause = Arc::new(PauseFailPoint::new("model.after"));
        let (worker, client) =
            (env.new_worker(pause.clone()), env.new_worker(Arc::new(NoFailPoints)));
        env.send_prompt(&client).await;
        let nudge = TestEnv::nudge();
        let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
            pause.reached.notified().await;
            delete_conversation(&client, &TestEnv::key()).await.unwrap();
            pause.resume.notify_one();
        });
        drop(handled);
        pass_sweeps(&mut env).await;
        let counted = (ledger_calls(&env).await, ledger_tokens(&env).await);
        assert_eq!(counted, (1, CALL_TOKENS));
    }
}

#[tokio::test(start_paused = true)]
async fn reservation_of_dead_worker_is_counted_and_released() {
    let mut env = new_env(replies_hello);
    env.budget_limits = limit_everything();
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let pause = Arc::new(PauseFailPoint::new("model.after"));
    let victim = env.new_worker(pause.clone());
    kill_at(victim, &pause).await;
    let reserved = env.head().await.unwrap().reservation.expect("a reservation").estimate;
    delete_conversation(&client, &TestEnv::key()).await.unwrap();
    assert_eq!(
        read_account(&env, "account-user-u").await.reserved,
        reserved,
        "its worker may be alive"
    );
    pass_sweeps(&mut env).await;
    let user = read_account(&env, "account-user-u").await;
    assert_eq!((user.reserved, user.total), (UsageTotals::default(), reserved));
    assert_eq!(ledger_tokens(&env).await, reserved.total_tokens);
}
