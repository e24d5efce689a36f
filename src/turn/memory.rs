//! Cache of a warm worker between deliveries: entries, which never change, and the heads that it
//! last wrote.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::agent::entry::Entry;
use crate::agent::head::Head;
use crate::agent::phase::Phase;
use crate::ids::ConversationKey;
use crate::store::{ConversationStore, ETag, Freshness, Partition, Selection, StoreError, Stored};
use crate::turn::record;

/// Bytes of cached entries over all conversations, as stored; in memory they take about twice that.
/// For a store with billed reads.
const BYTES_KEPT: u64 = 128 * 1024 * 1024;
/// As [`CACHE_BYTES_MAX`], if only active conversations are cached.
const WORK_BYTES_KEPT: u64 = 32 * 1024 * 1024;
/// Recently idle conversations that stay cached: their clients read the responses about now.
const RESTED_KEPT: usize = 64;
/// Bytes of cached heads over all conversations, as stored.
const HEAD_BYTES_KEPT: u64 = 4 * 1024 * 1024;
/// Memory of a head beside its text.
const HEAD_BYTES: u64 = 1024;
/// Memory of an entry beside its text.
const ENTRY_BYTES: u64 = 256;

type Entries = Arc<Vec<Arc<Entry>>>;

#[derive(Clone)]
struct Remembered {
    incarnation: String,
    /// In order of `seq`, from 1, without gaps.
    entries: Arc<Vec<Arc<Entry>>>,
    bytes: u64,
}

#[derive(Clone)]
struct Weight;

impl quick_cache::Weighter<ConversationKey, Remembered> for Weight {
    fn weight(&self, _key: &ConversationKey, remembered: &Remembered) -> u64 {
        remembered.bytes + ENTRY_BYTES * (remembered.entries.len() as u64 + 1)
    }
}

/// A head in the version of its ETag.
#[derive(Clone)]
struct KnownHead {
    etag: ETag,
    head: Arc<Head>,
    bytes: u64,
}

#[derive(Clone)]
struct HeadWeight;

impl quick_cache::Weighter<ConversationKey, KnownHead> for HeadWeight {
    fn weight(&self, _key: &ConversationKey, known: &KnownHead) -> u64 {
        known.bytes + HEAD_BYTES
    }
}

/// Bounded cache of entries and heads; a miss costs a read.
pub struct EntryMemory {
    cache: quick_cache::sync::Cache<ConversationKey, Remembered, Weight>,
    heads: quick_cache::sync::Cache<ConversationKey, KnownHead, HeadWeight>,
    /// Idle conversations that are still cached, the longest idle first. `None`: idle conversations
    /// stay cached.
    rested: Option<Mutex<VecDeque<ConversationKey>>>,
}

impl std::fmt::Debug for EntryMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EntryCache({} conversations)", self.cache.len())
    }
}

impl Default for EntryMemory {
    fn default() -> Self {
        Self::of_bytes(BYTES_KEPT)
    }
}

impl EntryMemory {
    /// For a store with cheap reads: caches active conversations, and drops a conversation some
    /// time after it became idle.
    pub fn of_work() -> Self {
        Self { rested: Some(Mutex::default()), ..Self::of_bytes(WORK_BYTES_KEPT) }
    }

    fn of_bytes(bytes: u64) -> Self {
        Self {
            rested: None,
            cache: quick_cache::sync::Cache::with_weighter(1_000, bytes, Weight),
            heads: quick_cache::sync::Cache::with_weighter(1_000, HEAD_BYTES_KEPT, HeadWeight),
        }
    }

    /// Takes the cached head if it has the stored version, else parses the stored head.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`]: an operator has to inspect the document.
    pub(super) fn head(&self, key: &ConversationKey, stored: &Stored) -> Result<Head, StoreError> {
        if let Some(mut rested) = self.rested() {
            rested.retain(|earlier| earlier != key);
        }
        match self.heads.remove(key) {
            Some((_, known)) if known.etag == stored.etag => {
                let head = Arc::unwrap_or_clone(known.head);
                debug_assert_eq!(record::read_head(stored).ok().as_ref(), Some(&head));
                Ok(head)
            }
            Some(_) | None => record::read_head(stored),
        }
    }

    /// Caches the head for the next delivery. `bytes`: its stored size.
    pub(super) fn keep_head(&self, key: &ConversationKey, etag: ETag, head: Head, bytes: usize) {
        if head.phase == Phase::Idle
            && let Some(mut rested) = self.rested()
        {
            return self.rest(key, &mut rested);
        }
        let known = KnownHead { etag, head: Arc::new(head), bytes: bytes as u64 };
        self.heads.insert(key.clone(), known);
    }

    /// Drops the head now, and the entries after [`IDLE_CONVERSATIONS_MAX`] others became idle.
    fn rest(&self, key: &ConversationKey, rested: &mut VecDeque<ConversationKey>) {
        self.heads.remove(key);
        rested.retain(|earlier| earlier != key);
        rested.push_back(key.clone());
        if rested.len() > RESTED_KEPT
            && let Some(longest) = rested.pop_front()
        {
            self.cache.remove(&longest);
        }
    }

