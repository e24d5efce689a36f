//! Concurrent subscriptions, slow readers and eviction.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::JoinSet;

use super::super::contract::{
    self, committed, delta, key, queued_events, reset, response_committed, response_started,
    text_delta, text_start,
};
use super::reader_queue::{BYTES_MAX, EVENTS_MAX};
use super::*;
use turnwheel_conversation::content::joined_text;
use turnwheel_conversation::event::AssistantMessageEvent;

#[tokio::test]
async fn embedded_live_fulfils_contract_and_frees_memory() {
    let live = EmbeddedLive::default();
    contract::run_contract(&live).await;
    for user in ["user", "user2"] {
        for tenant in ["tenant", "tenant2"] {
            for conversation in ["mine", "theirs"] {
                let mut key = key(conversation);
                key.user = turnwheel_platform::ids::UserId::new(user);
                key.tenant = turnwheel_platform::ids::TenantId::new(tenant);
                live.publish(&key, response_committed("m1", 9));
            }
        }
    }
    assert!(live.lock_hub().conversations.is_empty());
    assert_eq!(live.lock_hub().without_readers, 0);
}

#[test]
fn idle_conversation_uses_no_memory() {
    let live = EmbeddedLive::default();
    for event in [committed(1), text_delta("m1", "x"), reset("m1")] {
        live.publish(&key("c"), event);
        assert!(live.lock_hub().conversations.is_empty());
    }
    live.publish(&key("c"), response_started("m1"));
    assert_eq!(live.lock_hub().conversations.len(), 1, "for readers that subscribe in the middle");
    live.publish(&key("c"), response_committed("m1", 2));
    assert!(live.lock_hub().conversations.is_empty());

    let reader = live.subscribe(&key("c"));
    assert_eq!(live.lock_hub().conversations.len(), 1);
    drop(reader);
    assert!(live.lock_hub().conversations.is_empty());
}

#[test]
fn partial_response_outlives_its_readers() {
    let live = EmbeddedLive::default();
    let reader = live.subscribe(&key("c"));
    for event in [response_started("m1"), text_start("m1"), text_delta("m1", "a")] {
        live.publish(&key("c"), event);
    }
    drop(reader);
    live.publish(&key("c"), text_delta("m1", "b"));
    let (snapshot, reader) = live.subscribe(&key("c"));
    assert_eq!(joined_text(&snapshot.unwrap().content), "ab");
    live.publish(&key("c"), reset("m1"));
    drop(reader);
    assert!(live.lock_hub().conversations.is_empty());
}

#[test]
fn unfinished_responses_are_evicted_oldest_first() {
    let live = EmbeddedLive::default();
    let (_, mut reader) = live.subscribe(&key("heard"));
    live.publish(&key("heard"), response_started("m1"));
    for number in 0..WITHOUT_READERS_MAX + 10 {
        live.publish(&key(&format!("c{number}")), response_started("m1"));
    }
    assert_eq!(live.lock_hub().without_readers, WITHOUT_READERS_MAX);
    assert_eq!(live.lock_hub().conversations.len(), WITHOUT_READERS_MAX + 1);
    assert!(live.subscribe(&key("c9")).0.is_none());
    assert!(live.subscribe(&key("c10")).0.is_some());
    assert_eq!(queued_events(&mut *reader), [response_started("m1")]);
}

/// Number of deltas. Each is a number, so that gaps, duplicates and swaps are detected.
const DELTAS: usize = 20_000;

/// Subscribes in the middle repeatedly. The events must continue the snapshot, to the end.
async fn subscribe_repeatedly(live: EmbeddedLive, whole: Arc<String>) -> usize {
    let mut joins = 0;
    loop {
        let (snapshot, mut reader) = live.subscribe(&key("c"));
        joins += 1;
        let mut seen = snapshot.map(|snapshot| joined_text(&snapshot.content));
        for _ in 0..5 {
            match reader.next_event().await {
                LiveEvent::ResponseStarted(_) => seen = Some(String::new()),
                LiveEvent::Delta {
                    event: AssistantMessageEvent::TextDelta { delta, .. }, ..
                } => {
                    seen.as_mut().expect("the start comes first").push_str(&delta);
                }
                LiveEvent::Committed { .. } => {
                    assert!(seen.is_none_or(|seen| seen == *whole), "not the whole response");
                    return joins;
                }
                LiveEvent::Delta { .. }
                | LiveEvent::Reset { .. }
                | LiveEvent::ToolUpdate(_)
                | LiveEvent::Snapshot(_)
                | LiveEvent::Deleted => {}
            }
        }
        let seen = seen.unwrap_or_default();
        assert!(whole.starts_with(&seen), "{} bytes are not a prefix", seen.len());
    }
}

