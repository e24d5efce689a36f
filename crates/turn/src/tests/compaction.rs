//! Compaction of conversations that exceed their model's context window.

mod ledger;
mod prospects;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::store_requests::handle_next_nudge;
use super::test_env::{
    LoggedRequests as _, PauseFailPoint, RequestLogStore, SmallWindowModel, TestEnv, idempotency,
};
use crate::delivery::handle;
use turnwheel_commands::compact::{CompactRequest, compact};
use turnwheel_commands::patch::patch_conversation;
use turnwheel_conversation::entry::{Entry, EntryBody, PromptState};
use turnwheel_conversation::phase::Phase;
use turnwheel_extensions::{Extension, HookContext, HookError, PendingCompaction, SummaryOverride};
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_queries::why::{ServiceStatus, explain_conversation};
use turnwheel_record::ledger::spending_limits::SpendingLimits;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _};

pub(super) const WINDOW: u64 = 2_000;

/// Creates a conversation with the model, with settings for a small window.
async fn new_env(model: SmallWindowModel) -> (TestEnv, Services, Arc<SmallWindowModel>) {
    new_env_with_budgets(model, Arc::default(), "begin").await
}

/// As `new_env`, with budgets and rates, and with another first prompt.
async fn new_env_with_budgets(
    model: SmallWindowModel,
    money: Arc<SpendingLimits>,
    input: &str,
) -> (TestEnv, Services, Arc<SmallWindowModel>) {
    let mut env = TestEnv::new(1);
    env.budget_limits = money;
    let model = Arc::new(model);
    env.model_override = Some(model.clone());
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt_to(&services, "c", input).await;
    patch_compaction(&services, 300).await;
    (env, services, model)
}

async fn patch_compaction(services: &Services, keep: u64) {
    let compaction = json!({"enabled": true, "reserveTokens": 500, "keepRecentTokens": keep});
    let patch = json!({"settings": {"compaction": compaction, "activeTools": ["look"]}});
    let key = idempotency(&format!("keep {keep}"));
    patch_conversation(services, &TestEnv::key(), patch.as_object().unwrap(), &key, |_| true)
        .await
        .unwrap();
}

