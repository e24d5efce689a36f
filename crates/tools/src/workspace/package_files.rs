//! Files of the app's package that the tools of a conversation read in its workspace and never change.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A file below a folder of the package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageFile {
    pub folder: PathBuf,
    /// Below the folder.
    pub path: PathBuf,
    /// Bytes at the time of loading.
    pub size: u64,
}

impl PackageFile {
    /// # Errors
    /// The reason why the file cannot be read, as a part of a sentence.
    pub(super) async fn read(&self, bytes_max: u64) -> Result<Bytes, String> {
        let file = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            read_file_below(&file.folder, &file.path, bytes_max)
        });
        read.await.unwrap_or_else(|error| Err(error.to_string())).map(Bytes::from)
    }
}

/// Files of the package by their path in the workspace. Clones are cheap.
#[derive(Clone, Debug, Default)]
pub struct PackageFiles(Arc<BTreeMap<String, PackageFile>>);

impl PackageFiles {
    pub fn new(files: BTreeMap<String, PackageFile>) -> Self {
        Self(Arc::new(files))
    }

    pub(super) fn get(&self, path: &str) -> Option<&PackageFile> {
        self.0.get(path)
    }

    /// Paths and sizes, in byte order of the paths.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(path, file)| (path.as_str(), file.size))
    }
}

/// Reads a file of at most `bytes_max` bytes below the folder. A symbolic link may point to another
/// file in the folder, as in mounts of some platforms. A link out of the folder is an error: the model
/// may repeat the text to a user.
///
/// # Errors
/// The reason, as a part of a sentence.
pub fn read_file_below(
    folder: &Path,
    path_in_folder: &Path,
    bytes_max: u64,
) -> Result<Vec<u8>, String> {
    let unreadable = |error: std::io::Error| format!("the file cannot be read: {error}");
    let folder = folder.canonicalize().map_err(unreadable)?;
    let path = folder.join(path_in_folder).canonicalize().map_err(unreadable)?;
    if !path.starts_with(&folder) {
        return Err(
            "the file is a link to a target outside of the folder: copy the target".to_owned()
        );
    }
    if !path.is_file() {
        return Err("this is not a file".to_owned());
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > bytes_max {
        return Err(format!("the file is larger than {bytes_max} bytes"));
    }
    Ok(bytes)
}
