//! Refusals of the output limit of a request. A shorter input does not help.

use std::sync::LazyLock;

use regex::Regex;

use crate::responses::provider_error::ProviderError;

/// Advice for an output limit that the service refuses.
pub(super) const OUTPUT_LIMIT_ADVICE: &str = "The service refuses the limit of output tokens: set `maxOutputTokens` in the agent file, or `contextWindow` and \
     `maxTokens` of the model in TURNWHEEL_PRICES, to the maximum of the model.";

/// Names of the output limit in requests, in lower case.
const LIMIT_MEMBERS: [&str; 4] =
    ["max_tokens", "max_completion_tokens", "max_output_tokens", "maxoutputtokens"];

/// Words of a refused value. An unsupported member has none of them.
const BOUND_WORDS: [&str; 12] = [
    "too large",
    "too high",
    "too big",
    "maximum",
    "at most",
    "up to",
    "exceed",
    "less than",
    "smaller than",
    "greater than",
    "larger than",
    "range",
];

/// Matches a message that begins with the name of the limit, such as `Invalid value for max_tokens`.
/// After the words of a gateway, it matches `max_tokens is too large`.
static LIMIT_PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let names = LIMIT_MEMBERS.join("|");
    let lead = r"(?:(?:invalid|the|value|parameter|field|body|of|for|requested|error)\W+){0,6}";
    let refusal = r"(?:or\W+\w+\W+)?is too (?:large|high|big)";
    let pattern = format!(r"(?i)^\W*{lead}(?:{names})\b|\b(?:{names})\W+{refusal}\b");
    Regex::new(&pattern).ok()
});

/// Matches the refused limit and the context window in one message.
static WINDOW_PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"(?i)too large: (\d{1,12})\b.*maximum context length is (\d{1,12})\b").ok()
});

/// True if the service refuses the output limit of the request, not its input. With a limit of at
/// most half of the window, the input exceeds the window.
pub(super) fn is_output_limit_refused(fault: &ProviderError) -> bool {
    let param = fault.param.as_deref().unwrap_or_default().to_lowercase();
    let member = param.rsplit(['.', '/']).next().unwrap_or_default();
    // A sum of input and output names the messages, which a compaction shortens.
    let is_param = LIMIT_MEMBERS.contains(&member) && !fault.message_contains(&["messages"]);
    let is_named =
        is_param || LIMIT_PATTERN.as_ref().is_some_and(|limit| limit.is_match(&fault.message));
    is_named
        && fault.message_contains(&BOUND_WORDS)
        && !fault.is_rate_limit()
        && !leaves_half_of_window(&fault.message)
}

fn leaves_half_of_window(message: &str) -> bool {
    let numbers = || {
        let found = WINDOW_PATTERN.as_ref()?.captures(message)?;
        let number = |group: usize| found.get(group)?.as_str().parse::<u64>().ok();
        Some((number(1)?, number(2)?))
    };
    numbers().is_some_and(|(limit, window)| limit <= window / 2)
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use serde_json::{Value, json};

    use super::*;
    use crate::ModelFailure;
    use crate::responses::provider_error::classify;
    use turnwheel_platform::clock::Timestamp;

    /// The class of an error with this text and `param`, and whether the error has the advice.
    fn classify_error(message: &str, param: &Value) -> (ModelFailure, bool) {
        let error = json!({ "error": { "message": message, "param": param } });
        let of_http = ProviderError::from_http(400, &error.to_string());
        let of_stream = ProviderError::from_error_event(&error).unwrap();
        let [http, stream] = [of_http, of_stream].map(|fault| {
            let class = classify(&fault, &HeaderMap::new(), Timestamp(0));
            (class, fault.text.ends_with(OUTPUT_LIMIT_ADVICE))
        });
        assert_eq!(http, stream, "{message}");
        http
    }

    #[test]
    fn refused_output_limit_is_permanent_and_gives_advice() {
        let vllm = "'max_tokens' or 'max_completion_tokens' is too large: 16384. This model's maximum context length is 8192 tokens \
             and your request has 616 input tokens (16384 > 8192 - 616).";
        let cases = [
            (vllm, json!("max_tokens")),
            (vllm, Value::Null),
            (
                "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
                Value::Null,
            ),
            ("This value exceeds the limit of 4096 tokens", json!("max_completion_tokens")),
            ("The value is above the maximum context length", json!("body.max_output_tokens")),
            ("`max_tokens` must be less than or equal to `8192`", Value::Null),
            ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", Value::Null),
            (
                "Invalid value for 'max_output_tokens': it exceeds the limit of 9 tokens",
                Value::Null,
            ),
            (
                "max_tokens: 9 > 8, which is the maximum allowed number of output tokens",
                Value::Null,
            ),
        ];
        let gateway = format!("litellm.BadRequestError: OpenAIException - {vllm}");
        for (message, param) in cases.into_iter().chain([(gateway.as_str(), Value::Null)]) {
            let found = classify_error(message, &param);
            assert_eq!(found, (ModelFailure::Permanent, true), "{message}");
        }
        let rejected = ProviderError::from_http(429, &json!({ "message": vllm }).to_string());
        let class = classify(&rejected, &HeaderMap::new(), Timestamp(0));
        assert_eq!(class, ModelFailure::Retryable { after: None });
    }

    #[test]
    fn input_that_exceeds_window_stays_overflow() {
        let sum = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8000 in the messages, \
             1000 in the completion).";
        let half = "'max_tokens' or 'max_completion_tokens' is too large: 16384. This model's maximum context length is 32768 tokens \
             and your request has 20000 input tokens (16384 > 32768 - 20000).";
        for (message, param) in [
            (sum, Value::Null),
            (sum, json!("messages")),
            (sum, json!("max_tokens")),
            (half, json!("max_tokens")),
        ] {
            let found = classify_error(message, &param);
            assert_eq!(found, (ModelFailure::ContextOverflow, false), "{message}");
        }
        let unsupported = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
        let found = classify_error(unsupported, &json!("max_tokens"));
        assert_eq!(found, (ModelFailure::Permanent, false), "another value would not help");
    }
}
