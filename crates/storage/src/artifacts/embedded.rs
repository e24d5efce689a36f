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

use self::file::{sync_folder, write_artifact};
use super::{
    ARTIFACT_BYTES_MAX, ArtifactError, ArtifactMetadata, ArtifactScope, Artifacts, has_plain_names,
    sort_oldest_first,
};
use turnwheel_platform::ids::ArtifactId;

#[derive(Clone)]
pub struct EmbeddedArtifacts {
    tree: Arc<FileTree>,
}

struct FileTree {
    scopes: PathBuf,
    unfinished: PathBuf,
    last_unfinished: AtomicU64,
    /// Locked while folders are created or removed, so that neither disturbs the other, and between
    /// the existence check of a file and the rename to it.
    layout_lock: Mutex<()>,
}

#[derive(Debug, thiserror::Error)]
#[error("could not {what} {path}")]
struct FileError {
    what: &'static str,
    path: PathBuf,
    source: std::io::Error,
}

impl FileError {
    fn wrap(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ArtifactError {
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
        let tree = FileTree {
            scopes: folder.join("shelves"),
            unfinished: folder.join("unfinished"),
            last_unfinished: AtomicU64::new(0),
            layout_lock: Mutex::new(()),
        };
        let folder = folder.to_owned();
        run_blocking(move || {
            tree.prepare(&folder)?;
            Ok(Self { tree: Arc::new(tree) })
        })
        .await
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&FileTree) -> Result<T, ArtifactError> + Send + 'static,
    ) -> Result<T, ArtifactError> {
        let tree = Arc::clone(&self.tree);
        run_blocking(move || work(&tree)).await
    }
}

/// Runs `work` on a blocking thread. It finishes even if the caller is dropped.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ArtifactError> + Send + 'static,
) -> Result<T, ArtifactError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(error) => Err(ArtifactError::Unavailable(Box::new(error))),
    }
}

impl FileTree {
    fn prepare(&self, folder: &Path) -> Result<(), ArtifactError> {
        std::fs::create_dir_all(&self.scopes)
            .map_err(FileError::wrap("create the folder", &self.scopes))?;
        if self.unfinished.exists() {
            std::fs::remove_dir_all(&self.unfinished)
                .map_err(FileError::wrap("clear the folder", &self.unfinished))?;
        }
        std::fs::create_dir_all(&self.unfinished)
            .map_err(FileError::wrap("create the folder", &self.unfinished))?;
        for made in [folder, folder.parent().unwrap_or(folder)] {
            sync_folder(made).map_err(FileError::wrap("sync the folder", made))?;
        }
        Ok(())
    }

