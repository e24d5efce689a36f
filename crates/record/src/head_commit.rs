//! The batch that writes a head, for turns and for commands: the head and the documents that are
//! committed with it.

use std::borrow::Borrow;

use crate::documents;
use crate::services::Services;
use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::event::Event;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::Receipt;
use turnwheel_conversation::notification::Notification;
use turnwheel_conversation::person_messages::PersonMessages;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{CommitId, InputId};
use turnwheel_storage::store::{Document, ETag, StoreError, Write};

/// Gives a changed head a new commit id, and the reader version that it needs. `news`: the time of
/// a change that readers see. Never lowers the reader version.
pub fn stamp_head(services: &Services, head: &mut Head, news: Option<Timestamp>) {
    head.correct_clock(services.clock.now());
    head.commit_id = CommitId::new(services.ids.new_id());
    head.min_reader = head.min_reader.max(head.required_reader());
    if let Some(now) = news {
        head.revision += 1;
        head.updated_at = now;
    }
}

/// A commit in preparation. An existing head is the first document of its batch, a new head the
/// last.
#[derive(Debug)]
pub struct HeadCommit<'a> {
    head: &'a Head,
    /// Version that the commit replaces; `None`: the head does not exist.
    expected: Option<ETag>,
    entries: Vec<Document>,
    events: &'a [Event],
    writes: Vec<Write>,
}

impl<'a> HeadCommit<'a> {
    pub fn create(head: &'a Head) -> Self {
        Self { head, expected: None, entries: Vec::new(), events: &[], writes: Vec::new() }
    }

    pub fn replace(head: &'a Head, expected: ETag) -> Self {
        Self { expected: Some(expected), ..Self::create(head) }
    }

    pub fn commit_id(&self) -> &CommitId {
        &self.head.commit_id
    }

    #[must_use]
    pub fn with_writes(mut self, writes: impl IntoIterator<Item = Write>) -> Self {
        self.writes.extend(writes);
        self
    }

    #[must_use]
    pub fn with_created(self, documents: impl IntoIterator<Item = Document>) -> Self {
        self.with_writes(documents.into_iter().map(Write::Create))
    }

    #[must_use]
    pub fn with_entries(self, entries: &[impl Borrow<Entry>]) -> Self {
        self.with_entries_of(entries, PersonMessages::default())
    }

    /// Like [`Self::with_entries`]; `messages` knows which entries no person wrote.
    #[must_use]
    pub fn with_entries_of(
        mut self,
        entries: &[impl Borrow<Entry>],
        mut messages: PersonMessages,
    ) -> Self {
        let entries = entries.iter().map(Borrow::borrow);
        self.entries.extend(entries.map(|entry| documents::entry_document(entry, &mut messages)));
        self
    }

    #[must_use]
    pub fn with_events(self, events: &'a [Event]) -> Self {
        Self { events, ..self }
    }

    /// A receipt replaces its item, which is the one that was read: each change of the inbox changes
    /// the head. An item that this commit makes and applies has no document to replace.
    #[must_use]
    pub fn with_receipts(self, receipts: &[Receipt], is_new: impl Fn(&InputId) -> bool) -> Self {
        self.with_writes(receipts.iter().map(|receipt| {
            let document = documents::receipt_document(receipt);
            if is_new(&receipt.input_id) {
                Write::Create(document)
            } else {
                Write::Replace(document, None)
            }
        }))
    }

    #[must_use]
    pub fn with_notifications(self, notifications: &[Notification]) -> Self {
        let documents = notifications.iter();
        self.with_created(documents.map(|it| documents::notice_document(it, Some(it.at))))
    }

    /// # Errors
    /// [`StoreError::TooLarge`] as [`documents::head_document`].
    pub fn into_writes(self) -> Result<Vec<Write>, StoreError> {
        debug_assert!(
            self.head.min_reader >= self.head.required_reader(),
            "an older worker would mishandle the head"
        );
        let head = documents::head_document(self.head)?;
        let created = documents::commit_documents(&self.head.commit_id, self.entries, self.events);
        let created = created.into_iter().map(Write::Create);
        let writes: Vec<Write> = match self.expected {
            Some(etag) => std::iter::once(Write::Replace(head, Some(etag)))
                .chain(created)
                .chain(self.writes)
                .collect(),
            None => created.chain(self.writes).chain([Write::Create(head)]).collect(),
        };
        documents::check_entry_sizes(&writes)?;
        Ok(writes)
    }
}
