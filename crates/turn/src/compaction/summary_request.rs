//! Summary requests: the prompt sent to the model, and the check of its response.

use std::borrow::Cow;
use std::sync::Arc;

use crate::compaction::{CompactionInput, NullListener};
use crate::context::TurnContext;
use crate::conversation_state::ConversationState;
use crate::failed_response::failure_kind;
use crate::leased_conversation::LeasedConversation;
use crate::refused_input::is_content_refused;
use crate::spans::ModelCallSpan;
use turnwheel_conversation::compaction::transcript::{OmittedContent, render_transcript};
use turnwheel_conversation::compaction::{
    ContextBudget, SummaryCounts, SummaryParts, file_lists, prompts, tokens,
};
use turnwheel_conversation::content::{Content, joined_text};
use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::input_repair::{InputRepairs, SUMMARY_NOTE, leave_out_results};
use turnwheel_conversation::message::{Message, StopReason, UserMessage};
use turnwheel_conversation::phase::{CompactionReason, Phase};
use turnwheel_conversation::projection;
use turnwheel_conversation::settings::ThinkingLevel;
use turnwheel_conversation::step::{FailureKind, SummaryAttempt, SummaryOutcome};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_conversation::usage::Usage;
use turnwheel_extensions::Hook;
use turnwheel_model::responses::effort::nearest_effort;
use turnwheel_model::tokens::count_tokens;
use turnwheel_model::{ModelFailure, ModelRecord, ModelRequest, ModelResponse};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::Ids;
use turnwheel_record::error::TurnError;
use turnwheel_record::event_log::truncate_error;

/// Output tokens with thinking, which counts among them. A truncated summary is discarded, so the
/// limit is generous.
const THINKING_OUTPUT_TOKENS: u64 = 32_000;

/// Output tokens of the summary of a branch, without thinking.
const BRANCH_OUTPUT_TOKENS: u64 = 2_048;

/// One model call.
pub(super) struct SummaryCall<'a> {
    pub(super) record: &'a ModelRecord,
    pub(super) context: &'a TurnContext,
    pub(super) prompt: String,
    pub(super) output_tokens: u64,
    pub(super) thinking: ThinkingLevel,
    /// Prefix of the error text.
    pub(super) error_prefix: &'static str,
}

/// Usage of the calls of one attempt.
#[derive(Clone, Copy, Default)]
pub(super) struct CallUsage {
    pub(super) usage: Usage,
    pub(super) calls: u32,
}

/// A part of the conversation that gets a summary of its own.
struct SummaryPart<'a> {
    entries: &'a [Arc<Entry>],
    task: String,
    /// The summary that the new one updates.
    previous: Option<&'a str>,
    tokens_max: u64,
    error_prefix: &'static str,
}

impl SummaryPart<'_> {
    fn text_without_summary(&self, count: usize) -> String {
        let note =
            format!("({count} messages are left out: the model service refused to summarise them)");
        self.previous.map_or_else(|| note.clone(), |previous| format!("{previous}\n\n{note}"))
    }
}

/// Usage of the calls and contents that they leave out.
#[derive(Default)]
struct SummaryProgress {
    call_usage: CallUsage,
    omitted: OmittedContent,
}

/// Why there is no text.
pub(super) enum SummaryError {
    /// The delivery stops.
    Stopped(TurnError),
    Failed(SummaryFailure),
}

impl From<TurnError> for SummaryError {
    fn from(error: TurnError) -> Self {
        Self::Stopped(error)
    }
}

impl SummaryError {
    /// The attempt that ends without a summary.
    pub(super) fn into_attempt(self, call_usage: CallUsage) -> Result<SummaryAttempt, TurnError> {
        match self {
            Self::Stopped(error) => Err(error),
            Self::Failed(failure) => Ok(failure.into_attempt(call_usage)),
        }
    }
}

/// Why the call gave no text.
pub(super) struct SummaryFailure {
    text: String,
    setback: FailureKind,
    is_aborted: bool,
    /// True if the service refused the content of the request.
    is_content_refused: bool,
}

