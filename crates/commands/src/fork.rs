//! Command that copies a conversation up to an entry into a new one.

mod artifacts;
pub(super) mod stored_fork;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::conversation::{
    ConversationInit, append_entry, build_head, find_suitable_incarnation, resolve_conversation_id,
};
use crate::fork::artifacts::NamedArtifacts;
use crate::import::{self, Import};
use crate::key_reservation;
use crate::leaf::{WRITES_MAX, plan_change};
use crate::pipeline::{CommandContext, Signal};
use crate::request_hooks::{HookInputs, HookResult, RequestHooks};
use turnwheel_conversation::branch::{WriteLeft, find_writes_left, left_behind};
use turnwheel_conversation::context_ranges::context_of_copy;
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::fork::{
    CopiedPart, ForkPosition, PromptSpans, Renumbering, cut_prompt_end, find_fork_point,
    indeterminate_writes, labels_beside_path, last_labels, last_name,
};
use turnwheel_conversation::head::{Head, Parent};
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::settings::Settings;
use turnwheel_extensions::{Observation, PendingFork, SessionStartReason};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::{ConversationKey, EntryId, InputId};
use turnwheel_queries::conversation::{ConversationView, new_conversation_view};
use turnwheel_queries::conversation_etag;
use turnwheel_record::certain_write::receipt_document;
use turnwheel_record::contract::{CommandError, CommandResponse, Owner};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::load;
use turnwheel_record::services::Services;

/// The copy of a conversation that a request asks for.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ForkRequest {
    /// An entry of the conversation, on any branch.
    pub entry_id: String,
    /// `before` a user message, which is the default, or `at` any entry.
    pub position: Option<ForkPosition>,
    /// Id of the new conversation; if absent, derived from owner and idempotency key.
    pub conversation_id: Option<String>,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForkResult {
    pub conversation: Option<ConversationView>,
    /// Text of the user message before which the fork ends. Absent with `at`.
    pub text: Option<String>,
    /// The model of the copied path, if it is not configured. The fork has that of its agent.
    pub unavailable_model: Option<String>,
    /// Writes on the part of the source's path that the fork does not have: at most the newest 100.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub writes_left: Vec<WriteLeft>,
    /// True if an extension cancelled the fork. Then there is no new conversation.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cancelled: bool,
    /// Id of the stored request, if an extension asks a question first. `result` of this input has
    /// the outcome.
    #[schema(value_type = Option<String>)]
    pub input_id: Option<InputId>,
    /// With `inputId`: newest event of the conversation before this input.
    pub last_event_id: Option<u64>,
    /// Why there is no fork after the answer to a question.
    pub error: Option<String>,
}

/// Copies the conversation of `key`.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key: it continues where it stopped.
pub async fn fork_conversation(
    services: &Services,
    key: &ConversationKey,
    request: ForkRequest,
    idempotency: &Idempotency,
) -> Result<CommandResponse, CommandError> {
    let context = CommandContext { services, key, idempotency, signal: Signal::None };
    // The response to a fork that waits for an answer is stored in its source.
    if idempotency.is_repeatable
        && let Some(replayed) = context.find_response().await?
    {
        return Ok(replayed);
    }
    let stored = RawJson::from_value(&request);
    match try_fork(services, key, request, idempotency, HookInputs::default()).await? {
        HookResult::Done(response) => Ok(response),
        HookResult::Asked(_) | HookResult::Deferred => {
            let (head, _) = load::head(services, key).await?;
            stored_fork::store(context, head, stored).await
        }
    }
}

