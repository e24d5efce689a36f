//! Tool results in source order.
//!
//! A result that precedes an earlier call's result is stored in a buffer entry, so that no crash
//! loses it. It is appended to the path when all earlier results are.

use std::sync::Arc;

use crate::agent::content::Block;
use crate::agent::draft::Draft;
use crate::agent::entry::{
    CallRef, Entry, EntryBody, MessageEntry, Output, OutputEntry, ToolReturned,
};
use crate::agent::event::{EventBody, OutputRef, ToolExecutionEnd};
use crate::agent::message::{Message, ToolResultMessage};
use crate::agent::phase::CallStatus;
use crate::agent::raw::RawJson;
use crate::agent::step::ending;

/// Operations of a commit that buffered results may use. The next calls and the ends of turn and
/// prompt still fit.
const PUT_OPERATIONS: usize = 66;
/// Like [`FLUSH_OPERATIONS_MAX`], for a prompt that fails or aborts: only its end follows.
const LAST_OPERATIONS: usize = 74;
/// Bytes of buffered results in one commit, in addition to a new result.
const PUT_BYTES: u64 = 384 * 1024;

/// A call whose result was just received.
pub(super) struct Ended {
    pub(super) call: CallRef,
    /// True if the prompt's view already contains an output of the call.
    pub(super) is_asked: bool,
}

/// Appends a result whose earlier results are all on the path.
pub(super) fn put(
    draft: &mut Draft,
    ended: &Ended,
    message: ToolResultMessage,
    outputs: &[Output],
) {
    let entry = append(draft, ended.call, message);
    tell_end(draft, &entry);
    draft.tell_message(&entry);
    tell_output(draft, ended, &entry);
    put_outputs(draft, ended.call, outputs);
}

/// Buffers a result because an earlier call has none yet.
pub(super) fn keep(
    draft: &mut Draft,
    ended: &Ended,
    message: ToolResultMessage,
    outputs: &[Output],
) {
    let returned = ToolReturned { call: ended.call, message, outputs: outputs.to_vec() };
    let bytes = RawJson::of(&returned).text().len() as u64;
    let entry = draft.append(EntryBody::ToolReturned(returned));
    let seq = entry.base.seq;
    set_done(draft, ended.call.index, seq, Some(bytes));
    tell_end(draft, &entry);
    tell_output(draft, ended, &entry);
    draft.kept.push(entry);
}

/// Appends buffered results that are next in source order, as far as one commit has room. Closes
/// the turn when all results are on the path.
pub(super) fn put_kept(draft: &mut Draft) {
    while let Some((index, seq, bytes)) = next_kept(draft) {
        // A single result always has room; otherwise there would be no progress.
        let is_alone = draft.entries.is_empty() && !draft.gives_up;
        if !is_alone && !has_room(draft, index, seq, bytes) {
            return;
        }
        put_back(draft, index, seq, bytes);
    }
    let batch = draft.batch();
    if !batch.calls.is_empty() && batch.next_placed().is_none() {
        ending::close_turn(draft);
    }
}

/// Like [`flush_buffered`], for the last commit of a prompt: a result without room is replaced by a
/// reference to its entry.
pub(super) fn put_or_name(draft: &mut Draft, index: usize) {
    put_kept(draft);
    let Some((_, seq, _)) = next_kept(draft).filter(|(next, ..)| *next == index) else { return };
    let Some((returned, entry)) = kept(draft, seq) else { return };
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
    let entry = append(draft, call, message);
    draft.tell_message(&entry);
    put_kept(draft);
}

/// The next result in source order if it is buffered: index, `seq` and bytes.
fn next_kept(draft: &Draft) -> Option<(usize, u64, u64)> {
    let index = draft.batch().next_placed()?;
    match draft.calls().get(index)?.status {
        CallStatus::Done { result, kept: Some(bytes) } => Some((index, result, bytes)),
        CallStatus::Done { kept: None, .. }
        | CallStatus::Ready
        | CallStatus::Waiting { .. }
        | CallStatus::Started { .. } => None,
    }
}

fn has_room(draft: &Draft, index: usize, seq: u64, bytes: u64) -> bool {
    let outputs = kept(draft, seq).map_or(0, |(returned, _)| returned.outputs.len());
    let (limit, after) = if draft.gives_up {
        (LAST_OPERATIONS, draft.calls().len() - index - 1)
    } else {
        (PUT_OPERATIONS, 0)
    };
    draft.operations() + 1 + outputs + after <= limit && draft.bytes_placed + bytes <= PUT_BYTES
}

fn kept(draft: &Draft, seq: u64) -> Option<(&ToolReturned, &Entry)> {
    let entry = draft.kept.iter().find(|entry| entry.base.seq == seq)?;
    let EntryBody::ToolReturned(returned) = &entry.body else { return None };
    Some((returned, entry))
}

fn put_back(draft: &mut Draft, index: usize, seq: u64, bytes: u64) {
    let Some((returned, _)) = kept(draft, seq) else {
        // Unreachable: the driver loads every entry that the phase names. A call without a result
        // would be worse than a missing message.
        set_done(draft, index, seq, None);
        return;
    };
    let ToolReturned { call, message, outputs } = returned.clone();
    draft.bytes_placed += bytes;
    draft.head.note_progress();
    let entry = append(draft, call, message);
    draft.tell_message(&entry);
    put_outputs(draft, call, &outputs);
    draft.kept.retain(|entry| entry.base.seq != seq);
}

fn append(draft: &mut Draft, call: CallRef, message: ToolResultMessage) -> Arc<Entry> {
    let entry = draft.append(EntryBody::Message(MessageEntry {
        call: Some(call),
        ..MessageEntry::plain(Message::ToolResult(message))
    }));
    set_done(draft, call.index, entry.base.seq, None);
    entry
}

fn set_done(draft: &mut Draft, index: usize, result: u64, kept: Option<u64>) {
    if let Some(call) = draft.call_mut(index) {
        call.status = CallStatus::Done { result, kept };
    }
}

fn tell_end(draft: &mut Draft, entry: &Entry) {
    let Some(result) = entry.body.result() else { return };
    draft.tell(EventBody::ToolExecutionEnd(ToolExecutionEnd {
        tool_call_id: result.tool_call_id.clone(),
        tool_name: result.tool_name.clone(),
        is_error: result.is_error,
        result: entry.base.seq,
    }));
}

fn tell_output(draft: &mut Draft, ended: &Ended, entry: &Entry) {
    let output = OutputRef { seq: entry.base.seq, block: None, call: Some(ended.call) };
    draft.tell(if ended.is_asked {
        EventBody::PromptOutputUpdated(output)
    } else {
        EventBody::PromptOutput(output)
    });
}

fn put_outputs(draft: &mut Draft, call: CallRef, outputs: &[Output]) {
    for output in outputs {
        let side = draft
            .append(EntryBody::Output(OutputEntry { output: output.clone(), call: Some(call) }));
        draft.tell(EventBody::PromptOutput(OutputRef {
            seq: side.base.seq,
            block: None,
            call: None,
        }));
    }
}
