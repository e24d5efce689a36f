//! Views of prompts. An accepted prompt that has not started is shown as `running`.

use std::collections::HashSet;
use std::sync::Arc;

use crate::approvals::{ApprovalRecord, pending_approvals};
use crate::conversation::effective_state;
use turnwheel_agent_files::AgentDefinition;
use turnwheel_conversation::entry::{
    Entry, EntryBody, PromptError, PromptState, PromptStop, Source,
};
use turnwheel_conversation::head::{Head, State};
use turnwheel_conversation::inbox::{InputOutcome, Receipt};
use turnwheel_conversation::path::path_from_leaf;
use turnwheel_conversation::prompt_receipt::{PromptReceipt, build_receipt};
use turnwheel_conversation::prompt_view::{PromptOutput, PromptView, build_prompt_view};
use turnwheel_conversation::usage::Usage;
use turnwheel_platform::ids::{PromptId, RequestId};
use turnwheel_record::contract::CommandError;
use turnwheel_record::idempotency::{PreviousRequest, find_previous_request};
use turnwheel_record::load;
use turnwheel_record::load::QueuedPrompt;
use turnwheel_record::services::Services;
use turnwheel_tools::validate::response::find_mismatch;

/// Reads the prompt with that id.
///
/// # Errors
/// Returns [`CommandError::NotFound`], or `Unavailable` if the store does not respond: repeat the
/// request.
pub async fn read_prompt(
    services: &Services,
    head: &Head,
    id: &PromptId,
) -> Result<PromptView, CommandError> {
    if let Some(view) = started_view(services, head, id).await? {
        return Ok(view);
    }
    let Some(input_id) = id.as_str().strip_prefix("pr_").map(|rest| format!("in_{rest}")) else {
        return Err(NO_PROMPT);
    };
    if !turnwheel_platform::ids::is_plain_text(&input_id) {
        return Err(NO_PROMPT);
    }
    let key = head.key();
    match find_previous_request(services, &key, &input_id).await? {
        Some(PreviousRequest::Queued(item)) => load::queued_prompt(&item)
            .map(|coming| queued_view(services, head, coming))
            .ok_or(NO_PROMPT),
        Some(PreviousRequest::Finished(receipt)) if receipt.outcome == InputOutcome::Cleared => {
            is_promised(&receipt, id).then(|| cleared_view(services, head, id)).ok_or(NO_PROMPT)
        }
        // It was applied between the two reads, or joined another prompt.
        Some(PreviousRequest::Finished(receipt)) => {
            let (head, _) = load::head(services, &key).await?;
            let id = receipt.prompt_id.as_ref().unwrap_or(id);
            started_view(services, &head, id).await?.ok_or(NO_PROMPT)
        }
        None => Err(NO_PROMPT),
    }
}

const NO_PROMPT: CommandError = CommandError::NotFound("prompt");

/// True if the response to the request promised a prompt with that id.
fn is_promised(receipt: &Receipt, id: &PromptId) -> bool {
    let response = receipt.idempotency.response.as_ref();
    let promised = response.and_then(|response| response.string_member("promptId"));
    promised.is_some_and(|promised| promised == id.as_str())
}

async fn started_view(
    services: &Services,
    head: &Head,
    id: &PromptId,
) -> Result<Option<PromptView>, CommandError> {
    let Some(entries) = load_span(services, head, id).await? else { return Ok(None) };
    let Some(mut view) = build_prompt_view(id, head, &entries) else { return Ok(None) };
    if let Some(agent) = agent_with_schema(services, head) {
        add_result(&mut view, &agent);
    }
    apply_accepted_decisions(&mut view, head, &pending_approvals(services, head).await?);
    Ok(Some(view))
}

/// Adds the effect of decisions that no worker has applied yet.
fn apply_accepted_decisions(view: &mut PromptView, head: &Head, pending: &[ApprovalRecord]) {
    let is_open = |id: &RequestId| pending.iter().any(|approval| &approval.request.id == id);
    view.pending_approval_ids.retain(is_open);
    if view.state == PromptState::WaitingForApproval
        && effective_state(head, pending) != State::WaitingForApproval
    {
        view.state = PromptState::Running;
    }
}

/// Loads at least the entries of a prompt: all entries for a prompt that is older than those in the
/// head. `None`: it has not started.
pub(super) async fn load_span(
    services: &Services,
    head: &Head,
    id: &PromptId,
) -> Result<Option<Vec<Arc<Entry>>>, CommandError> {
    let (from, to) = match head.prompts.iter().find(|span| &span.id == id) {
        Some(span) => (span.from_seq, span.to_seq.unwrap_or(head.seq)),
        // The prompt is older than those in the head.
        None if head.prompts.len() >= turnwheel_conversation::head::PROMPT_SPANS_MAX => {
            (1, head.seq)
        }
        None => return Ok(None),
    };
    let from = from.max(1);
    if let Some(known) = services.entry_cache.cached_range(head, from, to) {
        return Ok(Some(known));
    }
    load::entries(services, &head.key(), from, to).await.map(Some)
}

/// Reads the receipt of a prompt that has started.
///
/// # Errors
/// Returns [`CommandError::NotFound`], or `Unavailable` if the store does not respond: repeat the
/// request.
pub async fn read_receipt(
    services: &Services,
    head: &Head,
    id: &PromptId,
) -> Result<PromptReceipt, CommandError> {
    let entries = load_span(services, head, id).await?.unwrap_or_default();
    let receipt = build_receipt(id, &entries);
    let mut receipt =
        receipt.ok_or(CommandError::NotFound("receipt, which a prompt has once it starts,"))?;
    if receipt.state == PromptState::Running && head.state() == State::WaitingForApproval {
        let pending = pending_approvals(services, head).await?;
        if effective_state(head, &pending) == State::WaitingForApproval {
            receipt.state = PromptState::WaitingForApproval;
        }
    }
    Ok(receipt)
}

