//! Slot of one output item while the response is received.

use serde_json::{Value, json};

use crate::agent::content::{Block, Text, Thinking, ToolCall};
use crate::agent::event::{AssistantMessageEvent, TypedToolCall};
use crate::agent::foreign_json::FOREIGN_DEPTH_MAX;
use crate::agent::raw::{Extra, RawJson};
use crate::agent::text::repair_surrogates;
use crate::model::responses::ids;
use crate::model::responses::names::ToolNames;

/// Types of provider items that may be replayed unchanged, because none of them requires an output.
pub(crate) const REPLAYABLE_ITEMS: [&str; 6] = [
    "compaction",
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "mcp_list_tools",
    "mcp_call",
];
/// Bytes of a stored provider item. Larger items are dropped, because they would fill the entry.
const PROVIDER_ITEM_BYTES_MAX: usize = 256 * 1024;

#[derive(Debug)]
pub(super) struct ItemSlot {
    pub(super) output_index: Option<u64>,
    pub(super) content: SlotContent,
    /// True if the item's end was received, so that its content is complete.
    pub(super) is_complete: bool,
    content_index: usize,
}

pub(super) enum SlotContent {
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
    ProviderItem {
        kind: String,
        item: Option<Value>,
    },
    /// An item of no use here. It is kept so that its deltas do not reach another item.
    Ignored {
        kind: String,
    },
}

impl std::fmt::Debug for SlotContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SlotContent(…)")
    }
}

impl ItemSlot {
    pub(super) fn open(
        output_index: Option<u64>,
        item: &Value,
        kind: &str,
        content_index: usize,
    ) -> Self {
        let text =
            |name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let part = match kind {
            "message" => SlotContent::Text { text: String::new(), signature: text_signature(item) },
            "reasoning" => SlotContent::Thinking { thinking: String::new(), item: None },
            "function_call" => SlotContent::Call {
                call_id: text("call_id"),
                item_id: text("id"),
                name: text("name"),
                arguments: text("arguments"),
            },
            other if REPLAYABLE_ITEMS.contains(&other) => {
                SlotContent::ProviderItem { kind: other.to_owned(), item: None }
            }
            other => SlotContent::Ignored { kind: other.to_owned() },
        };
        Self { output_index, content: part, is_complete: false, content_index }
    }

    pub(super) fn start_event(&self, names: &ToolNames) -> Option<AssistantMessageEvent> {
        let content_index = self.content_index;
        match &self.content {
            SlotContent::Text { .. } => Some(AssistantMessageEvent::TextStart { content_index }),
            SlotContent::Thinking { .. } => {
                Some(AssistantMessageEvent::ThinkingStart { content_index })
            }
            SlotContent::Call { call_id, item_id, name, .. } => {
                Some(AssistantMessageEvent::ToolcallStart {
                    content_index,
                    id: ids::join_call_id(call_id, item_id),
                    tool_name: names.tool_name(name),
                })
            }
            SlotContent::ProviderItem { .. } | SlotContent::Ignored { .. } => None,
        }
    }

    pub(super) fn append_delta(
        &mut self,
        delta: &str,
        into: fn(&mut SlotContent, &str, usize) -> Option<AssistantMessageEvent>,
    ) -> Option<AssistantMessageEvent> {
        if self.is_complete { None } else { into(&mut self.content, delta, self.content_index) }
    }

    pub(super) fn set_arguments(&mut self, whole: &str) {
        if let SlotContent::Call { arguments, .. } = &mut self.content
            && !self.is_complete
            && !whole.is_empty()
        {
            whole.clone_into(arguments);
        }
    }

    /// Completes the slot. The item's final content overrides the accumulated deltas.
    pub(super) fn complete(
        &mut self,
        item: &Value,
        names: &ToolNames,
    ) -> Option<AssistantMessageEvent> {
        self.is_complete = true;
        let content_index = self.content_index;
        match &mut self.content {
            SlotContent::Text { text, signature: kept } => {
                if let Some(whole) = message_text(item) {
                    *text = whole;
                }
                *kept = text_signature(item).or_else(|| kept.take());
                Some(AssistantMessageEvent::TextEnd { content_index, content: text.clone() })
            }
            SlotContent::Thinking { thinking, item: kept } => {
                match join_texts(item, "summary").or_else(|| join_texts(item, "content")) {
                    Some(whole) => *thinking = whole,
                    None => thinking.truncate(thinking.trim_end().len()),
                }
                *kept = Some(item.clone());
                Some(AssistantMessageEvent::ThinkingEnd {
                    content_index,
                    content: thinking.clone(),
                })
            }
            SlotContent::Call { call_id, item_id, name, arguments } => {
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
                let call = tool_call(call_id, item_id, names.tool_name(name), arguments);
                Some(AssistantMessageEvent::ToolcallEnd {
                    content_index,
                    tool_call: TypedToolCall { call },
                })
            }
            SlotContent::ProviderItem { item: kept, .. } => {
                *kept = Some(item.clone());
                None
            }
            SlotContent::Ignored { .. } => None,
        }
    }