/// Makes the fork, unless its hooks wait for an answer.
async fn try_fork(
    services: &Services,
    key: &ConversationKey,
    mut request: ForkRequest,
    idempotency: &Idempotency,
    hook_inputs: HookInputs,
) -> Result<HookResult<CommandResponse>, CommandError> {
    let owner = Owner::from_key(key);
    let (source, _) = load::head(services, key).await?;
    let given = request.conversation_id.take();
    let is_reserved = given.is_some() && idempotency.is_repeatable;
    let id = resolve_conversation_id(given, &owner, idempotency, "/conversationId")?;
    let new_key = owner.conversation_key(&id);
    let context = CommandContext { services, key: &new_key, idempotency, signal: Signal::None };
    let fork = Fork { context, source, is_reserved };
    let work = Box::pin(fork.run(&request, hook_inputs));
    let made = if is_reserved {
        key_reservation::run_reserved(services, &owner, idempotency, work).await
    } else {
        work.await
    };
    match made {
        // Another worker may have made the same fork meanwhile.
        Err(error @ CommandError::Conflict { retry_after: None, .. }) => {
            context.find_response().await?.map(HookResult::Done).ok_or(error)
        }
        made => made,
    }
}

/// A fork in progress. The context is that of the new conversation.
#[derive(Debug)]
struct Fork<'a> {
    context: CommandContext<'a>,
    source: Head,
    is_reserved: bool,
}

impl Fork<'_> {
    async fn run(
        self,
        request: &ForkRequest,
        hook_inputs: HookInputs,
    ) -> Result<HookResult<CommandResponse>, CommandError> {
        let Self { context, source, .. } = &self;
        let services = context.services;
        let _lock = context.lock().await;
        if let Some(replayed) = context.find_response().await? {
            return Ok(HookResult::Done(replayed));
        }
        let input_id = context.input_id();
        import::check_id_available(services, context.key, &input_id).await?;
        let entries = self.load_entries().await?;
        let (entry_id, position) =
            (EntryId::new(&request.entry_id), request.position.unwrap_or_default());
        let point = find_fork_point(&entries, &entry_id, position)
            .ok_or_else(|| CommandError::invalid("/entryId", "Invalid entry ID for forking"))?;
        let pending = PendingFork { entry_id: &entry_id, position };
        let hooks = RequestHooks::new(services, source, &input_id);
        let hooks = hooks.with_inputs(hook_inputs);
        let is_allowed = match hooks.allows_fork(&pending).await {
            HookResult::Done(is_allowed) => is_allowed,
            HookResult::Asked(question) => return Ok(HookResult::Asked(question)),
            HookResult::Deferred => return Ok(HookResult::Deferred),
        };
        if !is_allowed {
            if self.is_reserved {
                let owner = Owner::from_key(context.key);
                key_reservation::release_unused(services, &owner, context.idempotency).await;
            }
            let cancelled = ForkResult { cancelled: true, ..ForkResult::default() };
            return Ok(HookResult::Done(CommandResponse::new(200, &cancelled)));
        }
        let artifacts = NamedArtifacts::find(services, source, &point.path).await?;
        let (mut head, unavailable_model) = self.build_head(&point.path)?;
        let mut import = Import::begin(services, &head, &input_id).await?;
        services.fail_points.hit("fork.begun").await;
        head.incarnation = import.artifact_scope().incarnation;
        artifacts.copy(services, &mut import).await?;
        copy_entries(&mut import, &mut head, &entries, &point).await?;
        head.indeterminate_writes = indeterminate_writes(source, &point.path);
        // The artifacts may have been deleted with the source meanwhile.
        load::head(services, &source.key()).await?;
        let result = ForkResult {
            conversation: Some(new_conversation_view(services, &head)),
            writes_left: writes_left(source, &entries, &point.path),
            text: point.text,
            unavailable_model,
            ..ForkResult::default()
        };
        let response = CommandResponse::new(201, &result)
            .with_location(format!("conversations/{}", head.conversation_id))
            .with_etag(conversation_etag(&head));
        let receipt =
            receipt_document(context.idempotency, context.key, &response, head.created_at);
        services.fail_points.hit("fork.commit").await;
        import.finish(head.clone(), receipt).await?;
        context.observe_start(&head, SessionStartReason::Fork).await;
        let fact = Observation::SessionFork { previous: source.conversation_id.clone() };
        RequestHooks::new(services, &head, &input_id).observe(&fact).await;
        Ok(HookResult::Done(response))
    }

    /// All entries of the source. A gap means that it is being deleted.
    async fn load_entries(&self) -> Result<Arc<Vec<Arc<Entry>>>, CommandError> {
        let services = self.context.services;
        match load::all_entries(services, &self.source).await {
            Ok(entries) => Ok(entries),
            Err(error) => {
                load::head(services, &self.source.key()).await?;
                Err(error)
            }
        }
    }

    /// The head of the new conversation, without entries, and the model of the path if it is not
    /// configured.
    fn build_head(&self, path: &[Arc<Entry>]) -> Result<(Head, Option<String>), CommandError> {
        let Self { context, source, is_reserved } = self;
        let services = context.services;
        let init = ConversationInit {
            agent: Some(source.agent.clone()),
            settings: Settings::default(),
            metadata: source.metadata.clone(),
        };
        let mut head = build_head(services, context.key, init)?;
        let copied = path.iter().map(|entry| &entry.base.entry_id);
        head.incarnation = find_suitable_incarnation(services, None, copied)?;
        head.settings = source.settings.clone();
        head.base_settings.clone_from(&source.base_settings);
        let (change, unavailable) = plan_change(services, source, None, path);
        head.move_leaf(&change);
        head.is_compacted = path.iter().any(|entry| entry.body.compaction().is_some());
        head.name = last_name(path);
        head.parent = Some(Parent {
            conversation_id: source.conversation_id.clone(),
            entry_id: path.last().map(|entry| entry.base.entry_id.clone()),
            tool_call_id: None,
        });
        head.min_reader = head.min_reader.max(head.required_reader());
        if *is_reserved {
            let owner = Owner::from_key(context.key);
            key_reservation::add_to_head(&mut head, &owner, context.idempotency);
        }
        Ok((head, unavailable))
    }
}

