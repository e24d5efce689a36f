//! Migrations of older session files, and of forms that only some programs write, to version 3.

use serde_json::json;

use crate::session_file::object::Object;
use crate::session_file::times::read_time;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::EntryId;

/// Position of a line in its file.
#[derive(Debug)]
pub(super) struct LinePosition<'a> {
    /// Version of the file.
    pub(super) version: u64,
    pub(super) id: &'a EntryId,
    /// Ids by the index of the line, for version 1. Lines that are no JSON have no index.
    pub(super) ids_by_index: &'a [Option<EntryId>],
}

/// Changes a line to the form of version 3.
pub(super) fn migrate(entry: &mut Object, position: &LinePosition<'_>) {
    if position.version < 3 {
        rename_hook_message(entry);
    }
    match entry.text("type").as_deref() {
        Some("compaction") => {
            if !entry.has("firstKeptEntryId") {
                entry.rename("firstKeptId", "firstKeptEntryId");
            }
            if let Some(index) = entry.remove("firstKeptEntryIndex") {
                let index = index.read::<usize>().ok();
                let first_kept = index.and_then(|index| position.ids_by_index.get(index)?.clone());
                // Without such a line nothing before the compaction is kept.
                entry.set("firstKeptEntryId", first_kept.as_ref().unwrap_or(position.id));
            }
        }
        Some("branch") => {
            entry.set("type", &"label");
            if let Some(target) = entry.get("parentId").cloned() {
                entry.set_raw("targetId", target);
            }
        }
        _ => {}
    }
}

fn rename_hook_message(entry: &mut Object) {
    let Some(mut message) = entry.get("message").and_then(Object::from_raw) else { return };
    if message.text("role").as_deref() == Some("hookMessage") {
        message.set("role", &"custom");
        entry.set_raw("message", message.into_raw());
    }
}

/// Adds the members that an entry of version 3 must have.
pub(super) fn add_required_members(entry: &mut Object, id: &EntryId, at: Timestamp) {
    match entry.text("type").as_deref() {
        Some("compaction") => {
            entry.set_default("summary", &"");
            entry.set_default("tokensBefore", &0);
            entry.set_default("firstKeptEntryId", id);
        }
        Some("branch_summary") => {
            entry.set_default("summary", &"");
            entry.set_default("fromId", &"root");
        }
        Some("custom_message") => entry.set_default("display", &true),
        Some("message") => {
            if let Some(mut message) = entry.get("message").and_then(Object::from_raw) {
                add_message_members(&mut message, at);
                entry.set_raw("message", message.into_raw());
            }
        }
        _ => {}
    }
}

fn add_message_members(message: &mut Object, at: Timestamp) {
    let role = message.text("role");
    match role.as_deref() {
        Some("assistant") => {
            use_content_blocks(message);
            for name in ["api", "provider", "model"] {
                message.set_default(name, &"");
            }
            message.set_default("stopReason", &"stop");
        }
        Some("toolResult") => {
            use_content_blocks(message);
            message.set_default("isError", &false);
        }
        Some("custom") => {
            message.set_default("customType", &"hook");
            message.set_default("display", &true);
        }
        Some("bashExecution") => {
            message.set_default("cancelled", &false);
            message.set_default("truncated", &false);
        }
        _ => {}
    }
    if role.is_some() {
        let at = message.get("timestamp").and_then(read_time).unwrap_or(at);
        message.set("timestamp", &at);
    }
}

/// Changes a message of Turnwheel's form whose content or time other programs have written.
pub(super) fn adapt_stored_message(entry: &mut Object, at: Timestamp) {
    let Some(mut message) = entry.get("message").and_then(Object::from_raw) else { return };
    if matches!(message.text("role").as_deref(), Some("assistant" | "toolResult")) {
        use_content_blocks(&mut message);
    }
    let time = message.get("timestamp");
    if time.is_some_and(|time| time.text().starts_with('"')) {
        let at = time.and_then(read_time).unwrap_or(at);
        message.set("timestamp", &at);
    }
    entry.set_raw("message", message.into_raw());
}

/// Replaces a content that is a text by one block.
fn use_content_blocks(message: &mut Object) {
    if let Some(text) = message.text("content") {
        message.set("content", &json!([{"type": "text", "text": text}]));
    }
}
