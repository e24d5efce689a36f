//! Views of prompts. An accepted prompt that has not started is shown as `running`.

use std::sync::Arc;

use crate::agent::entry::{Entry, EntryBody, PromptState, PromptStop, Source};
use crate::agent::head::{Head, State};
use crate::agent::inbox::{Outcome, Receipt};
use crate::agent::receipt::{PromptReceipt, receipt as receipt_of};
use crate::agent::usage::Usage;
use crate::agent::view::{PromptView, prompt_view};
use crate::agents::Agent;
use crate::ids::{PromptId, RequestId};
use crate::tools::validate::response::misfit;
use crate::turn::World;
use crate::turn::admission::Refusal;
use crate::turn::admission::idempotency::{Earlier, earlier};
use crate::turn::views::approvals::{Approval, pending};
use crate::turn::views::conversation::seen_state;
use crate::turn::views::load::{self, Coming};

/// Reads the prompt with that id.
///
/// # Errors
/// Returns [`CommandError::NotFound`], or `Unavailable` if the store does not respond: repeat the
/// request.
pub async fn prompt(world: &World, head: &Head, id: &PromptId) -> Result<PromptView, Refusal> {
    if let Some(view) = taken_in(world, head, id).await? {
        return Ok(view);
    }
    let Some(input_id) = id.as_str().strip_prefix("pr_").map(|rest| format!("in_{rest}")) else {
        return Err(NO_PROMPT);
    };
    if !crate::ids::is_plain(&input_id) {
        return Err(NO_PROMPT);
    }
    let key = head.key();
    match earlier(world, &key, &input_id).await? {
        Some(Earlier::Waiting(item)) => {
            load::coming(&item).map(|coming| waiting_view(world, head, coming)).ok_or(NO_PROMPT)
        }
        Some(Earlier::Settled(receipt)) if receipt.outcome == Outcome::Cleared => {
            is_promised(&receipt, id).then(|| cleared_view(world, head, id)).ok_or(NO_PROMPT)
        }
        // It was applied between the two reads, or joined another prompt.
        Some(Earlier::Settled(receipt)) => {
            let (head, _) = load::head(world, &key).await?;
            let id = receipt.prompt_id.as_ref().unwrap_or(id);
            taken_in(world, &head, id).await?.ok_or(NO_PROMPT)
        }
        None => Err(NO_PROMPT),
    }
}

const NO_PROMPT: Refusal = Refusal::NotFound("prompt");

/// True if the response to the request promised a prompt with that id.
fn is_promised(receipt: &Receipt, id: &PromptId) -> bool {
    let answer = receipt.admission.answer.as_ref();
    let promised = answer.and_then(|answer| answer.string_member("promptId"));
    promised.is_some_and(|promised| promised == id.as_str())
}

async fn taken_in(
    world: &World,
    head: &Head,
    id: &PromptId,
) -> Result<Option<PromptView>, Refusal> {
    let Some(entries) = span(world, head, id).await? else { return Ok(None) };
    let Some(mut view) = prompt_view(id, head, &entries) else { return Ok(None) };
    if let Some(agent) = agent_with_schema(world, head) {
        read_result(&mut view, &agent);
    }
    show_pending(&mut view, head, &pending(world, head).await?);
    Ok(Some(view))
}

/// Adds the effect of decisions that no worker has applied yet.
fn show_pending(view: &mut PromptView, head: &Head, pending: &[Approval]) {
    let is_open = |id: &RequestId| pending.iter().any(|approval| &approval.request.id == id);
    view.pending_approval_ids.retain(is_open);
    if view.state == PromptState::WaitingForApproval
        && seen_state(head, pending) != State::WaitingForApproval
    {
        view.state = PromptState::Running;
    }
}

/// Loads at least the entries of a prompt. `None`: it has not started.
async fn span(
    world: &World,
    head: &Head,
    id: &PromptId,
) -> Result<Option<Vec<Arc<Entry>>>, Refusal> {
    let (from, to) = match head.prompts.iter().find(|span| &span.id == id) {
        Some(span) => (span.from_seq, span.to_seq.unwrap_or(head.seq)),
        // The prompt is older than those in the head.
        None if head.prompts.len() >= crate::agent::head::PROMPTS_KEPT => (1, head.seq),
        None => return Ok(None),
    };
    let from = from.max(1);
    if let Some(known) = world.entries.remembered(head, from, to) {
        return Ok(Some(known));
    }
    load::entries(world, &head.key(), from, to).await.map(Some)
}

