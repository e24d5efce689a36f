//! Several instances over one store, in paused time.

mod costs;
mod counting;
mod stage;

use self::stage::{Stage, View, after, begun};
use super::super::contract::{
    self, committed, delta, key, reset, start, text, text_start, waiting,
};
use crate::agent::content::ToolCall;
use crate::agent::event::{AnswerEvent, TypedToolCall};
use crate::agent::raw::{Extra, RawJson};
use crate::live::{Interest, Live as _, LiveEvent};
use crate::store::memory::Faults;

#[tokio::test(start_paused = true)]
async fn it_keeps_the_contract() {
    contract::contract(&Stage::new().instance("a")).await;
}

#[tokio::test(start_paused = true)]
async fn deltas_of_one_instance_reach_readers_of_another_in_order_and_once() {
    let stage = Stage::new();
    let (a, b) = (stage.instance("a"), stage.instance("b"));
    stage.head(5, 10, Some("a.1")).await;
    let mut view = View::of(&b);
    after(100).await;

    a.publish(&key("c"), begun(5));
    a.publish(&key("c"), text_start("m1"));
    let mut whole = String::new();
    for number in 0..60 {
        let word = format!("{number} ");
        a.publish(&key("c"), text("m1", &word));
        whole += &word;
        after(50).await;
        view.hear();
        assert!(whole.starts_with(view.text()), "{} of {whole}", view.text());
    }
    assert!(view.text().len() * 2 > whole.len(), "deltas arrive while streaming: {} of {whole}", view.text());
    let pages = stage.pages().await;
    assert!((8..=13).contains(&pages.len()), "{} batches in 3 s", pages.len());

    let call = ToolCall {
        id: "call_1".to_owned(),
        name: "pay".to_owned(),
        arguments: RawJson::from_text(r#"{"amount": 5.0}"#).unwrap(),
        thought_signature: None,
        extra: Extra::new(),
    };
    let end = AnswerEvent::ToolcallEnd { content_index: 1, tool_call: TypedToolCall { call } };
    a.publish(&key("c"), delta("m1", end.clone()));
    stage.head(5, 12, Some("a.1")).await;
    a.publish(&key("c"), committed(12));
    after(1_000).await;
    let last = view.hear();
    assert_eq!(view.text(), whole);
    assert_eq!(last[last.len() - 2..], [delta("m1", end), committed(12)], "numbers keep their written form");
    assert_eq!(view.snapshots, 1, "one snapshot on subscription, then only new events");
    after(5_000).await;
    assert_eq!(view.hear(), []);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_watches_elsewhere_is_not_written() {
    let stage = Stage::new();
    let a = stage.instance("a");
    stage.head(1, 1, Some("a.1")).await;
    let before = stage.store.counts();
    a.publish(&key("c"), begun(1));
    after(5_000).await;
    assert_eq!(stage.store.since(&before).total(), 0, "no request before the first delta");
    for _ in 0..190 {
        a.publish(&key("c"), text("m1", "x"));
        after(100).await;
    }
    let cost = stage.store.since(&before);
    assert_eq!((cost.total(), cost.of("read watch")), (1, 1), "one point read for a response");
    for _ in 0..200 {
        a.publish(&key("c"), text("m1", "x"));
        after(100).await;
    }
    assert_eq!(stage.store.since(&before).total(), 2, "one more for each 20 s");
    a.publish(&key("c"), committed(2));
    after(60_000).await;
    assert_eq!(stage.store.since(&before).total(), 2);
    assert_eq!(a.inner.relays().count(), 0, "the publisher is removed");
    a.publish(&key("c"), begun(2));
    a.publish(&key("c"), reset("m1"));
    assert_eq!(a.inner.relays().count(), 0, "the publisher of a response without deltas is removed too");
}

#[tokio::test(start_paused = true)]
async fn the_instance_that_does_the_turn_tells_its_own_readers_and_writes_nothing() {
    let stage = Stage::new();
    let a = stage.instance("a");
    stage.head(1, 1, Some("a.1")).await;
    let mut view = View::of(&a);
    after(100).await;
    let before = stage.store.counts();
    a.publish(&key("c"), begun(1));
    a.publish(&key("c"), text_start("m1"));
    for number in 0..50 {
        a.publish(&key("c"), text("m1", &number.to_string()));
        assert_eq!(view.hear().last(), Some(&text("m1", &number.to_string())));
        after(100).await;
    }
    a.publish(&key("c"), committed(2));
    assert_eq!(view.hear(), [committed(2)]);
    let cost = stage.store.since(&before);
    assert_eq!((cost.of("write live"), cost.of("select live")), (0, 0), "{cost:?}");
}

#[tokio::test(start_paused = true)]
async fn when_the_last_reader_has_gone_the_writing_stops() {
    let stage = Stage::new();
    let (a, b) = (stage.instance("a"), stage.instance("b"));
    stage.head(1, 1, Some("a.1")).await;
    let mut view = View::of(&b);
    after(100).await;
    a.publish(&key("c"), begun(1));
    a.publish(&key("c"), text_start("m1"));
    let publish = async |seconds: u64| {
        for _ in 0..seconds * 5 {
            a.publish(&key("c"), text("m1", "x"));
            after(200).await;
        }
    };
    publish(90).await;
    view.hear();
    assert!(view.text().len() > 440, "the watch is renewed: {}", view.text().len());
    drop(view);
    publish(31).await;
    let before = stage.store.counts();
    publish(60).await;
    let cost = stage.store.since(&before);
    assert_eq!(cost.of("write live"), 0, "{cost:?}");
    assert_eq!(cost.total(), cost.of("read watch"), "b sends no more requests: {cost:?}");

    let mut again = View::of(&b);
    publish(25).await;
    again.hear();
    assert!(again.text().len() > 440, "a returning reader gets the whole response: {}", again.text().len());
}

#[tokio::test(start_paused = true)]
async fn who_joins_in_the_middle_is_shown_what_there_is() {
    let stage = Stage::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| stage.instance(name));
    stage.head(1, 1, Some("a.1")).await;
    let mut first = View::of(&b);
    after(100).await;
    for event in [begun(1), text_start("m1"), text("m1", "Hel"), text("m1", "lo")] {
        a.publish(&key("c"), event);
    }
    after(1_000).await;
    let mut second = View::of(&b);
    assert_eq!(second.text(), "Hello", "the same instance already has it");
    let mut third = View::of(&c);
    after(1_000).await;
    third.hear();
    assert_eq!((third.text(), third.snapshots), ("Hello", 1), "another instance reads the batches");
    a.publish(&key("c"), text("m1", ", you"));
    after(1_000).await;
    for view in [&mut first, &mut second, &mut third] {
        view.hear();
        assert_eq!(view.text(), "Hello, you");
    }
    a.publish(&key("c"), committed(2));
    after(1_000).await;
    assert!(b.subscribe(&key("c")).0.is_none(), "a committed response is no snapshot");
    drop((first, second));
    a.publish(&key("c"), begun(1));
    a.publish(&key("c"), text("m1", "x"));
    after(1_000).await;
    assert!(b.subscribe(&key("c")).0.is_none(), "a response without a poller is no snapshot");
}

#[tokio::test(start_paused = true)]
async fn a_take_over_voids_what_was_told() {
    let stage = Stage::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| stage.instance(name));
    stage.head(5, 10, Some("a.1")).await;
    let mut view = View::of(&b);
    after(100).await;
    a.publish(&key("c"), begun(5));
    a.publish(&key("c"), text_start("m1"));
    a.publish(&key("c"), text("m1", "of a worker presumed dead"));
    after(1_000).await;
    view.hear();
    assert!(view.text().starts_with("of a worker"));

    stage.head(6, 11, Some("c.1")).await;
    for _ in 0..8 {
        a.publish(&key("c"), text("m1", ", and goes on"));
        after(300).await;
    }
    assert_eq!(view.hear().last(), Some(&committed(11)), "the reset is committed");
    assert!(b.subscribe(&key("c")).0.is_none());
    c.publish(&key("c"), begun(6));
    c.publish(&key("c"), text_start("m1"));
    c.publish(&key("c"), text("m1", "anew"));
    for _ in 0..10 {
        a.publish(&key("c"), text("m1", ", and lives"));
        after(300).await;
    }
    view.hear();
    assert_eq!(view.text(), "anew", "batches of the old epoch are ignored");
    assert_eq!(View::of(&b).text(), "anew");
}

