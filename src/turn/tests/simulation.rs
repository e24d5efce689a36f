//! Single prompts with injected faults: crashes at every fail point, lost and duplicated nudges,
//! lost responses of the store. The record must equal that of a run without faults.

use std::sync::Arc;
use std::time::Duration;

use super::bench::{Bench, Mix, bad_queue, bad_store, lost_to_older, three_rounds};
use super::checks;
use super::seeds::{Budget, Lived, live};
use crate::agent::entry::{EntryBody, PromptState};
use crate::ids::fate::Fate;
use crate::settings::brakes::parse;
use crate::store::memory as stores;
use crate::turn::NoProbe;

/// Number of seeds of the default run.
const SEEDS: u64 = 1_300;

/// Number of seeds of runs in which pauses are set and removed.
const SEEDS_BRAKED: u64 = 30;

/// Number of seeds of runs with parallel calls.
const SEEDS_AT_ONCE: u64 = 300;

/// Number of seeds of runs in which an extension decides how turns end.
const SEEDS_DECIDED: u64 = 100;

/// Variation of a simulation.
#[derive(Clone, Copy)]
struct Kind {
    at_once: u32,
    is_braked: bool,
    is_decided: bool,
}

const PLAIN: Kind = Kind { at_once: 1, is_braked: false, is_decided: false };

async fn good_day(kind: Kind) -> Vec<serde_json::Value> {
    let mut bench = Bench::new(0);
    bench.run_calls_at_once(kind.at_once);
    bench.decide_turns(kind.is_decided);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.run().await;
    record(&bench, kind.at_once).await
}

/// Returns the entries to compare. Parallel calls vary the order of their entries, but not that of
/// messages.
async fn record(bench: &Bench, at_once: u32) -> Vec<serde_json::Value> {
    let mut record = bench.normal().await;
    record.retain(|entry| at_once == 1 || entry["type"] == "message");
    // An approval request of a take-over, with the decision of a late result, is an effect of a
    // fault, as a retry is.
    while let Some(asked) = record.iter().position(is_doubt) {
        record.remove(asked);
        if record.get(asked).is_some_and(|next| !next["decision"].is_null()) {
            record.remove(asked);
        }
    }
    record
}

fn is_doubt(entry: &serde_json::Value) -> bool {
    entry["request"].as_str().is_some_and(|asked| asked.starts_with("The worker stopped"))
}

/// Sets and removes pauses at random for an hour.
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

async fn bad_day(
    seed: u64,
    fate: &Fate,
    Kind { at_once, is_braked, is_decided }: Kind,
    good: &[serde_json::Value],
) -> Lived {
    let mut bench = Bench::fated(seed, fate, three_rounds, 0.0);
    bench.run_calls_at_once(at_once);
    bench.decide_turns(is_decided);
    bench.store.set_faults(bad_store());
    bench.queue.set_faults(bad_queue());
    bench.crash_in_a_hundred = 4;
    bench.still_in_a_hundred = 1;
    // Every third run has two versions side by side.
    bench.mix = seed.is_multiple_of(3).then(Mix::of_versions);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    if is_braked {
        brake_now_and_then(&mut bench).await;
    }
    let ended = bench.comes_to_rest().await;
    bench.store.set_faults(stores::Faults::default());
    let outcome = if ended {
        check(&bench, at_once, good).await
    } else {
        Err("the prompt never ended".to_owned())
    };
    Lived { outcome, story: bench.story.clone() }
}

/// Returns the number of failed prompts.
///
/// # Errors
/// Returns the violations.
async fn check(bench: &Bench, at_once: u32, good: &[serde_json::Value]) -> Result<usize, String> {
    let key = Bench::key();
    let mut faults = checks::faults(bench, &key, (1, 0)).await;
    faults.extend(lost_to_older(&bench.store, &key));
    if !faults.is_empty() {
        return Err(faults.join("\n"));
    }
    let mut ends = bench.entries().await.into_iter().filter_map(|entry| match entry.body {
        EntryBody::PromptEnd(end) if end.state != PromptState::Completed => Some(end),
        _ => None,
    });
    // Only a step with too many failed attempts may fail a prompt, with its own error kind.
    if let Some(end) = ends.next_back() {
        let kind = end.error.map(|error| error.kind);
        let is_poisoned = kind.as_deref() == Some("poisoned");
        return if is_poisoned {
            Ok(1)
        } else {
            Err(format!("the prompt ended {:?}: {kind:?}", end.state))
        };
    }
    let record = record(bench, at_once).await;
    if !bench.was_asked_for_outcome && record != good {
        return Err(format!("the record differs from that of a run without faults: {record:#?}"));
    }
    Ok(0)
}

async fn bad_days(seeds: u64, kind: Kind) {
    let good = good_day(kind).await;
    let run = async |seed, fate: Fate| bad_day(seed, &fate, kind, &good).await;
    let tally = live(Budget::or_every_day(seeds), run).await;
    tally.expect_each(
        &["a worker crashed", "a worker stood still", "an older one came"],
        tally.runs / 10,
    );
    assert!(tally.failed as u64 * 10 <= tally.runs, "too many prompts failed\n{tally}");
}

#[tokio::test(start_paused = true)]
async fn a_bad_day_leaves_the_record_of_a_good_one() {
    Box::pin(bad_days(SEEDS, PLAIN)).await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_day_of_calls_that_run_at_once_leaves_the_record_of_a_good_one() {
    Box::pin(bad_days(SEEDS_AT_ONCE, Kind { at_once: 3, ..PLAIN })).await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_day_with_brakes_leaves_the_record_of_a_good_one() {
    Box::pin(bad_days(SEEDS_BRAKED, Kind { is_braked: true, ..PLAIN })).await;
}

#[tokio::test(start_paused = true)]
async fn bad_days_repeat_no_decision_on_a_turn() {
    Box::pin(bad_days(SEEDS_DECIDED, Kind { at_once: 3, is_decided: true, ..PLAIN })).await;
}
