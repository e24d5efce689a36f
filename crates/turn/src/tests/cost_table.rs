//! The tables of `docs/costs.md`, counted by a test so that they stay up to date.

mod examples;

use crate::tests::test_env::LoggedRequests as _;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::budgets::limit_everything;
use super::memory::{new_memory_env, remembers_then_looks};
use super::parallel_calls::{new_env as stage_at_once, three_short_naps};
use super::result_hooks::{Appends, calls_pay};
use super::store_requests::{
    calls_gated, calls_look_twice, handle_next_nudge, new_env, queued_nudges, replies_hello,
};
use super::test_env::{Script, TestEnv, idempotency, owner};
use super::user_skills::{creates_and_loads, loads_mine, new_user_skill_env};
use crate::delivery::handle;
use crate::sweep;
use turnwheel_commands::schedules::create::{NewSchedule, accept_schedule};
use turnwheel_commands::schedules::schedule_document_id;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::ScheduleId;
use turnwheel_platform::settings::pauses::parse;
use turnwheel_record::nudge::Nudge;

/// Request units of one document up to 1 KB. A query of a few documents is read by a quorum, which
/// doubles its cost.
const INSERT_UNITS: f64 = 5.5;
/// Of the events and entries of a commit in one document of up to 3 KB.
const COMMIT_UNITS: f64 = 7.0;
const REPLACE_UNITS: f64 = 11.0;
const QUERY_UNITS: f64 = 6.0;
const READ_UNITS: f64 = 2.0;
/// Dollars per million request units, and per 10,000 queue operations.
const DOLLARS_PER_MILLION_UNITS: f64 = 0.279;
const DOLLARS_PER_10K_QUEUE_OPERATIONS: f64 = 0.004;
/// A nudge is put, received and deleted.
const OPERATIONS_PER_NUDGE: f64 = 3.0;

struct CostRow {
    operation: &'static str,
    requests: String,
    /// Number of nudges that the row takes.
    nudges: u8,
}

/// Request units by the published rules. The actual charge of the service is logged.
fn request_units(request: &str) -> f64 {
    let Some(batch) = request.strip_prefix("write ") else {
        let is_point_read = request.starts_with("read") || request == "lease (head)";
        return if is_point_read { READ_UNITS } else { QUERY_UNITS };
    };
    let documents = batch.split(", ").map(|run| {
        let (count, kind) = run.split_once(' ').unwrap_or(("1", run));
        let (count, kind) = count.parse::<f64>().map_or((1.0, run), |count| (count, kind));
        count
            * match kind {
                "head" | "head (count)" | "receipt" | "scope" | "scope (changed)" => REPLACE_UNITS,
                "commit" => COMMIT_UNITS,
                _ => INSERT_UNITS,
            }
    });
    documents.sum()
}

impl CostRow {
    fn units(&self) -> f64 {
        self.requests.lines().map(request_units).sum()
    }

    fn queue_operations(&self) -> f64 {
        f64::from(self.nudges) * OPERATIONS_PER_NUDGE
    }

    /// Dollars of 1,000 operations.
    fn dollars(&self) -> f64 {
        self.units() / 1_000.0 * DOLLARS_PER_MILLION_UNITS
            + self.queue_operations() / 10.0 * DOLLARS_PER_10K_QUEUE_OPERATIONS
    }

    fn to_markdown(&self) -> String {
        let requests: Vec<&str> = self.requests.lines().collect();
        let (units, operations) = (self.units(), self.queue_operations());
        let dollars = self.dollars();
        format!(
            "| {} | {} | {} | {units:.0} | {operations:.0} | {dollars:.4} |\n",
            self.operation,
            requests.len(),
            requests.join(" · "),
        )
    }
}

async fn cost_of_one_prompt(script: Script) -> [String; 2] {
    let (env, services, counting) = new_env(script).await;
    [counting.take_requests(), handle_next_nudge(&env, &services, &counting).await]
}

