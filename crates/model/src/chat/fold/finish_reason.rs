//! Finish reasons of services.

use turnwheel_json::text::sanitize_line;

/// The note of a whole response without a reason.
pub(super) const NO_REASON_NOTE: &str =
    "The model service ended the response without a reason: check whether it is complete.";
/// Characters of a reason that its note quotes.
const REASON_CHARS_MAX: usize = 64;

/// The reason why a service ended a response.
pub(super) enum FinishReason {
    /// `stop`, `tool_calls`, and the names that other services give them.
    Complete,
    /// The limit of output tokens cut the response.
    Length,
    /// A filter cut the response.
    Filter,
    /// The context window is full. Without output, the input exceeds it.
    Window,
    /// The service failed in the middle of the response.
    Failure,
    /// The response may be incomplete.
    Unknown,
}

impl FinishReason {
    pub(super) fn of(reason: &str) -> Self {
        match reason.to_ascii_lowercase().as_str() {
            "stop" | "stop_sequence" | "tool_calls" | "tool_call" | "tool_use"
            | "function_call" | "end_turn" | "end" | "eos" | "eos_token" | "complete"
            | "completed" | "finish" | "finished" => Self::Complete,
            "length" | "model_length" | "max_length" | "max_tokens" | "max_output_tokens"
            | "token_limit" => Self::Length,
            "content_filter"
            | "content_filtered"
            | "sensitive"
            | "safety"
            | "refusal"
            | "recitation"
            | "blocklist"
            | "prohibited_content"
            | "spii"
            | "guardrail_intervened" => Self::Filter,
            "model_context_window_exceeded" => Self::Window,
            "error"
            | "abort"
            | "aborted"
            | "cancelled"
            | "canceled"
            | "failed"
            | "timeout"
            | "network_error"
            | "insufficient_system_resource"
            | "malformed_function_call" => Self::Failure,
            _ => Self::Unknown,
        }
    }
}

/// The note of a response with an unknown reason.
pub(super) fn unknown_reason_note(reason: &str) -> String {
    let reason = sanitize_line(reason, REASON_CHARS_MAX);
    format!(
        "The model service ended the response with the unknown reason `{reason}`: check whether it is complete."
    )
}
