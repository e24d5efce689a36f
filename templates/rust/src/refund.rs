//! The tool `refund`. Replace its `call` by a request to your service.

use schemars::JsonSchema;
use serde::Deserialize;
use turnwheel::{Approval, Effect, Tool, ToolContext, ToolError, ToolResult};

/// Refunds an order. Amounts above 100 need an approval.
pub(crate) struct Refund;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Wanted {
    /// Number of the order, such as `o-17`.
    order: String,
    amount: u64,
}

impl Tool for Refund {
    type Args = Wanted;

    fn name(&self) -> &'static str {
        "refund"
    }

    fn description(&self) -> &'static str {
        "Refunds an order."
    }

    // A write is never repeated silently: after a crash an approver is asked about its outcome.
    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn approval(&self, wanted: &Wanted) -> Option<Approval> {
        (wanted.amount > 100)
            .then(|| Approval::because(format!("Refund {} for {}.", wanted.amount, wanted.order)))
    }

    async fn call(&self, wanted: Wanted, cx: ToolContext) -> Result<ToolResult, ToolError> {
        if !wanted.order.starts_with("o-") {
            // The model reads the text. Use it only if the call had no effect.
            return Err(ToolError::failed("There is no such order."));
        }
        // Send `cx.effect_id()` as the idempotency key: it is the same for every attempt.
        let receipt = format!("refund {} ({})", wanted.order, cx.effect_id());
        Ok(ToolResult::text(receipt))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use turnwheel::Agent;
    use turnwheel::models::ScriptedModel;

    use super::*;

    /// Runs with the fake model: no key and no network.
    #[tokio::test]
    async fn small_refund_needs_no_approval() {
        let agent = Agent::builder()
            .system_prompt("You are the clerk of a shop.")
            .tool(Refund)
            .models(Arc::new(ScriptedModel))
            .start()
            .await
            .unwrap();
        // The fake model calls a tool for an input of this form.
        let input = r#"use refund with {"order": "o-17", "amount": 40} then say Done."#;
        let prompt = agent.prompt(input).await.unwrap();
        assert_eq!(prompt.error, None);
        // The input, the call, its result and the answer.
        assert_eq!(agent.state().messages.len(), 4);
    }
}
