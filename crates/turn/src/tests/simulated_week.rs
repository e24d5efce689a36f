//! Simulated weeks with injected faults, over the store with leases in heads and over the embedded
//! store, whose process crashes as a whole.
//!
//! A week has one to three conversations with queued prompts. Its clients steer, edit, clear,
//! patch, repeat requests, use the session tree, and leave requests undecided. Its faults: lost responses of tools; slow,
//! late and truncated artifacts; clock offsets; stalled workers; two versions side by side; deleted
//! queues.
//!
//! A week that violates an invariant is reported with the fewest injected faults. For more weeks
//! than the default: `TURNWHEEL_WEEKS=5000 .ci/run weeks`, or `TURNWHEEL_WEEKS=10m`.

mod extensions;
mod mutants;
mod plan;

use std::cell::Cell;

use super::simulation_runs::{RunLimit, RunResult, RunStatistics, run_seeds};
use super::test_env::DeterministicStore;
use turnwheel_platform::ids::fault_plan::FaultPlan;

use self::plan::{WeekPlan, WeekStore, run_week};

/// Names of the faults injected in these weeks.
const FAULT_NAMES: [&str; 30] = [
    "a batch came late",
    "a batch met a conflict",
    "a batch was lost",
    "a batch was written and its response lost",
    "a batch was written and sent twice",
    "a call of the artifacts failed",
    "a call of the queue failed",
    "a client repeated its request",
    "a clock was ahead",
    "a message came late",
    "a message came twice",
    "a message overtook others",
    "a message was lost",
    "a page was short",
    "a read failed",
    "a read was stale",
    "a tool's response was lost",
    "a worker crashed",
    "a worker stalled",
    "an artifact came late",
    "an artifact was truncated",
    "an artifact was stored, then delayed",
    "an artifact was stored and its response lost",
    "an artifact was delayed, then stored",
    "an older version took over",
    "a request stayed undecided",
    "a client patched the conversation",
    "a client sent an input",
    "the queues were deleted",
    "the store was throttled",
];

async fn run_random_week(seed: u64, fault_plan: FaultPlan) -> RunResult {
    run_week(seed, &fault_plan, &WeekPlan::from_seed(seed), WeekStore::Memory).await
}

/// At most one prompt of eighteen may fail.
fn assert_few_failed_prompts(statistics: &RunStatistics) {
    let most = statistics.runs / 6 + 4;
    assert!(
        statistics.failed_prompts as u64 <= most,
        "{} prompts failed, not {most}\n{statistics}",
        statistics.failed_prompts
    );
}

#[tokio::test(start_paused = true)]
async fn weeks_with_leases_in_heads_keep_every_invariant() {
    let statistics = Box::pin(run_seeds(RunLimit::from_environment_or(100), run_random_week)).await;
    statistics.assert_each_injected(&FAULT_NAMES, statistics.runs / 80);
    assert_few_failed_prompts(&statistics);
}

#[tokio::test(start_paused = true)]
async fn weeks_with_parallel_calls_keep_every_invariant() {
    let run = async |seed, fault_plan: FaultPlan| {
        let plan = WeekPlan::from_seed(seed + 1_000_000).with_parallel_calls();
        run_week(seed, &fault_plan, &plan, WeekStore::Memory).await
    };
    assert_few_failed_prompts(&Box::pin(run_seeds(RunLimit::from_environment_or(40), run)).await);
}

#[tokio::test(start_paused = true)]
async fn weeks_with_turn_decisions_keep_every_invariant() {
    let run = async |seed, fault_plan: FaultPlan| {
        let plan = WeekPlan::from_seed(seed + 2_000_000).with_turn_decisions();
        run_week(seed, &fault_plan, &plan, WeekStore::Memory).await
    };
    assert_few_failed_prompts(&Box::pin(run_seeds(RunLimit::from_environment_or(20), run)).await);
}

#[tokio::test(start_paused = true)]
async fn weeks_with_failing_extensions_keep_every_invariant() {
    let repeated = Cell::new(0);
    let run = async |seed, fault_plan: FaultPlan| {
        let plan = WeekPlan::from_seed(seed + 3_000_000).with_extensions();
        let result = run_week(seed, &fault_plan, &plan, WeekStore::Memory).await;
        let lines = format!("{:?}", result.run_log);
        repeated.set(repeated.get() + lines.matches(extensions::REPEATED).count() as u64);
        result
    };
    let statistics = Box::pin(run_seeds(RunLimit::from_environment_or(20), run)).await;
    statistics.assert_each_injected(&extensions::FAULT_NAMES, statistics.runs / 4);
    assert!(repeated.get() >= statistics.runs, "only {} hooks ran again", repeated.get());
    assert_few_failed_prompts(&statistics);
}

