//! Firing times around clock changes, and the state of a schedule after a firing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::ToSpan as _;
use jiff::civil::DateTime;
use jiff::tz::TimeZoneDatabase;

use super::rule::{ScheduleRule, Timing};
use super::zone::Zone;
use super::{FiringOutcome, RETRY_INTERVAL, RETRY_WINDOW, Schedule, ScheduleMode};
use crate::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::{Timestamp, parse_iso};
use turnwheel_platform::ids::{ConversationId, InputId, PromptId, ScheduleId, UserId};

fn time(text: &str) -> Timestamp {
    parse_iso(text).unwrap()
}

/// `at`, `every`, `timeZone`; empty: absent.
fn timing(at: &str, every: &str, zone: &str) -> Timing {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Timing { at: given(at), every: given(every), time_zone: given(zone), until: None }
}

/// The first firings after that time, in local time.
fn collect_firings(timing: &Timing, now: &str, count: usize) -> Vec<String> {
    let rule = ScheduleRule::parse(timing, time(now)).unwrap();
    let mut moment = time(now);
    let mut found = Vec::new();
    for _ in 0..count {
        let Some(next) = rule.next_after(moment) else { break };
        found.push(rule.zone().format(next).split('[').next().unwrap().to_owned());
        moment = next;
    }
    found
}

#[test]
fn schedule_keeps_local_time_across_offset_changes() {
    let nine = timing("", "0 9 * * *", "Europe/Berlin");
    assert_eq!(
        collect_firings(&nine, "2026-03-28T00:00:00Z", 2),
        ["2026-03-28T09:00:00+01:00", "2026-03-29T09:00:00+02:00"]
    );
    let daily = timing("2026-10-24T09:00", "P1D", "Europe/Berlin");
    assert_eq!(
        collect_firings(&daily, "2026-10-01T00:00:00Z", 3),
        ["2026-10-24T09:00:00+02:00", "2026-10-25T09:00:00+01:00", "2026-10-26T09:00:00+01:00"]
    );
}

#[test]
fn gap_time_fires_at_first_instant_after_gap() {
    for every in ["30 2 * * *", "P1D"] {
        let at = if every == "P1D" { "2026-03-07T02:30" } else { "" };
        let requested = timing(at, every, "America/New_York");
        assert_eq!(
            collect_firings(&requested, "2026-03-07T05:00:00Z", 3),
            ["2026-03-07T02:30:00-05:00", "2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"],
            "{every}"
        );
    }
    // A change of half an hour.
    assert_eq!(
        collect_firings(
            &timing("", "15 2 * * *", "Australia/Lord_Howe"),
            "2026-10-03T00:00:00Z",
            2
        ),
        ["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"]
    );
    // At midnight: the day starts at one.
    assert_eq!(
        collect_firings(&timing("", "0 0 * * *", "America/Sao_Paulo"), "2018-11-03T12:00:00Z", 2),
        ["2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"]
    );
    // A whole day: December 30th does not exist.
    assert_eq!(
        collect_firings(&timing("", "0 9 * * *", "Pacific/Apia"), "2011-12-29T18:00:00Z", 4),
        [
            "2011-12-29T09:00:00-10:00",
            "2011-12-31T00:00:00+14:00",
            "2011-12-31T09:00:00+14:00",
            "2012-01-01T09:00:00+14:00"
        ]
    );
    // A single time in a gap.
    assert_eq!(
        collect_firings(
            &timing("2026-03-29T02:30", "", "Europe/Berlin"),
            "2026-01-01T00:00:00Z",
            2
        ),
        ["2026-03-29T03:00:00+02:00"]
    );
}

