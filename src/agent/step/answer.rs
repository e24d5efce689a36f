//! Applying a model response to the transition.

use std::sync::Arc;

use crate::agent::content::Block;
use crate::agent::draft::Draft;
use crate::agent::entry::{Entry, EntryBody, MessageEntry, PromptError, PromptState, PromptStop};
use crate::agent::event::{EventBody, OutputRef};
use crate::agent::message::{AssistantMessage, Message, StopReason};
use crate::agent::phase::{CallState, Phase};
use crate::agent::step::{
    Answered, CallResult, Setback, calls, compacting, ending, finish_turn, paying, retrying,
    taking_in,
};
use crate::ids::EntryId;

/// Maximum number of tool calls in one response. Each has a result entry, and all results must fit
/// into one commit when a prompt fails.
pub const CALLS_MAX: usize = 64;

pub(super) fn accept(draft: &mut Draft, answered: &Answered) {
    if !matches!(draft.head.phase, Phase::Model { .. }) {
        return;
    }
    let calls_count = answered.message.tool_calls().count();
    let mut message = answered.message.clone();
    message.timestamp = draft.now;
    take_members_once(&mut message);
    if calls_count > CALLS_MAX && !message.is_failed() {
        message.stop_reason = StopReason::Error;
        message.error_message = Some(format!(
            "The model requested {calls_count} tool calls in one response; the maximum is {CALLS_MAX}. No call was executed."
        ));
    }
    let setback = compacting::judge(draft, &mut message, answered.setback);
    let is_error = message.stop_reason == StopReason::Error;
    let wait = if is_error { retrying::next_wait(draft, setback) } else { None };
    let recovers = is_error && compacting::recovers(draft, setback);
    let entry = record(draft, answered, message, wait.is_some() || recovers);
    let Some(message) = entry.body.message().and_then(Message::as_assistant) else { return };
    if let Some(wait) = wait {
        retrying::begin(draft, &entry, wait);
        return;
    }
    if recovers {
        retrying::give_up(draft, message.error_message.as_deref());
        retrying::end_run(draft, &entry);
        compacting::recover(draft);
        return;
    }
    if message.is_failed() {
        end_failed(draft, &entry, message, setback);
        return;
    }
    if let Some(run) = &mut draft.head.prompt {
        run.has_overflowed = false;
        run.incomplete = message.incomplete();
    }
    retrying::succeed(draft);
    tell_texts(draft, &entry, message);
    if calls_count == 0 {
        ending::end_turn(draft, entry.base.seq, Vec::new());
        finish_turn::after_response(draft, answered.misfit.as_deref());
        return;
    }
    draft.head.phase = Phase::Calls {
        answer: entry.base.seq,
        calls: (0..calls_count).map(|_| CallState::fresh()).collect(),
        at_once: draft.rules.calls_at_once,
    };
    let is_cut = message.stop_reason == StopReason::Length;
    let cut: Vec<String> = message.tool_calls().map(|call| not_executed(&call.name)).collect();
    draft.answer = Some(entry);
    if is_cut {
        for (index, text) in cut.into_iter().enumerate() {
            calls::refuse(draft, index, &CallResult::error(text));
        }
    }
}

/// The source's text for a call of a response that the output limit cut (LO-16).
fn not_executed(tool: &str) -> String {
    format!(
        "Tool call \"{tool}\" was not executed: the response hit the output token limit, so its arguments may be truncated. \
         Re-issue the tool call with complete arguments."
    )
}

fn record(
    draft: &mut Draft,
    answered: &Answered,
    message: AssistantMessage,
    is_retried: bool,
) -> Arc<Entry> {
    let usage = message.usage;
    let head = &mut draft.head;
    head.note_progress();
    head.answers += 1;
    if let Some(run) = &mut head.prompt {
        run.rounds += u32::from(!is_retried);
        run.is_steered = false;
    }
    taking_in::open_turn(draft);
    paying::spend(draft, usage, 1);
    let id = EntryId::of_answer(&draft.head.incarnation, draft.head.answers);
    let entry = draft.append_as(
        id,
        EntryBody::Message(MessageEntry {
            message: Message::Assistant(message),
            revision: Some(answered.revision.clone()),
            call: None,
            started_at: Some(answered.started_at),
            is_retried,
        }),
    );
    draft.tell_message(&entry);
    entry
}

fn tell_texts(draft: &mut Draft, entry: &Entry, message: &AssistantMessage) {
    for (number, block) in message.content.iter().enumerate() {
        if let Block::Text(text) = block
            && !text.text.trim().is_empty()
        {
            draft.tell(EventBody::PromptOutput(OutputRef {
                seq: entry.base.seq,
                block: Some(number),
                call: None,
            }));
        }
    }
}

/// Ends the prompt after a permanent failure. Waiting inbox items stay queued.
fn end_failed(draft: &mut Draft, entry: &Entry, message: &AssistantMessage, setback: Setback) {
    tell_texts(draft, entry, message);
    ending::end_turn(draft, entry.base.seq, Vec::new());
    if message.stop_reason == StopReason::Aborted {
        ending::end(draft, PromptState::Aborted, PromptStop::Aborted, None);
        return;
    }
    let text = message.error_message.clone().unwrap_or_else(|| "Unknown error".to_owned());
    let text = compacting::told_error(draft, setback, text);
    let error = PromptError { kind: "model".to_owned(), message: text };
    ending::end(draft, PromptState::Failed, PromptStop::Error, Some(&error));
}

/// Removes duplicate members of the arguments, so that the approver and the tool read the same
/// values.
fn take_members_once(message: &mut AssistantMessage) {
    for block in &mut message.content {
        if let Block::ToolCall(call) = block {
            call.arguments = call.arguments.clone().with_members_once();
        }
    }
}
