//! Runs one simulation with many seeds. A run that violates an invariant is repeated with fewer
//! faults, and reported with the fewest injected faults that still fail.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::test_env::RunLog;
use turnwheel_platform::ids::fault_plan::{FaultPlan, InjectedFault};

/// Upper bound of the runs in the search for the fewest faults.
const MINIMISING_RUNS_MAX: u32 = 600;

/// Result of one run.
pub(super) struct RunResult {
    /// Number of prompts that failed for an accepted reason, or the violations.
    pub(super) outcome: Result<usize, String>,
    pub(super) run_log: RunLog,
}

/// Number of runs: a fixed number, or the value of `TURNWHEEL_WEEKS`.
pub(super) enum RunLimit {
    Runs(u64),
    Until(Instant),
}

impl RunLimit {
    /// `TURNWHEEL_WEEKS=5000` is the number of runs of each simulation, `TURNWHEEL_WEEKS=10m` the
    /// minutes.
    #[expect(clippy::disallowed_methods, reason = "the variable selects a long run")]
    pub(super) fn from_environment_or(runs: u64) -> Self {
        let Ok(value) = std::env::var("TURNWHEEL_WEEKS") else { return Self::Runs(runs) };
        let parse_number = |number: &str| number.parse::<u64>().ok();
        let budget = match value.strip_suffix('m') {
            Some(minutes) => parse_number(minutes)
                .map(|minutes| Self::Until(Instant::now() + Duration::from_mins(minutes))),
            None => parse_number(&value).map(Self::Runs),
        };
        budget.expect(
            "TURNWHEEL_WEEKS must be a number of runs, or a number of minutes followed by `m`",
        )
    }

    fn is_over(&self, runs: u64) -> bool {
        match self {
            Self::Runs(all) => runs >= *all,
            Self::Until(end) => Instant::now() >= *end,
        }
    }
}

/// Results of many runs.
#[derive(Debug, Default)]
pub(super) struct RunStatistics {
    pub(super) runs: u64,
    pub(super) failed_prompts: usize,
    pub(super) fault_counts: BTreeMap<&'static str, u64>,
}

impl RunStatistics {
    fn add(&mut self, failed: usize, faults: &[InjectedFault]) {
        self.runs += 1;
        self.failed_prompts += failed;
        for fault in faults {
            *self.fault_counts.entry(fault.kind).or_default() += 1;
        }
    }

    /// Checks that each fault was injected at least `times` times: a fault that never occurs tests
    /// nothing.
    pub(super) fn assert_each_injected(&self, names: &[&str], times: u64) {
        for name in names {
            let count = self.fault_counts.get(name).copied().unwrap_or(0);
            assert!(
                count >= times,
                "fault «{name}» was injected {count} times, not {times}\n{self}"
            );
        }
    }
}

impl fmt::Display for RunStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: u64 = self.fault_counts.values().sum();
        writeln!(
            f,
            "{} runs, {} prompts failed, {all} injected faults:",
            self.runs, self.failed_prompts
        )?;
        self.fault_counts.iter().try_for_each(|(what, count)| writeln!(f, "{count:9}  {what}"))
    }
}

/// Runs the simulation with seeds from 1 on.
///
/// # Panics
/// On the first violation, with its minimised run.
pub(super) async fn run_seeds(
    limit: RunLimit,
    run: impl AsyncFn(u64, FaultPlan) -> RunResult,
) -> RunStatistics {
    let mut statistics = RunStatistics::default();
    while !limit.is_over(statistics.runs) {
        let seed = statistics.runs + 1;
        let fault_plan = FaultPlan::new(seed);
        let Ok(failed) = run(seed, fault_plan.clone()).await.outcome else {
            panic!("{}", MinimisedFailure::minimise(seed, &fault_plan.injected(), run).await);
        };
        statistics.add(failed, &fault_plan.injected());
    }
    #[expect(clippy::print_stdout, reason = "a long run prints its results")]
    {
        println!("{statistics}");
    }
    statistics
}

/// A run with a violation, reduced to the fewest injected faults.
pub(super) struct MinimisedFailure {
    seed: u64,
    pub(super) faults: Vec<InjectedFault>,
    /// Number of injected faults in the original run.
    original_count: usize,
    pub(super) violations: String,
    run_log: RunLog,
}

impl MinimisedFailure {
    /// Minimises the faults of a run with a violation.
    pub(super) async fn minimise(
        seed: u64,
        all: &[InjectedFault],
        run: impl AsyncFn(u64, FaultPlan) -> RunResult,
    ) -> Self {
        let fails = async |these: &[InjectedFault]| {
            run(seed, FaultPlan::with_only(seed, these)).await.outcome.is_err()
        };
        let fewest = find_fewest_faults(all, fails).await;
        let fault_plan = FaultPlan::with_only(seed, &fewest);
        let result = run(seed, fault_plan.clone()).await;
        let not_deterministic = "no violation with the same faults: the run is not deterministic";
        Self {
            seed,
            faults: fault_plan.injected(),
            original_count: all.len(),
            violations: result.outcome.err().unwrap_or_else(|| not_deterministic.to_owned()),
            run_log: result.run_log,
        }
    }
}

impl fmt::Display for MinimisedFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, count) = (self.seed, self.faults.len());
        writeln!(f, "seed {seed}: {count} of {} injected faults suffice:", self.original_count)?;
        self.run_log.fault_lines().iter().try_for_each(|line| writeln!(f, "{line}"))?;
        writeln!(f, "Violations:\n{}\nLog of the run:\n{:?}", self.violations, self.run_log)
    }
}

/// Delta debugging: removes parts of the remaining faults, of decreasing size, as long as the run
/// fails.
async fn find_fewest_faults(
    all: &[InjectedFault],
    fails: impl AsyncFn(&[InjectedFault]) -> bool,
) -> Vec<InjectedFault> {
    let (mut remaining, mut parts) = (all.to_vec(), 1);
    let mut tries = 0;
    'smaller: while !remaining.is_empty() {
        let size = remaining.len().div_ceil(parts);
        for start in (0..remaining.len()).step_by(size) {
            let end = (start + size).min(remaining.len());
            let subset = [&remaining[..start], &remaining[end..]].concat();
            tries += 1;
            if tries > MINIMISING_RUNS_MAX {
                break 'smaller;
            }
            if fails(&subset).await {
                (remaining, parts) = (subset, parts.saturating_sub(1).max(2));
                continue 'smaller;
            }
        }
        if size == 1 {
            break;
        }
        parts = (parts * 2).min(remaining.len());
    }
    remaining
}

#[tokio::test]
async fn minimiser_finds_two_relevant_faults() {
    let all: Vec<InjectedFault> = (0..100)
        .map(|nth| InjectedFault { kind: "a fall", place: "stairs".to_owned(), attempt: nth })
        .collect();
    let fails = async |these: &[InjectedFault]| {
        [17, 80].iter().all(|nth| these.iter().any(|fault| fault.attempt == *nth))
    };
    let nths: Vec<u32> =
        find_fewest_faults(&all, fails).await.iter().map(|fault| fault.attempt).collect();
    assert_eq!(nths, [17, 80]);
    assert!(
        find_fewest_faults(&all, async |_: &[InjectedFault]| true).await.is_empty(),
        "the run fails without faults"
    );
}
