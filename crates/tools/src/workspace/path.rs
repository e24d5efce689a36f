//! Paths of files and folders in a workspace: relative, with `/` as separator, without `..` and
//! deceptive characters.

use std::fmt;

use turnwheel_conversation::workspace::is_deceptive;

/// Folder that is reserved for Turnwheel. Tools can read its files and cannot write them.
pub(crate) const RESERVED_FOLDER: &str = ".turnwheel";

/// Folders of an operating system, which a workspace does not have. A path into one is refused, so
/// that the model learns this from the error.
const SYSTEM_FOLDERS: [&str; 6] = ["/etc", "/bin", "/sbin", "/usr/bin", "/System", "~/.ssh"];

const PATH_BYTES_MAX: usize = 1024;
const PART_BYTES_MAX: usize = 255;

/// A file's path. `/a`, `./a` and `a` are the same file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspacePath(String);

/// A folder's path; empty for the workspace itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderPath(String);

impl WorkspacePath {
    /// # Errors
    /// The path is invalid. Return the text to the model; it contains a valid example.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.ends_with('/') && text.len() > 1 {
            return Err(path_error(text, "it names a folder: give the path of a file"));
        }
        let path = normalize_path(text)?;
        if path.is_empty() {
            return Err(path_error(text, "it names no file"));
        }
        Ok(Self(path))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Every parent folder, nearest first.
    pub(super) fn parent_folders(&self) -> impl Iterator<Item = &str> {
        std::iter::successors(Some(self.0.as_str()), |path| path.rsplit_once('/').map(|(up, _)| up))
            .skip(1)
    }

    pub(super) fn is_reserved(&self) -> bool {
        is_reserved(&self.0)
    }
}

impl FolderPath {
    /// # Errors
    /// The path is invalid. Return the text to the model; it contains a valid example.
    pub fn parse(text: &str) -> Result<Self, String> {
        normalize_path(text.strip_suffix('/').unwrap_or(text)).map(Self)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The rest of a path below this folder; `None` if the path is not in this folder.
    pub(super) fn strip_folder<'a>(&self, path: &'a str) -> Option<&'a str> {
        if self.0.is_empty() {
            return Some(path);
        }
        path.strip_prefix(self.0.as_str())?.strip_prefix('/')
    }
}

impl fmt::Display for WorkspacePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Writes the workspace itself as `.`.
impl fmt::Display for FolderPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "." } else { &self.0 })
    }
}

/// True for a file of the reserved folder. The path is valid.
pub fn is_reserved(path: &str) -> bool {
    path.strip_prefix(RESERVED_FOLDER).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn normalize_path(text: &str) -> Result<String, String> {
    if text.len() > PATH_BYTES_MAX {
        return Err(format!(
            "Invalid input: the path is {} bytes long: at most {PATH_BYTES_MAX} are allowed.",
            text.len()
        ));
    }
    if text.contains('\\') {
        return Err(path_error(text, "separate its parts by `/`, not by `\\`"));
    }
    if text.chars().any(|letter| letter.is_control() || is_deceptive(letter)) {
        return Err(path_error(text, "it holds control characters"));
    }
    if is_below_system_folder(text) {
        return Err(path_error(
            text,
            "it names a folder of the system, which the workspace does not have",
        ));
    }
    let relative = text.strip_prefix('/').unwrap_or(text);
    let mut parts = Vec::new();
    for part in relative.split('/') {
        match part {
            "." => {}
            "" if relative.is_empty() => {}
            "" => return Err(path_error(text, "it has an empty part (`//`)")),
            ".." => {
                return Err(path_error(
                    text,
                    "`..` is not allowed: start from the workspace's root",
                ));
            }
            part if part.len() > PART_BYTES_MAX => {
                return Err(path_error(text, "each part may have at most 255 bytes"));
            }
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

fn is_below_system_folder(text: &str) -> bool {
    SYSTEM_FOLDERS.iter().any(|folder| {
        text.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

fn path_error(text: &str, why: &str) -> String {
    format!(
        "Invalid input: the path {text:?} is not usable: {why}. Paths look like `notes/today.md`."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_paths_are_equal() {
        for text in ["a/b.txt", "/a/b.txt", "./a/b.txt", "a/./b.txt", "/./a/b.txt"] {
            assert_eq!(WorkspacePath::parse(text).unwrap().as_str(), "a/b.txt", "{text}");
        }
        for text in ["", ".", "/", "./"] {
            assert_eq!(FolderPath::parse(text).unwrap().as_str(), "", "{text}");
        }
        assert_eq!(FolderPath::parse("/a/b/").unwrap().as_str(), "a/b");
        assert_eq!(WorkspacePath::parse("über/日本 語.txt").unwrap().as_str(), "über/日本 語.txt");
    }

    #[test]
    fn unsafe_paths_are_rejected() {
        let long = "x".repeat(256);
        let longer = "x/".repeat(600);
        for text in [
            "",
            ".",
            "/",
            "..",
            "../a",
            "a/../b",
            "/..",
            "a/..",
            "a\\b",
            "C:\\a",
            "/etc/passwd",
            "/etc",
            "/bin/sh",
            "/sbin/init",
            "/usr/bin/env",
            "/System/Library",
            "~/.ssh/id_ed25519",
            "a\0b",
            "a\nb",
            "a//b",
            "//a",
            "a/",
            "a\u{202e}txt.exe",
            "a\u{7f}",
            "a\u{85}b",
            &long,
            &longer,
        ] {
            let problem = WorkspacePath::parse(text).unwrap_err();
            assert!(problem.starts_with("Invalid input: the path "), "{text:?}: {problem}");
            assert!(
                !problem.contains(['\0', '\u{202e}']),
                "the message escapes special characters: {problem:?}"
            );
        }
        assert!(FolderPath::parse("a/../..").is_err());
    }

    #[test]
    fn input_paths_are_valid_workspace_paths() {
        use turnwheel_conversation::content::FileBlock;
        use turnwheel_conversation::unknown_members::Extra;
        use turnwheel_platform::ids::{ArtifactId, EffectId};
        let long = "ä".repeat(500);
        for name in
            ["../../etc/passwd", "a\\b.txt", "..", ".", "", "/", "x\u{202e}fdp.exe", "a\nb", &long]
        {
            let path = turnwheel_conversation::workspace::input_path(&FileBlock {
                artifact_id: ArtifactId::from_hash(&EffectId::new("up_1"), &"0123abcd".repeat(8)),
                path: Some(name.to_owned()),
                mime_type: None,
                size: None,
                extra: Extra::new(),
            });
            assert_eq!(WorkspacePath::parse(&path).unwrap().as_str(), path, "{name:?}");
            assert_eq!(path.split('/').count(), 4, "{name:?}");
        }
    }

    #[test]
    fn unusual_safe_names_are_accepted() {
        for text in [
            "...",
            "a..b",
            "..a",
            "~",
            "$HOME/x",
            "etc/passwd",
            "usr/lib/x",
            "binary/x",
            "a?b#c",
            "CON",
            " ",
        ] {
            assert_eq!(WorkspacePath::parse(text).unwrap().as_str(), text);
        }
    }
}
