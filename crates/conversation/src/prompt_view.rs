//! The client's view of a prompt: one input and many outputs, built from the entries of its span.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;

use crate::content::{Block, Content, joined_text};
use crate::entry::{
    Entry, EntryBody, MessageEntry, Output, OutputEntry, PromptEntry, PromptError, PromptState,
    PromptStop, Source,
};
use crate::head::{Head, State};
use crate::message::{AssistantMessage, IncompleteDetails, Message, Rejection, ToolResultMessage};
use crate::phase::Phase;
use crate::request::CallRef;
use crate::usage::Usage;
use turnwheel_json::raw::RawJson;
use turnwheel_json::text::strip_code_fence;
use turnwheel_platform::clock::{Timestamp, iso, iso_option};
use turnwheel_platform::ids::{ArtifactId, ConversationId, PromptId, RequestId, UserId};

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptView {
    pub id: PromptId,
    pub prompt_id: PromptId,
    pub conversation_id: ConversationId,
    pub user_id: UserId,
    pub source: Source,
    /// As requested: a model id or a tier.
    pub model: String,
    /// Id of the model that sent the last response; absent before the first.
    pub resolved_model: Option<String>,
    pub visible: bool,
    pub state: PromptState,
    /// In lists: false if the prompt is on a branch that the conversation has left.
    pub on_path: Option<bool>,
    /// Undecided approval requests of this prompt.
    pub pending_approval_ids: Vec<RequestId>,
    pub stop_reason: Option<PromptStop>,
    pub input: Option<Content>,
    /// The text and the files of the input as sent, if an extension changed it.
    pub original: Option<Content>,
    pub output: Vec<PromptOutput>,
    /// Newest event of the conversation when the prompt was read.
    pub last_event_id: u64,
    pub usage: Usage,
    /// The last model response as JSON, if the agent has a response schema and the text is valid.
    pub result: Option<RawJson>,
    pub error: Option<PromptError>,
    /// Why the last response is incomplete. Absent: it is complete.
    pub incomplete: Option<IncompleteDetails>,
    /// Facts that need attention although the prompt goes on, such as instructions that fill the window.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Set while a failed model call waits for its retry.
    pub retry: Option<RetryView>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryView {
    /// From 1: the first retry is the second attempt.
    pub attempt: u32,
    /// Time of the retry.
    #[serde(with = "iso")]
    pub at: Timestamp,
    /// Error of the previous attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl RetryView {
    pub fn from_head(head: &Head) -> Option<Self> {
        match head.phase {
            Phase::Model { attempt, not_before: Some(at) } if attempt > 1 => {
                Some(Self { attempt: attempt - 1, at, error: None })
            }
            Phase::Model { .. }
            | Phase::Idle
            | Phase::Calls { .. }
            | Phase::Summary { .. }
            | Phase::Deleted => None,
        }
    }
}

/// One output of a prompt, in source order. A pending result is replaced in place.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum PromptOutput {
    Text {
        id: String,
        content: String,
        #[serde(with = "iso")]
        started_at: Timestamp,
        #[serde(with = "iso")]
        ended_at: Timestamp,
    },
    Tool {
        id: String,
        tool_call_id: String,
        function: String,
        input: RawJson,
        result: OutputResult,
        #[serde(with = "iso")]
        started_at: Timestamp,
        #[serde(with = "iso_option", skip_serializing_if = "Option::is_none")]
        ended_at: Option<Timestamp>,
    },
    File {
        id: String,
        artifact_id: ArtifactId,
        path: String,
        mime_type: String,
        size: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<String>,
    },
    Widget {
        id: String,
        widget: String,
        data: RawJson,
        fallback: String,
    },
    #[serde(untagged)]
    Other(RawJson),
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum OutputResult {
    Success {
        output: RawJson,
    },
    Error {
        error: RawJson,
        /// Present only if an approver rejected the call.
        #[serde(skip_serializing_if = "Option::is_none")]
        rejected: Option<Rejection>,
    },
    Pending {
        reason: String,
    },
}

/// The origin of an output, so that an event can reference it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputOrigin {
    Text { seq: u64, block: usize },
    Call(CallRef),
    SideOutput { seq: u64 },
}

