//! Concurrent subscriptions, slow readers and eviction.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::JoinSet;

use super::super::contract::{
    self, committed, delta, key, reset, start, text, text_start, waiting,
};
use super::mailbox::{BYTES_MAX, EVENTS_MAX};
use super::*;
use crate::agent::content::joined_text;
use crate::agent::event::AnswerEvent;

#[tokio::test]
async fn it_keeps_the_contract_and_forgets_all_of_it() {
    let live = EmbeddedLive::default();
    contract::contract(&live).await;
    for user in ["user", "user2"] {
        for tenant in ["tenant", "tenant2"] {
            for conversation in ["mine", "theirs"] {
                let mut key = key(conversation);
                key.user = crate::ids::UserId::new(user);
                key.tenant = crate::ids::TenantId::new(tenant);
                live.publish(&key, committed(9));
            }
        }
    }
    assert!(live.hub().conversations.is_empty());
    assert_eq!(live.hub().unheard, 0);
}

#[test]
fn nothing_is_kept_for_nobody() {
    let live = EmbeddedLive::default();
    for event in [committed(1), text("m1", "x"), reset("m1")] {
        live.publish(&key("c"), event);
        assert!(live.hub().conversations.is_empty());
    }
    live.publish(&key("c"), start("m1"));
    assert_eq!(live.hub().conversations.len(), 1, "for readers that subscribe in the middle");
    live.publish(&key("c"), committed(2));
    assert!(live.hub().conversations.is_empty());

    let reader = live.subscribe(&key("c"));
    assert_eq!(live.hub().conversations.len(), 1);
    drop(reader);
    assert!(live.hub().conversations.is_empty());
}

#[test]
fn an_answer_outlives_its_readers_while_it_is_under_way() {
    let live = EmbeddedLive::default();
    let reader = live.subscribe(&key("c"));
    for event in [start("m1"), text_start("m1"), text("m1", "a")] {
        live.publish(&key("c"), event);
    }
    drop(reader);
    live.publish(&key("c"), text("m1", "b"));
    let (snapshot, reader) = live.subscribe(&key("c"));
    assert_eq!(joined_text(&snapshot.unwrap().content), "ab");
    live.publish(&key("c"), reset("m1"));
    drop(reader);
    assert!(live.hub().conversations.is_empty());
}

#[test]
fn answers_that_never_end_are_forgotten_oldest_first() {
    let live = EmbeddedLive::default();
    let (_, mut heard) = live.subscribe(&key("heard"));
    live.publish(&key("heard"), start("m1"));
    for number in 0..UNHEARD_MAX + 10 {
        live.publish(&key(&format!("c{number}")), start("m1"));
    }
    assert_eq!(live.hub().unheard, UNHEARD_MAX);
    assert_eq!(live.hub().conversations.len(), UNHEARD_MAX + 1);
    assert!(live.subscribe(&key("c9")).0.is_none());
    assert!(live.subscribe(&key("c10")).0.is_some());
    assert_eq!(waiting(&mut *heard), [start("m1")]);
}

/// Number of deltas. Each is a number, so that gaps, duplicates and swaps are detected.
const DELTAS: usize = 20_000;

/// Subscribes in the middle repeatedly. The events must continue the snapshot, to the end.
async fn join_again_and_again(live: EmbeddedLive, whole: Arc<String>) -> usize {
    let mut joins = 0;
    loop {
        let (snapshot, mut reader) = live.subscribe(&key("c"));
        joins += 1;
        let mut seen = snapshot.map(|snapshot| joined_text(&snapshot.content));
        for _ in 0..5 {
            match reader.next().await {
                LiveEvent::AnswerStarted(_) => seen = Some(String::new()),
                LiveEvent::Delta { event: AnswerEvent::TextDelta { delta, .. }, .. } => {
                    seen.as_mut().expect("the start comes first").push_str(&delta);
                }
                LiveEvent::Committed { .. } => {
                    assert!(seen.is_none_or(|seen| seen == *whole), "not the whole response");
                    return joins;
                }
                LiveEvent::Delta { .. }
                | LiveEvent::Reset { .. }
                | LiveEvent::ToolUpdate(_)
                | LiveEvent::SoFar(_)
                | LiveEvent::Gone => {}
            }
        }
        let seen = seen.unwrap_or_default();
        assert!(whole.starts_with(&seen), "{} bytes are not a prefix", seen.len());
    }
}

