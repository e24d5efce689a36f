//! Texts that Newtonsoft.Json reads as dates: ISO 8601 with seconds, and `/Date(0)/`.

use jiff::civil::{Date, DateTime, Time};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};

/// .NET counts in units of 100 ns.
const FRACTION_DIGITS_MAX: usize = 7;

/// A date in the host's time zone, which is UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JsonDate {
    time: DateTime,
    /// The end of the text in ISO 8601, after the time.
    suffix: &'static str,
}

impl JsonDate {
    /// `11/21/2026 08:00:00`: the form in the invariant culture, without a fraction.
    pub(super) fn to_text(self) -> String {
        self.time.strftime("%m/%d/%Y %H:%M:%S").to_string()
    }

    /// `2026-11-21T08:00:00.5+00:00`
    pub(super) fn to_iso(self) -> String {
        let seconds = self.time.strftime("%Y-%m-%dT%H:%M:%S");
        let fraction = format!("{:07}", self.time.subsec_nanosecond() / 100);
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        format!("{seconds}{point}{fraction}{}", self.suffix)
    }
}

/// Returns `None` for a text that stays a text.
pub(super) fn parse(text: &str) -> Option<JsonDate> {
    match text.as_bytes() {
        [b'/', b'D', ..] => parse_milliseconds(text),
        [first, ..] if first.is_ascii_digit() && (19..=40).contains(&text.len()) => parse_iso(text),
        _ => None,
    }
}

/// `/Date(1700000000000)/` and `/Date(1700000000000+0200)/`: milliseconds since 1970.
fn parse_milliseconds(text: &str) -> Option<JsonDate> {
    let inner = text.strip_prefix("/Date(")?.strip_suffix(")/")?;
    let sign = inner.char_indices().skip(1).find(|(_, letter)| matches!(letter, '+' | '-'));
    let (number, suffix) = match sign {
        Some((index, _)) => (inner.get(..index)?, "+00:00"),
        None => (inner, "Z"),
    };
    let moment = Timestamp::from_millisecond(number.parse().ok()?).ok()?;
    Some(JsonDate { time: TimeZone::UTC.to_datetime(moment), suffix })
}

/// `2026-11-21T08:00:00`, then at most seven digits of a fraction, then nothing, `Z` or an offset.
fn parse_iso(text: &str) -> Option<JsonDate> {
    let (date, rest) = text.split_at_checked(10)?;
    let (clock, rest) = rest.strip_prefix('T')?.split_at_checked(8)?;
    let date = parse_numbers(date, '-')?;
    let [hour, minute, second] = parse_numbers(clock, ':')?;
    let [year, month, day] = date;
    let date = Date::new(i16::try_from(year).ok()?, small(month)?, small(day)?).ok();
    let date = date.filter(|date| date.year() > 0)?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => {
            let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
            rest.split_at_checked(end)
                .filter(|(digits, _)| (1..=FRACTION_DIGITS_MAX).contains(&digits.len()))?
        }
        None => ("", rest),
    };
    let nanosecond: i32 = format!("{fraction:0<9}").parse().ok()?;
    let is_end_of_day = (hour, minute, second, nanosecond) == (24, 0, 0, 0);
    let hour = if is_end_of_day { 0 } else { hour };
    let time = Time::new(small(hour)?, small(minute)?, small(second)?, nanosecond).ok()?;
    let mut time = date.to_datetime(time);
    if is_end_of_day {
        time = time.checked_add(SignedDuration::from_hours(24)).ok()?;
    }
    let (offset, suffix) = parse_zone(zone)?;
    // .NET stops at the ends of its calendar.
    let (least, greatest) = (DateTime::constant(1, 1, 1, 0, 0, 0, 0), end_of_calendar());
    let ends_late = offset.is_negative();
    let time = time.checked_sub(offset).unwrap_or(if ends_late { greatest } else { least });
    Some(JsonDate { time: time.clamp(least, greatest), suffix })
}

fn end_of_calendar() -> DateTime {
    DateTime::constant(9999, 12, 31, 23, 59, 59, 999_999_900)
}

/// Returns the offset and the suffix of the date in UTC.
fn parse_zone(zone: &str) -> Option<(SignedDuration, &'static str)> {
    let sign = match zone.as_bytes() {
        [] => return Some((SignedDuration::ZERO, "")),
        [b'Z' | b'z'] => return Some((SignedDuration::ZERO, "Z")),
        [b'+', ..] => 1,
        [b'-', ..] => -1,
        _ => return None,
    };
    let digits: String = zone.chars().skip(1).collect();
    let digits = match digits.as_bytes() {
        [_, _, b':', _, _] => digits.replace(':', ""),
        [_, _, _, _] => digits,
        [_, _] => digits + "00",
        _ => return None,
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: i64 = digits.parse().ok()?;
    let minutes = number / 100 * 60 + number % 100;
    Some((SignedDuration::from_mins(sign * minutes), "+00:00"))
}

/// Reads three numbers of digits alone.
fn parse_numbers(text: &str, separator: char) -> Option<[u16; 3]> {
    let number =
        |part: &str| part.parse().ok().filter(|_| part.bytes().all(|byte| byte.is_ascii_digit()));
    let mut parts = text.split(separator).map(number);
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

fn small(number: u16) -> Option<i8> {
    i8::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_lose_their_offset() {
        for (text, expected) in [
            ("2026-11-21T10:00:00+02:00", Some("2026-11-21T08:00:00+00:00")),
            ("2026-11-21T08:00:00z", Some("2026-11-21T08:00:00Z")),
            ("2026-11-21T08:00:00", Some("2026-11-21T08:00:00")),
            ("2026-11-21T08:00:00.1234567+05:30", Some("2026-11-21T02:30:00.1234567+00:00")),
            ("2026-11-21T08:00:00+0200", Some("2026-11-21T06:00:00+00:00")),
            ("2026-11-21T24:00:00Z", Some("2026-11-22T00:00:00Z")),
            ("9999-12-31T23:59:59-05:00", Some("9999-12-31T23:59:59.9999999+00:00")),
            ("0001-01-01T00:00:00+01:00", Some("0001-01-01T00:00:00+00:00")),
            ("/Date(1700000000000+0200)/", Some("2023-11-14T22:13:20+00:00")),
            ("/Date(-1)/", Some("1969-12-31T23:59:59.999Z")),
            ("2026-11-21T08:00:00.12345678Z", None),
            ("2026-02-30T08:00:00Z", None),
            ("2026-11-21t08:00:00Z", None),
            ("2026-11-21 08:00:00", None),
            ("2026-11-21T08:00", None),
            ("00000-00000000-00T0:0:0", None),
            ("2026-11-21T08:00:00+é", None),
        ] {
            assert_eq!(parse(text).map(JsonDate::to_iso).as_deref(), expected, "{text}");
        }
        assert_eq!(parse("0001-01-01T00:00:00Z").unwrap().to_text(), "01/01/0001 00:00:00");
    }
}
