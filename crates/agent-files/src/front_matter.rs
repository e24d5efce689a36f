//! Front matter of a Markdown file.

use crate::mistakes::Findings;
use crate::sections::SECTIONS;
use crate::yaml::{self, Node, Position};

/// A line that begins or ends front matter.
const FENCE: &str = "---";

/// A kind of file with front matter. Its keys show that the first `---` is missing.
#[derive(Clone, Copy)]
pub(super) enum FileKind {
    Agent,
    Template,
    Skill,
}

impl FileKind {
    fn has_key(self, key: &str) -> bool {
        const AGENT_KEYS: [&str; 4] =
            ["approval", "argument-hint", "disable-model-invocation", "name"];
        const TEMPLATE_KEYS: [&str; 2] = ["argument-hint", "description"];
        const SKILL_KEYS: [&str; 4] = ["description", "disable-model-invocation", "name", "tools"];
        match self {
            Self::Agent => SECTIONS
                .iter()
                .flat_map(|section| section.keys)
                .chain(&AGENT_KEYS)
                .any(|it| *it == key),
            Self::Template => TEMPLATE_KEYS.contains(&key),
            Self::Skill => SKILL_KEYS.contains(&key),
        }
    }
}

/// Splits a file into its front matter and the text after it. The front matter keeps its opening
/// line, so that line numbers are those of the file.
pub(super) fn split_front_matter<'t>(
    text: &'t str,
    kind: FileKind,
    findings: &mut Findings,
) -> Option<(&'t str, &'t str)> {
    let is_fence = |line: &str| line.trim_end() == FENCE;
    if !text.lines().next().is_some_and(is_fence) {
        let Some(reason) = find_missing_fence(text, kind) else { return Some(("", text)) };
        findings.add(Position::START, reason);
        return None;
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

/// The mistake in a text that begins like front matter, but not with a fence. Comments of YAML are also
/// headings of Markdown: the first line after them decides.
fn find_missing_fence(text: &str, kind: FileKind) -> Option<String> {
    let is_comment = |line: &str| matches!(kind, FileKind::Agent) && line.starts_with('#');
    let is_content = |line: &&str| !line.is_empty() && !is_comment(line);
    let mut lines = text.lines().map(str::trim).filter(is_content);
    let first = lines.next()?;
    if first != FENCE {
        return front_matter_key(first, kind).map(|key| {
            format!(
                "`{key}:` looks like front matter: write `---` on a line of its own before the first key and after the last one"
            )
        });
    }
    // Below a heading, the line is a thematic break of Markdown unless a key follows.
    let is_front_matter = text.trim_start().starts_with(FENCE)
        || lines.next().and_then(|line| front_matter_key(line, kind)).is_some();
    is_front_matter.then(|| {
        "the front matter must begin in the first line: remove the lines before `---`".to_owned()
    })
}

/// The key of a line, if files of the kind have such a key.
fn front_matter_key(line: &str, kind: FileKind) -> Option<&str> {
    let (key, rest) = line.split_once(':')?;
    let key = key.trim_end().trim_matches(['"', '\'']);
    let is_key = rest.is_empty() || rest.starts_with([' ', '\t']);
    (is_key && kind.has_key(key)).then_some(key)
}

/// Parses front matter. `None`: it is not YAML, which is added to the findings.
pub(super) fn parse_yaml(front_matter: &str, findings: &mut Findings) -> Option<Node> {
    yaml::parse(front_matter).map_err(|(at, reason)| findings.add(at, reason)).ok()
}
