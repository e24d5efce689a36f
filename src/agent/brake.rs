//! What holds back a step that is owed: a brake that somebody has put on, or something that the next call waits for.

use serde::{Deserialize, Serialize};

use crate::agent::head::Head;
use crate::agent::phase::Phase;
use crate::clock::Timestamp;

/// The agent or the tool that the next step needs is paused: what is owed is kept, and looked at again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Brake {
    /// As the setting names it: `*`, `agent:NAME` or `tool:NAME`.
    pub on: String,
    pub since: Timestamp,
    /// When somebody looks for the first time whether it is still on; after that nothing is written, and every sweep looks.
    pub look_at: Timestamp,
}

/// Why the next model call is not made before a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Behind {
    /// Its owner calls models faster than was agreed.
    Rate,
    /// Other calls that are under way may use up what is left of a budget.
    BudgetInUse,
    /// The tenant's books did not answer.
    Books,
}

/// Told to people; what counts is the time in the phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PutOff {
    pub behind: Behind,
    pub until: Timestamp,
}

impl Head {
    /// Why the model is not called yet; `None`: it is, or it failed and is called again at that time.
    pub fn put_off(&self) -> Option<&PutOff> {
        let (Phase::Model { not_before, .. } | Phase::Summary { not_before, .. }) = &self.phase
        else {
            return None;
        };
        // What another time was waited for is past.
        self.put_off.as_ref().filter(|put_off| *not_before == Some(put_off.until))
    }
}
