//! Exports of conversations, part by part.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::frame_document::find_frame_document;
use crate::html_page::{HtmlPage, PageZone, html_end};
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::frame_entry::FrameEntry;
use turnwheel_conversation::head::Head;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::EntryId;
use turnwheel_record::contract::CommandError;
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_record::session_file::{
    ConversationHeader, FileFormat, frame_document_line, leaf_line, pi_header, pi_line,
    pi_line_with_document, turnwheel_header, turnwheel_line,
};
use turnwheel_storage::artifacts::frame_documents::FRAME_DOCUMENTS_MAX;

/// Member of a head with the header of the file from which the conversation was imported.
pub const IMPORTED_HEADER: &str = "importedHeader";
/// Number of entries in a part.
const PART_ENTRIES: u64 = 100;
/// Number of items of a page in a part.
const PART_ITEMS: usize = 100;

/// Formats of exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    File(FileFormat),
    Html,
}

impl ExportFormat {
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "pi" => Some(Self::File(FileFormat::Pi)),
            "turnwheel" => Some(Self::File(FileFormat::Turnwheel)),
            "html" => Some(Self::Html),
            _ => None,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::File(_) => "application/x-ndjson",
            Self::Html => "text/html; charset=utf-8",
        }
    }

    pub fn extension(self) -> &'static str {
        match self {
            Self::File(_) => "jsonl",
            Self::Html => "html",
        }
    }
}

/// An export in progress. It shows the conversation as of its start.
#[derive(Debug)]
pub struct SessionExport {
    head: Head,
    format: ExportFormat,
    zone: PageZone,
    /// Number of entries that are exported.
    done: u64,
    /// The last one of them.
    last: Option<EntryId>,
    /// The page, and the number of its items that are exported.
    page: Option<(HtmlPage, usize)>,
    /// Hashes of the frame documents that are exported. `None`: none is.
    documents: Option<BTreeSet<String>>,
    has_started: bool,
    is_finished: bool,
}

impl SessionExport {
    /// `zone`: the time zone of a page.
    pub fn new(head: Head, format: ExportFormat, zone: PageZone) -> Self {
        Self {
            head,
            format,
            zone,
            done: 0,
            last: None,
            page: None,
            documents: None,
            has_started: false,
            is_finished: false,
        }
    }

    /// Adds the frame documents that the entries name, which have the instructions of the agent.
    #[must_use]
    pub fn with_frame_documents(self) -> Self {
        Self { documents: Some(BTreeSet::new()), ..self }
    }

    /// The next part; `None` after the last one.
    ///
    /// # Errors
    /// Returns [`CommandError::Unavailable`] if the store does not respond: start again.
    pub async fn next_part(&mut self, services: &Services) -> Result<Option<String>, CommandError> {
        if self.is_finished {
            return Ok(None);
        }
        match self.format {
            ExportFormat::File(format) => self.next_lines(services, format).await.map(Some),
            ExportFormat::Html => self.next_of_page(services).await.map(Some),
        }
    }

    async fn next_of_page(&mut self, services: &Services) -> Result<String, CommandError> {
        let (mut part, (page, done)) = if let Some(page) = self.page.take() {
            (String::new(), page)
        } else {
            let entries = load::all_entries(services, &self.head).await?;
            let page = HtmlPage::new(&self.head, &entries, self.zone.clone());
            (page.start(&self.head, &entries), (page, 0))
        };
        part.push_str(&page.part(done, PART_ITEMS));
        let done = done + PART_ITEMS;
        self.is_finished = done >= page.item_count();
        if self.is_finished {
            part.push_str(html_end());
        }
        self.page = Some((page, done));
        Ok(part)
    }

    async fn next_lines(
        &mut self,
        services: &Services,
        format: FileFormat,
    ) -> Result<String, CommandError> {
        let mut part = String::new();
        if !self.has_started {
            self.has_started = true;
            part.push_str(&self.header(format));
        }
        let entries = self.next_entries(services).await?;
        self.done += entries.len() as u64;
        self.last = entries.last().map(|entry| entry.base.entry_id.clone()).or(self.last.take());
        for entry in &entries {
            let document = self.next_document(services, entry).await?;
            match (format, document) {
                (FileFormat::Pi, Some((_, Some(document)))) => {
                    part.push_str(&pi_line_with_document(entry, &document));
                    continue;
                }
                (FileFormat::Turnwheel, Some((sha256, document))) => {
                    part.push_str(&frame_document_line(&sha256, document.as_ref()));
                }
                (FileFormat::Pi, Some((_, None))) | (_, None) => {}
            }
            part.push_str(&match format {
                FileFormat::Pi => pi_line(entry),
                FileFormat::Turnwheel => turnwheel_line(entry),
            });
        }
        self.is_finished = (entries.len() as u64) < PART_ENTRIES;
        if self.is_finished && format == FileFormat::Pi && self.last != self.head.leaf_id {
            part.push_str(&leaf_line(&self.head));
        }
        Ok(part)
    }

    /// The hash and the text of a frame document that the entry is the first to name. No text: the
    /// store has lost it.
    async fn next_document(
        &mut self,
        services: &Services,
        entry: &Entry,
    ) -> Result<Option<(String, Option<RawJson>)>, CommandError> {
        let EntryBody::Frame(FrameEntry { document: Some(sha256), .. }) = &entry.body else {
            return Ok(None);
        };
        let Some(documents) = &mut self.documents else { return Ok(None) };
        if documents.len() >= FRAME_DOCUMENTS_MAX || !documents.insert(sha256.clone()) {
            return Ok(None);
        }
        let document = find_frame_document(services, &self.head, sha256).await?;
        Ok(Some((sha256.clone(), document)))
    }

    fn header(&self, format: FileFormat) -> String {
        let head = &self.head;
        let header = ConversationHeader {
            id: head.conversation_id.clone(),
            timestamp: head.created_at,
            agent: head.agent.clone(),
            settings: head.settings.clone(),
            metadata: head.metadata.clone(),
            base_settings: head.base_settings.as_deref().cloned(),
            leaf_id: head.leaf_id.clone(),
            parent: head.parent.clone(),
            pi: head.extra.raw(IMPORTED_HEADER),
        };
        match format {
            FileFormat::Pi => pi_header(&header),
            FileFormat::Turnwheel => turnwheel_header(&header),
        }
    }

    async fn next_entries(&self, services: &Services) -> Result<Vec<Arc<Entry>>, CommandError> {
        let (from, to) = (self.done + 1, self.head.seq.min(self.done + PART_ENTRIES));
        if let Some(cached) = services.entry_cache.cached_range(&self.head, from, to) {
            return Ok(cached);
        }
        load::entries(services, &self.head.key(), from, to).await
    }
}
