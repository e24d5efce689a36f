//! Hydration of stored events: replaces their references by data of the entries.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::agent::entry::{CallRef, Entry, EntryBody};
use crate::agent::event::{
    CompactionEnd, Event, EventBody, MessageRef, OutputRef, RequestRef, ToolExecutionEnd,
};
use crate::agent::message::Message;
use crate::agent::prompt_view::{OutputOrigin, collect_outputs};
use crate::agent::raw::RawJson;
use crate::commands::CommandError;
use crate::ids::ConversationKey;
use crate::queries::approvals::{call_arguments, load_approval};
use crate::queries::conversation::entry_as_message;
use crate::queries::load;
use crate::services::Services;

/// Maximum number of entries that one reader caches.
const CACHED_ENTRIES_MAX: usize = 2_000;
/// Number of entries before the end of a prompt in which its last model response is searched first.
const TAIL_ENTRIES: u64 = 16;

/// Builds the `data` of events from the entries of a conversation, which it caches.
#[derive(Debug)]
pub(super) struct Hydrator {
    services: Services,
    key: ConversationKey,
    entries: BTreeMap<u64, Arc<Entry>>,
}

impl Hydrator {
    pub(super) fn new(services: Services, key: ConversationKey) -> Self {
        Self { services, key, entries: BTreeMap::new() }
    }

    /// Returns the `data` of an event.
    pub(super) async fn event_data(&mut self, event: &Event) -> Result<Value, CommandError> {
        self.load_references(event).await?;
        let mut data = common_data(event);
        let members = match &event.body {
            EventBody::AgentStart(_)
            | EventBody::AgentSettled(_)
            | EventBody::TurnStart(_)
            | EventBody::SummarizationRetryFinished(_) => json!({}),
            EventBody::PromptCreated(_) => self.prompt_created_data(event),
            EventBody::AgentEnd(end) => {
                json!({
                    "messages": self.message_values(end.from_seq, end.to_seq),
                    "willRetry": end.will_retry,
                })
            }
            EventBody::TurnEnd(end) => json!({
                "message": self.message_value(end.message),
                "toolResults": end.tool_results.iter().map(|seq| self.message_value(*seq)).collect::<Vec<_>>(),
            }),
            EventBody::MessageStart(message) | EventBody::MessageEnd(message) => {
                self.message_data(message)
            }
            EventBody::MessageReset(reset) => json!({"messageId": reset.message_id}),
            EventBody::ToolExecutionStart(start) => json!({
                "toolCallId": start.tool_call_id, "toolName": start.tool_name,
                "args": self.arguments_value(start.call),
            }),
            EventBody::ToolExecutionEnd(end) => self.tool_end_data(end),
            EventBody::AutoCompactionStart(start) => json!({"reason": start.reason}),
            EventBody::AutoCompactionEnd(end) => self.compaction_end_data(end),
            EventBody::SummarizationRetryScheduled(retry) => json!(retry),
            EventBody::AutoRetryStart(start) => json!({
                "attempt": start.attempt, "maxAttempts": start.max_attempts,
                "delayMs": start.delay_ms, "errorMessage": self.error_message(start.message),
            }),
            EventBody::AutoRetryEnd(end) => to_value(end),
            EventBody::PromptOutput(output) | EventBody::PromptOutputUpdated(output) => {
                json!({"output": self.output_value(event, output)})
            }
            EventBody::PromptApprovalRequested(request)
            | EventBody::PromptApprovalSettled(request) => {
                self.approval_data(&event.body, request).await?
            }
            EventBody::PromptCompleted(_) | EventBody::PromptError(_) => {
                self.prompt_end_data(event)
            }
            EventBody::Other(raw) => raw.to_value(),
        };
        if let Value::Object(members) = members {
            for (name, value) in members {
                data.entry(name).or_insert(value);
            }
        }
        Ok(Value::Object(data))
    }

