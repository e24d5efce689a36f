//! The program that is staged: the running one, or a release build that lies where Cargo puts it.

use std::fs;
use std::path::{Path, PathBuf};

use super::{BINARY, Order, PackageError, Staged, io_error};
use crate::host::program;

/// Where Cargo puts release builds: for Azure's system by name, and for this machine.
const RELEASES: [&str; 3] = [
    "target/x86_64-unknown-linux-gnu/release",
    "target/x86_64-unknown-linux-musl/release",
    "target/release",
];

/// Copies it, executable; with warnings about it.
pub(super) fn stage(
    order: &Order<'_>,
    stage: &Path,
) -> Result<(Staged, Vec<String>), PackageError> {
    let running = std::env::current_exe().map_err(io_error("find", Path::new(BINARY)))?;
    let source = match order.binary {
        Some(path) => order.root.join(path),
        None => chosen(order.root, &running, cfg!(debug_assertions)),
    };
    let mut warnings = Vec::new();
    if cfg!(debug_assertions) && source == running {
        warnings.push(
            "the program is a debug build: `cargo build --release`, then package again".to_owned(),
        );
    }
    let target = stage.join(BINARY);
    let size_bytes = fs::copy(&source, &target).map_err(io_error("copy", &source))?;
    make_executable(&target)?;
    let mut note = "executable".to_owned();
    // A program that does not fit is refused with the whole folder.
    if let Ok(needs) = program::needs(&target) {
        note = format!("{note}, {needs}");
        warnings.extend(needs.warning().map(|text| format!("the program: {text}")));
    }
    if source != running {
        let shown = source.strip_prefix(order.root).unwrap_or(&source);
        note = format!("{note}, from {}", shown.display());
    }
    Ok((Staged { path: BINARY.to_owned(), size_bytes, note }, warnings))
}

/// The running program, if it is a release build that Azure can start; else the newest such build that there is, so that
/// `cargo run -- package` and machines with another system package what was built for Azure.
fn chosen(root: &Path, running: &Path, is_debug: bool) -> PathBuf {
    if !is_debug && program::needs(running).is_ok() {
        return running.to_owned();
    }
    // Of an own product this is its name; on Windows it ends with `.exe`.
    let name = running.file_stem().unwrap_or(BINARY.as_ref());
    let builds = RELEASES.iter().map(|folder| root.join(folder).join(name));
    let fitting = builds.filter(|build| program::needs(build).is_ok());
    let newest =
        fitting.max_by_key(|build| fs::metadata(build).and_then(|facts| facts.modified()).ok());
    newest.unwrap_or(running.to_owned())
}

/// Elsewhere the execute bit does not exist; the tools set it when they upload.
#[cfg(unix)]
pub(super) fn make_executable(path: &Path) -> Result<(), PackageError> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .map_err(io_error("make executable", path))
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "the other platforms can fail")]
pub(super) fn make_executable(_path: &Path) -> Result<(), PackageError> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::host::program::sample::Sample;

    #[test]
    fn a_release_build_is_taken_and_of_several_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let build = |path: &str, program: &Sample, age_s: u64| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, program.bytes()).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age_s);
            fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            path
        };
        let fits = Sample::default();
        let too_new = Sample { versions: &["GLIBC_2.39"], ..fits };
        let debug = build("target/debug/turnwheel", &fits, 0);
        assert_eq!(chosen(root, &debug, true), debug, "there is no other");
        build("target/release/turnwheel", &too_new, 0);
        assert_eq!(chosen(root, &debug, true), debug, "the other does not fit");
        let musl = build("target/x86_64-unknown-linux-musl/release/turnwheel", &fits, 9);
        assert_eq!(chosen(root, &debug, true), musl);
        let gnu = build("target/x86_64-unknown-linux-gnu/release/turnwheel", &fits, 5);
        assert_eq!(chosen(root, &debug, true), gnu);
        let running = build("target/release/turnwheel", &fits, 99);
        assert_eq!(chosen(root, &running, false), running, "it can be started: it is meant");
        let windows = build("elsewhere/turnwheel.exe", &too_new, 0);
        assert_eq!(chosen(root, &windows, false), gnu);
    }
}
