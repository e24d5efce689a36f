//! The identity of the open database file: a service must not go on with a file that was deleted or
//! replaced, because everything it accepts would be lost at its end.

use std::path::PathBuf;

/// A file as it was when it was opened.
#[derive(Debug)]
pub(super) struct FileIdentity {
    path: PathBuf,
    /// Absent: the system has no such numbers; only the existence is checked.
    numbers: Option<(u64, u64)>,
}

impl FileIdentity {
    pub(super) fn read(path: PathBuf) -> Self {
        let numbers = std::fs::metadata(&path).ok().and_then(|metadata| numbers(&metadata));
        Self { path, numbers }
    }

    /// # Errors
    /// The file was deleted or replaced: write nothing more.
    pub(super) fn check(&self) -> Result<(), String> {
        let shown = self.path.display();
        match std::fs::metadata(&self.path) {
            Ok(metadata) if numbers(&metadata) == self.numbers => Ok(()),
            Ok(_) => {
                Err(format!("{shown} was replaced while the service ran: restart the service"))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!(
                "{shown} was deleted while the service ran: stop the service, restore the folder, and start again"
            )),
            // The write itself reports other failures of the disk.
            Err(_) => Ok(()),
        }
    }
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "absent on other systems")]
fn numbers(metadata: &std::fs::Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;

    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn numbers(_metadata: &std::fs::Metadata) -> Option<(u64, u64)> {
    None
}
