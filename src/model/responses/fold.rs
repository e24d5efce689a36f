//! Folds stream events into one assistant message. Pure: every recorded stream is a test.

use serde_json::Value;

use crate::agent::content::Block;
use crate::agent::event::AnswerEvent;
use crate::agent::message::{AssistantMessage, StopReason};
use crate::agent::raw::Extra;
use crate::agent::usage::Usage;
use crate::clock::Timestamp;
use crate::model::Reply;
use crate::model::catalogue::Tariff;
use crate::model::responses::event::{Event, Frame, Piece};
use crate::model::responses::fault::Fault;
use crate::model::responses::names::Names;

mod slot;
pub(crate) use slot::CARRIED;
use slot::{Part, Slot};

/// Items of one response. Each event is matched by a linear search.
const ITEMS_MAX: usize = 1_024;

/// A response that is being received.
#[derive(Debug)]
pub struct Fold {
    model: String,
    tariff: Tariff,
    names: Names,
    /// Slots in order of their items' appearance, which is the order of the message's blocks.
    slots: Vec<Slot>,
    usage: Usage,
    end: End,
    reply: Reply,
}

#[derive(Debug)]
enum End {
    Open,
    /// Failed without a reason. Azure sends the details in an `error` event after it.
    FailedMutely,
    Failed(Box<Fault>),
    Ended {
        stop: StopReason,
        note: Option<String>,
    },
}

/// A finished response. `fault` is set exactly when the stop reason is `error`.
#[derive(Debug)]
pub struct Folded {
    pub message: AssistantMessage,
    pub fault: Option<Fault>,
    pub reply: Reply,
}

impl Fold {
    pub fn new(model: impl Into<String>, tariff: Tariff, names: Names) -> Self {
        Self {
            model: model.into(),
            tariff,
            names,
            slots: Vec::new(),
            usage: Usage::default(),
            end: End::Open,
            reply: Reply::default(),
        }
    }

    /// True if later events cannot change the response.
    pub fn is_over(&self) -> bool {
        matches!(self.end, End::Failed(_) | End::Ended { .. })
    }

    /// True if the response failed without a reason. If the service sends one, it follows at once.
    pub fn awaits_reason(&self) -> bool {
        matches!(self.end, End::FailedMutely)
    }

    /// Applies one frame of the stream: its `event:` line and its data.
    pub fn push_frame(&mut self, name: Option<&str>, data: &str) -> Vec<AnswerEvent> {
        match Event::read(name, data) {
            Frame::Piece(piece) => self.grow(&piece),
            Frame::Event(event) => self.push(&event),
            Frame::Noise => Vec::new(),
            Frame::BrokenEnd { kind } => {
                self.fail(Fault::lost(format!("the {kind} event could not be parsed")));
                Vec::new()
            }
        }
    }

