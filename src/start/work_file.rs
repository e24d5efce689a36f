//! The conversations that a hosted process has in hand, in a file of its own in the temporary folder
//! of the machine. Its successor ends the leases of a dead process at once instead of after a
//! minute. The file is a hint: the store decides, and losing it costs time only.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use turnwheel_platform::clock::{Clock, Timestamp};
use turnwheel_platform::ids::{ConversationKey, WorkerId};
use turnwheel_platform::shutdown::Shutdown;
use turnwheel_record::lease::LEASE_DURATION;
use turnwheel_storage::store::TAKE_OVER_DELAY;

/// Bytes of a record: a line with the end of its mark, the conversation as JSON, and blanks. The
/// longest key needs fewer.
const RECORD_BYTES: usize = 1024;
/// Bytes of the end of a mark, in milliseconds: the first of its record. Blanks while the turn runs.
const END_BYTES: usize = 20;
const EXTENSION: &str = "work";
/// Extension of a file that its process has not locked yet.
const NEW_EXTENSION: &str = "new";
/// Age from which the process of such a file has died.
const NEW_FILE_AGE_MAX: Duration = Duration::from_mins(1);
/// Files that one start reads.
const FILES_MAX: usize = 100;
/// Bytes that are read of a file: all marks of ended turns, and more running turns than a process ever
/// has.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Marks of ended turns that a file has. A further one replaces the mark that ends first.
const ENDED_MARKS_MAX: usize = 4_096;
/// Time after a turn until its mark ends. The Functions host writes the wake-up messages of a turn and
/// deletes its message after the response.
const RESPONSE_TIME: Duration = Duration::from_secs(10);
/// The same for a turn that failed: its lease may be in the head, where it ends by itself after this
/// time.
const LEASE_TIME: Duration = LEASE_DURATION.saturating_add(TAKE_OVER_DELAY);
/// Time from the death of a process to the search of the next one. Later the recovery sweep has woken
/// the conversations.
const START_TIME_MAX: Duration = Duration::from_mins(1);

/// The file of this process. Its lock ends with the process.
#[derive(Debug)]
pub(crate) struct WorkFile {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    slots: Mutex<Slots>,
}

#[derive(Debug)]
struct Slots {
    file: File,
    /// Records of the file. The first one names the worker.
    count: u64,
    /// Marks of ended turns: their ends and records. Each stays in the file until another mark needs its
    /// record.
    ended: BTreeMap<(Timestamp, u64), Arc<ConversationKey>>,
    /// The newest of them for each conversation.
    newest: HashMap<Arc<ConversationKey>, (Timestamp, u64)>,
}

/// The record of a turn. When this is dropped, the record stays for a while. It stays as that of a
/// running turn if the process is ending and cuts its delivery.
#[derive(Debug)]
pub(crate) struct WorkMark {
    file: Arc<WorkFile>,
    slot: u64,
    key: Arc<ConversationKey>,
    /// End of the mark of the turn before, whose record this is.
    earlier_end: Option<Timestamp>,
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
    pub(crate) fn create(
        folder: &Path,
        worker: &WorkerId,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        create_private(folder)?;
        let new = folder.join(format!("{worker}.{NEW_EXTENSION}"));
        let path = folder.join(format!("{worker}.{EXTENSION}"));
        let file = File::options().create_new(true).read(true).write(true).open(&new)?;
        let created = check_folder(folder, &file)
            .and_then(|()| file.try_lock().map_err(io::Error::other))
            .and_then(|()| (&file).write_all(&record(worker.as_str()).unwrap_or_default()))
            // The lock is that of the open file. Other processes take the files of this name that have
            // no lock.
            .and_then(|()| fs::rename(&new, &path));
        if let Err(error) = created {
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        remove_leftovers(folder, &file);
        let (ended, newest) = (BTreeMap::new(), HashMap::new());
        let slots = Mutex::new(Slots { file, count: 1, ended, newest });
        Ok(Self { path, clock, slots })
    }

    /// Records that this process works on the conversation. Nothing is synced: the record survives
    /// the process, not the machine.
    pub(crate) fn add(
        self: &Arc<Self>,
        key: &ConversationKey,
        shutdown: &Shutdown,
    ) -> Option<WorkMark> {
        let json = serde_json::to_string(key).ok()?;
        let record = record(&format!("{:END_BYTES$}{json}", ""))?;
        let mut slots = self.lock_slots();
        let (slot, earlier_end) = slots.take(key, self.clock.now());
        let written = slots.write(slot, &record);
        drop(slots);
        if let Err(error) = written {
            tracing::debug!(error = %error, "work file not written");
        }
        let (file, key, shutdown) = (Arc::clone(self), Arc::new(key.clone()), shutdown.clone());
        Some(WorkMark { file, slot, key, earlier_end, shutdown, is_done: false })
    }

    fn lock_slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut lines = text.lines();
        let worker = WorkerId::new(lines.next().unwrap_or_default().trim());
        let conversations = find_marked(lines, self.clock.now());
        Ok(Some(DeadProcess { worker, conversations, path: path.to_owned(), _file: file }))
    }
}

