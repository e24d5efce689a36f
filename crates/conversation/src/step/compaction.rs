//! Compaction as a step of its own: when it starts, and how its outcome is applied.

use serde::{Deserialize, Serialize};

use crate::compaction::detect_silent_overflow;
use crate::compaction::prospects::{CompactionNote, RECOVERY_FAILED};
use crate::context_ranges::SeqRange;
use crate::entry::{Compaction, EntryBody, FailedSummary, PromptState};
use crate::event::{
    BranchSummaryEnd, CompactionEnd, CompactionStart, Empty, EventBody, SummarizationRetry,
};
use crate::inbox::{CommandInput, InboxBody, InboxItem};
use crate::input_repair::RefusedInput;
use crate::message::{AssistantMessage, StopReason};
use crate::phase::{CompactionReason, Phase};
use crate::question::{Answers, QuestionSpec};
use crate::step::navigate::{self, SummarisedMove};
use crate::step::next::{Next, PromptEnding};
use crate::step::retry::{FailureKind, retry_delay};
use crate::step::{budget, questions, queue, refused_input, requests};
use crate::transition::Transition;
use crate::unknown_members::Extra;
use crate::usage::Usage;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::PromptId;

/// Name of the inbox command that requests a compaction.
pub(super) const COMPACT_COMMAND: &str = "compact";

/// Arguments of the command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CompactInput {
    /// Topics that the summary should emphasise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

impl CompactInput {
    pub fn to_inbox_body(&self) -> InboxBody {
        let args = RawJson::from_value(self);
        InboxBody::Command(CommandInput::new(COMPACT_COMMAND, Some(args)))
    }

    /// Returns `None` if the item is not a compaction command.
    pub fn from_item(item: &InboxItem) -> Option<Self> {
        let InboxBody::Command(command) = &item.body else { return None };
        if command.name != COMPACT_COMMAND {
            return None;
        }
        Some(command.args.as_ref().and_then(|args| args.read().ok()).unwrap_or_default())
    }
}

/// One attempt to create a summary.
#[derive(Clone, Debug)]
pub struct SummaryAttempt {
    /// Usage of all model calls of the attempt.
    pub usage: Usage,
    /// Number of model calls: 0 if an extension created the summary, or if no call was possible.
    pub calls: u32,
    pub outcome: SummaryOutcome,
    /// The part that the model refused as too large, if no summary replaces it.
    pub oversized: Option<RefusedInput>,
}

impl SummaryAttempt {
    pub fn has_failed(&self) -> bool {
        matches!(self.outcome, SummaryOutcome::Failed { .. })
    }
}

#[derive(Clone, Debug)]
pub enum SummaryOutcome {
    Done(Box<FinishedSummary>),
    /// The summary of a branch, which the leaf leaves with its commit.
    Moved(Box<SummarisedMove>),
    Failed {
        text: String,
        failure_kind: FailureKind,
    },
    /// An extension cancelled the compaction.
    Cancelled,
    /// An extension asks a question. The attempt is repeated when it has its answer.
    Asked(Box<QuestionSpec>),
    /// The prompt is being aborted, which also ends the compaction.
    Aborted,
}

/// A summary, and the entries that the model input still needs beside it.
#[derive(Clone, Debug)]
pub struct FinishedSummary {
    pub compaction: Compaction,
    /// Numbers of these entries.
    pub context: Vec<SeqRange>,
}

const CANCELLED: &str = "Compaction cancelled";

/// True if the model input should be measured now: it has grown and is sent next, or its response
/// has just ended the prompt. After a compaction, there is no other one before a new entry. After
/// one that an approver declined, there is no other one for its prompt.
pub fn should_measure_context(transition: &Transition) -> bool {
    let head = &transition.head;
    if !transition.policy.context_budget.is_automatic()
        || transition.entries.is_empty()
        || head.compaction_attempt_seq == Some(head.seq)
    {
        return false;
    }
    let is_declined = |prompt: Option<&PromptId>| {
        prompt.is_some_and(|id| head.compaction_declined.as_ref() == Some(id))
    };
    match &head.phase {
        Phase::Model { attempt, .. } => {
            *attempt == 1 && !is_declined(head.prompt.as_ref().map(|run| &run.id))
        }
        Phase::Idle => transition.entries.iter().any(|entry| {
            matches!(&entry.body, EntryBody::PromptEnd(end) if end.state == PromptState::Completed)
                && !is_declined(entry.base.prompt_id.as_ref())
        }),
        Phase::Calls { .. } | Phase::Summary { .. } | Phase::Deleted => false,
    }
}

