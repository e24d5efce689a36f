//! Odd members of imported entries. Each costs only itself: the entry keeps its place and the rest.

use crate::session_file::object::Object;
use turnwheel_conversation::content::{Block, Content};
use turnwheel_conversation::entry::EntryBody;
use turnwheel_conversation::message::Message;
use turnwheel_json::raw::RawJson;
use turnwheel_json::strict::JsonError;

/// Repairs of one entry.
const REPAIRS_MAX: usize = 32;
/// Values of members that a known kind must have.
const DEFAULTS: [(&str, &str); 24] = [
    ("content", "[]"),
    ("text", "\"\""),
    ("thinking", "\"\""),
    ("id", "\"\""),
    ("name", "\"unknown\""),
    ("arguments", "{}"),
    ("data", "\"\""),
    ("mimeType", "\"\""),
    ("api", "\"\""),
    ("provider", "\"\""),
    ("model", "\"\""),
    ("stopReason", "\"stop\""),
    ("toolCallId", "\"\""),
    ("toolName", "\"unknown\""),
    ("isError", "false"),
    ("summary", "\"\""),
    ("tokensBefore", "0"),
    ("fromId", "\"root\""),
    ("command", "\"\""),
    ("output", "\"\""),
    ("cancelled", "false"),
    ("truncated", "false"),
    ("customType", "\"unknown\""),
    ("display", "true"),
];
/// The text in place of an image that no model accepts.
const IMAGE_NOTE: &str = "(image omitted: it is not a PNG, JPEG, GIF or WebP picture)";
const IMAGES_LEFT_OUT: &str =
    "an image is no PNG, JPEG, GIF or WebP picture as base64: a text replaces it";

/// The entry without the members that its kind does not have in this form, and the reason for each.
///
/// # Errors
/// The entry cannot be repaired.
pub(super) fn repair(mut entry: RawJson) -> Result<(RawJson, Vec<String>), String> {
    let mut warnings = Vec::new();
    while let Some(mistake) = find_mistake(&entry) {
        let path: Vec<&str> = mistake.pointer.split('/').skip(1).collect();
        let repaired = change_at(&entry, &path).filter(|_| warnings.len() < REPAIRS_MAX);
        entry = repaired.ok_or_else(|| mistake.to_string())?;
        warnings.push(mistake.to_string());
    }
    Ok((entry, warnings))
}

/// The first mistake of an entry with its place. A value within another one reports only its own
/// place, so the innermost one is checked first.
fn find_mistake(entry: &RawJson) -> Option<JsonError> {
    let mistake = EntryBody::check(entry).err()?;
    let members = Object::from_raw(entry)?;
    let message = members.get("message").filter(|_| mistake.pointer.starts_with("/message"));
    let Some(message) = message else {
        return Some(find_block_mistake(&members).unwrap_or(mistake));
    };
    let Err(inner) = Message::check(message) else { return Some(mistake) };
    let of_block = Object::from_raw(message).and_then(|message| find_block_mistake(&message));
    Some(of_block.unwrap_or(inner).with_parent_pointer("/message"))
}

fn find_block_mistake(message: &Object) -> Option<JsonError> {
    let blocks: Vec<RawJson> = message.get("content")?.read().ok()?;
    blocks.iter().enumerate().find_map(|(position, block)| {
        let mistake = Block::check(block).err()?;
        Some(mistake.with_parent_pointer(&format!("/content/{position}")))
    })
}

/// Gives the value at the path its default, or removes it.
fn change_at(raw: &RawJson, path: &[&str]) -> Option<RawJson> {
    let (name, rest) = path.split_first()?;
    if let Some(mut members) = raw.members() {
        let at = members.iter().rposition(|(known, _)| known == name);
        if !rest.is_empty() {
            let (_, value) = members.get_mut(at?)?;
            *value = change_at(value, rest)?;
            return Some(RawJson::from_members(members));
        }
        let current = at.and_then(|at| members.get(at)).map(|(_, value)| value);
        let default = default_of(name, current);
        let is_default = current.is_some() && current == default.as_ref();
        match (at, default) {
            (Some(at), Some(default)) if !is_default => members.get_mut(at)?.1 = default,
            (Some(at), _) => drop(members.remove(at)),
            (None, default) => members.push(((*name).to_owned(), default?)),
        }
        return Some(RawJson::from_members(members));
    }
    let mut items: Vec<RawJson> = raw.read().ok()?;
    let at: usize = name.parse().ok().filter(|at| *at < items.len())?;
    if rest.is_empty() {
        items.remove(at);
    } else {
        let item = items.get_mut(at)?;
        *item = change_at(item, rest)?;
    }
    Some(RawJson::from_value(&items))
}

/// The default in place of a value of another type. An odd `isError` is an error, as in results of
/// tools: a failed call is never read as a success.
fn default_of(name: &str, current: Option<&RawJson>) -> Option<RawJson> {
    let is_error = name == "isError" && current.is_some_and(|it| it.text() != "\"false\"");
    let (_, default) = DEFAULTS.iter().find(|(known, _)| *known == name)?;
    RawJson::from_text(if is_error { "true" } else { default }).ok()
}

/// Replaces images that no model accepts. A request with one would be refused, and so would every
/// later one. Returns the warning.
pub(super) fn replace_unusable_images(body: &mut EntryBody) -> Option<&'static str> {
    let blocks = image_blocks(body)?;
    let mut is_changed = false;
    for block in blocks {
        if let Block::Image(image) = block
            && (image.type_error().is_some() || image.data_error().is_some())
        {
            *block = Block::text(IMAGE_NOTE);
            is_changed = true;
        }
    }
    is_changed.then_some(IMAGES_LEFT_OUT)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "most kinds of entry have no images")]
fn image_blocks(body: &mut EntryBody) -> Option<&mut Vec<Block>> {
    let content = match body {
        EntryBody::CustomMessage(custom) => &mut custom.content,
        EntryBody::Message(entry) => match &mut entry.message {
            Message::User(user) => &mut user.content,
            Message::Custom(custom) => &mut custom.content,
            Message::ToolResult(result) => return Some(&mut result.content),
            Message::Assistant(_)
            | Message::BashExecution(_)
            | Message::BranchSummary(_)
            | Message::CompactionSummary(_)
            | Message::Other(_) => return None,
        },
        _ => return None,
    };
    if let Content::Blocks(blocks) = content { Some(blocks) } else { None }
}
