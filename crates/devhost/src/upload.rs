//! Checks of an upload: mistakes with which the local host works, and Azure or the upload tools do
//! not.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use regex::Regex;

use super::config::encoding_problem;
use super::host_json::{FILE, HostJson, HostOverrides, PROFILE, ROUTES};
use super::problem::HostProblem;
use super::root::read_if_present;

const IGNORE_FILE: &str = ".funcignore";
/// Settings with keys, which stay on a developer's machine.
const SECRETS_FILE: &str = "local.settings.json";

/// Depth of the folders below the root that are searched for excluded files. Skills may be nested.
const DEPTH_MAX: usize = 16;

/// Returns a problem for each member of `host.json` with which the app would start in Azure and then
/// fail. `HostConfig` reports a text that is not an object.
pub fn host_json_problems(text: &str) -> Vec<HostProblem> {
    let json = HostJson::read(text, &HostOverrides::default());
    json.map(|json| member_problems(&json)).unwrap_or_default()
}

/// Like [`host_json_problems`], of the file's members or those of app settings.
pub(super) fn member_problems(json: &HostJson) -> Vec<HostProblem> {
    let text_at = |path: &str| json.text(path).unwrap_or_default();
    let mut problems = Vec::new();
    let mut refuse = |path: &str, message: &str| problems.push(json.problem(path, message));
    let path = "customHandler.description.defaultExecutablePath";
    let executable = text_at(path);
    if executable.starts_with(['/', '\\']) || executable.contains(['\\', ':']) {
        refuse(
            path,
            &format!(
                "`defaultExecutablePath` is `{executable}`: write its path in the package, with `/`"
            ),
        );
    }
    if !executable.is_empty() && json.exact_text(path).is_none() {
        refuse(
            path,
            &format!(
                "write the name `{path}` with these capital letters: `func` finds no other, and the upload loses the execute bit"
            ),
        );
    }
    for name in ["workerDirectory", "workingDirectory"] {
        let path = format!("customHandler.description.{name}");
        let folder = text_at(&path);
        if !folder.is_empty() {
            refuse(
                &path,
                &format!(
                    "`{path}` is `{folder}`: leave it empty, or Azure searches for the handler or its agents there"
                ),
            );
        }
    }
    if json.has(ROUTES) {
        refuse(
            ROUTES,
            &format!("`{ROUTES}` is set: the host rejects it beside function.json files"),
        );
    }
    let path = "extensionBundle.version";
    let bundle = text_at(path);
    if json.has("extensionBundle") && !is_bundle_4_range(&bundle) {
        refuse(
            path,
            &format!(
                "`{path}` is `{bundle}`: write \"[4.*, 5.0.0)\", which has the current queue extension"
            ),
        );
    }
    problems.extend(profile_problem(json));
    problems.extend(encoding_problem(json));
    problems
}

fn profile_problem(json: &HostJson) -> Option<HostProblem> {
    let member = json.custom_profile()?;
    let profile = member.text()?;
    Some(member.problem(&format!(
        "`{PROFILE}` is `{profile}`, which adds routes: the host rejects them beside function.json files"
    )))
}

/// True for a range of package versions that begins with a version 4 and ends before 5.
fn is_bundle_4_range(range: &str) -> bool {
    let inner = range.strip_prefix('[').and_then(|range| range.strip_suffix([')', ']']));
    let Some((from, to)) = inner.and_then(|inner| inner.split_once(',')) else { return false };
    let major = |version: &str| version.trim().split('.').next().unwrap_or_default().to_owned();
    let ends = range.ends_with(')') && major(to) == "5" || major(to) == "4";
    major(from) == "4" && ends
}

