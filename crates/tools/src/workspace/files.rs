//! Files of a workspace during a call: those before the call, and the changes of the call.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::package_files::PackageFiles;
use super::path::{FolderPath, WorkspacePath};
use super::text::format_size;
use crate::ToolContext;
use turnwheel_conversation::message::WorkspaceFile;
use turnwheel_platform::ids::{ArtifactId, EffectId};
use turnwheel_storage::artifacts::ArtifactError;

/// Bytes of one file that tools can read or write.
pub const FILE_BYTES_MAX: u64 = 10 * 1024 * 1024;
pub(crate) const FILES_MAX: usize = 1_000;
/// Bytes of all files together.
pub(crate) const TOTAL_BYTES_MAX: u64 = 100 * 1024 * 1024;

/// Outputs of calls that stay readable in the workspace.
const OUTPUTS_MAX: usize = 100;
const OUTPUTS_FOLDER: &str = ".turnwheel/outputs/";

/// Clones are cheap while the call has no changes.
#[derive(Clone, Debug)]
pub struct Files {
    before: Arc<BTreeMap<String, WorkspaceFile>>,
    changes: BTreeMap<String, Option<WorkspaceFile>>,
    package: PackageFiles,
}

impl Files {
    /// `package` hides stored files at its paths.
    pub fn new(before: Arc<BTreeMap<String, WorkspaceFile>>, package: PackageFiles) -> Self {
        Self { package, ..Self::with_changes(before, BTreeMap::new()) }
    }

    pub fn with_changes(
        before: Arc<BTreeMap<String, WorkspaceFile>>,
        changes: BTreeMap<String, Option<WorkspaceFile>>,
    ) -> Self {
        Self { before, changes, package: PackageFiles::default() }
    }

    pub fn contains(&self, path: &str) -> bool {
        self.package.get(path).is_some() || self.get(path).is_some()
    }

    /// The stored file of that path.
    fn get(&self, path: &str) -> Option<&WorkspaceFile> {
        match self.changes.get(path) {
            Some(change) => change.as_ref(),
            None => self.before.get(path),
        }
    }

