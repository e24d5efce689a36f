//! Errors of a model call, and their classes.

use http::HeaderMap;
use serde_json::Value;

use crate::{CallMetadata, ModelFailure};
use turnwheel_json::foreign::read_value_or_repair;
use turnwheel_json::text::with_full_stop;
use turnwheel_platform::clock::Timestamp;

mod output_limit;
mod overflow;
mod quota;
mod retry_delay;
mod shape;

use output_limit::{OUTPUT_LIMIT_ADVICE, is_output_limit_refused};
use overflow::is_context_overflow;
use quota::is_quota_exhausted;

/// Characters of a provider's text that are recorded.
const TEXT_MAX: usize = 2_000;

/// Advice for exhausted quotas and unpaid billing.
const QUOTA_ADVICE: &str = "The quota is exhausted or the billing is unpaid, and a retry does not help: raise the quota of the deployment or \
     settle the billing of its subscription.";

/// An error of an HTTP response, of a stream event or of the connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProviderError {
    /// HTTP status of a response that is not a stream. Errors within a stream have status 200.
    pub status: Option<u16>,
    pub code: Option<String>,
    /// The error's `type`.
    pub kind: Option<String>,
    /// The member of the request that the error names.
    pub param: Option<String>,
    /// The code in `innererror`.
    pub inner_code: Option<String>,
    pub message: String,
    /// Text for the record: what happened and, if there is a remedy, what to do.
    pub text: String,
    /// True for an HTTP response with an empty body.
    pub is_body_empty: bool,
    /// True if the connection failed, or the response was interrupted or malformed. The request may
    /// be valid.
    pub is_connection_lost: bool,
    /// True if the headers of the response name a wait.
    pub(super) names_wait: bool,
}

impl ProviderError {
    /// Creates an error of the connection; it is retried.
    pub fn connection_lost(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { message: text.clone(), text, is_connection_lost: true, ..Self::default() }
    }

    /// Creates an error that a retry repeats, such as an invalid setting.
    pub fn permanent(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { status: Some(400), message: text.clone(), text, ..Self::default() }
    }

    /// Creates the error of an input that exceeds the context window.
    pub(crate) fn context_overflow(text: impl Into<String>) -> Self {
        let text = text.into();
        let code = Some("context_length_exceeded".to_owned());
        Self { code, message: text.clone(), text, ..Self::default() }
    }

    /// Creates an error from a text that is no JSON.
    pub fn from_text(text: &str) -> Self {
        let message = truncate_text(text.trim());
        Self { text: message.clone(), message, ..Self::default() }.with_advice(None)
    }

    /// Creates an error from an HTML page that came in place of a model response, such as the
    /// sign-in page of a proxy. The same request would get it again.
    pub(crate) fn from_page(page: &str) -> Self {
        let title = shape::page_title(page);
        let title = title.map(|title| format!(" with the title `{title}`")).unwrap_or_default();
        Self::permanent(format!(
            "the server returned an HTML page{title} in place of a model response: check AZURE_OPENAI_BASE_URL, and whether \
             a proxy requires a sign-in"
        ))
    }

    /// Parses an `error` event, in any form. `None` if it contains no details.
    pub fn from_error_event(body: &Value) -> Option<Self> {
        let mut fault = shape::read_error(body);
        if !fault.has_details() {
            return None;
        }
        let reason = fault.reason_in(body);
        fault.text = match fault.code.as_ref().or(fault.kind.as_ref()) {
            Some(name) => format!("Error Code {name}: {reason}"),
            None => reason,
        };
        Some(fault.with_advice(None))
    }

    /// Parses an event of an unknown kind that reports an error. `None`: it reports none.
    pub(crate) fn from_other_event(body: &Value) -> Option<Self> {
        if shape::is_error(body) { Self::from_error_event(body) } else { None }
    }

    /// Parses the error of a response that has failed. `None` if it contains no details; an `error`
    /// event with details may follow.
    pub(crate) fn from_failed_response(response: &Value) -> Option<Self> {
        let error = response.get("error").filter(|error| !error.is_null());
        let error = error.or_else(|| response.pointer("/status_details/error"))?;
        let mut fault = shape::read_error(error);
        if !fault.has_details() {
            return None;
        }
        let reason = fault.reason_in(error);
        fault.text = match fault.code.as_ref().or(fault.kind.as_ref()) {
            Some(name) => format!("{name}: {reason}"),
            None => reason,
        };
        Some(fault.with_advice(None))
    }

    /// The message. Without one, the JSON that the error was read from.
    fn reason_in(&self, body: &Value) -> String {
        let message = Some(&self.message).filter(|message| !message.is_empty());
        message.cloned().or_else(|| shape::describe(body)).unwrap_or_default()
    }

