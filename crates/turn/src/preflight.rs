//! Preflight of tool calls: checks the tool, its arguments, extensions, approval and the remaining
//! time before a call starts.

use std::sync::Arc;

use crate::call_approval::{self, ExtensionApproval, call_fingerprint};
use crate::context::TurnContext;
use crate::leased_conversation::LeasedConversation;
use crate::offered_tools::OfferedTools;
use crate::pause;
use crate::plan::CommitPlan;
use crate::tool_call::failure_text;
use turnwheel_conversation::approval_binding;
use turnwheel_conversation::content::ToolCall;
use turnwheel_conversation::question::Answers;
use turnwheel_conversation::raw::RawJson;
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::settings::LoopKind;
use turnwheel_conversation::step::{
    AskedQuestion, CallPlan, Input, Preflight, has_room_for_question, is_skipped_by_steer,
    renew_approval,
};
use turnwheel_conversation::transition::Transition;
use turnwheel_extensions::context::Anchor;
use turnwheel_extensions::runner::FailureCause;
use turnwheel_extensions::{Hook, PendingToolCall, ToolCallDecision};
use turnwheel_platform::ids::is_plain_text;
use turnwheel_record::error::TurnError;
use turnwheel_record::lease::SEND_MARGIN;
use turnwheel_storage::store::BATCH_OPERATIONS_MAX;
use turnwheel_tools::{Arguments, CallableTool, validate};

/// Above this number of operations no further call is checked in the same commit, so that the end
/// of turn and prompt still fit.
const PREFLIGHT_OPERATIONS_MAX: usize = BATCH_OPERATIONS_MAX - 10;

/// Maximum bytes of the arguments that extensions set for one call.
const CHANGE_BYTES_MAX: usize = 4 * 1024;
/// Maximum bytes of the arguments that extensions set for all open calls.
const CHANGES_BYTES_MAX: usize = 8 * 1024;

/// Result text of a call that an extension blocks without a reason (EX-04). Also the prefix of a
/// failed hook's reason.
const BLOCKED: &str = "Tool execution was blocked";

/// A call whose tool exists and whose arguments are valid.
struct CheckedCall {
    tool: Arc<dyn CallableTool>,
    arguments: Arguments,
    /// True if an extension set the arguments.
    is_changed: bool,
    /// Approvals that extensions require, in their order.
    required: Vec<ExtensionApproval>,
}

