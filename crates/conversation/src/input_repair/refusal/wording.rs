//! Words of model services and gateways for a refused part of the input.

use std::sync::LazyLock;

use regex::Regex;

use super::Refusal;
use super::model_names::{names_missing_model, without_names};
use super::named_path::{NamedPath, find_path};

/// The subject of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Reasoning,
    /// Reasoning that the service requires beside the calls of a response.
    MissingReasoning,
    Tool,
    ImageCount,
    /// Calls of tools and their results.
    Calls,
    /// Content that a filter refuses, or a message that cannot be read.
    Content,
    Image,
}

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
/// Names of reasoning that a service requires with the calls of a response.
const REQUIRED_REASONING: [&str; 7] = [
    "reasoning_content",
    "thought_signature",
    "thoughtsignature",
    "thought signature",
    "thinking block",
    "`thinking`",
    "redacted_thinking",
];
/// Words of errors about their absence.
const ABSENCE_WORDS: [&str; 4] =
    ["missing", "must be passed back", "expected `thinking`", "must start with"];
/// Marks before the id of a reasoning item.
const REASONING_IDS: [&str; 5] = ["'rs_", "\"rs_", "`rs_", " rs_", "(rs_"];
/// Words of errors about the size of an image.
const SIZE_WORDS: [&str; 13] = [
    "bytes",
    "kb",
    "mb",
    "mib",
    "megabytes",
    "pixels",
    "megapixels",
    "px",
    "dimension",
    "dimensions",
    "resolution",
    "size",
    "sizes",
];
/// Words of errors about images and files.
const IMAGE_WORDS: [&str; 8] =
    ["image", "picture", "input_file", "file_data", "pdf", "multimodal", "multi-modal", "vision"];
/// Words of errors about a number.
const LIMIT_WORDS: [&str; 7] =
    ["max", "too many", "exceed", "at most", "limit", "more than", "up to"];
/// Several images, with a word of [`LIMIT_WORDS`].
static IMAGES: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let text =
        r"images|image\(s\)|image[_ ]urls\b|image[_ ]url\(s\)|image[_ ]count|number of image";
    Regex::new(text).ok()
});
/// A limit of the number of images. A number is followed by its unit: it may be that of a size.
static IMAGE_LIMIT: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let number = r"(?:\d+|one|two|a single|single) (?:input )?image(?:_url)?s?\b";
    let bound = "at most|more than|fewer than|less than|up to|only(?: supports)?|limit of|max(?:imum)?(?: number)?(?: of)?";
    let text = format!(
        r"too[ _]many[ _](?:input )?image(?:_url)?s?\b|(?:{bound}):? {number}|images\b[^.;()]{{0,40}}?(?:max(?:imum)?|limit|exceed(?:s|ed|ing)?|at most|more than|up to|>)[^.;()\d]{{0,20}}\d+(?:[.,]\d+)*(?: ?[a-z]+)?"
    );
    Regex::new(&text).ok()
});
/// A number, which may be a decimal, with the word that follows it.
static NUMBER: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?<number>\d+(?:[.,]\d+)*)(?:[ -]?(?<unit>[A-Za-z]+))?").ok());
/// Options of servers that bound the number of images in a request.
const IMAGE_LIMIT_OPTIONS: [&str; 2] = ["limit-mm-per-prompt", "limit_mm_per_prompt"];
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
/// Members that select the content of a response. They are no part of the input.
const OPTIONS: [&str; 4] = ["include", "reasoning", "text", "response_format"];

/// True if an error refuses the response schema.
pub(super) fn names_response_schema(refusal: Refusal<'_>) -> bool {
    let (param, text) = (refusal.param.to_lowercase(), refusal.text.to_lowercase());
    let place = if param.is_empty() { &text } else { &param };
    SCHEMA_MEMBERS.iter().any(|name| place.contains(name))
}

/// True if an error names a path, an item, or images as a kind of input. Other errors of the status 404 are
/// about the model or the address.
pub(super) fn names_part(refusal: Refusal<'_>) -> bool {
    let wording = Wording::new(refusal);
    find_path(refusal).is_some() || wording.names_reasoning_id() || wording.has(&["image input"])
}

/// The subject of an error. `None`: it names no part of the input.
pub(super) fn find_subject(refusal: Refusal<'_>, named: Option<&NamedPath>) -> Option<Subject> {
    let wording = Wording::new(refusal);
    if wording.names_option() || wording.names_missing_model(refusal, named) {
        return None;
    }
    let is_about_calls = named.is_some_and(NamedPath::is_of_call) || wording.is_about_calls();
    if named.is_some_and(NamedPath::is_of_role) {
        return is_about_calls.then_some(Subject::Calls);
    }
    if wording.is_about_missing_reasoning() {
        return Some(Subject::MissingReasoning);
    }
    if wording.is_about_reasoning() {
        return Some(Subject::Reasoning);
    }
    if wording.is_about_tools() || named.is_some_and(NamedPath::is_of_tools) {
        return Some(Subject::Tool);
    }
    if wording.is_about_image_count() {
        return Some(Subject::ImageCount);
    }
    if wording.is_about_filter() {
        return Some(Subject::Content);
    }
    if wording.has(&IMAGE_WORDS) {
        return Some(Subject::Image);
    }
    let param = &wording.param;
    let is_of_input = named.is_some()
        || ["input", "messages", "contents"].iter().any(|name| param.starts_with(name));
    let is_open = param.is_empty() || is_of_input;
    if is_open && is_about_calls {
        return Some(Subject::Calls);
    }
    let names_content = ["content", "output", "text", "]"].iter().any(|word| param.contains(word));
    (is_of_input && (names_content || named.is_some())).then_some(Subject::Content)
}

