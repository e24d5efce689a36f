//! Front matter of a Markdown file.

use crate::mistakes::Findings;
use crate::yaml::{self, Node, Position};

/// Splits a file into its front matter and the text after it. The front matter keeps its opening
/// line, so that line numbers are those of the file.
pub(super) fn split_front_matter<'t>(
    text: &'t str,
    findings: &mut Findings,
) -> Option<(&'t str, &'t str)> {
    let is_fence = |line: &str| line.trim_end() == "---";
    if !text.lines().next().is_some_and(is_fence) {
        if text.trim_start().lines().next().is_some_and(is_fence) {
            findings.add(
                Position::START,
                "the front matter must begin in the first line: remove the lines before `---`",
            );
            return None;
        }
        if let Some(key) = front_matter_key(text) {
            let reason = format!(
                "`{key}:` looks like front matter: write `---` on a line of its own before the first key and after the last one"
            );
            findings.add(Position::START, reason);
            return None;
        }
        return Some(("", text));
    }
    let mut end = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if number > 0 && is_fence(line) {
            let after = text.get(end + line.len()..).unwrap_or_default();
            return Some((text.get(..end).unwrap_or_default(), after));
        }
        end += line.len();
    }
    findings.add(
        Position::START,
        "the front matter is not closed: write `---` on a line of its own before the instructions",
    );
    None
}

/// The key with which a text without front matter begins, if files of this kind have such a key.
fn front_matter_key(text: &str) -> Option<&str> {
    const KEYS: [&str; 10] = [
        "argument-hint",
        "approval",
        "budget",
        "description",
        "loop",
        "model",
        "name",
        "skills",
        "systemPrompt",
        "tools",
    ];
    let (key, rest) = text.trim_start().lines().next()?.split_once(':')?;
    let is_key = KEYS.contains(&key) && (rest.is_empty() || rest.starts_with(' '));
    is_key.then_some(key)
}

/// Parses front matter. `None`: it is not YAML, which is added to the findings.
pub(super) fn parse_yaml(front_matter: &str, findings: &mut Findings) -> Option<Node> {
    yaml::parse(front_matter).map_err(|(at, reason)| findings.add(at, reason)).ok()
}
