//! The output folder of a package: when it may be replaced, and how.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{AGENTS, BINARY, MARK, Order, PackageError, SAMPLE, io_error};

/// The output folder.
pub(super) struct Out {
    /// Absolute, with links resolved.
    pub(super) path: PathBuf,
    /// True for an earlier package: its staged files are removed.
    is_ours: bool,
}

pub(super) fn open(order: &Order<'_>) -> Result<Out, PackageError> {
    let root = fs::canonicalize(order.root).map_err(io_error("find", order.root))?;
    let path = resolved(&root.join(order.out))?;
    let holds_source = root.starts_with(&path)
        || [root.join("functions"), root.join(order.agents_dir)]
            .iter()
            .any(|source| path.starts_with(source));
    if holds_source {
        // Rejected even with --force: replacing would delete the files to package.
        return Err(PackageError::Overlap(order.out.to_owned()));
    }
    let is_empty = match fs::read_dir(&path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(io_error("open", &path)(error)),
    };
    let is_ours = fs::read_to_string(path.join(".funcignore"))
        .is_ok_and(|text| text.lines().next() == Some(MARK));
    if is_empty || is_ours || order.is_forced {
        Ok(Out { path, is_ours })
    } else {
        Err(PackageError::Foreign(order.out.to_owned()))
    }
}

/// Resolves a path to an absolute one without links, also if its last parts do not exist yet.
fn resolved(path: &Path) -> Result<PathBuf, PackageError> {
    match fs::canonicalize(path) {
        Ok(path) => Ok(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => Ok(resolved(parent)?.join(name)),
                // `missing/..` has no name that could be created.
                _ => Err(io_error("find", path)(error)),
            }
        }
        Err(error) => Err(io_error("open", path)(error)),
    }
}

/// Creates an empty folder on the same disk, so that a move is a rename.
pub(super) fn stage_beside(out: &Path) -> Result<PathBuf, PackageError> {
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let stage = out.with_file_name(format!(".{name}.turnwheel-staging"));
    match fs::remove_dir_all(&stage) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_error("clear", &stage)(error)),
    }
    fs::create_dir_all(&stage).map_err(io_error("create", &stage))?;
    Ok(stage)
}

/// Moves the staged files into the folder. First removes all files of an earlier package, so that a
/// deleted function is not published again. Keeps other files in the folder.
pub(super) fn replace(out: &Out, stage: &Path) -> Result<(), PackageError> {
    fs::create_dir_all(&out.path).map_err(io_error("create", &out.path))?;
    if out.is_ours {
        for path in children(&out.path)? {
            if was_staged(&path) {
                remove(&path)?;
            }
        }
    }
    for path in children(stage)? {
        let target = out.path.join(path.file_name().unwrap_or_default());
        if target.symlink_metadata().is_ok() {
            remove(&target)?;
        }
        fs::rename(&path, &target).map_err(io_error("replace", &target))?;
    }
    Ok(())
}

fn was_staged(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    matches!(name, "host.json" | ".funcignore")
        || [BINARY, AGENTS, SAMPLE].contains(&name)
        || path.join("function.json").is_file()
}

fn remove(path: &Path) -> Result<(), PackageError> {
    let is_folder = path.symlink_metadata().is_ok_and(|facts| facts.is_dir());
    let removed = if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(io_error("replace", path))
}

fn children(folder: &Path) -> Result<Vec<PathBuf>, PackageError> {
    fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(io_error("list", folder))
}
