//! The in-memory store for simulations: deterministic, with every version kept and with injected
//! faults of a remote store.
//!
//! Leases are in the head, as on Cosmos.

mod faults;
mod versions;

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::store::cursor::{self, PAGE_ITEMS_MAX};
use crate::store::head_lease;
pub use crate::store::memory::faults::StoreFaults;
use crate::store::memory::faults::{DELAYED_BATCH, FaultSource, WriteFault};
use crate::store::memory::versions::Versions;
use crate::store::{
    ConversationStore, Document, DocumentKind, DueItem, ETag, Freshness, HEAD_ID, HeadQuery,
    LeaseOutcome, LeaseRequest, Partition, ResultPage, SearchHits, SearchQuery, Selection,
    StoreError, StoredDocument, Write, validate,
};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::fault_plan::FaultPlan;
use turnwheel_platform::ids::{ConversationKey, WorkerId};

/// Maximum delay of a batch in flight, in operations.
const LATE_OPERATIONS_MAX: u64 = 8;
/// Maximum number of operations that a throttled store rejects in a row.
const THROTTLED_OPERATIONS_MAX: u64 = 6;
/// Maximum lag of a stale read, in commits.
const LAG_COMMITS_MAX: u64 = 20;

#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    versions: Versions,
    faults: StoreFaults,
    fault_source: FaultSource,
    operations: u64,
    /// Batches in flight, with the operation at which they arrive.
    delayed_batches: Vec<(u64, Partition, Vec<Write>)>,
    /// The last operation that is rejected by throttling.
    throttled_until: u64,
}

impl MemoryStore {
    /// Creates a store without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a store with seeded faults: the same seed and the same calls in the same order give
    /// the same results.
    pub fn with_faults(seed: u64, faults: StoreFaults) -> Self {
        Self::with_fault_source(FaultSource::Seeded(seed), faults)
    }

    /// Creates a store whose faults follow a plan, in which each fault is identified by its site.
    pub fn with_fault_plan(plan: FaultPlan, faults: StoreFaults) -> Self {
        Self::with_fault_source(FaultSource::Plan(plan), faults)
    }

    fn with_fault_source(fault_source: FaultSource, faults: StoreFaults) -> Self {
        Self { state: Mutex::new(State { faults, fault_source, ..State::default() }) }
    }

    /// Sets the faults of later operations. Batches in flight still arrive.
    pub fn set_faults(&self, faults: StoreFaults) {
        let mut state = self.lock();
        state.faults = faults;
        state.throttled_until = 0;
    }

    /// Returns all documents of a partition, in the order of ids. For assertions: never fails and
    /// is never stale.
    pub fn documents(&self, partition: &Partition) -> Vec<StoredDocument> {
        let state = self.lock();
        state.versions.documents_at(partition, state.versions.newest_commit()).cloned().collect()
    }

    /// Returns the newest version of a document. For observers: never fails and is never stale.
    pub fn read_newest(&self, partition: &Partition, id: &str) -> Option<StoredDocument> {
        let state = self.lock();
        state.versions.version_at(partition, id, state.versions.newest_commit()).cloned()
    }

    /// Returns the newest versions of all documents of a kind, in the order of ids. With
    /// [`DocumentKind::Entry`] all documents that are or contain entries.
    pub fn select_newest(&self, partition: &Partition, kind: DocumentKind) -> Vec<StoredDocument> {
        let state = self.lock();
        let all = state.versions.documents_at(partition, state.versions.newest_commit());
        all.filter(|stored| selection_key(&stored.document, kind).is_some()).cloned().collect()
    }

    /// Returns every version of a document, oldest first; `None` stands for a deletion.
    pub fn history(&self, partition: &Partition, id: &str) -> Vec<Option<StoredDocument>> {
        self.lock().versions.history(partition, id)
    }

    /// Number of batches that were applied.
    pub fn commit_count(&self) -> u64 {
        self.lock().versions.newest_commit()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an operation: yields to other tasks if that is drawn, then applies delayed batches.
    async fn begin_operation(&self, at: &str) -> Result<MutexGuard<'_, State>, StoreError> {
        let is_yielding = {
            let mut state = self.lock();
            let chance = state.faults.yield_to_others;
            state.fault_source.should_happen("the store lets others go first", at, chance)
        };
        if is_yielding {
            tokio::task::yield_now().await;
        }
        let mut state = self.lock();
        state.operations += 1;
        state.apply_delayed();
        if state.operations <= state.throttled_until {
            return Err(unavailable("throttled"));
        }
        Ok(state)
    }

