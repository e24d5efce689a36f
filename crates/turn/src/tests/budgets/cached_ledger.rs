//! Ledger documents in the cache of a process, and changes of other processes meanwhile.

use super::*;
use crate::tests::store_requests::{self, handle_next_nudge};
use crate::tests::test_env::LoggedRequests as _;

#[tokio::test(start_paused = true)]
async fn warm_round_with_budgets_makes_one_more_request() {
    let three_rounds = |results, _: &str| match results {
        0..=2 => vec![call(&format!("c{results}"), "look", 0)],
        _ => vec![text("done")],
    };
    let (mut env, _, counting) = store_requests::new_env(three_rounds).await;
    env.budget_limits = limit_everything();
    let services = env.new_worker(Arc::new(NoFailPoints));
    handle_next_nudge(&env, &services, &counting).await;
    let second = handle_next_nudge(&env, &services, &counting).await;
    assert!(second.starts_with("write head\nread item\nwrite "), "the day is new: {second}");
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    write head
    write 5 scope (changed)
    write head, commit
    write head, commit
    ");
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    write head
    write 5 scope (changed)
    write head, commit
    write 5 scope (changed)
    write head
    ");
    pass_minutes(&mut env, 13).await;
    check_ledger(&env, &[TestEnv::key()], "one worker").await;
}

async fn deliver(services: &Services, key: &ConversationKey) {
    handle(services, &Nudge::for_conversation(key.clone(), None)).await.unwrap();
}

/// Two processes call models for one user, each with its own cache.
#[tokio::test(start_paused = true)]
async fn changes_of_another_process_count() {
    let mut env = new_env(replies_hello);
    env.budget_limits = limit_users(250);
    let [one, other] = [(), ()].map(|()| env.new_worker(Arc::new(NoFailPoints)));
    let keys = ["c", "d"].map(|id| owner().conversation_key(id));
    env.send_prompt_to(&one, "c", "first").await;
    deliver(&one, &keys[0]).await;
    env.send_prompt_to(&other, "d", "second").await;
    deliver(&other, &keys[1]).await;
    // The account in the cache is too low by one call.
    env.queue_prompt(&one, &keys[0], "third").await.unwrap();
    deliver(&one, &keys[0]).await;
    assert_eq!(read_account(&env, "account-user-u").await.total.total_tokens, 300);
    env.queue_prompt(&other, &keys[1], "fourth").await.unwrap();
    deliver(&other, &keys[1]).await;
    let head = env.head_of(&keys[1]).await.unwrap();
    assert!(waits_for_budget(&head), "{head:?}");
    assert_eq!(head.requests[0].reason, "The budget of the user is used up: 300 of 250 tokens.");
    assert_eq!(*env.model.calls.lock().unwrap(), 3);
    // The increase is decided at one process, and another one uses it.
    decide_first_request(&one, &keys[1], "approve", Some(json!(1_000))).await;
    deliver(&one, &keys[1]).await;
    env.queue_prompt(&other, &keys[0], "fifth").await.unwrap();
    deliver(&other, &keys[0]).await;
    let state = |head: Head| head.prompts.last().unwrap().state;
    for key in &keys {
        assert_eq!(state(env.head_of(key).await.unwrap()), PromptState::Completed, "{key}");
    }
    env.conversations = keys.to_vec();
    pass_minutes(&mut env, 13).await;
    let account = read_account(&env, "account-user-u").await;
    assert_eq!((account.total.total_tokens, account.reserved), (500, UsageTotals::default()));
    assert_eq!(ledger_tokens(&env).await, 500);
}

/// After a lost reservation and a lost settlement, documents that another process writes are read before
/// each batch.
#[tokio::test(start_paused = true)]
async fn shared_documents_lose_two_batches_in_a_minute() {
    let (mut env, _, counting) = store_requests::new_env(replies_hello).await;
    env.budget_limits = limit_everything();
    let workers = [(), ()].map(|()| env.new_worker(Arc::new(NoFailPoints)));
    let keys = ["c", "d"].map(|id| owner().conversation_key(id));
    env.send_prompt_to(&workers[1], "d", "first").await;
    let mut batches = Vec::new();
    for number in 0..10 {
        let (services, key) = (&workers[number % 2], &keys[number % 2]);
        counting.take_requests();
        deliver(services, key).await;
        let sent = counting.take_requests();
        let is_of_ledger = |line: &&str| line.starts_with("write") && line.contains("scope");
        batches.push(sent.lines().filter(is_of_ledger).count());
        env.queue_prompt(services, key, &format!("more {number}")).await.unwrap();
    }
    // A delivery reserves its call and settles it.
    assert!(batches[4..].iter().all(|count| *count == 2), "{batches:?}");
    assert!(batches.iter().sum::<usize>() <= 2 * 10 + 2 * 2, "{batches:?}");
}

/// The batch is stored, and its response is lost: the process must not go on with its old version.
#[tokio::test(start_paused = true)]
async fn lost_response_of_a_post_counts_once() {
    let mut env = TestEnv::with_script(1, replies_hello);
    env.budget_limits = limit_everything();
    *env.model.usage.lock().unwrap() = Usage { total_tokens: CALL_TOKENS, ..Usage::default() };
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    deliver(&services, &TestEnv::key()).await;
    let lost = StoreFaults { unavailable_after: 0.3, ..StoreFaults::default() };
    for number in 0..8 {
        env.queue_prompt(&services, &TestEnv::key(), &format!("more {number}")).await.unwrap();
        env.store.set_faults(lost);
        let _ = handle(&services, &TestEnv::nudge()).await;
        env.store.set_faults(StoreFaults::default());
        pass_minutes(&mut env, 3).await;
    }
    pass_minutes(&mut env, 13).await;
    check_ledger(&env, &[TestEnv::key()], "lost responses").await;
}
