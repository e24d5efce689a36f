//! Rust source with comments, string contents and tests blanked, for checks of the house rules.

use std::collections::BTreeSet;

pub(super) struct SourceFile {
    /// Relative to the project, with `/`.
    pub(super) path: String,
    /// The code with its lines in place; comments, string contents and items of tests are spaces.
    pub(super) code: String,
    /// Paths of test files, by the condition of their `mod` lines.
    test_files: Vec<String>,
}

impl SourceFile {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let (code, test_modules) = blank_tests(&blank_texts(text));
        let folder = path.strip_suffix(".rs").unwrap_or(path);
        let folder =
            folder.strip_suffix("/lib").or_else(|| folder.strip_suffix("/main")).unwrap_or(folder);
        let test_files = test_modules.iter().map(|name| format!("{folder}/{name}")).collect();
        Self { path: path.to_owned(), code, test_files }
    }

    /// The folder in `crates`, and the path below its `src`. The root package has the name `turnwheel`.
    pub(super) fn package_and_file(&self) -> (&str, &str) {
        let in_crates = self.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
        let in_root = self.path.strip_prefix("src/").unwrap_or(&self.path);
        in_crates.unwrap_or(("turnwheel", in_root))
    }

    /// The file's module, with its package: `storage::store::memory` for `crates/storage/src/store/memory.rs`.
    pub(super) fn module(&self) -> String {
        let (package, file) = self.package_and_file();
        let file = file.strip_suffix(".rs").unwrap_or(file);
        if file == "lib" {
            return package.to_owned();
        }
        format!("{package}::{}", file.replace('/', "::"))
    }

    /// Paths in the same package that this file names by `crate::`, `super::` or `self::`, in `use` declarations and in
    /// code: `storage::store::memory::Store`.
    pub(super) fn paths_used(&self) -> BTreeSet<String> {
        let own = self.module();
        let package = self.package_and_file().0;
        let mut used = BTreeSet::new();
        for (keyword, base) in [("crate::", package), ("super::", &*own), ("self::", &*own)] {
            for (at, _) in self.code.match_indices(keyword) {
                let before = self.code.get(..at).and_then(|text| text.chars().next_back());
                if before.is_some_and(|c| is_word(c) || c == ':') {
                    continue;
                }
                let start = if keyword == "super::" { at } else { at + keyword.len() };
                let text = self.code.get(start..).unwrap_or_default();
                expand_path(text, base, &mut used);
            }
        }
        used
    }
}

/// Adds the paths of a tree such as `a::{b, super::c::{D, E}}`, each after `prefix`; returns the rest of the text.
fn expand_path<'t>(text: &'t str, prefix: &str, paths: &mut BTreeSet<String>) -> &'t str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = expand_path(rest, prefix, paths).trim_start();
            match rest.strip_prefix(',') {
                Some(next) if !next.trim_start().starts_with('}') => rest = next,
                Some(next) => return next.trim_start().get(1..).unwrap_or_default(),
                None => return rest.get(1..).unwrap_or_default(),
            }
        }
    }
    let word: String = text.chars().take_while(|c| is_word(*c)).collect();
    let rest = text.get(word.len()..).unwrap_or_default();
    let path = match word.as_str() {
        "super" => {
            prefix.rsplit_once("::").map_or_else(String::new, |(parent, _)| parent.to_owned())
        }
        "self" => prefix.to_owned(),
        word if prefix.is_empty() => word.to_owned(),
        word => format!("{prefix}::{word}"),
    };
    if let Some(rest) = rest.strip_prefix("::") {
        return expand_path(rest, &path, paths);
    }
    paths.insert(path);
    let alias = rest.trim_start().strip_prefix("as ").unwrap_or(rest);
    alias.trim_start_matches(|c: char| is_word(c) || c == '*')
}

