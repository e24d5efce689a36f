//! Reading of session files, line by line. What cannot be used is skipped or left out with its
//! reason, and costs nothing else.

use std::borrow::Cow;

use crate::session_file::entries::{
    ImportedEntry, build_entry, keep_place, mark_own_type, read_entry,
};
use crate::session_file::migration::{LinePosition, adapt_stored_message, migrate};
use crate::session_file::object::Object;
use crate::session_file::places::Places;
use crate::session_file::records::{Record, leading_members, split_records};
use crate::session_file::times::read_time;
use crate::session_file::{
    ConversationHeader, FRAME_DOCUMENT, Line, PI_VERSION, TURNWHEEL_VERSION,
};
use turnwheel_conversation::entry::EntryBase;
use turnwheel_conversation::fork::Renumbering;
use turnwheel_json::raw::RawJson;
use turnwheel_json::strict::JsonError;
use turnwheel_platform::clock::{Timestamp, parse_iso};
use turnwheel_platform::digest::sha256_hex;
use turnwheel_platform::ids::{EntryId, PromptId, is_plain_text};
use turnwheel_platform::text_encoding::{EncodingError, decode_utf8, decode_windows_1252};

/// Maximum number of entries of a file.
const ENTRIES_MAX: u64 = 100_000;
const ID_LENGTH_MAX: usize = 64;
/// Members with the id of another entry.
const REFERENCES: [&str; 3] = ["firstKeptEntryId", "targetId", "fromId"];
/// Maximum bytes of a header that is kept for exports.
const HEADER_BYTES_MAX: usize = 4 * 1024;

/// A file that is refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct FileError {
    /// From 1.
    pub line: u64,
    pub reason: String,
}

/// The header of a file.
#[derive(Clone, Debug)]
pub enum FileHeader {
    /// As version 3.
    Pi(RawJson),
    Turnwheel(Box<ConversationHeader>),
}

#[derive(Debug)]
pub enum ParsedLine {
    Header,
    Entry(Box<ImportedEntry>),
    /// A frame document, and its SHA-256, which is checked.
    FrameDocument {
        sha256: String,
        document: RawJson,
    },
    /// The reason why the line, or a part of it, is not used.
    Skipped(String),
}

/// Reads the lines of one file in order.
#[derive(Debug)]
pub struct SessionReader {
    /// Ids of entries without an id come from it.
    incarnation: String,
    header: Option<FileHeader>,
    /// Version of a file of Pi; 0 for Turnwheel's.
    pi_version: u64,
    lines: u64,
    entries: u64,
    places: Places,
    ids_by_index: Vec<Option<EntryId>>,
    previous_time: Timestamp,
    renumbering: Renumbering,
}

impl SessionReader {
    /// `now`: time of entries before the first one that has a time.
    pub fn new(incarnation: &str, now: Timestamp) -> Self {
        Self {
            incarnation: incarnation.to_owned(),
            header: None,
            pi_version: 0,
            lines: 0,
            entries: 0,
            places: Places::default(),
            ids_by_index: Vec::new(),
            previous_time: now,
            renumbering: Renumbering::default(),
        }
    }

    /// Number of the last line, from 1.
    pub fn line_number(&self) -> u64 {
        self.lines
    }

    /// # Errors
    /// The file has no header: it is refused.
    pub fn header(&self) -> Result<&FileHeader, FileError> {
        self.header.as_ref().ok_or_else(|| self.no_header())
    }

    /// Ids of all entries.
    pub fn ids(&self) -> impl Iterator<Item = &EntryId> {
        self.places.ids()
    }

    /// The entry that has the id in the file, or stands for its lost line. Outer `None`: neither.
    #[expect(clippy::option_option, reason = "an entry may be the root")]
    pub fn find_place(&self, id: &EntryId) -> Option<Option<EntryId>> {
        self.places.find(&RawJson::from_value(id))
    }

    fn error(&self, reason: impl Into<String>) -> FileError {
        FileError { line: self.lines.max(1), reason: reason.into() }
    }

    fn no_header(&self) -> FileError {
        self.error("this is no session file: its first line is a header with the `type` \"session\" or \"turnwheel\"")
    }

