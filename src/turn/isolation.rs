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
use crate::turn::commit::ring;
use crate::turn::delivery::{self, Handled, TurnError};
use crate::turn::hold::Hold;
use crate::turn::{Nudge, World, recount};

/// Longest wait of a suspect step for the other turns of its process, if no separate process can be
/// started.
const ALONE_WITHIN: Duration = Duration::from_secs(20);
/// Delay of the next attempt if the other turns did not end in time.
const ALONE_AGAIN: Duration = Duration::from_secs(30);

/// Where suspect steps run.
#[derive(Clone, Debug)]
pub enum Isolation {
    /// In this process, which was started for one suspect step.
    Inside,
    By(Arc<dyn Isolator>),
}

impl Default for Isolation {
    fn default() -> Self {
        Self::By(Arc::<InProcess>::default())
    }
}

/// The permit of an ordinary turn, which may run beside others.
pub type Shared = OwnedRwLockReadGuard<()>;

/// Runs a delivery so that the death of its process ends no other.
#[async_trait]
pub trait Isolator: Send + Sync + fmt::Debug {
    /// `worker` is the id under which the isolated process takes its lease.
    async fn run(&self, world: &World, nudge: &Nudge, worker: &WorkerId) -> Isolated;

    /// The permit that an ordinary turn keeps while it runs, if suspect steps share its process.
    async fn enter(&self) -> Option<Shared> {
        None
    }
}

/// Outcome of an isolated delivery.
#[derive(Debug)]
pub enum Isolated {
    /// The delivery ended normally or with an error.
    Ended(Result<Handled, TurnError>),
    /// The process died. Holds a description.
    Died(String),
    /// No capacity at the moment: try again after `wait`.
    NotNow { wait: Duration },
    /// No process can be started for it, so it may run here. No other turn runs in this process
    /// while the guard lives.
    Here(OwnedRwLockWriteGuard<()>),
}

/// For programs that cannot start themselves again: a suspect step runs in this process, after its
/// other turns.
#[derive(Debug, Default)]
pub struct InProcess {
    turns: Arc<RwLock<()>>,
}

#[async_trait]
impl Isolator for InProcess {
    async fn run(&self, _world: &World, _nudge: &Nudge, _worker: &WorkerId) -> Isolated {
        let alone = Arc::clone(&self.turns).write_owned();
        match tokio::time::timeout(ALONE_WITHIN, alone).await {
            Ok(guard) => Isolated::Here(guard),
            Err(_elapsed) => Isolated::NotNow { wait: ALONE_AGAIN },
        }
    }

    async fn enter(&self) -> Option<Shared> {
        Some(Arc::clone(&self.turns).read_owned().await)
    }
}

/// Runs the suspect step of the nudged conversation in isolation, and counts the death of its
/// process.
///
/// # Errors
/// The store is unavailable or the lease was lost: deliver the nudge again.
pub(super) async fn isolate(
    world: &World,
    nudge: &Nudge,
    ends: Duration,
) -> Result<Handled, TurnError> {
    let Isolation::By(isolator) = &world.isolation else { return Ok(Handled::Nothing) };
    let worker = WorkerId::new(format!("{}.{}", world.worker, world.ids.fresh()));
    match isolator.run(world, nudge, &worker).await {
        Isolated::Ended(outcome) => outcome,
        Isolated::Died(how) => {
            let id = &nudge.key.conversation_id;
            tracing::warn!(conversation.id = %id, %how, "isolated process died");
            Box::pin(recount::bury(world, nudge, &worker)).await?;
            Ok(Handled::Worked)
        }
        Isolated::NotNow { wait } => {
            ring(world, queue::TURNS, nudge, wait).await;
            Ok(Handled::Nothing)
        }
        Isolated::Here(guard) => {
            let outcome = Box::pin(delivery::deliver_alone(world, nudge, ends)).await;
            drop(guard);
            outcome
        }
    }
}

/// The next action for a suspect step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suspect {
    /// Count the death of the last worker first.
    CountDeath,
    /// Wait until the retry time.
    Wait,
    Isolate,
}

impl Hold<'_> {
    /// Returns `None` if the step runs here like any other, or fails its prompt.
    pub(super) fn suspect(&self, head: &Head, now: Timestamp) -> Option<Suspect> {
        let is_clean = head.claims == 0 && head.suspicion.is_blank();
        let is_step = !matches!(head.phase, Phase::Idle | Phase::Deleted)
            && head.step_owed_at(now).is_some_and(|due| due <= now);
        if is_clean
            || !is_step
            || self.is_alone
            || matches!(self.world.isolation, Isolation::Inside)
        {
            return None;
        }
        if let Some(death) = self.death {
            let mut head = head.clone();
            head.count_death(death, now);
            return head.is_suspect().then_some(Suspect::CountDeath);
        }
        if !head.is_suspect() || head.is_hopeless() {
            return None;
        }
        let is_early = head.suspicion.retry_at.is_some_and(|time| time > now);
        Some(if is_early { Suspect::Wait } else { Suspect::Isolate })
    }

    /// Why the step is given up, in one sentence. Load the response with open calls first.
    pub(super) fn verdict(&self) -> String {
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
