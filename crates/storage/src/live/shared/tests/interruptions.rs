//! Commits of requests, reconnections, expired batches and failed reads while a response streams.

use super::super::super::contract::{committed, key, response_started, text_delta, text_start};
use super::env::{ReaderView, TestEnv, relayed, response_started_in, sleep_ms, start_response};
use crate::live::{Interest, Live as _, SharedLive};
use crate::store::memory::StoreFaults;
use turnwheel_platform::ids::EntryId;

/// Streams five words in a second, and adds them to `whole`.
async fn stream_words(live: &SharedLive, whole: &mut String, seconds: u64) {
    for _ in 0..seconds * 5 {
        let word = format!("{} ", whole.len());
        live.publish(&key("c"), text_delta("m1", &word));
        whole.push_str(&word);
        sleep_ms(200).await;
    }
}

#[tokio::test(start_paused = true)]
async fn commit_of_request_does_not_end_relayed_response() {
    let (_, a, b, mut view) = relayed().await;
    a.publish(&key("c"), response_started_in(1));
    // The process of the turn accepts a steer before the first delta, and one later.
    a.publish(&key("c"), committed(2));
    a.publish(&key("c"), text_start("m1"));
    a.publish(&key("c"), text_delta("m1", "before "));
    sleep_ms(1_000).await;
    view.read_queued();
    assert_eq!(view.text(), "before ");
    a.publish(&key("c"), committed(3));
    sleep_ms(15_000).await;
    let mut late = ReaderView::subscribe(&b);
    assert_eq!(late.text(), "before ", "the response streams on");
    a.publish(&key("c"), text_delta("m1", "after"));
    sleep_ms(1_000).await;
    for view in [&mut view, &mut late] {
        view.read_queued();
        assert_eq!(view.text(), "before after");
    }
}

#[tokio::test(start_paused = true)]
async fn commit_of_other_instance_is_published_during_lease() {
    let env = TestEnv::new();
    let a = env.instance("a");
    env.put_head(1, 1, Some("a.1")).await;
    let mut view = ReaderView::subscribe(&a);
    start_response(&a).await;
    view.read_queued();
    // Another instance has stored a name or a queued input.
    env.put_head(1, 5, Some("a.1")).await;
    sleep_ms(2_500).await;
    assert_eq!(view.read_queued(), [committed(5)]);
    a.publish(&key("c"), text_delta("m1", "on"));
    assert_eq!(view.read_queued(), [text_delta("m1", "on")]);
}

#[tokio::test(start_paused = true)]
async fn head_ends_response_whose_last_batch_was_lost() {
    for has_commit_of_earlier_version in [false, true] {
        let (env, a, b, mut view) = relayed().await;
        let response = EntryId::from_call_number("", 1);
        a.publish(&key("c"), response_started(response.as_str()));
        a.publish(&key("c"), text_start(response.as_str()));
        a.publish(&key("c"), text_delta(response.as_str(), "x"));
        sleep_ms(1_000).await;
        view.read_queued();
        assert_eq!(view.text(), "x");
        if has_commit_of_earlier_version {
            a.publish(&key("c"), committed(9));
            sleep_ms(1_000).await;
            assert_eq!(view.read_queued(), [committed(9)], "it names no response");
        }
        env.put_head_with_responses(1, 1, 9, Some("a.1")).await;
        sleep_ms(3_000).await;
        assert!(b.subscribe(&key("c")).0.is_none(), "the response is stored");
    }
}

#[tokio::test(start_paused = true)]
async fn returning_reader_gets_no_stored_response() {
    let (env, a, b, mut view) = relayed().await;
    start_response(&a).await;
    stream_words(&a, &mut String::new(), 2).await;
    view.read_queued();
    assert_ne!(view.text(), "");
    drop(view);
    // The response is stored while no reader is registered; now a tool runs.
    env.put_head_with_responses(1, 1, 9, Some("a.1")).await;
    let mut again = ReaderView::subscribe(&b);
    sleep_ms(3_000).await;
    again.read_queued();
    assert_eq!((again.text(), again.snapshots), ("", 0));
    assert!(b.subscribe(&key("c")).0.is_none());
}

