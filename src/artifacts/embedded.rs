//! Artifact store in local files. A file is visible completely or not at all, even if the process
//! dies.
//!
//! Bytes and metadata are written and synced under `unfinished/`, then renamed to
//! `shelves/{tenant}/{user}/…`. The artifact exists from the rename on.

mod file;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use self::file::{sync_folder, write_new};
use super::{
    ARTIFACT_BYTES_MAX, ArtifactError, ArtifactFacts, Artifacts, Shelf, is_nameable, oldest_first,
};
use crate::ids::ArtifactId;

#[derive(Clone)]
pub struct EmbeddedArtifacts {
    place: Arc<Place>,
}

struct Place {
    shelves: PathBuf,
    unfinished: PathBuf,
    last_unfinished: AtomicU64,
    /// Locked while folders are created or removed, so that neither disturbs the other, and between
    /// the existence check of a file and the rename to it.
    layout: Mutex<()>,
}

#[derive(Debug, thiserror::Error)]
#[error("could not {what} {path}")]
struct FileError {
    what: &'static str,
    path: PathBuf,
    source: std::io::Error,
}

impl FileError {
    fn at(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ArtifactError {
        move |source| {
            ArtifactError::Unavailable(Box::new(Self { what, path: path.to_owned(), source }))
        }
    }
}

impl EmbeddedArtifacts {
    /// Opens the store in `folder` and creates it if needed. Removes unfinished files of a dead
    /// process, so only one process may use the folder: open it after the store, whose lock ensures
    /// that.
    ///
    /// # Errors
    /// [`ArtifactError::Unavailable`]: the folder cannot be created or written; do not start.
    pub async fn open(folder: &Path) -> Result<Self, ArtifactError> {
        let place = Place {
            shelves: folder.join("shelves"),
            unfinished: folder.join("unfinished"),
            last_unfinished: AtomicU64::new(0),
            layout: Mutex::new(()),
        };
        let folder = folder.to_owned();
        blocking(move || {
            place.prepare(&folder)?;
            Ok(Self { place: Arc::new(place) })
        })
        .await
    }

    async fn act<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Place) -> Result<T, ArtifactError> + Send + 'static,
    ) -> Result<T, ArtifactError> {
        let place = Arc::clone(&self.place);
        blocking(move || work(&place)).await
    }
}

/// Runs `work` on a blocking thread. It finishes even if the caller is dropped.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ArtifactError> + Send + 'static,
) -> Result<T, ArtifactError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(error) => Err(ArtifactError::Unavailable(Box::new(error))),
    }
}

impl Place {
    fn prepare(&self, folder: &Path) -> Result<(), ArtifactError> {
        std::fs::create_dir_all(&self.shelves)
            .map_err(FileError::at("create the folder", &self.shelves))?;
        if self.unfinished.exists() {
            std::fs::remove_dir_all(&self.unfinished)
                .map_err(FileError::at("clear the folder", &self.unfinished))?;
        }
        std::fs::create_dir_all(&self.unfinished)
            .map_err(FileError::at("create the folder", &self.unfinished))?;
        for made in [folder, folder.parent().unwrap_or(folder)] {
            sync_folder(made).map_err(FileError::at("sync the folder", made))?;
        }
        Ok(())
    }

