//! Isolation of suspect steps: a step during which worker processes died runs where another death
//! ends no other turn.
//!
//! Blame is exact: a death counts only if the process ran nothing but the step, and its parent
//! process lived on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::agent::head::Head;
use crate::agent::phase::Phase;
use crate::clock::Timestamp;
use crate::ids::WorkerId;
use crate::queue;
use crate::services::Services;
use crate::turn::crash_count;
use crate::turn::delivery::{self};
use crate::turn::error::{DeliveryOutcome, TurnError};
use crate::turn::leased_conversation::LeasedConversation;
use crate::turn::nudge::Nudge;
use crate::turn::nudge::enqueue_nudge;

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
    /// No capacity at the moment: try again after `wait`.
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
        _services: &Services,
        _nudge: &Nudge,
        _worker: &WorkerId,
    ) -> IsolatedOutcome {
        let exclusive = Arc::clone(&self.turns).write_owned();
        match tokio::time::timeout(EXCLUSIVE_WAIT, exclusive).await {
            Ok(guard) => IsolatedOutcome::RunHere(guard),
            Err(_elapsed) => IsolatedOutcome::RetryLater { wait: EXCLUSIVE_RETRY },
        }
    }

    async fn acquire_shared(&self) -> Option<SharedTurnPermit> {
        Some(Arc::clone(&self.turns).read_owned().await)
    }
}

/// Runs the suspect step of the nudged conversation in isolation, and counts the death of its
/// process.
///
/// # Errors
/// The store is unavailable or the lease was lost: deliver the nudge again.
pub(crate) async fn run_isolated(
    services: &Services,
    nudge: &Nudge,
    ends: Duration,
) -> Result<DeliveryOutcome, TurnError> {
    let Isolation::Isolator(isolator) = &services.isolation else {
        return Ok(DeliveryOutcome::NoWork);
    };
    let worker = WorkerId::new(format!("{}.{}", services.worker, services.ids.new_id()));
    match isolator.run(services, nudge, &worker).await {
        IsolatedOutcome::Completed(outcome) => outcome,
        IsolatedOutcome::ProcessDied(how) => {
            let id = &nudge.key.conversation_id;
            tracing::warn!(conversation.id = %id, %how, "isolated process died");
            Box::pin(crash_count::count_process_death(services, nudge, &worker)).await?;
            Ok(DeliveryOutcome::Worked)
        }
        IsolatedOutcome::RetryLater { wait } => {
            enqueue_nudge(services, queue::TURNS, nudge, wait).await;
            Ok(DeliveryOutcome::NoWork)
        }
        IsolatedOutcome::RunHere(guard) => {
            let outcome = Box::pin(delivery::deliver_alone(services, nudge, ends)).await;
            drop(guard);
            outcome
        }
    }
}

/// The next action for a suspect step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuspectAction {
    /// Count the death of the last worker first.
    CountDeath,
    /// Wait until the retry time.
    Wait,
    Isolate,
}

impl LeasedConversation<'_> {
    /// Returns `None` if the step runs here like any other, or fails its prompt.
    pub(crate) fn suspect_action(&self, head: &Head, now: Timestamp) -> Option<SuspectAction> {
        let is_clean = head.leases_without_progress == 0 && head.suspicion.is_blank();
        let is_step = !matches!(head.phase, Phase::Idle | Phase::Deleted)
            && head.next_step_due(now).is_some_and(|due| due <= now);
        if is_clean
            || !is_step
            || self.is_alone
            || matches!(self.services.isolation, Isolation::InIsolatedProcess)
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

    /// Why the step is given up, in one sentence. Load the response with open calls first.
    pub(crate) fn give_up_reason(&self) -> String {
        let step = match &self.head.phase {
            Phase::Model { .. } => "the model call".to_owned(),
            Phase::Summary { .. } => "the summary of the conversation".to_owned(),
            Phase::Calls { calls, .. } => {
                let open = calls.iter().enumerate().filter(|(_, call)| !call.is_done());
                let calls: Vec<_> = open.filter_map(|(index, _)| self.open_call(index)).collect();
                let names: Vec<String> =
                    calls.iter().map(|call| format!("`{}`", call.name)).collect();
                let noun = if names.len() == 1 { "the call of tool" } else { "the calls of tools" };
                format!("{noun} {}", names.join(", "))
            }
            Phase::Idle | Phase::Deleted => "no step".to_owned(),
        };
        let deaths = self.head.suspicion.isolated_deaths;
        let times = if deaths == 3 { "three".to_owned() } else { deaths.to_string() };
        format!("The process died {times} times while it ran this step alone: {step}.")
    }
}
