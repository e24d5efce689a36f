//! Simulated isolated process for a suspect step: it may crash at each fail point, without its
//! parent.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio::sync::watch;

use super::Scene;
use super::probes::CrashProbe;
use crate::ids::WorkerId;
use crate::ids::fate::Fate;
use crate::turn::isolation::{Isolated, Isolator};
use crate::turn::{EntryMemory, Isolation, Nudge, Stops, World, delivery};

/// Simulates the isolated process of a worker.
#[derive(Debug)]
pub(super) struct SimulatedChild {
    seed: u64,
    fate: Option<Fate>,
    at: String,
    in_a_hundred: u8,
    is_killed_by_calls: bool,
    scene: Scene,
}

impl SimulatedChild {
    pub(super) fn of(parent: &CrashProbe, seed: u64) -> Self {
        Self {
            seed,
            fate: parent.fate.clone(),
            at: parent.at.clone(),
            // If a step kills its process, no other crash is injected, so that the blame can be
            // checked.
            in_a_hundred: if parent.is_judged { 0 } else { parent.in_a_hundred },
            is_killed_by_calls: parent.is_killed_by_calls,
            scene: parent.scene.clone(),
        }
    }
}

#[async_trait]
impl Isolator for SimulatedChild {
    async fn run(&self, world: &World, nudge: &Nudge, worker: &WorkerId) -> Isolated {
        let crashed = Arc::new(watch::channel(None).0);
        let mut crash = crashed.subscribe();
        let probe = CrashProbe {
            dice: Mutex::new(fastrand::Rng::with_seed(self.seed)),
            fate: self.fate.clone(),
            at: self.at.clone(),
            in_a_hundred: self.in_a_hundred,
            is_killed_by_calls: self.is_killed_by_calls,
            is_judged: false,
            still_in_a_hundred: 0,
            crashed,
            scene: self.scene.clone(),
        };
        let child = World {
            isolation: Isolation::Inside,
            worker: worker.clone(),
            probe: Arc::new(probe),
            entries: Arc::new(EntryMemory::default()),
            stops: Stops::default(),
            ..world.clone()
        };
        tokio::select! {
            biased;
            at = crash.wait_for(Option::is_some) => {
                Isolated::Died(format!("crashed: {:?}", at.unwrap().unwrap()))
            }
            outcome = Box::pin(delivery::handle(&child, nudge)) => Isolated::Ended(outcome),
        }
    }
}
