//! Merging a whole message with the deltas that were received before it.

use std::borrow::Cow;

use crate::chat::chunk::{Delta, DeltaPiece};
use crate::chat::fold::ChatFold;
use turnwheel_conversation::event::AssistantMessageEvent;

/// A text of the message that has deltas.
struct WholeText {
    received: String,
    whole: String,
}

impl ChatFold {
    /// Adds what the deltas lack: all of it, if there were none.
    pub(super) fn push_message(
        &mut self,
        message: &Delta<'_>,
        events: &mut Vec<AssistantMessageEvent>,
    ) {
        let slots = self.slots.len();
        let [mut text, mut thinking] = [false, true].map(|is_thinking| WholeText {
            received: self.slots.iter().filter_map(|slot| slot.text(is_thinking)).collect(),
            whole: String::new(),
        });
        for part in &self.shown {
            text.received = text.received.replacen(&part.text, "", 1);
        }
        let mut omitted = Vec::new();
        let pieces = message.pieces(&mut omitted);
        // The whole message repeats the parts of its deltas.
        if !omitted.is_empty() {
            self.omitted = omitted;
        }
        let mut member = None;
        for piece in pieces {
            let whole = match &piece {
                DeltaPiece::Text(_) => &mut text,
                DeltaPiece::Thinking(_, name) => {
                    member = Some(*name);
                    &mut thinking
                }
            };
            if whole.received.is_empty() {
                self.push_piece(&piece, events);
            } else {
                whole.whole.push_str(piece.text());
            }
        }
        if let Some(rest) = thinking.rest()
            && let Some(member) = member
        {
            self.push_piece(&DeltaPiece::Thinking(Cow::Borrowed(rest), member), events);
        }
        if let Some(rest) = text.rest() {
            self.push_piece(&DeltaPiece::Text(Cow::Borrowed(rest)), events);
        }
        self.push_calls(message, slots, events);
    }

    /// Shows the parts of unknown types of a response without text and calls.
    pub(super) fn show_omitted(&mut self, events: &mut Vec<AssistantMessageEvent>) {
        if !self.has_output() {
            for part in std::mem::take(&mut self.omitted) {
                self.push_piece(&DeltaPiece::Text(Cow::Borrowed(&part.text)), events);
                self.shown.push(part);
            }
        }
    }

    /// Adds the calls that are not among the first `slots`. Each of those stands for one call.
    fn push_calls(
        &mut self,
        message: &Delta<'_>,
        slots: usize,
        events: &mut Vec<AssistantMessageEvent>,
    ) {
        let mut is_matched = vec![false; slots];
        for call in message.calls().iter().chain(&self.single_call(message)) {
            let pieces = call.pieces();
            let mut received = self.slots.iter_mut().zip(&mut is_matched);
            let same =
                received.find(|(slot, is_matched)| !**is_matched && slot.is_same_call(&pieces));
            match same {
                Some((slot, is_matched)) => {
                    *is_matched = true;
                    slot.complete_arguments(pieces.arguments.as_deref());
                }
                None => self.begin_call(call.index(), &pieces, events),
            }
        }
    }
}

impl WholeText {
    /// The end of the text that no delta had.
    fn rest(&self) -> Option<&str> {
        self.whole.strip_prefix(&self.received).filter(|rest| !rest.is_empty())
    }
}
