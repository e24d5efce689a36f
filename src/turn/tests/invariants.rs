//! Tests of those invariants in `docs/architecture.md` that need a test of their own.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::bench::{Bench, PauseProbe, Steady, call, idempotency, text};
use crate::agent::entry::EntryBody;
use crate::agent::message::Message;
use crate::store::{Freshness, Kind, Partition, Selection};
use crate::turn::NoProbe;
use crate::turn::admission::Refusal;
use crate::turn::admission::idempotency::Idempotency;
use crate::turn::admission::prompt::{FirstPromptRequest, Sender, WhenBusy, begin_conversation};
use crate::turn::delivery::handle;

const ROUNDS: usize = 10;

fn many_rounds(results: usize, _said: &str) -> Vec<Value> {
    if results < ROUNDS { vec![call("c1", "look", results)] } else { vec![text("done")] }
}

fn pays_once(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "pay", 0)] } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn invariant_01_accepted_means_kept() {
    let mut bench = Bench::with(1, pays_once);
    let world = bench.worker(Arc::new(NoProbe));
    let begin = async |key: &Idempotency| {
        let request = FirstPromptRequest {
            conversation_id: Some("c".to_owned()),
            input: Some(serde_json::from_value(json!("go")).unwrap()),
            ..FirstPromptRequest::default()
        };
        let source = crate::agent::entry::Source::User;
        let sender = Sender { source, traceparent: None, when_busy: WhenBusy::Refuse };
        begin_conversation(&world, &super::bench::owner(), request, key, &sender).await
    };
    let key = idempotency("one");
    let first = begin(&key).await.unwrap();
    let partition = Partition::Conversation(Bench::key());
    let all = Selection::all(Kind::Inbox);
    let inbox = world.store.select(&partition, &all, Freshness::Latest).await;
    assert_eq!(inbox.unwrap().len(), 1, "the item is stored before the response");
    let other = Idempotency { body_hash: "other".to_owned(), ..key.clone() };
    for _ in 0..2 {
        let again = begin(&key).await.unwrap();
        assert_eq!((again.body.as_ref(), again.is_replayed), (first.body.as_ref(), true));
        assert!(matches!(begin(&other).await, Err(Refusal::KeyReused)));
        // In the second iteration the prompt has ended.
        bench.run().await;
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_04_the_answer_is_committed_before_its_tools_start() {
    let mut bench = Bench::with(4, pays_once);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let pause = Arc::new(PauseProbe::new("tool.before"));
    let worker = bench.worker(pause.clone());
    let nudge = Bench::nudge();
    tokio::select! {
        handled = handle(&worker, &nudge) => panic!("{handled:?}"),
        () = pause.reached.notified() => {}
    }
    let entries = bench.entries().await;
    let is_answer = |entry: &crate::agent::entry::Entry| {
        matches!(entry.body.message(), Some(Message::Assistant(_)))
    };
    assert!(entries.iter().any(is_answer));
    assert!(matches!(entries.last().unwrap().body, EntryBody::ToolStarted(_)), "the intent is recorded");
    // That worker is dead. Its write was never sent, but other workers cannot know.
    bench.run().await;
    assert_eq!(*bench.model.answers.lock().unwrap(), 2, "the response is not billed again");
}

#[tokio::test(start_paused = true)]
async fn invariant_14_cost_is_linear() {
    let mut bench = Bench::with(14, many_rounds);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.run().await;
    for number in 0..22 {
        bench.queue_up(&world, &Bench::key(), &format!("prompt {number}")).await.unwrap();
        bench.run().await;
    }
    let partition = Partition::Conversation(Bench::key());
    let mut heads = Vec::new();
    for stored in bench.store.documents(&partition) {
        let history = bench.store.history(&partition, &stored.document.id);
        match stored.document.kind {
            Kind::Entry | Kind::Events => {
                assert_eq!(history.len(), 1, "{} was written again", stored.document.id);
            }
            Kind::Head => heads = history,
            _ => {}
        }
    }
    let sizes = heads.iter().flatten().map(|stored| stored.document.body.text().len());
    let largest = sizes.max().unwrap();
    assert!(largest < 8 * 1024, "the head grew to {largest} bytes");
}

#[tokio::test(start_paused = true)]
async fn a_tool_round_costs_at_most_three_waits_for_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::with(15, many_rounds);
    let steady = Steady::open(folder.path().to_owned());
    bench.use_steady(steady.clone());
    *bench.model.span.lock().unwrap() = Duration::from_millis(1);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    let before = steady.fsyncs();
    bench.run().await;
    let fsyncs = steady.fsyncs() - before;
    // One more commit applies the prompt, and one stores the last response.
    let per_round = (fsyncs - 2).div_ceil(ROUNDS as u64);
    assert!(per_round <= 3, "{fsyncs} fsyncs for {ROUNDS} rounds");
    assert!(fsyncs >= 2 * ROUNDS as u64, "too few fsyncs were counted: {fsyncs}");
}
