//! Insertion of prompts that ran outside the service. No model and no tool is called, so an inserted
//! prompt has no turns, costs nothing and sends no notification.

use std::sync::Arc;

use crate::content::{Block, ToolCall};
use crate::entry::{
    Entry, EntryBody, FileOutput, MessageEntry, Output, OutputEntry, PromptEnd, PromptState,
    PromptStop,
};
use crate::event::{Empty, EventBody, OutputRef};
use crate::finished_prompt::{
    FinishedCall, FinishedFile, FinishedOutput, FinishedPrompt, FinishedResultKind,
};
use crate::inbox::{InboxItem, PromptInput, WhenIdle};
use crate::message::{AssistantMessage, Message, StopReason, ToolResultMessage, UserMessage};
use crate::phase::Phase;
use crate::request::CallRef;
use crate::step::input::CallResult;
use crate::step::{apply, queue, response, turn};
use crate::transition::Transition;
use crate::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::EntryId;

/// Maximum outputs of one prompt. All its entries must fit one commit.
pub const OUTPUTS_MAX: usize = 32;

/// True if the next item inserts a prompt and this commit already has entries: both together may
/// exceed a commit.
pub(super) fn needs_own_commit(
    transition: &Transition,
    is_next: impl Fn(&InboxItem) -> bool,
) -> bool {
    let next = transition.pending.iter().find(|pending| is_next(&pending.item));
    next.is_some_and(|pending| FinishedPrompt::from_item(&pending.item).is_some())
        && !transition.is_empty()
}

/// Appends the whole prompt and the receipt of its item.
pub(super) fn apply_prompt(transition: &mut Transition, item: &InboxItem, prompt: &FinishedPrompt) {
    let input = PromptInput {
        prompt_id: prompt.prompt_id.clone(),
        user: prompt.user.clone(),
        when_idle: WhenIdle::Start,
        input: prompt.input.clone(),
        visible: true,
        model: None,
        source: prompt.source,
        traceparent: None,
        original: None,
        idempotency_key: None,
    };
    apply::open_prompt(transition, item, &input, Some(prompt.started_at), None);
    if let Some(content) = prompt.input.clone() {
        let message = UserMessage { content, timestamp: prompt.started_at, extra: Extra::new() };
        transition.append_message(MessageEntry::new(Message::User(message)));
    }
    append_outputs(transition, prompt);
    let end = PromptEnd {
        state: PromptState::Completed,
        stop_reason: PromptStop::End,
        error: None,
        incomplete: None,
        extra: Extra::new(),
    };
    transition.append_prompt_end(&prompt.prompt_id, end);
    transition.emit(EventBody::PromptCompleted(Empty {}));
    let mut receipt = queue::new_receipt(transition, item);
    receipt.prompt_id = transition.prompt_id();
    transition.receipts.push(receipt);
    transition.head.prompt = None;
    transition.head.phase = Phase::Idle;
}

/// A model response in construction: texts, then at most one call, so that the model reads the
/// outputs in their order. Side outputs belong to the call before them.
#[derive(Default)]
struct Response<'a> {
    texts: Vec<&'a str>,
    call: Option<(&'a FinishedCall, Vec<Output>)>,
}

fn append_outputs(transition: &mut Transition, prompt: &FinishedPrompt) {
    let mut open = Response::default();
    let at = prompt.started_at;
    for output in &prompt.output {
        let side_output = match output {
            FinishedOutput::Text(text) => {
                if open.call.is_some() {
                    std::mem::take(&mut open).append_to(transition, at);
                }
                open.texts.push(&text.content);
                continue;
            }
            FinishedOutput::Tool(call) => {
                if open.call.is_some() {
                    std::mem::take(&mut open).append_to(transition, at);
                }
                open.call = Some((call, Vec::new()));
                continue;
            }
            FinishedOutput::File(file) => Output::File(file_output(file)),
            FinishedOutput::Widget(widget) => Output::Widget(widget.clone()),
            FinishedOutput::Other(raw) => Output::Other(raw.clone()),
        };
        if let Some((_, side_outputs)) = &mut open.call {
            side_outputs.push(side_output);
        } else {
            std::mem::take(&mut open).append_to(transition, at);
            append_side_output(transition, side_output, None);
        }
    }
    open.append_to(transition, at);
}

