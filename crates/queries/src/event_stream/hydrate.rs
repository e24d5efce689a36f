//! Hydration of stored events: replaces their references by data of the entries.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::approvals::{call_arguments, load_approval};
use crate::event_stream::event::{EventMessage, EventPayload, StreamEvent, with_optional};
use crate::event_stream::prompt_details::PromptDetails;
use crate::inbox::{StoredInput, find_input, queued_view, receipt_view};
use crate::prompts::load_span;
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::event::{
    AutoRetryStart, CompactionEnd, Event, EventBody, EventKind, InputRef, OutputRef, RequestRef,
    SessionTreeChange, ToolExecutionEnd, ToolExecutionStart,
};
use turnwheel_conversation::message::{AssistantMessage, Message};
use turnwheel_conversation::prompt_view::{OutputOrigin, collect_outputs};
use turnwheel_conversation::request::CallRef;
use turnwheel_json::raw::{RawJson, raw_object};
use turnwheel_platform::ids::{ConversationKey, PromptId};
use turnwheel_record::contract::CommandError;
use turnwheel_record::load;
use turnwheel_record::services::Services;

/// Number of entries that one reader caches between events.
const CACHED_ENTRIES_MAX: usize = 2_000;
/// Number of entries before the end of a prompt in which its last model response is searched first.
const TAIL_ENTRIES: u64 = 16;

/// Builds events from the entries of a conversation, which it caches.
#[derive(Debug)]
pub(super) struct Hydrator {
    services: Services,
    key: ConversationKey,
    entries: BTreeMap<u64, Arc<Entry>>,
    /// All ended prompts at the last read of a prompt that is older than those in the head.
    ended_prompts: HashMap<PromptId, PromptDetails>,
}

impl Hydrator {
    pub(super) fn new(services: Services, key: ConversationKey) -> Self {
        Self { services, key, entries: BTreeMap::new(), ended_prompts: HashMap::new() }
    }

    /// Returns a stored event with the data that it references.
    pub(super) async fn hydrate(&mut self, event: &Event) -> Result<StreamEvent, CommandError> {
        while self.entries.len() > CACHED_ENTRIES_MAX {
            self.entries.pop_first();
        }
        self.load_references(event).await?;
        Ok(StreamEvent {
            number: Some(event.n),
            at: event.at,
            prompt_id: event.prompt_id.clone(),
            turn: event.turn,
            payload: self.payload(event).await?,
        })
    }