    fn has_details(&self) -> bool {
        self.code.is_some() || self.kind.is_some() || !self.message.is_empty()
    }

    /// Creates an error for which the provider gives only the response status. It is not retried
    /// (RE-02).
    pub(crate) fn without_details(status: &str) -> Self {
        Self {
            kind: Some(truncate_text(status)),
            text: format!(
                "Unknown error: the response has the status `{status}` and no explanation"
            ),
            ..Self::default()
        }
    }

    /// Parses an HTTP response that is not a stream.
    pub fn from_http(status: u16, body: &str) -> Self {
        Self::from_http_response(status, &HeaderMap::new(), body)
    }

    /// As [`ProviderError::from_http`], with the headers of the response.
    pub(crate) fn from_http_response(status: u16, headers: &HeaderMap, body: &str) -> Self {
        let json = read_value_or_repair(body);
        let mut fault = if let Some(json @ (Value::Object(_) | Value::Array(_))) = json {
            let fault = shape::read_error(&json);
            let message = fault.reason_in(&json);
            Self { message, ..fault }
        } else {
            let title = shape::page_title(body).unwrap_or_else(|| body.trim().to_owned());
            Self { message: truncate_text(&title), ..Self::default() }
        };
        fault.names_wait = retry_delay::names_wait(headers);
        fault.status = Some(status);
        fault.is_body_empty = body.trim().is_empty();
        let name =
            fault.code.as_ref().or(fault.kind.as_ref()).filter(|name| **name != status.to_string());
        let said = match (name, fault.message.as_str()) {
            (Some(name), "") => format!("HTTP {status}: {name}"),
            (Some(name), message) => format!("HTTP {status}: {name}: {message}"),
            (None, "") => format!("HTTP {status} without an explanation"),
            (None, message) => format!("HTTP {status}: {message}"),
        };
        fault.text = said;
        let advice = advice_for(status, &fault);
        fault.with_advice(advice)
    }

    /// Adds advice to the text, if there is any.
    fn with_advice(mut self, advice: Option<&str>) -> Self {
        let advice = if is_quota_exhausted(&self, self.names_wait) {
            Some(QUOTA_ADVICE)
        } else if is_output_limit_refused(&self) {
            Some(OUTPUT_LIMIT_ADVICE)
        } else {
            advice
        };
        if let Some(advice) = advice {
            self.text = format!("{} {advice}", with_full_stop(&self.text));
        }
        self
    }

    /// Short name of the error, as in spans.
    pub fn name(&self) -> Option<String> {
        let code = self.codes().next().map(ToOwned::to_owned);
        let status = self.status.map(|status| status.to_string());
        code.or(status).or_else(|| self.is_connection_lost.then(|| "connection".to_owned()))
    }

    fn codes(&self) -> impl Iterator<Item = &str> {
        [&self.code, &self.kind, &self.inner_code].into_iter().flatten().map(String::as_str)
    }

    fn has_code(&self, known: &[&str]) -> bool {
        self.codes().any(|name| known.contains(&name))
    }

    fn message_contains(&self, parts: &[&str]) -> bool {
        let message = self.message.to_lowercase();
        parts.iter().any(|part| message.contains(part))
    }

    /// True for a rate limit. Its text may mention tokens.
    fn is_rate_limit(&self) -> bool {
        self.status_or_code() == Some(429)
            || self.has_code(&RATE_CODES)
            || self.codes().any(|name| name.contains("rate"))
    }

    /// The HTTP status, or the status that a stream event gives as its code.
    fn status_or_code(&self) -> Option<u16> {
        self.status.or_else(|| self.code.as_deref()?.parse().ok())
    }
}

/// Classifies an error. `headers` are those of the HTTP response, also of a stream: if a 200
/// contains a rate limit, they give the delay. `now` is the time of receipt.
pub fn classify(fault: &ProviderError, headers: &HeaderMap, now: Timestamp) -> ModelFailure {
    if is_context_overflow(fault) {
        return ModelFailure::ContextOverflow;
    }
    if is_permanent(fault, retry_delay::names_wait(headers)) {
        return ModelFailure::Permanent;
    }
    let again = match headers.get("x-should-retry").and_then(|value| value.to_str().ok()) {
        Some("true") => true,
        Some("false") => false,
        _ => is_transient(fault),
    };
    if again {
        ModelFailure::Retryable {
            after: retry_delay::find_retry_delay(headers, &fault.message, now),
        }
    } else {
        ModelFailure::Permanent
    }
}