impl Response<'_> {
    fn append_to(self, transition: &mut Transition, started_at: Timestamp) {
        let Self { texts, call } = self;
        if texts.is_empty() && call.is_none() {
            return;
        }
        let response_seq = transition.head.seq + 1;
        let mut content: Vec<Block> = texts.into_iter().map(Block::text).collect();
        let Some((call, side_outputs)) = call else {
            append_response(transition, content, StopReason::Stop, started_at);
            return;
        };
        // The id of this response is free for a call without one.
        let response_id = EntryId::from_seq(&transition.head.incarnation, response_seq);
        let id = call.tool_call_id.clone().unwrap_or_else(|| format!("call_{response_id}_0"));
        content.push(Block::ToolCall(ToolCall {
            id: id.clone(),
            name: call.function.clone(),
            arguments: call.input.clone(),
            thought_signature: None,
            extra: Extra::new(),
        }));
        append_response(transition, content, StopReason::ToolUse, started_at);
        let reference = CallRef { response_seq, index: 0 };
        let message = call_result(call).to_message(&id, &call.function, transition.now);
        append_result(transition, message, reference);
        for output in side_outputs {
            append_side_output(transition, output, Some(reference));
        }
    }
}

fn append_response(
    transition: &mut Transition,
    content: Vec<Block>,
    stop_reason: StopReason,
    started_at: Timestamp,
) {
    let message = AssistantMessage {
        content,
        stop_reason,
        ..turn::service_message(String::new(), transition)
    };
    let entry = transition.append_message(MessageEntry {
        started_at: Some(started_at),
        ..MessageEntry::new(Message::Assistant(message.clone()))
    });
    response::emit_text_outputs(transition, &entry, &message);
}

fn append_result(transition: &mut Transition, message: ToolResultMessage, call: CallRef) {
    let entry = transition.append_message(MessageEntry {
        call: Some(call),
        ..MessageEntry::new(Message::ToolResult(message))
    });
    emit_output(transition, &entry, Some(call));
}

fn append_side_output(transition: &mut Transition, output: Output, call: Option<CallRef>) {
    let entry =
        transition.append(EntryBody::Output(OutputEntry { output, call, extra: Extra::new() }));
    emit_output(transition, &entry, None);
}

fn emit_output(transition: &mut Transition, entry: &Arc<Entry>, call: Option<CallRef>) {
    let seq = entry.base.seq;
    transition.emit(EventBody::PromptOutput(OutputRef { seq, block: None, call }));
}

fn file_output(file: &FinishedFile) -> FileOutput {
    FileOutput {
        artifact_id: file.artifact_id.clone(),
        path: file.path.clone().unwrap_or_default(),
        mime_type: file.mime_type.clone().unwrap_or_default(),
        size: file.size.unwrap_or_default(),
        description: file.description.clone(),
        extra: Extra::new(),
    }
}

/// The result as the model reads it: a text as it is, any other value as JSON.
fn call_result(call: &FinishedCall) -> CallResult {
    let result = &call.result;
    let value = match result.kind {
        FinishedResultKind::Success => &result.output,
        FinishedResultKind::Error => &result.error,
    };
    let text = value
        .as_ref()
        .map(|value| value.read::<String>().unwrap_or_else(|_| value.text().to_owned()));
    let text = text.unwrap_or_default();
    if result.kind == FinishedResultKind::Error {
        return CallResult::error(text);
    }
    let is_text = |value: &RawJson| value.read::<String>().is_ok();
    let structured = value.clone().filter(|value| !is_text(value));
    CallResult { content: vec![Block::text(text)], structured, ..CallResult::default() }
}