/// Reads the receipt of a prompt that has started.
///
/// # Errors
/// Returns [`CommandError::NotFound`], or `Unavailable` if the store does not respond: repeat the
/// request.
pub async fn receipt(world: &World, head: &Head, id: &PromptId) -> Result<PromptReceipt, Refusal> {
    let entries = span(world, head, id).await?.unwrap_or_default();
    receipt_of(id, &entries).ok_or(Refusal::NotFound("receipt, which a prompt has once it starts,"))
}

fn agent_with_schema(world: &World, head: &Head) -> Option<Arc<Agent>> {
    let agent = world.agents.find(Some(&head.agent)).ok()?;
    agent.response_schema.is_some().then_some(agent)
}

fn read_result(view: &mut PromptView, agent: &Agent) {
    let Some(schema) = &agent.response_schema else { return };
    view.read_result(|text| misfit(schema, text).is_none());
}

/// View of a prompt that no worker has started.
fn waiting_view(world: &World, head: &Head, coming: Coming<'_>) -> PromptView {
    let of_agent = world.agents.find(Some(&head.agent)).ok();
    let settings =
        of_agent.map_or_else(|| head.settings.clone(), |agent| head.settings.over(&agent.settings));
    let model = coming.model.map(ToOwned::to_owned);
    PromptView {
        id: coming.prompt_id.clone(),
        prompt_id: coming.prompt_id.clone(),
        conversation_id: head.conversation_id.clone(),
        user_id: coming.user.clone(),
        source: coming.source,
        resolved_model: None,
        pending_approval_ids: Vec::new(),
        model: model.or(settings.model).unwrap_or_else(|| crate::agent::settings::MODEL.to_owned()),
        visible: coming.visible,
        state: PromptState::Running,
        stop_reason: None,
        input: coming.input.cloned(),
        output: Vec::new(),
        usage: Usage::default(),
        result: None,
        error: None,
        incomplete: None,
        retry: None,
    }
}

/// View of a prompt that was removed before it started.
fn cleared_view(world: &World, head: &Head, id: &PromptId) -> PromptView {
    let coming = Coming {
        prompt_id: id,
        user: &head.user,
        source: Source::User,
        input: None,
        visible: true,
        model: None,
    };
    PromptView {
        state: PromptState::Aborted,
        stop_reason: Some(PromptStop::Aborted),
        ..waiting_view(world, head, coming)
    }
}

/// One page of prompts, oldest first, and the offset of the next page.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn prompts(
    world: &World,
    head: &Head,
    after: usize,
    limit: usize,
) -> Result<(Vec<PromptView>, Option<usize>), Refusal> {
    let (inbox, head) = load::inbox_then_head(world, &head.key()).await?;
    let head = &head;
    let entries = load::all_entries(world, head).await?;
    let begun: Vec<&PromptId> = entries
        .iter()
        .filter(|entry| matches!(entry.body, EntryBody::Prompt(_)))
        .filter_map(|entry| entry.base.prompt_id.as_ref())
        .collect();
    let waiting: Vec<Coming<'_>> =
        load::to_come(head, &inbox).filter(|coming| !begun.contains(&coming.prompt_id)).collect();
    let pending = pending(world, head).await?;
    let agent = agent_with_schema(world, head);
    let mut views = Vec::new();
    for id in begun.iter().skip(after).take(limit) {
        let span: Vec<_> = entries
            .iter()
            .filter(|entry| entry.base.prompt_id.as_ref() == Some(*id))
            .cloned()
            .collect();
        if let Some(mut view) = prompt_view(id, head, &span) {
            if let Some(agent) = &agent {
                read_result(&mut view, agent);
            }
            show_pending(&mut view, head, &pending);
            views.push(view);
        }
    }
    let passed = after.saturating_sub(begun.len());
    let room = limit - views.len().min(limit);
    views.extend(
        waiting.iter().skip(passed).take(room).map(|coming| waiting_view(world, head, *coming)),
    );
    let end = after + limit;
    let next = (end < begun.len() + waiting.len()).then_some(end);
    Ok((views, next))
}
