//! Invariants of an idle conversation, checked after fault injection. Also its entries without the
//! parts that differ between runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::agent::entry::{Entry, EntryBody};
use crate::agent::event::Event;
use crate::agent::head::Head;
use crate::agent::message::Message;
use crate::agent::path::path;
use crate::agent::phase::Phase;
use crate::agent::projection;

/// An idle conversation and the effects of its tools.
#[expect(missing_debug_implementations, reason = "`is_write` is a closure")]
pub struct Rest<'a> {
    pub head: &'a Head,
    /// All entries, by `seq`.
    pub entries: &'a [Entry],
    pub events: &'a [Event],
    /// Number of inbox items, and the number of them that should be held.
    pub inbox: (usize, usize),
    /// Number of accepted prompts, follow-ups included.
    pub accepted: usize,
    /// Times that each effect was sent, by effect id. Effects of other conversations are ignored.
    pub done: &'a BTreeMap<String, u32>,
    /// True if a tool of that name declares the effect `write`.
    pub is_write: &'a (dyn Fn(&str) -> bool + Sync),
}

/// A violated invariant of `docs/architecture.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub invariant: u8,
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {} ({}): {}", self.invariant, name(self.invariant), self.what)
    }
}

/// The name of an invariant, as in `docs/architecture.md`.
pub fn name(invariant: u8) -> &'static str {
    match invariant {
        1 => "accepted means kept",
        2 => "queues are disposable",
        3 => "one winner",
        4 => "the model response is committed before its tools start",
        5 => "each call has one result",
        6 => "intent before effect",
        8 => "the model input is well-formed",
        10 => "events have consecutive numbers",
        _ => "bounded everything",
    }
}

#[derive(Default)]
struct Found(Vec<Broken>);

impl Found {
    fn expect(&mut self, invariant: u8, is_true: bool, what: &str) {
        if !is_true {
            self.0.push(Broken { invariant, what: what.to_owned() });
        }
    }
}

/// The violations of all invariants; empty if there are none.
pub fn broken(rest: &Rest<'_>) -> Vec<Broken> {
    let Rest { head, entries, events, inbox: (waiting, held), accepted, .. } = *rest;
    let mut found = Found::default();
    found.expect(2, head.phase == Phase::Idle && head.prompt.is_none(), "the phase is not idle");
    let is_at_rest = head.due == head.books.settle_at;
    found.expect(2, head.claim.is_none() && is_at_rest, "a lease or pending work is left");
    found.expect(1, head.waiting == 0 && head.requests.is_empty(), "an inbox item or a request is pending");
    found.expect(1, waiting == held, "the inbox is not empty");
    let begun = prompts(entries, |body| matches!(body, EntryBody::Prompt(_)));
    let ended = prompts(entries, |body| matches!(body, EntryBody::PromptEnd(_)));
    found.expect(1, begun.len() == accepted, "a prompt was lost or begun twice");
    found.expect(3, begun == ended, "prompts ended in another order than they began");
    let is_once = begun.iter().collect::<BTreeSet<_>>().len() == begun.len();
    found.expect(1, is_once, "a prompt began twice");
    let has_no_gaps = entries.iter().map(|entry| entry.base.seq).eq(1..=head.seq);
    found.expect(3, has_no_gaps, "entries have gaps");
    let is_chain = entries
        .iter()
        .zip(entries.iter().skip(1))
        .all(|(before, after)| after.base.parent_id.as_ref() == Some(&before.base.entry_id));
    found.expect(3, is_chain, "the entries do not form a chain");
    let is_counted = events.iter().map(|event| event.n).eq(1..=head.event_seq);
    found.expect(10, is_counted, "event numbers have gaps");
    calls(entries, &mut found);
    effects(rest, &mut found);
    let entries: Vec<Arc<Entry>> = entries.iter().cloned().map(Arc::new).collect();
    well_formed(&path(&entries, head.leaf_id.as_ref()), &mut found);
    found.0
}

fn prompts(entries: &[Entry], is_meant: impl Fn(&EntryBody) -> bool) -> Vec<String> {
    let meant = entries.iter().filter(|entry| is_meant(&entry.body));
    meant
        .map(|entry| entry.base.prompt_id.as_ref().map(ToString::to_string).unwrap_or_default())
        .collect()
}

