//! Folds stream events into one assistant message. Pure: every recorded stream is a test.

use serde_json::Value;

use crate::CallMetadata;
use crate::catalogue::Tariff;
use crate::response_text::omitted_extra;
use crate::responses::event::{ParsedFrame, ProviderEvent, text_address};
use crate::responses::names::ToolNames;
use crate::responses::provider_error::ProviderError;
use crate::split_characters::SplitCharacters;
use crate::token_counts::TokenCounts;
use turnwheel_conversation::content::Block;
use turnwheel_conversation::event::AssistantMessageEvent;
use turnwheel_conversation::message::{AssistantMessage, StopReason};
use turnwheel_platform::clock::Timestamp;

mod call_parts;
mod item;
mod items;
mod lost_frames;
mod merge;
mod omitted;
mod part_texts;
mod slot;
pub(crate) use call_parts::is_empty_object;
pub use call_parts::{is_object, tool_call};
use lost_frames::LostFrames;
pub(crate) use slot::REPLAYABLE_ITEMS;
use slot::{ItemSlot, SlotContent};

/// Items of one response. Each event is matched by a linear search.
pub const ITEMS_MAX: usize = 1_024;
/// Error of a response with an event whose content is lost.
const LOST_EVENT: &str = "an event of the response could not be parsed";
/// Note of a response that the content filter cut off; it appears in `incompleteDetails`.
pub(crate) const CONTENT_FILTER_NOTE: &str =
    "The content filter of the service cut off this response.";

/// A response that is being received.
#[derive(Debug)]
pub struct ResponseFold {
    model: String,
    tariff: Tariff,
    names: ToolNames,
    /// Slots in order of their items' appearance, which is the order of the message's blocks.
    slots: Vec<ItemSlot>,
    tokens: TokenCounts,
    end: ResponseEnd,
    metadata: CallMetadata,
    split_characters: SplitCharacters,
    lost: LostFrames,
    /// True if an event was read without a part of its content.
    has_lossy_event: bool,
    /// Types of the output that the message lacks.
    omitted: Vec<String>,
}

#[derive(Debug)]
enum ResponseEnd {
    Open,
    /// Failed without a reason. Azure sends the details in an `error` event after it.
    FailedWithoutReason,
    Failed(Box<ProviderError>),
    Completed {
        stop: StopReason,
        note: Option<String>,
    },
}

/// A finished response. `fault` is set exactly when the stop reason is `error`.
#[derive(Debug)]
pub struct FoldedResponse {
    pub message: AssistantMessage,
    pub error: Option<ProviderError>,
    pub metadata: CallMetadata,
}

impl ResponseFold {
    pub fn new(model: impl Into<String>, tariff: Tariff, names: ToolNames) -> Self {
        Self {
            model: model.into(),
            tariff,
            names,
            slots: Vec::new(),
            tokens: TokenCounts::default(),
            end: ResponseEnd::Open,
            metadata: CallMetadata::default(),
            split_characters: SplitCharacters::default(),
            lost: LostFrames::default(),
            has_lossy_event: false,
            omitted: Vec::new(),
        }
    }

    /// True if later events cannot change the response.
    pub fn is_finished(&self) -> bool {
        matches!(self.end, ResponseEnd::Failed(_) | ResponseEnd::Completed { .. })
    }

    /// True if the response failed without a reason. If the service sends one, it follows at once.
    pub(crate) fn is_awaiting_reason(&self) -> bool {
        matches!(self.end, ResponseEnd::FailedWithoutReason)
    }

    /// Applies one frame of the stream: its `event:` line and its data.
    pub fn push_frame(&mut self, name: Option<&str>, data: &str) -> Vec<AssistantMessageEvent> {
        let data = self.split_characters.join(data, text_address);
        match ProviderEvent::parse(name, &data) {
            ParsedFrame::Delta(piece) => self.append_delta(&piece),
            ParsedFrame::Event(event) => self.push_event(&event),
            ParsedFrame::Ignored => {
                if !self.is_finished() && self.lost.add(name, &data) {
                    self.lose_arguments();
                }
                Vec::new()
            }
            // Its error and usage count, and over a socket the rest of the response follows.
            ParsedFrame::Lossy(event) => {
                self.has_lossy_event |= !self.is_finished();
                self.push_event(&event)
            }
            ParsedFrame::MalformedEnd { kind: "error" } if !data.trim_start().starts_with('{') => {
                self.fail(ProviderError::from_text(&data));
                Vec::new()
            }
            ParsedFrame::MalformedEnd { kind } => {
                self.fail(ProviderError::connection_lost(format!(
                    "the {kind} event could not be parsed"
                )));
                Vec::new()
            }
        }
    }