/// True if the model input should be measured before extensions learn of the prompt that starts next.
pub fn should_measure_before_start(transition: &Transition) -> bool {
    let head = &transition.head;
    transition.policy.context_budget.is_automatic()
        && transition.held_start.is_some()
        && head.prompt.is_none()
        && head.phase == Phase::Idle
        && head.compaction_attempt_seq != Some(head.seq)
}

/// Starts a compaction because the model input nearly fills the context window.
pub(super) fn start_at_threshold(transition: &mut Transition) -> Next {
    if !should_measure_context(transition) && !should_measure_before_start(transition) {
        return Next::Wait;
    }
    // It follows after the summary.
    transition.settled_event = None;
    Next::StartCompaction { reason: CompactionReason::Threshold, instructions: None }
}

pub(super) fn apply_command(
    transition: &mut Transition,
    item: &InboxItem,
    input: CompactInput,
) -> Next {
    let receipt = queue::new_receipt(transition, item);
    transition.receipts.push(receipt);
    let instructions = input.instructions;
    Next::StartCompaction { reason: CompactionReason::Manual, instructions }
}

/// Converts a response to a failure if its usage shows that the context window was full.
pub(super) fn classify_silent_overflow(
    transition: &Transition,
    message: &mut AssistantMessage,
    failure_kind: FailureKind,
) -> FailureKind {
    let has_recovered = transition.head.prompt.as_ref().is_some_and(|run| run.has_overflowed);
    let context_budget = &transition.policy.context_budget;
    if has_recovered || !context_budget.is_automatic() {
        return failure_kind;
    }
    let Some(text) = detect_silent_overflow(message, context_budget.window) else {
        return failure_kind;
    };
    message.stop_reason = StopReason::Error;
    message.error_message = Some(text);
    FailureKind::ContextOverflow
}

/// True if a compaction and one more model call may recover the failed response: once, and never in
/// addition to a retry.
pub(super) fn can_recover(transition: &Transition, failure_kind: FailureKind) -> bool {
    failure_kind == FailureKind::ContextOverflow
        && transition.policy.context_budget.is_enabled
        && transition.head.prompt.as_ref().is_some_and(|run| !run.has_overflowed)
}

pub(super) fn start_recovery(transition: &mut Transition) -> Next {
    debug_assert!(transition.head.prompt.is_some(), "no prompt runs");
    if let Some(run) = &mut transition.head.prompt {
        run.has_overflowed = true;
    }
    Next::StartCompaction { reason: CompactionReason::Overflow, instructions: None }
}

/// Records that instructions and tools exceed the threshold, once, or no longer do. The note of the last
/// failure stays.
pub(super) fn note_fixed_part(transition: &mut Transition, text: Option<&str>) {
    let earlier = transition.head.compaction_note.take();
    let failure = earlier.and_then(|note| note.into_failure());
    transition.head.compaction_note = match text {
        Some(text) => {
            let note = CompactionNote::new(transition.head.seq, transition.prompt_id(), text);
            Some(Box::new(CompactionNote { is_fixed_part: true, failure, ..note }))
        }
        None => failure,
    };
}

/// Records a failed automatic compaction: the next one waits until the path has grown. The note of a
/// fixed part stays.
fn note_failure(transition: &mut Transition, text: &str) {
    let failure = CompactionNote::new(transition.head.seq, transition.prompt_id(), text);
    let failure = Some(Box::new(failure));
    match transition.head.compaction_note.as_deref_mut() {
        Some(note) if note.is_fixed_part => note.failure = failure,
        Some(_) | None => transition.head.compaction_note = failure,
    }
}

/// Error text of the prompt for a failed response.
pub(super) fn prompt_error_text(
    transition: &mut Transition,
    failure_kind: FailureKind,
    text: String,
) -> String {
    let has_recovered = transition.head.prompt.as_ref().is_some_and(|run| run.has_overflowed);
    if failure_kind == FailureKind::ContextOverflow && has_recovered {
        let text = format!("{RECOVERY_FAILED}{text}");
        note_failure(transition, &text);
        text
    } else {
        text
    }
}

