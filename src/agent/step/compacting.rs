//! Compaction as a step of its own: when it starts, and how its outcome is applied.

use serde::{Deserialize, Serialize};

use crate::agent::compaction::{Reason, silent_overflow};
use crate::agent::draft::Draft;
use crate::agent::entry::{
    Compaction, EntryBody, FailedSummary, PromptError, PromptState, PromptStop,
};
use crate::agent::event::{CompactionEnd, CompactionStart, Empty, EventBody, SummarizationRetry};
use crate::agent::inbox::{Command, InboxBody, InboxItem};
use crate::agent::message::{AssistantMessage, StopReason};
use crate::agent::phase::Phase;
use crate::agent::raw::RawJson;
use crate::agent::step::{Setback, ending, landing, paying, wait_after};
use crate::agent::usage::Usage;

/// Name of the inbox command that requests a compaction.
pub(super) const COMPACT: &str = "compact";

/// Arguments of the command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CompactInput {
    /// Topics that the summary should emphasise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

impl CompactInput {
    pub fn body(&self) -> InboxBody {
        InboxBody::Command(Command { name: COMPACT.to_owned(), args: Some(RawJson::of(self)) })
    }

    /// Returns `None` if the item is not a compaction command.
    pub fn of(item: &InboxItem) -> Option<Self> {
        let InboxBody::Command(command) = &item.body else { return None };
        if command.name != COMPACT {
            return None;
        }
        Some(command.args.as_ref().and_then(|args| args.read().ok()).unwrap_or_default())
    }
}

/// One attempt to create a summary.
#[derive(Clone, Debug)]
pub struct Summarised {
    /// Usage of all model calls of the attempt.
    pub usage: Usage,
    /// Number of model calls: 0 if an extension created the summary, or if no call was possible.
    pub calls: u32,
    pub outcome: SummaryOutcome,
}

#[derive(Clone, Debug)]
pub enum SummaryOutcome {
    Done(Box<Compaction>),
    Failed {
        text: String,
        setback: Setback,
    },
    /// An extension cancelled the compaction.
    Cancelled,
    /// The prompt is being aborted, which also ends the compaction.
    Stopped,
}

const CANCELLED: &str = "Compaction cancelled";

/// True if the model input should be measured now: it has grown and is sent next, or its response
/// has just ended the prompt. After a compaction, there is no other one before a new entry.
pub fn wants_measuring(draft: &Draft) -> bool {
    let head = &draft.head;
    if !draft.rules.room.is_automatic()
        || draft.entries.is_empty()
        || head.compaction_tried == Some(head.seq)
    {
        return false;
    }
    match &head.phase {
        Phase::Model { attempt, .. } => *attempt == 1,
        Phase::Idle => draft.entries.iter().any(|entry| {
            matches!(&entry.body, EntryBody::PromptEnd(end) if end.state == PromptState::Completed)
        }),
        Phase::Calls { .. } | Phase::Summary { .. } | Phase::Deleted => false,
    }
}

/// Starts a compaction because the model input nearly fills the context window.
pub(super) fn crowd(draft: &mut Draft) {
    if !wants_measuring(draft) {
        return;
    }
    // `agent_settled` follows after the summary.
    if matches!(draft.events.last().map(|event| &event.body), Some(EventBody::AgentSettled(_))) {
        draft.events.pop();
        draft.head.event_seq -= 1;
    }
    begin(draft, Reason::Threshold, None);
}

pub(super) fn land(draft: &mut Draft, item: &InboxItem, asked: CompactInput) {
    let receipt = landing::receipt(draft, item);
    draft.receipts.push(receipt);
    begin(draft, Reason::Manual, asked.instructions);
}

/// Converts a response to a failure if its usage shows that the context window was full.
pub(super) fn judge(draft: &Draft, message: &mut AssistantMessage, setback: Setback) -> Setback {
    let has_recovered = draft.head.prompt.as_ref().is_some_and(|run| run.has_overflowed);
    let room = &draft.rules.room;
    if has_recovered || !room.is_automatic() {
        return setback;
    }
    let Some(text) = silent_overflow(message, room.window) else { return setback };
    message.stop_reason = StopReason::Error;
    message.error_message = Some(text);
    Setback::Overflow
}

/// True if a compaction and one more model call may recover the failed response: once, and never in
/// addition to a retry.
pub(super) fn recovers(draft: &Draft, setback: Setback) -> bool {
    setback == Setback::Overflow
        && draft.rules.room.is_enabled
        && draft.head.prompt.as_ref().is_some_and(|run| !run.has_overflowed)
}

pub(super) fn recover(draft: &mut Draft) {
    if let Some(run) = &mut draft.head.prompt {
        run.has_overflowed = true;
    }
    begin(draft, Reason::Overflow, None);
}

/// Error text of the prompt for a failed response.
pub(super) fn told_error(draft: &Draft, setback: Setback, text: String) -> String {
    let has_recovered = draft.head.prompt.as_ref().is_some_and(|run| run.has_overflowed);
    if setback == Setback::Overflow && has_recovered {
        format!("Context overflow recovery failed: {text}")
    } else {
        text
    }
}

