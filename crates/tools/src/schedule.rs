//! The `schedule` tool: an agent schedules prompts for later. The driver supplies the port that
//! stores the schedules.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::approval_summary::ApprovalSummary;
use crate::code::{CallContext, Tool, ToolError, build_code_tool};
use crate::{CallableTool, CheckContext, ToolResult};
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::schedule::rule::{ScheduleRule, Timing};
use turnwheel_platform::ids::{ConversationKey, EffectId};

/// A request for a new schedule: the prompt and its times.
#[derive(Debug)]
pub struct ScheduleRequest {
    pub input: String,
    pub timing: Timing,
    /// True if each firing starts a new conversation. Otherwise it continues the requesting one.
    pub is_new_conversation: bool,
}

/// Port of the schedule store. A conversation sees the schedules that it created and those that
/// prompt it. Errors are texts for the model.
#[async_trait]
pub trait ScheduleStore: Send + Sync + fmt::Debug {
    /// Creates a schedule. Equal effect ids are one schedule.
    async fn create(
        &self,
        conversation: &ConversationKey,
        effect: &EffectId,
        order: ScheduleRequest,
    ) -> Result<Value, String>;

    async fn list(&self, conversation: &ConversationKey) -> Result<Value, String>;

    async fn cancel(&self, conversation: &ConversationKey, id: &str) -> Result<Value, String>;
}

struct ScheduleTool;

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Action {
    Create,
    List,
    Cancel,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ScheduleArgs {
    action: Action,
    /// create: the prompt that you will receive at that time
    input: Option<String>,
    /// create: the first time: from now (PT10M), with an offset (2027-01-05T09:00:00+01:00), or local with timeZone (2027-01-05T09:00)
    at: Option<String>,
    /// create: repeat: an ISO 8601 duration (P1D, PT15M) or five cron fields (0 9 * * MON-FRI); at least a minute
    every: Option<String>,
    /// create: IANA name such as Europe/Berlin (default: UTC)
    time_zone: Option<String>,
    /// create: it never fires after this time; same format as at
    until: Option<String>,
    /// create: start a new conversation each time instead of continuing this one (default: false)
    new_conversation: Option<bool>,
    /// cancel: the schedule's id
    id: Option<String>,
}

impl ScheduleArgs {
    fn required_input(&self) -> Result<&str, String> {
        let input = self.input.as_deref().filter(|input| !input.is_empty());
        input.ok_or_else(|| missing_member("create", "input"))
    }

    fn timing(&self) -> Timing {
        Timing {
            at: self.at.clone(),
            every: self.every.clone(),
            time_zone: self.time_zone.clone(),
            until: self.until.clone(),
        }
    }
}

impl Tool for ScheduleTool {
    type Args = ScheduleArgs;

    fn name(&self) -> &'static str {
        "schedule"
    }

    fn description(&self) -> &'static str {
        "Schedule prompts to yourself for later, once or recurring. action create needs input and at least one of at and \
         every; list shows the schedules of this conversation; cancel needs id. Every result contains the current time."
    }

    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalSummary::Never
    }

    async fn check(&self, args: &ScheduleArgs, cx: &CheckContext<'_>) -> Result<(), String> {
        match args.action {
            Action::List => Ok(()),
            Action::Cancel if args.id.is_some() => Ok(()),
            Action::Cancel => Err(missing_member("cancel", "id")),
            Action::Create => {
                args.required_input()?;
                let rule = ScheduleRule::parse(&args.timing(), cx.now);
                rule.map(drop).map_err(|errors| {
                    let details = errors.into_iter().map(|error| error.detail);
                    details.collect::<Vec<_>>().join("; ")
                })
            }
        }
    }

    async fn call(&self, args: ScheduleArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let Some(schedules) = cx.schedules() else {
            return Err(ToolError::failed("Schedules are not available here."));
        };
        let conversation = cx.conversation_key();
        let result = match args.action {
            Action::List => schedules.list(conversation).await,
            Action::Cancel => {
                let id =
                    args.id.ok_or_else(|| ToolError::Failed(missing_member("cancel", "id")))?;
                schedules.cancel(conversation, &id).await
            }
            Action::Create => {
                let request = ScheduleRequest {
                    input: args.required_input().map_err(ToolError::Failed)?.to_owned(),
                    timing: args.timing(),
                    is_new_conversation: args.new_conversation.unwrap_or_default(),
                };
                schedules.create(conversation, cx.effect_id(), request).await
            }
        };
        result.map(|value| ToolResult::json(&value)).map_err(ToolError::Failed)
    }
}

fn missing_member(action: &str, member: &str) -> String {
    format!("To {action} a schedule, give `{member}`.")
}

/// The built-in `schedule` tool.
pub fn schedule_tool() -> Option<Arc<dyn CallableTool>> {
    let tool = build_code_tool(ScheduleTool);
    debug_assert!(tool.is_ok(), "{tool:?}");
    tool.ok()
}
