//! Lists of active conversations: stuck, waiting for approvers, or paused.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::bench::{Bench, call, owner, text};
use crate::agent::raw::RawJson;
use crate::clock::Clock as _;
use crate::ids::TenantId;
use crate::queue;
use crate::settings::brakes::parse;
use crate::store::{ConversationStore as _, Document, HEAD_ID, Kind, Partition, Write};
use crate::turn::NoProbe;
use crate::turn::Nudge;
use crate::turn::delivery::handle;
use crate::turn::views::why::Service;
use crate::turn::views::work::{WorkQuery, WorkReport, work};

fn asks_or_answers(results: usize, said: &str) -> Vec<Value> {
    match (said, results) {
        ("ask", 0) => vec![call("c1", "gated", 0)],
        _ => vec![text("done")],
    }
}

async fn listed(bench: &Bench, query: WorkQuery) -> WorkReport {
    work(&*bench.shared, &query, Service::Elsewhere, bench.clock.now()).await.unwrap()
}

fn told(report: &WorkReport) -> Vec<String> {
    let told =
        |view: &crate::turn::views::why::WhyView| format!("{} {}", view.id, json!(view.waits_for));
    report.items.iter().map(told).collect()
}

fn stuck() -> WorkQuery {
    WorkQuery { stuck: Some(Duration::from_mins(10)), ..WorkQuery::default() }
}

#[tokio::test(start_paused = true)]
async fn what_is_stuck_waits_or_is_kept_is_told_apart() {
    let mut bench = Bench::with(1, asks_or_answers);
    let world = bench.worker(Arc::new(NoProbe));
    let nudge = |id: &str| Nudge::of(owner().key(id), None);
    bench.ask_in(&world, "idle", "go").await;
    handle(&world, &nudge("idle")).await.unwrap();
    bench.ask_in(&world, "person", "ask").await;
    handle(&world, &nudge("person")).await.unwrap();
    bench.brakes = Arc::new(parse("*").unwrap());
    let braking = bench.worker(Arc::new(NoProbe));
    bench.ask_in(&world, "paused", "go").await;
    handle(&braking, &nudge("paused")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    bench.ask_in(&world, "new", "go").await;
    bench.queue.drop_queue(queue::TURNS);

    let all = listed(&bench, WorkQuery::default()).await;
    assert_eq!(told(&all), ["new \"nudge\"", "paused \"paused\"", "person \"approval\""]);
    assert!(!all.is_cut && all.unreadable.is_empty());
    let waiting = WorkQuery { is_waiting: true, ..WorkQuery::default() };
    assert_eq!(told(&listed(&bench, waiting).await), ["person \"approval\""]);
    assert_eq!(told(&listed(&bench, stuck()).await), Vec::<String>::new());

    tokio::time::sleep(Duration::from_mins(11)).await;
    let late = listed(&bench, stuck()).await;
    assert_eq!(told(&late), ["new \"nudge\""], "a paused conversation is not stuck");
    assert!(late.items[0].why.ends_with("That is overdue."), "{}", late.items[0].why);
    let others = WorkQuery { tenant: Some(TenantId::new("other")), ..stuck() };
    assert_eq!(told(&listed(&bench, others).await), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_is_named_and_hides_nobody() {
    let mut bench = Bench::with(1, asks_or_answers);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask_in(&world, "new", "go").await;
    let head = Document {
        id: HEAD_ID.to_owned(),
        kind: Kind::Head,
        body: RawJson::of(&json!({"phase": "unheard of"})),
        due: Some(bench.clock.now()),
        created_at: Some(bench.clock.now()),
        state: Some("running".to_owned()),
        ttl: None,
    };
    let broken = Partition::Conversation(owner().key("broken"));
    bench.store.write(&broken, vec![Write::Create(head)]).await.unwrap();
    tokio::time::sleep(Duration::from_mins(11)).await;
    let report = listed(&bench, stuck()).await;
    assert_eq!(told(&report), ["new \"nudge\""]);
    assert_eq!(report.unreadable, ["t/u/broken"]);
}