    /// Reads the records of a line.
    ///
    /// # Errors
    /// The file is refused: it has no header, a newer version, or too many entries.
    pub fn read(&mut self, line: &Line) -> Result<Vec<ParsedLine>, FileError> {
        self.lines += 1;
        let (text, encoding_error) = match line {
            Line::TooLong(start) => {
                return self.lose(
                    &String::from_utf8_lossy(start),
                    "the line is longer than an entry may be",
                );
            }
            Line::Bytes(bytes) => decode_line(bytes),
        };
        if self.header.is_none()
            && let Some(wide @ (UTF16 | UTF32)) = encoding_error
        {
            return Err(self.error(wide));
        }
        let records = split_records(&text);
        if records.is_empty() {
            // Its blanks may stand in the place of a record.
            if *line != Line::Bytes(Vec::new()) {
                self.places.lose(None, None);
            }
            return Ok(vec![ParsedLine::Skipped(BLANK.to_owned())]);
        }
        let mut parsed = Vec::with_capacity(records.len());
        for record in records {
            match record {
                Record::Whole(raw, repairs) => {
                    let notes = encoding_error.map(|error| match error {
                        WINDOWS_1252 => error,
                        _ => BYTES_REPLACED,
                    });
                    let notes = notes.into_iter().chain(repairs);
                    parsed.push(self.read_record(&raw, notes)?);
                }
                Record::Damaged(text, reason) => {
                    parsed.extend(self.lose(text, encoding_error.unwrap_or(reason))?);
                }
            }
        }
        Ok(parsed)
    }

    /// Skips damaged text. The entries that follow it keep their place.
    fn lose(&mut self, text: &str, reason: &str) -> Result<Vec<ParsedLine>, FileError> {
        if self.header.is_none() {
            return Err(self.no_header());
        }
        let members = leading_members(text);
        self.lose_members(&members);
        Ok(vec![ParsedLine::Skipped(reason.to_owned())])
    }

    fn lose_members(&mut self, members: &Object) {
        let id = members.get("id").or_else(|| members.get("entryId"));
        self.places.lose(id, members.get("parentId"));
    }