/// Removes test files and files below them.
pub(super) fn without_test_files(sources: Vec<SourceFile>) -> Vec<SourceFile> {
    let tests: Vec<String> = sources.iter().flat_map(|source| source.test_files.clone()).collect();
    let is_test = |path: &str| {
        tests.iter().any(|test| {
            path.strip_prefix(test.as_str())
                .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    sources.into_iter().filter(|source| !is_test(&source.path)).collect()
}

/// Replaces comments and string contents by spaces; keeps line ends.
fn blank_texts(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let mut code = String::with_capacity(text.len());
    let mut index = 0;
    let blank = |code: &mut String, c: char| code.push(if c == '\n' { '\n' } else { ' ' });
    while index < chars.len() {
        let end = match (at(index), at(index + 1)) {
            ('/', '/') => line_end(&chars, index),
            ('/', '*') => comment_end(&chars, index),
            ('"', _) => text_end(&chars, index),
            ('r', '"' | '#') if !is_word(index.checked_sub(1).map_or(' ', at)) => {
                raw_end(&chars, index)
            }
            ('\'', next) if at(index + 2) == '\'' || next == '\\' => char_end(&chars, index),
            _ => index,
        };
        if end == index {
            code.push(at(index));
            index += 1;
        }
        while index < end {
            blank(&mut code, at(index));
            index += 1;
        }
    }
    code
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn line_end(chars: &[char], start: usize) -> usize {
    (start..chars.len()).find(|index| chars.get(*index) == Some(&'\n')).unwrap_or(chars.len())
}

fn comment_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0_u32;
    let mut index = start;
    while index < chars.len() {
        match (chars.get(index), chars.get(index + 1)) {
            (Some('/'), Some('*')) => (depth, index) = (depth + 1, index + 2),
            (Some('*'), Some('/')) => (depth, index) = (depth - 1, index + 2),
            _ => index += 1,
        }
        if depth == 0 {
            break;
        }
    }
    index.min(chars.len())
}

fn text_end(chars: &[char], start: usize) -> usize {
    let mut index = start + 1;
    while let Some(c) = chars.get(index) {
        match c {
            '\\' => index += 2,
            '"' => return index + 1,
            _ => index += 1,
        }
    }
    chars.len()
}

/// Returns `start` if there is no raw string, such as for `r#type`.
fn raw_end(chars: &[char], start: usize) -> usize {
    let hashes = chars.iter().skip(start + 1).take_while(|c| **c == '#').count();
    if chars.get(start + 1 + hashes) != Some(&'"') {
        return start;
    }
    let mut index = start + 2 + hashes;
    while index < chars.len() {
        let closes = chars.get(index) == Some(&'"')
            && chars.iter().skip(index + 1).take(hashes).filter(|c| **c == '#').count() == hashes;
        index += 1;
        if closes {
            return index + hashes;
        }
    }
    chars.len()
}

fn char_end(chars: &[char], start: usize) -> usize {
    let from = if chars.get(start + 1) == Some(&'\\') { start + 3 } else { start + 2 };
    (from..chars.len())
        .find(|index| chars.get(*index) == Some(&'\''))
        .map_or(chars.len(), |index| index + 1)
}

/// Replaces items of tests and of the feature `testing` by spaces; returns the names of `mod name;` among them.
fn blank_tests(code: &str) -> (String, Vec<String>) {
    let mark = regex::Regex::new(r"#\[cfg\((?:test|any\(test, feature = +\))\)\]").unwrap();
    let mut kept = String::with_capacity(code.len());
    let mut modules = Vec::new();
    let mut rest = code;
    while let Some(found) = mark.find(rest) {
        let (before, item) = rest.split_at(found.start());
        kept.push_str(before);
        let (item, after) = item.split_at(item_end(item));
        if let Some((_, name)) = item.strip_suffix(';').and_then(|item| item.rsplit_once("mod ")) {
            modules.push(name.trim().to_owned());
        }
        kept.extend(item.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = after;
    }
    kept.push_str(rest);
    (kept, modules)
}

/// The index after the `;` or the last brace of the item at the start of the text.
fn item_end(item: &str) -> usize {
    let mut depth = 0_u32;
    for (at, c) in item.char_indices() {
        match c {
            ';' if depth == 0 => return at + 1,
            '{' => depth += 1,
            '}' if depth <= 1 => return at + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    item.len()
}

#[test]
fn source_blanks_texts_comments_and_tests() {
    let text = "a \"b\\\"c\" 'd' '\\'' r#\"e\"f\"# r#type /* g /* h */ i */ &'j k // l\nm\n#[cfg(test)]\nmod n;\n#[cfg(test)]\nmod o { p {} }\n#[cfg(any(test, feature = \"testing\"))]\nfn r() {}\nq";
    let source = SourceFile::new("src/x.rs", text);
    let words: Vec<&str> = source.code.split_whitespace().collect();
    assert_eq!(words, ["a", "r#type", "&'j", "k", "m", "q"]);
    assert_eq!(source.code.lines().count(), text.lines().count());
    let files = ["src/x.rs", "src/x/n.rs", "src/x/n/deep.rs", "src/x/name.rs"];
    let sources =
        files.map(|path| SourceFile::new(path, if path == "src/x.rs" { text } else { "" }));
    let kept = without_test_files(sources.into());
    let kept: Vec<&str> = kept.iter().map(|source| source.path.as_str()).collect();
    assert_eq!(kept, ["src/x.rs", "src/x/name.rs"]);
}
