//! Changes of the head that a command commits itself, with new entries and events.

use crate::conversation::append_entry;
use crate::pipeline::CommandContext;
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::event::{Event, EventBody};
use turnwheel_conversation::head::Head;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::EntryId;
use turnwheel_record::certain_write::{receipt_document, write_head};
use turnwheel_record::contract::{CommandError, CommandResponse};
use turnwheel_record::head_commit::{HeadCommit, stamp_head};
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::live::LiveEvent;
use turnwheel_storage::store::ETag;

/// A head, and the entries and events that the command adds to it.
pub(super) struct HeadChange {
    pub(super) head: Head,
    /// Version that the change replaces.
    etag: ETag,
    entries: Vec<Entry>,
    events: Vec<Event>,
    now: Timestamp,
}

impl HeadChange {
    /// # Errors
    /// Returns [`CommandError::Unavailable`] if a newer version wrote the head: a write by this
    /// version would drop members that only the newer one supports.
    pub(super) fn new(services: &Services, head: Head, etag: ETag) -> Result<Self, CommandError> {
        if head.min_reader > services.limits.reader_version {
            return Err(load::newer_version_error());
        }
        let now = services.clock.now();
        Ok(Self { head, etag, entries: Vec::new(), events: Vec::new(), now })
    }

    /// Appends an entry after the leaf and makes it the leaf.
    pub(super) fn append(&mut self, body: EntryBody) -> &Entry {
        let entry = append_entry(&mut self.head, body, self.now);
        self.entries.push_mut(entry)
    }

    pub(super) fn emit(&mut self, body: EventBody) {
        self.events.push(new_event(&mut self.head, body, self.now));
    }

    /// Id of the newest new entry.
    pub(super) fn leaf_id(&self) -> Option<&EntryId> {
        self.head.leaf_id.as_ref()
    }

    /// Commits the change with the receipt of the request, which is complete then. False: the write
    /// was lost, or won with a lost response; the receipt shows which.
    pub(super) async fn commit(
        &mut self,
        context: CommandContext<'_>,
        response: &CommandResponse,
    ) -> Result<bool, CommandError> {
        let CommandContext { services, key, idempotency, .. } = context;
        stamp_head(services, &mut self.head, Some(self.now));
        let commit = HeadCommit::replace(&self.head, self.etag.clone())
            .with_entries(&self.entries)
            .with_events(&self.events)
            .with_created([receipt_document(idempotency, key, response, self.now)]);
        services.fail_points.hit("admission.patch").await;
        if write_head(services, key, commit).await?.is_none() {
            return Ok(false);
        }
        if !self.events.is_empty() {
            publish_events(services, &self.head);
        }
        Ok(true)
    }
}

/// The next event of the conversation.
pub(super) fn new_event(head: &mut Head, body: EventBody, at: Timestamp) -> Event {
    head.event_seq += 1;
    let prompt_id = head.prompt.as_ref().map(|run| run.id.clone());
    Event { n: head.event_seq, at, prompt_id, turn: head.turn, body }
}

/// Informs readers about the newest event of a committed head.
pub(super) fn publish_events(services: &Services, head: &Head) {
    services.live.publish(&head.key(), LiveEvent::committed(head, &[], None));
}
