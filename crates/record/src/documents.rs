//! Codec of stored documents: types to documents, and back.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use turnwheel_conversation::entry::{Entry, find_size_error};
use turnwheel_conversation::event::Event;
use turnwheel_conversation::head::{HEAD_BYTES_MAX, Head, State};
use turnwheel_conversation::inbox::{InboxItem, Receipt};
use turnwheel_conversation::message::Message;
use turnwheel_conversation::notification::Notification;
use turnwheel_conversation::person_messages::PersonMessages;
use turnwheel_conversation::phase::Phase;
use turnwheel_json::raw::{RawJson, redacted_error};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::CommitId;
use turnwheel_storage::store::{
    DOCUMENT_ENTRIES_MAX, Document, DocumentKind, HEAD_ID, StoreError, StoredDocument, Write,
    entry_id, events_id,
};

/// First part of the id of a schedule's document, before the owner's tag.
pub const SCHEDULE_PREFIX: &str = "schedule-of";

/// True if the id of a scope document belongs to a schedule.
pub fn is_schedule_id(document_id: &str) -> bool {
    document_id.strip_prefix(SCHEDULE_PREFIX).is_some_and(|rest| rest.starts_with('-'))
}

/// The events document of a commit with events. It also proves which commit won. It may contain entries
/// of the commit beside these members, which [`read_entries`] reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventsBody {
    pub commit_id: CommitId,
    pub first: u64,
    pub events: Vec<Event>,
    /// Reserved for an audit chain (decision 0162), as is `leaf`: SHA-256 that links this commit to the
    /// one before, 43 characters of Base64url. No commit has them yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub h: Option<String>,
    /// Keyed hash of the entries and events of this commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaf: Option<String>,
}

/// Borrowed form of [`EventsBody`] for writing.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EventsBodyRef<'a> {
    commit_id: &'a CommitId,
    first: u64,
    events: &'a [Event],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    entries: &'a [RawJson],
}

/// The entries that an events document contains.
#[derive(Deserialize)]
struct ContainedEntries {
    #[serde(default)]
    entries: Vec<Entry>,
}

/// Bytes of the entries that an events document contains: each reader of the events pays for them.
const CONTAINED_BYTES_MAX: usize = 16 * 1024;

/// # Errors
/// [`StoreError::TooLarge`]: the head exceeds its bound. Store the additional data elsewhere.
pub fn head_document(head: &Head) -> Result<Document, StoreError> {
    let body = RawJson::from_value(head);
    if body.text().len() > HEAD_BYTES_MAX {
        return Err(StoreError::TooLarge(format!(
            "the head has {} bytes, at most {HEAD_BYTES_MAX}",
            body.text().len()
        )));
    }
    Ok(Document {
        id: HEAD_ID.to_owned(),
        kind: DocumentKind::Head,
        body,
        due: head.due,
        created_at: Some(head.created_at),
        state: Some(state_name(head).to_owned()),
        ttl: None,
        search: None,
        inbox_count: head.inbox_count,
        last_entry: None,
    })
}

/// # Errors
/// [`StoreError::TooLarge`]: an entry exceeds its bound. Store the additional data elsewhere.
pub(crate) fn check_entry_sizes(writes: &[Write]) -> Result<(), StoreError> {
    let error = writes.iter().find_map(|write| match write {
        Write::Create(document) | Write::Replace(document, _) => {
            let is_entry = document.kind == DocumentKind::Entry;
            is_entry.then(|| find_size_error(document.body.text())).flatten()
        }
        Write::Delete(..) | Write::CountInboxChange { .. } => None,
    });
    error.map_or(Ok(()), |error| Err(StoreError::TooLarge(error)))
}

/// State of a head in lists and queries.
pub fn state_name(head: &Head) -> &'static str {
    if head.phase == Phase::Deleted {
        return "deleted";
    }
    match head.listed_state() {
        State::Idle => "idle",
        State::Running => "running",
        State::WaitingForApproval => "waiting_for_approval",
    }
}

/// The document of the next entry of a conversation. `messages` has read the entries before it.
pub fn entry_document(entry: &Entry, messages: &mut PersonMessages) -> Document {
    let document = Document::new(entry_id(entry.base.seq), DocumentKind::Entry, entry, None);
    match (messages.text(entry), entry.body.message()) {
        // Copies of the entry in other conversations have the same time.
        (Some(text), Some(Message::User(message))) => {
            document.with_search(&text, message.timestamp)
        }
        _ => document,
    }
}

