//! Events of a response that could not be parsed.

/// Names of members with content, or parts of their names and of kinds of events.
const CONTENT_NAMES: [&str; 7] =
    ["response.", "delta", "item", "part", "text", "arguments", "input"];
/// Names of the events and items of calls, and of their arguments.
const CALL_NAMES: [&str; 4] = ["function_call", "tool_call", "arguments", "\"input\""];
/// Types of the events and items of texts, or their beginnings.
const TEXT_TYPES: [&str; 6] = [
    "response.output_text",
    "response.refusal",
    "response.reasoning",
    "response.content_part",
    "message\"",
    "reasoning\"",
];

#[derive(Debug, Default)]
pub(super) struct LostFrames {
    /// True if a frame could not be parsed, or a delta could not be read.
    pub(super) is_any: bool,
    /// True if a frame that could not be parsed names content.
    pub(super) has_content: bool,
    /// True if such a frame may have had arguments of a call: it names a call, or content and no text.
    pub(super) has_arguments: bool,
}

impl LostFrames {
    /// Records a frame. Returns true if it may have had arguments of a call.
    pub(super) fn add(&mut self, name: Option<&str>, data: &str) -> bool {
        if !data.trim_start().starts_with('{') {
            return false;
        }
        let texts = [name.unwrap_or_default(), data];
        let has =
            |names: &[&str]| names.iter().any(|it| texts.iter().any(|text| text.contains(*it)));
        let has_call = has(&CALL_NAMES);
        let has_content = has_call || has(&CONTENT_NAMES);
        // Arguments in a string have no such member: their quotation marks are escaped.
        let solid: String = data.split_whitespace().collect();
        let is_text = TEXT_TYPES.iter().any(|kind| {
            name.is_some_and(|name| name.starts_with(*kind))
                || solid.contains(&format!("\"type\":\"{kind}"))
        });
        let has_arguments = has_call || has_content && !is_text;
        self.is_any = true;
        self.has_content |= has_content;
        self.has_arguments |= has_arguments;
        has_arguments
    }
}
