//! One attempt at a call: within its time, whatever the tool does, and with a result of bounded size.

#[cfg(test)]
mod tests;

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

use crate::agent::content::joined_text;
use crate::agent::request::Effect;
use crate::tools::cap::{ReadOn, cap};
use crate::tools::{Arguments, RunTool, ToolContext, ToolOutcome, ToolResult};

/// Calls a tool once. Only a [`Effect::Write`] ends in [`ToolOutcome::Unknown`]: it may have happened; of the others a lost
/// answer is an error that the model reads. Dropping the future stops the call.
pub async fn run(
    tool: &dyn RunTool,
    arguments: Arguments,
    context: ToolContext,
    read_on: ReadOn,
) -> ToolOutcome {
    let definition = tool.definition();
    let span = context.clock.now().until(context.deadline).min(definition.timeout);
    // The call is made inside the future, so that a panic before its first await is caught as well.
    let call =
        AssertUnwindSafe(async { tool.call(arguments, context.clone()).await }).catch_unwind();
    let outcome = match tokio::time::timeout(span, call).await {
        Ok(Ok(ToolOutcome::Returned(result))) => Ok(result),
        Ok(Ok(ToolOutcome::Failed(text))) => {
            let capped = Box::pin(cap(ToolResult::error(text), &context, read_on)).await;
            return ToolOutcome::Failed(joined_text(&capped.content));
        }
        Ok(Ok(ToolOutcome::Unknown { reason })) => Err(reason),
        Ok(Err(_panic)) => {
            // What it panicked with may hold data of the call.
            tracing::error!(tool = definition.name, effect.id = %context.effect_id, "a tool panicked");
            Err("it stopped unexpectedly".to_owned())
        }
        Err(_elapsed) => Err(format!("timed out after {}s", seconds(span.as_millis()))),
    };
    match (outcome, definition.effect) {
        (Ok(result), Effect::Read | Effect::Idempotent | Effect::Write) => {
            ToolOutcome::Returned(Box::pin(cap(result, &context, read_on)).await)
        }
        (Err(reason), Effect::Write) => ToolOutcome::Unknown { reason },
        (Err(reason), Effect::Read | Effect::Idempotent) => ToolOutcome::Failed(reason),
    }
}

/// `30`, `0.5`.
fn seconds(millis: u128) -> String {
    match millis % 1000 {
        0 => (millis / 1000).to_string(),
        rest => format!("{}.{rest:03}", millis / 1000).trim_end_matches('0').to_owned(),
    }
}
