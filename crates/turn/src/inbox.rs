//! Inbox of a leased conversation: reads it if it has changed, and converts it into inputs.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::conversation_state::ConversationState;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{InboxBody, InboxItem, InputQueue};
use turnwheel_conversation::step::{Input, is_supported};
use turnwheel_conversation::transition::{PendingItem, Transition};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::InputId;
use turnwheel_record::documents;
use turnwheel_record::services::Services;
use turnwheel_storage::store::{
    DocumentKind, ETag, Freshness, Partition, Selection, StoreError, StoredDocument,
};

/// Time until items that only a newer version supports are due again, for a worker of that version.
const NEWER_VERSION_WAIT: Duration = Duration::from_mins(1);

/// An accepted request in the inbox.
#[derive(Clone, Debug)]
pub struct WaitingItem {
    pub item: Arc<InboxItem>,
    bytes: usize,
    /// True if the next commit makes it.
    is_new: bool,
}

/// The inbox as a delivery has read it.
#[derive(Clone, Debug, Default)]
pub struct KnownInbox {
    /// The items that this version supports, oldest first.
    items: Vec<WaitingItem>,
    /// Number of the others.
    unsupported: u32,
    /// The head's count of inbox changes. Another count: read again. `None`: not read, or the count is
    /// unknown.
    count: Option<u32>,
    /// The version of a head whose count is unknown. Another version: read again.
    etag: Option<ETag>,
    /// True if a commit has drained the items: those left wait for the phase of its head.
    is_drained: bool,
}

impl KnownInbox {
    /// The inbox of a head whose count shows that it is empty; otherwise unread.
    pub(crate) fn of_head(head: &Head) -> Self {
        Self { count: head.inbox_count.filter(|count| *count == 0), ..Self::default() }
    }

    fn parse(stored: &[StoredDocument]) -> Result<Self, StoreError> {
        let mut items = Vec::with_capacity(stored.len());
        let mut unsupported = 0;
        for stored in stored {
            let item: InboxItem = documents::read(&stored.document)?;
            if is_supported(&item.body) {
                let bytes = stored.document.body.text().len();
                items.push(WaitingItem { item: Arc::new(item), bytes, is_new: false });
            } else {
                unsupported += 1;
            }
        }
        items.sort_by(|a, b| {
            (a.item.accepted_at, &a.item.input_id).cmp(&(b.item.accepted_at, &b.item.input_id))
        });
        Ok(Self { items, unsupported, ..Self::default() })
    }

    /// The inbox after a commit that drained it.
    pub(crate) fn after_drain(&self, transition: &Transition) -> Self {
        let applied: HashSet<&InputId> =
            transition.receipts.iter().map(|receipt| &receipt.input_id).collect();
        let left = self.items.iter().filter(|waiting| !applied.contains(&waiting.item.input_id));
        let items: Vec<WaitingItem> = left.cloned().chain(queued_items(transition)).collect();
        let count = Some(to_count(items.len()).saturating_add(self.unsupported));
        Self { items, count, unsupported: self.unsupported, etag: None, is_drained: true }
    }

    /// The inbox after a commit on this head that did not drain it. Items with a receipt are gone; the
    /// count is unknown if the head counts changes that were not read.
    pub(crate) fn after_additions(&self, head: &Head, transition: &Transition) -> Self {
        let after = self.after_drain(transition);
        let is_current = self.count.is_some() && self.count == head.inbox_count;
        let is_drained = self.is_drained && transition.queued_new_items().next().is_none();
        Self { count: after.count.filter(|_| is_current), is_drained, ..after }
    }

    /// Time until another delivery must apply items that a commit has left. `None`: they wait for
    /// the phase of the head.
    pub(crate) fn wait_of_left_items(&self) -> Option<Duration> {
        if self.count.is_none() || self.has_undrained_item() || self.has_item_to_apply() {
            return Some(Duration::ZERO);
        }
        (self.unsupported > 0).then_some(NEWER_VERSION_WAIT)
    }