#[test]
fn repeated_local_time_fires_only_once() {
    for (every, at) in [("30 2 * * *", ""), ("P1D", "2026-10-24T02:30")] {
        assert_eq!(
            collect_firings(&timing(at, every, "Europe/Berlin"), "2026-10-23T23:00:00Z", 3),
            ["2026-10-24T02:30:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
        );
    }
    // A query within the repeated hour.
    assert_eq!(
        collect_firings(&timing("", "30 2 * * *", "Europe/Berlin"), "2026-10-25T01:10:00Z", 1),
        ["2026-10-26T02:30:00+01:00"]
    );
    assert_eq!(
        collect_firings(
            &timing("2026-10-25T02:30", "", "Europe/Berlin"),
            "2026-01-01T00:00:00Z",
            2
        ),
        ["2026-10-25T02:30:00+02:00"]
    );
}

#[test]
fn interval_cron_keeps_interval_when_clock_goes_back() {
    for (every, zone, now, expected) in [
        (
            "*/15 * * * *",
            "Europe/Berlin",
            "2027-10-31T00:31:00Z",
            ["02:45:00+02:00", "02:00:00+01:00", "02:15:00+01:00", "02:30:00+01:00"],
        ),
        (
            "0 * * * *",
            "America/New_York",
            "2027-11-07T04:30:00Z",
            ["01:00:00-04:00", "01:00:00-05:00", "02:00:00-05:00", "03:00:00-05:00"],
        ),
        // A change of half an hour.
        (
            "*/10 * * * *",
            "Australia/Lord_Howe",
            "2027-04-03T14:45:00Z",
            ["01:50:00+11:00", "01:30:00+10:30", "01:40:00+10:30", "01:50:00+10:30"],
        ),
        // A step without a wildcard, within the repeated hour only.
        (
            "5-59/25 2 * * *",
            "Europe/Berlin",
            "2027-10-31T00:10:00Z",
            ["02:30:00+02:00", "02:55:00+02:00", "02:05:00+01:00", "02:30:00+01:00"],
        ),
        // Lists and ranges are fixed times.
        (
            "0,30 1-3 * * *",
            "Europe/Berlin",
            "2027-10-31T00:10:00Z",
            ["02:30:00+02:00", "03:00:00+01:00", "03:30:00+01:00", "01:00:00+01:00"],
        ),
        // A gap: the interval goes on at its end.
        (
            "*/20 * * * *",
            "Europe/Berlin",
            "2027-03-28T00:35:00Z",
            ["01:40:00+01:00", "03:00:00+02:00", "03:20:00+02:00", "03:40:00+02:00"],
        ),
    ] {
        let firings = collect_firings(&timing("", every, zone), now, 4);
        let times: Vec<&str> = firings.iter().map(|it| it.split_once('T').unwrap().1).collect();
        assert_eq!(times, expected, "{every}");
    }
}

#[test]
fn schedule_counts_hours_and_minutes_as_elapsed_time() {
    assert_eq!(
        collect_firings(
            &timing("2026-10-25T00:30", "PT90M", "Europe/Berlin"),
            "2026-10-24T00:00:00Z",
            3
        ),
        ["2026-10-25T00:30:00+02:00", "2026-10-25T02:00:00+02:00", "2026-10-25T02:30:00+01:00"]
    );
    // From the creation time.
    assert_eq!(
        collect_firings(&timing("", "PT15M", ""), "2026-11-22T10:00:30Z", 2),
        ["2026-11-22T10:15:30+00:00", "2026-11-22T10:30:30+00:00"]
    );
    assert_eq!(
        collect_firings(&timing("PT10M", "", ""), "2026-11-22T10:00:30Z", 2),
        ["2026-11-22T10:10:30+00:00"]
    );
}

#[test]
fn monthly_schedule_returns_to_month_end() {
    assert_eq!(
        collect_firings(
            &timing("2027-01-31T09:00", "P1M", "Europe/Berlin"),
            "2027-01-01T00:00:00Z",
            4
        ),
        [
            "2027-01-31T09:00:00+01:00",
            "2027-02-28T09:00:00+01:00",
            "2027-03-31T09:00:00+02:00",
            "2027-04-30T09:00:00+02:00"
        ]
    );
    assert_eq!(
        collect_firings(&timing("2028-02-29T09:00:00Z", "P1Y", ""), "2028-01-01T00:00:00Z", 5)[4],
        "2032-02-29T09:00:00+00:00"
    );
    assert_eq!(
        collect_firings(&timing("", "0 9 29 2 *", ""), "2026-01-01T00:00:00Z", 1),
        ["2028-02-29T09:00:00+00:00"]
    );
    assert_eq!(
        collect_firings(&timing("2126-01-01T00:00:00+14:00", "", ""), "2026-01-01T00:00:00Z", 1),
        ["2125-12-31T10:00:00+00:00"]
    );
}

#[test]
fn schedule_skips_missed_firings_and_respects_bounds() {
    let rule =
        ScheduleRule::parse(&timing("2020-01-01T00:00:00Z", "P2W", ""), Timestamp(0)).unwrap();
    let late = time("2026-11-22T12:00:00Z");
    assert_eq!(rule.next_after(late).unwrap().to_string(), "2026-11-25T00:00:00.000Z");
    let minutes =
        ScheduleRule::parse(&timing("2020-01-01T00:00:30Z", "PT7M", ""), Timestamp(0)).unwrap();
    let next = minutes.next_after(late).unwrap();
    assert!(next > late && late.until(next) <= Duration::from_mins(7));
    assert_eq!((next.0 - time("2020-01-01T00:00:30Z").0) % (7 * 60_000), 0);
    // A pattern starts no earlier than `at`, which may be its first firing.
    let requested = timing("2026-12-01T09:00:00Z", "0 9 * * *", "");
    assert_eq!(
        collect_firings(&requested, "2026-11-22T12:00:00Z", 1),
        ["2026-12-01T09:00:00+00:00"]
    );
    let until = Timing { until: Some("2026-12-02T09:00:00Z".to_owned()), ..requested };
    assert_eq!(collect_firings(&until, "2026-11-22T12:00:00Z", 9).len(), 2);
}

fn timing_errors(timing: &Timing) -> String {
    let found = ScheduleRule::parse(timing, time("2026-11-22T12:00:00Z")).unwrap_err();
    found.iter().map(|it| format!("{}: {}", it.member, it.detail)).collect::<Vec<_>>().join("\n")
}

#[test]
fn timing_errors_state_valid_forms() {
    assert!(timing_errors(&timing("", "", "")).contains("give one of them or both"));
    assert!(
        timing_errors(&timing("", "P1D", "Mars/Base")).contains("IANA name such as Europe/Berlin")
    );
    for at in
        ["tomorrow", "2026-13-01T00:00:00Z", "PT", "-PT5M", "P0D", "2027-01-05T09:00-05:00[", ""]
    {
        let requested = Timing { at: Some(at.to_owned()), ..Timing::default() };
        assert!(timing_errors(&requested).contains("with a `timeZone`"), "{at}");
    }
    assert!(
        timing_errors(&timing("2027-01-05T09:00", "", ""))
            .contains("has neither an offset nor a `timeZone`")
    );
    for every in [
        "daily",
        "* * * *",
        "* * * * * *",
        "@daily",
        "61 * * * *",
        "PT59S",
        "PT0S",
        "P1DT12H",
        "P-1D",
        "1 hour",
        &"0,".repeat(200),
    ] {
        let found = timing_errors(&timing("", every, ""));
        assert!(found.contains("five cron fields such as"), "{every}: {found}");
    }
}

#[test]
fn impossible_cron_pattern_never_fires() {
    assert!(collect_firings(&timing("", "0 0 30 2 *", ""), "2026-01-01T00:00:00Z", 1).is_empty());
}

/// A daily local time, or every so many minutes.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    Daily(i8, i8),
    Minutes(i8),
}