/// The document of an inbox item. The head is due for it.
pub fn inbox_document(item: &InboxItem) -> Document {
    Document::new(item.input_id.as_str(), DocumentKind::Inbox, item, None)
}

pub fn receipt_document(receipt: &Receipt) -> Document {
    Document::new(receipt.input_id.as_str(), DocumentKind::Receipt, receipt, None)
}

pub fn notice_document(notice: &Notification, due: Option<Timestamp>) -> Document {
    Document::new(notice.id.clone(), DocumentKind::Notification, notice, due)
}

/// The documents of the entries and the events of a commit. One document costs less than several, so
/// the events document contains the entries, except long ones and those that a search must find.
pub(crate) fn commit_documents(
    commit_id: &CommitId,
    entries: Vec<Document>,
    events: &[Event],
) -> Vec<Document> {
    let Some(first) = events.first().map(|event| event.n) else { return entries };
    let newest = entries.len().saturating_sub(DOCUMENT_ENTRIES_MAX);
    let (mut documents, mut contained, mut last_entry) = (Vec::new(), Vec::new(), None);
    let mut bytes_left = CONTAINED_BYTES_MAX;
    for (index, entry) in entries.into_iter().enumerate() {
        let bytes = entry.body.text().len();
        if index < newest || entry.search.is_some() || bytes > bytes_left {
            documents.push(entry);
            continue;
        }
        bytes_left -= bytes;
        last_entry = Some(entry.id);
        contained.push(entry.body);
    }
    let body = EventsBodyRef { commit_id, first, events, entries: &contained };
    let document = Document::new(events_id(first), DocumentKind::Events, &body, None);
    documents.push(Document { last_entry, ..document });
    documents
}

/// # Errors
/// [`StoreError::Corrupt`]: an operator has to inspect the document.
pub fn read_head(stored: &StoredDocument) -> Result<Head, StoreError> {
    let mut head: Head = read(&stored.document)?;
    // The document's own members are not unknown members: kept as such, they would be written
    // twice, the second time stale.
    for member in ["id", "kind", "state"] {
        head.extra.shift_remove(member);
    }
    // An inbox change is counted beside the body.
    (head.inbox_count, head.due) = (stored.document.inbox_count, stored.document.due);
    Ok(head)
}

/// True if the head needs a reader newer than `reader`. Other members are not read.
pub fn needs_newer_reader(stored: &StoredDocument, reader: u32) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ReaderRequirement {
        min_reader: u32,
    }
    read::<ReaderRequirement>(&stored.document).is_ok_and(|needs| needs.min_reader > reader)
}

/// The entries of documents of both forms, ascending.
///
/// # Errors
/// [`StoreError::Corrupt`]: an operator has to inspect the document.
pub fn read_entries(stored: &[StoredDocument]) -> Result<Vec<Arc<Entry>>, StoreError> {
    let mut entries = Vec::with_capacity(stored.len());
    for StoredDocument { document, .. } in stored {
        if document.kind == DocumentKind::Entry {
            entries.push(Arc::new(read(document)?));
        } else if document.last_entry.is_some() {
            let contained: ContainedEntries = read(document)?;
            entries.extend(contained.entries.into_iter().map(Arc::new));
        }
    }
    entries.sort_by_key(|entry| entry.base.seq);
    Ok(entries)
}

/// The entries with `from <= seq <= to`, ascending, of the documents that a selection of them found.
///
/// # Errors
/// [`StoreError::Corrupt`]: an operator has to inspect the document.
pub(crate) fn read_entries_between(
    stored: &[StoredDocument],
    from: u64,
    to: u64,
) -> Result<Vec<Arc<Entry>>, StoreError> {
    let mut entries = read_entries(stored)?;
    entries.retain(|entry| (from..=to).contains(&entry.base.seq));
    Ok(entries)
}

/// # Errors
/// [`StoreError::Corrupt`]: an operator has to inspect the document.
pub fn read<T: for<'a> Deserialize<'a>>(document: &Document) -> Result<T, StoreError> {
    document.body.read().map_err(|error| {
        StoreError::Corrupt(format!(
            "document {} of kind {}: {}",
            document.id,
            document.kind.into_str(),
            redacted_error(&error)
        ))
    })
}

#[cfg(test)]
mod tests;
