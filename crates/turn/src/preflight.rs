//! Preflight of tool calls: checks the tool, its arguments, extensions, approval and the remaining
//! time before a call starts.

use std::sync::Arc;

use crate::call_approval::{self, call_fingerprint};
use crate::call_hooks::{CheckedCall, HookVerdict, log_refusal, rejected, run_before_tool_call};
use crate::context::TurnContext;
use crate::leased_conversation::LeasedConversation;
use crate::offered_tools::OfferedTools;
use crate::pause;
use crate::plan::CommitPlan;
use crate::tool_call::failure_text;
use turnwheel_conversation::approval_binding;
use turnwheel_conversation::content::ToolCall;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::settings::LoopKind;
use turnwheel_conversation::step::{
    CallPlan, Input, Preflight, is_skipped_by_steer, renew_approval,
};
use turnwheel_conversation::transition::Transition;
use turnwheel_extensions::Hook;
use turnwheel_platform::ids::EffectId;
use turnwheel_record::error::TurnError;
use turnwheel_record::lease::SEND_MARGIN;
use turnwheel_storage::store::BATCH_OPERATIONS_MAX;
use turnwheel_tools::{CallableTool, CheckContext, validate};

/// Above this number of operations no further call is checked in the same commit, so that the end
/// of turn and prompt still fit.
const PREFLIGHT_OPERATIONS_MAX: usize = BATCH_OPERATIONS_MAX - 10;

/// Outcome of the check of a ready call.
enum CheckOutcome {
    Decided(Preflight),
    /// The call stays ready for the next turn.
    Deferred,
    /// The call stays ready until this pause is lifted.
    Paused(String),
}

