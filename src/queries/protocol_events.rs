//! Events and history of a conversation in the form of the streaming text protocol. They are a view
//! of the same events and entries, and exist for every conversation.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::agent::content::Block;
use crate::agent::entry::{Entry, EntryBody, PromptState};
use crate::agent::event::{AssistantMessageEvent, EventKind};
use crate::agent::head::Head;
use crate::agent::message::{AssistantMessage, Message, ToolResultMessage};
use crate::agent::path::path_to_leaf;
use crate::agent::phase::Phase;
use crate::clock::Timestamp;
use crate::commands::contract::CommandError;
use crate::model::protocol::{encode_call, encode_results};
use crate::queries::conversation::page_start;
use crate::queries::event_stream::{EventMessage, EventPayload, StreamEvent};
use crate::queries::load;
use crate::services::Services;

const INTERRUPTED: &str = "Task interrupted by user";

/// When texts are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TextUnit {
    /// Each piece as the model writes it.
    Token,
    /// Each text when the response is complete.
    #[default]
    Event,
}

/// An event of the protocol. `members` are its members besides `type` and `timestamp`.
pub(crate) fn event(kind: &str, at: Timestamp, members: Value) -> Value {
    let mut event = json!({"type": kind});
    if let (Value::Object(event), Value::Object(members)) = (&mut event, members) {
        event.extend(members);
        event.insert("timestamp".to_owned(), seconds(at));
    }
    event
}

fn text_event(kind: &str, at: Timestamp, content: &str) -> Value {
    event(kind, at, json!({"content": content}))
}

/// Seconds since 1970, with milliseconds.
#[expect(clippy::cast_precision_loss, reason = "milliseconds have less than 53 bits")]
fn seconds(at: Timestamp) -> Value {
    json!(at.0 as f64 / 1_000.0)
}

/// Events of a response, without the pieces that were sent already: by index of the block, the number
/// of bytes of a text, or 1 for a call.
fn response_events(
    response: &AssistantMessage,
    at: Timestamp,
    sent: &BTreeMap<usize, usize>,
) -> Vec<Value> {
    let mut events = Vec::new();
    for (index, block) in response.content.iter().enumerate() {
        let sent = sent.get(&index).copied().unwrap_or_default();
        match block {
            Block::Thinking(thinking) => {
                push_rest(&mut events, ("think", &thinking.thinking), at, sent);
            }
            Block::Text(text) => push_rest(&mut events, ("respond", &text.text), at, sent),
            Block::ToolCall(call) if sent == 0 => {
                events.push(text_event("call", at, &encode_call(call)));
            }
            Block::ToolCall(_) | Block::Image(_) | Block::File(_) | Block::Other(_) => {}
        }
    }
    events
}

/// Adds the part of a text that was not sent.
fn push_rest(events: &mut Vec<Value>, (kind, text): (&str, &str), at: Timestamp, sent: usize) {
    if let Some(rest) = text.get(sent..).filter(|rest| !rest.is_empty()) {
        events.push(text_event(kind, at, rest));
    }
}

/// The event `result` of a batch. `None`: there are no results.
fn result_event(results: &[&ToolResultMessage], at: Timestamp) -> Option<Value> {
    if results.is_empty() {
        return None;
    }
    let failures = results.iter().filter(|result| result.is_error).count();
    let payload = json!({
        "tools_executed": results.len(), "success_count": results.len() - failures,
        "failure_count": failures,
    });
    Some(event("result", at, json!({"payload": payload, "content": encode_results(results)})))
}

/// Converts the events of one stream.
#[derive(Debug)]
pub(crate) struct ProtocolEvents {
    unit: TextUnit,
    /// Sent parts of the current response, by index of the block, as in [`response_events`].
    sent: BTreeMap<usize, usize>,
    /// Tokens of the prompt: input and output. `None`: it started before the stream.
    total: Option<(u64, u64)>,
}

impl ProtocolEvents {
    pub(crate) fn new(unit: TextUnit) -> Self {
        Self { unit, sent: BTreeMap::new(), total: None }
    }

