//! Retry delay from a provider's headers or error text.

use std::sync::LazyLock;
use std::time::Duration;

use http::{HeaderMap, HeaderName, header};
use regex::Regex;

use turnwheel_platform::clock::{Timestamp, millis};

/// Matches the text before the delay: `Please retry after 86400 seconds`, `try again in 44ms`, `try
/// again in 6m0s`.
static RETRY_PATTERN: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?i)\b(?:retry|again)\s*(?:in|after)\s*(?:about\s+)?").ok());

/// The sources' pattern with further network errors. A status must stand alone, so that `limit
/// 5000` does not match.
static TRANSIENT_PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let parts = [
        r"overloaded|rate.?limit|too many requests|high demand|\b(?:429|500|502|503|504)\b",
        r"service.?unavailable|server error|internal error|retry delay|terminated|timed? ?out",
        r"connection.?(?:error|refused|reset|closed|aborted|lost)|network.?error|other side closed",
        r"fetch failed|upstream.?connect|reset before headers|socket hang up|broken pipe",
        r"\b(?:econn\w+|etimedout|epipe|eai_again)\b",
    ];
    Regex::new(&format!("(?i){}", parts.join("|"))).ok()
});

/// Values of `x-ratelimit-reset` from here on are seconds since 1970; smaller ones are seconds from
/// now.
const EPOCH_SECONDS_MIN: f64 = 1_000_000_000.0;

/// Returns the longest of the three forms of `retry-after`; without one, the time until the limit
/// is reset; without that, the delay in the text. `now` is used if the response has no `Date`.
pub(super) fn find_retry_delay(
    headers: &HeaderMap,
    message: &str,
    now: Timestamp,
) -> Option<Duration> {
    let number = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok()?.trim().parse::<f64>().ok())
            .filter(|number| *number >= 0.0)
    };
    let ms = number("retry-after-ms").and_then(|ms| Duration::try_from_secs_f64(ms / 1000.0).ok());
    let seconds =
        number("retry-after").and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let there = parse_date_header(headers, &header::DATE).unwrap_or(now);
    let moment = parse_date_header(headers, &header::RETRY_AFTER).map(|moment| there.until(moment));
    let reset = || {
        let given = number("x-ratelimit-reset")?;
        let span = Duration::try_from_secs_f64(given).ok()?;
        Some(if given < EPOCH_SECONDS_MIN { span } else { there.until(Timestamp(millis(span))) })
    };
    ms.max(seconds).max(moment).or_else(reset).or_else(|| parse_delay_in_text(message))
}

/// True if the headers name a wait.
pub(super) fn names_wait(headers: &HeaderMap) -> bool {
    headers.contains_key(header::RETRY_AFTER) || headers.contains_key("retry-after-ms")
}

/// Parses an HTTP date: `Sun, 22 Nov 2026 06:28:00 GMT`.
fn parse_date_header(headers: &HeaderMap, name: &HeaderName) -> Option<Timestamp> {
    let text = headers.get(name)?.to_str().ok()?.trim();
    let moment = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    u64::try_from(moment.as_millisecond()).ok().map(Timestamp)
}

pub(super) fn parse_delay_in_text(message: &str) -> Option<Duration> {
    let found = RETRY_PATTERN.as_ref()?.find(message)?;
    let mut rest = message.get(found.end()..)?;
    let mut total = None;
    // A delay may have several parts: `6m0s`, `1 minute 5 seconds`.
    while rest.starts_with(|letter: char| letter.is_ascii_digit()) {
        let digits = rest
            .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .unwrap_or(rest.len());
        let (number, after) = rest.split_at_checked(digits)?;
        let after = after.trim_start();
        let unit = after.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(unit)?;
        let scale = match unit.to_ascii_lowercase().as_str() {
            "ms" | "millisecond" | "milliseconds" => 0.001,
            "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
            "h" | "hour" | "hours" => 3600.0,
            _ => break,
        };
        let number: f64 = number.trim_end_matches('.').parse().ok()?;
        let part = Duration::try_from_secs_f64(number * scale).ok()?;
        total = Some(total.unwrap_or(Duration::ZERO).checked_add(part)?);
        rest = after.trim_start();
    }
    total
}

pub(super) fn is_transient_text(message: &str) -> bool {
    TRANSIENT_PATTERN.as_ref().is_some_and(|passing| passing.is_match(message))
}
