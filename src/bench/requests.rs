//! Storage requests of turns, counted in transit, and the rate of the same requests without
//! workers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bench::report::{float, whole};
use crate::bench::wire::Sent;

/// The workers' storage requests, and their rate without workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Requests {
    /// Turns of the counted run, which is separate from the timed one.
    pub turns: usize,
    /// Requests of these turns by operation, including retries and all other traffic.
    pub sent: BTreeMap<String, u64>,
    /// Requests that failed, by status; a read that finds nothing is not a failure.
    pub refused: BTreeMap<String, u64>,
    /// Rate at which the same requests run without workers, with the same concurrency.
    pub bare_turns_per_second: f64,
}

impl Requests {
    pub(super) fn of(turns: usize, sent: &[Sent], bare: Duration) -> Self {
        let (mut counts, mut refused) = (BTreeMap::new(), BTreeMap::new());
        for sent in sent {
            let name = sent.operation.name();
            *counts.entry(name.to_owned()).or_default() += 1;
            if sent.is_refused() {
                let what = format!("{name}: {}", sent.status.as_u16());
                *refused.entry(what).or_default() += 1;
            }
        }
        Self {
            turns,
            sent: counts,
            refused,
            bare_turns_per_second: float(turns) / bare.as_secs_f64(),
        }
    }

    pub(super) fn per_turn(&self) -> f64 {
        whole(self.sent.values().sum()) / float(self.turns)
    }

    /// Formats a line below the figures.
    pub(super) fn line(&self) -> String {
        let mut kinds: Vec<(&String, &u64)> = self.sent.iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let kinds: Vec<String> = kinds
            .iter()
            .map(|(name, count)| format!("{:.2} {name}", whole(**count) / float(self.turns)))
            .collect();
        let mut line = format!("  requests of a turn: {}", kinds.join(" · "));
        for (what, count) in &self.refused {
            let _ = write!(line, "; {count} rejected in total ({what})");
        }
        line
    }
}
