//! Slot of one output item while the response is received.

use serde_json::{Value, json};

use crate::agent::content::{Block, Text, Thinking, ToolCall};
use crate::agent::event::{AnswerEvent, TypedToolCall};
use crate::agent::raw::{Extra, RawJson};
use crate::agent::text::repair_surrogates;
use crate::model::responses::ids;
use crate::model::responses::names::Names;

/// Types of provider items that may be replayed unchanged, because none of them requires an output.
pub(crate) const CARRIED: [&str; 6] = [
    "compaction",
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "mcp_list_tools",
    "mcp_call",
];
/// Bytes of a stored provider item. Larger items are dropped, because they would fill the entry.
const CARRIED_BYTES_MAX: usize = 256 * 1024;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) output_index: Option<u64>,
    pub(super) part: Part,
    /// True if the item's end was received, so that its content is complete.
    pub(super) is_done: bool,
    content_index: usize,
}

pub(super) enum Part {
    Text {
        text: String,
        signature: Option<String>,
    },
    /// Reasoning; `item` is set at its end.
    Thinking {
        thinking: String,
        item: Option<Value>,
    },
    Call {
        call_id: String,
        item_id: String,
        name: String,
        arguments: String,
    },
    /// A provider item: stored for the provider, never displayed.
    Carried {
        kind: String,
        item: Option<Value>,
    },
    /// An item of no use here. It is kept so that its deltas do not reach another item.
    Passed {
        kind: String,
    },
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SlotContent(…)")
    }
}

impl Slot {
    pub(super) fn open(
        output_index: Option<u64>,
        item: &Value,
        kind: &str,
        content_index: usize,
    ) -> Self {
        let text =
            |name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let part = match kind {
            "message" => Part::Text { text: String::new(), signature: signature(item) },
            "reasoning" => Part::Thinking { thinking: String::new(), item: None },
            "function_call" => Part::Call {
                call_id: text("call_id"),
                item_id: text("id"),
                name: text("name"),
                arguments: text("arguments"),
            },
            other if CARRIED.contains(&other) => {
                Part::Carried { kind: other.to_owned(), item: None }
            }
            other => Part::Passed { kind: other.to_owned() },
        };
        Self { output_index, part, is_done: false, content_index }
    }

    pub(super) fn start(&self, names: &Names) -> Option<AnswerEvent> {
        let content_index = self.content_index;
        match &self.part {
            Part::Text { .. } => Some(AnswerEvent::TextStart { content_index }),
            Part::Thinking { .. } => Some(AnswerEvent::ThinkingStart { content_index }),
            Part::Call { call_id, item_id, name, .. } => Some(AnswerEvent::ToolcallStart {
                content_index,
                id: ids::join(call_id, item_id),
                tool_name: names.own(name),
            }),
            Part::Carried { .. } | Part::Passed { .. } => None,
        }
    }

    pub(super) fn grow(
        &mut self,
        delta: &str,
        into: fn(&mut Part, &str, usize) -> Option<AnswerEvent>,
    ) -> Option<AnswerEvent> {
        if self.is_done { None } else { into(&mut self.part, delta, self.content_index) }
    }

    pub(super) fn settle_arguments(&mut self, whole: &str) {
        if let Part::Call { arguments, .. } = &mut self.part
            && !self.is_done
            && !whole.is_empty()
        {
            whole.clone_into(arguments);
        }
    }

    /// Completes the slot. The item's final content overrides the accumulated deltas.
    pub(super) fn settle(&mut self, item: &Value, names: &Names) -> Option<AnswerEvent> {
        self.is_done = true;
        let content_index = self.content_index;
        match &mut self.part {
            Part::Text { text, signature: kept } => {
                if let Some(whole) = message_text(item) {
                    *text = whole;
                }
                *kept = signature(item).or_else(|| kept.take());
                Some(AnswerEvent::TextEnd { content_index, content: text.clone() })
            }
            Part::Thinking { thinking, item: kept } => {
                match joined(item, "summary").or_else(|| joined(item, "content")) {
                    Some(whole) => *thinking = whole,
                    None => thinking.truncate(thinking.trim_end().len()),
                }
                *kept = Some(item.clone());
                Some(AnswerEvent::ThinkingEnd { content_index, content: thinking.clone() })
            }
            Part::Call { call_id, item_id, name, arguments } => {
                let update = |field: &mut String, key: &str| {
                    if let Some(text) =
                        item.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
                    {
                        text.clone_into(field);
                    }
                };
                update(call_id, "call_id");
                update(item_id, "id");
                update(name, "name");
                update(arguments, "arguments");
                let call = tool_call(call_id, item_id, names.own(name), arguments);
                Some(AnswerEvent::ToolcallEnd { content_index, tool_call: TypedToolCall { call } })
            }
            Part::Carried { item: kept, .. } => {
                *kept = Some(item.clone());
                None
            }
            Part::Passed { .. } => None,
        }
    }

