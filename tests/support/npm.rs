//! Packages from npm that tests install once, pinned by a lock file.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use turnwheel::testing::tools::sha256_hex;

/// Installs the packages of `package.json` and its lock file, which are among `files`, into a
/// folder below `target`. The folder gets its final name when it is complete.
pub(crate) fn install_pinned(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let parent = Path::new(env!("CARGO_MANIFEST_DIR")).join("target").join(name);
    let texts: Vec<&str> = files.iter().map(|(_, text)| *text).collect();
    let folder = parent.join(sha256_hex(texts.concat().as_bytes()));
    fs::create_dir_all(&parent).unwrap();
    let lock = File::create(parent.join("lock")).unwrap();
    lock.lock().unwrap();
    if folder.is_dir() {
        return folder;
    }
    let staging = parent.join("staging");
    if staging.exists() {
        fs::remove_dir_all(&staging).unwrap();
    }
    fs::create_dir(&staging).unwrap();
    for (file, text) in files {
        fs::write(staging.join(file), text).unwrap();
    }
    let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
    let arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
    run(Command::new(npm).args(arguments).current_dir(&staging));
    fs::rename(&staging, &folder).unwrap();
    folder
}

/// Runs a program of Node.js.
#[track_caller]
pub(crate) fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{}", describe(command, &error)));
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}:\n{text}");
}

/// Why a program of Node.js did not start.
pub(crate) fn describe(command: &Command, error: &std::io::Error) -> String {
    if error.kind() == ErrorKind::NotFound {
        let name = command.get_program().display();
        return format!("`{name}` was not found: install Node.js 20 or newer, https://nodejs.org");
    }
    format!("{command:?}: {error}")
}
