//! Outcomes and errors of a delivery.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use turnwheel_platform::ids::ConversationKey;
use turnwheel_storage::store::StoreError;
use turnwheel_storage::store::outage_retry::DeliveryError;

/// Why a delivery stopped early. Nothing is lost: pending work is in the store.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// Another worker has the lease: acknowledge the message.
    #[error("the lease on {key} was lost")]
    LeaseLost { key: ConversationKey },
    /// This process ends: the conversation is given back.
    #[error("the process ends, and {key} is given back")]
    Stopped { key: ConversationKey },
    /// Deliver again later.
    #[error("could not {what} {key}")]
    Store { key: ConversationKey, what: &'static str, source: StoreError },
}

impl DeliveryError for TurnError {
    fn is_store_away(&self) -> bool {
        match self {
            Self::Store { source, .. } => source.is_store_away(),
            Self::LeaseLost { .. } | Self::Stopped { .. } => false,
        }
    }
}

/// Outcome of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeliveryOutcome {
    /// No work was pending, or another worker has the lease.
    #[serde(rename = "Nothing")]
    NoWork,
    Worked,
}

/// Time for an approver to decide the outcome of a write.
pub const OUTCOME_REQUEST_EXPIRES: Duration = Duration::from_hours(7 * 24);

pub fn store_error(key: &ConversationKey, what: &'static str, source: StoreError) -> TurnError {
    TurnError::Store { key: key.clone(), what, source }
}