    /// Applies one event. Unknown kinds have no effect, unless they hold a response or an error.
    pub fn push_event(&mut self, event: &ProviderEvent) -> Vec<AssistantMessageEvent> {
        if self.is_finished() {
            return Vec::new();
        }
        self.record_metadata(event);
        if let Some(piece) = event.as_delta() {
            let mut events = self.omit_delta(event);
            events.extend(self.append_delta(&piece));
            return events;
        }
        if event.has_lost_delta() {
            return self.lose_delta(event);
        }
        match event.kind.as_str() {
            "response.output_text.delta" => self.omit_delta(event),
            "response.output_item.added" => self.open_item(event),
            "response.output_item.done" => self.close_item(event),
            "response.content_part.done" | "response.reasoning_summary_part.done" => {
                self.merge_part(event)
            }
            "response.output_text.done"
            | "response.refusal.done"
            | "response.reasoning_summary_text.done"
            | "response.reasoning_text.done"
            | "response.function_call_arguments.done"
            | "response.custom_tool_call_input.done" => {
                self.merge_text(event, &event.whole_text().unwrap_or_default())
            }
            "response.completed" | "response.incomplete" => self.complete_response(event),
            "response.failed" | "response.error" => self.fail_response(event),
            "error" => {
                match ProviderError::from_error_event(event.body()) {
                    Some(fault) => self.fail(fault),
                    None => self.end = ResponseEnd::FailedWithoutReason,
                }
                Vec::new()
            }
            "response.created" | "response.queued" | "response.in_progress" => Vec::new(),
            _ => self.apply_other_event(event),
        }
    }

    /// Applies an event of an unknown kind. Gateways send ends and errors in forms of their own.
    fn apply_other_event(&mut self, event: &ProviderEvent) -> Vec<AssistantMessageEvent> {
        let is_own = event.kind.starts_with("response.");
        let status =
            event.response().map(|response| response.get("status").and_then(Value::as_str));
        match status {
            Some(Some("completed" | "incomplete" | "failed" | "cancelled")) => {
                return self.complete_response(event);
            }
            Some(None) if !is_own => return self.complete_response(event),
            Some(_) | None => {}
        }
        if let Some(fault) = ProviderError::from_other_event(event.body()).filter(|_| !is_own) {
            self.fail(fault);
        }
        Vec::new()
    }

    /// Records the response id, model and usage. The first and the last events contain the whole
    /// response.
    fn record_metadata(&mut self, event: &ProviderEvent) {
        let response = event.response();
        let usage = response.and_then(|response| response.get("usage"));
        for report in [event.member("usage"), usage].into_iter().flatten() {
            self.tokens.merge(report);
        }
        let Some(response) = response else { return };
        for (place, name) in [(&mut self.metadata.id, "id"), (&mut self.metadata.model, "model")] {
            if place.is_none() {
                *place = response.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
            }
        }
    }

    /// Marks the response as failed. Content received so far stays in the message; the first error
    /// wins.
    pub fn fail(&mut self, fault: ProviderError) {
        if !self.is_finished() {
            self.end = ResponseEnd::Failed(Box::new(fault));
        }
    }

    /// True if a lost event may have had content that no other event has.
    fn has_lost_part(&self) -> bool {
        let has_output = self.slots.iter().any(ItemSlot::has_output);
        let may_lack = |slot: &ItemSlot| slot.may_lack_content(&self.lost);
        self.has_lossy_event || self.lost.is_any && (!has_output || self.slots.iter().any(may_lack))
    }

