//! How soon somebody else goes on: by arithmetic over what is set, and measured on a clock that only sleeping moves.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::bench::{Bench, PauseProbe, Steady, text};
use crate::clock::Clock as _;
use crate::queue;
use crate::store::TAKE_OVER_AFTER;
use crate::turn::claiming::CLAIM;
use crate::turn::delivery::handle;
use crate::turn::{NoProbe, Probe, sweep};

/// What was promised.
const ON_AZURE: Duration = Duration::from_secs(150);
const IN_DEV: Duration = Duration::from_secs(5);
/// The timer of `functions/sweep`.
const SWEEP_EVERY: Duration = Duration::from_mins(1);

fn says_hello(_results: usize, _said: &str) -> Vec<Value> {
    vec![text("hello")]
}

#[test]
fn a_dead_worker_is_followed_within_the_time_that_was_promised() {
    let sweep_function: Value =
        serde_json::from_str(include_str!("../../../functions/sweep/function.json")).unwrap();
    assert_eq!(sweep_function["bindings"][0]["schedule"], json!("0 * * * * *"));
    // The claim was taken just before; the sweep came just before somebody may take over, and left it to its own bell.
    let longest = CLAIM + TAKE_OVER_AFTER + sweep::GRACE + SWEEP_EVERY;
    assert_eq!(longest, Duration::from_secs(145));
    assert!(longest <= ON_AZURE);
    // A sweep between death and take-over has rung for that time already.
    assert!(sweep::AHEAD >= SWEEP_EVERY + TAKE_OVER_AFTER);
}

/// A worker that dies at that boundary of a prompt's first turn.
async fn dies(bench: &mut Bench, boundary: &'static str) {
    let pause = Arc::new(PauseProbe::new(boundary));
    let worker = bench.worker(pause.clone() as Arc<dyn Probe>);
    let nudge = Bench::nudge();
    tokio::select! {
        outcome = handle(&worker, &nudge) => panic!("{boundary}: {outcome:?}"),
        () = pause.reached.notified() => {}
    }
}

async fn asked(bench: &mut Bench) {
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
}

const BOUNDARIES: [&str; 4] = ["claim.after", "take-in.after", "model.before", "model.after"];

#[tokio::test(start_paused = true)]
async fn whenever_the_sweep_comes_it_finds_what_a_dead_worker_left() {
    let mut longest = Duration::ZERO;
    for boundary in BOUNDARIES {
        for second in (0..60).step_by(5) {
            let mut bench = Bench::with(1, says_hello);
            asked(&mut bench).await;
            dies(&mut bench, boundary).await;
            // Its message is lost too: the sweep alone brings somebody.
            bench.queue.drop_queue(queue::TURNS);
            let died = bench.clock.monotonic();
            tokio::time::sleep(Duration::from_secs(second)).await;
            while bench.head().await.unwrap().prompts.last().is_none_or(|it| it.to_seq.is_none()) {
                if bench.clock.monotonic().saturating_sub(died).as_secs() % 60 == second {
                    bench.sweep().await;
                }
                while bench.deliver().await {}
                tokio::time::sleep(Duration::from_secs(1)).await;
                let waited = bench.clock.monotonic().saturating_sub(died);
                assert!(waited <= ON_AZURE, "{boundary} after {waited:?}: {:#?}", bench.story);
            }
            longest = longest.max(bench.clock.monotonic().saturating_sub(died));
        }
    }
    // To read with `--nocapture`.
    let told = format!("the longest of 48 recoveries by the sweep alone took {longest:?}");
    writeln!(std::io::stderr(), "{told}").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_claims_die_with_their_process_goes_on_when_it_starts() {
    for boundary in BOUNDARIES {
        let folder = tempfile::tempdir().unwrap();
        let mut bench = Bench::with(1, says_hello);
        bench.use_steady(Steady::open(folder.path().to_owned()));
        asked(&mut bench).await;
        dies(&mut bench, boundary).await;
        let died = bench.clock.monotonic();
        bench.start_again().await;
        while bench.head().await.unwrap().prompts.last().is_none_or(|it| it.to_seq.is_none()) {
            while bench.deliver().await {}
            let waited = bench.clock.monotonic().saturating_sub(died);
            assert!(waited <= IN_DEV, "{boundary} after {waited:?}: {:#?}", bench.story);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
