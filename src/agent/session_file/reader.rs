//! Reading of session files, line by line. A line that cannot be used is skipped with its reason.

use std::collections::HashMap;

use crate::agent::entry::{Entry, EntryBase, EntryBody};
use crate::agent::fork::Renumbering;
use crate::agent::raw::{ENTRY_DEPTH_MAX, RawJson};
use crate::agent::session_file::lines::LINE_BYTES_MAX;
use crate::agent::session_file::migration::{LinePosition, add_required_members, migrate};
use crate::agent::session_file::object::Object;
use crate::agent::session_file::writer::to_pi;
use crate::agent::session_file::{
    AS_IMPORTED, ConversationHeader, IMPORTED_TYPES, Line, OWN_TYPES, PI_VERSION, TURNWHEEL_VERSION,
};
use crate::agent::strict::JsonError;
use crate::clock::{Timestamp, parse_iso};
use crate::ids::{EntryId, is_plain_text};
use crate::text_encoding::{EncodingError, decode_utf8};

/// Maximum number of entries of a file.
const ENTRIES_MAX: u64 = 100_000;
const ID_LENGTH_MAX: usize = 64;
/// Maximum bytes of an imported entry as JSON.
const ENTRY_BYTES_MAX: usize = LINE_BYTES_MAX;
/// Maximum bytes of a header that is kept for exports.
const HEADER_BYTES_MAX: usize = 4 * 1024;

/// A file that is refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub(crate) struct FileError {
    /// From 1.
    pub(crate) line: u64,
    pub(crate) reason: String,
}

/// The header of a file.
#[derive(Clone, Debug)]
pub(crate) enum FileHeader {
    /// As version 3.
    Pi(RawJson),
    Turnwheel(Box<ConversationHeader>),
}

/// An entry, and what was changed in it.
#[derive(Debug)]
pub(crate) struct ImportedEntry {
    pub(crate) entry: Entry,
    pub(crate) warning: Option<String>,
}

#[derive(Debug)]
pub(crate) enum ParsedLine {
    Header,
    Entry(Box<ImportedEntry>),
    /// The reason why the line is not used.
    Skipped(String),
}

/// Reads the lines of one file in order.
#[derive(Debug)]
pub(crate) struct SessionReader {
    /// Ids of entries without an id come from it.
    incarnation: String,
    header: Option<FileHeader>,
    /// Version of a file of Pi; 0 for Turnwheel's.
    pi_version: u64,
    lines: u64,
    entries: u64,
    /// Line numbers of the entries.
    ids: HashMap<EntryId, u64>,
    ids_by_index: Vec<Option<EntryId>>,
    previous: Option<EntryId>,
    previous_time: Timestamp,
    renumbering: Renumbering,
}

impl SessionReader {
    /// `now`: time of entries before the first one that has a time.
    pub(crate) fn new(incarnation: &str, now: Timestamp) -> Self {
        Self {
            incarnation: incarnation.to_owned(),
            header: None,
            pi_version: 0,
            lines: 0,
            entries: 0,
            ids: HashMap::new(),
            ids_by_index: Vec::new(),
            previous: None,
            previous_time: now,
            renumbering: Renumbering::default(),
        }
    }

    /// Number of the last line, from 1.
    pub(crate) fn line_number(&self) -> u64 {
        self.lines
    }

    /// # Errors
    /// The file has no header: it is refused.
    pub(crate) fn header(&self) -> Result<&FileHeader, FileError> {
        self.header.as_ref().ok_or_else(|| self.no_header())
    }

