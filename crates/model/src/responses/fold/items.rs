//! Items and their texts while they are received, in any order.

use std::borrow::Cow;

use serde_json::Value;

use crate::response_text::{known_parts, parts_of_value, text_of_value, unknown_kinds_of_values};
use crate::responses::event::{DeltaEvent, ItemAddress, ProviderEvent, item_type_of_text};
use crate::responses::fold::item::{id_of, item_type};
use crate::responses::fold::slot::{ItemSlot, SlotContent};
use crate::responses::fold::{ITEMS_MAX, ResponseFold};
use crate::responses::provider_error::ProviderError;
use turnwheel_conversation::event::AssistantMessageEvent;

impl ResponseFold {
    /// Finds the slot of an item of this type. `output_index` decides, because ids may change during
    /// the stream; the id decides between two items with one index. Without both, it is the item
    /// that was opened last.
    fn find_slot(&self, address: ItemAddress<'_>, kind: &str) -> Option<usize> {
        let find = |is_found: &dyn Fn(&ItemSlot) -> bool| {
            self.slots.iter().rposition(|slot| slot.content.has_item_type(kind) && is_found(slot))
        };
        let has_index =
            |slot: &ItemSlot| address.index.is_some() && slot.output_index == address.index;
        let has_id =
            |slot: &ItemSlot| address.id.is_some() && slot.item_id.as_deref() == address.id;
        let has_other_index = |slot: &ItemSlot| {
            address.index.is_some() && slot.output_index.is_some() && !has_index(slot)
        };
        let has_other_id =
            |slot: &ItemSlot| address.id.is_some() && slot.item_id.is_some() && !has_id(slot);
        find(&|slot| has_index(slot) && has_id(slot))
            .or_else(|| find(&|slot| has_index(slot) && !slot.is_complete))
            .or_else(|| find(&|slot| has_id(slot) && (!slot.is_complete || !has_other_index(slot))))
            .or_else(|| find(&|slot| has_index(slot) && !has_other_id(slot)))
            .or_else(|| {
                find(&|slot| {
                    !slot.is_complete && (address.index.is_none() || slot.output_index.is_none())
                })
            })
    }

    /// Finds the slot of a text, or opens one: a delta may come before the item. `None`: the text is
    /// empty, or belongs to an item of no use here.
    fn slot_of_text(
        &mut self,
        address: ItemAddress<'_>,
        event_kind: &str,
        text: &str,
        events: &mut Vec<AssistantMessageEvent>,
    ) -> Option<&mut ItemSlot> {
        let kind = item_type_of_text(event_kind)?;
        let at = match self.find_slot(address, kind) {
            Some(at) => at,
            None if text.is_empty() || self.is_ignored(address) => return None,
            None => self.add_slot(ItemSlot::implied(address, kind), events)?,
        };
        self.slots.get_mut(at)
    }

    /// True if the newest item with this index has a type of no use here.
    fn is_ignored(&self, address: ItemAddress<'_>) -> bool {
        let index = address.index;
        let newest = self.slots.iter().rfind(|slot| index.is_some() && slot.output_index == index);
        newest.is_some_and(
            |slot| matches!(&slot.content, SlotContent::Ignored { kind } if !kind.is_empty()),
        )
    }

    pub(super) fn append_delta(&mut self, piece: &DeltaEvent<'_>) -> Vec<AssistantMessageEvent> {
        let mut events = Vec::new();
        if self.is_finished() {
            return events;
        }
        let (kind, delta) = (piece.kind.as_ref(), piece.delta.as_ref());
        if let Some(slot) = self.slot_of_text(piece.address(), kind, delta, &mut events) {
            events.extend(slot.append_delta(piece.part_index(), delta));
        }
        events
    }

    /// Opens the item of a delta that cannot be read: only whole arguments can complete it.
    pub(super) fn lose_delta(&mut self, event: &ProviderEvent) -> Vec<AssistantMessageEvent> {
        let mut events = Vec::new();
        self.lost.is_any = true;
        let delta = "lost";
        if let Some(slot) = self.slot_of_text(event.address(), &event.kind, delta, &mut events) {
            slot.lose_delta();
        }
        events
    }

