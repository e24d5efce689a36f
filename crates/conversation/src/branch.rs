//! Branches: where the leaf can move to, what the new path sets, and what the move leaves behind.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::content::Content;
use crate::entry::{Entry, EntryBody, MessageEntry, ToolStarted};
use crate::message::Message;
use crate::projection;
use crate::prompt_receipt::{CallOutcome, call_outcome};
use crate::request::Effect;
use turnwheel_platform::ids::{EffectId, EntryId};

/// A position for the leaf.
#[derive(Debug)]
pub struct BranchPosition {
    /// `None`: before the first entry.
    pub leaf_id: Option<EntryId>,
    /// The text to edit, if the position is before a message.
    pub text: Option<String>,
}

/// The position that an entry stands for. A message of a user or a program stands for the position
/// before it: before its prompt, if it started one. `None`: there is no such entry.
pub fn find_position(entries: &[Arc<Entry>], id: &EntryId) -> Option<BranchPosition> {
    let find = |id: &EntryId| entries.iter().find(|entry| entry.base.entry_id == *id);
    let entry = find(id)?;
    let Some(content) = sent_content(&entry.body) else {
        return Some(BranchPosition { leaf_id: Some(id.clone()), text: None });
    };
    let parent = entry.base.parent_id.as_ref().and_then(find);
    let is_program_message = matches!(entry.body, EntryBody::CustomMessage(_));
    if let Some(start) = parent
        && let EntryBody::Prompt(prompt) = &start.body
        // The first user message of a prompt without input is a steer.
        && (is_program_message || !prompt.has_no_input)
    {
        let text = prompt.original.as_ref().unwrap_or(content).joined_text();
        return Some(BranchPosition { leaf_id: start.base.parent_id.clone(), text: Some(text) });
    }
    Some(BranchPosition {
        leaf_id: entry.base.parent_id.clone(),
        text: Some(content.joined_text()),
    })
}

fn sent_content(body: &EntryBody) -> Option<&Content> {
    if let EntryBody::CustomMessage(custom) = body {
        return Some(&custom.content);
    }
    if let Message::User(user) = body.message()? { Some(&user.content) } else { None }
}

/// The part of the path `old` that the path `new` does not have.
pub fn left_behind<'a>(old: &'a [Arc<Entry>], new: &[Arc<Entry>]) -> &'a [Arc<Entry>] {
    let is_shared =
        |(one, other): &(&Arc<Entry>, &Arc<Entry>)| one.base.entry_id == other.base.entry_id;
    let shared = old.iter().zip(new).take_while(is_shared).count();
    old.get(shared..).unwrap_or_default()
}

/// The messages of a branch for its summary, without tool results.
pub fn summary_messages(left: &[Arc<Entry>]) -> Vec<Cow<'_, Message>> {
    let mut messages = projection::to_model_messages(projection::project_messages(left));
    messages.retain(|message| !matches!(message.as_ref(), Message::ToolResult(_)));
    messages
}

/// A call with the effect `write` on the part of the path that a move leaves. The move does not undo
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WriteLeft {
    pub tool: String,
    pub tool_call_id: String,
    #[schema(value_type = String)]
    pub effect_id: EffectId,
    pub outcome: CallOutcome,
}

/// The writes of `path` that were started, or had their result, on its part `left`. In the order in
/// which they started.
pub fn find_writes_left(path: &[Arc<Entry>], left: &[Arc<Entry>]) -> Vec<WriteLeft> {
    let Some(first_left) = left.first().map(|entry| entry.base.seq) else { return Vec::new() };
    let mut call_ids: BTreeMap<(u64, usize), &str> = BTreeMap::new();
    let mut writes: BTreeMap<(u64, usize), (&ToolStarted, CallOutcome, bool)> = BTreeMap::new();
    for entry in path {
        let is_left = entry.base.seq >= first_left;
        if let EntryBody::ToolStarted(started) = &entry.body
            && matches!(started.effect, None | Some(Effect::Write))
        {
            let key = (started.call.response_seq, started.call.index);
            let write = writes.entry(key).or_insert((started, CallOutcome::Unknown, false));
            write.2 |= is_left;
        }
        let EntryBody::Message(MessageEntry { message, call, .. }) = &entry.body else { continue };
        if let Message::Assistant(response) = message {
            let calls = response.tool_calls().enumerate();
            call_ids.extend(calls.map(|(index, call)| ((entry.base.seq, index), call.id.as_str())));
        } else if let (Message::ToolResult(result), Some(call)) = (message, call)
            && let Some(write) = writes.get_mut(&(call.response_seq, call.index))
        {
            write.1 = call_outcome(result);
            write.2 |= is_left;
        }
    }
    let left = writes.into_iter().filter(|(_, (_, _, is_left))| *is_left);
    left.map(|(call, (started, outcome, _))| WriteLeft {
        tool: started.tool_name.clone(),
        tool_call_id: call_ids.get(&call).copied().unwrap_or_default().to_owned(),
        effect_id: started.effect_id.clone(),
        outcome,
    })
    .collect()
}
