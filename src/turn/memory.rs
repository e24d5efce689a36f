//! What a warm worker remembers between deliveries: entries, which never change.

use std::sync::Arc;

use crate::agent::entry::Entry;
use crate::agent::head::Head;
use crate::ids::ConversationKey;
use crate::store::{ConversationStore, Freshness, Partition, Selection, StoreError};
use crate::turn::record;

/// Bytes of entries kept over all conversations, as they are stored; in memory they take about twice that.
const BYTES_KEPT: u64 = 128 * 1024 * 1024;
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

/// Bounded; forgetting costs a read.
pub struct EntryMemory {
    cache: quick_cache::sync::Cache<ConversationKey, Remembered, Weight>,
}

impl std::fmt::Debug for EntryMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EntryMemory({} conversations)", self.cache.len())
    }
}

impl Default for EntryMemory {
    fn default() -> Self {
        Self { cache: quick_cache::sync::Cache::with_weighter(1_000, BYTES_KEPT, Weight) }
    }
}

impl EntryMemory {
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