    /// The events of the protocol that an event stands for, if any.
    pub(crate) fn convert(&mut self, source: &StreamEvent) -> Vec<Value> {
        let at = source.at;
        match &source.payload {
            EventPayload::MessageStart { .. } => {
                self.sent.clear();
                Vec::new()
            }
            EventPayload::MessageUpdate { event, .. } => {
                self.piece(event, at).into_iter().collect()
            }
            EventPayload::MessageReset { .. } => {
                let sent = std::mem::take(&mut self.sent);
                if sent.is_empty() { Vec::new() } else { vec![event("reset", at, json!({}))] }
            }
            EventPayload::MessageEnd { message, .. } => self.message(message.as_ref(), at),
            EventPayload::TurnEnd { tool_results, .. } => {
                let results = tool_results.iter().flatten().filter_map(EventMessage::to_message);
                let results: Vec<Message> = results.collect();
                result_event(&tool_results_of(&results), at).into_iter().collect()
            }
            EventPayload::Other { kind, members } => self.other(kind, &members.to_value(), at),
            EventPayload::AgentStart
            | EventPayload::AgentEnd { .. }
            | EventPayload::AgentSettled
            | EventPayload::TurnStart
            | EventPayload::ToolExecutionStart { .. }
            | EventPayload::ToolExecutionUpdate(_)
            | EventPayload::ToolExecutionEnd { .. }
            | EventPayload::ApprovalRequested { .. }
            | EventPayload::ApprovalSettled { .. } => Vec::new(),
        }
    }

    /// The next piece of a response.
    fn piece(&mut self, piece: &AssistantMessageEvent, at: Timestamp) -> Option<Value> {
        if self.unit == TextUnit::Event {
            return None;
        }
        let (index, bytes, event) = match piece {
            AssistantMessageEvent::TextDelta { content_index, delta } => {
                (*content_index, delta.len(), text_event("respond", at, delta))
            }
            AssistantMessageEvent::ThinkingDelta { content_index, delta } => {
                (*content_index, delta.len(), text_event("think", at, delta))
            }
            AssistantMessageEvent::ToolcallEnd { content_index, tool_call } => {
                (*content_index, 1, text_event("call", at, &encode_call(&tool_call.call)))
            }
            AssistantMessageEvent::TextStart { .. }
            | AssistantMessageEvent::TextEnd { .. }
            | AssistantMessageEvent::ThinkingStart { .. }
            | AssistantMessageEvent::ThinkingEnd { .. }
            | AssistantMessageEvent::ToolcallStart { .. }
            | AssistantMessageEvent::ToolcallDelta { .. } => return None,
        };
        *self.sent.entry(index).or_default() += bytes;
        Some(event)
    }

    fn message(&mut self, message: Option<&EventMessage>, at: Timestamp) -> Vec<Value> {
        match message.and_then(EventMessage::to_message) {
            Some(Message::User(user)) => vec![text_event("user", at, &user.content.joined_text())],
            Some(Message::Assistant(response)) => {
                let mut events = response_events(&response, at, &self.sent);
                self.sent.clear();
                if response.tool_calls().next().is_some() {
                    events.push(event("execute", at, json!({})));
                }
                events.push(self.metric(&response, at));
                events
            }
            Some(
                Message::ToolResult(_)
                | Message::BashExecution(_)
                | Message::Custom(_)
                | Message::BranchSummary(_)
                | Message::CompactionSummary(_)
                | Message::Other(_),
            )
            | None => Vec::new(),
        }
    }

