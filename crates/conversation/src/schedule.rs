//! Schedules: prompts that start at set times, once or repeatedly. The stored form, and its state
//! after each firing.

pub mod rule;
#[cfg(test)]
mod tests;
pub mod zone;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock_correction::CLOCK_DIFFERENCE_MAX;
use crate::content::Content;
use crate::schedule::rule::{ScheduleRule, Timing};
use crate::unknown_members::{Extra, keep_unknown_members};
use turnwheel_platform::clock::{Timestamp, iso};
use turnwheel_platform::ids::{ConversationId, InputId, PromptId, ScheduleId, UserId};

/// Delay between attempts of a firing that failed for a temporary reason.
pub const RETRY_INTERVAL: Duration = Duration::from_mins(5);
/// Duration of these attempts, unless the next firing comes earlier.
pub(crate) const RETRY_WINDOW: Duration = Duration::from_hours(24);

/// Behaviour of a firing in a busy conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum ScheduleMode {
    /// The firing is skipped.
    Prompt,
    /// The input joins the running prompt.
    Steer,
    /// The input is queued as a follow-up.
    #[default]
    FollowUp,
}

/// A stored schedule. Without `next_at` it never fires again.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct Schedule {
    pub id: ScheduleId,
    /// Owner of the schedule and user of its prompts.
    pub user: UserId,
    /// Unique for each schedule: a new one under an old id shares no firing with it.
    pub incarnation: String,
    pub agent: String,
    /// Conversation of its prompts. Absent: each firing starts a conversation.
    pub conversation: Option<ScheduleTarget>,
    /// Conversation whose agent created it.
    #[serde(rename = "madeIn")]
    pub created_in: Option<ConversationId>,
    pub input: Option<Content>,
    #[serde(default)]
    pub mode: ScheduleMode,
    /// Metadata of the conversations that it starts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    pub timing: Timing,
    #[serde(with = "iso")]
    pub created_at: Timestamp,
    /// Time of the next firing.
    pub next_at: Option<Timestamp>,
    /// Time of the next attempt, after a failed one.
    #[serde(rename = "againAt")]
    pub retry_at: Option<Timestamp>,
    #[serde(rename = "lastFired")]
    pub last_firing: Option<LastFiring>,
    pub last_problem: Option<FiringProblem>,
    /// Document of the idempotency key that it was created with.
    pub receipt: Option<String>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

keep_unknown_members!([] Schedule);

/// A conversation at the time of the schedule's creation. A later one with the same id does not
/// match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleTarget {
    pub id: ConversationId,
    pub incarnation: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastFiring {
    pub at: Timestamp,
    pub conversation_id: ConversationId,
    pub input_id: InputId,
    /// The prompt that it started or joined, by the promised id.
    pub prompt_id: PromptId,
}

/// Why a firing was not made, for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FiringProblem {
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    pub detail: String,
}

/// Result of a firing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FiringOutcome {
    Accepted {
        conversation_id: ConversationId,
        input_id: InputId,
        prompt_id: PromptId,
    },
    /// This firing is skipped.
    Skipped(String),
    /// The reason is temporary.
    Retryable(String),
    /// No further firing is possible.
    Ended(String),
}

impl Schedule {
    /// Time of the next firing or attempt.
    pub fn due(&self) -> Option<Timestamp> {
        self.next_at.map(|at| self.retry_at.unwrap_or(at))
    }

    /// The schedule with its next time from now on, if a clock that was ahead has set the current
    /// one. Durations count from now if that clock also created it.
    pub fn corrected_at(&self, now: Timestamp) -> Option<Self> {
        let is_ahead = |time: Timestamp| time > now.plus(CLOCK_DIFFERENCE_MAX);
        let stored = [
            Some(self.created_at),
            self.last_firing.as_ref().map(|firing| firing.at),
            self.last_problem.as_ref().map(|problem| problem.at),
        ];
        let is_affected = stored.into_iter().flatten().any(is_ahead);
        self.next_at.filter(|_| is_affected)?;
        let created_at = self.created_at.min(now);
        let rule = ScheduleRule::parse(&self.timing, created_at).ok()?;
        let next_at = rule.next_after(now);
        let mut corrected = Self { created_at, next_at, retry_at: None, ..self.clone() };
        if let Some(firing) = &mut corrected.last_firing {
            firing.at = firing.at.min(now);
        }
        if let Some(problem) = &mut corrected.last_problem {
            problem.at = problem.at.min(now);
        }
        Some(corrected)
    }

    /// The schedule after a firing. Firings missed meanwhile are not made up for.
    #[must_use]
    pub fn after_firing(self, outcome: FiringOutcome, now: Timestamp) -> Self {
        let Some(at) = self.next_at else { return self };
        let rule = ScheduleRule::parse(&self.timing, self.created_at).ok();
        let next_after = |moment: Timestamp| rule.as_ref().and_then(|rule| rule.next_after(moment));
        let problem = |detail: String| Some(FiringProblem { at: now, detail });
        let next_at = next_after(at.max(now));
        let advanced = Self { next_at, retry_at: None, ..self };
        match outcome {
            FiringOutcome::Accepted { conversation_id, input_id, prompt_id } => {
                let firing = LastFiring { at: now, conversation_id, input_id, prompt_id };
                Self { last_firing: Some(firing), ..advanced }
            }
            FiringOutcome::Skipped(detail) => Self { last_problem: problem(detail), ..advanced },
            FiringOutcome::Ended(detail) => {
                Self { next_at: None, last_problem: problem(detail), ..advanced }
            }
            FiringOutcome::Retryable(detail) => {
                let retry_at = now.plus(RETRY_INTERVAL);
                let is_given_up = retry_at >= at.plus(RETRY_WINDOW)
                    || next_after(at).is_some_and(|next| next <= retry_at);
                let last_problem = problem(detail);
                if is_given_up {
                    return Self { last_problem, ..advanced };
                }
                Self { next_at: Some(at), retry_at: Some(retry_at), last_problem, ..advanced }
            }
        }
    }
}