/// Reports settings with keys that `.funcignore` does not exclude. Both tools exclude them by
/// themselves, a plain zip does not.
pub(super) fn secrets_problem(dir: &Path) -> Option<HostProblem> {
    let is_excluded = read_ignore_rules(dir)
        .is_ok_and(|rules| find_excluding_rule(&rules, SECRETS_FILE).is_some());
    (dir.join(SECRETS_FILE).exists() && !is_excluded).then(|| {
        HostProblem::new(
            SECRETS_FILE,
            "holds keys of your machine: remove it, or name it in .funcignore",
        )
    })
}

/// Finds files that the handler needs and `.funcignore` excludes from the upload. A `.funcignore`
/// that cannot be read is a problem too.
pub(super) fn excluded_file_problems(dir: &Path) -> Vec<HostProblem> {
    let rules = match read_ignore_rules(dir) {
        Ok(rules) => rules,
        Err(problem) => return vec![problem],
    };
    let mut files = Vec::new();
    list_files(dir, "", DEPTH_MAX, &mut files);
    let mut lines = BTreeSet::new();
    let exclusion_problem = |file: &String| {
        let rule =
            find_excluding_rule(&rules, file).or_else(|| find_excluding_func_rule(&rules, file))?;
        // One file for each line is enough.
        lines.insert(rule.line).then(|| {
            let message = format!("leaves {file} out of the upload: remove `{}`", rule.text);
            HostProblem::new(format!("{IGNORE_FILE}:{}", rule.line), message)
        })
    };
    files.iter().filter(|file| is_needed(file)).filter_map(exclusion_problem).collect()
}

/// True for the files that the Functions host and the loaders of the handler read. Other files of a
/// skill are optional: `.funcignore` may exclude them.
fn is_needed(file: &str) -> bool {
    let Some((folder, path)) = file.split_once('/') else {
        return [FILE, "mcp.json"].contains(&file) || !file.contains('.');
    };
    match folder {
        "context" | "prompts" => {
            !path.contains('/') && Path::new(path).extension().is_some_and(|suffix| suffix == "md")
        }
        "skills" => {
            let is_skill = file.ends_with("/SKILL.md") || file.ends_with(".skill.md");
            is_skill && path.split('/').all(|name| name != "node_modules")
        }
        _ => file.ends_with("/function.json") || file.ends_with(".agent.md"),
    }
}

struct IgnoreRule {
    line: usize,
    text: String,
    /// `!`: includes again what an earlier line excludes.
    is_exception: bool,
    matcher: GlobMatcher,
    func_expression: Regex,
}

/// Reads the lines of `.funcignore` as git reads its own file. Without the file there are none.
fn read_ignore_rules(dir: &Path) -> Result<Vec<IgnoreRule>, HostProblem> {
    let text = read_if_present(dir, IGNORE_FILE)?.unwrap_or_default();
    let rule = |(index, line): (usize, &str)| {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let (is_exception, pattern) =
            line.strip_prefix('!').map_or((false, line), |rest| (true, rest));
        let pattern = pattern.trim_end_matches('/');
        // A pattern without an inner slash applies at every depth.
        let anchored = pattern.strip_prefix('/').map_or_else(
            || if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") },
            str::to_owned,
        );
        let glob = GlobBuilder::new(&anchored).literal_separator(true).build().ok()?;
        let matcher = glob.compile_matcher();
        let func_expression = func_expression(line.trim_start_matches('!'))?;
        let text = line.to_owned();
        Some(IgnoreRule { line: index + 1, text, is_exception, matcher, func_expression })
    };
    Ok(text.lines().enumerate().filter_map(rule).collect())
}

/// Returns the line that excludes a file or a folder above it; the last matching line decides.
fn find_excluding_rule<'a>(rules: &'a [IgnoreRule], file: &str) -> Option<&'a IgnoreRule> {
    let folders = file.match_indices('/').map(|(at, _)| file.split_at(at).0);
    folders.chain([file]).find_map(|path| {
        let last = rules.iter().rev().find(|rule| rule.matcher.is_match(path))?;
        (!last.is_exception).then_some(last)
    })
}

