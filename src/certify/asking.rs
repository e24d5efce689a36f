//! The client of a run: sends requests and queue messages to an instance.

use std::sync::Arc;

use crate::agent::content::Content;
use crate::agent::entry::Source;
use crate::agent::request::Request;
use crate::ids::{ConversationKey, TenantId, UserId};
use crate::turn::admission::decide::{Decider, Said, decide};
use crate::turn::admission::idempotency::Idempotency;
use crate::turn::admission::prompt::{
    FirstPromptRequest, PromptRequest, Sender, WhenBusy, accept_prompt, begin_conversation,
};
use crate::turn::admission::{Owner, Refusal};
use crate::turn::delivery::{self, TurnError};
use crate::turn::{Nudge, World, notify};

pub(super) fn owner() -> Owner {
    Owner { tenant: TenantId::new("certify"), user: UserId::new("certify") }
}

pub(super) fn key_of(name: &str) -> Idempotency {
    Idempotency {
        key: name.to_owned(),
        is_repeatable: true,
        route: "POST /prompts",
        body_hash: name.to_owned(),
    }
}

/// Returns an approver who may decide the request, if any.
pub(super) fn decider(key: &ConversationKey, request: &Request) -> Option<Decider> {
    let roles: Vec<String> = request
        .approvers
        .iter()
        .filter_map(|approver| approver.strip_prefix("role:"))
        .map(ToOwned::to_owned)
        .collect();
    let person = |user: &str| Decider::Person {
        tenant: key.tenant.clone(),
        user: UserId::new(user),
        roles: roles.clone(),
    };
    let candidates = [person(key.user.as_str()), person("certify-approver"), Decider::Link];
    candidates.into_iter().find(|who| who.may_decide(key, request))
}

/// A request to an instance.
pub(super) enum Asked {
    Prompt { agent: String, key: ConversationKey, number: usize, text: Option<String> },
    Decision { key: ConversationKey, request: Box<Request>, decision: &'static str },
    Turn(Nudge),
    Notify(Nudge),
}

/// # Errors
/// The reason why the request must be sent again.
pub(super) async fn perform(world: Arc<World>, asked: Asked) -> Result<(), String> {
    match asked {
        Asked::Prompt { agent, key, number, text } => {
            let done = say(&world, (&agent, &key), number, text).await;
            done.map_err(|refusal| refusal.to_string())
        }
        Asked::Decision { key, request, decision } => {
            let Some(who) = decider(&key, &request) else { return Ok(()) };
            let said = Said { decision: decision.to_owned(), reason: None, value: None };
            match decide(&world, &key, request.id.as_str(), said, &who).await {
                // The call's outcome arrived first, or the request expired.
                Ok(_) | Err(Refusal::AlreadyDecided(_) | Refusal::Expired { .. }) => Ok(()),
                Err(refusal) => Err(refusal.to_string()),
            }
        }
        Asked::Turn(nudge) => match Box::pin(delivery::handle(&world, &nudge)).await {
            Ok(_) | Err(TurnError::ClaimLost { .. }) => Ok(()),
            Err(error @ TurnError::Store { .. }) => Err(error.to_string()),
        },
        Asked::Notify(nudge) => {
            notify::notify(&world, &nudge).await.map_err(|error| error.to_string())
        }
    }
}

async fn say(
    world: &World,
    (agent, key): (&str, &ConversationKey),
    number: usize,
    text: Option<String>,
) -> Result<(), Refusal> {
    let input = text.map(Content::Text);
    let own = key_of(&format!("prompt {number}"));
    let sender =
        Sender { source: Source::User, traceparent: None, when_busy: WhenBusy::WaitItsTurn };
    if number == 0 {
        let request = FirstPromptRequest {
            agent: Some(agent.to_owned()),
            conversation_id: Some(key.conversation_id.as_str().to_owned()),
            input,
            ..FirstPromptRequest::default()
        };
        return begin_conversation(world, &Owner::of(key), request, &own, &sender)
            .await
            .map(|_| ());
    }
    let request = PromptRequest { input, ..PromptRequest::default() };
    accept_prompt(world, key, request, &own, &sender).await.map(|_| ())
}
