//! The part of the input that an error of the model service names.

mod wording;

use std::borrow::Cow;
use std::sync::Arc;

use crate::entry::{Entry, EntryBody};
use crate::input_repair::{
    InputRepair, InputRepairs, RefusedPart, RefusedTool, count_images, has_calls_or_result,
    is_from_person_or_program, is_reasoning, is_tool_output,
};
use crate::message::{AssistantMessage, Message};
use crate::projection::synthetic_message;

use wording::{NamedPath, Subject, find_path, find_subject, names_response_schema};

/// A refusal as the service worded it. Absent members are empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refusal<'a> {
    pub code: &'a str,
    /// Member of the request that the error names.
    pub param: &'a str,
    pub text: &'a str,
}

/// A tool of the refused request.
#[derive(Clone, Debug)]
pub struct RequestTool<'a> {
    /// Its name in the request.
    pub wire_name: Cow<'a, str>,
    pub name: &'a str,
    pub revision: &'a str,
    /// Bytes of its schema.
    pub schema_bytes: usize,
}

/// A refused part of the input, and how the prompt goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedInput {
    pub repair: InputRepair,
    /// True if one more call without the part helps the prompt. False for its own input.
    pub is_repeatable: bool,
    /// True if the part exceeds what the service accepts.
    pub is_too_large: bool,
}

impl RefusedInput {
    /// The refused part and the remedy, for the error of the prompt.
    pub fn advice(&self) -> String {
        if !self.is_too_large {
            return self.repair.advice();
        }
        let part = match self.repair.part {
            RefusedPart::ToolResults => {
                "The result of a tool is too large for the model service, so later requests have a note in its place. \
                 Send the next input."
            }
            RefusedPart::Messages => {
                "The input is too large for the model service, so later requests have a note in its place. Send a shorter one, \
                 or the text as a file that tools read."
            }
            RefusedPart::Reasoning
            | RefusedPart::Images
            | RefusedPart::ImageCount
            | RefusedPart::ToolCalls
            | RefusedPart::ResponseSchema
            | RefusedPart::Tool => return self.repair.advice(),
        };
        part.to_owned()
    }
}

/// Finds the part of the input that the service refused. `tools` are those of the request, in its
/// order, `schema` is the hash of its response schema. `None`: the error names no part of the path.
pub fn find_refused_input(
    path: &[Arc<Entry>],
    tools: &[RequestTool<'_>],
    schema: Option<&str>,
    refusal: Refusal<'_>,
) -> Option<RefusedInput> {
    let search = PartSearch::new(path);
    let named = find_path(refusal);
    if let Some(hash) = schema.filter(|hash| !search.repairs.refuse_schema(hash))
        && names_response_schema(refusal)
    {
        let whole = search.repair(RefusedPart::ResponseSchema, 0);
        return Some(repeatable(InputRepair { schema: Some(hash.to_owned()), ..whole }));
    }
    let part = match find_subject(refusal, named.as_ref())? {
        Subject::Tool => {
            return find_tool(tools, refusal, named.as_ref()).map(|tool| {
                let (name, revision) = (tool.name.to_owned(), tool.revision.to_owned());
                let tool = RefusedTool { name, revision };
                repeatable(InputRepair { tool: Some(tool), ..search.repair(RefusedPart::Tool, 0) })
            });
        }
        Subject::Reasoning => search.find_all(RefusedPart::Reasoning).map(repeatable),
        Subject::ImageCount => search.limit_images(refusal.text).map(repeatable),
        Subject::Image => search.find_images().map(repeatable),
        Subject::Calls => search.find_calls(refusal.text).map(repeatable),
        Subject::Content => return search.find_content().or_else(|| search.find_any_other()),
    };
    // The words may mislead. The error still names the input.
    part.or_else(|| search.find_content().filter(|_| named.is_some()))
}

/// True if an error refuses what a request contains, not its form.
pub fn names_content(refusal: Refusal<'_>) -> bool {
    match find_subject(refusal, find_path(refusal).as_ref()) {
        Some(Subject::Content | Subject::Image | Subject::ImageCount | Subject::Calls) => true,
        Some(Subject::Reasoning | Subject::Tool) | None => false,
    }
}

/// Finds the part of the input that is too large for the service, beside what a summary can replace.
pub fn find_oversized_input(path: &[Arc<Entry>], refusal: Refusal<'_>) -> Option<RefusedInput> {
    let search = PartSearch::new(path);
    let images = match find_subject(refusal, find_path(refusal).as_ref()) {
        Some(Subject::ImageCount) => search.limit_images(refusal.text),
        Some(Subject::Image) => search.find_images(),
        Some(Subject::Reasoning | Subject::Tool | Subject::Calls | Subject::Content) | None => None,
    };
    let found = images.map(repeatable).or_else(|| search.find_content())?;
    Some(RefusedInput { is_too_large: true, ..found })
}

fn repeatable(repair: InputRepair) -> RefusedInput {
    RefusedInput { repair, is_repeatable: true, is_too_large: false }
}

/// The tool that the error names, by its index or its name in the request. If it names none, the tool with
/// the largest schema.
fn find_tool<'t>(
    tools: &'t [RequestTool<'t>],
    refusal: Refusal<'_>,
    named: Option<&NamedPath>,
) -> Option<&'t RequestTool<'t>> {
    let is_named = |name: &str| {
        ["'", "\"", "`"].iter().any(|mark| refusal.text.contains(&format!("{mark}{name}{mark}")))
    };
    let by_name = tools.iter().find(|tool| is_named(&tool.wire_name) || is_named(tool.name));
    let by_index = || tools.get(named?.tool_index()?);
    let names_none = named.is_none() && !refusal.text.contains(['\'', '"', '`']);
    let largest = || tools.iter().max_by_key(|tool| tool.schema_bytes).filter(|_| names_none);
    by_name.or_else(by_index).or_else(largest)
}

