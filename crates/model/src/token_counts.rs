//! Token counts as services report them, with the names of either API.

use serde_json::{Map, Value};

use turnwheel_conversation::usage::Usage;

/// Names of the counts. One after a slash is in an object.
const INPUT: [&str; 2] = ["input_tokens", "prompt_tokens"];
const OUTPUT: [&str; 2] = ["output_tokens", "completion_tokens"];
const TOTAL: [&str; 1] = ["total_tokens"];
const CACHE_READ: [&str; 3] = [
    "input_tokens_details/cached_tokens",
    "prompt_tokens_details/cached_tokens",
    "prompt_cache_hit_tokens",
];
const CACHE_WRITE: [&str; 2] =
    ["input_tokens_details/cache_write_tokens", "prompt_tokens_details/cache_write_tokens"];
const REASONING: [&str; 3] = [
    "output_tokens_details/reasoning_tokens",
    "completion_tokens_details/reasoning_tokens",
    "reasoning_tokens",
];

/// The counts of one response. Each report of the service has those of the response so far.
#[derive(Debug, Default)]
pub(crate) struct TokenCounts(Map<String, Value>);

impl TokenCounts {
    /// Takes over a report. Counts that it lacks, or has as 0, stay.
    pub(crate) fn merge(&mut self, report: &Value) {
        merge_counts(&mut self.0, report);
    }

    /// The usage of the Responses API; 0 for counts that the service did not report.
    pub(crate) fn responses_usage(&self) -> Usage {
        let [input, output] = [&INPUT, &OUTPUT].map(|names| self.count(names).unwrap_or(0));
        let usage = self.usage(input, output);
        let total = self.count(&TOTAL).filter(|total| *total > 0);
        Usage { total_tokens: total.unwrap_or(usage.total_tokens), ..usage }
    }

    /// The usage of Chat Completions. `None` without the counts of a real call: the caller estimates
    /// them. Some services leave reasoning out of the output, but not out of the total.
    pub(crate) fn chat_usage(&self) -> Option<Usage> {
        let input = self.count(&INPUT).filter(|tokens| *tokens > 0)?;
        let output = self.count(&OUTPUT)?;
        let total = self.count(&TOTAL).unwrap_or(0);
        Some(self.usage(input, output.max(total.saturating_sub(input))))
    }

    /// The usage with these sums. The input includes cached tokens, read and written, which have other
    /// prices.
    fn usage(&self, input: u64, output: u64) -> Usage {
        let cache_read = self.count(&CACHE_READ).unwrap_or(0).min(input);
        let cache_write = self.count(&CACHE_WRITE).unwrap_or(0).min(input - cache_read);
        Usage {
            input: input - cache_read - cache_write,
            output,
            cache_read,
            cache_write,
            reasoning: self.count(&REASONING).unwrap_or(0).min(output),
            total_tokens: input.saturating_add(output),
            ..Usage::default()
        }
    }

    /// The largest count with one of these names.
    fn count(&self, names: &[&str]) -> Option<u64> {
        let value = |name: &&str| match name.split_once('/') {
            Some((object, name)) => self.0.get(object)?.get(name),
            None => self.0.get(*name),
        };
        names.iter().filter_map(value).filter_map(read_count).max()
    }
}

/// Merges the counts of a report, or of an object in it.
fn merge_counts(counts: &mut Map<String, Value>, report: &Value) {
    for (name, value) in report.as_object().into_iter().flatten() {
        if value.is_object() {
            let details = counts.entry(name.as_str()).or_insert_with(|| Value::Object(Map::new()));
            if let Some(details) = details.as_object_mut() {
                merge_counts(details, value);
            }
        } else if read_count(value).is_some_and(|it| it > 0 || !counts.contains_key(name)) {
            counts.insert(name.clone(), value.clone());
        }
    }
}

/// A count. Some services write it as a decimal number.
fn read_count(value: &Value) -> Option<u64> {
    let number = value.as_number()?.to_string();
    number.strip_suffix(".0").unwrap_or(&number).parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Input, output, cached, reasoning and total tokens.
    fn counts(usage: Usage) -> [u64; 5] {
        [usage.input, usage.output, usage.cache_read, usage.reasoning, usage.total_tokens]
    }

    #[test]
    fn names_of_both_apis_are_counted() {
        let details = json!({ "cached_tokens": 4.0 });
        let reasoning = json!({ "reasoning_tokens": 2 });
        for report in [
            json!({ "input_tokens": 10, "output_tokens": 5, "input_tokens_details": details, "output_tokens_details": reasoning }),
            json!({ "prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": details, "completion_tokens_details": reasoning }),
            json!({ "prompt_tokens": 10.0, "completion_tokens": 5.0, "total_tokens": 15.0, "prompt_cache_hit_tokens": 4.0, "reasoning_tokens": 2.0 }),
            json!({ "input_tokens": 10, "prompt_tokens": 0, "completion_tokens": 5, "output_tokens": null, "input_tokens_details": details, "reasoning_tokens": 2 }),
        ] {
            let mut tokens = TokenCounts::default();
            tokens.merge(&report);
            let expected = [6, 5, 4, 2, 15];
            assert_eq!(counts(tokens.responses_usage()), expected, "{report}");
            assert_eq!(tokens.chat_usage().map(counts), Some(expected), "{report}");
        }
    }

    #[test]
    fn later_report_without_counts_changes_nothing() {
        let first = json!({ "input_tokens": 10, "output_tokens": 5, "input_tokens_details": { "cached_tokens": 4 } });
        let zeros = json!({ "cached_tokens": 0, "audio_tokens": 0 });
        for later in [
            json!({ "input_tokens": 0, "output_tokens": 0, "total_tokens": 0, "input_tokens_details": zeros, "output_tokens_details": { "reasoning_tokens": 0 } }),
            json!({ "input_tokens_details": { "audio_tokens": 0 } }),
            json!({ "input_tokens_details": { "cached_tokens": { "text": 0 } } }),
            json!({}),
            Value::Null,
            json!([]),
            json!("many"),
            json!({ "input_tokens": 0, "output_tokens": 0, "total_tokens": 0 }),
            json!({ "input_tokens": null, "output_tokens": -5, "input_tokens_details": {} }),
            json!({ "input_tokens": "10", "output_tokens": 5.5, "input_tokens_details": null }),
        ] {
            let mut tokens = TokenCounts::default();
            tokens.merge(&first);
            tokens.merge(&later);
            assert_eq!(counts(tokens.responses_usage()), [6, 5, 4, 0, 15], "{later}");
        }
    }

    #[test]
    fn reports_are_cumulative() {
        let mut tokens = TokenCounts::default();
        for report in [
            json!({ "prompt_tokens": 10, "completion_tokens": 1 }),
            json!({ "prompt_tokens": 10, "completion_tokens": 2 }),
            json!({ "completion_tokens": 7 }),
        ] {
            tokens.merge(&report);
        }
        assert_eq!(tokens.chat_usage().map(counts), Some([10, 7, 0, 0, 17]));
    }

    #[test]
    fn counts_that_are_no_whole_numbers_are_missing() {
        for output in [json!("1"), json!(-1), json!(1.5), json!(1e300), json!(true), json!([1])] {
            let mut tokens = TokenCounts::default();
            tokens.merge(&json!({ "prompt_tokens": 4, "completion_tokens": output }));
            assert_eq!(tokens.chat_usage().map(counts), None, "{output}");
            assert_eq!(counts(tokens.responses_usage()), [4, 0, 0, 0, 4], "{output}");
        }
    }
}
