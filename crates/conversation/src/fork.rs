//! The entries that a fork copies, and their form in the new conversation.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::branch::find_position;
use crate::entry::{Entry, EntryBase, EntryBody, Label, PromptEnd, PromptState, PromptStop};
use crate::head::{Head, PROMPT_SPANS_MAX};
use crate::message::Message;
use crate::name;
use crate::path::path_to_leaf;
use crate::phase::{CallStatus, Phase};
use crate::prompt_span::PromptSpan;
use crate::request::{CallRef, Effect};
use crate::unknown_members::Extra;
use turnwheel_platform::ids::{EffectId, EntryId};

/// Where a fork ends, relative to the entry that the request names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ForkPosition {
    /// Before the user message, which can then be edited and sent again.
    #[default]
    Before,
    /// At the entry, which is the last one that is copied.
    At,
}

/// The part of a conversation that a fork copies.
#[derive(Debug)]
pub struct CopiedPart {
    /// The copied entries, root first.
    pub path: Vec<Arc<Entry>>,
    /// Text of the user message before which the fork ends.
    pub text: Option<String>,
}

/// Finds the part to copy. `None`: there is no such entry, or a fork before it is requested and it
/// is no user message.
pub fn find_fork_point(
    entries: &[Arc<Entry>],
    entry_id: &EntryId,
    position: ForkPosition,
) -> Option<CopiedPart> {
    let path = path_to_leaf(entries, Some(entry_id));
    let last = path.last()?;
    if position == ForkPosition::At {
        return Some(CopiedPart { path, text: None });
    }
    let Some(Message::User(_)) = last.body.message() else { return None };
    let before = find_position(entries, entry_id)?;
    let path = path_to_leaf(entries, before.leaf_id.as_ref());
    Some(CopiedPart { path, text: before.text })
}

/// Gives entries consecutive numbers from 1. References to other entries by number follow.
#[derive(Debug, Default)]
pub struct Renumbering {
    new_numbers: HashMap<u64, u64>,
    count: u64,
}

impl Renumbering {
    /// The entry under the next number.
    pub fn add(&mut self, entry: Entry) -> Entry {
        self.count += 1;
        self.new_numbers.insert(entry.base.seq, self.count);
        if self.count == entry.base.seq {
            // Then all earlier entries have kept their numbers, too.
            return entry;
        }
        let base = EntryBase { seq: self.count, ..entry.base.clone() };
        let mut entry = entry.with_base(base);
        self.update_references(&mut entry.body);
        entry
    }

    fn find(&self, number: u64) -> Option<u64> {
        self.new_numbers.get(&number).copied()
    }

    /// A reference to an entry that was not added becomes absent, or 0.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most kinds of entry have no reference")]
    fn update_references(&self, body: &mut EntryBody) {
        let update_call = |call: &mut CallRef| {
            call.response_seq = self.find(call.response_seq).unwrap_or_default();
        };
        let update_option = |call: &mut Option<CallRef>| {
            *call = call.take().and_then(|call| {
                let response_seq = self.find(call.response_seq)?;
                Some(CallRef { response_seq, ..call })
            });
        };
        match body {
            EntryBody::Message(entry) => {
                update_option(&mut entry.call);
                entry.frame = entry.frame.and_then(|seq| self.find(seq));
            }
            EntryBody::ToolStarted(entry) => update_call(&mut entry.call),
            EntryBody::ToolReturned(entry) => update_call(&mut entry.call),
            EntryBody::Request(entry) => update_option(&mut entry.request.call),
            EntryBody::Output(entry) => update_option(&mut entry.call),
            EntryBody::Frame(entry) => {
                entry.system_prompt_seq = entry.system_prompt_seq.and_then(|seq| self.find(seq));
            }
            _ => {}
        }
    }
}

/// Labels that the target entries on the path have, but not by an entry on the path. A fork sets
/// them again.
pub fn labels_beside_path(entries: &[Arc<Entry>], path: &[Arc<Entry>]) -> Vec<Label> {
    let on_path = last_labels(path);
    let all = last_labels(entries);
    let targets = path.iter().map(|entry| &entry.base.entry_id);
    targets
        .filter(|id| all.get(id) != on_path.get(id))
        .map(|id| Label::new(id.clone(), all.get(id).map(|label| (*label).to_owned())))
        .collect()
}

