//! Fuzz test of paths and glob patterns from a model.

use super::find::PathGlob;
use super::{FolderPath, WorkspacePath};
use turnwheel_test_support::fuzz::check;

fn workspace_path(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(path) = WorkspacePath::parse(text) {
        let shown = path.as_str();
        assert!(!shown.is_empty() && shown.len() <= text.len() && !shown.starts_with('/'));
        assert!(shown.split('/').all(|part| !["", ".", ".."].contains(&part)), "{shown:?}");
        assert!(!shown.chars().any(|letter| letter.is_control() || letter == '\\'), "{shown:?}");
        assert_eq!(WorkspacePath::parse(shown).as_ref(), Ok(&path), "a parsed path round-trips");
    }
    if let Ok(folder) = FolderPath::parse(text) {
        assert!(folder.as_str().split('/').all(|part| part != ".."), "{folder}");
    }
    if let Ok(glob) = PathGlob::new(text) {
        glob.is_match("notes/2026/a.md");
        glob.is_match(&"a/".repeat(200));
    }
}

#[test]
fn fuzz_workspace_path() {
    check("workspace_path", workspace_path);
}
