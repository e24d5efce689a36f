//! Simulated weeks with injected faults, over the store with leases in heads and over the embedded
//! store, whose process crashes as a whole.
//!
//! A week has one to three conversations with queued prompts. Its clients steer, edit, clear,
//! patch, repeat requests, and leave requests undecided. Its faults: lost responses of tools; slow,
//! late and truncated artifacts; clock offsets; stalled workers; two versions side by side; deleted
//! queues.
//!
//! A week that violates an invariant is reported with the fewest injected faults. For more weeks
//! than the default: `TURNWHEEL_WEEKS=5000 .ci/run weeks`, or `TURNWHEEL_WEEKS=10m`.

mod life;
mod mutants;

use super::bench::Steady;
use super::seeds::{Budget, Lived, Tally, live};
use crate::ids::fate::Fate;

use self::life::{Over, Plan, live_through};

/// Names of the faults injected in these weeks.
const TROUBLES: [&str; 30] = [
    "a batch came late",
    "a batch met a conflict",
    "a batch was lost",
    "a batch was written and its answer lost",
    "a batch was written, sent twice, and met itself",
    "a call of the artifacts failed",
    "a call of the queue failed",
    "a client repeated itself",
    "a clock was ahead",
    "a message came late",
    "a message came twice",
    "a message overtook others",
    "a message was lost",
    "a page was short",
    "a read failed",
    "a read was stale",
    "a tool's answer was lost",
    "a worker crashed",
    "a worker stood still",
    "an artifact came late",
    "an artifact was cut",
    "an artifact was done, then slow",
    "an artifact was kept unheard",
    "an artifact was slow, then done",
    "an older one came",
    "nobody ever answered",
    "somebody changed the conversation",
    "somebody spoke up",
    "the queues were deleted",
    "the store was throttled",
];

async fn one_week(seed: u64, fate: Fate) -> Lived {
    live_through(seed, &fate, &Plan::of(seed), Over::Memory).await
}

/// At most one prompt of eighteen may fail.
fn expect_few_failed(tally: &Tally) {
    let most = tally.runs / 6 + 4;
    assert!(tally.failed as u64 <= most, "{} prompts failed, not {most}\n{tally}", tally.failed);
}

#[tokio::test(start_paused = true)]
async fn bad_weeks_with_claims_in_the_head_keep_every_invariant() {
    let tally = Box::pin(live(Budget::or_every_day(250), one_week)).await;
    tally.expect_each(&TROUBLES, tally.runs / 80);
    expect_few_failed(&tally);
}

#[tokio::test(start_paused = true)]
async fn bad_weeks_of_calls_that_run_at_once_keep_every_invariant() {
    let run = async |seed, fate: Fate| {
        let plan = Plan::of(seed + 1_000_000).with_calls_at_once();
        live_through(seed, &fate, &plan, Over::Memory).await
    };
    expect_few_failed(&Box::pin(live(Budget::or_every_day(120), run)).await);
}

#[tokio::test(start_paused = true)]
async fn bad_weeks_with_decided_turns_keep_every_invariant() {
    let run = async |seed, fate: Fate| {
        let plan = Plan::of(seed + 2_000_000).with_decided_turns();
        live_through(seed, &fate, &plan, Over::Memory).await
    };
    expect_few_failed(&Box::pin(live(Budget::or_every_day(60), run)).await);
}

#[tokio::test(start_paused = true)]
async fn bad_weeks_of_one_process_that_dies_keep_every_invariant() {
    let run = async |seed, fate: Fate| {
        let folder = tempfile::tempdir().unwrap();
        let steady = Steady::open(folder.path().to_owned());
        live_through(seed, &fate, &Plan::of_one_process(seed), Over::Embedded(steady)).await
    };
    let tally = Box::pin(live(Budget::or_every_day(5), run)).await;
    tally.expect_each(&["a worker crashed", "a tool's answer was lost"], 1);
    // A crash of the process affects all three conversations, so more attempts of steps fail.
    assert!(tally.failed as u64 <= 3 * tally.runs, "{tally}");
}

/// Seed 764: a worker stalled until its turn was over, and the prompt failed without a model
/// response.
#[tokio::test(start_paused = true)]
async fn weeks_that_broke_something_once_do_so_no_more() {
    for seed in [764] {
        let lived = one_week(seed, Fate::new(seed)).await;
        assert_eq!(lived.outcome.map(|_failed| ()), Ok(()), "{:?}", lived.story);
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_is_the_same_week() {
    for seed in [1, 2, 5] {
        let mut stories = Vec::new();
        for _ in 0..2 {
            let fate = Fate::new(seed);
            let lived = one_week(seed, fate.clone()).await;
            // Repeats the run with only the faults that happened.
            let again = one_week(seed, Fate::only(seed, &fate.happened())).await;
            stories.extend([lived, again].map(|lived| format!("{:?}", lived.story)));
        }
        assert!(stories.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_is_the_same_week_of_one_process() {
    let mut stories = Vec::new();
    for _ in 0..2 {
        let folder = tempfile::tempdir().unwrap();
        let over = Over::Embedded(Steady::open(folder.path().to_owned()));
        let lived = live_through(4, &Fate::new(4), &Plan::of_one_process(4), over).await;
        stories.push(format!("{:?}", lived.story));
    }
    let lines = stories[0].lines().zip(stories[1].lines());
    for (place, (one, other)) in lines.enumerate() {
        assert_eq!(one, other, "line {place}");
    }
    assert_eq!(stories[0].len(), stories[1].len());
}
