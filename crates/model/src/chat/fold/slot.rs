//! Slot of one block while a Chat Completions response is received.

use crate::chat::chunk::{CallPieces, DeltaPiece};
use crate::response_text::is_placeholder_of;
use crate::responses::fold::{is_empty_object, is_object, tool_call};
use crate::responses::names::ToolNames;
use turnwheel_conversation::content::{Block, Text, Thinking};
use turnwheel_conversation::event::{AssistantMessageEvent, TypedToolCall};
use turnwheel_conversation::unknown_members::Extra;

pub(super) struct BlockSlot {
    content: SlotContent,
    /// True after the end event. The block is complete.
    is_closed: bool,
}

enum SlotContent {
    Text(String),
    Thinking {
        thinking: String,
        /// Name of the delta's member, stored as the signature.
        member: &'static str,
    },
    Call(CallSlot),
}

#[derive(Default)]
struct CallSlot {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    /// True after the start event, which needs the name.
    is_started: bool,
    /// True if the name came again after the whole arguments. Other arguments begin another call.
    has_repeated_name: bool,
}

/// Effect of a delta on a call.
pub(super) enum CallStep {
    Continue,
    /// The delta repeats the whole call.
    Repeat,
    /// The delta begins another call: some services give all calls the index 0.
    Begin,
}

impl std::fmt::Debug for BlockSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BlockSlot(…)")
    }
}

impl BlockSlot {
    pub(super) fn of_piece(piece: &DeltaPiece<'_>) -> Self {
        Self::new(match piece {
            DeltaPiece::Text(_) => SlotContent::Text(String::new()),
            DeltaPiece::Thinking(_, member) => {
                SlotContent::Thinking { thinking: String::new(), member }
            }
        })
    }

    pub(super) fn of_call(index: Option<u64>) -> Self {
        Self::new(SlotContent::Call(CallSlot { index, ..CallSlot::default() }))
    }

    const fn new(content: SlotContent) -> Self {
        Self { content, is_closed: false }
    }

    pub(super) fn is_call(&self) -> bool {
        matches!(self.content, SlotContent::Call(_))
    }

    /// True for a call with this index; without an index, for any call.
    pub(super) fn is_call_of(&self, index: Option<u64>) -> bool {
        matches!(&self.content, SlotContent::Call(call) if index.is_none() || call.index == index)
    }

    pub(super) fn has_id(&self, id: &str) -> bool {
        matches!(&self.content, SlotContent::Call(call) if call.id == id)
    }

    /// The effect of a delta with the index of this call.
    pub(super) fn next_step(&self, delta: &CallPieces<'_>, names: &ToolNames) -> CallStep {
        let SlotContent::Call(call) = &self.content else { return CallStep::Begin };
        let id = delta.id.as_deref();
        let is_other_id = id.is_some_and(|id| !call.id.is_empty() && call.id != id);
        if let Some(name) = delta.name.as_deref()
            && (is_other_id || call.is_other_name(name, names))
        {
            return CallStep::Begin;
        }
        let begins_object = |text: &str| text.trim_start().starts_with('{');
        let arguments = delta.arguments.as_deref().filter(|text| begins_object(text));
        match arguments.filter(|_| is_object(&call.arguments)) {
            Some(again) if again == call.arguments && id.is_some_and(|id| id == call.id) => {
                CallStep::Repeat
            }
            Some(_) if delta.name.is_some() || call.has_repeated_name => CallStep::Begin,
            Some(_) | None => CallStep::Continue,
        }
    }

    /// The name, if it came again for another call.
    pub(super) fn repeated_name(&self) -> Option<String> {
        match &self.content {
            SlotContent::Call(call) if call.has_repeated_name => Some(call.name.clone()),
            SlotContent::Call(_) | SlotContent::Text(_) | SlotContent::Thinking { .. } => None,
        }
    }

