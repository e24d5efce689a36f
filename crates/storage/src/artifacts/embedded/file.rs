//! File format of an artifact: magic bytes, length of the metadata, metadata as JSON, content. One
//! file holds both, so that content and metadata appear together.

use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::super::{ArtifactMetadata, clamp_range};

/// Magic bytes; the last digit is the version of the format.
const MAGIC: &[u8; 8] = b"turnart1";
const HEADER_BYTES: u64 = 12;
/// Bytes of the metadata. A larger length is damage and must not allocate memory.
const METADATA_BYTES_MAX: u32 = 1024 * 1024;

/// Writes and syncs a file that must not exist.
pub(super) fn write_artifact(path: &Path, metadata: &ArtifactMetadata, bytes: &[u8]) -> Result<()> {
    let json = serde_json::to_vec(metadata)?;
    let length = u32::try_from(json.len()).ok().filter(|length| *length <= METADATA_BYTES_MAX);
    let Some(length) = length else {
        return Err(Error::new(ErrorKind::InvalidInput, "the artifact's name is too long"));
    };
    let mut file = File::create_new(path)?;
    file.write_all(MAGIC)?;
    file.write_all(&length.to_le_bytes())?;
    file.write_all(&json)?;
    file.write_all(bytes)?;
    file.sync_all()
}

pub(super) fn read_metadata(path: &Path) -> Result<ArtifactMetadata> {
    Ok(open_artifact(path)?.metadata)
}

pub(super) fn read_content(path: &Path, range: Option<Range<u64>>) -> Result<Vec<u8>> {
    let mut opened = open_artifact(path)?;
    let range = clamp_range(range, opened.metadata.size);
    let length = range.end - range.start;
    opened.file.seek(SeekFrom::Start(opened.content_offset + range.start))?;
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    opened.file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

struct OpenArtifact {
    file: File,
    metadata: ArtifactMetadata,
    /// Offset of the content.
    content_offset: u64,
}

fn open_artifact(path: &Path) -> Result<OpenArtifact> {
    let mut file = File::open(path)?;
    let mut mark = [0; 8];
    let mut length = [0; 4];
    file.read_exact(&mut mark)?;
    file.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if mark != *MAGIC || length > METADATA_BYTES_MAX {
        return Err(damaged_file_error());
    }
    let mut json = Vec::new();
    (&file).take(length.into()).read_to_end(&mut json)?;
    let metadata: ArtifactMetadata =
        serde_json::from_slice(&json).map_err(|_| damaged_file_error())?;
    let content_offset = HEADER_BYTES + u64::from(length);
    if file.metadata()?.len() != content_offset + metadata.size {
        return Err(damaged_file_error());
    }
    Ok(OpenArtifact { file, metadata, content_offset })
}

fn damaged_file_error() -> Error {
    Error::new(ErrorKind::InvalidData, "the file is damaged: restore it from a backup or delete it")
}

/// Lists the entries of a folder; a missing folder is empty.
pub(super) fn list_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Syncs a folder, so that its names survive a power failure. Where folders cannot be opened, the
/// file system does so itself.
pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        // The parent of a relative path with one part is the empty path.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}
