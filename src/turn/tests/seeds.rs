//! Many runs of one simulation, each from its seed. One that breaks something is lived again and again with less going
//! wrong, and told with the fewest mishaps that still break it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::bench::Story;
use crate::ids::fate::{Fate, Mishap};

/// Runs that the search for the fewest mishaps may take.
const TRIES_MAX: u32 = 600;

/// What came of one run.
pub(super) struct Lived {
    /// Prompts that failed for a good reason; else what is wrong.
    pub(super) outcome: Result<usize, String>,
    pub(super) story: Story,
}

/// How many runs: every day so many, or what `TURNWHEEL_WEEKS` says.
pub(super) enum Budget {
    Runs(u64),
    Until(Instant),
}

impl Budget {
    /// `TURNWHEEL_WEEKS=5000` is so many runs of each simulation, `TURNWHEEL_WEEKS=10m` so many minutes of each.
    #[expect(clippy::disallowed_methods, reason = "the long run is asked for by it")]
    pub(super) fn or_every_day(runs: u64) -> Self {
        let Ok(asked) = std::env::var("TURNWHEEL_WEEKS") else { return Self::Runs(runs) };
        let of = |number: &str| number.parse::<u64>().ok();
        let budget = match asked.strip_suffix('m') {
            Some(minutes) => of(minutes)
                .map(|minutes| Self::Until(Instant::now() + Duration::from_mins(minutes))),
            None => of(&asked).map(Self::Runs),
        };
        budget.expect("TURNWHEEL_WEEKS is a number of runs, or of minutes with an `m` behind it")
    }

    fn is_over(&self, runs: u64) -> bool {
        match self {
            Self::Runs(all) => runs >= *all,
            Self::Until(end) => Instant::now() >= *end,
        }
    }
}

/// What came of many runs.
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

    /// A trouble that never comes proves nothing.
    pub(super) fn expect_each(&self, troubles: &[&str], times: u64) {
        for trouble in troubles {
            let count = self.mishaps.get(trouble).copied().unwrap_or(0);
            assert!(count >= times, "«{trouble}» came {count} times, not {times}\n{self}");
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: u64 = self.mishaps.values().sum();
        writeln!(f, "{} runs, {} prompts failed, {all} mishaps:", self.runs, self.failed)?;
        self.mishaps.iter().try_for_each(|(what, count)| writeln!(f, "{count:9}  {what}"))
    }
}

/// Lives through seeds from 1 on.
///
/// # Panics
/// With the shortest story of the first run that breaks something.
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
    #[expect(clippy::print_stdout, reason = "who asked for a long run is told what came of it")]
    {
        println!("{tally}");
    }
    tally
}

/// A run that breaks something, with the fewest mishaps.
pub(super) struct Found {
    seed: u64,
    pub(super) mishaps: Vec<Mishap>,
    /// Of the whole run.
    all: usize,
    pub(super) broken: String,
    story: Story,
}

impl Found {
    /// What is left of the mishaps of a run that breaks something.
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
        let again = "with the same mishaps nothing is broken: the run is not the same each time";
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
        writeln!(f, "seed {seed}: {count} of {} mishaps are enough:", self.all)?;
        self.story.mishaps().iter().try_for_each(|line| writeln!(f, "{line}"))?;
        writeln!(f, "Then this is broken:\n{}\nThe whole story:\n{:?}", self.broken, self.story)
    }
}

/// Delta debugging: parts of what is left are left out, smaller and smaller ones, for as long as it stays wrong.
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
    assert!(fewest(&all, async |_: &[Mishap]| true).await.is_empty(), "it is wrong by itself");
}
