//! The table of docs/costs.md: counted here, so that it cannot grow old.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::bench::{Bench, Script, idempotency, owner};
use super::economy::{bells, is_gated, looks_twice, says_hello, stage, turn};
use super::money::everything_is_bounded;
use super::together::{stage as stage_at_once, three_short_naps};
use crate::ids::ScheduleId;
use crate::settings::brakes::parse;
use crate::turn::delivery::handle;
use crate::turn::schedules::create::{NewSchedule, create};
use crate::turn::schedules::id_of;
use crate::turn::{NoProbe, Nudge, sweep};

/// Request units of one document, up to 1 KB: inserted, replaced. A query of a few is read by a quorum, which doubles it.
const INSERT: f64 = 5.5;
const REPLACE: f64 = 11.0;
const QUERY: f64 = 6.0;
const READ: f64 = 2.0;
/// Dollars for a million request units, and for 10,000 operations of a queue.
const MILLION_UNITS: f64 = 0.279;
const QUEUE_OPERATIONS: f64 = 0.004;
/// Put, received, deleted.
const OPERATIONS_OF_A_NUDGE: f64 = 3.0;

struct Row {
    what: &'static str,
    requests: String,
    /// Nudges that made it happen.
    nudges: u8,
}

/// By the published rules; what the service was really charged, it logs.
fn units(request: &str) -> f64 {
    let Some(batch) = request.strip_prefix("write ") else {
        return if request.starts_with("read") { READ } else { QUERY };
    };
    let documents = batch.split(", ").map(|run| {
        let (count, kind) = run.split_once(' ').unwrap_or(("1", run));
        let (count, kind) = count.parse::<f64>().map_or((1.0, run), |count| (count, kind));
        count
            * if ["head", "receipt", "scope", "scope (changed)", "inbox (left waiting)"]
                .contains(&kind)
            {
                REPLACE
            } else {
                INSERT
            }
    });
    documents.sum()
}

impl Row {
    fn written(&self) -> String {
        let requests: Vec<&str> = self.requests.lines().collect();
        let units: f64 = requests.iter().map(|request| units(request)).sum();
        let operations = f64::from(self.nudges) * OPERATIONS_OF_A_NUDGE;
        let dollars = units / 1_000.0 * MILLION_UNITS + operations / 10.0 * QUEUE_OPERATIONS;
        format!(
            "| {} | {} | {} | {units:.0} | {operations:.0} | {dollars:.4} |\n",
            self.what,
            requests.len(),
            requests.join(" · "),
        )
    }
}

async fn once(script: Script) -> [String; 2] {
    let (bench, world, counting) = stage(script).await;
    [counting.told(), turn(&bench, &world, &counting).await]
}

async fn rows() -> Vec<Row> {
    let [accepted, answered] = once(says_hello).await;
    let row = |what, requests, nudges| Row { what, requests, nudges };
    let mut rows = vec![
        row("a prompt that begins a conversation is accepted", accepted, 0),
        row("a turn that only answers", answered, 1),
    ];
    let (mut bench, world, counting) = stage(looks_twice).await;
    rows.push(row("a first turn with one tool call", turn(&bench, &world, &counting).await, 1));
    let warm = turn(&bench, &world, &counting).await;
    rows.push(row("a further turn with one tool call", warm, 1));
    rows.push(row("the last turn, which answers", turn(&bench, &world, &counting).await, 1));
    let (other, helper, notes) = stage_at_once(8, three_short_naps).await;
    let three = turn(&other, &helper, &notes).await;
    rows.push(row("a first turn with three calls that run at once", three, 1));
    assert_eq!(bells(&bench).await, 0);
    handle(&world, &Bench::nudge()).await.unwrap();
    rows.push(row("a nudge too many", counting.told(), 1));
    rows.push(paused().await);
    sweep::sweep(&world, sweep::GRACE).await.unwrap();
    rows.push(row("a sweep that finds nothing", counting.told(), 0));
    let cold = bench.worker(Arc::new(NoProbe));
    bench.queue_up(&world, &Bench::key(), "again").await.unwrap();
    rows.push(row("a prompt in a conversation that is there is accepted", counting.told(), 0));
    let told = turn(&bench, &cold, &counting).await;
    rows.push(row("a turn on an instance that does not know the conversation", told, 1));
    let (mut bench, world, counting) = stage(is_gated).await;
    rows.push(row("a turn that asks a person", turn(&bench, &world, &counting).await, 1));
    bench.decide().await;
    rows.push(row("a decision is accepted", counting.told(), 0));
    let told = turn(&bench, &world, &counting).await;
    rows.push(row("the turn after it: the call and an answer", told, 1));
    let (bench, world, counting) = stage(is_gated).await;
    turn(&bench, &world, &counting).await;
    bench.queue_up(&world, &Bench::key(), "later").await.unwrap();
    rows.push(row("a steer or a follow-up is accepted while a prompt runs", counting.told(), 0));
    let (bench, world, counting) = stage(looks_twice).await;
    turn(&bench, &world, &counting).await;
    *bench.model.failures.lock().unwrap() = 1;
    let told = turn(&bench, &world, &counting).await;
    rows.push(row("a call of the model that fails and will be made once more", told, 1));
    rows.extend(scheduled().await);
    rows.extend(rows_of_money().await);
    rows
}

