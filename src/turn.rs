//! The driver: leases a conversation, loads it, runs the state machine, commits and performs
//! effects.

pub mod abort_signal;
pub mod admission;
mod budget_check;
mod commit;
mod compaction;
pub mod crash_count;
pub mod delivery;
mod delivery_cost;
mod delta_publisher;
pub mod documents;
mod entry_cache;
pub mod error_domain;
mod event_log;
pub mod expiry;
mod finish_turn;
mod hooks;
mod inbox;
pub mod invariants;
pub mod isolation;
mod lease;
mod leased_conversation;
mod ledger;
mod model_call;
pub mod notify;
mod oversize;
mod pause;
mod plan;
mod preflight;
pub mod rate_limit;
pub mod schedules;
mod spans;
pub mod spending_limits;
pub mod sweep;
mod tool_batch;
mod tool_call;
pub mod views;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::head::READER_VERSION;
use crate::agents::SharedCatalog;
use crate::artifacts::Artifacts;
use crate::clock::Clock;
use crate::extensions::Extension;
use crate::ids::{ConversationId, ConversationKey, Ids, TenantId, UserId, WorkerId};
use crate::live::Live;
use crate::model::Model;
use crate::queue::Queue;
use crate::settings::pauses::Pauses;
use crate::store::ConversationStore;
use crate::telemetry::Telemetry;

pub use abort_signal::AbortSignals;
pub use entry_cache::EntryCache;
pub use isolation::Isolation;
pub use ledger::LedgerLocks;

/// The services and settings that turns use.
#[derive(Clone, Debug)]
pub struct Services {
    pub store: Arc<dyn ConversationStore>,
    pub queue: Arc<dyn Queue>,
    pub artifacts: Arc<dyn Artifacts>,
    pub live: Arc<dyn Live>,
    pub model: Arc<dyn Model>,
    pub agents: SharedCatalog,
    pub extensions: Vec<Arc<dyn Extension>>,
    pub entry_cache: Arc<EntryCache>,
    pub abort_signals: AbortSignals,
    /// Serialise this process's writes to one tenant's usage ledger.
    pub ledger_locks: Arc<LedgerLocks>,
    /// Sends notifications. `None`: commits write no notifications.
    pub notification_sender: Option<Arc<dyn notify::NotificationSender>>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    pub fail_points: Arc<dyn FailPoints>,
    pub worker: WorkerId,
    pub limits: Limits,
    pub spending_limits: Arc<spending_limits::SpendingLimits>,
    /// The operator's pauses, fixed for the life of the process.
    pub pauses: Arc<Pauses>,
    /// Where suspect steps run.
    pub isolation: Isolation,
    pub telemetry: Telemetry,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Half of the host's `functionTimeout`. When one invocation exceeds that time-out, the host
    /// kills the whole process.
    pub turn_duration: Duration,
    /// Delay from a model call to its entry in the usage ledger, if no limit applies. One entry
    /// covers all calls made meanwhile.
    pub settle_after: Duration,
    /// Newest supported `minReader`. Conversations that need a newer one are left to newer workers.
    pub reader_version: u32,
    /// Time-out of one extension hook, at most 30 s.
    pub hook_timeout: Duration,
}

/// Default time-out of an extension hook.
pub const HOOK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

impl Default for Limits {
    fn default() -> Self {
        Self {
            turn_duration: Duration::from_mins(5),
            settle_after: Duration::from_mins(10),
            reader_version: READER_VERSION,
            hook_timeout: HOOK_TIMEOUT_DEFAULT,
        }
    }
}

/// Receives every named boundary between two I/O operations, so that tests can kill the process
/// there.
#[async_trait::async_trait]
pub trait FailPoints: Send + Sync + fmt::Debug {
    async fn hit(&self, name: &'static str);
}

/// All fail points, in the order in which a prompt with a tool and an approval first reaches them.
pub const FAIL_POINTS: [&str; 50] = [
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
pub struct NoFailPoints;

#[async_trait::async_trait]
impl FailPoints for NoFailPoints {
    async fn hit(&self, _name: &'static str) {}
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
    pub fn for_conversation(key: ConversationKey, traceparent: Option<String>) -> Self {
        Self { key, traceparent, schedule: None }
    }

    /// The nudge of a schedule, by its document id.
    pub fn for_schedule(tenant: &TenantId, document_id: &str) -> Self {
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
