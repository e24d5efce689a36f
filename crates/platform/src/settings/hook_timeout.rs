//! `TURNWHEEL_HOOK_TIMEOUT`: the time limit of one extension hook.

use std::time::Duration;

use super::reader::Reader;

const NAME: &str = "TURNWHEEL_HOOK_TIMEOUT";
const EXPECTED: &str = "a time from `100ms` to `30s`";
const MIN: Duration = Duration::from_millis(100);
const MAX: Duration = Duration::from_secs(30);

/// Returns `None` if the setting is absent or invalid.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<Duration> {
    reader.parse(NAME, EXPECTED, parse)
}

fn parse(text: &str) -> Option<Duration> {
    let limit = match text.strip_suffix("ms") {
        Some(millis) => Duration::from_millis(millis.trim().parse().ok()?),
        None => Duration::from_secs(text.strip_suffix('s')?.trim().parse().ok()?),
    };
    (MIN..=MAX).contains(&limit).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hook_timeout_is_bounded_and_has_a_unit() {
        assert_eq!(parse("5s"), Some(Duration::from_secs(5)));
        assert_eq!(parse("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse("30s"), Some(MAX));
        for wrong in ["5", "31s", "99ms", "0s", "-1s", "1m", "s", "ms", "99999999999999999999s"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
