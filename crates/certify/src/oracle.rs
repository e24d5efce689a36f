//! Checks the result of a run against the invariants, and against the run without faults.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::Fault;
use turnwheel_conversation::content::joined_text;
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::event::Event;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::request::RequestKind;
use turnwheel_conversation::step::UNKNOWN_OUTCOME;
use turnwheel_turn::invariants::{self, IdleConversation, Violation, normalise, shape};

/// The result of a run.
pub(super) struct Outcome {
    /// Every fail point hit, in order.
    pub(super) fail_points: Vec<&'static str>,
    /// The reason why the fault did not happen.
    pub(super) skip_reason: Option<&'static str>,
    /// Problems during the run: sentences.
    pub(super) problems: Vec<String>,
    pub(super) log: Vec<String>,
    pub(super) prompts: usize,
    /// `None`: the conversation does not exist.
    pub(super) head: Option<Head>,
    pub(super) entries: Vec<Entry>,
    /// The copy. `None`: an extension cancelled it.
    pub(super) fork: Option<CopiedConversation>,
    pub(super) events: Vec<Event>,
    pub(super) inbox_count: usize,
    /// Number of notifications that were not sent.
    pub(super) unsent_notifications: usize,
    pub(super) calls_by_effect: BTreeMap<String, u32>,
    pub(super) calls_by_tool: BTreeMap<String, u32>,
    pub(super) responses: u32,
    /// Tools that were called and never succeeded.
    pub(super) failed_tools: Vec<String>,
    /// Tools that are declared idempotent and returned another result for the same call, with the
    /// number of times.
    pub(super) changed_results: BTreeMap<String, u32>,
    /// Prompts for which the conversation file has too few responses.
    pub(super) incomplete_prompts: Vec<String>,
    pub(super) write_tools: Vec<String>,
    /// True if the recorded results may differ between runs.
    pub(super) has_variable_results: bool,
    /// True if calls run in parallel: then the order of their marks is random.
    pub(super) is_parallel: bool,
}

/// The copy of the conversation up to an entry.
pub(super) struct CopiedConversation {
    pub(super) head: Head,
    pub(super) entries: Vec<Entry>,
}

/// The result of the run without faults, for comparison.
pub(super) struct ExpectedRecord {
    entries: Vec<String>,
    shape: Vec<String>,
    fork_entries: Vec<String>,
    fork_shape: Vec<String>,
    responses: u32,
}

impl ExpectedRecord {
    pub(super) fn from_outcome(outcome: &Outcome) -> Self {
        Self {
            entries: record_lines(outcome),
            shape: shape(&outcome.entries),
            fork_entries: fork_lines(outcome),
            fork_shape: fork_shape(outcome),
            responses: outcome.responses,
        }
    }

    fn has_same_entries(&self, outcome: &Outcome) -> bool {
        record_lines(outcome) == self.entries && fork_lines(outcome) == self.fork_entries
    }

    fn has_same_shape(&self, outcome: &Outcome) -> bool {
        shape(&outcome.entries) == self.shape && fork_shape(outcome) == self.fork_shape
    }
}

fn record_lines(outcome: &Outcome) -> Vec<String> {
    lines_of(&outcome.entries, outcome, outcome.head.as_ref())
}

fn fork_lines(outcome: &Outcome) -> Vec<String> {
    let Some(CopiedConversation { head, entries }) = &outcome.fork else { return Vec::new() };
    lines_of(entries, outcome, [outcome.head.as_ref(), Some(head)].into_iter().flatten())
}

fn fork_shape(outcome: &Outcome) -> Vec<String> {
    outcome.fork.as_ref().map(|fork| shape(&fork.entries)).unwrap_or_default()
}