impl PromptView {
    /// Sets `result` from the last text, for an agent with a response schema. It stays absent while
    /// the prompt runs, unless the prompt completed normally, and if the text is not valid.
    pub fn set_result(&mut self, is_valid: impl Fn(&str) -> bool) {
        let is_completed =
            self.state == PromptState::Completed && self.stop_reason == Some(PromptStop::End);
        let last = self.output.iter().rev().find_map(|output| match output {
            PromptOutput::Text { content, .. } => Some(content),
            PromptOutput::Tool { .. }
            | PromptOutput::File { .. }
            | PromptOutput::Widget { .. }
            | PromptOutput::Other(_) => None,
        });
        self.result = last
            .filter(|text| is_completed && is_valid(text))
            .and_then(|text| RawJson::from_text(strip_code_fence(text)).ok());
    }
}

/// Builds the view of a prompt from `entries`, which hold at least its span. `None` if the prompt
/// is not among them.
pub fn build_prompt_view(id: &PromptId, head: &Head, entries: &[Arc<Entry>]) -> Option<PromptView> {
    let mut view: Option<PromptView> = None;
    let mut has_no_input = false;
    for entry in entries.iter().filter(|entry| entry.base.prompt_id.as_ref() == Some(id)) {
        match (&entry.body, &mut view) {
            (EntryBody::Prompt(prompt), _) => {
                has_no_input = prompt.has_no_input;
                view = Some(new_prompt_view(id, prompt, head));
            }
            (EntryBody::PromptEnd(end), Some(view)) => {
                view.state = end.state;
                view.stop_reason = Some(end.stop_reason);
                view.error = end.error.as_deref().cloned();
                view.incomplete = end.incomplete.as_deref().cloned();
            }
            (EntryBody::Message(MessageEntry { message: Message::User(user), .. }), Some(view))
                if !has_no_input =>
            {
                view.input.get_or_insert_with(|| user.content.clone());
            }
            (
                EntryBody::Message(MessageEntry { message: Message::Assistant(response), .. }),
                Some(view),
            ) => {
                view.usage += *response.usage;
                if response.is_from_model() {
                    view.resolved_model = Some(response.model.clone());
                }
            }
            (
                EntryBody::Message(MessageEntry { message: Message::ToolResult(result), .. }),
                Some(view),
            ) => view.usage += result.usage(),
            (EntryBody::Compaction(compaction), Some(view)) => {
                view.usage += compaction.usage.as_deref().copied().unwrap_or_default();
            }
            (EntryBody::FailedSummary(failed), Some(view)) => view.usage += *failed.usage,
            _ => {}
        }
    }
    let mut view = view?;
    if view.state == PromptState::Running && head.state() == State::WaitingForApproval {
        view.state = PromptState::WaitingForApproval;
    }
    if view.state == PromptState::Running {
        let of_this = head.prompt.as_ref().filter(|run| run.id == *id);
        view.retry = of_this.and_then(|_| RetryView::from_head(head));
        if let Some(retry) = &mut view.retry {
            retry.error = last_error_message(id, entries);
        }
    }
    view.output = collect_outputs(id, entries).into_iter().map(|(_, output)| output).collect();
    Some(view)
}

/// The view of a prompt that has no entry but its first.
fn new_prompt_view(id: &PromptId, prompt: &PromptEntry, head: &Head) -> PromptView {
    PromptView {
        id: id.clone(),
        prompt_id: id.clone(),
        conversation_id: head.conversation_id.clone(),
        user_id: prompt.user.clone(),
        source: prompt.source,
        resolved_model: None,
        pending_approval_ids: pending_request_ids(head, id),
        model: prompt.model.clone(),
        visible: prompt.visible,
        state: PromptState::Running,
        on_path: None,
        stop_reason: None,
        input: None,
        original: prompt.original.clone(),
        output: Vec::new(),
        last_event_id: head.event_seq,
        usage: Usage::default(),
        result: None,
        error: None,
        incomplete: None,
        notes: compaction_notes(head, id),
        retry: None,
    }
}

