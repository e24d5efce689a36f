//! Queued inbox items: applied when they are due, without disturbing the running prompt.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::test_env::{APPROVAL_EXPIRES, TestEnv, call, text};
use crate::delivery::handle;
use turnwheel_commands::prompt_queue::{accept_queue_message, put_back};
use turnwheel_conversation::entry::{EntryBody, PromptState};
use turnwheel_conversation::head::State;
use turnwheel_conversation::inbox::{IdempotencyRecord, InboxBody, InboxItem};
use turnwheel_conversation::notification::Notification;
use turnwheel_conversation::phase::Phase;
use turnwheel_extensions::{Extension, HookContext, HookError, InputDecision, PromptText};
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::{ConversationKey, InputId};
use turnwheel_queries::backlog::{BacklogQuery, report_backlog};
use turnwheel_queries::why::{ServiceStatus, WaitsFor, explain_conversation};
use turnwheel_record::certain_write::with_inbox_count;
use turnwheel_record::contract::INBOX_ITEMS_MAX;
use turnwheel_record::documents;
use turnwheel_record::error::DeliveryOutcome;
use turnwheel_record::notifications::notify;
use turnwheel_record::notifications::sender::{NotificationSender, SendOutcome};
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _};
use turnwheel_storage::store::{ConversationStore as _, DocumentKind, Partition, Write};

/// The first prompt requests an approval; all others get a text.
fn calls_gated_first(results: usize, input: &str) -> Vec<Value> {
    if input == "go" && results == 0 { vec![call("c1", "gated", 0)] } else { vec![text(input)] }
}