#[tokio::test(start_paused = true)]
async fn failing_extensions_make_no_known_outcome_unknown() {
    let run = async |seed, fault_plan: FaultPlan| {
        let plan = WeekPlan::from_seed(seed + 4_000_000).with_only_hook_faults();
        run_week(seed, &fault_plan, &plan, WeekStore::Memory).await
    };
    let statistics = Box::pin(run_seeds(RunLimit::from_environment_or(20), run)).await;
    statistics.assert_each_injected(&extensions::FAULT_NAMES, statistics.runs / 4);
    assert_eq!(statistics.failed_prompts, 0, "{statistics}");
}

#[tokio::test(start_paused = true)]
async fn weeks_with_one_crashing_process_keep_every_invariant() {
    let run = async |seed, fault_plan: FaultPlan| {
        let folder = tempfile::tempdir().unwrap();
        let store = DeterministicStore::open(folder.path().to_owned());
        run_week(seed, &fault_plan, &WeekPlan::one_process(seed), WeekStore::Embedded(store)).await
    };
    let statistics = Box::pin(run_seeds(RunLimit::from_environment_or(5), run)).await;
    statistics.assert_each_injected(&["a worker crashed", "a tool's response was lost"], 1);
    // A crash of the process affects all three conversations, so more attempts of steps fail.
    assert!(statistics.failed_prompts as u64 <= 3 * statistics.runs, "{statistics}");
}

#[tokio::test(start_paused = true)]
async fn weeks_with_branches_and_forks_keep_every_invariant() {
    let forks = Cell::new(0);
    let moves = Cell::new(0);
    let run = async |seed, fault_plan: FaultPlan| {
        let plan = WeekPlan::from_seed(seed + 5_000_000).with_tree_requests();
        let result = run_week(seed, &fault_plan, &plan, WeekStore::Memory).await;
        let lines = format!("{:?}", result.run_log);
        forks.set(forks.get() + lines.matches("status: Some(201)").count());
        moves.set(moves.get() + lines.matches("status: Some(200)").count());
        result
    };
    let statistics = Box::pin(run_seeds(RunLimit::from_environment_or(20), run)).await;
    statistics.assert_each_injected(&["a client used the tree"], statistics.runs);
    assert!(forks.get() > 2 && moves.get() > 5, "{} forks, {} moves", forks.get(), moves.get());
    assert_few_failed_prompts(&statistics);
}

/// Seed 764: a worker stalled until its turn was over, and the prompt failed without a model
/// response.
#[tokio::test(start_paused = true)]
async fn seeds_of_fixed_failures_pass() {
    for seed in [764] {
        let result = run_random_week(seed, FaultPlan::new(seed)).await;
        assert_eq!(result.outcome.map(|_failed| ()), Ok(()), "{:?}", result.run_log);
    }
}

#[tokio::test(start_paused = true)]
async fn equal_seeds_produce_equal_weeks() {
    for seed in [1, 2, 5] {
        let mut logs = Vec::new();
        for _ in 0..2 {
            let fault_plan = FaultPlan::new(seed);
            let result = run_random_week(seed, fault_plan.clone()).await;
            // Repeats the run with only the faults that happened.
            let again =
                run_random_week(seed, FaultPlan::with_only(seed, &fault_plan.injected())).await;
            logs.extend([result, again].map(|result| format!("{:?}", result.run_log)));
        }
        assert!(logs.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn equal_seeds_produce_equal_weeks_with_embedded_store() {
    let mut logs = Vec::new();
    for _ in 0..2 {
        let folder = tempfile::tempdir().unwrap();
        let over = WeekStore::Embedded(DeterministicStore::open(folder.path().to_owned()));
        let result = run_week(4, &FaultPlan::new(4), &WeekPlan::one_process(4), over).await;
        logs.push(format!("{:?}", result.run_log));
    }
    let lines = logs[0].lines().zip(logs[1].lines());
    for (number, (one, other)) in lines.enumerate() {
        assert_eq!(one, other, "line {number}");
    }
    assert_eq!(logs[0].len(), logs[1].len());
}