    /// Loads the entries that an event refers to.
    async fn load_references(&mut self, event: &Event) -> Result<(), CommandError> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut add = |seq: u64| ranges.push((seq, seq));
        match &event.body {
            EventBody::AgentEnd(end) => ranges.push((end.from_seq, end.to_seq)),
            EventBody::TurnEnd(end) => {
                add(end.message);
                end.tool_results.iter().copied().for_each(add);
            }
            EventBody::MessageStart(message) | EventBody::MessageEnd(message) => add(message.seq),
            EventBody::ToolExecutionStart(start) => add(start.call.response_seq),
            EventBody::ToolExecutionEnd(end) => add(end.result),
            EventBody::AutoCompactionEnd(end) => end.entry.into_iter().for_each(add),
            EventBody::AutoRetryStart(start) => add(start.message),
            EventBody::PromptOutput(output) | EventBody::PromptOutputUpdated(output) => {
                let from = output.call.map_or(output.seq, |call| call.response_seq.min(output.seq));
                ranges.push((from, output.seq));
            }
            EventBody::PromptCreated(_)
            | EventBody::PromptCompleted(_)
            | EventBody::PromptError(_) => {
                let (head, _) = load::head(&self.services, &self.key).await?;
                let span =
                    head.prompts.iter().find(|span| Some(&span.id) == event.prompt_id.as_ref());
                if let Some(span) = span {
                    let is_end = !matches!(event.body, EventBody::PromptCreated(_));
                    let to = span.to_seq.filter(|_| is_end).unwrap_or(span.from_seq);
                    self.load_range(to.saturating_sub(TAIL_ENTRIES).max(span.from_seq), to).await?;
                    // After many tool results the last model response is further back.
                    if is_end && self.resolved_model(event).is_none() {
                        ranges.push((span.from_seq, to));
                    }
                }
            }
            EventBody::AgentStart(_)
            | EventBody::AgentSettled(_)
            | EventBody::TurnStart(_)
            | EventBody::MessageReset(_)
            | EventBody::AutoCompactionStart(_)
            | EventBody::SummarizationRetryScheduled(_)
            | EventBody::SummarizationRetryFinished(_)
            | EventBody::AutoRetryEnd(_)
            | EventBody::PromptApprovalRequested(_)
            | EventBody::PromptApprovalSettled(_)
            | EventBody::Other(_) => {}
        }
        for (from, to) in ranges {
            self.load_range(from, to).await?;
        }
        Ok(())
    }

    async fn load_range(&mut self, from: u64, to: u64) -> Result<(), CommandError> {
        let cached = self.entries.range(from..=to).count() as u64;
        if from == 0 || to < from || cached == to - from + 1 {
            return Ok(());
        }
        if self.entries.len() > CACHED_ENTRIES_MAX {
            self.entries.clear();
        }
        for entry in load::entries(&self.services, &self.key, from, to).await? {
            self.entries.insert(entry.base.seq, entry);
        }
        Ok(())
    }

    fn message_at(&self, seq: u64) -> Option<&Message> {
        self.entries.get(&seq)?.body.message()
    }

    fn message_value(&self, seq: u64) -> Value {
        self.entries.get(&seq).and_then(|entry| entry_message(entry)).unwrap_or_default()
    }

    /// Returns the error message of a failed model response.
    fn error_message(&self, seq: u64) -> &str {
        let failed = self.message_at(seq).and_then(Message::as_assistant);
        failed.and_then(|failed| failed.error_message.as_deref()).unwrap_or("Unknown error")
    }

    fn message_data(&self, message: &MessageRef) -> Value {
        json!({"messageId": message.message_id, "message": self.message_value(message.seq)})
    }

    /// Returns the members of `auto_compaction_end`: the summary, if there is one, and the outcome.
    fn compaction_end_data(&self, end: &CompactionEnd) -> Value {
        let entry = end.entry.and_then(|seq| self.entries.get(&seq));
        let result = entry.and_then(|entry| entry.body.compaction()).map(|compaction| {
            json!({
                "summary": compaction.summary, "firstKeptEntryId": compaction.first_kept_entry_id,
                "tokensBefore": compaction.tokens_before, "details": compaction.details,
            })
        });
        let mut data = json!({"aborted": end.aborted, "willRetry": end.will_retry});
        if let Some(data) = data.as_object_mut() {
            data.extend(result.map(|result| ("result".to_owned(), result)));
            data.extend(
                end.error_message.as_ref().map(|text| ("errorMessage".to_owned(), json!(text))),
            );
        }
        data
    }

    /// Returns the messages of an agent run, which may span several prompts.
    fn message_values(&self, from: u64, to: u64) -> Vec<Value> {
        self.entries
            .range(from..=to.max(from))
            .filter(|(_, entry)| entry.base.prompt_id.is_some())
            .filter_map(|(_, entry)| entry_message(entry))
            .collect()
    }

    fn arguments_value(&self, call: CallRef) -> Value {
        let response = self.entries.get(&call.response_seq);
        response
            .and_then(|response| call_arguments(response, call.index))
            .map_or(Value::Null, |raw| raw.to_value())
    }

    /// Returns the members of `tool_execution_end`: the content for the model and the details for
    /// programs.
    fn tool_end_data(&self, end: &ToolExecutionEnd) -> Value {
        let message = self.entries.get(&end.result).and_then(|entry| entry.body.tool_result());
        let result = message.map_or(
            Value::Null,
            |message| json!({"content": message.content, "details": message.details}),
        );
        let mut data = json!({
            "toolCallId": end.tool_call_id, "toolName": end.tool_name,
            "result": result, "isError": end.is_error,
        });
        if let Some(rejection) = message.and_then(|message| message.rejected.as_ref()) {
            data.as_object_mut()
                .map(|data| data.insert("rejected".to_owned(), to_value(rejection)));
        }
        data
    }

    /// Returns the output item as it was at the time of the event.
    fn output_value(&self, event: &Event, reference: &OutputRef) -> Value {
        let Some(prompt_id) = &event.prompt_id else { return Value::Null };
        let origin = match (reference.block, reference.call) {
            (Some(block), _) => OutputOrigin::Text { seq: reference.seq, block },
            (None, Some(call)) => OutputOrigin::Call(call),
            (None, None) => OutputOrigin::SideOutput { seq: reference.seq },
        };
        // Only the entries of this item. The view of a long prompt is not rebuilt for each event.
        let from =
            reference.call.map_or(reference.seq, |call| call.response_seq.min(reference.seq));
        let entries: Vec<Arc<Entry>> = self
            .entries
            .range(from..=reference.seq)
            .filter(|(seq, entry)| **seq == from || is_entry_of_output(entry, reference))
            .map(|(_, entry)| Arc::clone(entry))
            .collect();
        collect_outputs(prompt_id, &entries)
            .into_iter()
            .find(|(found, _)| *found == origin)
            .map_or(Value::Null, |(_, output)| to_value(&output))
    }

    async fn approval_data(
        &self,
        body: &EventBody,
        reference: &RequestRef,
    ) -> Result<Value, CommandError> {
        let (head, _) = load::head(&self.services, &self.key).await?;
        let Some(found) = load_approval(&self.services, &head, &reference.request_id).await? else {
            return Ok(json!({"approval": null}));
        };
        let is_settled = matches!(body, EventBody::PromptApprovalSettled(_));
        let view = match found.decision.as_ref().filter(|_| is_settled) {
            Some(decision) => to_value(&found.settled_view(decision)),
            None => to_value(&found.view()),
        };
        let mut members = json!({"approval": view});
        // Members of the source API. Only requests for tool calls have them.
        if let (Some(tool), Some(members)) = (&found.request.tool, members.as_object_mut()) {
            members.insert("toolCallId".to_owned(), json!(found.request.tool_call_id));
            members.insert("toolName".to_owned(), json!(tool));
            members.insert("input".to_owned(), json!(found.arguments));
            members.insert("reason".to_owned(), json!(found.request.reason));
        }
        Ok(members)
    }

    fn prompt_created_data(&self, event: &Event) -> Value {
        let prompt_entry = self.entries.values().find_map(|entry| {
            let EntryBody::Prompt(prompt) = &entry.body else { return None };
            (entry.base.prompt_id == event.prompt_id).then_some(prompt)
        });
        prompt_entry
            .map_or(json!({}), |prompt| json!({"source": prompt.source, "model": prompt.model}))
    }

    /// Returns the model of the last model response of the event's prompt.
    fn resolved_model(&self, event: &Event) -> Option<&str> {
        let of_prompt =
            self.entries.values().rev().filter(|entry| entry.base.prompt_id == event.prompt_id);
        let mut responses = of_prompt.filter_map(|entry| entry.body.message()?.as_assistant());
        responses.find(|response| response.is_from_model()).map(|response| response.model.as_str())
    }

    fn prompt_end_data(&self, event: &Event) -> Value {
        let end_entry = self.entries.values().find_map(|entry| {
            let EntryBody::PromptEnd(end) = &entry.body else { return None };
            (entry.base.prompt_id == event.prompt_id).then_some(end)
        });
        end_entry.map_or(json!({}), |end| {
            let mut members = json!({"state": end.state, "stopReason": end.stop_reason});
            if let (Some(model), Some(members)) =
                (self.resolved_model(event), members.as_object_mut())
            {
                members.insert("resolvedModel".to_owned(), json!(model));
            }
            if let (Some(error), Some(members)) = (&end.error, members.as_object_mut()) {
                members.insert("error".to_owned(), to_value(error));
            }
            if let (Some(incomplete), Some(members)) = (&end.incomplete, members.as_object_mut()) {
                members.insert("incomplete".to_owned(), to_value(incomplete));
            }
            members
        })
    }
}