    /// Tokens of a response, and of its prompt so far.
    fn metric(&mut self, response: &AssistantMessage, at: Timestamp) -> Value {
        let usage = &response.usage;
        let input = usage.input + usage.cache_read + usage.cache_write;
        let step = json!({"input": input, "output": usage.output});
        let Some((total_input, total_output)) = &mut self.total else {
            return event("metric", at, json!({"step": step}));
        };
        *total_input += input;
        *total_output += usage.output;
        let total = json!({"input": total_input, "output": total_output});
        event("metric", at, json!({"step": step, "total": total}))
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the protocol has no other events")]
    fn other(&mut self, kind: &EventKind, members: &Value, at: Timestamp) -> Vec<Value> {
        match kind {
            EventKind::PromptCreated => {
                self.total = Some((0, 0));
                Vec::new()
            }
            EventKind::MessageSnapshot => self.snapshot(members, at),
            EventKind::PromptCompleted if text_member(members, "state") == Some("aborted") => {
                vec![text_event("interrupt", at, INTERRUPTED)]
            }
            EventKind::PromptCompleted => vec![event("end", at, json!({}))],
            EventKind::PromptError => {
                let text = members.pointer("/error/message").and_then(Value::as_str);
                vec![text_event("error", at, text.unwrap_or_default())]
            }
            _ => Vec::new(),
        }
    }

    /// The content of a response so far, for a reader that has missed pieces.
    fn snapshot(&mut self, members: &Value, at: Timestamp) -> Vec<Value> {
        if self.unit == TextUnit::Event {
            return Vec::new();
        }
        let mut events = Vec::new();
        let content = members.get("content").and_then(Value::as_array);
        for (index, block) in content.into_iter().flatten().enumerate() {
            let (kind, text) = match text_member(block, "type") {
                Some("text") => ("respond", text_member(block, "text")),
                Some("thinking") => ("think", text_member(block, "thinking")),
                _ => continue,
            };
            let text = text.unwrap_or_default();
            let sent = self.sent.entry(index).or_default();
            push_rest(&mut events, (kind, text), at, *sent);
            *sent = (*sent).max(text.len());
        }
        events
    }
}

fn text_member<'v>(value: &'v Value, name: &str) -> Option<&'v str> {
    value.get(name).and_then(Value::as_str)
}

fn tool_results_of(messages: &[Message]) -> Vec<&ToolResultMessage> {
    let results = messages.iter().filter_map(|message| {
        if let Message::ToolResult(result) = message { Some(result) } else { None }
    });
    results.collect()
}

/// A page of the history: the stored events of up to `limit` messages on the path to the leaf, after
/// the entry `after`. The results of one response count as one message. Returns the continuation.
///
/// # Errors
/// The entry `after` is not on the path: the leaf has moved.
pub(crate) async fn read_history(
    services: &Services,
    head: &Head,
    after: Option<&str>,
    limit: usize,
) -> Result<(Vec<Value>, Option<String>), CommandError> {
    let entries = load::all_entries(services, head).await?;
    let path = path_to_leaf(&entries, head.leaf_id.as_ref());
    let start = page_start(&path, after)?;
    let mut rest = path.iter().skip(start).map(AsRef::as_ref).peekable();
    // Results are stored together, once all calls of the response have one.
    let is_batch_open = matches!(head.phase, Phase::Calls { .. });
    let (mut items, mut last, mut groups) = (Vec::new(), None, 0);
    while groups < limit
        && let Some(entry) = rest.next()
    {
        let mut results: Vec<&ToolResultMessage> = result_of(entry).into_iter().collect();
        let mut newest = entry;
        while !results.is_empty()
            && let Some(next) = rest.next_if(|next| is_in_batch(next))
        {
            results.extend(result_of(next));
            newest = next;
        }
        if !results.is_empty() && is_batch_open && rest.peek().is_none() {
            break;
        }
        let events = if results.is_empty() {
            stored_events(entry)
        } else {
            result_event(&results, newest.base.timestamp).into_iter().collect()
        };
        groups += usize::from(!events.is_empty());
        items.extend(events);
        last = Some(newest.base.entry_id.to_string());
    }
    let has_more = rest.peek().is_some();
    Ok((items, last.filter(|_| has_more)))
}

/// True for results, and for entries that may be between the results of a response.
fn is_in_batch(entry: &Entry) -> bool {
    if let EntryBody::PromptEnd(_) = &entry.body {
        return false;
    }
    entry.body.message().is_none_or(|message| matches!(message, Message::ToolResult(_)))
}

fn result_of(entry: &Entry) -> Option<&ToolResultMessage> {
    if let Some(Message::ToolResult(result)) = entry.body.message() { Some(result) } else { None }
}

/// The events of an entry that is no result.
#[expect(clippy::wildcard_enum_match_arm, reason = "the protocol stores no other events")]
fn stored_events(entry: &Entry) -> Vec<Value> {
    let at = entry.base.timestamp;
    match &entry.body {
        EntryBody::Message(stored) => match &stored.message {
            Message::User(user) => vec![text_event("user", at, &user.content.joined_text())],
            Message::Assistant(response) => response_events(response, at, &BTreeMap::new()),
            _ => Vec::new(),
        },
        EntryBody::PromptEnd(end) if end.state == PromptState::Aborted => {
            vec![text_event("cancelled", at, INTERRUPTED)]
        }
        _ => Vec::new(),
    }
}