async fn rows_of_money() -> Vec<Row> {
    let row = |what, requests, nudges| Row { what, requests, nudges };
    let (bench, world, counting) = stage(says_hello).await;
    turn(&bench, &world, &counting).await;
    tokio::time::sleep(world.limits.settle_after).await;
    handle(&world, &Bench::nudge()).await.unwrap();
    let told = counting.told();
    let mut rows = vec![row("what was spent is told to the books, once in 10 minutes", told, 1)];
    let (mut bench, _, counting) = stage(looks_twice).await;
    bench.money = everything_is_bounded();
    let world = bench.worker(Arc::new(NoProbe));
    turn(&bench, &world, &counting).await;
    let told = turn(&bench, &world, &counting).await;
    let what = "a further turn with one tool call, where user, agent and tenant have budgets";
    rows.push(row(what, told, 1));
    let told = turn(&bench, &world, &counting).await;
    rows.push(row("the last turn, which answers, with the same budgets", told, 1));
    rows
}

async fn paused() -> Row {
    let (mut bench, _, counting) = stage(says_hello).await;
    bench.brakes = Arc::new(parse("*").unwrap());
    let world = bench.worker(Arc::new(NoProbe));
    handle(&world, &Bench::nudge()).await.unwrap();
    tokio::time::sleep(Duration::from_mins(1)).await;
    counting.told();
    handle(&world, &Bench::nudge()).await.unwrap();
    let what = "a look at what is paused, once a minute";
    Row { what, requests: counting.told(), nudges: 1 }
}

async fn scheduled() -> [Row; 2] {
    let (bench, world, counting) = stage(says_hello).await;
    turn(&bench, &world, &counting).await;
    let request = NewSchedule {
        id: Some("s".to_owned()),
        conversation_id: Some("c".to_owned()),
        every: Some("PT10M".to_owned()),
        ..NewSchedule::default()
    };
    create(&world, &owner(), request, &idempotency("s"), None).await.unwrap();
    let made = Row { what: "a schedule is made", requests: counting.told(), nudges: 0 };
    tokio::time::sleep(Duration::from_mins(10)).await;
    let bell = id_of(&owner().user, &ScheduleId::new("s"));
    handle(&world, &Nudge::of_schedule(&owner().tenant, &bell)).await.unwrap();
    let what = "a schedule fires: its prompt is accepted";
    [made, Row { what, requests: counting.told(), nudges: 1 }]
}

#[tokio::test(start_paused = true)]
async fn the_table_of_costs_is_what_is_counted() {
    let mut table = String::from(
        "| what | requests | in order | units | queue operations | $ for 1,000 |\n|---|---|---|---|---|---|\n",
    );
    for row in Box::pin(rows()).await {
        let _ = write!(table, "{}", row.written());
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/costs.md");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(&table), "docs/costs.md needs this table:\n{table}");
}
