//! The in-memory store for simulations: deterministic, with every version kept and with injected
//! faults of a remote store.
//!
//! Leases are in the head, as on Cosmos.

mod faults;
mod versions;

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::ids::fate::Fate;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::held;
pub use crate::store::memory::faults::Faults;
use crate::store::memory::faults::{Dice, LATE, WriteFault};
use crate::store::memory::versions::Versions;
use crate::store::place::{self, PAGE_MAX};
use crate::store::{
    ClaimRequest, Claimed, ConversationStore, ETag, Freshness, HEAD_ID, HeadQuery, Kind, Owed,
    Page, Partition, Selection, StoreError, Stored, Write, check,
};

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
    faults: Faults,
    dice: Dice,
    operations: u64,
    /// Batches in flight, with the operation at which they arrive.
    late: Vec<(u64, Partition, Vec<Write>)>,
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
    pub fn with_faults(seed: u64, faults: Faults) -> Self {
        Self::with_dice(Dice::Numbers(seed), faults)
    }

    /// Creates a store whose faults follow a plan, in which each fault is identified by its site.
    pub fn with_fate(fate: Fate, faults: Faults) -> Self {
        Self::with_dice(Dice::Fate(fate), faults)
    }

    fn with_dice(dice: Dice, faults: Faults) -> Self {
        Self { state: Mutex::new(State { faults, dice, ..State::default() }) }
    }

    /// Sets the faults of later operations. Batches in flight still arrive.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.lock();
        state.faults = faults;
        state.throttled_until = 0;
    }

    /// Returns all documents of a partition, in the order of ids. For assertions: never fails and
    /// is never stale.
    pub fn documents(&self, partition: &Partition) -> Vec<Stored> {
        let state = self.lock();
        state.versions.all_in(partition, state.versions.newest()).cloned().collect()
    }

    /// Returns the newest version of a document. For observers: never fails and is never stale.
    pub fn newest(&self, partition: &Partition, id: &str) -> Option<Stored> {
        let state = self.lock();
        state.versions.at(partition, id, state.versions.newest()).cloned()
    }

    /// Returns the newest versions of all documents of a kind, in the order of ids.
    pub fn newest_of(&self, partition: &Partition, kind: Kind) -> Vec<Stored> {
        let state = self.lock();
        let all = state.versions.all_in(partition, state.versions.newest());
        all.filter(|stored| stored.document.kind == kind).cloned().collect()
    }

    /// Returns every version of a document, oldest first; `None` stands for a deletion.
    pub fn history(&self, partition: &Partition, id: &str) -> Vec<Option<Stored>> {
        self.lock().versions.history(partition, id)
    }

    /// Number of batches that were applied.
    pub fn commits(&self) -> u64 {
        self.lock().versions.newest()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an operation: yields to other tasks if that is drawn, then applies delayed batches.
    async fn begin(&self, at: &str) -> Result<MutexGuard<'_, State>, StoreError> {
        let steps_aside = {
            let mut state = self.lock();
            let chance = state.faults.step_aside;
            state.dice.turns("the store lets others go first", at, chance)
        };
        if steps_aside {
            tokio::task::yield_now().await;
        }
        let mut state = self.lock();
        state.operations += 1;
        state.land_late();
        if state.operations <= state.throttled_until {
            return Err(unavailable("throttled"));
        }
        Ok(state)
    }

    async fn begin_read(&self, at: &str) -> Result<MutexGuard<'_, State>, StoreError> {
        let mut state = self.begin(at).await?;
        let chance = state.faults.unavailable_reads;
        if state.dice.says("a read failed", at, chance) {
            return Err(unavailable("injected read failure"));
        }
        Ok(state)
    }
}

/// The fault site of a partition. Fault plans draw by site, so the texts must not change.
fn place_of(partition: &Partition) -> &str {
    match partition {
        Partition::Conversation(key) => key.conversation_id.as_str(),
        Partition::Scope(_) => "books",
    }
}

/// The fault site of lists over all conversations.
const LISTS: &str = "lists";

impl State {
    fn land_late(&mut self) {
        let now = self.operations;
        let (landing, waiting) =
            std::mem::take(&mut self.late).into_iter().partition(|(at, ..)| *at <= now);
        self.late = waiting;
        for (_, partition, writes) in landing {
            // The sender already has an error with unknown outcome: a conflict is not reported.
            let _ = self.versions.apply(&partition, writes);
        }
    }