impl Pattern {
    fn is_match(self, local: DateTime) -> bool {
        match self {
            Self::Daily(hour, minute) => (local.hour(), local.minute()) == (hour, minute),
            Self::Minutes(step) => local.minute() % step == 0,
        }
    }

    /// The timings that express the pattern.
    fn timings(self, zone: &str, before: DateTime) -> Vec<Timing> {
        match self {
            Self::Daily(hour, minute) => {
                let start = before.date().at(hour, minute, 0, 0);
                vec![
                    timing("", &format!("{minute} {hour} * * *"), zone),
                    timing(&start.to_string(), "P1D", zone),
                ]
            }
            Self::Minutes(step) => vec![timing("", &format!("*/{step} * * * *"), zone)],
        }
    }
}

/// Expected firings, minute by minute: a local time is due when it first occurs, or when a gap
/// skips it. An interval is due whenever the clock shows it.
fn scan_firings(
    zone: &Zone,
    pattern: Pattern,
    from: Timestamp,
    to: Timestamp,
) -> BTreeSet<Timestamp> {
    let mut latest = zone.to_local(from);
    let mut found = BTreeSet::new();
    let mut moment = from;
    while moment < to {
        moment = moment.plus(Duration::from_mins(1));
        let local = zone.to_local(moment);
        if matches!(pattern, Pattern::Minutes(_)) && local <= latest {
            latest = local.checked_sub(1.minute()).unwrap();
        }
        while latest < local {
            latest = latest.checked_add(1.minute()).unwrap();
            if pattern.is_match(latest) {
                found.insert(moment);
            }
        }
    }
    found
}

