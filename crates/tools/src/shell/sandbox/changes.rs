//! Files of the sandbox: written before the command, compared after it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::WORKSPACE;
use super::frame::{ChangesHeader, RequestHeader, read_body};
use crate::shell::{RefusalReason, ShellLimits};
use turnwheel_platform::digest::sha256_hex;

/// Refused entries that the result names.
const REFUSED_MAX: usize = 20;

/// Hashes of the files before the command, by path.
pub(super) type FilesBefore = BTreeMap<String, String>;

/// Reads the files of a request and writes them into the workspace.
pub(super) fn unpack(header: &RequestHeader, from: &mut impl Read) -> io::Result<FilesBefore> {
    let mut before = FilesBefore::new();
    fs::create_dir_all(Path::new(WORKSPACE).join(&header.folder))?;
    for (path, size) in &header.files {
        let bytes = read_body(from, *size, header.limits.workspace_bytes)?;
        let at = Path::new(WORKSPACE).join(path);
        if let Some(folder) = at.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(at, &bytes)?;
        before.insert(path.clone(), sha256_hex(&bytes));
    }
    Ok(before)
}

/// The differences from `before`, and the contents of the written files in their order. No process
/// of the command may be left.
///
/// # Errors
/// A folder or file cannot be read, so that a missing file need not be a deleted one.
pub(super) fn collect(
    before: &FilesBefore,
    limits: &ShellLimits,
) -> Result<(ChangesHeader, Vec<Bytes>), String> {
    let mut walk =
        Walk { before, limits, header: ChangesHeader::default(), contents: Vec::new(), bytes: 0 };
    walk.header.deleted.extend(before.keys().cloned());
    let mut open = vec![PathBuf::new()];
    while let Some(folder) = open.pop() {
        let visited = walk.visit_folder(&folder, &mut open);
        visited.map_err(|error| format!("`{}` could not be read: {error}", folder.display()))?;
    }
    Ok((walk.header, walk.contents))
}

struct Walk<'w> {
    before: &'w FilesBefore,
    limits: &'w ShellLimits,
    header: ChangesHeader,
    contents: Vec<Bytes>,
    /// Of `contents`.
    bytes: u64,
}

impl Walk<'_> {
    fn visit_folder(&mut self, folder: &Path, open: &mut Vec<PathBuf>) -> io::Result<()> {
        for entry in fs::read_dir(Path::new(WORKSPACE).join(folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                open.push(path);
                continue;
            }
            let Some(name) = path.to_str().map(str::to_owned) else {
                self.refuse(path.to_string_lossy().into_owned(), RefusalReason::InvalidName);
                continue;
            };
            self.header.deleted.remove(&name);
            if metadata.is_symlink() {
                self.refuse(name, RefusalReason::SymbolicLink);
            } else if !metadata.is_file() {
                self.refuse(name, RefusalReason::SpecialFile);
            } else if metadata.len() > self.limits.file_bytes {
                self.refuse(name, RefusalReason::TooLarge);
            } else {
                self.add_file(name, &entry.path())?;
            }
        }
        Ok(())
    }

    fn add_file(&mut self, name: String, at: &Path) -> io::Result<()> {
        let bytes = fs::read(at)?;
        if self.before.get(&name) == Some(&sha256_hex(&bytes)) {
            return Ok(());
        }
        let total = self.bytes.saturating_add(bytes.len() as u64);
        if total > self.limits.workspace_bytes {
            self.refuse(name, RefusalReason::TooLarge);
            return Ok(());
        }
        self.bytes = total;
        self.header.written.push((name, bytes.len() as u64));
        self.contents.push(bytes.into());
        Ok(())
    }

    fn refuse(&mut self, name: String, reason: RefusalReason) {
        if self.header.refused.len() < REFUSED_MAX {
            self.header.refused.insert(name, reason);
        } else {
            self.header.further_refused += 1;
        }
    }
}
