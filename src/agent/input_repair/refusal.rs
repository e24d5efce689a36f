//! The part of the input that an error of the model service names.

use std::borrow::Cow;
use std::sync::Arc;

use crate::agent::entry::{Entry, EntryBody};
use crate::agent::input_repair::{
    InputRepair, InputRepairs, RefusedPart, RefusedTool, count_images, is_from_person_or_program,
    is_reasoning, is_tool_output,
};
use crate::agent::message::Message;
use crate::agent::projection::synthetic_message;

/// A refusal as the service worded it. Absent members are empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal<'a> {
    pub(crate) code: &'a str,
    /// Member of the request that the error names.
    pub(crate) param: &'a str,
    pub(crate) text: &'a str,
}

/// A tool of the refused request.
#[derive(Clone, Debug)]
pub(crate) struct RequestTool<'a> {
    /// Its name in the request.
    pub(crate) wire_name: Cow<'a, str>,
    pub(crate) name: &'a str,
    pub(crate) revision: &'a str,
}

/// A refused part of the input, and how the prompt goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedInput {
    pub repair: InputRepair,
    /// True if one more call without the part helps the prompt. False for its own input.
    pub is_repeatable: bool,
}

/// The subject of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Reasoning,
    Tool,
    ImageCount,
    /// Content that a filter refuses, or a message that cannot be read.
    Content,
    Image,
}

/// Finds the part of the input that the service refused. `tools` are those of the request, in its
/// order. `None`: the error names no part of the path.
pub(crate) fn find_refused_input(
    path: &[Arc<Entry>],
    tools: &[RequestTool<'_>],
    refusal: Refusal<'_>,
) -> Option<RefusedInput> {
    let search = PartSearch::new(path);
    let repeatable = |repair: InputRepair| RefusedInput { repair, is_repeatable: true };
    match find_subject(refusal)? {
        Subject::Tool => find_tool(tools, refusal).map(|tool| {
            let (name, revision) = (tool.name.to_owned(), tool.revision.to_owned());
            let tool = RefusedTool { name, revision };
            repeatable(InputRepair { tool: Some(tool), ..search.repair(RefusedPart::Tool, 0) })
        }),
        Subject::Reasoning => search.find_all(RefusedPart::Reasoning).map(repeatable),
        Subject::ImageCount => search.limit_images(refusal.text).map(repeatable),
        Subject::Image => search
            .find_new(RefusedPart::Images)
            .or_else(|| search.find_all(RefusedPart::Images))
            .map(repeatable),
        Subject::Content => search.find_content(),
    }
}

/// Words of errors about the size of an image.
const SIZE_WORDS: [&str; 9] =
    ["bytes", "kb", "mb", "pixels", "px", "dimension", "dimensions", "resolution", "size"];

fn find_subject(refusal: Refusal<'_>) -> Option<Subject> {
    let Refusal { code, param, text } = refusal;
    let (code, param) = (code.to_lowercase(), param.to_lowercase());
    let text = format!("{code} {param} {}", text.to_lowercase());
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    // These members select what a response has. They are no part of the input.
    if ["include", "reasoning", "text", "response_format"]
        .iter()
        .any(|name| param.starts_with(name))
    {
        return None;
    }
    let is_reasoning =
        has(&["encrypted_content", "encrypted content", "thought_signature", "thoughtsignature"])
            || (has(&["reasoning", "thinking"])
                && has(&["item", "decrypt", "verif", "signature", "encrypt", "block"]))
            || has(&["'rs_", "\"rs_", " rs_"]);
    if is_reasoning {
        return Some(Subject::Reasoning);
    }
    if param.starts_with("tools")
        || code == "invalid_function_parameters"
        || (has(&["schema"]) && has(&["function", "tool"]))
    {
        return Some(Subject::Tool);
    }
    let mut words = text.split(|letter: char| !letter.is_alphanumeric());
    let is_about_size =
        words.any(|word| SIZE_WORDS.contains(&word.trim_start_matches(char::is_numeric)));
    if has(&["images"])
        && !is_about_size
        && has(&["maximum", "too many", "exceed", "at most", "limit", "more than", "up to"])
    {
        return Some(Subject::ImageCount);
    }
    let is_filtered = has(&[
        "content_filter",
        "content filter",
        "content_policy",
        "content policy",
        "content management policy",
        "responsibleai",
        "responsible ai",
        "invalid_prompt",
        "cyber_policy",
        "bio_policy",
        "usage policy",
        "data_inspection",
        "moderation",
        "flagged",
        "safety",
        "inappropriate",
    ]);
    if is_filtered {
        return Some(Subject::Content);
    }
    if has(&["image", "picture", "input_file", "file_data", "pdf"]) {
        return Some(Subject::Image);
    }
    let is_of_input = param.starts_with("input") || param.starts_with("messages");
    let names_content = ["content", "output", "text", "]"].iter().any(|word| param.contains(word));
    (is_of_input && names_content).then_some(Subject::Content)
}

/// The tool that the error names, by its index or its name in the request.
fn find_tool<'t>(
    tools: &'t [RequestTool<'t>],
    refusal: Refusal<'_>,
) -> Option<&'t RequestTool<'t>> {
    let is_named = |name: &str| {
        ["'", "\"", "`"].iter().any(|mark| refusal.text.contains(&format!("{mark}{name}{mark}")))
    };
    let by_name = tools.iter().find(|tool| is_named(&tool.wire_name) || is_named(tool.name));
    let by_index = || {
        let index = refusal.param.strip_prefix("tools")?.trim_start_matches(['[', '.']);
        let digits = index.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(index.len());
        tools.get(index.get(..digits)?.parse::<usize>().ok()?)
    };
    by_name.or_else(by_index)
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
        InputRepair { part, from_seq, to_seq, images_max: None, tool: None }
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
            return Some(RefusedInput { repair, is_repeatable: true });
        }
        let repair = self.find_new(RefusedPart::Messages)?;
        Some(RefusedInput { repair, is_repeatable: false })
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
        RefusedPart::ImageCount | RefusedPart::Tool => false,
    }
}
