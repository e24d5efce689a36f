//! Tool results in source order.
//!
//! A result that precedes an earlier call's result is stored in a buffer entry, so that no crash
//! loses it. It is appended to the path when all earlier results are.

use std::sync::Arc;

use crate::content::Block;
use crate::entry::{Entry, EntryBody, MessageEntry, Output, OutputEntry, ToolReturned};
use crate::event::{EventBody, OutputRef, ToolExecutionEnd};
use crate::message::{Message, ToolResultMessage};
use crate::phase::CallStatus;
use crate::request::CallRef;
use crate::step::failures;
use crate::step::next::Next;
use crate::transition::Transition;
use crate::unknown_members::Extra;
use turnwheel_json::raw::RawJson;

/// Operations of a commit that buffered results may use. The next calls and the ends of turn and
/// prompt still fit.
const FLUSH_OPERATIONS_MAX: usize = 66;
/// Like [`FLUSH_OPERATIONS_MAX`], for a prompt that fails or aborts: only its end follows.
const FINAL_FLUSH_OPERATIONS_MAX: usize = 74;
/// Bytes of buffered results in one commit, in addition to a new result.
const FLUSH_BYTES_MAX: u64 = 384 * 1024;

/// A call whose result was just received.
pub(super) struct ReceivedCall {
    pub(super) call: CallRef,
    /// True if the prompt's view already contains an output of the call.
    pub(super) has_output: bool,
}

/// Appends a result whose earlier results are all on the path.
pub(super) fn append_result(
    transition: &mut Transition,
    finished_call: &ReceivedCall,
    message: ToolResultMessage,
    outputs: &[Output],
) {
    let index = finished_call.call.index;
    assert_eq!(
        transition.call_batch().next_in_order(),
        Some(index),
        "an earlier call has no result"
    );
    let entry = append_result_message(transition, finished_call.call, message);
    emit_execution_end(transition, &entry);
    transition.emit_message(&entry);
    emit_output(transition, finished_call, &entry);
    append_outputs(transition, finished_call.call, outputs);
}

/// Buffers a result because an earlier call has none yet.
pub(super) fn buffer_result(
    transition: &mut Transition,
    finished_call: &ReceivedCall,
    message: ToolResultMessage,
    outputs: &[Output],
) {
    let returned = ToolReturned {
        call: finished_call.call,
        message,
        outputs: outputs.to_vec(),
        extra: Extra::new(),
    };
    let bytes = RawJson::from_value(&returned).text().len() as u64;
    let entry = transition.append(EntryBody::ToolReturned(returned));
    let seq = entry.base.seq;
    set_done(transition, finished_call.call.index, seq, Some(bytes));
    emit_execution_end(transition, &entry);
    emit_output(transition, finished_call, &entry);
    transition.buffered.push(entry);
}

/// Appends buffered results that are next in source order, as far as one commit has room. The turn
/// closes when all results are on the path.
pub(super) fn flush_buffered(transition: &mut Transition) -> Next {
    while let Some((index, seq, bytes)) = next_buffered(transition) {
        // A single result always has room; otherwise there would be no progress.
        let is_alone = transition.entries.is_empty() && !transition.is_prompt_ending;
        if !is_alone && !has_room(transition, index, seq, bytes) {
            return Next::Wait;
        }
        flush_result(transition, index, seq, bytes);
    }
    let batch = transition.call_batch();
    if batch.calls.is_empty() || batch.next_in_order().is_some() {
        return Next::Wait;
    }
    Next::CloseTurn
}

/// Like [`flush_buffered`], for the last commit of a prompt: a result without room is replaced by a
/// reference to its entry.
pub(super) fn flush_or_reference(transition: &mut Transition, index: usize) -> Next {
    let next = flush_buffered(transition);
    let Some((_, seq, _)) = next_buffered(transition).filter(|(first, ..)| *first == index) else {
        return next;
    };
    let Some((returned, entry)) = find_buffered(transition, seq) else { return next };
    let text = format!(
        "[The result of this call is stored as entry {}. It was too large to append when the prompt ended.]",
        entry.base.entry_id
    );
    let call = returned.call;
    let message = ToolResultMessage {
        content: vec![Block::text(text)],
        details: None,
        structured_content: None,
        ..returned.message.clone()
    };
    let entry = append_result_message(transition, call, message);
    transition.emit_message(&entry);
    flush_buffered(transition)
}

