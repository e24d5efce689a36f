//! Extension hooks of a leased conversation: the lease is renewed while they run.

use std::sync::Arc;
use std::task::Poll;

use crate::agents::Agent;
use crate::extensions::context::{Anchor, HookSite};
use crate::extensions::payload::PayloadHooks;
use crate::extensions::runner::{HookFailure, HookRunner};
use crate::extensions::{Extension, Hook, HookContext, HookError};
use crate::turn::error::TurnError;
use crate::turn::leased_conversation::LeasedConversation;

impl<'w> LeasedConversation<'w> {
    fn extensions_with<'a>(
        &'a self,
        hook: Hook,
        agent: Option<&'a Agent>,
    ) -> impl Iterator<Item = &'a Arc<dyn Extension>> {
        self.services
            .extensions_of(agent)
            .filter(move |extension| extension.events().contains(hook))
    }

    /// True if an extension has this hook.
    pub(crate) fn has_hook(&self, hook: Hook, agent: Option<&Agent>) -> bool {
        self.extensions_with(hook, agent).next().is_some()
    }

    /// A context for each extension that has this hook. Without any, nothing is allocated.
    pub(crate) fn hook_contexts(
        &self,
        hook: Hook,
        agent: Option<&Agent>,
        anchor: Anchor,
    ) -> Vec<HookContext> {
        let mut extensions = self.extensions_with(hook, agent).peekable();
        if extensions.peek().is_none() {
            return Vec::new();
        }
        let site = self.hook_site(hook, anchor);
        extensions.map(|it| HookContext::new(Arc::clone(&site), Arc::clone(it))).collect()
    }

    pub(crate) fn hook_site(&self, hook: Hook, anchor: Anchor) -> Arc<HookSite> {
        Arc::new(HookSite {
            hook,
            conversation: self.state.key.clone(),
            incarnation: self.state.head.incarnation.clone(),
            agent: self.state.head.agent.clone(),
            prompt_id: self.state.prompt_id(),
            anchor,
        })
    }

    /// `None`: no extension has the hook.
    pub(crate) fn payload_hooks(
        &self,
        agent: Option<&Agent>,
        anchor: Anchor,
    ) -> Option<PayloadHooks<'w>> {
        let contexts = self.hook_contexts(Hook::OnPayload, agent, anchor);
        (!contexts.is_empty()).then(|| PayloadHooks { runner: self.hook_runner(), contexts })
    }

    pub(crate) fn hook_runner(&self) -> HookRunner<'w> {
        let services = self.services;
        HookRunner {
            timeout: services.limits.hook_timeout,
            time_left: self.progress.hook_time_left(&*services.clock),
            telemetry: &services.telemetry,
            listeners: &services.extension_error_listeners,
        }
    }

    /// Runs one hook and renews the lease meanwhile.
    ///
    /// # Errors
    /// The lease was lost: discard the work.
    pub(crate) async fn run_hook<T>(
        &mut self,
        cx: &HookContext,
        work: impl Future<Output = Result<T, HookError>> + Send,
    ) -> Result<Result<T, HookFailure>, TurnError> {
        let runner = self.hook_runner();
        let mut outcome = std::pin::pin!(runner.run(cx, work));
        if let Poll::Ready(outcome) = futures_util::poll!(outcome.as_mut()) {
            return Ok(outcome);
        }
        if !self.lease.is_visible(&self.state.head) {
            // Nothing to renew: the first commit takes the lease, the last one releases it.
            return Ok(outcome.await);
        }
        tokio::select! {
            biased;
            outcome = outcome => Ok(outcome),
            error = self.renew_until_lost_boxed() => Err(error),
        }
    }
}
