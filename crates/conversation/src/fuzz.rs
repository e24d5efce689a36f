//! Fuzz targets: stored documents of any version, surrogate repair, and schedule timings.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::entry::Entry;
use super::event::Event;
use super::head::Head;
use super::inbox::{InboxItem, Receipt};
use super::notification::Notification;
use super::schedule::Schedule;
use super::schedule::rule::{ScheduleRule, Timing};
use super::settings::Settings;
use turnwheel_json::text::repair_surrogates;
use turnwheel_platform::clock::Timestamp;
use turnwheel_test_support::fuzz::check;

/// A document that can be read has the same JSON after it is written and read again.
fn assert_round_trip<T: Serialize + DeserializeOwned>(text: &str) {
    let Ok(read) = serde_json::from_str::<T>(text) else { return };
    let written = serde_json::to_string(&read).unwrap();
    assert!(written.len() <= 8 * text.len() + 2_048, "{} of {}", written.len(), text.len());
    let again = serde_json::from_str::<T>(&written).unwrap();
    let rewritten = serde_json::to_string(&again).unwrap();
    let value = |text: &str| serde_json::from_str::<Value>(text).ok();
    assert!(written == rewritten || value(&written) == value(&rewritten), "{written}\n{rewritten}");
}

fn check_stored_documents(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let text = text.trim_end();
    assert_round_trip::<Entry>(text);
    assert_round_trip::<Head>(text);
    assert_round_trip::<InboxItem>(text);
    assert_round_trip::<Receipt>(text);
    assert_round_trip::<Event>(text);
    assert_round_trip::<Notification>(text);
    assert_round_trip::<Schedule>(text);
    assert_round_trip::<Settings>(text);
}

fn check_surrogate_repair(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let repaired = repair_surrogates(text);
    assert!(repaired.len() <= text.len());
    if serde_json::from_str::<Value>(&repaired).is_ok() {
        assert_eq!(repair_surrogates(&repaired), repaired);
    }
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        assert_eq!(serde_json::from_str::<Value>(&repaired).unwrap(), value);
    }
}

fn check_timing(input: &[u8]) {
    let Ok(timing) = serde_json::from_slice::<Timing>(input) else { return };
    let now = Timestamp(1_795_000_000_000);
    match ScheduleRule::parse(&timing, now) {
        Err(mistakes) => {
            assert!(!mistakes.is_empty());
            assert!(mistakes.iter().all(|mistake| mistake.detail.len() < 2_048));
        }
        Ok(rule) => {
            let mut moment = now;
            for _ in 0..3 {
                let Some(next) = rule.next_after(moment) else { return };
                assert!(next > moment, "{next} after {moment}");
                moment = next;
            }
        }
    }
}

#[test]
fn stored_documents_round_trip() {
    check("stored", check_stored_documents);
}

#[test]
fn surrogate_repair_is_idempotent() {
    check("surrogates", check_surrogate_repair);
}

#[test]
fn schedule_rule_fires_strictly_later() {
    check("timing", check_timing);
}