#[test]
fn schedule_matches_minute_scan_in_every_zone() {
    let names: Vec<String> =
        TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect();
    assert!(names.len() > 400, "the time zone database is compiled in");
    let mut rng = fastrand::Rng::with_seed(7);
    let mut changes = 0;
    for round in 0..250 {
        let name = match round % 5 {
            0 => ["Pacific/Apia", "Australia/Lord_Howe", "Africa/Casablanca", "Africa/Cairo"]
                [rng.usize(0..4)],
            _ => &names[rng.usize(0..names.len())],
        };
        let zone = Zone::from_name(name).unwrap();
        // Around an offset change, if there is one.
        let some = rng.u64(time("1995-01-01T00:00:00Z").0..time("2045-01-01T00:00:00Z").0);
        let some = Timestamp(some / 60_000 * 60_000);
        let change = crate::schedule::zone::next_offset_change(&zone, some);
        changes += u32::from(change.is_some());
        let middle = change.unwrap_or(some);
        let (from, to) =
            (middle.minus(Duration::from_hours(20)), middle.plus(Duration::from_hours(50)));
        let local = zone.to_local(middle.minus(Duration::from_mins(rng.u64(0..60))));
        let pattern = match rng.u8(0..4) {
            0 => Pattern::Daily(rng.i8(0..24), rng.i8(0..60)),
            1 => Pattern::Minutes([5, 15, 20][rng.usize(0..3)]),
            // A time that the change affects.
            _ => Pattern::Daily(local.hour(), local.minute()),
        };
        let expected = scan_firings(&zone, pattern, from, to);
        for ordered in pattern.timings(name, zone.to_local(from.minus(Duration::from_hours(72)))) {
            let rule = ScheduleRule::parse(&ordered, from).unwrap();
            let mut found = BTreeSet::new();
            let mut moment = from;
            while let Some(next) = rule.next_after(moment).filter(|next| *next <= to) {
                assert!(next > moment, "{name} {pattern:?}");
                found.insert(next);
                moment = next;
            }
            assert_eq!(found, expected, "{name} {pattern:?} {ordered:?} around {middle}");
        }
    }
    assert!(changes > 60, "offset changes in only {changes} rounds");
}

fn schedule(timing: Timing) -> Schedule {
    Schedule {
        id: ScheduleId::new("s"),
        user: UserId::new("u"),
        incarnation: "i".to_owned(),
        agent: "clerk".to_owned(),
        conversation: None,
        created_in: None,
        input: None,
        mode: ScheduleMode::FollowUp,
        metadata: BTreeMap::new(),
        next_at: Some(time("2026-11-22T09:00:00Z")),
        timing,
        created_at: time("2026-11-22T08:00:00Z"),
        retry_at: None,
        last_firing: None,
        last_problem: None,
        receipt: None,
        extra: Extra::new(),
    }
}

