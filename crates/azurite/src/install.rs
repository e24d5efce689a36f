//! Installs the pinned Azurite into a folder once: completely or not at all, even if several
//! processes start at the same time.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{AzuriteError, io_error};
use turnwheel_platform::digest::sha256_hex;

const PACKAGE: &str = include_str!("../../../azurite/package.json");
const PACKAGE_LOCK: &str = include_str!("../../../azurite/package-lock.json");

/// Path below the folder of an installation.
const MAIN_FILE: &str = "node_modules/azurite/dist/src/azurite.js";

/// Number of last output lines of a program in an error.
const ERROR_LINES_MAX: usize = 20;

/// Returns Azurite's main file in `folder`; installs it if necessary.
pub(super) fn find_or_install(
    folder: &Path,
    report: &dyn Fn(&str),
) -> Result<PathBuf, AzuriteError> {
    find_or_install_with(run_npm_ci, folder, report)
}

fn find_or_install_with(
    install: impl FnOnce(&Path) -> Result<(), AzuriteError>,
    folder: &Path,
    report: &dyn Fn(&str),
) -> Result<PathBuf, AzuriteError> {
    let target = folder.join(folder_name());
    let main = target.join(MAIN_FILE);
    // The folder gets its final name once it is complete.
    if main.is_file() {
        return Ok(main);
    }
    fs::create_dir_all(folder).map_err(io_error("make a folder"))?;
    let lock = File::options().create(true).truncate(false).write(true).open(folder.join("lock"));
    let lock = lock.map_err(io_error("open the lock file"))?;
    lock.lock().map_err(io_error("lock the folder"))?;
    if main.is_file() {
        return Ok(main);
    }
    // A unique name: an npm that outlived its starter may still write into an older one.
    let staging = folder.join(format!("staging-{}", std::process::id()));
    remove_remains(folder);
    report(&format!("Installing Azurite into {}; this is done once.", folder.display()));
    fs::create_dir_all(&staging).map_err(io_error("make a folder"))?;
    fs::write(staging.join("package.json"), PACKAGE).map_err(io_error("write package.json"))?;
    fs::write(staging.join("package-lock.json"), PACKAGE_LOCK)
        .map_err(io_error("write package-lock.json"))?;
    install(&staging)?;
    fs::rename(&staging, &target).map_err(io_error("rename the folder"))?;
    Ok(main)
}

/// The folder's name. It changes with the versions and hashes of everything installed.
fn folder_name() -> String {
    let hash = sha256_hex(PACKAGE_LOCK.as_bytes());
    format!("azurite-{}", hash.get(..12).unwrap_or_default())
}

/// Removes the remains of interrupted installations; a remnant that cannot be removed only uses
/// disk space.
fn remove_remains(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("staging-") {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let _ = fs::remove_dir_all(folder.join(folder_name()));
}

fn run_npm_ci(folder: &Path) -> Result<(), AzuriteError> {
    let program = if cfg!(windows) { "npm.cmd" } else { "npm" };
    // No scripts: nothing that is downloaded runs during the installation.
    let output = Command::new(program)
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(AzuriteError::NoNode("npm"));
        }
        Err(error) => return Err(io_error("start npm")(error)),
    };
    if output.status.success() && folder.join(MAIN_FILE).is_file() {
        return Ok(());
    }
    let output_text =
        String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = output_text.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(ERROR_LINES_MAX);
    Err(AzuriteError::Install(lines.get(first..).unwrap_or_default().join("\n")))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn make_main(folder: &Path) {
        fs::create_dir_all(folder.join(MAIN_FILE).parent().unwrap()).unwrap();
        fs::write(folder.join(MAIN_FILE), "").unwrap();
    }

    #[test]
    fn concurrent_installs_run_npm_once() {
        let folder = tempfile::tempdir().unwrap();
        let (installations, lines) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let install = |staging: &Path| {
                        installations.fetch_add(1, Ordering::SeqCst);
                        make_main(staging);
                        Ok(())
                    };
                    let report = |_: &str| {
                        lines.fetch_add(1, Ordering::SeqCst);
                    };
                    let main = find_or_install_with(install, folder.path(), &report).unwrap();
                    assert!(main.is_file());
                });
            }
        });
        assert_eq!((installations.into_inner(), lines.into_inner()), (1, 1));
    }

    #[test]
    fn interrupted_install_is_cleared_and_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::create_dir_all(path.join("staging-1/node_modules")).unwrap();
        fs::create_dir_all(path.join(folder_name()).join("node_modules")).unwrap();
        let error =
            find_or_install_with(|_| Err(AzuriteError::Install("cut".to_owned())), path, &|_| ());
        assert!(matches!(error, Err(AzuriteError::Install(_))));
        let install = |staging: &Path| {
            assert_eq!(fs::read_to_string(staging.join("package.json")).unwrap(), PACKAGE);
            make_main(staging);
            Ok(())
        };
        let main = find_or_install_with(install, path, &|_| ()).unwrap();
        assert!(main.is_file());
        let mut remaining: Vec<_> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        remaining.sort();
        assert_eq!(remaining, [folder_name().as_str(), "lock"]);
    }

    #[test]
    fn azurite_lock_file_pins_every_package() {
        let [package, lock] = [PACKAGE, PACKAGE_LOCK]
            .map(|text| serde_json::from_str::<serde_json::Value>(text).unwrap());
        let version = &package["dependencies"]["azurite"];
        assert_eq!(version, &lock["packages"]["node_modules/azurite"]["version"]);
        let packages = lock["packages"].as_object().unwrap();
        let unpinned: Vec<&String> = packages
            .iter()
            .filter(|(path, package)| !path.is_empty() && package["integrity"].is_null())
            .map(|(path, _)| path)
            .collect();
        assert!(unpinned.is_empty(), "{unpinned:?}");
    }
}
