//! Cache of a warm worker between deliveries: entries, which never change, and the heads that it
//! last wrote.

mod spans;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quick_cache::sync::{Cache, DefaultLifecycle};

use crate::documents;
use crate::entry_cache::spans::{missing_spans, read_span, slice_of};
use turnwheel_conversation::context_ranges::{SeqRange, has_context};
use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::phase::Phase;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_storage::store::{ConversationStore, ETag, Partition, StoreError, StoredDocument};

/// Bytes of cached entries over all conversations, as stored with the events of their commits; in memory
/// they take about twice that. With billed reads this is the maximum: see `with_capacity`.
const CACHE_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// As [`CACHE_BYTES_MAX`], if only active conversations are cached.
const ACTIVE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Recently idle conversations that stay cached: their clients read the responses about now.
const IDLE_CONVERSATIONS_MAX: usize = 64;
/// Bytes of cached heads over all conversations, as stored.
const HEAD_CACHE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Conversations that the caches are expected to hold.
const ITEMS_ESTIMATE: usize = 1_000;
/// Memory of a head beside its text.
const HEAD_OVERHEAD_BYTES: u64 = 1024;
/// Memory of an entry beside its text.
const ENTRY_OVERHEAD_BYTES: u64 = 256;

pub type Entries = Arc<Vec<Arc<Entry>>>;

#[derive(Clone)]
struct CachedEntries {
    incarnation: String,
    /// In order of `seq`. Entries that no step needed are absent.
    entries: Entries,
    bytes: u64,
}

#[derive(Clone)]
struct EntriesWeighter;

impl quick_cache::Weighter<ConversationKey, CachedEntries> for EntriesWeighter {
    fn weight(&self, _key: &ConversationKey, cached: &CachedEntries) -> u64 {
        cached.bytes + ENTRY_OVERHEAD_BYTES * (cached.entries.len() as u64 + 1)
    }
}

/// A head in the version of its ETag.
#[derive(Clone)]
struct CachedHead {
    etag: ETag,
    head: Arc<Head>,
    bytes: u64,
}

#[derive(Clone)]
struct HeadWeighter;

impl quick_cache::Weighter<ConversationKey, CachedHead> for HeadWeighter {
    fn weight(&self, _key: &ConversationKey, known: &CachedHead) -> u64 {
        known.bytes + HEAD_OVERHEAD_BYTES
    }
}

/// Bounded cache of entries and heads; a miss costs a read.
pub struct EntryCache {
    cache: Cache<ConversationKey, CachedEntries, EntriesWeighter>,
    heads: Cache<ConversationKey, CachedHead, HeadWeighter>,
    /// Idle conversations that are still cached, the longest idle first. `None`: idle conversations
    /// stay cached.
    idle: Option<Mutex<VecDeque<ConversationKey>>>,
}

impl std::fmt::Debug for EntryCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EntryCache({} conversations)", self.cache.len())
    }
}

impl Default for EntryCache {
    fn default() -> Self {
        Self::with_capacity(CACHE_BYTES_MAX)
    }
}

impl EntryCache {
    /// For a store with cheap reads: caches active conversations, and drops a conversation some
    /// time after it became idle.
    pub fn for_active_conversations() -> Self {
        Self { idle: Some(Mutex::default()), ..Self::with_capacity(ACTIVE_BYTES_MAX) }
    }

    /// For a store that changes the heads of its worker, which therefore must not be cached.
    #[cfg(any(test, feature = "testing"))]
    pub fn without_heads() -> Self {
        Self { heads: new_cache(0, HeadWeighter), ..Self::default() }
    }

    /// For a store with billed reads. `bytes`: those of the entries, as stored.
    pub fn with_capacity(bytes: u64) -> Self {
        Self {
            idle: None,
            cache: new_cache(bytes.min(CACHE_BYTES_MAX), EntriesWeighter),
            heads: new_cache(HEAD_CACHE_BYTES_MAX, HeadWeighter),
        }
    }

    /// Takes the cached head if it has the stored version, else parses the stored head.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`]: an operator has to inspect the document.
    pub fn take_head(
        &self,
        key: &ConversationKey,
        stored: &StoredDocument,
    ) -> Result<Head, StoreError> {
        if let Some(mut idle) = self.lock_idle() {
            idle.retain(|earlier| earlier != key);
        }
        match self.heads.remove(key) {
            Some((_, known)) if known.etag == stored.etag => {
                let head = Arc::unwrap_or_clone(known.head);
                debug_assert_eq!(documents::read_head(stored).ok().as_ref(), Some(&head));
                Ok(head)
            }
            Some(_) | None => documents::read_head(stored),
        }
    }

