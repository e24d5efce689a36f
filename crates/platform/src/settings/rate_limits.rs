//! `TURNWHEEL_RATE_LIMITS`: rates of requests and model calls per owner.

use std::time::Duration;

use super::reader::{Reader, split_list};

const EXPECTED: &str =
    "rates such as `requests=60/min,modelCalls=30/min`, each more than 0 per s, min or h";

/// Rate limits per owner. An absent rate does not apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Requests to the HTTP API.
    pub requests: Option<Rate>,
    pub model_calls: Option<Rate>,
}

/// A burst of `count`, refilled at `count` per `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// At least 1.
    pub count: u32,
    pub period: Duration,
}

pub(super) fn read(reader: &mut Reader<'_>) -> RateLimits {
    reader.parse("TURNWHEEL_RATE_LIMITS", EXPECTED, parse).unwrap_or_default()
}

fn parse(text: &str) -> Option<RateLimits> {
    let mut limits = RateLimits::default();
    for part in split_list(text) {
        let (name, rate) = part.split_once('=')?;
        let slot = match name {
            "requests" => &mut limits.requests,
            "modelCalls" => &mut limits.model_calls,
            _ => return None,
        };
        // A rate that is given twice is rejected as a typing error.
        if slot.replace(parse_rate(rate)?).is_some() {
            return None;
        }
    }
    Some(limits)
}

fn parse_rate(text: &str) -> Option<Rate> {
    let (count, period) = text.split_once('/')?;
    let count = count.parse().ok().filter(|count| *count > 0)?;
    let seconds = match period {
        "s" => 1,
        "min" => 60,
        "h" => 3_600,
        _ => return None,
    };
    Some(Rate { count, period: Duration::from_secs(seconds) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_count_and_period() {
        let minute = |count| Some(Rate { count, period: Duration::from_mins(1) });
        let both = parse("requests=60/min,modelCalls=30/min").unwrap();
        assert_eq!((both.requests, both.model_calls), (minute(60), minute(30)));
        let one = parse("modelCalls=5/h").unwrap();
        assert_eq!(one.requests, None);
        assert_eq!(one.model_calls.unwrap().period, Duration::from_hours(1));
        for wrong in [
            "60/min",
            "requests=0/min",
            "requests=1/day",
            "calls=1/s",
            "requests=1/s,requests=2/s",
            "requests=-1/s",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
