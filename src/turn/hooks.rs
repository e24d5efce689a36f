//! Extension hooks: each runs within a time-out and guarded against panics, while the lease is
//! renewed.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use serde_json::Value;

use crate::extensions::{Extension, Hook, HookError};
use crate::ids::ConversationId;
use crate::model::PayloadHook;
use crate::services::Services;
use crate::turn::error::TurnError;
use crate::turn::leased_conversation::LeasedConversation;

/// Runs hooks for one conversation. Every call of an extension goes through [`HookRunner::run`].
#[derive(Clone, Debug)]
pub(crate) struct HookRunner<'w> {
    services: &'w Services,
    conversation_id: ConversationId,
}

/// Why a hook gave no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HookFailure {
    pub(crate) extension: String,
    pub(crate) hook: Hook,
    pub(crate) cause: FailureCause,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FailureCause {
    Error(String),
    /// The panic's payload is dropped: it may hold data of the conversation.
    Panic,
    Timeout(Duration),
}

impl FailureCause {
    fn kind(&self) -> &'static str {
        match self {
            Self::Error(_) => "error",
            Self::Panic => "panic",
            Self::Timeout(_) => "timeout",
        }
    }
}

impl fmt::Display for HookFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "extension \"{}\" failed in {}: ", self.extension, self.hook.name())?;
        match &self.cause {
            FailureCause::Error(text) => f.write_str(text),
            FailureCause::Panic => f.write_str("it panicked"),
            FailureCause::Timeout(limit) => write!(f, "no result within {limit:?}"),
        }
    }
}

impl HookRunner<'_> {
    /// Runs one hook until it returns, panics or times out, and reports a failure. The caller
    /// decides the consequence of a failure.
    ///
    /// No time-out stops a hook that blocks its thread without awaiting.
    pub(crate) async fn run<T>(
        &self,
        extension: &dyn Extension,
        hook: Hook,
        work: impl Future<Output = Result<T, HookError>> + Send,
    ) -> Result<T, HookFailure> {
        let limit = self.services.limits.hook_timeout;
        let guarded = AssertUnwindSafe(work).catch_unwind();
        let cause = match tokio::time::timeout(limit, guarded).await {
            Ok(Ok(Ok(result))) => return Ok(result),
            Ok(Ok(Err(error))) => FailureCause::Error(error.to_string()),
            Ok(Err(_panic)) => FailureCause::Panic,
            Err(_elapsed) => FailureCause::Timeout(limit),
        };
        let failure = HookFailure { extension: extension.name().to_owned(), hook, cause };
        self.report(&failure);
        Err(failure)
    }

    fn report(&self, failure: &HookFailure) {
        let (extension, hook) = (failure.extension.as_str(), failure.hook.name());
        tracing::warn!(
            conversation.id = %self.conversation_id,
            extension,
            hook,
            error.type = failure.cause.kind(),
            "hook failed: {failure}"
        );
        if let Some(metrics) = self.services.telemetry.metrics() {
            metrics.record_hook_failure(extension, hook, failure.cause.kind());
        }
    }
}

/// `on_payload` of all extensions. It runs within a model call, which renews the lease.
#[derive(Debug)]
pub(crate) struct PayloadHooks<'w>(HookRunner<'w>);

#[async_trait]
impl PayloadHook for PayloadHooks<'_> {
    async fn on_payload(&self, mut payload: Value) -> Result<Value, String> {
        for extension in &self.0.services.extensions {
            let work = async { extension.on_payload(payload).await };
            let changed = self.0.run(&**extension, Hook::OnPayload, work).await;
            payload = changed.map_err(|failure| failure.to_string())?;
        }
        Ok(payload)
    }
}

impl<'w> LeasedConversation<'w> {
    /// `None`: there are no extensions.
    pub(crate) fn payload_hooks(&self) -> Option<PayloadHooks<'w>> {
        (!self.services.extensions.is_empty()).then(|| PayloadHooks(self.hook_runner()))
    }

    pub(crate) fn hook_runner(&self) -> HookRunner<'w> {
        HookRunner {
            services: self.services,
            conversation_id: self.state.key.conversation_id.clone(),
        }
    }

    /// Runs one hook and renews the lease meanwhile.
    ///
    /// # Errors
    /// The lease was lost: discard the work.
    pub(crate) async fn run_hook<T>(
        &mut self,
        extension: &dyn Extension,
        hook: Hook,
        work: impl Future<Output = Result<T, HookError>> + Send,
    ) -> Result<Result<T, HookFailure>, TurnError> {
        let runner = self.hook_runner();
        if !self.lease.is_visible(&self.state.head) {
            // Nothing to renew: the first commit takes the lease, the last one releases it.
            return Ok(runner.run(extension, hook, work).await);
        }
        tokio::select! {
            biased;
            outcome = runner.run(extension, hook, work) => Ok(outcome),
            error = self.renew_until_lost_boxed() => Err(error),
        }
    }
}
