//! Searches by a regular expression of the model: their bounds, and the thread on which they run.

use regex::{Regex, RegexBuilder};

use crate::code::ToolError;
use crate::validate::pattern_size::PatternSize;

const PATTERN_BYTES_MAX: usize = 10_000;
/// Steps of one search, which cannot be stopped. Seconds.
const SEARCH_STEPS_MAX: u64 = 50_000_000;

/// A compiled expression.
pub(super) struct SearchPattern {
    regex: Regex,
    size: PatternSize,
}

impl SearchPattern {
    /// Compiles a pattern; a literal one matches its own text.
    ///
    /// # Errors
    /// The pattern is invalid. Return the text to the model; it contains the remedy.
    pub(super) fn new(pattern: &str, is_literal: bool, ignores_case: bool) -> Result<Self, String> {
        if pattern.is_empty() || pattern.len() > PATTERN_BYTES_MAX {
            return Err(format!("The pattern must have 1 to {PATTERN_BYTES_MAX} bytes."));
        }
        let escaped = regex::escape(pattern);
        let is_text = !ignores_case && (is_literal || escaped == pattern);
        let source = if is_literal { escaped } else { pattern.to_owned() };
        // The crate's size limit of 10 MB rejects `(a{1000}){1000}`, and accepts `\w{1,64}`.
        let built = RegexBuilder::new(&source).case_insensitive(ignores_case).build();
        let regex = built.map_err(|error| {
            format!(
                "The pattern is not usable: {error}. Write another one, without lookaround and back-references, or a literal text."
            )
        })?;
        let size = if is_text {
            PatternSize::of_literal()
        } else {
            PatternSize::of_regex(&source, ignores_case)
        };
        Ok(Self { regex, size })
    }

    /// The expression, for searches in a text of that many bytes. `None`: one of them could take
    /// minutes.
    pub(super) fn for_text(&self, bytes: usize) -> Option<&Regex> {
        (self.size.match_steps(bytes) <= SEARCH_STEPS_MAX).then_some(&self.regex)
    }
}

/// Runs searches on a thread of their own, so that a deadline or an abort ends the call while they run.
/// They read [`CallContext::is_cancelled`](crate::code::CallContext::is_cancelled) between two of them.
///
/// # Errors
/// The search panics.
pub(super) async fn run_search<T: Send + 'static>(
    search: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ToolError> {
    let finished = tokio::task::spawn_blocking(search).await;
    finished.map_err(|_| ToolError::failed("The search failed. Write a simpler pattern."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_need_simple_patterns() {
        let can_search = |pattern: &str, ignores_case: bool, bytes: usize| {
            let compiled = SearchPattern::new(pattern, false, ignores_case).unwrap();
            compiled.for_text(bytes).is_some()
        };
        let text = "a".repeat(9_000);
        for (pattern, ignores_case, bytes, expected) in [
            ("[ab]*[ab]a[ab]{5000}[cd]", false, 1_000_000, false),
            ("[ab]*[ab]a[ab]{5000}[cd]", false, 1_000, true),
            (r"\w+@\w+\.\w+", false, 10_000_000, true),
            (r"^\w{1,8}!$", false, 10_000_000, true),
            (text.as_str(), false, 10_000_000, true),
            (text.as_str(), true, 10_000_000, false),
        ] {
            let found = can_search(pattern, ignores_case, bytes);
            assert_eq!(found, expected, "{pattern:.40} {ignores_case} {bytes}");
        }
    }
}