/// The record; for parallel calls without the marks whose order is random. A conversation whose
/// creation was repeated has another incarnation, which is part of ids of its artifacts, and of those
/// that its copy names.
fn lines_of<'h>(
    entries: &[Entry],
    outcome: &Outcome,
    heads: impl IntoIterator<Item = &'h Head>,
) -> Vec<String> {
    let mut lines = normalise(entries);
    let is_message = |entry: &Value| entry.get("type").is_some_and(|kind| kind == "message");
    lines.retain(|entry| !outcome.is_parallel || is_message(entry));
    let incarnations: Vec<&str> = heads.into_iter().map(|head| head.incarnation.as_str()).collect();
    let replace = |line: String, incarnation: &&str| line.replace(incarnation, "incarnation");
    lines.iter().map(|entry| incarnations.iter().fold(entry.to_string(), replace)).collect()
}

fn violation_text(invariant: u8, text: &str) -> String {
    Violation { invariant, description: text.to_owned() }.to_string()
}

/// Returns one sentence per broken invariant; empty: all invariants hold.
pub(super) fn check_invariants(outcome: &Outcome) -> Vec<String> {
    let mut problems = outcome.problems.clone();
    let Some(head) = &outcome.head else {
        problems.push(violation_text(1, "there is no conversation"));
        return problems;
    };
    let final_state = IdleConversation {
        head,
        entries: &outcome.entries,
        events: &outcome.events,
        inbox: (outcome.inbox_count, 0),
        accepted: outcome.prompts,
        sent_effects: &outcome.calls_by_effect,
        is_write: &|tool| outcome.write_tools.iter().any(|write| write == tool),
    };
    problems.extend(invariants::find_violations(&final_state).iter().map(ToString::to_string));
    if outcome.unsent_notifications > 0 {
        problems.push(violation_text(2, "a notification was not sent"));
    }
    if let Some(fork) = &outcome.fork
        && !is_copy(fork, &outcome.entries)
    {
        problems.push(violation_text(3, "the fork differs from the path that it copies"));
    }
    problems
}

/// True if the fork has the messages of the path to the entry that it names.
fn is_copy(fork: &CopiedConversation, entries: &[Entry]) -> bool {
    let source = fork.head.parent.as_ref().and_then(|parent| parent.entry_id.as_ref());
    let entries: Vec<Arc<Entry>> = entries.iter().cloned().map(Arc::new).collect();
    let path = path_to_leaf(&entries, source);
    let path: Vec<Entry> = path.iter().map(|entry| Entry::clone(entry)).collect();
    shape(&path) == shape(&fork.entries) && fork.head.seq == last_number(&fork.entries)
}

fn last_number(entries: &[Entry]) -> u64 {
    entries.last().map_or(0, |entry| entry.base.seq)
}

/// Checks the invariants, and compares the record with the run without faults: exactly, or only its
/// shape if an approver had to settle a call's outcome.
pub(super) fn compare_with_expected(
    outcome: &Outcome,
    expected: &ExpectedRecord,
    fault: Fault,
) -> Vec<String> {
    let mut problems = check_invariants(outcome);
    // A worker that is killed or replaced during a model call has paid for a response that is
    // discarded.
    let discarded_max =
        u32::from(matches!(fault, Fault::Kill | Fault::TakeOver | Fault::StalledWorker));
    if outcome.responses > expected.responses + discarded_max {
        let text = format!(
            "{} model responses were paid for instead of {}",
            outcome.responses, expected.responses
        );
        problems.push(violation_text(4, &text));
    }
    let has_variable_results = outcome.has_variable_results
        // The model receives the time-out of the call.
        || fault == Fault::TimeOut
        || outcome.entries.iter().any(|entry| has_unknown_outcome(&entry.body));
    let is_same = if has_variable_results {
        expected.has_same_shape(outcome)
    } else {
        expected.has_same_entries(outcome)
    };
    if !is_same {
        problems.push(violation_text(3, "the record differs from the run without faults"));
    }
    problems
}

/// True if the outcome of a call was unknown.
fn has_unknown_outcome(body: &EntryBody) -> bool {
    let is_request = matches!(body, EntryBody::Request(request_body) if request_body.request.kind == RequestKind::Outcome);
    let is_result = body
        .tool_result()
        .is_some_and(|result| joined_text(&result.content).starts_with(UNKNOWN_OUTCOME));
    is_request || is_result
}
