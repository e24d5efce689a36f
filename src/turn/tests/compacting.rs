//! Compaction of conversations that exceed their model's context window.

mod books;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::bench::{Bench, Counting, PauseProbe, Windowed, idempotency};
use super::economy::turn;
use crate::agent::entry::{Entry, EntryBody, PromptState};
use crate::agent::phase::Phase;
use crate::clock::Clock as _;
use crate::extensions::{CompactionAhead, Extension, HookError, Instead};
use crate::ids::ConversationKey;
use crate::queue::{self, Queue as _};
use crate::turn::admission::compact::{CompactRequest, compact};
use crate::turn::admission::patch::patch_conversation;
use crate::turn::delivery::handle;
use crate::turn::money::Money;
use crate::turn::views::why::{Service, why};
use crate::turn::{NoProbe, World};

pub(super) const WINDOW: u64 = 2_000;

/// Creates a conversation with the model, with settings for a small window.
async fn stage(model: Windowed) -> (Bench, World, Arc<Windowed>) {
    bounded_stage(model, Arc::default(), "begin").await
}

/// As `new_env`, with budgets and rates, and with another first prompt.
async fn bounded_stage(
    model: Windowed,
    money: Arc<Money>,
    said: &str,
) -> (Bench, World, Arc<Windowed>) {
    let mut bench = Bench::new(1);
    bench.money = money;
    let model = Arc::new(model);
    bench.other_model = Some(model.clone());
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask_in(&world, "c", said).await;
    patch(&world, 300).await;
    (bench, world, model)
}

async fn patch(world: &World, keep: u64) {
    let compaction = json!({"enabled": true, "reserveTokens": 500, "keepRecentTokens": keep});
    let patch = json!({"settings": {"compaction": compaction, "activeTools": ["look"]}});
    let key = idempotency(&format!("keep {keep}"));
    patch_conversation(world, &Bench::key(), patch.as_object().unwrap(), &key, |_| true)
        .await
        .unwrap();
}

