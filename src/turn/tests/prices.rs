//! The table of `docs/costs.md`, counted by a test so that it stays up to date.

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

/// Request units of one document up to 1 KB. A query of a few documents is read by a quorum, which
/// doubles its cost.
const INSERT: f64 = 5.5;
const REPLACE: f64 = 11.0;
const QUERY: f64 = 6.0;
const READ: f64 = 2.0;
/// Dollars per million request units, and per 10,000 queue operations.
const MILLION_UNITS: f64 = 0.279;
const QUEUE_OPERATIONS: f64 = 0.004;
/// A nudge is put, received and deleted.
const OPERATIONS_OF_A_NUDGE: f64 = 3.0;

struct Row {
    what: &'static str,
    requests: String,
    /// Number of nudges that the row takes.
    nudges: u8,
}

/// Request units by the published rules. The actual charge of the service is logged.
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
        row("accept the first prompt of a conversation", accepted, 0),
        row("turn without tool calls", answered, 1),
    ];
    let (mut bench, world, counting) = stage(looks_twice).await;
    rows.push(row("first turn with one tool call", turn(&bench, &world, &counting).await, 1));
    let warm = turn(&bench, &world, &counting).await;
    rows.push(row("further turn with one tool call", warm, 1));
    rows.push(row("last turn, without tool calls", turn(&bench, &world, &counting).await, 1));
    let (other, helper, notes) = stage_at_once(8, three_short_naps).await;
    let three = turn(&other, &helper, &notes).await;
    rows.push(row("first turn with three parallel calls", three, 1));
    assert_eq!(bells(&bench).await, 0);
    handle(&world, &Bench::nudge()).await.unwrap();
    rows.push(row("superfluous nudge", counting.told(), 1));
    rows.push(paused().await);
    sweep::sweep(&world, sweep::GRACE).await.unwrap();
    rows.push(row("recovery sweep without pending work", counting.told(), 0));
    let cold = bench.worker(Arc::new(NoProbe));
    bench.queue_up(&world, &Bench::key(), "again").await.unwrap();
    rows.push(row("accept a prompt of an existing conversation", counting.told(), 0));
    let told = turn(&bench, &cold, &counting).await;
    rows.push(row("turn on an instance without cached entries", told, 1));
    let (mut bench, world, counting) = stage(is_gated).await;
    rows.push(row("turn that requests an approval", turn(&bench, &world, &counting).await, 1));
    bench.decide().await;
    rows.push(row("accept a decision", counting.told(), 0));
    let told = turn(&bench, &world, &counting).await;
    rows.push(row("turn after the decision: the call and a response", told, 1));
    let (bench, world, counting) = stage(is_gated).await;
    turn(&bench, &world, &counting).await;
    bench.queue_up(&world, &Bench::key(), "later").await.unwrap();
    rows.push(row("accept a steer or follow-up while a prompt runs", counting.told(), 0));
    let (bench, world, counting) = stage(looks_twice).await;
    turn(&bench, &world, &counting).await;
    *bench.model.failures.lock().unwrap() = 1;
    let told = turn(&bench, &world, &counting).await;
    rows.push(row("model call that fails and is retried", told, 1));
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
    let mut rows = vec![row("post usage to the ledger, once in 10 minutes", told, 1)];
    let (mut bench, _, counting) = stage(looks_twice).await;
    bench.money = everything_is_bounded();
    let world = bench.worker(Arc::new(NoProbe));
    turn(&bench, &world, &counting).await;
    let told = turn(&bench, &world, &counting).await;
    let what = "further turn with one tool call, with budgets of user, agent and tenant";
    rows.push(row(what, told, 1));
    let told = turn(&bench, &world, &counting).await;
    rows.push(row("last turn, without tool calls, with the same budgets", told, 1));
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
    let what = "check of a paused conversation, once a minute";
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
    let made = Row { what: "create a schedule", requests: counting.told(), nudges: 0 };
    tokio::time::sleep(Duration::from_mins(10)).await;
    let bell = id_of(&owner().user, &ScheduleId::new("s"));
    handle(&world, &Nudge::of_schedule(&owner().tenant, &bell)).await.unwrap();
    let what = "fire a schedule: its prompt is accepted";
    [made, Row { what, requests: counting.told(), nudges: 1 }]
}

#[tokio::test(start_paused = true)]
async fn the_table_of_costs_is_what_is_counted() {
    let mut table = String::from(
        "| operation | requests | in order | units | queue operations | $ per 1,000 |\n|---|---|---|---|---|---|\n",
    );
    for row in Box::pin(rows()).await {
        let _ = write!(table, "{}", row.written());
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/costs.md");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(&table), "docs/costs.md needs this table:\n{table}");
}
