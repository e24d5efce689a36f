//! Repairs of the model input. A part that the model service refused is left out of later requests,
//! or a note replaces it: each request repeats the history, so the part would refuse all of them.

mod refusal;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::content::{Block, Content};
use crate::entry::{Custom, Entry, EntryBody};
use crate::message::{Message, UserMessage};
use crate::unknown_members::Extra;
use turnwheel_json::raw::RawJson;

pub use self::refusal::{
    Refusal, RefusedInput, RefusedRequest, RequestTool, find_oversized_input, find_refused_input,
    names_content, names_part,
};

/// Type of the custom entries that hold a repair.
const REPAIR_ENTRY: &str = "turnwheel/inputRepair";
const IMAGE_NOTE: &str = "(image omitted: the model service refused it)";
const OLD_IMAGE_NOTE: &str = "(image omitted: the model service takes no more images in a request)";
const RESULT_NOTE: &str = "(result omitted: the model service refused it)";
const MESSAGE_NOTE: &str = "(message omitted: the model service refused it)";
const RESPONSE_NOTE: &str = "(response omitted: the model service refused it)";
/// Replaces the summary of a compaction.
pub const SUMMARY_NOTE: &str = "(summary omitted: the model service refused it)";

/// The kind of a refused part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RefusedPart {
    /// Reasoning of earlier responses, such as that of another deployment or key.
    Reasoning,
    /// Images of tool results and messages.
    Images,
    /// Images beyond the newest ones.
    ImageCount,
    /// The content of tool results and recorded shell commands.
    ToolResults,
    /// Messages of users and programs, and summaries of branches.
    Messages,
    /// Texts of responses, and summaries of compactions. Calls stay.
    Responses,
    /// A tool in this revision.
    Tool,
    /// Calls of tools with their results.
    ToolCalls,
    /// The schema of responses.
    ResponseSchema,
}

impl RefusedPart {
    /// True for a part that the agent defines, not the conversation.
    pub(crate) fn is_schema(self) -> bool {
        matches!(self, Self::Tool | Self::ResponseSchema)
    }
}

/// A repair, in force from its entry on. Readers skip one of an unknown kind.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InputRepair {
    pub part: RefusedPart,
    /// Number of the first entry with refused parts.
    #[serde(default)]
    pub from_seq: u64,
    /// Number of the last one.
    #[serde(default)]
    pub to_seq: u64,
    /// Images that a request may have.
    pub images_max: Option<usize>,
    pub tool: Option<RefusedTool>,
    /// Hash of the refused response schema. Another one is sent again.
    pub schema: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedTool {
    pub name: String,
    /// A tool with another revision is offered again.
    pub revision: String,
}

impl InputRepair {
    pub(super) fn to_entry(&self) -> EntryBody {
        EntryBody::Custom(Custom::new(REPAIR_ENTRY, Some(RawJson::from_value(self))))
    }

    fn from_entry(entry: &Entry) -> Option<Self> {
        let EntryBody::Custom(Custom { custom_type, data, .. }) = &entry.body else { return None };
        data.as_ref().filter(|_| custom_type == REPAIR_ENTRY)?.read().ok()
    }

    /// The refused part and the remedy, for the error of the prompt.
    fn advice(&self) -> String {
        let what = match (self.part, &self.tool, self.images_max) {
            (RefusedPart::Reasoning, ..) => {
                "The model service cannot read the reasoning of earlier responses, so later requests leave it out. \
                 Send the next input."
            }
            (RefusedPart::Images, ..) => {
                "The model service refused an image, so later requests have a note in its place. Send another image, \
                 or the next input."
            }
            (RefusedPart::ImageCount, _, Some(max)) => {
                return format!(
                    "The request had too many images, so later requests keep the newest {max}. Send the next input."
                );
            }
            (RefusedPart::ToolResults, ..) => {
                "The model service refused the result of a tool, so later requests have a note in its place. \
                 Send the next input."
            }
            (RefusedPart::Messages, ..) => {
                "The model service refused the input, so later requests have a note in its place. Send it in other words."
            }
            (RefusedPart::Responses, ..) => {
                "The model service refused the text of an earlier response or summary, so later requests have a note in its \
                 place. Send the next input."
            }
            (RefusedPart::Tool, Some(tool), _) => {
                return format!(
                    "The model service refused the schema of the tool `{}`, so later requests do not offer it. \
                     Correct its schema, or send the next input.",
                    tool.name
                );
            }
            (RefusedPart::ResponseSchema, ..) => {
                "The model service refused the response schema of the agent, so later requests leave it out. Responses are \
                 still validated by it. Simplify it, or send the next input."
            }
            (RefusedPart::ToolCalls, ..) => {
                "The model service refused a call of a tool, so later requests have a note in the place of the call and its \
                 result. Send the next input."
            }
            (RefusedPart::ImageCount | RefusedPart::Tool, ..) => "Send the next input.",
        };
        what.to_owned()
    }
}

/// The repairs in force at the end of a path.
#[derive(Debug, Default)]
pub struct InputRepairs(Vec<InputRepair>);

