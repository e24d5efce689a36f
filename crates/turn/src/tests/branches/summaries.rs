//! Moves of the leaf with a summary by the model, and prompts that start at another entry.

use std::time::Duration;

use super::super::test_env::{PauseFailPoint, SmallWindowModel, kill_at, rejecting_sender};
use super::*;
use turnwheel_commands::prompt::{PromptPosition, PromptRequest, accept_prompt};
use turnwheel_conversation::compaction::prompts::BRANCH_PREAMBLE;
use turnwheel_conversation::content::Content;
use turnwheel_conversation::event::EventBody;
use turnwheel_conversation::head::Head;
use turnwheel_platform::ids::EntryId;
use turnwheel_record::documents;
use turnwheel_storage::store::{HEAD_ID, Partition};

/// A conversation with the prompts `one` and `two`, and its model.
async fn two_prompts() -> (TestEnv, Services, Arc<SmallWindowModel>) {
    let mut env = TestEnv::new(1);
    let model = Arc::new(SmallWindowModel::new(30_000));
    env.model_override = Some(model.clone());
    let services = env.new_worker(Arc::new(NoFailPoints));
    for input in ["one", "two"] {
        if input == "one" {
            env.send_prompt_to(&services, "c", input).await;
        } else {
            env.queue_prompt(&services, &TestEnv::key(), input).await.unwrap();
        }
        env.run_until_idle().await;
    }
    (env, services, model)
}

async fn message_id(env: &TestEnv, text: &str) -> String {
    let entries = env.entries().await;
    let found = entries.iter().find(|entry| {
        matches!(entry.body.message(), Some(Message::User(user)) if user.content.joined_text() == text)
    });
    found.unwrap().base.entry_id.to_string()
}

async fn navigate(
    services: &Services,
    entry_id: &str,
    label: Option<&str>,
) -> Result<serde_json::Value, CommandError> {
    let request = LeafRequest {
        entry_id: Some(entry_id.to_owned()),
        label: label.map(ToOwned::to_owned),
        summarize: Some(true),
        instructions: Some("numbers".to_owned()),
        ..LeafRequest::default()
    };
    let response = move_leaf(services, &TestEnv::key(), &request, &idempotency("navigate")).await?;
    Ok(response.body.unwrap().to_value())
}

fn summaries(entries: &[Entry]) -> Vec<&turnwheel_conversation::entry::BranchSummary> {
    let summary = |entry: &Entry| matches!(&entry.body, EntryBody::BranchSummary(_));
    let found = entries.iter().filter(|entry| summary(entry));
    found
        .filter_map(|entry| {
            if let EntryBody::BranchSummary(branch) = &entry.body { Some(branch) } else { None }
        })
        .collect()
}

/// Every stored version of the head.
fn heads(env: &TestEnv) -> Vec<Head> {
    let history = env.store.history(&Partition::Conversation(TestEnv::key()), HEAD_ID);
    history.iter().flatten().map(|stored| documents::read_head(stored).unwrap()).collect()
}

async fn event_names(env: &TestEnv) -> Vec<String> {
    env.events().await.iter().map(|event| event.body.name()).collect()
}

#[tokio::test(start_paused = true)]
async fn summary_and_leaf_are_one_commit() {
    let (mut env, services, model) = two_prompts().await;
    let (target, old_leaf) = (message_id(&env, "two").await, env.leaf().await);
    let accepted = navigate(&services, &target, Some("numbers")).await.unwrap();
    assert_eq!((&accepted["moved"], &accepted["text"]), (&json!(false), &json!("two")));
    assert_eq!(accepted["leafId"].as_str(), old_leaf.as_deref());
    env.run_until_idle().await;
    let entries = env.entries().await;
    let [summary] = summaries(&entries)[..] else { panic!("{entries:#?}") };
    assert_eq!(summary.summary, format!("{BRANCH_PREAMBLE}## Goal\nTo count."));
    assert_eq!(Some(summary.from_id.as_str()), old_leaf.as_deref());
    assert_eq!((summary.calls, model.summary_count()), (Some(1), 1));
    let context = env.context().await;
    assert_eq!((context.len(), context[0].as_str()), (3, "user:one"));
    assert!(context[2].starts_with("branchSummary:"), "{context:?}");
    let heads = heads(&env);
    let before: Vec<&Head> = heads.iter().filter(|head| head.phase.is_branch_summary()).collect();
    assert!(!before.is_empty());
    for head in before {
        assert_eq!(head.leaf_id.as_ref().map(EntryId::as_str), old_leaf.as_deref());
        assert_eq!(head.min_reader, 6, "an older worker would compact the path");
    }
    let head = env.head().await.unwrap();
    assert_eq!(head.labels.values().collect::<Vec<_>>(), ["numbers"]);
    assert!(head.min_reader < 6 && head.usage.total_tokens > 0, "{head:#?}");
    let names = event_names(&env).await;
    let last = &names[names.len() - 4..];
    let expected = ["branch_summary_start", "session_tree", "branch_summary_end", "agent_settled"];
    assert_eq!(last, expected);
    env.queue_prompt(&services, &TestEnv::key(), "three").await.unwrap();
    env.run_until_idle().await;
    assert_eq!(env.context().await.len(), 5, "the next prompt continues after the summary");
}

