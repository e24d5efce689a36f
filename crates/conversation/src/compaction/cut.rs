//! The cut of a compaction: which entries are summarised, and which are kept.

use std::sync::Arc;

use crate::compaction::file_lists::FileLists;
use crate::compaction::{TokenCounter, tokens};
use crate::entry::{Compaction, Entry, EntryBody};
use crate::message::Message;
use crate::projection::find_last_compaction;
use turnwheel_platform::ids::EntryId;

/// The parts of a compaction, as slices of the path.
#[derive(Debug)]
pub struct CompactionPlan<'a> {
    /// Entries to summarise, up to the divided turn if the cut divides one. May be empty.
    pub history: &'a [Arc<Entry>],
    /// First part of the turn that the cut divides, otherwise empty.
    pub prefix: &'a [Arc<Entry>],
    pub first_kept: &'a EntryId,
    /// The previous summary, which the new one updates.
    pub previous: Option<&'a Compaction>,
}

impl CompactionPlan<'_> {
    /// Tokens of the entries that stay. `path`: root first.
    pub fn kept_tokens(&self, path: &[Arc<Entry>], count: TokenCounter<'_>) -> u64 {
        let kept = path.iter().skip_while(|it| it.base.entry_id != *self.first_kept);
        kept.map(|entry| tokens::count_entry(entry, count)).sum()
    }
}

/// Why nothing can be compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutError {
    /// No message since the last compaction.
    AlreadyCompacted,
    TooSmall,
}

impl CutError {
    pub fn message(self) -> &'static str {
        match self {
            Self::AlreadyCompacted => "Already compacted",
            Self::TooSmall => "Nothing to compact (session too small)",
        }
    }
}

/// Cuts the path (root first) so that about `keep_recent` tokens of it are kept.
///
/// # Errors
/// There is nothing to summarise: end the compaction and report the text.
pub fn plan_compaction<'a>(
    path: &'a [Arc<Entry>],
    keep_recent: u64,
    count: TokenCounter<'_>,
) -> Result<CompactionPlan<'a>, CutError> {
    let (last, previous) = find_last_compaction(path).unzip();
    if let Some(last) = last
        && !path.iter().skip(last).any(|entry| is_model_input(entry))
    {
        return Err(CutError::AlreadyCompacted);
    }
    // The entries that the last compaction kept precede it on the path. They are summarised now.
    let kept = previous.and_then(|compaction| {
        path.iter().position(|entry| entry.base.entry_id == compaction.first_kept_entry_id)
    });
    let start = match (last, kept) {
        (Some(last), Some(kept)) if kept < last => kept,
        (Some(last), _) => last + 1,
        (None, _) => 0,
    };
    let point = find_cut_point(path, start, keep_recent, count).ok_or(CutError::TooSmall)?;
    let first = include_preceding_entries(path, start, point);
    let turn = find_divided_turn(path, start, point).filter(|turn| *turn < first);
    let history = path.get(start..turn.unwrap_or(first)).unwrap_or_default();
    let prefix = turn.and_then(|turn| path.get(turn..first)).unwrap_or_default();
    let is_any = history.iter().chain(prefix).any(|entry| is_model_input(entry));
    let first_kept = path.get(first).map(|entry| &entry.base.entry_id);
    match first_kept.filter(|_| is_any) {
        Some(first_kept) => Ok(CompactionPlan { history, prefix, first_kept, previous }),
        None => Err(CutError::TooSmall),
    }
}

impl CompactionPlan<'_> {
    /// Files read and changed before the cut.
    pub fn collect_files(&self) -> FileLists {
        let mut files = self.previous.map(FileLists::from_compaction).unwrap_or_default();
        for entry in self.history.iter().chain(self.prefix) {
            if let Some(response) = entry.body.message().and_then(Message::as_assistant) {
                files.add_calls(response);
            }
        }
        files
    }
}

/// Index of the first kept entry: walks back until enough is kept, then takes the next valid cut. A
/// cut never separates a result from its call. `None`: everything is kept.
fn find_cut_point(
    path: &[Arc<Entry>],
    start: usize,
    keep_recent: u64,
    count: TokenCounter<'_>,
) -> Option<usize> {
    let mut kept = 0;
    let enough = (start..path.len()).rev().find(|at| {
        kept += path.get(*at).map_or(0, |entry| tokens::count_entry(entry, count));
        kept >= keep_recent
    })?;
    let may_cut = |at: &usize| path.get(*at).is_some_and(|entry| is_valid_cut(entry));
    // The last response's results alone are enough: they are kept with their calls.
    (enough..path.len())
        .find(may_cut)
        .or_else(|| (start..enough).rev().find(may_cut))
        .filter(|at| *at > start)
}

/// Moves the cut before directly preceding entries that hold no message, such as labels.
fn include_preceding_entries(path: &[Arc<Entry>], start: usize, point: usize) -> usize {
    let mut first = point;
    while first > start
        && let Some(before) = path.get(first - 1)
        && !matches!(before.body, EntryBody::Message(_) | EntryBody::Compaction(_))
    {
        first -= 1;
    }
    first
}

/// Start of the turn that a cut at `point` divides. `None`: the cut is between two turns.
fn find_divided_turn(path: &[Arc<Entry>], start: usize, point: usize) -> Option<usize> {
    let is_user = |entry: &Entry| matches!(entry.body.message(), Some(Message::User(_)));
    if path.get(point).is_some_and(|entry| is_user(entry)) {
        return None;
    }
    (start..=point).rev().find(|at| path.get(*at).is_some_and(|entry| is_turn_start(entry)))
}

fn is_turn_start(entry: &Entry) -> bool {
    matches!(entry.body, EntryBody::BranchSummary(_) | EntryBody::CustomMessage(_))
        || matches!(entry.body.message(), Some(Message::User(_) | Message::BashExecution(_)))
}

fn is_valid_cut(entry: &Entry) -> bool {
    match entry.body.message() {
        Some(Message::ToolResult(_) | Message::Other(_)) => false,
        Some(
            Message::User(_)
            | Message::Assistant(_)
            | Message::BashExecution(_)
            | Message::Custom(_)
            | Message::BranchSummary(_)
            | Message::CompactionSummary(_),
        ) => true,
        None => matches!(entry.body, EntryBody::BranchSummary(_) | EntryBody::CustomMessage(_)),
    }
}

/// True if the entry adds to the model's input.
fn is_model_input(entry: &Entry) -> bool {
    is_valid_cut(entry) || matches!(entry.body.message(), Some(Message::ToolResult(_)))
}