    /// Ids of all entries.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &EntryId> {
        self.ids.keys()
    }

    fn error(&self, reason: impl Into<String>) -> FileError {
        FileError { line: self.lines.max(1), reason: reason.into() }
    }

    fn no_header(&self) -> FileError {
        self.error("this is no session file: its first line is a header with the `type` \"session\" or \"turnwheel\"")
    }

    /// # Errors
    /// The file is refused: it has no header, a newer version, or too many entries.
    pub(crate) fn read(&mut self, line: &Line) -> Result<ParsedLine, FileError> {
        self.lines += 1;
        let raw = match parse_line(line) {
            Ok(raw) => raw,
            Err(UTF16) if self.header.is_none() => return Err(self.error(UTF16)),
            Err(BLANK) => return Ok(ParsedLine::Skipped(BLANK.to_owned())),
            Err(_) if self.header.is_none() => return Err(self.no_header()),
            Err(reason) => return Ok(ParsedLine::Skipped(reason.to_owned())),
        };
        if self.header.is_none() {
            self.read_header(&raw)?;
            self.ids_by_index.push(None);
            return Ok(ParsedLine::Header);
        }
        if self.entries >= ENTRIES_MAX {
            let reason = format!("a file may have {ENTRIES_MAX} entries: split it");
            return Err(self.error(reason));
        }
        let read = match self.header {
            Some(FileHeader::Turnwheel(_)) => self.read_stored_entry(&raw),
            Some(FileHeader::Pi(_)) | None => self.read_pi_entry(&raw),
        };
        let id = read.as_ref().ok().map(|imported| imported.entry.base.entry_id.clone());
        if self.pi_version == 1 {
            self.ids_by_index.push(id.clone());
        }
        let imported = match read {
            Ok(imported) => imported,
            Err(reason) => return Ok(ParsedLine::Skipped(reason)),
        };
        self.entries += 1;
        let base = &imported.entry.base;
        self.ids.insert(base.entry_id.clone(), self.lines);
        self.previous_time = base.timestamp;
        self.previous = id;
        Ok(ParsedLine::Entry(Box::new(imported)))
    }

    fn read_header(&mut self, raw: &RawJson) -> Result<(), FileError> {
        let mut header = Object::from_raw(raw).ok_or_else(|| self.no_header())?;
        let version = header.get("version").map_or(Some(1), |version| version.read::<u64>().ok());
        let newest = match header.text("type").as_deref() {
            Some("session") => PI_VERSION,
            Some("turnwheel") => TURNWHEEL_VERSION,
            _ => return Err(self.no_header()),
        };
        let version =
            version.filter(|version| (1..=newest).contains(version)).ok_or_else(|| {
                self.error(format!("the `version` of the header must be 1 to {newest}"))
            })?;
        if let Some(at) = header.text("timestamp").and_then(|text| parse_iso(&text)) {
            self.previous_time = at;
        }
        if header.text("type").as_deref() == Some("turnwheel") {
            let read = crate::agent::strict::from_str(raw.text());
            let read = read.map_err(|error: JsonError| {
                self.error(format!("the header cannot be used: {error}"))
            })?;
            self.header = Some(FileHeader::Turnwheel(Box::new(read)));
            return Ok(());
        }
        self.pi_version = version;
        header.set("version", &PI_VERSION);
        let header = header.into_raw();
        if header.text().len() > HEADER_BYTES_MAX {
            let reason = format!("the header may have {HEADER_BYTES_MAX} bytes");
            return Err(self.error(reason));
        }
        self.header = Some(FileHeader::Pi(header));
        Ok(())
    }

    /// Checks an id, or makes one.
    fn resolve_id(&self, id: Option<&RawJson>) -> Result<EntryId, String> {
        let Some(id) = id else {
            let numbers = (0_u64..).map(|step| self.entries + 1 + (step << 20));
            let mut ids = numbers.map(|number| EntryId::from_seq(&self.incarnation, number));
            return ids.find(|id| !self.ids.contains_key(id)).ok_or_else(String::new);
        };
        let id: String = id.read().unwrap_or_default();
        if id.len() > ID_LENGTH_MAX || !is_plain_text(&id) {
            return Err(format!(
                "an `id` is 1 to {ID_LENGTH_MAX} of the characters A-Z a-z 0-9 _ . -, and not only dots"
            ));
        }
        let id = EntryId::new(id);
        match self.ids.get(&id) {
            Some(line) => Err(format!("line {line} has the same `id`")),
            None => Ok(id),
        }
    }

    /// A parent that precedes the entry. Otherwise the entry becomes a root, so loops are impossible.
    fn resolve_parent(&self, parent: Option<EntryId>) -> (Option<EntryId>, Option<String>) {
        match parent {
            Some(parent) if !self.ids.contains_key(&parent) => {
                let warning = "no earlier line has the `parentId`: the entry begins a branch";
                (None, Some(warning.to_owned()))
            }
            parent => (parent, None),
        }
    }

    fn read_pi_entry(&mut self, raw: &RawJson) -> Result<ImportedEntry, String> {
        let mut line = Object::from_raw(raw).ok_or(NO_OBJECT)?;
        match line.text("type").as_deref() {
            None => return Err("an entry has a `type`".to_owned()),
            Some("session") => return Err("a file has one header".to_owned()),
            Some(_) => {}
        }
        let id = self.resolve_id(line.get("id"))?;
        line.set("id", &id);
        let given = match line.get("parentId") {
            None => self.previous.clone(),
            Some(parent) => parent.read().map_err(|_| "a `parentId` is a text or null")?,
        };
        line.set("parentId", &given);
        let position =
            LinePosition { version: self.pi_version, id: &id, ids_by_index: &self.ids_by_index };
        migrate(&mut line, &position);
        let at = line.text("timestamp").and_then(|text| parse_iso(&text));
        let timestamp = at.unwrap_or(self.previous_time);
        line.set_default("timestamp", &timestamp.to_string());
        let (parent_id, warning) = self.resolve_parent(given);
        let base = EntryBase {
            entry_id: id,
            parent_id,
            seq: self.entries + 1,
            timestamp,
            prompt_id: None,
        };
        let entry = build_entry(line, &base)?;
        Ok(ImportedEntry { entry, warning })
    }

    fn read_stored_entry(&mut self, raw: &RawJson) -> Result<ImportedEntry, String> {
        let mut line = Object::from_raw(raw).ok_or(NO_OBJECT)?;
        if !line.has("entryId") {
            return Err("an entry has an `entryId`".to_owned());
        }
        self.resolve_id(line.get("entryId"))?;
        if let Some(prompt_id) = line.get("promptId")
            && !prompt_id.read::<String>().is_ok_and(|id| is_plain_text(&id))
        {
            return Err("a `promptId` has only the characters A-Z a-z 0-9 _ . -".to_owned());
        }
        mark_own_type(&mut line);
        let (entry, _) = read_entry(&line.into_raw())?;
        let (parent_id, warning) = self.resolve_parent(entry.base.parent_id.clone());
        let base = EntryBase { parent_id, ..entry.base.clone() };
        let entry = self.renumbering.add(entry.with_base(base));
        Ok(ImportedEntry { entry, warning })
    }
}

