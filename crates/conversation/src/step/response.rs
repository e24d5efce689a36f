//! Applying a model response to the transition.

use std::sync::Arc;

use crate::content::Block;
use crate::entry::{Entry, EntryBody, MessageEntry};
use crate::event::{EventBody, OutputRef, ToolDefinitionChange};
use crate::frame_entry::{CurrentFrame, FrameInput};
use crate::message::{AssistantMessage, IncompleteDetails, Message, StopReason};
use crate::phase::{CallState, Phase};
use crate::plugin_state::PluginStateChange;
use crate::protocol_details::ProtocolDetails;
use crate::step::input::{CallResult, ResponseInput};
use crate::step::next::{Next, PromptEnding};
use crate::step::refused_input::{can_repeat, repeat_without_refused_part};
use crate::step::retry::{self, FailureKind};
use crate::step::{budget, calls, compaction, turn};
use crate::transition::Transition;
use crate::unknown_members::Extra;
use turnwheel_platform::ids::EntryId;

/// Maximum number of tool calls in one response. Each has a result entry, and all results must fit
/// into one commit when a prompt fails.
pub const CALLS_MAX: usize = 64;

pub(super) fn apply_response(transition: &mut Transition, response: &ResponseInput) -> Next {
    if !matches!(transition.head.phase, Phase::Model { .. }) {
        return Next::Wait;
    }
    debug_assert!(transition.head.prompt.is_some(), "no prompt runs");
    let calls_count = response.message.tool_calls().count();
    let mut message = response.message.clone();
    message.timestamp = transition.now;
    deduplicate_arguments(&mut message);
    if calls_count > CALLS_MAX && !message.is_failed() {
        message.stop_reason = StopReason::Error;
        message.error_message = Some(format!(
            "The model requested {calls_count} tool calls in one response; the maximum is {CALLS_MAX}. No call was executed."
        ));
    }
    let failure_kind =
        compaction::classify_silent_overflow(transition, &mut message, response.failure_kind);
    let is_error = message.stop_reason == StopReason::Error;
    let wait = if is_error { retry::next_retry_delay(transition, failure_kind) } else { None };
    let can_recover = is_error && compaction::can_recover(transition, failure_kind);
    let refused = response.refused.as_ref().filter(|_| is_error && wait.is_none() && !can_recover);
    let repeated = refused.filter(|refused| can_repeat(transition, refused));
    let is_retried = wait.is_some() || can_recover || repeated.is_some();
    let entry = append_response(transition, response, message, is_retried);
    let Some(message) = entry.body.message().and_then(Message::as_assistant) else {
        return Next::Wait;
    };
    if let Some(wait) = wait {
        return retry::schedule_retry(transition, &entry, wait);
    }
    if can_recover {
        retry::finish_with_failure(transition, message.error_message.as_deref());
        retry::end_failed_run(transition, &entry);
        return compaction::start_recovery(transition);
    }
    if let Some(refused) = refused {
        transition.append(refused.repair.to_entry());
    }
    if let Some(repeated) = repeated {
        retry::finish_with_failure(transition, message.error_message.as_deref());
        retry::end_failed_run(transition, &entry);
        return repeat_without_refused_part(transition, repeated);
    }
    if message.is_failed() {
        let error_type = response.error_type;
        let ending = fail_prompt(transition, &entry, message, failure_kind, error_type);
        return Next::EndPrompt(match refused {
            Some(refused) => ending.with_advice(&refused.advice()),
            None => ending,
        });
    }
    let is_empty = message.is_empty() && !ProtocolDetails::is_ended(message);
    note_success(transition, message, is_empty);
    emit_text_outputs(transition, &entry, message);
    if calls_count == 0 {
        turn::end_turn(transition, entry.base.seq, Vec::new());
        let has_malformed_calls =
            transition.policy.is_protocol && ProtocolDetails::needs_correction(message);
        // The text of the error fits no schema.
        let schema_error = response.schema_error.clone().filter(|_| !has_malformed_calls);
        // A response that the output limit cut would be cut again.
        let is_empty = is_empty && message.stop_reason != StopReason::Length;
        return Next::FinishResponse { schema_error, has_malformed_calls, is_empty };
    }
    let is_cut = message.stop_reason == StopReason::Length;
    let cut: Vec<String> = message.tool_calls().map(|call| not_executed_text(&call.name)).collect();
    transition.head.phase = Phase::Calls {
        response_seq: entry.base.seq,
        calls: (0..calls_count).map(|_| CallState::default()).collect(),
        concurrency: transition.policy.concurrency,
    };
    transition.response = Some(entry);
    if is_cut { reject_cut_calls(transition, cut) } else { Next::Wait }
}

