//! Merging the output of the whole response with the items that were received before.

use serde_json::{Value, json};

use crate::lost_content::is_empty_value;
use crate::response_text::omitted_text;
use crate::responses::fold::item::{id_of, item_type, message_text};
use crate::responses::fold::slot::{ItemSlot, SlotContent};
use crate::responses::fold::{ITEMS_MAX, ResponseFold};
use turnwheel_conversation::event::AssistantMessageEvent;

/// Evidence that an item of the whole response was received before, the surest first.
const PROOFS: [fn(&ItemSlot, usize, &Value) -> bool; 3] = [
    |slot, _, item| {
        let id = id_of(item).filter(|id| slot.item_id.as_deref() == Some(*id));
        let is_call = matches!(&slot.content, SlotContent::Call(_));
        id.is_some() && (!is_call || is_same_call(slot, item))
    },
    |slot, _, item| is_same_call(slot, item),
    |slot, position, item| {
        slot.output_index.is_some_and(|index| usize::try_from(index) == Ok(position))
            && has_content_of(slot, item)
    },
];

impl ResponseFold {
    /// Merges the items of the whole response. An item that no event had is added at its place.
    pub(super) fn merge_output(&mut self, response: &Value) -> Vec<AssistantMessageEvent> {
        let mut events = Vec::new();
        let output = output_items(response);
        // One item above the limit fails the response.
        let output = output.get(..output.len().min(ITEMS_MAX + 1)).unwrap_or_default();
        self.match_items(output);
        let items = output.iter().enumerate().filter(|(_, item)| !is_empty_value(item));
        for (position, item) in items {
            let found = self.slots.iter().position(|slot| slot.final_position == Some(position));
            let Some(at) = found.or_else(|| self.add_item(position, item, &mut events)) else {
                return events;
            };
            if let Some(slot) = self.slots.get_mut(at) {
                events.extend(slot.complete(item, &self.names));
            }
        }
        for slot in &mut self.slots {
            events.extend(slot.end_late_text(&self.names));
            slot.backfill_encrypted_content(output);
        }
        events
    }

    /// Adds the text that a response without text and calls has beside its items. Without such a text,
    /// output of unknown types is shown or named. Beside other output only a member of the message and
    /// the log name its types: readers of the text would take a note for content.
    pub(super) fn add_left_over(&mut self, response: &Value) -> Vec<AssistantMessageEvent> {
        let mut events = Vec::new();
        let has_output = self.slots.iter().any(ItemSlot::has_output);
        let text = |name: &str| response.get(name)?.as_str().filter(|it| !it.trim().is_empty());
        let text = ["output_text", "output"].into_iter().find_map(text);
        if has_output || text.is_some() {
            let kinds = self.slots.iter().flat_map(ItemSlot::omitted_kinds);
            self.omitted = kinds.map(ToOwned::to_owned).collect();
        }
        if has_output {
            return events;
        }
        let mut texts: Vec<String> = text.map(ToOwned::to_owned).into_iter().collect();
        if texts.is_empty() {
            events.extend(self.slots.iter_mut().filter_map(|slot| slot.show_parts(&self.names)));
            for note in self.slots.iter().filter_map(ItemSlot::ignored_kind).map(omitted_text) {
                if !texts.contains(&note) {
                    texts.push(note);
                }
            }
        }
        for text in texts {
            let item = json!({ "type": "message", "content": text });
            let at = self.insert_slot(self.slots.len(), ItemSlot::open(None, &item), &mut events);
            if let Some(slot) = at.and_then(|at| self.slots.get_mut(at)) {
                events.extend(slot.complete(&item, &self.names));
            }
        }
        events
    }

    /// Gives each slot the position of its item in the output.
    fn match_items(&mut self, output: &[Value]) {
        let mut is_matched = vec![false; output.len()];
        for proves in PROOFS {
            for ((position, item), is_matched) in output.iter().enumerate().zip(&mut is_matched) {
                let kind = item_type(item);
                let found = self.slots.iter_mut().find(|slot| {
                    slot.final_position.is_none()
                        && slot.content.has_item_type(kind)
                        && proves(slot, position, item)
                });
                if let Some(slot) = found.filter(|_| !*is_matched) {
                    slot.final_position = Some(position);
                    *is_matched = true;
                }
            }
        }
        // Services that change ids and indices keep the order.
        for ((position, item), is_matched) in output.iter().enumerate().zip(is_matched) {
            let kind = item_type(item);
            let next = self
                .slots
                .iter_mut()
                .find(|slot| slot.final_position.is_none() && slot.content.has_item_type(kind));
            if let Some(slot) = next.filter(|slot| !is_matched && has_content_of(slot, item)) {
                slot.final_position = Some(position);
            }
        }
    }

    /// Adds an item of the output before its successor.
    fn add_item(
        &mut self,
        position: usize,
        item: &Value,
        events: &mut Vec<AssistantMessageEvent>,
    ) -> Option<usize> {
        let is_later = |slot: &ItemSlot| slot.final_position.is_some_and(|it| it > position);
        let at = self.slots.iter().position(is_later).unwrap_or(self.slots.len());
        let mut slot = ItemSlot::open(u64::try_from(position).ok(), item);
        slot.final_position = Some(position);
        self.insert_slot(at, slot, events)
    }
}

/// The items of the response. Some gateways send one without its list.
fn output_items(response: &Value) -> &[Value] {
    match response.get("output") {
        Some(Value::Array(items)) => items,
        Some(item @ Value::Object(_)) => std::slice::from_ref(item),
        Some(_) | None => &[],
    }
}

fn is_same_call(slot: &ItemSlot, item: &Value) -> bool {
    matches!(&slot.content, SlotContent::Call(call) if call.is_same(item, true))
}

/// True if the item has the content of the slot, or one of them has none or a part of it.
fn has_content_of(slot: &ItemSlot, item: &Value) -> bool {
    match &slot.content {
        SlotContent::Text { texts, .. } => {
            let (received, whole) = (texts.joined(), message_text(item).unwrap_or_default());
            received.starts_with(&whole) || whole.starts_with(&received)
        }
        SlotContent::Call(call) => call.has_content_of(item, !slot.is_complete),
        SlotContent::Thinking { .. } => true,
        SlotContent::ProviderItem { .. } | SlotContent::Ignored { .. } => {
            slot.item_id.is_none() || id_of(item).is_none() || !slot.is_complete
        }
    }
}
