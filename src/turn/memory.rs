//! What a warm worker remembers between deliveries: entries, which never change, and the heads that it wrote last.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::agent::entry::Entry;
use crate::agent::head::Head;
use crate::agent::phase::Phase;
use crate::ids::ConversationKey;
use crate::store::{ConversationStore, ETag, Freshness, Partition, Selection, StoreError, Stored};
use crate::turn::record;

/// Bytes of entries kept over all conversations, as they are stored; in memory they take about twice that. For a store
/// whose reads are paid for.
const BYTES_KEPT: u64 = 128 * 1024 * 1024;
/// The same where only what is worked on is kept.
const WORK_BYTES_KEPT: u64 = 32 * 1024 * 1024;
/// Conversations that came to rest last: who waits for their answers reads them now.
const RESTED_KEPT: usize = 64;
/// Bytes of heads kept over all conversations, as they are stored.
const HEAD_BYTES_KEPT: u64 = 4 * 1024 * 1024;
/// What a head takes besides its text.
const HEAD_BYTES: u64 = 1024;
/// What an entry takes besides its text.
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

/// A head as the version of its document says it is.
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

/// Bounded; forgetting costs a read.
pub struct EntryMemory {
    cache: quick_cache::sync::Cache<ConversationKey, Remembered, Weight>,
    heads: quick_cache::sync::Cache<ConversationKey, KnownHead, HeadWeight>,
    /// Where entries are forgotten at rest: whose are still there, the one that has rested longest first.
    rested: Option<Mutex<VecDeque<ConversationKey>>>,
}

impl std::fmt::Debug for EntryMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EntryMemory({} conversations)", self.cache.len())
    }
}

impl Default for EntryMemory {
    fn default() -> Self {
        Self::of_bytes(BYTES_KEPT)
    }
}

impl EntryMemory {
    /// For a store whose reads cost little: keeps what is worked on, and forgets a conversation some time after it has come
    /// to rest.
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

    /// What a stored head says, without reading it again where it is the one that was kept.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`]: a person has to look.
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

    /// For the next delivery: the head in the version that this etag names, `bytes` long as it is stored.
    pub(super) fn keep_head(&self, key: &ConversationKey, etag: ETag, head: Head, bytes: usize) {
        if head.phase == Phase::Idle
            && let Some(mut rested) = self.rested()
        {
            return self.rest(key, &mut rested);
        }
        let known = KnownHead { etag, head: Arc::new(head), bytes: bytes as u64 };
        self.heads.insert(key.clone(), known);
    }

    /// Its head is forgotten now, and its entries when so many others have come to rest after it.
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

    /// All entries up to the head's `seq`, in order. What is remembered is not read again; a gap below the head's `seq`
    /// is read [`Freshness::Latest`].
    ///
    /// # Errors
    /// As the store's; [`StoreError::Corrupt`] when an entry below the head's `seq` is not there at all.
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
            // Remembered from a commit that the caller's head does not have yet.
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
                "there are {} entries, the head says {}",
                entries.len(),
                head.seq
            )));
        }
        let entries = Arc::new(entries);
        self.keep(key, &head.incarnation, Arc::clone(&entries), known_bytes + bytes as u64);
        Ok(entries)
    }

    /// Entries with `from <= seq <= to`, when all of them are remembered.
    pub fn remembered(&self, head: &Head, from: u64, to: u64) -> Option<Vec<Arc<Entry>>> {
        let (entries, _) = self.known(&head.key(), &head.incarnation)?;
        let place = |seq: u64| usize::try_from(seq).ok();
        let (from, to) = (place(from.checked_sub(1)?)?, place(to)?);
        entries.get(from..to).map(<[_]>::to_vec)
    }

    /// Appends what a won commit wrote, `bytes` long, when everything before it is remembered.
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
        // Free of a copy when nobody reads the list at the moment.
        self.cache.remove(&key);
        Arc::make_mut(&mut entries).extend(new.iter().cloned());
        self.keep(key, &head.incarnation, entries, known_bytes + bytes as u64);
    }

    /// A deleted conversation is not kept in memory either.
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

    /// A conversation whose entries are remembered comes to rest.
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
        // Somebody works on the first one again.
        let document = record::head_document(&idle(0)).unwrap();
        memory.head(&idle(0).key(), &Stored { document, etag: ETag("1".to_owned()) }).unwrap();
        (RESTED_KEPT..RESTED_KEPT + 2).for_each(|number| rest(&memory, number));
        assert!(is_kept(&memory, 0), "it is at work");
        assert!(!is_kept(&memory, 1), "it has rested longest");
        assert!((2..RESTED_KEPT + 2).all(|number| is_kept(&memory, number)));
    }
}