fn compaction_notes(head: &Head, id: &PromptId) -> Vec<String> {
    let note = head.compaction_note.iter().filter(|note| note.prompt_id.as_ref() == Some(id));
    note.map(|note| note.text.clone()).collect()
}

fn pending_request_ids(head: &Head, id: &PromptId) -> Vec<RequestId> {
    let open = head.requests.iter().filter(|request| &request.prompt_id == id);
    open.map(|request| request.id.clone()).collect()
}

/// Error of the prompt's newest failed model call.
fn last_error_message(id: &PromptId, entries: &[Arc<Entry>]) -> Option<String> {
    let of_prompt = entries.iter().rev().filter(|entry| entry.base.prompt_id.as_ref() == Some(id));
    let mut responses =
        of_prompt.filter_map(|entry| entry.body.message().and_then(Message::as_assistant));
    responses.find_map(|response| response.error_message.clone())
}

/// The prompt's outputs, each with its origin.
#[expect(clippy::wildcard_enum_match_arm, reason = "most kinds of entry have no output")]
pub fn collect_outputs(id: &PromptId, entries: &[Arc<Entry>]) -> Vec<(OutputOrigin, PromptOutput)> {
    let mut builder = OutputBuilder::default();
    for entry in entries.iter().filter(|entry| entry.base.prompt_id.as_ref() == Some(id)) {
        match &entry.body {
            // A retry replaces this response.
            EntryBody::Message(MessageEntry { is_retried: true, .. }) => {}
            EntryBody::Message(MessageEntry {
                message: Message::Assistant(response),
                started_at,
                ..
            }) => {
                builder.add_response(entry, response, started_at.unwrap_or(entry.base.timestamp));
            }
            EntryBody::Message(MessageEntry {
                message: Message::ToolResult(result),
                call: Some(call),
                ..
            }) => {
                builder.set_final_result(*call, result, entry.base.timestamp);
            }
            EntryBody::ToolReturned(returned) => {
                builder.set_final_result(returned.call, &returned.message, entry.base.timestamp);
            }
            EntryBody::ToolStarted(started) => {
                builder.mark_started(started.call, entry.base.timestamp);
            }
            EntryBody::Request(request) => {
                if let Some(call) = request.request.call {
                    builder.set_pending(call, &request.request.reason, entry.base.timestamp);
                }
            }
            EntryBody::Output(output) => builder.add_side_output(entry.base.seq, output),
            _ => {}
        }
    }
    builder.finish()
}

#[derive(Default)]
struct OutputBuilder {
    outputs: Vec<(OutputOrigin, Option<PromptOutput>)>,
    /// Requested calls, with the position of their output.
    calls: HashMap<CallRef, CallOutput>,
}

struct CallOutput {
    position: usize,
    id: String,
    function: String,
    input: RawJson,
    started_at: Option<Timestamp>,
}

impl OutputBuilder {
    fn add_response(&mut self, entry: &Entry, response: &AssistantMessage, started_at: Timestamp) {
        let mut index = 0;
        for (block_number, block) in response.content.iter().enumerate() {
            match block {
                Block::Text(text) if text.text.trim().is_empty() => {}
                Block::Text(text) => self.outputs.push((
                    OutputOrigin::Text { seq: entry.base.seq, block: block_number },
                    Some(PromptOutput::Text {
                        id: format!("{}-{block_number}", entry.base.entry_id),
                        content: text.text.clone(),
                        started_at,
                        ended_at: entry.base.timestamp,
                    }),
                )),
                Block::ToolCall(call) => {
                    let reference = CallRef { response_seq: entry.base.seq, index };
                    index += 1;
                    let called = CallOutput {
                        position: self.outputs.len(),
                        id: call.id.clone(),
                        function: call.name.clone(),
                        input: call.arguments.clone(),
                        started_at: None,
                    };
                    self.calls.insert(reference, called);
                    self.outputs.push((OutputOrigin::Call(reference), None));
                }
                Block::Thinking(_) | Block::Image(_) | Block::File(_) | Block::Other(_) => {}
            }
        }
    }

