//! The hooks on the result of a tool call. They run within the call's work and turn no known outcome
//! into an unknown one.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use crate::context::TurnContext;
use crate::late_result::{KeptResults, LateResultWriter};
use crate::leased_conversation::LeasedConversation;
use turnwheel_conversation::content::{Block, ToolCall};
use turnwheel_conversation::request::{CallRef, Effect};
use turnwheel_conversation::step::Input;
use turnwheel_extensions::context::Anchor;
use turnwheel_extensions::runner::HookRunner;
use turnwheel_extensions::{FinishedToolCall, Hook, HookContext, HookSet, ResultChanges};
use turnwheel_record::services::Services;
use turnwheel_tools::result_limits::{ReadAccess, limit_result};
use turnwheel_tools::{Arguments, CallableTool, ToolContext, ToolOutcome, ToolResult};

/// Time of all hooks on one result. The model waits for them.
const HOOKS_PER_RESULT_MAX: Duration = Duration::from_secs(30);

/// One attempt of a call: the tool and all that it receives.
#[derive(Clone)]
pub(crate) struct CallAttempt {
    pub tool: Arc<dyn CallableTool>,
    pub arguments: Arguments,
    pub context: ToolContext,
    pub read_access: ReadAccess,
}

/// The hooks on the result of one call. They borrow nothing from the conversation.
pub(crate) struct ResultHooks<'w> {
    services: &'w Services,
    hooks: HookSet<'w>,
    call: ToolCall,
    attempt: CallAttempt,
    writer: LateResultWriter<'w>,
    kept: KeptResults,
}

impl<'w> LeasedConversation<'w> {
    /// `None`: no extension has the hook.
    pub(crate) fn result_hooks(
        &self,
        index: usize,
        call: &ToolCall,
        context: &TurnContext,
        attempt: &CallAttempt,
    ) -> Option<ResultHooks<'w>> {
        let response_seq = self.state.response.as_ref()?.base.seq;
        let anchor = Anchor::ToolCall { response: self.state.head.response_count, index };
        let hooks = self.hook_set(Hook::ToolResult, context, anchor)?;
        Some(ResultHooks {
            services: self.services,
            hooks,
            call: call.clone(),
            attempt: attempt.clone(),
            writer: LateResultWriter::new(
                self.services,
                &self.state,
                CallRef { response_seq, index },
                call,
            ),
            kept: self.kept_results.clone(),
        })
    }
}

impl ResultHooks<'_> {
    /// The outcome after the hooks; an unknown one has no result and stays as it is. `raw` reports
    /// the outcome without the hooks. For a `write` it is stored as soon as a hook waits, so that
    /// the outcome is known if this worker dies.
    pub(crate) async fn apply(&self, outcome: ToolOutcome, raw: &Input) -> ToolOutcome {
        let result = match &outcome {
            ToolOutcome::Returned(result) => result.clone(),
            ToolOutcome::Failed(text) => ToolResult::error(text.clone()),
            ToolOutcome::Unknown { .. } => return outcome,
        };
        self.services.fail_points.hit("tool-result.before").await;
        let mut hooks = Box::pin(self.run(result));
        let changed = match futures_util::poll!(hooks.as_mut()) {
            Poll::Ready(changed) => changed,
            // Together: an outage that delays the write takes no time from the hooks.
            Poll::Pending => tokio::join!(self.keep(raw), hooks.as_mut()).1,
        };
        self.services.fail_points.hit("tool-result.after").await;
        changed.map_or(outcome, ToolOutcome::Returned)
    }

    /// The actions of all hooks that succeeded.
    pub(crate) fn take_actions(&self) -> impl Iterator<Item = Input> {
        self.hooks.contexts.iter().filter_map(HookContext::take_actions)
    }

    async fn keep(&self, raw: &Input) {
        let Input::ToolCallReturned { result, .. } = raw else { return };
        if self.attempt.tool.definition().effect == Effect::Write {
            self.kept.add(self.writer.call());
            self.writer.store(result).await;
        }
    }

    /// `None`: no hook changed anything, and none failed.
    async fn run(&self, mut result: ToolResult) -> Option<ToolResult> {
        let (mut is_changed, mut notes) = (false, Vec::new());
        let began = Instant::now();
        for cx in &self.hooks.contexts {
            let call = FinishedToolCall {
                tool_call_id: &self.call.id,
                tool_name: &self.call.name,
                arguments: &self.attempt.arguments,
                content: &result.content,
                details: result.details.as_ref(),
                is_error: result.is_error,
            };
            // The hook is called inside the future, so that a panic before its first await is
            // caught too.
            let work = async { cx.extension().after_tool_call(cx, &call).await };
            let time_left = Some(HOOKS_PER_RESULT_MAX.saturating_sub(began.elapsed()));
            match (HookRunner { time_left, ..self.hooks.runner.clone() }).run(cx, work).await {
                Ok(changes) => is_changed |= apply_changes(&mut result, changes),
                Err(failure) => {
                    cx.take_actions();
                    notes.push(Block::text(format!("[{failure}; it did not change the result.]")));
                }
            }
        }
        if !is_changed && notes.is_empty() {
            return None;
        }
        result.content.extend(notes);
        Some(self.limit(result).await)
    }

    /// Limits the members that hooks can change.
    async fn limit(&self, mut result: ToolResult) -> ToolResult {
        let changed = ToolResult {
            content: std::mem::take(&mut result.content),
            details: result.details.take(),
            workspace: std::mem::take(&mut result.workspace),
            ..ToolResult::default()
        };
        let (context, read_access) = (&self.attempt.context, self.attempt.read_access);
        let changed = Box::pin(limit_result(changed, context, read_access)).await;
        result.outputs.extend(changed.outputs);
        ToolResult {
            content: changed.content,
            details: changed.details,
            workspace: changed.workspace,
            ..result
        }
    }
}

/// Returns true if anything changed. An error stays an error.
fn apply_changes(result: &mut ToolResult, changes: ResultChanges) -> bool {
    let is_changed = changes != ResultChanges::default();
    let ResultChanges { content, details, is_error } = changes;
    if let Some(content) = content {
        result.content = content;
        // It may contain the content that the hook has removed.
        result.structured = None;
    }
    result.details = details.or(result.details.take());
    result.is_error |= is_error == Some(true);
    is_changed
}
