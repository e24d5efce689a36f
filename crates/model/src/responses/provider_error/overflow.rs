//! Inputs that exceed the context window.

use std::sync::LazyLock;

use regex::{RegexSet, RegexSetBuilder};

use crate::responses::provider_error::ProviderError;
use crate::responses::provider_error::output_limit::is_output_limit_refused;

/// Codes of an input that exceeds the context window.
const OVERFLOW_CODES: [&str; 5] = [
    "context_length_exceeded",
    "string_above_max_length",
    "exceed_context_size_error",
    "model_context_window_exceeded",
    "ContextWindowExceededError",
];

/// Wordings of providers for an input that exceeds the context window.
static OVERFLOW_PATTERNS: LazyLock<Option<RegexSet>> = LazyLock::new(|| {
    let patterns = [
        "prompt (?:is )?too long",
        "prompt exceeds max(?:imum)? length",
        "input is too long for requested model",
        "exceeds? (?:the |model )?context (?:window|limit|length|size)",
        "input token count.*exceeds the maximum",
        r"maximum prompt length is \d+",
        "reduce the length of the messages",
        "maximum context length",
        r"exceeds the limit of \d+ tokens",
        "exceeds the available context size",
        "greater than the context length",
        "context window exceeds limit",
        "exceeded model token limit",
        "context[_ ]length[_ ]exceeded",
        "longer than the (?:model's context|maximum model) length",
        "maximum allowed input length",
        "configured context size is",
        "context length of only",
        "range of input length",
        r"inputs\W{0,3}(?:tokens \+|must have less than \d+ tokens)",
        "too many (?:input )?tokens",
        "token limit exceeded",
    ];
    RegexSetBuilder::new(patterns).case_insensitive(true).build().ok()
});

/// True if the input of the request exceeds the context window.
pub(super) fn is_context_overflow(fault: &ProviderError) -> bool {
    // Gateways reject an input that is too long with an empty body.
    let is_empty_rejection = fault.status == Some(400) && fault.is_body_empty;
    let has_overflow_code = fault.has_code(&OVERFLOW_CODES);
    let matches_pattern = || {
        OVERFLOW_PATTERNS.as_ref().is_some_and(|overflow| overflow.is_match(&fault.message))
            && !fault.is_rate_limit()
    };
    let is_too_long =
        fault.status == Some(413) || is_empty_rejection || has_overflow_code || matches_pattern();
    is_too_long && !is_output_limit_refused(fault)
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use serde_json::json;

    use super::*;
    use crate::ModelFailure;
    use crate::responses::provider_error::classify;
    use turnwheel_platform::clock::Timestamp;

    #[test]
    fn context_overflow_is_detected_by_text() {
        let classify_text = |status: u16, message: &str| {
            let body = json!({"error": {"message": message}}).to_string();
            classify(&ProviderError::from_http(status, &body), &HeaderMap::new(), Timestamp(0))
        };
        for message in [
            "Prompt is too long: 213462 tokens > 200000 maximum",
            "Input is too long for requested model.",
            "Your input exceeds the context window of this model.",
            "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575)",
            "This model's maximum prompt length is 131072 but the request contains 537812 tokens",
            "Please reduce the length of the messages or completion",
            "This endpoint's maximum context length is 128000 tokens.",
            "prompt token count of 200 exceeds the limit of 100 tokens",
            "the request exceeds the available context size",
            "tokens to keep is greater than the context length",
            "context_length_exceeded",
            "Context length exceeded",
            "too many tokens in the input",
            "input length and `max_tokens` exceed context limit: 143653 + 64000 > 200000",
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 204800]",
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 32768",
            "Input validation error: `inputs` must have less than 4096 tokens. Given: 4097",
            "Too many input tokens. Max input tokens: 200000, request input token count: 200001",
            "prompt too long; exceeded max context length by 65590 tokens",
            "Prompt exceeds max length",
            "Requested tokens (5000) exceed context window of 2048",
            "The input (40000 tokens) is longer than the model's context length (32768 tokens).",
            "The decoder prompt (length 40000) is longer than the maximum model length of 32768.",
            "The prompt has 40000 tokens. The maximum allowed input length is 32768.",
            "The request has 9000 tokens, and the configured context size is 8192.",
            "The model was loaded with a context length of only 4096 tokens, which is not enough.",
        ] {
            assert_eq!(classify_text(400, message), ModelFailure::ContextOverflow, "{message}");
        }
        assert_eq!(
            classify_text(429, "Too many tokens, please wait"),
            ModelFailure::Retryable { after: None },
            "a rate limit is transient"
        );
        for message in [
            "exceeds the limit of 16 tools",
            "the name exceeds max length",
            "inputs must have less than 5 images",
        ] {
            assert_eq!(classify_text(400, message), ModelFailure::Permanent, "{message}");
        }
        for (status, expected) in [
            (400, ModelFailure::ContextOverflow),
            (413, ModelFailure::ContextOverflow),
            (429, ModelFailure::Retryable { after: None }),
        ] {
            assert_eq!(
                classify(&ProviderError::from_http(status, ""), &HeaderMap::new(), Timestamp(0)),
                expected,
                "{status}"
            );
        }
    }

    #[test]
    fn context_overflow_is_detected_by_code() {
        let class = |error: serde_json::Value| {
            let fault = ProviderError::from_http(400, &json!({ "error": error }).to_string());
            classify(&fault, &HeaderMap::new(), Timestamp(0))
        };
        for code in [
            "context_length_exceeded",
            "string_above_max_length",
            "exceed_context_size_error",
            "model_context_window_exceeded",
            "ContextWindowExceededError",
        ] {
            for member in ["code", "type"] {
                let error = json!({ member: code, "message": "x" });
                assert_eq!(class(error), ModelFailure::ContextOverflow, "{member} {code}");
            }
        }
        assert_eq!(class(json!({ "code": "other", "message": "x" })), ModelFailure::Permanent);
    }
}
