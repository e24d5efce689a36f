//! Firing times of a schedule, as a pure function of its timing and the previous time.
//!
//! Local times follow a time zone. A local time in a gap fires at the first instant after the gap.
//! A local time that occurs twice fires the first time. Hours and minutes between firings are
//! elapsed time.

use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Span;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::zone::Zone;
use crate::clock::{Timestamp, millis, parse_iso};

/// The shortest time from one firing to the next.
pub const INTERVAL_MIN: Duration = Duration::from_mins(1);
const TEXT_BYTES_MAX: usize = 128;
/// Local times that may repeat after a clock change: two days of minutes.
const REPEATED_MAX: usize = 2 * 24 * 60;
const EVERY: &str = "write an ISO 8601 duration such as P1D or PT15M, or five cron fields such as `0 9 * * MON-FRI`";
const WHEN: &str = "write an ISO 8601 time with an offset (2027-01-05T09:00:00+01:00), a local one with a `timeZone` \
     (2027-01-05T09:00), or a time from now (PT10M)";

/// The timing as requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Timing {
    /// The first firing; no firing is before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// An ISO 8601 duration or five cron fields; absent: it fires once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// An IANA name; absent: UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// No firing is after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// An error in one member of a [`Timing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    pub member: &'static str,
    pub detail: String,
}

#[derive(Clone, Debug)]
pub struct Rule {
    zone: Zone,
    start: Start,
    every: Every,
    until: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct Start {
    moment: Timestamp,
    /// The local time, which may be in a gap.
    local: DateTime,
}

#[derive(Clone, Debug)]
enum Every {
    Once,
    Cron(Box<Cron>),
    /// Calendar months and days, at the same local time.
    Calendar {
        months: i64,
        days: i64,
    },
    Elapsed(Duration),
}

/// A duration with a calendar part and an elapsed part.
#[derive(Clone, Copy)]
struct Stretch {
    months: i64,
    days: i64,
    elapsed: Duration,
}

impl Rule {
    /// Parses a timing. Durations count from `created_at`.
    ///
    /// # Errors
    /// All errors, by member: return them to the client. The texts state what to write.
    pub fn read(timing: &Timing, made_at: Timestamp) -> Result<Self, Vec<Mistake>> {
        let mut mistakes = Vec::new();
        let mut note = |member, detail| mistakes.push(Mistake { member, detail });
        let zone = match timing.time_zone.as_deref().map(Zone::named) {
            None => Zone::utc(),
            Some(Ok(zone)) => zone,
            Some(Err(detail)) => {
                note("timeZone", detail);
                Zone::utc()
            }
        };
        let place = Place { zone: &zone, is_named: timing.time_zone.is_some(), made_at };
        let mut moment =
            |member, text: &Option<String>| match text.as_deref().map(|text| place.moment(text)) {
                None => None,
                Some(Ok(start)) => Some(start),
                Some(Err(detail)) => {
                    note(member, detail);
                    None
                }
            };
        let given = moment("at", &timing.at);
        let until = moment("until", &timing.until).map(|until| until.moment);
        let every = match timing.every.as_deref().map(every) {
            None if timing.at.is_none() => {
                note("at", "`at` or `every` is missing: give one of them or both".to_owned());
                Every::Once
            }
            None => Every::Once,
            Some(Ok(every)) => every,
            Some(Err(detail)) => {
                note("every", detail);
                Every::Once
            }
        };
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let start = given.unwrap_or_else(|| Start { moment: made_at, local: zone.local(made_at) });
        Ok(Self { zone, start, every, until })
    }

    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    pub fn is_recurring(&self) -> bool {
        !matches!(self.every, Every::Once)
    }

    /// The first firing after `moment`. `None`: never again.
    pub fn after(&self, moment: Timestamp) -> Option<Timestamp> {
        let next = match &self.every {
            Every::Once => Some(self.start.moment).filter(|at| *at > moment),
            Every::Cron(cron) => self.of_cron(cron, moment),
            Every::Calendar { months, days } => self.of_calendar(*months, *days, moment),
            Every::Elapsed(span) => self.of_elapsed(*span, moment),
        };
        next.filter(|next| self.until.is_none_or(|until| *next <= until))
    }

    /// Next match of the pattern as a local time without gaps, then resolved in the zone.
    fn of_cron(&self, cron: &Cron, moment: Timestamp) -> Option<Timestamp> {
        let before_start = self.start.moment.minus(Duration::from_millis(1));
        let moment = moment.max(before_start);
        let mut local = self.zone.local(moment);
        for _ in 0..REPEATED_MAX {
            let from = local.to_zoned(TimeZone::UTC).ok()?;
            local = cron.find_next_occurrence(&from, false).ok()?.datetime();
            let next = self.zone.first(local)?;
            // After the clock is set back, local times repeat that have already fired.
            if next > moment {
                return Some(next);
            }
        }
        None
    }

    /// The `n`-th firing; the start is number 0. Counting from the start makes the 31st come back
    /// after February.
    fn nth(&self, months: i64, days: i64, n: i64) -> Option<Timestamp> {
        if n == 0 {
            return Some(self.start.moment);
        }
        let span = Span::new().try_months(months.checked_mul(n)?).ok()?;
        let local = self.start.local.checked_add(span).ok()?;
        let span = Span::new().try_days(days.checked_mul(n)?).ok()?;
        self.zone.first(local.checked_add(span).ok()?)
    }

