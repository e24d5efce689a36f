//! One log line for each event that an operator looks for. Facts are fields; prompts, responses and
//! tool data are never logged.

use crate::services::Services;
use turnwheel_conversation::budget::{BudgetAlert, BudgetPeriod};
use turnwheel_conversation::entry::{Entry, EntryBody, PromptEnd, PromptState};
use turnwheel_conversation::event::EventBody;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{InboxBody, InboxItem, PromptInput};
use turnwheel_conversation::message::StopReason;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::request::CallRef;
use turnwheel_conversation::transition::Transition;
use turnwheel_model::{ModelFailure, ModelResponse};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, EffectId, PromptId};

/// Characters of a provider's error text that a line shows.
const ERROR_CHARS_MAX: usize = 300;

/// `head`: the head of the conversation that this input creates.
#[expect(clippy::wildcard_enum_match_arm, reason = "only prompts are logged")]
pub fn log_prompt_accepted(key: &ConversationKey, item: &InboxItem, head: Option<&Head>) {
    let (mode, prompt) = match &item.body {
        InboxBody::Prompt(prompt) => ("prompt", prompt),
        InboxBody::Steer(prompt) => ("steer", prompt),
        InboxBody::FollowUp(prompt) => ("followUp", prompt),
        InboxBody::Command(command) => match command.prompt_at() {
            Some(at) => ("prompt", &at.prompt),
            None => return,
        },
        _ => return,
    };
    let PromptInput { prompt_id, source, .. } = prompt;
    tracing::info!(
        conversation.id = %key.conversation_id,
        agent = head.map(|head| head.agent.as_str()),
        prompt.id = %prompt_id,
        mode,
        source = source.name(),
        "prompt accepted"
    );
}

/// Logs the events of a commit.
#[expect(clippy::wildcard_enum_match_arm, reason = "most kinds of entry are not logged")]
pub fn log_commit(key: &ConversationKey, transition: &Transition) {
    let id = &key.conversation_id;
    for entry in &transition.entries {
        match &entry.body {
            EntryBody::Request(request_entry) => {
                let request = &request_entry.request;
                tracing::info!(
                    conversation.id = %id,
                    approval.id = %request.id,
                    tool.name = request.tool.as_deref(),
                    approvers = %request.approvers.join(","),
                    expires_at = request.expires_at.map(tracing::field::display),
                    "approval requested"
                );
            }
            EntryBody::Decision(decision_entry) => {
                let decision = &decision_entry.decision;
                tracing::info!(
                    conversation.id = %id,
                    approval.id = %decision.request_id,
                    decision = decision.verdict.name(),
                    decided_by = %decision.decided_by,
                    "approval decided"
                );
            }
            EntryBody::PromptEnd(end) => log_prompt_end(key, transition, entry, end),
            _ => {}
        }
    }
}