    /// True for a received call that a whole message has again.
    pub(super) fn is_same_call(&self, delta: &CallPieces<'_>) -> bool {
        let SlotContent::Call(call) = &self.content else { return false };
        let is_equal = |own: &str, other: Option<&str>| other.is_none_or(|other| own == other);
        let id = delta.id.as_deref().filter(|_| !call.id.is_empty());
        is_equal(&call.id, id)
            && is_equal(&call.name, delta.name.as_deref())
            && (id.is_some() || is_equal(&call.arguments, delta.arguments.as_deref()))
    }

    pub(super) fn has_call_id(&self) -> bool {
        matches!(&self.content, SlotContent::Call(call) if !call.id.is_empty())
    }

    /// The text or the thinking of this block.
    pub(super) fn text(&self, is_thinking: bool) -> Option<&str> {
        match &self.content {
            SlotContent::Text(text) => Some(text.as_str()).filter(|_| !is_thinking),
            SlotContent::Thinking { thinking, .. } => {
                Some(thinking.as_str()).filter(|_| is_thinking)
            }
            SlotContent::Call(_) => None,
        }
    }

    /// True if the text continues this block.
    pub(super) fn accepts(&self, piece: &DeltaPiece<'_>) -> bool {
        matches!(
            (&self.content, piece),
            (SlotContent::Text(_), DeltaPiece::Text(_))
                | (SlotContent::Thinking { .. }, DeltaPiece::Thinking(..))
        )
    }

    /// Start event of a text.
    pub(super) fn start_event(&self, content_index: usize) -> Option<AssistantMessageEvent> {
        match &self.content {
            SlotContent::Text(_) => Some(AssistantMessageEvent::TextStart { content_index }),
            SlotContent::Thinking { .. } => {
                Some(AssistantMessageEvent::ThinkingStart { content_index })
            }
            SlotContent::Call(_) => None,
        }
    }

    /// Appends a text that the slot accepts.
    pub(super) fn append(
        &mut self,
        piece: &DeltaPiece<'_>,
        content_index: usize,
    ) -> Option<AssistantMessageEvent> {
        self.is_closed = false;
        match (&mut self.content, piece) {
            (SlotContent::Text(text), DeltaPiece::Text(delta)) => {
                text.push_str(delta);
                let delta = delta.as_ref().to_owned();
                Some(AssistantMessageEvent::TextDelta { content_index, delta })
            }
            (SlotContent::Thinking { thinking, .. }, DeltaPiece::Thinking(delta, _)) => {
                thinking.push_str(delta);
                let delta = delta.as_ref().to_owned();
                Some(AssistantMessageEvent::ThinkingDelta { content_index, delta })
            }
            _ => None,
        }
    }

    /// Appends the pieces of a call. Services repeat id and name whole, or send the name in pieces.
    /// Returns the start event when the name is known, before the delta of the arguments.
    pub(super) fn append_call(
        &mut self,
        content_index: usize,
        pieces: &CallPieces<'_>,
        names: &ToolNames,
    ) -> Vec<AssistantMessageEvent> {
        let SlotContent::Call(call) = &mut self.content else { return Vec::new() };
        if let Some(id) = pieces.id.as_deref().filter(|_| call.id.is_empty()) {
            id.clone_into(&mut call.id);
        }
        if let Some(piece) = pieces.name.as_deref() {
            call.has_repeated_name |= is_object(&call.arguments);
            call.append_name(piece, names);
        }
        let delta = pieces.arguments.as_deref().unwrap_or_default();
        if is_placeholder_of(delta, &call.arguments) {
            call.arguments.clear();
        }
        call.arguments.push_str(delta);
        self.is_closed &= delta.is_empty();
        // A name that is not known yet may continue until the arguments begin.
        let has_name =
            !call.name.is_empty() && (!call.arguments.is_empty() || names.is_known(&call.name));
        let was_started = call.is_started;
        let start = if has_name { call.start(content_index, names) } else { None };
        let delta = if was_started { delta } else { call.arguments.as_str() };
        let delta = (call.is_started && !delta.is_empty()).then(|| {
            AssistantMessageEvent::ToolcallDelta { content_index, delta: delta.to_owned() }
        });
        start.into_iter().chain(delta).collect()
    }

