//! Invariants of an idle conversation, checked after fault injection. Also its entries without the
//! parts that differ between runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use turnwheel_conversation::context_ranges::has_context;
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::event::{Event, EventBody};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::projection;
use turnwheel_conversation::workspace::collect_files;
use turnwheel_platform::ids::EntryId;

/// An idle conversation and the effects of its tools.
pub struct IdleConversation<'a> {
    pub head: &'a Head,
    /// All entries, by `seq`.
    pub entries: &'a [Entry],
    pub events: &'a [Event],
    /// Number of inbox items, and the number of them that should be held.
    pub inbox: (usize, usize),
    /// Number of accepted prompts, follow-ups included.
    pub accepted: usize,
    /// Times that each effect was sent, by effect id. Effects of other conversations are ignored.
    pub sent_effects: &'a BTreeMap<String, u32>,
    /// True if a tool of that name declares the effect `write`.
    pub is_write: &'a (dyn Fn(&str) -> bool + Sync),
}

impl fmt::Debug for IdleConversation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleConversation").field("head", &self.head).finish_non_exhaustive()
    }
}

/// A violated invariant of `docs/architecture.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: u8,
    pub description: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invariant {} ({}): {}",
            self.invariant,
            invariant_name(self.invariant),
            self.description
        )
    }
}

/// The name of an invariant, as in `docs/architecture.md`.
pub(crate) fn invariant_name(invariant: u8) -> &'static str {
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
struct Violations(Vec<Violation>);

impl Violations {
    fn check(&mut self, invariant: u8, is_true: bool, description: &str) {
        if !is_true {
            self.0.push(Violation { invariant, description: description.to_owned() });
        }
    }
}

/// The violations of all invariants; empty if there are none.
pub fn find_violations(conversation: &IdleConversation<'_>) -> Vec<Violation> {
    let IdleConversation { head, entries, events, inbox: (waiting, held), accepted, .. } =
        *conversation;
    let mut violations = Violations::default();
    violations.check(
        2,
        head.phase == Phase::Idle && head.prompt.is_none(),
        "the phase is not idle",
    );
    let has_no_pending_work =
        head.due == head.metering.settle_at && head.profile_messages.is_none();
    violations.check(
        2,
        head.lease.is_none() && has_no_pending_work,
        "a lease or pending work is left",
    );
    violations.check(
        1,
        head.waiting_items == 0 && head.requests.is_empty() && head.waiting_commands.is_empty(),
        "an inbox item or a request is pending",
    );
    violations.check(1, waiting == held, "the inbox is not empty");
    let begun = prompt_ids(entries, |body| matches!(body, EntryBody::Prompt(_)));
    let ended = prompt_ids(entries, |body| matches!(body, EntryBody::PromptEnd(_)));
    violations.check(1, begun.len() == accepted, "a prompt was lost or begun twice");
    violations.check(3, begun == ended, "prompts ended in another order than they began");
    let is_once = begun.iter().collect::<BTreeSet<_>>().len() == begun.len();
    violations.check(1, is_once, "a prompt began twice");
    let has_no_gaps = entries.iter().map(|entry| entry.base.seq).eq(1..=head.seq);
    violations.check(3, has_no_gaps, "entries have gaps");
    violations.check(3, is_tree(entries), "the entries do not form a tree of prompts");
    violations.check(
        3,
        is_each_move_an_event(head, entries, events),
        "the leaf moved without its event, or an event without a move",
    );
    let is_counted = events.iter().map(|event| event.n).eq(1..=head.event_seq);
    violations.check(10, is_counted, "event numbers have gaps");
    check_calls(head, entries, &mut violations);
    check_effects(conversation, &mut violations);
    let entries: Vec<Arc<Entry>> = entries.iter().cloned().map(Arc::new).collect();
    check_model_input(&path_to_leaf(&entries, head.leaf_id.as_ref()), &mut violations);
    check_context(head, &entries, &mut violations);
    violations.0
}

