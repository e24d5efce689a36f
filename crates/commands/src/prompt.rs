//! Command that accepts a prompt into the inbox and wakes a worker.

use crate::admission::{Admission, AdmittedInput, admit};
use crate::conversation::{ConversationInit, build_head, merge_ids, resolve_conversation_id};
use crate::input_events::{InputChangeKind, emit_input_event};
use crate::leaf::{MovePlan, check_idle};
use crate::pipeline::CommandContext;
use crate::request_hooks::{HookResult, RequestHooks};
use crate::routing::{Route, check_model, route_first_input, route_input};
use crate::store_input::store_with_actions;
use crate::target::Target;
use crate::{input, key_reservation};
use turnwheel_conversation::branch::WriteLeft;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{
    CommandInput, IdempotencyRecord, InboxBody, InboxItem, PromptAt, PromptInput,
};
use turnwheel_extensions::SummaryOverride;
use turnwheel_platform::ids::{ConversationKey, InputId, PromptId};
use turnwheel_record::contract::{CommandError, CommandResponse, Owner};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::services::Services;

pub use crate::prompt_request::{Disposition, PromptAccepted, PromptPosition, PromptRequest};
pub use crate::prompt_request::{FirstPromptRequest, Mode, Sender, WhenBusy};

/// Accepts a prompt for an existing conversation.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn accept_prompt(
    services: &Services,
    key: &ConversationKey,
    request: PromptRequest,
    idempotency: &Idempotency,
    sender: &Sender,
) -> Result<CommandResponse, CommandError> {
    let signal = sender.wake_signal();
    let context = CommandContext { services, key, idempotency, signal };
    let accepted = context.accept(|head| async move {
        let target = Target::Existing(head);
        let admission = admit(context, &target, request, sender).await?;
        let admitted = match admission {
            Admission::Handled(response) => return Ok(response),
            Admission::Admitted(admitted) => admitted,
        };
        let route = route_input(services, target.head(), &admitted.request, sender).await?;
        store_admitted(context, &target, *admitted, sender, route).await
    });
    accepted.await
}

/// Creates a conversation together with its first prompt, in one batch.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn begin_conversation(
    services: &Services,
    owner: &Owner,
    mut request: FirstPromptRequest,
    idempotency: &Idempotency,
    sender: &Sender,
) -> Result<CommandResponse, CommandError> {
    let given = merge_ids(request.id.take(), request.conversation_id.take())?;
    let has_given_id = given.is_some();
    let id = resolve_conversation_id(given, owner, idempotency, "/conversationId")?;
    let key = owner.conversation_key(&id);
    let signal = sender.wake_signal();
    let context = CommandContext { services, key: &key, idempotency, signal };
    let is_key_reserved = has_given_id && idempotency.is_repeatable;
    let begin = Box::pin(begin_with_id(context, request, sender, is_key_reserved));
    if !is_key_reserved {
        return begin.await;
    }
    key_reservation::run_reserved(services, owner, idempotency, begin).await
}

async fn begin_with_id(
    context: CommandContext<'_>,
    request: FirstPromptRequest,
    sender: &Sender,
    is_key_reserved: bool,
) -> Result<CommandResponse, CommandError> {
    let CommandContext { services, key, idempotency, .. } = context;
    let _lock = context.lock().await;
    if let Some(replayed) = context.find_response().await? {
        return Ok(replayed);
    }
    let init = ConversationInit {
        agent: request.agent,
        settings: request.settings.unwrap_or_default(),
        metadata: request.metadata.unwrap_or_default(),
    };
    let mut head = build_head(services, key, init)?;
    if is_key_reserved {
        key_reservation::add_to_head(&mut head, &Owner::from_key(key), idempotency);
    }
    let request = PromptRequest {
        input: request.input,
        mode: request.mode,
        when_idle: request.when_idle,
        visible: request.visible,
        model: request.model,
        expand: request.expand,
        at: PromptPosition::Leaf,
        is_moved: false,
    };
    let target = Target::New(head);
    let admitted = match admit(context, &target, request, sender).await? {
        Admission::Handled(response) => return Ok(response),
        Admission::Admitted(admitted) => admitted,
    };
    let route = route_first_input(services, &admitted.request)?;
    store_admitted(context, &target, *admitted, sender, route).await
}