    fn lock_layout(&self) -> MutexGuard<'_, ()> {
        self.layout_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an unused path for a file or folder.
    fn new_unfinished_path(&self) -> PathBuf {
        self.unfinished.join(self.last_unfinished.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Returns the path of an artifact; `None` if a part of it is not plain text and might lead
    /// elsewhere.
    fn file_path(&self, scope: &ArtifactScope, id: &ArtifactId) -> Option<PathBuf> {
        let (effect, sha256) = id.parts()?;
        Some(self.scope_folder(scope)?.join(effect.as_str()).join(sha256))
    }

    fn scope_folder(&self, scope: &ArtifactScope) -> Option<PathBuf> {
        has_plain_names(scope).then(|| {
            self.scopes
                .join(scope.key.tenant.as_str())
                .join(scope.key.user.as_str())
                .join(scope.key.conversation_id.as_str())
                .join(&scope.incarnation)
        })
    }

    fn write_artifact(
        &self,
        target: &Path,
        metadata: &ArtifactMetadata,
        bytes: &[u8],
    ) -> Result<(), ArtifactError> {
        if target.exists() {
            return Ok(());
        }
        let unfinished = self.new_unfinished_path();
        let put = write_artifact(&unfinished, metadata, bytes)
            .map_err(FileError::wrap("write", &unfinished))
            .and_then(|()| self.move_into_place(&unfinished, target));
        // After the rename there is no file to remove.
        let _ = std::fs::remove_file(&unfinished);
        put
    }

    fn move_into_place(&self, unfinished: &Path, target: &Path) -> Result<(), ArtifactError> {
        let layout = self.lock_layout();
        if !target.exists() {
            if let Some(folder) = target.parent() {
                std::fs::create_dir_all(folder)
                    .map_err(FileError::wrap("create the folder", folder))?;
            }
            std::fs::rename(unfinished, target)
                .map_err(FileError::wrap("rename a file to", target))?;
        }
        drop(layout);
        Ok(())
    }

    /// Syncs the folder of the file and all parents, any of which may be new. Only then does the
    /// file survive a power failure.
    fn sync_parents(&self, target: &Path) -> Result<(), ArtifactError> {
        for folder in target.ancestors().skip(1) {
            match sync_folder(folder) {
                Ok(()) => {}
                // Deleted meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(FileError::wrap("sync the folder", folder)(error)),
            }
            if folder == self.scopes {
                break;
            }
        }
        Ok(())
    }

    fn list_artifacts(folder: &Path) -> Result<Vec<ArtifactMetadata>, ArtifactError> {
        let mut all = Vec::new();
        for effect in file::list_folder(folder).map_err(FileError::wrap("list", folder))? {
            for path in file::list_folder(&effect).map_err(FileError::wrap("list", &effect))? {
                match file::read_metadata(&path) {
                    Ok(facts) => all.push(facts),
                    // Deleted after it was listed.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => return Err(FileError::wrap("read", &path)(error)),
                }
            }
        }
        Ok(sort_oldest_first(all))
    }

    /// Hides the folder with one rename, then deletes its files.
    fn delete_all(&self, folder: &Path) -> Result<(), ArtifactError> {
        let unfinished = self.new_unfinished_path();
        let layout = self.lock_layout();
        match std::fs::rename(folder, &unfinished) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(FileError::wrap("delete", folder)(error)),
        }
        for above in folder.ancestors().skip(1).take_while(|above| **above != self.scopes) {
            // Fails, as intended, if the folder is not empty.
            if std::fs::remove_dir(above).is_err() {
                sync_folder(above).map_err(FileError::wrap("sync the folder", above))?;
                break;
            }
        }
        sync_folder(&self.scopes).map_err(FileError::wrap("sync the folder", &self.scopes))?;
        drop(layout);
        std::fs::remove_dir_all(&unfinished).map_err(FileError::wrap("delete", &unfinished))
    }
}

fn read_error(path: &Path) -> impl FnOnce(std::io::Error) -> ArtifactError {
    move |error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            ArtifactError::NotFound
        } else {
            FileError::wrap("read", path)(error)
        }
    }
}

#[async_trait]
impl Artifacts for EmbeddedArtifacts {
    async fn put(
        &self,
        scope: &ArtifactScope,
        metadata: &ArtifactMetadata,
        bytes: Bytes,
    ) -> Result<(), ArtifactError> {
        let size = bytes.len() as u64;
        if size > ARTIFACT_BYTES_MAX {
            return Err(ArtifactError::TooLarge(size));
        }
        let target = self.tree.file_path(scope, &metadata.id).ok_or(ArtifactError::NotFound)?;
        let metadata = ArtifactMetadata { size, ..metadata.clone() };
        // Each new conversation has a frame document. Folders that are not synced may be missing after a
        // power failure: readers report their documents as lost.
        let syncs_folders = !scope.is_of_frame_documents();
        let put = move |tree: &FileTree| {
            tree.write_artifact(&target, &metadata, &bytes)?;
            // Also of a file that another call has created and not yet synced.
            if syncs_folders { tree.sync_parents(&target) } else { Ok(()) }
        };
        self.run(put).await
    }

    async fn metadata(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
    ) -> Result<ArtifactMetadata, ArtifactError> {
        let path = self.tree.file_path(scope, id).ok_or(ArtifactError::NotFound)?;
        self.run(move |_| file::read_metadata(&path).map_err(read_error(&path))).await
    }

    async fn get(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError> {
        let path = self.tree.file_path(scope, id).ok_or(ArtifactError::NotFound)?;
        self.run(move |_| {
            file::read_content(&path, range).map(Bytes::from).map_err(read_error(&path))
        })
        .await
    }

    async fn list(&self, scope: &ArtifactScope) -> Result<Vec<ArtifactMetadata>, ArtifactError> {
        let Some(folder) = self.tree.scope_folder(scope) else { return Ok(Vec::new()) };
        self.run(move |_| FileTree::list_artifacts(&folder)).await
    }

    async fn delete_all(&self, scope: &ArtifactScope) -> Result<(), ArtifactError> {
        let Some(folder) = self.tree.scope_folder(scope) else { return Ok(()) };
        self.run(move |tree| tree.delete_all(&folder)).await
    }
}

impl fmt::Debug for EmbeddedArtifacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedArtifacts")
            .field("scopes", &self.tree.scopes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
