//! Single prompts with injected faults: crashes at every fail point, lost and duplicated nudges,
//! lost responses of the store. The record must equal that of a run without faults.

use std::sync::Arc;
use std::time::Duration;

use super::invariant_checks;
use super::simulation_runs::{RunLimit, RunResult, run_seeds};
use super::test_env::{
    TestEnv, VersionMix, find_lost_updates, three_rounds, usual_queue_faults, usual_store_faults,
};
use turnwheel_conversation::entry::{EntryBody, PromptState};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::fault_plan::FaultPlan;
use turnwheel_platform::settings::pauses::parse;
use turnwheel_storage::store::memory as stores;

/// Number of seeds of the default run.
const SEEDS: u64 = 300;

/// Number of seeds of runs in which pauses are set and removed.
const SEEDS_WITH_PAUSES: u64 = 30;

/// Number of seeds of runs with parallel calls.
const SEEDS_WITH_PARALLEL_CALLS: u64 = 80;

/// Number of seeds of runs in which an extension decides how turns end.
const SEEDS_WITH_TURN_DECISIONS: u64 = 40;

/// Variation of a simulation.
#[derive(Clone, Copy)]
struct Variation {
    concurrency: u32,
    has_pauses: bool,
    has_turn_decisions: bool,
}

const PLAIN: Variation = Variation { concurrency: 1, has_pauses: false, has_turn_decisions: false };

async fn run_without_faults(variation: Variation) -> Vec<serde_json::Value> {
    let mut env = TestEnv::new(0);
    env.enable_parallel_calls(variation.concurrency);
    env.set_turn_decisions(variation.has_turn_decisions);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    comparable_entries(&env, variation.concurrency).await
}

/// Returns the entries to compare. Parallel calls vary the order of their entries, but not that of
/// messages.
async fn comparable_entries(env: &TestEnv, concurrency: u32) -> Vec<serde_json::Value> {
    let mut record = env.normalised_entries().await;
    record.retain(|entry| concurrency == 1 || entry["type"] == "message");
    // An approval request of a take-over, with the decision of a late result, is an effect of a
    // fault, as a retry is.
    while let Some(index) = record.iter().position(is_recovery_request) {
        record.remove(index);
        if record.get(index).is_some_and(|next| !next["decision"].is_null()) {
            record.remove(index);
        }
    }
    record
}

fn is_recovery_request(entry: &serde_json::Value) -> bool {
    entry["request"].as_str().is_some_and(|text| text.starts_with("The worker stopped"))
}

/// Sets and removes pauses at random for an hour.
async fn pause_at_random(env: &mut TestEnv) {
    let pauses = ["", "*", "agent:clerk", "tool:look", "tool:pay,tool:put", "tool:gated"];
    for _ in 0..12 {
        env.pauses = Arc::new(parse(pauses[env.rng.usize(0..pauses.len())]).unwrap());
        for _ in 0..5 {
            while env.deliver().await {}
            env.decide_requests().await;
            tokio::time::sleep(Duration::from_mins(1)).await;
            env.run_sweep().await;
        }
    }
    env.pauses = Arc::default();
}

async fn run_with_faults(
    seed: u64,
    fault_plan: &FaultPlan,
    Variation { concurrency, has_pauses, has_turn_decisions }: Variation,
    expected: &[serde_json::Value],
) -> RunResult {
    let mut env = TestEnv::with_fault_plan(seed, fault_plan, three_rounds, 0.0);
    env.enable_parallel_calls(concurrency);
    env.set_turn_decisions(has_turn_decisions);
    env.store.set_faults(usual_store_faults());
    env.queue.set_faults(usual_queue_faults());
    env.crash_percent = 4;
    env.stall_percent = 1;
    // Every third run has two versions side by side.
    env.version_mix = seed.is_multiple_of(3).then(VersionMix::half_and_half);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    if has_pauses {
        pause_at_random(&mut env).await;
    }
    let ended = env.try_run_until_idle().await;
    env.store.set_faults(stores::StoreFaults::default());
    let outcome = if ended {
        check_run(&env, concurrency, expected).await
    } else {
        Err("the prompt never ended".to_owned())
    };
    RunResult { outcome, run_log: env.run_log.clone() }
}

/// Returns the number of failed prompts.
///
/// # Errors
/// Returns the violations.
async fn check_run(
    env: &TestEnv,
    concurrency: u32,
    expected: &[serde_json::Value],
) -> Result<usize, String> {
    let key = TestEnv::key();
    let mut violations = invariant_checks::violation_lines(env, &key, (1, 0)).await;
    violations.extend(find_lost_updates(&env.store, &key));
    if !violations.is_empty() {
        return Err(violations.join("\n"));
    }
    let mut ends = env.entries().await.into_iter().filter_map(|entry| match entry.body {
        EntryBody::PromptEnd(end) if end.state != PromptState::Completed => Some(end),
        _ => None,
    });
    // Only a step with too many failed attempts may fail a prompt, with its own error kind.
    if let Some(end) = ends.next_back() {
        let kind = end.error.map(|error| error.kind.clone());
        let is_poisoned = kind.as_deref() == Some("poisoned");
        return if is_poisoned {
            Ok(1)
        } else {
            Err(format!("the prompt ended {:?}: {kind:?}", end.state))
        };
    }
    let record = comparable_entries(env, concurrency).await;
    if !env.has_outcome_request && record != expected {
        return Err(format!("the record differs from that of a run without faults: {record:#?}"));
    }
    Ok(0)
}

async fn run_variation(seeds: u64, variation: Variation) {
    let expected = run_without_faults(variation).await;
    let run = async |seed, fault_plan: FaultPlan| {
        run_with_faults(seed, &fault_plan, variation, &expected).await
    };
    let statistics = run_seeds(RunLimit::from_environment_or(seeds), run).await;
    statistics.assert_each_injected(
        &["a worker crashed", "a worker stalled", "an older version took over"],
        statistics.runs / 10,
    );
    assert!(
        statistics.failed_prompts as u64 * 10 <= statistics.runs,
        "too many prompts failed\n{statistics}"
    );
}

#[tokio::test(start_paused = true)]
async fn injected_faults_leave_record_unchanged() {
    Box::pin(run_variation(SEEDS, PLAIN)).await;
}

#[tokio::test(start_paused = true)]
async fn injected_faults_leave_record_of_parallel_calls_unchanged() {
    Box::pin(run_variation(SEEDS_WITH_PARALLEL_CALLS, Variation { concurrency: 3, ..PLAIN })).await;
}

#[tokio::test(start_paused = true)]
async fn injected_faults_leave_record_unchanged_with_pauses() {
    Box::pin(run_variation(SEEDS_WITH_PAUSES, Variation { has_pauses: true, ..PLAIN })).await;
}

#[tokio::test(start_paused = true)]
async fn injected_faults_repeat_no_decision_on_a_turn() {
    Box::pin(run_variation(
        SEEDS_WITH_TURN_DECISIONS,
        Variation { concurrency: 3, has_turn_decisions: true, ..PLAIN },
    ))
    .await;
}