/// The messages as the provider would receive them, with all repairs of the path.
pub(super) fn model_messages<'a>(
    entries: impl IntoIterator<Item = &'a Arc<Entry>>,
    path: &[Arc<Entry>],
) -> Vec<Cow<'a, Message>> {
    let repairs = InputRepairs::of(path);
    projection::to_model_messages(projection::repaired_messages(entries, &repairs))
}

pub(super) async fn request_summary(
    conversation: &mut LeasedConversation<'_>,
    input: &CompactionInput<'_>,
) -> Result<SummaryAttempt, TurnError> {
    let (plan, budget) = (&input.plan, &input.budget);
    let Phase::Summary { instructions, .. } = conversation.state.head.phase.clone() else {
        return Ok(super::failed_summary("no compaction is pending".to_owned()));
    };
    let mut progress = SummaryProgress::default();
    let compaction = input.path.iter().rfind(|entry| entry.body.compaction().is_some());
    let repairs = InputRepairs::of(input.path);
    let is_refused = compaction.is_some_and(|entry| repairs.replace(entry));
    let previous = plan.previous.map(|previous| {
        if is_refused { SUMMARY_NOTE } else { file_lists::strip_file_lists(&previous.summary) }
    });
    let history = if model_messages(plan.history, input.path).is_empty() {
        previous.unwrap_or(prompts::NO_HISTORY).to_owned()
    } else {
        let part = SummaryPart {
            entries: plan.history,
            task: prompts::summary_prompt(previous, instructions.as_deref()),
            previous,
            tokens_max: budget.summary_tokens_max(),
            error_prefix: "Summarization failed",
        };
        match Box::pin(summarise_part(conversation, input, &part, &mut progress)).await {
            Ok(text) => text,
            Err(error) => return error.into_attempt(progress.call_usage),
        }
    };
    let prefix = if model_messages(plan.prefix, input.path).is_empty() {
        None
    } else {
        let part = SummaryPart {
            entries: plan.prefix,
            task: prompts::prefix_prompt(),
            previous: None,
            tokens_max: budget.prefix_tokens_max(),
            error_prefix: "Turn prefix summarization failed",
        };
        match Box::pin(summarise_part(conversation, input, &part, &mut progress)).await {
            Ok(text) => Some(text),
            Err(error) => return error.into_attempt(progress.call_usage),
        }
    };
    let SummaryProgress { call_usage, omitted } = progress;
    let summary_parts = SummaryParts { history, prefix, files: plan.collect_files(), omitted };
    let after = input.tokens_after(&summary_parts.to_text());
    let counts = SummaryCounts {
        tokens_before: input.tokens_before,
        tokens_after: after,
        usage: call_usage.usage,
        calls: call_usage.calls,
    };
    let entry = summary_parts.to_entry(plan.first_kept, counts);
    Ok(input.accept_if_shorter(&conversation.state.head.phase, entry))
}

/// The summary of a part. If the service refuses what it contains, the tool results are left out, once.
/// If the model has refused the input as too large, too, the part has no summary: without a shorter
/// input, each later prompt would fail.
async fn summarise_part(
    conversation: &mut LeasedConversation<'_>,
    input: &CompactionInput<'_>,
    part: &SummaryPart<'_>,
    progress: &mut SummaryProgress,
) -> Result<String, SummaryError> {
    let record = &input.record;
    let output = output_token_limit(record, record.reasoning, part.tokens_max);
    let mut messages = model_messages(part.entries, input.path);
    let mut has_results = true;
    loop {
        let attempt = conversation.state.attempt();
        let (prompt, omitted) = input.summary_prompt(attempt, &messages, &part.task, output);
        let call = SummaryCall {
            record,
            context: &input.context,
            prompt,
            output_tokens: output,
            thinking: summary_thinking(record),
            error_prefix: part.error_prefix,
        };
        let outcome = call_for_summary(conversation, call, &mut progress.call_usage).await;
        let failure = match outcome {
            Ok(text) => {
                progress.omitted += omitted;
                return Ok(text);
            }
            Err(SummaryError::Failed(failure)) if failure.is_content_refused => failure,
            Err(error) => return Err(error),
        };
        if std::mem::take(&mut has_results) && leave_out_results(&mut messages) {
            continue;
        }
        let Phase::Summary { reason: CompactionReason::Overflow, .. } =
            conversation.state.head.phase
        else {
            return Err(SummaryError::Failed(failure));
        };
        tracing::warn!(
            conversation.id = %conversation.state.key.conversation_id,
            messages = messages.len(),
            "model service refused the summary of messages; they are left out without one"
        );
        return Ok(part.text_without_summary(messages.len()));
    }
}

