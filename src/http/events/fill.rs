//! Hydration of stored events: replaces their references by data of the entries.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::agent::entry::{CallRef, Entry, EntryBody};
use crate::agent::event::{
    CompactionEnd, Event, EventBody, MessageRef, OutputRef, RequestRef, ToolExecutionEnd,
};
use crate::agent::message::Message;
use crate::agent::raw::RawJson;
use crate::agent::view::{Origin, outputs};
use crate::ids::ConversationKey;
use crate::turn::World;
use crate::turn::admission::Refusal;
use crate::turn::views::approvals::{approval, call_arguments};
use crate::turn::views::conversation::message_of;
use crate::turn::views::load;

/// Maximum number of entries that one reader caches.
const KEPT_MAX: usize = 2_000;
/// Number of entries before the end of a prompt in which its last model response is searched first.
const TAIL: u64 = 16;

/// Builds the `data` of events from the entries of a conversation, which it caches.
#[derive(Debug)]
pub(super) struct Filler {
    world: World,
    key: ConversationKey,
    entries: BTreeMap<u64, Arc<Entry>>,
}

impl Filler {
    pub(super) fn new(world: World, key: ConversationKey) -> Self {
        Self { world, key, entries: BTreeMap::new() }
    }

    /// Returns the `data` of an event.
    pub(super) async fn data(&mut self, event: &Event) -> Result<Value, Refusal> {
        self.load_for(event).await?;
        let mut data = base(event);
        let members = match &event.body {
            EventBody::AgentStart(_)
            | EventBody::AgentSettled(_)
            | EventBody::TurnStart(_)
            | EventBody::SummarizationRetryFinished(_) => json!({}),
            EventBody::PromptCreated(_) => self.beginning(event),
            EventBody::AgentEnd(end) => {
                json!({
                    "messages": self.messages(end.from_seq, end.to_seq),
                    "willRetry": end.will_retry,
                })
            }
            EventBody::TurnEnd(end) => json!({
                "message": self.message(end.message),
                "toolResults": end.tool_results.iter().map(|seq| self.message(*seq)).collect::<Vec<_>>(),
            }),
            EventBody::MessageStart(message) | EventBody::MessageEnd(message) => {
                self.message_data(message)
            }
            EventBody::MessageReset(reset) => json!({"messageId": reset.message_id}),
            EventBody::ToolExecutionStart(start) => json!({
                "toolCallId": start.tool_call_id, "toolName": start.tool_name,
                "args": self.arguments(start.call),
            }),
            EventBody::ToolExecutionEnd(end) => self.tool_end(end),
            EventBody::AutoCompactionStart(start) => json!({"reason": start.reason}),
            EventBody::AutoCompactionEnd(end) => self.compaction(end),
            EventBody::SummarizationRetryScheduled(retry) => json!(retry),
            EventBody::AutoRetryStart(start) => json!({
                "attempt": start.attempt, "maxAttempts": start.max_attempts,
                "delayMs": start.delay_ms, "errorMessage": self.error_message(start.message),
            }),
            EventBody::AutoRetryEnd(end) => as_value(end),
            EventBody::PromptOutput(output) | EventBody::PromptOutputUpdated(output) => {
                json!({"output": self.output(event, output)})
            }
            EventBody::PromptApprovalRequested(request)
            | EventBody::PromptApprovalSettled(request) => {
                self.approval(&event.body, request).await?
            }
            EventBody::PromptCompleted(_) | EventBody::PromptError(_) => self.ending(event),
            EventBody::Other(raw) => raw.value(),
        };
        if let Value::Object(members) = members {
            for (name, value) in members {
                data.entry(name).or_insert(value);
            }
        }
        Ok(Value::Object(data))
    }

