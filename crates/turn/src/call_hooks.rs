//! Hooks of extensions before a tool call: required approvals, changed arguments, rejections and questions.

use std::sync::Arc;

use crate::call_approval::{self, ExtensionApproval};
use crate::leased_conversation::LeasedConversation;
use crate::plan::CommitPlan;
use turnwheel_conversation::approval_binding;
use turnwheel_conversation::content::ToolCall;
use turnwheel_conversation::question::Answers;
use turnwheel_conversation::step::{AskedQuestion, Input, Preflight, has_room_for_question};
use turnwheel_conversation::transition::Transition;
use turnwheel_extensions::context::Anchor;
use turnwheel_extensions::runner::{FailureCause, HookFailure};
use turnwheel_extensions::{Extension, Hook, PendingToolCall, ToolCallDecision};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::is_plain_text;
use turnwheel_record::error::TurnError;
use turnwheel_tools::{Arguments, CallableTool};

/// Maximum bytes of the arguments that extensions set for one call.
const CHANGE_BYTES_MAX: usize = 4 * 1024;
/// Maximum bytes of the arguments that extensions set for all open calls.
const CHANGES_BYTES_MAX: usize = 8 * 1024;

/// Result text of a call that an extension blocks without a reason (EX-04). Also the prefix of a
/// failed hook's reason.
const BLOCKED: &str = "Tool execution was blocked";

/// A call whose tool exists and whose arguments are valid.
pub(crate) struct CheckedCall<'p> {
    pub index: usize,
    /// As the model requested it.
    pub call: &'p ToolCall,
    pub tool: Arc<dyn CallableTool>,
    pub arguments: Arguments,
    /// True if an extension set the arguments.
    pub is_changed: bool,
    /// Approvals that extensions require, in their order.
    pub required: Vec<ExtensionApproval>,
}

/// Decisions of extensions on a call that they let pass.
pub(crate) struct HookedCall {
    pub required: Vec<ExtensionApproval>,
    /// `None`: no extension changed the arguments.
    pub arguments: Option<Arguments>,
    /// True if an earlier attempt was sent. A repetition has its arguments.
    is_repeated: bool,
}

/// Verdict of all hooks on a call.
pub(crate) enum HookVerdict {
    Passed(HookedCall),
    /// The call does not start now.
    Decided(Preflight),
    /// A hook had no time left. All run again in the next turn.
    Deferred,
}

/// Runs the hooks until one stops the call.
///
/// # Errors
/// The lease was lost: discard the work.
pub(crate) async fn run_before_tool_call(
    conversation: &mut LeasedConversation<'_>,
    plan: &CommitPlan,
    checked: &CheckedCall<'_>,
    actions: &mut Vec<Input>,
) -> Result<HookVerdict, TurnError> {
    let (transition, call) = (plan.transition(), checked.call);
    let bind = || call_approval::bind(&*checked.tool, call, &[]);
    let response = transition.head.response_count;
    let state = transition.calls().get(checked.index);
    // Answers about another call count for nothing: the hooks ask again.
    let is_same = |answered: &String| approval_binding::is_same_call(answered, &bind());
    let no_answers = Answers::default();
    let answers = state.map(|call| {
        if call.answered_for.as_ref().is_none_or(is_same) { &call.answers } else { &no_answers }
    });
    let sent = state.filter(|call| call.attempts > 0);
    let fixed = sent.and_then(|call| call.changed_arguments.clone()).map(Arguments::from_text);
    let is_repeated = sent.is_some();
    let mut hooked = HookedCall { required: Vec::new(), arguments: fixed, is_repeated };
    let anchor = Anchor::ToolCall { response, index: checked.index };
    for cx in conversation.hook_contexts(Hook::ToolCall, plan.context(), anchor) {
        let cx = if let Some(answers) = answers { cx.with_questions(answers) } else { cx };
        let call_ahead = PendingToolCall {
            tool_call_id: &call.id,
            tool_name: &call.name,
            arguments: hooked.arguments.as_ref().unwrap_or(&checked.arguments),
            calls_count: transition.calls().len(),
        };
        // The hook is called inside the future, so that a panic before its first await is
        // caught too.
        let work = async { cx.extension().before_tool_call(&cx, &call_ahead).await };
        let decision = conversation.run_hook(&cx, work).await?;
        if let Some(question) = cx.take_question() {
            // All hooks run again after the answer.
            actions.clear();
            let destination = checked.tool.destination().shown;
            let label = checked.tool.definition().display_name();
            let asked = AskedQuestion { question, binding: bind(), destination, label };
            let preflight = ask_or_wait(transition, checked.index, asked);
            return Ok(HookVerdict::Decided(preflight));
        }
        if decision.is_ok() {
            // The other actions have landed with the intent of the first attempt.
            actions.extend(if is_repeated { cx.take_aborts() } else { cx.take_actions() });
        }
        if let Err(verdict) = hooked.add(decision, cx.extension(), checked, transition) {
            return Ok(verdict);
        }
    }
    Ok(HookVerdict::Passed(hooked))
}

