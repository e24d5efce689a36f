//! Lines of exported conversations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::session_file::object::Object;
use crate::session_file::{
    AS_IMPORTED, FRAME_DOCUMENT, IMPORTED_TYPES, OWN_TYPES, PI_VERSION, TURNWHEEL_VERSION,
};
use turnwheel_conversation::entry::{ENTRY_BYTES_MAX, Entry, EntryBase, EntryBody};
use turnwheel_conversation::head::{Head, Parent};
use turnwheel_conversation::path_settings::PathSettings;
use turnwheel_conversation::settings::Settings;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::{Timestamp, iso};
use turnwheel_platform::ids::{ConversationId, EntryId};

/// Formats of session files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    Pi,
    Turnwheel,
}

/// Header of a file in Turnwheel's format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversationHeader {
    pub id: ConversationId,
    #[serde(with = "iso")]
    pub timestamp: Timestamp,
    pub agent: String,
    #[serde(default)]
    pub settings: Settings,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_settings: Option<PathSettings>,
    #[serde(default)]
    pub leaf_id: Option<EntryId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// Header of the file from which the conversation was imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pi: Option<RawJson>,
}

pub fn turnwheel_header(header: &ConversationHeader) -> String {
    let mut line = Object::default();
    line.set("type", &"turnwheel");
    line.set("version", &TURNWHEEL_VERSION);
    line.extend(Object::from_raw(&RawJson::from_value(header)).unwrap_or_default());
    one_line(&line.into_raw())
}

pub fn pi_header(header: &ConversationHeader) -> String {
    if let Some(imported) = &header.pi {
        return one_line(imported);
    }
    let mut line = json!({
        "type": "session", "version": PI_VERSION, "id": header.id,
        "timestamp": header.timestamp.to_string(),
        "cwd": header.metadata.get("cwd").map_or("/", String::as_str),
    });
    if let (Some(line), Some(parent)) = (line.as_object_mut(), &header.parent) {
        line.insert("parentSession".to_owned(), json!(parent.conversation_id));
    }
    one_line(&RawJson::from_value(&line))
}

/// A last line that makes the leaf current again: Pi continues after the last entry of a file.
pub fn leaf_line(head: &Head) -> String {
    let line = json!({
        "type": "custom", "customType": format!("{OWN_TYPES}leaf"),
        "id": EntryId::from_seq(&head.incarnation, head.seq + 1), "parentId": head.leaf_id,
        "timestamp": head.updated_at.to_string(),
    });
    one_line(&RawJson::from_value(&line))
}

/// The line of a frame document, before the first entry that names it. `document`: its text; `None`:
/// the store has lost it.
pub fn frame_document_line(sha256: &str, document: Option<&RawJson>) -> String {
    let mut line = Object::default();
    line.set("type", &FRAME_DOCUMENT);
    line.set("sha256", &sha256);
    match document {
        Some(document) => line.set_raw("document", document.clone()),
        None => line.set("missing", &true),
    }
    one_line(&line.into_raw())
}

/// The stored entry.
pub fn turnwheel_line(entry: &Entry) -> String {
    let raw = RawJson::from_value(entry);
    let object = Object::from_raw(&raw).map(restore_own_type);
    one_line(&object.map_or(raw, Object::into_raw))
}

/// The entry as a line of Pi's format. Kinds that only Turnwheel has are `custom` entries.
pub fn pi_line(entry: &Entry) -> String {
    let object = Object::from_raw(&RawJson::from_value(entry)).unwrap_or_default();
    one_line(
        &line_as_imported(entry, &object)
            .unwrap_or_else(|| to_pi(&entry.base, &entry.body, object)),
    )
}

/// As [`pi_line`], for an entry that names a frame document. The document is in its `data`, if one line
/// takes both.
pub fn pi_line_with_document(entry: &Entry, document: &RawJson) -> String {
    let line = pi_line(entry);
    let data = RawJson::from_text(line.trim_end())
        .ok()
        .and_then(|raw| Some((Object::from_raw(&raw)?.get("data").cloned()?, raw)));
    let Some((data, raw)) = data.filter(|_| line.len() + document.text().len() < ENTRY_BYTES_MAX)
    else {
        return line;
    };
    let data = data.with_members(vec![("frameDocument".to_owned(), document.clone())]);
    let mut object = Object::from_raw(&raw).unwrap_or_default();
    object.set_raw("data", data);
    one_line(&object.into_raw())
}

/// The line from which the entry was imported, if the entry has it. A file can contain this member,
/// so it is checked.
fn line_as_imported(entry: &Entry, object: &Object) -> Option<RawJson> {
    let line = RawJson::from_text(object.text(AS_IMPORTED)?).ok()?;
    let members = Object::from_raw(&line)?;
    (members.text("id")? == entry.base.entry_id.as_str()).then_some(line)
}

pub(super) fn to_pi(base: &EntryBase, body: &EntryBody, object: Object) -> RawJson {
    let kind = object.text("type").unwrap_or_default();
    let mut members = restore_own_type(object).without(&[
        "type",
        "entryId",
        "parentId",
        "seq",
        "timestamp",
        "promptId",
        AS_IMPORTED,
    ]);
    let mut line = Object::default();
    match body {
        EntryBody::Message(_) => {
            // These are numbers of entries, which the file does not have.
            members = members.without(&["call", "frame"]);
            line.set("type", &kind);
            line.extend(members);
        }
        EntryBody::ThinkingLevelChange(_)
        | EntryBody::ModelChange(_)
        | EntryBody::Compaction(_)
        | EntryBody::BranchSummary(_)
        | EntryBody::Custom(_)
        | EntryBody::CustomMessage(_)
        | EntryBody::Label(_)
        | EntryBody::SessionInfo(_)
        | EntryBody::Other(_) => {
            line.set("type", &kind);
            line.extend(members);
        }
        EntryBody::Prompt(_)
        | EntryBody::PromptEnd(_)
        | EntryBody::ToolStarted(_)
        | EntryBody::ToolReturned(_)
        | EntryBody::Request(_)
        | EntryBody::Decision(_)
        | EntryBody::Output(_)
        | EntryBody::Protocol(_)
        | EntryBody::LostCall(_)
        | EntryBody::FailedSummary(_)
        | EntryBody::Frame(_) => {
            line.set("type", &"custom");
            line.set("customType", &format!("{OWN_TYPES}{kind}"));
            line.set_raw("data", members.into_raw());
        }
    }
    line.set("id", &base.entry_id);
    line.set("parentId", &base.parent_id);
    line.set("timestamp", &base.timestamp.to_string());
    line.into_raw()
}

fn restore_own_type(mut object: Object) -> Object {
    let custom_type = object.text("customType").unwrap_or_default();
    if let Some(own) = custom_type.strip_prefix(IMPORTED_TYPES) {
        object.set("customType", &format!("{OWN_TYPES}{own}"));
    }
    object
}

/// The JSON in one line. In JSON a line break is always between two tokens.
fn one_line(raw: &RawJson) -> String {
    let mut line = raw.text().replace(['\n', '\r'], " ");
    line.push('\n');
    line
}