/// The parts of a path that no repair has left out.
struct PartSearch<'p> {
    path: &'p [Arc<Entry>],
    repairs: InputRepairs,
    /// Number of the first entry that no successful request had.
    new_from: u64,
}

impl<'p> PartSearch<'p> {
    fn new(path: &'p [Arc<Entry>]) -> Self {
        // A response without a revision comes from a file: another service may have written it.
        let is_success = |entry: &&Arc<Entry>| {
            let EntryBody::Message(message) = &entry.body else { return false };
            let response = message.message.as_assistant();
            message.revision.is_some() && response.is_some_and(|it| !it.is_failed())
        };
        let last = path.iter().rev().find(is_success);
        let new_from = last.map_or(0, |entry| entry.base.seq + 1);
        Self { path, repairs: InputRepairs::of(path), new_from }
    }

    /// A repair of the part in all entries from this number on.
    fn repair(&self, part: RefusedPart, from_seq: u64) -> InputRepair {
        let to_seq = self.path.last().map_or(0, |entry| entry.base.seq);
        InputRepair { part, from_seq, to_seq, images_max: None, tool: None, schema: None }
    }

    fn find_new(&self, part: RefusedPart) -> Option<InputRepair> {
        self.find_within(self.repair(part, self.new_from))
    }

    fn find_all(&self, part: RefusedPart) -> Option<InputRepair> {
        self.find_within(self.repair(part, 0))
    }

    /// The repair, if it leaves out something more.
    fn find_within(&self, repair: InputRepair) -> Option<InputRepair> {
        let range = repair.from_seq..=repair.to_seq;
        let is_found = |entry: &Arc<Entry>| {
            range.contains(&entry.base.seq)
                && !self.repairs.covers(repair.part, entry.base.seq)
                && has_part(entry, repair.part)
        };
        self.path.iter().any(is_found).then_some(repair)
    }

    /// A tool's result precedes the own input, because the prompt can go on without it. If an
    /// earlier prompt has lost its input in vain, older parts are left out.
    fn find_content(&self) -> Option<RefusedInput> {
        let new_results = self.find_new(RefusedPart::ToolResults);
        let has_lost_input = self.repairs.covers_from(RefusedPart::Messages, self.new_from);
        let newest_input =
            self.path.iter().rev().find(|entry| has_part(entry, RefusedPart::Messages));
        let older = newest_input.filter(|_| has_lost_input).and_then(|newest| {
            self.find_all(RefusedPart::ToolResults).or_else(|| {
                let to_seq = newest.base.seq.checked_sub(1)?;
                self.find_within(InputRepair { to_seq, ..self.repair(RefusedPart::Messages, 0) })
            })
        });
        if let Some(repair) = new_results.or(older) {
            return Some(repeatable(repair));
        }
        let repair = self.find_new(RefusedPart::Messages)?;
        Some(RefusedInput { is_repeatable: false, ..repeatable(repair) })
    }