fn note_success(transition: &mut Transition, message: &AssistantMessage, is_empty: bool) {
    if let Some(run) = &mut transition.head.prompt {
        run.has_overflowed = false;
        run.has_repaired_input = false;
        run.has_repeated_empty &= is_empty;
        let empty = || is_empty.then(IncompleteDetails::empty);
        run.incomplete = message.incomplete_details().or_else(empty);
    }
    retry::finish_with_success(transition);
}

fn reject_cut_calls(transition: &mut Transition, texts: Vec<String>) -> Next {
    let mut next = Next::Wait;
    for (index, text) in texts.into_iter().enumerate() {
        next = calls::reject_call(transition, index, &CallResult::error(text));
    }
    next
}

/// The source's text for a call of a response that the output limit cut (LO-16).
fn not_executed_text(tool: &str) -> String {
    format!(
        "Tool call \"{tool}\" was not executed: the response hit the output token limit, so its arguments may be truncated. \
         Re-issue the tool call with complete arguments."
    )
}

fn append_response(
    transition: &mut Transition,
    response: &ResponseInput,
    message: AssistantMessage,
    is_retried: bool,
) -> Arc<Entry> {
    let (usage, is_failed) = (*message.usage, message.is_failed());
    let head = &mut transition.head;
    head.reset_suspicion();
    head.response_count += 1;
    if let Some(run) = &mut head.prompt {
        run.rounds += u32::from(!is_retried);
        run.is_steered = false;
    }
    turn::open_turn(transition);
    budget::record_usage(transition, usage, 1);
    if let Some(frame) = response.frame.as_ref().filter(|_| !is_failed) {
        set_frame(transition, frame);
    }
    let id =
        EntryId::from_call_number(&transition.head.incarnation, transition.head.response_count);
    let entry = transition.append_with_id(
        id,
        EntryBody::Message(MessageEntry {
            message: Message::Assistant(message),
            revision: Some(response.revision.clone()),
            call: None,
            started_at: Some(response.started_at),
            is_retried,
            frame: transition.head.frame.as_ref().filter(|_| !is_failed).map(|frame| frame.seq),
            extra: Extra::new(),
        }),
    );
    transition.emit_message(&entry);
    if !is_failed {
        transition.head.context_tokens = Some(usage.total_tokens);
        set_plugin_state(transition, &response.plugin_state);
    }
    entry
}

/// Records the frame of a response if it differs from the previous one.
fn set_frame(transition: &mut Transition, frame: &FrameInput) {
    let FrameInput { entry, tokens, is_own, changed_tools } = frame;
    let current = transition.head.frame.as_ref();
    if current.is_some_and(|current| current.is_same(&entry.hash, entry.document.as_deref())) {
        return;
    }
    let seq = transition.append(EntryBody::Frame(entry.clone())).base.seq;
    transition.head.frame = Some(CurrentFrame {
        hash: entry.hash.clone(),
        seq,
        tokens: *tokens,
        system_prompt_seq: entry.system_prompt_seq,
        document: entry.document.clone(),
        is_own: *is_own,
    });
    if !changed_tools.is_empty() {
        let tools = changed_tools.clone();
        let change = ToolDefinitionChange { tools, tool_call_id: None };
        transition.emit(EventBody::ToolDefinitionChanged(change));
    }
}

fn set_plugin_state(transition: &mut Transition, changes: &[PluginStateChange]) {
    for change in changes {
        if let Some(entry) = change.apply(&mut transition.head.plugin_state) {
            transition.append(entry);
        }
    }
}

pub(super) fn emit_text_outputs(
    transition: &mut Transition,
    entry: &Entry,
    message: &AssistantMessage,
) {
    for (number, block) in message.content.iter().enumerate() {
        if let Block::Text(text) = block
            && !text.text.trim().is_empty()
        {
            transition.emit(EventBody::PromptOutput(OutputRef {
                seq: entry.base.seq,
                block: Some(number),
                call: None,
            }));
        }
    }
}

/// Ends the prompt after a permanent failure. Waiting inbox items stay queued.
fn fail_prompt(
    transition: &mut Transition,
    entry: &Entry,
    message: &AssistantMessage,
    failure_kind: FailureKind,
    error_type: &str,
) -> PromptEnding {
    emit_text_outputs(transition, entry, message);
    turn::end_turn(transition, entry.base.seq, Vec::new());
    if message.stop_reason == StopReason::Aborted {
        return PromptEnding::aborted();
    }
    let text = message.error_message.clone().unwrap_or_else(|| "Unknown error".to_owned());
    let text = compaction::prompt_error_text(transition, failure_kind, text);
    PromptEnding::failed(error_type, text)
}

/// Removes duplicate members of the arguments, so that the approver and the tool read the same
/// values.
fn deduplicate_arguments(message: &mut AssistantMessage) {
    for block in &mut message.content {
        if let Block::ToolCall(call) = block {
            call.arguments = call.arguments.clone().with_unique_members();
        }
    }
}
