//! Questions before a compaction: it waits for the answer, and a later prompt ends the wait.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::call_approval::{handle_nudges, only_request};
use super::compaction::{WINDOW, env_with_full_window, find_compactions};
use super::questions::{answer, asked_counts};
use super::test_env::{SmallWindowModel, TestEnv, idempotency};
use turnwheel_commands::abort::{AbortRequest, abort};
use turnwheel_commands::compact::{CompactRequest, compact};
use turnwheel_commands::insert::insert_prompt;
use turnwheel_conversation::entry::{EntryBody, PromptState};
use turnwheel_conversation::head::State;
use turnwheel_conversation::phase::Phase;
use turnwheel_extensions::{Extension, HookContext, HookError, PendingCompaction, SummaryOverride};
use turnwheel_record::services::Services;

/// Asks before a compaction, and cancels it without a yes.
#[derive(Debug)]
struct CompactionGuard {
    /// False: it cancels a compaction outside a prompt at once.
    asks_when_idle: bool,
}

#[async_trait]
impl Extension for CompactionGuard {
    fn name(&self) -> &'static str {
        "guard"
    }

    async fn before_compaction(
        &self,
        cx: &HookContext,
        _ahead: &PendingCompaction<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        let can_ask = self.asks_when_idle || !cx.is_idle();
        let is_confirmed = can_ask && cx.confirm("sure", "Shorten it?")?;
        Ok((!is_confirmed).then_some(SummaryOverride::Cancel))
    }
}

/// A prompt whose compaction asks first, and its worker.
async fn env_with_compaction_question() -> (TestEnv, Services) {
    let (mut env, mut worker, _) = env_with_full_window(SmallWindowModel::new(WINDOW)).await;
    env.extensions = vec![Arc::new(CompactionGuard { asks_when_idle: false })];
    worker.extensions.clone_from(&env.extensions);
    handle_nudges(&env, &worker).await;
    (env, worker)
}

#[tokio::test(start_paused = true)]
async fn compaction_waits_for_the_answer() {
    for (value, summaries) in [(json!(true), 1), (json!(false), 0)] {
        let (mut env, worker) = env_with_compaction_question().await;
        let (head, request) = (env.head().await.unwrap(), only_request(&env).await);
        assert!(matches!(head.phase, Phase::Summary { attempt: 1, .. }), "{:?}", head.phase);
        assert_eq!(head.state(), State::WaitingForApproval);
        assert_eq!(head.next_step_due(head.updated_at), request.expires_at);
        assert!(head.lease.is_none() && head.reservation.is_none() && head.min_reader == 5);
        assert_eq!(request.title, "The extension \"guard\" asks about a compaction.");
        assert_eq!(request.prompt_id, head.prompts.last().unwrap().id);
        tokio::time::sleep(Duration::from_hours(24 * 2)).await;
        answer(&mut env, &worker, value).await;
        assert_eq!(env.head().await.unwrap().phase, Phase::Idle);
        assert_eq!(find_compactions(&env.entries().await).len(), summaries);
        assert_eq!(asked_counts(&env).await.into_values().collect::<Vec<_>>(), [1]);
    }
}

#[tokio::test(start_paused = true)]
async fn expired_or_aborted_question_ends_the_wait_of_a_compaction() {
    let (mut env, _) = env_with_compaction_question().await;
    env.undecided_percent = 100;
    tokio::time::sleep(Duration::from_hours(24 * 7)).await;
    env.run_until_idle().await;
    assert_eq!(find_compactions(&env.entries().await).len(), 0, "cancelled without a yes");
    assert_eq!(env.head().await.unwrap().prompts.last().unwrap().state, PromptState::Completed);

    let (env, worker) = env_with_compaction_question().await;
    let request = AbortRequest::default();
    abort(&worker, &TestEnv::key(), request, &idempotency("stop")).await.unwrap();
    handle_nudges(&env, &worker).await;
    let head = env.head().await.unwrap();
    assert_eq!(head.prompts.last().unwrap().state, PromptState::Aborted);
    assert!(head.requests.is_empty() && head.phase == Phase::Idle);
}