/// Returns the text of the model response.
pub(super) async fn call_for_summary(
    conversation: &mut LeasedConversation<'_>,
    call: SummaryCall<'_>,
    call_usage: &mut CallUsage,
) -> Result<String, SummaryError> {
    let record = call.record;
    let call_span = ModelCallSpan::start(
        conversation.services,
        &conversation.state.head,
        record,
        conversation.state.attempt(),
    );
    let of_prompt = conversation.state.head.prompt.as_ref().and_then(|run| run.traceparent.clone());
    let traceparent = call_span.span.traceparent().or(of_prompt);
    let session_id = call.context.session_id(&conversation.state.head);
    let message = Message::User(UserMessage {
        content: Content::Text(call.prompt),
        timestamp: Timestamp(0),
        extra: Extra::new(),
    });
    let messages = [&message];
    let anchor = conversation.summary_anchor(call_usage.calls);
    let payload_hooks = conversation.hook_set(Hook::OnPayload, call.context, anchor);
    let request = ModelRequest {
        payload: payload_hooks.as_ref().map(|hooks| hooks as _),
        model: record,
        system: Some(prompts::SYSTEM_PROMPT),
        messages: &messages,
        tools: &[],
        thinking: call.thinking,
        temperature: None,
        max_output_tokens: Some(call.output_tokens),
        response_schema: None,
        session_id: &session_id,
        traceparent: traceparent.as_deref(),
    };
    call_span.set_request(&request);
    let received = call_span
        .span
        .run(Box::pin(conversation.await_call(
            &*conversation.services.model,
            request,
            &NullListener,
        )))
        .await;
    let response = received.map(|response| {
        response.unwrap_or_else(|cut| {
            let input = count_tokens(prompts::SYSTEM_PROMPT)
                + tokens::count_message(&message, &count_tokens);
            cut.into_response(record, Vec::new(), input)
        })
    });
    call_span.end(response.as_ref());
    let response = response?;
    call_usage.usage += *response.message.usage;
    call_usage.calls += 1;
    log_summary_call(&response, &conversation.state);
    summary_text(&*conversation.services.ids, response).map_err(|failure| {
        let text = format!("{}: {}", call.error_prefix, failure.text);
        SummaryError::Failed(SummaryFailure { text, ..failure })
    })
}

impl CompactionInput<'_> {
    fn summary_prompt(
        &self,
        attempt: u32,
        messages: &[Cow<'_, Message>],
        instructions_text: &str,
        output: u64,
    ) -> (String, OmittedContent) {
        fit_prompt(self.budget.window, attempt, messages, instructions_text, output)
    }
}

