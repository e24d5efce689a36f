//! The part of the input that an error of the model service names.

mod model_names;
mod named_path;
mod part_search;
mod wording;

use std::borrow::Cow;
use std::sync::Arc;

use crate::entry::Entry;
use crate::input_repair::{InputRepair, RefusedPart, RefusedTool};

use named_path::{NamedPath, find_path};
use part_search::PartSearch;
use wording::{Subject, find_subject, names_response_schema};

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

/// The parts of the refused request beside its messages.
#[derive(Clone, Copy, Debug)]
pub struct RefusedRequest<'a> {
    /// In the order of the request.
    pub tools: &'a [RequestTool<'a>],
    /// Hash of its response schema.
    pub response_schema: Option<&'a str>,
    /// True if its first message holds the instructions.
    pub has_instructions: bool,
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
            | RefusedPart::Responses
            | RefusedPart::ToolCalls
            | RefusedPart::ResponseSchema
            | RefusedPart::Tool => return self.repair.advice(),
        };
        part.to_owned()
    }
}

/// Finds the part of the input that the service refused. `None`: the error names no part of the path.
pub fn find_refused_input(
    path: &[Arc<Entry>],
    request: &RefusedRequest<'_>,
    refusal: Refusal<'_>,
) -> Option<RefusedInput> {
    let search = PartSearch::new(path);
    let named = find_path(refusal);
    let named = named.as_ref();
    if let Some(hash) = request.response_schema.filter(|hash| !search.repairs.refuse_schema(hash))
        && names_response_schema(refusal)
    {
        let whole = search.repair(RefusedPart::ResponseSchema, 0);
        return Some(repeatable(InputRepair { schema: Some(hash.to_owned()), ..whole }));
    }
    let subject = find_subject(refusal, named)?;
    if named.is_some_and(|path| path.is_of_instructions(request.has_instructions)) {
        return None;
    }
    let message = named.and_then(|path| path.message(request.has_instructions));
    let part = match subject {
        Subject::Tool => {
            return find_tool(request.tools, refusal, named).map(|tool| {
                let (name, revision) = (tool.name.to_owned(), tool.revision.to_owned());
                let tool = RefusedTool { name, revision };
                repeatable(InputRepair { tool: Some(tool), ..search.repair(RefusedPart::Tool, 0) })
            });
        }
        Subject::Reasoning => search.find_reasoning(refusal.text),
        Subject::MissingReasoning => {
            let calls = search.find_calls_without_reasoning(message, refusal.text);
            return calls.map(repeatable);
        }
        Subject::ImageCount => search.limit_images(refusal.text),
        Subject::Image => search.find_images(),
        Subject::Calls => search.find_calls(refusal.text),
        Subject::Content => {
            let older = || search.find_older_content().map(repeatable);
            return search.find_refused_content(message).or_else(older);
        }
    };
    // The words may mislead. The error still names the input.
    let content = || search.find_refused_content(message).filter(|_| named.is_some());
    part.map(repeatable).or_else(content)
}

/// True if an error refuses what a request contains, not its form.
pub fn names_content(refusal: Refusal<'_>) -> bool {
    match find_subject(refusal, find_path(refusal).as_ref()) {
        Some(Subject::Content | Subject::Image | Subject::ImageCount | Subject::Calls) => true,
        Some(Subject::Reasoning | Subject::MissingReasoning | Subject::Tool) | None => false,
    }
}

/// True if an error names an element of the request, and not only the request or its model.
pub fn names_part(refusal: Refusal<'_>) -> bool {
    wording::names_part(refusal)
}

/// Finds the part of the input that is too large for the service, beside what a summary can replace.
pub fn find_oversized_input(path: &[Arc<Entry>], refusal: Refusal<'_>) -> Option<RefusedInput> {
    let search = PartSearch::new(path);
    let images = match find_subject(refusal, find_path(refusal).as_ref()) {
        Some(Subject::ImageCount) => search.limit_images(refusal.text),
        Some(Subject::Image) => search.find_images(),
        Some(
            Subject::Reasoning
            | Subject::MissingReasoning
            | Subject::Tool
            | Subject::Calls
            | Subject::Content,
        )
        | None => None,
    };
    let content = || search.find_content(PartSearch::find_older_large_content);
    let found = images.map(repeatable).or_else(content)?;
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
