//! Request that moves the leaf, and its bounds.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::prompt_request::read_position;
use turnwheel_record::contract::CommandError;

const SUMMARY_BYTES_MAX: usize = 64 * 1024;
const INSTRUCTIONS_BYTES_MAX: usize = 4 * 1024;

/// The place to move the leaf to.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeafRequest {
    /// Id of an entry, or `root` for the position before the first entry. The id of a user's message
    /// stands for the position before that message.
    #[serde(deserialize_with = "read_position")]
    #[schema(value_type = String)]
    pub entry_id: Option<String>,
    /// Label of the entry, or of the summary if there is one.
    pub label: Option<String>,
    /// Text for the model about the branch that the conversation leaves, at most 64 KB.
    pub summary: Option<String>,
    /// True if the model writes the summary. The leaf moves with the summary.
    pub summarize: Option<bool>,
    /// Topics that the model's summary should emphasise, at most 4 KB.
    pub instructions: Option<String>,
    /// True: aborts a running prompt first. The leaf moves after its end.
    pub abort: Option<bool>,
}

impl LeafRequest {
    pub(super) fn is_model_asked(&self) -> bool {
        self.summarize == Some(true)
    }

    /// True if the branch left behind gets a summary.
    pub(super) fn wants_summary(&self) -> bool {
        self.summary.is_some() || self.is_model_asked()
    }
}

/// # Errors
/// A member is invalid: the error names it.
pub(super) fn validate(request: &LeafRequest) -> Result<(), CommandError> {
    if let Some(summary) = &request.summary {
        let bytes = summary.len();
        if summary.trim().is_empty() || bytes > SUMMARY_BYTES_MAX {
            let detail = format!(
                "`summary` has {bytes} bytes: send 1 to {SUMMARY_BYTES_MAX}, or leave it out"
            );
            return Err(CommandError::invalid("/summary", detail));
        }
    }
    if request.is_model_asked() && request.summary.is_some() {
        let detail = "send a `summary`, or `summarize: true` for one by the model";
        return Err(CommandError::invalid("/summarize", detail));
    }
    if let Some(instructions) = &request.instructions {
        let bytes = instructions.len();
        if !request.is_model_asked() || bytes > INSTRUCTIONS_BYTES_MAX {
            let detail = format!(
                "`instructions` may be at most {INSTRUCTIONS_BYTES_MAX} bytes, with `summarize: true`"
            );
            return Err(CommandError::invalid("/instructions", detail));
        }
    }
    let has_summary = request.summary.is_some() || request.is_model_asked();
    if request.label.is_some() && request.entry_id.is_none() && !has_summary {
        let detail = "a label needs an entry: name one in `entryId`, or send a `summary`";
        return Err(CommandError::invalid("/label", detail));
    }
    Ok(())
}