    /// Takes the cached head, whatever the store has now, if `is_wanted`. Also returns its version and
    /// its stored size.
    pub fn take_cached_head(
        &self,
        key: &ConversationKey,
        is_wanted: impl FnOnce(&Head) -> bool,
    ) -> Option<(Head, ETag, usize)> {
        let known = self.heads.get(key).filter(|known| is_wanted(&known.head))?;
        self.heads.remove(key);
        let bytes = usize::try_from(known.bytes).unwrap_or(usize::MAX);
        Some((Arc::unwrap_or_clone(known.head), known.etag, bytes))
    }

    /// Caches the head for the next delivery. `bytes`: its stored size.
    pub fn store_head(&self, key: &ConversationKey, etag: ETag, head: Head, bytes: usize) {
        if head.phase == Phase::Idle
            && let Some(mut idle) = self.lock_idle()
        {
            return self.mark_idle(key, &mut idle);
        }
        let known = CachedHead { etag, head: Arc::new(head), bytes: bytes as u64 };
        self.heads.insert(key.clone(), known);
    }

    /// Drops the head now, and the entries after [`IDLE_CONVERSATIONS_MAX`] others became idle.
    fn mark_idle(&self, key: &ConversationKey, idle: &mut VecDeque<ConversationKey>) {
        self.heads.remove(key);
        idle.retain(|earlier| earlier != key);
        idle.push_back(key.clone());
        if idle.len() > IDLE_CONVERSATIONS_MAX
            && let Some(longest) = idle.pop_front()
        {
            self.cache.remove(&longest);
        }
    }

