//! Exports of conversations, part by part.

use std::sync::Arc;

use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::session_file::{
    ConversationHeader, FileFormat, html_end, html_entry, html_start, leaf_line, pi_header,
    pi_line, turnwheel_header, turnwheel_line,
};
use turnwheel_platform::ids::EntryId;
use turnwheel_record::contract::CommandError;
use turnwheel_record::load;
use turnwheel_record::services::Services;

/// Member of a head with the header of the file from which the conversation was imported.
pub const IMPORTED_HEADER: &str = "importedHeader";
/// Number of entries in a part.
const PART_ENTRIES: u64 = 100;

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
    /// Number of entries that are exported.
    done: u64,
    /// The last one of them.
    last: Option<EntryId>,
    /// The path, for HTML.
    path: Vec<Arc<Entry>>,
    has_started: bool,
    is_finished: bool,
}

impl SessionExport {
    pub fn new(head: Head, format: ExportFormat) -> Self {
        Self {
            head,
            format,
            done: 0,
            last: None,
            path: Vec::new(),
            has_started: false,
            is_finished: false,
        }
    }

    /// The next part; `None` after the last one.
    ///
    /// # Errors
    /// Returns [`CommandError::Unavailable`] if the store does not respond: start again.
    pub async fn next_part(&mut self, services: &Services) -> Result<Option<String>, CommandError> {
        if self.is_finished {
            return Ok(None);
        }
        let mut part = String::new();
        if !self.has_started {
            self.has_started = true;
            part.push_str(&self.start(services).await?);
        }
        let entries = match self.format {
            ExportFormat::File(_) => self.next_entries(services).await?,
            ExportFormat::Html => self.next_of_path(),
        };
        self.done += entries.len() as u64;
        self.last = entries.last().map(|entry| entry.base.entry_id.clone()).or(self.last.take());
        for entry in &entries {
            part.push_str(&match self.format {
                ExportFormat::File(FileFormat::Pi) => pi_line(entry),
                ExportFormat::File(FileFormat::Turnwheel) => turnwheel_line(entry),
                ExportFormat::Html => html_entry(entry),
            });
        }
        self.is_finished = (entries.len() as u64) < PART_ENTRIES;
        if self.is_finished {
            part.push_str(&self.end());
        }
        Ok(Some(part))
    }

    async fn start(&mut self, services: &Services) -> Result<String, CommandError> {
        let ExportFormat::File(format) = self.format else {
            let entries = load::all_entries(services, &self.head).await?;
            self.path = path_to_leaf(&entries, self.head.leaf_id.as_ref());
            let title = self.head.name.as_deref().unwrap_or(self.head.conversation_id.as_str());
            return Ok(html_start(title));
        };
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
        Ok(match format {
            FileFormat::Pi => pi_header(&header),
            FileFormat::Turnwheel => turnwheel_header(&header),
        })
    }

    async fn next_entries(&self, services: &Services) -> Result<Vec<Arc<Entry>>, CommandError> {
        let (from, to) = (self.done + 1, self.head.seq.min(self.done + PART_ENTRIES));
        if let Some(cached) = services.entry_cache.cached_range(&self.head, from, to) {
            return Ok(cached);
        }
        load::entries(services, &self.head.key(), from, to).await
    }

    fn next_of_path(&self) -> Vec<Arc<Entry>> {
        let done = usize::try_from(self.done).unwrap_or(usize::MAX);
        let count = usize::try_from(PART_ENTRIES).unwrap_or(usize::MAX);
        self.path.iter().skip(done).take(count).cloned().collect()
    }

    fn end(&self) -> String {
        match self.format {
            ExportFormat::File(FileFormat::Pi) if self.last != self.head.leaf_id => {
                leaf_line(&self.head)
            }
            ExportFormat::File(_) => String::new(),
            ExportFormat::Html => html_end(),
        }
    }
}
