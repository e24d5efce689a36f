//! What turns ask of storage, counted where it passes, and the rate at which the same is answered by itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;
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
    /// Those of them that were answered with an error, by that; a look that finds nothing is none.
    pub refused: BTreeMap<String, u64>,
    /// When the same requests were sent with nothing around them, as many at the same time.
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

    /// As a line below the figures.
    pub(super) fn line(&self) -> String {
        let mut kinds: Vec<(&String, &u64)> = self.sent.iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let kinds: Vec<String> = kinds
            .iter()
            .map(|(name, count)| format!("{:.2} {name}", whole(**count) / float(self.turns)))
            .collect();
        let mut line = format!("  requests of a turn: {}", kinds.join(" · "));
        for (what, count) in &self.refused {
            let _ = write!(line, "; {count} refused in all ({what})");
        }
        line
    }
}