/// A compaction outside a prompt that asks first, and the number of summaries before it.
async fn env_with_manual_compaction() -> (TestEnv, Services, usize) {
    let env = env_with_full_window(SmallWindowModel::new(WINDOW));
    let (mut env, mut worker, _) = Box::pin(env).await;
    Box::pin(handle_nudges(&env, &worker)).await;
    let before = find_compactions(&env.entries().await).len();
    env.extensions = vec![Arc::new(CompactionGuard { asks_when_idle: true })];
    worker.extensions.clone_from(&env.extensions);
    let request = CompactRequest::default();
    let idempotency = idempotency("compact");
    Box::pin(compact(&worker, &TestEnv::key(), request, &idempotency)).await.unwrap();
    Box::pin(handle_nudges(&env, &worker)).await;
    (env, worker, before)
}

#[tokio::test(start_paused = true)]
async fn compaction_without_a_prompt_waits_for_the_answer() {
    for (value, summaries) in [(json!(true), 1), (json!(false), 0)] {
        let (mut env, worker, before) = Box::pin(env_with_manual_compaction()).await;
        let (head, request) = (env.head().await.unwrap(), only_request(&env).await);
        assert_eq!((head.prompt.clone(), head.state()), (None, State::WaitingForApproval));
        assert_eq!(head.next_step_due(head.updated_at), request.expires_at);
        tokio::time::sleep(Duration::from_hours(24 * 2)).await;
        answer(&mut env, &worker, value).await;
        assert_eq!(env.head().await.unwrap().phase, Phase::Idle);
        assert_eq!(find_compactions(&env.entries().await).len() - before, summaries);
        assert_eq!(asked_counts(&env).await.into_values().collect::<Vec<_>>(), [1]);
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_ends_the_compaction_that_waits_for_an_answer() {
    let (env, worker, before) = Box::pin(env_with_manual_compaction()).await;
    let asked = only_request(&env).await.id;
    env.queue_prompt(&worker, &TestEnv::key(), "next").await.unwrap();
    handle_nudges(&env, &worker).await;
    let entries = env.entries().await;
    let withdrawn = entries.iter().any(|entry| {
        matches!(&entry.body, EntryBody::Decision(it)
            if it.decision.request_id == asked && it.decision.decided_by == "abort")
    });
    assert!(withdrawn, "the question does not stay open");
    let head = env.head().await.unwrap();
    assert!(head.prompts.len() >= 2, "the prompt has started");
    assert_eq!(find_compactions(&entries).len(), before);
}

#[tokio::test(start_paused = true)]
async fn inserted_prompt_ends_the_compaction_that_waits_for_an_answer() {
    let (env, worker, before) = Box::pin(env_with_manual_compaction()).await;
    assert_eq!(env.head().await.unwrap().requests.len(), 1);
    let request = json!({
        "input": "What is due?", "output": [{"type": "text", "content": "Nothing."}], "source": "queue"
    });
    let request = serde_json::from_value(request).unwrap();
    insert_prompt(&worker, &TestEnv::key(), request, &idempotency("insert")).await.unwrap();
    handle_nudges(&env, &worker).await;
    let head = env.head().await.unwrap();
    assert_eq!((&head.phase, head.requests.len()), (&Phase::Idle, 0));
    assert!(head.prompts.last().unwrap().is_inserted, "{:?}", head.prompts);
    assert_eq!(find_compactions(&env.entries().await).len(), before);
}

/// The context window stays full: without the answer, each further step would ask again.
#[tokio::test(start_paused = true)]
async fn declined_compaction_is_not_asked_again_in_its_prompt() {
    let (mut env, mut worker, _) = env_with_full_window(SmallWindowModel::new(WINDOW)).await;
    env.extensions = vec![Arc::new(CompactionGuard { asks_when_idle: true })];
    worker.extensions.clone_from(&env.extensions);
    handle_nudges(&env, &worker).await;
    let declined = only_request(&env).await.prompt_id;
    answer(&mut env, &worker, json!(false)).await;
    let head = env.head().await.unwrap();
    assert_eq!((head.phase, head.requests.len()), (Phase::Idle, 0));
    assert_eq!(head.compaction_declined, Some(declined));
    assert_eq!(asked_counts(&env).await.into_values().sum::<u32>(), 1);
    assert_eq!(find_compactions(&env.entries().await).len(), 0);
    env.queue_prompt(&worker, &TestEnv::key(), "next").await.unwrap();
    handle_nudges(&env, &worker).await;
    assert_eq!(env.head().await.unwrap().requests.len(), 1, "the next prompt asks");
}
