//! Costs of a month by kind of work, from the counted requests of its operations.

use std::fmt::Write as _;

use super::{CostRow, DOLLARS_PER_MILLION_UNITS};
use crate::abort_signal::{FIRST_POLLS, LATER_INTERVAL, POLLS_PER_HEAD_READ};

/// Dollars per GB-second and per million executions.
const DOLLARS_PER_GB_SECOND: f64 = 0.000_026;
const DOLLARS_PER_MILLION_EXECUTIONS: f64 = 0.4;
/// GB-seconds of the recovery sweep in a month, per GB of the instance: one billed second a minute.
const SWEEP_GB_SECONDS: f64 = 43_200.0;
/// Dollars a month of one listener that polls every 2 s.
const POLLING_DOLLARS: f64 = 0.52;

/// The work of one prompt.
struct Example {
    name: &'static str,
    /// Prompts that one instance processes at the same time. They share its compute.
    at_a_time: f64,
    /// Operations of the table, with their number.
    operations: &'static [(&'static str, f64)],
    /// Seconds of the model and tool calls, with their number.
    calls: &'static [(u32, f64)],
    turn_seconds: f64,
    /// Time in which a client reads the event stream, and time in which text arrives in it.
    watched_seconds: f64,
    streamed_seconds: f64,
    /// Requests of clients beside the stream: one billed second each.
    requests: f64,
}

const EXAMPLES: [Example; 3] = [
    Example {
        name: "chat",
        at_a_time: 1.0,
        operations: &[
            ("accept a prompt of an existing conversation", 1.0),
            ("first turn with one tool call", 1.0),
            ("last turn, without tool calls", 1.0),
        ],
        calls: &[(5, 2.0), (1, 1.0)],
        turn_seconds: 11.0,
        watched_seconds: 11.0,
        streamed_seconds: 8.0,
        requests: 1.0,
    },
    Example {
        name: "operations",
        at_a_time: 1.0,
        operations: &[
            ("accept a prompt of an existing conversation", 1.0),
            ("first turn with one tool call", 1.0),
            ("further turn with one tool call", 6.0),
            ("turn that requests an approval", 1.0),
            ("accept a decision", 1.0),
            ("turn after the decision: the call and a response", 1.0),
        ],
        calls: &[(6, 9.0), (5, 8.0)],
        turn_seconds: 96.0,
        watched_seconds: 48.0,
        streamed_seconds: 27.0,
        requests: 2.0,
    },
    Example {
        name: "batch",
        at_a_time: 64.0,
        operations: &[
            ("accept the first prompt of a conversation", 1.0),
            ("first turn with one tool call", 1.0),
            ("further turn with one tool call", 2.0),
            ("last turn, without tool calls", 1.0),
        ],
        calls: &[(6, 4.0), (2, 3.0)],
        turn_seconds: 30.0,
        watched_seconds: 0.0,
        streamed_seconds: 0.0,
        requests: 1.0,
    },
];

/// Units of the checks for an abort during a call.
fn abort_check_units(seconds: u32) -> f64 {
    let early = seconds.min(FIRST_POLLS);
    let polls =
        f64::from(early) + (f64::from(seconds - early) / LATER_INTERVAL.as_secs_f64()).floor();
    polls + (polls / f64::from(POLLS_PER_HEAD_READ)).floor()
}

impl Example {
    /// Sum of a value of the operations.
    fn sum_operations(&self, rows: &[CostRow], value: impl Fn(&CostRow) -> f64) -> f64 {
        let values = self.operations.iter().map(|(operation, count)| {
            let row = rows.iter().find(|row| row.operation == *operation).unwrap();
            value(row) * count
        });
        values.sum()
    }

    /// Dollars of 1,000 prompts for Cosmos DB and the queues, without streams.
    fn store_dollars(&self, rows: &[CostRow]) -> f64 {
        let checks: f64 =
            self.calls.iter().map(|(seconds, count)| abort_check_units(*seconds) * count).sum();
        self.sum_operations(rows, CostRow::dollars) + dollars_of_units(checks)
    }

    /// Dollars of 1,000 prompts for compute and executions at an instance size.
    fn compute_dollars(&self, rows: &[CostRow], gb: f64) -> f64 {
        let seconds = self.turn_seconds + self.watched_seconds + self.requests;
        let nudges = self.sum_operations(rows, |row| f64::from(row.nudges));
        let streams = if self.watched_seconds > 0.0 { 1.0 } else { 0.0 };
        let executions = nudges + self.requests + streams;
        seconds / self.at_a_time * gb * DOLLARS_PER_GB_SECOND * 1_000.0
            + executions / 1_000.0 * DOLLARS_PER_MILLION_EXECUTIONS
    }

    /// A row of the table for each number of prompts. `watched_minute`: units of a streaming minute.
    fn to_markdown(&self, rows: &[CostRow], watched_minute: f64) -> String {
        let mut table = String::new();
        let streams = dollars_of_units(self.streamed_seconds / 60.0 * watched_minute);
        for thousands in [1.0, 10.0, 100.0] {
            let store = thousands * self.store_dollars(rows);
            let streams = thousands * streams;
            let [large, small] = [2.0, 0.5].map(|gb| {
                let fixed = SWEEP_GB_SECONDS * gb * DOLLARS_PER_GB_SECOND + POLLING_DOLLARS;
                let compute = thousands * self.compute_dollars(rows, gb);
                (compute, store + streams + compute + fixed)
            });
            let _ = writeln!(
                table,
                "| {} | {thousands},000 | **{:.2}** | **{:.2}** | {:.2} | {:.2} | {store:.2} | {streams:.2} |",
                self.name, large.1, small.1, large.0, small.0,
            );
        }
        table
    }
}

/// Dollars of 1,000 times these units.
fn dollars_of_units(units: f64) -> f64 {
    units / 1_000.0 * DOLLARS_PER_MILLION_UNITS
}

/// The table of costs a month. `page` has the units of a watched minute in its table of readers.
pub(super) fn cost_of_months(rows: &[CostRow], page: &str) -> String {
    let streaming = page.lines().find(|line| line.starts_with("| streams on another instance"));
    let units = streaming.unwrap().trim_end_matches(" |").rsplit_once("| ").unwrap().1;
    let watched_minute: f64 = units.replace(',', "").parse().unwrap();
    let mut table = String::from(
        "| work | prompts | sum at 2048 MB | sum at 512 MB | compute at 2048 MB | at 512 MB | Cosmos DB and queues | streams |\n|---|---|---|---|---|---|---|---|\n",
    );
    for example in &EXAMPLES {
        table += &example.to_markdown(rows, watched_minute);
    }
    table
}
