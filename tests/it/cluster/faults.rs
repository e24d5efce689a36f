//! Injected faults of the cluster test: kills, freezes and account faults, one after another.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use turnwheel::queue::TURNS;

use super::{Cluster, INSTANCES, QUEUE_PREFIX};
use crate::support::azure::signal;
use crate::support::process::Dev;

/// Longer than any lease: a worker that wakes afterwards finds its work done by others.
const LONG_FREEZE: Duration = Duration::from_secs(70);
/// Time between two faults. In a long run most conversations recover before the next fault, so that
/// the longest pause is one recovery and not several in a row.
const BETWEEN_MS: Range<u64> = 100..1_000;
const BETWEEN_LONG_MS: Range<u64> = 500..8_000;
/// A frozen process makes its mistakes in the first moments after it wakes.
const WAKING: Duration = Duration::from_secs(2);

/// Number of faults by kind.
#[derive(Debug, Default)]
pub(super) struct Faults {
    kills: usize,
    freezes: usize,
    long_freezes: usize,
    restarts_of_cosmos: usize,
    throttled: usize,
    silences_of_storage: usize,
    restarts_of_storage: usize,
    queues_deleted: usize,
}

/// A stopped instance.
struct Frozen {
    address: Option<String>,
    until: Instant,
}

impl Faults {
    pub(super) fn count(&self) -> usize {
        let freezes = self.freezes + self.long_freezes;
        let of_storage = self.silences_of_storage + self.restarts_of_storage;
        let of_cosmos = self.restarts_of_cosmos + self.throttled;
        self.kills + freezes + of_cosmos + of_storage + self.queues_deleted
    }
}

impl Cluster {
    /// Injects faults until the work is done or `span` has passed.
    pub(super) async fn disturb(
        &self,
        mut instances: Vec<Dev>,
        (span, is_long): (Duration, bool),
        is_done: &AtomicBool,
    ) -> (Faults, Vec<Dev>) {
        let mut dice = fastrand::Rng::with_seed(7);
        let began = Instant::now();
        let between = if is_long { BETWEEN_LONG_MS } else { BETWEEN_MS };
        let mut faults = Faults::default();
        let mut frozen: [Option<Frozen>; INSTANCES] = [const { None }; INSTANCES];
        while !is_done.load(Ordering::SeqCst) && began.elapsed() < span {
            tokio::time::sleep(Duration::from_millis(dice.u64(between.clone()))).await;
            for (number, instance) in instances.iter().enumerate() {
                if let Some(over) = frozen[number].take_if(|frozen| Instant::now() >= frozen.until)
                {
                    self.let_go(instance, number, over);
                }
            }
            let awake: Vec<usize> = (0..INSTANCES).filter(|at| frozen[*at].is_none()).collect();
            let number = awake[dice.usize(..awake.len())];
            let shortly = Duration::from_millis(dice.u64(..1_500));
            match dice.u8(..21) {
                0..10 => {
                    self.addresses.lock().unwrap()[number] = None;
                    instances[number].kill();
                    faults.kills += 1;
                    tokio::time::sleep(shortly).await;
                    instances[number] = self.start_instance(number).await;
                }
                10..14 => {
                    let short = self.freeze(&instances[number], number, shortly);
                    tokio::time::sleep(shortly).await;
                    self.let_go(&instances[number], number, short);
                    faults.freezes += 1;
                }
                14 if is_long && awake.len() == INSTANCES => {
                    frozen[number] = Some(self.freeze(&instances[number], number, LONG_FREEZE));
                    faults.long_freezes += 1;
                }
                14..16 => {
                    self.azure.restart_cosmos(shortly).await;
                    faults.restarts_of_cosmos += 1;
                }
                16 | 17 => {
                    self.azure.throttle_cosmos(shortly).await;
                    faults.throttled += 1;
                }
                18 => {
                    self.azure.silence_storage(shortly).await;
                    faults.silences_of_storage += 1;
                }
                19 => {
                    self.azure.restart_storage(shortly).await;
                    faults.restarts_of_storage += 1;
                }
                _ => {
                    let was_there =
                        self.azure.delete_queue(&format!("{QUEUE_PREFIX}-{TURNS}")).await;
                    faults.queues_deleted += usize::from(was_there);
                }
            }
        }
        for (number, instance) in instances.iter().enumerate() {
            if let Some(over) = frozen[number].take() {
                self.let_go(instance, number, over);
                tokio::time::sleep(WAKING).await;
            }
        }
        (faults, instances)
    }

    /// Stops the process with SIGSTOP, as on a frozen machine: the process cannot detect the gap.
    fn freeze(&self, instance: &Dev, number: usize, span: Duration) -> Frozen {
        let address = self.addresses.lock().unwrap()[number].take();
        signal("-STOP", instance.id());
        Frozen { address, until: Instant::now() + span }
    }

    fn let_go(&self, instance: &Dev, number: usize, over: Frozen) {
        signal("-CONT", instance.id());
        self.addresses.lock().unwrap()[number] = over.address;
    }
}
