//! Prospects of a compaction: whether a summary can shorten the model input, decided before it is paid
//! for, and the memory of the last one that could not.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::compaction::cut::CompactionPlan;
use crate::compaction::{ContextBudget, TokenCounter, tokens};
use crate::entry::Entry;
use turnwheel_platform::ids::PromptId;

/// Tokens of messages that are worth a summary, and by which the path grows before the next attempt
/// after a failure. A small window has an eighth.
const WORTHWHILE_TOKENS: u64 = 4_000;
/// Tokens of an ordinary summary.
const SUMMARY_TOKENS: u64 = 1_000;
/// Prefix of errors after the model refused the input.
pub(crate) const RECOVERY_FAILED: &str = "Context overflow recovery failed: ";
/// Prefix of the errors of compactions that are not tried again.
const UNCHANGED: &str = "nothing has changed since the last attempt. ";
/// Maximum bytes of a note's text.
const NOTE_BYTES_MAX: usize = 600;

/// Why the last automatic compaction did not help. The head keeps it until a summary is stored or the
/// leaf moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompactionNote {
    /// `seq` of the newest entry at that time.
    pub seq: u64,
    /// The prompt that shows the text. Absent: none was running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<PromptId>,
    /// One sentence or more, for users.
    pub text: String,
    /// True if instructions and tools exceed the threshold, as the text explains.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_fixed_part: bool,
    /// The last failure beside such a fixed part. Absent: there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<Box<CompactionNote>>,
}

impl CompactionNote {
    pub fn new(seq: u64, prompt_id: Option<PromptId>, text: &str) -> Self {
        let text = text.get(..text.floor_char_boundary(NOTE_BYTES_MAX)).unwrap_or_default();
        Self { seq, prompt_id, text: text.to_owned(), is_fixed_part: false, failure: None }
    }

    /// The note of the last failure. `None`: no attempt failed.
    pub(crate) fn into_failure(self) -> Option<Box<Self>> {
        if self.is_fixed_part { self.failure } else { Some(Box::new(self)) }
    }

    fn failure(&self) -> Option<&Self> {
        if self.is_fixed_part { self.failure.as_deref() } else { Some(self) }
    }

    /// The text of a compaction that is not tried again for this reason.
    pub fn unchanged_text(&self) -> String {
        let mut reason = self.failure().unwrap_or(self).text.as_str();
        while let Some(rest) =
            [RECOVERY_FAILED, UNCHANGED].iter().find_map(|prefix| reason.strip_prefix(prefix))
        {
            reason = rest;
        }
        format!("{UNCHANGED}{reason}")
    }
}

/// Tokens of the part of the model input that no summary shortens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FixedPart {
    /// Of the whole part, as the next model call sends it.
    pub total: u64,
    pub instructions: u64,
    /// Names of all tools with their tokens, the largest first.
    pub tools: Vec<(String, u64)>,
}

impl FixedPart {
    /// True if no summary brings the input below the threshold.
    pub fn exceeds_threshold(&self, budget: &ContextBudget) -> bool {
        budget.is_exceeded(self.total)
    }

    /// True if the part alone fills the window.
    pub fn fills_window(&self, budget: &ContextBudget) -> bool {
        budget.window > 0 && self.total >= budget.window
    }

    /// Names the parts, their sizes and the remedy.
    pub fn to_note_text(&self, budget: &ContextBudget) -> String {
        let limit = budget.window.saturating_sub(budget.reserve());
        let mut text = format!(
            "The instructions ({} tokens) and the tools ({} tokens",
            self.instructions,
            self.tools.iter().map(|(_, tokens)| tokens).sum::<u64>(),
        );
        if let Some((name, tokens)) = self.tools.first() {
            // A `String` accepts every write.
            let _infallible = write!(text, ", the largest is `{name}` with {tokens}");
        }
        let _infallible = write!(
            text,
            ") exceed the {limit} tokens up to which the conversation is not summarised (window {}, compaction.reserveTokens {}). A summary cannot shorten them: shorten the instructions, offer fewer tools, lower compaction.reserveTokens, or use a model with a larger window.",
            budget.window,
            budget.reserve(),
        );
        text
    }
}

