//! Moves of the leaf and forks that wait for an answer: crashes and lost commits ask no question
//! twice, and make each change once.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::call_approval::handle_nudges;
use super::questions::asked_counts;
use super::test_env::{TestEnv, idempotency, owner, text, usual_queue_faults, usual_store_faults};
use turnwheel_commands::fork::{ForkRequest, fork_conversation};
use turnwheel_commands::leaf::{LeafRequest, move_leaf};
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::event::EventBody;
use turnwheel_conversation::message::Message;
use turnwheel_extensions::{
    Extension, HookContext, HookError, PendingFork, PendingLeafMove, SessionDecision,
    SummaryOverride,
};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_queries::inbox::read_input;
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::services::Services;
use turnwheel_storage::store::memory as stores;

/// Asks before each move and each fork.
#[derive(Debug)]
struct Careful;

#[async_trait]
impl Extension for Careful {
    fn name(&self) -> &'static str {
        "careful"
    }

    async fn before_leaf_move(
        &self,
        cx: &HookContext,
        _pending: &PendingLeafMove<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        let is_allowed = cx.confirm("move", "Move?")?;
        let summary = SummaryOverride::Summary { summary: "left".to_owned(), details: None };
        Ok(Some(if is_allowed { summary } else { SummaryOverride::Cancel }))
    }

    async fn before_session_fork(
        &self,
        cx: &HookContext,
        _fork: &PendingFork<'_>,
    ) -> Result<SessionDecision, HookError> {
        let is_allowed = cx.confirm("fork", "Fork?")? && cx.confirm("sure", "Sure?")?;
        Ok(if is_allowed { SessionDecision::Continue } else { SessionDecision::Cancel })
    }
}

fn says_done(_results: usize, _input: &str) -> Vec<Value> {
    vec![text("done")]
}

fn is_user_message(entry: &Entry) -> bool {
    matches!(entry.body.message(), Some(Message::User(_)))
}

/// An idle conversation with two prompts, its worker, and the id of the second message of the user.
async fn env_with_two_prompts(seed: u64) -> (TestEnv, Services, String) {
    let mut env = TestEnv::with_script(seed, says_done);
    env.extensions = vec![Arc::new(Careful)];
    let worker = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&worker).await;
    handle_nudges(&env, &worker).await;
    env.queue_prompt(&worker, &TestEnv::key(), "next").await.unwrap();
    handle_nudges(&env, &worker).await;
    let entries = env.entries().await;
    let last = entries.iter().rfind(|entry| is_user_message(entry)).unwrap();
    let id = last.base.entry_id.to_string();
    (env, worker, id)
}

async fn request_move(worker: &Services, entry_id: &str) {
    let request = LeafRequest {
        entry_id: Some(entry_id.to_owned()),
        summary: Some("mine".to_owned()),
        label: Some("back".to_owned()),
        ..LeafRequest::default()
    };
    let moved = move_leaf(worker, &TestEnv::key(), &request, &idempotency("move")).await.unwrap();
    assert_eq!(moved.status, 202);
}

async fn request_fork(worker: &Services, entry_id: &str, conversation_id: Option<&str>) {
    let request = ForkRequest {
        entry_id: entry_id.to_owned(),
        position: None,
        conversation_id: conversation_id.map(ToOwned::to_owned),
    };
    let key = TestEnv::key();
    let forked = fork_conversation(worker, &key, request, &fork_key()).await.unwrap();
    assert_eq!(forked.status, 202);
}

fn fork_key() -> Idempotency {
    Idempotency { route: "POST /conversations/{id}/fork".to_owned(), ..idempotency("fork") }
}

/// The response of the stored request.
async fn result(worker: &Services, request: &Idempotency) -> Value {
    let id = request.input_id(&TestEnv::key());
    let (view, _) = read_input(worker, &TestEnv::key(), id.as_str()).await.unwrap();
    view.result.expect("it has ended").to_value()
}

/// Runs with crashes at every fail point, lost commits and lost wake-up messages.
async fn run_with_faults(env: &mut TestEnv) {
    env.store.set_faults(usual_store_faults());
    env.queue.set_faults(usual_queue_faults());
    env.crash_percent = 6;
    env.run_until_idle().await;
    env.store.set_faults(stores::StoreFaults::default());
    env.crash_percent = 0;
}

#[tokio::test(start_paused = true)]
async fn crashes_move_the_leaf_once_after_one_question() {
    for seed in 0..60 {
        let (mut env, worker, target) = env_with_two_prompts(seed).await;
        request_move(&worker, &target).await;
        run_with_faults(&mut env).await;
        let head = env.head().await.unwrap();
        assert!(head.waiting_commands.is_empty() && head.requests.is_empty(), "seed {seed}");
        let moved = result(&worker, &idempotency("move")).await;
        assert_eq!(moved["moved"], true, "seed {seed}: {moved}");
        assert_eq!(moved["leafId"].as_str(), Some(head.leaf_id.unwrap().as_str()), "seed {seed}");
        let entries = env.entries().await;
        let summaries = entries.iter().filter_map(|entry| {
            if let EntryBody::BranchSummary(summary) = &entry.body { Some(summary) } else { None }
        });
        let summaries: Vec<_> =
            summaries.map(|it| json!([it.summary, it.from_id.as_str()])).collect();
        assert_eq!(summaries, [json!(["left", moved["oldLeafId"]])], "seed {seed}");
        let labels = head.labels.values().collect::<Vec<_>>();
        assert_eq!(labels, ["back"], "seed {seed}");
        let events = env.events().await;
        let moves = events.iter().filter(|it| matches!(it.body, EventBody::SessionTree(_)));
        assert_eq!(moves.count(), 1, "seed {seed}");
        assert_eq!(asked_counts(&env).await.into_values().collect::<Vec<_>>(), [1], "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn crashes_make_one_fork_after_its_questions() {
    for seed in 0..60 {
        let (mut env, worker, target) = env_with_two_prompts(seed).await;
        let before = env.head().await.unwrap();
        let given = (seed % 2 == 0).then_some("f");
        request_fork(&worker, &target, given).await;
        run_with_faults(&mut env).await;
        let head = env.head().await.unwrap();
        assert!(head.waiting_commands.is_empty() && head.requests.is_empty(), "seed {seed}");
        assert_eq!(head.prompts, before.prompts, "seed {seed}: the source stays");
        let forked = result(&worker, &fork_key()).await;
        let id = forked["conversation"]["id"].as_str().unwrap_or_else(|| panic!("{forked}"));
        assert!(given.is_none_or(|given| given == id), "seed {seed}: {id}");
        let fork = owner().conversation_key(id);
        let copied = env.entries_of(&fork).await;
        assert_eq!(copied.iter().filter(|it| is_user_message(it)).count(), 1, "seed {seed}");
        let parent = env.head_of(&fork).await.unwrap().parent.unwrap();
        assert_eq!(parent.conversation_id, before.conversation_id, "seed {seed}");
        let asked: Vec<u32> = asked_counts(&env).await.into_values().collect();
        assert_eq!(asked, [1, 1], "seed {seed}");
    }
}
