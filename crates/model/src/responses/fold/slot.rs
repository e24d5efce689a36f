//! Slot of one output item while the response is received.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::response_text::OmittedPart;
use crate::responses::event::ItemAddress;
use crate::responses::fold::call_parts::CallParts;
use crate::responses::fold::item::{id_of, item_type, join_texts, message_text, text_signature};
use crate::responses::fold::lost_frames::LostFrames;
use crate::responses::fold::part_texts::PartTexts;
use crate::responses::ids;
use crate::responses::names::ToolNames;
use turnwheel_conversation::content::{Block, Text, Thinking};
use turnwheel_conversation::event::{AssistantMessageEvent, TypedToolCall};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::foreign::FOREIGN_DEPTH_MAX;
use turnwheel_json::raw::RawJson;

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

#[expect(clippy::struct_excessive_bools, reason = "independent facts of an item")]
pub(super) struct ItemSlot {
    pub(super) output_index: Option<u64>,
    /// Id of the item when it appeared. Some services change it later.
    pub(super) item_id: Option<String>,
    pub(super) content: SlotContent,
    /// True if the item's end was received, so that its content is complete.
    pub(super) is_complete: bool,
    /// Index of the item in the output of the whole response, once that is known.
    pub(super) final_position: Option<usize>,
    /// Index of the block in the message.
    pub(super) content_index: usize,
    /// True if only deltas have announced the item so far.
    is_implied: bool,
    /// True after the start event. A call that only its deltas have named has none yet.
    is_started: bool,
    /// True if a delta or a part followed the end event.
    has_late_text: bool,
    /// Text with which the item was announced. It counts if no other event has a text.
    announced_text: Option<String>,
    /// Parts of unknown types, by index.
    pub(super) omitted_parts: BTreeMap<u64, OmittedPart>,
}

pub(super) enum SlotContent {
    Text {
        texts: PartTexts,
        signature: Option<String>,
    },
    /// Reasoning; `item` is set at its end.
    Thinking {
        texts: PartTexts,
        item: Option<Value>,
    },
    Call(CallParts),
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

impl std::fmt::Debug for ItemSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ItemSlot(…)")
    }
}

impl ItemSlot {
    /// A slot for an item.
    pub(super) fn open(output_index: Option<u64>, item: &Value) -> Self {
        let content = match item_type(item) {
            "message" => {
                SlotContent::Text { texts: PartTexts::default(), signature: text_signature(item) }
            }
            "reasoning" => SlotContent::Thinking { texts: PartTexts::default(), item: None },
            "function_call" => SlotContent::Call(CallParts::from_item(item)),
            other if REPLAYABLE_ITEMS.contains(&other) => {
                SlotContent::ProviderItem { kind: other.to_owned(), item: None }
            }
            other => SlotContent::Ignored { kind: other.to_owned() },
        };
        let mut slot = Self {
            output_index,
            item_id: id_of(item).map(ToOwned::to_owned),
            content,
            is_complete: false,
            final_position: None,
            content_index: 0,
            is_implied: false,
            is_started: false,
            has_late_text: false,
            announced_text: message_text(item).filter(|text| !text.is_empty()),
            omitted_parts: BTreeMap::new(),
        };
        slot.omit_content(item);
        slot
    }

    /// A slot for the texts of an item that was not announced.
    pub(super) fn implied(address: ItemAddress<'_>, kind: &str) -> Self {
        let mut slot = Self::open(address.index, &json!({ "type": kind, "id": address.id }));
        slot.is_implied = true;
        slot
    }

    /// True if the announcement belongs to this slot: its deltas came first, or it is repeated.
    pub(super) fn is_announced_by(&self, index: Option<u64>, item: &Value) -> bool {
        let id = id_of(item);
        let is_compatible = |own: bool, other: bool, is_equal: bool| !own || !other || is_equal;
        let has_index = self.output_index.is_some() && self.output_index == index;
        let has_id = self.item_id.is_some() && self.item_id.as_deref() == id;
        !self.is_complete
            && self.content.has_item_type(item_type(item))
            && (has_index || has_id || self.is_implied)
            && is_compatible(self.output_index.is_some(), index.is_some(), has_index)
            && is_compatible(self.item_id.is_some(), id.is_some(), has_id)
    }

    /// True if the item repeats this one, which is complete. Items with different indices are
    /// different, unless their ids and contents are equal.
    pub(super) fn is_same_item(&self, index: Option<u64>, item: &Value) -> bool {
        let id = id_of(item);
        let has_id = self.item_id.is_some() && self.item_id.as_deref() == id;
        let may_have_id = has_id || self.item_id.is_none() || id.is_none();
        let may_have_index =
            self.output_index.is_none() || index.is_none() || self.output_index == index;
        self.content.has_item_type(item_type(item))
            && match &self.content {
                SlotContent::Call(call) => call.is_same(item, may_have_index),
                SlotContent::Text { texts, .. } => {
                    let has_text = message_text(item).is_none_or(|text| text == texts.joined());
                    has_id && (may_have_index || has_text)
                        || may_have_id && may_have_index && has_text
                }
                SlotContent::Thinking { .. }
                | SlotContent::ProviderItem { .. }
                | SlotContent::Ignored { .. } => has_id || may_have_id && may_have_index,
            }
    }