impl InputRepairs {
    pub fn of<'a>(path: impl IntoIterator<Item = &'a Arc<Entry>>) -> Self {
        Self(path.into_iter().filter_map(|entry| InputRepair::from_entry(entry)).collect())
    }

    /// Adds the repair of an entry, if it has one.
    pub fn add(&mut self, entry: &Entry) {
        self.0.extend(InputRepair::from_entry(entry));
    }

    /// True if a note replaces all that the model would receive of the entry.
    pub fn replace(&self, entry: &Entry) -> bool {
        let covers = |part: RefusedPart| self.covers(part, entry.base.seq);
        match entry.body.message() {
            Some(message) if is_tool_output(message) => {
                covers(RefusedPart::ToolResults) || covers(RefusedPart::ToolCalls)
            }
            Some(message) => covers(RefusedPart::Messages) && is_from_person_or_program(message),
            None if entry.body.compaction().is_some() => covers(RefusedPart::Responses),
            None => covers(RefusedPart::Messages),
        }
    }

    fn covers(&self, part: RefusedPart, seq: u64) -> bool {
        let covers = |it: &InputRepair| it.part == part && (it.from_seq..=it.to_seq).contains(&seq);
        self.0.iter().any(covers)
    }

    /// True if the response schema with this hash is not sent.
    pub fn refuse_schema(&self, hash: &str) -> bool {
        self.0.iter().any(|repair| repair.schema.as_deref() == Some(hash))
    }

    /// The tools that are not offered.
    pub fn refused_tools(&self) -> impl Iterator<Item = &RefusedTool> {
        self.0.iter().filter_map(|repair| repair.tool.as_ref())
    }

    fn images_max(&self) -> Option<usize> {
        self.0.iter().filter_map(|repair| repair.images_max).min()
    }

    /// The message of the entry with this number as the model may receive it.
    pub fn apply<'a>(&self, seq: u64, message: Cow<'a, Message>) -> Cow<'a, Message> {
        let is_refused = |part: RefusedPart| self.covers(part, seq);
        let mut changed = message;
        if is_refused(RefusedPart::Reasoning)
            && let Message::Assistant(response) = changed.as_ref()
            && response.content.iter().any(is_reasoning)
        {
            let mut response = response.clone();
            response
                .content
                .retain(|block| !matches!(block, Block::Other(_)) || !is_reasoning(block));
            for block in &mut response.content {
                if let Block::Thinking(thinking) = block {
                    thinking.thinking_signature = None;
                }
            }
            changed = Cow::Owned(Message::Assistant(response));
        }
        if is_refused(RefusedPart::ToolCalls) && has_calls_or_result(&changed) {
            replace_calls(changed.to_mut());
        }
        if is_refused(RefusedPart::ToolResults) && is_tool_output(&changed) {
            replace_content(changed.to_mut(), RESULT_NOTE);
        }
        if is_refused(RefusedPart::Messages) && is_from_person_or_program(&changed) {
            replace_content(changed.to_mut(), MESSAGE_NOTE);
        }
        if is_refused(RefusedPart::Responses) && has_response_text(&changed) {
            replace_response_text(changed.to_mut());
        }
        if is_refused(RefusedPart::Images) && count_images(&changed) > 0 {
            replace_oldest_images(changed.to_mut(), usize::MAX, IMAGE_NOTE);
        }
        changed
    }

    /// Keeps the newest images.
    pub fn limit_images(&self, messages: &mut [Cow<'_, Message>]) {
        let Some(max) = self.images_max() else { return };
        let count: usize = messages.iter().map(|message| count_images(message)).sum();
        let mut excess = count.saturating_sub(max);
        for message in messages {
            let images = count_images(message).min(excess);
            if images > 0 {
                replace_oldest_images(message.to_mut(), images, OLD_IMAGE_NOTE);
                excess -= images;
            }
        }
    }
}

