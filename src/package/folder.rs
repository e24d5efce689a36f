//! The output folder of a package: when it may be replaced, and how.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{
    AGENTS, BINARY, DATA_DIR, PACKAGE_MARK, PackageError, PackageOptions, RESOURCES,
    SETTINGS_SAMPLE, io_error, read_text,
};

/// The output folder.
pub(super) struct OutputFolder {
    /// Absolute, with links resolved.
    pub(super) path: PathBuf,
    /// True for an earlier package: its staged files are removed.
    is_earlier_package: bool,
}

pub(super) fn open_output(options: &PackageOptions<'_>) -> Result<OutputFolder, PackageError> {
    let root = fs::canonicalize(options.root).map_err(io_error("find", options.root))?;
    let path = resolve_path(&root.join(options.out))?;
    let contains_source = root.starts_with(&path)
        || [root.join("functions"), root.join(options.agents_dir)]
            .iter()
            .any(|source| path.starts_with(source));
    if contains_source {
        // Rejected even with --force: replacing would delete the files to package.
        return Err(PackageError::Overlap(options.out.to_owned()));
    }
    let is_empty = match fs::read_dir(&path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(io_error("open", &path)(error)),
    };
    let is_earlier_package = is_package(&path);
    if is_empty || is_earlier_package || options.is_forced {
        Ok(OutputFolder { path, is_earlier_package })
    } else {
        Err(PackageError::NotAPackage(options.out.to_owned()))
    }
}

/// True for a folder that `package` wrote.
pub(crate) fn is_package(dir: &Path) -> bool {
    let text = read_text(&dir.join(".funcignore")).ok().flatten();
    text.is_some_and(|text| text.lines().next() == Some(PACKAGE_MARK))
}

/// Resolves a path to an absolute one without links, also if its last parts do not exist yet.
fn resolve_path(path: &Path) -> Result<PathBuf, PackageError> {
    match fs::canonicalize(path) {
        Ok(path) => Ok(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => Ok(resolve_path(parent)?.join(name)),
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
/// deleted function is not published again. Keeps other files in the folder. Creates the data folder:
/// the Functions host restarts when a file is deleted below a folder that came after its start.
pub(super) fn replace(out: &OutputFolder, stage: &Path) -> Result<(), PackageError> {
    fs::create_dir_all(&out.path).map_err(io_error("create", &out.path))?;
    if out.is_earlier_package {
        for path in children(&out.path)? {
            if is_staged_file(&path) {
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
    let data = out.path.join(DATA_DIR);
    fs::create_dir_all(&data).map_err(io_error("create", &data))
}

fn is_staged_file(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    matches!(name, "host.json" | ".funcignore")
        || [BINARY, AGENTS, SETTINGS_SAMPLE].contains(&name)
        || RESOURCES.contains(&name)
        || (name != DATA_DIR && path.join("function.json").is_file())
}

fn remove(path: &Path) -> Result<(), PackageError> {
    let is_folder = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    let removed = if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(io_error("replace", path))
}

fn children(folder: &Path) -> Result<Vec<PathBuf>, PackageError> {
    fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(io_error("list", folder))
}
