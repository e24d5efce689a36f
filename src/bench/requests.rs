//! Storage requests of turns, counted in transit, and the rate of the same requests without
//! workers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bench::recording_proxy::RecordedRequest;
use crate::bench::report::{count_to_f64, to_f64};

/// The workers' storage requests, and their rate without workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestFigures {
    /// Turns of the counted run, which is separate from the timed one.
    pub turns: usize,
    /// Requests of these turns by operation, including retries and all other traffic.
    #[serde(rename = "sent")]
    pub operations: BTreeMap<String, u64>,
    /// Requests that failed, by status; a read that finds nothing is not a failure.
    #[serde(rename = "refused")]
    pub failures: BTreeMap<String, u64>,
    /// Rate at which the same requests run without workers, with the same concurrency.
    #[serde(rename = "bareTurnsPerSecond")]
    pub baseline_turns_per_second: f64,
}

impl RequestFigures {
    pub(super) fn from_recorded(
        turns: usize,
        recorded: &[RecordedRequest],
        baseline: Duration,
    ) -> Self {
        let (mut counts, mut failures) = (BTreeMap::new(), BTreeMap::new());
        for recorded in recorded {
            let name = recorded.operation.name();
            *counts.entry(name.to_owned()).or_default() += 1;
            if recorded.is_failure() {
                let what = format!("{name}: {}", recorded.status.as_u16());
                *failures.entry(what).or_default() += 1;
            }
        }
        Self {
            turns,
            operations: counts,
            failures,
            baseline_turns_per_second: count_to_f64(turns) / baseline.as_secs_f64(),
        }
    }

    pub(super) fn per_turn(&self) -> f64 {
        to_f64(self.operations.values().sum()) / count_to_f64(self.turns)
    }

    /// Formats a line below the figures.
    pub(super) fn to_line(&self) -> String {
        let mut kinds: Vec<(&String, &u64)> = self.operations.iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let kinds: Vec<String> = kinds
            .iter()
            .map(|(name, count)| {
                format!("{:.2} {name}", to_f64(**count) / count_to_f64(self.turns))
            })
            .collect();
        let mut line = format!("  requests of a turn: {}", kinds.join(" · "));
        for (status_text, count) in &self.failures {
            let _ = write!(line, "; {count} rejected in total ({status_text})");
        }
        line
    }
}
