//! The port that runs suspect steps in isolation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::error::{DeliveryOutcome, TurnError};
use crate::nudge::Nudge;
use crate::services::Services;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::suspicion::Death;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::WorkerId;

/// Longest wait of a suspect step for the other turns of its process, if no separate process can be
/// started.
const EXCLUSIVE_WAIT: Duration = Duration::from_secs(20);

/// Delay of the next attempt if the other turns did not end in time.
const EXCLUSIVE_RETRY: Duration = Duration::from_secs(30);

/// Where suspect steps run.
#[derive(Clone, Debug)]
pub enum Isolation {
    /// In this process, which was started for one suspect step.
    InIsolatedProcess,
    Isolator(Arc<dyn Isolator>),
}

impl Default for Isolation {
    fn default() -> Self {
        Self::Isolator(Arc::<InProcessIsolator>::default())
    }
}

/// The permit of an ordinary turn, which may run beside others.
pub type SharedTurnPermit = OwnedRwLockReadGuard<()>;

/// Runs a delivery so that the death of its process ends no other.
#[async_trait]
pub trait Isolator: Send + Sync + fmt::Debug {
    /// `worker` is the id under which the isolated process takes its lease.
    async fn run(&self, services: &Services, nudge: &Nudge, worker: &WorkerId) -> IsolatedOutcome;

    /// The permit that an ordinary turn keeps while it runs, if suspect steps share its process.
    async fn acquire_shared(&self) -> Option<SharedTurnPermit> {
        None
    }
}

/// Outcome of an isolated delivery.
#[derive(Debug)]
pub enum IsolatedOutcome {
    /// The delivery ended normally or with an error.
    Completed(Result<DeliveryOutcome, TurnError>),
    /// The process died. Holds a description.
    ProcessDied(String),
    /// No capacity at the moment, or the process ends: try again after `wait`.
    RetryLater { wait: Duration },
    /// No process can be started for it, so it may run here. No other turn runs in this process
    /// while the guard lives.
    RunHere(OwnedRwLockWriteGuard<()>),
}

/// For programs that cannot start themselves again: a suspect step runs in this process, after its
/// other turns.
#[derive(Debug, Default)]
pub struct InProcessIsolator {
    turns: Arc<RwLock<()>>,
}

#[async_trait]
impl Isolator for InProcessIsolator {
    async fn run(
        &self,
        services: &Services,
        _nudge: &Nudge,
        _worker: &WorkerId,
    ) -> IsolatedOutcome {
        let exclusive = Arc::clone(&self.turns).write_owned();
        let end = services.shutdown.clone().wait_until_begun();
        tokio::select! {
            biased;
            _ = tokio::time::timeout(EXCLUSIVE_WAIT, end) => {
                IsolatedOutcome::RetryLater { wait: EXCLUSIVE_RETRY }
            }
            guard = exclusive => IsolatedOutcome::RunHere(guard),
        }
    }

    async fn acquire_shared(&self) -> Option<SharedTurnPermit> {
        Some(Arc::clone(&self.turns).read_owned().await)
    }
}

/// The next action for a suspect step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspectAction {
    /// Count the death of the last worker first.
    CountDeath,
    /// Wait until the retry time.
    Wait,
    Isolate,
}

/// Knowledge of a delivery about deaths of its step.
#[derive(Debug, Default)]
pub struct CrashState {
    /// Death of the worker that ran the step before. The first commit counts it.
    pub death: Option<Death>,
    /// True if no other turn runs in this process, so that its death is caused by the step.
    pub is_alone: bool,
    /// True if this delivery performs nothing: it commits the outcome of the lost step and releases
    /// the lease.
    pub is_commit_only: bool,
}

impl CrashState {
    /// Returns `None` if the step runs here like any other, or fails its prompt.
    pub fn suspect_action(
        &self,
        isolation: &Isolation,
        head: &Head,
        now: Timestamp,
    ) -> Option<SuspectAction> {
        let is_clean = head.leases_without_progress == 0 && head.suspicion.is_blank();
        let is_step = !matches!(head.phase, Phase::Idle | Phase::Deleted)
            && head.next_step_due(now).is_some_and(|due| due <= now);
        if is_clean
            || !is_step
            || self.is_alone
            || matches!(isolation, Isolation::InIsolatedProcess)
        {
            return None;
        }
        if let Some(death) = self.death {
            let mut head = head.clone();
            head.count_death(death, now);
            return head.is_suspect().then_some(SuspectAction::CountDeath);
        }
        if !head.is_suspect() || head.is_poisoned() {
            return None;
        }
        let is_early = head.suspicion.retry_at.is_some_and(|time| time > now);
        Some(if is_early { SuspectAction::Wait } else { SuspectAction::Isolate })
    }
}