    fn rested(&self) -> Option<MutexGuard<'_, VecDeque<ConversationKey>>> {
        let rested = self.rested.as_ref()?;
        Some(rested.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All entries up to the head's `seq`, in order. Reads only entries that are not cached; a gap
    /// below the head's `seq` is read again with [`Freshness::Latest`].
    ///
    /// # Errors
    /// The store is unavailable: try again later. [`StoreError::Corrupt`] if an entry below the
    /// head's `seq` does not exist.
    pub async fn entries(
        &self,
        store: &dyn ConversationStore,
        head: &Head,
    ) -> Result<Arc<Vec<Arc<Entry>>>, StoreError> {
        let key = head.key();
        let (known, known_bytes) = self.known(&key, &head.incarnation).unwrap_or_default();
        let have = known.len() as u64;
        if have == head.seq {
            return Ok(known);
        }
        if have > head.seq {
            // Cached from a commit that is newer than the caller's head.
            return Ok(Arc::new(
                known.iter().take(usize::try_from(head.seq).unwrap_or(0)).cloned().collect(),
            ));
        }
        let partition = Partition::Conversation(key.clone());
        let selection = Selection::entries(have + 1, head.seq);
        let mut new = store.select(&partition, &selection, Freshness::Any).await?;
        if new.len() as u64 != head.seq - have {
            new = store.select(&partition, &selection, Freshness::Latest).await?;
        }
        let bytes: usize = new.iter().map(|stored| stored.document.body.text().len()).sum();
        let new = record::read_entries(&new)?;
        let mut entries = Vec::with_capacity(usize::try_from(head.seq).unwrap_or(0));
        entries.extend(known.iter().cloned());
        entries.extend(new);
        if let Some((place, entry)) =
            entries.iter().enumerate().find(|(place, entry)| entry.base.seq != *place as u64 + 1)
        {
            return Err(StoreError::Corrupt(format!(
                "entry {} is missing: found {}",
                place + 1,
                entry.base.seq
            )));
        }
        if entries.len() as u64 != head.seq {
            return Err(StoreError::Corrupt(format!(
                "found {} entries, the head expects {}",
                entries.len(),
                head.seq
            )));
        }
        let entries = Arc::new(entries);
        self.keep(key, &head.incarnation, Arc::clone(&entries), known_bytes + bytes as u64);
        Ok(entries)
    }

    /// Entries with `from <= seq <= to`, if all of them are cached.
    pub fn remembered(&self, head: &Head, from: u64, to: u64) -> Option<Vec<Arc<Entry>>> {
        let (entries, _) = self.known(&head.key(), &head.incarnation)?;
        let place = |seq: u64| usize::try_from(seq).ok();
        let (from, to) = (place(from.checked_sub(1)?)?, place(to)?);
        entries.get(from..to).map(<[_]>::to_vec)
    }

    /// Appends the entries of a won commit, `bytes` long, if everything before them is cached.
    pub fn append(&self, head: &Head, new: &[Arc<Entry>], bytes: usize) {
        let key = head.key();
        let before = head.seq - new.len() as u64;
        let Some((mut entries, known_bytes)) =
            self.known(&key, &head.incarnation).or((before == 0).then(Default::default))
        else {
            return;
        };
        if new.is_empty() || entries.len() as u64 != before {
            return;
        }
        // No copy is made unless a reader uses the list at the moment.
        self.cache.remove(&key);
        Arc::make_mut(&mut entries).extend(new.iter().cloned());
        self.keep(key, &head.incarnation, entries, known_bytes + bytes as u64);
    }

    /// Removes a deleted conversation.
    pub fn forget(&self, key: &ConversationKey) {
        self.cache.remove(key);
        self.heads.remove(key);
    }

    fn known(&self, key: &ConversationKey, incarnation: &str) -> Option<(Entries, u64)> {
        let remembered = self.cache.get(key).filter(|known| known.incarnation == incarnation)?;
        Some((remembered.entries, remembered.bytes))
    }

    fn keep(&self, key: ConversationKey, incarnation: &str, entries: Entries, bytes: u64) {
        let incarnation = incarnation.to_owned();
        self.cache.insert(key, Remembered { incarnation, entries, bytes });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn idle(number: usize) -> Head {
        let head = json!({
            "schema": 1, "minReader": 1, "tenant": "t", "user": "u", "conversationId": format!("c{number}"),
            "incarnation": "0a1b2c3d", "commitId": "k", "revision": 1, "phase": {"owed": "idle"},
            "seq": 9, "eventSeq": 9, "turn": 2, "epoch": 4, "agent": "clerk",
            "createdAt": 0, "updatedAt": 0,
        });
        serde_json::from_str(&head.to_string()).unwrap()
    }

    /// Makes a conversation with cached entries idle.
    fn rest(memory: &EntryMemory, number: usize) {
        let head = idle(number);
        memory.keep(head.key(), &head.incarnation, Entries::default(), 0);
        memory.keep_head(&head.key(), ETag("1".to_owned()), head, 0);
    }

    fn is_kept(memory: &EntryMemory, number: usize) -> bool {
        memory.known(&idle(number).key(), &idle(number).incarnation).is_some()
    }

    #[test]
    fn what_has_rested_longest_is_forgotten_and_never_what_is_at_work() {
        let memory = EntryMemory::of_work();
        (0..RESTED_KEPT).for_each(|number| rest(&memory, number));
        assert!((0..RESTED_KEPT).all(|number| is_kept(&memory, number)));
        // A worker processes the first one again.
        let document = record::head_document(&idle(0)).unwrap();
        memory.head(&idle(0).key(), &Stored { document, etag: ETag("1".to_owned()) }).unwrap();
        (RESTED_KEPT..RESTED_KEPT + 2).for_each(|number| rest(&memory, number));
        assert!(is_kept(&memory, 0), "it is active");
        assert!(!is_kept(&memory, 1), "it has been idle longest");
        assert!((2..RESTED_KEPT + 2).all(|number| is_kept(&memory, number)));
    }
}