/// Waits until all readers have caught up, so that they subscribe all the time and never miss an
/// event.
async fn wait_for_readers(live: &EmbeddedLive) {
    let behind = || {
        let hub = live.lock_hub();
        let readers = hub.conversations.get(&key("c")).into_iter().flat_map(|it| &it.readers);
        readers.map(|reader| reader.queued_count()).max().unwrap_or_default()
    };
    let all_read = async {
        while behind() > 8 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), all_read)
        .await
        .expect("a reader makes no progress");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn snapshot_and_stream_have_no_gap_or_duplicate() {
    let live = EmbeddedLive::default();
    let parts: Vec<String> = (0..DELTAS).map(|number| format!("{number} ")).collect();
    let whole = Arc::new(parts.concat());
    let mut readers = JoinSet::new();
    for _ in 0..3 {
        readers.spawn(subscribe_repeatedly(live.clone(), Arc::clone(&whole)));
    }
    live.publish(&key("c"), response_started("m1"));
    live.publish(&key("c"), text_start("m1"));
    for part in &parts {
        live.publish(&key("c"), text_delta("m1", part));
        wait_for_readers(&live).await;
    }
    let mut joins = 0;
    while !readers.is_empty() {
        // Repeated, because a reader may subscribe after the last event.
        live.publish(&key("c"), response_committed("m1", 99));
        while let Some(joined) = readers.try_join_next() {
            joins += joined.unwrap();
        }
        wait_for_readers(&live).await;
    }
    assert!(joins > 1000, "{joins} subscriptions are too few");
}

#[test]
fn slow_reader_gets_commit_and_snapshot() {
    let live = EmbeddedLive::default();
    let (_, mut slow) = live.subscribe(&key("c"));
    live.publish(&key("c"), committed(41));
    live.publish(&key("c"), response_started("m1"));
    live.publish(&key("c"), text_start("m1"));
    for _ in 0..EVENTS_MAX + 100 {
        live.publish(&key("c"), text_delta("m1", "x"));
    }
    let whole = live.subscribe(&key("c")).0.unwrap();
    assert_eq!(
        queued_events(&mut *slow),
        [committed(41), LiveEvent::Snapshot(whole)],
        "in place of the missed events"
    );
    live.publish(&key("c"), text_delta("m1", "x"));
    assert_eq!(queued_events(&mut *slow), [text_delta("m1", "x")], "the snapshot ended the gap");
    for _ in 0..=EVENTS_MAX {
        live.publish(&key("c"), text_delta("m1", "x"));
    }

    let (snapshot, mut fresh) = live.subscribe(&key("c"));
    assert_eq!(joined_text(&snapshot.unwrap().content).len(), 2 * EVENTS_MAX + 102);
    live.publish(&key("c"), text_delta("m1", "y"));
    assert_eq!(queued_events(&mut *fresh), [text_delta("m1", "y")], "other readers miss nothing");

    let end = response_committed("m1", 42);
    live.publish(&key("c"), end.clone());
    assert_eq!(queued_events(&mut *slow), [committed(41), end], "the store has the response");
    live.publish(&key("c"), response_started("m2"));
    live.publish(&key("c"), text_start("m2"));
    assert_eq!(queued_events(&mut *slow), [response_started("m2"), text_start("m2")]);

    for event in [response_started("m1"), text_start("m1")] {
        live.publish(&key("c"), event);
    }
    assert_eq!(queued_events(&mut *slow).len(), 2, "after a new start nothing is missing");
}

#[test]
fn new_response_start_survives_queue_overflow() {
    let live = EmbeddedLive::default();
    let (_, mut slow) = live.subscribe(&key("c"));
    for number in 0..EVENTS_MAX as u64 {
        live.publish(&key("c"), committed(number));
    }
    live.publish(&key("c"), response_started("m1"));
    live.publish(&key("c"), text_start("m1"));
    let newest = committed(EVENTS_MAX as u64 - 1);
    assert_eq!(queued_events(&mut *slow), [newest, response_started("m1"), text_start("m1")]);
}

#[test]
fn reader_queue_is_bounded_in_bytes() {
    let live = EmbeddedLive::default();
    let (_, mut slow) = live.subscribe(&key("c"));
    live.publish(&key("c"), response_started("m1"));
    live.publish(&key("c"), text_start("m1"));
    let large = "x".repeat(BYTES_MAX / 2);
    for _ in 0..3 {
        live.publish(&key("c"), text_delta("m1", &large));
    }
    let whole = live.subscribe(&key("c")).0.unwrap();
    assert_eq!(queued_events(&mut *slow), [committed(0), LiveEvent::Snapshot(whole)]);

    let (_, mut reader) = live.subscribe(&key("one"));
    live.publish(&key("one"), response_started("m1"));
    live.publish(&key("one"), text_start("m1"));
    assert_eq!(queued_events(&mut *reader).len(), 2);
    let huge =
        AssistantMessageEvent::TextEnd { content_index: 0, content: "x".repeat(BYTES_MAX * 2) };
    live.publish(&key("one"), delta("m1", huge.clone()));
    assert_eq!(
        queued_events(&mut *reader),
        [delta("m1", huge)],
        "a single event of any size is delivered"
    );
}

#[tokio::test]
async fn waiting_reader_wakes_and_cancelled_wait_loses_nothing() {
    let live = EmbeddedLive::default();
    let (_, mut reader) = live.subscribe(&key("c"));
    assert!(reader.next_event().now_or_never().is_none());
    let (event, ()) = tokio::join!(reader.next_event(), async {
        tokio::task::yield_now().await;
        live.publish(&key("c"), committed(1));
        live.publish(&key("c"), committed(2));
    });
    assert_eq!(event, committed(1));
    assert_eq!(reader.next_event().await, committed(2));
}

#[test]
fn debug_output_hides_content() {
    let live = EmbeddedLive::default();
    let (_, _reader) = live.subscribe(&key("c"));
    for event in [response_started("m1"), text_start("m1"), text_delta("m1", "a secret")] {
        live.publish(&key("c"), event);
    }
    assert!(!format!("{live:?}").contains("secret"));
}
