//! Cost of reading: store requests per minute, for one conversation on one instance.

use super::super::super::contract::{key, text_delta};
use super::counting_store::Counts;
use super::env::{ReaderView, TestEnv, response_started_in, sleep_ms};
use crate::live::{Live as _, SharedLive};

const MINUTE: u64 = 60_000;

async fn count_requests(env: &TestEnv, work: impl AsyncFnOnce()) -> Counts {
    let before = env.store.counts();
    work().await;
    env.store.since(&before)
}

/// Request units by the published rules. A registration is replaced; a batch is created, and deleted
/// by its `ttl`. All reads may lag.
fn request_units(cost: &Counts) -> usize {
    let reads = cost.of("read head") + cost.of("read watch") + 3 * cost.of("select live");
    reads + 11 * (cost.of("write watch") + cost.of("write live"))
}

fn format_counts(cost: &Counts) -> String {
    let whats = ["read head", "select live", "read watch", "write watch", "write live"];
    let parts = whats.map(|what| format!("{what} {}", cost.of(what)));
    let known: usize = whats.iter().map(|what| cost.of(what)).sum();
    assert_eq!(known, cost.total(), "there are no other requests: {cost:?}");
    format!("{}: {} units", parts.join(", "), request_units(cost))
}

#[tokio::test(start_paused = true)]
async fn all_readers_share_polling_cost() {
    let env = TestEnv::new();
    let (a, b) = (env.instance("a"), env.instance("b"));
    env.put_head(1, 1, None).await;
    let readers: Vec<ReaderView> = (0..50).map(|_| ReaderView::subscribe(&b)).collect();
    sleep_ms(MINUTE).await;
    let rests = count_requests(&env, async || sleep_ms(MINUTE).await).await;
    sleep_ms(5 * MINUTE).await;
    let quiet = count_requests(&env, async || sleep_ms(MINUTE).await).await;
    // Another instance starts a turn without streaming.
    env.put_head(2, 2, Some("a.1")).await;
    sleep_ms(5_000).await;
    let busy = count_requests(&env, async || sleep_ms(MINUTE).await).await;
    a.publish(&key("c"), response_started_in(2));
    let streams = count_requests(&env, async || stream_words(&a, MINUTE).await).await;
    let page = include_str!("../../../../../../docs/costs.md");
    for (conversation, cost) in [
        ("idle, last read less than 5 minutes ago", &rests),
        ("idle for longer", &quiet),
        ("runs on another instance, streams nothing", &busy),
        ("streams on another instance", &streams),
    ] {
        let row = page_row(conversation, cost);
        assert!(page.contains(&row), "docs/costs.md needs this row: {row}");
    }
    let table = [("rests", rests), ("quiet", quiet), ("busy", busy), ("streams", streams)];
    insta::assert_snapshot!(format_table(&table), @r"
    rests: read head 30, select live 0, read watch 0, write watch 3, write live 0: 63 units
    quiet: read head 12, select live 0, read watch 0, write watch 0, write live 0: 12 units
    busy: read head 120, select live 120, read watch 0, write watch 3, write live 0: 513 units
    streams: read head 37, select live 120, read watch 4, write watch 3, write live 95: 1479 units
    ");
    drop(readers);
}

#[tokio::test(start_paused = true)]
async fn long_overdue_work_is_polled_like_idle() {
    let env = TestEnv::new();
    let b = env.instance("b");
    env.put_head(1, 1, None).await;
    let _view = ReaderView::subscribe(&b);
    env.accept_input().await;
    // Between two polls.
    sleep_ms(7 * MINUTE + 250).await;
    let quiet = count_requests(&env, async || sleep_ms(MINUTE).await).await;
    assert_eq!((quiet.of("read head"), quiet.total()), (12, 12), "{quiet:?}");
}

#[tokio::test(start_paused = true)]
async fn wake_up_of_idle_conversation_costs_few_polls() {
    let env = TestEnv::new();
    let b = env.instance("b");
    env.put_head(1, 1, None).await;
    let _view = ReaderView::subscribe(&b);
    for idle_ms in [MINUTE, 6 * MINUTE] {
        // Between two polls.
        sleep_ms(idle_ms + 250).await;
        let idle = count_requests(&env, async || sleep_ms(10_000).await).await;
        b.wake_pollers(&key("c"));
        let woken = count_requests(&env, async || sleep_ms(10_000).await).await;
        let (idle, woken) = (idle.of("read head"), woken.of("read head"));
        assert!((idle + 1..=idle + 4).contains(&woken), "{woken} reads, {idle} without work");
    }
}

#[tokio::test(start_paused = true)]
async fn local_reading_costs_few_polls() {
    let env = TestEnv::new();
    let a = env.instance("a");
    env.put_head(1, 1, Some("a.1")).await;
    let _view = ReaderView::subscribe(&a);
    a.publish(&key("c"), response_started_in(1));
    let streams = count_requests(&env, async || stream_words(&a, MINUTE).await).await;
    insta::assert_snapshot!(format_table(&[("streams", streams)]), @"streams: read head 31, select live 0, read watch 4, write watch 4, write live 0: 79 units");
}

/// The row of the readers' table in docs/costs.md.
fn page_row(conversation: &str, cost: &Counts) -> String {
    let [heads, selects, registrations, batches] =
        ["read head", "select live", "write watch", "write live"].map(|request| cost.of(request));
    let units = request_units(cost);
    let units = match units / 1_000 {
        0 => units.to_string(),
        thousands => format!("{thousands},{:03}", units % 1_000),
    };
    format!("| {conversation} | {heads} | {selects} | {registrations} | {batches} | {units} |")
}

fn format_table(table: &[(&str, Counts)]) -> String {
    let lines = table.iter().map(|(what, cost)| format!("{what}: {}", format_counts(cost)));
    lines.collect::<Vec<_>>().join("\n")
}

async fn stream_words(live: &SharedLive, ms: u64) {
    for _ in 0..ms / 100 {
        live.publish(&key("c"), text_delta("m1", "word "));
        sleep_ms(100).await;
    }
}
