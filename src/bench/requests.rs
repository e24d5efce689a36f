//! What turns ask of storage, counted where it passes, and the rate at which the same is answered by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bench::report::{float, whole};
use crate::bench::wire::Sent;

/// What the workers asked of storage, and how long it takes by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Requests {
    /// Of the run that was counted, apart from the one whose time was taken.
    pub turns: usize,
    /// Requests of these turns by what they do, retries and everything else that was on the wire included.
    pub sent: BTreeMap<String, u64>,
    /// Those of them that were answered with an error; a read that finds nothing is none.
    pub refused: u64,
    /// When the same requests were sent with nothing around them, as many at the same time.
    pub bare_turns_per_second: f64,
}

impl Requests {
    pub(super) fn of(turns: usize, sent: &[Sent], bare: Duration) -> Self {
        let mut counts = BTreeMap::new();
        for sent in sent {
            *counts.entry(sent.operation.name().to_owned()).or_default() += 1;
        }
        let refused = sent.iter().filter(|sent| sent.is_refused()).count();
        Self {
            turns,
            sent: counts,
            refused: u64::try_from(refused).unwrap_or(u64::MAX),
            bare_turns_per_second: float(turns) / bare.as_secs_f64(),
        }
    }

    pub(super) fn per_turn(&self) -> f64 {
        whole(self.sent.values().sum()) / float(self.turns)
    }

    /// As a line below the figures.
    pub(super) fn line(&self) -> String {
        let mut kinds: Vec<(&String, &u64)> = self.sent.iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let kinds: Vec<String> = kinds
            .iter()
            .map(|(name, count)| format!("{:.2} {name}", whole(**count) / float(self.turns)))
            .collect();
        let refused = match self.refused {
            0 => String::new(),
            refused => format!("; {refused} refused in all"),
        };
        format!("  requests of a turn: {}{refused}", kinds.join(" · "))
    }
}
