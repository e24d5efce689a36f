//! Queued inbox items: applied when they are due, without disturbing the running prompt.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::bench::{Bench, GATE_EXPIRES, call, text};
use crate::agent::entry::{EntryBody, PromptState};
use crate::agent::head::State;
use crate::agent::inbox::{Admission, InboxBody, InboxItem};
use crate::agent::phase::Phase;
use crate::ids::InputId;
use crate::queue::{self, Queue as _};
use crate::store::{ConversationStore as _, Kind, Partition, Write};
use crate::turn::delivery::{Handled, handle};
use crate::turn::{NoProbe, record};

/// The first prompt requests an approval; all others get a text.
fn asks_first(results: usize, said: &str) -> Vec<Value> {
    if said == "go" && results == 0 { vec![call("c1", "gated", 0)] } else { vec![text(said)] }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_queued_prompts_is_answered_one_after_the_other() {
    let mut bench = Bench::with(1, asks_first);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.deliver().await;
    assert_eq!(bench.head().await.unwrap().state(), State::WaitingForApproval);
    let names: Vec<String> = (0..100).map(|number| format!("prompt {number:03}")).collect();
    for name in &names {
        bench.queue_up(&world, &Bench::key(), name).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // More inputs than one commit holds; an inbox read without effect does no harm.
    while bench.deliver().await {}
    let head = bench.head().await.unwrap();
    assert_eq!((head.state(), head.waiting), (State::WaitingForApproval, 100));
    bench.run().await;
    let entries = bench.entries().await;
    let said: Vec<String> = entries
        .iter()
        .filter_map(|entry| serde_json::to_value(entry.body.message()?).ok())
        .filter(|message| message["role"] == "user")
        .map(|message| message["content"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(said[0], "go");
    assert_eq!(said[1..], names);
    let is_completed = |entry: &&crate::agent::entry::Entry| matches!(&entry.body, EntryBody::PromptEnd(end) if end.state == PromptState::Completed);
    assert_eq!(entries.iter().filter(is_completed).count(), 101);
}

#[tokio::test(start_paused = true)]
async fn looking_at_what_waits_is_not_a_failed_try() {
    let mut bench = Bench::with(2, asks_first);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.deliver().await;
    for number in 0..10 {
        bench.queue_up(&world, &Bench::key(), &format!("prompt {number}")).await.unwrap();
        handle(&world, &Bench::nudge()).await.unwrap();
    }
    let head = bench.head().await.unwrap();
    assert_eq!((head.claims, head.state()), (0, State::WaitingForApproval));
}

#[tokio::test(start_paused = true)]
async fn what_only_a_later_version_understands_is_left_for_it() {
    let mut bench = Bench::with(3, asks_first);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    let partition = Partition::Conversation(Bench::key());
    let body: InboxBody = serde_json::from_value(json!({"command": {"name": "later"}})).unwrap();
    let item = InboxItem {
        input_id: InputId::new("later"),
        accepted_at: crate::clock::Timestamp(1),
        admission: Admission::default(),
        traceparent: None,
        body,
    };
    let document = record::inbox_document(&item, Some(item.accepted_at));
    bench.store.write(&partition, vec![Write::Create(document.clone())]).await.unwrap();
    while bench.head().await.unwrap().prompt.is_some() || bench.entries().await.is_empty() {
        bench.deliver().await;
        bench.decide().await;
    }
    let commits = bench.store.commits();
    assert_eq!(handle(&world, &Bench::nudge()).await.unwrap(), Handled::Nothing);
    assert_eq!(bench.store.commits(), commits, "no delivery repeats the work");
    let left = bench.store.documents(&partition);
    let left: Vec<_> = left.iter().filter(|stored| stored.document.kind == Kind::Inbox).collect();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].document.due, document.due);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_nobody_decides_expires_and_the_prompt_goes_on() {
    let mut bench = Bench::with(4, asks_first);
    bench.ignored_in_a_hundred = 100;
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.run().await;
    let entries = bench.entries().await;
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
    assert!(waited >= GATE_EXPIRES && waited < GATE_EXPIRES + Duration::from_mins(3), "{waited:?}");
    assert!(bench.done.lock().unwrap().is_empty(), "the call never ran");
}

#[tokio::test(start_paused = true)]
async fn a_decision_and_its_expiry_at_the_same_moment_are_one_decision() {
    let mut bench = Bench::with(5, asks_first);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.deliver().await;
    tokio::time::sleep(GATE_EXPIRES.saturating_sub(Duration::from_millis(1))).await;
    // The approver decides just in time; the worker runs after the expiry.
    bench.decide().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    bench.run().await;
    let entries = bench.entries().await;
    let decisions = entries.iter().filter(|entry| matches!(entry.body, EntryBody::Decision(_)));
    assert_eq!(decisions.count(), 1);
    assert!(bench.done.lock().unwrap().values().eq([&1]), "the approved call ran once");
}

#[tokio::test(start_paused = true)]
async fn a_prompt_of_the_queue_behind_another_is_answered() {
    let mut bench = Bench::with(6, asks_first);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.deliver().await;
    let message = json!({"tenantId": "t", "userId": "u", "conversationId": "c", "input": "later"});
    let accept = crate::turn::admission::queued::accept_queued;
    accept(&world, &message.to_string(), "message-1").await.unwrap();
    bench.run().await;
    let head = bench.head().await.unwrap();
    assert_eq!((head.prompts.len(), head.phase), (2, Phase::Idle));
    assert_eq!(head.due, head.books.settle_at, "no other work is pending");
    assert_eq!(bench.queue.length(queue::TURNS).await.unwrap_or(0), 0);
    // The key still identifies the same request.
    let again = accept(&world, &message.to_string(), "message-1").await;
    assert!(again.is_ok());
    bench.run().await;
    assert_eq!(bench.head().await.unwrap().prompts.len(), 2);
}
