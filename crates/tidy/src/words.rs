//! Words that code, documentation, errors and logs do not use, and openings that doc comments avoid.

use super::{files, is_rust, package_files, read};

/// Banned words with their replacements. Whole words, in any case. A stored or public JSON name that has one of them keeps
/// it in [`KEPT`].
const BANNED: &[(&str, &str)] = &[
    ("bell", "nudge"),
    ("bells", "nudges"),
    ("bought", "billed"),
    ("brake", "pause"),
    ("brakes", "pauses"),
    ("doorbell", "nudge, wake-up message"),
    ("going_on", "continue"),
    ("herald", "notification sender"),
    ("lookout", "poller"),
    ("mishap", "injected fault"),
    ("rung", "enqueued"),
    ("strangers", "untrusted input"),
    ("taking_in", "drain the inbox"),
    ("tells", "emits, returns, reports"),
    ("told", "emitted, rendered, reported, logged, sent"),
    ("whoever", "a noun"),
];

/// Parts of lines that may have such a word: names in stored documents and in the public API.
const KEPT: &[&str] =
    &[r#"rename = "brake""#, r#"rename = "told""#, r#"{"brake":"#, r#"&str = "told""#];

/// Files that may have any word: this list, and documents that older versions stored.
const SKIPPED: &[&str] = &["crates/tidy/src/words.rs", "tests/fixtures/", "tests/corpus/"];

const OPENINGS: &[&str] = &["What", "Whatever", "Whether", "Who", "Whoever"];

fn is_text(path: &str) -> bool {
    is_rust(path)
        || [
            ".md", ".json", ".jsonl", ".yaml", ".yml", ".bicep", ".sh", ".ps1", ".snap", ".mjs",
            ".py",
        ]
        .iter()
        .any(|end| path.ends_with(end))
}

fn checked_files() -> Vec<String> {
    let folders =
        ["src", "crates", "tests", "docs", "agents", "infra", "functions", "examples", "benches"];
    let mut paths: Vec<String> = folders.iter().flat_map(|folder| files(folder, is_text)).collect();
    paths.extend(["README.md", "CONTRIBUTING.md"].map(str::to_owned));
    paths.retain(|path| !SKIPPED.iter().any(|skipped| path.starts_with(skipped)));
    paths
}

/// The banned words of a line, with their replacements.
fn banned_words(line: &str) -> Vec<(&'static str, &'static str)> {
    let mut line = line.to_owned();
    for kept in KEPT {
        line = line.replace(kept, "");
    }
    let line = line.to_ascii_lowercase();
    let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    BANNED.iter().copied().filter(|(word, _)| words.contains(word)).collect()
}

#[test]
fn banned_words_are_absent() {
    let mut found = Vec::new();
    for path in checked_files() {
        for (number, line) in read(&path).lines().enumerate() {
            for (word, replacement) in banned_words(line) {
                found.push(format!("{path}:{}: `{word}`: write {replacement}", number + 1));
            }
        }
    }
    assert_eq!(found, [""; 0]);
}

#[test]
fn banned_words_are_detected() {
    assert_eq!(banned_words("it was Told.").len(), 1);
    assert_eq!(banned_words("rung, bells and a brake").len(), 3);
    assert_eq!(banned_words("untold, wrung, a belly, tell").len(), 0);
    assert_eq!(banned_words(r#"#[serde(rename = "told")]"#).len(), 0);
}

#[test]
fn doc_comments_begin_with_a_noun_or_verb() {
    let mut found = Vec::new();
    for path in package_files().into_iter().chain(files("tests", is_rust)) {
        let mut is_in_comment = false;
        for (number, line) in read(&path).lines().enumerate() {
            let text = line.trim_start();
            let text = text.strip_prefix("///").or_else(|| text.strip_prefix("//!"));
            let first = text.and_then(|text| text.split_whitespace().next()).unwrap_or_default();
            if text.is_some() && !is_in_comment && OPENINGS.contains(&first) {
                found.push(format!("{path}:{}: begins with `{first}`", number + 1));
            }
            is_in_comment = text.is_some();
        }
    }
    assert_eq!(found, [""; 0]);
}
