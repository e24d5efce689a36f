//! The conversations that a hosted process has in hand, in a file of its own in the temporary folder
//! of the machine. Its successor ends the leases of a dead process at once instead of after a
//! minute. The file is a hint: the store decides, and losing it costs time only.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::ids::{ConversationKey, WorkerId};

/// Bytes of a record: a line of JSON with blanks at its end. The longest key needs fewer.
const RECORD_BYTES: usize = 1024;
const EXTENSION: &str = "work";
/// Files that one start reads.
const FILES_MAX: usize = 100;
/// Bytes that are read of a file: more conversations than a process ever has in hand.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The file of this process. Its lock ends with the process.
#[derive(Debug)]
pub(super) struct WorkFile {
    path: PathBuf,
    slots: Mutex<Slots>,
}

#[derive(Debug)]
struct Slots {
    file: File,
    count: u64,
    free: BTreeSet<u64>,
}

/// A record, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct WorkMark {
    file: Arc<WorkFile>,
    slot: u64,
}

/// The work of a process that has died.
#[derive(Debug, PartialEq)]
pub(super) struct DeadProcess {
    /// All its leases have this id and a suffix.
    pub(super) worker: WorkerId,
    pub(super) conversations: Vec<ConversationKey>,
}

impl WorkFile {
    /// # Errors
    /// The folder or the file cannot be created: the process works without it.
    pub(super) fn create(folder: &Path, worker: &WorkerId) -> io::Result<Self> {
        create_private(folder)?;
        let path = folder.join(format!("{worker}.{EXTENSION}"));
        let mut file = File::options().create_new(true).read(true).write(true).open(&path)?;
        file.try_lock().map_err(io::Error::other)?;
        file.write_all(&record(worker.as_str()).unwrap_or_default())?;
        let slots = Mutex::new(Slots { file, count: 1, free: BTreeSet::new() });
        Ok(Self { path, slots })
    }

    /// Records that this process works on the conversation. Nothing is synced: the record survives
    /// the process, not the machine.
    pub(super) fn add(self: &Arc<Self>, key: &ConversationKey) -> Option<WorkMark> {
        let record = record(&serde_json::to_string(key).ok()?)?;
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.free.pop_first().unwrap_or(slots.count);
        slots.count = slots.count.max(slot + 1);
        let written = slots.write(slot, &record);
        drop(slots);
        if let Err(error) = written {
            tracing::debug!(error = %error, "work file not written");
        }
        Some(WorkMark { file: Arc::clone(self), slot })
    }

    /// Takes over the files of dead processes, and removes them.
    pub(super) fn take_dead(&self) -> Vec<DeadProcess> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path()).filter(|path| {
            *path != self.path && path.extension().is_some_and(|it| it == EXTENSION)
        });
        paths.take(FILES_MAX).filter_map(|path| self.take(&path)).collect()
    }

    /// `None`: its process lives, or it is no file of ours.
    fn take(&self, path: &Path) -> Option<DeadProcess> {
        match self.try_take(path) {
            Ok(found) => found,
            // Another process has just taken it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(error = %error, file = %path.display(), "work file left alone");
                None
            }
        }
    }

    fn try_take(&self, path: &Path) -> io::Result<Option<DeadProcess>> {
        let metadata = fs::symlink_metadata(path)?;
        if !metadata.is_file() || !is_own(&metadata, &fs::metadata(&self.path)?) {
            return Err(io::Error::other("no file of this user"));
        }
        let file = File::options().read(true).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let mut text = String::new();
        (&file).take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        fs::remove_file(path)?;
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let Some(worker) = lines.next() else { return Ok(None) };
        let conversations = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
        Ok(Some(DeadProcess { worker: WorkerId::new(worker), conversations }))
    }
}

impl Drop for WorkFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for WorkMark {
    fn drop(&mut self) {
        let mut slots = self.file.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = slots.write(self.slot, &record("").unwrap_or_default());
        slots.free.insert(self.slot);
    }
}

impl Slots {
    fn write(&mut self, slot: u64, record: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(slot * RECORD_BYTES as u64))?;
        self.file.write_all(record)
    }
}

/// A line of the file. `None`: the text is too long.
fn record(text: &str) -> Option<Vec<u8>> {
    let blanks = (RECORD_BYTES - 1).checked_sub(text.len())?;
    Some(format!("{text}{}\n", " ".repeat(blanks)).into_bytes())
}

#[cfg(unix)]
fn create_private(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;

    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn create_private(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}

#[cfg(unix)]
fn is_own(other: &fs::Metadata, own: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;

    other.uid() == own.uid()
}

#[cfg(not(unix))]
fn is_own(_other: &fs::Metadata, _own: &fs::Metadata) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ConversationId, TenantId, UserId};

    fn key(id: &str) -> ConversationKey {
        ConversationKey {
            tenant: TenantId::new("t"),
            user: UserId::new("u"),
            conversation_id: ConversationId::new(id),
        }
    }

    fn create(folder: &Path, worker: &str) -> Arc<WorkFile> {
        Arc::new(WorkFile::create(folder, &WorkerId::new(worker)).unwrap())
    }

    /// A process that is killed removes neither its file nor its marks.
    fn kill(file: &Path, copy: &Path) {
        fs::copy(file, copy).unwrap();
    }

    #[test]
    fn work_of_a_dead_process_is_found_once() {
        let folder = tempfile::tempdir().unwrap();
        let dying = create(folder.path(), "w1");
        let (first, second) = (dying.add(&key("a")), dying.add(&key("b")));
        drop(first);
        let third = dying.add(&key("c"));
        let successor = create(folder.path(), "w2");
        assert_eq!(successor.take_dead(), [], "the process lives");

        kill(&dying.path, &folder.path().join("copy.work"));
        let found = successor.take_dead();
        let expected = vec![key("c"), key("b")];
        assert_eq!(found, [DeadProcess { worker: WorkerId::new("w1"), conversations: expected }]);
        assert_eq!(successor.take_dead(), []);
        drop((second, third, dying));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a clean end removes the file");
    }

    #[cfg(unix)]
    #[test]
    fn odd_files_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let own = create(folder.path(), "w1");
        let target = folder.path().join("target");
        fs::write(&target, "w9\n{}").unwrap();
        std::os::unix::fs::symlink(&target, folder.path().join("link.work")).unwrap();
        fs::write(folder.path().join("other.txt"), "w9").unwrap();
        fs::write(folder.path().join("bytes.work"), [0xff, 0xfe]).unwrap();
        fs::create_dir(folder.path().join("folder.work")).unwrap();
        assert_eq!(own.take_dead(), []);
        assert!(target.exists() && folder.path().join("bytes.work").exists());
        fs::write(folder.path().join("torn.work"), "w9  \n{\"tenant\":\"t\",\"us").unwrap();
        let found = own.take_dead();
        assert_eq!(found, [DeadProcess { worker: WorkerId::new("w9"), conversations: Vec::new() }]);
        let longest = "x".repeat(255);
        let long = ConversationKey {
            tenant: TenantId::new(longest.as_str()),
            user: UserId::new(longest.as_str()),
            conversation_id: ConversationId::new(longest.as_str()),
        };
        assert!(own.add(&long).is_some());
    }
}