    /// Takes missing `encrypted_content` from the terminal event, where Azure sometimes puts it.
    /// Content of the item itself wins: the terminal event has another ciphertext of the same
    /// reasoning.
    pub(super) fn backfill(&mut self, output: &[Value]) {
        let Part::Thinking { item: Some(kept), .. } = &mut self.part else { return };
        if kept.get("encrypted_content").is_some_and(Value::is_string) {
            return;
        }
        let is_thought =
            |item: &&Value| item.get("type").and_then(Value::as_str) == Some("reasoning");
        let by_id =
            output.iter().find(|item| item.get("id").is_some() && item.get("id") == kept.get("id"));
        let by_place = || output.get(usize::try_from(self.output_index?).ok()?);
        let found = by_id
            .or_else(by_place)
            .filter(is_thought)
            .and_then(|item| item.get("encrypted_content"));
        if let (Some(content), Some(kept)) =
            (found.filter(|content| content.is_string()), kept.as_object_mut())
        {
            kept.insert("encrypted_content".to_owned(), content.clone());
        }
    }

    pub(super) fn into_block(self, names: &Names) -> Option<Block> {
        match self.part {
            Part::Text { text, signature } => {
                Some(Block::Text(Text { text, text_signature: signature, extra: Extra::new() }))
            }
            Part::Thinking { thinking, item } => Some(Block::Thinking(Thinking {
                thinking,
                thinking_signature: item.map(|item| item.to_string()),
                extra: Extra::new(),
            })),
            Part::Call { call_id, item_id, name, arguments } => {
                Some(Block::ToolCall(tool_call(&call_id, &item_id, names.own(&name), &arguments)))
            }
            Part::Carried { item, .. } => {
                let raw = RawJson::of(&json!({ "type": "providerItem", "item": item? }));
                (raw.text().len() <= CARRIED_BYTES_MAX).then_some(Block::Other(raw))
            }
            Part::Passed { .. } => None,
        }
    }
}

impl Part {
    /// True if the message gets a block for it.
    pub(super) fn is_block(&self) -> bool {
        !matches!(self, Self::Passed { .. })
    }

    pub(super) fn is_of(&self, kind: &str) -> bool {
        match self {
            Self::Text { .. } => kind == "message",
            Self::Thinking { .. } => kind == "reasoning",
            Self::Call { .. } => kind == "function_call",
            Self::Carried { kind: own, .. } | Self::Passed { kind: own } => kind == own,
        }
    }

    pub(super) fn grow_text(&mut self, delta: &str, content_index: usize) -> Option<AnswerEvent> {
        let Self::Text { text, .. } = self else { return None };
        text.push_str(delta);
        Some(AnswerEvent::TextDelta { content_index, delta: delta.to_owned() })
    }

    pub(super) fn grow_thinking(
        &mut self,
        delta: &str,
        content_index: usize,
    ) -> Option<AnswerEvent> {
        let Self::Thinking { thinking, .. } = self else { return None };
        thinking.push_str(delta);
        Some(AnswerEvent::ThinkingDelta { content_index, delta: delta.to_owned() })
    }

    pub(super) fn grow_arguments(
        &mut self,
        delta: &str,
        content_index: usize,
    ) -> Option<AnswerEvent> {
        let Self::Call { arguments, .. } = self else { return None };
        arguments.push_str(delta);
        Some(AnswerEvent::ToolcallDelta { content_index, delta: delta.to_owned() })
    }
}

/// Returns the text signature: the id of the message item, with its phase if it has one. A replay
/// needs both.
fn signature(item: &Value) -> Option<String> {
    let id = item.get("id").and_then(Value::as_str).filter(|id| !id.is_empty())?;
    match item.get("phase").and_then(Value::as_str) {
        Some(phase) => Some(json!({ "v": 1, "id": id, "phase": phase }).to_string()),
        None => Some(id.to_owned()),
    }
}

/// Joins the text parts, refusals included; `None` without any part.
fn message_text(item: &Value) -> Option<String> {
    let parts = item.get("content")?.as_array().filter(|parts| !parts.is_empty())?;
    let text = |part: &Value| {
        part.get("text")
            .or_else(|| part.get("refusal"))
            .and_then(Value::as_str)
            .map(ToOwned::to_owned)
    };
    Some(parts.iter().filter_map(text).collect())
}

/// Joins the texts of a reasoning item's list as paragraphs; `None` for an empty list.
fn joined(item: &Value, list: &str) -> Option<String> {
    let parts = item.get(list)?.as_array().filter(|parts| !parts.is_empty())?;
    let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
    Some(texts.join("\n\n"))
}

/// Builds the tool call. Arguments that are not JSON become a JSON string of the received text, so
/// that validation can quote it.
fn tool_call(call_id: &str, item_id: &str, name: String, arguments: &str) -> ToolCall {
    // Surrogates within the arguments are escaped once more than those of the event.
    let repaired = repair_surrogates(arguments);
    let text = if repaired.trim().is_empty() { "{}" } else { repaired.as_ref() };
    ToolCall {
        id: ids::join(call_id, item_id),
        name,
        arguments: RawJson::from_text(text).unwrap_or_else(|_| RawJson::of(&text)),
        thought_signature: None,
        extra: Extra::new(),
    }
}
