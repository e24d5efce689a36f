//! The entries that the next steps of a conversation need: those of the path to the leaf, and after a
//! compaction only those that it kept and later ones. The head lists their numbers, so that a worker
//! that does not know the conversation reads no abandoned branch and nothing that a summary replaces.
//!
//! The list is a hint. A reader checks that it leads to a complete context, and otherwise reads all
//! entries: a worker of an earlier version moves the leaf without a change of the list.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::entry::Entry;
use crate::head::Head;
use crate::path::path_from_leaf;
use turnwheel_platform::ids::EntryId;

/// Maximum number of ranges in a head. Each costs one request of a worker without a cache.
const RANGES_MAX: usize = 8;
/// Number of unneeded entries that are read rather than a request made.
const GAP_MAX: u64 = 16;

/// Consecutive numbers of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeqRange {
    pub from: u64,
    /// Absent: up to the newest entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

impl SeqRange {
    pub fn from(from: u64) -> Self {
        Self { from, to: None }
    }
}

/// Follows a path from the leaf to the entry at which its context begins: the first entry that the
/// last compaction kept, or the root.
#[derive(Debug, Default)]
pub(crate) struct ContextStart {
    /// Entries that the context includes, after the compaction is found.
    missing: Option<Vec<EntryId>>,
    needs_root: bool,
}

impl ContextStart {
    /// Takes the next entry of the path. True: the context begins with it.
    pub(crate) fn visit(&mut self, entry: &Entry) -> bool {
        if let Some(missing) = &mut self.missing {
            missing.retain(|id| *id != entry.base.entry_id);
        } else if let Some(compaction) = entry.body.compaction().filter(|_| !self.needs_root) {
            match &compaction.workspace {
                Some(workspace) => {
                    let first_kept = compaction.first_kept_entry_id.clone();
                    self.missing = Some(vec![first_kept, workspace.at.clone()]);
                }
                // Of an earlier version, or imported: files before it are found only on the path.
                None => self.needs_root = true,
            }
        }
        entry.base.parent_id.is_none() || self.missing.as_ref().is_some_and(Vec::is_empty)
    }
}

/// True if the entries hold the context of the path to the leaf.
pub fn has_context<'a>(
    entries: impl DoubleEndedIterator<Item = &'a Arc<Entry>>,
    leaf: Option<&'a EntryId>,
) -> bool {
    let mut start = ContextStart::default();
    leaf.is_none() || path_from_leaf(entries, leaf).any(|entry| start.visit(entry))
}

/// Numbers of the entries that the context of the path needs.
pub fn context_ranges(path: &[Arc<Entry>]) -> Vec<SeqRange> {
    let context = path.get(context_index(path)..).unwrap_or_default();
    ranges_of(context.iter().map(|entry| entry.base.seq))
}

/// As [`context_ranges`], for a copy of the path whose entries have the numbers from 1 on.
pub fn context_of_copy(path: &[Arc<Entry>]) -> Vec<SeqRange> {
    let from = context_index(path) as u64 + 1;
    vec![SeqRange { from, to: Some(path.len() as u64) }]
}

/// Index of the entry with which the context of the path begins.
fn context_index(path: &[Arc<Entry>]) -> usize {
    let mut start = ContextStart::default();
    path.iter().rposition(|entry| start.visit(entry)).unwrap_or_default()
}

/// The ranges of ascending numbers. Small gaps, and the smallest if there are too many, are included.
pub fn ranges_of(numbers: impl IntoIterator<Item = u64>) -> Vec<SeqRange> {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match spans.last_mut() {
            Some((_, to)) if number <= to.saturating_add(1 + GAP_MAX) => *to = number.max(*to),
            _ => spans.push((number, number)),
        }
    }
    // One more range follows the last one.
    if spans.len() >= RANGES_MAX {
        let gaps = spans.iter().zip(spans.iter().skip(1));
        let mut gaps: Vec<u64> =
            gaps.map(|((_, to), (from, _))| from.saturating_sub(*to)).collect();
        gaps.sort_unstable_by(|one, other| other.cmp(one));
        let included = gaps.get(RANGES_MAX - 2).copied().unwrap_or_default();
        let all = std::mem::take(&mut spans);
        for (from, to) in all {
            match spans.last_mut() {
                Some((_, end)) if from.saturating_sub(*end) <= included => *end = to,
                _ => spans.push((from, to)),
            }
        }
    }
    spans.into_iter().map(|(from, to)| SeqRange { from, to: Some(to) }).collect()
}

impl Head {
    /// Sets what the context needs: the ranges, and all entries after those that exist.
    pub fn set_context(&mut self, ranges: &[SeqRange]) {
        let newest = SeqRange::from(self.seq + 1);
        let (mut context, mut last) = (ranges.to_vec(), newest);
        if let Some(before) = context
            .pop_if(|range| range.to.is_none_or(|to| to.saturating_add(1 + GAP_MAX) >= newest.from))
        {
            last.from = before.from.min(newest.from);
        }
        context.push(last);
        // All entries: the head says nothing.
        let is_all = matches!(context.as_slice(), [SeqRange { from: 0..=1, to: None }]);
        self.context = if is_all { Vec::new() } else { context };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(numbers: impl IntoIterator<Item = u64>) -> Vec<(u64, u64)> {
        ranges_of(numbers).iter().map(|range| (range.from, range.to.unwrap())).collect()
    }

    #[test]
    fn ranges_include_small_gaps_and_are_few() {
        assert_eq!(spans([]), []);
        assert_eq!(spans([3, 4, 5, 6]), [(3, 6)]);
        assert_eq!(spans([1, 2, 19, 37, 38]), [(1, 19), (37, 38)], "16 and 17 lie between");
        let many: Vec<u64> = (1..=500).map(|number| number * 100 + number % 7 * 4).collect();
        let ranges = spans(many.clone());
        assert!(ranges.len() < RANGES_MAX, "{ranges:?}");
        let is_in = |number: &u64| ranges.iter().any(|(from, to)| (from..=to).contains(&number));
        assert!(many.iter().all(is_in));
        let far = [1, 2, 1_000, 1_001, 2_000, 3_000, 4_000, 5_000, 6_000, 6_050, 7_000];
        let read = spans(far);
        assert!(read.contains(&(1, 2)) && read.contains(&(6_000, 7_000)), "{read:?}");
    }
}