    fn mark_started(&mut self, call: CallRef, at: Timestamp) {
        if let Some(called) = self.calls.get_mut(&call) {
            called.started_at.get_or_insert(at);
        }
    }

    fn set_pending(&mut self, call: CallRef, reason: &str, at: Timestamp) {
        self.set_tool_output(call, OutputResult::Pending { reason: reason.to_owned() }, at, None);
    }

    /// Sets the final result. If a buffered result has already set it, its message on the path
    /// changes nothing.
    fn set_final_result(&mut self, call: CallRef, result: &ToolResultMessage, at: Timestamp) {
        let slot = self.calls.get(&call).and_then(|called| self.outputs.get(called.position));
        if matches!(slot, Some((_, Some(PromptOutput::Tool { ended_at: Some(_), .. })))) {
            return;
        }
        self.set_tool_output(call, to_output_result(result), at, Some(at));
    }

    fn set_tool_output(
        &mut self,
        call: CallRef,
        result: OutputResult,
        at: Timestamp,
        ended_at: Option<Timestamp>,
    ) {
        let Some(called) = self.calls.get_mut(&call) else { return };
        let started_at = *called.started_at.get_or_insert(at);
        let output = PromptOutput::Tool {
            id: called.id.clone(),
            tool_call_id: called.id.clone(),
            function: called.function.clone(),
            input: called.input.clone(),
            result,
            started_at,
            ended_at,
        };
        if let Some(slot) = self.outputs.get_mut(called.position) {
            slot.1 = Some(output);
        }
    }

    fn add_side_output(&mut self, seq: u64, side: &OutputEntry) {
        let id = format!("out-{seq}");
        let output = match &side.output {
            Output::File(file) => PromptOutput::File {
                id,
                artifact_id: file.artifact_id.clone(),
                path: file.path.clone(),
                mime_type: file.mime_type.clone(),
                size: file.size,
                description: file.description.clone(),
            },
            Output::Widget(widget) => PromptOutput::Widget {
                id,
                widget: widget.widget.clone(),
                data: widget.data.clone(),
                fallback: widget.fallback.clone(),
            },
            Output::Other(raw) => PromptOutput::Other(raw.clone()),
        };
        self.insert_side_output(seq, side.call, output);
    }

    /// Inserts a side output after the result of its tool. Later calls of the batch already have
    /// positions, and may have results. Without a known call the output comes before the first
    /// output without a result.
    fn insert_side_output(&mut self, seq: u64, call: Option<CallRef>, output: PromptOutput) {
        let is_side = |slot: &(OutputOrigin, _)| matches!(slot.0, OutputOrigin::SideOutput { .. });
        let at = match call.and_then(|call| self.calls.get(&call)) {
            Some(called) => {
                let after = called.position + 1;
                after + self.outputs.iter().skip(after).take_while(|slot| is_side(slot)).count()
            }
            None => self
                .outputs
                .iter()
                .rposition(|(_, output)| output.is_some())
                .map_or(self.outputs.len(), |last| last + 1),
        };
        self.outputs.insert(at, (OutputOrigin::SideOutput { seq }, Some(output)));
        for called in self.calls.values_mut() {
            if called.position >= at {
                called.position += 1;
            }
        }
    }

    fn finish(self) -> Vec<(OutputOrigin, PromptOutput)> {
        self.outputs
            .into_iter()
            .filter_map(|(origin, output)| output.map(|output| (origin, output)))
            .collect()
    }
}

/// The result for programs: the tool's JSON if it returned JSON, otherwise its text.
fn to_output_result(result: &ToolResultMessage) -> OutputResult {
    let text = || RawJson::from_value(&joined_text(&result.content));
    if result.is_error || result.rejected.is_some() {
        return OutputResult::Error { error: text(), rejected: result.rejected.clone() };
    }
    OutputResult::Success { output: result.structured_content.clone().unwrap_or_else(text) }
}
