//! View of a schedule.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use turnwheel_conversation::content::Content;
use turnwheel_conversation::schedule::{FiringProblem, Schedule, ScheduleMode};
use turnwheel_platform::clock::{Timestamp, iso, iso_option};

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleView {
    pub id: String,
    pub user_id: String,
    pub agent: String,
    /// Conversation of the prompts; absent: each firing creates a conversation.
    pub conversation_id: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub input: Option<Content>,
    pub mode: ScheduleMode,
    pub metadata: BTreeMap<String, String>,
    /// As requested, like the next three members.
    pub at: Option<String>,
    pub every: Option<String>,
    pub time_zone: Option<String>,
    pub until: Option<String>,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Absent: the schedule has ended.
    #[serde(with = "iso_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_at: Option<Timestamp>,
    #[serde(with = "iso_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_fired_at: Option<Timestamp>,
    pub last_conversation_id: Option<String>,
    pub last_prompt_id: Option<String>,
    /// The last firing that was not made, with the reason.
    pub last_problem: Option<FiringProblem>,
}

impl ScheduleView {
    pub fn from_schedule(schedule: &Schedule) -> Self {
        let timing = schedule.timing.clone();
        let firing = schedule.last_firing.as_ref();
        let target = schedule.conversation.as_ref();
        Self {
            id: schedule.id.to_string(),
            user_id: schedule.user.to_string(),
            agent: schedule.agent.clone(),
            conversation_id: target.map(|target| target.id.to_string()),
            input: schedule.input.clone(),
            mode: schedule.mode,
            metadata: schedule.metadata.clone(),
            at: timing.at,
            every: timing.every,
            time_zone: timing.time_zone,
            until: timing.until,
            created_at: schedule.created_at,
            next_at: schedule.next_at,
            last_fired_at: firing.map(|firing| firing.at),
            last_conversation_id: firing.map(|firing| firing.conversation_id.to_string()),
            last_prompt_id: firing.map(|firing| firing.prompt_id.to_string()),
            last_problem: schedule.last_problem.clone(),
        }
    }
}