pub(super) fn start(
    transition: &mut Transition,
    reason: CompactionReason,
    instructions: Option<String>,
) -> Next {
    debug_assert!(
        matches!(transition.head.phase, Phase::Idle | Phase::Model { .. }),
        "a compaction starts between two steps"
    );
    let answers = Answers::default();
    transition.head.phase = Phase::Summary {
        attempt: 1,
        not_before: None,
        reason,
        instructions,
        answers,
        branch: None,
    };
    transition.head.reset_suspicion();
    transition.emit(EventBody::AutoCompactionStart(CompactionStart { reason }));
    Next::Wait
}

pub(super) fn apply_summary(transition: &mut Transition, summary_attempt: &SummaryAttempt) -> Next {
    let Phase::Summary { attempt, reason, instructions, answers, branch, .. } =
        transition.head.phase.clone()
    else {
        return Next::Wait;
    };
    transition.head.reset_suspicion();
    let (usage, calls) = (summary_attempt.usage, summary_attempt.calls);
    budget::record_usage(transition, usage, calls);
    let is_done =
        matches!(summary_attempt.outcome, SummaryOutcome::Done(_) | SummaryOutcome::Moved(_));
    if calls > 0 && !is_done {
        transition.append(EntryBody::FailedSummary(FailedSummary {
            calls,
            usage: usage.into(),
            extra: Extra::new(),
        }));
    }
    match &summary_attempt.outcome {
        SummaryOutcome::Done(finished) => {
            emit_retries_finished(transition, attempt);
            apply_finished(transition, finished, reason)
        }
        SummaryOutcome::Moved(summarised) => {
            emit_retries_finished(transition, attempt);
            let label = branch.and_then(|target| target.label);
            navigate::apply_summarised(transition, summarised, label.as_deref());
            resume(transition)
        }
        SummaryOutcome::Aborted => Next::Wait,
        SummaryOutcome::Asked(question) => {
            ask(transition, question);
            Next::Wait
        }
        SummaryOutcome::Cancelled => {
            if reason == CompactionReason::Threshold && !answers.is_empty() {
                transition.head.compaction_declined = transition.prompt_id();
            }
            let error = (reason != CompactionReason::Threshold).then(|| CANCELLED.to_owned());
            finish_without_summary(transition, attempt, reason, true, error)
        }
        SummaryOutcome::Failed { text, failure_kind } => {
            if let Some(wait) = retry_delay(attempt, *failure_kind, &transition.policy.retry) {
                transition.emit(EventBody::SummarizationRetryScheduled(SummarizationRetry {
                    attempt,
                    max_attempts: transition.policy.retry.max_retries,
                    delay_ms: turnwheel_platform::clock::millis(wait),
                    error_message: text.clone(),
                }));
                transition.head.phase = Phase::Summary {
                    attempt: attempt + 1,
                    not_before: Some(transition.now.plus(wait)),
                    reason,
                    instructions,
                    answers,
                    branch,
                };
                Next::Wait
            } else {
                let oversized = summary_attempt.oversized.as_ref();
                fail_attempt(transition, text, *failure_kind, oversized)
            }
        }
    }
}

fn apply_finished(
    transition: &mut Transition,
    finished: &FinishedSummary,
    reason: CompactionReason,
) -> Next {
    let entry = transition.append(EntryBody::Compaction(finished.compaction.clone()));
    transition.head.set_context(&finished.context);
    transition.head.is_compacted = true;
    // A summary does not change the fixed part: its note is made once.
    transition.head.compaction_note.take_if(|note| {
        note.failure = None;
        !note.is_fixed_part
    });
    transition.head.context_tokens = None;
    transition.emit(EventBody::AutoCompactionEnd(CompactionEnd {
        entry: Some(entry.base.seq),
        aborted: false,
        will_retry: reason == CompactionReason::Overflow,
        error_message: None,
    }));
    resume(transition)
}