    pub fn finish(self) -> FoldedResponse {
        let has_call =
            self.slots.iter().any(|slot| matches!(slot.content, SlotContent::Call { .. }));
        let has_incomplete_call = self.slots.iter().any(|slot| {
            matches!(&slot.content, SlotContent::Call(call) if !slot.is_complete && !call.is_whole())
        });
        let has_lost_part = self.has_lost_part();
        let (stop, error, fault) = match self.end {
            ResponseEnd::Open => error_outcome(ProviderError::connection_lost(
                "stream closed before response.completed",
            )),
            ResponseEnd::FailedWithoutReason => {
                error_outcome(ProviderError::without_details("failed"))
            }
            ResponseEnd::Failed(fault) => error_outcome(*fault),
            ResponseEnd::Completed { .. } if has_lost_part => {
                error_outcome(ProviderError::connection_lost(LOST_EVENT))
            }
            ResponseEnd::Completed { stop, note } => {
                let stop = match stop {
                    // A call without an end may be truncated. The stop reason `length` prevents its
                    // execution.
                    StopReason::Stop if has_incomplete_call => StopReason::Length,
                    StopReason::Stop if has_call => StopReason::ToolUse,
                    StopReason::Stop
                    | StopReason::Length
                    | StopReason::ToolUse
                    | StopReason::Error
                    | StopReason::Aborted => stop,
                };
                (stop, note, None)
            }
        };
        let mut usage = self.tokens.responses_usage();
        usage.cost = self.tariff.cost(&usage);
        let content: Vec<Block> =
            self.slots.into_iter().filter_map(|slot| slot.into_block(&self.names)).collect();
        let message = AssistantMessage {
            content,
            api: super::API.to_owned(),
            provider: super::PROVIDER.to_owned(),
            model: self.model,
            usage: usage.into(),
            stop_reason: stop,
            error_message: error,
            timestamp: Timestamp(0),
            extra: omitted_extra(self.omitted),
        };
        let error = fault.as_ref().and_then(ProviderError::name);
        let status = fault.as_ref().and_then(|fault| fault.status);
        let param = fault.as_ref().and_then(|fault| fault.param.clone());
        FoldedResponse {
            message,
            error: fault,
            metadata: CallMetadata { status, param, error, ..self.metadata },
        }
    }

    fn complete_response(&mut self, event: &ProviderEvent) -> Vec<AssistantMessageEvent> {
        let Some(response) = event.response() else {
            self.fail(ProviderError::connection_lost(format!(
                "the {} event contains no response",
                event.kind
            )));
            return Vec::new();
        };
        let mut events = self.merge_output(response);
        if self.is_finished() {
            return events;
        }
        events.extend(self.add_left_over(response));
        self.end = match response.get("status").and_then(Value::as_str) {
            Some(status @ ("failed" | "cancelled")) => {
                let fault = ProviderError::from_failed_response(response);
                ResponseEnd::Failed(Box::new(
                    fault.unwrap_or_else(|| ProviderError::without_details(status)),
                ))
            }
            Some("incomplete") => truncated_end(response),
            _ if event.kind == "response.incomplete" => truncated_end(response),
            _ => ResponseEnd::Completed { stop: StopReason::Stop, note: None },
        };
        events
    }

    fn fail_response(&mut self, event: &ProviderEvent) -> Vec<AssistantMessageEvent> {
        let response = event.response().unwrap_or(&Value::Null);
        let events = self.merge_output(response);
        let fault = ProviderError::from_failed_response(response)
            .or_else(|| ProviderError::from_error_event(event.body()));
        match fault {
            Some(fault) => self.fail(fault),
            None if !self.is_finished() => self.end = ResponseEnd::FailedWithoutReason,
            None => {}
        }
        events
    }
}

fn error_outcome(fault: ProviderError) -> (StopReason, Option<String>, Option<ProviderError>) {
    (StopReason::Error, Some(fault.text.clone()), Some(fault))
}

/// Ends a truncated response with `length`. A note names the content filter as the reason.
fn truncated_end(response: &Value) -> ResponseEnd {
    let reason = response.pointer("/incomplete_details/reason").and_then(Value::as_str);
    let note = (reason == Some("content_filter")).then(|| CONTENT_FILTER_NOTE.to_owned());
    ResponseEnd::Completed { stop: StopReason::Length, note }
}

#[cfg(test)]
mod left_over_tests;
#[cfg(test)]
mod merge_tests;
#[cfg(test)]
mod odd_value_tests;
#[cfg(test)]
mod tests;
