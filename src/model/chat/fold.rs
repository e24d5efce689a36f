//! Folds Chat Completions chunks into one assistant message. Pure: every recorded stream is a test.

use crate::agent::event::AssistantMessageEvent;
use crate::agent::message::{AssistantMessage, StopReason};
use crate::agent::raw::Extra;
use crate::agent::text::repair_surrogates;
use crate::agent::usage::Usage;
use crate::clock::Timestamp;
use crate::model::CallMetadata;
use crate::model::catalogue::Tariff;
use crate::model::chat::chunk::{
    CallDelta, Choice, Chunk, FunctionDelta, Piece, non_empty_text, parse_usage,
};
use crate::model::responses::PROVIDER;
use crate::model::responses::fold::{CONTENT_FILTER_NOTE, FoldedResponse, ITEMS_MAX};
use crate::model::responses::names::ToolNames;
use crate::model::responses::provider_error::ProviderError;

mod slot;
#[cfg(test)]
mod tests;
use slot::BlockSlot;

/// The frame after the last chunk.
const END_FRAME: &str = "[DONE]";

/// A Chat Completions response that is being received.
#[derive(Debug)]
pub struct ChatFold {
    model: String,
    tariff: Tariff,
    names: ToolNames,
    /// Blocks in the order of their first delta.
    slots: Vec<BlockSlot>,
    /// `None` until the service has reported plausible counts.
    usage: Option<Usage>,
    end: ChatEnd,
    /// True after [`END_FRAME`].
    is_done: bool,
    metadata: CallMetadata,
}

#[derive(Debug)]
enum ChatEnd {
    Open,
    Failed(Box<ProviderError>),
    /// A finish reason was received: no delta follows.
    Stopped(StopReason, Option<&'static str>),
}

impl ChatFold {
    pub fn new(model: impl Into<String>, tariff: Tariff, names: ToolNames) -> Self {
        Self {
            model: model.into(),
            tariff,
            names,
            slots: Vec::new(),
            usage: None,
            end: ChatEnd::Open,
            is_done: false,
            metadata: CallMetadata::default(),
        }
    }

    /// True if later chunks cannot change the response.
    pub fn is_finished(&self) -> bool {
        self.is_done || matches!(self.end, ChatEnd::Failed(_))
    }

    /// True if the response is complete but for its usage, which follows at once.
    pub fn is_awaiting_usage(&self) -> bool {
        matches!(self.end, ChatEnd::Stopped(..)) && !self.is_done
    }

    /// True for a complete response without usage: its cost must be estimated.
    pub fn lacks_usage(&self) -> bool {
        matches!(self.end, ChatEnd::Stopped(..)) && self.usage.is_none()
    }

    /// Applies one frame of the stream: its `event:` line and its data.
    pub fn push_frame(&mut self, name: Option<&str>, data: &str) -> Vec<AssistantMessageEvent> {
        let data = data.trim();
        if self.is_finished() || data.is_empty() {
            return Vec::new();
        }
        if data == END_FRAME {
            self.is_done = true;
            return Vec::new();
        }
        let repaired = repair_surrogates(data);
        let Ok(chunk) = serde_json::from_str::<Chunk<'_>>(&repaired) else {
            // Nothing repeats a lost delta, so the response is lost with it.
            self.fail(ProviderError::connection_lost(
                "a chunk of the response could not be parsed",
            ));
            return Vec::new();
        };
        let is_error_object = non_empty_text(chunk.object).is_some_and(|kind| kind == "error");
        if chunk.error.is_some() || is_error_object || name == Some("error") {
            let body = serde_json::from_str(&repaired).unwrap_or_default();
            let fault = ProviderError::from_error_event(&body);
            self.fail(fault.unwrap_or_else(|| ProviderError::without_details("error")));
            return Vec::new();
        }
        self.push_chunk(&chunk)
    }

    /// Applies a response that is not a stream. Returns false if the body is none.
    pub fn push_whole(&mut self, body: &str) -> (bool, Vec<AssistantMessageEvent>) {
        let events = self.push_frame(None, body);
        self.is_done = true;
        (!matches!(self.end, ChatEnd::Open), events)
    }

    fn push_chunk(&mut self, chunk: &Chunk<'_>) -> Vec<AssistantMessageEvent> {
        for (place, raw) in
            [(&mut self.metadata.id, chunk.id), (&mut self.metadata.model, chunk.model)]
        {
            if place.is_none() {
                *place = non_empty_text(raw).map(std::borrow::Cow::into_owned);
            }
        }
        let mut events = Vec::new();
        // Only one choice is requested.
        let choices = chunk.choices.as_deref().unwrap_or_default();
        for choice in choices.iter().filter(|choice| choice.index.unwrap_or(0) == 0) {
            self.push_choice(choice, &mut events);
        }
        let usages = choices.iter().map(|choice| choice.usage).chain([chunk.usage]);
        if let Some(usage) = usages.flatten().filter_map(parse_usage).next_back() {
            self.usage = Some(usage);
        }
        events
    }

    fn push_choice(&mut self, choice: &Choice<'_>, events: &mut Vec<AssistantMessageEvent>) {
        if matches!(self.end, ChatEnd::Open)
            && let Some(delta) = choice.delta.as_ref().or(choice.message.as_ref())
        {
            for piece in delta.pieces() {
                self.push_piece(&piece, events);
            }
            for call in delta.tool_calls.as_deref().unwrap_or_default() {
                self.push_call(call, events);
            }
        }
        if let Some(reason) = non_empty_text(choice.finish_reason) {
            self.stop(&reason, events);
        }
    }

