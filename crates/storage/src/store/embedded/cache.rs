//! Cache of heads and inboxes of active conversations: a turn reads them three times.
//!
//! One thread of one process does all writes, and updates the cache before it reports a commit.
//! The cache holds no uncertain state: during a commit, its conversation is read from the file,
//! and a conversation that was written while it was read is not cached.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::{
    Document, DocumentKind, ETag, HEAD_ID, Partition, Selection, StoredDocument, Write, inbox_count,
};
use turnwheel_platform::ids::ConversationKey;

/// Maximum bytes of cached documents; above it the least used conversations are evicted.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Bytes of a document besides its body.
const DOCUMENT_BYTES: u64 = 512;

/// Head and complete inbox of a conversation.
#[derive(Clone, Debug, Default)]
pub(super) struct CachedConversation {
    pub(super) head: Option<StoredDocument>,
    inbox: BTreeMap<String, StoredDocument>,
}

impl CachedConversation {
    pub(super) fn new(head: Option<StoredDocument>, inbox: Vec<StoredDocument>) -> Self {
        let inbox = inbox.into_iter().map(|stored| (stored.document.id.clone(), stored));
        Self { head, inbox: inbox.collect() }
    }

    /// Returns the same result as a query of the file.
    pub(super) fn inbox(&self, selection: &Selection) -> Vec<StoredDocument> {
        let is_wanted = |id: &str| {
            selection.from_id.as_deref().is_none_or(|from| id >= from)
                && selection.to_id.as_deref().is_none_or(|to| id <= to)
        };
        let wanted = self.inbox.values().filter(|stored| is_wanted(&stored.document.id));
        wanted.take(selection.limit).cloned().collect()
    }

    /// Applies a committed batch; `etags` are the `ETag`s of the writes, in order.
    fn apply(&mut self, writes: &[Write], etags: &[ETag]) {
        for (write, etag) in writes.iter().zip(etags) {
            match write {
                Write::Create(document) | Write::Replace(document, _) => {
                    self.put_document(document, etag);
                }
                Write::Delete(id, _) if id == HEAD_ID => self.head = None,
                Write::Delete(id, _) => {
                    self.inbox.remove(id);
                }
                Write::CountInboxChange { due, .. } => {
                    if let Some(head) = &mut self.head {
                        // The batch is committed, so the count cannot fail.
                        let _ = inbox_count::count_change(&mut head.document, *due, None);
                        head.etag = etag.clone();
                    }
                }
            }
        }
    }

    fn put_document(&mut self, document: &Document, etag: &ETag) {
        let stored = || StoredDocument { document: document.clone(), etag: etag.clone() };
        if document.id == HEAD_ID {
            self.head = Some(stored());
        } else if document.kind == DocumentKind::Inbox {
            self.inbox.insert(document.id.clone(), stored());
        } else {
            // A receipt replaces its inbox item.
            self.inbox.remove(&document.id);
        }
    }
}

#[derive(Clone)]
struct BodyWeighter;

impl quick_cache::Weighter<ConversationKey, Arc<CachedConversation>> for BodyWeighter {
    fn weight(&self, _key: &ConversationKey, known: &Arc<CachedConversation>) -> u64 {
        let documents = known.head.iter().chain(known.inbox.values());
        let bytes =
            documents.map(|stored| stored.document.body.text().len() as u64 + DOCUMENT_BYTES);
        DOCUMENT_BYTES + bytes.sum::<u64>()
    }
}

pub(super) struct ConversationCache(Mutex<State>);

struct State {
    conversations:
        quick_cache::unsync::Cache<ConversationKey, Arc<CachedConversation>, BodyWeighter>,
    /// Conversations being read from the file, with the number of the read. A write removes its
    /// conversation.
    reads_in_progress: HashMap<ConversationKey, u64>,
    /// Conversations with a commit in progress.
    commits_in_progress: HashSet<ConversationKey>,
    /// Number of the last read that was started.
    last_read: u64,
}

impl Default for ConversationCache {
    fn default() -> Self {
        Self(Mutex::new(State {
            conversations: quick_cache::unsync::Cache::with_weighter(
                1_000,
                BYTES_MAX,
                BodyWeighter,
            ),
            reads_in_progress: HashMap::new(),
            commits_in_progress: HashSet::new(),
            last_read: 0,
        }))
    }
}

/// A conversation removed from the cache during its commit.
pub(super) struct TakenConversation {
    key: ConversationKey,
    cached: Option<Arc<CachedConversation>>,
}

impl ConversationCache {
    pub(super) fn get(&self, partition: &Partition) -> Option<Arc<CachedConversation>> {
        let Partition::Conversation(key) = partition else { return None };
        self.lock().conversations.get(key).cloned()
    }

    /// Reads from the file, and caches the result unless the conversation was written meanwhile.
    ///
    /// # Errors
    /// The error of `read`.
    pub(super) fn read_through<E>(
        &self,
        key: &ConversationKey,
        read: impl FnOnce() -> Result<CachedConversation, E>,
    ) -> Result<Arc<CachedConversation>, E> {
        let reading = {
            let mut state = self.lock();
            state.last_read += 1;
            let reading = state.last_read;
            if !state.commits_in_progress.contains(key) {
                state.reads_in_progress.insert(key.clone(), reading);
            }
            reading
        };
        let found = read().map(Arc::new);
        let mut state = self.lock();
        if state.reads_in_progress.get(key) == Some(&reading) {
            state.reads_in_progress.remove(key);
            // A missing conversation is not cached: nobody reads it repeatedly.
            if let Ok(known) = &found
                && known.head.is_some()
            {
                state.conversations.insert(key.clone(), Arc::clone(known));
            }
        }
        found
    }

    /// Removes a conversation just before the COMMIT.
    pub(super) fn take_for_commit(&self, partition: &Partition) -> Option<TakenConversation> {
        let Partition::Conversation(key) = partition else { return None };
        let mut state = self.lock();
        state.reads_in_progress.remove(key);
        state.commits_in_progress.insert(key.clone());
        let known = state.conversations.remove(key).map(|(_, known)| known);
        Some(TakenConversation { key: key.clone(), cached: known })
    }

    /// Restores the conversation after a successful COMMIT, before its result is returned.
    pub(super) fn restore_after_commit(
        &self,
        taken: TakenConversation,
        writes: &[Write],
        etags: &[ETag],
    ) {
        let TakenConversation { key, cached: known } = taken;
        let known = known.map(|mut known| {
            Arc::make_mut(&mut known).apply(writes, etags);
            known
        });
        let mut state = self.lock();
        state.commits_in_progress.remove(&key);
        if let Some(known) = known.filter(|known| known.head.is_some()) {
            state.conversations.insert(key, known);
        }
    }

    /// Drops the conversation after a failed COMMIT: only the file has its state.
    pub(super) fn discard_after_failure(&self, taken: &TakenConversation) {
        self.lock().commits_in_progress.remove(&taken.key);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
