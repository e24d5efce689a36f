//! The parts of the input that no repair has left out, and the order in which they are suspected.

use std::borrow::Cow;
use std::sync::Arc;

use super::named_path::NamedMessage;
use super::wording::numbers_without_size;
use super::{RefusedInput, repeatable};
use crate::content::Block;
use crate::entry::{Entry, EntryBody};
use crate::input_repair::{
    InputRepair, InputRepairs, RefusedPart, count_images, has_calls_or_result, has_response_text,
    is_from_person_or_program, is_reasoning, is_tool_output,
};
use crate::message::{AssistantMessage, Message};
use crate::projection::{last_summary, projected_entries, synthetic_message};

/// The messages of the refused request, and its repairs.
pub(super) struct PartSearch<'p> {
    /// In the order of the request, without repairs, with the numbers of their entries.
    messages: Vec<(u64, Cow<'p, Message>)>,
    pub(super) repairs: InputRepairs,
    /// The same, with the numbers of the entries that record them.
    recorded: Vec<(u64, InputRepair)>,
    /// Number of the first entry after the last complete response. No successful request had it.
    new_from: u64,
    last_seq: u64,
}

impl<'p> PartSearch<'p> {
    pub(super) fn new(path: &'p [Arc<Entry>]) -> Self {
        // A response without a revision comes from a file: another service may have written it.
        let is_success = |entry: &&Arc<Entry>| {
            let EntryBody::Message(message) = &entry.body else { return false };
            let response = message.message.as_assistant();
            message.revision.is_some() && response.is_some_and(|it| !it.is_failed())
        };
        let last = path.iter().rev().find(is_success);
        let entries = projected_entries(path);
        let summary = last_summary(entries).map(|(seq, summary)| (seq, Cow::Owned(summary)));
        let of_entries =
            entries.iter().filter_map(|entry| Some((entry.base.seq, message_of(entry)?)));
        let messages = summary.into_iter().chain(of_entries);
        let recorded: Vec<(u64, InputRepair)> = entries
            .iter()
            .filter_map(|entry| Some((entry.base.seq, InputRepair::from_entry(entry)?)))
            .collect();
        Self {
            messages: messages.filter(|(_, message)| is_sent(message)).collect(),
            repairs: InputRepairs(recorded.iter().map(|(_, repair)| repair.clone()).collect()),
            recorded,
            new_from: last.map_or(0, |entry| entry.base.seq + 1),
            last_seq: path.last().map_or(0, |entry| entry.base.seq),
        }
    }

    /// A repair of the part in all entries from this number on.
    pub(super) fn repair(&self, part: RefusedPart, from_seq: u64) -> InputRepair {
        let to_seq = self.last_seq;
        InputRepair { part, from_seq, to_seq, images_max: None, tool: None, schema: None }
    }

    fn find_new(&self, part: RefusedPart) -> Option<InputRepair> {
        self.find_within(self.repair(part, self.new_from))
    }

    fn find_all(&self, part: RefusedPart) -> Option<InputRepair> {
        self.find_within(self.repair(part, 0))
    }

    fn find_at(&self, part: RefusedPart, seq: u64) -> Option<InputRepair> {
        self.find_within(InputRepair { to_seq: seq, ..self.repair(part, seq) })
    }

    /// The part from the last complete response on: no successful request had that response.
    fn find_from_last_response(&self, part: RefusedPart) -> Option<InputRepair> {
        self.find_within(self.repair(part, self.new_from.saturating_sub(1)))
    }

    /// The repair, if it leaves out something more.
    fn find_within(&self, repair: InputRepair) -> Option<InputRepair> {
        let range = repair.from_seq..=repair.to_seq;
        let is_found = |(seq, message): &(u64, Cow<'_, Message>)| {
            range.contains(seq)
                && !self.repairs.covers(repair.part, *seq)
                && has_part(message, repair.part)
        };
        self.messages.iter().any(is_found).then_some(repair)
    }

    /// Content that a service refuses: the message that the error names, unless the newest ones may be
    /// that message; and a response that the content filter cut.
    pub(super) fn find_refused_content(&self, named: Option<NamedMessage>) -> Option<RefusedInput> {
        let older = named
            .filter(|named| self.is_before_newest(*named))
            .and_then(|named| self.find_named(named).or_else(|| self.find_older_content()));
        let filtered = || self.find_filtered_response().filter(|_| named.is_none());
        let found = older.or_else(filtered).map(repeatable);
        found.or_else(|| self.find_content(Self::find_older_content))
    }

    /// New results of tools precede the own input, because the prompt can go on without them. If an
    /// earlier prompt has failed in vain, one older part precedes it, too. The own input of each prompt
    /// that fails is left out.
    pub(super) fn find_content(
        &self,
        find_older: fn(&Self) -> Option<InputRepair>,
    ) -> Option<RefusedInput> {
        let older = || if self.suspects_older() { find_older(self) } else { None };
        if let Some(repair) = self.find_new(RefusedPart::ToolResults).or_else(older) {
            return Some(repeatable(repair));
        }
        let repair = self.find_new(RefusedPart::Messages)?;
        Some(RefusedInput { is_repeatable: false, ..repeatable(repair) })
    }