/// A refusal in lower case.
struct Wording {
    code: String,
    param: String,
    /// Code, member and text.
    text: String,
    /// The same without names of models.
    plain: String,
}

impl Wording {
    fn new(refusal: Refusal<'_>) -> Self {
        let (code, param) = (refusal.code.to_lowercase(), refusal.param.to_lowercase());
        let text = format!("{code} {param} {}", refusal.text.to_lowercase());
        let plain = without_names(&text);
        Self { code, param, text, plain }
    }

    fn has(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.plain.contains(word))
    }

    fn words(&self) -> impl Iterator<Item = &str> {
        words_of(&self.plain)
    }

    fn names_option(&self) -> bool {
        let param = self.param.as_str();
        OPTIONS.iter().any(|name| param.starts_with(name))
            && !param.starts_with("reasoning_content")
    }

    fn names_missing_model(&self, refusal: Refusal<'_>, named: Option<&NamedPath>) -> bool {
        named.is_none() && !self.names_reasoning_id() && names_missing_model(refusal, &self.text)
    }

    fn names_reasoning_id(&self) -> bool {
        REASONING_IDS.iter().any(|id| self.text.contains(id))
    }

    fn is_about_calls(&self) -> bool {
        self.words().any(|word| CALL_WORDS.contains(&word)) || self.has(&CALL_PHRASES)
    }

    fn is_about_missing_reasoning(&self) -> bool {
        (self.has(&REQUIRED_REASONING) && self.has(&ABSENCE_WORDS))
            || (self.has(&["reasoning_content"]) && self.has(&["is required", "must be provided"]))
    }

    fn is_about_reasoning(&self) -> bool {
        let names = [
            "encrypted_content",
            "encrypted content",
            "thought_signature",
            "thoughtsignature",
            "thought signature",
        ];
        self.has(&names)
            || (self.has(&["reasoning", "thinking"])
                && self.has(&["item", "decrypt", "verif", "signature", "encrypt", "block"]))
            || self.names_reasoning_id()
    }

    fn is_about_tools(&self) -> bool {
        self.param.starts_with("tools")
            || self.code == "invalid_function_parameters"
            || (self.has(&["schema"]) && self.has(&["function", "tool"]))
    }

    fn is_about_image_count(&self) -> bool {
        let names_images = || IMAGES.as_ref().is_some_and(|pattern| pattern.is_match(&self.plain));
        let has_limit = || names_images() && self.has(&LIMIT_WORDS) && !names_size(&self.plain);
        let names_option = IMAGE_LIMIT_OPTIONS.iter().any(|name| self.text.contains(name));
        names_option || self.names_image_limit() || has_limit()
    }

    /// True for a limit of their number. Of two limits, a text names the one that is exceeded first.
    fn names_image_limit(&self) -> bool {
        let limit = IMAGE_LIMIT.as_ref().and_then(|pattern| pattern.find(&self.plain));
        let text = limit.and_then(|limit| self.plain.get(..limit.end()));
        text.is_some_and(|text| !names_size(text))
    }

    fn is_about_filter(&self) -> bool {
        let is_blocked =
            self.has(&["was blocked", "been blocked", "blocked by", "blocked due", "is blocked"])
                && self.has(&BLOCKED_WORDS);
        self.has(&FILTER_WORDS) || is_blocked
    }
}

/// True if the text has a word of [`SIZE_WORDS`], also right after a number.
fn names_size(text: &str) -> bool {
    words_of(text).any(is_size_word)
}

fn is_size_word(word: &str) -> bool {
    SIZE_WORDS.contains(&word.trim_start_matches(char::is_numeric))
}

/// The whole numbers of a text that no word of [`SIZE_WORDS`] follows.
pub(super) fn numbers_without_size(text: &str) -> impl Iterator<Item = usize> {
    let numbers = NUMBER.iter().flat_map(move |pattern| pattern.captures_iter(text));
    numbers.filter_map(|found| {
        let unit = found.name("unit").map_or("", |unit| unit.as_str()).to_lowercase();
        if is_size_word(&unit) {
            None
        } else {
            found.name("number")?.as_str().parse::<usize>().ok()
        }
    })
}

fn words_of(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}