async fn cost_rows() -> Vec<CostRow> {
    let [accepted, answered] = cost_of_one_prompt(replies_hello).await;
    let row = |operation, requests, nudges| CostRow { operation, requests, nudges };
    let mut rows = vec![
        row("accept the first prompt of a conversation", accepted, 0),
        row("turn without tool calls", answered, 1),
    ];
    let (mut env, services, counting) = new_env(calls_look_twice).await;
    rows.push(row(
        "first turn with one tool call",
        handle_next_nudge(&env, &services, &counting).await,
        1,
    ));
    let warm = handle_next_nudge(&env, &services, &counting).await;
    rows.push(row("further turn with one tool call", warm.clone(), 1));
    rows.push(row(
        "last turn, without tool calls",
        handle_next_nudge(&env, &services, &counting).await,
        1,
    ));
    let (other, helper, request_log) = stage_at_once(8, three_short_naps).await;
    let three = handle_next_nudge(&other, &helper, &request_log).await;
    rows.push(row("first turn with three parallel calls", three, 1));
    assert_eq!(queued_nudges(&env).await, 0);
    handle(&services, &TestEnv::nudge()).await.unwrap();
    rows.push(row("superfluous nudge", counting.take_requests(), 1));
    rows.push(paused_row().await);
    sweep::sweep(&services, sweep::GRACE_PERIOD).await.unwrap();
    rows.push(row("recovery sweep without pending work", counting.take_requests(), 0));
    let cold = env.new_worker(Arc::new(NoFailPoints));
    env.queue_prompt(&services, &TestEnv::key(), "again").await.unwrap();
    rows.push(row("accept a prompt of an existing conversation", counting.take_requests(), 0));
    let sent = handle_next_nudge(&env, &cold, &counting).await;
    rows.push(row("turn on an instance without cached entries", sent, 1));
    let (mut env, services, counting) = new_env(calls_gated).await;
    rows.push(row(
        "turn that requests an approval",
        handle_next_nudge(&env, &services, &counting).await,
        1,
    ));
    env.decide_requests().await;
    rows.push(row("accept a decision", counting.take_requests(), 0));
    let sent = handle_next_nudge(&env, &services, &counting).await;
    rows.push(row("turn after the decision: the call and a response", sent, 1));
    let (env, services, counting) = new_env(calls_gated).await;
    handle_next_nudge(&env, &services, &counting).await;
    env.queue_prompt(&services, &TestEnv::key(), "later").await.unwrap();
    rows.push(row("accept a steer or follow-up while a prompt runs", counting.take_requests(), 0));
    let (env, services, counting) = new_env(calls_look_twice).await;
    handle_next_nudge(&env, &services, &counting).await;
    *env.model.failures_left.lock().unwrap() = 1;
    let sent = handle_next_nudge(&env, &services, &counting).await;
    rows.push(row("model call that fails and is retried", sent, 1));
    rows.extend(Box::pin(hook_rows(&warm)).await);
    rows.extend(Box::pin(memory_rows()).await);
    rows.extend(Box::pin(user_skill_rows()).await);
    rows.extend(schedule_rows().await);
    rows.extend(Box::pin(ledger_rows()).await);
    rows
}

/// Hooks cost no request, unless one waits for the result of a `write`. `plain`: the requests of a
/// further turn without extensions.
async fn hook_rows(plain: &str) -> [CostRow; 2] {
    let (env, mut services, counting) = new_env(calls_look_twice).await;
    services.extensions = vec![Appends::new("quick")];
    handle_next_nudge(&env, &services, &counting).await;
    assert_eq!(handle_next_nudge(&env, &services, &counting).await, plain);
    let (env, services, counting) = new_env(calls_pay).await;
    let sent = handle_next_nudge(&env, &services, &counting).await;
    let plain =
        CostRow { operation: "first turn with one call of a `write`", requests: sent, nudges: 1 };
    let (env, mut services, counting) = new_env(calls_pay).await;
    services.extensions = vec![Appends::delaying("c1", Duration::from_secs(1))];
    let requests = handle_next_nudge(&env, &services, &counting).await;
    let operation = "the same, if an extension's hook on its result waits";
    [plain, CostRow { operation, requests, nudges: 1 }]
}

async fn memory_rows() -> [CostRow; 3] {
    let row = |operation, requests| CostRow { operation, requests, nudges: 1 };
    let (env, services, counting) = new_memory_env(calls_look_twice).await;
    let plain = handle_next_nudge(&env, &services, &counting).await;
    let (env, services, counting) = new_memory_env(remembers_then_looks).await;
    let change = handle_next_nudge(&env, &services, &counting).await;
    let after = handle_next_nudge(&env, &services, &counting).await;
    [
        row("first turn with one tool call, of an agent with memory", plain),
        row("the same, if the call is `remember`", change),
        row("further turn with one tool call, after `remember`", after),
    ]
}