    /// True for a text that is not blank, and for a call.
    pub(super) fn has_output(&self) -> bool {
        match &self.content {
            SlotContent::Text { texts, .. } => !texts.joined().trim().is_empty(),
            SlotContent::Call(_) => true,
            SlotContent::Thinking { .. }
            | SlotContent::ProviderItem { .. }
            | SlotContent::Ignored { .. } => false,
        }
    }

    /// True if a lost event may have had content that no other event has.
    pub(super) fn may_lack_content(&self, lost: &LostFrames) -> bool {
        !self.is_complete
            || match &self.content {
                SlotContent::Text { texts, .. } => lost.has_content && texts.len() == 0,
                SlotContent::Call(call) => call.may_lack_arguments(lost),
                SlotContent::Thinking { .. }
                | SlotContent::ProviderItem { .. }
                | SlotContent::Ignored { .. } => false,
            }
    }

    /// Returns the start event, once. A call needs its name for it.
    pub(super) fn start(&mut self, names: &ToolNames) -> Option<AssistantMessageEvent> {
        let content_index = self.content_index;
        let event = match &self.content {
            SlotContent::Text { .. } => AssistantMessageEvent::TextStart { content_index },
            SlotContent::Thinking { .. } => AssistantMessageEvent::ThinkingStart { content_index },
            SlotContent::Call(call) if !call.name.is_empty() || self.is_complete => {
                AssistantMessageEvent::ToolcallStart {
                    content_index,
                    id: ids::join_call_id(&call.call_id, &call.item_id),
                    tool_name: names.tool_name(&call.name),
                }
            }
            SlotContent::Call(_)
            | SlotContent::ProviderItem { .. }
            | SlotContent::Ignored { .. } => {
                return None;
            }
        };
        (!std::mem::replace(&mut self.is_started, true)).then_some(event)
    }

    /// Announces an item whose deltas came first.
    pub(super) fn announce(
        &mut self,
        index: Option<u64>,
        item: &Value,
        names: &ToolNames,
    ) -> Vec<AssistantMessageEvent> {
        self.is_implied = false;
        self.output_index = self.output_index.or(index);
        if let Some(id) = id_of(item).filter(|_| self.item_id.is_none()) {
            self.item_id = Some(id.to_owned());
        }
        match &mut self.content {
            SlotContent::Text { signature, .. } => {
                *signature = signature.take().or_else(|| text_signature(item));
            }
            SlotContent::Call(call) => call.merge(item, false),
            SlotContent::Thinking { .. }
            | SlotContent::ProviderItem { .. }
            | SlotContent::Ignored { .. } => {}
        }
        let start = self.start(names);
        let arguments = self.received_arguments().filter(|_| start.is_some());
        start.into_iter().chain(arguments).collect()
    }

    /// The delta of arguments that came before the start event.
    fn received_arguments(&self) -> Option<AssistantMessageEvent> {
        let SlotContent::Call(call) = &self.content else { return None };
        let (content_index, delta) = (self.content_index, call.arguments.clone());
        (!delta.is_empty() && call.has_deltas)
            .then_some(AssistantMessageEvent::ToolcallDelta { content_index, delta })
    }

    /// True unless the whole content was received: the end of an item may lack its content.
    fn accepts_text(&mut self) -> bool {
        let is_whole = self.is_complete && self.content.bytes() > 0 && !self.has_late_text;
        self.has_late_text |= self.is_complete && !is_whole;
        !is_whole
    }

    /// Appends a delta.
    pub(super) fn append_delta(
        &mut self,
        part: Option<u64>,
        delta: &str,
    ) -> Option<AssistantMessageEvent> {
        let content_index = self.content_index;
        if !self.accepts_text() {
            return None;
        }
        let (is_started, delta) = (self.is_started, delta.to_owned());
        match &mut self.content {
            SlotContent::Text { texts, .. } => {
                texts.append(part, &delta);
                Some(AssistantMessageEvent::TextDelta { content_index, delta })
            }
            SlotContent::Thinking { texts, .. } => {
                texts.append(part, &delta);
                Some(AssistantMessageEvent::ThinkingDelta { content_index, delta })
            }
            SlotContent::Call(call) => {
                call.append(&delta);
                is_started.then_some(AssistantMessageEvent::ToolcallDelta { content_index, delta })
            }
            SlotContent::ProviderItem { .. } | SlotContent::Ignored { .. } => None,
        }
    }

    /// Marks the arguments as incomplete: a delta of them cannot be read.
    pub(super) fn lose_delta(&mut self) {
        if self.accepts_text()
            && let SlotContent::Call(call) = &mut self.content
        {
            call.lacks_delta = true;
        }
    }

