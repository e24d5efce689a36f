//! Adapter of schedules for the `schedule` tool: the operations that a conversation's agent may
//! use.

use async_trait::async_trait;
use serde_json::{Value, json};

use super::create::{NewSchedule, create};
use super::{cancel, of_user, read};
use crate::agent::content::Content;
use crate::agent::schedule::Schedule;
use crate::agent::schedule::rule::Rule;
use crate::ids::{ConversationId, ConversationKey, EffectId};
use crate::tools::schedule::{Order, Schedules};
use crate::tools::sha256_hex;
use crate::turn::World;
use crate::turn::admission::idempotency::Idempotency;
use crate::turn::admission::{Owner, Refusal};
use crate::turn::views::load;

#[async_trait]
impl Schedules for World {
    async fn create(
        &self,
        conversation: &ConversationKey,
        effect: &EffectId,
        order: Order,
    ) -> Result<Value, String> {
        let owner = Owner::of(conversation);
        let made = Box::pin(self.order(conversation, effect, order)).await.map_err(words)?;
        let schedule = read(self, &owner, &made).await.map_err(words)?;
        Ok(json!({"now": self.clock.now().to_string(), "schedule": shown(&schedule)}))
    }

    async fn list(&self, conversation: &ConversationKey) -> Result<Value, String> {
        let all = of_user(self, &Owner::of(conversation)).await.map_err(words)?;
        let id = &conversation.conversation_id;
        let seen: Vec<Value> =
            all.iter().filter(|schedule| is_seen(schedule, id)).map(shown).collect();
        Ok(json!({"now": self.clock.now().to_string(), "schedules": seen}))
    }

    async fn cancel(&self, conversation: &ConversationKey, id: &str) -> Result<Value, String> {
        let owner = Owner::of(conversation);
        let found = read(self, &owner, id).await;
        let found = found.map(|schedule| is_seen(&schedule, &conversation.conversation_id));
        match found {
            Ok(true) => cancel(self, &owner, id).await.map_err(words)?,
            // The schedule belongs to another conversation, or does not exist.
            Ok(false) | Err(Refusal::NotFound(_)) => {
                return Err(format!(
                    "This conversation has no schedule `{id}`. The action list shows what it has."
                ));
            }
            Err(refusal) => return Err(words(refusal)),
        }
        Ok(json!({"now": self.clock.now().to_string(), "cancelled": id}))
    }
}

impl World {
    /// Creates a schedule and returns its id.
    async fn order(
        &self,
        conversation: &ConversationKey,
        effect: &EffectId,
        order: Order,
    ) -> Result<String, Refusal> {
        let owner = Owner::of(conversation);
        let Order { input, timing, is_elsewhere } = order;
        let made_in = conversation.conversation_id.clone();
        let (head, _) = load::head(self, conversation).await?;
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
            route: "tool schedule",
            body_hash: sha256_hex(effect.as_str().as_bytes()),
        };
        let answer = create(self, &owner, request, &idempotency, Some(made_in)).await?;
        let id = answer.body.and_then(|body| body.string_member("id"));
        id.ok_or(Refusal::NotFound("schedule"))
    }
}

fn is_seen(schedule: &Schedule, conversation: &ConversationId) -> bool {
    schedule.made_in.as_ref() == Some(conversation)
        || schedule.conversation.as_ref().is_some_and(|target| &target.id == conversation)
}

/// Schedule for the model: few members, and times in the schedule's time zone.
fn shown(schedule: &Schedule) -> Value {
    let Schedule { timing, conversation, last_fired, last_problem, .. } = schedule;
    let rule = Rule::read(timing, schedule.created_at).ok();
    let next = schedule.next_at.map(|at| match &rule {
        Some(rule) => rule.zone().shown(at),
        None => at.to_string(),
    });
    let mut shown = json!({
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
    if let Some(members) = shown.as_object_mut() {
        let more = more.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?)));
        members.extend(more.map(|(name, text)| (name, Value::String(text))));
    }
    shown
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes the error by value")]
fn words(refusal: Refusal) -> String {
    refusal.to_string()
}
