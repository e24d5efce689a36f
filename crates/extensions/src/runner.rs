//! Runs hooks within a time-out and guarded against panics, and reports their failures.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::{Hook, HookContext, HookError};
use turnwheel_platform::telemetry::Telemetry;

#[cfg(test)]
pub(super) mod tests;

/// Upper bound of an extension's own time-out.
pub const HOOK_TIMEOUT_MAX: Duration = Duration::from_secs(30);

/// Failure of a hook, as error listeners receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionError {
    /// Name of the extension.
    pub extension: String,
    /// Name of the event, for example `tool_call`.
    pub event: &'static str,
    /// The error, without the payload of a panic.
    pub text: String,
}

type ErrorListener = Arc<dyn Fn(&ExtensionError) + Send + Sync>;

/// The app's listeners for failures of hooks.
#[derive(Clone, Default)]
pub struct ErrorListeners(Vec<ErrorListener>);

impl fmt::Debug for ErrorListeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ErrorListeners({})", self.0.len())
    }
}

impl ErrorListeners {
    pub fn add(&mut self, listener: impl Fn(&ExtensionError) + Send + Sync + 'static) {
        self.0.push(Arc::new(listener));
    }

    pub(super) fn notify(&self, failure: &HookFailure) {
        if self.0.is_empty() {
            return;
        }
        let error = ExtensionError {
            extension: failure.extension.clone(),
            event: failure.hook.name(),
            text: failure.cause.to_string(),
        };
        for listener in &self.0 {
            if catch_unwind(AssertUnwindSafe(|| listener(&error))).is_err() {
                tracing::error!(
                    extension = error.extension,
                    hook = error.event,
                    "an extension error listener panicked"
                );
            }
        }
    }
}

/// Why a hook gave no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookFailure {
    pub extension: String,
    pub hook: Hook,
    pub cause: FailureCause,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureCause {
    Error(String),
    /// The panic's payload is dropped: it may hold data of the conversation.
    Panic,
    Timeout(Duration),
    /// The hooks of this commit together used the time they have.
    CommitTimeout,
}

impl FailureCause {
    fn kind(&self) -> &'static str {
        match self {
            Self::Error(_) => "error",
            Self::Panic => "panic",
            Self::Timeout(_) | Self::CommitTimeout => "timeout",
        }
    }
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(text) => f.write_str(text),
            Self::Panic => f.write_str("it panicked"),
            Self::Timeout(limit) => write!(f, "no result within {limit:?}"),
            Self::CommitTimeout => f.write_str("the hooks of this step together took too long"),
        }
    }
}

impl fmt::Display for HookFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { extension, hook, cause } = self;
        let kind = if *hook == Hook::Prepare { "plugin" } else { "extension" };
        write!(f, "{kind} \"{extension}\" failed in {}: {cause}", hook.name())
    }
}

/// Runs hooks. Every call of an extension's hook goes through [`HookRunner::run`].
#[derive(Clone, Debug)]
pub struct HookRunner<'s> {
    /// Time-out of a hook whose extension sets none.
    pub timeout: Duration,
    /// Time left for all hooks before the next commit. `None`: no limit.
    pub time_left: Option<Duration>,
    pub telemetry: &'s Telemetry,
    pub listeners: &'s ErrorListeners,
}

impl HookRunner<'_> {
    /// Runs one hook until it returns, panics or times out, and reports a failure. The caller
    /// decides the consequence of a failure. No timer exists unless the hook waits.
    ///
    /// No time-out stops a hook that blocks its thread without awaiting.
    ///
    /// # Errors
    /// The hook failed, panicked or timed out.
    pub async fn run<T>(
        &self,
        cx: &HookContext,
        work: impl Future<Output = Result<T, HookError>> + Send,
    ) -> Result<T, HookFailure> {
        let own = cx.extension().timeout().map_or(self.timeout, |own| own.min(HOOK_TIMEOUT_MAX));
        let left = self.time_left.unwrap_or(own);
        let outcome = if left.is_zero() {
            Err(FailureCause::CommitTimeout)
        } else {
            run_guarded(work, own.min(left)).await.map_err(|cause| {
                let is_cut = left < own && matches!(cause, FailureCause::Timeout(_));
                if is_cut { FailureCause::CommitTimeout } else { cause }
            })
        };
        outcome.map_err(|cause| {
            let extension = cx.extension().name().to_owned();
            let failure = HookFailure { extension, hook: cx.hook(), cause };
            // A hook that waits for an answer has not failed.
            if !cx.has_asked() {
                self.report(cx, &failure);
            }
            failure
        })
    }

    fn report(&self, cx: &HookContext, failure: &HookFailure) {
        let (extension, hook) = (failure.extension.as_str(), failure.hook.name());
        tracing::warn!(
            conversation.id = %cx.conversation().conversation_id,
            extension,
            hook,
            error.type = failure.cause.kind(),
            "hook failed: {failure}"
        );
        if let Some(metrics) = self.telemetry.metrics() {
            metrics.record_hook_failure(extension, hook, failure.cause.kind());
        }
        self.listeners.notify(failure);
    }
}

/// The limit counts from the first wait: most hooks never wait, and read no clock.
async fn run_guarded<T>(
    work: impl Future<Output = Result<T, HookError>> + Send,
    limit: Duration,
) -> Result<T, FailureCause> {
    let mut guarded = std::pin::pin!(AssertUnwindSafe(work).catch_unwind());
    let ended = match futures_util::poll!(guarded.as_mut()) {
        Poll::Ready(ended) => ended,
        // Boxed to keep the future of a hook that is ready at once small.
        Poll::Pending => Box::pin(tokio::time::timeout(limit, guarded))
            .await
            .map_err(|_elapsed| FailureCause::Timeout(limit))?,
    };
    match ended {
        Ok(result) => result.map_err(|error| FailureCause::Error(error.to_string())),
        Err(_panic) => Err(FailureCause::Panic),
    }
}
