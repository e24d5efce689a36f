//! Fuzz targets: stored documents of any version, surrogate repair, and schedule timings.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::entry::Entry;
use super::event::Event;
use super::head::Head;
use super::inbox::{InboxItem, Receipt};
use super::notice::Notice;
use super::schedule::Schedule;
use super::schedule::rule::{Rule, Timing};
use super::settings::Settings;
use super::text::repair_surrogates;
use crate::clock::Timestamp;
use crate::fuzz::check;

/// A document that can be read has the same JSON after it is written and read again.
fn comes_back<T: Serialize + DeserializeOwned>(text: &str) {
    let Ok(read) = serde_json::from_str::<T>(text) else { return };
    let written = serde_json::to_string(&read).unwrap();
    assert!(written.len() <= 8 * text.len() + 2_048, "{} of {}", written.len(), text.len());
    let again = serde_json::from_str::<T>(&written).unwrap();
    let rewritten = serde_json::to_string(&again).unwrap();
    let value = |text: &str| serde_json::from_str::<Value>(text).ok();
    assert!(written == rewritten || value(&written) == value(&rewritten), "{written}\n{rewritten}");
}

fn stored(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let text = text.trim_end();
    comes_back::<Entry>(text);
    comes_back::<Head>(text);
    comes_back::<InboxItem>(text);
    comes_back::<Receipt>(text);
    comes_back::<Event>(text);
    comes_back::<Notice>(text);
    comes_back::<Schedule>(text);
    comes_back::<Settings>(text);
}

fn surrogates(input: &[u8]) {
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

fn timing(input: &[u8]) {
    let Ok(timing) = serde_json::from_slice::<Timing>(input) else { return };
    let now = Timestamp(1_795_000_000_000);
    match Rule::read(&timing, now) {
        Err(mistakes) => {
            assert!(!mistakes.is_empty());
            assert!(mistakes.iter().all(|mistake| mistake.detail.len() < 2_048));
        }
        Ok(rule) => {
            let mut moment = now;
            for _ in 0..3 {
                let Some(next) = rule.after(moment) else { return };
                assert!(next > moment, "{next} after {moment}");
                moment = next;
            }
        }
    }
}

#[test]
fn a_stored_document() {
    check("stored", stored);
}

#[test]
fn halves_of_characters() {
    check("surrogates", surrogates);
}

#[test]
fn when_to_fire() {
    check("timing", timing);
}