    async fn begin_read(&self, at: &str) -> Result<MutexGuard<'_, State>, StoreError> {
        let mut state = self.begin_operation(at).await?;
        let chance = state.faults.unavailable_reads;
        if state.fault_source.should_inject("a read failed", at, chance) {
            return Err(unavailable("injected read failure"));
        }
        Ok(state)
    }
}

/// The fault site of a partition. Fault plans draw by site, so the texts must not change.
fn fault_site(partition: &Partition) -> &str {
    match partition {
        Partition::Conversation(key) => key.conversation_id.as_str(),
        Partition::Scope(_) => "books",
        Partition::User { .. } => "user",
    }
}

/// The fault site of lists over all conversations.
const LISTS_SITE: &str = "lists";

impl State {
    fn apply_delayed(&mut self) {
        let now = self.operations;
        let (arrived, waiting) =
            std::mem::take(&mut self.delayed_batches).into_iter().partition(|(at, ..)| *at <= now);
        self.delayed_batches = waiting;
        for (_, partition, writes) in arrived {
            // The sender already has an error with unknown outcome: a conflict is not reported.
            let _ = self.versions.apply(&partition, writes);
        }
    }

    fn write(
        &mut self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        match self.fault_source.write_fault(fault_site(partition), self.faults) {
            None => self.versions.apply(partition, writes),
            Some(WriteFault::Conflict) => Err(StoreError::Conflict),
            Some(WriteFault::ConflictAfter) => {
                self.versions.apply(partition, writes)?;
                Err(StoreError::Conflict)
            }
            Some(WriteFault::Throttled) => {
                let at = fault_site(partition);
                let span = self.fault_source.random_below(
                    "the store was throttled",
                    at,
                    THROTTLED_OPERATIONS_MAX,
                );
                self.throttled_until = self.operations + span;
                Err(unavailable("throttled"))
            }
            Some(WriteFault::UnavailableBefore) => Err(unavailable("the batch was lost")),
            Some(WriteFault::UnavailableAfter) => {
                let _ = self.versions.apply(partition, writes);
                Err(unavailable("the response was lost"))
            }
            Some(WriteFault::UnavailableLate) => {
                let after = self.fault_source.random_below(
                    DELAYED_BATCH,
                    fault_site(partition),
                    LATE_OPERATIONS_MAX,
                );
                let at = self.operations + 1 + after;
                self.delayed_batches.push((at, partition.clone(), writes));
                Err(unavailable("the batch is still in flight"))
            }
        }
    }

    /// Returns the commit whose state a read returns.
    fn snapshot_commit(&mut self, at: &str, freshness: Freshness) -> u64 {
        const STALE: &str = "a read was stale";
        let newest = self.versions.newest_commit();
        match freshness {
            Freshness::Any
                if self.fault_source.should_inject(STALE, at, self.faults.stale_reads) =>
            {
                newest
                    .saturating_sub(1 + self.fault_source.random_below(STALE, at, LAG_COMMITS_MAX))
            }
            Freshness::Any | Freshness::Latest => newest,
        }
    }

    /// Number of items of a page; a page cut short may be empty.
    fn page_size(&mut self, limit: usize) -> usize {
        const SHORT: &str = "a page was short";
        let limit = limit.clamp(1, PAGE_ITEMS_MAX);
        if self.fault_source.should_inject(SHORT, LISTS_SITE, self.faults.short_pages) {
            let below = self.fault_source.random_below(
                SHORT,
                LISTS_SITE,
                u64::try_from(limit).unwrap_or(u64::MAX),
            );
            return usize::try_from(below).unwrap_or(limit);
        }
        limit
    }
}