#[tokio::test(start_paused = true)]
async fn a_fault_of_the_store_only_takes_time() {
    for seed in 0..12 {
        let stage = Stage::new();
        let (a, b) = (stage.instance("a"), stage.instance("b"));
        stage.head(1, 1, Some("a.1")).await;
        stage.memory.set_faults(Faults {
            conflict: 0.1,
            conflict_after: 0.1,
            unavailable_before: 0.1,
            unavailable_after: 0.1,
            unavailable_late: 0.1,
            unavailable_reads: 0.2,
            stale_reads: 0.2,
            step_aside: 0.3,
            ..Faults::default()
        });
        let mut view = View::of(&b);
        a.publish(&key("c"), begun(1));
        a.publish(&key("c"), text_start("m1"));
        let mut whole = String::new();
        for number in 0..400 {
            if number == 300 {
                stage.memory.set_faults(Faults::default());
            }
            let word = format!("{number} ");
            a.publish(&key("c"), text("m1", &word));
            whole += &word;
            after(100).await;
            view.hear();
            assert!(whole.starts_with(view.text()), "{seed}: {} of {whole}", view.text());
        }
        after(2_000).await;
        view.hear();
        assert_eq!(view.text(), whole, "{seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn more_than_a_page_can_hold_becomes_the_answer_so_far() {
    let stage = Stage::new();
    let (a, b) = (stage.instance("a"), stage.instance("b"));
    stage.head(1, 1, Some("a.1")).await;
    let mut view = View::of(&b);
    after(100).await;
    a.publish(&key("c"), begun(1));
    a.publish(&key("c"), text_start("m1"));
    a.publish(&key("c"), text("m1", "x"));
    after(1_000).await;
    for _ in 0..100 {
        a.publish(&key("c"), text("m1", &"y".repeat(10_000)));
    }
    after(1_000).await;
    view.hear();
    assert_eq!((view.text().len(), view.snapshots), (1_000_001, 2));
    assert!(stage.pages().await.len() < 5);
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_is_gone_is_told() {
    let stage = Stage::new();
    let b = stage.instance("b");
    stage.head(1, 1, None).await;
    let (_, mut reader) = b.subscribe(&key("c"));
    let attention = b.attend(&key("c"), Interest::Commits);
    after(100).await;
    assert_eq!(waiting(&mut *reader), [committed(1)]);
    stage.deleted().await;
    after(5_000).await;
    assert_eq!(waiting(&mut *reader).first(), Some(&LiveEvent::Gone));
    assert_eq!(stage.store.counts().of("write watch"), 0, "a reader of commits needs no deltas");
    drop(attention);
    let before = stage.store.counts();
    after(60_000).await;
    assert_eq!(stage.store.since(&before).total(), 0, "without readers there is no poller");
}

#[tokio::test(start_paused = true)]
async fn of_three_instances_that_watch_each_finds_another() {
    let stage = Stage::new();
    let names = ["a", "b", "c"];
    let instances = names.map(|name| stage.instance(name));
    stage.head(1, 1, Some("z.1")).await;
    let views: Vec<View> = instances.iter().map(View::of).collect();
    for _ in 0..60 {
        after(2_000).await;
        for name in names {
            assert!(!stage.watching(name).await.is_empty(), "{name} finds no other watcher");
        }
        assert!(stage.watching("z").await.len() <= 2, "at most two watchers are stored");
    }
    drop(views);
    after(31_000).await;
    assert_eq!(stage.watching("z").await, []);
}

#[tokio::test(start_paused = true)]
async fn a_void_answer_is_void_elsewhere() {
    let stage = Stage::new();
    let (a, b) = (stage.instance("a"), stage.instance("b"));
    stage.head(1, 1, Some("a.1")).await;
    let mut view = View::of(&b);
    after(100).await;
    for event in [begun(1), text_start("m1"), text("m1", "x")] {
        a.publish(&key("c"), event);
    }
    after(1_000).await;
    view.hear();
    a.publish(&key("c"), reset("m1"));
    after(1_000).await;
    assert_eq!(view.hear(), [reset("m1")]);
    assert!(b.subscribe(&key("c")).0.is_none());
    assert_eq!(start("m1"), begun(1), "the response of the contract test");
}
