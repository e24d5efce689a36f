//! The outcome of a handler: it names what follows the input that the handler applied.

use crate::entry::{PromptError, PromptState, PromptStop};
use crate::phase::CompactionReason;
use turnwheel_json::text::with_full_stop;

/// The consequence of an applied input, for `advance`.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing in this transition: the phase names the pending work.
    Wait,
    /// The pending inbox items are applied.
    DrainInbox,
    /// All results of the open calls are on the path.
    CloseTurn,
    /// A response without calls has closed its turn. `schema_error`: why it does not fit the
    /// agent's response schema.
    FinishResponse {
        schema_error: Option<String>,
        /// True in the loop `protocol` if the response has calls that could not be read.
        has_malformed_calls: bool,
        /// True if the response has neither text nor calls.
        is_empty: bool,
    },
    /// The model is called again, unless a round limit is reached.
    ContinueWithModel,
    /// The prompt ends, unless queued messages continue it.
    PollQueues,
    /// The running prompt ends because of a pending abort.
    AbortPrompt,
    EndPrompt(PromptEnding),
    StartCompaction {
        reason: CompactionReason,
        instructions: Option<String>,
    },
}

/// How a prompt ends.
#[derive(Debug)]
pub(super) struct PromptEnding {
    pub(super) state: PromptState,
    pub(super) stop_reason: PromptStop,
    pub(super) error: Option<PromptError>,
}

impl PromptEnding {
    pub(super) fn completed(stop_reason: PromptStop) -> Self {
        Self { state: PromptState::Completed, stop_reason, error: None }
    }

    pub(super) fn aborted() -> Self {
        Self { state: PromptState::Aborted, stop_reason: PromptStop::Aborted, error: None }
    }

    pub(super) fn failed(kind: &str, message: String) -> Self {
        let error = Some(PromptError { kind: kind.to_owned(), message });
        Self { state: PromptState::Failed, stop_reason: PromptStop::Error, error }
    }

    /// This ending with a further sentence in its error.
    pub(super) fn with_advice(mut self, advice: &str) -> Self {
        if let Some(error) = &mut self.error {
            error.message = format!("{} {advice}", with_full_stop(&error.message));
        }
        self
    }
}
