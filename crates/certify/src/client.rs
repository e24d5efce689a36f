//! The client of a run: sends requests and queue messages to an instance.

use std::sync::Arc;

use serde_json::Value;

use turnwheel_commands::decide::{DecisionRequest, decide};
use turnwheel_commands::fork::{ForkRequest, fork_conversation};
use turnwheel_commands::leaf::{LeafRequest, move_leaf};
use turnwheel_commands::prompt::{
    FirstPromptRequest, PromptPosition, PromptRequest, Sender, WhenBusy, accept_prompt,
    begin_conversation,
};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::Source;
use turnwheel_conversation::fork::ForkPosition;
use turnwheel_conversation::request::{Request, RequestKind};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::{ConversationKey, EntryId, TenantId, UserId};
use turnwheel_record::contract::{CommandError, Decider, Owner};
use turnwheel_record::error::TurnError;
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::notifications;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue;
use turnwheel_turn::delivery;

pub(super) fn owner() -> Owner {
    Owner { tenant: TenantId::new("certify"), user: UserId::new("certify") }
}

/// Key of the copy of the conversation.
pub(super) fn fork_key() -> ConversationKey {
    owner().conversation_key("certify-fork")
}

pub(super) fn idempotency_key(name: &str) -> Idempotency {
    Idempotency {
        key: name.to_owned(),
        is_repeatable: true,
        route: "POST /prompts".to_owned(),
        body_hash: name.to_owned(),
    }
}

/// Returns an approver who may decide the request, if any.
pub(super) fn find_decider(key: &ConversationKey, request: &Request) -> Option<Decider> {
    let roles: Vec<String> = request
        .approvers
        .iter()
        .filter_map(|approver| approver.strip_prefix("role:"))
        .map(ToOwned::to_owned)
        .collect();
    let decider = |user: &str| Decider::User {
        tenant: key.tenant.clone(),
        user: UserId::new(user),
        roles: roles.clone(),
    };
    let candidates = [decider(key.user.as_str()), decider("certify-approver"), Decider::Link];
    candidates.into_iter().find(|candidate| candidate.can_decide(key, request))
}

/// A unit of work of an instance: a request of the client, or a queue message.
#[derive(Clone)]
pub(super) enum Task {
    Prompt(Box<PromptTask>),
    /// Copies the conversation up to an entry.
    Fork {
        key: ConversationKey,
        entry_id: EntryId,
    },
    /// Moves the leaf.
    Move {
        key: ConversationKey,
        entry_id: EntryId,
    },
    Decision {
        key: ConversationKey,
        request: Box<Request>,
        decision: &'static str,
    },
    Turn(Nudge),
    Notify(Nudge),
}

/// A prompt of the conversation.
#[derive(Clone)]
pub(super) struct PromptTask {
    pub(super) agent: String,
    pub(super) key: ConversationKey,
    /// From 0.
    pub(super) number: usize,
    pub(super) text: Option<String>,
    pub(super) at: PromptPosition,
}

impl Task {
    /// Parses the message of a queue.
    pub(super) fn from_message(queue: &str, text: &str) -> Option<Self> {
        let nudge = serde_json::from_str(text).ok()?;
        Some(if queue == queue::TURNS { Self::Turn(nudge) } else { Self::Notify(nudge) })
    }
}

/// # Errors
/// The reason why the task must be repeated.
pub(super) async fn run_task(services: Arc<Services>, task: Task) -> Result<(), String> {
    match task {
        Task::Prompt(prompt) => {
            send_prompt(&services, *prompt).await.map_err(|refusal| refusal.to_string())
        }
        Task::Fork { key, entry_id } => {
            let request = ForkRequest {
                entry_id: entry_id.to_string(),
                position: Some(ForkPosition::At),
                conversation_id: Some(fork_key().conversation_id.to_string()),
            };
            let idempotency = idempotency_key("fork");
            let forked = Box::pin(fork_conversation(&services, &key, request, &idempotency)).await;
            forked.map(|_| ()).map_err(|refusal| refusal.to_string())
        }
        Task::Move { key, entry_id } => {
            let entry_id = Some(entry_id.to_string());
            let request = LeafRequest { entry_id, ..LeafRequest::default() };
            let idempotency = idempotency_key("move");
            let moved = Box::pin(move_leaf(&services, &key, &request, &idempotency)).await;
            moved.map(|_| ()).map_err(|refusal| refusal.to_string())
        }
        Task::Decision { key, request, decision } => {
            let Some(decider) = find_decider(&key, &request) else { return Ok(()) };
            let is_question = request.kind == RequestKind::Question;
            let value = is_question.then(|| choose_answer(&request));
            let body = DecisionRequest { decision: decision.to_owned(), reason: None, value };
            match decide(&services, &key, request.id.as_str(), body, &decider).await {
                // The call's outcome arrived first, or the request expired.
                Ok(_) | Err(CommandError::AlreadyDecided(_) | CommandError::Expired { .. }) => {
                    Ok(())
                }
                Err(refusal) => Err(refusal.to_string()),
            }
        }
        Task::Turn(nudge) => match Box::pin(delivery::handle(&services, &nudge)).await {
            Ok(_) | Err(TurnError::LeaseLost { .. } | TurnError::Stopped { .. }) => Ok(()),
            Err(error @ TurnError::Store { .. }) => Err(error.to_string()),
        },
        Task::Notify(nudge) => {
            notifications::notify(&services, &nudge).await.map_err(|error| error.to_string())
        }
    }
}

/// An answer that fits the schema of the question.
fn choose_answer(request: &Request) -> RawJson {
    let schema = request.schema.as_ref().map(RawJson::to_value).unwrap_or_default();
    let first = schema.pointer("/enum/0").cloned();
    RawJson::from_value(&match first {
        Some(option) => option,
        None if schema.get("type").is_some_and(|kind| kind == "boolean") => Value::Bool(true),
        None => Value::from("certify"),
    })
}

async fn send_prompt(services: &Services, prompt: PromptTask) -> Result<(), CommandError> {
    let PromptTask { agent, key, number, text, at } = prompt;
    let input = text.map(Content::Text);
    let idempotency = idempotency_key(&format!("prompt {number}"));
    let sender = Sender {
        source: Source::User,
        traceparent: None,
        when_busy: WhenBusy::Queue,
        clients: None,
    };
    if number == 0 {
        let request = FirstPromptRequest {
            agent: Some(agent),
            conversation_id: Some(key.conversation_id.as_str().to_owned()),
            input,
            ..FirstPromptRequest::default()
        };
        let owner = Owner::from_key(&key);
        return begin_conversation(services, &owner, request, &idempotency, &sender)
            .await
            .map(|_| ());
    }
    let request = PromptRequest { input, at, ..PromptRequest::default() };
    accept_prompt(services, &key, request, &idempotency, &sender).await.map(|_| ())
}