impl LeasedConversation<'_> {
    /// Checks the ready calls in source order, until the concurrency limit is reached, none is
    /// left, or the commit is full.
    ///
    /// # Errors
    /// The lease was lost or the process had to stop while a hook ran: discard the work.
    pub(crate) async fn check_ready_calls(
        &mut self,
        plan: &mut CommitPlan,
    ) -> Result<(), TurnError> {
        let (mut skipped_until, mut paused_on, mut is_deferred) = (None, None, false);
        while plan.transition().operation_count() < PREFLIGHT_OPERATIONS_MAX {
            let transition = plan.transition();
            if transition.is_abort_requested() {
                // The commit ends the prompt.
                return Ok(());
            }
            let Some(index) = transition.call_batch().next_startable(skipped_until) else { break };
            let mut actions = Vec::new();
            let outcome = if is_skipped_by_steer(transition, index) {
                CheckOutcome::Deferred
            } else {
                self.check_call(plan, index, &mut actions).await?
            };
            let preflight = match outcome {
                CheckOutcome::Decided(preflight) => preflight,
                // Without a decision the call stays ready: the next turn, which has its whole time,
                // starts it.
                CheckOutcome::Deferred => {
                    (skipped_until, is_deferred) = (Some(index), true);
                    continue;
                }
                CheckOutcome::Paused(on) => {
                    (skipped_until, paused_on) = (Some(index), paused_on.or(Some(on)));
                    continue;
                }
            };
            // Before the check, so that an abort starts no call.
            // After an approval the hooks run again.
            if !is_approval_needed(&preflight) {
                for action in actions {
                    plan.add(action);
                }
            }
            plan.add(Input::ToolCallChecked { index, preflight });
        }
        let transition = plan.transition();
        let can_continue = is_deferred
            || transition.call_batch().is_in_progress()
            || transition.operation_count() >= PREFLIGHT_OPERATIONS_MAX;
        if let Some(on) = paused_on.filter(|_| !can_continue) {
            plan.add(pause::paused_input(self.services, &self.state.head, &on));
        }
        Ok(())
    }

    async fn check_call(
        &mut self,
        plan: &CommitPlan,
        index: usize,
        actions: &mut Vec<Input>,
    ) -> Result<CheckOutcome, TurnError> {
        if self.services.shutdown.is_begun() || self.progress.is_client_gone() {
            return Ok(CheckOutcome::Deferred);
        }
        let transition = plan.transition();
        let Some(call) =
            transition.open_response().and_then(|answer| answer.tool_calls().nth(index))
        else {
            return Ok(CheckOutcome::Decided(rejected("This call is not in the record.")));
        };
        if let Some(on) = pause::pause_of_call(self.services, &self.state.head, &call.name) {
            return Ok(CheckOutcome::Paused(on.to_owned()));
        }
        let offered = OfferedTools::load(self.services, &self.state, plan).await?;
        let is_approved = approved_binding(transition, index).is_some();
        let confirm =
            self.state.confirm_remote_tool(self.services, plan.context(), &call.name, is_approved);
        let confirmed = tokio::select! {
            biased;
            // The call keeps its approval, and another process confirms the definition.
            () = self.services.shutdown.clone().wait_until_begun() => {
                return Ok(CheckOutcome::Deferred);
            }
            confirmed = confirm => confirmed,
        };
        if let Err(text) = confirmed {
            return Ok(CheckOutcome::Decided(rejected(text)));
        }
        // With the definitions just confirmed.
        let confirmed =
            plan.context().has_remote_tools().then(|| self.state.context(self.services));
        let context = confirmed.as_ref().unwrap_or(plan.context());
        let mut checked = match resolve_call(plan, context, index, call, &offered) {
            Ok(checked) => checked,
            Err(preflight) => return Ok(CheckOutcome::Decided(preflight)),
        };
        let loop_kind = context.loop_kind();
        let refuse = |text| {
            log_refusal(transition, &call.name, "its arguments are invalid");
            Ok(CheckOutcome::Decided(rejected(failure_text(loop_kind, &call.name, text))))
        };
        if let Err(text) = check_arguments(self, transition, &checked).await {
            return refuse(text);
        }
        // The hooks of the remaining calls run in the next turn, which has its whole time.
        if self.progress.time_left(&*self.services.clock).is_zero()
            && self.has_hook(Hook::ToolCall, plan.context())
        {
            return Ok(CheckOutcome::Deferred);
        }
        match run_before_tool_call(self, plan, &checked, actions).await? {
            HookVerdict::Passed(hooked) => {
                checked.required = hooked.required;
                checked.is_changed = hooked.arguments.is_some();
                checked.arguments = hooked.arguments.unwrap_or(checked.arguments);
            }
            HookVerdict::Decided(preflight) => return Ok(CheckOutcome::Decided(preflight)),
            HookVerdict::Deferred => return Ok(CheckOutcome::Deferred),
        }
        if checked.is_changed
            && let Err(text) = check_arguments(self, transition, &checked).await
        {
            return refuse(text);
        }
        Ok(self
            .admit_call(transition, checked)
            .map_or(CheckOutcome::Deferred, CheckOutcome::Decided))
    }

    /// Returns `None` if the process ends or the tool's time-out no longer fits this turn.
    fn admit_call(&self, transition: &Transition, checked: CheckedCall<'_>) -> Option<Preflight> {
        // The end may have begun while the hooks ran.
        if self.services.shutdown.is_begun() {
            return None;
        }
        let CheckedCall { index, call, tool, arguments, is_changed, required } = checked;
        let changed_call =
            is_changed.then(|| ToolCall { arguments: arguments.text.clone(), ..call.clone() });
        let call = changed_call.as_ref().unwrap_or(call);
        let timeout = tool.definition().timeout;
        if timeout + SEND_MARGIN > self.services.limits.turn_duration {
            // Deferring it would defer it for ever.
            return Some(rejected(format!(
                "The time-out of tool \"{}\", {} s, is longer than a turn here can be ({} s), so it was not started.",
                call.name,
                timeout.as_secs(),
                self.services.limits.turn_duration.as_secs()
            )));
        }
        let binding = call_approval::bind(tool.as_ref(), call, &required);
        let approved = approved_binding(transition, index)
            .filter(|approved| approval_binding::covers(approved, &binding));
        let approval = if approved.is_some() {
            None
        } else {
            call_approval::merge(tool.required_approval(&arguments), required, transition.now)
                .or_else(|| renew_approval(transition, index, &binding))
        };
        // A call that waits for an approval starts in another turn, so its time-out does not matter
        // here.
        if approval.is_none()
            && timeout + SEND_MARGIN > self.progress.time_left(&*self.services.clock)
        {
            return None;
        }
        Some(Preflight::Admitted(Box::new(CallPlan {
            effect: tool.definition().effect,
            on_unknown: tool.definition().on_unknown,
            until: transition.now.plus(timeout),
            // Later checks need all that was approved.
            binding: approved.cloned().unwrap_or(binding),
            fingerprint: call_fingerprint(call),
            destination: tool.destination().shown,
            label: tool.definition().display_name(),
            changed_arguments: is_changed.then(|| arguments.text.clone()),
            sent_arguments: (is_changed || arguments.text.text() != call.arguments.text())
                .then_some(arguments.text),
            approval,
        })))
    }
}