/// Decisions of extensions on a call that they let pass.
struct HookedCall {
    required: Vec<ExtensionApproval>,
    /// `None`: no extension changed the arguments.
    arguments: Option<Arguments>,
}

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
    /// The lease was lost while a hook ran: discard the work.
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
        if self.services.shutdown.is_begun() {
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
        let confirmed = self
            .state
            .confirm_remote_tool(self.services, plan.context(), &call.name, is_approved)
            .await;
        if let Err(text) = confirmed {
            return Ok(CheckOutcome::Decided(rejected(text)));
        }
        // With the definitions just confirmed.
        let confirmed =
            plan.context().has_remote_tools().then(|| self.state.context(self.services));
        let context = confirmed.as_ref().unwrap_or(plan.context());
        let mut checked = match resolve_call((plan, context), index, call, &offered) {
            Ok(checked) => checked,
            Err(preflight) => return Ok(CheckOutcome::Decided(preflight)),
        };
        let loop_kind = context.loop_kind();
        let refuse = |text| {
            log_refusal(transition, &call.name, "its arguments are invalid");
            Ok(CheckOutcome::Decided(rejected(failure_text(loop_kind, &call.name, text))))
        };
        if let Err(text) =
            self.check_arguments(transition, index, &*checked.tool, &checked.arguments).await
        {
            return refuse(text);
        }
        // The hooks of the remaining calls run in the next turn, which has its whole time.
        if self.progress.time_left(&*self.services.clock).is_zero()
            && self.has_hook(Hook::ToolCall, plan.context())
        {
            return Ok(CheckOutcome::Deferred);
        }
        match self.run_before_tool_call(plan, (index, call), &checked, actions).await? {
            Ok(hooked) => {
                checked.required = hooked.required;
                checked.is_changed = hooked.arguments.is_some();
                checked.arguments = hooked.arguments.unwrap_or(checked.arguments);
            }
            Err(outcome) => return Ok(outcome),
        }
        if checked.is_changed
            && let Err(text) =
                self.check_arguments(transition, index, &*checked.tool, &checked.arguments).await
        {
            return refuse(text);
        }
        let changed_text = checked.is_changed.then(|| checked.arguments.text.clone());
        let changed_call = changed_text.map(|arguments| ToolCall { arguments, ..call.clone() });
        Ok(self
            .admit_call(transition, index, changed_call.as_ref().unwrap_or(call), checked)
            .map_or(CheckOutcome::Deferred, CheckOutcome::Decided))
    }

    /// The approvals that extensions require and their arguments, or the rejection by the first extension that blocks
    /// the call, or that fails and is not optional.
    #[expect(clippy::too_many_lines, reason = "one arm for each decision of a hook")]
    async fn run_before_tool_call(
        &mut self,
        plan: &CommitPlan,
        (index, call): (usize, &ToolCall),
        checked: &CheckedCall,
        actions: &mut Vec<Input>,
    ) -> Result<Result<HookedCall, CheckOutcome>, TurnError> {
        let arguments = &checked.arguments;
        let binding = call_approval::bind(&*checked.tool, call, &[]);
        let response = plan.transition().head.response_count;
        let state = plan.transition().calls().get(index);
        // Answers about another call count for nothing: the hooks ask again.
        let is_same = |answered: &String| approval_binding::is_same_call(answered, &binding);
        let no_answers = Answers::default();
        let answers = state.map(|call| {
            if call.answered_for.as_ref().is_none_or(is_same) { &call.answers } else { &no_answers }
        });
        let sent = state.filter(|call| call.attempts > 0);
        let is_repeated = sent.is_some();
        let fixed = sent.and_then(|call| call.changed_arguments.clone()).map(Arguments::from_text);
        let mut hooked = HookedCall { required: Vec::new(), arguments: fixed };
        let anchor = Anchor::ToolCall { response, index };
        for cx in self.hook_contexts(Hook::ToolCall, plan.context(), anchor) {
            let cx = if let Some(answers) = answers { cx.with_questions(answers) } else { cx };
            let call_ahead = PendingToolCall {
                tool_call_id: &call.id,
                tool_name: &call.name,
                arguments: hooked.arguments.as_ref().unwrap_or(arguments),
                calls_count: plan.transition().calls().len(),
            };
            // The hook is called inside the future, so that a panic before its first await is
            // caught too.
            let work = async { cx.extension().before_tool_call(&cx, &call_ahead).await };
            let decision = self.run_hook(&cx, work).await?;
            if let Some(question) = cx.take_question() {
                // All hooks run again after the answer.
                actions.clear();
                let destination = checked.tool.destination().shown;
                let label = checked.tool.definition().display_name();
                let asked = AskedQuestion { question, binding, destination, label };
                let preflight = ask_or_wait(plan.transition(), index, asked);
                return Ok(Err(CheckOutcome::Decided(preflight)));
            }
            if decision.is_ok() {
                // The other actions have landed with the intent of the first attempt.
                actions.extend(if is_repeated { cx.take_aborts() } else { cx.take_actions() });
            }
            let preflight = match decision {
                Ok(ToolCallDecision::Allow) => continue,
                Ok(ToolCallDecision::RequireApproval(request)) => {
                    let extension = cx.extension().name().to_owned();
                    hooked.required.push(ExtensionApproval { extension, request });
                    continue;
                }
                // A repetition has the arguments of the first attempt.
                Ok(ToolCallDecision::Change(_) | ToolCallDecision::ChangeText(_))
                    if is_repeated =>
                {
                    continue;
                }
                Ok(change @ (ToolCallDecision::Change(_) | ToolCallDecision::ChangeText(_))) => {
                    let before = hooked.arguments.as_ref().unwrap_or(arguments);
                    let Some(text) = change.into_arguments(before) else { continue };
                    match check_change(plan.transition(), index, cx.extension().name(), text) {
                        Ok(changed) => {
                            hooked.arguments = Some(changed);
                            continue;
                        }
                        Err(preflight) => preflight,
                    }
                }
                Ok(ToolCallDecision::Block(block)) => {
                    log_refusal(plan.transition(), &call.name, "an extension blocked it");
                    let text = block.reason.unwrap_or_else(|| BLOCKED.to_owned());
                    Preflight::Rejected { text, terminate: block.terminate }
                }
                Err(failure) if failure.cause == FailureCause::CommitTimeout => {
                    return Ok(Err(CheckOutcome::Deferred));
                }
                Err(_reported) if cx.extension().is_optional() => continue,
                Err(failure) => rejected(format!("{BLOCKED}: {failure}")),
            };
            return Ok(Err(CheckOutcome::Decided(preflight)));
        }
        Ok(Ok(hooked))
    }

    /// Returns `None` if the tool's time-out no longer fits this turn.
    fn admit_call(
        &self,
        transition: &Transition,
        index: usize,
        call: &ToolCall,
        checked: CheckedCall,
    ) -> Option<Preflight> {
        let CheckedCall { tool, arguments, is_changed, required } = checked;
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

/// The arguments that an extension sets. They are stored in the head until the call is done.
fn check_change(
    transition: &Transition,
    index: usize,
    extension: &str,
    text: RawJson,
) -> Result<Arguments, Preflight> {
    let refused = |reason: String| {
        Err(rejected(format!(
            "{BLOCKED}: extension \"{extension}\" changed its arguments to {reason}"
        )))
    };
    let changed = Arguments::from_text(text);
    if !changed.value.is_object() {
        return refused("a value that is no object".to_owned());
    }
    let bytes = changed.text.text().len();
    let others = transition.calls().iter().enumerate().filter(|(other, _)| *other != index);
    let others = others.filter_map(|(_, call)| call.changed_arguments.as_ref());
    let together = bytes + others.map(|it| it.text().len()).sum::<usize>();
    if bytes > CHANGE_BYTES_MAX || together > CHANGES_BYTES_MAX {
        return refused(format!(
            "{bytes} bytes, and those of all calls to {together}: at most {CHANGE_BYTES_MAX} and {CHANGES_BYTES_MAX} are allowed"
        ));
    }
    Ok(changed)
}

/// Opens the request for the question. While the head has no room for it, the call waits for an
/// earlier one, whose result makes room.
fn ask_or_wait(transition: &Transition, index: usize, asked: AskedQuestion) -> Preflight {
    if has_room_for_question(&transition.head, &asked.question) {
        return Preflight::Asked(Box::new(asked));
    }
    let earlier = transition.calls().iter().take(index).rposition(|call| !call.is_done());
    earlier.map_or_else(
        || {
            rejected(format!(
                "{BLOCKED}: extension \"{}\" asks a question, and the questions of the other calls leave no room for it. Call the tool again later.",
                asked.question.asker.extension
            ))
        },
        |earlier| Preflight::BlockedBy { earlier },
    )
}

fn is_approval_needed(preflight: &Preflight) -> bool {
    matches!(preflight, Preflight::Admitted(plan) if plan.approval.is_some())
}

/// The tool and the checked arguments of a call that no earlier call blocks.
fn resolve_call(
    (plan, context): (&CommitPlan, &TurnContext),
    index: usize,
    call: &ToolCall,
    offered: &OfferedTools,
) -> Result<CheckedCall, Preflight> {
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
            tool: Arc::clone(tool),
            arguments,
            is_changed: false,
            required: Vec::new(),
        }),
    }
}

/// Logs a call that does not start. The model chose the name, so only a proper name is logged.
fn log_refusal(transition: &Transition, tool: &str, cause: &'static str) {
    let is_name = tool.len() <= 128 && is_plain_text(tool);
    tracing::warn!(
        tool = if is_name { tool } else { "(no name)" },
        cause,
        conversation.id = %transition.head.conversation_id,
        "tool call refused"
    );
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

fn rejected(text: impl Into<String>) -> Preflight {
    Preflight::Rejected { text: text.into(), terminate: false }
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
