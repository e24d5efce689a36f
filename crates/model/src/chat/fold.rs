//! Folds Chat Completions chunks into one assistant message. Pure: every recorded stream is a test.

use std::borrow::Cow;

use serde_json::Value;

use crate::CallMetadata;
use crate::catalogue::Tariff;
use crate::chat::chunk::{CallDelta, CallPieces, Choice, Chunk, Delta, DeltaPiece, non_empty_text};
use crate::chat::chunk_repair::repair_chunk;
use crate::response_text::{OmittedPart, omitted_extra};
use crate::responses::PROVIDER;
use crate::responses::fold::{CONTENT_FILTER_NOTE, FoldedResponse, ITEMS_MAX};
use crate::responses::names::ToolNames;
use crate::responses::provider_error::ProviderError;
use crate::split_characters::SplitCharacters;
use crate::token_counts::TokenCounts;
use turnwheel_conversation::event::AssistantMessageEvent;
use turnwheel_conversation::message::{AssistantMessage, StopReason};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;

mod finish_reason;
#[cfg(test)]
mod malformed_chunk_tests;
mod message;
#[cfg(test)]
mod odd_value_tests;
mod slot;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod variant_tests;
use finish_reason::{FinishReason, NO_REASON_NOTE, unknown_reason_note};
use slot::{BlockSlot, CallStep};

/// The frame after the last chunk.
pub(crate) const END_FRAME: &str = "[DONE]";

/// A Chat Completions response that is being received.
#[derive(Debug)]
pub struct ChatFold {
    model: String,
    tariff: Tariff,
    names: ToolNames,
    /// Blocks in the order of their first delta.
    slots: Vec<BlockSlot>,
    tokens: TokenCounts,
    end: ChatEnd,
    /// True after [`END_FRAME`].
    is_done: bool,
    /// True if content followed a finish reason: it was not the last chunk.
    continues_after_stop: bool,
    /// True if a chunk had a message or a text in place of a delta.
    has_whole_choice: bool,
    /// Parts of unknown types that the message lacks.
    omitted: Vec<OmittedPart>,
    /// Parts of unknown types that the message shows.
    shown: Vec<OmittedPart>,
    metadata: CallMetadata,
    split_characters: SplitCharacters,
}

#[derive(Debug)]
enum ChatEnd {
    Open,
    Failed(Box<ProviderError>),
    /// A finish reason was received. Some services send one with each chunk.
    Stopped(StopReason, Option<String>),
}

impl ChatFold {
    pub fn new(model: impl Into<String>, tariff: Tariff, names: ToolNames) -> Self {
        Self {
            model: model.into(),
            tariff,
            names,
            slots: Vec::new(),
            tokens: TokenCounts::default(),
            end: ChatEnd::Open,
            is_done: false,
            continues_after_stop: false,
            has_whole_choice: false,
            omitted: Vec::new(),
            shown: Vec::new(),
            metadata: CallMetadata::default(),
            split_characters: SplitCharacters::default(),
        }
    }

    /// True if later chunks cannot change the response.
    pub fn is_finished(&self) -> bool {
        self.is_done || matches!(self.end, ChatEnd::Failed(_))
    }

    /// True if the response is complete but for its usage, which follows at once.
    pub(crate) fn is_awaiting_usage(&self) -> bool {
        matches!(self.end, ChatEnd::Stopped(..)) && !self.is_done && !self.continues_after_stop
    }

    /// True for a complete response without usage: its cost must be estimated.
    pub fn lacks_usage(&self) -> bool {
        matches!(self.end, ChatEnd::Stopped(..)) && self.tokens.chat_usage().is_none()
    }

    /// Applies one frame of the stream: its `event:` line and its data.
    pub fn push_frame(&mut self, name: Option<&str>, data: &str) -> Vec<AssistantMessageEvent> {
        let data = data.trim();
        if self.is_finished() || data.is_empty() {
            return Vec::new();
        }
        if data == END_FRAME {
            let mut events = Vec::new();
            self.show_omitted(&mut events);
            self.is_done = true;
            events.extend(self.close_slots());
            return events;
        }
        let data = self.split_characters.join(data, |chunk| {
            chunk.pointer("/choices/0/delta").map(Delta::text_address).unwrap_or_default()
        });
        let strict = serde_json::from_str::<Chunk<'_>>(&data).ok();
        let repaired = if strict.is_none() { repair_chunk(&data) } else { None };
        let data = repaired.as_ref().map_or(&*data, RawJson::text);
        let chunk = strict.or_else(|| serde_json::from_str(data).ok());
        if let Some(fault) = find_error(name, data, chunk.as_ref()) {
            self.fail(fault);
            return Vec::new();
        }
        let Some(chunk) = chunk else {
            // Nothing repeats a lost delta, so the response is lost with it.
            self.fail(ProviderError::connection_lost(
                "a chunk of the response could not be parsed",
            ));
            return Vec::new();
        };
        self.push_chunk(&chunk)
    }