/// Codes of rate limits.
const RATE_CODES: [&str; 9] = [
    "rate_limit_exceeded",
    "rate_limit_error",
    "too_many_requests",
    "slow_down",
    "tokens",
    "requests",
    "RateLimitReached",
    "RateLimitError",
    "NoCapacity",
];
/// Codes of a service that has too much load.
const OVERLOAD_CODES: [&str; 5] = [
    "server_is_overloaded",
    "service_unavailable",
    "ServiceUnavailableError",
    "overloaded",
    "overloaded_error",
];

/// True if the service rejects calls because of its load or of a rate limit. It may reject many
/// clients at the same moment.
pub fn is_throttled(call: &CallMetadata) -> bool {
    let code = call.error.as_deref().unwrap_or_default();
    matches!(call.status, Some(429 | 503))
        || matches!(code, "429" | "503")
        || RATE_CODES.contains(&code)
        || OVERLOAD_CODES.contains(&code)
}

/// Codes of `MiniMax` for invalid keys, filtered content and invalid requests. They come with status
/// 200 and are no HTTP status.
const MINIMAX_REFUSALS: [&str; 6] = ["1004", "1026", "1027", "1042", "2013", "2049"];

/// Codes of requests whose output the service could not read. Another attempt may return valid
/// output.
const INVALID_OUTPUT_CODES: [&str; 2] = ["tool_use_failed", "json_validate_failed"];

/// Texts about a kind of content that the model cannot read. Some servers send them with status 500.
const UNSUPPORTED_CONTENT_TEXTS: [&str; 6] = [
    "image input is not supported",
    "audio input is not supported",
    "unsupported content part type",
    "missing data required for image input",
    "does not support image",
    "does not support multimodal",
];

/// True if a retry fails again, regardless of the status.
fn is_permanent(fault: &ProviderError, names_wait: bool) -> bool {
    is_quota_exhausted(fault, names_wait)
        || is_output_limit_refused(fault)
        || fault.status.is_none() && fault.has_code(&MINIMAX_REFUSALS)
        || fault.has_code(&[
            "content_filter",
            "content_policy_violation",
            "ResponsibleAIPolicyViolation",
            "cyber_policy",
            "bio_policy",
            "invalid_prompt",
            "DeploymentNotFound",
        ])
        || fault.message_contains(&["content management policy"])
        || fault.message_contains(&UNSUPPORTED_CONTENT_TEXTS)
}

/// True if a retry may succeed.
fn is_transient(fault: &ProviderError) -> bool {
    let is_rate = fault.has_code(&RATE_CODES);
    let is_service = fault.has_code(&OVERLOAD_CODES)
        || fault.has_code(&[
            "server_error",
            "internal_error",
            "internal_server_error",
            "InternalServerError",
            "timeout",
            "vector_store_timeout",
        ]);
    if fault.is_connection_lost || is_rate || is_service || fault.has_code(&INVALID_OUTPUT_CODES) {
        return true;
    }
    match fault.status_or_code() {
        Some(408 | 409 | 425 | 429 | 500..) => true,
        // A status of 400 to 499 is an error of the request, regardless of its text.
        Some(300..) if fault.status.is_some() => false,
        // The text decides only if no code does.
        _ => {
            fault
                .code
                .as_deref()
                .is_none_or(|code| matches!(code, "unknown" | "error" | "unknown_error"))
                && retry_delay::is_transient_text(&fault.message)
        }
    }
}

fn advice_for(status: u16, fault: &ProviderError) -> Option<&'static str> {
    match status {
        401 => Some(
            "Check AZURE_OPENAI_API_KEY; without a key, give the app's identity the role \
             `Cognitive Services OpenAI User` on the resource, and check AZURE_OPENAI_SCOPE.",
        ),
        403 => Some(
            "The credential is known but may not use this resource: give it the role `Cognitive Services OpenAI User`, \
             and check the resource's network rules.",
        ),
        404 => Some(
            "Check AZURE_OPENAI_BASE_URL, and name the deployment of this model in AZURE_OPENAI_DEPLOYMENT_NAME_MAP \
             (`model=deployment`).",
        ),
        300..=399 => {
            Some("Redirects are not followed: set AZURE_OPENAI_BASE_URL to the final address.")
        }
        400 if fault.message_contains(&["model not supported", "api version not supported"]) => {
            Some(
                "This deployment or API version has no Responses API: add `MODEL=chat` to TURNWHEEL_MODEL_API, or unset AZURE_OPENAI_API_VERSION.",
            )
        }
        _ => None,
    }
}

fn truncate_text(text: &str) -> String {
    if text.chars().nth(TEXT_MAX).is_none() {
        return text.to_owned();
    }
    let mut head: String = text.chars().take(TEXT_MAX).collect();
    head.push('…');
    head
}

#[cfg(test)]
mod tests;
