//! Adapter of schedules for the `schedule` tool: the operations that a conversation's agent may
//! use.

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::knowledge::Knowledge;
use crate::schedules::create::{NewSchedule, accept_schedule};
use crate::schedules::{cancel_schedule, list_user_schedules, load_schedule};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::schedule::Schedule;
use turnwheel_conversation::schedule::rule::ScheduleRule;
use turnwheel_platform::ids::{ConversationId, ConversationKey, EffectId};
use turnwheel_record::contract::{CommandError, Owner};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_tools::schedule::{ScheduleRequest, ScheduleStore};
use turnwheel_tools::sha256_hex;

#[async_trait]
impl ScheduleStore for Knowledge {
    async fn create(
        &self,
        conversation: &ConversationKey,
        effect: &EffectId,
        order: ScheduleRequest,
    ) -> Result<Value, String> {
        let owner = Owner::from_key(conversation);
        let made = Box::pin(create_from_tool(self.services(), conversation, effect, order))
            .await
            .map_err(error_text)?;
        let schedule = load_schedule(self.services(), &owner, &made).await.map_err(error_text)?;
        Ok(
            json!({"now": self.services().clock.now().to_string(), "schedule": schedule_json(&schedule)}),
        )
    }

    async fn list(&self, conversation: &ConversationKey) -> Result<Value, String> {
        let all = list_user_schedules(self.services(), &Owner::from_key(conversation))
            .await
            .map_err(error_text)?;
        let id = &conversation.conversation_id;
        let visible: Vec<Value> =
            all.iter().filter(|schedule| is_visible(schedule, id)).map(schedule_json).collect();
        Ok(json!({"now": self.services().clock.now().to_string(), "schedules": visible}))
    }

    async fn cancel(&self, conversation: &ConversationKey, id: &str) -> Result<Value, String> {
        let owner = Owner::from_key(conversation);
        let found = load_schedule(self.services(), &owner, id).await;
        let found = found.map(|schedule| is_visible(&schedule, &conversation.conversation_id));
        match found {
            Ok(true) => cancel_schedule(self.services(), &owner, id).await.map_err(error_text)?,
            // The schedule belongs to another conversation, or does not exist.
            Ok(false) | Err(CommandError::NotFound(_)) => {
                return Err(format!(
                    "This conversation has no schedule `{id}`. The action list shows what it has."
                ));
            }
            Err(refusal) => return Err(error_text(refusal)),
        }
        Ok(json!({"now": self.services().clock.now().to_string(), "cancelled": id}))
    }
}

/// Creates a schedule and returns its id.
async fn create_from_tool(
    services: &Services,
    conversation: &ConversationKey,
    effect: &EffectId,
    order: ScheduleRequest,
) -> Result<String, CommandError> {
    let owner = Owner::from_key(conversation);
    let ScheduleRequest { input, timing, is_new_conversation: is_elsewhere } = order;
    let made_in = conversation.conversation_id.clone();
    let (head, _) = load::head(services, conversation).await?;
    let id = made_in.to_string();
    let request = NewSchedule {
        agent: Some(head.agent),
        conversation_id: Some(id).filter(|_| !is_elsewhere),
        input: Some(Content::Text(input)),
        at: timing.at,
        every: timing.every,
        time_zone: timing.time_zone,
        until: timing.until,
        ..NewSchedule::default()
    };
    let idempotency = Idempotency {
        key: effect.to_string(),
        is_repeatable: true,
        route: "tool schedule".to_owned(),
        body_hash: sha256_hex(effect.as_str().as_bytes()),
    };
    let response = accept_schedule(services, &owner, request, &idempotency, Some(made_in)).await?;
    let id = response.body.and_then(|body| body.string_member("id"));
    id.ok_or(CommandError::NotFound("schedule"))
}

fn is_visible(schedule: &Schedule, conversation: &ConversationId) -> bool {
    schedule.created_in.as_ref() == Some(conversation)
        || schedule.conversation.as_ref().is_some_and(|target| &target.id == conversation)
}

/// Schedule for the model: few members, and times in the schedule's time zone.
fn schedule_json(schedule: &Schedule) -> Value {
    let Schedule { timing, conversation, last_firing: last_fired, last_problem, .. } = schedule;
    let rule = ScheduleRule::parse(timing, schedule.created_at).ok();
    let next = schedule.next_at.map(|at| match &rule {
        Some(rule) => rule.zone().format(at),
        None => at.to_string(),
    });
    let mut result = json!({
        "id": schedule.id,
        "input": schedule.input,
        "next": next,
        "newConversation": conversation.is_none(),
    });
    let more = [
        ("every", timing.every.clone()),
        ("until", timing.until.clone()),
        ("lastFiredAt", last_fired.as_ref().map(|fired| fired.at.to_string())),
        ("lastProblem", last_problem.as_ref().map(|problem| problem.detail.clone())),
    ];
    if let Some(members) = result.as_object_mut() {
        let more = more.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?)));
        members.extend(more.map(|(name, text)| (name, Value::String(text))));
    }
    result
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes the error by value")]
fn error_text(error: CommandError) -> String {
    error.to_string()
}