    fn lock_idle(&self) -> Option<MutexGuard<'_, VecDeque<ConversationKey>>> {
        let idle = self.idle.as_ref()?;
        Some(idle.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All entries up to the head's `seq`, in order. Reads only entries that are not cached.
    ///
    /// # Errors
    /// As [`Self::load_ranges`].
    pub async fn load_entries(
        &self,
        store: &dyn ConversationStore,
        head: &Head,
    ) -> Result<Entries, StoreError> {
        self.load_ranges(store, head, &[SeqRange::from(1)]).await
    }

    /// Entries that include the context of the path to the leaf of `next`, in order. `next` is the
    /// head with the uncommitted entries `new`. What is not needed is not read.
    ///
    /// # Errors
    /// As [`Self::load_ranges`].
    pub async fn load_context(
        &self,
        store: &dyn ConversationStore,
        head: &Head,
        next: &Head,
        new: &[Arc<Entry>],
    ) -> Result<Entries, StoreError> {
        if !next.context.is_empty() {
            let entries = self.load_ranges(store, head, &next.context).await?;
            if has_context(entries.iter().chain(new), next.leaf_id.as_ref()) {
                return Ok(entries);
            }
        }
        self.load_entries(store, head).await
    }

    /// Entries that include those of the ranges up to the head's `seq`, in order. A gap is read again
    /// with `Freshness::Latest`.
    ///
    /// # Errors
    /// The store is unavailable: try again later. [`StoreError::Corrupt`] if an entry below the
    /// head's `seq` does not exist.
    pub async fn load_ranges(
        &self,
        store: &dyn ConversationStore,
        head: &Head,
        ranges: &[SeqRange],
    ) -> Result<Entries, StoreError> {
        let key = head.key();
        let (known, known_bytes) = self.get(&key, &head.incarnation).unwrap_or_default();
        let missing = missing_spans(&known, head.seq, ranges);
        if missing.is_empty() {
            if known.last().is_none_or(|last| last.base.seq <= head.seq) {
                return Ok(known);
            }
            // Cached from a commit that is newer than the caller's head.
            let known = known.iter().filter(|entry| entry.base.seq <= head.seq);
            return Ok(Arc::new(known.cloned().collect()));
        }
        let partition = Partition::Conversation(key.clone());
        let reads = missing.iter().map(|(from, to)| read_span(store, &partition, *from, *to));
        let mut entries: Vec<Arc<Entry>> = known.iter().cloned().collect();
        let mut bytes = known_bytes;
        for (new, new_bytes) in futures_util::future::try_join_all(reads).await? {
            entries.extend(new);
            bytes += new_bytes;
        }
        entries.sort_by_key(|entry| entry.base.seq);
        let entries = Arc::new(entries);
        self.insert(key, &head.incarnation, Arc::clone(&entries), bytes);
        Ok(entries)
    }

    /// Entries with `from <= seq <= to`, if all of them are cached.
    pub fn cached_range(&self, head: &Head, from: u64, to: u64) -> Option<Vec<Arc<Entry>>> {
        let (entries, _) = self.get(&head.key(), &head.incarnation)?;
        let found = slice_of(&entries, from, to);
        (from > 0 && found.len() as u64 == (to + 1).saturating_sub(from)).then(|| found.to_vec())
    }

    /// Appends the entries of a won commit, `bytes` long, if the entry before them is cached.
    pub fn append(&self, head: &Head, new: &[Arc<Entry>], bytes: usize) {
        let key = head.key();
        let before = head.seq - new.len() as u64;
        let Some((mut entries, known_bytes)) =
            self.get(&key, &head.incarnation).or((before == 0).then(Default::default))
        else {
            return;
        };
        if new.is_empty() || entries.last().map_or(0, |last| last.base.seq) != before {
            return;
        }
        // No copy is made unless a reader uses the list at the moment.
        self.cache.remove(&key);
        Arc::make_mut(&mut entries).extend(new.iter().cloned());
        self.insert(key, &head.incarnation, entries, known_bytes + bytes as u64);
    }

    /// Removes a deleted conversation.
    pub fn remove(&self, key: &ConversationKey) {
        self.cache.remove(key);
        self.heads.remove(key);
    }

    fn get(&self, key: &ConversationKey, incarnation: &str) -> Option<(Entries, u64)> {
        let cached = self.cache.get(key).filter(|known| known.incarnation == incarnation)?;
        Some((cached.entries, cached.bytes))
    }

    fn insert(&self, key: ConversationKey, incarnation: &str, entries: Entries, bytes: u64) {
        let incarnation = incarnation.to_owned();
        self.cache.insert(key, CachedEntries { incarnation, entries, bytes });
    }
}

/// The cache has one shard: each of several would have a part of the capacity, and hold no
/// conversation that is larger.
fn new_cache<V: Clone, W>(bytes: u64, weighter: W) -> Cache<ConversationKey, V, W>
where
    W: quick_cache::Weighter<ConversationKey, V> + Clone,
{
    let options = quick_cache::OptionsBuilder::new()
        .estimated_items_capacity(ITEMS_ESTIMATE)
        .weight_capacity(bytes)
        .shards(1)
        .build();
    match options {
        Ok(options) => Cache::with_options(
            options,
            weighter,
            quick_cache::DefaultHashBuilder::default(),
            DefaultLifecycle::default(),
        ),
        // Only missing members are an error.
        Err(_) => Cache::with_weighter(ITEMS_ESTIMATE, bytes, weighter),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn idle_head(number: usize) -> Head {
        let head = json!({
            "schema": 1, "minReader": 1, "tenant": "t", "user": "u", "conversationId": format!("c{number}"),
            "incarnation": "0a1b2c3d", "commitId": "k", "revision": 1, "phase": {"owed": "idle"},
            "seq": 9, "eventSeq": 9, "turn": 2, "epoch": 4, "agent": "clerk",
            "createdAt": 0, "updatedAt": 0,
        });
        serde_json::from_str(&head.to_string()).unwrap()
    }

    /// Makes a conversation with cached entries idle.
    fn make_idle(cache: &EntryCache, number: usize) {
        let head = idle_head(number);
        cache.insert(head.key(), &head.incarnation, Entries::default(), 0);
        cache.store_head(&head.key(), ETag("1".to_owned()), head, 0);
    }

    fn is_cached(cache: &EntryCache, number: usize) -> bool {
        cache.get(&idle_head(number).key(), &idle_head(number).incarnation).is_some()
    }

    #[test]
    fn conversation_of_most_of_the_capacity_is_cached() {
        let cache = EntryCache::default();
        let head = idle_head(1);
        let bytes = CACHE_BYTES_MAX / 4 * 3;
        cache.insert(head.key(), &head.incarnation, Entries::default(), bytes);
        assert!(is_cached(&cache, 1));
    }

    #[test]
    fn cache_of_a_large_instance_has_a_bound() {
        let cache = EntryCache::with_capacity(u64::MAX);
        for number in 1..=2 {
            let head = idle_head(number);
            let bytes = CACHE_BYTES_MAX / 4 * 3;
            cache.insert(head.key(), &head.incarnation, Entries::default(), bytes);
        }
        assert!(!(is_cached(&cache, 1) && is_cached(&cache, 2)));
    }

    #[test]
    fn cache_drops_longest_idle_conversation_but_no_active_one() {
        let cache = EntryCache::for_active_conversations();
        (0..IDLE_CONVERSATIONS_MAX).for_each(|number| make_idle(&cache, number));
        assert!((0..IDLE_CONVERSATIONS_MAX).all(|number| is_cached(&cache, number)));
        // A worker processes the first one again.
        let document = documents::head_document(&idle_head(0)).unwrap();
        cache
            .take_head(
                &idle_head(0).key(),
                &StoredDocument { document, etag: ETag("1".to_owned()) },
            )
            .unwrap();
        (IDLE_CONVERSATIONS_MAX..IDLE_CONVERSATIONS_MAX + 2)
            .for_each(|number| make_idle(&cache, number));
        assert!(is_cached(&cache, 0), "it is active");
        assert!(!is_cached(&cache, 1), "it has been idle longest");
        assert!((2..IDLE_CONVERSATIONS_MAX + 2).all(|number| is_cached(&cache, number)));
    }
}