fn agent_with_schema(services: &Services, head: &Head) -> Option<Arc<AgentDefinition>> {
    let agent = services.agents.find(Some(&head.agent)).ok()?;
    agent.response_schema.is_some().then_some(agent)
}

fn add_result(view: &mut PromptView, agent: &AgentDefinition) {
    let Some(schema) = &agent.response_schema else { return };
    view.set_result(|text| find_mismatch(schema, text).is_none());
}

/// View of a prompt that no worker has started.
fn queued_view(services: &Services, head: &Head, queued: QueuedPrompt<'_>) -> PromptView {
    let found = services.agents.find(Some(&head.agent)).ok();
    let settings = found.map_or_else(
        || head.settings.clone(),
        |agent| head.settings.with_fallback(&agent.settings),
    );
    let model = queued.model.map(ToOwned::to_owned);
    PromptView {
        id: queued.prompt_id.clone(),
        prompt_id: queued.prompt_id.clone(),
        conversation_id: head.conversation_id.clone(),
        user_id: queued.user.clone(),
        source: queued.source,
        resolved_model: None,
        pending_approval_ids: Vec::new(),
        model: model
            .or(settings.model)
            .unwrap_or_else(|| turnwheel_conversation::settings::DEFAULT_MODEL.to_owned()),
        visible: queued.visible,
        state: PromptState::Running,
        on_path: None,
        stop_reason: None,
        input: queued.input.cloned(),
        original: queued.original.cloned(),
        output: Vec::new(),
        last_event_id: head.event_seq,
        usage: Usage::default(),
        result: None,
        error: None,
        incomplete: None,
        notes: Vec::new(),
        retry: None,
    }
}

/// View of an input that started no prompt, with the output and the error of its command. It is
/// never stored.
pub fn handled_view(
    services: &Services,
    head: &Head,
    id: &PromptId,
    output: Option<String>,
    error: Option<String>,
) -> PromptView {
    let queued = prompt_without_input(head, id);
    let now = services.clock.now();
    let text = |content| PromptOutput::Text {
        id: format!("{id}-output"),
        content,
        started_at: now,
        ended_at: now,
    };
    let error = error.map(|message| PromptError { kind: "command".to_owned(), message });
    let (state, stop_reason) = match error {
        Some(_) => (PromptState::Failed, PromptStop::Error),
        None => (PromptState::Completed, PromptStop::End),
    };
    PromptView {
        state,
        stop_reason: Some(stop_reason),
        output: output.map(text).into_iter().collect(),
        error,
        ..queued_view(services, head, queued)
    }
}

/// A prompt whose input is not known any more.
fn prompt_without_input<'a>(head: &'a Head, id: &'a PromptId) -> QueuedPrompt<'a> {
    QueuedPrompt {
        prompt_id: id,
        user: &head.user,
        source: Source::User,
        input: None,
        original: None,
        visible: true,
        model: None,
    }
}

/// View of a prompt that was removed before it started.
fn cleared_view(services: &Services, head: &Head, id: &PromptId) -> PromptView {
    let queued = prompt_without_input(head, id);
    PromptView {
        state: PromptState::Aborted,
        stop_reason: Some(PromptStop::Aborted),
        ..queued_view(services, head, queued)
    }
}

/// One page of prompts, oldest first, and the offset of the next page.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn list_prompts(
    services: &Services,
    head: &Head,
    after: usize,
    limit: usize,
) -> Result<(Vec<PromptView>, Option<usize>), CommandError> {
    let (inbox, head) = load::inbox_then_head(services, &head.key()).await?;
    let head = &head;
    let entries = load::all_entries(services, head).await?;
    let started: Vec<&PromptId> = entries
        .iter()
        .filter(|entry| matches!(entry.body, EntryBody::Prompt(_)))
        .filter_map(|entry| entry.base.prompt_id.as_ref())
        .collect();
    let queued: Vec<QueuedPrompt<'_>> = load::queued_prompts(head, &inbox)
        .filter(|coming| !started.contains(&coming.prompt_id))
        .collect();
    let pending = pending_approvals(services, head).await?;
    let agent = agent_with_schema(services, head);
    let path: HashSet<&PromptId> = path_from_leaf(entries.iter(), head.leaf_id.as_ref())
        .filter_map(|entry| entry.base.prompt_id.as_ref())
        .collect();
    let mut views = Vec::new();
    for id in started.iter().skip(after).take(limit) {
        let span: Vec<_> = entries
            .iter()
            .filter(|entry| entry.base.prompt_id.as_ref() == Some(*id))
            .cloned()
            .collect();
        if let Some(mut view) = build_prompt_view(id, head, &span) {
            if let Some(agent) = &agent {
                add_result(&mut view, agent);
            }
            apply_accepted_decisions(&mut view, head, &pending);
            view.on_path = Some(path.contains(id));
            views.push(view);
        }
    }
    let skipped = after.saturating_sub(started.len());
    let remaining = limit - views.len().min(limit);
    views.extend(
        queued
            .iter()
            .skip(skipped)
            .take(remaining)
            .map(|coming| queued_view(services, head, *coming)),
    );
    let end = after + limit;
    let next = (end < started.len() + queued.len()).then_some(end);
    Ok((views, next))
}