    /// Paths and sizes of all files, in byte order of the paths.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        let size = |file: &WorkspaceFile| file.size;
        let before = self.before.iter().map(|(path, file)| (path.as_str(), Some(file.size)));
        let changes = self.changes.iter();
        let changes = changes.map(|(path, change)| (path.as_str(), change.as_ref().map(size)));
        let package = self.package.iter().map(|(path, size)| (path, Some(size)));
        let all: BTreeMap<&str, Option<u64>> = before.chain(changes).chain(package).collect();
        all.into_iter().filter_map(|(path, size)| Some((path, size?)))
    }

    pub fn is_folder(&self, folder: &FolderPath) -> bool {
        folder.as_str().is_empty()
            || self.iter().any(|(path, _)| folder.strip_folder(path).is_some())
    }

    /// # Errors
    /// The file does not exist, is too large, or its artifact is unavailable. Return the text to
    /// the model; it contains the remedy.
    pub async fn read(&self, context: &ToolContext, path: &WorkspacePath) -> Result<Bytes, String> {
        if let Some(file) = self.package.get(path.as_str()) {
            let read = file.read(FILE_BYTES_MAX).await;
            return read.map_err(|reason| format!("{path} could not be read: {reason}."));
        }
        let file = self.get(path.as_str()).ok_or_else(|| self.not_found_error(path.as_str()))?;
        if file.size > FILE_BYTES_MAX {
            return Err(format!(
                "The file {path} has {}: files up to {} can be read.",
                format_size(file.size),
                format_size(FILE_BYTES_MAX)
            ));
        }
        match context.artifacts.get(&context.artifact_scope, &file.artifact_id, None).await {
            Ok(bytes) => Ok(bytes),
            Err(ArtifactError::NotFound) => {
                Err(format!("The content of {path} is lost: write the file again."))
            }
            Err(error @ (ArtifactError::TooLarge(_) | ArtifactError::Unavailable(_))) => {
                Err(format!("The file {path} could not be read now ({error}): try again."))
            }
        }
    }

    /// Checks that a file of that size may be written at that path.
    ///
    /// # Errors
    /// The path or the size is not allowed. Return the text to the model; it contains the remedy.
    pub fn check_write(&self, path: &WorkspacePath, size: u64) -> Result<(), String> {
        if path.is_reserved() {
            return Err(format!(
                "The path {path} is reserved for Turnwheel: choose one outside of `{}`.",
                super::path::RESERVED_FOLDER
            ));
        }
        if self.is_folder(&FolderPath::parse(path.as_str())?) {
            return Err(format!("{path} is a folder: choose another name for the file."));
        }
        if let Some(file) = path.parent_folders().find(|folder| self.contains(folder)) {
            return Err(format!("{file} is a file, so {path} cannot be below it."));
        }
        self.check_limits(path.as_str(), size)
    }

    /// Checks the limits of the workspace. Files in `.turnwheel` do not count, because a model
    /// cannot remove them.
    ///
    /// # Errors
    /// A limit is reached. Return the text to the model; it contains the limit and the remedy.
    fn check_limits(&self, path: &str, size: u64) -> Result<(), String> {
        if size > FILE_BYTES_MAX {
            return Err(format!(
                "The file would have {}: at most {} are allowed. Split it.",
                format_size(size),
                format_size(FILE_BYTES_MAX)
            ));
        }
        let others =
            || self.iter().filter(|(other, _)| *other != path && !super::path::is_reserved(other));
        if others().count() >= FILES_MAX {
            return Err(format!("The workspace has its {FILES_MAX} files: write to one of them."));
        }
        let total = others().map(|(_, size)| size).sum::<u64>().saturating_add(size);
        if total > TOTAL_BYTES_MAX {
            return Err(format!(
                "The workspace would have {}: at most {} are allowed. Write less, or make another file smaller.",
                format_size(total),
                format_size(TOTAL_BYTES_MAX)
            ));
        }
        Ok(())
    }

    /// Adds or replaces a file.
    ///
    /// # Errors
    /// The path or the size is not allowed, as for [`Self::check_write`]. Return the text to the
    /// model.
    pub fn put(
        &mut self,
        path: &WorkspacePath,
        artifact_id: ArtifactId,
        size: u64,
    ) -> Result<(), String> {
        self.check_write(path, size)?;
        self.changes.insert(path.as_str().to_owned(), Some(WorkspaceFile { artifact_id, size }));
        Ok(())
    }

    /// Adds the whole output of a call at a path that `read` can open, and returns the path.
    /// Removes the oldest outputs from the workspace if there are too many; their artifacts stay.
    /// Returns `None` if the output is too large for `read`.
    pub(crate) fn put_output(
        &mut self,
        effect_id: &EffectId,
        artifact_id: ArtifactId,
        size: u64,
    ) -> Option<String> {
        if size > FILE_BYTES_MAX {
            return None;
        }
        let path = format!("{OUTPUTS_FOLDER}{effect_id}.txt");
        let mut others: Vec<(Vec<u64>, String, u64)> = self
            .iter()
            .filter(|(other, _)| is_call_output(other) && *other != path)
            .map(|(other, size)| (age_key(other), other.to_owned(), size))
            .collect();
        others.sort_unstable();
        let mut total = others.iter().map(|(_, _, size)| size).sum::<u64>().saturating_add(size);
        let mut count = others.len();
        for (_, oldest, oldest_size) in others {
            if count < OUTPUTS_MAX && total <= TOTAL_BYTES_MAX {
                break;
            }
            self.changes.insert(oldest, None);
            total = total.saturating_sub(oldest_size);
            count -= 1;
        }
        self.changes.insert(path.clone(), Some(WorkspaceFile { artifact_id, size }));
        Some(path)
    }

    /// # Errors
    /// The file does not exist. Return the text to the model; it suggests a similar path.
    pub fn remove(&mut self, path: &WorkspacePath) -> Result<(), String> {
        if self.package.get(path.as_str()).is_some() {
            return Err(format!("{path} is a file of the app, which cannot be removed."));
        }
        if self.get(path.as_str()).is_none() {
            return Err(self.not_found_error(path.as_str()));
        }
        self.changes.insert(path.as_str().to_owned(), None);
        Ok(())
    }

    pub(crate) fn take_changes(&mut self) -> BTreeMap<String, Option<WorkspaceFile>> {
        std::mem::take(&mut self.changes)
    }

    /// Error text for a missing file, with a similar path if there is one.
    pub(super) fn not_found_error(&self, path: &str) -> String {
        let is_folder = FolderPath::parse(path).is_ok_and(|folder| self.is_folder(&folder));
        if is_folder {
            return format!("{path} is a folder: give the path of a file in it.");
        }
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_lowercase();
        let similar = self
            .iter()
            .map(|(other, _)| (strsim::jaro_winkler(&name(other), &name(path)), other))
            .filter(|(likeness, _)| *likeness > 0.8)
            .max_by(|(a, _), (b, _)| a.total_cmp(b));
        match similar {
            Some((_, other)) => format!("File not found: {path}. Did you mean {other}?"),
            None => format!("File not found: {path}. The ls tool lists what there is."),
        }
    }
}

/// True for the whole output of a call. A file that a tool sent to the user is one folder deeper.
fn is_call_output(path: &str) -> bool {
    path.strip_prefix(OUTPUTS_FOLDER).is_some_and(|name| !name.contains('/'))
}

/// Sort key by age. An effect id ends in the number of the model response and of the call, which
/// grow.
fn age_key(path: &str) -> Vec<u64> {
    let name = path.strip_suffix(".txt").unwrap_or(path);
    let mut numbers: Vec<u64> =
        name.rsplit('_').take(2).map(|part| part.parse().unwrap_or(0)).collect();
    numbers.reverse();
    numbers
}
