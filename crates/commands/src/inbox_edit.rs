//! Command that edits queued inputs, until a worker applies them. The first writer wins:
//! both sides replace the item only in the version that they have read.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::inbox_clear::{ATTEMPTS_MAX, RETRY_DELAY, already_applied_error, find_changeable};
use crate::input;
use crate::input_events::{InputChangeKind, emit_input_event};
use crate::pipeline::{CommandContext, RequestDocuments, Signal};
use crate::prompt_request::Mode;
use crate::request_hooks::RequestHooks;
use crate::store_input::action_documents;
use crate::target::Target;
use turnwheel_conversation::action::StoredActions;
use turnwheel_conversation::content::Content;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{InboxBody, InboxItem, PromptInput, WhenIdle};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_queries::inbox::{StoredInput, input_etag, queued_view};
use turnwheel_record::certain_write::{
    BatchOutcome, receipt_document, with_inbox_count, write_until_certain,
};
use turnwheel_record::contract::{CommandError, CommandResponse, STEER_WITHOUT_INPUT};
use turnwheel_record::documents;
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::store::conditional::{back_off, compare_and_set};
use turnwheel_storage::store::{Document, Write};

/// Change of a queued input. Absent members stay as they are.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InputChange {
    /// Text, or text, image and file blocks.
    #[schema(value_type = Option<Object>)]
    pub input: Option<Content>,
    /// `steer` or `followUp`.
    pub mode: Option<Mode>,
    pub when_idle: Option<WhenIdle>,
    pub visible: Option<bool>,
}

/// The edit of a queued input.
#[derive(Clone, Copy, Debug)]
pub struct InputEdit<'a> {
    pub id: &'a str,
    pub change: &'a InputChange,
}

/// Edits a queued input. Before each attempt `is_etag_accepted` checks its `ETag`.
///
/// # Errors
/// Returns [`CommandError::AlreadyApplied`] if the input is no longer queued, and otherwise the
/// [`CommandError`] to report to the client.
pub async fn edit_input(
    services: &Services,
    key: &ConversationKey,
    edit: InputEdit<'_>,
    idempotency: &Idempotency,
    is_etag_accepted: impl Fn(&str) -> bool + Send + Sync,
) -> Result<CommandResponse, CommandError> {
    let (head, _) = load::head(services, key).await?;
    let target = Target::Existing(head);
    let context = CommandContext { services, key, idempotency, signal: Signal::None };
    let attempt = || try_edit(context, &target, edit, &is_etag_accepted);
    compare_and_set(back_off(ATTEMPTS_MAX, RETRY_DELAY), attempt).await
}

/// Tries the edit once. `None`: another writer came first.
async fn try_edit(
    context: CommandContext<'_>,
    target: &Target,
    InputEdit { id, change }: InputEdit<'_>,
    is_etag_accepted: &(impl Fn(&str) -> bool + Send + Sync),
) -> Result<Option<CommandResponse>, CommandError> {
    let CommandContext { services, key, idempotency, .. } = context;
    if let Some(replayed) = context.find_response().await? {
        return Ok(Some(replayed));
    }
    let (item, stored) = match find_changeable(services, key, id).await? {
        StoredInput::Queued(item, stored) => (item, stored),
        StoredInput::Finished(receipt) => return Err(already_applied_error(&receipt)),
    };
    if !is_etag_accepted(&input_etag(&item)) {
        return Err(CommandError::PreconditionFailed { etag: input_etag(&item) });
    }
    let (edited, actions) = build_edited_item(context, target.head(), &item, change).await?;
    let RequestDocuments { own, abort, .. } = action_documents(context, target, actions).await?;
    let response = CommandResponse::new(200, &queued_view(&edited)).with_etag(input_etag(&edited));
    let starts_now = edited.has_effect_when_idle() && !item.has_effect_when_idle();
    let mut writes = vec![
        Write::Replace(documents::inbox_document(&edited), Some(stored.etag)),
        Write::Create(receipt_document(idempotency, key, &response, services.clock.now())),
    ];
    let signal = match (&abort, starts_now || !own.is_empty()) {
        (Some(_), _) => Signal::Abort,
        (None, true) => Signal::Wake(None),
        (None, false) => Signal::None,
    };
    let is_pending = starts_now || !own.is_empty() || abort.is_some();
    let due = is_pending.then(|| services.clock.now());
    writes.extend(own.into_iter().map(Write::Create));
    services.fail_points.hit("admission.edit").await;
    if !write_with_abort(context, writes, abort, due).await?
        && !is_stored(context, &response).await?
    {
        return Ok(None);
    }
    CommandContext { signal, ..context }.emit_signal().await;
    emit_input_event(services, key, &item.input_id, InputChangeKind::Changed).await;
    Ok(Some(response))
}