    /// Takes missing `encrypted_content` from the terminal event, where Azure sometimes puts it.
    /// Content of the item itself wins: the terminal event has another ciphertext of the same
    /// reasoning.
    pub(super) fn backfill_encrypted_content(&mut self, output: &[Value]) {
        let SlotContent::Thinking { item: Some(kept), .. } = &mut self.content else { return };
        if kept.get("encrypted_content").is_some_and(Value::is_string) {
            return;
        }
        let is_reasoning =
            |item: &&Value| item.get("type").and_then(Value::as_str) == Some("reasoning");
        let by_id =
            output.iter().find(|item| item.get("id").is_some() && item.get("id") == kept.get("id"));
        let by_place = || output.get(usize::try_from(self.output_index?).ok()?);
        let found = by_id
            .or_else(by_place)
            .filter(is_reasoning)
            .and_then(|item| item.get("encrypted_content"));
        if let (Some(content), Some(kept)) =
            (found.filter(|content| content.is_string()), kept.as_object_mut())
        {
            kept.insert("encrypted_content".to_owned(), content.clone());
        }
    }

    pub(super) fn into_block(self, names: &ToolNames) -> Option<Block> {
        match self.content {
            SlotContent::Text { text, signature } => {
                Some(Block::Text(Text { text, text_signature: signature, extra: Extra::new() }))
            }
            SlotContent::Thinking { thinking, item } => Some(Block::Thinking(Thinking {
                thinking,
                thinking_signature: item.map(|item| item.to_string()),
                extra: Extra::new(),
            })),
            SlotContent::Call { call_id, item_id, name, arguments } => Some(Block::ToolCall(
                tool_call(&call_id, &item_id, names.tool_name(&name), &arguments),
            )),
            SlotContent::ProviderItem { item, .. } => {
                let raw = RawJson::from_value(&json!({ "type": "providerItem", "item": item? }));
                (raw.text().len() <= PROVIDER_ITEM_BYTES_MAX).then_some(Block::Other(raw))
            }
            SlotContent::Ignored { .. } => None,
        }
    }
}

impl SlotContent {
    /// True if the message gets a block for it.
    pub(super) fn is_block(&self) -> bool {
        !matches!(self, Self::Ignored { .. })
    }

    pub(super) fn has_item_type(&self, kind: &str) -> bool {
        match self {
            Self::Text { .. } => kind == "message",
            Self::Thinking { .. } => kind == "reasoning",
            Self::Call { .. } => kind == "function_call",
            Self::ProviderItem { kind: own, .. } | Self::Ignored { kind: own } => kind == own,
        }
    }

    pub(super) fn append_text(
        &mut self,
        delta: &str,
        content_index: usize,
    ) -> Option<AssistantMessageEvent> {
        let Self::Text { text, .. } = self else { return None };
        text.push_str(delta);
        Some(AssistantMessageEvent::TextDelta { content_index, delta: delta.to_owned() })
    }

    pub(super) fn append_thinking(
        &mut self,
        delta: &str,
        content_index: usize,
    ) -> Option<AssistantMessageEvent> {
        let Self::Thinking { thinking, .. } = self else { return None };
        thinking.push_str(delta);
        Some(AssistantMessageEvent::ThinkingDelta { content_index, delta: delta.to_owned() })
    }

    pub(super) fn append_arguments(
        &mut self,
        delta: &str,
        content_index: usize,
    ) -> Option<AssistantMessageEvent> {
        let Self::Call { arguments, .. } = self else { return None };
        arguments.push_str(delta);
        Some(AssistantMessageEvent::ToolcallDelta { content_index, delta: delta.to_owned() })
    }
}

/// Returns the text signature: the id of the message item, with its phase if it has one. A replay
/// needs both.
fn text_signature(item: &Value) -> Option<String> {
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
            .or_else(|| part.get("transcript"))
            .and_then(Value::as_str)
            .map(ToOwned::to_owned)
    };
    Some(parts.iter().filter_map(text).collect())
}

/// Joins the texts of a reasoning item's list as paragraphs; `None` for an empty list.
fn join_texts(item: &Value, list: &str) -> Option<String> {
    let parts = item.get(list)?.as_array().filter(|parts| !parts.is_empty())?;
    let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
    Some(texts.join("\n\n"))
}

/// Builds the tool call. Arguments that are not JSON, or nest too deeply, become a JSON string of the received text, so
/// that validation can quote it.
pub(crate) fn tool_call(call_id: &str, item_id: &str, name: String, arguments: &str) -> ToolCall {
    // Surrogates within the arguments are escaped once more than those of the event.
    let repaired = repair_surrogates(arguments);
    let text = if repaired.trim().is_empty() { "{}" } else { repaired.as_ref() };
    ToolCall {
        id: ids::join_call_id(call_id, item_id),
        name,
        arguments: RawJson::from_text(text)
            .ok()
            .filter(|json| json.depth() <= FOREIGN_DEPTH_MAX)
            .unwrap_or_else(|| RawJson::from_value(&text)),
        thought_signature: None,
        extra: Extra::new(),
    }
}