#[tokio::test(start_paused = true)]
async fn queued_prompts_run_in_order_up_to_the_bound() {
    let mut env = TestEnv::with_script(1, calls_gated_first);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.deliver().await;
    assert_eq!(env.head().await.unwrap().state(), State::WaitingForApproval);
    let names: Vec<String> =
        (0..INBOX_ITEMS_MAX).map(|number| format!("prompt {number:03}")).collect();
    for name in &names {
        env.queue_prompt(&services, &TestEnv::key(), name).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // An inbox read without effect does no harm.
    while env.deliver().await {}
    let head = env.head().await.unwrap();
    assert_eq!((head.state(), head.waiting_items), (State::WaitingForApproval, INBOX_ITEMS_MAX));
    env.run_until_idle().await;
    let entries = env.entries().await;
    let texts: Vec<String> = entries
        .iter()
        .filter_map(|entry| serde_json::to_value(entry.body.message()?).ok())
        .filter(|message| message["role"] == "user")
        .map(|message| message["content"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(texts[0], "go");
    assert_eq!(texts[1..], names);
    let is_completed = |entry: &&turnwheel_conversation::entry::Entry| matches!(&entry.body, EntryBody::PromptEnd(end) if end.state == PromptState::Completed);
    assert_eq!(entries.iter().filter(is_completed).count(), names.len() + 1);
}

#[tokio::test(start_paused = true)]
async fn inbox_read_is_not_a_failed_attempt() {
    let mut env = TestEnv::with_script(2, calls_gated_first);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.deliver().await;
    for number in 0..10 {
        env.queue_prompt(&services, &TestEnv::key(), &format!("prompt {number}")).await.unwrap();
        handle(&services, &TestEnv::nudge()).await.unwrap();
    }
    let head = env.head().await.unwrap();
    assert_eq!((head.leases_without_progress, head.state()), (0, State::WaitingForApproval));
}

#[tokio::test(start_paused = true)]
async fn unknown_inbox_item_is_left_for_newer_version() {
    let mut env = TestEnv::with_script(3, calls_gated_first);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let partition = Partition::Conversation(TestEnv::key());
    let body: InboxBody = serde_json::from_value(json!({"command": {"name": "later"}})).unwrap();
    let item = InboxItem {
        input_id: InputId::new("later"),
        accepted_at: turnwheel_platform::clock::Timestamp(1),
        idempotency: IdempotencyRecord::default(),
        traceparent: None,
        body,
    };
    let writes = vec![Write::Create(documents::inbox_document(&item))];
    let writes = with_inbox_count(writes, Some(item.accepted_at));
    env.store.write(&partition, writes).await.unwrap();
    while env.head().await.unwrap().prompt.is_some() || env.entries().await.is_empty() {
        env.deliver().await;
        env.decide_requests().await;
    }
    let commits = env.store.commit_count();
    assert_eq!(handle(&services, &TestEnv::nudge()).await.unwrap(), DeliveryOutcome::NoWork);
    assert_eq!(env.store.commit_count(), commits, "no delivery repeats the work");
    let left = env.store.documents(&partition);
    let left: Vec<_> =
        left.iter().filter(|stored| stored.document.kind == DocumentKind::Inbox).collect();
    assert_eq!(left.len(), 1);
    let head = env.head().await.unwrap();
    assert_eq!(head.inbox_count, Some(1));
    assert!(head.due.is_some_and(|due| due > services.clock.now()), "a newer worker looks again");
}

#[tokio::test(start_paused = true)]
async fn undecided_request_expires_and_prompt_continues() {
    let mut env = TestEnv::with_script(4, calls_gated_first);
    env.undecided_percent = 100;
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    let entries = env.entries().await;
    let decided: Vec<_> = entries
        .iter()
        .filter_map(|entry| {
            if let EntryBody::Decision(decided) = &entry.body {
                Some(&decided.decision)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(decided.len(), 1);
    assert_eq!(decided[0].decided_by, "expiry");
    let asked_at = entries.iter().find(|entry| matches!(entry.body, EntryBody::Request(_)));
    let waited = asked_at.unwrap().base.timestamp.until(decided[0].decided_at);
    assert!(
        waited >= APPROVAL_EXPIRES && waited < APPROVAL_EXPIRES + Duration::from_mins(3),
        "{waited:?}"
    );
    assert!(env.executions.lock().unwrap().is_empty(), "the call never ran");
}

#[tokio::test(start_paused = true)]
async fn decision_just_before_expiry_is_the_only_one() {
    let mut env = TestEnv::with_script(5, calls_gated_first);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.deliver().await;
    tokio::time::sleep(APPROVAL_EXPIRES.saturating_sub(Duration::from_millis(1))).await;
    // The approver decides just in time; the worker runs after the expiry.
    env.decide_requests().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    env.run_until_idle().await;
    let entries = env.entries().await;
    let decisions = entries.iter().filter(|entry| matches!(entry.body, EntryBody::Decision(_)));
    assert_eq!(decisions.count(), 1);
    assert!(env.executions.lock().unwrap().values().eq([&1]), "the approved call ran once");
}

#[tokio::test(start_paused = true)]
async fn prompt_from_agent_prompts_queue_runs_after_another() {
    let mut env = TestEnv::with_script(6, calls_gated_first);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.deliver().await;
    let message = json!({"tenantId": "t", "userId": "u", "conversationId": "c", "input": "later"});
    let accept = accept_queue_message;
    accept(&services, &message.to_string(), "message-1").await.unwrap();
    env.run_until_idle().await;
    let head = env.head().await.unwrap();
    assert_eq!((head.prompts.len(), head.phase), (2, Phase::Idle));
    assert_eq!(head.due, head.metering.settle_at, "no other work is pending");
    assert_eq!(env.queue.length(queue::TURNS).await.unwrap_or(0), 0);
    // The key still identifies the same request.
    let again = accept(&services, &message.to_string(), "message-1").await;
    assert!(again.is_ok());
    env.run_until_idle().await;
    assert_eq!(env.head().await.unwrap().prompts.len(), 2);
}

/// Sender that records the notifications.
#[derive(Debug, Default)]
struct RejectionSender {
    sent: Mutex<Vec<Notification>>,
}

#[async_trait]
impl NotificationSender for RejectionSender {
    async fn send(&self, _key: &ConversationKey, notice: &Notification) -> SendOutcome {
        self.sent.lock().unwrap().push(notice.clone());
        SendOutcome::Accepted
    }
}

/// The conversation of a refused message may not exist: nothing of it stays in the store.
#[tokio::test(start_paused = true)]
async fn refused_queue_message_is_notified_once_and_leaves_nothing() {
    let mut env = TestEnv::new(1);
    let mut services = env.new_worker(Arc::new(NoFailPoints));
    let sender = Arc::new(RejectionSender::default());
    services.notification_sender = Some(sender.clone());
    // The host may deliver a refused message twice.
    for (text, id) in [("%%%", "m1"), ("%%%", "m1"), ("%%%", "m2")] {
        accept_queue_message(&services, text, id).await.unwrap();
    }
    let mut partitions = Vec::new();
    for message in env.queue.receive(queue::NOTIFY, 32, Duration::from_secs(1)).await.unwrap() {
        let nudge: Nudge = serde_json::from_str(&message.text).unwrap();
        partitions.push(Partition::Conversation(nudge.key.clone()));
        notify(&services, &nudge).await.unwrap();
    }
    let sent = sender.sent.lock().unwrap();
    let ids: BTreeSet<&str> = sent.iter().map(|notice| notice.id.as_str()).collect();
    assert_eq!((sent.len(), ids.len(), partitions.len()), (2, 2, 3));
    assert!(sent.iter().all(|notice| notice.kind == "prompt.rejected"));
    for partition in partitions {
        assert!(env.store.documents(&partition).is_empty(), "{partition:?}");
    }
}

/// Extension that refuses each input while it is down.
#[derive(Debug, Default)]
struct Moderator {
    is_up: AtomicBool,
}

#[async_trait]
impl Extension for Moderator {
    fn name(&self) -> &'static str {
        "moderator"
    }

    fn is_input_required(&self) -> bool {
        true
    }

    async fn transform_input(
        &self,
        _cx: &HookContext,
        _input: &PromptText,
    ) -> Result<InputDecision, HookError> {
        if self.is_up.load(Ordering::Relaxed) {
            return Ok(InputDecision::Continue);
        }
        Err(HookError::new("its server answers 500"))
    }
}

#[tokio::test(start_paused = true)]
async fn queue_message_waits_as_long_as_an_extension_is_down() {
    let mut env = TestEnv::new(9);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    let moderator = Arc::new(Moderator::default());
    let services = Services { extensions: vec![moderator.clone()], ..services };
    let message = json!({"tenantId": "t", "userId": "u", "conversationId": "c", "input": "later"});
    env.queue.send(queue::PROMPTS, message.to_string(), Duration::ZERO).await.unwrap();
    let (began, mut attempts) = (env.clock.monotonic(), 0);
    let mut waits_seen = 0;
    while env.queue.length(queue::PROMPTS).await.unwrap() > 0 {
        moderator.is_up.store(attempts == 90, Ordering::Relaxed);
        for received in env.queue.receive(queue::PROMPTS, 1, Duration::from_mins(1)).await.unwrap()
        {
            attempts += 1;
            if let Err(error) = accept_queue_message(&services, &received.text, &received.id).await
            {
                put_back(&services, &received.text, &received.id, error).await.unwrap();
                let (store, now) = (&*services.store, env.clock.now());
                let key = TestEnv::key();
                let why =
                    explain_conversation(store, &key, ServiceStatus::Remote, now).await.unwrap();
                waits_seen +=
                    u32::from(why.why.contains("moderator") && why.waits_for == WaitsFor::Message);
                let query = BacklogQuery::default();
                let listed =
                    report_backlog(store, &query, ServiceStatus::Remote, now).await.unwrap();
                assert_eq!(listed.items.len(), 1, "`ls` shows it");
            }
            env.queue.delete(queue::PROMPTS, &received.id, &received.pop_receipt).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!((attempts, waits_seen), (91, 90));
    assert!(env.clock.monotonic().saturating_sub(began) > Duration::from_hours(2));
    assert_eq!(env.queue.length("agent-prompts-poison").await.unwrap_or(0), 0);
    // A copy that was put back twice is accepted once.
    accept_queue_message(&services, &message.to_string(), "another").await.unwrap();
    env.run_until_idle().await;
    let head = env.head().await.unwrap();
    assert_eq!((head.prompts.len(), head.waiting_message), (3, None));
}

#[tokio::test(start_paused = true)]
async fn mark_of_a_removed_queue_message_expires() {
    let mut env = TestEnv::new(9);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    let services = Services { extensions: vec![Arc::new(Moderator::default())], ..services };
    let text =
        json!({"tenantId": "t", "userId": "u", "conversationId": "c", "input": "x"}).to_string();
    let error = accept_queue_message(&services, &text, "m").await.unwrap_err();
    put_back(&services, &text, "m", error).await.unwrap();
    assert!(env.head().await.unwrap().waiting_message.is_some());
    tokio::time::sleep(Duration::from_mins(15)).await;
    env.run_sweep().await;
    while env.deliver().await {}
    let head = env.head().await.unwrap();
    assert_eq!((head.waiting_message, head.due), (None, None));
}