/// Stores the inbox item of an input, with the actions of extensions.
async fn store_admitted(
    context: CommandContext<'_>,
    target: &Target,
    admitted: AdmittedInput,
    sender: &Sender,
    route: Route,
) -> Result<CommandResponse, CommandError> {
    let CommandContext { services, .. } = context;
    let head = target.head();
    let AdmittedInput { mut request, original, actions } = admitted;
    check_model(services, head, &request, &route)?;
    let input_id = context.input_id();
    let plan = match std::mem::take(&mut request.at) {
        PromptPosition::Entry(id) => {
            plan_position(services, head, &input_id, id.as_deref()).await?
        }
        PromptPosition::Leaf => None,
    };
    let original = match (request.input.take(), original) {
        (Some(input), original) => {
            let (input, original) =
                input::prepare_changed_input(services, head, &input_id, input, original).await?;
            request.input = Some(input);
            original
        }
        (None, original) => original,
    };
    let idempotency_key = context.idempotency.client_key().map(ToOwned::to_owned);
    let prompt =
        PromptInput { original, idempotency_key, ..prompt_input(head, &input_id, request, sender) };
    let writes_left = plan.as_ref().map(|plan| plan.list_writes().0).unwrap_or_default();
    let item = InboxItem {
        input_id: input_id.clone(),
        accepted_at: services.clock.now(),
        idempotency: IdempotencyRecord::default(),
        traceparent: None,
        body: match plan {
            Some(plan) => {
                let prompt_at = PromptAt { prompt, leaf_move: plan.change };
                InboxBody::Command(CommandInput::from_prompt_at(&prompt_at))
            }
            None => route.mode.to_inbox_body(prompt),
        },
    };
    let disposition = route.disposition;
    let signal = match disposition {
        Disposition::Started => sender.start_signal(services, head),
        Disposition::Queued | Disposition::Handled | Disposition::Waiting => sender.wake_signal(),
    };
    let context = CommandContext { signal, ..context };
    let response = accepted_response(head, &item, route, writes_left);
    let is_queued = disposition == Disposition::Queued && target.new_head().is_none();
    let stored = store_with_actions(context, target, item, actions, response).await?;
    if is_queued && !stored.is_replayed {
        emit_input_event(services, context.key, &input_id, InputChangeKind::Queued).await;
    }
    Ok(stored)
}

/// The move of the leaf to the position of a prompt. `None`: the leaf is there already.
///
/// # Errors
/// The conversation is not idle, there is no such entry, or an extension cancels the move.
async fn plan_position(
    services: &Services,
    head: &Head,
    input_id: &InputId,
    at: Option<&str>,
) -> Result<Option<MovePlan>, CommandError> {
    check_idle(services, head).await?;
    let plan = MovePlan::new(services, head, at).await?;
    if plan.change.leaf_id == head.leaf_id {
        return Ok(None);
    }
    let pending = plan.pending(head, None, false);
    let refused =
        |detail: &str| Err(CommandError::Conflict { detail: detail.to_owned(), retry_after: None });
    match RequestHooks::new(services, head, input_id).decide_move(&pending).await {
        HookResult::Done(Some(SummaryOverride::Cancel)) => {
            refused("An extension cancelled the move to the entry in `at`.")
        }
        HookResult::Done(_) => Ok(Some(plan)),
        HookResult::Asked(_) | HookResult::Deferred => refused(
            "An extension asks a question before the move to the entry in `at`. Move with `POST …/leaf`, answer the question, then send the prompt without `at`.",
        ),
    }
}

pub(super) fn accepted_response(
    head: &Head,
    item: &InboxItem,
    route: Route,
    writes_left: Vec<WriteLeft>,
) -> CommandResponse {
    let prompt_id = route.joins.unwrap_or_else(|| PromptId::from_input(&item.input_id));
    let location = format!("conversations/{}/prompts/{prompt_id}", head.conversation_id);
    let body = PromptAccepted {
        conversation_id: head.conversation_id.clone(),
        prompt_id,
        input_id: item.input_id.clone(),
        disposition: route.disposition,
        last_event_id: head.event_seq,
        writes_left,
    };
    CommandResponse::new(202, &body).with_location(location)
}

fn prompt_input(
    head: &Head,
    input_id: &InputId,
    request: PromptRequest,
    sender: &Sender,
) -> PromptInput {
    PromptInput {
        prompt_id: PromptId::from_input(input_id),
        user: head.user.clone(),
        when_idle: request.when_idle.unwrap_or_default(),
        input: request.input,
        visible: request.visible.unwrap_or(true),
        model: request.model,
        source: sender.source,
        traceparent: sender.traceparent.clone(),
        original: None,
        idempotency_key: None,
    }
}
