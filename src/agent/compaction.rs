//! Compaction: when what the model is sent outgrows its window, the older part is summed up. The record stays whole; only
//! what is sent begins with the summary.

pub mod cut;
pub mod files;
pub mod tokens;
pub mod told;
pub mod wording;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::agent::entry::Compaction;
use crate::agent::message::{AssistantMessage, StopReason};
use crate::agent::raw::RawJson;
use crate::agent::settings::CompactionSettings;
use crate::agent::usage::Usage;
use crate::ids::EntryId;

pub use cut::{Plan, Uncut, plan};

/// Counts the tokens of a text. Handed in: the core knows no tokenizer.
pub type Count<'a> = &'a dyn Fn(&str) -> u64;

/// Why a conversation is summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// What is sent comes close to the window.
    Threshold,
    /// The model refused what was sent.
    Overflow,
    /// Somebody asked for it.
    Manual,
}

/// How a model's window is shared out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Tokens; 0 where it is not known: then it is never too full.
    pub window: u64,
    /// Left for the answer.
    reserve: u64,
    /// Of what came last, this much stays as it is.
    pub keep_recent: u64,
    /// Whether it is summed up without being asked to.
    pub is_enabled: bool,
}

impl Room {
    /// Settings that were made for a larger window leave a quarter of this one to the answer, and half of the rest to what
    /// stays as it is.
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

    /// Whether the conversation is summed up without being asked to.
    pub fn is_automatic(&self) -> bool {
        self.is_enabled && self.window > 0
    }

    pub fn is_full(&self, tokens: u64) -> bool {
        self.is_automatic() && tokens > self.window.saturating_sub(self.reserve)
    }

    /// Tokens of a summary, where thinking does not count among them.
    pub fn summary_tokens(&self) -> u64 {
        self.reserve / 5 * 4 + self.reserve % 5 * 4 / 5
    }

    /// The same of the first part of a turn that is cut in two.
    pub fn prefix_tokens(&self) -> u64 {
        self.reserve / 2
    }
}

/// An answer that came, but to less than was sent, or not to its end, because the window was full: what the record says of
/// it. Its context has to shrink before the model is asked again.
pub fn silent_overflow(answer: &AssistantMessage, window: u64) -> Option<String> {
    let usage = &answer.usage;
    let sent = usage.input + usage.cache_read + usage.cache_write;
    if window == 0 {
        return None;
    }
    match answer.stop_reason {
        StopReason::Stop if usage.input + usage.cache_read > window => Some(format!(
            "The input of {sent} tokens exceeds the context window of {window}: the model has not read all of it."
        )),
        // The last hundredth is lost to how providers count.
        StopReason::Length if tokens::of_usage(usage) >= window - window / 100 => Some(format!(
            "The answer was cut: with {} tokens the context window of {window} is full.",
            tokens::of_usage(usage)
        )),
        StopReason::Stop
        | StopReason::Length
        | StopReason::ToolUse
        | StopReason::Error
        | StopReason::Aborted => None,
    }
}

/// What the parts of a summary come to, and what is told beside it.
#[derive(Clone, Debug)]
pub struct Summed {
    /// Of what lies before the cut, or before the turn that the cut divides.
    pub history: String,
    /// Of the first part of the divided turn.
    pub prefix: Option<String>,
    pub files: files::Files,
    pub shortened: told::Shortened,
}

impl Summed {
    /// The text that stands for all that lies before the cut.
    pub fn text(&self) -> String {
        let mut text = self.history.clone();
        if let Some(prefix) = &self.prefix {
            text.push_str(wording::SPLIT_TURN);
            text.push_str(prefix);
        }
        text.push_str(&self.files.told());
        text
    }

    /// The entry's body.
    pub fn entry(
        &self,
        first_kept: &EntryId,
        (tokens_before, tokens_after): (u64, u64),
        (usage, calls): (Usage, u32),
    ) -> Compaction {
        let mut details = json!({
            "readFiles": self.files.read(), "modifiedFiles": self.files.modified(),
            "tokensAfter": tokens_after,
        });
        if self.shortened != told::Shortened::default()
            && let Some(details) = details.as_object_mut()
        {
            details.insert("shortened".to_owned(), json!(self.shortened));
        }
        Compaction {
            summary: self.text(),
            first_kept_entry_id: first_kept.clone(),
            tokens_before,
            details: Some(RawJson::of(&details)),
            from_hook: None,
            usage: (calls > 0).then_some(usage),
            calls: (calls > 0).then_some(calls),
        }
    }
}
