//! Projection: from the path to the model's input. Two stages, as in the source projects: collect
//! the messages of the path, which extensions may change, and convert them to a well-formed list
//! (invariant 8).

pub mod render;
mod results;

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::json;

use crate::content::{Block, Content, ToolCall, joined_text};
use crate::entry::{Compaction, Entry, EntryBody, FileOutput, MessageEntry, Output};
use crate::input_repair::InputRepairs;
use crate::message::{
    AssistantMessage, BranchSummaryMessage, CompactionSummaryMessage, Message, StopReason,
    ToolResultMessage,
};
use crate::request::CallRef;
use crate::unknown_members::Extra;
use crate::usage::RecordedUsage;
use turnwheel_platform::clock::Timestamp;

/// Encodes the text of error results as a JSON string, as the prompt loop requires (PR-05).
pub fn encode_errors_as_json(messages: &mut [Cow<'_, Message>]) {
    for message in messages {
        let Message::ToolResult(result) = message.as_ref() else { continue };
        if !result.is_error {
            continue;
        }
        let mut result = result.clone();
        let text = json!(joined_text(&result.content)).to_string();
        result.content.retain(|block| !matches!(block, Block::Text(_)));
        result.content.insert(0, Block::text(text));
        *message = Cow::Owned(Message::ToolResult(result));
    }
}

/// Text that replaces a missing result.
pub(crate) const NO_RESULT: &str = "No result provided";

/// The messages of the path. After a compaction: its summary, the entries that it kept, and all
/// later ones.
pub fn project_messages(path: &[Arc<Entry>]) -> Vec<Cow<'_, Message>> {
    let entries = projected_entries(path);
    let Some((seq, summary)) = last_summary(entries) else { return entry_messages(entries) };
    let repairs = InputRepairs::of(entries);
    let mut messages = vec![repairs.apply(seq, Cow::Owned(summary))];
    messages.extend(repaired_messages(entries, &repairs));
    messages
}

/// The entries of which the model input is made, in order. After a compaction: the entries that it
/// kept, the compaction itself, and all later ones.
pub(crate) fn projected_entries(path: &[Arc<Entry>]) -> &[Arc<Entry>] {
    let Some((at, compaction)) = find_last_compaction(path) else { return path };
    let is_first = |entry: &Arc<Entry>| entry.base.entry_id == compaction.first_kept_entry_id;
    let first = path.iter().take(at).position(is_first).unwrap_or(at);
    path.get(first..).unwrap_or_default()
}

/// The summary of the newest compaction as a message, and the number of its entry.
pub(crate) fn last_summary(path: &[Arc<Entry>]) -> Option<(u64, Message)> {
    let (at, compaction) = find_last_compaction(path)?;
    let base = &path.get(at)?.base;
    let summary = Message::CompactionSummary(CompactionSummaryMessage {
        summary: compaction.summary.clone(),
        tokens_before: compaction.tokens_before,
        timestamp: base.timestamp,
        extra: Extra::new(),
    });
    Some((base.seq, summary))
}

/// The newest compaction of a path and its index.
pub(crate) fn find_last_compaction(path: &[Arc<Entry>]) -> Option<(usize, &Compaction)> {
    path.iter().enumerate().rev().find_map(|(at, entry)| Some((at, entry.body.compaction()?)))
}

/// The messages of the entries, in order, whatever their role. Files that tools sent to the user
/// become a sentence after the results of their batch. Parts that the model service refused are left
/// out. Stored messages are borrowed, because
/// copying the history would cost too much.
pub(crate) fn entry_messages<'a>(
    path: impl IntoIterator<Item = &'a Arc<Entry>>,
) -> Vec<Cow<'a, Message>> {
    let path: Vec<&Arc<Entry>> = path.into_iter().collect();
    let repairs = InputRepairs::of(path.iter().copied());
    repaired_messages(path, &repairs)
}

/// As [`entry_messages`], for a part of a path whose repairs may follow it.
pub fn repaired_messages<'a>(
    entries: impl IntoIterator<Item = &'a Arc<Entry>>,
    repairs: &InputRepairs,
) -> Vec<Cow<'a, Message>> {
    let entries = entries.into_iter();
    let mut messages = Vec::with_capacity(entries.size_hint().0);
    let mut files: Vec<Message> = Vec::new();
    let mut pending: Vec<(CallRef, &str)> = Vec::new();
    for entry in entries {
        match &entry.body {
            EntryBody::Message(MessageEntry { message, call, .. }) => {
                if !matches!(message, Message::ToolResult(_)) {
                    messages.extend(files.drain(..).map(Cow::Owned));
                }
                if let Message::ToolResult(_) = message {
                    // A result without a call reference comes from an import and closes all of
                    // them.
                    pending.retain(|(open, _)| call.is_some_and(|closed| closed != *open));
                } else {
                    close_pending_approvals(&mut messages, &mut pending, entry.base.timestamp);
                }
                messages.push(repairs.apply(entry.base.seq, Cow::Borrowed(message)));
            }
            EntryBody::CustomMessage(_) | EntryBody::BranchSummary(_) => {
                messages.extend(files.drain(..).map(Cow::Owned));
                close_pending_approvals(&mut messages, &mut pending, entry.base.timestamp);
                let message = synthetic_message(entry).map(Cow::Owned);
                messages.extend(message.map(|it| repairs.apply(entry.base.seq, it)));
            }
            EntryBody::Output(output) => match &output.output {
                Output::File(file) => files.push(file_message(file, entry.base.timestamp)),
                Output::Widget(_) | Output::Other(_) => {}
            },
            EntryBody::Request(request) => {
                pending.extend(
                    request.request.call.map(|call| (call, request.request.reason.as_str())),
                );
            }
            EntryBody::ThinkingLevelChange(_)
            | EntryBody::ModelChange(_)
            | EntryBody::Compaction(_)
            | EntryBody::Custom(_)
            | EntryBody::Label(_)
            | EntryBody::SessionInfo(_)
            | EntryBody::Prompt(_)
            | EntryBody::PromptEnd(_)
            | EntryBody::ToolStarted(_)
            | EntryBody::ToolReturned(_)
            | EntryBody::Decision(_)
            | EntryBody::Protocol(_)
            | EntryBody::LostCall(_)
            | EntryBody::FailedSummary(_)
            | EntryBody::Frame(_)
            | EntryBody::Other(_) => {}
        }
    }
    messages.extend(files.into_iter().map(Cow::Owned));
    repairs.limit_images(&mut messages);
    messages
}

