//! Command that moves the leaf to another place in the tree of entries.

mod leaf_request;
mod resolved_move;
pub(super) mod stored_move;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::abort::abort_document;
use crate::conversation::is_model_configured;
use crate::head_change::HeadChange;
pub use crate::leaf::leaf_request::LeafRequest;
use crate::leaf::leaf_request::validate;
use crate::leaf::resolved_move::{ResolvedMove, decide_move};
use crate::pipeline::{CommandContext, RequestDocuments, Signal};
use crate::request_hooks::{HookResult, RequestHooks};
use crate::routing::{already_processing, find_running_prompt};
use turnwheel_conversation::branch::{WriteLeft, find_position, find_writes_left, left_behind};
use turnwheel_conversation::context_ranges::context_ranges;
use turnwheel_conversation::entry::{BranchSummary, Entry, EntryBody, Label};
use turnwheel_conversation::event::{EventBody, SessionTreeChange};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{IdempotencyRecord, InboxBody, InboxItem};
use turnwheel_conversation::leaf_move::LeafMove;
use turnwheel_conversation::path::{last_model, last_thinking_level, path_to_leaf};
use turnwheel_conversation::path_settings::{PathSettings, last_active_tools};
use turnwheel_conversation::phase::{BranchTarget, Phase};
use turnwheel_conversation::plugin_state::plugin_state_at;
use turnwheel_conversation::settings::{DEFAULT_MODEL, MODEL_BYTES_MAX};
use turnwheel_conversation::step::{MoveInput, NavigateInput};
use turnwheel_extensions::{Observation, PendingLeafMove};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::{ConversationId, ConversationKey, EntryId, InputId, PromptId};
use turnwheel_platform::telemetry::trace;
use turnwheel_record::certain_write::receipt_document;
use turnwheel_record::contract::{CommandError, CommandResponse, RequestIntent};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::store::conditional::{back_off, compare_and_set};

/// Number of lost writes after which a move gives up.
const ATTEMPTS_MAX: usize = 10;
const RETRY_DELAY: Duration = Duration::from_millis(10);
const ABORT_ASKS: &str = "An extension asks a question before the move. Abort the prompt with `POST …/abort`, then move without `abort`.";
/// Maximum number of writes in a response.
pub const WRITES_MAX: usize = 100;

/// Response to a request that moves the leaf.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeafMoved {
    #[schema(value_type = String)]
    pub conversation_id: ConversationId,
    /// False if the leaf was there already, or if an extension cancelled the move.
    pub moved: bool,
    /// True if an extension cancelled the move.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancelled: bool,
    /// True if an extension asks a question first. `result` of the input has the outcome.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waiting: bool,
    /// Why the leaf did not move after the answer to a question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Id of the queued request, if an extension asks a question, a prompt is aborted or the model
    /// writes a summary first. The events `session_tree` and `branch_summary_end` report the outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub input_id: Option<InputId>,
    /// With `inputId`: newest event of the conversation before this input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_event_id: Option<u64>,
    /// The leaf after the request.
    #[schema(value_type = Option<String>, required = true)]
    pub leaf_id: Option<EntryId>,
    /// The leaf before the request.
    #[schema(value_type = Option<String>, required = true)]
    pub old_leaf_id: Option<EntryId>,
    /// Text of the message before which the leaf is now: for the user to edit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Model of the new path, if it is not configured. The conversation keeps its model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable_model: Option<String>,
    /// Writes on the part of the path that the conversation left: at most the newest 100. The move
    /// does not undo them.
    pub writes_left: Vec<WriteLeft>,
    /// Number of all writes on that part.
    pub writes_left_count: usize,
}

/// Moves the leaf of an idle conversation.
///
/// # Errors
/// Returns [`CommandError::AlreadyProcessing`] and [`CommandError::Conflict`] if the conversation is
/// not idle, and otherwise the [`CommandError`] to report to the client. After `Unavailable`, repeat
/// the request with the same key.
pub async fn move_leaf(
    services: &Services,
    key: &ConversationKey,
    request: &LeafRequest,
    idempotency: &Idempotency,
) -> Result<CommandResponse, CommandError> {
    validate(request)?;
    let traceparent = trace::current_traceparent();
    // A repetition of a request that waits wakes a worker again.
    let is_queued = request.is_model_asked() || request.abort == Some(true);
    let signal = if is_queued { Signal::Wake(traceparent.as_deref()) } else { Signal::None };
    let context = CommandContext { services, key, idempotency, signal };
    let attempt = || try_move(context, request);
    compare_and_set(back_off(ATTEMPTS_MAX, RETRY_DELAY), attempt).await
}