/// Handles nudges on one warm worker until the conversation is idle.
pub(super) async fn settle(bench: &Bench, world: &World) {
    for _ in 0..10_000 {
        let received = bench.queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await.unwrap();
        let Some(message) = received.into_iter().next() else {
            if bench.head().await.unwrap().phase == Phase::Idle {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        let nudge = serde_json::from_str(&message.text).unwrap();
        handle(world, &nudge).await.unwrap();
        bench.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await.unwrap();
    }
    panic!("the conversation never became idle: {:?}", bench.head().await);
}

/// A text that is longer than its summary.
fn many_words() -> String {
    "begin with many words ".repeat(30)
}

async fn say(bench: &Bench, world: &World, said: &str) {
    bench.queue_up(world, &Bench::key(), said).await.unwrap();
    settle(bench, world).await;
}

pub(super) fn compactions(entries: &[Entry]) -> Vec<&crate::agent::entry::Compaction> {
    entries.iter().filter_map(|entry| entry.body.compaction()).collect()
}

async fn told(bench: &Bench) -> Vec<String> {
    bench.events().await.iter().map(|event| event.body.name()).collect()
}

async fn last_compaction_end(bench: &Bench) -> serde_json::Value {
    let events = bench.events().await;
    let end = events.iter().rev().find(|event| event.body.name() == "auto_compaction_end");
    serde_json::to_value(&end.expect("no compaction has ended").body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_turns_in_a_small_window() {
    let (bench, world, model) = stage(Windowed::of(WINDOW)).await;
    settle(&bench, &world).await;
    for number in 1..=500 {
        let said = format!("look once more, this is number {number} of them");
        say(&bench, &world, &said).await;
    }
    let head = bench.head().await.unwrap();
    assert!(head.turn >= 1_001, "{} turns", head.turn);
    assert!(head.prompts.iter().all(|prompt| prompt.state == PromptState::Completed));
    assert_eq!(*model.refused.lock().unwrap(), 0, "no request exceeds the window");
    let entries = bench.entries().await;
    let done = compactions(&entries);
    assert!(done.len() >= 10, "{} summaries", done.len());
    for compaction in &done {
        let details = compaction.details.as_ref().unwrap().value();
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
    let asked = model.asked.lock().unwrap();
    // A cut within a turn takes a second call.
    let calls = (1_001 + done.len())..=(1_001 + 2 * done.len());
    assert!(calls.contains(&asked.len()), "{} for {} summaries", asked.len(), done.len());
    let most = asked.iter().map(|(tokens, _)| *tokens).max().unwrap();
    assert!(most <= WINDOW, "{most}");
}

#[tokio::test(start_paused = true)]
async fn a_summary_costs_one_more_delivery_after_an_answer_and_one_more_commit_before_one() {
    let mut bench = Bench::new(1);
    let counting = Counting::before(bench.store.clone());
    bench.shared = counting.clone();
    bench.other_model = Some(Arc::new(Windowed::of(WINDOW)));
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask_in(&world, "c", &"begin with many words ".repeat(380)).await;
    patch(&world, 10).await;
    // The response fills the window.
    insta::assert_snapshot!(turn(&bench, &world, &counting).await, @r"
    lease (head and inbox)
    write head, 2 entry, events, receipt
    select inbox
    write head, 2 entry, events
    ");
    insta::assert_snapshot!(turn(&bench, &world, &counting).await, @r"
    lease (head and inbox)
    write head
    select inbox
    write head, entry, events
    select inbox
    ");
    // The prompt fills the window.
    bench.queue_up(&world, &Bench::key(), &"and then more of them ".repeat(320)).await.unwrap();
    insta::assert_snapshot!(turn(&bench, &world, &counting).await, @r"
    lease (head and inbox)
    write head, 2 entry, events, receipt
    select inbox
    write head, entry, events
    select inbox
    write head, 2 entry, events
    ");
}

/// The actual window is smaller than the declared one, so that only the model detects an overflow.
async fn overfull(is_enabled: bool) -> (Bench, Arc<Windowed>) {
    let mut model = Windowed::of(WINDOW);
    model.told_window = 100_000;
    let (bench, world, model) = stage(model).await;
    settle(&bench, &world).await;
    if !is_enabled {
        let patch = json!({"settings": {"compaction": {"enabled": false, "reserveTokens": 1, "keepRecentTokens": 1}}});
        let key = idempotency("off");
        patch_conversation(&world, &Bench::key(), patch.as_object().unwrap(), &key, |_| true)
            .await
            .unwrap();
    }
    for number in 0..6 {
        say(&bench, &world, &format!("{number}: {}", "words ".repeat(200))).await;
    }
    (bench, model)
}

#[tokio::test(start_paused = true)]
async fn what_the_model_refuses_is_summed_up_and_asked_for_again() {
    let (bench, model) = overfull(true).await;
    let head = bench.head().await.unwrap();
    assert!(head.prompts.iter().all(|prompt| prompt.state == PromptState::Completed));
    assert!(*model.refused.lock().unwrap() >= 1);
    let entries = bench.entries().await;
    assert!(!compactions(&entries).is_empty());
    let failed = entries.iter().filter(|entry| {
        let answer = entry.body.message().and_then(|message| message.as_assistant());
        answer.is_some_and(crate::agent::message::AssistantMessage::is_failed)
    });
    assert!(failed.count() >= 1, "the rejected response stays in the record");
    let told = told(&bench).await;
    assert!(!told.iter().any(|name| name.starts_with("auto_retry")), "an overflow is compacted, not retried: {told:?}");
    let starts = told.iter().filter(|name| *name == "auto_compaction_start").count();
    let ends = told.iter().filter(|name| *name == "auto_compaction_end").count();
    assert_eq!(starts, ends);
}

#[tokio::test(start_paused = true)]
async fn without_compaction_what_the_model_refuses_is_the_prompts_error() {
    let (bench, model) = overfull(false).await;
    assert_eq!(bench.head().await.unwrap().prompts.last().unwrap().state, PromptState::Failed);
    assert_eq!(model.summaries(), 0);
    let entries = bench.entries().await;
    let error = entries.iter().rev().find_map(|entry| match &entry.body {
        EntryBody::PromptEnd(end) => end.error.clone(),
        _ => None,
    });
    assert_eq!(error.unwrap().message, "Your input exceeds the context window of this model.");
}

/// Creates a conversation whose next prompt fills the window before it is sent.
pub(super) async fn brimful(model: Windowed) -> (Bench, World, Arc<Windowed>) {
    bounded_brimful(model, Arc::default()).await
}

async fn bounded_brimful(model: Windowed, money: Arc<Money>) -> (Bench, World, Arc<Windowed>) {
    let (bench, world, model) = bounded_stage(model, money, "begin").await;
    settle(&bench, &world).await;
    patch(&world, 10).await;
    say(&bench, &world, &"words ".repeat(550)).await;
    bench.queue_up(&world, &Bench::key(), &"more ".repeat(450)).await.unwrap();
    (bench, world, model)
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_boundary_of_a_summary_leaves_one_summary_and_the_answer() {
    let boundaries = [
        "take-in.before",
        "take-in.after",
        "summing.before",
        "summing.after",
        "summary.before",
        "summary.after",
        "model.before",
        "answer.before",
        "answer.after",
    ];
    for boundary in boundaries {
        let (mut bench, _, model) = brimful(Windowed::of(WINDOW)).await;
        let pause = Arc::new(PauseProbe::new(boundary));
        let dying = bench.worker(pause.clone());
        let nudge = Bench::nudge();
        tokio::select! {
            handled = handle(&dying, &nudge) => panic!("{boundary} was not hit: {handled:?}"),
            () = pause.reached.notified() => {}
        }
        tokio::time::sleep(Duration::from_secs(66)).await;
        bench.run().await;
        let entries = bench.entries().await;
        assert_eq!(compactions(&entries).len(), 1, "{boundary}");
        assert!(model.summaries() <= 2, "{boundary}: at most one billed summary is lost");
        assert_eq!(*model.refused.lock().unwrap(), 0, "{boundary}");
        let head = bench.head().await.unwrap();
        assert_eq!(head.prompts.last().unwrap().state, PromptState::Completed, "{boundary}");
        let events = bench.events().await;
        assert!(events.iter().map(|event| event.n).eq(1..=head.event_seq), "{boundary}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_workers_at_once_make_one_summary() {
    let (mut bench, one, model) = brimful(Windowed::of(WINDOW)).await;
    let other = bench.worker(Arc::new(NoProbe));
    let nudge = Bench::nudge();
    let _ = tokio::join!(handle(&one, &nudge), handle(&other, &nudge), handle(&one, &nudge));
    bench.run().await;
    assert_eq!(compactions(&bench.entries().await).len(), 1);
    assert!(model.summaries() <= 2);
}

#[tokio::test(start_paused = true)]
async fn a_summary_that_is_cut_or_refused_is_never_stored_and_tried_again() {
    let (bench, world, model) = brimful(Windowed::of(WINDOW)).await;
    *model.bad_summaries.lock().unwrap() = vec!["cut", "503"];
    settle(&bench, &world).await;
    let entries = bench.entries().await;
    let summaries: Vec<&str> =
        compactions(&entries).iter().map(|compaction| compaction.summary.as_str()).collect();
    assert_eq!(summaries, ["## Goal\nTo count."]);
    assert_eq!(model.summaries(), 3);
    let told = told(&bench).await;
    let waits = told.iter().filter(|name| *name == "summarization_retry_scheduled").count();
    assert_eq!(waits, 2);
    let usage = compactions(&entries)[0].usage.unwrap();
    let head = bench.head().await.unwrap();
    assert!(
        head.usage.total_tokens > usage.total_tokens * 2,
        "the truncated summary is billed too"
    );
}

#[tokio::test(start_paused = true)]
async fn why_names_the_cause_of_a_retried_summary() {
    let (bench, world, model) = brimful(Windowed::of(WINDOW)).await;
    *model.bad_summaries.lock().unwrap() = vec!["503"];
    handle(&world, &Bench::nudge()).await.unwrap();
    let phase = bench.head().await.unwrap().phase;
    assert!(matches!(phase, Phase::Summary { attempt: 2, .. }), "{phase:?}");
    let view = why(&*bench.shared, &Bench::key(), Service::Elsewhere, bench.clock.now()).await;
    let sentence = view.unwrap().why;
    let expected = ": Summarization failed: 503 service unavailable; attempt 2 is due at ";
    assert!(
        sentence.starts_with("The summary failed at ") && sentence.contains(expected),
        "{sentence}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_summary_that_cannot_be_had_or_makes_nothing_shorter_is_told_and_the_prompt_goes_on() {
    for (bad, told) in [
        ("no such deployment", "Auto-compaction failed: Summarization failed: no such deployment"),
        ("long", "Auto-compaction failed: the summary would leave"),
    ] {
        let (bench, world, model) = brimful(Windowed::of(WINDOW)).await;
        // One failure before the response, and one after it.
        *model.bad_summaries.lock().unwrap() = vec![bad; 2];
        settle(&bench, &world).await;
        let end = last_compaction_end(&bench).await;
        assert!(end["errorMessage"].as_str().unwrap().starts_with(told), "{end}");
        assert!(compactions(&bench.entries().await).is_empty(), "{bad}");
        let head = bench.head().await.unwrap();
        assert_eq!(head.prompts.last().unwrap().state, PromptState::Completed, "{bad}");
    }
}

async fn ask_for_it(bench: &Bench, world: &World, key: &str) -> serde_json::Value {
    let request = CompactRequest { instructions: Some("the numbers".to_owned()) };
    let accepted = compact(world, &Bench::key(), request, &idempotency(key)).await.unwrap();
    assert_eq!(accepted.status, 202);
    settle(bench, world).await;
    last_compaction_end(bench).await
}

#[tokio::test(start_paused = true)]
async fn somebody_asks_for_a_summary_and_is_told_what_came_of_it() {
    let (bench, world, model) =
        bounded_stage(Windowed::of(WINDOW), Arc::default(), &many_words()).await;
    settle(&bench, &world).await;
    let small = ask_for_it(&bench, &world, "1").await;
    assert_eq!(small["errorMessage"], "Nothing to compact (session too small)");
    patch(&world, 1).await;
    let done = ask_for_it(&bench, &world, "2").await;
    assert!(done["entry"].as_u64().is_some() && done["errorMessage"].is_null(), "{done}");
    let again = ask_for_it(&bench, &world, "3").await;
    assert_eq!(again["errorMessage"], "Already compacted");
    let request = CompactRequest::default();
    let repeated = compact(&world, &Bench::key(), request, &idempotency("2")).await.unwrap();
    assert!(repeated.is_replayed);
    assert_eq!(model.summaries(), 1);
    say(&bench, &world, "and on").await;
    assert_eq!(bench.head().await.unwrap().prompts.len(), 2);
    *model.bad_summaries.lock().unwrap() = vec!["long"];
    let long = ask_for_it(&bench, &world, "4").await;
    let told = long["errorMessage"].as_str().unwrap();
    assert!(told.starts_with("the summary would leave"), "{told}");
    assert_eq!(compactions(&bench.entries().await).len(), 1, "a summary that is too long is not stored");
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_a_summary_stops_the_prompt_that_runs() {
    let (mut bench, world, _) =
        bounded_stage(Windowed::of(WINDOW), Arc::default(), &many_words()).await;
    settle(&bench, &world).await;
    patch(&world, 1).await;
    bench.queue_up(&world, &Bench::key(), "look again").await.unwrap();
    let pause = Arc::new(PauseProbe::new("model.before"));
    let busy = bench.worker(pause.clone());
    let nudge = Bench::nudge();
    let asked = async {
        pause.reached.notified().await;
        let key = idempotency("sum up");
        let asked = compact(&world, &Bench::key(), CompactRequest::default(), &key).await.unwrap();
        let again = compact(&world, &Bench::key(), CompactRequest::default(), &key).await.unwrap();
        assert!(again.is_replayed && again.body == asked.body);
        let other = idempotency("and once more");
        compact(&world, &Bench::key(), CompactRequest::default(), &other).await.unwrap();
        pause.go.notify_one();
    };
    let (handled, ()) = tokio::join!(handle(&busy, &nudge), asked);
    handled.unwrap();
    settle(&bench, &world).await;
    let head = bench.head().await.unwrap();
    assert_eq!(head.prompts.last().unwrap().state, PromptState::Aborted);
    let names = told(&bench).await;
    let ends = names.iter().filter(|name| *name == "auto_compaction_end").count();
    let made = compactions(&bench.entries().await).len();
    assert_eq!((ends, made), (2, 1), "the second request finds nothing to compact: {names:?}");
    let error = last_compaction_end(&bench).await["errorMessage"].clone();
    assert_eq!(error, "Already compacted");
}

/// Extension that replaces or cancels the model's summary.
#[derive(Debug)]
struct Opinion {
    instead: Instead,
    heard: Mutex<Vec<String>>,
}

#[async_trait]
impl Extension for Opinion {
    fn name(&self) -> &'static str {
        "opinion"
    }

    async fn before_compaction(
        &self,
        ahead: &CompactionAhead<'_>,
    ) -> Result<Option<Instead>, HookError> {
        let (reason, messages) = (ahead.reason, ahead.messages.len());
        self.heard.lock().unwrap().push(format!("{reason:?} {messages}"));
        Ok(Some(self.instead.clone()))
    }

    async fn after_compaction(&self, _: &ConversationKey, entry: &Entry) -> Result<(), HookError> {
        let summary = &entry.body.compaction().unwrap().summary;
        self.heard.lock().unwrap().push(format!("kept {summary}"));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn an_extension_cancels_a_summary_or_brings_its_own() {
    let own = Instead::Summary { summary: "mine".to_owned(), details: None };
    for (instead, heard) in [
        (Instead::Cancel, vec!["Threshold 4", "Threshold 5"]),
        (own, vec!["Threshold 4", "kept mine"]),
    ] {
        let (bench, mut world, model) = brimful(Windowed::of(WINDOW)).await;
        let opinion = Arc::new(Opinion { instead: instead.clone(), heard: Mutex::default() });
        world.extensions = vec![opinion.clone()];
        settle(&bench, &world).await;
        assert_eq!(*opinion.heard.lock().unwrap(), heard);
        assert_eq!(model.summaries(), 0);
        let entries = bench.entries().await;
        let made = compactions(&entries);
        assert_eq!(made.len(), usize::from(instead != Instead::Cancel));
        assert!(made.iter().all(|it| it.summary == "mine" && it.from_hook == Some(true)));
        let end = last_compaction_end(&bench).await;
        assert_eq!(end["aborted"], instead == Instead::Cancel);
        let head = bench.head().await.unwrap();
        assert_eq!(head.prompts.last().unwrap().state, PromptState::Completed);
    }
}