    /// True if content was left out before the newest input, and no request has been complete since. False
    /// if this prompt has left out older content already.
    fn suspects_older(&self) -> bool {
        let Some(newest) = self.newest_input() else { return false };
        let is_of_new_results = |repair: &InputRepair| {
            repair.part == RefusedPart::ToolResults && repair.from_seq == self.new_from
        };
        let mut earlier =
            self.recorded.iter().filter(|(seq, _)| (self.new_from..newest).contains(seq));
        let mut later = self.recorded.iter().filter(|(seq, _)| *seq > newest);
        earlier.any(|(_, repair)| is_content(repair.part))
            && !later.any(|(_, repair)| is_content(repair.part) && !is_of_new_results(repair))
    }

    /// Number of the newest message of a user or program.
    fn newest_input(&self) -> Option<u64> {
        let mut messages = self.messages.iter().rev();
        messages.find(|(_, message)| is_from_person_or_program(message)).map(|(seq, _)| *seq)
    }

    /// The suspects beside new results and the own input, one for each call.
    pub(super) fn find_older_content(&self) -> Option<InputRepair> {
        let before_input = || {
            let to_seq = self.newest_input()?.checked_sub(1)?;
            self.find_within(InputRepair { to_seq, ..self.repair(RefusedPart::Messages, 0) })
        };
        self.find_from_last_response(RefusedPart::Responses)
            .or_else(|| self.find_all(RefusedPart::ToolResults))
            .or_else(|| self.find_all(RefusedPart::Responses))
            .or_else(before_input)
            .or_else(|| self.find_all(RefusedPart::ToolCalls))
            .or_else(|| self.find_all(RefusedPart::Reasoning))
    }

    /// The same for an input that is too large. Results of tools are the largest parts.
    pub(super) fn find_older_large_content(&self) -> Option<InputRepair> {
        self.find_all(RefusedPart::ToolResults).or_else(|| self.find_older_content())
    }

    /// The last response, if the content filter cut it: each request repeats the text that the filter
    /// refused.
    fn find_filtered_response(&self) -> Option<InputRepair> {
        let mut messages = self.messages.iter().rev();
        let (seq, message) = messages.find(|(_, message)| message.as_assistant().is_some())?;
        let cut = message.as_assistant()?.incomplete_details()?;
        if cut.reason == "content_filter" {
            self.find_at(RefusedPart::Responses, *seq)
        } else {
            None
        }
    }

    /// True if the message precedes new results and the own input in each form of a request. Some services
    /// merge messages of one author.
    fn is_before_newest(&self, named: NamedMessage) -> bool {
        let sent = self.messages.iter().filter(|(_, message)| count_items(message, true) > 0);
        let mut authors: Vec<bool> =
            sent.map(|(_, message)| message.as_assistant().is_some()).collect();
        authors.dedup();
        named.index + 1 < authors.len()
    }

    fn find_named(&self, named: NamedMessage) -> Option<InputRepair> {
        let (seq, message) = self.find_message(named)?;
        let part = if is_tool_output(message) {
            RefusedPart::ToolResults
        } else if is_from_person_or_program(message) {
            RefusedPart::Messages
        } else {
            RefusedPart::Responses
        };
        self.find_at(part, *seq)
    }

    /// The message at that index, as the request counts.
    fn find_message(&self, named: NamedMessage) -> Option<&(u64, Cow<'p, Message>)> {
        let mut count = 0;
        let mut follows_response = false;
        self.messages.iter().find(|(seq, message)| {
            let sent = self.repairs.apply(*seq, Cow::Borrowed(message.as_ref()));
            let is_response = sent.as_assistant().is_some();
            // Responses in a row are one message of a chat.
            if !(named.is_chat && is_response && follows_response) {
                count += count_items(&sent, named.is_chat);
            }
            follows_response = is_response;
            named.index < count
        })
    }

    /// Reasoning that the service cannot read. A call may have its signature.
    pub(super) fn find_reasoning(&self, text: &str) -> Option<InputRepair> {
        let is_of_call = || text.to_lowercase().contains("signature");
        let calls = || self.find_calls(text).filter(|_| is_of_call());
        self.find_all(RefusedPart::Reasoning).or_else(calls)
    }

    /// The calls from the response on that the error names by its index, and otherwise as
    /// [`Self::find_calls`].
    pub(super) fn find_calls_without_reasoning(
        &self,
        named: Option<NamedMessage>,
        text: &str,
    ) -> Option<InputRepair> {
        let named = named.and_then(|named| {
            let (at, _) = self.find_message(named)?;
            let mut before = self.messages.iter().rev();
            let (seq, _) =
                before.find(|(seq, message)| seq <= at && message.as_assistant().is_some())?;
            self.find_within(self.repair(RefusedPart::ToolCalls, *seq))
        });
        named.or_else(|| self.find_calls(text))
    }