#[tokio::test(start_paused = true)]
async fn failed_summary_leaves_the_leaf() {
    let (mut env, services, model) = two_prompts().await;
    *model.summary_failures.lock().unwrap() = vec!["the key is wrong"];
    let (target, old_leaf) = (message_id(&env, "two").await, env.leaf().await);
    navigate(&services, &target, None).await.unwrap();
    env.run_until_idle().await;
    assert!(summaries(&env.entries().await).is_empty());
    let events = env.events().await;
    let end = events.iter().find_map(|event| {
        if let EventBody::BranchSummaryEnd(end) = &event.body { Some(end) } else { None }
    });
    let reason = end.unwrap().error_message.as_deref().unwrap();
    assert_eq!(reason, "Branch summarization failed: the key is wrong");
    assert!(!event_names(&env).await.contains(&"session_tree".to_owned()));
    let path = env.path().await;
    assert!(path.iter().any(|entry| Some(entry.base.entry_id.as_str()) == old_leaf.as_deref()));
    let failed = |entry: &&Arc<Entry>| matches!(entry.body, EntryBody::FailedSummary(_));
    assert_eq!(path.iter().filter(failed).count(), 1, "its usage is recorded");
}

#[tokio::test(start_paused = true)]
async fn kill_around_a_summary_moves_once() {
    for fail_point in ["navigate.before", "navigate.after", "summary.before", "summary.after"] {
        let (mut env, services, model) = two_prompts().await;
        *model.summary_failures.lock().unwrap() = vec!["503"];
        let target = message_id(&env, "two").await;
        navigate(&services, &target, None).await.unwrap();
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let victim = env.new_worker(pause.clone());
        kill_at(victim, &pause).await;
        tokio::time::sleep(Duration::from_secs(66)).await;
        env.run_until_idle().await;
        let entries = env.entries().await;
        assert_eq!(summaries(&entries).len(), 1, "{fail_point}");
        assert!(model.summary_count() <= 3, "{fail_point}: at most one billed summary is lost");
        let moves = event_names(&env).await.iter().filter(|name| *name == "session_tree").count();
        assert_eq!((moves, env.context().await.len()), (1, 3), "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn writes_and_files_of_the_branch_are_in_its_summary() {
    let mut env = TestEnv::with_script(1, |results, input| match (results, input) {
        (0, "pay") => vec![super::super::test_env::call("c1", "pay", 0)],
        _ => vec![super::super::test_env::text("done")],
    });
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt_to(&services, "c", "pay").await;
    env.run_until_idle().await;
    let target = message_id(&env, "pay").await;
    let accepted = navigate(&services, &target, None).await.unwrap();
    assert_eq!(accepted["writesLeft"][0]["tool"], "pay");
    env.run_until_idle().await;
    let entries = env.entries().await;
    let summary = &summaries(&entries)[0].summary;
    let effect = accepted["writesLeft"][0]["effectId"].as_str().unwrap();
    assert!(summary.contains(&format!("\npay ({effect}): done\n</writes>")), "{summary}");
}

async fn send_at(
    services: &Services,
    input: &str,
    at: Option<&str>,
) -> Result<serde_json::Value, CommandError> {
    let request = PromptRequest {
        input: Some(Content::Text(input.to_owned())),
        at: PromptPosition::Entry(at.map(ToOwned::to_owned)),
        ..PromptRequest::default()
    };
    let key = idempotency(input);
    let accepted =
        accept_prompt(services, &TestEnv::key(), request, &key, &rejecting_sender()).await?;
    Ok(accepted.body.unwrap().to_value())
}

#[tokio::test(start_paused = true)]
async fn edited_prompt_moves_and_starts_in_one_commit() {
    let (mut env, services, _) = two_prompts().await;
    let (target, old_leaf) = (message_id(&env, "two").await, env.leaf().await);
    let accepted = send_at(&services, "three", Some(&target)).await.unwrap();
    let busy = send_at(&services, "four", None).await.unwrap_err().to_string();
    assert!(busy.contains("already running"), "an accepted prompt counts: {busy}");
    env.run_until_idle().await;
    let context = env.context().await;
    assert_eq!((context.len(), context[2].as_str()), (4, "user:three"));
    for head in heads(&env) {
        let is_there =
            head.prompts.iter().any(|span| Some(span.id.as_str()) == accepted["promptId"].as_str());
        let is_left =
            head.seq > 8 && head.leaf_id.as_ref().map(EntryId::as_str) != old_leaf.as_deref();
        assert_eq!(is_there, is_left, "move and prompt are one commit: {head:#?}");
    }
    let names = event_names(&env).await;
    let moved = names.iter().position(|name| name == "session_tree").unwrap();
    assert_eq!(names[moved + 1], "prompt.created");
    assert_eq!(env.head().await.unwrap().prompts.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn queued_edit_waits_for_the_end_of_the_run() {
    let (mut env, services, _) = two_prompts().await;
    let target = message_id(&env, "two").await;
    // Both are accepted while nothing runs: the second write wins the race for the inbox.
    let (one, other) = tokio::join!(
        send_at(&services, "three", Some(&target)),
        send_at(&services, "four", Some(&target)),
    );
    let accepted = [one, other].into_iter().flatten().count();
    env.run_until_idle().await;
    let head = env.head().await.unwrap();
    assert_eq!(head.prompts.len(), 2 + accepted);
    let roots = env.events().await;
    let starts = roots.iter().filter(|event| event.body.name() == "agent_start").count();
    assert_eq!(starts, 2 + accepted, "each branch has a run of its own");
}
