//! Streams of events that end after any byte: clients resume without a loss.

use std::collections::{BTreeMap, BTreeSet};

use super::test_app::TestApp;

const PAST: &str = "/api/conversations/c/events?follow=false";

/// When a parser takes the id of a frame as the last one received.
#[derive(Clone, Copy, Debug, PartialEq)]
enum IdRule {
    /// As soon as the line is read, as .NET's `SseParser.LastEventId`.
    WhenLineIsRead,
    /// With the event, as browsers.
    WhenDispatched,
}

/// State of a parser after a part of a stream.
#[derive(Default)]
struct Parsed {
    /// The ids of the events that it returned.
    received: BTreeSet<u64>,
    /// The id to resume after.
    last_id: u64,
}

fn parse(text: &str, rule: IdRule) -> Parsed {
    let mut parsed = Parsed::default();
    let (mut id, mut has_data) = (None, false);
    for line in text.split_inclusive('\n') {
        // A line without its end is incomplete.
        let Some(line) = line.strip_suffix('\n') else { break };
        match line.split_once(": ") {
            Some(("id", number)) => {
                id = Some(number.parse().unwrap());
                if rule == IdRule::WhenLineIsRead {
                    parsed.last_id = id.unwrap();
                }
            }
            Some(("data", _)) => has_data = true,
            Some(_) => {}
            None => {
                assert_eq!(line, "");
                parsed.last_id = id.unwrap_or(parsed.last_id);
                parsed.received.extend(id.filter(|_| has_data));
                (id, has_data) = (None, false);
            }
        }
    }
    parsed
}

/// A client has every event, whatever byte its stream ends after. Between the last two bytes of a
/// frame, which are sent together, no order of the lines helps a parser that takes ids early.
#[tokio::test]
async fn stream_cut_at_any_byte_loses_no_event() {
    let app = TestApp::new();
    app.run("use pay with {\"amount\": 500} then say done").await;
    for format in ["", "&format=protocol", "&format=protocol&stream=token"] {
        let read = async |after: u64| {
            let request = app.get(&format!("{PAST}{format}"));
            let request = request.header("last-event-id", &after.to_string());
            request.send().await.expect_status(200).text
        };
        let whole = read(0).await;
        let all = parse(&whole, IdRule::WhenDispatched);
        let mut rests = BTreeMap::new();
        for after in 0..=all.last_id {
            rests.insert(after, parse(&read(after).await, IdRule::WhenDispatched).received);
        }
        assert!(whole.contains("\nid: 1\n") && all.received.len() > 1, "{whole}");
        for rule in [IdRule::WhenLineIsRead, IdRule::WhenDispatched] {
            for cut in (0..whole.len()).filter(|cut| whole.is_char_boundary(*cut)) {
                let (before, after) = whole.split_at(cut);
                let is_within_frame_end = before.ends_with('\n') && after.starts_with('\n');
                if rule == IdRule::WhenLineIsRead && is_within_frame_end {
                    continue;
                }
                let parsed = parse(before, rule);
                let rest = &rests[&parsed.last_id];
                let both: BTreeSet<u64> = parsed.received.union(rest).copied().collect();
                assert_eq!(both, all.received, "{rule:?} after {before}");
            }
        }
    }
}