/// Converts an entry that holds no message. A branch without a summary gives none.
pub fn synthetic_message(entry: &Entry) -> Option<Message> {
    let timestamp = entry.base.timestamp;
    if let EntryBody::CustomMessage(custom) = &entry.body {
        return Some(Message::Custom(custom.to_message(timestamp)));
    }
    let EntryBody::BranchSummary(branch) = &entry.body else { return None };
    (!branch.summary.is_empty()).then(|| {
        Message::BranchSummary(BranchSummaryMessage {
            summary: branch.summary.clone(),
            from_id: branch.from_id.to_string(),
            timestamp,
            extra: Extra::new(),
        })
    })
}

/// Adds a pending result for each call whose request was undecided when the conversation continued.
fn close_pending_approvals(
    messages: &mut Vec<Cow<'_, Message>>,
    pending: &mut Vec<(CallRef, &str)>,
    at: Timestamp,
) {
    for (call, reason) in pending.drain(..) {
        let last = messages.iter().rev().find_map(|message| message.as_assistant());
        let Some(open) = last.and_then(|response| response.tool_calls().nth(call.index)).cloned()
        else {
            continue;
        };
        let text = json!({"pending": true, "reason": reason}).to_string();
        messages.push(Cow::Owned(tool_result(&open, text, false, at)));
    }
}

fn file_message(file: &FileOutput, at: Timestamp) -> Message {
    let described = file.description.as_ref().map(|text| format!(" — {text}")).unwrap_or_default();
    Message::Assistant(AssistantMessage {
        content: vec![Block::text(format!("[File sent to user: \"{}\"{described}]", file.path))],
        api: String::new(),
        provider: String::new(),
        model: String::new(),
        usage: RecordedUsage::default(),
        stop_reason: StopReason::Stop,
        error_message: None,
        timestamp: at,
        extra: Extra::new(),
    })
}

fn tool_result(call: &ToolCall, text: String, is_error: bool, timestamp: Timestamp) -> Message {
    Message::ToolResult(ToolResultMessage {
        tool_call_id: call.id.clone(),
        tool_name: call.name.clone(),
        content: vec![Block::text(text)],
        details: None,
        structured_content: None,
        usage: None,
        is_error,
        terminate: false,
        rejected: None,
        timestamp,
        workspace: std::collections::BTreeMap::new(),
        extra: Extra::new(),
    })
}

/// Converts to provider messages. Keeps user, assistant and tool result messages. Maps summaries,
/// shell output and custom messages to the user role. Drops failed responses and orphaned results.
/// Gives every call exactly one result, directly after its response: a result that other messages
/// separate from its call is moved there.
pub fn to_model_messages(messages: Vec<Cow<'_, Message>>) -> Vec<Cow<'_, Message>> {
    let mut results = results::find_results(&messages);
    let mut messages: Vec<Option<Cow<'_, Message>>> = messages.into_iter().map(Some).collect();
    let mut converted = Vec::with_capacity(messages.len());
    for at in 0..messages.len() {
        // The result of a call is taken with its response, which may follow.
        let is_result =
            |message: &mut Cow<'_, Message>| matches!(**message, Message::ToolResult(_));
        let next = messages.get_mut(at).and_then(|it| it.take_if(|message| !is_result(message)));
        let Some(message) = next else { continue };
        match message.as_ref() {
            Message::User(user) => {
                let is_empty =
                    matches!(&user.content, Content::Blocks(blocks) if blocks.is_empty());
                if !is_empty {
                    converted.push(message);
                }
            }
            Message::Assistant(response) if response.is_failed() => {}
            Message::Assistant(response) => {
                let results = results.remove(&at).unwrap_or_default();
                let missing: Vec<Message> = response
                    .tool_calls()
                    .zip(&results)
                    .filter(|(_, result)| result.is_none())
                    .map(|(call, _)| tool_result(call, NO_RESULT.to_owned(), true, Timestamp(0)))
                    .collect();
                if !response.content.is_empty() {
                    converted.push(message);
                }
                let mut found: Vec<usize> = results.into_iter().flatten().collect();
                found.sort_unstable();
                let found = found.into_iter().filter_map(|at| messages.get_mut(at)?.take());
                converted.extend(found);
                converted.extend(missing.into_iter().map(Cow::Owned));
            }
            Message::ToolResult(_)
            | Message::BashExecution(_)
            | Message::Custom(_)
            | Message::BranchSummary(_)
            | Message::CompactionSummary(_)
            | Message::Other(_) => {
                converted.extend(render::to_user_message(&message).map(Cow::Owned));
            }
        }
    }
    converted
}
