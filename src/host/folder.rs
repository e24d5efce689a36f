//! The data folder of `dev`: one process at a time, and where that one answers.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::HostError;

const LOCK: &str = "dev.lock";
/// Apart from the lock: Windows lets nobody read a locked file.
const ADDRESS: &str = "dev.address";

/// Held until it is dropped or the process dies.
#[derive(Debug)]
pub struct DataFolder {
    folder: PathBuf,
    _lock: File,
}

impl DataFolder {
    /// Creates the folder where it does not exist.
    ///
    /// # Errors
    /// Another process holds it, or it cannot be written: show it and exit.
    pub fn hold(folder: &Path) -> Result<Self, HostError> {
        let failed = |source| HostError::Folder { folder: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let lock = open(folder).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(source)) => return Err(failed(source)),
            Err(TryLockError::WouldBlock) => {
                let address = announced(folder);
                return Err(HostError::FolderTaken { folder: folder.to_owned(), address });
            }
        }
        // Whoever held it before no longer answers there.
        match std::fs::remove_file(folder.join(ADDRESS)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
        Ok(Self { folder: folder.to_owned(), _lock: lock })
    }

    /// Tells others where this process answers: `http://127.0.0.1:7071`.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn announce(&self, address: &str) -> Result<(), HostError> {
        std::fs::write(self.folder.join(ADDRESS), address)
            .map_err(|source| HostError::Folder { folder: self.folder.clone(), source })
    }

    /// Where the `dev` that holds the folder answers; `None`: none does.
    pub fn running(folder: &Path) -> Option<String> {
        // Without creating anything: this only looks.
        let lock = File::open(folder.join(LOCK)).ok()?;
        match lock.try_lock_shared() {
            Err(TryLockError::WouldBlock) => announced(folder),
            Ok(()) | Err(TryLockError::Error(_)) => None,
        }
    }
}

fn open(folder: &Path) -> io::Result<File> {
    File::options().create(true).write(true).truncate(false).open(folder.join(LOCK))
}

fn announced(folder: &Path) -> Option<String> {
    let address = std::fs::read_to_string(folder.join(ADDRESS)).ok()?;
    Some(address.trim().to_owned()).filter(|address| !address.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_dev_is_told_where_the_first_one_answers() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("data");
        assert_eq!(DataFolder::running(&folder), None);

        let first = DataFolder::hold(&folder).unwrap();
        first.announce("http://127.0.0.1:7071").unwrap();
        let refused = DataFolder::hold(&folder).unwrap_err().to_string();
        assert!(refused.contains("at http://127.0.0.1:7071: stop it"), "{refused}");
        assert!(refused.contains("--data DIR"), "{refused}");
        assert_eq!(DataFolder::running(&folder).as_deref(), Some("http://127.0.0.1:7071"));

        drop(first);
        assert_eq!(DataFolder::running(&folder), None);
        let _second = DataFolder::hold(&folder).unwrap();
        assert_eq!(DataFolder::running(&folder), None, "the first one's address is stale");
    }
}
