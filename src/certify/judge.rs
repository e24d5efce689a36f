//! What a run has left, held to the invariants: by itself, and beside the faultless run.

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

/// What a run has left.
pub(super) struct Outcome {
    /// Every boundary, in order.
    pub(super) reached: Vec<&'static str>,
    /// Why the fault did not happen.
    pub(super) missed: Option<&'static str>,
    /// What went wrong on the way: sentences.
    pub(super) wrong: Vec<String>,
    pub(super) story: Vec<String>,
    pub(super) prompts: usize,
    /// `None`: it is not even there.
    pub(super) head: Option<Head>,
    pub(super) entries: Vec<Entry>,
    pub(super) events: Vec<Event>,
    pub(super) inbox: usize,
    /// Those that nobody was told of.
    pub(super) untold: usize,
    pub(super) done: BTreeMap<String, u32>,
    pub(super) called: BTreeMap<String, u32>,
    pub(super) answers: u32,
    /// Tools that were called and did not succeed once.
    pub(super) failed: Vec<String>,
    /// Tools that say that they are idempotent and answered the same call with something else, and how often.
    pub(super) otherwise: BTreeMap<String, u32>,
    /// Prompts to which the conversation's file has too few answers.
    pub(super) unanswered: Vec<String>,
    pub(super) writes: Vec<String>,
    /// Whether what the record says of results may differ from run to run.
    pub(super) is_vague: bool,
    /// Whether calls run at once: then the order of their marks is chance.
    pub(super) is_at_once: bool,
}

/// What the faultless run has left, to be compared with.
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

/// The record; where calls run at once, without the marks whose order is chance. A conversation whose beginning had to be
/// repeated has another incarnation, of which the ids of its artifacts are made.
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

/// Sentences; empty: all invariants hold.
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
        wrong.push(told(2, "a notice was told to nobody"));
    }
    wrong
}

/// The same, and whether it is the faultless record: word for word, or in its shape where a person had to say what became of
/// a call.
pub(super) fn beside(outcome: &Outcome, good: &Record, fault: Fault) -> Vec<String> {
    let mut wrong = alone(outcome);
    // Whoever dies while the model answers, or is taken for dead, has paid for an answer that nobody keeps.
    let paid_in_vain =
        u32::from(matches!(fault, Fault::Kill | Fault::TakeOver | Fault::TwoWorkers));
    if outcome.answers > good.answers + paid_in_vain {
        let what = format!("{} answers were paid for instead of {}", outcome.answers, good.answers);
        wrong.push(told(4, &what));
    }
    let is_vague = outcome.is_vague
        // The model reads of a call that took too long.
        || fault == Fault::TimeOut
        || outcome.entries.iter().any(|entry| is_in_doubt(&entry.body));
    let is_same = if is_vague {
        shape(&outcome.entries) == good.shape
    } else {
        words(outcome) == good.normal
    };
    if !is_same {
        wrong.push(told(3, "the record is not that of the faultless run"));
    }
    wrong
}

/// Whether nobody knew what became of a call.
fn is_in_doubt(body: &EntryBody) -> bool {
    let is_asked =
        matches!(body, EntryBody::Request(asked) if asked.request.kind == RequestKind::Outcome);
    let is_told = body
        .result()
        .is_some_and(|result| joined_text(&result.content).starts_with(UNKNOWN_OUTCOME));
    is_asked || is_told
}
