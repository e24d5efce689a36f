//! Cache of heads and inboxes of active conversations: a turn reads them three times.
//!
//! One thread of one process does all writes, and updates the cache before it reports a commit.
//! The cache holds no uncertain state: during a commit, its conversation is read from the file,
//! and a conversation that was written while it was read is not cached.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ids::ConversationKey;
use crate::store::{Document, ETag, HEAD_ID, Kind, Partition, Selection, Stored, Write};

/// Maximum bytes of cached documents; above it the least used conversations are evicted.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Bytes of a document besides its body.
const DOCUMENT_BYTES: u64 = 512;

/// Head and complete inbox of a conversation.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) head: Option<Stored>,
    inbox: BTreeMap<String, Stored>,
}

impl Known {
    pub(super) fn of(head: Option<Stored>, inbox: Vec<Stored>) -> Self {
        let inbox = inbox.into_iter().map(|stored| (stored.document.id.clone(), stored));
        Self { head, inbox: inbox.collect() }
    }

    /// Returns the same result as a query of the file.
    pub(super) fn inbox(&self, selection: &Selection) -> Vec<Stored> {
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
                Write::Create(document) | Write::Replace(document, _) => self.put(document, etag),
                Write::Delete(id, _) if id == HEAD_ID => self.head = None,
                Write::Delete(id, _) => {
                    self.inbox.remove(id);
                }
            }
        }
    }

    fn put(&mut self, document: &Document, etag: &ETag) {
        let stored = || Stored { document: document.clone(), etag: etag.clone() };
        if document.id == HEAD_ID {
            self.head = Some(stored());
        } else if document.kind == Kind::Inbox {
            self.inbox.insert(document.id.clone(), stored());
        } else {
            // A receipt replaces its inbox item.
            self.inbox.remove(&document.id);
        }
    }
}

#[derive(Clone)]
struct Weight;

impl quick_cache::Weighter<ConversationKey, Arc<Known>> for Weight {
    fn weight(&self, _key: &ConversationKey, known: &Arc<Known>) -> u64 {
        let documents = known.head.iter().chain(known.inbox.values());
        let bytes =
            documents.map(|stored| stored.document.body.text().len() as u64 + DOCUMENT_BYTES);
        DOCUMENT_BYTES + bytes.sum::<u64>()
    }
}

pub(super) struct Warm(Mutex<State>);

struct State {
    known: quick_cache::unsync::Cache<ConversationKey, Arc<Known>, Weight>,
    /// Conversations being read from the file, with the number of the read. A write removes its
    /// conversation.
    reading: HashMap<ConversationKey, u64>,
    /// Conversations with a commit in progress.
    writing: HashSet<ConversationKey>,
    /// Number of the last read that was started.
    readings: u64,
}

impl Default for Warm {
    fn default() -> Self {
        Self(Mutex::new(State {
            known: quick_cache::unsync::Cache::with_weighter(1_000, BYTES_MAX, Weight),
            reading: HashMap::new(),
            writing: HashSet::new(),
            readings: 0,
        }))
    }
}

/// A conversation removed from the cache during its commit.
pub(super) struct Lifted {
    key: ConversationKey,
    known: Option<Arc<Known>>,
}

impl Warm {
    pub(super) fn get(&self, partition: &Partition) -> Option<Arc<Known>> {
        let Partition::Conversation(key) = partition else { return None };
        self.lock().known.get(key).cloned()
    }

    /// Reads from the file, and caches the result unless the conversation was written meanwhile.
    ///
    /// # Errors
    /// The error of `read`.
    pub(super) fn read<E>(
        &self,
        key: &ConversationKey,
        read: impl FnOnce() -> Result<Known, E>,
    ) -> Result<Arc<Known>, E> {
        let reading = {
            let mut state = self.lock();
            state.readings += 1;
            let reading = state.readings;
            if !state.writing.contains(key) {
                state.reading.insert(key.clone(), reading);
            }
            reading
        };
        let found = read().map(Arc::new);
        let mut state = self.lock();
        if state.reading.get(key) == Some(&reading) {
            state.reading.remove(key);
            // A missing conversation is not cached: nobody reads it repeatedly.
            if let Ok(known) = &found
                && known.head.is_some()
            {
                state.known.insert(key.clone(), Arc::clone(known));
            }
        }
        found
    }

    /// Removes a conversation just before the COMMIT.
    pub(super) fn lift(&self, partition: &Partition) -> Option<Lifted> {
        let Partition::Conversation(key) = partition else { return None };
        let mut state = self.lock();
        state.reading.remove(key);
        state.writing.insert(key.clone());
        let known = state.known.remove(key).map(|(_, known)| known);
        Some(Lifted { key: key.clone(), known })
    }

    /// Restores the conversation after a successful COMMIT, before its result is returned.
    pub(super) fn put(&self, lifted: Lifted, writes: &[Write], etags: &[ETag]) {
        let Lifted { key, known } = lifted;
        let known = known.map(|mut known| {
            Arc::make_mut(&mut known).apply(writes, etags);
            known
        });
        let mut state = self.lock();
        state.writing.remove(&key);
        if let Some(known) = known.filter(|known| known.head.is_some()) {
            state.known.insert(key, known);
        }
    }

    /// Drops the conversation after a failed COMMIT: only the file has its state.
    pub(super) fn forget(&self, lifted: &Lifted) {
        self.lock().writing.remove(&lifted.key);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Warm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConversationCache({} conversations)", self.lock().known.len())
    }
}

#[cfg(test)]
mod tests;