impl HookedCall {
    /// Adds the decision of an extension.
    ///
    /// # Errors
    /// No later hook runs.
    fn add(
        &mut self,
        decision: Result<ToolCallDecision, HookFailure>,
        extension: &dyn Extension,
        checked: &CheckedCall<'_>,
        transition: &Transition,
    ) -> Result<(), HookVerdict> {
        match decision {
            Ok(ToolCallDecision::Allow) => Ok(()),
            Ok(ToolCallDecision::RequireApproval(request)) => {
                let extension = extension.name().to_owned();
                self.required.push(ExtensionApproval { extension, request });
                Ok(())
            }
            Ok(ToolCallDecision::Change(_) | ToolCallDecision::ChangeText(_))
                if self.is_repeated =>
            {
                Ok(())
            }
            Ok(change @ (ToolCallDecision::Change(_) | ToolCallDecision::ChangeText(_))) => {
                let before = self.arguments.as_ref().unwrap_or(&checked.arguments);
                let changed = match change.into_arguments(before) {
                    Ok(None) => return Ok(()),
                    Ok(Some(text)) => {
                        check_change(transition, checked.index, extension.name(), text)
                    }
                    Err(number) => Err(rejected(format!(
                        "{BLOCKED}: extension \"{}\" changed its arguments, and {number}",
                        extension.name()
                    ))),
                };
                self.arguments = Some(changed.map_err(HookVerdict::Decided)?);
                Ok(())
            }
            Ok(ToolCallDecision::Block(block)) => {
                log_refusal(transition, &checked.call.name, "an extension blocked it");
                let text = block.reason.unwrap_or_else(|| BLOCKED.to_owned());
                let terminate = block.terminate;
                Err(HookVerdict::Decided(Preflight::Rejected { text, terminate }))
            }
            Err(failure) if failure.cause == FailureCause::CommitTimeout => {
                Err(HookVerdict::Deferred)
            }
            Err(_reported) if extension.is_optional() => Ok(()),
            Err(failure) => Err(HookVerdict::Decided(rejected(format!("{BLOCKED}: {failure}")))),
        }
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
    if let Err(error) = changed.text.check_unambiguous() {
        return refused(format!("JSON that some parsers reject: {error}"));
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

/// Logs a call that does not start. The model chose the name, so only a proper name is logged.
pub(crate) fn log_refusal(transition: &Transition, tool: &str, cause: &'static str) {
    let is_name = tool.len() <= 128 && is_plain_text(tool);
    tracing::warn!(
        tool = if is_name { tool } else { "(no name)" },
        cause,
        conversation.id = %transition.head.conversation_id,
        "tool call refused"
    );
}

pub(crate) fn rejected(text: impl Into<String>) -> Preflight {
    Preflight::Rejected { text: text.into(), terminate: false }
}