    /// Applies the JSON texts of a response that is not a stream. Returns false if it is none.
    pub(crate) fn push_whole(&mut self, texts: &[&str]) -> (bool, Vec<AssistantMessageEvent>) {
        let mut events: Vec<AssistantMessageEvent> =
            texts.iter().flat_map(|text| self.push_frame(None, text)).collect();
        // One JSON text is never cut. Several may be the chunks of a stream without its end.
        if self.has_whole_choice && texts.len() == 1 && matches!(self.end, ChatEnd::Open) {
            self.end = ChatEnd::Stopped(StopReason::Stop, Some(NO_REASON_NOTE.to_owned()));
        }
        events.extend(self.push_frame(None, END_FRAME));
        (!self.slots.is_empty() || !matches!(self.end, ChatEnd::Open), events)
    }

    fn push_chunk(&mut self, chunk: &Chunk<'_>) -> Vec<AssistantMessageEvent> {
        for (place, raw) in
            [(&mut self.metadata.id, chunk.id), (&mut self.metadata.model, chunk.model)]
        {
            if place.is_none() {
                *place = non_empty_text(raw).map(Cow::into_owned);
            }
        }
        let mut events = Vec::new();
        // Only one choice is requested.
        let choices = chunk.choices.as_deref().unwrap_or_default();
        for choice in choices.iter().filter(|choice| choice.index() == 0) {
            self.push_choice(choice, &mut events);
        }
        let usages = choices.iter().map(|choice| choice.usage).chain([chunk.usage]);
        for usage in usages.flatten() {
            let report: Value = serde_json::from_str(usage.get()).unwrap_or_default();
            self.tokens.merge(&report);
        }
        events
    }

    fn push_choice(&mut self, choice: &Choice<'_>, events: &mut Vec<AssistantMessageEvent>) {
        let reason = non_empty_text(choice.finish_reason);
        if let Some(delta) = &choice.delta {
            self.push_delta(delta, events);
        }
        if let Some(message) = &choice.message {
            if choice.delta.is_none() && reason.is_none() {
                self.push_delta(message, events);
            } else {
                self.push_message(message, events);
            }
        }
        let bare_text = choice.bare_text();
        self.has_whole_choice |= choice.message.is_some() || bare_text.is_some();
        if let Some(piece) = bare_text {
            self.push_piece(&piece, events);
        }
        match (choice.read_error(), reason) {
            (Some(fault), _) => self.fail(fault),
            (None, Some(reason)) => self.stop(&reason, events),
            (None, None) => {}
        }
    }

    fn push_delta(&mut self, delta: &Delta<'_>, events: &mut Vec<AssistantMessageEvent>) {
        for piece in delta.pieces(&mut self.omitted) {
            self.push_piece(&piece, events);
        }
        for call in delta.calls().iter().chain(&self.single_call(delta)) {
            self.push_call(call, events);
        }
    }