    fn read_record(
        &mut self,
        raw: &RawJson,
        notes: impl Iterator<Item = &'static str>,
    ) -> Result<ParsedLine, FileError> {
        if self.header.is_none() {
            self.read_header(raw)?;
            self.ids_by_index.push(None);
            return Ok(ParsedLine::Header);
        }
        let members = Object::from_raw(raw).unwrap_or_default();
        if let Some(FileHeader::Turnwheel(_)) = self.header
            && members.text("type").as_deref() == Some(FRAME_DOCUMENT)
        {
            return Ok(read_frame_document(&members).unwrap_or_else(ParsedLine::Skipped));
        }
        if self.entries >= ENTRIES_MAX {
            let reason = format!("a file may have {ENTRIES_MAX} entries: split it");
            return Err(self.error(reason));
        }
        let read = match self.header {
            Some(FileHeader::Turnwheel(_)) => self.read_stored_entry(members.clone()),
            Some(FileHeader::Pi(_)) | None => self.read_pi_entry(members.clone()),
        };
        let (mut imported, written_id) = match read {
            Ok(read) => read,
            Err(reason) => {
                if self.pi_version == 1 {
                    self.ids_by_index.push(None);
                }
                self.lose_members(&members);
                return Ok(ParsedLine::Skipped(reason));
            }
        };
        imported.warnings.extend(notes.map(ToOwned::to_owned));
        self.entries += 1;
        let base = &imported.entry.base;
        if self.pi_version == 1 {
            self.ids_by_index.push(Some(base.entry_id.clone()));
        }
        self.places.add(base.entry_id.clone(), written_id.as_ref(), self.lines);
        self.previous_time = base.timestamp;
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
        if let Some(at) = header.get("timestamp").and_then(read_time) {
            self.previous_time = at;
        }
        if header.text("type").as_deref() == Some("turnwheel") {
            let read = turnwheel_json::strict::from_str(raw.text());
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

    /// The id of an entry, made if it has none that can be one.
    fn resolve_id(&self, id: Option<&RawJson>) -> Result<ResolvedId, String> {
        let id = id.filter(|id| id.text() != "null");
        let given = id.and_then(|id| id.read::<String>().ok());
        let given = given.filter(|id| id.len() <= ID_LENGTH_MAX && is_plain_text(id));
        let Some(given) = given.map(EntryId::new) else {
            let numbers = (0_u64..).map(|step| self.entries + 1 + (step << 20));
            let mut ids = numbers.map(|number| EntryId::from_seq(&self.incarnation, number));
            let new = ids.find(|id| self.places.line_of(id).is_none()).ok_or_else(String::new)?;
            return match id {
                Some(id) if self.places.find(id).is_some() => Err(SAME_ID.to_owned()),
                id => Ok(ResolvedId { id: new, written: id.cloned() }),
            };
        };
        match self.places.line_of(&given) {
            Some(line) => Err(format!("line {line} has the same `id`")),
            None => Ok(ResolvedId { id: given, written: None }),
        }
    }

    /// The time of an entry: its own, that of its message, or that of the entry before.
    fn resolve_time(&self, line: &Object) -> (Timestamp, Option<&'static str>) {
        let given = line.get("timestamp").filter(|time| time.text() != "null");
        let message = || line.get("message").and_then(Object::from_raw);
        match given.and_then(read_time) {
            Some(time) => (time, None),
            None => (
                message()
                    .and_then(|it| read_time(it.get("timestamp")?))
                    .unwrap_or(self.previous_time),
                given.map(|_| UNREADABLE_TIME),
            ),
        }
    }

    /// References to entries that have another id, or whose line is lost.
    fn changed_references(&self, line: &Object) -> Vec<(&'static str, EntryId)> {
        let of = |name: &'static str| {
            let written = line.get(name)?;
            let found = self.places.find(written)??;
            (written.text() != RawJson::from_value(&found).text()).then_some((name, found))
        };
        REFERENCES.into_iter().filter_map(of).collect()
    }

    fn read_pi_entry(
        &mut self,
        mut line: Object,
    ) -> Result<(ImportedEntry, Option<RawJson>), String> {
        let kind = line.text("type");
        if kind.is_none() && !(line.has("id") && line.has("parentId")) {
            return Err("an entry has a `type`".to_owned());
        }
        if kind.as_deref() == Some("session") {
            return Err("a file has one header".to_owned());
        }
        let ResolvedId { id, written } = self.resolve_id(line.get("id"))?;
        line.set("id", &id);
        let (parent_id, parent_warning) = self.places.find_parent(line.get("parentId"));
        if !line.get("parentId").is_some_and(|it| it.text().starts_with('"')) {
            line.set("parentId", &parent_id);
        }
        let position =
            LinePosition { version: self.pi_version, id: &id, ids_by_index: &self.ids_by_index };
        migrate(&mut line, &position);
        let (timestamp, time_warning) = self.resolve_time(&line);
        line.set_default("timestamp", &timestamp.to_string());
        let base = EntryBase {
            entry_id: id,
            parent_id,
            seq: self.entries + 1,
            timestamp,
            prompt_id: None,
        };
        let references = self.changed_references(&line);
        let mut imported = build_entry(line, &base, &references);
        let id_warning = written.as_ref().map(|_| ODD_ID);
        let found = [id_warning, parent_warning, time_warning].into_iter().flatten();
        imported.warnings.splice(0..0, found.map(ToOwned::to_owned));
        Ok((imported, written))
    }

    fn read_stored_entry(
        &mut self,
        mut line: Object,
    ) -> Result<(ImportedEntry, Option<RawJson>), String> {
        if !line.has("entryId") {
            return Err("an entry has an `entryId`".to_owned());
        }
        let as_written = line.clone();
        let ResolvedId { id, written } = self.resolve_id(line.get("entryId"))?;
        let (parent_id, parent_warning) = self.places.find_parent(line.get("parentId"));
        let iso = line.text("timestamp").and_then(|text| parse_iso(&text));
        let (timestamp, time_warning) =
            iso.map_or_else(|| self.resolve_time(&line), |time| (time, None));
        let prompt_id: Option<String> = line.text("promptId").filter(|id| is_plain_text(id));
        let seq = line.get("seq").and_then(|seq| seq.read().ok());
        let base = EntryBase {
            entry_id: id,
            parent_id,
            seq: seq.unwrap_or(self.entries + 1),
            timestamp,
            prompt_id: prompt_id.map(PromptId::new),
        };
        let prompt_warning =
            (line.has("promptId") && base.prompt_id.is_none()).then_some(ODD_PROMPT_ID);
        mark_own_type(&mut line);
        adapt_stored_message(&mut line, timestamp);
        for (name, id) in self.changed_references(&line) {
            line.set(name, &id);
        }
        let line = line.without(&["promptId"]).with_base(&base);
        let mut imported = match read_entry(line.into_raw()) {
            Ok((entry, _, warnings)) => ImportedEntry { entry, warnings },
            Err(reason) => keep_place(&base, &as_written.into_raw(), &reason),
        };
        imported.entry = self.renumbering.add(imported.entry);
        let id_warning = written.as_ref().map(|_| ODD_ID);
        let found =
            [id_warning, parent_warning, time_warning, prompt_warning].into_iter().flatten();
        imported.warnings.splice(0..0, found.map(ToOwned::to_owned));
        Ok((imported, written))
    }
}

/// A line without a document states that the exporting store has lost it.
fn read_frame_document(line: &Object) -> Result<ParsedLine, String> {
    let document = line.get("document").ok_or(LOST_DOCUMENT)?;
    if !document.text().starts_with('{') {
        return Err(NO_OBJECT.to_owned());
    }
    let sha256 = sha256_hex(document.text().as_bytes());
    if line.text("sha256").as_deref() != Some(&sha256) {
        return Err(OTHER_DOCUMENT.to_owned());
    }
    Ok(ParsedLine::FrameDocument { sha256, document: document.clone() })
}

/// The id of an entry.
struct ResolvedId {
    id: EntryId,
    /// The id in the file, if it cannot be one.
    written: Option<RawJson>,
}

pub const BLANK: &str = "the line is blank";
const LOST_DOCUMENT: &str = "the file has no frame document here: the store of its export lost it";
const NO_OBJECT: &str = "the frame document is not a JSON object";
const OTHER_DOCUMENT: &str =
    "the frame document does not have its `sha256`: keep the text of the line as it was exported";
const UTF16: &str =
    "the line is UTF-16 text, as Windows PowerShell writes it with `>`: save the file as UTF-8";
const UTF32: &str = "the line is UTF-32 text: save the file as UTF-8";
const WINDOWS_1252: &str =
    "the line is not UTF-8 and read as Windows-1252: save the file as UTF-8 if its text is wrong";
const NOT_UTF8: &str = "the line is not UTF-8";
const BYTES_REPLACED: &str = "bytes that are not UTF-8 are replaced";
const SAME_ID: &str = "an earlier line has the same `id`";
const ODD_ID: &str = "an `id` is 1 to 64 of the characters A-Z a-z 0-9 _ . -, and not only dots: the entry gets a new one";
const ODD_PROMPT_ID: &str =
    "a `promptId` has only the characters A-Z a-z 0-9 _ . -: it is left out";
const UNREADABLE_TIME: &str = "the `timestamp` is no time between 1973 and 2200: the entry has that of its message or of the entry before";

/// The text of a line, and why bytes of it are replaced.
fn decode_line(bytes: &[u8]) -> (Cow<'_, str>, Option<&'static str>) {
    // A power cut leaves NUL characters, which would pass for UTF-16.
    let start = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
    let rest = bytes.get(start..).unwrap_or_default();
    let bytes = if rest.get(1) == Some(&0) { bytes } else { rest };
    let error = match decode_utf8(bytes) {
        Ok(text) => return (Cow::Borrowed(text), None),
        Err(EncodingError::Utf16) => UTF16,
        Err(EncodingError::Utf32) => UTF32,
        Err(EncodingError::NotUtf8) => match decode_windows_1252(bytes) {
            Some(text) => return (Cow::Owned(text), Some(WINDOWS_1252)),
            None => NOT_UTF8,
        },
        Err(EncodingError::TwoMarks) => return (String::from_utf8_lossy(bytes), None),
    };
    (String::from_utf8_lossy(bytes), Some(error))
}
