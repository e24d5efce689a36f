//! The driver: leases a conversation, loads it, runs the state machine, commits and performs
//! effects.

pub mod admission;
mod answering;
mod books;
mod braking;
mod calling;
mod claiming;
mod commit;
pub mod delivery;
mod event_log;
pub mod expiry;
pub mod faults;
mod finish_turn;
mod gate;
mod hold;
mod hooks;
mod inbox;
pub mod invariants;
pub mod isolation;
mod memory;
pub mod money;
pub mod notify;
mod paying;
pub mod rates;
pub mod record;
pub mod recount;
mod reduce;
mod running;
pub mod schedules;
mod spans;
mod spending;
pub mod stopping;
mod summing;
pub mod sweep;
mod telling;
mod tried;
pub mod views;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::head::READER;
use crate::agents::Agents;
use crate::artifacts::Artifacts;
use crate::clock::Clock;
use crate::extensions::Extension;
use crate::ids::{ConversationId, ConversationKey, Ids, TenantId, UserId, WorkerId};
use crate::live::Live;
use crate::model::Model;
use crate::queue::Queue;
use crate::settings::brakes::Brakes;
use crate::store::ConversationStore;
use crate::telemetry::Telemetry;

pub use books::Writers;
pub use isolation::Isolation;
pub use memory::EntryMemory;
pub use stopping::Stops;

/// The services and settings that turns use.
#[derive(Clone, Debug)]
pub struct World {
    pub store: Arc<dyn ConversationStore>,
    pub queue: Arc<dyn Queue>,
    pub artifacts: Arc<dyn Artifacts>,
    pub live: Arc<dyn Live>,
    pub model: Arc<dyn Model>,
    pub agents: Agents,
    pub extensions: Vec<Arc<dyn Extension>>,
    pub entries: Arc<EntryMemory>,
    pub stops: Stops,
    /// Serialise this process's writes to one tenant's usage ledger.
    pub writers: Arc<Writers>,
    /// Sends notifications. `None`: commits write no notifications.
    pub herald: Option<Arc<dyn notify::Herald>>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    pub probe: Arc<dyn Probe>,
    pub worker: WorkerId,
    pub limits: Limits,
    pub money: Arc<money::Money>,
    /// The operator's pauses, fixed for the life of the process.
    pub brakes: Arc<Brakes>,
    /// Where suspect steps run.
    pub isolation: Isolation,
    pub telemetry: Telemetry,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Half of the host's `functionTimeout`. When one invocation exceeds that time-out, the host
    /// kills the whole process.
    pub turn: Duration,
    /// Delay from a model call to its entry in the usage ledger, if no limit applies. One entry
    /// covers all calls made meanwhile.
    pub settle_after: Duration,
    /// Newest supported `minReader`. Conversations that need a newer one are left to newer workers.
    pub reader: u32,
    /// Time-out of one extension hook, at most 30 s.
    pub hook: Duration,
}

/// Default time-out of an extension hook.
pub const HOOK_DEFAULT: Duration = Duration::from_secs(5);

impl Default for Limits {
    fn default() -> Self {
        Self {
            turn: Duration::from_mins(5),
            settle_after: Duration::from_mins(10),
            reader: READER,
            hook: HOOK_DEFAULT,
        }
    }
}

/// Receives every named boundary between two I/O operations, so that tests can kill the process
/// there.
#[async_trait::async_trait]
pub trait Probe: Send + Sync + fmt::Debug {
    async fn reached(&self, boundary: &'static str);
}

/// All fail points, in the order in which a prompt with a tool and an approval first reaches them.
pub const BOUNDARIES: [&str; 50] = [
    "admission.hold-key",
    "admission.accept",
    "admission.accepted",
    "admission.nudge",
    "claim.before",
    "claim.after",
    "inbox.after",
    "take-in.before",
    "take-in.after",
    "hold.before",
    "hold.after",
    "model.before",
    "model.after",
    "answer.before",
    "answer.after",
    "release.before",
    "release.after",
    "nudge.before",
    "nudge.after",
    "look.after",
    "notice.before",
    "notice.after",
    "admission.decide",
    "admission.decided",
    "tool.before",
    "tool.after",
    "result.before",
    "result.after",
    "summing.before",
    "summing.after",
    "summary.before",
    "summary.after",
    "renew.before",
    "renew.after",
    "expiry.before",
    "expiry.after",
    "settle.before",
    "settle.after",
    "admission.import",
    "admission.input-kept",
    "admission.artifact-kept",
    "admission.patch",
    "admission.edit",
    "admission.clear",
    "admission.delete",
    "admission.purged",
    "schedule.create",
    "schedule.fired",
    "schedule.moved",
    "schedule.cancel",
];

/// Production implementation: does nothing.
#[derive(Debug, Default)]
pub struct NoProbe;

#[async_trait::async_trait]
impl Probe for NoProbe {
    async fn reached(&self, _boundary: &'static str) {}
}

/// Says that a conversation may have pending work, and nothing more. A lost or duplicate nudge
/// costs only time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nudge {
    #[serde(flatten)]
    pub key: ConversationKey,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Document id of a schedule that may be due. The key then names no conversation, so a worker
    /// without schedule support finds nothing there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
}

impl Nudge {
    pub fn of(key: ConversationKey, traceparent: Option<String>) -> Self {
        Self { key, traceparent, schedule: None }
    }

    /// The nudge of a schedule, by its document id.
    pub fn of_schedule(tenant: &TenantId, document_id: &str) -> Self {
        let key = ConversationKey {
            tenant: tenant.clone(),
            user: UserId::new("-"),
            conversation_id: ConversationId::new(document_id),
        };
        Self { key, traceparent: None, schedule: Some(document_id.to_owned()) }
    }
}

#[cfg(test)]
mod tests;