fn accepted() -> FiringOutcome {
    FiringOutcome::Accepted {
        conversation_id: ConversationId::new("c"),
        input_id: InputId::new("in_1"),
        prompt_id: PromptId::new("pr_1"),
    }
}

#[test]
fn late_firing_happens_once_then_schedule_resumes() {
    let hourly = schedule(timing("2026-11-22T09:00:00Z", "PT1H", ""));
    let moved = hourly.after_firing(accepted(), time("2026-11-22T13:20:00Z"));
    assert_eq!(moved.next_at, Some(time("2026-11-22T14:00:00Z")));
    assert_eq!(moved.last_firing.unwrap().prompt_id.as_str(), "pr_1");
    let once = schedule(timing("2026-11-22T09:00:00Z", "", ""));
    assert_eq!(once.after_firing(accepted(), time("2026-11-22T13:20:00Z")).due(), None);
}

#[test]
fn failed_firing_is_retried_within_window() {
    let not_yet = || FiringOutcome::Retryable("away".to_owned());
    let mut once = schedule(timing("2026-11-22T09:00:00Z", "", ""));
    let mut now = time("2026-11-22T09:00:01Z");
    let mut tries = 0;
    while once.next_at.is_some() {
        once = once.after_firing(not_yet(), now);
        now = once.due().unwrap_or(now);
        tries += 1;
    }
    assert_eq!(once.last_problem.as_ref().unwrap().detail, "away");
    assert_eq!(tries, RETRY_WINDOW.as_secs() / RETRY_INTERVAL.as_secs());
    let often = schedule(timing("2026-11-22T09:00:00Z", "PT2M", ""));
    let moved = often.after_firing(not_yet(), time("2026-11-22T09:00:01Z"));
    assert_eq!((moved.next_at, moved.retry_at), (Some(time("2026-11-22T09:02:00Z")), None));
    let over =
        moved.after_firing(FiringOutcome::Ended("gone".to_owned()), time("2026-11-22T09:02:00Z"));
    assert_eq!((over.due(), over.last_problem.unwrap().detail.as_str()), (None, "gone"));
}

#[test]
fn schedule_created_by_a_clock_ahead_counts_from_correction() {
    let now = time("2026-11-22T05:00:00Z");
    for (at, every, next) in [
        ("", "* * * * *", "2026-11-22T05:01:00Z"),
        ("", "PT15M", "2026-11-22T05:15:00Z"),
        ("PT10M", "", "2026-11-22T05:10:00Z"),
        ("2026-11-22T09:00:00Z", "PT1H", "2026-11-22T09:00:00Z"),
    ] {
        let corrected = schedule(timing(at, every, "")).corrected_at(now).unwrap();
        assert_eq!((corrected.created_at, corrected.next_at), (now, Some(time(next))), "{every}");
    }
    let on_time = schedule(timing("", "PT15M", ""));
    assert_eq!(on_time.corrected_at(on_time.created_at), None);
}

#[test]
fn stored_schedule_keeps_unknown_members() {
    let text = r#"{"id":"s","user":"u","incarnation":"i","agent":"clerk","conversation":{"id":"c","incarnation":"0a"},
        "timing":{"every":"P1D"},"createdAt":"2026-11-22T08:00:00.000Z","nextAt":1795300000000,"later":{"a":25122920421210000012345.10}}"#;
    let schedule: Schedule = RawJson::from_text(text).unwrap().read().unwrap();
    assert_eq!(
        (schedule.mode, schedule.due()),
        (ScheduleMode::FollowUp, Some(Timestamp(1_795_300_000_000)))
    );
    let again = RawJson::from_value(&schedule);
    assert!(again.text().ends_with(r#","later":{"a":25122920421210000012345.10}}"#), "{again:?}");
    assert_eq!(again.read::<Schedule>().unwrap(), schedule);
}