/// The newest writes on the part of the source's path that is not copied.
fn writes_left(source: &Head, entries: &[Arc<Entry>], copied: &[Arc<Entry>]) -> Vec<WriteLeft> {
    let path = path_to_leaf(entries, source.leaf_id.as_ref());
    let mut writes = find_writes_left(&path, left_behind(&path, copied));
    writes.drain(..writes.len().saturating_sub(WRITES_MAX));
    writes
}

/// Writes the entries of the path, and those that complete the copy: labels that were set on other
/// branches, and the end of a prompt that the copy cuts off.
async fn copy_entries(
    import: &mut Import<'_>,
    head: &mut Head,
    entries: &[Arc<Entry>],
    point: &CopiedPart,
) -> Result<(), CommandError> {
    let mut renumbering = Renumbering::default();
    let mut spans = PromptSpans::default();
    for entry in &point.path {
        let copy = renumbering.add(Entry::clone(entry));
        spans.add(&copy);
        head.record_copied_entry(&copy.body);
        (head.seq, head.leaf_id) = (copy.base.seq, Some(copy.base.entry_id.clone()));
        import.add(&copy).await?;
    }
    head.set_context(&context_of_copy(&point.path));
    let now = head.created_at;
    if let Some(open) = spans.open().cloned() {
        let mut end = append_entry(head, cut_prompt_end(), now);
        end.base.prompt_id = Some(open.id);
        spans.add(&end);
        import.add(&end).await?;
    }
    for label in labels_beside_path(entries, &point.path) {
        import.add(&append_entry(head, EntryBody::Label(label), now)).await?;
    }
    head.prompts = spans.into_ended();
    let labels = last_labels(entries);
    for (id, label) in
        point.path.iter().filter_map(|entry| labels.get_key_value(&entry.base.entry_id))
    {
        // A label that is too long now stays an entry.
        let _unlisted = head.set_label(id, Some(label));
    }
    Ok(())
}
