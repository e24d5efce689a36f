//! Storing of inputs with the actions of the extensions that ran for them, and the requests that start
//! no prompt because an extension has handled their input.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::abort::abort_document;
use crate::pipeline::{CommandContext, RequestDocuments, Signal};
use crate::prompt_request::Disposition;
use crate::request_hooks::CommandResult;
use crate::routing::find_running_prompt;
use crate::target::Target;
use turnwheel_conversation::action::{Action, StoredActions};
use turnwheel_conversation::inbox::{IdempotencyRecord, InboxItem};
use turnwheel_platform::ids::{ConversationId, ConversationKey, InputId};
use turnwheel_platform::telemetry::trace;
use turnwheel_record::certain_write::receipt_document;
use turnwheel_record::contract::{CommandError, CommandResponse};
use turnwheel_record::documents;
use turnwheel_record::services::Services;
use turnwheel_storage::store::Document;

/// Response to an input that started no prompt.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InputHandled {
    #[schema(value_type = String)]
    pub conversation_id: ConversationId,
    /// Id of the request; `GET …/inbox/{inputId}` returns the state of its changes.
    #[schema(value_type = String)]
    pub input_id: InputId,
    /// `handled`; `waiting` if the command asks a question and runs again after the answer.
    pub disposition: Disposition,
    /// Name of the command that ran; absent if an extension handled the input as a whole.
    pub command: Option<String>,
    /// Text of the command for the user.
    pub output: Option<String>,
    /// Why the command failed; it has changed nothing.
    pub error: Option<String>,
    /// With `waiting`: newest event of the conversation before this input.
    pub last_event_id: Option<u64>,
}

impl InputHandled {
    pub(super) fn new(key: &ConversationKey, input_id: InputId, command: Option<String>) -> Self {
        Self {
            conversation_id: key.conversation_id.clone(),
            input_id,
            disposition: Disposition::Handled,
            command,
            output: None,
            error: None,
            last_event_id: None,
        }
    }
}

/// An input that starts no prompt.
#[derive(Debug)]
pub(super) struct HandledInput {
    pub(super) command: Option<String>,
    pub(super) result: CommandResult,
}

/// Stores the receipt of a handled input, or the inbox item with its actions.
pub(super) async fn store_handled(
    context: CommandContext<'_>,
    target: &Target,
    handled: HandledInput,
) -> Result<CommandResponse, CommandError> {
    let CommandContext { services, key, idempotency, .. } = context;
    let CommandResult { output, error, mut actions } = handled.result;
    let body = InputHandled {
        output,
        error,
        ..InputHandled::new(key, context.input_id(), handled.command)
    };
    let response = CommandResponse::new(200, &body);
    let abort = take_abort(services, target, &mut actions).await?;
    let signal = if abort.is_some() { Signal::Abort } else { context.signal };
    let mut documents =
        RequestDocuments { abort, new_head: target.new_head(), ..RequestDocuments::default() };
    if actions.is_empty() {
        let now = services.clock.now();
        documents.own.push(receipt_document(idempotency, key, &response, now));
    } else {
        let item = actions_item(services, context.input_id(), &actions);
        documents.item = Some(Box::new(item));
    }
    CommandContext { signal, ..context }.store(documents, response).await
}

/// Stores an inbox item, and the actions of the hooks that ran for it.
pub(super) async fn store_with_actions(
    context: CommandContext<'_>,
    target: &Target,
    item: InboxItem,
    actions: Vec<StoredActions>,
    response: CommandResponse,
) -> Result<CommandResponse, CommandError> {
    let documents = action_documents(context, target, actions).await?;
    let signal = if documents.abort.is_some() { Signal::Abort } else { context.signal };
    let new_head = target.new_head();
    let documents = RequestDocuments { item: Some(Box::new(item)), new_head, ..documents };
    CommandContext { signal, ..context }.store(documents, response).await
}

/// The documents of the actions that extensions took on an input: none, an inbox item, the abort of
/// the running prompt, or both.
pub(super) async fn action_documents(
    context: CommandContext<'_>,
    target: &Target,
    mut actions: Vec<StoredActions>,
) -> Result<RequestDocuments<'static>, CommandError> {
    let services = context.services;
    let abort = take_abort(services, target, &mut actions).await?;
    let mut own = Vec::new();
    if !actions.is_empty() {
        let id = InputId::new(format!("{}-actions", context.input_id()));
        let item = actions_item(services, id, &actions);
        own.push(documents::inbox_document(&item));
    }
    Ok(RequestDocuments { own, abort, ..RequestDocuments::default() })
}

/// Takes the aborts out of the actions. Returns the abort of the running prompt, which takes effect
/// at once; `None`: no abort, or no prompt runs.
async fn take_abort(
    services: &Services,
    target: &Target,
    actions: &mut Vec<StoredActions>,
) -> Result<Option<Document>, CommandError> {
    let is_abort = |action: &Action| matches!(action, Action::Abort);
    if !actions.iter().any(|stored| stored.actions.iter().any(is_abort)) {
        return Ok(None);
    }
    for stored in &mut *actions {
        stored.actions.retain(|action| !is_abort(action));
    }
    actions.retain(|stored| !stored.actions.is_empty());
    let running = match target {
        Target::New(_) => None,
        Target::Existing(head) => find_running_prompt(services, head).await?,
    };
    Ok(running.map(|prompt_id| abort_document(services, &prompt_id)))
}

/// The inbox item with actions on a request.
fn actions_item(services: &Services, input_id: InputId, actions: &[StoredActions]) -> InboxItem {
    InboxItem {
        input_id,
        accepted_at: services.clock.now(),
        idempotency: IdempotencyRecord::default(),
        traceparent: trace::current_traceparent(),
        body: StoredActions::to_inbox_body(actions),
    }
}
