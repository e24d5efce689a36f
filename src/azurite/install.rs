//! Installs the pinned Azurite into a folder once: completely or not at all, even if several
//! processes start at the same time.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{AzuriteError, failed};
use crate::tools::sha256_hex;

const PACKAGE: &str = include_str!("../../azurite/package.json");
const PACKAGE_LOCK: &str = include_str!("../../azurite/package-lock.json");

/// Path below the folder of an installation.
const MAIN: &str = "node_modules/azurite/dist/src/azurite.js";

/// Number of last output lines of a program in an error.
const LINES_TOLD_MAX: usize = 20;

/// Returns Azurite's main file in `folder`; installs it if necessary.
pub(super) fn installed(folder: &Path, tell: &dyn Fn(&str)) -> Result<PathBuf, AzuriteError> {
    installed_by(npm_ci, folder, tell)
}

fn installed_by(
    install: impl FnOnce(&Path) -> Result<(), AzuriteError>,
    folder: &Path,
    tell: &dyn Fn(&str),
) -> Result<PathBuf, AzuriteError> {
    let place = folder.join(name());
    let main = place.join(MAIN);
    // The folder gets its final name once it is complete.
    if main.is_file() {
        return Ok(main);
    }
    fs::create_dir_all(folder).map_err(failed("make a folder"))?;
    let lock = File::options().create(true).truncate(false).write(true).open(folder.join("lock"));
    let lock = lock.map_err(failed("open the lock file"))?;
    lock.lock().map_err(failed("lock the folder"))?;
    if main.is_file() {
        return Ok(main);
    }
    // A unique name: an npm that outlived its starter may still write into an older one.
    let staging = folder.join(format!("staging-{}", std::process::id()));
    clear(folder);
    tell(&format!("Installing Azurite into {}; this is done once.", folder.display()));
    fs::create_dir_all(&staging).map_err(failed("make a folder"))?;
    fs::write(staging.join("package.json"), PACKAGE).map_err(failed("write package.json"))?;
    fs::write(staging.join("package-lock.json"), PACKAGE_LOCK)
        .map_err(failed("write package-lock.json"))?;
    install(&staging)?;
    fs::rename(&staging, &place).map_err(failed("rename the folder"))?;
    Ok(main)
}

/// The folder's name. It changes with the versions and hashes of everything installed.
fn name() -> String {
    let hash = sha256_hex(PACKAGE_LOCK.as_bytes());
    format!("azurite-{}", hash.get(..12).unwrap_or_default())
}

/// Removes the remains of interrupted installations; a remnant that cannot be removed only uses
/// disk space.
fn clear(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("staging-") {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let _ = fs::remove_dir_all(folder.join(name()));
}

fn npm_ci(folder: &Path) -> Result<(), AzuriteError> {
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
        Err(error) => return Err(failed("start npm")(error)),
    };
    if output.status.success() && folder.join(MAIN).is_file() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(LINES_TOLD_MAX);
    Err(AzuriteError::Install(lines.get(first..).unwrap_or_default().join("\n")))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn make_main(folder: &Path) {
        fs::create_dir_all(folder.join(MAIN).parent().unwrap()).unwrap();
        fs::write(folder.join(MAIN), "").unwrap();
    }

    #[test]
    fn of_many_at_once_one_installs_and_says_so() {
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
                    let tell = |_: &str| {
                        lines.fetch_add(1, Ordering::SeqCst);
                    };
                    let main = installed_by(install, folder.path(), &tell).unwrap();
                    assert!(main.is_file());
                });
            }
        });
        assert_eq!((installations.into_inner(), lines.into_inner()), (1, 1));
    }

    #[test]
    fn what_an_interrupted_installation_left_is_cleared_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::create_dir_all(path.join("staging-1/node_modules")).unwrap();
        fs::create_dir_all(path.join(name()).join("node_modules")).unwrap();
        let failed = installed_by(|_| Err(AzuriteError::Install("cut".to_owned())), path, &|_| ());
        assert!(matches!(failed, Err(AzuriteError::Install(_))));
        let install = |staging: &Path| {
            assert_eq!(fs::read_to_string(staging.join("package.json")).unwrap(), PACKAGE);
            make_main(staging);
            Ok(())
        };
        let main = installed_by(install, path, &|_| ()).unwrap();
        assert!(main.is_file());
        let mut left: Vec<_> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [name().as_str(), "lock"]);
    }

    #[test]
    fn the_lock_file_pins_what_package_json_names() {
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