#[async_trait]
impl ConversationStore for MemoryStore {
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        validate::batch(partition, &writes)?;
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        self.begin_operation(fault_site(partition)).await?.write(partition, writes)
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<StoredDocument>, StoreError> {
        validate::partition(partition)?;
        validate::document_id(id)?;
        let mut state = self.begin_read(fault_site(partition)).await?;
        let snapshot = state.snapshot_commit(fault_site(partition), freshness);
        Ok(state.versions.version_at(partition, id, snapshot).cloned())
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<StoredDocument>, StoreError> {
        validate::partition(partition)?;
        let mut state = self.begin_read(fault_site(partition)).await?;
        let snapshot = state.snapshot_commit(fault_site(partition), freshness);
        let Selection { kind, from_id, to_id, to_last_entry, limit } = selection;
        let all = state.versions.documents_at(partition, snapshot);
        let mut found: Vec<(&str, &StoredDocument)> = all
            .filter_map(|stored| Some((selection_key(&stored.document, *kind)?, stored)))
            .filter(|(key, stored)| {
                let is_contained =
                    *kind == DocumentKind::Entry && stored.document.kind == DocumentKind::Events;
                let to = to_last_entry.as_ref().filter(|_| is_contained).or(to_id.as_ref());
                from_id.as_deref().is_none_or(|from| *key >= from)
                    && to.is_none_or(|to| *key <= to.as_str())
            })
            .collect();
        found.sort_by_key(|(key, _)| *key);
        Ok(found.into_iter().take(*limit).map(|(_, stored)| stored.clone()).collect())
    }

    async fn acquire_lease(&self, request: LeaseRequest<'_>) -> Result<LeaseOutcome, StoreError> {
        validate::conversation(request.key)?;
        let state = self.begin_read(request.key.conversation_id.as_str()).await?;
        let partition = Partition::Conversation(request.key.clone());
        let newest = state.versions.newest_commit();
        let Some(head) = state.versions.version_at(&partition, HEAD_ID, newest) else {
            return Ok(LeaseOutcome::Missing);
        };
        head_lease::check_lease(head.clone(), &request)
    }

    async fn renew_lease(&self, _request: LeaseRequest<'_>) -> Result<bool, StoreError> {
        Ok(false)
    }

    fn has_leases_in_heads(&self) -> bool {
        true
    }

    async fn release_lease(&self, _key: &ConversationKey, _worker: &WorkerId) {}

    async fn list_due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<ResultPage<DueItem>, StoreError> {
        let after = cursor::parse_due_cursor(at, continuation)?;
        let mut state = self.begin_read(LISTS_SITE).await?;
        let size = state.page_size(limit);
        let mut rest = state.versions.list_due(at, &after);
        let has_more = rest.len() > size;
        rest.truncate(size);
        let last = rest.last().map_or(after, |(cursor, _)| cursor.clone());
        let items = rest.into_iter().map(|(_, item)| item).collect();
        Ok(ResultPage {
            items,
            continuation: has_more.then(|| cursor::encode_due_cursor(at, &last)),
        })
    }

    async fn list_heads(
        &self,
        query: &HeadQuery,
    ) -> Result<ResultPage<StoredDocument>, StoreError> {
        let after = cursor::parse_head_cursor(query)?;
        let mut state = self.begin_read(LISTS_SITE).await?;
        let size = state.page_size(query.limit);
        let snapshot = state.snapshot_commit(LISTS_SITE, Freshness::Any);
        let mut rest = state.versions.list_heads(query, &after, snapshot);
        let has_more = rest.len() > size;
        rest.truncate(size);
        let last = rest.last().map_or(after, |(cursor, _)| cursor.clone());
        let items = rest.into_iter().map(|(_, head)| head.clone()).collect();
        Ok(ResultPage {
            items,
            continuation: has_more.then(|| cursor::encode_head_cursor(query, &last)),
        })
    }

    async fn search(&self, query: &SearchQuery) -> Result<SearchHits, StoreError> {
        validate::search(query)?;
        let mut state = self.begin_read(LISTS_SITE).await?;
        let snapshot = state.snapshot_commit(LISTS_SITE, Freshness::Any);
        Ok(SearchHits { hits: state.versions.search(query, snapshot), is_complete: true })
    }
}

/// The text that a selection of that kind compares; `None` if it does not select the document.
fn selection_key(document: &Document, kind: DocumentKind) -> Option<&str> {
    if kind == DocumentKind::Entry {
        return document.entry_key();
    }
    (document.kind == kind).then_some(&*document.id)
}

fn unavailable(why: &'static str) -> StoreError {
    StoreError::Unavailable(why.into())
}

#[cfg(test)]
mod tests;
