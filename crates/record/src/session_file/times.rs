//! Times as other programs write them.

use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::{Timestamp, parse_iso};

/// 1973: a number of milliseconds is never one of seconds.
const EARLIEST_MS: f64 = 1e11;
/// The year 2200.
const LATEST_MS: f64 = 7_258_118_400_000.0;
/// Milliseconds in a second, a millisecond, a microsecond and a nanosecond.
const UNITS: [f64; 4] = [1e3, 1.0, 1e-3, 1e-6];

/// Reads a time: ISO 8601, in UTC if it has no zone, or Unix time in seconds, milliseconds,
/// microseconds or nanoseconds. `None`: the value is no time between 1973 and 2200.
pub(super) fn read_time(value: &RawJson) -> Option<Timestamp> {
    let text = value.text();
    if !text.starts_with('"') {
        return from_number(text);
    }
    let text: String = value.read().ok()?;
    let text = text.trim();
    let iso = || ["", "Z", "T00:00:00Z"].iter().find_map(|end| parse_iso(&format!("{text}{end}")));
    from_number(text).or_else(|| {
        #[expect(clippy::cast_precision_loss, reason = "only the range is compared")]
        iso().filter(|time| is_in_range(time.0 as f64))
    })
}

fn is_in_range(milliseconds: f64) -> bool {
    (EARLIEST_MS..=LATEST_MS).contains(&milliseconds)
}

fn from_number(text: &str) -> Option<Timestamp> {
    let number: f64 = text.parse().ok()?;
    let milliseconds = UNITS.iter().map(|unit| number * unit).find(|time| is_in_range(*time))?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked"
    )]
    Some(Timestamp(milliseconds.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_other_programs_are_read() {
        let time = 1_767_603_601_000;
        for (written, expected) in [
            ("1767603601", time),
            ("1767603601.25", time + 250),
            ("1767603601000", time),
            ("1767603601000000", time),
            ("1767603601000000000", time),
            ("\"1767603601000\"", time),
            ("\"2026-01-05T09:00:01.000Z\"", time),
            ("\" 2026-01-05 09:00:01 \"", time),
            ("\"2026-01-05T09:00:01\"", time),
            ("\"2026-01-05T10:00:01+01:00\"", time),
            ("\"2026-01-05t09:00:01z\"", time),
            ("\"2026-01-05T09:00:01.123456789Z\"", time + 123),
            ("\"2026-01-05\"", time - 32_401_000),
        ] {
            let raw = RawJson::from_text(written).unwrap();
            assert_eq!(read_time(&raw), Some(Timestamp(expected)), "{written}");
        }
        for none in [
            "0",
            "-1",
            "5",
            "null",
            "true",
            "1e300",
            "9223372036854775808",
            "\"\"",
            "\"x\"",
            "[]",
            "\"1970-01-01T00:00:00Z\"",
            "\"+50000-01-01T00:00:00Z\"",
            "\"99999-01-01T00:00:00Z\"",
            "\"NaN\"",
            "\"inf\"",
        ] {
            assert_eq!(read_time(&RawJson::from_text(none).unwrap()), None, "{none}");
        }
    }
}