    /// Loads the entries that an event refers to.
    async fn load_for(&mut self, event: &Event) -> Result<(), Refusal> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut one = |seq: u64| ranges.push((seq, seq));
        match &event.body {
            EventBody::AgentEnd(end) => ranges.push((end.from_seq, end.to_seq)),
            EventBody::TurnEnd(end) => {
                one(end.message);
                end.tool_results.iter().copied().for_each(one);
            }
            EventBody::MessageStart(message) | EventBody::MessageEnd(message) => one(message.seq),
            EventBody::ToolExecutionStart(start) => one(start.call.answer),
            EventBody::ToolExecutionEnd(end) => one(end.result),
            EventBody::AutoCompactionEnd(end) => end.entry.into_iter().for_each(one),
            EventBody::AutoRetryStart(start) => one(start.message),
            EventBody::PromptOutput(output) | EventBody::PromptOutputUpdated(output) => {
                let from = output.call.map_or(output.seq, |call| call.answer.min(output.seq));
                ranges.push((from, output.seq));
            }
            EventBody::PromptCreated(_)
            | EventBody::PromptCompleted(_)
            | EventBody::PromptError(_) => {
                let (head, _) = load::head(&self.world, &self.key).await?;
                let span =
                    head.prompts.iter().find(|span| Some(&span.id) == event.prompt_id.as_ref());
                if let Some(span) = span {
                    let is_end = !matches!(event.body, EventBody::PromptCreated(_));
                    let to = span.to_seq.filter(|_| is_end).unwrap_or(span.from_seq);
                    self.load(to.saturating_sub(TAIL).max(span.from_seq), to).await?;
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
            self.load(from, to).await?;
        }
        Ok(())
    }

    async fn load(&mut self, from: u64, to: u64) -> Result<(), Refusal> {
        let has = self.entries.range(from..=to).count() as u64;
        if from == 0 || to < from || has == to - from + 1 {
            return Ok(());
        }
        if self.entries.len() > KEPT_MAX {
            self.entries.clear();
        }
        for entry in load::entries(&self.world, &self.key, from, to).await? {
            self.entries.insert(entry.base.seq, entry);
        }
        Ok(())
    }

    fn message_at(&self, seq: u64) -> Option<&Message> {
        self.entries.get(&seq)?.body.message()
    }

    fn message(&self, seq: u64) -> Value {
        self.entries.get(&seq).and_then(|entry| spoken(entry)).unwrap_or_default()
    }

    /// Returns the error message of a failed model response.
    fn error_message(&self, seq: u64) -> &str {
        let failed = self.message_at(seq).and_then(Message::as_assistant);
        failed.and_then(|failed| failed.error_message.as_deref()).unwrap_or("Unknown error")
    }

    fn message_data(&self, message: &MessageRef) -> Value {
        json!({"messageId": message.message_id, "message": self.message(message.seq)})
    }

    /// Returns the members of `auto_compaction_end`: the summary, if there is one, and the outcome.
    fn compaction(&self, end: &CompactionEnd) -> Value {
        let entry = end.entry.and_then(|seq| self.entries.get(&seq));
        let result = entry.and_then(|entry| entry.body.compaction()).map(|compaction| {
            json!({
                "summary": compaction.summary, "firstKeptEntryId": compaction.first_kept_entry_id,
                "tokensBefore": compaction.tokens_before, "details": compaction.details,
            })
        });
        let mut told = json!({"aborted": end.aborted, "willRetry": end.will_retry});
        if let Some(told) = told.as_object_mut() {
            told.extend(result.map(|result| ("result".to_owned(), result)));
            told.extend(
                end.error_message.as_ref().map(|text| ("errorMessage".to_owned(), json!(text))),
            );
        }
        told
    }

    /// Returns the messages of an agent run, which may span several prompts.
    fn messages(&self, from: u64, to: u64) -> Vec<Value> {
        self.entries
            .range(from..=to.max(from))
            .filter(|(_, entry)| entry.base.prompt_id.is_some())
            .filter_map(|(_, entry)| spoken(entry))
            .collect()
    }

    fn arguments(&self, call: CallRef) -> Value {
        let answer = self.entries.get(&call.answer);
        answer
            .and_then(|answer| call_arguments(answer, call.index))
            .map_or(Value::Null, |raw| raw.value())
    }

    /// Returns the members of `tool_execution_end`: the content for the model and the details for
    /// programs.
    fn tool_end(&self, end: &ToolExecutionEnd) -> Value {
        let message = self.entries.get(&end.result).and_then(|entry| entry.body.result());
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
                .map(|data| data.insert("rejected".to_owned(), as_value(rejection)));
        }
        data
    }