/// Tries the move once. `None`: the write was lost, or won with a lost response; the receipt shows
/// which.
async fn try_move(
    context: CommandContext<'_>,
    request: &LeafRequest,
) -> Result<Option<CommandResponse>, CommandError> {
    let CommandContext { services, key, .. } = context;
    let _lock = context.lock().await;
    let (head, etag) = load::head(services, key).await?;
    if let Some(replayed) = context.find_response().await? {
        let known = || RawJson::from_value(&unmoved(&head));
        let body = replayed.body.clone().unwrap_or_else(known);
        return Ok(Some(CommandResponse { body: Some(body), ..replayed }));
    }
    let aborted = match request.abort {
        Some(true) => find_running_prompt(services, &head).await?,
        Some(false) | None => None,
    };
    if aborted.is_none() {
        check_idle(services, &head).await?;
    }
    let plan = MovePlan::new(services, &head, request.entry_id.as_deref()).await?;
    // The end of an aborted prompt moves the leaf, too.
    if aborted.is_none() && plan.is_unmoved(&head) {
        let response = LeafMoved { text: plan.text, ..unmoved(&head) };
        return store_unmoved(context, &response).await.map(Some);
    }
    if aborted.is_none() && request.summary.is_some() && head.leaf_id.is_none() {
        let detail = "the conversation leaves no branch: move without a summary";
        return Err(CommandError::invalid("/summary", detail));
    }
    let input_id = context.input_id();
    let hooks = RequestHooks::new(services, &head, &input_id);
    let is_aborting = aborted.is_some();
    let decided = decide_move(&hooks, request, &plan, is_aborting).await;
    let HookResult::Done(resolved) = decided else {
        if is_aborting {
            return Err(CommandError::Conflict {
                detail: ABORT_ASKS.to_owned(),
                retry_after: None,
            });
        }
        return stored_move::store(context, head, request, plan).await.map(Some);
    };
    let body = match resolved {
        ResolvedMove::Cancelled => {
            let response = LeafMoved { cancelled: true, ..unmoved(&head) };
            return store_unmoved(context, &response).await.map(Some);
        }
        ResolvedMove::Summarise => plan.navigate_input(request).to_inbox_body(),
        ResolvedMove::Move(summary) if is_aborting => {
            plan.move_input(request, summary).to_inbox_body()
        }
        ResolvedMove::Move(summary) => {
            let change = HeadChange::new(services, head, etag)?;
            return commit_move(context, change, plan, summary, request.label.as_deref()).await;
        }
    };
    check_label(&head, request)?;
    store_request(context, &head, plan, body, aborted).await.map(Some)
}

/// Reports an invalid label while nothing has been paid.
fn check_label(head: &Head, request: &LeafRequest) -> Result<(), CommandError> {
    if let (Some(label), Some(leaf_id)) = (&request.label, &head.leaf_id) {
        let checked = head.clone().set_label(leaf_id, Some(label));
        checked.map_err(|why| CommandError::invalid("/label", why))?;
    }
    Ok(())
}

/// Stores the request for a worker, which moves the leaf with the model's summary, or after the end
/// of the aborted prompt.
async fn store_request(
    context: CommandContext<'_>,
    head: &Head,
    plan: MovePlan,
    body: InboxBody,
    aborted: Option<PromptId>,
) -> Result<CommandResponse, CommandError> {
    let input_id = context.input_id();
    let location = format!("conversations/{}/inbox/{input_id}", head.conversation_id);
    let item = InboxItem {
        input_id: input_id.clone(),
        accepted_at: context.services.clock.now(),
        idempotency: IdempotencyRecord::default(),
        traceparent: trace::current_traceparent(),
        body,
    };
    let response = plan.into_response(LeafMoved {
        input_id: Some(input_id),
        last_event_id: Some(head.event_seq),
        ..unmoved(head)
    });
    let response = CommandResponse::new(202, &response).with_location(location);
    let abort = aborted.map(|prompt_id| abort_document(context.services, &prompt_id));
    let traceparent = trace::current_traceparent();
    let signal = if abort.is_some() { Signal::Abort } else { Signal::Wake(traceparent.as_deref()) };
    let documents = RequestDocuments { abort, ..item.into() };
    CommandContext { signal, ..context }.store(documents, response).await
}