    fn layout(&self) -> MutexGuard<'_, ()> {
        self.layout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an unused path for a file or folder.
    fn unfinished(&self) -> PathBuf {
        self.unfinished.join(self.last_unfinished.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Returns the path of an artifact; `None` if a part of it is not plain text and might lead
    /// elsewhere.
    fn file(&self, shelf: &Shelf, id: &ArtifactId) -> Option<PathBuf> {
        let (effect, sha256) = id.parts()?;
        Some(self.folder(shelf)?.join(effect.as_str()).join(sha256))
    }

    fn folder(&self, shelf: &Shelf) -> Option<PathBuf> {
        is_nameable(shelf).then(|| {
            self.shelves
                .join(shelf.key.tenant.as_str())
                .join(shelf.key.user.as_str())
                .join(shelf.key.conversation_id.as_str())
                .join(&shelf.incarnation)
        })
    }

    fn put(&self, target: &Path, facts: &ArtifactFacts, bytes: &[u8]) -> Result<(), ArtifactError> {
        if target.exists() {
            // Another call may have created it and not yet synced it.
            return self.settle(target);
        }
        let unfinished = self.unfinished();
        let put = write_new(&unfinished, facts, bytes)
            .map_err(FileError::at("write", &unfinished))
            .and_then(|()| self.shelve(&unfinished, target));
        // After the rename there is no file to remove.
        let _ = std::fs::remove_file(&unfinished);
        put
    }

    fn shelve(&self, unfinished: &Path, target: &Path) -> Result<(), ArtifactError> {
        let layout = self.layout();
        if !target.exists() {
            if let Some(folder) = target.parent() {
                std::fs::create_dir_all(folder)
                    .map_err(FileError::at("create the folder", folder))?;
            }
            std::fs::rename(unfinished, target).map_err(FileError::at("rename a file to", target))?;
        }
        drop(layout);
        self.settle(target)
    }

    /// Syncs the folder of the file and all parents, any of which may be new. Only then does the
    /// file survive a power failure.
    fn settle(&self, target: &Path) -> Result<(), ArtifactError> {
        for folder in target.ancestors().skip(1) {
            match sync_folder(folder) {
                Ok(()) => {}
                // Deleted meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(FileError::at("sync the folder", folder)(error)),
            }
            if folder == self.shelves {
                break;
            }
        }
        Ok(())
    }

    fn list(folder: &Path) -> Result<Vec<ArtifactFacts>, ArtifactError> {
        let mut all = Vec::new();
        for effect in file::children(folder).map_err(FileError::at("list", folder))? {
            for path in file::children(&effect).map_err(FileError::at("list", &effect))? {
                match file::facts(&path) {
                    Ok(facts) => all.push(facts),
                    // Deleted after it was listed.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => return Err(FileError::at("read", &path)(error)),
                }
            }
        }
        Ok(oldest_first(all))
    }

    /// Hides the folder with one rename, then deletes its files.
    fn delete_all(&self, folder: &Path) -> Result<(), ArtifactError> {
        let unfinished = self.unfinished();
        let layout = self.layout();
        match std::fs::rename(folder, &unfinished) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(FileError::at("delete", folder)(error)),
        }
        for above in folder.ancestors().skip(1).take_while(|above| **above != self.shelves) {
            // Fails, as intended, if the folder is not empty.
            if std::fs::remove_dir(above).is_err() {
                sync_folder(above).map_err(FileError::at("sync the folder", above))?;
                break;
            }
        }
        sync_folder(&self.shelves).map_err(FileError::at("sync the folder", &self.shelves))?;
        drop(layout);
        std::fs::remove_dir_all(&unfinished).map_err(FileError::at("delete", &unfinished))
    }
}

fn read_failed(path: &Path) -> impl FnOnce(std::io::Error) -> ArtifactError {
    move |error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            ArtifactError::NotFound
        } else {
            FileError::at("read", path)(error)
        }
    }
}

#[async_trait]
impl Artifacts for EmbeddedArtifacts {
    async fn put(
        &self,
        shelf: &Shelf,
        facts: &ArtifactFacts,
        bytes: Bytes,
    ) -> Result<(), ArtifactError> {
        let size = bytes.len() as u64;
        if size > ARTIFACT_BYTES_MAX {
            return Err(ArtifactError::TooLarge(size));
        }
        let target = self.place.file(shelf, &facts.id).ok_or(ArtifactError::NotFound)?;
        let facts = ArtifactFacts { size, ..facts.clone() };
        self.act(move |place| place.put(&target, &facts, &bytes)).await
    }

    async fn facts(&self, shelf: &Shelf, id: &ArtifactId) -> Result<ArtifactFacts, ArtifactError> {
        let path = self.place.file(shelf, id).ok_or(ArtifactError::NotFound)?;
        self.act(move |_| file::facts(&path).map_err(read_failed(&path))).await
    }

    async fn get(
        &self,
        shelf: &Shelf,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError> {
        let path = self.place.file(shelf, id).ok_or(ArtifactError::NotFound)?;
        self.act(move |_| file::bytes(&path, range).map(Bytes::from).map_err(read_failed(&path)))
            .await
    }

    async fn list(&self, shelf: &Shelf) -> Result<Vec<ArtifactFacts>, ArtifactError> {
        let Some(folder) = self.place.folder(shelf) else { return Ok(Vec::new()) };
        self.act(move |_| Place::list(&folder)).await
    }

    async fn delete_all(&self, shelf: &Shelf) -> Result<(), ArtifactError> {
        let Some(folder) = self.place.folder(shelf) else { return Ok(()) };
        self.act(move |place| place.delete_all(&folder)).await
    }
}

impl fmt::Debug for EmbeddedArtifacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedArtifacts")
            .field("scopes", &self.place.shelves)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