    async fn payload(&self, event: &Event) -> Result<EventPayload, CommandError> {
        let members = match &event.body {
            EventBody::AgentStart(_) => return Ok(EventPayload::AgentStart),
            EventBody::AgentEnd(end) => {
                let messages = self.messages(end.from_seq, end.to_seq);
                return Ok(EventPayload::AgentEnd { messages, will_retry: end.will_retry });
            }
            EventBody::AgentSettled(_) => return Ok(EventPayload::AgentSettled),
            EventBody::TurnStart(_) => return Ok(EventPayload::TurnStart),
            EventBody::TurnEnd(end) => {
                let tool_results = end.tool_results.iter().map(|seq| self.message(*seq)).collect();
                let message = self.message(end.message);
                return Ok(EventPayload::TurnEnd { message, tool_results });
            }
            EventBody::MessageStart(start) => {
                let (message_id, message) = (start.message_id.clone(), self.message(start.seq));
                let input_id = start.input_id.clone();
                return Ok(EventPayload::MessageStart { message_id, message, input_id });
            }
            EventBody::MessageEnd(end) => {
                let (message_id, message) = (end.message_id.clone(), self.message(end.seq));
                let input_id = end.input_id.clone();
                return Ok(EventPayload::MessageEnd { message_id, message, input_id });
            }
            EventBody::MessageReset(reset) => {
                return Ok(EventPayload::MessageReset { message_id: reset.message_id.clone() });
            }
            EventBody::ToolExecutionStart(start) => return Ok(self.tool_start(start)),
            EventBody::ToolExecutionEnd(end) => return Ok(self.tool_end(end)),
            EventBody::PromptApprovalRequested(request) => {
                let (request_id, members) =
                    (request.request_id.clone(), self.approval_members(request, false).await?);
                return Ok(EventPayload::ApprovalRequested { request_id, members });
            }
            EventBody::PromptApprovalSettled(request) => {
                let (request_id, members) =
                    (request.request_id.clone(), self.approval_members(request, true).await?);
                return Ok(EventPayload::ApprovalSettled { request_id, members });
            }
            EventBody::SummarizationRetryFinished(_) | EventBody::BranchSummaryStart(_) => {
                raw_object!({})
            }
            EventBody::BranchSummaryEnd(end) => RawJson::from_value(end),
            EventBody::CommandEnd(end) => RawJson::from_value(end),
            EventBody::InputQueued(input) | EventBody::InputChanged(input) => {
                self.queued_input_members(input).await?
            }
            EventBody::InputCleared(input) => RawJson::from_value(input),
            EventBody::AutoCompactionStart(start) => raw_object!({"reason": start.reason}),
            EventBody::AutoCompactionEnd(end) => self.compaction_end_members(end),
            EventBody::SummarizationRetryScheduled(retry) => RawJson::from_value(retry),
            EventBody::AutoRetryStart(start) => self.retry_members(start),
            EventBody::AutoRetryEnd(end) => RawJson::from_value(end),
            EventBody::Notify(notification) => RawJson::from_value(notification),
            EventBody::ToolDefinitionChanged(change) => RawJson::from_value(change),
            EventBody::SessionInfoChanged(info) => RawJson::from_value(info),
            EventBody::SessionTree(moved) => self.session_tree_members(moved),
            EventBody::PromptOutput(output) | EventBody::PromptOutputUpdated(output) => {
                raw_object!({"output": self.output_value(event, output)})
            }
            EventBody::PromptCreated(_) => self.prompt_details(event).created_members(),
            EventBody::PromptCompleted(_) | EventBody::PromptError(_) => {
                self.prompt_details(event).end_members()
            }
            EventBody::Other(raw) => raw.clone(),
        };
        Ok(EventPayload::Other { kind: event.body.kind(), members })
    }