    fn write(
        &mut self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        match self.dice.write_fault(place_of(partition), self.faults) {
            None => self.versions.apply(partition, writes),
            Some(WriteFault::Conflict) => Err(StoreError::Conflict),
            Some(WriteFault::ConflictAfter) => {
                self.versions.apply(partition, writes)?;
                Err(StoreError::Conflict)
            }
            Some(WriteFault::Throttled) => {
                let at = place_of(partition);
                let span = self.dice.below("the store was throttled", at, THROTTLED_OPERATIONS_MAX);
                self.throttled_until = self.operations + span;
                Err(unavailable("throttled"))
            }
            Some(WriteFault::UnavailableBefore) => Err(unavailable("the batch was lost")),
            Some(WriteFault::UnavailableAfter) => {
                let _ = self.versions.apply(partition, writes);
                Err(unavailable("the response was lost"))
            }
            Some(WriteFault::UnavailableLate) => {
                let after = self.dice.below(LATE, place_of(partition), LATE_OPERATIONS_MAX);
                let at = self.operations + 1 + after;
                self.late.push((at, partition.clone(), writes));
                Err(unavailable("the batch is still in flight"))
            }
        }
    }

    /// Returns the commit whose state a read returns.
    fn snapshot(&mut self, at: &str, freshness: Freshness) -> u64 {
        const STALE: &str = "a read was stale";
        let newest = self.versions.newest();
        match freshness {
            Freshness::Any if self.dice.says(STALE, at, self.faults.stale_reads) => {
                newest.saturating_sub(1 + self.dice.below(STALE, at, LAG_COMMITS_MAX))
            }
            Freshness::Any | Freshness::Latest => newest,
        }
    }

    /// Number of items of a page; a page cut short may be empty.
    fn page_size(&mut self, limit: usize) -> usize {
        const SHORT: &str = "a page was short";
        let limit = limit.clamp(1, PAGE_MAX);
        if self.dice.says(SHORT, LISTS, self.faults.short_pages) {
            let below = self.dice.below(SHORT, LISTS, u64::try_from(limit).unwrap_or(u64::MAX));
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
        check::batch(partition, &writes)?;
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        self.begin(place_of(partition)).await?.write(partition, writes)
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<Stored>, StoreError> {
        check::partition(partition)?;
        check::document_id(id)?;
        let mut state = self.begin_read(place_of(partition)).await?;
        let snapshot = state.snapshot(place_of(partition), freshness);
        Ok(state.versions.at(partition, id, snapshot).cloned())
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<Stored>, StoreError> {
        check::partition(partition)?;
        let mut state = self.begin_read(place_of(partition)).await?;
        let snapshot = state.snapshot(place_of(partition), freshness);
        let Selection { kind, from_id, to_id, limit } = selection;
        let is_selected = |stored: &&Stored| {
            let document = &stored.document;
            document.kind == *kind
                && from_id.as_ref().is_none_or(|from| document.id >= *from)
                && to_id.as_ref().is_none_or(|to| document.id <= *to)
        };
        let all = state.versions.all_in(partition, snapshot);
        Ok(all.filter(is_selected).take(*limit).cloned().collect())
    }

    async fn claim(&self, request: ClaimRequest<'_>) -> Result<Claimed, StoreError> {
        check::conversation(request.key)?;
        let state = self.begin_read(request.key.conversation_id.as_str()).await?;
        let partition = Partition::Conversation(request.key.clone());
        let newest = state.versions.newest();
        let Some(head) = state.versions.at(&partition, HEAD_ID, newest) else {
            return Ok(Claimed::Missing);
        };
        let all = state.versions.all_in(&partition, newest);
        let inbox = all.filter(|stored| stored.document.kind == Kind::Inbox).cloned().collect();
        held::look(head.clone(), inbox, &request)
    }

    async fn renew(&self, _request: ClaimRequest<'_>) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn release(&self, _key: &ConversationKey, _worker: &WorkerId) {}

    async fn due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<Page<Owed>, StoreError> {
        let after = place::due_place(at, continuation)?;
        let mut state = self.begin_read(LISTS).await?;
        let size = state.page_size(limit);
        let mut rest = state.versions.due(at, &after);
        let has_more = rest.len() > size;
        rest.truncate(size);
        let last = rest.last().map_or(after, |(place, _)| place.clone());
        let items = rest.into_iter().map(|(_, owed)| owed).collect();
        Ok(Page { items, continuation: has_more.then(|| place::due_continuation(at, &last)) })
    }

    async fn heads(&self, query: &HeadQuery) -> Result<Page<Stored>, StoreError> {
        let after = place::heads_place(query)?;
        let mut state = self.begin_read(LISTS).await?;
        let size = state.page_size(query.limit);
        let snapshot = state.snapshot(LISTS, Freshness::Any);
        let mut rest = state.versions.heads(query, &after, snapshot);
        let has_more = rest.len() > size;
        rest.truncate(size);
        let last = rest.last().map_or(after, |(place, _)| place.clone());
        let items = rest.into_iter().map(|(_, head)| head.clone()).collect();
        Ok(Page { items, continuation: has_more.then(|| place::heads_continuation(query, &last)) })
    }
}

fn unavailable(why: &'static str) -> StoreError {
    StoreError::Unavailable(why.into())
}

#[cfg(test)]
mod tests;
