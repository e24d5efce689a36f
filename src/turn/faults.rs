//! Attribution of errors: the only place that assigns a failure to a fault domain, for spans and
//! metrics.

use crate::agent::message::StopReason;
use crate::model::Answer;
use crate::store::StoreError;
use crate::telemetry::fault::{Fault, FaultDomain};
use crate::tools::ToolOutcome;
use crate::turn::admission::Refusal;
use crate::turn::delivery::TurnError;
use crate::turn::notify::Told;

/// Model name of a response that no model gave.
pub(super) const NO_MODEL: &str = "none";

pub fn of_turn(error: &TurnError) -> Fault {
    match error {
        TurnError::ClaimLost { .. } => Fault::new(FaultDomain::Runtime, "claim_lost"),
        TurnError::Store { source, .. } => of_store(source),
    }
}

pub fn of_store(error: &StoreError) -> Fault {
    match error {
        StoreError::Unavailable(_) => Fault::new(FaultDomain::Platform, "store_unavailable"),
        StoreError::Conflict => Fault::new(FaultDomain::Runtime, "conflict"),
        StoreError::TooLarge(_) => Fault::new(FaultDomain::Runtime, "too_large"),
        StoreError::Invalid(_) => Fault::new(FaultDomain::Runtime, "invalid"),
        StoreError::Corrupt(_) => Fault::new(FaultDomain::Runtime, "corrupt"),
    }
}

/// Returns `None` for errors of the caller: no component of ours failed.
pub fn of_refusal(refusal: &Refusal) -> Option<Fault> {
    match refusal {
        Refusal::Unavailable { .. } => Some(Fault::new(FaultDomain::Platform, "unavailable")),
        Refusal::AgentUnavailable(_) => Some(Fault::new(FaultDomain::App, "agent_unavailable")),
        Refusal::Corrupt(_) => Some(Fault::new(FaultDomain::Runtime, "corrupt")),
        Refusal::NotFound(_)
        | Refusal::Invalid(_)
        | Refusal::Conflict { .. }
        | Refusal::AlreadyProcessing { .. }
        | Refusal::Landed { .. }
        | Refusal::AlreadyDecided(_)
        | Refusal::Expired { .. }
        | Refusal::Forbidden(_)
        | Refusal::KeyReused
        | Refusal::EffectInFlight { .. }
        | Refusal::PreconditionFailed { .. }
        | Refusal::TooLarge(_) => None,
    }
}

/// A step that five workers attempted without progress.
pub(super) fn poisoned() -> Fault {
    Fault::new(FaultDomain::Runtime, "poisoned")
}

pub(super) fn of_answer(answer: &Answer) -> Option<Fault> {
    if answer.message.stop_reason != StopReason::Error {
        return None;
    }
    if answer.message.model == NO_MODEL {
        let name = answer.reply.error.as_deref().unwrap_or("agent_unavailable");
        return Some(Fault::named_outside(FaultDomain::App, name));
    }
    let name = answer.reply.error.as_deref().unwrap_or_default();
    Some(Fault::named_outside(FaultDomain::Model, name))
}

pub(super) fn of_outcome(outcome: &ToolOutcome) -> Option<Fault> {
    match outcome {
        ToolOutcome::Returned(result) if !result.is_error => None,
        ToolOutcome::Returned(_) => Some(Fault::new(FaultDomain::Tool, "tool_error")),
        ToolOutcome::Failed(_) => Some(Fault::new(FaultDomain::Tool, "failed")),
        ToolOutcome::Unknown { .. } => Some(Fault::new(FaultDomain::Tool, "outcome_unknown")),
    }
}

/// The app's settings name the receiver, so its failures belong to the app.
pub(super) fn of_told(told: &Told) -> Option<Fault> {
    match told {
        Told::Taken | Told::Unwanted => None,
        Told::NotNow(_) => Some(Fault::new(FaultDomain::App, "receiver_unavailable")),
    }
}
