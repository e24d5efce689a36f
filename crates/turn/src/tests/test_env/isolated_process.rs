//! Simulated isolated process for a suspect step: it may crash at each fail point, without its
//! parent.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio::sync::watch;

use super::WorkerPosition;
use super::fail_points::CrashFailPoints;
use crate::delivery;
use turnwheel_platform::ids::WorkerId;
use turnwheel_platform::ids::fault_plan::FaultPlan;
use turnwheel_record::abort_channel::AbortSignals;
use turnwheel_record::entry_cache::EntryCache;
use turnwheel_record::isolator::{IsolatedOutcome, Isolation, Isolator};
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;

/// Simulates the isolated process of a worker.
#[derive(Debug)]
pub(super) struct SimulatedChild {
    seed: u64,
    fault_plan: Option<FaultPlan>,
    conversation: String,
    crash_percent: u8,
    is_killed_by_calls: bool,
    position: WorkerPosition,
}

impl SimulatedChild {
    pub(super) fn from_parent(parent: &CrashFailPoints, seed: u64) -> Self {
        Self {
            seed,
            fault_plan: parent.fault_plan.clone(),
            conversation: parent.conversation.clone(),
            // If a step kills its process, no other crash is injected, so that the blame can be
            // checked.
            crash_percent: if parent.is_blame_checked { 0 } else { parent.crash_percent },
            is_killed_by_calls: parent.is_killed_by_calls,
            position: parent.position.clone(),
        }
    }
}

#[async_trait]
impl Isolator for SimulatedChild {
    async fn run(&self, services: &Services, nudge: &Nudge, worker: &WorkerId) -> IsolatedOutcome {
        let crashed = Arc::new(watch::channel(None).0);
        let mut crash = crashed.subscribe();
        let fail_points = CrashFailPoints {
            rng: Mutex::new(fastrand::Rng::with_seed(self.seed)),
            fault_plan: self.fault_plan.clone(),
            conversation: self.conversation.clone(),
            crash_percent: self.crash_percent,
            is_killed_by_calls: self.is_killed_by_calls,
            is_blame_checked: false,
            stall_percent: 0,
            crashed,
            client: None,
            position: self.position.clone(),
        };
        let child = Services {
            isolation: Isolation::InIsolatedProcess,
            worker: worker.clone(),
            fail_points: Arc::new(fail_points),
            entry_cache: Arc::new(EntryCache::default()),
            abort_signals: AbortSignals::default(),
            ..services.clone()
        };
        tokio::select! {
            biased;
            at = crash.wait_for(Option::is_some) => {
                IsolatedOutcome::ProcessDied(format!("crashed: {:?}", at.unwrap().unwrap()))
            }
            outcome = Box::pin(delivery::handle(&child, nudge)) => IsolatedOutcome::Completed(outcome),
        }
    }
}