/// The prompt: as much of the conversation as fits the window beside the `reserved` tokens of the
/// response, and the instructions. Each further attempt includes half as much: the model may count
/// tokens differently or have a smaller window than known.
pub(super) fn fit_prompt(
    window: u64,
    attempt: u32,
    messages: &[Cow<'_, Message>],
    instructions_text: &str,
    reserved: u64,
) -> (String, OmittedContent) {
    let window = match window {
        0 => u64::MAX,
        window => window,
    };
    let overhead =
        count_tokens(prompts::SYSTEM_PROMPT) + count_tokens(instructions_text) + window / 50;
    let mut budget = window.saturating_sub(reserved).saturating_sub(overhead);
    let halvings = attempt.saturating_sub(1);
    if halvings > 0 {
        let whole: u64 = messages.iter().map(|it| tokens::count_message(it, &count_tokens)).sum();
        budget = budget.min(whole.checked_shr(halvings).unwrap_or(0));
    }
    let (transcript, omitted) = render_transcript(messages, budget, &count_tokens);
    (prompts::request_text(&transcript, instructions_text), omitted)
}

/// The text of a complete summary.
fn summary_text(ids: &dyn Ids, response: ModelResponse) -> Result<String, SummaryFailure> {
    let retryable = || FailureKind::Transient {
        retry_after: None,
        jitter_share: ids.random_fraction(),
        is_throttled: false,
    };
    if response.message.is_failed() {
        // After an overflow the next attempt includes less of the conversation.
        let has_overflowed = response.failure == Some(ModelFailure::ContextOverflow);
        let setback = if has_overflowed { retryable() } else { failure_kind(ids, &response) };
        let is_content_refused = is_content_refused(&response);
        let message = response.message;
        let text = message.error_message.unwrap_or_else(|| "Unknown error".to_owned());
        let is_aborted = message.stop_reason == StopReason::Aborted;
        return Err(SummaryFailure { text, setback, is_aborted, is_content_refused });
    }
    let message = response.message;
    let text = joined_text(&message.content);
    if message.stop_reason == StopReason::Length {
        let text = "the summary was truncated at the output limit".to_owned();
        return Err(SummaryFailure {
            text,
            setback: retryable(),
            is_aborted: false,
            is_content_refused: false,
        });
    }
    if text.trim().is_empty() {
        let text = "the model response has no text".to_owned();
        return Err(SummaryFailure {
            text,
            setback: retryable(),
            is_aborted: false,
            is_content_refused: false,
        });
    }
    Ok(text)
}

impl SummaryFailure {
    fn into_attempt(self, call_usage: CallUsage) -> SummaryAttempt {
        let outcome = if self.is_aborted {
            SummaryOutcome::Aborted
        } else {
            SummaryOutcome::Failed { text: self.text, failure_kind: self.setback }
        };
        SummaryAttempt {
            usage: call_usage.usage,
            calls: call_usage.calls,
            outcome,
            oversized: None,
        }
    }
}

/// Upper bound of the output tokens of both calls of a summary.
pub(crate) fn summary_output_max(record: &ModelRecord, budget: &ContextBudget) -> u64 {
    output_token_limit(record, record.reasoning, budget.summary_tokens_max())
        + output_token_limit(record, record.reasoning, budget.prefix_tokens_max())
}

/// Upper bound of the output tokens of the summary of a branch.
pub(crate) fn branch_output_max(record: &ModelRecord) -> u64 {
    let is_thinking = branch_thinking(record) > ThinkingLevel::Off;
    output_token_limit(record, is_thinking, BRANCH_OUTPUT_TOKENS)
}

/// Thinking of the call that summarises a branch: none, unless the model always thinks.
pub(super) fn branch_thinking(record: &ModelRecord) -> ThinkingLevel {
    let can_be_off = !record.reasoning || nearest_effort(&record.id, ThinkingLevel::Off).is_some();
    if can_be_off { ThinkingLevel::Off } else { ThinkingLevel::High }
}

fn summary_thinking(record: &ModelRecord) -> ThinkingLevel {
    if record.reasoning { ThinkingLevel::High } else { ThinkingLevel::Off }
}

/// Output tokens of the response: the share of the reserve, or the amount that thinking needs.
fn output_token_limit(record: &ModelRecord, is_thinking: bool, share: u64) -> u64 {
    let wanted = if is_thinking { THINKING_OUTPUT_TOKENS } else { share };
    let limit = match record.context_window {
        0 => wanted,
        window => wanted.min(window / 2),
    };
    limit.min(record.max_tokens).max(1)
}

fn log_summary_call(response: &ModelResponse, state: &ConversationState) {
    let (id, message) = (&state.key.conversation_id, &response.message);
    if message.stop_reason == StopReason::Error {
        let error = message.error_message.as_deref().unwrap_or("no reason was given");
        tracing::warn!(
            conversation.id = %id,
            agent = %state.head.agent,
            gen_ai.request.model = %message.model,
            status = response.metadata.status,
            error.type = response.metadata.error.as_deref(),
            attempt = state.attempt(),
            error = truncate_error(error),
            "compaction call failed"
        );
        return;
    }
    tracing::info!(
        conversation.id = %id,
        agent = %state.head.agent,
        gen_ai.request.model = %message.model,
        gen_ai.usage.input_tokens = message.usage.input,
        gen_ai.usage.output_tokens = message.usage.output,
        "compaction call completed"
    );
}
