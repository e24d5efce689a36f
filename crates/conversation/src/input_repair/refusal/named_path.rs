//! The path into the request that an error of the model service names.

use std::sync::LazyLock;

use regex::Regex;

use super::Refusal;

/// A path into the request, such as `input[2].output`, `messages.2.content` and `/input/2/output`.
#[derive(Debug)]
pub(super) struct NamedPath {
    /// `input`, `messages`, `contents` or `tools`.
    root: String,
    index: usize,
    /// Names and indexes after the first index.
    rest: Vec<String>,
    /// True for the form `messages.2`.
    is_dotted: bool,
}

/// A message that an error names, not counting the instructions.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedMessage {
    pub(super) index: usize,
    /// True if each response is one element, with its calls.
    pub(super) is_chat: bool,
}

impl NamedPath {
    /// Index of the tool. Some services group the functions of tools.
    pub(super) fn tool_index(&self) -> Option<usize> {
        let grouped = match self.rest.as_slice() {
            [group, index, ..] if group.starts_with("function") => index.parse().ok(),
            _ => None,
        };
        grouped.or(Some(self.index)).filter(|_| self.is_of_tools())
    }

    pub(super) fn is_of_tools(&self) -> bool {
        self.root == "tools"
    }

    /// True if it names a member that only calls of tools and their results have.
    pub(super) fn is_of_call(&self) -> bool {
        self.rest.iter().any(|name| CALL_MEMBERS.contains(&name.as_str()))
    }

    /// True if it names the role of a message, which is no content.
    pub(super) fn is_of_role(&self) -> bool {
        self.rest.last().is_some_and(|name| name == "role")
    }

    /// True if it names the instructions.
    pub(super) fn is_of_instructions(&self, has_instructions: bool) -> bool {
        !self.is_of_tools() && self.message(has_instructions).is_none()
    }

    /// `None`: the path is of the instructions, or of a tool. Services with the form `messages.2` and with
    /// `contents` have the instructions elsewhere.
    pub(super) fn message(&self, has_instructions: bool) -> Option<NamedMessage> {
        let is_chat = self.root != "input";
        let is_after_instructions =
            has_instructions && self.root != "contents" && !(is_chat && self.is_dotted);
        let index = self.index.checked_sub(usize::from(is_after_instructions));
        let index = index.filter(|_| !self.is_of_tools())?;
        Some(NamedMessage { index, is_chat })
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
/// The index of a message in words.
static MESSAGE_INDEX: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?i)\bmessages?\s+(?:at\s+)?index\s+(\d{1,6})\b").ok());

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

/// The path that an error names. Its text counts if no member contradicts it.
pub(super) fn find_path(refusal: Refusal<'_>) -> Option<NamedPath> {
    let param = refusal.param.trim();
    let is_open = param.is_empty() || INPUT_MEMBERS.iter().any(|name| param.starts_with(name));
    read_path(param).or_else(|| {
        let text = Some(refusal.text).filter(|_| is_open)?;
        read_path(text).or_else(|| read_message_index(text))
    })
}

fn read_path(text: &str) -> Option<NamedPath> {
    let found = PATH.as_ref()?.captures(text)?;
    let group = |number: usize| found.get(number).map(|it| it.as_str().to_lowercase());
    let rest = group(3)?;
    let names = rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let rest = names.filter(|name| !name.is_empty()).map(ToOwned::to_owned).collect();
    let after_root = text.get(found.get(1)?.end()..)?;
    let is_dotted = after_root.starts_with('.') && !after_root.starts_with(".[");
    Some(NamedPath { root: group(1)?, index: group(2)?.parse().ok()?, rest, is_dotted })
}

fn read_message_index(text: &str) -> Option<NamedPath> {
    let found = MESSAGE_INDEX.as_ref()?.captures(text)?;
    let index = found.get(1)?.as_str().parse().ok()?;
    Some(NamedPath { root: "messages".to_owned(), index, rest: Vec::new(), is_dotted: false })
}