impl Drop for WorkFile {
    fn drop(&mut self) {
        let now = self.clock.now();
        let slots = self.slots.get_mut().unwrap_or_else(PoisonError::into_inner);
        if slots.has_no_mark(now) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl WorkMark {
    /// Records that the turn has ended and has no lease.
    pub(crate) fn end(mut self) {
        self.is_done = true;
    }
}

impl Drop for WorkMark {
    fn drop(&mut self) {
        if !self.is_done && self.shutdown.is_begun() {
            return;
        }
        let time = if self.is_done { RESPONSE_TIME } else { LEASE_TIME };
        let end = self.file.clock.now().plus(time);
        let end = self.earlier_end.map_or(end, |earlier| earlier.max(end));
        self.file.lock_slots().end_mark(self.slot, &self.key, end);
    }
}

impl Slots {
    /// True if no turn runs and all marks of ended ones are over.
    fn has_no_mark(&self, now: Timestamp) -> bool {
        let is_running = self.ended.len() as u64 + 1 < self.count;
        !is_running && self.ended.last_key_value().is_none_or(|((end, _), _)| *end <= now)
    }

    /// Takes a record for a turn: that of the conversation, one whose mark is over, or a further one.
    /// Returns it with the end of the conversation's former mark.
    fn take(&mut self, key: &ConversationKey, now: Timestamp) -> (u64, Option<Timestamp>) {
        if let Some(mark) = self.newest.remove(key) {
            self.ended.remove(&mark);
            return (mark.1, Some(mark.0));
        }
        let is_full = self.ended.len() >= ENDED_MARKS_MAX;
        if let Some(first) = self.ended.first_entry()
            && (is_full || first.key().0 <= now)
        {
            let (mark, key) = first.remove_entry();
            if self.newest.get(&key) == Some(&mark) {
                self.newest.remove(&key);
            }
            return (mark.1, None);
        }
        self.count += 1;
        (self.count - 1, None)
    }

    fn end_mark(&mut self, slot: u64, key: &Arc<ConversationKey>, end: Timestamp) {
        let Timestamp(recovered_until) = end.plus(START_TIME_MAX);
        let _ = self.write(slot, format!("{recovered_until:>END_BYTES$}").as_bytes());
        self.ended.insert((end, slot), Arc::clone(key));
        self.newest.insert(Arc::clone(key), (end, slot));
    }

    /// Writes to the start of a record.
    fn write(&mut self, slot: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(slot * RECORD_BYTES as u64))?;
        self.file.write_all(bytes)
    }
}

/// A line of the file. `None`: the text is too long.
fn record(text: &str) -> Option<Vec<u8>> {
    let blanks = (RECORD_BYTES - 1).checked_sub(text.len())?;
    Some(format!("{text}{}\n", " ".repeat(blanks)).into_bytes())
}

/// The conversations whose marks are not over, those of running turns first.
fn find_marked<'a>(records: impl Iterator<Item = &'a str>, now: Timestamp) -> Vec<ConversationKey> {
    let mut marks: Vec<_> = records.filter_map(parse_record).collect();
    marks.retain(|(end, _)| end.is_none_or(|end| now < end));
    marks.sort_by_key(|(end, _)| *end);
    marks.into_iter().map(|(_, key)| key).collect()
}

/// The end of the mark, if its turn has ended, and its conversation.
fn parse_record(line: &str) -> Option<(Option<Timestamp>, ConversationKey)> {
    let (end, key) = line.split_at_checked(END_BYTES)?;
    let end = match end.trim() {
        "" => None,
        end => Some(Timestamp(end.parse().ok()?)),
    };
    Some((end, serde_json::from_str(key.trim_end()).ok()?))
}

/// Removes the files of processes that died before they locked them.
fn remove_leftovers(folder: &Path, own: &File) {
    let Ok(own) = own.metadata() else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_leftover = |metadata: fs::Metadata| {
            let age = metadata.modified().ok().and_then(|written| written.elapsed().ok());
            metadata.is_file()
                && is_own(&metadata, &own)
                && age.is_some_and(|age| age > NEW_FILE_AGE_MAX)
        };
        if path.extension().is_some_and(|it| it == NEW_EXTENSION)
            && entry.metadata().is_ok_and(is_leftover)
        {
            let _ = fs::remove_file(&path);
        }
    }
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
    use turnwheel_platform::clock::SystemClock;
    use turnwheel_platform::ids::{ConversationId, TenantId, UserId};

    pub(crate) fn key(id: &str) -> ConversationKey {
        ConversationKey {
            tenant: TenantId::new("t"),
            user: UserId::new("u"),
            conversation_id: ConversationId::new(id),
        }
    }

    pub(crate) fn create(folder: &Path, worker: &str) -> Arc<WorkFile> {
        create_with_clock(folder, worker, Arc::new(SystemClock::default()))
    }

    pub(crate) fn create_with_clock(
        folder: &Path,
        worker: &str,
        clock: Arc<dyn Clock>,
    ) -> Arc<WorkFile> {
        Arc::new(WorkFile::create(folder, &WorkerId::new(worker), clock).unwrap())
    }

    /// A process that is killed removes neither its file nor its marks.
    pub(crate) fn kill(file: &WorkFile, copy: &Path) {
        fs::copy(&file.path, copy).unwrap();
    }

    /// The conversations that the next process recovers if this one is killed.
    pub(crate) fn read_marked(file: &WorkFile) -> Vec<ConversationKey> {
        let text = fs::read_to_string(&file.path).unwrap();
        find_marked(text.lines(), file.clock.now())
    }

    /// Records of the file, with the first one, which names the worker.
    pub(crate) fn count_records(file: &WorkFile) -> u64 {
        fs::metadata(&file.path).unwrap().len() / RECORD_BYTES as u64
    }
}

#[cfg(test)]
mod tests;
