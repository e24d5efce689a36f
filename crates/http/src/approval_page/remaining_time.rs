//! The time until a request expires, in words.

use turnwheel_platform::clock::Timestamp;

const UNITS: [(&str, u64); 3] = [("day", 86_400), ("hour", 3_600), ("minute", 60)];

/// The two largest units, rounded down: `6 days 23 hours`. A page without scripts cannot know the
/// reader's time zone, and this needs none. `None`: the time is over.
pub(super) fn remaining_time(now: Timestamp, until: Timestamp) -> Option<String> {
    let seconds = until.0.checked_sub(now.0)? / 1_000;
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (unit, length) in UNITS {
        let count = rest / length;
        rest %= length;
        if count > 0 {
            parts.push(format!("{count} {unit}{}", if count == 1 { "" } else { "s" }));
        } else if !parts.is_empty() {
            break;
        }
    }
    parts.truncate(2);
    Some(if parts.is_empty() { "less than a minute".to_owned() } else { parts.join(" ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_has_the_two_largest_units() {
        let left =
            |seconds: u64| remaining_time(Timestamp(5_000), Timestamp(5_000 + seconds * 1_000));
        for (seconds, text) in [
            (0, "less than a minute"),
            (59, "less than a minute"),
            (60, "1 minute"),
            (3_661, "1 hour 1 minute"),
            (86_400 + 60, "1 day"),
            (7 * 86_400 - 1, "6 days 23 hours"),
            (30 * 86_400, "30 days"),
        ] {
            assert_eq!(left(seconds).as_deref(), Some(text), "{seconds}");
        }
        assert_eq!(remaining_time(Timestamp(2), Timestamp(1)), None);
    }
}