/// Commits the move with the summary and the label. `None` as [`try_move`].
async fn commit_move(
    context: CommandContext<'_>,
    mut change: HeadChange,
    plan: MovePlan,
    summary: Option<BranchSummary>,
    label: Option<&str>,
) -> Result<Option<CommandResponse>, CommandError> {
    let services = context.services;
    let old_leaf_id = change.head.leaf_id.clone();
    change.head.move_leaf(&plan.change);
    let mut event =
        SessionTreeChange { old_leaf_id: old_leaf_id.clone(), ..SessionTreeChange::default() };
    let text = summary.as_ref().map(|summary| summary.summary.clone());
    let mut labelled = plan.target_id.clone();
    if let Some(summary) = summary {
        let entry = change.append(EntryBody::BranchSummary(summary));
        event.summary = Some(entry.base.seq);
        labelled = Some(entry.base.entry_id.clone());
    }
    if let (Some(entry_id), Some(label)) = (labelled, label) {
        let label = change.head.set_label(&entry_id, Some(label));
        let label = label.map_err(|why| CommandError::invalid("/label", why))?;
        change.append(EntryBody::Label(Label::new(entry_id, label)));
    }
    event.new_leaf_id = change.leaf_id().cloned();
    let fact = Observation::SessionTree {
        old_leaf_id: old_leaf_id.clone(),
        new_leaf_id: event.new_leaf_id.clone(),
        summary: text,
    };
    let moved = LeafMoved {
        moved: true,
        leaf_id: event.new_leaf_id.clone(),
        old_leaf_id,
        ..unmoved(&change.head)
    };
    let response = CommandResponse::new(200, &plan.into_response(moved));
    change.emit(EventBody::SessionTree(event));
    if !change.commit(context, &response).await? {
        return Ok(None);
    }
    let input_id = context.input_id();
    RequestHooks::new(services, &change.head, &input_id).observe(&fact).await;
    Ok(Some(response))
}

fn unmoved(head: &Head) -> LeafMoved {
    LeafMoved {
        conversation_id: head.conversation_id.clone(),
        moved: false,
        cancelled: false,
        waiting: false,
        error: None,
        input_id: None,
        last_event_id: None,
        leaf_id: head.leaf_id.clone(),
        old_leaf_id: head.leaf_id.clone(),
        text: None,
        unavailable_model: None,
        writes_left: Vec::new(),
        writes_left_count: 0,
    }
}

/// Stores the receipt of a request that changes nothing.
async fn store_unmoved(
    context: CommandContext<'_>,
    body: &LeafMoved,
) -> Result<CommandResponse, CommandError> {
    let CommandContext { services, key, idempotency, .. } = context;
    let response = CommandResponse::new(200, body);
    let receipt = receipt_document(idempotency, key, &response, services.clock.now());
    let documents = RequestDocuments { own: vec![receipt], ..Default::default() };
    context.store(documents, response).await
}

/// # Errors
/// A prompt or a summary runs, or inputs are queued: the text says what to do.
pub(super) async fn check_idle(services: &Services, head: &Head) -> Result<(), CommandError> {
    if let Some(run) = &head.prompt {
        let prompt_id = run.id.clone();
        return Err(already_processing(services, head, prompt_id, RequestIntent::Move).await?);
    }
    let conflict = |detail: &str| {
        let retry_after = Some(Duration::from_secs(1));
        Err(CommandError::Conflict { detail: detail.to_owned(), retry_after })
    };
    if head.is_waiting_for_decision() {
        return conflict("A compaction waits for the answer to a question. Answer or decline it.");
    }
    if head.phase != Phase::Idle {
        return conflict("The conversation is being summarised. Wait for the end of the summary.");
    }
    // An item accepted before this read is here, or the head has changed and the commit is lost.
    let inbox = load::inbox_of(services, head).await?;
    if inbox.iter().any(|item| item.has_effect_when_idle() && !item.is_waiting_command()) {
        return conflict(
            "Inputs are queued in this conversation. Wait until they are applied, or remove them from the inbox.",
        );
    }
    Ok(())
}

/// A move to a place in the tree, with what it leaves behind.
pub(super) struct MovePlan {
    /// The entry of the request.
    target_id: Option<EntryId>,
    pub(super) change: LeafMove,
    text: Option<String>,
    unavailable_model: Option<String>,
    common_ancestor: Option<EntryId>,
    left: Vec<Arc<Entry>>,
    writes_left: Vec<WriteLeft>,
}

