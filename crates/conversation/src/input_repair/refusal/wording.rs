//! Words of model services and gateways for a refused part of the input.

use std::sync::LazyLock;

use regex::Regex;

use super::Refusal;

/// The subject of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Reasoning,
    Tool,
    ImageCount,
    /// Calls of tools and their results.
    Calls,
    /// Content that a filter refuses, or a message that cannot be read.
    Content,
    Image,
}

/// A path into the request, such as `input[2].output`, `messages.2.content` and `/input/2/output`.
#[derive(Debug)]
pub(super) struct NamedPath {
    /// `input`, `messages`, `contents` or `tools`.
    root: String,
    index: usize,
    /// Names and indexes after the first index.
    rest: Vec<String>,
}

impl NamedPath {
    /// The place of the tool. Some services group the functions of tools.
    pub(super) fn tool_index(&self) -> Option<usize> {
        let grouped = match self.rest.as_slice() {
            [group, index, ..] if group.starts_with("function") => index.parse().ok(),
            _ => None,
        };
        grouped.or(Some(self.index)).filter(|_| self.is_of_tools())
    }

    fn is_of_tools(&self) -> bool {
        self.root == "tools"
    }

    /// True if it names a member that only calls of tools and their results have.
    fn is_of_call(&self) -> bool {
        self.rest.iter().any(|name| CALL_MEMBERS.contains(&name.as_str()))
    }
}

/// Paths in the forms of services: brackets, dots, slashes, arrows, and lists of Python and JSON.
static PATH: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let first = r#"(?:['"]\s*,\s*(?:['"][^'"]{1,2000}['"]\s*,\s*)?|['"]?(?:\.?\[|\.|/)|\s*->\s*)"#;
    let next = r#"(?:['"]?\s*,\s*['"]|['"]?\]?['"]?(?:\.?\[['"]?|\.|/)|\s*->\s*)"#;
    let path = format!(
        r"(?i)(?:^|[^\w])(input|messages|contents|tools){first}(\d{{1,6}})\b((?:{next}\w+)*)"
    );
    Regex::new(&path).ok()
});

/// Members of a request that hold the input.
const INPUT_MEMBERS: [&str; 7] = ["input", "messages", "contents", "prompt", "tools", "body", "$"];
/// Members of calls and results, in lower case.
const CALL_MEMBERS: [&str; 10] = [
    "name",
    "arguments",
    "id",
    "call_id",
    "tool_call_id",
    "tool_calls",
    "tool_use",
    "tool_use_id",
    "functioncall",
    "function_call",
];
/// Words of errors about calls without results and results without calls.
const CALL_WORDS: [&str; 9] = [
    "function_call",
    "function_call_output",
    "call_id",
    "tool_call_id",
    "tool_calls",
    "tool_use",
    "tool_result",
    "tooluse",
    "toolresult",
];
/// The same in phrases.
const CALL_PHRASES: [&str; 9] = [
    "tool call found",
    "tool output found",
    "function call output",
    "function call turn",
    "function calls and responses",
    "function response part",
    "role 'tool'",
    "role \"tool\"",
    "role tool",
];
/// Words of errors about the size of an image.
const SIZE_WORDS: [&str; 9] =
    ["bytes", "kb", "mb", "pixels", "px", "dimension", "dimensions", "resolution", "size"];
/// Words of errors about images and files.
const IMAGE_WORDS: [&str; 8] =
    ["image", "picture", "input_file", "file_data", "pdf", "multimodal", "multi-modal", "vision"];
/// Words of filters.
const FILTER_WORDS: [&str; 30] = [
    "content_filter",
    "content filter",
    "content_policy",
    "content policy",
    "content management policy",
    "content violation",
    "responsibleai",
    "responsible ai",
    "invalid_prompt",
    "cyber_policy",
    "bio_policy",
    "usage policy",
    "usage policies",
    "policy violation",
    "violates our",
    "data_inspection",
    "moderation",
    "flagged",
    "safety",
    "inappropriate",
    "prohibited",
    "exists risk",
    "high risk",
    "harmful",
    "sensitive",
    "unsafe",
    "jailbreak",
    "guardrail",
    "违规",
    "敏感",
];
/// Subjects of `was blocked`. An account may be blocked, too.
const BLOCKED_WORDS: [&str; 4] = ["prompt", "content", "request", "input"];

/// The path that an error names. Its text counts if no member contradicts it.
pub(super) fn find_path(refusal: Refusal<'_>) -> Option<NamedPath> {
    let param = refusal.param.trim();
    let is_open = param.is_empty() || INPUT_MEMBERS.iter().any(|name| param.starts_with(name));
    read_path(param).or_else(|| read_path(refusal.text).filter(|_| is_open))
}

fn read_path(text: &str) -> Option<NamedPath> {
    let found = PATH.as_ref()?.captures(text)?;
    let group = |number: usize| found.get(number).map(|it| it.as_str().to_lowercase());
    let rest = group(3)?;
    let names = rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let rest = names.filter(|name| !name.is_empty()).map(ToOwned::to_owned).collect();
    Some(NamedPath { root: group(1)?, index: group(2)?.parse().ok()?, rest })
}

/// Names of the response schema in a request.
const SCHEMA_MEMBERS: [&str; 7] = [
    "text.format",
    "response_format",
    "response_schema",
    "responseschema",
    "output_config",
    "json_schema",
    "structured output",
];

/// True if an error refuses the response schema.
pub(super) fn names_response_schema(refusal: Refusal<'_>) -> bool {
    let (param, text) = (refusal.param.to_lowercase(), refusal.text.to_lowercase());
    let place = if param.is_empty() { &text } else { &param };
    SCHEMA_MEMBERS.iter().any(|name| place.contains(name))
}

/// The subject of an error. `None`: it names no part of the input.
pub(super) fn find_subject(refusal: Refusal<'_>, named: Option<&NamedPath>) -> Option<Subject> {
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
        || named.is_some_and(NamedPath::is_of_tools)
        || code == "invalid_function_parameters"
        || (has(&["schema"]) && has(&["function", "tool"]))
    {
        return Some(Subject::Tool);
    }
    let words: Vec<&str> =
        text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let is_about_size =
        words.iter().any(|word| SIZE_WORDS.contains(&word.trim_start_matches(char::is_numeric)));
    if has(&["images"])
        && !is_about_size
        && has(&["maximum", "too many", "exceed", "at most", "limit", "more than", "up to"])
    {
        return Some(Subject::ImageCount);
    }
    let is_blocked =
        has(&["was blocked", "been blocked", "blocked by", "blocked due", "is blocked"])
            && has(&BLOCKED_WORDS);
    if has(&FILTER_WORDS) || is_blocked {
        return Some(Subject::Content);
    }
    if has(&IMAGE_WORDS) {
        return Some(Subject::Image);
    }
    let is_of_input = named.is_some()
        || ["input", "messages", "contents"].iter().any(|name| param.starts_with(name));
    let is_open = param.is_empty() || is_of_input;
    let is_about_calls = named.is_some_and(NamedPath::is_of_call)
        || words.iter().any(|word| CALL_WORDS.contains(word))
        || has(&CALL_PHRASES);
    if is_open && is_about_calls {
        return Some(Subject::Calls);
    }
    let names_content = ["content", "output", "text", "]"].iter().any(|word| param.contains(word));
    (is_of_input && (names_content || named.is_some())).then_some(Subject::Content)
}
