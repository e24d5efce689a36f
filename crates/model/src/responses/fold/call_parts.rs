//! Parts of a function call while they are received.

use serde::de::IgnoredAny;
use serde_json::Value;

use crate::response_text::{arguments_of_value, is_placeholder_of};
use crate::responses::fold::lost_frames::LostFrames;
use crate::responses::ids;
use crate::responses::names::ToolNames;
use turnwheel_conversation::content::ToolCall;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::foreign::FOREIGN_DEPTH_MAX;
use turnwheel_json::raw::RawJson;
use turnwheel_json::text::repair_surrogates;

#[derive(Default)]
pub(super) struct CallParts {
    pub(super) call_id: String,
    pub(super) item_id: String,
    pub(super) name: String,
    pub(super) arguments: String,
    /// True if a delta of the arguments was received that is not empty.
    pub(super) has_deltas: bool,
    /// True if the end of the arguments was received.
    has_arguments_end: bool,
    /// True if a delta was lost, and no later event had the whole arguments.
    pub(super) lacks_delta: bool,
}

impl CallParts {
    pub(super) fn from_item(item: &Value) -> Self {
        let mut call = Self::default();
        call.merge(item, true);
        call
    }

    /// Appends a delta. Some services announce the call with its whole arguments, and send them
    /// again.
    pub(super) fn append(&mut self, delta: &str) {
        if delta.is_empty() {
            return;
        }
        let is_first = !std::mem::replace(&mut self.has_deltas, true);
        if is_first && is_object(&self.arguments) && is_empty_object(delta) {
            return;
        }
        if is_first && is_object(&self.arguments) || is_placeholder_of(delta, &self.arguments) {
            self.arguments.clear();
        }
        self.arguments.push_str(delta);
    }

    /// Applies the end of the arguments.
    pub(super) fn end_arguments(&mut self, whole: &str) {
        self.merge_arguments(whole);
        self.has_arguments_end = true;
    }

    /// Merges the members of an item. `is_newer`: its members replace those received before.
    pub(super) fn merge(&mut self, item: &Value, is_newer: bool) {
        let members =
            [(&mut self.call_id, "call_id"), (&mut self.item_id, "id"), (&mut self.name, "name")];
        for (member, name) in members {
            if let Some(text) = item.get(name).and_then(Value::as_str)
                && !text.is_empty()
                && (is_newer || member.is_empty())
            {
                text.clone_into(member);
            }
        }
        if !is_newer && is_object(&self.arguments) && !self.lacks_delta {
            return;
        }
        let members = ["arguments", "input"].into_iter();
        if let Some(whole) = members.filter_map(|name| item.get(name)).find_map(arguments_of_value)
        {
            self.merge_arguments(&whole);
        }
    }

    /// Arguments that a later event lacks, or has only in part, stay as they were received.
    fn merge_arguments(&mut self, whole: &str) {
        let is_empty = whole.trim().is_empty() || is_empty_object(whole);
        let is_less = if is_empty {
            !self.arguments.trim().is_empty() && !is_placeholder_of(whole, &self.arguments)
        } else {
            is_object(&self.arguments) && !is_object(whole)
        };
        if !is_less {
            whole.clone_into(&mut self.arguments);
            self.lacks_delta = self.lacks_delta && (is_empty || !is_object(whole));
        }
    }

    /// True if a lost event may have had arguments that no later event has. An empty object is whole if
    /// the deltas have it.
    pub(super) fn may_lack_arguments(&self, lost: &LostFrames) -> bool {
        let is_empty = self.arguments.trim().is_empty();
        let is_only_end = is_empty_object(&self.arguments) && !self.has_deltas;
        self.lacks_delta || lost.has_content && is_empty || lost.has_arguments && is_only_end
    }

    /// True if the item is this call: repeated, or with another item id. Two calls may share one of
    /// their two ids. `may_have_index`: both can have the same index.
    pub(super) fn is_same(&self, item: &Value, may_have_index: bool) -> bool {
        let text = |name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default();
        let (call_id, item_id) = (text("call_id"), text("id"));
        let may_be = |own: &str, other: &str| own.is_empty() || other.is_empty() || own == other;
        let has_ids = !call_id.is_empty() && self.call_id == call_id;
        let is_sure = has_ids && may_be(&self.item_id, item_id) && may_have_index;
        let is_likely = may_be(&self.call_id, call_id) && (has_ids || may_have_index);
        is_sure || is_likely && self.has_content_of(item, false)
    }

    /// True if the item has the name and the arguments of this call, or lacks them. `is_partial`:
    /// this call may lack the end of its arguments.
    pub(super) fn has_content_of(&self, item: &Value, is_partial: bool) -> bool {
        let text = |name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default();
        let solid = |text: &str| text.split_whitespace().collect::<String>();
        let (own, whole) = (solid(&self.arguments), solid(text("arguments")));
        let has_name = self.name.is_empty() || text("name").is_empty() || self.name == text("name");
        has_name
            && (self.lacks_delta
                || own.is_empty()
                || whole.is_empty()
                || own == whole
                || is_partial && whole.starts_with(&own))
    }

    /// True if name and arguments are whole, although the end of the item is missing.
    pub(super) fn is_whole(&self) -> bool {
        self.has_arguments_end && !self.name.is_empty()
    }

    pub(super) fn to_tool_call(&self, names: &ToolNames) -> ToolCall {
        let name = names.tool_name(&self.name);
        tool_call(&self.call_id, &self.item_id, name, &self.arguments)
    }
}

/// True for the JSON text of an object.
pub fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// True for the JSON text of an object without members.
pub(crate) fn is_empty_object(text: &str) -> bool {
    let members = text.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    members.is_some_and(|members| members.trim().is_empty())
}

/// Builds the tool call. Arguments that are not JSON, or nest too deeply, become a JSON string of the received text, so
/// that validation can quote it.
pub fn tool_call(call_id: &str, item_id: &str, name: String, arguments: &str) -> ToolCall {
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