impl MovePlan {
    /// # Errors
    /// Returns [`CommandError::EntryNotFound`] for an unknown entry.
    pub(super) async fn new(
        services: &Services,
        head: &Head,
        target: Option<&str>,
    ) -> Result<Self, CommandError> {
        let entries = load::all_entries(services, head).await?;
        let target_id = target.map(EntryId::new);
        let (leaf_id, text) = match &target_id {
            None => (None, None),
            Some(id) => {
                let position = find_position(&entries, id);
                let position =
                    position.ok_or_else(|| CommandError::EntryNotFound(id.to_string()))?;
                (position.leaf_id, position.text)
            }
        };
        let old_path = path_to_leaf(&entries, head.leaf_id.as_ref());
        let path = path_to_leaf(&entries, leaf_id.as_ref());
        let left = left_behind(&old_path, &path);
        let (change, unavailable_model) = plan_change(services, head, leaf_id, &path);
        let shared = old_path.len() - left.len();
        let common_ancestor = old_path.get(..shared).and_then(<[_]>::last);
        Ok(Self {
            target_id,
            change,
            text,
            unavailable_model,
            common_ancestor: common_ancestor.map(|entry| entry.base.entry_id.clone()),
            writes_left: find_writes_left(&old_path, left),
            left: left.to_vec(),
        })
    }

    /// The request for a summary by the model.
    fn navigate_input(&self, request: &LeafRequest) -> NavigateInput {
        let (leaf_id, label) = (self.change.leaf_id.clone(), request.label.clone());
        let target = BranchTarget { leaf_id, label };
        NavigateInput { target, instructions: request.instructions.clone() }
    }

    /// The move, as a worker makes it.
    fn move_input(&self, request: &LeafRequest, summary: Option<BranchSummary>) -> MoveInput {
        MoveInput {
            leaf_move: self.change.clone(),
            summary,
            label: request.label.clone(),
            entry_id: self.target_id.clone(),
        }
    }

    /// True if the request names the leaf, or stands for its position.
    fn is_unmoved(&self, head: &Head) -> bool {
        self.target_id == head.leaf_id || self.change.leaf_id == head.leaf_id
    }

    /// Adds what the user should know.
    fn into_response(self, moved: LeafMoved) -> LeafMoved {
        let (writes_left, writes_left_count) = self.list_writes();
        let (text, unavailable_model) = (self.text, self.unavailable_model);
        LeafMoved { text, unavailable_model, writes_left, writes_left_count, ..moved }
    }

    /// The newest writes left behind, and the number of all.
    pub(super) fn list_writes(&self) -> (Vec<WriteLeft>, usize) {
        let count = self.writes_left.len();
        let newest = self.writes_left.iter().skip(count.saturating_sub(WRITES_MAX));
        (newest.cloned().collect(), count)
    }

    pub(super) fn pending<'a>(
        &'a self,
        head: &'a Head,
        label: Option<&'a str>,
        wants_summary: bool,
    ) -> PendingLeafMove<'a> {
        PendingLeafMove {
            target_id: self.target_id.as_ref(),
            old_leaf_id: head.leaf_id.as_ref(),
            new_leaf_id: self.change.leaf_id.as_ref(),
            common_ancestor_id: self.common_ancestor.as_ref(),
            entries_left: &self.left,
            wants_summary,
            label,
        }
    }
}

/// The move to a leaf with its path, and the model of the path if it is not configured.
pub fn plan_change(
    services: &Services,
    head: &Head,
    leaf_id: Option<EntryId>,
    path: &[Arc<Entry>],
) -> (LeafMove, Option<String>) {
    let agent = services.agents.find(Some(&head.agent)).ok();
    let of_agent = agent.and_then(|agent| agent.settings.model.clone());
    let name_of = |model: Option<&String>| {
        let name = model.or(of_agent.as_ref()).map_or(DEFAULT_MODEL, String::as_str);
        name.to_owned()
    };
    let is_model = |model: Option<&String>, id: &str| {
        services.model.record(&name_of(model)).is_ok_and(|record| record.id == id)
    };
    let (base, current) = (head.base_settings(), &head.settings.model);
    let (model, unavailable) = match last_model(path) {
        None => (base.model, None),
        Some(id) if is_model(base.model.as_ref(), id) => (base.model, None),
        Some(id) if is_model(current.as_ref(), id) => (current.clone(), None),
        Some(id) if is_model_configured(services, id) => (Some(id.to_owned()), None),
        Some(id) => (base.model, Some(id.chars().take(MODEL_BYTES_MAX).collect())),
    };
    let change = LeafMove {
        leaf_id,
        model: Some(name_of(model.as_ref())),
        thinking_level: None,
        settings: Some(PathSettings {
            model,
            thinking_level: last_thinking_level(path).or(base.thinking_level),
            active_tools: last_active_tools(path, base.active_tools),
        }),
        plugin_state: plugin_state_at(path),
        context: context_ranges(path),
    };
    (change, unavailable)
}