/// Checks that each call has one result, in source order, before the next model response.
fn calls(entries: &[Entry], found: &mut Found) {
    let mut open: Vec<(u64, usize)> = Vec::new();
    for entry in entries {
        let EntryBody::Message(message) = &entry.body else { continue };
        if let Message::Assistant(answer) = &message.message {
            let is_done = open.is_empty();
            found.expect(5, is_done, "a model response came before all results of the previous one");
            let calls = (0..answer.tool_calls().count()).rev();
            open = calls.map(|index| (entry.base.seq, index)).collect();
        } else if let (Message::ToolResult(_), Some(call)) = (&message.message, message.call) {
            let next = open.pop();
            found.expect(5, next == Some((call.answer, call.index)), "a result is out of order");
        }
    }
    found.expect(5, open.is_empty(), "a call has no result");
}

/// Checks that each effect was intended before it was sent, and that no write was sent twice.
fn effects(rest: &Rest<'_>, found: &mut Found) {
    let mut intended: BTreeMap<&str, (&str, u32)> = BTreeMap::new();
    for entry in rest.entries {
        if let EntryBody::ToolStarted(started) = &entry.body {
            let intent = (started.tool_name.as_str(), started.attempt);
            intended.insert(started.effect_id.as_str(), intent);
        }
    }
    let mine = rest.done.iter().filter(|(effect, _)| effect.contains(&rest.head.incarnation));
    for (effect, times) in mine {
        let Some((tool, attempts)) = intended.get(effect.as_str()) else {
            found.expect(6, false, "an effect was sent without an intent");
            continue;
        };
        found.expect(6, times <= attempts, "a call was sent more often than intended");
        found.expect(6, !(rest.is_write)(tool) || *times == 1, "a write was done twice");
    }
}

/// Checks that each call has one output before the next message that is not an output.
fn well_formed(path: &[Arc<Entry>], found: &mut Found) {
    const NO_OUTPUT: &str = "the model input has a call without its output";
    let mut open: Vec<String> = Vec::new();
    for message in projection::convert(projection::messages(path)) {
        if let Message::Assistant(answer) = message.as_ref() {
            found.expect(8, open.is_empty(), NO_OUTPUT);
            open = answer.tool_calls().map(|call| call.id.clone()).collect();
        } else if let Message::ToolResult(result) = message.as_ref() {
            let position = open.iter().position(|id| *id == result.tool_call_id);
            found.expect(8, position.is_some(), "the model input has an output without its call");
            if let Some(position) = position {
                open.remove(position);
            }
        } else {
            found.expect(8, open.is_empty(), NO_OUTPUT);
        }
    }
    found.expect(8, open.is_empty(), NO_OUTPUT);
}

/// The entries without the parts that differ between runs. It omits the traces of faults: attempts
/// after the first, and model calls whose end is unknown.
pub fn normal(entries: &[Entry]) -> Vec<Value> {
    entries.iter().filter_map(|entry| normal_entry(&entry.body)).collect()
}

fn normal_entry(body: &EntryBody) -> Option<Value> {
    if is_mark_of_a_fault(body) {
        return None;
    }
    if let EntryBody::Request(asked) = body {
        return Some(json!({"request": asked.request.reason}));
    }
    if let EntryBody::Decision(decided) = body {
        return Some(json!({"decision": decided.decision.verdict}));
    }
    let mut value = serde_json::to_value(body).unwrap_or_default();
    for place in ["/message/timestamp", "/startedAt", "/call/answer", "/effectId"] {
        if let Some(member) = value.pointer_mut(place) {
            *member = Value::Null;
        }
    }
    Some(value)
}

fn is_mark_of_a_fault(body: &EntryBody) -> bool {
    matches!(body, EntryBody::LostCall(_))
        || matches!(body, EntryBody::ToolStarted(started) if started.attempt > 1)
}

/// The sequence of prompts and messages without their text. Compare it if an approver had to settle
/// an unknown outcome, or if tool results vary.
pub fn shape(entries: &[Entry]) -> Vec<String> {
    let spoken = entries.iter().filter(|entry| {
        matches!(entry.body, EntryBody::Prompt(_) | EntryBody::PromptEnd(_) | EntryBody::Message(_))
    });
    spoken.map(|entry| shape_of(&entry.body)).collect()
}

fn shape_of(body: &EntryBody) -> String {
    let value = serde_json::to_value(body).unwrap_or_default();
    let of = |place: &str| value.pointer(place).and_then(Value::as_str).map(ToOwned::to_owned);
    let parts = ["/type", "/message/role", "/message/toolName", "/message/stopReason", "/state"];
    parts.into_iter().filter_map(of).collect::<Vec<_>>().join(" ")
}
