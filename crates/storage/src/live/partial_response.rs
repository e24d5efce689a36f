//! Partial model response, built from its events.

use super::{LiveResponse, Snapshot};
use turnwheel_conversation::content::{Block, Thinking, ToolCall};
use turnwheel_conversation::event::{AssistantMessageEvent, TypedToolCall};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::partial::complete_json;

/// Blocks of one response; further ones are ignored.
const BLOCKS_MAX: usize = 4096;

#[derive(Debug, PartialEq)]
pub struct PartialResponse {
    pub response: LiveResponse,
    blocks: Vec<PartialBlock>,
}

#[derive(Debug, PartialEq)]
enum PartialBlock {
    Text(String),
    Thinking(String),
    /// A tool call with incomplete arguments.
    Call {
        id: String,
        name: String,
        arguments: String,
    },
    CompleteCall(ToolCall),
}

impl PartialResponse {
    pub fn new(answer: LiveResponse) -> Self {
        Self { response: answer, blocks: Vec::new() }
    }

    pub fn apply(&mut self, event: &AssistantMessageEvent) {
        match event {
            AssistantMessageEvent::TextStart { content_index } => {
                self.set_block(*content_index, PartialBlock::Text(String::new()));
            }
            AssistantMessageEvent::TextEnd { content_index, content } => {
                self.set_block(*content_index, PartialBlock::Text(content.clone()));
            }
            AssistantMessageEvent::ThinkingStart { content_index } => {
                self.set_block(*content_index, PartialBlock::Thinking(String::new()));
            }
            AssistantMessageEvent::ThinkingEnd { content_index, content } => {
                self.set_block(*content_index, PartialBlock::Thinking(content.clone()));
            }
            AssistantMessageEvent::ToolcallStart { content_index, id, tool_name } => {
                let (id, name) = (id.clone(), tool_name.clone());
                self.set_block(
                    *content_index,
                    PartialBlock::Call { id, name, arguments: String::new() },
                );
            }
            AssistantMessageEvent::ToolcallEnd { content_index, tool_call } => {
                self.set_block(*content_index, PartialBlock::CompleteCall(tool_call.call.clone()));
            }
            AssistantMessageEvent::TextDelta { content_index, delta }
            | AssistantMessageEvent::ThinkingDelta { content_index, delta }
            | AssistantMessageEvent::ToolcallDelta { content_index, delta } => {
                match self.blocks.get_mut(*content_index) {
                    Some(PartialBlock::Text(text) | PartialBlock::Thinking(text)) => {
                        text.push_str(delta);
                    }
                    Some(PartialBlock::Call { arguments, .. }) => arguments.push_str(delta),
                    // A delta of a block that never started or has ended.
                    Some(PartialBlock::CompleteCall(_)) | None => {}
                }
            }
        }
    }

    /// Sets a block. Missing blocks before it become empty texts, so that each block keeps its
    /// index.
    fn set_block(&mut self, content_index: usize, part: PartialBlock) {
        if content_index >= BLOCKS_MAX {
            return;
        }
        while self.blocks.len() <= content_index {
            self.blocks.push(PartialBlock::Text(String::new()));
        }
        if let Some(place) = self.blocks.get_mut(content_index) {
            *place = part;
        }
    }

    /// Returns the shortest list of events that rebuilds this response.
    pub fn to_events(&self) -> Vec<AssistantMessageEvent> {
        let parts = self.blocks.iter().enumerate();
        parts.flat_map(|(content_index, part)| part.to_events(content_index)).collect()
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            response: self.response.clone(),
            content: self.blocks.iter().map(PartialBlock::to_block).collect(),
        }
    }
}

impl PartialBlock {
    fn to_events(&self, content_index: usize) -> Vec<AssistantMessageEvent> {
        match self {
            Self::Text(text) => {
                vec![AssistantMessageEvent::TextEnd { content_index, content: text.clone() }]
            }
            Self::Thinking(text) => {
                vec![AssistantMessageEvent::ThinkingEnd { content_index, content: text.clone() }]
            }
            Self::Call { id, name, arguments } => vec![
                AssistantMessageEvent::ToolcallStart {
                    content_index,
                    id: id.clone(),
                    tool_name: name.clone(),
                },
                AssistantMessageEvent::ToolcallDelta { content_index, delta: arguments.clone() },
            ],
            Self::CompleteCall(call) => {
                let tool_call = TypedToolCall { call: call.clone() };
                vec![AssistantMessageEvent::ToolcallEnd { content_index, tool_call }]
            }
        }
    }

    fn to_block(&self) -> Block {
        match self {
            Self::Text(text) => Block::text(text),
            Self::Thinking(thinking) => Block::Thinking(Thinking {
                thinking: thinking.clone(),
                thinking_signature: None,
                extra: Extra::new(),
            }),
            Self::Call { id, name, arguments } => Block::ToolCall(ToolCall {
                id: id.clone(),
                name: name.clone(),
                arguments: complete_json(arguments),
                thought_signature: None,
                extra: Extra::new(),
            }),
            Self::CompleteCall(call) => Block::ToolCall(call.clone()),
        }
    }
}