/// Logs the tool results of a commit. A lost commit logs none.
pub fn log_audit(key: &ConversationKey, transition: &Transition) {
    for event in &transition.events {
        let EventBody::ToolExecutionEnd(end) = &event.body else { continue };
        let entry = transition.entries.iter().find(|entry| entry.base.seq == end.result);
        let effect = entry.and_then(|entry| call_of_result(&entry.body)).map(|call| {
            let ConversationKey { conversation_id, .. } = key;
            let incarnation = &transition.head.incarnation;
            EffectId::from_call(conversation_id, incarnation, call.response_seq, call.index)
        });
        let effect = effect.as_ref().map(tracing::field::display);
        let ConversationKey { tenant, user, conversation_id: id } = key;
        let (tool, call) = (&end.tool_name, &end.tool_call_id);
        if end.is_error {
            tracing::warn!(
                conversation.id = %id, %tenant, %user, tool.call.id = call, effect.id = effect,
                "[AUDIT] {tool}: FAILED"
            );
        } else {
            tracing::info!(
                conversation.id = %id, %tenant, %user, tool.call.id = call, effect.id = effect,
                "[AUDIT] {tool}: OK"
            );
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "most kinds of entry are no result")]
fn call_of_result(body: &EntryBody) -> Option<CallRef> {
    match body {
        EntryBody::Message(message) => message.call,
        EntryBody::ToolReturned(returned) => Some(returned.call),
        _ => None,
    }
}

/// Logs and counts alerts, after the commit that writes their notifications.
pub fn report_alerts(services: &Services, key: &ConversationKey, alerts: &[BudgetAlert]) {
    for alert in alerts {
        let (level, period) = (alert.level.name(), alert.period.map(BudgetPeriod::name));
        tracing::warn!(
            conversation.id = %key.conversation_id,
            level,
            subject = %alert.subject,
            period,
            date = alert.date.as_deref(),
            percent = alert.percent,
            used = alert.unit.to_display(alert.used),
            limit = alert.unit.to_display(alert.limit),
            unit = alert.unit.name(),
            "budget alert"
        );
        if let Some(metrics) = services.telemetry.metrics() {
            metrics.record_budget_alert(level, period, alert.percent);
        }
    }
}

fn log_prompt_end(key: &ConversationKey, transition: &Transition, entry: &Entry, end: &PromptEnd) {
    let (id, agent) = (&key.conversation_id, &transition.head.agent);
    let prompt = entry.base.prompt_id.as_ref().map_or("", PromptId::as_str);
    let stop_reason = end.stop_reason.name();
    match (&end.error, end.state) {
        (Some(error), _) => tracing::warn!(
            conversation.id = %id,
            agent = %agent,
            prompt.id = prompt,
            error.type = %error.kind,
            error = truncate_error(&error.message),
            "prompt failed"
        ),
        (None, PromptState::Failed) => tracing::warn!(
            conversation.id = %id, agent = %agent, prompt.id = prompt, stop_reason, "prompt failed"
        ),
        (None, PromptState::Aborted) => tracing::info!(
            conversation.id = %id, agent = %agent, prompt.id = prompt, stop_reason, "prompt aborted"
        ),
        (None, PromptState::Completed | PromptState::Running | PromptState::WaitingForApproval) => {
            tracing::info!(
                conversation.id = %id,
                agent = %agent,
                prompt.id = prompt,
                stop_reason,
                incomplete = end.incomplete.as_ref().map(|incomplete| incomplete.reason.as_str()),
                "prompt completed"
            );
        }
    }
}

/// A finished model call, before its commit.
#[derive(Debug)]
pub struct ModelCallLog {
    agent: String,
    model: String,
    /// From 1.
    attempt: u32,
    attempts_max: u32,
    stop_reason: StopReason,
    input_tokens: u64,
    output_tokens: u64,
    status: Option<u16>,
    error_type: Option<String>,
    error: String,
    is_too_large: bool,
}

impl ModelCallLog {
    /// `attempt` and `attempts_max` count attempts at the same response.
    pub fn new(agent: &str, response: &ModelResponse, attempt: u32, attempts_max: u32) -> Self {
        let message = &response.message;
        let error = message.error_message.as_deref().unwrap_or("no reason was given");
        Self {
            agent: agent.to_owned(),
            model: message.model.clone(),
            attempt,
            attempts_max,
            stop_reason: message.stop_reason,
            input_tokens: message.usage.input,
            output_tokens: message.usage.output,
            status: response.metadata.status,
            error_type: response.metadata.error.clone(),
            error: truncate_error(error).to_owned(),
            is_too_large: response.failure == Some(ModelFailure::ContextOverflow),
        }
    }

    /// `head`: the head after the commit; absent if the commit failed.
    pub fn log(&self, key: &ConversationKey, head: Option<&Head>, now: Timestamp) {
        if self.stop_reason == StopReason::Error {
            return self.log_failure(key, head, now);
        }
        tracing::info!(
            conversation.id = %key.conversation_id,
            agent = %self.agent,
            gen_ai.request.model = %self.model,
            gen_ai.usage.input_tokens = self.input_tokens,
            gen_ai.usage.output_tokens = self.output_tokens,
            stop_reason = stop_reason_name(self.stop_reason),
            "{}",
            if self.stop_reason == StopReason::Aborted { "model call aborted" } else { "model call completed" },
        );
    }

    fn log_failure(&self, key: &ConversationKey, head: Option<&Head>, now: Timestamp) {
        let (next, retry_in) = match head.map(|head| &head.phase) {
            Some(Phase::Model { attempt, not_before }) if *attempt > self.attempt => {
                let wait = not_before.map(|at| now.until(at)).unwrap_or_default();
                ("retry", Some(wait))
            }
            Some(Phase::Summary { .. }) if self.is_too_large => ("compaction", None),
            Some(_) => ("prompt fails", None),
            None => ("unknown: the commit failed", None),
        };
        tracing::warn!(
            conversation.id = %key.conversation_id,
            agent = %self.agent,
            gen_ai.request.model = %self.model,
            status = self.status,
            error.type = self.error_type.as_deref(),
            attempt = %format_args!("{}/{}", self.attempt, self.attempts_max),
            retry_in = retry_in.map(tracing::field::debug),
            next,
            error = %self.error,
            "model call failed"
        );
    }
}

fn stop_reason_name(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Stop => "stop",
        StopReason::Length => "length",
        StopReason::ToolUse => "tool_use",
        StopReason::Error => "error",
        StopReason::Aborted => "aborted",
    }
}

pub fn truncate_error(text: &str) -> &str {
    let end = text.char_indices().nth(ERROR_CHARS_MAX).map_or(text.len(), |(end, _)| end);
    text.get(..end).unwrap_or(text)
}