fn begin(draft: &mut Draft, reason: Reason, instructions: Option<String>) {
    draft.head.phase = Phase::Summary { attempt: 1, not_before: None, reason, instructions };
    draft.head.note_progress();
    draft.tell(EventBody::AutoCompactionStart(CompactionStart { reason }));
}

pub(super) fn accept(draft: &mut Draft, summarised: &Summarised) {
    let Phase::Summary { attempt, reason, instructions, .. } = draft.head.phase.clone() else {
        return;
    };
    draft.head.note_progress();
    let (usage, calls) = (summarised.usage, summarised.calls);
    paying::spend(draft, usage, calls);
    let is_done = matches!(summarised.outcome, SummaryOutcome::Done(_));
    if calls > 0 && !is_done {
        draft.append(EntryBody::FailedSummary(FailedSummary { calls, usage }));
    }
    match &summarised.outcome {
        SummaryOutcome::Done(compaction) => {
            tell_retries_are_over(draft, attempt);
            let entry = draft.append(EntryBody::Compaction(Compaction::clone(compaction)));
            draft.head.is_compacted = true;
            draft.tell(EventBody::AutoCompactionEnd(CompactionEnd {
                entry: Some(entry.base.seq),
                aborted: false,
                will_retry: reason == Reason::Overflow,
                error_message: None,
            }));
            go_on(draft);
        }
        SummaryOutcome::Stopped => {}
        SummaryOutcome::Cancelled => {
            let error = (reason != Reason::Threshold).then(|| CANCELLED.to_owned());
            end_without(draft, (attempt, reason), true, error);
        }
        SummaryOutcome::Failed { text, setback } => {
            if let Some(wait) = wait_after(attempt, *setback, &draft.rules.retry) {
                draft.tell(EventBody::SummarizationRetryScheduled(SummarizationRetry {
                    attempt,
                    max_attempts: draft.rules.retry.max_retries,
                    delay_ms: crate::clock::millis(wait),
                    error_message: text.clone(),
                }));
                draft.head.phase = Phase::Summary {
                    attempt: attempt + 1,
                    not_before: Some(draft.now.plus(wait)),
                    reason,
                    instructions,
                };
            } else {
                fail(draft, text);
            }
        }
    }
}

/// Ends the compaction without a summary. After a threshold or manual compaction, the conversation
/// continues.
pub(super) fn fail(draft: &mut Draft, text: &str) {
    let Phase::Summary { attempt, reason, .. } = draft.head.phase else { return };
    let error = match reason {
        Reason::Threshold => format!("Auto-compaction failed: {text}"),
        Reason::Overflow | Reason::Manual => text.to_owned(),
    };
    end_without(draft, (attempt, reason), false, Some(error));
}

fn end_without(
    draft: &mut Draft,
    (attempt, reason): (u32, Reason),
    aborted: bool,
    error: Option<String>,
) {
    tell_retries_are_over(draft, attempt);
    let error = match reason {
        Reason::Overflow => error.map(|error| format!("Context overflow recovery failed: {error}")),
        Reason::Threshold | Reason::Manual => error,
    };
    draft.tell(EventBody::AutoCompactionEnd(CompactionEnd {
        entry: None,
        aborted,
        will_retry: false,
        error_message: error.clone(),
    }));
    match error {
        Some(message) if reason == Reason::Overflow => {
            let error = PromptError { kind: "model".to_owned(), message };
            draft.head.phase = Phase::Model { attempt: 1, not_before: None };
            ending::end(draft, PromptState::Failed, PromptStop::Error, Some(&error));
        }
        Some(_) | None => go_on(draft),
    }
}

/// Ends the compaction of a prompt that ends. The phase becomes the model call that would have
/// followed.
pub(super) fn cut_off(draft: &mut Draft) {
    let Phase::Summary { attempt, .. } = draft.head.phase else { return };
    tell_retries_are_over(draft, attempt);
    draft.tell(EventBody::AutoCompactionEnd(CompactionEnd {
        entry: None,
        aborted: true,
        will_retry: false,
        error_message: None,
    }));
    draft.head.phase = Phase::Model { attempt: 1, not_before: None };
}

fn tell_retries_are_over(draft: &mut Draft, attempt: u32) {
    if attempt > 1 {
        draft.tell(EventBody::SummarizationRetryFinished(Empty {}));
    }
}

/// Continues after the compaction: with the next model call, or with the end.
fn go_on(draft: &mut Draft) {
    draft.head.compaction_tried = Some(draft.head.seq);
    if draft.head.prompt.is_some() {
        draft.head.phase = Phase::Model { attempt: 1, not_before: None };
        return;
    }
    draft.head.phase = Phase::Idle;
    if draft.head.waiting == 0 {
        draft.tell(EventBody::AgentSettled(Empty {}));
    }
}