#[tokio::test(start_paused = true)]
async fn reconnected_reader_gets_response_older_than_its_batches() {
    let (env, a, b, mut view) = relayed().await;
    start_response(&a).await;
    let mut whole = String::new();
    stream_words(&a, &mut whole, 80).await;
    let expired = env.batches().await;
    stream_words(&a, &mut whole, 120).await;
    env.delete_batches(&expired).await;
    view.read_queued();
    assert_eq!(view.snapshots, 1, "a reader that has all needs no snapshot");
    // A stream ends after 200 s, and its client connects again.
    drop(view);
    let mut again = ReaderView::subscribe(&b);
    stream_words(&a, &mut whole, 2).await;
    sleep_ms(1_000).await;
    again.read_queued();
    assert_eq!(again.text(), whole);
}

#[tokio::test(start_paused = true)]
async fn returning_reader_gets_response_beside_waiting_request() {
    for absence_seconds in [2, 0] {
        let env = TestEnv::new();
        let (a, b) = (env.instance("a"), env.instance("b"));
        env.put_head(1, 1, Some("a.1")).await;
        let _waiting_request = b.subscribe_remote(&key("c"), Interest::Commits);
        let view = ReaderView::subscribe(&b);
        sleep_ms(100).await;
        start_response(&a).await;
        let mut whole = String::new();
        stream_words(&a, &mut whole, 5).await;
        drop(view);
        stream_words(&a, &mut whole, absence_seconds).await;
        let mut again = ReaderView::subscribe(&b);
        stream_words(&a, &mut whole, 2).await;
        sleep_ms(2_000).await;
        again.read_queued();
        assert_eq!(again.text(), whole, "after {absence_seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn accepted_work_registers_readers_of_quiet_conversation() {
    for (is_accepted_here, wait_ms) in [(true, 600), (false, 5_500)] {
        let env = TestEnv::new();
        let b = env.instance("b");
        env.put_head(1, 1, None).await;
        let _view = ReaderView::subscribe(&b);
        // Just after a read of the head, which is read each 5 s.
        sleep_ms(361_000).await;
        assert_eq!(env.watchers_for("a").await, [], "the conversation is quiet");
        env.accept_input().await;
        if is_accepted_here {
            b.wake_pollers(&key("c"));
        }
        sleep_ms(wait_ms).await;
        assert_eq!(env.watchers_for("a").await.len(), 1, "accepted here: {is_accepted_here}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_watcher_check_does_not_interrupt_stream() {
    let (env, a, _, mut view) = relayed().await;
    start_response(&a).await;
    let mut whole = String::new();
    // The check is due 30 s after the registration.
    stream_words(&a, &mut whole, 29).await;
    env.memory.set_faults(StoreFaults { unavailable_reads: 1.0, ..StoreFaults::default() });
    stream_words(&a, &mut whole, 2).await;
    env.memory.set_faults(StoreFaults::default());
    stream_words(&a, &mut whole, 6).await;
    sleep_ms(1_000).await;
    view.read_queued();
    assert_eq!(view.text(), whole);
}

#[tokio::test(start_paused = true)]
async fn failed_first_watcher_check_is_repeated_soon() {
    let (env, a, _, mut view) = relayed().await;
    env.memory.set_faults(StoreFaults { unavailable_reads: 1.0, ..StoreFaults::default() });
    start_response(&a).await;
    let mut whole = String::new();
    stream_words(&a, &mut whole, 1).await;
    env.memory.set_faults(StoreFaults::default());
    assert_eq!(env.batches().await.len(), 0, "the check fails at the first delta");
    stream_words(&a, &mut whole, 4).await;
    sleep_ms(1_000).await;
    view.read_queued();
    assert_eq!(view.text(), whole);
}
