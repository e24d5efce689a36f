//! The conversations that a hosted process has in hand, in a file of its own in the temporary folder
//! of the machine. Its successor ends the leases of a dead process at once instead of after a
//! minute. The file is a hint: the store decides, and losing it costs time only.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use turnwheel_platform::ids::{ConversationKey, WorkerId};
use turnwheel_platform::shutdown::Shutdown;

/// Bytes of a record: a line of JSON with blanks at its end. The longest key needs fewer.
const RECORD_BYTES: usize = 1024;
const EXTENSION: &str = "work";
/// Files that one start reads.
const FILES_MAX: usize = 100;
/// Bytes that are read of a file: more conversations than a process ever has in hand.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The file of this process. Its lock ends with the process.
#[derive(Debug)]
pub(crate) struct WorkFile {
    path: PathBuf,
    slots: Mutex<Slots>,
}

#[derive(Debug)]
struct Slots {
    file: File,
    count: u64,
    free: BTreeSet<u64>,
}

/// A record, which is removed when this is dropped. It stays if the process is ending and cuts its
/// delivery.
#[derive(Debug)]
pub(crate) struct WorkMark {
    file: Arc<WorkFile>,
    slot: u64,
    shutdown: Shutdown,
    is_done: bool,
}

/// The work of a process that has died. Its file is locked by this process.
#[derive(Debug)]
pub(crate) struct DeadProcess {
    /// All its leases have this id and a suffix.
    pub(crate) worker: WorkerId,
    pub(crate) conversations: Vec<ConversationKey>,
    path: PathBuf,
    /// The lock lasts as long as this file is open.
    _file: File,
}

impl DeadProcess {
    /// Removes the file: its conversations are recovered.
    pub(crate) fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl WorkFile {
    /// # Errors
    /// The folder or the file cannot be created: the process works without it.
    pub(crate) fn create(folder: &Path, worker: &WorkerId) -> io::Result<Self> {
        create_private(folder)?;
        let path = folder.join(format!("{worker}.{EXTENSION}"));
        let mut file = File::options().create_new(true).read(true).write(true).open(&path)?;
        if let Err(error) = check_folder(folder, &file) {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        file.try_lock().map_err(io::Error::other)?;
        file.write_all(&record(worker.as_str()).unwrap_or_default())?;
        let slots = Mutex::new(Slots { file, count: 1, free: BTreeSet::new() });
        Ok(Self { path, slots })
    }

    /// Records that this process works on the conversation. Nothing is synced: the record survives
    /// the process, not the machine.
    pub(crate) fn add(
        self: &Arc<Self>,
        key: &ConversationKey,
        shutdown: &Shutdown,
    ) -> Option<WorkMark> {
        let record = record(&serde_json::to_string(key).ok()?)?;
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.free.pop_first().unwrap_or(slots.count);
        slots.count = slots.count.max(slot + 1);
        let written = slots.write(slot, &record);
        drop(slots);
        if let Err(error) = written {
            tracing::debug!(error = %error, "work file not written");
        }
        let (file, shutdown) = (Arc::clone(self), shutdown.clone());
        Some(WorkMark { file, slot, shutdown, is_done: false })
    }

    /// Finds the files of dead processes. `refused`: files that are not ours, each logged once.
    pub(crate) fn find_dead(&self, refused: &mut BTreeSet<PathBuf>) -> Vec<DeadProcess> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path()).filter(|path| {
            *path != self.path && path.extension().is_some_and(|it| it == EXTENSION)
        });
        let paths: Vec<PathBuf> = paths.filter(|path| !refused.contains(path)).collect();
        let mut dead = Vec::new();
        for path in paths.into_iter().take(FILES_MAX) {
            match self.try_take(&path) {
                Ok(found) => dead.extend(found),
                // Another process has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(error = %error, file = %path.display(), "work file left alone");
                    refused.insert(path);
                }
            }
        }
        dead
    }

    /// `None`: its process lives, or another one recovers it.
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
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let worker = WorkerId::new(lines.next().unwrap_or_default());
        let conversations = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
        Ok(Some(DeadProcess { worker, conversations, path: path.to_owned(), _file: file }))
    }
}

