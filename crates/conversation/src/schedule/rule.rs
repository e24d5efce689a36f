//! Firing times of a schedule, as a pure function of its timing and the previous time.
//!
//! Local times follow a time zone. A local time in a gap fires at the first instant after the gap.
//! A local time that occurs twice fires the first time, unless minute or hour of a cron expression
//! is a wildcard or a step: its interval goes on. Hours and minutes between firings are elapsed time.

use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Span;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::zone::Zone;
use turnwheel_platform::clock::{Timestamp, millis, parse_iso};

/// The shortest time from one firing to the next.
pub(crate) const INTERVAL_MIN: Duration = Duration::from_mins(1);
const TEXT_BYTES_MAX: usize = 128;
/// Local times that may repeat after a clock change: two days of minutes.
const REPEATED_TIMES_MAX: usize = 2 * 24 * 60;
const EVERY_HELP: &str = "write an ISO 8601 duration such as P1D or PT15M, or five cron fields such as `0 9 * * MON-FRI`";
const TIME_HELP: &str = "write an ISO 8601 time with an offset (2027-01-05T09:00:00+01:00), a local one with a `timeZone` \
     (2027-01-05T09:00), or a time from now (PT10M)";

/// The timing as requested.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Timing {
    /// The first firing; no firing is before it.
    pub at: Option<String>,
    /// An ISO 8601 duration or five cron fields; absent: it fires once.
    pub every: Option<String>,
    /// An IANA name; absent: UTC.
    pub time_zone: Option<String>,
    /// No firing is after it.
    pub until: Option<String>,
}

/// An error in one member of a [`Timing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimingError {
    pub member: &'static str,
    pub detail: String,
}

#[derive(Clone, Debug)]
pub struct ScheduleRule {
    zone: Zone,
    start: StartTime,
    every: Recurrence,
    until: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct StartTime {
    moment: Timestamp,
    /// The local time, which may be in a gap.
    local: DateTime,
}

#[derive(Clone, Debug)]
enum Recurrence {
    Once,
    /// Each matching local time, once.
    Cron(Box<Cron>),
    /// Each matching local time, as often as the clock shows it: minute or hour is a wildcard or a
    /// step.
    IntervalCron(Box<Cron>),
    /// Calendar months and days, at the same local time.
    Calendar {
        months: i64,
        days: i64,
    },
    Elapsed(Duration),
}

/// A duration with a calendar part and an elapsed part.
#[derive(Clone, Copy)]
struct CalendarDuration {
    months: i64,
    days: i64,
    elapsed: Duration,
}

impl ScheduleRule {
    /// Parses a timing. Durations count from `created_at`.
    ///
    /// # Errors
    /// All errors, by member: return them to the client. The texts state what to write.
    pub fn parse(timing: &Timing, created_at: Timestamp) -> Result<Self, Vec<TimingError>> {
        let mut errors = Vec::new();
        let mut add_error = |member, detail| errors.push(TimingError { member, detail });
        let zone = match timing.time_zone.as_deref().map(Zone::from_name) {
            None => Zone::utc(),
            Some(Ok(zone)) => zone,
            Some(Err(detail)) => {
                add_error("timeZone", detail);
                Zone::utc()
            }
        };
        let context =
            TimingContext { zone: &zone, has_zone: timing.time_zone.is_some(), created_at };
        let mut moment = |member, text: &Option<String>| match text
            .as_deref()
            .map(|text| context.parse_start(text))
        {
            None => None,
            Some(Ok(start)) => Some(start),
            Some(Err(detail)) => {
                add_error(member, detail);
                None
            }
        };
        let given = moment("at", &timing.at);
        let until = moment("until", &timing.until).map(|until| until.moment);
        let every = match timing.every.as_deref().map(parse_recurrence) {
            None if timing.at.is_none() => {
                add_error("at", "`at` or `every` is missing: give one of them or both".to_owned());
                Recurrence::Once
            }
            None => Recurrence::Once,
            Some(Ok(every)) => every,
            Some(Err(detail)) => {
                add_error("every", detail);
                Recurrence::Once
            }
        };
        if !errors.is_empty() {
            return Err(errors);
        }
        let start = given
            .unwrap_or_else(|| StartTime { moment: created_at, local: zone.to_local(created_at) });
        Ok(Self { zone, start, every, until })
    }

    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    pub fn is_recurring(&self) -> bool {
        !matches!(self.every, Recurrence::Once)
    }

