//! The only source of time: a wall clock for records, a monotonic clock for deadlines.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Milliseconds since the Unix epoch. JSON has a number; [`iso`] serialises it as ISO 8601.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(millis(span)))
    }

    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(millis(span)))
    }

    /// The day in UTC, such as `2026-11-21`.
    pub fn utc_day(self) -> String {
        self.to_string().chars().take(10).collect()
    }

    /// Time from `self` to `later`; zero if `later` is past.
    pub fn until(self, later: Self) -> Duration {
        Duration::from_millis(later.0.saturating_sub(self.0))
    }
}

/// Parses a whole number and its unit: `500ms`, `30s`, `2m`, `24h` or `7d`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    let seconds = match unit.trim() {
        "ms" => return Some(Duration::from_millis(number)),
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    number.checked_mul(seconds).map(Duration::from_secs)
}

/// Converts to whole milliseconds, at most `u64::MAX`.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = i64::try_from(self.0)
            .ok()
            .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
            .unwrap_or_default();
        write!(f, "{time:.3}")
    }
}

/// `#[serde(with = "iso")]`: `2026-11-21T20:19:09.669Z`.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signatures are serde's")]
pub mod iso {
    use super::{Deserialize, Deserializer, Serializer, Timestamp};

    /// Writes the time in this form.
    ///
    /// # Errors
    /// The serializer fails.
    pub fn serialize<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(time)
    }

    /// Reads a time in ISO 8601.
    ///
    /// # Errors
    /// The text is not an ISO 8601 time.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        super::parse_iso(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not an ISO 8601 time")))
    }
}

/// `#[serde(with = "iso_option")]`: as [`iso`]; absent if `None`.
#[expect(clippy::ref_option, reason = "the signatures are serde's")]
pub mod iso_option {
    use super::{Deserialize, Deserializer, Serializer, Timestamp};

    /// Writes the time in this form.
    ///
    /// # Errors
    /// The serializer fails.
    pub fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.collect_str(time),
            None => serializer.serialize_none(),
        }
    }

    /// Reads a time in ISO 8601.
    ///
    /// # Errors
    /// The text is not an ISO 8601 time.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        super::parse_iso(&text)
            .map(Some)
            .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not an ISO 8601 time")))
    }
}

/// Returns the days from `from` to `to`, both included; empty if `to` is before `from`, `None` if
/// one is not a date.
pub fn days_between(from: &str, to: &str) -> Option<Vec<String>> {
    let (from, to): (jiff::civil::Date, jiff::civil::Date) = (from.parse().ok()?, to.parse().ok()?);
    let days = from.series(jiff::Span::new().days(1)).take_while(|day| *day <= to);
    // Limits the result; the calendar has an end too.
    Some(days.take(1_000).map(|day| day.to_string()).collect())
}

/// Parses an ISO 8601 time after 1970; `None` for another text.
pub fn parse_iso(text: &str) -> Option<Timestamp> {
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok().map(Timestamp)
}

/// Source of the current time.
pub trait Clock: Send + Sync + fmt::Debug {
    fn now(&self) -> Timestamp;

    /// Time since a fixed moment. It never goes back, even if the wall clock does.
    fn monotonic(&self) -> Duration;
}

#[derive(Debug)]
pub struct SystemClock {
    started_at: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { started_at: Instant::now() }
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one source of time")]
    fn now(&self) -> Timestamp {
        let since =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp(millis(since))
    }

    fn monotonic(&self) -> Duration {
        self.started_at.elapsed()
    }
}

/// A clock that moves only by [`ManualClock::advance`], for tests and simulations.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicU64,
    start: u64,
}

impl ManualClock {
    pub fn new(start: Timestamp) -> Self {
        Self { now: AtomicU64::new(start.0), start: start.0 }
    }

    pub fn advance(&self, span: Duration) {
        self.now.fetch_add(millis(span), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.now.load(Ordering::SeqCst) - self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_round_trips_as_iso() {
        let time = parse_iso("2026-11-21T20:19:09.669Z").unwrap();
        assert_eq!(time, Timestamp(1_795_292_349_669));
        assert_eq!(time.to_string(), "2026-11-21T20:19:09.669Z");
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000Z");
    }
}