const BLANK: &str = "the line is blank";
const UTF16: &str =
    "the line is UTF-16 text, as Windows PowerShell writes it with `>`: save the file as UTF-8";
const NO_OBJECT: &str = "the line is no JSON object";

fn parse_line(line: &Line) -> Result<RawJson, &'static str> {
    let Line::Bytes(bytes) = line else { return Err("the line has more than 1.4 MB") };
    let text = decode_utf8(bytes).map_err(|error| match error {
        EncodingError::Utf16 => UTF16,
        EncodingError::NotUtf8 => "the line is not UTF-8",
        EncodingError::TwoMarks => "the line begins with two byte order marks",
    });
    let text = text?.trim();
    if text.is_empty() {
        return Err(BLANK);
    }
    RawJson::from_text(text).map_err(|error| {
        if error.is_eof() { "the line ends within its JSON" } else { "the line is not JSON" }
    })
}

/// Builds the entry of a line of Pi's. If its export would differ from the line, the entry keeps the
/// line.
fn build_entry(line: Object, base: &EntryBase) -> Result<Entry, String> {
    let migrated = line.clone().into_raw();
    let mut stored = line.without(&["id", "entryId", "seq", "promptId", AS_IMPORTED]);
    if stored.text("type").as_deref() == Some("message") {
        stored = stored.without(&["call", "frame"]);
    }
    add_required_members(&mut stored, &base.entry_id, base.timestamp);
    mark_own_type(&mut stored);
    stored.extend(Object::from_raw(&RawJson::from_value(base)).unwrap_or_default());
    let (entry, written) = read_entry(&stored.clone().into_raw())?;
    let written = Object::from_raw(&written).unwrap_or_default();
    if to_pi(&entry.base, &entry.body, written) == migrated {
        return Ok(entry);
    }
    stored.set(AS_IMPORTED, &migrated.text());
    let with_line = stored.into_raw();
    if with_line.text().len() > ENTRY_BYTES_MAX {
        return Ok(entry);
    }
    read_entry(&with_line).map(|(entry, _)| entry)
}

fn mark_own_type(line: &mut Object) {
    let custom_type = line.text("customType").unwrap_or_default();
    if let Some(own) = custom_type.strip_prefix(OWN_TYPES) {
        line.set("customType", &format!("{IMPORTED_TYPES}{own}"));
    }
}

/// The entry, and its JSON as it is stored.
fn read_entry(raw: &RawJson) -> Result<(Entry, RawJson), String> {
    EntryBody::check(raw).map_err(|error| error.to_string())?;
    let entry: Entry = raw.read().map_err(|error| crate::agent::raw::redacted_error(&error))?;
    let written = RawJson::from_value(&entry);
    if written.text().len() > ENTRY_BYTES_MAX {
        return Err("the entry has more than 1.4 MB".to_owned());
    }
    // A value that nests too deep could be stored and not be read again.
    if written.depth() > ENTRY_DEPTH_MAX {
        return Err("the entry nests too deep".to_owned());
    }
    Ok((entry, written))
}
