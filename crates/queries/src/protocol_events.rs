//! Events and history of a conversation in the form of the streaming text protocol. They are a view
//! of the same events and entries, and exist for every conversation.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::conversation::page_start;
use crate::event_stream::{EventMessage, EventPayload, StreamEvent};
use turnwheel_conversation::content::{Block, joined_text};
use turnwheel_conversation::entry::{Entry, EntryBody, PromptState};
use turnwheel_conversation::event::{AssistantMessageEvent, EventKind};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::message::{AssistantMessage, Message, ToolResultMessage};
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::step::{MAX_FAILURES, TERMINATING};
use turnwheel_model::protocol::{encode_call, encode_results};
use turnwheel_platform::clock::Timestamp;
use turnwheel_record::contract::CommandError;
use turnwheel_record::load;
use turnwheel_record::services::Services;

const INTERRUPTED: &str = "Task interrupted by user";

/// When texts are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextUnit {
    /// Each piece as the model writes it.
    Token,
    /// Each text when the response is complete: the modes `event` and `none` of the source.
    #[default]
    Event,
}

/// An event of the protocol. `members` are its members besides `type` and `timestamp`.
pub fn event(kind: &str, at: Timestamp, members: Value) -> Value {
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

/// The parts of a response that were sent already, by index of the block: the text, or that of a
/// call.
type SentParts = BTreeMap<usize, String>;

/// Events of a response without the sent parts. `None`: the response does not continue them.
///
/// The calls of a failed response never run, so they are no events.
fn response_events(
    response: &AssistantMessage,
    at: Timestamp,
    sent: &SentParts,
) -> Option<Vec<Value>> {
    let mut events = Vec::new();
    let mut blocks_sent = 0;
    for (index, block) in response.content.iter().enumerate() {
        let (kind, text) = match block {
            Block::Thinking(thinking) => ("think", thinking.thinking.clone()),
            Block::Text(text) => ("respond", text.text.clone()),
            Block::ToolCall(call) if !response.is_failed() => ("call", encode_call(call)),
            Block::ToolCall(_) | Block::Image(_) | Block::File(_) | Block::Other(_) => continue,
        };
        let rest = match sent.get(&index) {
            None => text.as_str(),
            Some(sent) => {
                blocks_sent += 1;
                rest_of(&text, sent)?
            }
        };
        if !rest.is_empty() {
            events.push(text_event(kind, at, rest));
        }
    }
    (blocks_sent == sent.len()).then_some(events)
}

/// The text after the part that was sent. The end of a response may trim its texts.
fn rest_of<'t>(text: &'t str, sent: &str) -> Option<&'t str> {
    text.strip_prefix(sent).or_else(|| sent.strip_prefix(text)?.trim().is_empty().then_some(""))
}