/// Returns the expression that `func` (Core Tools 4) makes of a line: it matches the beginning of a
/// path up to the end of a word. `turn` thus also excludes `turn-poison/`, and `*.log` only files
/// of the root.
fn func_expression(line: &str) -> Option<Regex> {
    let pattern = regex::escape(line.trim_start_matches('/'));
    let pattern = pattern.replace(r"\*\*", "(.+)").replace(r"\*", "([^/]+)");
    Regex::new(&format!(r"^{pattern}\b")).ok()
}

/// Returns the line with which `func` excludes a file. An exception of any line includes it.
fn find_excluding_func_rule<'a>(rules: &'a [IgnoreRule], file: &str) -> Option<&'a IgnoreRule> {
    let mut matching = rules.iter().filter(|rule| rule.func_expression.is_match(file));
    let first = matching.clone().find(|rule| !rule.is_exception)?;
    (!matching.any(|rule| rule.is_exception)).then_some(first)
}

/// Lists the files below `dir` by name, as paths with `/`.
fn list_files(dir: &Path, parent: &str, depth_left: usize, files: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(dir.join(parent)) else { return };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    for name in names {
        let path = if parent.is_empty() { name } else { format!("{parent}/{name}") };
        if dir.join(&path).is_dir() {
            if depth_left > 1 {
                list_files(dir, &path, depth_left - 1, files);
            }
        } else {
            files.push(path);
        }
    }
}

/// True for each reading of `.funcignore`, git's and that of `func`, that excludes the file.
#[cfg(any(test, feature = "testing"))]
pub fn exclusions(dir: &Path, file: &str) -> [bool; 2] {
    let rules = read_ignore_rules(dir).unwrap_or_default();
    [find_excluding_rule(&rules, file).is_some(), find_excluding_func_rule(&rules, file).is_some()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn func_reads_lines_by_its_own_expression() {
        for (line, file, git, func) in [
            (".turnwheel/", ".turnwheel/data.db", true, true),
            (".turnwheel/", ".turnwheel/.tmp", true, false),
            (".turnwheel", ".turnwheel/.tmp", true, true),
            ("*.log", "logs/a.log", true, false),
            ("**/*.log", "logs/a.log", true, true),
            ("turn", "turn-poison/function.json", false, true),
            ("turn", "turnwheel", false, false),
            (".git*", ".git/config", true, false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(IGNORE_FILE), line).unwrap();
            assert_eq!(exclusions(dir.path(), file), [git, func], "{line} {file}");
        }
    }

    #[test]
    fn byte_order_mark_is_skipped_and_utf16_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("mcp.json"), "{}").unwrap();
        fs::write(dir.path().join(SECRETS_FILE), "{}").unwrap();
        assert!(excluded_file_problems(dir.path()).is_empty());
        let excludes = "leaves mcp.json out of the upload: remove `mcp.json`";
        for (bytes, expected, is_secrets_file_excluded) in [
            (&b"mcp.json\nlocal.settings.json\n"[..], excludes, true),
            (b"\xef\xbb\xbfmcp.json\nlocal.settings.json\n", excludes, true),
            (b"\xff\xfem\0c\0p\0", "is UTF-16 text", false),
            (b"\xef\xbb\xbf\xef\xbb\xbfmcp.json\n", "begins with two byte order marks", false),
            (b"caf\xe9\n", "is not UTF-8 text", false),
        ] {
            fs::write(dir.path().join(IGNORE_FILE), bytes).unwrap();
            let problems = excluded_file_problems(dir.path());
            let [problem] = problems.as_slice() else { panic!("{bytes:?}: {problems:?}") };
            assert!(problem.file.starts_with(IGNORE_FILE), "{problem}");
            assert!(problem.message.starts_with(expected), "{bytes:?}: {problem}");
            let secrets = secrets_problem(dir.path());
            assert_eq!(secrets.is_none(), is_secrets_file_excluded, "{bytes:?}");
        }
    }
}
