//! Heads and inboxes of the conversations that are worked on, kept beside the file: a turn reads them three times.
//!
//! All writing goes through one thread of one process, which keeps what it has committed here before it answers. What is
//! not certain is not kept: while a commit is on its way its conversation is read from the file, and a conversation that
//! was written while it was read is forgotten.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ids::ConversationKey;
use crate::store::{Document, ETag, HEAD_ID, Kind, Partition, Selection, Stored, Write};

/// Bytes of bodies that are kept; above it the least used conversations are forgotten.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// What a document takes besides its body.
const DOCUMENT_BYTES: u64 = 512;

/// What is known of a conversation: all of these documents, and no others of their kinds.
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

    /// As the file would answer it.
    pub(super) fn inbox(&self, selection: &Selection) -> Vec<Stored> {
        let is_wanted = |id: &str| {
            selection.from_id.as_deref().is_none_or(|from| id >= from)
                && selection.to_id.as_deref().is_none_or(|to| id <= to)
        };
        let wanted = self.inbox.values().filter(|stored| is_wanted(&stored.document.id));
        wanted.take(selection.limit).cloned().collect()
    }

    /// `etags` are those of the writes, in their order.
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
            // A receipt takes the place of its item.
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
    /// Being read from the file, by whom; whoever writes in between takes it out.
    reading: HashMap<ConversationKey, u64>,
    /// Their commit is on its way.
    writing: HashSet<ConversationKey>,
    /// The reading begun last.
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

/// A conversation that is taken out while its commit is on its way.
pub(super) struct Lifted {
    key: ConversationKey,
    known: Option<Arc<Known>>,
}

impl Warm {
    pub(super) fn get(&self, partition: &Partition) -> Option<Arc<Known>> {
        let Partition::Conversation(key) = partition else { return None };
        self.lock().known.get(key).cloned()
    }

    /// Reads from the file, and keeps what was read unless it was written meanwhile.
    ///
    /// # Errors
    /// As of `read`.
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
            // What is not there is not looked at again and again.
            if let Ok(known) = &found
                && known.head.is_some()
            {
                state.known.insert(key.clone(), Arc::clone(known));
            }
        }
        found
    }

    /// Just before a COMMIT.
    pub(super) fn lift(&self, partition: &Partition) -> Option<Lifted> {
        let Partition::Conversation(key) = partition else { return None };
        let mut state = self.lock();
        state.reading.remove(key);
        state.writing.insert(key.clone());
        let known = state.known.remove(key).map(|(_, known)| known);
        Some(Lifted { key: key.clone(), known })
    }

    /// After a COMMIT that has landed, before anybody is told.
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

    /// After a COMMIT that has failed: the file knows what became of it.
    pub(super) fn forget(&self, lifted: &Lifted) {
        self.lock().writing.remove(&lifted.key);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Warm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Warm({} conversations)", self.lock().known.len())
    }
}

#[cfg(test)]
mod tests;
