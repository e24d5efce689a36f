//! Reads of the entries that a cached list lacks.

use std::sync::Arc;

use crate::documents;
use turnwheel_conversation::context_ranges::SeqRange;
use turnwheel_conversation::entry::Entry;
use turnwheel_storage::store::{ConversationStore, Freshness, Partition, Selection, StoreError};

/// The entries with `from <= seq <= to`.
pub(super) fn slice_of(entries: &[Arc<Entry>], from: u64, to: u64) -> &[Arc<Entry>] {
    let start = entries.partition_point(|entry| entry.base.seq < from);
    let end = entries.partition_point(|entry| entry.base.seq <= to);
    entries.get(start..end).unwrap_or_default()
}

/// First and last numbers of the entries that are to be read.
pub(super) fn missing_spans(
    known: &[Arc<Entry>],
    newest: u64,
    ranges: &[SeqRange],
) -> Vec<(u64, u64)> {
    let mut missing = Vec::new();
    for range in ranges {
        let (mut from, to) = (range.from.max(1), range.to.unwrap_or(newest).min(newest));
        let cached = slice_of(known, from, to);
        if cached.len() as u64 == (to + 1).saturating_sub(from) {
            continue;
        }
        for entry in cached {
            if entry.base.seq > from {
                missing.push((from, entry.base.seq - 1));
            }
            from = entry.base.seq + 1;
        }
        if from <= to {
            missing.push((from, to));
        }
    }
    missing
}

/// The entries of the span, and their share of the bytes that were read.
pub(super) async fn read_span(
    store: &dyn ConversationStore,
    partition: &Partition,
    from: u64,
    to: u64,
) -> Result<(Vec<Arc<Entry>>, u64), StoreError> {
    let selection = Selection::entries(from, to);
    let mut count = 0;
    for freshness in [Freshness::Any, Freshness::Latest] {
        let found = store.select(partition, &selection, freshness).await?;
        let mut entries = documents::read_entries(&found)?;
        let read = entries.len().max(1) as u64;
        entries.retain(|entry| (from..=to).contains(&entry.base.seq));
        if entries.iter().map(|entry| entry.base.seq).eq(from..=to) {
            let bytes: usize = found.iter().map(|stored| stored.document.body.text().len()).sum();
            return Ok((entries, bytes as u64 * (to + 1 - from) / read));
        }
        count = entries.len();
    }
    Err(StoreError::Corrupt(format!(
        "entries {from} to {to} have a gap: the store returned {count}"
    )))
}