/// True if the key has this response: the edit, or an identical one, has won.
async fn is_stored(
    context: CommandContext<'_>,
    response: &CommandResponse,
) -> Result<bool, CommandError> {
    let stored = context.find_response().await?;
    // A long body is not stored.
    Ok(stored.is_some_and(|stored| stored.body.is_none() || stored.body == response.body))
}

/// True if the documents are written. The abort is left out if another request aborts the same
/// prompt.
async fn write_with_abort(
    context: CommandContext<'_>,
    writes: Vec<Write>,
    abort: Option<Document>,
    due: Option<Timestamp>,
) -> Result<bool, CommandError> {
    let CommandContext { services, key, .. } = context;
    if let Some(abort) = abort {
        let with_abort = writes.iter().cloned().chain([Write::Create(abort)]).collect();
        let with_abort = with_inbox_count(with_abort, due);
        if let BatchOutcome::Won(_) = write_until_certain(services, key, with_abort).await? {
            return Ok(true);
        }
    }
    let writes = with_inbox_count(writes, due);
    let outcome = write_until_certain(services, key, writes).await?;
    Ok(matches!(outcome, BatchOutcome::Won(_)))
}

/// The edited item, and the actions of the extensions on its new input.
async fn build_edited_item(
    context: CommandContext<'_>,
    head: &Head,
    item: &InboxItem,
    change: &InputChange,
) -> Result<(InboxItem, Vec<StoredActions>), CommandError> {
    let services = context.services;
    let (mode, mut prompt) = match &item.body {
        InboxBody::Prompt(prompt) => (Mode::Prompt, prompt.clone()),
        InboxBody::Steer(prompt) => (Mode::Steer, prompt.clone()),
        InboxBody::FollowUp(prompt) => (Mode::FollowUp, prompt.clone()),
        InboxBody::Custom(_) => {
            return Err(CommandError::Conflict {
                detail: "a custom message cannot be edited: remove it and send it again".to_owned(),
                retry_after: None,
            });
        }
        InboxBody::Command(command) if command.prompt_at().is_some() => {
            return Err(CommandError::Conflict {
                detail: "a prompt that moves to another branch cannot be edited: remove it and send it again".to_owned(),
                retry_after: None,
            });
        }
        InboxBody::Decision(_)
        | InboxBody::Abort(_)
        | InboxBody::Continue(_)
        | InboxBody::LateResult(_)
        | InboxBody::Command(_) => return Err(CommandError::NotFound("input")),
    };
    let mode = resolve_mode(mode, change)?;
    let mut actions = Vec::new();
    if let Some(input) = &change.input {
        let edit_id = context.input_id();
        let hooks = RequestHooks::new(services, head, &edit_id);
        let hooked = hooks.transform_input(input.clone(), prompt.source).await?;
        let content = hooked.content.ok_or_else(handled_edit_error)?;
        let input_id = &item.input_id;
        let (input, original) =
            input::prepare_changed_input(services, head, input_id, content, hooked.original)
                .await?;
        (prompt.input, prompt.original) = (Some(input), original);
        actions = hooked.actions;
    }
    if mode == Mode::Steer && prompt.input.is_none() {
        return Err(CommandError::invalid("/input", STEER_WITHOUT_INPUT));
    }
    let prompt = PromptInput {
        when_idle: change.when_idle.unwrap_or(prompt.when_idle),
        visible: change.visible.unwrap_or(prompt.visible),
        ..prompt
    };
    Ok((InboxItem { body: mode.to_inbox_body(prompt), ..item.clone() }, actions))
}

fn handled_edit_error() -> CommandError {
    CommandError::Conflict {
        detail: "An extension handles this input itself, so it cannot replace a queued one. Remove the queued input, and send this one as a new input."
            .to_owned(),
        retry_after: None,
    }
}

fn resolve_mode(mode: Mode, change: &InputChange) -> Result<Mode, CommandError> {
    let mode = match change.mode {
        Some(Mode::Prompt) if mode != Mode::Prompt => {
            return Err(CommandError::invalid(
                "/mode",
                "a queued input is `steer` or `followUp`; with whenIdle `start` it starts a prompt when nothing runs",
            ));
        }
        changed => changed.unwrap_or(mode),
    };
    if mode == Mode::Prompt && change.when_idle == Some(WhenIdle::Hold) {
        return Err(CommandError::invalid(
            "/whenIdle",
            "`hold` is for the modes `steer` and `followUp`: change the mode too",
        ));
    }
    Ok(mode)
}