/// The label of each labelled entry.
pub fn last_labels(entries: &[Arc<Entry>]) -> BTreeMap<&EntryId, &str> {
    let mut labels = BTreeMap::new();
    for entry in entries {
        let EntryBody::Label(label) = &entry.body else { continue };
        match label.label.as_deref().filter(|text| !text.is_empty()) {
            Some(text) => labels.insert(&label.target_id, text),
            None => labels.remove(&label.target_id),
        };
    }
    labels
}

/// The name of the conversation at the end of the path. Entries of other programs may have one that
/// cannot be a name here: it counts as in an import.
pub fn last_name(path: &[Arc<Entry>]) -> Option<String> {
    path.iter().rev().find_map(|entry| {
        let EntryBody::SessionInfo(info) = &entry.body else { return None };
        match &info.name {
            Some(name) => name::adapt(name).map(Some),
            None => Some(None),
        }
    })?
}

/// The newest prompts of copied entries, oldest first.
#[derive(Debug, Default)]
pub struct PromptSpans(Vec<PromptSpan>);

impl PromptSpans {
    pub fn add(&mut self, entry: &Entry) {
        let Some(id) = &entry.base.prompt_id else { return };
        if let EntryBody::Prompt(prompt) = &entry.body {
            self.0.push(PromptSpan {
                id: id.clone(),
                state: PromptState::Running,
                stop_reason: None,
                from_seq: entry.base.seq,
                to_seq: None,
                is_inserted: prompt.started_at.is_some(),
                preview: None,
            });
            // The oldest ended prompt leaves. One that is open can only be on an abandoned branch.
            if self.0.len() > PROMPT_SPANS_MAX {
                self.0.remove(0);
            }
        }
        if let EntryBody::PromptEnd(end) = &entry.body
            && let Some(span) = self.0.iter_mut().rev().find(|span| &span.id == id)
        {
            span.state = end.state;
            span.stop_reason = Some(end.stop_reason);
            span.to_seq = Some(entry.base.seq);
        }
    }

    /// The prompt that has no end. Its conversation goes on elsewhere.
    pub fn open(&self) -> Option<&PromptSpan> {
        self.0.last().filter(|span| span.to_seq.is_none())
    }

    pub fn into_ended(self) -> Vec<PromptSpan> {
        self.0.into_iter().filter(|span| span.to_seq.is_some()).collect()
    }
}

/// The end of a prompt that was running where a copy ends.
pub fn cut_prompt_end() -> EntryBody {
    EntryBody::PromptEnd(PromptEnd {
        state: PromptState::Aborted,
        stop_reason: PromptStop::Aborted,
        error: None,
        incomplete: None,
        extra: Extra::new(),
    })
}

/// Writes of a conversation whose outcome is unknown and whose call is on the path, by the hash of
/// tool and arguments. A write that is running is among them: the copy never learns its outcome.
pub fn indeterminate_writes(head: &Head, path: &[Arc<Entry>]) -> BTreeMap<String, String> {
    let is_copied = |call: CallRef| path.iter().any(|entry| entry.base.seq == call.response_seq);
    let (conversation, incarnation) = (&head.conversation_id, &head.incarnation);
    let effect_of = |call: CallRef| {
        EffectId::from_call(conversation, incarnation, call.response_seq, call.index).to_string()
    };
    let mut writes = BTreeMap::new();
    for (fingerprint, marker) in &head.indeterminate_writes {
        let request = head.requests.iter().find(|request| request.id.as_str() == marker);
        let call = request.and_then(|request| request.call);
        let call = call.or_else(|| call_of_effect(head, marker));
        // A marker without a call of this conversation comes from its parent.
        if call.is_none_or(is_copied) {
            writes.insert(fingerprint.clone(), call.map_or_else(|| marker.clone(), effect_of));
        }
    }
    if let Phase::Calls { response_seq, calls, .. } = &head.phase
        && is_copied(CallRef { response_seq: *response_seq, index: 0 })
    {
        for call in calls {
            if let CallStatus::Started { effect: Effect::Write, fingerprint, effect_id, .. } =
                &call.status
            {
                writes.insert(fingerprint.clone(), effect_id.to_string());
            }
        }
    }
    writes
}

/// The call of this conversation that has the effect id.
fn call_of_effect(head: &Head, effect: &str) -> Option<CallRef> {
    let prefix = format!("tw_{}_{}_", head.conversation_id, head.incarnation);
    let (response_seq, index) = effect.strip_prefix(&prefix)?.split_once('_')?;
    Some(CallRef { response_seq: response_seq.parse().ok()?, index: index.parse().ok()? })
}
