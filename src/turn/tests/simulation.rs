//! Thousands of bad days: crashes at every boundary, lost and doubled nudges, lost answers of the store; and the same record
//! as on a good day.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::bench::{Bench, bad_queue, bad_store};
use crate::agent::entry::{EntryBody, PromptState};
use crate::agent::message::Message;
use crate::settings::brakes::parse;
use crate::store::memory as stores;
use crate::turn::NoProbe;

/// Seeds of the everyday run.
const SEEDS: u64 = 200;

/// Of the days on which brakes are put on and taken off.
const SEEDS_BRAKED: u64 = 40;

/// Of the days on which calls run at once.
const SEEDS_AT_ONCE: u64 = 60;

async fn good_day(at_once: u32) -> Vec<serde_json::Value> {
    let mut bench = Bench::new(0);
    bench.run_calls_at_once(at_once);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.run().await;
    record(&bench, at_once).await
}

/// Where calls run at once, the order of their marks is not that of every day, and that of what was said is.
async fn record(bench: &Bench, at_once: u32) -> Vec<serde_json::Value> {
    let mut record = bench.normal().await;
    record.retain(|entry| at_once == 1 || entry["type"] == "message");
    record
}

/// An hour in which brakes are put on and taken off.
async fn brake_now_and_then(bench: &mut Bench) {
    let all = ["", "*", "agent:clerk", "tool:look", "tool:pay,tool:put", "tool:gated"];
    for _ in 0..12 {
        bench.brakes = Arc::new(parse(all[bench.dice.usize(0..all.len())]).unwrap());
        for _ in 0..5 {
            while bench.deliver().await {}
            bench.decide().await;
            tokio::time::sleep(Duration::from_mins(1)).await;
            bench.sweep().await;
        }
    }
    bench.brakes = Arc::default();
}

async fn bad_day(seed: u64, at_once: u32, is_braked: bool) -> Bench {
    let mut bench = Bench::new(seed);
    bench.run_calls_at_once(at_once);
    bench.store.set_faults(bad_store());
    bench.queue.set_faults(bad_queue());
    bench.crash_in_a_hundred = 4;
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    if is_braked {
        brake_now_and_then(&mut bench).await;
    }
    bench.run().await;
    bench.store.set_faults(stores::Faults::default());
    bench
}

async fn check(
    seed: u64,
    (at_once, is_braked): (u32, bool),
    good: &[serde_json::Value],
) -> Result<bool, String> {
    let bench = bad_day(seed, at_once, is_braked).await;
    let head = bench.head().await.unwrap();
    let entries = bench.entries().await;
    let span = head.prompts.last().unwrap();
    if span.state != PromptState::Completed {
        // Only a step that was tried in vain too often may fail a prompt, and it says so.
        let is_poisoned = entries.iter().any(|entry| match &entry.body {
            EntryBody::PromptEnd(end) => {
                end.error.as_ref().is_some_and(|error| error.kind == "poisoned")
            }
            _ => false,
        });
        return if is_poisoned { Ok(false) } else { Err(format!("it ended {:?}", span.state)) };
    }
    for (effect, times) in bench.done.lock().unwrap().iter() {
        let is_write = entries.iter().any(|entry| match &entry.body {
            EntryBody::ToolStarted(started) => {
                started.effect_id.as_str() == effect
                    && matches!(started.tool_name.as_str(), "pay" | "gated")
            }
            _ => false,
        });
        if is_write && *times > 1 {
            return Err(format!("the write {effect} was done {times} times"));
        }
    }
    let mut results: BTreeMap<(u64, usize), u32> = BTreeMap::new();
    let mut calls = 0;
    for entry in &entries {
        let EntryBody::Message(message) = &entry.body else { continue };
        match (&message.message, message.call) {
            (Message::Assistant(answer), _) => calls += answer.tool_calls().count(),
            (Message::ToolResult(_), Some(call)) => {
                *results.entry((call.answer, call.index)).or_default() += 1;
            }
            _ => {}
        }
    }
    if results.len() != calls || results.values().any(|count| *count != 1) {
        return Err(format!("{calls} calls have the results {results:?}"));
    }
    let events = bench.events().await;
    if !events.iter().map(|event| event.n).eq(1..=head.event_seq) {
        return Err("event numbers have gaps".to_owned());
    }
    let record = record(&bench, at_once).await;
    if !bench.was_asked_for_outcome && record != good {
        return Err(format!("the record differs: {record:#?}"));
    }
    Ok(true)
}

async fn bad_days(seeds: u64, at_once: u32, is_braked: bool) {
    let good = good_day(at_once).await;
    let mut completed = 0;
    for seed in 1..=seeds {
        match check(seed, (at_once, is_braked), &good).await {
            Ok(true) => completed += 1,
            Ok(false) => {}
            Err(reason) => {
                panic!(
                    "seed {seed}: {reason}\n{:#?}",
                    bad_day(seed, at_once, is_braked).await.story
                )
            }
        }
    }
    assert!(completed * 10 >= seeds * 9, "only {completed} of {seeds} prompts came to their end");
}

#[tokio::test(start_paused = true)]
async fn a_bad_day_leaves_the_record_of_a_good_one() {
    bad_days(SEEDS, 1, false).await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_day_of_calls_that_run_at_once_leaves_the_record_of_a_good_one() {
    bad_days(SEEDS_AT_ONCE, 3, false).await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_day_with_brakes_leaves_the_record_of_a_good_one() {
    bad_days(SEEDS_BRAKED, 1, true).await;
}