    /// The first firing after `moment`. `None`: never again.
    pub fn next_after(&self, moment: Timestamp) -> Option<Timestamp> {
        let next = match &self.every {
            Recurrence::Once => Some(self.start.moment).filter(|at| *at > moment),
            Recurrence::Cron(cron) => self.next_cron(cron, moment),
            Recurrence::IntervalCron(cron) => self.next_interval_cron(cron, moment),
            Recurrence::Calendar { months, days } => self.next_calendar(*months, *days, moment),
            Recurrence::Elapsed(span) => self.next_elapsed(*span, moment),
        };
        next.filter(|next| self.until.is_none_or(|until| *next <= until))
    }

    /// Next match of the pattern as a local time without gaps, then resolved in the zone.
    fn next_cron(&self, cron: &Cron, moment: Timestamp) -> Option<Timestamp> {
        let moment = self.not_before_start(moment);
        let mut local = self.zone.to_local(moment);
        for _ in 0..REPEATED_TIMES_MAX {
            local = next_match(cron, local, false)?;
            let next = self.zone.resolve_local(local)?;
            // After the clock is set back, local times repeat that have already fired.
            if next > moment {
                return Some(next);
            }
        }
        None
    }

    /// Next match on the clock of the zone. A match in a gap fires at the end of the gap.
    fn next_interval_cron(&self, cron: &Cron, moment: Timestamp) -> Option<Timestamp> {
        let find = |local, is_inclusive| next_match(cron, local, is_inclusive);
        self.zone.next_on_clock(self.not_before_start(moment), find)
    }

    /// The moment, or the last one at which the first firing is still ahead.
    fn not_before_start(&self, moment: Timestamp) -> Timestamp {
        moment.max(self.start.moment.minus(Duration::from_millis(1)))
    }

    /// The `n`-th firing; the start is number 0. Counting from the start makes the 31st come back
    /// after February.
    fn nth_calendar_firing(&self, months: i64, days: i64, n: i64) -> Option<Timestamp> {
        if n == 0 {
            return Some(self.start.moment);
        }
        let span = Span::new().try_months(months.checked_mul(n)?).ok()?;
        let local = self.start.local.checked_add(span).ok()?;
        let span = Span::new().try_days(days.checked_mul(n)?).ok()?;
        self.zone.resolve_local(local.checked_add(span).ok()?)
    }

    fn next_calendar(&self, months: i64, days: i64, moment: Timestamp) -> Option<Timestamp> {
        // An unrepresentable time is after every moment.
        let is_after =
            |n| self.nth_calendar_firing(months, days, n).is_none_or(|time| time > moment);
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
        self.nth_calendar_firing(months, days, high)
    }

    fn next_elapsed(&self, span: Duration, moment: Timestamp) -> Option<Timestamp> {
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
struct TimingContext<'a> {
    zone: &'a Zone,
    has_zone: bool,
    created_at: Timestamp,
}

impl TimingContext<'_> {
    fn parse_start(&self, text: &str) -> Result<StartTime, String> {
        let reject = |why: &str| format!("`{}` {why}: {TIME_HELP}", truncate(text));
        let at = |moment: Timestamp| StartTime { moment, local: self.zone.to_local(moment) };
        if text.starts_with(['P', 'p']) {
            let duration = parse_duration(text).ok_or_else(|| reject("is not a duration"))?;
            return self
                .add_to_creation(duration)
                .map(at)
                .ok_or_else(|| reject("is after the year 9998"));
        }
        if let Some(moment) = parse_iso(text) {
            return Ok(at(moment));
        }
        let is_local = text.len() <= TEXT_BYTES_MAX && !has_zone_or_offset(text);
        let local = is_local.then(|| text.parse::<DateTime>().ok()).flatten();
        let Some(local) = local else { return Err(reject("is not a time")) };
        if !self.has_zone {
            return Err(reject("has neither an offset nor a `timeZone`"));
        }
        let moment =
            self.zone.resolve_local(local).ok_or_else(|| reject("is not between 1970 and 9999"))?;
        Ok(StartTime { moment, local })
    }

