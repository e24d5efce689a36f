//! Entries of a file: built from a line, repaired, or without content at the place of a line that
//! cannot be used.

use crate::session_file::migration::add_required_members;
use crate::session_file::object::Object;
use crate::session_file::repair::{repair, replace_unusable_images};
use crate::session_file::writer::to_pi;
use crate::session_file::{AS_IMPORTED, IMPORTED_TYPES, OWN_TYPES};
use turnwheel_conversation::entry::{Custom, Entry, EntryBase, EntryBody, find_size_error};
use turnwheel_json::foreign::read_foreign_json;
use turnwheel_json::raw::{ENTRY_DEPTH_MAX, RawJson, redacted_error};
use turnwheel_platform::ids::EntryId;

/// Custom type of an entry of which only the place is kept.
const UNUSABLE: &str = "imported/unusable";
const NO_SUMMARY: &str = "the compaction has no summary and replaces no message";
const TOO_DEEP: &str = "the entry nests too deep";

/// An entry, and what was changed in it.
#[derive(Debug)]
pub struct ImportedEntry {
    pub entry: Entry,
    pub warnings: Vec<String>,
}

/// Builds the entry of a line of Pi's. If its export would differ from the line, the entry keeps the
/// line.
pub(super) fn build_entry(
    line: Object,
    base: &EntryBase,
    references: &[(&'static str, EntryId)],
) -> ImportedEntry {
    let migrated = line.clone().into_raw();
    let mut stored = line.without(&["id", "entryId", "seq", "promptId", AS_IMPORTED]);
    if stored.text("type").as_deref() == Some("message") {
        stored = stored.without(&["call", "frame"]);
    }
    add_required_members(&mut stored, &base.entry_id, base.timestamp);
    mark_own_type(&mut stored);
    for (name, id) in references {
        stored.set(name, id);
    }
    let read = read_entry(stored.with_base(base).into_raw());
    let (entry, written, warnings) = match read {
        Ok((entry, ..))
            if entry.body.compaction().is_some_and(|it| it.summary.trim().is_empty()) =>
        {
            return keep_place(base, &migrated, NO_SUMMARY);
        }
        Ok(read) => read,
        Err(reason) => return keep_place(base, &migrated, &reason),
    };
    let mut stored = Object::from_raw(&written).unwrap_or_default();
    if to_pi(&entry.base, &entry.body, stored.clone()) == migrated {
        return ImportedEntry { entry, warnings };
    }
    stored.set(AS_IMPORTED, &migrated.text());
    let with_line = stored.into_raw();
    let with_line: Option<Entry> = Some(with_line)
        .filter(|raw| find_size_error(raw.text()).is_none())
        .and_then(|raw| raw.read().ok());
    ImportedEntry { entry: with_line.unwrap_or(entry), warnings }
}

/// An entry without content at the place of one that cannot be used. It has the line.
pub(super) fn keep_place(base: &EntryBase, line: &RawJson, reason: &str) -> ImportedEntry {
    let mut custom = Custom::new(UNUSABLE, None);
    custom.extra.insert(AS_IMPORTED.to_owned(), line.text().into());
    let whole = Entry { base: base.clone(), body: EntryBody::Custom(custom) };
    let entry = match find_size_error(RawJson::from_value(&whole).text()) {
        None => whole,
        Some(_) => Entry { base: whole.base, body: EntryBody::Custom(Custom::new(UNUSABLE, None)) },
    };
    ImportedEntry {
        entry,
        warnings: vec![format!("{reason}: only the place of the entry is kept")],
    }
}

pub(super) fn mark_own_type(line: &mut Object) {
    let custom_type = line.text("customType").unwrap_or_default();
    if let Some(own) = custom_type.strip_prefix(OWN_TYPES) {
        line.set("customType", &format!("{IMPORTED_TYPES}{own}"));
    }
}

/// The entry, its JSON as it is stored, and what was left out.
pub(super) fn read_entry(raw: RawJson) -> Result<(Entry, RawJson, Vec<String>), String> {
    let (mut raw, mut warnings) = repair(raw)?;
    // A value that nests too deep could be stored and not be read again.
    if raw.depth() > ENTRY_DEPTH_MAX {
        let shallow = read_foreign_json(raw.text()).ok_or(TOO_DEEP)?;
        warnings.extend(shallow.notes.iter().map(|note| (*note).to_owned()));
        raw = shallow.json;
    }
    let mut entry: Entry = raw.read().map_err(|error| redacted_error(&error))?;
    if matches!(&entry.body, EntryBody::Other(raw) if raw.string_member("type").is_none()) {
        return Err("an entry has a `type`".to_owned());
    }
    if entry.body.message().is_some_and(|message| message.role().is_empty()) {
        return Err("a message is an object with a `role`".to_owned());
    }
    warnings.extend(replace_unusable_images(&mut entry.body).map(ToOwned::to_owned));
    let written = RawJson::from_value(&entry);
    if let Some(error) = find_size_error(written.text()) {
        return Err(error);
    }
    if written.depth() > ENTRY_DEPTH_MAX {
        return Err(TOO_DEEP.to_owned());
    }
    Ok((entry, written, warnings))
}
