//! An execute block while it is received: the search for its closing tag, and its bound.

use super::{FoundTag, Tag};
use crate::protocol::calls::{ProtocolCall, parse_calls};

/// Maximum bytes of an execute block.
pub(crate) const EXECUTE_BYTES_MAX: usize = 1024 * 1024;
const EXECUTE_CLOSING: &str = "</execute>";

/// Place in JSON text: in a string or outside.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum StringState {
    #[default]
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
}

/// An execute block that is not closed yet.
#[derive(Debug, Default)]
pub(super) struct ExecuteBlock {
    pub(super) content: String,
    string: StringState,
    /// True if an earlier block was malformed, so that this one does not run.
    pub(super) is_dropped: bool,
    is_too_large: bool,
}

impl ExecuteBlock {
    pub(super) fn new(is_dropped: bool) -> Self {
        Self { is_dropped, ..Self::default() }
    }

    /// Appends the content up to the closing tag, which is no part of a JSON string.
    pub(super) fn scan<'t>(&mut self, text: &'t str) -> FoundTag<'t> {
        for (at, byte) in text.bytes().enumerate() {
            match (self.string, byte) {
                (StringState::Escaped, _) | (StringState::Outside, b'"') => {
                    self.string = StringState::Inside;
                }
                (StringState::Inside, b'\\') => self.string = StringState::Escaped,
                (StringState::Inside, b'"') => self.string = StringState::Outside,
                (StringState::Outside, b'<') => {
                    let (before, rest) = text.split_at(at);
                    if let Some(rest) = rest.strip_prefix(EXECUTE_CLOSING) {
                        self.append(before);
                        return FoundTag { before, tag: Some(Tag::Close), rest };
                    }
                    if EXECUTE_CLOSING.starts_with(rest) {
                        self.append(before);
                        return FoundTag { before, tag: None, rest };
                    }
                }
                (StringState::Inside | StringState::Outside, _) => {}
            }
        }
        self.append(text);
        FoundTag { before: text, tag: None, rest: "" }
    }

    pub(super) fn append(&mut self, text: &str) {
        self.is_too_large |= self.content.len() + text.len() > EXECUTE_BYTES_MAX;
        if self.is_too_large {
            self.content = String::new();
        } else {
            self.content.push_str(text);
        }
    }

    pub(super) fn parse(&self) -> Result<Vec<ProtocolCall>, String> {
        if self.is_too_large { Err(too_large()) } else { parse_calls(&self.content) }
    }

    /// Why a block without a closing tag is malformed. A closing tag within a string that never
    /// ends is the end of the block.
    pub(super) fn unclosed_reason(&self) -> String {
        let unclosed = "The closing </execute> is missing".to_owned();
        if self.is_too_large {
            return too_large();
        }
        let content = self.content.split_once(EXECUTE_CLOSING).map(|(content, _)| content);
        content.and_then(|content| parse_calls(content).err()).unwrap_or(unclosed)
    }
}

fn too_large() -> String {
    format!("The <execute> block is larger than {EXECUTE_BYTES_MAX} bytes")
}
