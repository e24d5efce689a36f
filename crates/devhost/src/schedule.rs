//! Timer schedules: NCRONTAB with six fields, in UTC as in Azure.

use croner::Cron;
use croner::parser::{CronParser, Year};

use turnwheel_platform::clock::Timestamp;

#[derive(Clone, Debug)]
pub struct TimerSchedule {
    text: String,
    cron: Cron,
}

impl TimerSchedule {
    /// Parses six fields, seconds first; five without them.
    ///
    /// # Errors
    /// Text that says what is wrong with the schedule.
    pub fn read(text: &str) -> Result<Self, String> {
        let refuse = |reason: String| {
            format!(
                "`schedule` is `{text}`: {reason}; write six fields, seconds first: `0 */5 * * * *`"
            )
        };
        // Syntax that croner accepts beyond NCRONTAB would start here and fail in Azure.
        let is_plain = |field: &str| {
            !field.starts_with('/')
                && field.chars().all(|c| {
                    c.is_ascii_digit() || matches!(c, '*' | '/' | ',' | '-') || is_name(field)
                })
        };
        if !matches!(text.split_whitespace().count(), 5 | 6) {
            return Err(refuse("it does not have six fields".into()));
        }
        if let Some(field) = text.split_whitespace().find(|field| !is_plain(field)) {
            return Err(refuse(format!("Azure does not support `{field}`")));
        }
        let cron = CronParser::builder()
            .year(Year::Disallowed)
            // NCRONTAB requires both the day of the month and the day of the week.
            .dom_and_dow(true)
            // `0/10`: from 0, every 10.
            .sloppy_ranges(true)
            .build()
            .parse(text)
            .map_err(|error| refuse(error.to_string()))?;
        Ok(Self { text: text.to_owned(), cron })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the first time after `now`; `None`: never again.
    pub fn next_after(&self, now: Timestamp) -> Option<Timestamp> {
        let now = jiff::Timestamp::from_millisecond(i64::try_from(now.0).ok()?).ok()?;
        let next = self.cron.find_next_occurrence(&now.to_zoned(jiff::tz::TimeZone::UTC), false);
        u64::try_from(next.ok()?.timestamp().as_millisecond()).ok().map(Timestamp)
    }
}

/// True for a field of names of days or months: `MON-FRI`.
fn is_name(field: &str) -> bool {
    const NAMES: [&str; 19] = [
        "SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", "JAN", "FEB", "MAR", "APR", "MAY", "JUN",
        "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
    ];
    field.split([',', '-', '/']).all(|part| {
        NAMES.iter().any(|name| name.eq_ignore_ascii_case(part))
            || part.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_platform::clock::parse_iso;

    fn next(schedule: &str, now: &str) -> String {
        let now = parse_iso(now).unwrap();
        TimerSchedule::read(schedule).unwrap().next_after(now).unwrap().to_string()
    }

    #[test]
    fn six_field_schedule_begins_with_seconds() {
        let now = "2026-11-21T20:15:00.001Z";
        assert_eq!(next("0 * * * * *", now), "2026-11-21T20:16:00.000Z");
        assert_eq!(next("*/10 * * * * *", now), "2026-11-21T20:15:10.000Z");
        assert_eq!(next("* * * * * *", now), "2026-11-21T20:15:01.000Z");
        assert_eq!(next("5/20 * * * * *", now), "2026-11-21T20:15:05.000Z");
        assert_eq!(next("0 30 9 * * Mon-Fri", now), "2026-11-23T09:30:00.000Z");
        // A Friday that is the 13th, not a Friday or a 13th.
        assert_eq!(next("0 0 0 13 * 5", now), "2027-08-13T00:00:00.000Z");
        assert_eq!(next("*/5 * * * *", now), "2026-11-21T20:20:00.000Z");
    }

    #[test]
    fn next_run_is_strictly_later() {
        assert_eq!(next("0 * * * * *", "2026-11-21T20:15:00.000Z"), "2026-11-21T20:16:00.000Z");
        assert_eq!(next("0 * * * * *", "2026-11-21T20:14:59.999Z"), "2026-11-21T20:15:00.000Z");
    }

    #[test]
    fn schedule_syntax_unknown_to_azure_is_rejected() {
        for bad in [
            "",
            "* * * *",
            "0 0 0 L * *",
            "0 0 0 ? * *",
            "@daily",
            "0 0 0 * * 5#2",
            "/5 * * * * *",
            "60 * * * * *",
            "0 0 0 1 1 * 2030",
            "0 0 0 * * +5",
            "00:05:00",
        ] {
            let reason = TimerSchedule::read(bad).unwrap_err();
            assert!(reason.contains("six fields, seconds first"), "{bad}: {reason}");
        }
    }
}