/// Opens the request of a question before the attempt.
fn ask(transition: &mut Transition, question: &QuestionSpec) {
    let base = requests::new_request(transition);
    let mut request = questions::new_request(transition, question, base, "a compaction");
    let seq = requests::store(transition, &mut request);
    requests::emit_approval_requested(transition, &request, seq);
}

/// Ends the compaction without a summary. After a threshold or manual compaction, the conversation
/// continues.
pub(super) fn fail_summary(transition: &mut Transition, text: &str) -> Next {
    let Phase::Summary { attempt, reason, .. } = transition.head.phase else {
        return Next::Wait;
    };
    let error = match reason {
        CompactionReason::Threshold => format!("Auto-compaction failed: {text}"),
        CompactionReason::Overflow | CompactionReason::Manual => text.to_owned(),
    };
    finish_without_summary(transition, attempt, reason, false, Some(error))
}

/// Ends the compaction. After a permanent failure, later requests leave out the part that no summary can
/// replace: each later prompt would fail because of it.
fn fail_attempt(
    transition: &mut Transition,
    text: &str,
    failure_kind: FailureKind,
    oversized: Option<&RefusedInput>,
) -> Next {
    let next = fail_summary(transition, text);
    let Some(oversized) = oversized.filter(|_| failure_kind == FailureKind::Permanent) else {
        return next;
    };
    let Next::EndPrompt(ending) = next else { return next };
    transition.append(oversized.repair.to_entry());
    if refused_input::can_repeat(transition, oversized) {
        return refused_input::repeat_without_refused_part(transition, oversized);
    }
    Next::EndPrompt(ending.with_advice(&oversized.advice()))
}

fn finish_without_summary(
    transition: &mut Transition,
    attempt: u32,
    reason: CompactionReason,
    aborted: bool,
    error: Option<String>,
) -> Next {
    emit_retries_finished(transition, attempt);
    let error = match reason {
        CompactionReason::Overflow => error.map(|error| format!("{RECOVERY_FAILED}{error}")),
        CompactionReason::Threshold | CompactionReason::Manual => error,
    };
    if transition.head.phase.is_branch_summary() {
        let error_message = error;
        transition.emit(EventBody::BranchSummaryEnd(BranchSummaryEnd { aborted, error_message }));
        return resume(transition);
    }
    if let Some(text) = error.as_ref().filter(|_| !aborted && reason != CompactionReason::Manual) {
        note_failure(transition, text);
    }
    transition.emit(EventBody::AutoCompactionEnd(CompactionEnd {
        entry: None,
        aborted,
        will_retry: false,
        error_message: error.clone(),
    }));
    match error {
        Some(message) if reason == CompactionReason::Overflow => {
            transition.head.phase = Phase::MODEL_CALL;
            Next::EndPrompt(PromptEnding::failed("model", message))
        }
        Some(_) | None => resume(transition),
    }
}

/// Cancels a compaction outside a prompt, for the prompt that starts next.
pub(super) fn cancel(transition: &mut Transition) -> Next {
    let Phase::Summary { attempt, reason, .. } = transition.head.phase else { return Next::Wait };
    finish_without_summary(transition, attempt, reason, true, Some(CANCELLED.to_owned()))
}

/// Ends the compaction of a prompt that ends. The phase becomes the model call that would have
/// followed.
pub(super) fn abort_compaction(transition: &mut Transition) {
    let Phase::Summary { attempt, .. } = transition.head.phase else { return };
    emit_retries_finished(transition, attempt);
    transition.emit(EventBody::AutoCompactionEnd(CompactionEnd {
        entry: None,
        aborted: true,
        will_retry: false,
        error_message: None,
    }));
    transition.head.phase = Phase::MODEL_CALL;
}

fn emit_retries_finished(transition: &mut Transition, attempt: u32) {
    if attempt > 1 {
        transition.emit(EventBody::SummarizationRetryFinished(Empty {}));
    }
}

/// Continues after the compaction: with the next model call, or with the end.
fn resume(transition: &mut Transition) -> Next {
    if !transition.head.phase.is_branch_summary() {
        transition.head.compaction_attempt_seq = Some(transition.head.seq);
    }
    if transition.head.prompt.is_some() {
        transition.head.phase = Phase::MODEL_CALL;
        return Next::Wait;
    }
    transition.head.phase = Phase::Idle;
    transition.settle();
    Next::Wait
}