/// Replaces the results of tools by notes. False: there are none.
pub fn leave_out_results(messages: &mut [Cow<'_, Message>]) -> bool {
    let mut has_any = false;
    for message in messages.iter_mut().filter(|message| is_tool_output(message)) {
        replace_content(message.to_mut(), RESULT_NOTE);
        has_any = true;
    }
    has_any
}

/// True for a block that only the service which wrote it can read.
fn is_reasoning(block: &Block) -> bool {
    match block {
        Block::Thinking(thinking) => thinking.thinking_signature.is_some(),
        Block::Other(raw) => raw.text().contains("\"encrypted_content\""),
        Block::Text(_) | Block::Image(_) | Block::ToolCall(_) | Block::File(_) => false,
    }
}

fn is_tool_output(message: &Message) -> bool {
    match message {
        Message::ToolResult(_) | Message::BashExecution(_) => true,
        Message::User(_)
        | Message::Assistant(_)
        | Message::Custom(_)
        | Message::BranchSummary(_)
        | Message::CompactionSummary(_)
        | Message::Other(_) => false,
    }
}

fn has_calls_or_result(message: &Message) -> bool {
    let response = message.as_assistant();
    matches!(message, Message::ToolResult(_))
        || response.is_some_and(|response| response.tool_calls().next().is_some())
}

/// Replaces calls by notes in the response, and a result by a note of the user: a service that refuses
/// the pair reads neither.
fn replace_calls(message: &mut Message) {
    if let Message::ToolResult(result) = message {
        let content = Content::Text(RESULT_NOTE.to_owned());
        let (timestamp, extra) = (result.timestamp, Extra::new());
        *message = Message::User(UserMessage { content, timestamp, extra });
    } else if let Message::Assistant(response) = message {
        for block in &mut response.content {
            if let Block::ToolCall(call) = block {
                let name = &call.name;
                *block = Block::text(format!(
                    "(call of the tool `{name}` omitted: the model service refused it)"
                ));
            }
        }
    }
}

fn is_from_person_or_program(message: &Message) -> bool {
    match message {
        Message::User(_) | Message::Custom(_) | Message::BranchSummary(_) => true,
        Message::Assistant(_)
        | Message::ToolResult(_)
        | Message::BashExecution(_)
        | Message::CompactionSummary(_)
        | Message::Other(_) => false,
    }
}

/// True for a response with text or readable reasoning, and for the summary of a compaction.
fn has_response_text(message: &Message) -> bool {
    let has_text = |block: &Block| match block {
        Block::Text(text) => !text.text.trim().is_empty(),
        Block::Thinking(thinking) => !thinking.thinking.trim().is_empty(),
        Block::Image(_) | Block::ToolCall(_) | Block::File(_) | Block::Other(_) => false,
    };
    match message {
        Message::Assistant(response) => response.content.iter().any(has_text),
        Message::CompactionSummary(_) => true,
        Message::User(_)
        | Message::ToolResult(_)
        | Message::BashExecution(_)
        | Message::Custom(_)
        | Message::BranchSummary(_)
        | Message::Other(_) => false,
    }
}

/// Replaces the texts of a response or summary by notes. Its calls stay. Encrypted reasoning belongs to
/// the text that followed it, so it is left out, too.
fn replace_response_text(message: &mut Message) {
    match message {
        Message::CompactionSummary(summary) => SUMMARY_NOTE.clone_into(&mut summary.summary),
        Message::Assistant(response) => {
            for block in &mut response.content {
                replace_block_text(block);
            }
        }
        Message::User(_)
        | Message::ToolResult(_)
        | Message::BashExecution(_)
        | Message::Custom(_)
        | Message::BranchSummary(_)
        | Message::Other(_) => {}
    }
}

fn replace_block_text(block: &mut Block) {
    match block {
        Block::Text(text) if !text.text.trim().is_empty() => *block = Block::text(RESPONSE_NOTE),
        Block::Thinking(thinking) => {
            thinking.thinking_signature = None;
            if !thinking.thinking.trim().is_empty() {
                RESPONSE_NOTE.clone_into(&mut thinking.thinking);
            }
        }
        Block::Text(_)
        | Block::Image(_)
        | Block::ToolCall(_)
        | Block::File(_)
        | Block::Other(_) => {}
    }
}

/// Replaces all that the model receives of the message by a note.
fn replace_content(message: &mut Message, note: &str) {
    match message {
        Message::User(user) => user.content = Content::Text(note.to_owned()),
        Message::Custom(custom) => custom.content = Content::Text(note.to_owned()),
        Message::ToolResult(result) => result.content = vec![Block::text(note)],
        Message::BashExecution(bash) => {
            note.clone_into(&mut bash.command);
            bash.output.clear();
        }
        Message::BranchSummary(branch) => note.clone_into(&mut branch.summary),
        Message::Assistant(_) | Message::CompactionSummary(_) | Message::Other(_) => {}
    }
}

/// The blocks in which a request may have images.
fn blocks_with_images(message: &Message) -> &[Block] {
    match message {
        Message::ToolResult(result) => &result.content,
        Message::User(user) => blocks_of(&user.content),
        Message::Custom(custom) => blocks_of(&custom.content),
        Message::Assistant(_)
        | Message::BashExecution(_)
        | Message::BranchSummary(_)
        | Message::CompactionSummary(_)
        | Message::Other(_) => &[],
    }
}

fn blocks_of(content: &Content) -> &[Block] {
    if let Content::Blocks(blocks) = content { blocks } else { &[] }
}

fn count_images(message: &Message) -> usize {
    blocks_with_images(message).iter().filter(|block| matches!(block, Block::Image(_))).count()
}

/// Replaces this number of images.
fn replace_oldest_images(message: &mut Message, count: usize, note: &str) {
    let mut blocks = blocks_with_images(message).to_vec();
    let images = blocks.iter_mut().filter(|block| matches!(block, Block::Image(_)));
    images.take(count).for_each(|block| *block = Block::text(note));
    match message {
        Message::ToolResult(result) => result.content = blocks,
        Message::User(user) => user.content = Content::Blocks(blocks),
        Message::Custom(custom) => custom.content = Content::Blocks(blocks),
        Message::Assistant(_)
        | Message::BashExecution(_)
        | Message::BranchSummary(_)
        | Message::CompactionSummary(_)
        | Message::Other(_) => {}
    }
}
