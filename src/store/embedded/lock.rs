//! One data folder, one process: an exclusive lock that the operating system takes back when the process dies.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::store::embedded::OpenError;

const LOCK_FILE: &str = "lock";
/// Beside the lock and not in it: Windows lets nobody read a locked file.
const NOTE_FILE: &str = "lock-note";

#[derive(Debug)]
pub(super) struct FolderLock {
    note: PathBuf,
    /// Held as long as it is open.
    _file: File,
}

impl FolderLock {
    pub(super) fn take(folder: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Folder { folder: folder.to_owned(), source };
        create_private(folder).map_err(failed)?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join(LOCK_FILE))
            .map_err(failed)?;
        let note = folder.join(NOTE_FILE);
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let note = fs::read_to_string(&note).unwrap_or_default();
                let note = note.trim().to_owned();
                return Err(OpenError::InUse { folder: folder.to_owned(), note });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        match fs::remove_file(&note) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(Self { note, _file: file })
    }

    pub(super) fn set_note(&self, text: &str) -> io::Result<()> {
        fs::write(&self.note, text)
    }
}

/// People's conversations: for this user alone.
#[cfg(unix)]
fn create_private(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;

    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn create_private(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}