/// Checks that a worker which reads only the listed entries has the same model input and files.
fn check_context(head: &Head, entries: &[Arc<Entry>], violations: &mut Violations) {
    let is_listed = |entry: &&Arc<Entry>| {
        head.context.iter().any(|range| {
            let to = range.to.unwrap_or(head.seq);
            (range.from..=to).contains(&entry.base.seq)
        })
    };
    let listed: Vec<Arc<Entry>> = entries.iter().filter(is_listed).cloned().collect();
    let leaf = head.leaf_id.as_ref();
    // Otherwise the worker reads all entries.
    if head.context.is_empty() || !has_context(listed.iter(), leaf) {
        return;
    }
    let (whole, context) = (path_to_leaf(entries, leaf), path_to_leaf(&listed, leaf));
    let is_same = projection::project_messages(&whole) == projection::project_messages(&context);
    violations.check(8, is_same, "the listed entries lack a part of the model input");
    let has_files = collect_files(&whole) == collect_files(&context);
    violations.check(8, has_files, "the listed entries lack a file of the workspace");
}

/// True if each entry has an id of its own and a parent before it, and the entries of a prompt follow
/// each other: the leaf moves only between prompts.
fn is_tree(entries: &[Entry]) -> bool {
    let mut earlier: BTreeSet<&str> = BTreeSet::new();
    let mut previous: Option<&Entry> = None;
    entries.iter().all(|entry| {
        let parent = entry.base.parent_id.as_ref();
        let continues_prompt = entry.base.prompt_id.is_some()
            && previous.is_some_and(|it| it.base.prompt_id == entry.base.prompt_id);
        let is_in_place = match previous {
            Some(previous) if continues_prompt => parent == Some(&previous.base.entry_id),
            _ => parent.is_none_or(|parent| earlier.contains(parent.as_str())),
        };
        previous = Some(entry);
        is_in_place && earlier.insert(entry.base.entry_id.as_str())
    })
}

/// True if the leaf is where the entries and the events `session_tree` put it: each entry follows the
/// leaf of its time, and each event continues from the leaf that the one before it left.
fn is_each_move_an_event(head: &Head, entries: &[Entry], events: &[Event]) -> bool {
    let moves = events.iter().filter_map(|event| {
        if let EventBody::SessionTree(moved) = &event.body { Some(moved) } else { None }
    });
    let mut moves = moves.peekable();
    let seq_of: BTreeMap<&EntryId, u64> =
        entries.iter().map(|entry| (&entry.base.entry_id, entry.base.seq)).collect();
    let mut leaf: Option<&EntryId> = None;
    for entry in entries {
        let mut has_landed = false;
        // A move from this leaf precedes the entry: no later one starts here again.
        while !has_landed
            && let Some(moved) = moves.next_if(|moved| moved.old_leaf_id.as_ref() == leaf)
        {
            leaf = moved.new_leaf_id.as_ref();
            // A summary and a label are committed with the move, which ends at the last of them.
            let added = leaf.and_then(|leaf| seq_of.get(leaf));
            let can_be_added =
                matches!(entry.body, EntryBody::BranchSummary(_) | EntryBody::Label(_));
            has_landed = can_be_added && added.is_some_and(|added| *added >= entry.base.seq);
        }
        if !has_landed && entry.base.parent_id.as_ref() != leaf {
            return false;
        }
        leaf = Some(&entry.base.entry_id);
    }
    for moved in moves {
        if moved.old_leaf_id.as_ref() != leaf {
            return false;
        }
        leaf = moved.new_leaf_id.as_ref();
    }
    leaf == head.leaf_id.as_ref()
}

fn prompt_ids(entries: &[Entry], matches: impl Fn(&EntryBody) -> bool) -> Vec<String> {
    let matching = entries.iter().filter(|entry| matches(&entry.body));
    matching
        .map(|entry| entry.base.prompt_id.as_ref().map(ToString::to_string).unwrap_or_default())
        .collect()
}

/// Checks that each call has one result, in source order, before the next model response. A fork can end
/// before the results of its last response.
fn check_calls(head: &Head, entries: &[Entry], violations: &mut Violations) {
    let last_copied = head.parent.as_ref().and_then(|parent| parent.entry_id.as_ref());
    let mut open: Vec<(u64, usize)> = Vec::new();
    for entry in entries {
        if let EntryBody::Message(message) = &entry.body {
            if let Message::Assistant(response) = &message.message {
                let is_done = open.is_empty();
                violations.check(
                    5,
                    is_done,
                    "a model response came before all results of the previous one",
                );
                let calls = (0..response.tool_calls().count()).rev();
                open = calls.map(|index| (entry.base.seq, index)).collect();
            } else if let (Message::ToolResult(_), Some(call)) = (&message.message, message.call) {
                let is_next = open.pop() == Some((call.response_seq, call.index));
                violations.check(5, is_next, "a result is out of order");
            }
        }
        if last_copied == Some(&entry.base.entry_id) {
            open.clear();
        }
    }
    violations.check(5, open.is_empty(), "a call has no result");
}