/// The next result in source order if it is buffered: index, `seq` and bytes.
fn next_buffered(transition: &Transition) -> Option<(usize, u64, u64)> {
    let index = transition.call_batch().next_in_order()?;
    match transition.calls().get(index)?.status {
        CallStatus::Done { result_seq: result, buffered: Some(bytes) } => {
            Some((index, result, bytes))
        }
        CallStatus::Done { buffered: None, .. }
        | CallStatus::Ready
        | CallStatus::Waiting { .. }
        | CallStatus::Started { .. } => None,
    }
}

fn has_room(transition: &Transition, index: usize, seq: u64, bytes: u64) -> bool {
    let outputs = find_buffered(transition, seq).map_or(0, |(returned, _)| returned.outputs.len());
    let (limit, after) = if transition.is_prompt_ending {
        (FINAL_FLUSH_OPERATIONS_MAX, transition.calls().len() - index - 1)
    } else {
        (FLUSH_OPERATIONS_MAX, 0)
    };
    transition.operation_count() + 1 + outputs + after <= limit
        && transition.flushed_bytes + bytes <= FLUSH_BYTES_MAX
}

fn find_buffered(transition: &Transition, seq: u64) -> Option<(&ToolReturned, &Entry)> {
    let entry = transition.buffered.iter().find(|entry| entry.base.seq == seq)?;
    let EntryBody::ToolReturned(returned) = &entry.body else { return None };
    Some((returned, entry))
}

fn flush_result(transition: &mut Transition, index: usize, seq: u64, bytes: u64) {
    let Some((returned, _)) = find_buffered(transition, seq) else {
        // Unreachable: the driver loads every entry that the phase names. A call without a result
        // would be worse than a missing message.
        set_done(transition, index, seq, None);
        return;
    };
    let ToolReturned { call, message, outputs, extra: _ } = returned.clone();
    transition.flushed_bytes += bytes;
    transition.head.reset_suspicion();
    let entry = append_result_message(transition, call, message);
    transition.emit_message(&entry);
    append_outputs(transition, call, &outputs);
    transition.buffered.retain(|entry| entry.base.seq != seq);
}

fn append_result_message(
    transition: &mut Transition,
    call: CallRef,
    message: ToolResultMessage,
) -> Arc<Entry> {
    failures::record_result(transition, &message);
    let entry = transition.append(EntryBody::Message(MessageEntry {
        call: Some(call),
        ..MessageEntry::new(Message::ToolResult(message))
    }));
    set_done(transition, call.index, entry.base.seq, None);
    entry
}

fn set_done(transition: &mut Transition, index: usize, result: u64, buffered: Option<u64>) {
    if let Some(call) = transition.call_mut(index) {
        call.status = CallStatus::Done { result_seq: result, buffered };
    }
}

fn emit_execution_end(transition: &mut Transition, entry: &Entry) {
    let Some(result) = entry.body.tool_result() else { return };
    transition.emit(EventBody::ToolExecutionEnd(ToolExecutionEnd {
        tool_call_id: result.tool_call_id.clone(),
        tool_name: result.tool_name.clone(),
        is_error: result.is_error,
        result: entry.base.seq,
    }));
}

fn emit_output(transition: &mut Transition, finished_call: &ReceivedCall, entry: &Entry) {
    let output = OutputRef { seq: entry.base.seq, block: None, call: Some(finished_call.call) };
    transition.emit(if finished_call.has_output {
        EventBody::PromptOutputUpdated(output)
    } else {
        EventBody::PromptOutput(output)
    });
}

fn append_outputs(transition: &mut Transition, call: CallRef, outputs: &[Output]) {
    for output in outputs {
        let side = transition.append(EntryBody::Output(OutputEntry {
            output: output.clone(),
            call: Some(call),
            extra: Extra::new(),
        }));
        transition.emit(EventBody::PromptOutput(OutputRef {
            seq: side.base.seq,
            block: None,
            call: None,
        }));
    }
}