/// Facts from which the prospects are judged.
#[derive(Clone, Copy)]
pub struct Prospects<'a> {
    pub plan: &'a CompactionPlan<'a>,
    /// Root first.
    pub path: &'a [Arc<Entry>],
    pub budget: &'a ContextBudget,
    pub fixed: &'a FixedPart,
    /// Tokens of the model input, as the provider counts them.
    pub tokens_before: u64,
    /// Of the last compaction.
    pub note: Option<&'a CompactionNote>,
    pub count: TokenCounter<'a>,
}

impl fmt::Debug for Prospects<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prospects")
            .field("tokens_before", &self.tokens_before)
            .finish_non_exhaustive()
    }
}

impl Prospects<'_> {
    /// True if a compaction at the threshold is worth its calls.
    pub fn is_worthwhile(&self) -> bool {
        let summary_max = self.summary_tokens_max();
        let worthwhile = worthwhile_tokens(self.budget);
        let remaining = self.fixed.total + self.kept_tokens() + SUMMARY_TOKENS.min(summary_max);
        let needed = if self.budget.is_exceeded(remaining) {
            // The next input exceeds the threshold again: the summary must be certain to shorten.
            summary_max.max(worthwhile)
        } else {
            summary_max.min(worthwhile)
        };
        self.replaces_more_than(needed) && self.has_grown_since_failure()
    }

    /// True if a compaction can help after the model has refused the input.
    pub fn can_recover(&self) -> bool {
        self.replaces_more_than(worthwhile_tokens(self.budget)) || self.has_grown_since_failure()
    }

    /// Maximum tokens of the summary that the plan needs.
    fn summary_tokens_max(&self) -> u64 {
        let history =
            if self.plan.history.is_empty() { 0 } else { self.budget.summary_tokens_max() };
        let prefix = if self.plan.prefix.is_empty() { 0 } else { self.budget.prefix_tokens_max() };
        history + prefix
    }

    fn kept_tokens(&self) -> u64 {
        self.plan.kept_tokens(self.path, self.count)
    }

    /// True if the messages that the summary replaces have more tokens. An earlier summary counts
    /// for nothing: the new one includes it.
    fn replaces_more_than(&self, tokens: u64) -> bool {
        let replaced = || self.plan.history.iter().chain(self.plan.prefix);
        if has_more_than(tokens, replaced(), self.count) {
            return true;
        }
        // The provider may count more than the estimate does.
        let sum = |entries: &mut dyn Iterator<Item = &Arc<Entry>>| -> u128 {
            entries.map(|entry| u128::from(tokens::count_entry(entry, self.count))).sum()
        };
        let previous = self.plan.previous.map_or(0, |it| (self.count)(&it.summary));
        let replaced = sum(&mut replaced());
        let estimate = replaced
            + u128::from(self.kept_tokens())
            + u128::from(previous.saturating_add(self.fixed.total));
        estimate > 0 && replaced * u128::from(self.tokens_before) / estimate > u128::from(tokens)
    }

    fn has_grown_since_failure(&self) -> bool {
        let Some(failure) = self.note.and_then(CompactionNote::failure) else { return true };
        let newer = self.path.iter().rev().take_while(|entry| entry.base.seq > failure.seq);
        has_more_than(worthwhile_tokens(self.budget), newer, self.count)
    }
}

fn worthwhile_tokens(budget: &ContextBudget) -> u64 {
    match budget.window {
        0 => WORTHWHILE_TOKENS,
        window => WORTHWHILE_TOKENS.min(window / 8),
    }
}

/// Counts no more entries than needed.
fn has_more_than<'a>(
    tokens: u64,
    entries: impl Iterator<Item = &'a Arc<Entry>>,
    count: TokenCounter<'_>,
) -> bool {
    let mut sum = 0;
    let mut entries = entries;
    entries.any(|entry| {
        sum += tokens::count_entry(entry, count);
        sum > tokens
    })
}

/// Explains why the input cannot be shortened: one message fills the window.
pub fn oversized_message_text(
    path: &[Arc<Entry>],
    window: u64,
    count: TokenCounter<'_>,
) -> Option<String> {
    let largest = path.iter().map(|entry| tokens::count_entry(entry, count)).max()?;
    // The service may count more tokens than the estimate, but not for a short message.
    (largest > window / 4).then(|| {
        let window = if window > 0 { format!(" of {window} tokens") } else { String::new() };
        format!(
            "the largest message has {largest} tokens and does not fit the context window{window} beside instructions and tools"
        )
    })
}
