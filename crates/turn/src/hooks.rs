//! Extension hooks of a leased conversation: the lease is renewed while they run.

use std::sync::Arc;
use std::task::Poll;

use crate::context::TurnContext;
use crate::leased_conversation::LeasedConversation;
use turnwheel_extensions::context::{Anchor, HookEvent, HookFacts, HookSite, HookSubject};
use turnwheel_extensions::runner::{HookFailure, HookRunner};
use turnwheel_extensions::{Hook, HookContext, HookError, HookSet};
use turnwheel_record::error::TurnError;

impl<'w> LeasedConversation<'w> {
    /// True if an extension has this hook.
    pub(crate) fn has_hook(&self, hook: Hook, context: &TurnContext) -> bool {
        let mut extensions = self.services.extensions_of(context.agent.as_deref().ok());
        extensions.any(|extension| extension.events().contains(hook))
    }

    /// A context for each extension that has this hook.
    pub(crate) fn hook_contexts(
        &self,
        hook: Hook,
        context: &TurnContext,
        anchor: Anchor,
    ) -> Vec<HookContext> {
        let site = || self.hook_site(hook, context, anchor);
        self.services.hook_contexts(hook, context.agent.as_deref().ok(), site)
    }

    pub fn hook_site(&self, hook: Hook, context: &TurnContext, anchor: Anchor) -> Arc<HookSite> {
        let head = &self.state.head;
        let (tools, prompt) = (Arc::clone(context.tools()), Arc::clone(&context.system_prompt));
        let facts = HookFacts::new(head, &context.settings, tools, prompt);
        let event = HookEvent { hook, anchor, subject: self.hook_subject() };
        self.services.hook_site(event, head, facts, context.agent.as_deref().ok())
    }

    fn hook_subject(&self) -> Arc<HookSubject> {
        let head = &self.state.head;
        let known = self.hook_subject.get_or_init(|| HookSubject::new(head));
        if known.is_current(head) { Arc::clone(known) } else { HookSubject::new(head) }
    }

    /// The hooks of one event that run without renewals of the lease. `None`: no extension has the
    /// hook.
    pub(crate) fn hook_set(
        &self,
        hook: Hook,
        context: &TurnContext,
        anchor: Anchor,
    ) -> Option<HookSet<'w>> {
        let contexts = self.hook_contexts(hook, context, anchor);
        (!contexts.is_empty()).then(|| HookSet { runner: self.hook_runner(), contexts })
    }

    fn hook_runner(&self) -> HookRunner<'w> {
        self.services.hook_runner(self.progress.hook_time_left(&*self.services.clock))
    }

    /// Runs one hook and renews the lease meanwhile.
    ///
    /// # Errors
    /// The lease was lost, or the process ends: discard the work.
    pub(crate) async fn run_hook<T>(
        &mut self,
        cx: &HookContext,
        work: impl Future<Output = Result<T, HookError>> + Send,
    ) -> Result<Result<T, HookFailure>, TurnError> {
        let runner = self.hook_runner();
        let mut run = std::pin::pin!(runner.run(cx, work));
        if let Poll::Ready(outcome) = futures_util::poll!(run.as_mut()) {
            return Ok(outcome);
        }
        // Boxed to keep the future of a hook that is ready at once small.
        Box::pin(self.renew_while(run)).await
    }

    /// Waits for the work of extensions, and renews the lease meanwhile.
    ///
    /// # Errors
    /// The lease was lost, or the process ends: discard the work.
    pub(crate) async fn renew_while<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, TurnError> {
        let mut outcome = std::pin::pin!(work);
        if let Poll::Ready(outcome) = futures_util::poll!(outcome.as_mut()) {
            return Ok(outcome);
        }
        if !self.lease.is_visible(&self.state.head) {
            // Nothing to renew: the first commit takes the lease, the last one releases it.
            return tokio::select! {
                biased;
                outcome = outcome => Ok(outcome),
                () = self.services.shutdown.wait_for_deadline(false) => {
                    Err(TurnError::Stopped { key: self.state.key.clone() })
                }
            };
        }
        tokio::select! {
            biased;
            outcome = outcome => Ok(outcome),
            error = self.renew_until_lost_boxed() => Err(error),
        }
    }
}
