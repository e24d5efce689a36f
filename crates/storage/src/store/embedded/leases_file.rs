//! A file of the leased conversations. After a crash it names the turns that were running.
//!
//! Writes are not synced: they survive the death of the process. They may be lost in a power cut,
//! which is no fault of a step.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use sha2::Digest as _;

use turnwheel_platform::ids::ConversationKey;

/// Truncated hash of a conversation key, long enough to exclude collisions.
type KeyHash = [u8; 16];
const EMPTY_SLOT: KeyHash = [0; 16];

#[derive(Debug, Default)]
pub(super) struct LeasesFile {
    /// Leased conversations of the previous process.
    previous: HashSet<KeyHash>,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    /// Absent after a write error: a crash of this process is then not counted.
    file: Option<File>,
    used: HashMap<KeyHash, u64>,
    free: Vec<u64>,
}

impl LeasesFile {
    /// Reads the records of the previous process and empties the file.
    pub(super) fn open(path: &Path) -> Self {
        match Self::try_open(path) {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!(error = %error, file = %path.display(), "lease file cannot be used; crashes of this process are not counted");
                Self::default()
            }
        }
    }

    fn try_open(path: &Path) -> std::io::Result<Self> {
        let mut file =
            File::options().create(true).truncate(false).read(true).write(true).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        file.set_len(0)?;
        let (hashes, _) = bytes.as_chunks::<16>();
        let previous = hashes.iter().filter(|mark| **mark != EMPTY_SLOT).copied().collect();
        let slots = Slots { file: Some(file), ..Slots::default() };
        Ok(Self { previous, slots: Mutex::new(slots) })
    }

    pub(super) fn had_lease(&self, key: &ConversationKey) -> bool {
        self.previous.contains(&hash_key(key))
    }

    pub(super) fn add(&self, key: &ConversationKey) {
        self.update(|slots| {
            let hash = hash_key(key);
            if slots.used.contains_key(&hash) {
                return Ok(());
            }
            let slot = slots.free.pop().unwrap_or(slots.used.len() as u64);
            slots.used.insert(hash, slot);
            slots.write(slot, hash)
        });
    }

    pub(super) fn remove(&self, key: &ConversationKey) {
        self.update(|slots| {
            let Some(slot) = slots.used.remove(&hash_key(key)) else { return Ok(()) };
            slots.free.push(slot);
            slots.write(slot, EMPTY_SLOT)
        });
    }

    /// Empties and closes the file.
    pub(super) fn close(&self) {
        self.update(|slots| slots.file.take().map_or(Ok(()), |file| file.set_len(0)));
    }

    fn update(&self, change: impl FnOnce(&mut Slots) -> std::io::Result<()>) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.file.is_none() {
            return;
        }
        if let Err(error) = change(&mut slots) {
            tracing::warn!(error = %error, "lease file cannot be written; crashes of this process are not counted");
            slots.file = None;
        }
    }
}

impl Slots {
    fn write(&mut self, slot: u64, mark: KeyHash) -> std::io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.seek(SeekFrom::Start(slot * mark.len() as u64))?;
        file.write_all(&mark)
    }
}

fn hash_key(key: &ConversationKey) -> KeyHash {
    let hash = sha2::Sha256::digest(key.to_string().as_bytes());
    hash.first_chunk().copied().unwrap_or(EMPTY_SLOT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_platform::ids::{ConversationId, TenantId, UserId};

    fn key(id: &str) -> ConversationKey {
        ConversationKey {
            tenant: TenantId::new("t"),
            user: UserId::new("u"),
            conversation_id: ConversationId::new(id),
        }
    }

    #[test]
    fn next_process_reads_leases_that_were_not_released() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leases");
        let file = LeasesFile::open(&path);
        for id in ["a", "b", "c", "a"] {
            file.add(&key(id));
        }
        file.remove(&key("b"));
        file.add(&key("d"));
        file.remove(&key("c"));
        let next = LeasesFile::open(&path);
        assert_eq!(
            ["a", "b", "c", "d"].map(|id| next.had_lease(&key(id))),
            [true, false, false, true]
        );
        assert!(!LeasesFile::open(&path).had_lease(&key("a")), "records of one process only");
    }

    #[test]
    fn slots_are_reused_after_release() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leases");
        let file = LeasesFile::open(&path);
        for number in 0..100 {
            file.add(&key("stays"));
            file.add(&key(&number.to_string()));
            file.remove(&key(&number.to_string()));
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 32);
    }

    #[test]
    fn clean_stop_leaves_no_leases() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leases");
        let file = LeasesFile::open(&path);
        file.add(&key("a"));
        file.close();
        file.add(&key("b"));
        let next = LeasesFile::open(&path);
        assert!(!next.had_lease(&key("a")) && !next.had_lease(&key("b")));
    }
}