/// Handles nudges on one warm worker until the conversation is idle.
pub(super) async fn handle_until_idle(env: &TestEnv, services: &Services) {
    for _ in 0..10_000 {
        let received = env.queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await.unwrap();
        let Some(message) = received.into_iter().next() else {
            if env.head().await.unwrap().phase == Phase::Idle {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        let nudge = serde_json::from_str(&message.text).unwrap();
        handle(services, &nudge).await.unwrap();
        env.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await.unwrap();
    }
    panic!("the conversation never became idle: {:?}", env.head().await);
}

/// A text that is longer than its summary.
fn long_text() -> String {
    "begin with many words ".repeat(30)
}

async fn send_and_settle(env: &TestEnv, services: &Services, input: &str) {
    let seq = async || env.head().await.map(|head| head.seq);
    let before = seq().await;
    env.queue_prompt(services, &TestEnv::key(), input).await.unwrap();
    handle_until_idle(env, services).await;
    assert_ne!(seq().await, before, "an equal text repeats its request: {input}");
}

pub(super) fn find_compactions(
    entries: &[Entry],
) -> Vec<&turnwheel_conversation::entry::Compaction> {
    entries.iter().filter_map(|entry| entry.body.compaction()).collect()
}

async fn event_names(env: &TestEnv) -> Vec<String> {
    env.events().await.iter().map(|event| event.body.name()).collect()
}

async fn last_compaction_end(env: &TestEnv) -> serde_json::Value {
    let events = env.events().await;
    let end = events.iter().rev().find(|event| event.body.name() == "auto_compaction_end");
    serde_json::to_value(&end.expect("no compaction has ended").body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn thousand_turns_fit_a_small_context_window() {
    let (env, services, model) = new_env(SmallWindowModel::new(WINDOW)).await;
    handle_until_idle(&env, &services).await;
    for number in 1..=500 {
        let input = format!("look once more, this is number {number} of them");
        send_and_settle(&env, &services, &input).await;
    }
    let head = env.head().await.unwrap();
    assert!(head.turn >= 1_001, "{} turns", head.turn);
    assert!(head.prompts.iter().all(|prompt| prompt.state == PromptState::Completed));
    assert_eq!(*model.rejected.lock().unwrap(), 0, "no request exceeds the window");
    let entries = env.entries().await;
    let done = find_compactions(&entries);
    assert!(done.len() >= 10, "{} summaries", done.len());
    for compaction in &done {
        let details = compaction.details.as_ref().unwrap().to_value();
        let after = details["tokensAfter"].as_u64().unwrap();
        assert!(after < compaction.tokens_before, "{after} of {}", compaction.tokens_before);
        assert!(compaction.tokens_before > WINDOW - 500);
    }
    assert!(done.last().unwrap().summary.contains("Still."), "each summary updates the last one");
    let texts = entries.iter().filter(|entry| match &entry.body {
        EntryBody::Message(message) => message.message.role() == "user",
        _ => false,
    });
    assert_eq!(texts.count(), 501, "the record is complete");
    let asked = model.requests.lock().unwrap();
    // A cut within a turn takes a second call.
    let calls = (1_001 + done.len())..=(1_001 + 2 * done.len());
    assert!(calls.contains(&asked.len()), "{} for {} summaries", asked.len(), done.len());
    let most = asked.iter().map(|(tokens, _)| *tokens).max().unwrap();
    assert!(most <= WINDOW, "{most}");
}

#[tokio::test(start_paused = true)]
async fn compaction_costs_one_delivery_or_one_commit() {
    let mut env = TestEnv::new(1);
    let counting = RequestLogStore::wrap(env.store.clone());
    env.worker_store = counting.clone();
    env.model_override = Some(Arc::new(SmallWindowModel::new(WINDOW)));
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt_to(&services, "c", &"begin with many words ".repeat(380)).await;
    patch_compaction(&services, 10).await;
    // The patch has an entry of its own, of the active tools. The response fills the window.
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    lease (head)
    select inbox
    select entry
    write head, entry, commit, receipt
    write head, commit
    ");
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    lease (head)
    write head
    write head, commit
    ");
    // The prompt fills the window.
    env.queue_prompt(&services, &TestEnv::key(), &"and then more of them ".repeat(320))
        .await
        .unwrap();
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    write head, commit
    write head, commit
    ");
}

/// The actual window is smaller than the declared one, so that only the model detects an overflow.
async fn env_with_overflow(is_enabled: bool) -> (TestEnv, Arc<SmallWindowModel>) {
    let mut model = SmallWindowModel::new(WINDOW);
    model.declared_window = 100_000;
    let (env, services, model) = new_env(model).await;
    handle_until_idle(&env, &services).await;
    if !is_enabled {
        let patch = json!({"settings": {"compaction": {"enabled": false, "reserveTokens": 1, "keepRecentTokens": 1}}});
        let key = idempotency("off");
        patch_conversation(&services, &TestEnv::key(), patch.as_object().unwrap(), &key, |_| true)
            .await
            .unwrap();
    }
    for number in 0..6 {
        send_and_settle(&env, &services, &format!("{number}: {}", "words ".repeat(200))).await;
    }
    (env, model)
}

#[tokio::test(start_paused = true)]
async fn context_overflow_is_compacted_and_retried() {
    let (env, model) = env_with_overflow(true).await;
    let head = env.head().await.unwrap();
    assert!(head.prompts.iter().all(|prompt| prompt.state == PromptState::Completed));
    assert!(*model.rejected.lock().unwrap() >= 1);
    let entries = env.entries().await;
    assert!(!find_compactions(&entries).is_empty());
    let failed = entries.iter().filter(|entry| {
        let answer = entry.body.message().and_then(|message| message.as_assistant());
        answer.is_some_and(turnwheel_conversation::message::AssistantMessage::is_failed)
    });
    assert!(failed.count() >= 1, "the rejected response stays in the record");
    let event_names = event_names(&env).await;
    assert!(
        !event_names.iter().any(|name| name.starts_with("auto_retry")),
        "an overflow is compacted, not retried: {event_names:?}"
    );
    let starts = event_names.iter().filter(|name| *name == "auto_compaction_start").count();
    let ends = event_names.iter().filter(|name| *name == "auto_compaction_end").count();
    assert_eq!(starts, ends);
}

#[tokio::test(start_paused = true)]
async fn context_overflow_fails_prompt_when_compaction_is_disabled() {
    let (env, model) = env_with_overflow(false).await;
    assert_eq!(env.head().await.unwrap().prompts.last().unwrap().state, PromptState::Failed);
    assert_eq!(model.summary_count(), 0);
    let entries = env.entries().await;
    let error = entries.iter().rev().find_map(|entry| match &entry.body {
        EntryBody::PromptEnd(end) => end.error.clone(),
        _ => None,
    });
    assert_eq!(error.unwrap().message, "Your input exceeds the context window of this model.");
}

/// Creates a conversation whose next prompt fills the window before it is sent.
pub(super) async fn env_with_full_window(
    model: SmallWindowModel,
) -> (TestEnv, Services, Arc<SmallWindowModel>) {
    env_with_full_window_and_budgets(model, Arc::default()).await
}

async fn env_with_full_window_and_budgets(
    model: SmallWindowModel,
    money: Arc<SpendingLimits>,
) -> (TestEnv, Services, Arc<SmallWindowModel>) {
    let (env, services, model) = new_env_with_budgets(model, money, "begin").await;
    handle_until_idle(&env, &services).await;
    patch_compaction(&services, 10).await;
    send_and_settle(&env, &services, &"words ".repeat(550)).await;
    env.queue_prompt(&services, &TestEnv::key(), &"more ".repeat(450)).await.unwrap();
    (env, services, model)
}

#[tokio::test(start_paused = true)]
async fn crash_during_compaction_leaves_one_summary_and_response() {
    let fail_points = [
        "pending-work.before",
        "pending-work.after",
        "compaction.before",
        "compaction.after",
        "summary.before",
        "summary.after",
        "model.before",
        "response.before",
        "response.after",
    ];
    for fail_point in fail_points {
        let (mut env, _, model) = env_with_full_window(SmallWindowModel::new(WINDOW)).await;
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let dying = env.new_worker(pause.clone());
        let nudge = TestEnv::nudge();
        pause.kill(handle(&dying, &nudge)).await;
        tokio::time::sleep(Duration::from_secs(66)).await;
        env.run_until_idle().await;
        let entries = env.entries().await;
        assert_eq!(find_compactions(&entries).len(), 1, "{fail_point}");
        assert!(model.summary_count() <= 2, "{fail_point}: at most one billed summary is lost");
        assert_eq!(*model.rejected.lock().unwrap(), 0, "{fail_point}");
        let head = env.head().await.unwrap();
        assert_eq!(head.prompts.last().unwrap().state, PromptState::Completed, "{fail_point}");
        let events = env.events().await;
        assert!(events.iter().map(|event| event.n).eq(1..=head.event_seq), "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_concurrent_workers_create_one_summary() {
    let (mut env, one, model) = env_with_full_window(SmallWindowModel::new(WINDOW)).await;
    let other = env.new_worker(Arc::new(NoFailPoints));
    let nudge = TestEnv::nudge();
    let _ = tokio::join!(handle(&one, &nudge), handle(&other, &nudge), handle(&one, &nudge));
    env.run_until_idle().await;
    assert_eq!(find_compactions(&env.entries().await).len(), 1);
    assert!(model.summary_count() <= 2);
}

#[tokio::test(start_paused = true)]
async fn truncated_or_failed_summary_is_retried_not_stored() {
    let (env, services, model) = env_with_full_window(SmallWindowModel::new(WINDOW)).await;
    *model.summary_failures.lock().unwrap() = vec!["cut", "503"];
    handle_until_idle(&env, &services).await;
    let entries = env.entries().await;
    let summaries: Vec<&str> =
        find_compactions(&entries).iter().map(|compaction| compaction.summary.as_str()).collect();
    assert_eq!(summaries, ["## Goal\nTo count."]);
    assert_eq!(model.summary_count(), 3);
    let event_names = event_names(&env).await;
    let waits = event_names.iter().filter(|name| *name == "summarization_retry_scheduled").count();
    assert_eq!(waits, 2);
    let usage = find_compactions(&entries)[0].usage.clone().unwrap();
    let head = env.head().await.unwrap();
    assert!(
        head.usage.total_tokens > usage.total_tokens * 2,
        "the truncated summary is billed too"
    );
}

#[tokio::test(start_paused = true)]
async fn why_names_the_cause_of_a_retried_summary() {
    let (env, services, model) = env_with_full_window(SmallWindowModel::new(WINDOW)).await;
    *model.summary_failures.lock().unwrap() = vec!["503"];
    handle(&services, &TestEnv::nudge()).await.unwrap();
    let phase = env.head().await.unwrap().phase;
    assert!(matches!(phase, Phase::Summary { attempt: 2, .. }), "{phase:?}");
    let view = explain_conversation(
        &*env.worker_store,
        &TestEnv::key(),
        ServiceStatus::Remote,
        env.clock.now(),
    )
    .await;
    let sentence = view.unwrap().why;
    let expected = ": Summarization failed: 503 service unavailable; attempt 2 is due at ";
    assert!(
        sentence.starts_with("The summary failed at ") && sentence.contains(expected),
        "{sentence}"
    );
}

#[tokio::test(start_paused = true)]
async fn failed_compaction_is_reported_and_prompt_continues() {
    for (failure, message) in [
        ("no such deployment", "Auto-compaction failed: Summarization failed: no such deployment"),
        ("long", "Auto-compaction failed: the summary would not shorten"),
    ] {
        let (env, services, model) = env_with_full_window(SmallWindowModel::new(WINDOW)).await;
        // One failure before the response, and one after it.
        *model.summary_failures.lock().unwrap() = vec![failure; 2];
        handle_until_idle(&env, &services).await;
        let end = last_compaction_end(&env).await;
        assert!(end["errorMessage"].as_str().unwrap().starts_with(message), "{end}");
        assert!(find_compactions(&env.entries().await).is_empty(), "{failure}");
        let head = env.head().await.unwrap();
        assert_eq!(head.prompts.last().unwrap().state, PromptState::Completed, "{failure}");
    }
}

async fn request_compaction(env: &TestEnv, services: &Services, key: &str) -> serde_json::Value {
    let request = CompactRequest { instructions: Some("the numbers".to_owned()) };
    let accepted = compact(services, &TestEnv::key(), request, &idempotency(key)).await.unwrap();
    assert_eq!(accepted.status, 202);
    handle_until_idle(env, services).await;
    last_compaction_end(env).await
}

#[tokio::test(start_paused = true)]
async fn requested_compaction_reports_its_result() {
    let (env, services, model) =
        new_env_with_budgets(SmallWindowModel::new(WINDOW), Arc::default(), &long_text()).await;
    handle_until_idle(&env, &services).await;
    let small = request_compaction(&env, &services, "1").await;
    assert_eq!(small["errorMessage"], "Nothing to compact (session too small)");
    patch_compaction(&services, 1).await;
    let done = request_compaction(&env, &services, "2").await;
    assert!(done["entry"].as_u64().is_some() && done["errorMessage"].is_null(), "{done}");
    let again = request_compaction(&env, &services, "3").await;
    assert_eq!(again["errorMessage"], "Already compacted");
    let request = CompactRequest::default();
    let repeated = compact(&services, &TestEnv::key(), request, &idempotency("2")).await.unwrap();
    assert!(repeated.is_replayed);
    assert_eq!(model.summary_count(), 1);
    send_and_settle(&env, &services, "and on").await;
    assert_eq!(env.head().await.unwrap().prompts.len(), 2);
    *model.summary_failures.lock().unwrap() = vec!["long"];
    let long = request_compaction(&env, &services, "4").await;
    let message = long["errorMessage"].as_str().unwrap();
    assert!(message.starts_with("the summary would not shorten"), "{message}");
    assert_eq!(
        find_compactions(&env.entries().await).len(),
        1,
        "a summary that is too long is not stored"
    );
}

#[tokio::test(start_paused = true)]
async fn requested_compaction_aborts_the_running_prompt() {
    let (mut env, services, _) =
        new_env_with_budgets(SmallWindowModel::new(WINDOW), Arc::default(), &long_text()).await;
    handle_until_idle(&env, &services).await;
    patch_compaction(&services, 1).await;
    env.queue_prompt(&services, &TestEnv::key(), "look again").await.unwrap();
    let pause = Arc::new(PauseFailPoint::new("model.before"));
    let busy = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    let asked = async {
        pause.reached.notified().await;
        let key = idempotency("sum up");
        let asked =
            compact(&services, &TestEnv::key(), CompactRequest::default(), &key).await.unwrap();
        let again =
            compact(&services, &TestEnv::key(), CompactRequest::default(), &key).await.unwrap();
        assert!(again.is_replayed && again.body == asked.body);
        let other = idempotency("and once more");
        compact(&services, &TestEnv::key(), CompactRequest::default(), &other).await.unwrap();
        pause.resume.notify_one();
    };
    let (handled, ()) = tokio::join!(handle(&busy, &nudge), asked);
    handled.unwrap();
    handle_until_idle(&env, &services).await;
    let head = env.head().await.unwrap();
    assert_eq!(head.prompts.last().unwrap().state, PromptState::Aborted);
    let names = event_names(&env).await;
    let ends = names.iter().filter(|name| *name == "auto_compaction_end").count();
    let made = find_compactions(&env.entries().await).len();
    assert_eq!((ends, made), (2, 1), "the second request finds nothing to compact: {names:?}");
    let error = last_compaction_end(&env).await["errorMessage"].clone();
    assert_eq!(error, "Already compacted");
}

/// Extension that replaces or cancels the model's summary.
#[derive(Debug)]
struct CompactionHook {
    decision: SummaryOverride,
    calls: Mutex<Vec<String>>,
}

#[async_trait]
impl Extension for CompactionHook {
    fn name(&self) -> &'static str {
        "opinion"
    }

    async fn before_compaction(
        &self,
        _cx: &HookContext,
        ahead: &PendingCompaction<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        let (reason, messages) = (ahead.reason, ahead.messages.len());
        self.calls.lock().unwrap().push(format!("{reason:?} {messages}"));
        Ok(Some(self.decision.clone()))
    }

    async fn after_compaction(&self, _: &HookContext, entry: &Entry) -> Result<(), HookError> {
        let summary = &entry.body.compaction().unwrap().summary;
        self.calls.lock().unwrap().push(format!("kept {summary}"));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn extension_cancels_or_replaces_a_summary() {
    let own = SummaryOverride::Summary { summary: "mine".to_owned(), details: None };
    for (decision, expected) in [
        (SummaryOverride::Cancel, vec!["Threshold 4", "Threshold 5"]),
        (own, vec!["Threshold 4", "kept mine"]),
    ] {
        let (env, mut services, model) = env_with_full_window(SmallWindowModel::new(WINDOW)).await;
        let hook = Arc::new(CompactionHook { decision: decision.clone(), calls: Mutex::default() });
        services.extensions = vec![hook.clone()];
        handle_until_idle(&env, &services).await;
        assert_eq!(*hook.calls.lock().unwrap(), expected);
        assert_eq!(model.summary_count(), 0);
        let entries = env.entries().await;
        let made = find_compactions(&entries);
        assert_eq!(made.len(), usize::from(decision != SummaryOverride::Cancel));
        assert!(made.iter().all(|it| it.summary == "mine" && it.from_hook == Some(true)));
        let end = last_compaction_end(&env).await;
        assert_eq!(end["aborted"], decision == SummaryOverride::Cancel);
        let head = env.head().await.unwrap();
        assert_eq!(head.prompts.last().unwrap().state, PromptState::Completed);
    }
}