/// Waits until all readers have caught up, so that they subscribe all the time and never miss an
/// event.
async fn nobody_lags(live: &EmbeddedLive) {
    let behind = || {
        let hub = live.hub();
        let readers = hub.conversations.get(&key("c")).into_iter().flat_map(|it| &it.readers);
        readers.map(|reader| reader.waiting()).max().unwrap_or_default()
    };
    let all_read = async {
        while behind() > 8 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), all_read).await.expect("a reader makes no progress");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn between_snapshot_and_stream_there_is_no_gap_and_nothing_twice() {
    let live = EmbeddedLive::default();
    let parts: Vec<String> = (0..DELTAS).map(|number| format!("{number} ")).collect();
    let whole = Arc::new(parts.concat());
    let mut readers = JoinSet::new();
    for _ in 0..3 {
        readers.spawn(join_again_and_again(live.clone(), Arc::clone(&whole)));
    }
    live.publish(&key("c"), start("m1"));
    live.publish(&key("c"), text_start("m1"));
    for part in &parts {
        live.publish(&key("c"), text("m1", part));
        nobody_lags(&live).await;
    }
    let mut joins = 0;
    while !readers.is_empty() {
        // Repeated, because a reader may subscribe after the last event.
        live.publish(&key("c"), committed(99));
        while let Some(joined) = readers.try_join_next() {
            joins += joined.unwrap();
        }
        nobody_lags(&live).await;
    }
    assert!(joins > 1000, "{joins} subscriptions are too few");
}

#[test]
fn a_slow_reader_is_sent_to_the_store_and_not_given_half_an_answer() {
    let live = EmbeddedLive::default();
    let (_, mut slow) = live.subscribe(&key("c"));
    live.publish(&key("c"), committed(41));
    live.publish(&key("c"), start("m1"));
    live.publish(&key("c"), text_start("m1"));
    for _ in 0..EVENTS_MAX + 100 {
        live.publish(&key("c"), text("m1", "x"));
    }
    assert_eq!(waiting(&mut *slow), [committed(41)], "in place of the missed events");
    live.publish(&key("c"), text("m1", "x"));
    assert_eq!(waiting(&mut *slow), [], "the reader takes the whole response from the store");

    let (snapshot, mut fresh) = live.subscribe(&key("c"));
    assert_eq!(joined_text(&snapshot.unwrap().content).len(), EVENTS_MAX + 101);
    live.publish(&key("c"), text("m1", "y"));
    assert_eq!(waiting(&mut *fresh), [text("m1", "y")], "other readers miss nothing");

    live.publish(&key("c"), committed(42));
    live.publish(&key("c"), start("m2"));
    live.publish(&key("c"), text_start("m2"));
    assert_eq!(waiting(&mut *slow), [committed(42), start("m2"), text_start("m2")]);

    for event in [start("m1"), text_start("m1")] {
        live.publish(&key("c"), event);
    }
    assert_eq!(waiting(&mut *slow).len(), 2, "after a new start nothing is missing");
}

#[test]
fn the_beginning_of_an_answer_that_overflows_begins_anew() {
    let live = EmbeddedLive::default();
    let (_, mut slow) = live.subscribe(&key("c"));
    for number in 0..EVENTS_MAX as u64 {
        live.publish(&key("c"), committed(number));
    }
    live.publish(&key("c"), start("m1"));
    live.publish(&key("c"), text_start("m1"));
    let newest = committed(EVENTS_MAX as u64 - 1);
    assert_eq!(waiting(&mut *slow), [newest, start("m1"), text_start("m1")]);
}

#[test]
fn what_waits_is_bounded_in_bytes_too() {
    let live = EmbeddedLive::default();
    let (_, mut slow) = live.subscribe(&key("c"));
    live.publish(&key("c"), start("m1"));
    live.publish(&key("c"), text_start("m1"));
    let large = "x".repeat(BYTES_MAX / 2);
    for _ in 0..3 {
        live.publish(&key("c"), text("m1", &large));
    }
    assert_eq!(waiting(&mut *slow), [committed(0)]);

    let (_, mut reader) = live.subscribe(&key("one"));
    live.publish(&key("one"), start("m1"));
    live.publish(&key("one"), text_start("m1"));
    assert_eq!(waiting(&mut *reader).len(), 2);
    let huge = AnswerEvent::TextEnd { content_index: 0, content: "x".repeat(BYTES_MAX * 2) };
    live.publish(&key("one"), delta("m1", huge.clone()));
    assert_eq!(waiting(&mut *reader), [delta("m1", huge)], "a single event of any size is delivered");
}

#[tokio::test]
async fn a_waiting_reader_is_woken_and_a_cancelled_wait_loses_nothing() {
    let live = EmbeddedLive::default();
    let (_, mut reader) = live.subscribe(&key("c"));
    assert!(reader.next().now_or_never().is_none());
    let (event, ()) = tokio::join!(reader.next(), async {
        tokio::task::yield_now().await;
        live.publish(&key("c"), committed(1));
        live.publish(&key("c"), committed(2));
    });
    assert_eq!(event, committed(1));
    assert_eq!(reader.next().await, committed(2));
}

#[test]
fn nothing_that_was_said_is_printed() {
    let live = EmbeddedLive::default();
    let (_, reader) = live.subscribe(&key("c"));
    for event in [start("m1"), text_start("m1"), text("m1", "a secret")] {
        live.publish(&key("c"), event);
    }
    assert!(!format!("{live:?} {reader:?}").contains("secret"));
}