impl Drop for WorkFile {
    fn drop(&mut self) {
        let slots = self.slots.get_mut().unwrap_or_else(PoisonError::into_inner);
        if slots.has_no_record() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl WorkMark {
    /// Records that the delivery has ended.
    pub(crate) fn remove(mut self) {
        self.is_done = true;
    }
}

impl Drop for WorkMark {
    fn drop(&mut self) {
        if !self.is_done && self.shutdown.is_begun() {
            return;
        }
        let mut slots = self.file.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = slots.write(self.slot, &record("").unwrap_or_default());
        slots.free.insert(self.slot);
    }
}

impl Slots {
    /// True if the file has only the first line, which names the worker.
    fn has_no_record(&self) -> bool {
        self.free.len() as u64 + 1 == self.count
    }

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

/// # Errors
/// Other users can write into the folder: they could name conversations.
#[cfg(unix)]
fn check_folder(folder: &Path, file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;

    let metadata = fs::symlink_metadata(folder)?;
    let is_private = metadata.permissions().mode() & 0o022 == 0;
    if metadata.is_dir() && is_private && is_own(&metadata, &file.metadata()?) {
        return Ok(());
    }
    Err(io::Error::other("other users can write into the folder"))
}

#[cfg(not(unix))]
fn check_folder(_folder: &Path, _file: &File) -> io::Result<()> {
    Ok(())
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
pub(crate) mod testing {
    use super::*;
    use turnwheel_platform::ids::{ConversationId, TenantId, UserId};

    pub(crate) fn key(id: &str) -> ConversationKey {
        ConversationKey {
            tenant: TenantId::new("t"),
            user: UserId::new("u"),
            conversation_id: ConversationId::new(id),
        }
    }

    pub(crate) fn create(folder: &Path, worker: &str) -> Arc<WorkFile> {
        Arc::new(WorkFile::create(folder, &WorkerId::new(worker)).unwrap())
    }

    /// A process that is killed removes neither its file nor its marks.
    pub(crate) fn kill(file: &WorkFile, copy: &Path) {
        fs::copy(&file.path, copy).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::testing::{create, key, kill};
    use super::*;
    use turnwheel_platform::ids::{ConversationId, TenantId, UserId};
    use turnwheel_platform::shutdown::StopTimes;

    fn find(file: &WorkFile) -> Vec<DeadProcess> {
        file.find_dead(&mut BTreeSet::new())
    }

    #[test]
    fn work_of_a_dead_process_is_found_until_it_is_recovered() {
        let folder = tempfile::tempdir().unwrap();
        let dying = create(folder.path(), "w1");
        let add = |id| dying.add(&key(id), &Shutdown::default()).unwrap();
        let (first, second) = (add("a"), add("b"));
        drop(first);
        let third = add("c");
        let successor = create(folder.path(), "w2");
        assert!(find(&successor).is_empty(), "the process lives");

        kill(&dying, &folder.path().join("copy.work"));
        let found = find(&successor);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].worker, WorkerId::new("w1"));
        assert_eq!(found[0].conversations, [key("c"), key("b")]);
        assert!(find(&create(folder.path(), "w3")).is_empty(), "this process recovers them");
        // It dies before it has ended.
        drop(found);
        let found = find(&successor);
        assert_eq!(found.len(), 1);
        found.into_iter().for_each(DeadProcess::remove);
        assert!(find(&successor).is_empty());
        drop((second, third, dying));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a clean end removes the file");
    }

    #[test]
    fn work_that_is_cut_at_the_end_of_a_process_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let (ending, shutdown) = (create(folder.path(), "w1"), Shutdown::default());
        let add = |id| ending.add(&key(id), &shutdown).unwrap();
        let (before, done, cut) = (add("before"), add("done"), add("cut"));
        drop(before);
        let second = Duration::from_secs(1);
        shutdown.begin(StopTimes { repeatable: second, writes: second });
        done.remove();
        drop((cut, ending));
        let found = find(&create(folder.path(), "w2"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].conversations, [key("cut")]);
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
        let mut refused = BTreeSet::new();
        assert!(own.find_dead(&mut refused).is_empty());
        assert_eq!(refused.len(), 3, "each is logged once: {refused:?}");
        assert!(target.exists() && folder.path().join("bytes.work").exists());
        fs::write(folder.path().join("torn.work"), "w9  \n{\"tenant\":\"t\",\"us").unwrap();
        let found = own.find_dead(&mut refused);
        assert_eq!(found.len(), 1);
        assert!(found[0].worker == WorkerId::new("w9") && found[0].conversations.is_empty());
        let longest = "x".repeat(255);
        let long = ConversationKey {
            tenant: TenantId::new(longest.as_str()),
            user: UserId::new(longest.as_str()),
            conversation_id: ConversationId::new(longest.as_str()),
        };
        assert!(own.add(&long, &Shutdown::default()).is_some());
    }

    #[cfg(unix)]
    #[test]
    fn files_and_folders_of_other_users_are_refused() {
        use std::os::unix::fs::{PermissionsExt as _, chown};

        let folder = tempfile::tempdir().unwrap();
        let own = create(folder.path(), "w1");
        let foreign = folder.path().join("foreign.work");
        fs::write(&foreign, "w9").unwrap();
        // Only the superuser can give files away.
        if chown(&foreign, Some(12_345), None).is_ok() {
            assert!(find(&own).is_empty());
            chown(folder.path(), Some(12_345), None).unwrap();
            assert!(WorkFile::create(folder.path(), &WorkerId::new("w2")).is_err());
        }
        let open = tempfile::tempdir().unwrap();
        fs::set_permissions(open.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(WorkFile::create(open.path(), &WorkerId::new("w1")).is_err());
        assert_eq!(fs::read_dir(open.path()).unwrap().count(), 0);
    }
}
