//! The report of a package for its author.

use std::fmt;
use std::path::PathBuf;

use super::AzdFiles;
use turnwheel_platform::settings::links::Auth;

/// A staged package. Its text form is the command's whole output.
#[derive(Debug)]
pub(crate) struct Package {
    /// The path as requested.
    pub out: PathBuf,
    pub auth: Auth,
    /// In staging order.
    pub staged: Vec<StagedFile>,
    /// Files from the program, because the folder has none of its own.
    pub embedded: Vec<&'static str>,
    /// Files written for `azd`, if requested.
    pub azd_files: Option<AzdFiles>,
    /// Sentences about probable problems.
    pub warnings: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StagedFile {
    /// Relative to the package, with `/`.
    pub path: String,
    pub size_bytes: u64,
    /// A few words, or empty.
    pub note: String,
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let out = self.out.display();
        writeln!(f, "Packaged into {out} (TURNWHEEL_AUTH={}):", self.auth.into_str())?;
        let width = self.staged.iter().map(|file| file.path.len()).max().unwrap_or(0);
        for StagedFile { path, size_bytes, note } in &self.staged {
            let line = format!("  {path:width$}  {:>9}  {note}", format_size(*size_bytes));
            writeln!(f, "{}", line.trim_end())?;
        }
        let total = self.staged.iter().map(|file| file.size_bytes).sum();
        writeln!(f, "{} files, {}.", self.staged.len(), format_size(total))?;
        if !self.embedded.is_empty() {
            let names = self.embedded.join(", ");
            writeln!(f, "From the program, since this folder has none: {names}.")?;
        }
        if let Some(azd) = &self.azd_files {
            if !azd.written.is_empty() {
                let names = azd.written.join(", ");
                writeln!(f, "Written into this folder from the program: {names}.")?;
            }
            if !azd.unchanged.is_empty() {
                writeln!(f, "Kept unchanged in this folder: {}.", azd.unchanged.join(", "))?;
            }
        }
        for warning in &self.warnings {
            writeln!(f, "Warning: {warning}.")?;
        }
        if self.azd_files.is_some() {
            return writeln!(f, "Next: azd up");
        }
        writeln!(f, "Next: cd {out} && func azure functionapp publish APP_NAME --custom --no-build")
    }
}

fn format_size(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a rounded number for people")]
    let bytes_f64 = bytes as f64;
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes_f64 / 1e3),
        _ => format!("{:.1} MB", bytes_f64 / 1e6),
    }
}