async fn user_skill_rows() -> [CostRow; 2] {
    let row = |operation, requests| CostRow { operation, requests, nudges: 1 };
    let (env, services, counting) = new_user_skill_env(loads_mine).await;
    let load = handle_next_nudge(&env, &services, &counting).await;
    let (mut env, services, counting) = new_user_skill_env(creates_and_loads).await;
    handle_next_nudge(&env, &services, &counting).await;
    env.decide_all("approve").await;
    let create = handle_next_nudge(&env, &services, &counting).await;
    [
        row("first turn with one call of `load_skill` for a skill of the user", load),
        row(
            "turn after the decision, if the call is `create_skill` and `load_skill` follows",
            create,
        ),
    ]
}

async fn ledger_rows() -> Vec<CostRow> {
    let row = |operation, requests, nudges| CostRow { operation, requests, nudges };
    let (env, services, counting) = new_env(replies_hello).await;
    handle_next_nudge(&env, &services, &counting).await;
    tokio::time::sleep(services.limits.settle_after).await;
    handle(&services, &TestEnv::nudge()).await.unwrap();
    let sent = counting.take_requests();
    let mut rows = vec![row("post usage to the ledger, once in 10 minutes", sent, 1)];
    let (mut env, _, counting) = new_env(calls_look_twice).await;
    env.budget_limits = limit_everything();
    let services = env.new_worker(Arc::new(NoFailPoints));
    handle_next_nudge(&env, &services, &counting).await;
    let sent = handle_next_nudge(&env, &services, &counting).await;
    let operation = "further turn with one tool call, with budgets of user, agent and tenant";
    rows.push(row(operation, sent, 1));
    let sent = handle_next_nudge(&env, &services, &counting).await;
    rows.push(row("last turn, without tool calls, with the same budgets", sent, 1));
    rows
}

async fn paused_row() -> CostRow {
    let (mut env, _, counting) = new_env(replies_hello).await;
    env.pauses = Arc::new(parse("*").unwrap());
    let services = env.new_worker(Arc::new(NoFailPoints));
    handle(&services, &TestEnv::nudge()).await.unwrap();
    tokio::time::sleep(Duration::from_mins(1)).await;
    counting.take_requests();
    handle(&services, &TestEnv::nudge()).await.unwrap();
    let operation = "check of a paused conversation, once a minute";
    CostRow { operation, requests: counting.take_requests(), nudges: 1 }
}

async fn schedule_rows() -> [CostRow; 2] {
    let (env, services, counting) = new_env(replies_hello).await;
    handle_next_nudge(&env, &services, &counting).await;
    let request = NewSchedule {
        id: Some("s".to_owned()),
        conversation_id: Some("c".to_owned()),
        every: Some("PT10M".to_owned()),
        ..NewSchedule::default()
    };
    accept_schedule(&services, &owner(), request, &idempotency("s"), None).await.unwrap();
    let made =
        CostRow { operation: "create a schedule", requests: counting.take_requests(), nudges: 0 };
    tokio::time::sleep(Duration::from_mins(10)).await;
    let document_id = schedule_document_id(&owner().user, &ScheduleId::new("s"));
    handle(&services, &Nudge::for_schedule(&owner().tenant, &document_id)).await.unwrap();
    let operation = "fire a schedule: its prompt is accepted";
    [made, CostRow { operation, requests: counting.take_requests(), nudges: 1 }]
}

#[tokio::test(start_paused = true)]
async fn cost_table_matches_counted_requests() {
    let mut table = String::from(
        "| operation | requests | in order | units | queue operations | $ per 1,000 |\n|---|---|---|---|---|---|\n",
    );
    let rows = Box::pin(cost_rows()).await;
    for row in &rows {
        let _ = write!(table, "{}", row.to_markdown());
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/costs.md");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(&table), "docs/costs.md needs this table:\n{table}");
    let months = examples::cost_of_months(&rows, &text);
    assert!(text.contains(&months), "docs/costs.md needs this table:\n{months}");
}
