//! Model calls that end without their response.

use std::time::Duration;

use crate::failed_response::aborted_response;
use turnwheel_conversation::content::Block;
use turnwheel_conversation::message::{AssistantMessage, StopReason};
use turnwheel_model::{CallMetadata, ModelFailure, ModelRecord, ModelResponse};

pub(crate) enum CutCall {
    /// The prompt was aborted.
    Aborted,
    /// The turn deadline was reached.
    TimedOut {
        /// Time that the model had.
        time: Duration,
        failure: ModelFailure,
    },
}

impl CutCall {
    /// The response to record: the content received so far, and an estimate of the usage, which the
    /// service bills. `input`: tokens sent.
    pub(crate) fn into_response(
        self,
        record: &ModelRecord,
        content: Vec<Block>,
        input: u64,
    ) -> ModelResponse {
        let Self::TimedOut { time, failure } = self else {
            return aborted_response(record, content, input);
        };
        // A worker that was stalled until then has probably sent nothing.
        let input = if time.is_zero() { 0 } else { input };
        let text = format!("The model did not finish within {} s.", time.as_secs());
        let message = AssistantMessage {
            stop_reason: StopReason::Error,
            error_message: Some(text),
            ..aborted_response(record, content, input).message
        };
        let error = Some("timeout".to_owned());
        let metadata = CallMetadata { error, ..CallMetadata::default() };
        ModelResponse { message, failure: Some(failure), metadata }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_model::catalogue::Catalogue;

    #[test]
    fn call_without_time_has_no_input_usage() {
        let record = Catalogue::default().record("gpt-4o", "my-deployment");
        for (seconds, input) in [(0, 0), (60, 7)] {
            let failure = ModelFailure::Retryable { after: None };
            let cut = CutCall::TimedOut { time: Duration::from_secs(seconds), failure };
            let response = cut.into_response(&record, Vec::new(), 7);
            assert_eq!(response.message.usage.input, input, "{seconds}");
        }
    }
}
