//! The files of skills: those that belong to a skill, and their paths in the workspace of a conversation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::skills::Skill;
use crate::skills::index::folder_of;
use turnwheel_tools::workspace::{PackageFile, PackageFiles, WorkspacePath};

/// Maximum number of files of one skill that tools can read.
pub(crate) const SKILL_FILES_MAX: usize = 200;
/// Depth of folders in the folder of a skill.
const DEPTH_MAX: usize = 8;
pub(super) const SKILL_FILE: &str = "SKILL.md";

/// The files of the skill in `folder`, whose own file is `file`. `has_others`: the other files of the
/// folder belong to the skill. Hidden files and links to folders are left out.
pub(crate) fn find_skill_files(
    folder: &Path,
    file: &Path,
    has_others: bool,
) -> Vec<(String, PackageFile)> {
    let size = |path: &Path| std::fs::metadata(folder.join(path)).map_or(0, |it| it.len());
    let found = |path: PathBuf| PackageFile { folder: folder.to_owned(), size: size(&path), path };
    let mut files = vec![(SKILL_FILE.to_owned(), found(file.to_owned()))];
    if has_others {
        let mut others = Vec::new();
        add_files(folder, Path::new(""), DEPTH_MAX, &mut others);
        let others = others.into_iter().filter(|path| path != file).map(|path| {
            let parts = path.components().map(|part| part.as_os_str().to_string_lossy());
            (parts.collect::<Vec<_>>().join("/"), found(path.clone()))
        });
        files.extend(others.take(SKILL_FILES_MAX - 1));
    }
    files
}

fn add_files(root: &Path, below: &Path, depth_left: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(root.join(below)) else { return };
    let mut entries: Vec<_> = entries.filter_map(Result::ok).collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        if found.len() >= SKILL_FILES_MAX || name.to_string_lossy().starts_with('.') {
            continue;
        }
        let path = below.join(&name);
        if root.join(&path).is_file() {
            found.push(path);
        } else if depth_left > 0
            && name != "node_modules"
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
        {
            add_files(root, &path, depth_left - 1, found);
        }
    }
}

/// The files of the skills by their path in the workspace.
///
/// # Errors
/// The name of the skill that cannot be a folder.
pub(super) fn package_files(skills: &[Arc<Skill>]) -> Result<PackageFiles, &str> {
    let mut files = BTreeMap::new();
    for skill in skills {
        let folder = folder_of(&skill.name);
        if skill.name.contains('/') || !is_path(&folder) {
            return Err(&skill.name);
        }
        for (path, file) in &skill.files {
            let path = format!("{folder}/{path}");
            // A file name may have characters that no path of a workspace has.
            if is_path(&path) {
                files.insert(path, file.clone());
            }
        }
    }
    Ok(PackageFiles::new(files))
}

fn is_path(path: &str) -> bool {
    WorkspacePath::parse(path).is_ok_and(|parsed| parsed.as_str() == path)
}

/// The skill whose own file has this path in the workspace, as the model wrote it.
pub(super) fn skill_at<'s>(path: &str, skills: &'s [Arc<Skill>]) -> Option<&'s Arc<Skill>> {
    let path = WorkspacePath::parse(path).ok()?;
    let is_at = |skill: &&Arc<Skill>| {
        path.as_str()
            .strip_prefix(folder_of(&skill.name).as_str())
            .and_then(|rest| rest.strip_prefix('/'))
            == Some(SKILL_FILE)
    };
    skills.iter().find(is_at)
}
