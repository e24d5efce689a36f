//! Take-over latency: computed from the constants, and measured in virtual time.

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

/// Guaranteed latencies.
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
    // Worst case: the lease was just acquired, and a sweep came just before take-over was possible.
    let longest = CLAIM + TAKE_OVER_AFTER + sweep::GRACE + SWEEP_EVERY;
    assert_eq!(longest, Duration::from_secs(145));
    assert!(longest <= ON_AZURE);
    // A sweep between crash and take-over has already enqueued the conversation for that time.
    assert!(sweep::AHEAD >= SWEEP_EVERY + TAKE_OVER_AFTER);
}

/// Kills a worker at the fail point, in the first turn of a prompt.
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
            // The message is lost too, so that only the sweep starts another worker.
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
    // Shown with `--nocapture`.
    let told = format!("slowest of 48 recoveries by the sweep alone: {longest:?}");
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
