//! Checks the result of a run against the invariants, and against the run without faults.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::agent::content::joined_text;
use crate::agent::entry::{Entry, EntryBody};
use crate::agent::event::Event;
use crate::agent::head::Head;
use crate::agent::request::RequestKind;
use crate::agent::step::UNKNOWN_OUTCOME;
use crate::certify::Fault;
use crate::turn::invariants::{self, Broken, Rest, normal, shape};

/// The result of a run.
pub(super) struct Outcome {
    /// Every fail point hit, in order.
    pub(super) reached: Vec<&'static str>,
    /// The reason why the fault did not happen.
    pub(super) missed: Option<&'static str>,
    /// Problems during the run: sentences.
    pub(super) wrong: Vec<String>,
    pub(super) story: Vec<String>,
    pub(super) prompts: usize,
    /// `None`: the conversation does not exist.
    pub(super) head: Option<Head>,
    pub(super) entries: Vec<Entry>,
    pub(super) events: Vec<Event>,
    pub(super) inbox: usize,
    /// Number of notifications that were not sent.
    pub(super) untold: usize,
    pub(super) done: BTreeMap<String, u32>,
    pub(super) called: BTreeMap<String, u32>,
    pub(super) answers: u32,
    /// Tools that were called and never succeeded.
    pub(super) failed: Vec<String>,
    /// Tools that are declared idempotent and returned another result for the same call, with the
    /// number of times.
    pub(super) otherwise: BTreeMap<String, u32>,
    /// Prompts for which the conversation file has too few responses.
    pub(super) unanswered: Vec<String>,
    pub(super) writes: Vec<String>,
    /// True if the recorded results may differ between runs.
    pub(super) is_vague: bool,
    /// True if calls run in parallel: then the order of their marks is random.
    pub(super) is_at_once: bool,
}

/// The result of the run without faults, for comparison.
pub(super) struct Record {
    normal: Vec<String>,
    shape: Vec<String>,
    answers: u32,
}

impl Record {
    pub(super) fn of(outcome: &Outcome) -> Self {
        Self { normal: words(outcome), shape: shape(&outcome.entries), answers: outcome.answers }
    }
}

/// The record; for parallel calls without the marks whose order is random. A conversation whose
/// creation was repeated has another incarnation, which is part of its artifacts' ids.
fn words(outcome: &Outcome) -> Vec<String> {
    let mut words = normal(&outcome.entries);
    let is_message = |entry: &Value| entry.get("type").is_some_and(|kind| kind == "message");
    words.retain(|entry| !outcome.is_at_once || is_message(entry));
    let incarnation = outcome.head.as_ref().map_or("-", |head| head.incarnation.as_str());
    words.iter().map(|entry| entry.to_string().replace(incarnation, "incarnation")).collect()
}

fn told(invariant: u8, what: &str) -> String {
    Broken { invariant, what: what.to_owned() }.to_string()
}

/// Returns one sentence per broken invariant; empty: all invariants hold.
pub(super) fn alone(outcome: &Outcome) -> Vec<String> {
    let mut wrong = outcome.wrong.clone();
    let Some(head) = &outcome.head else {
        wrong.push(told(1, "there is no conversation"));
        return wrong;
    };
    let rest = Rest {
        head,
        entries: &outcome.entries,
        events: &outcome.events,
        inbox: (outcome.inbox, 0),
        accepted: outcome.prompts,
        done: &outcome.done,
        is_write: &|tool| outcome.writes.iter().any(|write| write == tool),
    };
    wrong.extend(invariants::broken(&rest).iter().map(ToString::to_string));
    if outcome.untold > 0 {
        wrong.push(told(2, "a notification was not sent"));
    }
    wrong
}

/// Checks the invariants, and compares the record with the run without faults: exactly, or only its
/// shape if an approver had to settle a call's outcome.
pub(super) fn beside(outcome: &Outcome, good: &Record, fault: Fault) -> Vec<String> {
    let mut wrong = alone(outcome);
    // A worker that is killed or replaced during a model call has paid for a response that is
    // discarded.
    let paid_in_vain =
        u32::from(matches!(fault, Fault::Kill | Fault::TakeOver | Fault::TwoWorkers));
    if outcome.answers > good.answers + paid_in_vain {
        let what = format!("{} model responses were paid for instead of {}", outcome.answers, good.answers);
        wrong.push(told(4, &what));
    }
    let is_vague = outcome.is_vague
        // The model receives the time-out of the call.
        || fault == Fault::TimeOut
        || outcome.entries.iter().any(|entry| is_in_doubt(&entry.body));
    let is_same = if is_vague {
        shape(&outcome.entries) == good.shape
    } else {
        words(outcome) == good.normal
    };
    if !is_same {
        wrong.push(told(3, "the record differs from the run without faults"));
    }
    wrong
}

/// True if the outcome of a call was unknown.
fn is_in_doubt(body: &EntryBody) -> bool {
    let is_asked =
        matches!(body, EntryBody::Request(asked) if asked.request.kind == RequestKind::Outcome);
    let is_told = body
        .result()
        .is_some_and(|result| joined_text(&result.content).starts_with(UNKNOWN_OUTCOME));
    is_asked || is_told
}
