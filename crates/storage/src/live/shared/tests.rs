//! Several instances over one store, in paused time.

mod costs;
mod counting_store;
mod env;
mod interruptions;

use self::env::{ReaderView, TestEnv, relayed, response_started_in, sleep_ms, start_response};
use super::super::contract::{
    self, committed, delta, key, queued_events, reset, response_committed, response_started,
    text_delta, text_start,
};
use crate::live::{Interest, Live as _, LiveEvent};
use crate::store::memory::StoreFaults;
use turnwheel_conversation::content::ToolCall;
use turnwheel_conversation::event::{AssistantMessageEvent, TypedToolCall};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::raw::RawJson;

#[tokio::test(start_paused = true)]
async fn shared_live_fulfils_contract() {
    contract::run_contract(&TestEnv::new().instance("a")).await;
}

#[tokio::test(start_paused = true)]
async fn deltas_reach_other_instance_in_order_and_once() {
    let env = TestEnv::new();
    let (a, b) = (env.instance("a"), env.instance("b"));
    env.put_head(5, 10, Some("a.1")).await;
    let mut view = ReaderView::subscribe(&b);
    sleep_ms(100).await;

    a.publish(&key("c"), response_started_in(5));
    a.publish(&key("c"), text_start("m1"));
    let mut whole = String::new();
    for number in 0..60 {
        let word = format!("{number} ");
        a.publish(&key("c"), text_delta("m1", &word));
        whole += &word;
        sleep_ms(50).await;
        view.read_queued();
        assert!(whole.starts_with(view.text()), "{} of {whole}", view.text());
    }
    assert!(
        view.text().len() * 2 > whole.len(),
        "deltas arrive while streaming: {} of {whole}",
        view.text()
    );
    let pages = env.batches().await;
    assert!((6..=8).contains(&pages.len()), "{} batches in 3 s", pages.len());

    let call = ToolCall {
        id: "call_1".to_owned(),
        name: "pay".to_owned(),
        arguments: RawJson::from_text(r#"{"amount": 5.0}"#).unwrap(),
        thought_signature: None,
        extra: Extra::new(),
    };
    let end =
        AssistantMessageEvent::ToolcallEnd { content_index: 1, tool_call: TypedToolCall { call } };
    a.publish(&key("c"), delta("m1", end.clone()));
    env.put_head(5, 12, Some("a.1")).await;
    a.publish(&key("c"), committed(12));
    sleep_ms(1_000).await;
    let last = view.read_queued();
    assert_eq!(view.text(), whole);
    assert_eq!(
        last[last.len() - 2..],
        [delta("m1", end), committed(12)],
        "numbers keep their written form"
    );
    assert_eq!(view.snapshots, 1, "one snapshot on subscription, then only new events");
    sleep_ms(5_000).await;
    assert_eq!(view.read_queued(), []);
}

#[tokio::test(start_paused = true)]
async fn publisher_writes_nothing_without_watchers() {
    let env = TestEnv::new();
    let a = env.instance("a");
    env.put_head(1, 1, Some("a.1")).await;
    let before = env.store.counts();
    a.publish(&key("c"), response_started_in(1));
    sleep_ms(5_000).await;
    assert_eq!(env.store.since(&before).total(), 0, "no request before the first delta");
    for _ in 0..190 {
        a.publish(&key("c"), text_delta("m1", "x"));
        sleep_ms(100).await;
    }
    let cost = env.store.since(&before);
    assert_eq!((cost.total(), cost.of("read watch")), (1, 1), "one point read for a response");
    for _ in 0..200 {
        a.publish(&key("c"), text_delta("m1", "x"));
        sleep_ms(100).await;
    }
    assert_eq!(env.store.since(&before).total(), 2, "one more for each 20 s");
    a.publish(&key("c"), response_committed("m1", 2));
    sleep_ms(60_000).await;
    assert_eq!(env.store.since(&before).total(), 2);
    assert_eq!(a.inner.lock_publishers().count(), 0, "the publisher is removed");
    for end in [reset("m1"), response_committed("m3", 9), LiveEvent::Deleted] {
        a.publish(&key("c"), response_started_in(2));
        a.publish(&key("c"), end.clone());
        let publishers = a.inner.lock_publishers().count();
        assert_eq!(publishers, 0, "that of a response without deltas is removed too: {end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn local_readers_cause_no_batches() {
    let env = TestEnv::new();
    let a = env.instance("a");
    env.put_head(1, 1, Some("a.1")).await;
    let mut view = ReaderView::subscribe(&a);
    sleep_ms(100).await;
    let before = env.store.counts();
    a.publish(&key("c"), response_started_in(1));
    a.publish(&key("c"), text_start("m1"));
    for number in 0..50 {
        a.publish(&key("c"), text_delta("m1", &number.to_string()));
        assert_eq!(view.read_queued().last(), Some(&text_delta("m1", &number.to_string())));
        sleep_ms(100).await;
    }
    a.publish(&key("c"), committed(2));
    assert_eq!(view.read_queued(), [committed(2)]);
    let cost = env.store.since(&before);
    assert_eq!((cost.of("write live"), cost.of("select live")), (0, 0), "{cost:?}");
}

#[tokio::test(start_paused = true)]
async fn publisher_stops_after_last_reader_leaves() {
    let (env, a, b, mut view) = relayed().await;
    start_response(&a).await;
    let publish = async |seconds: u64| {
        for _ in 0..seconds * 5 {
            a.publish(&key("c"), text_delta("m1", "x"));
            sleep_ms(200).await;
        }
    };
    publish(90).await;
    view.read_queued();
    assert!(view.text().len() > 440, "the watch is renewed: {}", view.text().len());
    drop(view);
    publish(31).await;
    let before = env.store.counts();
    publish(60).await;
    let cost = env.store.since(&before);
    assert_eq!(cost.of("write live"), 0, "{cost:?}");
    assert_eq!(cost.total(), cost.of("read watch"), "b sends no more requests: {cost:?}");

    let mut again = ReaderView::subscribe(&b);
    publish(25).await;
    again.read_queued();
    assert!(
        again.text().len() > 440,
        "a returning reader gets the whole response: {}",
        again.text().len()
    );
}

#[tokio::test(start_paused = true)]
async fn late_reader_gets_snapshot_on_every_instance() {
    let env = TestEnv::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| env.instance(name));
    env.put_head(1, 1, Some("a.1")).await;
    let mut first = ReaderView::subscribe(&b);
    sleep_ms(100).await;
    for event in
        [response_started_in(1), text_start("m1"), text_delta("m1", "Hel"), text_delta("m1", "lo")]
    {
        a.publish(&key("c"), event);
    }
    sleep_ms(1_000).await;
    let mut second = ReaderView::subscribe(&b);
    assert_eq!(second.text(), "Hello", "the same instance already has it");
    let mut third = ReaderView::subscribe(&c);
    sleep_ms(1_000).await;
    third.read_queued();
    assert_eq!((third.text(), third.snapshots), ("Hello", 1), "another instance reads the batches");
    a.publish(&key("c"), text_delta("m1", ", you"));
    sleep_ms(1_000).await;
    for view in [&mut first, &mut second, &mut third] {
        view.read_queued();
        assert_eq!(view.text(), "Hello, you");
    }
    a.publish(&key("c"), response_committed("m1", 2));
    sleep_ms(1_000).await;
    assert!(b.subscribe(&key("c")).0.is_none(), "a committed response is no snapshot");
    drop((first, second));
    a.publish(&key("c"), response_started_in(1));
    a.publish(&key("c"), text_delta("m1", "x"));
    sleep_ms(1_000).await;
    assert!(b.subscribe(&key("c")).0.is_none(), "a response without a poller is no snapshot");
}

#[tokio::test(start_paused = true)]
async fn take_over_invalidates_streamed_deltas() {
    let env = TestEnv::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| env.instance(name));
    env.put_head(5, 10, Some("a.1")).await;
    let mut view = ReaderView::subscribe(&b);
    sleep_ms(100).await;
    a.publish(&key("c"), response_started_in(5));
    a.publish(&key("c"), text_start("m1"));
    a.publish(&key("c"), text_delta("m1", "of a worker presumed dead"));
    sleep_ms(1_000).await;
    view.read_queued();
    assert!(view.text().starts_with("of a worker"));

    env.put_head(6, 11, Some("c.1")).await;
    for _ in 0..8 {
        a.publish(&key("c"), text_delta("m1", ", and goes on"));
        sleep_ms(300).await;
    }
    assert_eq!(view.read_queued().last(), Some(&committed(11)), "the reset is committed");
    assert!(b.subscribe(&key("c")).0.is_none());
    c.publish(&key("c"), response_started_in(6));
    c.publish(&key("c"), text_start("m1"));
    c.publish(&key("c"), text_delta("m1", "anew"));
    for _ in 0..10 {
        a.publish(&key("c"), text_delta("m1", ", and lives"));
        sleep_ms(300).await;
    }
    view.read_queued();
    assert_eq!(view.text(), "anew", "batches of the old epoch are ignored");
    assert_eq!(ReaderView::subscribe(&b).text(), "anew");
}

#[tokio::test(start_paused = true)]
async fn store_faults_only_delay_readers() {
    for seed in 0..12 {
        let env = TestEnv::new();
        let (a, b) = (env.instance("a"), env.instance("b"));
        env.put_head(1, 1, Some("a.1")).await;
        env.memory.set_faults(StoreFaults {
            conflict: 0.1,
            conflict_after: 0.1,
            unavailable_before: 0.1,
            unavailable_after: 0.1,
            unavailable_late: 0.1,
            unavailable_reads: 0.2,
            stale_reads: 0.2,
            yield_to_others: 0.3,
            ..StoreFaults::default()
        });
        let mut view = ReaderView::subscribe(&b);
        a.publish(&key("c"), response_started_in(1));
        a.publish(&key("c"), text_start("m1"));
        let mut whole = String::new();
        for number in 0..400 {
            if number == 300 {
                env.memory.set_faults(StoreFaults::default());
            }
            let word = format!("{number} ");
            a.publish(&key("c"), text_delta("m1", &word));
            whole += &word;
            sleep_ms(100).await;
            view.read_queued();
            assert!(whole.starts_with(view.text()), "{seed}: {} of {whole}", view.text());
        }
        sleep_ms(2_000).await;
        view.read_queued();
        assert_eq!(view.text(), whole, "{seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn oversized_batch_becomes_partial_response() {
    let (env, a, _, mut view) = relayed().await;
    start_response(&a).await;
    a.publish(&key("c"), text_delta("m1", "x"));
    sleep_ms(1_000).await;
    for _ in 0..100 {
        a.publish(&key("c"), text_delta("m1", &"y".repeat(10_000)));
    }
    sleep_ms(1_000).await;
    view.read_queued();
    assert_eq!((view.text().len(), view.snapshots), (1_000_001, 2));
    assert!(env.batches().await.len() < 5);
}

#[tokio::test(start_paused = true)]
async fn deleted_conversation_is_reported() {
    let env = TestEnv::new();
    let b = env.instance("b");
    env.put_head(1, 1, None).await;
    let (_, mut reader) = b.subscribe(&key("c"));
    let attention = b.subscribe_remote(&key("c"), Interest::Commits);
    sleep_ms(100).await;
    assert_eq!(queued_events(&mut *reader), [committed(1)]);
    env.put_deleted_head().await;
    sleep_ms(5_000).await;
    assert_eq!(queued_events(&mut *reader).first(), Some(&LiveEvent::Deleted));
    assert_eq!(env.store.counts().of("write watch"), 0, "a reader of commits needs no deltas");
    drop(attention);
    let before = env.store.counts();
    sleep_ms(60_000).await;
    assert_eq!(env.store.since(&before).total(), 0, "without readers there is no poller");
}

#[tokio::test(start_paused = true)]
async fn each_of_three_watchers_finds_another() {
    let env = TestEnv::new();
    let names = ["a", "b", "c"];
    let instances = names.map(|name| env.instance(name));
    env.put_head(1, 1, Some("z.1")).await;
    let views: Vec<ReaderView> = instances.iter().map(ReaderView::subscribe).collect();
    for _ in 0..60 {
        sleep_ms(2_000).await;
        for name in names {
            assert!(!env.watchers_for(name).await.is_empty(), "{name} finds no other watcher");
        }
        assert!(env.watchers_for("z").await.len() <= 2, "at most two watchers are stored");
    }
    drop(views);
    sleep_ms(31_000).await;
    assert_eq!(env.watchers_for("z").await, []);
}

#[tokio::test(start_paused = true)]
async fn reset_reaches_other_instance() {
    let (_, a, b, mut view) = relayed().await;
    start_response(&a).await;
    a.publish(&key("c"), text_delta("m1", "x"));
    sleep_ms(1_000).await;
    view.read_queued();
    a.publish(&key("c"), reset("m1"));
    sleep_ms(1_000).await;
    assert_eq!(view.read_queued(), [reset("m1")]);
    assert!(b.subscribe(&key("c")).0.is_none());
    assert_eq!(response_started("m1"), response_started_in(1), "the response of the contract test");
}
