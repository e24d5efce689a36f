//! The hook `on_payload` of all extensions, as a model client calls it.

use async_trait::async_trait;

use crate::HookContext;
use crate::runner::HookRunner;
use turnwheel_model::payload::{ModelPayload, PayloadHook};

/// `on_payload` of all extensions. It runs within a model call, which renews the lease.
#[derive(Debug)]
pub struct PayloadHooks<'s> {
    pub runner: HookRunner<'s>,
    pub contexts: Vec<HookContext>,
}

#[async_trait]
impl PayloadHook for PayloadHooks<'_> {
    async fn on_payload(&self, payload: &mut ModelPayload<'_>) -> Result<(), String> {
        for cx in &self.contexts {
            let work = async { cx.extension().on_payload(cx, payload).await };
            self.runner.run(cx, work).await.map_err(|failure| failure.to_string())?;
        }
        Ok(())
    }
}