    /// True if no commit has drained an item. A message for the next turn waits for a prompt instead.
    fn has_undrained_item(&self) -> bool {
        let mut queues = self.items.iter().map(|waiting| waiting.item.queue());
        !self.is_drained && queues.any(|queue| queue != Some(InputQueue::NextTurn))
    }

    /// True if an item is left that applies at once: the commit had no room for it.
    fn has_item_to_apply(&self) -> bool {
        self.items.iter().any(|waiting| match waiting.item.body {
            InboxBody::Decision(_) | InboxBody::Abort(_) | InboxBody::LateResult(_) => true,
            InboxBody::Prompt(_)
            | InboxBody::Steer(_)
            | InboxBody::FollowUp(_)
            | InboxBody::Custom(_)
            | InboxBody::Continue(_)
            | InboxBody::Command(_) => false,
        })
    }

    /// The head's count. `None`: unknown.
    pub(crate) fn count(&self) -> Option<u32> {
        self.count
    }
}

fn queued_items(transition: &Transition) -> impl Iterator<Item = WaitingItem> {
    transition.queued_new_items().map(|item| WaitingItem {
        bytes: RawJson::from_value(item).text().len(),
        item: Arc::new(item.clone()),
        is_new: false,
    })
}

pub(crate) fn to_count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl ConversationState {
    /// The items that this version supports, oldest first. Makes a request only if the inbox has
    /// changed since the last call.
    ///
    /// # Errors
    /// The store is unavailable.
    pub(crate) async fn read_inbox(
        &mut self,
        services: &Services,
    ) -> Result<Vec<WaitingItem>, StoreError> {
        if !self.is_inbox_current() {
            let partition = Partition::Conversation(self.key.clone());
            let selection = Selection::all(DocumentKind::Inbox);
            let stored = services.store.select(&partition, &selection, Freshness::Latest).await?;
            let count = self.head.inbox_count;
            let etag = count.is_none().then(|| self.etag.clone());
            self.inbox = KnownInbox { count, etag, ..KnownInbox::parse(&stored)? };
        }
        Ok(self.inbox.items.clone())
    }

    /// True if no other writer has changed the inbox between its read and the present head.
    pub(crate) fn is_inbox_current(&self) -> bool {
        match self.head.inbox_count {
            Some(count) => self.inbox.count == Some(count),
            None => self.inbox.etag.as_ref() == Some(&self.etag),
        }
    }
}

/// Adds items that the next commit makes. An item of the same id that waits already stays.
pub(crate) fn add_new_items(
    inbox: &mut Vec<WaitingItem>,
    items: impl IntoIterator<Item = InboxItem>,
) {
    for item in items {
        if !inbox.iter().any(|waiting| waiting.item.input_id == item.input_id) {
            let bytes = RawJson::from_value(&item).text().len();
            inbox.push(WaitingItem { item: Arc::new(item), bytes, is_new: true });
        }
    }
}

/// The items that the commit of these inputs makes.
pub(crate) fn new_items_of(inputs: &[Input]) -> Vec<InboxItem> {
    let read = inputs.iter().filter_map(|input| {
        if let Input::InboxRead(pending) = input { Some(pending) } else { None }
    });
    let made = read.flatten().filter(|pending| pending.is_new);
    made.map(|pending| (*pending.item).clone()).collect()
}

/// The input that reports these items to the state machine.
pub(crate) fn inbox_input(waiting: &[WaitingItem]) -> Input {
    let pending = |waits: &WaitingItem| PendingItem {
        item: Arc::clone(&waits.item),
        bytes: waits.bytes,
        is_new: waits.is_new,
    };
    Input::InboxRead(waiting.iter().map(pending).collect())
}

/// The inputs that drain the inbox.
pub(crate) fn drain_inputs(inbox: &[WaitingItem]) -> [Input; 2] {
    [inbox_input(inbox), Input::DrainInbox]
}
