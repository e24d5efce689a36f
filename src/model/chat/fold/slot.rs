//! Slot of one block while a Chat Completions response is received.

use crate::agent::content::{Block, Text, Thinking};
use crate::agent::event::{AssistantMessageEvent, TypedToolCall};
use crate::agent::raw::Extra;
use crate::model::chat::chunk::Piece;
use crate::model::responses::fold::tool_call;
use crate::model::responses::names::ToolNames;

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
}

impl std::fmt::Debug for BlockSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BlockSlot(…)")
    }
}

impl BlockSlot {
    pub(super) fn of_piece(piece: &Piece<'_>) -> Self {
        Self::new(match piece {
            Piece::Text(_) => SlotContent::Text(String::new()),
            Piece::Thinking(_, member) => SlotContent::Thinking { thinking: String::new(), member },
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

    /// True for a call that is known under another id.
    pub(super) fn has_other_id(&self, id: &str) -> bool {
        matches!(&self.content, SlotContent::Call(call) if !call.id.is_empty() && call.id != id)
    }

    /// True if the text continues this block.
    pub(super) fn accepts(&self, piece: &Piece<'_>) -> bool {
        matches!(
            (&self.content, piece),
            (SlotContent::Text(_), Piece::Text(_))
                | (SlotContent::Thinking { .. }, Piece::Thinking(..))
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
        piece: &Piece<'_>,
        content_index: usize,
    ) -> Option<AssistantMessageEvent> {
        match (&mut self.content, piece) {
            (SlotContent::Text(text), Piece::Text(delta)) => {
                text.push_str(delta);
                let delta = delta.as_ref().to_owned();
                Some(AssistantMessageEvent::TextDelta { content_index, delta })
            }
            (SlotContent::Thinking { thinking, .. }, Piece::Thinking(delta, _)) => {
                thinking.push_str(delta);
                let delta = delta.as_ref().to_owned();
                Some(AssistantMessageEvent::ThinkingDelta { content_index, delta })
            }
            _ => None,
        }
    }

    /// Records the id and the name of a call. Services that repeat them repeat them whole. Returns
    /// the start event when the name is known.
    pub(super) fn identify_call(
        &mut self,
        content_index: usize,
        id: Option<&str>,
        name: Option<&str>,
        names: &ToolNames,
    ) -> Option<AssistantMessageEvent> {
        let SlotContent::Call(call) = &mut self.content else { return None };
        for (place, text) in [(&mut call.id, id), (&mut call.name, name)] {
            if let Some(text) = text.filter(|_| place.is_empty()) {
                text.clone_into(place);
            }
        }
        if call.name.is_empty() { None } else { call.start(content_index, names) }
    }

    pub(super) fn append_arguments(
        &mut self,
        content_index: usize,
        delta: &str,
    ) -> Option<AssistantMessageEvent> {
        let SlotContent::Call(call) = &mut self.content else { return None };
        call.arguments.push_str(delta);
        let delta = delta.to_owned();
        call.is_started.then_some(AssistantMessageEvent::ToolcallDelta { content_index, delta })
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
