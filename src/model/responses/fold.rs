//! Folds stream events into one assistant message. Pure: every recorded stream is a test.

use serde_json::Value;

use crate::agent::content::Block;
use crate::agent::event::AssistantMessageEvent;
use crate::agent::message::{AssistantMessage, StopReason};
use crate::agent::raw::Extra;
use crate::agent::usage::Usage;
use crate::clock::Timestamp;
use crate::model::CallMetadata;
use crate::model::catalogue::Tariff;
use crate::model::responses::event::{DeltaEvent, ParsedFrame, ProviderEvent};
use crate::model::responses::names::ToolNames;
use crate::model::responses::provider_error::ProviderError;

mod slot;
use slot::{ItemSlot, SlotContent};
pub(crate) use slot::{REPLAYABLE_ITEMS, tool_call};

/// Items of one response. Each event is matched by a linear search.
pub(crate) const ITEMS_MAX: usize = 1_024;
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
    usage: Usage,
    end: ResponseEnd,
    metadata: CallMetadata,
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
            usage: Usage::default(),
            end: ResponseEnd::Open,
            metadata: CallMetadata::default(),
        }
    }

    /// True if later events cannot change the response.
    pub fn is_finished(&self) -> bool {
        matches!(self.end, ResponseEnd::Failed(_) | ResponseEnd::Completed { .. })
    }

    /// True if the response failed without a reason. If the service sends one, it follows at once.
    pub fn is_awaiting_reason(&self) -> bool {
        matches!(self.end, ResponseEnd::FailedWithoutReason)
    }

    /// Applies one frame of the stream: its `event:` line and its data.
    pub fn push_frame(&mut self, name: Option<&str>, data: &str) -> Vec<AssistantMessageEvent> {
        match ProviderEvent::parse(name, data) {
            ParsedFrame::Delta(piece) => self.append_delta(&piece),
            ParsedFrame::Event(event) => self.push_event(&event),
            ParsedFrame::Ignored => Vec::new(),
            ParsedFrame::MalformedEnd { kind } => {
                self.fail(ProviderError::connection_lost(format!(
                    "the {kind} event could not be parsed"
                )));
                Vec::new()
            }
        }
    }

    /// Applies one event. Unknown kinds have no effect.
    pub fn push_event(&mut self, event: &ProviderEvent) -> Vec<AssistantMessageEvent> {
        if self.is_finished() {
            return Vec::new();
        }
        self.record_metadata(event);
        if let Some(piece) = event.as_delta() {
            return self.append_delta(&piece);
        }
        match event.kind.as_str() {
            "response.output_item.added" => self.open_item(event),
            "response.output_item.done" => self.close_item(event),
            "response.reasoning_summary_part.done" => self
                .find_slot(event.output_index())
                .and_then(|slot| slot.append_delta("\n\n", SlotContent::append_thinking))
                .into_iter()
                .collect(),
            "response.function_call_arguments.done" => {
                if let Some(arguments) = event.string_member("arguments")
                    && let Some(slot) = self.find_slot(event.output_index())
                {
                    slot.set_arguments(arguments);
                }
                Vec::new()
            }
            "response.completed" | "response.incomplete" => self.complete_response(event),
            "response.failed" => {
                self.fail_response(event);
                Vec::new()
            }
            "error" => {
                match ProviderError::from_error_event(event.body()) {
                    Some(fault) => self.fail(fault),
                    None => self.end = ResponseEnd::FailedWithoutReason,
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Records the response id and model. The first and the last events contain the whole response.
    fn record_metadata(&mut self, event: &ProviderEvent) {
        let Some(response) = event.member("response") else { return };
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

    pub fn finish(mut self) -> FoldedResponse {
        let has_call =
            self.slots.iter().any(|slot| matches!(slot.content, SlotContent::Call { .. }));
        let has_incomplete_call = self
            .slots
            .iter()
            .any(|slot| matches!(slot.content, SlotContent::Call { .. }) && !slot.is_complete);
        let (stop, error, fault) = match self.end {
            ResponseEnd::Open => error_outcome(ProviderError::connection_lost(
                "stream closed before response.completed",
            )),
            ResponseEnd::FailedWithoutReason => {
                error_outcome(ProviderError::without_details("failed"))
            }
            ResponseEnd::Failed(fault) => error_outcome(*fault),
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
        self.usage.cost = self.tariff.cost(&self.usage);
        let content: Vec<Block> =
            self.slots.into_iter().filter_map(|slot| slot.into_block(&self.names)).collect();
        let message = AssistantMessage {
            content,
            api: super::API.to_owned(),
            provider: super::PROVIDER.to_owned(),
            model: self.model,
            usage: self.usage.into(),
            stop_reason: stop,
            error_message: error,
            timestamp: Timestamp(0),
            extra: Extra::new(),
        };
        let error = fault.as_ref().and_then(ProviderError::name);
        let status = fault.as_ref().and_then(|fault| fault.status);
        let param = fault.as_ref().and_then(|fault| fault.param.clone());
        FoldedResponse {
            message,
            error: fault,
            metadata: CallMetadata { status, error, param, ..self.metadata },
        }
    }

    /// Finds a slot by `output_index`, because ids may change during the stream. Without an index,
    /// it is the item that was opened last.
    fn find_slot(&mut self, index: Option<u64>) -> Option<&mut ItemSlot> {
        let at = self.find_slot_index(index)?;
        self.slots.get_mut(at)
    }

    fn find_slot_index(&self, index: Option<u64>) -> Option<usize> {
        let named = index
            .and_then(|index| self.slots.iter().rposition(|slot| slot.output_index == Some(index)));
        named.or_else(|| {
            self.slots.iter().rposition(|slot| {
                !slot.is_complete && (index.is_none() || slot.output_index.is_none())
            })
        })
    }

    fn append_delta(&mut self, piece: &DeltaEvent<'_>) -> Vec<AssistantMessageEvent> {
        let into: fn(&mut SlotContent, &str, usize) -> Option<AssistantMessageEvent> =
            match piece.kind.as_ref() {
                "response.output_text.delta" | "response.refusal.delta" => SlotContent::append_text,
                "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                    SlotContent::append_thinking
                }
                "response.function_call_arguments.delta" => SlotContent::append_arguments,
                _ => return Vec::new(),
            };
        if self.is_finished() {
            return Vec::new();
        }
        let slot = self.find_slot(piece.output_index);
        slot.and_then(|slot| slot.append_delta(&piece.delta, into)).into_iter().collect()
    }

    fn open_item(&mut self, event: &ProviderEvent) -> Vec<AssistantMessageEvent> {
        let Some((item, kind)) = event.item() else { return Vec::new() };
        let index = event.output_index();
        let is_known = index.is_some()
            && self.slots.iter().any(|slot| slot.output_index == index && !slot.is_complete);
        if is_known {
            return Vec::new();
        }
        self.add_slot(index, item, kind).into_iter().collect()
    }

    fn add_slot(
        &mut self,
        index: Option<u64>,
        item: &Value,
        kind: &str,
    ) -> Option<AssistantMessageEvent> {
        if self.slots.len() >= ITEMS_MAX {
            // A retry would return as many items.
            self.fail(ProviderError::permanent(format!(
                "the model response has more than {ITEMS_MAX} items"
            )));
            return None;
        }
        let content_index = self.slots.iter().filter(|slot| slot.content.is_block()).count();
        let slot = ItemSlot::open(index, item, kind, content_index);
        let start = slot.start_event(&self.names);
        self.slots.push(slot);
        start
    }

    fn close_item(&mut self, event: &ProviderEvent) -> Vec<AssistantMessageEvent> {
        let Some((item, kind)) = event.item() else { return Vec::new() };
        self.complete_item(event.output_index(), item, kind)
    }

    /// Completes an item with its final state. An item that was never opened is opened first.
    fn complete_item(
        &mut self,
        index: Option<u64>,
        item: &Value,
        kind: &str,
    ) -> Vec<AssistantMessageEvent> {
        let mut events = Vec::new();
        let found = self
            .find_slot_index(index)
            .filter(|at| self.slots.get(*at).is_some_and(|slot| slot.content.has_item_type(kind)));
        let at = if let Some(at) = found {
            at
        } else {
            events.extend(self.add_slot(index, item, kind));
            if self.is_finished() {
                return events;
            }
            self.slots.len().saturating_sub(1)
        };
        if let Some(slot) = self.slots.get_mut(at).filter(|slot| !slot.is_complete) {
            events.extend(slot.complete(item, &self.names));
        }
        events
    }

    fn complete_response(&mut self, event: &ProviderEvent) -> Vec<AssistantMessageEvent> {
        let Some(response) = event.member("response").filter(|response| response.is_object())
        else {
            self.fail(ProviderError::connection_lost(format!(
                "the {} event contains no response",
                event.kind
            )));
            return Vec::new();
        };
        self.usage = parse_usage(response.get("usage"));
        let output =
            response.get("output").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let mut events = Vec::new();
        if self.slots.is_empty() {
            // Some gateways stream only the terminal event.
            for (index, item) in (0..).zip(output) {
                let kind = item.get("type").and_then(Value::as_str).unwrap_or_default();
                events.extend(self.complete_item(Some(index), item, kind));
                if self.is_finished() {
                    return events;
                }
            }
        }
        let output = output.get(..output.len().min(ITEMS_MAX)).unwrap_or_default();
        for slot in &mut self.slots {
            slot.backfill_encrypted_content(output);
        }
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

    fn fail_response(&mut self, event: &ProviderEvent) {
        let response = event.member("response").unwrap_or(&Value::Null);
        self.usage = parse_usage(response.get("usage"));
        match ProviderError::from_failed_response(response) {
            Some(fault) => self.fail(fault),
            None => self.end = ResponseEnd::FailedWithoutReason,
        }
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

/// Parses the usage. `input_tokens` includes cached tokens, read and written, which have other
/// prices.
fn parse_usage(usage: Option<&Value>) -> Usage {
    let count = |pointer: &str| {
        usage.and_then(|usage| usage.pointer(pointer)).and_then(Value::as_u64).unwrap_or(0)
    };
    let input_tokens = count("/input_tokens");
    let cache_read = count("/input_tokens_details/cached_tokens").min(input_tokens);
    let cache_write =
        count("/input_tokens_details/cache_write_tokens").min(input_tokens - cache_read);
    let output = count("/output_tokens");
    let total = count("/total_tokens");
    Usage {
        input: input_tokens - cache_read - cache_write,
        output,
        cache_read,
        cache_write,
        reasoning: count("/output_tokens_details/reasoning_tokens"),
        total_tokens: if total == 0 { input_tokens.saturating_add(output) } else { total },
        ..Usage::default()
    }
}

#[cfg(test)]
mod tests;
