//! Compaction: a summary replaces the older part of the model's input before it exceeds the context
//! window. The stored conversation stays complete.

pub mod cut;
pub mod file_lists;
pub mod prompts;
pub mod prospects;
pub mod tokens;
pub mod transcript;

use serde_json::json;

use crate::entry::Compaction;
use crate::message::{AssistantMessage, StopReason};
use crate::settings::CompactionSettings;
use crate::unknown_members::Extra;
use crate::usage::Usage;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::EntryId;

#[cfg(test)]
pub(crate) use cut::CutError;
pub use cut::{CompactionPlan, plan_compaction};

/// Counts the tokens of a text. The core has no tokenizer, so the caller supplies one.
pub type TokenCounter<'a> = &'a dyn Fn(&str) -> u64;

/// Division of a model's context window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextBudget {
    /// Tokens. 0: unknown, and never exceeded.
    pub window: u64,
    /// Tokens reserved for the response.
    reserve: u64,
    /// Tokens of the newest messages that are kept unchanged.
    pub keep_recent: u64,
    /// True if automatic compaction is enabled in the settings.
    pub is_enabled: bool,
}

impl ContextBudget {
    /// If the settings fit only a larger window, a quarter of this one is reserved for the
    /// response, and half of the rest is kept unchanged.
    pub fn new(window: u64, settings: &CompactionSettings) -> Self {
        let reserve =
            if settings.reserve_tokens < window { settings.reserve_tokens } else { window / 4 };
        let rest = window.saturating_sub(reserve);
        let keep_recent = if settings.keep_recent_tokens < rest || window == 0 {
            settings.keep_recent_tokens
        } else {
            rest / 2
        };
        Self { window, reserve, keep_recent, is_enabled: settings.enabled }
    }

    /// Tokens reserved for the response.
    pub fn reserve(&self) -> u64 {
        self.reserve
    }

    /// True if automatic compaction is enabled and the window is known.
    pub fn is_automatic(&self) -> bool {
        self.is_enabled && self.window > 0
    }

    pub fn is_exceeded(&self, tokens: u64) -> bool {
        self.is_automatic() && tokens > self.window.saturating_sub(self.reserve)
    }

    /// Maximum tokens of a summary, without thinking.
    pub fn summary_tokens_max(&self) -> u64 {
        self.reserve / 5 * 4 + self.reserve % 5 * 4 / 5
    }

    /// Maximum tokens of the summary of a divided turn's first part.
    pub fn prefix_tokens_max(&self) -> u64 {
        self.reserve / 2
    }
}

/// Detects a response that was cut because the window was full, and returns its error text. The context
/// must shrink before the next model call. A complete response stays, whatever its usage is: it is paid
/// for, and the next call is preceded by a compaction.
pub(crate) fn detect_silent_overflow(response: &AssistantMessage, window: u64) -> Option<String> {
    let usage = &response.usage;
    if window == 0 {
        return None;
    }
    match response.stop_reason {
        // Providers count differently: one hundredth of tolerance.
        StopReason::Length if tokens::count_usage(usage) >= window - window / 100 => Some(format!(
            "The response is incomplete: with {} tokens the context window of {window} is full.",
            tokens::count_usage(usage)
        )),
        StopReason::Stop
        | StopReason::Length
        | StopReason::ToolUse
        | StopReason::Error
        | StopReason::Aborted => None,
    }
}

/// The parts of a finished summary.
#[derive(Clone, Debug)]
pub struct SummaryParts {
    /// Summary of everything before the cut, or before the turn that the cut divides.
    pub history: String,
    /// Summary of the divided turn's first part.
    pub prefix: Option<String>,
    pub files: file_lists::FileLists,
    pub omitted: transcript::OmittedContent,
}

/// Tokens before and after a compaction, and the cost of its model calls.
#[derive(Clone, Copy, Debug)]
pub struct SummaryCounts {
    pub tokens_before: u64,
    pub tokens_after: u64,
    pub usage: Usage,
    pub calls: u32,
}

impl SummaryParts {
    /// The text that replaces everything before the cut.
    pub fn to_text(&self) -> String {
        let mut text = self.history.clone();
        if let Some(prefix) = &self.prefix {
            text.push_str(prompts::SPLIT_TURN);
            text.push_str(prefix);
        }
        text.push_str(&self.files.render());
        text
    }

    /// The body of the compaction entry.
    pub fn to_entry(&self, first_kept: &EntryId, counts: SummaryCounts) -> Compaction {
        let SummaryCounts { tokens_before, tokens_after, usage, calls } = counts;
        let mut details = json!({
            "readFiles": self.files.read_only(), "modifiedFiles": self.files.modified(),
            "tokensAfter": tokens_after,
        });
        if self.omitted != transcript::OmittedContent::default()
            && let Some(details) = details.as_object_mut()
        {
            details.insert("shortened".to_owned(), json!(self.omitted));
        }
        Compaction {
            summary: self.to_text(),
            first_kept_entry_id: first_kept.clone(),
            tokens_before,
            details: Some(RawJson::from_value(&details)),
            from_hook: None,
            usage: (calls > 0).then(|| usage.into()),
            calls: (calls > 0).then_some(calls),
            workspace: None,
            extra: Extra::new(),
        }
    }
}
