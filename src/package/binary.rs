//! The program of a package: the running one, or a release build in Cargo's target folders.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::{BINARY, PackageError, PackageOptions, StagedFile, io_error};
use turnwheel_devhost::program;

/// Cargo's folders of release builds: for Azure's system by name, and for this machine.
const RELEASE_FOLDERS: [&str; 3] = [
    "target/x86_64-unknown-linux-gnu/release",
    "target/x86_64-unknown-linux-musl/release",
    "target/release",
];

const MB: u64 = 1_000_000;
const PIECE_BYTES: u64 = 4 * MB;

/// Copies the program and makes it executable. Returns it with warnings.
pub(super) fn stage_program(
    options: &PackageOptions<'_>,
    stage: &Path,
) -> Result<(StagedFile, Vec<String>), PackageError> {
    let running = std::env::current_exe().map_err(io_error("find", Path::new(BINARY)))?;
    let source = match options.binary {
        Some(path) => options.root.join(path),
        None => choose_program(options.root, &running, cfg!(debug_assertions)),
    };
    let mut warnings = Vec::new();
    if cfg!(debug_assertions) && source == running {
        warnings.push(
            "the program is a debug build: `cargo build --release`, then package again".to_owned(),
        );
    }
    let target = stage.join(BINARY);
    let size_bytes = copy(&source, &target, options.progress).map_err(io_error("copy", &source))?;
    make_executable(&target)?;
    let mut note = "executable".to_owned();
    // The check of the whole folder rejects a program that does not fit.
    if let Ok(needs) = program::read_requirements(&target) {
        note = format!("{note}, {needs}");
        warnings.extend(needs.warning().map(|text| format!("the program: {text}")));
    }
    if source != running {
        let source_name = source.strip_prefix(options.root).unwrap_or(&source);
        note = format!("{note}, from {}", source_name.display());
    }
    Ok((StagedFile { path: BINARY.to_owned(), size_bytes, note }, warnings))
}

/// Copies a large file in pieces, each of which is progress.
fn copy(source: &Path, target: &Path, progress: fn(&str)) -> io::Result<u64> {
    let (mut from, mut to) = (fs::File::open(source)?, fs::File::create(target)?);
    let total = from.metadata()?.len();
    let mut done = 0;
    loop {
        progress(&format!("copying the program: {} of {} MB", done / MB, total / MB));
        let copied = io::copy(&mut from.by_ref().take(PIECE_BYTES), &mut to)?;
        done += copied;
        if copied == 0 {
            return Ok(done);
        }
    }
}

/// Returns the running program if it is a release build that Azure can start; else the newest such
/// build. Thus `cargo run -- package` and machines with another system package a build for Azure.
fn choose_program(root: &Path, running: &Path, is_debug: bool) -> PathBuf {
    if !is_debug && program::read_requirements(running).is_ok() {
        return running.to_owned();
    }
    // The name of another product's program; on Windows it ends with `.exe`.
    let name = running.file_stem().unwrap_or(BINARY.as_ref());
    let builds = RELEASE_FOLDERS.iter().map(|folder| root.join(folder).join(name));
    let suitable = builds.filter(|build| program::read_requirements(build).is_ok());
    let newest = suitable
        .max_by_key(|build| fs::metadata(build).and_then(|metadata| metadata.modified()).ok());
    newest.unwrap_or(running.to_owned())
}

/// Other systems have no execute bit; the tools set it when they upload.
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
    use turnwheel_devhost::program::sample::SampleElf;

    #[test]
    fn program_choice_prefers_newest_suitable_release_build() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let build = |path: &str, program: &SampleElf, age_s: u64| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, program.to_bytes()).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age_s);
            fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            path
        };
        let fits = SampleElf::default();
        let too_new = SampleElf { versions: &["GLIBC_2.39"], ..fits };
        let debug = build("target/debug/turnwheel", &fits, 0);
        assert_eq!(choose_program(root, &debug, true), debug, "no other build exists");
        build("target/release/turnwheel", &too_new, 0);
        assert_eq!(choose_program(root, &debug, true), debug, "Azure cannot start the other build");
        let musl = build("target/x86_64-unknown-linux-musl/release/turnwheel", &fits, 9);
        assert_eq!(choose_program(root, &debug, true), musl);
        let gnu = build("target/x86_64-unknown-linux-gnu/release/turnwheel", &fits, 5);
        assert_eq!(choose_program(root, &debug, true), gnu);
        let running = build("target/release/turnwheel", &fits, 99);
        assert_eq!(
            choose_program(root, &running, false),
            running,
            "a suitable running program takes precedence"
        );
        let windows = build("elsewhere/turnwheel.exe", &too_new, 0);
        assert_eq!(choose_program(root, &windows, false), gnu);
    }
}