    /// Takes the whole arguments if the deltas are incomplete.
    pub(super) fn complete_arguments(&mut self, whole: Option<&str>) {
        if let (SlotContent::Call(call), Some(whole)) = (&mut self.content, whole)
            && !is_object(&call.arguments)
            && (call.arguments.trim().is_empty()
                || is_placeholder_of(whole, &call.arguments)
                || !is_empty_object(whole))
        {
            whole.clone_into(&mut call.arguments);
            self.is_closed = false;
        }
    }

    /// Completes the block. Returns its end event, after the start event of a call without a name.
    pub(super) fn close(
        &mut self,
        content_index: usize,
        names: &ToolNames,
    ) -> Vec<AssistantMessageEvent> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Vec::new();
        }
        match &mut self.content {
            SlotContent::Text(text) => {
                vec![AssistantMessageEvent::TextEnd { content_index, content: text.clone() }]
            }
            SlotContent::Thinking { thinking, .. } => {
                let content = thinking.clone();
                vec![AssistantMessageEvent::ThinkingEnd { content_index, content }]
            }
            SlotContent::Call(call) => {
                let start = call.start(content_index, names);
                let name = names.tool_name(&call.name);
                let tool_call =
                    TypedToolCall { call: tool_call(&call.id, "", name, &call.arguments) };
                let end = AssistantMessageEvent::ToolcallEnd { content_index, tool_call };
                start.into_iter().chain([end]).collect()
            }
        }
    }

    pub(super) fn into_block(self, names: &ToolNames) -> Block {
        match self.content {
            SlotContent::Text(text) => {
                Block::Text(Text { text, text_signature: None, extra: Extra::new() })
            }
            SlotContent::Thinking { thinking, member } => Block::Thinking(Thinking {
                thinking,
                thinking_signature: Some(member.to_owned()),
                extra: Extra::new(),
            }),
            SlotContent::Call(call) => {
                let name = names.tool_name(&call.name);
                Block::ToolCall(tool_call(&call.id, "", name, &call.arguments))
            }
        }
    }
}

impl CallSlot {
    /// True for the name of another call. The pieces of one name come before its arguments.
    fn is_other_name(&self, name: &str, names: &ToolNames) -> bool {
        if self.name.is_empty() || name == self.name {
            return false;
        }
        let is_known = names.is_known(&self.name);
        let is_joined_known = names.is_known(&format!("{}{name}", self.name));
        if is_object(&self.arguments) {
            // Some services send the name after the arguments.
            return is_known || !is_joined_known;
        }
        // Some services repeat the whole name with each piece.
        let is_growing = name.starts_with(&self.name);
        is_known && names.is_known(name) && !is_joined_known && !is_growing
    }

    /// Applies a name or a piece of one. A whole name replaces the one before.
    fn append_name(&mut self, piece: &str, names: &ToolNames) {
        let joined = format!("{}{piece}", self.name);
        if piece == self.name {
        } else if !names.is_known(&joined) && names.is_known(piece) {
            piece.clone_into(&mut self.name);
        } else if self.arguments.is_empty() || !names.is_known(&self.name) {
            self.name = joined;
        }
    }

    /// Returns the start event, once.
    fn start(&mut self, content_index: usize, names: &ToolNames) -> Option<AssistantMessageEvent> {
        (!std::mem::replace(&mut self.is_started, true)).then(|| {
            AssistantMessageEvent::ToolcallStart {
                content_index,
                id: self.id.clone(),
                tool_name: names.tool_name(&self.name),
            }
        })
    }
}
