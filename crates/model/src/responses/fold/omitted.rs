//! Output of unknown types: items, and parts of messages. It is shown only if the response has neither
//! a text nor a call.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::response_text::{OmittedPart, text_of_value, unknown_kinds_of_values};
use crate::responses::fold::item::content_parts;
use crate::responses::fold::part_texts::PartTexts;
use crate::responses::fold::slot::{ItemSlot, SlotContent};
use crate::responses::names::ToolNames;
use turnwheel_conversation::event::AssistantMessageEvent;

/// Types of items of the API without visible content, which are neither shown nor replayed.
pub(super) const SILENT_ITEMS: [&str; 10] = [
    "tool_search_call",
    "tool_search_output",
    "additional_tools",
    "mcp_approval_response",
    "function_call_output",
    "custom_tool_call_output",
    "computer_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
];

impl ItemSlot {
    /// Records the parts of unknown types of a whole message, in place of those before.
    pub(super) fn omit_content(&mut self, item: &Value) {
        let parts = omitted_parts(0, content_parts(item));
        if matches!(self.content, SlotContent::Text { .. }) && !parts.is_empty() {
            self.omitted_parts = parts;
        }
    }

    /// Records the parts of unknown types of another event. Without the index of the first one, they
    /// follow the others.
    pub(super) fn omit_parts(&mut self, index: Option<u64>, parts: &[Value]) {
        let next = self.omitted_parts.keys().next_back().map(|last| last.saturating_add(1));
        let first = index.or(next).unwrap_or(0);
        self.omitted_parts.extend(omitted_parts(first, parts));
    }

    /// Shows the parts of unknown types in place of the text of a message without one.
    pub(super) fn show_parts(&mut self, names: &ToolNames) -> Option<AssistantMessageEvent> {
        let SlotContent::Text { texts, .. } = &mut self.content else { return None };
        let parts = std::mem::take(&mut self.omitted_parts);
        let text: String = parts.into_values().map(|part| part.text).collect();
        if text.is_empty() {
            return None;
        }
        *texts = PartTexts::from_text(text);
        self.end_event(names)
    }

    /// Types of the item and of its parts that nothing here can show.
    pub(super) fn omitted_kinds(&self) -> impl Iterator<Item = &str> {
        let parts = self.omitted_parts.values().map(|part| part.kind.as_str());
        self.ignored_kind().into_iter().chain(parts)
    }

    /// The type of an item with output that nothing here can show. Some gateways announce an item
    /// without its type.
    pub(super) fn ignored_kind(&self) -> Option<&str> {
        match &self.content {
            SlotContent::Ignored { kind }
                if (!kind.is_empty() || self.is_complete)
                    && !SILENT_ITEMS.contains(&kind.as_str()) =>
            {
                Some(kind)
            }
            SlotContent::Text { .. }
            | SlotContent::Call(_)
            | SlotContent::Thinking { .. }
            | SlotContent::ProviderItem { .. }
            | SlotContent::Ignored { .. } => None,
        }
    }
}

/// The parts of unknown types, by index.
fn omitted_parts(first: u64, parts: &[Value]) -> BTreeMap<u64, OmittedPart> {
    let mut omitted = BTreeMap::new();
    let mut index = first;
    for (part, kind) in parts.iter().zip(unknown_kinds_of_values(parts)) {
        if let (Some(kind), Some(text)) = (kind, text_of_value(part)) {
            omitted.insert(index, OmittedPart { kind, text: text.into_owned() });
        }
        index = index.saturating_add(1);
    }
    omitted
}
