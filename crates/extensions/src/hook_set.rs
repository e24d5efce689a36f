//! The hooks of one event with their runner.

use async_trait::async_trait;

use crate::runner::{HookFailure, HookRunner};
use crate::{HookContext, HookError, Observation};
use turnwheel_model::payload::{ModelPayload, PayloadHook};

/// The hooks of one event: a context for each extension that has it, in order of registration.
#[derive(Debug)]
pub struct HookSet<'s> {
    pub runner: HookRunner<'s>,
    pub contexts: Vec<HookContext>,
}

impl HookSet<'_> {
    /// Runs one of the hooks.
    ///
    /// # Errors
    /// As for [`HookRunner::run`].
    pub async fn run<T>(
        &self,
        cx: &HookContext,
        work: impl Future<Output = Result<T, HookError>> + Send,
    ) -> Result<T, HookFailure> {
        self.runner.run(cx, work).await
    }

    /// Runs the observers of a fact. Their failures are reported, and the fact stays.
    pub async fn observe(&self, fact: &Observation) {
        for cx in &self.contexts {
            let work = async { cx.extension().observe(cx, fact).await };
            let _reported = self.run(cx, work).await;
        }
    }
}

/// `on_payload` of all extensions. It runs within a model call, which renews the lease.
#[async_trait]
impl PayloadHook for HookSet<'_> {
    async fn on_payload(&self, payload: &mut ModelPayload<'_>) -> Result<(), String> {
        for cx in &self.contexts {
            let work = async { cx.extension().on_payload(cx, payload).await };
            self.run(cx, work).await.map_err(|failure| failure.to_string())?;
        }
        Ok(())
    }
}
