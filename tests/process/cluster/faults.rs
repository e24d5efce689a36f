//! Injected faults of the cluster test: kills, freezes and account faults, one after another.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use turnwheel::testing::queue::TURNS;

use super::{Cluster, INSTANCES, QUEUE_PREFIX};
use crate::support::azure::send_signal;
use crate::support::dev_process::DevProcess;

/// Longer than any lease: a worker that wakes afterwards finds its work done by others.
const LONG_FREEZE_TIME: Duration = Duration::from_secs(70);
/// Time between two faults. In a long run most conversations recover before the next fault, so that
/// the longest pause is one recovery and not several in a row.
const FAULT_INTERVAL_MS: Range<u64> = 100..1_000;
const FAULT_INTERVAL_LONG_RUN_MS: Range<u64> = 500..8_000;
/// A frozen process makes its mistakes in the first moments after it wakes.
const WAKE_UP_TIME: Duration = Duration::from_secs(2);

/// Number of faults by kind.
#[derive(Debug, Default)]
pub(super) struct FaultCounts {
    kills: usize,
    freezes: usize,
    long_freezes: usize,
    cosmos_restarts: usize,
    cosmos_throttles: usize,
    storage_outages: usize,
    storage_restarts: usize,
    queues_deleted: usize,
}

/// A stopped instance.
struct FrozenInstance {
    address: Option<String>,
    frozen_until: Instant,
}

impl FaultCounts {
    pub(super) fn count(&self) -> usize {
        let freezes = self.freezes + self.long_freezes;
        let of_storage = self.storage_outages + self.storage_restarts;
        let of_cosmos = self.cosmos_restarts + self.cosmos_throttles;
        self.kills + freezes + of_cosmos + of_storage + self.queues_deleted
    }
}

impl Cluster {
    /// Injects faults until the work is done or `span` has passed.
    pub(super) async fn inject_faults(
        &self,
        mut instances: Vec<DevProcess>,
        (span, is_long): (Duration, bool),
        is_done: &AtomicBool,
    ) -> (FaultCounts, Vec<DevProcess>) {
        let mut rng = fastrand::Rng::with_seed(7);
        let began = Instant::now();
        let interval = if is_long { FAULT_INTERVAL_LONG_RUN_MS } else { FAULT_INTERVAL_MS };
        let mut faults = FaultCounts::default();
        let mut frozen: [Option<FrozenInstance>; INSTANCES] = [const { None }; INSTANCES];
        while !is_done.load(Ordering::SeqCst) && began.elapsed() < span {
            tokio::time::sleep(Duration::from_millis(rng.u64(interval.clone()))).await;
            for (number, instance) in instances.iter().enumerate() {
                if let Some(stopped) =
                    frozen[number].take_if(|frozen| Instant::now() >= frozen.frozen_until)
                {
                    self.resume(instance, number, stopped);
                }
            }
            let running: Vec<usize> = (0..INSTANCES).filter(|at| frozen[*at].is_none()).collect();
            let number = running[rng.usize(..running.len())];
            let brief = Duration::from_millis(rng.u64(..1_500));
            match rng.u8(..21) {
                0..10 => {
                    self.addresses.lock().unwrap()[number] = None;
                    instances[number].kill();
                    faults.kills += 1;
                    tokio::time::sleep(brief).await;
                    instances[number] = self.start_instance(number).await;
                }
                10..14 => {
                    let stopped_briefly = self.freeze(&instances[number], number, brief);
                    tokio::time::sleep(brief).await;
                    self.resume(&instances[number], number, stopped_briefly);
                    faults.freezes += 1;
                }
                14 if is_long && running.len() == INSTANCES => {
                    frozen[number] =
                        Some(self.freeze(&instances[number], number, LONG_FREEZE_TIME));
                    faults.long_freezes += 1;
                }
                14..16 => {
                    self.azure.restart_cosmos(brief).await;
                    faults.cosmos_restarts += 1;
                }
                16 | 17 => {
                    self.azure.throttle_cosmos(brief).await;
                    faults.cosmos_throttles += 1;
                }
                18 => {
                    self.azure.suspend_storage(brief).await;
                    faults.storage_outages += 1;
                }
                19 => {
                    self.azure.restart_storage(brief).await;
                    faults.storage_restarts += 1;
                }
                _ => {
                    let existed = self.azure.delete_queue(&format!("{QUEUE_PREFIX}-{TURNS}")).await;
                    faults.queues_deleted += usize::from(existed);
                }
            }
        }
        for (number, instance) in instances.iter().enumerate() {
            if let Some(stopped) = frozen[number].take() {
                self.resume(instance, number, stopped);
                tokio::time::sleep(WAKE_UP_TIME).await;
            }
        }
        (faults, instances)
    }

    /// Stops the process with SIGSTOP, as on a frozen machine: the process cannot detect the gap.
    fn freeze(&self, instance: &DevProcess, number: usize, span: Duration) -> FrozenInstance {
        let address = self.addresses.lock().unwrap()[number].take();
        send_signal("-STOP", instance.id());
        FrozenInstance { address, frozen_until: Instant::now() + span }
    }

    fn resume(&self, instance: &DevProcess, number: usize, stopped: FrozenInstance) {
        send_signal("-CONT", instance.id());
        self.addresses.lock().unwrap()[number] = stopped.address;
    }
}
