//! Actions of extensions in commits.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::test_env::{TestEnv, text};
use crate::commit::CommitKind;
use crate::leased_conversation::{LeasedConversation, acquire_lease};
use turnwheel_conversation::action::{Action, ActionOrigin, HookActions, MessageSpec};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::{CustomMessageEntry, EntryBody};
use turnwheel_conversation::inbox::DeliverAs;
use turnwheel_conversation::step::Input;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::services::Services;
use turnwheel_storage::store::{DocumentKind, Partition};
use turnwheel_test_support::captured_log::CapturedLog;

fn says_hello(_results: usize, _input: &str) -> Vec<Value> {
    vec![text("hello")]
}

fn sends_message() -> Input {
    sends_message_as(None)
}

pub(super) fn sends_message_as(deliver_as: Option<DeliverAs>) -> Input {
    let message = CustomMessageEntry {
        custom_type: "note".to_owned(),
        content: Content::Text("remember".to_owned()),
        display: true,
        details: None,
        extra: Extra::new(),
    };
    let spec = MessageSpec { message, deliver_as, trigger_turn: false };
    let mut hook = HookActions::new("guard", "session_before_compact", ActionOrigin::Kept);
    hook.add(Action::SendMessage(spec)).unwrap();
    Input::HookActions(Box::new(hook))
}

async fn idle_env() -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(1, says_hello);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    (env, services)
}

pub(super) async fn lease(services: &Services) -> LeasedConversation<'_> {
    let ends = Duration::from_hours(1);
    acquire_lease(services, &TestEnv::key(), ends, None).await.unwrap().unwrap()
}

/// Documents of the kind whose ids are of items that hooks made: `due` of each.
fn hook_documents(env: &TestEnv, kind: DocumentKind) -> usize {
    let documents = env.store.select_newest(&Partition::Conversation(TestEnv::key()), kind);
    documents.iter().filter(|it| it.document.id.starts_with("hook_")).count()
}

async fn note_count(env: &TestEnv) -> usize {
    let entries = env.entries().await;
    entries.iter().filter(|it| matches!(it.body, EntryBody::CustomMessage(_))).count()
}

#[tokio::test(start_paused = true)]
async fn message_is_created_and_applied_in_one_commit() {
    let (env, services) = idle_env().await;
    let commits = env.store.commit_count();
    let mut conversation = Box::pin(lease(&services)).await;
    for count in 1..=2 {
        conversation
            .commit_with_inbox(CommitKind::ToolResults, vec![sends_message()])
            .await
            .unwrap();
        assert_eq!(hook_documents(&env, DocumentKind::Receipt), count);
        assert_eq!(note_count(&env).await, count);
    }
    assert_eq!(hook_documents(&env, DocumentKind::Inbox), 0);
    assert_eq!(env.store.commit_count(), commits + 2);
}

#[tokio::test(start_paused = true)]
async fn unknown_tools_that_a_hook_sets_are_logged() {
    let (_env, services) = idle_env().await;
    let mut conversation = Box::pin(lease(&services)).await;
    let sets_tools = |names: &[&str]| {
        let mut hook = HookActions::new("guard", "session_before_compact", ActionOrigin::Kept);
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        hook.add(Action::SetActiveTools(names)).unwrap();
        vec![Input::HookActions(Box::new(hook))]
    };
    let log = CapturedLog::start();
    conversation.commit_with_inbox(CommitKind::ToolResults, sets_tools(&["pay"])).await.unwrap();
    assert!(!log.text().contains("unknown tools"), "{}", log.text());
    conversation
        .commit_with_inbox(CommitKind::ToolResults, sets_tools(&["pay", "nope"]))
        .await
        .unwrap();
    let line = "unknown tools in `activeTools` ignored: the agent clerk has no nope";
    assert_eq!(log.text().matches(line).count(), 1, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn left_over_message_has_due_time() {
    let (mut env, services) = idle_env().await;
    let mut conversation = Box::pin(lease(&services)).await;
    let plan = conversation.state.plan(conversation.services, vec![sends_message()]);
    conversation.commit(CommitKind::PendingWork, plan).await.unwrap();
    assert_eq!(hook_documents(&env, DocumentKind::Inbox), 1);
    assert!(env.head().await.unwrap().due.is_some_and(|due| due <= services.clock.now()));
    assert_eq!(note_count(&env).await, 0);
    conversation.release().await;
    env.run_until_idle().await;
    assert_eq!(hook_documents(&env, DocumentKind::Inbox), 0);
    assert_eq!(note_count(&env).await, 1);
}