    /// Merges the whole text of a part with its deltas.
    pub(super) fn merge_part(
        &mut self,
        part: Option<u64>,
        whole: &str,
    ) -> Option<AssistantMessageEvent> {
        let content_index = self.content_index;
        if !self.accepts_text() {
            return None;
        }
        match &mut self.content {
            SlotContent::Text { texts, .. } => {
                let delta = texts.merge(part, whole);
                (!delta.is_empty())
                    .then_some(AssistantMessageEvent::TextDelta { content_index, delta })
            }
            SlotContent::Thinking { texts, .. } => {
                let delta = texts.merge(part, whole);
                (!delta.is_empty())
                    .then_some(AssistantMessageEvent::ThinkingDelta { content_index, delta })
            }
            SlotContent::Call(call) => {
                call.end_arguments(whole);
                None
            }
            SlotContent::ProviderItem { .. } | SlotContent::Ignored { .. } => None,
        }
    }

    /// Merges the final state of the item, and ends it at the first time.
    pub(super) fn complete(
        &mut self,
        item: &Value,
        names: &ToolNames,
    ) -> Vec<AssistantMessageEvent> {
        let was_complete = std::mem::replace(&mut self.is_complete, true);
        let bytes = self.content.bytes();
        self.omit_content(item);
        match &mut self.content {
            SlotContent::Text { texts, signature } => {
                if let Some(whole) = message_text(item)
                    && (!was_complete || whole.starts_with(&texts.joined()))
                {
                    texts.merge_whole(&whole);
                }
                if !was_complete || signature.is_none() {
                    *signature = text_signature(item).or_else(|| signature.take());
                }
            }
            SlotContent::Thinking { texts, item: kept } => {
                let whole = join_texts(item, "summary").or_else(|| join_texts(item, "content"));
                let is_wanted = |whole: &String| !whole.is_empty() && (!was_complete || bytes == 0);
                match whole.filter(is_wanted) {
                    Some(whole) => texts.merge_whole(&whole),
                    None => *texts = PartTexts::from_text(texts.paragraphs()),
                }
                if !was_complete {
                    *kept = Some(item.clone());
                }
            }
            SlotContent::Call(call) => call.merge(item, !was_complete),
            SlotContent::ProviderItem { item: kept, .. } => {
                if !was_complete {
                    *kept = Some(item.clone());
                }
            }
            SlotContent::Ignored { .. } => {}
        }
        if was_complete && self.content.bytes() == bytes {
            return Vec::new();
        }
        self.has_late_text = false;
        let start = self.start(names);
        start.into_iter().chain(self.end_event(names)).collect()
    }

    /// Ends a text that grew after its end event, or that only the announcement has.
    pub(super) fn end_late_text(&mut self, names: &ToolNames) -> Option<AssistantMessageEvent> {
        if self.content.bytes() == 0
            && let SlotContent::Text { texts, .. } = &mut self.content
            && let Some(text) = self.announced_text.take()
        {
            *texts = PartTexts::from_text(text);
            self.has_late_text = true;
        }
        std::mem::take(&mut self.has_late_text).then(|| self.end_event(names)).flatten()
    }

    pub(super) fn end_event(&self, names: &ToolNames) -> Option<AssistantMessageEvent> {
        let content_index = self.content_index;
        match &self.content {
            SlotContent::Text { texts, .. } => {
                Some(AssistantMessageEvent::TextEnd { content_index, content: texts.joined() })
            }
            SlotContent::Thinking { texts, .. } => {
                Some(AssistantMessageEvent::ThinkingEnd { content_index, content: texts.joined() })
            }
            SlotContent::Call(call) => Some(AssistantMessageEvent::ToolcallEnd {
                content_index,
                tool_call: TypedToolCall { call: call.to_tool_call(names) },
            }),
            SlotContent::ProviderItem { .. } | SlotContent::Ignored { .. } => None,
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
        let by_place = || {
            let index = self.output_index.and_then(|index| usize::try_from(index).ok());
            output.get(self.final_position.or(index)?)
        };
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
            SlotContent::Text { texts, signature } => Some(Block::Text(Text {
                text: texts.joined(),
                text_signature: signature,
                extra: Extra::new(),
            })),
            SlotContent::Thinking { texts, item } => Some(Block::Thinking(Thinking {
                thinking: texts.joined(),
                thinking_signature: item.map(|item| item.to_string()),
                extra: Extra::new(),
            })),
            SlotContent::Call(call) => Some(Block::ToolCall(call.to_tool_call(names))),
            SlotContent::ProviderItem { item, .. } => {
                let raw = RawJson::from_value(&json!({ "type": "providerItem", "item": item? }));
                let is_storable =
                    raw.text().len() <= PROVIDER_ITEM_BYTES_MAX && raw.depth() <= FOREIGN_DEPTH_MAX;
                is_storable.then_some(Block::Other(raw))
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
            Self::Call(_) => kind == "function_call",
            Self::ProviderItem { kind: own, .. } | Self::Ignored { kind: own } => kind == own,
        }
    }

    /// Bytes of the received text or arguments.
    fn bytes(&self) -> usize {
        match self {
            Self::Text { texts, .. } | Self::Thinking { texts, .. } => texts.len(),
            Self::Call(call) => call.arguments.len(),
            Self::ProviderItem { .. } | Self::Ignored { .. } => 0,
        }
    }
}
