//! Attribution of errors: the only place that assigns a failure to a fault domain, for spans and
//! metrics.

use crate::contract::CommandError;
use crate::error::TurnError;
use crate::notifications::sender::SendOutcome;
use turnwheel_conversation::message::StopReason;
use turnwheel_model::ModelResponse;
use turnwheel_platform::telemetry::error_class::{ErrorClass, ErrorDomain};
use turnwheel_storage::store::StoreError;
use turnwheel_tools::ToolOutcome;

/// Model name of a response that no model gave.
pub const NO_MODEL: &str = "none";

pub fn classify_turn_error(error: &TurnError) -> ErrorClass {
    match error {
        TurnError::LeaseLost { .. } => ErrorClass::new(ErrorDomain::Runtime, "claim_lost"),
        TurnError::Stopped { .. } => ErrorClass::new(ErrorDomain::Runtime, "process_stopped"),
        TurnError::Store { source, .. } => classify_store_error(source),
    }
}

pub fn classify_store_error(error: &StoreError) -> ErrorClass {
    match error {
        StoreError::Unavailable(_) => ErrorClass::new(ErrorDomain::Platform, "store_unavailable"),
        StoreError::Conflict => ErrorClass::new(ErrorDomain::Runtime, "conflict"),
        StoreError::TooLarge(_) => ErrorClass::new(ErrorDomain::Runtime, "too_large"),
        StoreError::Invalid(_) => ErrorClass::new(ErrorDomain::Runtime, "invalid"),
        StoreError::Corrupt(_) => ErrorClass::new(ErrorDomain::Runtime, "corrupt"),
    }
}

/// Returns `None` for errors of the caller: no component of ours failed.
pub fn classify_command_error(error: &CommandError) -> Option<ErrorClass> {
    match error {
        CommandError::Unavailable { .. } => {
            Some(ErrorClass::new(ErrorDomain::Platform, "unavailable"))
        }
        CommandError::AgentUnavailable(_) => {
            Some(ErrorClass::new(ErrorDomain::App, "agent_unavailable"))
        }
        CommandError::ExtensionFailed(_) => {
            Some(ErrorClass::new(ErrorDomain::App, "extension_failed"))
        }
        CommandError::Corrupt(_) => Some(ErrorClass::new(ErrorDomain::Runtime, "corrupt")),
        CommandError::NotFound(_)
        | CommandError::UnknownCommand
        | CommandError::EntryNotFound(_)
        | CommandError::Invalid(_)
        | CommandError::Conflict { .. }
        | CommandError::AlreadyProcessing { .. }
        | CommandError::AlreadyApplied { .. }
        | CommandError::AlreadyDecided(_)
        | CommandError::Expired { .. }
        | CommandError::Forbidden(_)
        | CommandError::KeyReused
        | CommandError::EffectInFlight { .. }
        | CommandError::InboxFull { .. }
        | CommandError::PreconditionFailed { .. }
        | CommandError::TooLarge(_) => None,
    }
}

/// A step that failed its prompt after three deaths in isolation.
pub fn poisoned_step() -> ErrorClass {
    ErrorClass::new(ErrorDomain::Runtime, "poisoned")
}

pub fn classify_response(response: &ModelResponse) -> Option<ErrorClass> {
    if response.message.stop_reason != StopReason::Error {
        return None;
    }
    if response.message.model == NO_MODEL {
        let name = response.metadata.error.as_deref().unwrap_or("agent_unavailable");
        return Some(ErrorClass::from_external(ErrorDomain::App, name));
    }
    let name = response.metadata.error.as_deref().unwrap_or_default();
    Some(ErrorClass::from_external(ErrorDomain::Model, name))
}

pub fn classify_tool_outcome(outcome: &ToolOutcome) -> Option<ErrorClass> {
    match outcome {
        ToolOutcome::Returned(result) if !result.is_error => None,
        ToolOutcome::Returned(_) => Some(ErrorClass::new(ErrorDomain::Tool, "tool_error")),
        ToolOutcome::Failed(_) => Some(ErrorClass::new(ErrorDomain::Tool, "failed")),
        ToolOutcome::Unknown { .. } => Some(ErrorClass::new(ErrorDomain::Tool, "outcome_unknown")),
    }
}

/// The app's settings name the receiver, so its failures belong to the app.
pub(crate) fn classify_send_outcome(outcome: &SendOutcome) -> Option<ErrorClass> {
    match outcome {
        SendOutcome::Accepted | SendOutcome::Gone => None,
        SendOutcome::RetryLater(_) => {
            Some(ErrorClass::new(ErrorDomain::App, "receiver_unavailable"))
        }
    }
}
