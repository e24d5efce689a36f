//! Partial model response, built from its events.

use super::partial_json::complete;
use super::{LiveAnswer, Snapshot};
use crate::agent::content::{Block, Thinking, ToolCall};
use crate::agent::event::{AnswerEvent, TypedToolCall};
use crate::agent::raw::Extra;

/// Blocks of one response; further ones are ignored.
const BLOCKS_MAX: usize = 4096;

#[derive(Debug)]
pub(crate) struct UnderWay {
    pub(crate) answer: LiveAnswer,
    parts: Vec<Part>,
}

enum Part {
    Text(String),
    Thinking(String),
    /// A tool call with incomplete arguments.
    Call {
        id: String,
        name: String,
        arguments: String,
    },
    WholeCall(ToolCall),
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PartialBlock(…)")
    }
}

impl UnderWay {
    pub(crate) fn new(answer: LiveAnswer) -> Self {
        Self { answer, parts: Vec::new() }
    }

    pub(crate) fn take_in(&mut self, event: &AnswerEvent) {
        match event {
            AnswerEvent::TextStart { content_index } => {
                self.set(*content_index, Part::Text(String::new()));
            }
            AnswerEvent::TextEnd { content_index, content } => {
                self.set(*content_index, Part::Text(content.clone()));
            }
            AnswerEvent::ThinkingStart { content_index } => {
                self.set(*content_index, Part::Thinking(String::new()));
            }
            AnswerEvent::ThinkingEnd { content_index, content } => {
                self.set(*content_index, Part::Thinking(content.clone()));
            }
            AnswerEvent::ToolcallStart { content_index, id, tool_name } => {
                let (id, name) = (id.clone(), tool_name.clone());
                self.set(*content_index, Part::Call { id, name, arguments: String::new() });
            }
            AnswerEvent::ToolcallEnd { content_index, tool_call } => {
                self.set(*content_index, Part::WholeCall(tool_call.call.clone()));
            }
            AnswerEvent::TextDelta { content_index, delta }
            | AnswerEvent::ThinkingDelta { content_index, delta }
            | AnswerEvent::ToolcallDelta { content_index, delta } => {
                match self.parts.get_mut(*content_index) {
                    Some(Part::Text(text) | Part::Thinking(text)) => text.push_str(delta),
                    Some(Part::Call { arguments, .. }) => arguments.push_str(delta),
                    // A delta of a block that never started or has ended.
                    Some(Part::WholeCall(_)) | None => {}
                }
            }
        }
    }

    /// Sets a block. Missing blocks before it become empty texts, so that each block keeps its
    /// index.
    fn set(&mut self, content_index: usize, part: Part) {
        if content_index >= BLOCKS_MAX {
            return;
        }
        while self.parts.len() <= content_index {
            self.parts.push(Part::Text(String::new()));
        }
        if let Some(place) = self.parts.get_mut(content_index) {
            *place = part;
        }
    }

    /// Returns the shortest list of events that rebuilds this response.
    pub(crate) fn events(&self) -> Vec<AnswerEvent> {
        let parts = self.parts.iter().enumerate();
        parts.flat_map(|(content_index, part)| part.events(content_index)).collect()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            answer: self.answer.clone(),
            content: self.parts.iter().map(Part::block).collect(),
        }
    }
}

impl Part {
    fn events(&self, content_index: usize) -> Vec<AnswerEvent> {
        match self {
            Self::Text(text) => {
                vec![AnswerEvent::TextEnd { content_index, content: text.clone() }]
            }
            Self::Thinking(text) => {
                vec![AnswerEvent::ThinkingEnd { content_index, content: text.clone() }]
            }
            Self::Call { id, name, arguments } => vec![
                AnswerEvent::ToolcallStart {
                    content_index,
                    id: id.clone(),
                    tool_name: name.clone(),
                },
                AnswerEvent::ToolcallDelta { content_index, delta: arguments.clone() },
            ],
            Self::WholeCall(call) => {
                let tool_call = TypedToolCall { call: call.clone() };
                vec![AnswerEvent::ToolcallEnd { content_index, tool_call }]
            }
        }
    }

    fn block(&self) -> Block {
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
                arguments: complete(arguments),
                thought_signature: None,
                extra: Extra::new(),
            }),
            Self::WholeCall(call) => Block::ToolCall(call.clone()),
        }
    }
}