    fn push_piece(&mut self, piece: &Piece<'_>, events: &mut Vec<AssistantMessageEvent>) {
        if !self.slots.last().is_some_and(|slot| slot.accepts(piece)) {
            self.close_last_text(events);
            let Some(at) = self.add_slot(BlockSlot::of_piece(piece)) else { return };
            events.extend(self.slots.get(at).and_then(|slot| slot.start_event(at)));
        }
        let at = self.slots.len().saturating_sub(1);
        if let Some(slot) = self.slots.last_mut() {
            events.extend(slot.append(piece, at));
        }
    }

    fn push_call(&mut self, call: &CallDelta<'_>, events: &mut Vec<AssistantMessageEvent>) {
        let id = non_empty_text(call.id);
        let name = call.function.as_ref().and_then(|function| non_empty_text(function.name));
        let at = if let Some(at) = self.find_call(call.index, id.as_deref(), name.is_some()) {
            at
        } else {
            self.close_last_text(events);
            let Some(at) = self.add_slot(BlockSlot::of_call(call.index)) else { return };
            at
        };
        let arguments = call.function.as_ref().and_then(FunctionDelta::arguments);
        if let Some(slot) = self.slots.get_mut(at) {
            events.extend(slot.identify_call(at, id.as_deref(), name.as_deref(), &self.names));
            events.extend(arguments.and_then(|text| slot.append_arguments(at, &text)));
        }
    }

    /// Finds the call of a delta by its index; without an index, the last call. Another id with a
    /// name begins another call: some services give all calls the index 0.
    fn find_call(&self, index: Option<u64>, id: Option<&str>, has_name: bool) -> Option<usize> {
        let at = self.slots.iter().rposition(|slot| slot.is_call_of(index))?;
        let has_other_id = |slot: &BlockSlot| id.is_some_and(|id| slot.has_other_id(id));
        let is_other = has_name && self.slots.get(at).is_some_and(has_other_id);
        (!is_other).then_some(at)
    }

    fn add_slot(&mut self, slot: BlockSlot) -> Option<usize> {
        if self.slots.len() >= ITEMS_MAX {
            // A retry would return as many blocks.
            self.fail(ProviderError::permanent(format!(
                "the model response has more than {ITEMS_MAX} blocks"
            )));
            return None;
        }
        self.slots.push(slot);
        Some(self.slots.len() - 1)
    }

    /// Ends the last block if it is a text: another block follows.
    fn close_last_text(&mut self, events: &mut Vec<AssistantMessageEvent>) {
        let at = self.slots.len().saturating_sub(1);
        if let Some(slot) = self.slots.last_mut().filter(|slot| !slot.is_call()) {
            events.extend(slot.close(at, &self.names));
        }
    }

    /// Applies a finish reason. The content filter may stop a response that has already ended.
    fn stop(&mut self, reason: &str, events: &mut Vec<AssistantMessageEvent>) {
        let is_filtered = reason == "content_filter";
        if !matches!(self.end, ChatEnd::Open) && !is_filtered {
            return;
        }
        self.end = match reason {
            _ if is_filtered => ChatEnd::Stopped(StopReason::Length, Some(CONTENT_FILTER_NOTE)),
            "length" | "model_length" => ChatEnd::Stopped(StopReason::Length, None),
            // Reasons of services that failed in the middle of a response.
            "error" | "abort" | "insufficient_system_resource" => {
                self.fail(ProviderError::connection_lost(format!(
                    "the service ended the response with the reason `{reason}`"
                )));
                return;
            }
            // `stop`, `tool_calls`, and the names that other services give them.
            _ => ChatEnd::Stopped(StopReason::Stop, None),
        };
        for (at, slot) in self.slots.iter_mut().enumerate() {
            events.extend(slot.close(at, &self.names));
        }
    }

    /// Marks the response as failed. Content received so far stays in the message. A complete
    /// response stays complete, even if the connection breaks before its usage.
    pub fn fail(&mut self, fault: ProviderError) {
        if matches!(self.end, ChatEnd::Open) {
            self.end = ChatEnd::Failed(Box::new(fault));
        }
    }

    pub fn finish(self) -> FoldedResponse {
        let has_call = self.slots.iter().any(BlockSlot::is_call);
        let (stop_reason, note, error) = match self.end {
            ChatEnd::Open => {
                let text = "stream closed before the finish reason";
                (StopReason::Error, None, Some(ProviderError::connection_lost(text)))
            }
            ChatEnd::Failed(fault) => (StopReason::Error, None, Some(*fault)),
            ChatEnd::Stopped(StopReason::Stop, note) if has_call => {
                (StopReason::ToolUse, note, None)
            }
            ChatEnd::Stopped(stop, note) => (stop, note, None),
        };
        let mut usage = self.usage.unwrap_or_default();
        usage.cost = self.tariff.cost(&usage);
        let message = AssistantMessage {
            content: self.slots.into_iter().map(|slot| slot.into_block(&self.names)).collect(),
            api: super::API.to_owned(),
            provider: PROVIDER.to_owned(),
            model: self.model,
            usage: usage.into(),
            stop_reason,
            error_message: error
                .as_ref()
                .map(|fault| fault.text.clone())
                .or(note.map(str::to_owned)),
            timestamp: Timestamp(0),
            extra: Extra::new(),
        };
        let metadata = CallMetadata {
            status: error.as_ref().and_then(|fault| fault.status),
            error: error.as_ref().and_then(ProviderError::name),
            param: error.as_ref().and_then(|fault| fault.param.clone()),
            ..self.metadata
        };
        FoldedResponse { message, error, metadata }
    }
}
