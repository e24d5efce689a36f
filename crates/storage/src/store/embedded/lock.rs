//! Exclusive lock of the data folder; the operating system releases it when the process dies.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::store::embedded::OpenError;

const LOCK_FILE: &str = "lock";
/// A separate file, because Windows allows no other process to read a locked file.
const NOTE_FILE: &str = "lock-note";

#[derive(Debug)]
pub(super) struct FolderLock {
    note: PathBuf,
    /// The lock lasts as long as this file is open.
    _file: File,
}

impl FolderLock {
    pub(super) fn acquire(folder: &Path) -> Result<Self, OpenError> {
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

/// Creates the folder so that only this user can read it: it holds conversations.
#[cfg(unix)]
fn create_private(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};

    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mode = fs::metadata(folder)?.permissions().mode();
    let is_private = mode.trailing_zeros() >= 6;
    if is_private {
        return Ok(());
    }
    let shown = folder.display();
    if let Err(error) = fs::set_permissions(folder, fs::Permissions::from_mode(0o700)) {
        tracing::warn!(
            %error,
            "data folder is open to other users and cannot be closed: run `chmod 700 {shown}`"
        );
    } else {
        tracing::warn!("data folder was open to other users: its mode is now 0700 folder={shown}");
    }
    Ok(())
}

#[cfg(not(unix))]
fn create_private(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}

#[cfg(test)]
mod tests {
    #[cfg(unix)]
    #[test]
    fn data_folder_that_existed_is_closed_to_other_users() {
        use std::os::unix::fs::PermissionsExt as _;

        use super::*;

        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let lock = FolderLock::acquire(place.path()).unwrap();
        assert_eq!(fs::metadata(place.path()).unwrap().permissions().mode() & 0o777, 0o700);
        drop(lock);
    }
}