    /// The input as it is now: queued with its content, or with its outcome.
    async fn queued_input_members(&self, input: &InputRef) -> Result<RawJson, CommandError> {
        let item = match find_input(&self.services, &self.key, input.input_id.as_str()).await {
            Ok(StoredInput::Queued(item, _)) => Some(queued_view(&item)),
            Ok(StoredInput::Finished(receipt)) => Some(receipt_view(&receipt)),
            Err(CommandError::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(raw_object!({"inputId": input.input_id, "item": item}))
    }

    fn retry_members(&self, start: &AutoRetryStart) -> RawJson {
        raw_object!({
            "attempt": start.attempt, "maxAttempts": start.max_attempts,
            "delayMs": start.delay_ms, "errorMessage": self.error_message(start.message),
        })
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
            EventBody::SessionTree(moved) => moved.summary.into_iter().for_each(add),
            EventBody::PromptOutput(output) | EventBody::PromptOutputUpdated(output) => {
                let from = output.call.map_or(output.seq, |call| call.response_seq.min(output.seq));
                ranges.push((from, output.seq));
            }
            EventBody::PromptCreated(_)
            | EventBody::PromptCompleted(_)
            | EventBody::PromptError(_) => self.load_prompt(event).await?,
            EventBody::AgentStart(_)
            | EventBody::AgentSettled(_)
            | EventBody::Notify(_)
            | EventBody::ToolDefinitionChanged(_)
            | EventBody::SessionInfoChanged(_)
            | EventBody::TurnStart(_)
            | EventBody::MessageReset(_)
            | EventBody::AutoCompactionStart(_)
            | EventBody::SummarizationRetryScheduled(_)
            | EventBody::SummarizationRetryFinished(_)
            | EventBody::BranchSummaryStart(_)
            | EventBody::BranchSummaryEnd(_)
            | EventBody::CommandEnd(_)
            | EventBody::InputQueued(_)
            | EventBody::InputChanged(_)
            | EventBody::InputCleared(_)
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

    /// Loads the details of the prompt of an event: from its first or last entries, or for a prompt
    /// that is older than those in the head from all entries.
    async fn load_prompt(&mut self, event: &Event) -> Result<(), CommandError> {
        let Some(id) = &event.prompt_id else { return Ok(()) };
        if self.ended_prompts.contains_key(id) {
            return Ok(());
        }
        let is_end = event.body.kind() != EventKind::PromptCreated;
        let (head, _) = load::head(&self.services, &self.key).await?;
        if let Some(span) = head.prompts.iter().find(|span| span.id == *id) {
            let to = span.to_seq.filter(|_| is_end).unwrap_or(span.from_seq);
            let tail = to.saturating_sub(TAIL_ENTRIES).max(span.from_seq);
            self.load_range(tail, to).await?;
            // After many tool results the last model response is further back.
            let mut responses = self.entries.range(tail..=to).map(|(_, entry)| entry);
            if is_end && !responses.any(|entry| is_model_response(entry)) {
                self.load_range(span.from_seq, to).await?;
            }
        } else if let Some(entries) = load_span(&self.services, &head, id).await? {
            self.ended_prompts = PromptDetails::collect_ended(&entries);
        }
        Ok(())
    }

    async fn load_range(&mut self, from: u64, to: u64) -> Result<(), CommandError> {
        let cached = self.entries.range(from..=to).count() as u64;
        if from == 0 || to < from || cached == to - from + 1 {
            return Ok(());
        }
        self.cache_entries(load::entries(&self.services, &self.key, from, to).await?);
        Ok(())
    }

    /// Caches entries that were read, also those that events documents contain.
    pub(super) fn cache_entries(&mut self, entries: Vec<Arc<Entry>>) {
        self.entries.extend(entries.into_iter().map(|entry| (entry.base.seq, entry)));
    }

    fn message_at(&self, seq: u64) -> Option<&Message> {
        self.entries.get(&seq)?.body.message()
    }

    fn message(&self, seq: u64) -> Option<EventMessage> {
        self.entries.get(&seq).and_then(EventMessage::from_entry)
    }

    /// Returns the error message of a failed model response.
    fn error_message(&self, seq: u64) -> &str {
        let failed = self.message_at(seq).and_then(Message::as_assistant);
        failed.and_then(|failed| failed.error_message.as_deref()).unwrap_or("Unknown error")
    }

    /// Returns the members of `auto_compaction_end`: the summary, if there is one, and the outcome.
    fn compaction_end_members(&self, end: &CompactionEnd) -> RawJson {
        let entry = end.entry.and_then(|seq| self.entries.get(&seq));
        let result = entry.and_then(|entry| entry.body.compaction()).map(|compaction| {
            raw_object!({
                "summary": compaction.summary, "firstKeptEntryId": compaction.first_kept_entry_id,
                "tokensBefore": compaction.tokens_before, "details": compaction.details,
            })
        });
        let members = raw_object!({"aborted": end.aborted, "willRetry": end.will_retry});
        let members = with_optional(members, "result", result.as_ref());
        with_optional(members, "errorMessage", end.error_message.as_ref())
    }

    /// Returns the members of `session_tree`: both leaves, and the summary if there is one.
    fn session_tree_members(&self, moved: &SessionTreeChange) -> RawJson {
        let members = raw_object!({"oldLeafId": moved.old_leaf_id, "newLeafId": moved.new_leaf_id});
        let entry = moved.summary.and_then(|seq| self.entries.get(&seq));
        match entry.map(|entry| &entry.body) {
            Some(EntryBody::BranchSummary(branch)) => {
                with_optional(members, "summary", Some(&branch.summary))
            }
            _ => members,
        }
    }

    /// Returns the messages of an agent run, which may span several prompts.
    fn messages(&self, from: u64, to: u64) -> Vec<EventMessage> {
        self.entries
            .range(from..=to.max(from))
            .filter(|(_, entry)| entry.base.prompt_id.is_some())
            .filter_map(|(_, entry)| EventMessage::from_entry(entry))
            .collect()
    }

    fn arguments_value(&self, call: CallRef) -> RawJson {
        let response = self.entries.get(&call.response_seq);
        response.and_then(|response| call_arguments(response, call.index)).unwrap_or_else(null)
    }

    fn tool_start(&self, start: &ToolExecutionStart) -> EventPayload {
        EventPayload::ToolExecutionStart {
            tool_call_id: start.tool_call_id.clone(),
            tool_name: start.tool_name.clone(),
            label: start.label.clone(),
            args: self.arguments_value(start.call),
        }
    }

    fn tool_end(&self, end: &ToolExecutionEnd) -> EventPayload {
        let message = self.entries.get(&end.result).and_then(|entry| entry.body.tool_result());
        EventPayload::ToolExecutionEnd {
            tool_call_id: end.tool_call_id.clone(),
            tool_name: end.tool_name.clone(),
            result: message.map_or_else(
                null,
                |message| raw_object!({"content": message.content, "details": message.details}),
            ),
            is_error: end.is_error,
            rejected: message.and_then(|message| message.rejected.clone()),
        }
    }

    /// Returns the output item as it was at the time of the event.
    fn output_value(&self, event: &Event, reference: &OutputRef) -> RawJson {
        let Some(prompt_id) = &event.prompt_id else { return null() };
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
            .map_or_else(null, |(_, output)| RawJson::from_value(&output))
    }

    async fn approval_members(
        &self,
        reference: &RequestRef,
        is_settled: bool,
    ) -> Result<RawJson, CommandError> {
        let (head, _) = load::head(&self.services, &self.key).await?;
        let Some(found) = load_approval(&self.services, &head, &reference.request_id).await? else {
            return Ok(raw_object!({"approval": ()}));
        };
        let open = found.view();
        let view = match found.decision.as_ref().filter(|_| is_settled) {
            Some(decision) => RawJson::from_value(&found.settled_view(decision)),
            None => RawJson::from_value(&open),
        };
        let Some(tool) = &found.request.tool else { return Ok(raw_object!({"approval": view})) };
        // Members of the source API. Only requests for tool calls have them.
        Ok(raw_object!({
            "approval": view, "toolCallId": found.request.tool_call_id, "toolName": tool,
            "input": open.arguments, "reason": open.reason,
        }))
    }

    /// Returns the details of the event's prompt that were loaded.
    fn prompt_details(&self, event: &Event) -> PromptDetails {
        if let Some(ended) = event.prompt_id.as_ref().and_then(|id| self.ended_prompts.get(id)) {
            return ended.clone();
        }
        let mut details = PromptDetails::default();
        let of_prompt =
            self.entries.values().filter(|entry| entry.base.prompt_id == event.prompt_id);
        of_prompt.for_each(|entry| details.add(&entry.body));
        details
    }
}

fn is_model_response(entry: &Entry) -> bool {
    let response = entry.body.message().and_then(Message::as_assistant);
    response.is_some_and(AssistantMessage::is_from_model)
}

fn null() -> RawJson {
    RawJson::from_value(&())
}

/// True if an entry belongs to the output that an event refers to: the entry itself, or an entry of
/// the same tool call.
#[expect(clippy::wildcard_enum_match_arm, reason = "only these kinds belong to a call")]
fn is_entry_of_output(entry: &Entry, reference: &OutputRef) -> bool {
    if entry.base.seq == reference.seq {
        return true;
    }
    let call = match &entry.body {
        EntryBody::Message(message) => message.call,
        EntryBody::ToolStarted(started) => Some(started.call),
        EntryBody::ToolReturned(returned) => Some(returned.call),
        EntryBody::Request(request) => request.request.call,
        _ => None,
    };
    call.is_some() && call == reference.call
}