    /// Returns the output item as it was at the time of the event.
    fn output(&self, event: &Event, reference: &OutputRef) -> Value {
        let Some(prompt_id) = &event.prompt_id else { return Value::Null };
        let origin = match (reference.block, reference.call) {
            (Some(block), _) => Origin::Text { seq: reference.seq, block },
            (None, Some(call)) => Origin::Call(call),
            (None, None) => Origin::Side { seq: reference.seq },
        };
        // Only the entries of this item. The view of a long prompt is not rebuilt for each event.
        let from = reference.call.map_or(reference.seq, |call| call.answer.min(reference.seq));
        let entries: Vec<Arc<Entry>> = self
            .entries
            .range(from..=reference.seq)
            .filter(|(seq, entry)| **seq == from || concerns(entry, reference))
            .map(|(_, entry)| Arc::clone(entry))
            .collect();
        outputs(prompt_id, &entries)
            .into_iter()
            .find(|(found, _)| *found == origin)
            .map_or(Value::Null, |(_, output)| as_value(&output))
    }

    async fn approval(&self, body: &EventBody, reference: &RequestRef) -> Result<Value, Refusal> {
        let (head, _) = load::head(&self.world, &self.key).await?;
        let Some(found) = approval(&self.world, &head, &reference.request_id).await? else {
            return Ok(json!({"approval": null}));
        };
        let is_settled = matches!(body, EventBody::PromptApprovalSettled(_));
        let view = match found.decision.as_ref().filter(|_| is_settled) {
            Some(decision) => as_value(&found.settled_view(decision)),
            None => as_value(&found.view()),
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

    fn beginning(&self, event: &Event) -> Value {
        let begun = self.entries.values().find_map(|entry| {
            let EntryBody::Prompt(prompt) = &entry.body else { return None };
            (entry.base.prompt_id == event.prompt_id).then_some(prompt)
        });
        begun.map_or(json!({}), |prompt| json!({"source": prompt.source, "model": prompt.model}))
    }

    /// Returns the model of the last model response of the event's prompt.
    fn resolved_model(&self, event: &Event) -> Option<&str> {
        let of_prompt =
            self.entries.values().rev().filter(|entry| entry.base.prompt_id == event.prompt_id);
        let mut answers = of_prompt.filter_map(|entry| entry.body.message()?.as_assistant());
        answers.find(|answer| answer.is_from_a_model()).map(|answer| answer.model.as_str())
    }

    fn ending(&self, event: &Event) -> Value {
        let ended = self.entries.values().find_map(|entry| {
            let EntryBody::PromptEnd(end) = &entry.body else { return None };
            (entry.base.prompt_id == event.prompt_id).then_some(end)
        });
        ended.map_or(json!({}), |end| {
            let mut members = json!({"state": end.state, "stopReason": end.stop_reason});
            if let (Some(model), Some(members)) =
                (self.resolved_model(event), members.as_object_mut())
            {
                members.insert("resolvedModel".to_owned(), json!(model));
            }
            if let (Some(error), Some(members)) = (&end.error, members.as_object_mut()) {
                members.insert("error".to_owned(), as_value(error));
            }
            if let (Some(incomplete), Some(members)) = (&end.incomplete, members.as_object_mut()) {
                members.insert("incomplete".to_owned(), as_value(incomplete));
            }
            members
        })
    }
}

/// Returns the message of an entry: from user, model or tool, or a custom message.
fn spoken(entry: &Entry) -> Option<Value> {
    if let EntryBody::CustomMessage(_) = &entry.body {
        return message_of(entry);
    }
    entry.body.message().map(as_value)
}

/// True if an entry belongs to the output that an event refers to: the entry itself, or an entry of
/// the same tool call.
fn concerns(entry: &Entry, reference: &OutputRef) -> bool {
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
fn base(event: &Event) -> Map<String, Value> {
    let mut data = Map::new();
    data.insert("type".to_owned(), Value::String(event.body.name()));
    if let Some(prompt_id) = &event.prompt_id {
        data.insert("promptId".to_owned(), json!(prompt_id));
    }
    data.insert("turn".to_owned(), json!(event.turn));
    data.insert("at".to_owned(), Value::String(event.at.to_string()));
    data
}

fn as_value(shown: &impl serde::Serialize) -> Value {
    RawJson::of(shown).value()
}
