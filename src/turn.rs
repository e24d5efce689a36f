//! The driver: claim, load, step, commit, perform. It holds the world that the core never touches.

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

/// Everything a turn touches.
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
    /// Of the tenants' books.
    pub writers: Arc<Writers>,
    /// Carries notices; without one none are written.
    pub herald: Option<Arc<dyn notify::Herald>>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    pub probe: Arc<dyn Probe>,
    pub worker: WorkerId,
    pub limits: Limits,
    pub money: Arc<money::Money>,
    /// What is paused; the same as long as the process lives.
    pub brakes: Arc<Brakes>,
    /// Where suspect steps run.
    pub isolation: Isolation,
    pub telemetry: Telemetry,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Half of the host's `functionTimeout`: the host kills the whole process when one invocation exceeds it.
    pub turn: Duration,
    /// How long after a model call the tenant's books are told of its cost, where nothing bounds it: what comes meanwhile is
    /// told with it.
    pub settle_after: Duration,
    /// The newest `minReader` that is acted on: what needs a newer one is left to newer workers.
    pub reader: u32,
    /// How long one hook of an extension may take, 30 s at most.
    pub hook: Duration,
}

/// How long a hook may take where no setting says otherwise.
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

/// Told of every boundary between two I/O operations, so that a proof can cut there.
#[async_trait::async_trait]
pub trait Probe: Send + Sync + fmt::Debug {
    async fn reached(&self, boundary: &'static str);
}

/// Every boundary there is, in the order in which a prompt with a tool and an approval first meets them.
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

/// Production: boundaries are only names.
#[derive(Debug, Default)]
pub struct NoProbe;

#[async_trait::async_trait]
impl Probe for NoProbe {
    async fn reached(&self, _boundary: &'static str) {}
}

/// The doorbell: something may be owed here. It says nothing more, so losing or doubling it costs only time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nudge {
    #[serde(flatten)]
    pub key: ConversationKey,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The document of a schedule that may be due. The key then names no conversation: a worker that knows no schedules
    /// finds nothing there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
}

impl Nudge {
    pub fn of(key: ConversationKey, traceparent: Option<String>) -> Self {
        Self { key, traceparent, schedule: None }
    }

    /// The bell of a schedule, by its document's id.
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