    /// Adds a duration to the creation time.
    fn add_to_creation(&self, duration: CalendarDuration) -> Option<Timestamp> {
        let CalendarDuration { months, days, elapsed } = duration;
        let moment = if months == 0 && days == 0 {
            self.created_at
        } else {
            let local = self.zone.to_local(self.created_at);
            let local = local.checked_add(Span::new().try_months(months).ok()?).ok()?;
            self.zone.resolve_local(local.checked_add(Span::new().try_days(days).ok()?).ok()?)?
        };
        let moment = Timestamp(moment.0.checked_add(millis(elapsed))?);
        // Later times are not representable.
        (moment.0 <= LATEST_MILLIS).then_some(moment)
    }
}

/// The end of the year 9998, in milliseconds.
const LATEST_MILLIS: u64 = 253_370_764_800_000;

fn parse_recurrence(text: &str) -> Result<Recurrence, String> {
    let reject = |why: &str| format!("`{}` {why}: {EVERY_HELP}", truncate(text));
    if text.len() > TEXT_BYTES_MAX {
        return Err(reject("is too long"));
    }
    if text.starts_with(['P', 'p']) {
        let duration = parse_duration(text).ok_or_else(|| reject("is not a duration"))?;
        let CalendarDuration { months, days, elapsed } = duration;
        return match (months == 0 && days == 0, elapsed.is_zero()) {
            (true, _) if elapsed < INTERVAL_MIN => Err(reject("is shorter than a minute")),
            (true, _) => Ok(Recurrence::Elapsed(elapsed)),
            (false, true) => Ok(Recurrence::Calendar { months, days }),
            (false, false) => Err(reject("mixes calendar units with hours or minutes")),
        };
    }
    if text.split_whitespace().count() != 5 {
        return Err(reject("is neither a duration nor five cron fields"));
    }
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    let cron = parser
        .parse(text)
        .map_err(|error| reject(&format!("is not a cron expression ({error})")))?;
    let cron = Box::new(cron);
    let has_interval = text.split_whitespace().take(2).any(|field| field.contains(['*', '/']));
    Ok(if has_interval { Recurrence::IntervalCron(cron) } else { Recurrence::Cron(cron) })
}

/// The first matching local time after the given one, or at it.
fn next_match(cron: &Cron, local: DateTime, is_inclusive: bool) -> Option<DateTime> {
    let from = local.to_zoned(TimeZone::UTC).ok()?;
    Some(cron.find_next_occurrence(&from, is_inclusive).ok()?.datetime())
}

/// Parses an ISO 8601 duration. `None`: invalid, negative or empty.
fn parse_duration(text: &str) -> Option<CalendarDuration> {
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let span: Span = text.parse().ok()?;
    if !span.is_positive() {
        return None;
    }
    let months = i64::from(span.get_years()) * 12 + i64::from(span.get_months());
    let days = i64::from(span.get_weeks()) * 7 + i64::from(span.get_days());
    Some(CalendarDuration { months, days, elapsed: elapsed_part(&span)? })
}

/// The hours, minutes, seconds and milliseconds of a span.
fn elapsed_part(span: &Span) -> Option<Duration> {
    let minutes = i64::from(span.get_hours()).checked_mul(60)?.checked_add(span.get_minutes())?;
    let seconds = minutes.checked_mul(60)?.checked_add(span.get_seconds())?;
    let millis = seconds.checked_mul(1000)?.checked_add(span.get_milliseconds())?;
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// Truncates client text for an error message.
fn truncate(text: &str) -> String {
    text.chars().take(TEXT_BYTES_MAX).collect()
}

/// True if the text names a zone or an offset, which the parser of local times would ignore.
fn has_zone_or_offset(text: &str) -> bool {
    let time = text.split_once(['T', 't', ' ']).map_or("", |(_, time)| time);
    text.contains(['[', 'Z', 'z']) || time.contains(['+', '-'])
}