/// The event of a text that the service wrote in place of a result (PC-10).
fn terminating_event(response: &AssistantMessage, at: Timestamp) -> Option<Value> {
    let text = joined_text(&response.content);
    (!response.is_from_model() && text == TERMINATING)
        .then(|| text_event("result", at, TERMINATING))
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
pub struct ProtocolEvents {
    unit: TextUnit,
    /// Sent parts of the current response.
    sent: SentParts,
    /// True if an earlier stream of the client may have sent parts of the next response.
    is_resumed: bool,
    /// Tokens of the prompt: input and output. `None`: it started before the stream.
    total: Option<(u64, u64)>,
}

impl ProtocolEvents {
    /// `is_resumed`: the stream continues an earlier one.
    pub fn new(unit: TextUnit, is_resumed: bool) -> Self {
        Self { unit, sent: SentParts::new(), is_resumed, total: None }
    }

    /// The event that voids the sent parts of a response, if there may be any.
    fn reset(&mut self, at: Timestamp) -> Option<Value> {
        let has_sent = !std::mem::take(&mut self.sent).is_empty();
        let is_resumed = std::mem::take(&mut self.is_resumed);
        (has_sent || is_resumed).then(|| event("reset", at, json!({})))
    }

    /// The events of the protocol that an event stands for, if any.
    pub fn convert(&mut self, source: &StreamEvent) -> Vec<Value> {
        let at = source.at;
        match &source.payload {
            // Another attempt of a response whose parts were sent.
            EventPayload::MessageStart { message: Some(EventMessage::Started(_)), .. }
                if !self.sent.is_empty() =>
            {
                self.reset(at).into_iter().collect()
            }
            EventPayload::MessageUpdate { event, .. } => self.piece(event, at),
            EventPayload::MessageReset { .. } => self.reset(at).into_iter().collect(),
            EventPayload::MessageEnd { message, .. } => self.message(message.as_ref(), at),
            EventPayload::TurnEnd { message, tool_results } => {
                // The next response starts later than this event. After a response that is retried,
                // `message_reset` follows and voids the parts of the earlier stream.
                self.is_resumed &= message.as_ref().is_some_and(EventMessage::is_retried);
                let results = tool_results.iter().flatten().filter_map(EventMessage::to_message);
                let results: Vec<Message> = results.collect();
                result_event(&tool_results_of(&results), at).into_iter().collect()
            }
            EventPayload::Other { kind, members } => self.other(kind, &members.to_value(), at),
            EventPayload::MessageStart { .. }
            | EventPayload::AgentStart
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

    /// The next piece of a response, after a reset if an earlier stream may have sent it.
    fn piece(&mut self, piece: &AssistantMessageEvent, at: Timestamp) -> Vec<Value> {
        if self.unit == TextUnit::Event {
            return Vec::new();
        }
        let (index, kind, text) = match piece {
            AssistantMessageEvent::TextDelta { content_index, delta } => {
                (*content_index, "respond", delta.clone())
            }
            AssistantMessageEvent::ThinkingDelta { content_index, delta } => {
                (*content_index, "think", delta.clone())
            }
            AssistantMessageEvent::ToolcallEnd { content_index, tool_call } => {
                (*content_index, "call", encode_call(&tool_call.call))
            }
            AssistantMessageEvent::TextStart { .. }
            | AssistantMessageEvent::TextEnd { .. }
            | AssistantMessageEvent::ThinkingStart { .. }
            | AssistantMessageEvent::ThinkingEnd { .. }
            | AssistantMessageEvent::ToolcallStart { .. }
            | AssistantMessageEvent::ToolcallDelta { .. } => return Vec::new(),
        };
        if text.is_empty() || kind == "call" && self.sent.contains_key(&index) {
            // The end of the response decides about a call that its service ended twice.
            return Vec::new();
        }
        let reset = if self.is_resumed { self.reset(at) } else { None };
        self.sent.entry(index).or_default().push_str(&text);
        reset.into_iter().chain([text_event(kind, at, &text)]).collect()
    }

    fn message(&mut self, message: Option<&EventMessage>, at: Timestamp) -> Vec<Value> {
        let is_retried = message.is_some_and(EventMessage::is_retried);
        match message.and_then(EventMessage::to_message) {
            Some(Message::User(user)) => vec![text_event("user", at, &user.content.joined_text())],
            Some(Message::Assistant(response)) if is_retried => {
                // `message_reset` follows and voids its parts. Its tokens are paid.
                self.add_to_total(&response);
                Vec::new()
            }
            Some(Message::Assistant(response)) => self.response(&response, at),
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

    /// The end of a response.
    fn response(&mut self, response: &AssistantMessage, at: Timestamp) -> Vec<Value> {
        if let Some(event) = terminating_event(response, at) {
            return vec![event];
        }
        let rest = if self.is_resumed { None } else { response_events(response, at, &self.sent) };
        let mut events = rest.unwrap_or_else(|| {
            let reset = self.reset(at);
            let whole = response_events(response, at, &SentParts::new()).unwrap_or_default();
            reset.into_iter().chain(whole).collect()
        });
        self.sent.clear();
        if response.tool_calls().next().is_some() && !response.is_failed() {
            events.push(event("execute", at, json!({})));
        }
        events.push(self.metric(response, at));
        events
    }

    /// Tokens of a response, and of its prompt so far.
    fn metric(&mut self, response: &AssistantMessage, at: Timestamp) -> Value {
        let (input, output) = tokens_of(response);
        let step = json!({"input": input, "output": output});
        self.add_to_total(response);
        let Some((input, output)) = self.total else {
            return event("metric", at, json!({"step": step}));
        };
        let total = json!({"input": input, "output": output});
        event("metric", at, json!({"step": step, "total": total}))
    }

    fn add_to_total(&mut self, response: &AssistantMessage) {
        let (input, output) = tokens_of(response);
        if let Some((total_input, total_output)) = &mut self.total {
            *total_input += input;
            *total_output += output;
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the protocol has no other events")]
    fn other(&mut self, kind: &EventKind, members: &Value, at: Timestamp) -> Vec<Value> {
        match kind {
            EventKind::PromptCreated => {
                self.total = Some((0, 0));
                self.is_resumed = false;
                Vec::new()
            }
            EventKind::MessageSnapshot => self.snapshot(members, at),
            EventKind::PromptCompleted if text_member(members, "state") == Some("aborted") => {
                vec![text_event("interrupt", at, INTERRUPTED)]
            }
            EventKind::PromptCompleted => vec![event("end", at, json!({}))],
            EventKind::PromptError if error_member(members, "type") == Some(MAX_FAILURES) => {
                vec![event("end", at, json!({}))]
            }
            EventKind::PromptError => {
                let text = error_member(members, "message");
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
        let mut texts = Vec::new();
        let content = members.get("content").and_then(Value::as_array);
        for (index, block) in content.into_iter().flatten().enumerate() {
            let (kind, text) = match text_member(block, "type") {
                Some("text") => ("respond", text_member(block, "text")),
                Some("thinking") => ("think", text_member(block, "thinking")),
                _ => continue,
            };
            texts.push((index, kind, text.unwrap_or_default()));
        }
        let is_other = |(index, _, text): &(usize, &str, &str)| {
            let sent = self.sent.get(index).map_or("", String::as_str);
            !text.starts_with(sent) && !sent.starts_with(text)
        };
        if self.is_resumed || texts.iter().any(is_other) {
            events.extend(self.reset(at));
        }
        for (index, kind, text) in texts {
            let sent = self.sent.get(&index).map_or("", String::as_str);
            if let Some(rest) = text.strip_prefix(sent).filter(|rest| !rest.is_empty()) {
                events.push(text_event(kind, at, rest));
                self.sent.insert(index, text.to_owned());
            }
        }
        events
    }
}

/// Input and output tokens of a response.
fn tokens_of(response: &AssistantMessage) -> (u64, u64) {
    let usage = &response.usage;
    (usage.input + usage.cache_read + usage.cache_write, usage.output)
}

fn error_member<'v>(members: &'v Value, name: &str) -> Option<&'v str> {
    members.get("error")?.get(name)?.as_str()
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
pub async fn read_history(
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
            Message::Assistant(_) if stored.is_retried => Vec::new(),
            Message::Assistant(response) => match terminating_event(response, at) {
                Some(event) => vec![event],
                None => response_events(response, at, &SentParts::new()).unwrap_or_default(),
            },
            _ => Vec::new(),
        },
        EntryBody::PromptEnd(end) if end.state == PromptState::Aborted => {
            vec![text_event("cancelled", at, INTERRUPTED)]
        }
        _ => Vec::new(),
    }
}