    fn find_images(&self) -> Option<InputRepair> {
        self.find_new(RefusedPart::Images).or_else(|| self.find_all(RefusedPart::Images))
    }

    /// The calls of the response that the error names by the id of a call, of the last response, or of
    /// all responses.
    fn find_calls(&self, text: &str) -> Option<InputRepair> {
        let is_separator = |letter: char| !letter.is_alphanumeric() && !"_-".contains(letter);
        let words: Vec<&str> = text.split(is_separator).collect();
        let is_named = |entry: &&Arc<Entry>| {
            let message = entry.body.message();
            let mut calls = message
                .and_then(Message::as_assistant)
                .into_iter()
                .flat_map(AssistantMessage::tool_calls);
            calls.any(|call| words.contains(&call.id.split('|').next().unwrap_or(&call.id)))
        };
        let named = self.path.iter().find(is_named).and_then(|response| {
            let from_seq = response.base.seq;
            let is_next = |entry: &&Arc<Entry>| {
                entry.base.seq > from_seq
                    && entry.body.message().is_some_and(|it| it.as_assistant().is_some())
            };
            let next = self.path.iter().find(is_next).map(|next| next.base.seq - 1);
            let whole = self.repair(RefusedPart::ToolCalls, from_seq);
            self.find_within(InputRepair { to_seq: next.unwrap_or(whole.to_seq), ..whole })
        });
        named
            .or_else(|| {
                let last_response = self.new_from.saturating_sub(1);
                self.find_within(self.repair(RefusedPart::ToolCalls, last_response))
            })
            .or_else(|| self.find_all(RefusedPart::ToolCalls))
    }

    /// The parts that remain after messages and results.
    fn find_any_other(&self) -> Option<RefusedInput> {
        let calls = self.find_all(RefusedPart::ToolCalls);
        calls.or_else(|| self.find_all(RefusedPart::Reasoning)).map(repeatable)
    }

    /// Takes the largest number of the text below the number of images, and otherwise half of them.
    fn limit_images(&self, text: &str) -> Option<InputRepair> {
        let count: usize =
            self.path.iter().filter_map(message_of).map(|it| count_images(&it)).sum();
        let count = self.repairs.images_max().map_or(count, |max| max.min(count));
        let numbers = text.split(|letter: char| !letter.is_ascii_digit());
        let named = numbers.filter_map(|number| number.parse::<usize>().ok());
        let max = named.filter(|number| (1..count).contains(number)).max().or(Some(count / 2));
        let repair = self.repair(RefusedPart::ImageCount, 0);
        (count > 0).then_some(InputRepair { images_max: max, ..repair })
    }
}

impl InputRepairs {
    /// True if a repair of the part covers an entry from this number on.
    fn covers_from(&self, part: RefusedPart, seq: u64) -> bool {
        self.0.iter().any(|repair| repair.part == part && repair.to_seq >= seq)
    }
}

fn message_of(entry: &Arc<Entry>) -> Option<Cow<'_, Message>> {
    let stored = entry.body.message().map(Cow::Borrowed);
    stored.or_else(|| synthetic_message(entry).map(Cow::Owned))
}

fn has_part(entry: &Arc<Entry>, part: RefusedPart) -> bool {
    let Some(message) = message_of(entry) else { return false };
    match part {
        RefusedPart::Reasoning => {
            message.as_assistant().is_some_and(|response| response.content.iter().any(is_reasoning))
        }
        RefusedPart::Images => count_images(&message) > 0,
        RefusedPart::ToolResults => is_tool_output(&message),
        RefusedPart::Messages => is_from_person_or_program(&message),
        RefusedPart::ToolCalls => has_calls_or_result(&message),
        RefusedPart::ImageCount | RefusedPart::Tool | RefusedPart::ResponseSchema => false,
    }
}
