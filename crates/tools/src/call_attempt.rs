//! One attempt of a tool call, with a deadline, panic isolation and a bounded result.

#[cfg(test)]
mod tests;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::result_limits::{ReadAccess, limit_result};
use crate::{Arguments, CallableTool, ToolContext, ToolDefinition, ToolOutcome, ToolResult};
use turnwheel_conversation::content::joined_text;
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::usage::Usage;
use turnwheel_platform::clock::millis;

/// Calls a tool once. Dropping the future stops the call.
///
/// A lost response of an [`Effect::Write`] is [`ToolOutcome::Unknown`], because the write may have
/// had its effect. A lost response of any other call is an error that the model reads.
pub async fn attempt_call(
    tool: &dyn CallableTool,
    arguments: Arguments,
    context: ToolContext,
    read_access: ReadAccess,
) -> ToolOutcome {
    let definition = tool.definition();
    let started = context.clock.monotonic();
    let time_limit = context.clock.now().until(context.deadline).min(definition.timeout);
    // The call starts inside the future, so that a panic before its first await is caught too.
    let call =
        AssertUnwindSafe(async { tool.call(arguments, context.clone()).await }).catch_unwind();
    let attempt = match tokio::time::timeout(time_limit, call).await {
        Ok(Ok(outcome)) => FinishedAttempt::from_outcome(outcome, tool),
        // The panic's payload may hold data of the call.
        Ok(Err(_panic)) => FinishedAttempt::response_lost("it stopped unexpectedly", "it panicked"),
        Err(_elapsed) => {
            let reason = format!("timed out after {}s", format_seconds(time_limit.as_millis()));
            FinishedAttempt::response_lost(&reason, &reason)
        }
    };
    let took = context.clock.monotonic().saturating_sub(started);
    attempt.log_outcome(definition, &context, took);
    match (attempt.outcome, definition.effect) {
        (ToolOutcome::Returned(mut result), _) => {
            result.usage = result.usage.and_then(Usage::validate_tool_report);
            ToolOutcome::Returned(Box::pin(limit_result(result, &context, read_access)).await)
        }
        (ToolOutcome::Failed(text), _) => {
            let capped =
                Box::pin(limit_result(ToolResult::error(text), &context, read_access)).await;
            ToolOutcome::Failed(joined_text(&capped.content))
        }
        (ToolOutcome::Unknown { reason }, Effect::Write) => ToolOutcome::Unknown { reason },
        (ToolOutcome::Unknown { reason }, Effect::Read | Effect::Idempotent) => {
            ToolOutcome::Failed(reason)
        }
    }
}

/// A finished call, with the cause of its failure for the log. The cause holds no data of the call.
struct FinishedAttempt {
    outcome: ToolOutcome,
    cause: Option<String>,
    is_logged: bool,
}

impl FinishedAttempt {
    fn from_outcome(outcome: ToolOutcome, tool: &dyn CallableTool) -> Self {
        let cause = match &outcome {
            ToolOutcome::Returned(result) if !result.is_error => None,
            ToolOutcome::Returned(_) => Some("it returned an error result".to_owned()),
            ToolOutcome::Failed(_) => Some("it returned an error".to_owned()),
            ToolOutcome::Unknown { .. } => Some("its outcome is unknown".to_owned()),
        };
        let is_logged = cause.is_some() && tool.has_own_failure_log();
        Self { outcome, cause, is_logged }
    }

    fn response_lost(reason: &str, cause: &str) -> Self {
        let outcome = ToolOutcome::Unknown { reason: reason.to_owned() };
        Self { outcome, cause: Some(cause.to_owned()), is_logged: false }
    }

    fn log_outcome(&self, definition: &ToolDefinition, context: &ToolContext, duration: Duration) {
        let tool = definition.name.as_str();
        let (effect, attempt) = (&context.effect_id, context.attempt);
        let conversation = &context.artifact_scope.key.conversation_id;
        let duration_ms = millis(duration);
        match &self.cause {
            None => tracing::info!(
                tool, attempt, duration_ms, conversation.id = %conversation, effect.id = %effect,
                "tool call completed"
            ),
            Some(_) if self.is_logged => {}
            Some(cause) => tracing::warn!(
                tool, attempt, duration_ms, cause, conversation.id = %conversation,
                effect.id = %effect, "tool call failed"
            ),
        }
    }
}

/// Formats milliseconds as seconds: `30`, `0.5`.
fn format_seconds(millis: u128) -> String {
    match millis % 1000 {
        0 => (millis / 1000).to_string(),
        rest => format!("{}.{rest:03}", millis / 1000).trim_end_matches('0').to_owned(),
    }
}