    /// Applies one event. Unknown kinds have no effect.
    pub fn push(&mut self, event: &Event) -> Vec<AnswerEvent> {
        if self.is_over() {
            return Vec::new();
        }
        self.note_reply(event);
        if let Some(piece) = event.piece() {
            return self.grow(&piece);
        }
        match event.kind.as_str() {
            "response.output_item.added" => self.open(event),
            "response.output_item.done" => self.close(event),
            "response.reasoning_summary_part.done" => self
                .slot(event.output_index())
                .and_then(|slot| slot.grow("\n\n", Part::grow_thinking))
                .into_iter()
                .collect(),
            "response.function_call_arguments.done" => {
                if let Some(arguments) = event.text("arguments")
                    && let Some(slot) = self.slot(event.output_index())
                {
                    slot.settle_arguments(arguments);
                }
                Vec::new()
            }
            "response.completed" | "response.incomplete" => self.complete(event),
            "response.failed" => {
                self.failed(event);
                Vec::new()
            }
            "error" => {
                match Fault::of_error_event(event.body()) {
                    Some(fault) => self.fail(fault),
                    None => self.end = End::FailedMutely,
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Records the response id and model. The first and the last events contain the whole response.
    fn note_reply(&mut self, event: &Event) {
        let Some(response) = event.get("response") else { return };
        for (place, name) in [(&mut self.reply.id, "id"), (&mut self.reply.model, "model")] {
            if place.is_none() {
                *place = response.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
            }
        }
    }

    /// Marks the response as failed. Content received so far stays in the message; the first error
    /// wins.
    pub fn fail(&mut self, fault: Fault) {
        if !self.is_over() {
            self.end = End::Failed(Box::new(fault));
        }
    }

    pub fn finish(mut self) -> Folded {
        let is_called = self.slots.iter().any(|slot| matches!(slot.part, Part::Call { .. }));
        let is_half_made =
            self.slots.iter().any(|slot| matches!(slot.part, Part::Call { .. }) && !slot.is_done);
        let (stop, error, fault) = match self.end {
            End::Open => failure(Fault::lost("stream closed before response.completed")),
            End::FailedMutely => failure(Fault::unexplained("failed")),
            End::Failed(fault) => failure(*fault),
            End::Ended { stop, note } => {
                let stop = match stop {
                    // A call without an end may be truncated. The stop reason `length` prevents its
                    // execution.
                    StopReason::Stop if is_half_made => StopReason::Length,
                    StopReason::Stop if is_called => StopReason::ToolUse,
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
            usage: self.usage,
            stop_reason: stop,
            error_message: error,
            timestamp: Timestamp(0),
            extra: Extra::new(),
        };
        let error = fault.as_ref().and_then(Fault::name);
        let status = fault.as_ref().and_then(|fault| fault.status);
        Folded { message, fault, reply: Reply { status, error, ..self.reply } }
    }

    /// Finds a slot by `output_index`, because ids may change during the stream. Without an index,
    /// it is the item that was opened last.
    fn slot(&mut self, index: Option<u64>) -> Option<&mut Slot> {
        let at = self.find(index)?;
        self.slots.get_mut(at)
    }

    fn find(&self, index: Option<u64>) -> Option<usize> {
        let named = index
            .and_then(|index| self.slots.iter().rposition(|slot| slot.output_index == Some(index)));
        named.or_else(|| {
            self.slots
                .iter()
                .rposition(|slot| !slot.is_done && (index.is_none() || slot.output_index.is_none()))
        })
    }

    fn grow(&mut self, piece: &Piece<'_>) -> Vec<AnswerEvent> {
        let into: fn(&mut Part, &str, usize) -> Option<AnswerEvent> = match piece.kind.as_ref() {
            "response.output_text.delta" | "response.refusal.delta" => Part::grow_text,
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                Part::grow_thinking
            }
            "response.function_call_arguments.delta" => Part::grow_arguments,
            _ => return Vec::new(),
        };
        if self.is_over() {
            return Vec::new();
        }
        let slot = self.slot(piece.output_index);
        slot.and_then(|slot| slot.grow(&piece.delta, into)).into_iter().collect()
    }

    fn open(&mut self, event: &Event) -> Vec<AnswerEvent> {
        let Some((item, kind)) = event.item() else { return Vec::new() };
        let index = event.output_index();
        let is_known = index.is_some()
            && self.slots.iter().any(|slot| slot.output_index == index && !slot.is_done);
        if is_known {
            return Vec::new();
        }
        self.begin(index, item, kind).into_iter().collect()
    }

    fn begin(&mut self, index: Option<u64>, item: &Value, kind: &str) -> Option<AnswerEvent> {
        if self.slots.len() >= ITEMS_MAX {
            // A retry would return as many items.
            self.fail(Fault::refused(format!(
                "the model response has more than {ITEMS_MAX} items"
            )));
            return None;
        }
        let content_index = self.slots.iter().filter(|slot| slot.part.is_block()).count();
        let slot = Slot::open(index, item, kind, content_index);
        let start = slot.start(&self.names);
        self.slots.push(slot);
        start
    }

    fn close(&mut self, event: &Event) -> Vec<AnswerEvent> {
        let Some((item, kind)) = event.item() else { return Vec::new() };
        self.settle(event.output_index(), item, kind)
    }

    /// Completes an item with its final state. An item that was never opened is opened first.
    fn settle(&mut self, index: Option<u64>, item: &Value, kind: &str) -> Vec<AnswerEvent> {
        let mut events = Vec::new();
        let found = self
            .find(index)
            .filter(|at| self.slots.get(*at).is_some_and(|slot| slot.part.is_of(kind)));
        let at = if let Some(at) = found {
            at
        } else {
            events.extend(self.begin(index, item, kind));
            if self.is_over() {
                return events;
            }
            self.slots.len().saturating_sub(1)
        };
        if let Some(slot) = self.slots.get_mut(at).filter(|slot| !slot.is_done) {
            events.extend(slot.settle(item, &self.names));
        }
        events
    }

    fn complete(&mut self, event: &Event) -> Vec<AnswerEvent> {
        let Some(response) = event.get("response").filter(|response| response.is_object()) else {
            self.fail(Fault::lost(format!("the {} event contains no response", event.kind)));
            return Vec::new();
        };
        self.usage = usage(response.get("usage"));
        let output =
            response.get("output").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let mut events = Vec::new();
        if self.slots.is_empty() {
            // Some gateways stream only the terminal event.
            for (index, item) in (0..).zip(output) {
                let kind = item.get("type").and_then(Value::as_str).unwrap_or_default();
                events.extend(self.settle(Some(index), item, kind));
                if self.is_over() {
                    return events;
                }
            }
        }
        let output = output.get(..output.len().min(ITEMS_MAX)).unwrap_or_default();
        for slot in &mut self.slots {
            slot.backfill(output);
        }
        self.end = match response.get("status").and_then(Value::as_str) {
            Some(status @ ("failed" | "cancelled")) => {
                let fault = Fault::of_failed_response(response);
                End::Failed(Box::new(fault.unwrap_or_else(|| Fault::unexplained(status))))
            }
            Some("incomplete") => cut(response),
            _ if event.kind == "response.incomplete" => cut(response),
            _ => End::Ended { stop: StopReason::Stop, note: None },
        };
        events
    }

    fn failed(&mut self, event: &Event) {
        let response = event.get("response").unwrap_or(&Value::Null);
        self.usage = usage(response.get("usage"));
        match Fault::of_failed_response(response) {
            Some(fault) => self.fail(fault),
            None => self.end = End::FailedMutely,
        }
    }
}

fn failure(fault: Fault) -> (StopReason, Option<String>, Option<Fault>) {
    (StopReason::Error, Some(fault.text.clone()), Some(fault))
}

/// Ends a truncated response with `length`. A note names the content filter as the reason.
fn cut(response: &Value) -> End {
    let reason = response.pointer("/incomplete_details/reason").and_then(Value::as_str);
    let note = (reason == Some("content_filter"))
        .then(|| "The content filter of the service cut off this response.".to_owned());
    End::Ended { stop: StopReason::Length, note }
}

/// Parses the usage. `input_tokens` includes cached tokens, read and written, which have other
/// prices.
fn usage(usage: Option<&Value>) -> Usage {
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
