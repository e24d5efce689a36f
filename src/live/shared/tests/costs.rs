//! Cost of reading: store requests per minute, for one conversation on one instance.

use super::super::super::contract::{key, text};
use super::counting::Counts;
use super::stage::{Stage, View, after, begun};
use crate::live::{Live as _, SharedLive};

const MINUTE: u64 = 60_000;

async fn minute(stage: &Stage, work: impl AsyncFnOnce()) -> Counts {
    let before = stage.store.counts();
    work().await;
    stage.store.since(&before)
}

fn shown(cost: &Counts) -> String {
    let whats = ["read head", "select live", "read watch", "write watch", "write live"];
    let parts = whats.map(|what| format!("{what} {}", cost.of(what)));
    let known: usize = whats.iter().map(|what| cost.of(what)).sum();
    assert_eq!(known, cost.total(), "there are no other requests: {cost:?}");
    parts.join(", ")
}

#[tokio::test(start_paused = true)]
async fn a_minute_of_reading_is_paid_once_for_all_readers() {
    let stage = Stage::new();
    let (a, b) = (stage.instance("a"), stage.instance("b"));
    stage.head(1, 1, None).await;
    let readers: Vec<View> = (0..50).map(|_| View::of(&b)).collect();
    after(MINUTE).await;
    let rests = minute(&stage, async || after(MINUTE).await).await;
    after(5 * MINUTE).await;
    let quiet = minute(&stage, async || after(MINUTE).await).await;
    // Another instance starts a turn without streaming.
    stage.head(2, 2, Some("a.1")).await;
    after(5_000).await;
    let busy = minute(&stage, async || after(MINUTE).await).await;
    a.publish(&key("c"), begun(2));
    let streams = minute(&stage, async || stream(&a, MINUTE).await).await;
    let table = [("rests", rests), ("quiet", quiet), ("busy", busy), ("streams", streams)];
    insta::assert_snapshot!(shown_all(&table), @r"
    rests: read head 30, select live 0, read watch 0, write watch 3, write live 0
    quiet: read head 12, select live 0, read watch 0, write watch 0, write live 0
    busy: read head 120, select live 120, read watch 0, write watch 3, write live 0
    streams: read head 31, select live 120, read watch 4, write watch 3, write live 240
    ");
    drop(readers);
}

#[tokio::test(start_paused = true)]
async fn a_minute_of_reading_where_the_turn_is_done_costs_a_look_now_and_then() {
    let stage = Stage::new();
    let a = stage.instance("a");
    stage.head(1, 1, Some("a.1")).await;
    let _view = View::of(&a);
    a.publish(&key("c"), begun(1));
    let streams = minute(&stage, async || stream(&a, MINUTE).await).await;
    insta::assert_snapshot!(shown_all(&[("streams", streams)]), @"streams: read head 31, select live 0, read watch 4, write watch 4, write live 0");
}

fn shown_all(table: &[(&str, Counts)]) -> String {
    let lines = table.iter().map(|(what, cost)| format!("{what}: {}", shown(cost)));
    lines.collect::<Vec<_>>().join("\n")
}

async fn stream(live: &SharedLive, ms: u64) {
    for _ in 0..ms / 100 {
        live.publish(&key("c"), text("m1", "word "));
        after(100).await;
    }
}
