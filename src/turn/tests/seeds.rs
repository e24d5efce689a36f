//! Runs one simulation with many seeds. A run that violates an invariant is repeated with fewer
//! faults, and reported with the fewest injected faults that still fail.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::bench::Story;
use crate::ids::fate::{Fate, Mishap};

/// Upper bound of the runs in the search for the fewest faults.
const TRIES_MAX: u32 = 600;

/// Result of one run.
pub(super) struct Lived {
    /// Number of prompts that failed for an accepted reason, or the violations.
    pub(super) outcome: Result<usize, String>,
    pub(super) story: Story,
}

/// Number of runs: a fixed number, or the value of `TURNWHEEL_WEEKS`.
pub(super) enum Budget {
    Runs(u64),
    Until(Instant),
}

impl Budget {
    /// `TURNWHEEL_WEEKS=5000` is the number of runs of each simulation, `TURNWHEEL_WEEKS=10m` the
    /// minutes.
    #[expect(clippy::disallowed_methods, reason = "the variable selects a long run")]
    pub(super) fn or_every_day(runs: u64) -> Self {
        let Ok(asked) = std::env::var("TURNWHEEL_WEEKS") else { return Self::Runs(runs) };
        let of = |number: &str| number.parse::<u64>().ok();
        let budget = match asked.strip_suffix('m') {
            Some(minutes) => of(minutes)
                .map(|minutes| Self::Until(Instant::now() + Duration::from_mins(minutes))),
            None => of(&asked).map(Self::Runs),
        };
        budget.expect("TURNWHEEL_WEEKS must be a number of runs, or a number of minutes followed by `m`")
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
pub(super) struct Tally {
    pub(super) runs: u64,
    pub(super) failed: usize,
    pub(super) mishaps: BTreeMap<&'static str, u64>,
}

impl Tally {
    fn add(&mut self, failed: usize, mishaps: &[Mishap]) {
        self.runs += 1;
        self.failed += failed;
        for mishap in mishaps {
            *self.mishaps.entry(mishap.what).or_default() += 1;
        }
    }

    /// Checks that each fault was injected at least `times` times: a fault that never occurs tests
    /// nothing.
    pub(super) fn expect_each(&self, troubles: &[&str], times: u64) {
        for trouble in troubles {
            let count = self.mishaps.get(trouble).copied().unwrap_or(0);
            assert!(count >= times, "fault «{trouble}» was injected {count} times, not {times}\n{self}");
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: u64 = self.mishaps.values().sum();
        writeln!(f, "{} runs, {} prompts failed, {all} injected faults:", self.runs, self.failed)?;
        self.mishaps.iter().try_for_each(|(what, count)| writeln!(f, "{count:9}  {what}"))
    }
}

/// Runs the simulation with seeds from 1 on.
///
/// # Panics
/// On the first violation, with its minimised run.
pub(super) async fn live(budget: Budget, run: impl AsyncFn(u64, Fate) -> Lived) -> Tally {
    let mut tally = Tally::default();
    while !budget.is_over(tally.runs) {
        let seed = tally.runs + 1;
        let fate = Fate::new(seed);
        let Ok(failed) = run(seed, fate.clone()).await.outcome else {
            panic!("{}", Found::of(seed, &fate.happened(), run).await);
        };
        tally.add(failed, &fate.happened());
    }
    #[expect(clippy::print_stdout, reason = "a long run prints its results")]
    {
        println!("{tally}");
    }
    tally
}

/// A run with a violation, reduced to the fewest injected faults.
pub(super) struct Found {
    seed: u64,
    pub(super) mishaps: Vec<Mishap>,
    /// Number of injected faults in the original run.
    all: usize,
    pub(super) broken: String,
    story: Story,
}

impl Found {
    /// Minimises the faults of a run with a violation.
    pub(super) async fn of(
        seed: u64,
        all: &[Mishap],
        run: impl AsyncFn(u64, Fate) -> Lived,
    ) -> Self {
        let is_wrong =
            async |these: &[Mishap]| run(seed, Fate::only(seed, these)).await.outcome.is_err();
        let fewest = fewest(all, is_wrong).await;
        let fate = Fate::only(seed, &fewest);
        let lived = run(seed, fate.clone()).await;
        let again = "no violation with the same faults: the run is not deterministic";
        Self {
            seed,
            mishaps: fate.happened(),
            all: all.len(),
            broken: lived.outcome.err().unwrap_or_else(|| again.to_owned()),
            story: lived.story,
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, count) = (self.seed, self.mishaps.len());
        writeln!(f, "seed {seed}: {count} of {} injected faults suffice:", self.all)?;
        self.story.mishaps().iter().try_for_each(|line| writeln!(f, "{line}"))?;
        writeln!(f, "Violations:\n{}\nLog of the run:\n{:?}", self.broken, self.story)
    }
}

/// Delta debugging: removes parts of the remaining faults, of decreasing size, as long as the run
/// fails.
async fn fewest(all: &[Mishap], is_wrong: impl AsyncFn(&[Mishap]) -> bool) -> Vec<Mishap> {
    let (mut left, mut parts) = (all.to_vec(), 1);
    let mut tries = 0;
    'smaller: while !left.is_empty() {
        let size = left.len().div_ceil(parts);
        for start in (0..left.len()).step_by(size) {
            let end = (start + size).min(left.len());
            let less = [&left[..start], &left[end..]].concat();
            tries += 1;
            if tries > TRIES_MAX {
                break 'smaller;
            }
            if is_wrong(&less).await {
                (left, parts) = (less, parts.saturating_sub(1).max(2));
                continue 'smaller;
            }
        }
        if size == 1 {
            break;
        }
        parts = (parts * 2).min(left.len());
    }
    left
}

#[tokio::test]
async fn two_mishaps_of_many_are_found() {
    let all: Vec<Mishap> =
        (0..100).map(|nth| Mishap { what: "a fall", at: "stairs".to_owned(), nth }).collect();
    let wrong = async |these: &[Mishap]| {
        [17, 80].iter().all(|nth| these.iter().any(|mishap| mishap.nth == *nth))
    };
    let nths: Vec<u32> = fewest(&all, wrong).await.iter().map(|mishap| mishap.nth).collect();
    assert_eq!(nths, [17, 80]);
    assert!(fewest(&all, async |_: &[Mishap]| true).await.is_empty(), "the run fails without faults");
}
