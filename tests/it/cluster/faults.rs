//! Kills, standstills and the accounts' bad hours, one after the other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use turnwheel::queue::TURNS;

use super::{Cluster, INSTANCES, QUEUE_PREFIX};
use crate::support::azure::signal;
use crate::support::process::Dev;

/// Longer than any claim holds: who goes on after it finds that others have done the work.
const LONG_STOP: Duration = Duration::from_secs(70);

/// What happened to the instances and their accounts.
#[derive(Debug, Default)]
pub(super) struct Faults {
    kills: usize,
    stops: usize,
    long_stops: usize,
    restarts_of_cosmos: usize,
    throttled: usize,
    silences_of_storage: usize,
    restarts_of_storage: usize,
    queues_deleted: usize,
}

impl Faults {
    pub(super) fn count(&self) -> usize {
        let stops = self.stops + self.long_stops;
        let of_storage = self.silences_of_storage + self.restarts_of_storage;
        let of_cosmos = self.restarts_of_cosmos + self.throttled;
        self.kills + stops + of_cosmos + of_storage + self.queues_deleted
    }
}

impl Cluster {
    /// One fault after the other, until everything is done or it has been long enough.
    pub(super) async fn disturb(
        &self,
        mut instances: Vec<Dev>,
        (span, is_long): (Duration, bool),
        is_done: &AtomicBool,
    ) -> (Faults, Vec<Dev>) {
        let mut dice = fastrand::Rng::with_seed(7);
        let began = Instant::now();
        let mut faults = Faults::default();
        while !is_done.load(Ordering::SeqCst) && began.elapsed() < span {
            tokio::time::sleep(Duration::from_millis(dice.u64(100..1_000))).await;
            let number = dice.usize(..INSTANCES);
            let shortly = Duration::from_millis(dice.u64(..1_500));
            match dice.u8(..22) {
                0..10 => {
                    self.addresses.lock().unwrap()[number] = None;
                    instances[number].kill();
                    faults.kills += 1;
                    tokio::time::sleep(shortly).await;
                    instances[number] = self.start_instance(number).await;
                }
                10..14 => {
                    self.stop(&instances[number], number, shortly).await;
                    faults.stops += 1;
                }
                14 if is_long => {
                    self.stop(&instances[number], number, LONG_STOP).await;
                    faults.long_stops += 1;
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
        (faults, instances)
    }

    /// Stands still in its middle, as a frozen machine does, and knows nothing of it afterwards.
    async fn stop(&self, instance: &Dev, number: usize, span: Duration) {
        let address = self.addresses.lock().unwrap()[number].take();
        signal("-STOP", instance.id());
        tokio::time::sleep(span).await;
        signal("-CONT", instance.id());
        self.addresses.lock().unwrap()[number] = address;
    }
}