/// Checks that each effect was intended before it was sent, and that no write was sent twice.
fn check_effects(conversation: &IdleConversation<'_>, violations: &mut Violations) {
    let mut intended: BTreeMap<&str, (&str, u32)> = BTreeMap::new();
    for entry in conversation.entries {
        if let EntryBody::ToolStarted(started) = &entry.body {
            let intent = (started.tool_name.as_str(), started.attempt);
            intended.insert(started.effect_id.as_str(), intent);
        }
    }
    let own_effects = conversation
        .sent_effects
        .iter()
        .filter(|(effect, _)| effect.contains(&conversation.head.incarnation));
    for (effect, times) in own_effects {
        let Some((tool, attempts)) = intended.get(effect.as_str()) else {
            violations.check(6, false, "an effect was sent without an intent");
            continue;
        };
        violations.check(6, times <= attempts, "a call was sent more often than intended");
        violations.check(
            6,
            !(conversation.is_write)(tool) || *times == 1,
            "a write was done twice",
        );
    }
}

/// Checks that each call has one output before the next message that is not an output.
fn check_model_input(path: &[Arc<Entry>], violations: &mut Violations) {
    const NO_OUTPUT: &str = "the model input has a call without its output";
    let mut open: Vec<String> = Vec::new();
    for message in projection::to_model_messages(projection::project_messages(path)) {
        if let Message::Assistant(response) = message.as_ref() {
            violations.check(8, open.is_empty(), NO_OUTPUT);
            open = response.tool_calls().map(|call| call.id.clone()).collect();
        } else if let Message::ToolResult(result) = message.as_ref() {
            let position = open.iter().position(|id| *id == result.tool_call_id);
            violations.check(
                8,
                position.is_some(),
                "the model input has an output without its call",
            );
            if let Some(position) = position {
                open.remove(position);
            }
        } else {
            violations.check(8, open.is_empty(), NO_OUTPUT);
        }
    }
    violations.check(8, open.is_empty(), NO_OUTPUT);
}

/// The entries without the parts that differ between runs. It omits the traces of faults: attempts
/// after the first, and model calls whose end is unknown.
pub fn normalise(entries: &[Entry]) -> Vec<Value> {
    let mut previous: Option<String> = None;
    let is_new = |entry: &&Entry| {
        let EntryBody::Frame(frame) = &entry.body else { return true };
        // Written again with its document, which could not be stored before.
        previous.replace(frame.hash.clone()).as_ref() != Some(&frame.hash)
    };
    entries.iter().filter(is_new).filter_map(|entry| normalise_entry(&entry.body)).collect()
}

fn normalise_entry(body: &EntryBody) -> Option<Value> {
    if is_fault_trace(body) {
        return None;
    }
    if let EntryBody::Request(request) = body {
        return Some(json!({"request": request.request.reason}));
    }
    if let EntryBody::Decision(decision) = body {
        return Some(json!({"decision": decision.decision.verdict}));
    }
    let mut value = serde_json::to_value(body).unwrap_or_default();
    if let (EntryBody::Frame(_), Some(members)) = (body, value.as_object_mut()) {
        members.remove("document");
    }
    for pointer in ["/message/timestamp", "/startedAt", "/call/answer", "/effectId", "/frame"] {
        if let Some(member) = value.pointer_mut(pointer) {
            *member = Value::Null;
        }
    }
    Some(value)
}

fn is_fault_trace(body: &EntryBody) -> bool {
    matches!(body, EntryBody::LostCall(_))
        || matches!(body, EntryBody::ToolStarted(started) if started.attempt > 1)
}

/// The sequence of prompts and messages without their text. Compare it if an approver had to settle
/// an unknown outcome, or if tool results vary.
pub fn shape(entries: &[Entry]) -> Vec<String> {
    let messages = entries.iter().filter(|entry| {
        matches!(entry.body, EntryBody::Prompt(_) | EntryBody::PromptEnd(_) | EntryBody::Message(_))
    });
    messages.map(|entry| entry_shape(&entry.body)).collect()
}

fn entry_shape(body: &EntryBody) -> String {
    let value = serde_json::to_value(body).unwrap_or_default();
    let member =
        |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(ToOwned::to_owned);
    let parts = ["/type", "/message/role", "/message/toolName", "/message/stopReason", "/state"];
    parts.into_iter().filter_map(member).collect::<Vec<_>>().join(" ")
}
