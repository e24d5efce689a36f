//! Schedules: prompts that begin by themselves, once or again and again. The stored shape, and what a firing makes of it.

pub mod rule;
#[cfg(test)]
mod tests;
pub mod zone;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::content::Content;
use crate::agent::raw::Extra;
use crate::agent::schedule::rule::{Rule, Timing};
use crate::clock::{Timestamp, iso};
use crate::ids::{ConversationId, InputId, PromptId, ScheduleId, UserId};

/// How soon a firing that could not be made, for a reason that may pass, is tried again.
pub const AGAIN_AFTER: Duration = Duration::from_mins(5);
/// How long it is tried, unless the next firing comes before.
pub const TRIED_FOR: Duration = Duration::from_hours(24);

/// What happens when the conversation is busy at the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// The firing is left out.
    Prompt,
    /// It goes into what runs.
    Steer,
    /// It waits its turn.
    #[default]
    FollowUp,
}

/// A schedule as it is stored; one that will never fire again has no `next_at`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Schedule {
    pub id: ScheduleId,
    /// Whose it is, and whose prompts it begins.
    pub user: UserId,
    /// Fresh for each schedule: one that is made anew under an old id shares no firing with it.
    pub incarnation: String,
    pub agent: String,
    /// Where its prompts go; absent: each firing begins a conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Target>,
    /// The conversation whose agent made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_in: Option<ConversationId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Content>,
    #[serde(default)]
    pub mode: Mode,
    /// Of the conversations that it begins.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    pub timing: Timing,
    #[serde(with = "iso")]
    pub created_at: Timestamp,
    /// The firing that is owed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// When a firing that could not be made is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_fired: Option<Fired>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_problem: Option<Trouble>,
    /// The document that stands for the idempotency key it was made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<String>,
    #[serde(flatten)]
    pub extra: Extra,
}

/// A conversation as it was when the schedule was made: another one under its id is not meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    pub id: ConversationId,
    pub incarnation: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fired {
    pub at: Timestamp,
    pub conversation_id: ConversationId,
    pub input_id: InputId,
    /// The prompt that it began or joined, as it was promised.
    pub prompt_id: PromptId,
}

/// Why a firing was not made; for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    pub detail: String,
}

/// What became of a firing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Accepted {
        conversation_id: ConversationId,
        input_id: InputId,
        prompt_id: PromptId,
    },
    /// This one is left out.
    LeftOut(String),
    /// The reason may pass.
    NotYet(String),
    /// No firing can be made any more.
    Over(String),
}

impl Schedule {
    /// When something is to be done about it.
    pub fn due(&self) -> Option<Timestamp> {
        self.next_at.map(|at| self.again_at.unwrap_or(at))
    }

    /// The schedule after a firing: what it tells, and what it owes next. Firings that were missed meanwhile are not made
    /// up for.
    #[must_use]
    pub fn after(self, outcome: Outcome, now: Timestamp) -> Self {
        let Some(at) = self.next_at else { return self };
        let rule = Rule::read(&self.timing, self.created_at).ok();
        let next_after = |moment: Timestamp| rule.as_ref().and_then(|rule| rule.after(moment));
        let told = |detail: String| Some(Trouble { at: now, detail });
        let next_at = next_after(at.max(now));
        let moved = Self { next_at, again_at: None, ..self };
        match outcome {
            Outcome::Accepted { conversation_id, input_id, prompt_id } => {
                let fired = Fired { at: now, conversation_id, input_id, prompt_id };
                Self { last_fired: Some(fired), ..moved }
            }
            Outcome::LeftOut(detail) => Self { last_problem: told(detail), ..moved },
            Outcome::Over(detail) => Self { next_at: None, last_problem: told(detail), ..moved },
            Outcome::NotYet(detail) => {
                let again_at = now.plus(AGAIN_AFTER);
                let is_given_up = again_at >= at.plus(TRIED_FOR)
                    || next_after(at).is_some_and(|next| next <= again_at);
                let last_problem = told(detail);
                if is_given_up {
                    return Self { last_problem, ..moved };
                }
                Self { next_at: Some(at), again_at: Some(again_at), last_problem, ..moved }
            }
        }
    }
}