/// The tool's own check of what the schema cannot express, before an approver is asked.
///
/// # Errors
/// The tool refuses the arguments: the call ends without an approval. The text is for the model.
async fn check_arguments(
    conversation: &LeasedConversation<'_>,
    transition: &Transition,
    checked: &CheckedCall<'_>,
) -> Result<(), String> {
    let head = &transition.head;
    let Phase::Calls { response_seq, calls, .. } = &head.phase else { return Ok(()) };
    let (id, incarnation) = (&head.conversation_id, &head.incarnation);
    let effect_id = EffectId::from_call(id, incarnation, *response_seq, checked.index);
    let knowledge = conversation.knowledge();
    let context = CheckContext {
        effect_id: &effect_id,
        attempts: calls.get(checked.index).map_or(0, |call| call.attempts),
        now: transition.now,
        conversation: &conversation.state.key,
        memory: knowledge.memory.as_deref(),
        user_skills: knowledge.user_skills.as_deref(),
    };
    checked.tool.check_arguments(&checked.arguments, &context).await
}

fn is_approval_needed(preflight: &Preflight) -> bool {
    matches!(preflight, Preflight::Admitted(plan) if plan.approval.is_some())
}

/// The tool and the checked arguments of a call that no earlier call blocks.
fn resolve_call<'p>(
    plan: &CommitPlan,
    context: &TurnContext,
    index: usize,
    call: &'p ToolCall,
    offered: &OfferedTools,
) -> Result<CheckedCall<'p>, Preflight> {
    let transition = plan.transition();
    let Some(tool) = offered.find(context, &call.name) else {
        let was_approved = approved_binding(transition, index).is_some();
        log_refusal(transition, &call.name, "there is no such tool");
        let names = offered.names(context);
        return Err(rejected(missing_tool_text(&call.name, context, &names, was_approved)));
    };
    let arguments = validate::validate(tool.definition(), &call.arguments).map_err(|text| {
        log_refusal(transition, &call.name, "its arguments are invalid");
        rejected(failure_text(context.loop_kind(), &call.name, text))
    })?;
    match find_blocking_call(plan, index, &**tool) {
        Some(earlier) => Err(Preflight::BlockedBy { earlier }),
        None => Ok(CheckedCall {
            index,
            call,
            tool: Arc::clone(tool),
            arguments,
            is_changed: false,
            required: Vec::new(),
        }),
    }
}

/// Index of the latest earlier call that must finish first, even in parallel mode. Either both
/// calls modify workspace files or the state of plugins, or use one session of the conversation, or
/// both are the same `write` with equal arguments. The model may have requested the second write by
/// mistake; it is rejected if the first one's outcome stays unknown.
fn find_blocking_call(plan: &CommitPlan, index: usize, tool: &dyn CallableTool) -> Option<usize> {
    let (transition, context) = (plan.transition(), plan.context());
    let calls: Vec<&ToolCall> = transition.open_response()?.tool_calls().take(index + 1).collect();
    let (call, earlier) = calls.split_last()?;
    let must_precede = |other: &ToolCall| {
        let are_both = |has: fn(&dyn CallableTool) -> bool| {
            has(tool) && context.find_tool(&other.name).is_some_and(|other| has(&**other))
        };
        let is_same = || {
            other.name == call.name
                && other.arguments.canonical_text() == call.arguments.canonical_text()
        };
        are_both(|it| it.changes_workspace())
            || are_both(writes_state)
            || share_session(tool, context.find_tool(&other.name).map(|other| &**other))
            || (tool.definition().effect == Effect::Write && is_same())
    };
    earlier.iter().enumerate().rev().find_map(|(index, other)| {
        let is_open = transition.calls().get(index).is_some_and(|call| !call.is_done());
        (is_open && must_precede(other)).then_some(index)
    })
}

fn writes_state(tool: &dyn CallableTool) -> bool {
    tool.plugin().is_some_and(|plugin| plugin.writes_state)
}

/// True if both use one session of the conversation.
fn share_session(tool: &dyn CallableTool, other: Option<&dyn CallableTool>) -> bool {
    let name = tool.conversation_session();
    name.is_some() && other.and_then(|other| other.conversation_session()) == name
}

/// The binding that the call was approved for.
fn approved_binding(transition: &Transition, index: usize) -> Option<&String> {
    transition.calls().get(index).and_then(|call| call.approved.as_ref())
}

/// The texts of the sources' loops. A tool that an approver had allowed has its own text.
fn missing_tool_text(
    name: &str,
    context: &TurnContext,
    offered: &[&str],
    was_approved: bool,
) -> String {
    if let Some(reason) = context.missing_tool_text(name) {
        return reason;
    }
    if was_approved {
        return format!("Tool \"{name}\" no longer available");
    }
    match context.loop_kind() {
        LoopKind::Agent => format!("Tool {name} not found"),
        LoopKind::Protocol => format!("Tool '{name}' not registered"),
        LoopKind::Prompt => {
            format!("Tool \"{name}\" not found. Available tools: {}", offered.join(", "))
        }
    }
}