/// Returns the message of an entry: from user, model or tool, or a custom message.
fn entry_message(entry: &Entry) -> Option<Value> {
    if let EntryBody::CustomMessage(_) = &entry.body {
        return entry_as_message(entry);
    }
    entry.body.message().map(to_value)
}

/// True if an entry belongs to the output that an event refers to: the entry itself, or an entry of
/// the same tool call.
fn is_entry_of_output(entry: &Entry, reference: &OutputRef) -> bool {
    if entry.base.seq == reference.seq {
        return true;
    }
    let call = match &entry.body {
        EntryBody::Message(message) => message.call,
        EntryBody::ToolStarted(started) => Some(started.call),
        EntryBody::ToolReturned(returned) => Some(returned.call),
        EntryBody::Request(request) => request.request.call,
        EntryBody::ThinkingLevelChange(_)
        | EntryBody::ModelChange(_)
        | EntryBody::Compaction(_)
        | EntryBody::BranchSummary(_)
        | EntryBody::Custom(_)
        | EntryBody::CustomMessage(_)
        | EntryBody::Label(_)
        | EntryBody::SessionInfo(_)
        | EntryBody::Prompt(_)
        | EntryBody::PromptEnd(_)
        | EntryBody::Decision(_)
        | EntryBody::Output(_)
        | EntryBody::Protocol(_)
        | EntryBody::LostCall(_)
        | EntryBody::FailedSummary(_)
        | EntryBody::Other(_) => None,
    };
    call.is_some() && call == reference.call
}

/// Returns the members that all events have.
fn common_data(event: &Event) -> Map<String, Value> {
    let mut data = Map::new();
    data.insert("type".to_owned(), Value::String(event.body.name()));
    if let Some(prompt_id) = &event.prompt_id {
        data.insert("promptId".to_owned(), json!(prompt_id));
    }
    data.insert("turn".to_owned(), json!(event.turn));
    data.insert("at".to_owned(), Value::String(event.at.to_string()));
    data
}

fn to_value(value: &impl serde::Serialize) -> Value {
    RawJson::from_value(value).to_value()
}