    fn of_calendar(&self, months: i64, days: i64, moment: Timestamp) -> Option<Timestamp> {
        // An unrepresentable time is after every moment.
        let is_after = |n| self.nth(months, days, n).is_none_or(|time| time > moment);
        let mut high = 1;
        while !is_after(high) {
            high *= 2;
        }
        let mut low = -1;
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if is_after(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        self.nth(months, days, high)
    }

    fn of_elapsed(&self, span: Duration, moment: Timestamp) -> Option<Timestamp> {
        let start = self.start.moment;
        if moment < start {
            return Some(start);
        }
        let span = millis(span);
        let n = (moment.0 - start.0) / span + 1;
        n.checked_mul(span).and_then(|since| start.0.checked_add(since)).map(Timestamp)
    }
}

/// Context for parsing the members of a timing.
struct Place<'a> {
    zone: &'a Zone,
    is_named: bool,
    made_at: Timestamp,
}

impl Place<'_> {
    fn moment(&self, text: &str) -> Result<Start, String> {
        let refuse = |why: &str| format!("`{}` {why}: {WHEN}", cut(text));
        let at = |moment: Timestamp| Start { moment, local: self.zone.local(moment) };
        if text.starts_with(['P', 'p']) {
            let stretch = stretch(text).ok_or_else(|| refuse("is not a duration"))?;
            return self.later(stretch).map(at).ok_or_else(|| refuse("is after the year 9998"));
        }
        if let Some(moment) = parse_iso(text) {
            return Ok(at(moment));
        }
        let is_local = text.len() <= TEXT_BYTES_MAX && !says_where(text);
        let local = is_local.then(|| text.parse::<DateTime>().ok()).flatten();
        let Some(local) = local else { return Err(refuse("is not a time")) };
        if !self.is_named {
            return Err(refuse("has neither an offset nor a `timeZone`"));
        }
        let moment = self.zone.first(local).ok_or_else(|| refuse("is not between 1970 and 9999"))?;
        Ok(Start { moment, local })
    }

    /// Adds a duration to the creation time.
    fn later(&self, stretch: Stretch) -> Option<Timestamp> {
        let Stretch { months, days, elapsed } = stretch;
        let moment = if months == 0 && days == 0 {
            self.made_at
        } else {
            let local = self.zone.local(self.made_at);
            let local = local.checked_add(Span::new().try_months(months).ok()?).ok()?;
            self.zone.first(local.checked_add(Span::new().try_days(days).ok()?).ok()?)?
        };
        let moment = Timestamp(moment.0.checked_add(millis(elapsed))?);
        // Later times are not representable.
        (moment.0 <= LATEST).then_some(moment)
    }
}

/// The end of the year 9998, in milliseconds.
const LATEST: u64 = 253_370_764_800_000;

fn every(text: &str) -> Result<Every, String> {
    let refuse = |why: &str| format!("`{}` {why}: {EVERY}", cut(text));
    if text.len() > TEXT_BYTES_MAX {
        return Err(refuse("is too long"));
    }
    if text.starts_with(['P', 'p']) {
        let stretch = stretch(text).ok_or_else(|| refuse("is not a duration"))?;
        let Stretch { months, days, elapsed } = stretch;
        return match (months == 0 && days == 0, elapsed.is_zero()) {
            (true, _) if elapsed < INTERVAL_MIN => Err(refuse("is shorter than a minute")),
            (true, _) => Ok(Every::Elapsed(elapsed)),
            (false, true) => Ok(Every::Calendar { months, days }),
            (false, false) => {
                Err(refuse("mixes calendar units with hours or minutes"))
            }
        };
    }
    if text.split_whitespace().count() != 5 {
        return Err(refuse("is neither a duration nor five cron fields"));
    }
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    let cron = parser
        .parse(text)
        .map_err(|error| refuse(&format!("is not a cron expression ({error})")))?;
    Ok(Every::Cron(Box::new(cron)))
}

/// Parses an ISO 8601 duration. `None`: invalid, negative or empty.
fn stretch(text: &str) -> Option<Stretch> {
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let span: Span = text.parse().ok()?;
    if !span.is_positive() {
        return None;
    }
    let months = i64::from(span.get_years()) * 12 + i64::from(span.get_months());
    let days = i64::from(span.get_weeks()) * 7 + i64::from(span.get_days());
    Some(Stretch { months, days, elapsed: elapsed(&span)? })
}

/// The hours, minutes, seconds and milliseconds of a span.
fn elapsed(span: &Span) -> Option<Duration> {
    let minutes = i64::from(span.get_hours()).checked_mul(60)?.checked_add(span.get_minutes())?;
    let seconds = minutes.checked_mul(60)?.checked_add(span.get_seconds())?;
    let millis = seconds.checked_mul(1000)?.checked_add(span.get_milliseconds())?;
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// Truncates client text for an error message.
fn cut(text: &str) -> String {
    text.chars().take(TEXT_BYTES_MAX).collect()
}

/// True if the text names a zone or an offset, which the parser of local times would ignore.
fn says_where(text: &str) -> bool {
    let time = text.split_once(['T', 't', ' ']).map_or("", |(_, time)| time);
    text.contains(['[', 'Z', 'z']) || time.contains(['+', '-'])
}