    /// Marks the arguments of each call that has not ended: an event with a part of them is lost.
    pub(super) fn lose_arguments(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| !slot.is_complete) {
            slot.lose_delta();
        }
    }

    /// Merges the whole text of a part, or the whole arguments, with the deltas.
    pub(super) fn merge_text(
        &mut self,
        event: &ProviderEvent,
        whole: &str,
    ) -> Vec<AssistantMessageEvent> {
        let mut events = Vec::new();
        let address = event.address();
        if let Some(slot) = self.slot_of_text(address, &event.kind, whole, &mut events) {
            events.extend(slot.merge_part(event.part_index(), whole));
        }
        events
    }

    /// Merges a part with its deltas. The end of a part of the summary is the end of a paragraph.
    pub(super) fn merge_part(&mut self, event: &ProviderEvent) -> Vec<AssistantMessageEvent> {
        // Reasoning has events of its own.
        let is_output =
            |part: &&Value| part.get("type").is_none_or(|kind| kind != "reasoning_text");
        let part = event.member("part").filter(is_output);
        let mut events = Vec::new();
        let known = match part.filter(|_| event.kind == "response.content_part.done") {
            Some(part) => {
                events.extend(self.omit_parts(event, event.part_index(), part));
                Some(known_parts(part))
            }
            None => part.map(Cow::Borrowed),
        };
        if let Some(text) = known.as_deref().and_then(text_of_value) {
            events.extend(self.merge_text(event, &text));
        }
        if event.kind == "response.reasoning_summary_part.done"
            && let Some(at) = self.find_slot(event.address(), "reasoning")
            && let Some(slot) = self.slots.get_mut(at).filter(|slot| !slot.is_complete)
        {
            events.extend(slot.append_delta(event.part_index(), "\n\n"));
        }
        events
    }

    /// Records the parts of unknown types in a delta of a text.
    pub(super) fn omit_delta(&mut self, event: &ProviderEvent) -> Vec<AssistantMessageEvent> {
        let delta = event.text_delta();
        delta.map(|delta| self.omit_parts(event, None, delta)).unwrap_or_default()
    }

    /// Records the parts of unknown types in an event of a message. `index`: that of the first part.
    fn omit_parts(
        &mut self,
        event: &ProviderEvent,
        index: Option<u64>,
        content: &Value,
    ) -> Vec<AssistantMessageEvent> {
        let mut events = Vec::new();
        let parts = parts_of_value(content);
        if unknown_kinds_of_values(parts).iter().any(Option::is_some)
            && let Some(slot) = self.slot_of_text(event.address(), &event.kind, "part", &mut events)
        {
            slot.omit_parts(index, parts);
        }
        events
    }

    pub(super) fn open_item(&mut self, event: &ProviderEvent) -> Vec<AssistantMessageEvent> {
        let mut events = Vec::new();
        let Some((index, item)) = event.item() else { return events };
        match self.slots.iter().rposition(|slot| slot.is_announced_by(index, item)) {
            Some(at) => {
                if let Some(slot) = self.slots.get_mut(at) {
                    events.extend(slot.announce(index, item, &self.names));
                }
            }
            None => {
                self.add_slot(ItemSlot::open(index, item), &mut events);
            }
        }
        events
    }

    /// Adds a slot at the end and returns its place.
    fn add_slot(
        &mut self,
        slot: ItemSlot,
        events: &mut Vec<AssistantMessageEvent>,
    ) -> Option<usize> {
        self.insert_slot(self.slots.len(), slot, events)
    }

    /// Inserts a slot. `None`: the response has too many items.
    pub(super) fn insert_slot(
        &mut self,
        at: usize,
        mut slot: ItemSlot,
        events: &mut Vec<AssistantMessageEvent>,
    ) -> Option<usize> {
        if self.slots.len() >= ITEMS_MAX {
            // A retry would return as many items.
            self.fail(ProviderError::permanent(format!(
                "the model response has more than {ITEMS_MAX} items"
            )));
            return None;
        }
        slot.content_index = self.slots.iter().take(at).filter(|it| it.content.is_block()).count();
        events.extend(slot.start(&self.names));
        self.slots.insert(at, slot);
        Some(at)
    }

    /// Completes an item with its final state. An item that was never opened is opened first; the
    /// end of another item with the same index adds an item.
    pub(super) fn close_item(&mut self, event: &ProviderEvent) -> Vec<AssistantMessageEvent> {
        let mut events = Vec::new();
        let Some((index, item)) = event.item() else { return events };
        let kind = item_type(item);
        let address = ItemAddress { index, id: id_of(item) };
        let is_same = |slot: &ItemSlot| slot.is_complete && slot.is_same_item(index, item);
        let is_open_or_same =
            |at: &usize| self.slots.get(*at).is_some_and(|it| !it.is_complete || is_same(it));
        let found = self
            .find_slot(address, kind)
            .filter(is_open_or_same)
            .or_else(|| self.slots.iter().rposition(is_same));
        let at = found.or_else(|| self.add_slot(ItemSlot::open(index, item), &mut events));
        if let Some(slot) = at.and_then(|at| self.slots.get_mut(at)) {
            events.extend(slot.complete(item, &self.names));
        }
        events
    }
}
