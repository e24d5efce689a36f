//! What must be true of every record that has come to rest, whatever happened on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::bench::Bench;
use crate::agent::entry::{Entry, EntryBody};
use crate::agent::message::Message;
use crate::agent::path::path;
use crate::agent::phase::Phase;
use crate::agent::projection;
use crate::ids::ConversationKey;
use crate::store::{Freshness, Kind, Partition, Selection};

/// What is wrong with a conversation in which so many prompts were to begin and so many inputs are held; empty: nothing.
pub(super) async fn faults(
    bench: &Bench,
    key: &ConversationKey,
    (accepted, held): (usize, usize),
) -> Vec<String> {
    let mut faults = Vec::new();
    let mut expect = |is_true: bool, what: &str| {
        if !is_true {
            faults.push(format!("{key}: {what}"));
        }
    };
    let head = bench.head_of(key).await.unwrap();
    let entries = bench.entries_of(key).await;
    expect(head.phase == Phase::Idle && head.prompt.is_none(), "the phase is not at rest");
    let is_at_rest = head.due == head.books.settle_at;
    expect(head.claim.is_none() && is_at_rest, "a claim or something due is left");
    expect(head.waiting == 0 && head.requests.is_empty(), "somebody waits or is asked");
    expect(count(bench, key, Kind::Inbox).await == held, "the inbox is not empty");
    let begun = prompts(&entries, |body| matches!(body, EntryBody::Prompt(_)));
    let ended = prompts(&entries, |body| matches!(body, EntryBody::PromptEnd(_)));
    expect(begun.len() == accepted, "a prompt was lost or begun twice");
    expect(begun == ended, "prompts did not end in the order in which they began");
    expect(begun.iter().collect::<BTreeSet<_>>().len() == begun.len(), "a prompt began twice");
    expect(entries.iter().map(|entry| entry.base.seq).eq(1..=head.seq), "entries have gaps");
    let is_chain = entries
        .windows(2)
        .all(|pair| pair[1].base.parent_id.as_ref() == Some(&pair[0].base.entry_id));
    expect(is_chain, "the entries are no chain");
    let events = bench.events_of(key).await;
    expect(events.iter().map(|event| event.n).eq(1..=head.event_seq), "event numbers have gaps");
    calls(&entries, &mut expect);
    effects(bench, &head.incarnation, &entries, &mut expect);
    let entries: Vec<Arc<Entry>> = entries.into_iter().map(Arc::new).collect();
    well_formed(&path(&entries, head.leaf_id.as_ref()), &mut expect);
    faults
}

async fn count(bench: &Bench, key: &ConversationKey, kind: Kind) -> usize {
    let partition = Partition::Conversation(key.clone());
    let found = bench.shared.select(&partition, &Selection::all(kind), Freshness::Latest).await;
    found.unwrap().len()
}

fn prompts(entries: &[Entry], is_meant: impl Fn(&EntryBody) -> bool) -> Vec<String> {
    let meant = entries.iter().filter(|entry| is_meant(&entry.body));
    meant.map(|entry| entry.base.prompt_id.as_ref().unwrap().to_string()).collect()
}

/// Each call has one result, in source order, and no answer comes between.
fn calls(entries: &[Entry], expect: &mut impl FnMut(bool, &str)) {
    let mut open: Vec<(u64, usize)> = Vec::new();
    for entry in entries {
        let EntryBody::Message(message) = &entry.body else { continue };
        match (&message.message, message.call) {
            (Message::Assistant(answer), _) => {
                expect(open.is_empty(), "an answer came before all results of the one before it");
                open = (0..answer.tool_calls().count())
                    .rev()
                    .map(|index| (entry.base.seq, index))
                    .collect();
            }
            (Message::ToolResult(_), Some(call)) => {
                let next = open.pop();
                expect(next == Some((call.answer, call.index)), "a result is out of order");
            }
            _ => {}
        }
    }
    expect(open.is_empty(), "a call has no result");
}

/// What was done was intended before, and no write was done twice.
fn effects(
    bench: &Bench,
    incarnation: &str,
    entries: &[Entry],
    expect: &mut impl FnMut(bool, &str),
) {
    let mut intended: BTreeMap<&str, (&str, u32)> = BTreeMap::new();
    for entry in entries {
        if let EntryBody::ToolStarted(started) = &entry.body {
            intended
                .insert(started.effect_id.as_str(), (started.tool_name.as_str(), started.attempt));
        }
    }
    for (effect, times) in bench.done.lock().unwrap().iter() {
        if !effect.contains(incarnation) {
            continue;
        }
        let Some((tool, attempts)) = intended.get(effect.as_str()) else {
            expect(false, "something was done that was never intended");
            continue;
        };
        expect(times <= attempts, "a call was sent more often than it was intended");
        let is_write = !matches!(*tool, "look" | "put" | "nap");
        expect(!is_write || *times == 1, "a write was done twice");
    }
}

/// Invariant 8: each call has one output before the next message that is none.
fn well_formed(path: &[Arc<Entry>], expect: &mut impl FnMut(bool, &str)) {
    let mut open: Vec<String> = Vec::new();
    for message in projection::convert(projection::messages(path)) {
        match message.as_ref() {
            Message::Assistant(answer) => {
                expect(open.is_empty(), "the model is sent a call without its output");
                open = answer.tool_calls().map(|call| call.id.clone()).collect();
            }
            Message::ToolResult(result) => {
                let position = open.iter().position(|id| *id == result.tool_call_id);
                expect(position.is_some(), "the model is sent an output without its call");
                open.remove(position.unwrap_or(0));
            }
            _ => expect(open.is_empty(), "the model is sent a call without its output"),
        }
    }
    expect(open.is_empty(), "the model is sent a call without its output");
}