    /// The only call in the older form. A service that also sends the newer form repeats it here.
    fn single_call<'a>(&self, delta: &Delta<'a>) -> Option<CallDelta<'a>> {
        let has_newer_form = self.slots.iter().any(BlockSlot::has_call_id);
        delta.single_call().filter(|_| !has_newer_form)
    }

    fn push_piece(&mut self, piece: &DeltaPiece<'_>, events: &mut Vec<AssistantMessageEvent>) {
        self.continues_after_stop |= matches!(self.end, ChatEnd::Stopped(..));
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
        let (index, pieces) = (call.index(), call.pieces());
        self.continues_after_stop |= matches!(self.end, ChatEnd::Stopped(..)) && !pieces.is_empty();
        let of_id =
            |id| self.slots.iter().rposition(|slot| slot.is_call_of(index) && slot.has_id(id));
        let found = pieces.id.as_deref().and_then(of_id);
        let found = found.or_else(|| self.slots.iter().rposition(|slot| slot.is_call_of(index)));
        let known = found.and_then(|at| Some((at, self.slots.get(at)?)));
        match known.map(|(at, slot)| (at, slot.next_step(&pieces, &self.names))) {
            Some((_, CallStep::Repeat)) => {}
            Some((at, CallStep::Continue)) => self.continue_call(at, &pieces, events),
            Some((at, CallStep::Begin)) => {
                let name = self.slots.get(at).and_then(BlockSlot::repeated_name);
                let name = pieces.name.or_else(|| name.map(Cow::Owned));
                self.begin_call(index, &CallPieces { name, ..pieces }, events);
            }
            None => self.begin_call(index, &pieces, events),
        }
    }

    fn begin_call(
        &mut self,
        index: Option<u64>,
        pieces: &CallPieces<'_>,
        events: &mut Vec<AssistantMessageEvent>,
    ) {
        if pieces.is_empty() {
            return;
        }
        self.close_last_text(events);
        if let Some(at) = self.add_slot(BlockSlot::of_call(index)) {
            self.continue_call(at, pieces, events);
        }
    }

    fn continue_call(
        &mut self,
        at: usize,
        pieces: &CallPieces<'_>,
        events: &mut Vec<AssistantMessageEvent>,
    ) {
        if let Some(slot) = self.slots.get_mut(at) {
            events.extend(slot.append_call(at, pieces, &self.names));
        }
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

    fn close_slots(&mut self) -> Vec<AssistantMessageEvent> {
        let slots = self.slots.iter_mut().enumerate();
        slots.flat_map(|(at, slot)| slot.close(at, &self.names)).collect()
    }

    /// Applies a finish reason. A later one may report that the response was cut.
    fn stop(&mut self, reason: &str, events: &mut Vec<AssistantMessageEvent>) {
        let is_first = matches!(self.end, ChatEnd::Open);
        if is_first {
            self.show_omitted(events);
        }
        if self.is_finished() {
            return;
        }
        let can_be_cut = is_first || self.has_stop(StopReason::Stop);
        let text = || format!("the service ended the response with the reason `{reason}`");
        self.end = match FinishReason::of(reason) {
            FinishReason::Filter => {
                ChatEnd::Stopped(StopReason::Length, Some(CONTENT_FILTER_NOTE.to_owned()))
            }
            FinishReason::Length if can_be_cut => ChatEnd::Stopped(StopReason::Length, None),
            FinishReason::Window if can_be_cut && self.has_output() => {
                ChatEnd::Stopped(StopReason::Length, None)
            }
            FinishReason::Window if is_first => {
                return self.fail(ProviderError::context_overflow(text()));
            }
            FinishReason::Failure if is_first => {
                return self.fail(ProviderError::connection_lost(text()));
            }
            FinishReason::Complete if is_first => ChatEnd::Stopped(StopReason::Stop, None),
            FinishReason::Unknown if is_first => {
                ChatEnd::Stopped(StopReason::Stop, Some(unknown_reason_note(reason)))
            }
            FinishReason::Complete
            | FinishReason::Length
            | FinishReason::Window
            | FinishReason::Failure
            | FinishReason::Unknown => return,
        };
        // Content after the first reason ends with the stream.
        if is_first {
            events.extend(self.close_slots());
        }
    }

    fn has_stop(&self, reason: StopReason) -> bool {
        matches!(self.end, ChatEnd::Stopped(stop, _) if stop == reason)
    }

    /// True if a text or a call was received.
    fn has_output(&self) -> bool {
        let has_text = |slot: &BlockSlot| slot.text(false).is_some_and(|it| !it.trim().is_empty());
        self.slots.iter().any(|slot| slot.is_call() || has_text(slot))
    }

    /// Marks the response as failed. Content received so far stays in the message. A complete
    /// response stays complete, even if the connection breaks before its usage.
    pub fn fail(&mut self, fault: ProviderError) {
        let is_open = match self.end {
            ChatEnd::Open => true,
            ChatEnd::Stopped(..) => self.continues_after_stop && !self.is_done,
            ChatEnd::Failed(_) => false,
        };
        if is_open {
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
        let mut usage = self.tokens.chat_usage().unwrap_or_default();
        usage.cost = self.tariff.cost(&usage);
        let message = AssistantMessage {
            content: self.slots.into_iter().map(|slot| slot.into_block(&self.names)).collect(),
            api: super::API.to_owned(),
            provider: PROVIDER.to_owned(),
            model: self.model,
            usage: usage.into(),
            stop_reason,
            error_message: error.as_ref().map(|fault| fault.text.clone()).or(note),
            timestamp: Timestamp(0),
            extra: omitted_extra(self.omitted.into_iter().map(|part| part.kind)),
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

/// The error of a frame, in any form.
fn find_error(name: Option<&str>, data: &str, chunk: Option<&Chunk<'_>>) -> Option<ProviderError> {
    let has_choice = chunk.is_some_and(|chunk| chunk.has_choice() && !chunk.reports_error());
    if has_choice && name != Some("error") {
        return None;
    }
    let is_error = name == Some("error")
        || chunk.is_some_and(|chunk| {
            // Beside a list of choices, an error without details is ignored.
            chunk.error.is_some() && chunk.choices.is_none()
                || non_empty_text(chunk.object).is_some_and(|kind| kind == "error")
        });
    let Ok(body) = serde_json::from_str(data) else {
        return (name == Some("error")).then(|| ProviderError::from_text(data));
    };
    let fault = if is_error {
        ProviderError::from_error_event(&body)
    } else {
        ProviderError::from_other_event(&body)
    };
    fault.or_else(|| is_error.then(|| ProviderError::without_details("error")))
}