    pub(super) fn find_images(&self) -> Option<InputRepair> {
        self.find_new(RefusedPart::Images).or_else(|| self.find_all(RefusedPart::Images))
    }

    /// The calls of the response that the error names by the id of a call, of the last response, or of
    /// all responses.
    pub(super) fn find_calls(&self, text: &str) -> Option<InputRepair> {
        let is_separator = |letter: char| !letter.is_alphanumeric() && !"_-".contains(letter);
        let words: Vec<&str> = text.split(is_separator).collect();
        let has_named_call = |message: &Message| {
            let response = message.as_assistant();
            let mut calls = response.into_iter().flat_map(AssistantMessage::tool_calls);
            calls.any(|call| words.contains(&call.id.split('|').next().unwrap_or(&call.id)))
        };
        let response = self.messages.iter().find(|(_, message)| has_named_call(message));
        let named = response.and_then(|(from_seq, _)| {
            let mut later = self.messages.iter().filter(|(seq, _)| seq > from_seq);
            let next = later.find(|(_, message)| message.as_assistant().is_some());
            let whole = self.repair(RefusedPart::ToolCalls, *from_seq);
            let to_seq = next.map_or(whole.to_seq, |(seq, _)| seq - 1);
            self.find_within(InputRepair { to_seq, ..whole })
        });
        named
            .or_else(|| self.find_from_last_response(RefusedPart::ToolCalls))
            .or_else(|| self.find_all(RefusedPart::ToolCalls))
    }

    /// Takes the largest number of the text below the number of images, and otherwise half of them.
    pub(super) fn limit_images(&self, text: &str) -> Option<InputRepair> {
        let sent = self.messages.iter().map(|(seq, message)| {
            count_images(&self.repairs.apply(*seq, Cow::Borrowed(message.as_ref())))
        });
        let count: usize = sent.sum();
        let count = self.repairs.images_max().map_or(count, |max| max.min(count));
        let named = numbers_without_size(text).filter(|number| (1..count).contains(number));
        let max = named.max().or(Some(count / 2));
        let repair = self.repair(RefusedPart::ImageCount, 0);
        (count > 0).then_some(InputRepair { images_max: max, ..repair })
    }
}

fn message_of(entry: &Arc<Entry>) -> Option<Cow<'_, Message>> {
    let stored = entry.body.message().map(Cow::Borrowed);
    stored.or_else(|| synthetic_message(entry).map(Cow::Owned))
}

/// True if a request has the message.
fn is_sent(message: &Message) -> bool {
    match message {
        Message::Assistant(response) => !response.is_failed(),
        Message::BashExecution(bash) => bash.exclude_from_context != Some(true),
        Message::User(_)
        | Message::ToolResult(_)
        | Message::Custom(_)
        | Message::BranchSummary(_)
        | Message::CompactionSummary(_) => true,
        Message::Other(_) => false,
    }
}

/// True for the parts that [`PartSearch::find_refused_content`] leaves out.
fn is_content(part: RefusedPart) -> bool {
    match part {
        RefusedPart::Reasoning
        | RefusedPart::ToolResults
        | RefusedPart::Messages
        | RefusedPart::Responses
        | RefusedPart::ToolCalls => true,
        RefusedPart::Images
        | RefusedPart::ImageCount
        | RefusedPart::Tool
        | RefusedPart::ResponseSchema => false,
    }
}

fn has_part(message: &Message, part: RefusedPart) -> bool {
    match part {
        RefusedPart::Reasoning => {
            message.as_assistant().is_some_and(|response| response.content.iter().any(is_reasoning))
        }
        RefusedPart::Images => count_images(message) > 0,
        RefusedPart::ToolResults => is_tool_output(message),
        RefusedPart::Messages => is_from_person_or_program(message),
        RefusedPart::Responses => has_response_text(message),
        RefusedPart::ToolCalls => has_calls_or_result(message),
        RefusedPart::ImageCount | RefusedPart::Tool | RefusedPart::ResponseSchema => false,
    }
}

/// Elements of the request that are made of the message.
fn count_items(message: &Message, is_chat: bool) -> usize {
    let Some(response) = message.as_assistant() else { return 1 };
    if is_chat {
        return usize::from(!response.is_empty());
    }
    let is_item = |block: &&Block| match block {
        Block::Text(text) => !text.text.is_empty(),
        Block::Thinking(thinking) => thinking.thinking_signature.is_some(),
        Block::ToolCall(_) => true,
        Block::Other(raw) => raw.text().contains("\"providerItem\""),
        Block::Image(_) | Block::File(_) => false,
    };
    response.content.iter().filter(is_item).count()
}
