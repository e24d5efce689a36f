//! Archives of a release: the npm packages and the wheel are built from this program, installed into empty folders, and run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::dev_process::DevProcess;
use crate::support::npm::run;
use crate::support::openapi_check::SendValidated as _;

const TARGET: &str = "x86_64-unknown-linux-gnu";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const TIMEOUT: Duration = Duration::from_mins(1);

/// Builds the archives of this program without its symbols.
pub(crate) fn build_archives(folder: &Path) -> PathBuf {
    let (program, out) = (folder.join("turnwheel"), folder.join("archives"));
    run(Command::new("strip").arg("-o").arg(&program).arg(env!("CARGO_BIN_EXE_turnwheel")));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/build.py");
    run(Command::new("python3")
        .arg(script)
        .args(["--level", "1", "--version", VERSION, "--out"])
        .arg(&out)
        .arg(format!("{TARGET}={}", program.display())));
    out
}

/// Installs the npm packages into a new folder. Returns the archive with the program.
pub(crate) fn install_npm_packages(archives: &Path, npm: &Path) -> PathBuf {
    fs::create_dir(npm).unwrap();
    fs::write(npm.join("package.json"), "{}").unwrap();
    let of_system = archives.join(format!("turnwheel-linux-x64-{VERSION}.tgz"));
    // The packages of other systems are not in a registry here.
    run(Command::new("npm")
        .args(["install", "--offline", "--omit=optional", "--no-audit", "--no-fund"])
        .args([&of_system, &archives.join(format!("turnwheel-{VERSION}.tgz"))])
        .current_dir(npm));
    of_system
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the installed program in a folder with an agent.
async fn check_program(program: &Path, folder: &Path) {
    let version = output(Command::new(program).arg("--version"));
    assert!(version.contains(VERSION) && version.contains(TARGET), "{version}");
    fs::create_dir(folder.join("agents")).unwrap();
    fs::write(folder.join("agents/assistant.agent.md"), "Be kind.").unwrap();
    let data = tempfile::tempdir().unwrap();
    let mut dev = DevProcess::start_installed(program, folder, data.path());
    let request = reqwest::Client::new().get(dev.url("/api/agents")).timeout(TIMEOUT);
    let text = request.send_validated().await.unwrap().text().await.unwrap();
    assert!(text.contains("assistant"), "{text}");
    let status = dev.interrupt(TIMEOUT).expect("Ctrl-C must end it");
    assert!(status.success(), "{status}: {}", dev.whole_log());
}

/// The program for Azure that another system would package.
fn check_linux_program(printed: &str) {
    let program = printed.split_whitespace().last().unwrap();
    let version = output(Command::new(program).arg("--version"));
    assert!(version.contains(TARGET), "{version}");
}

#[tokio::test]
async fn installed_archives_run() {
    let folder = tempfile::tempdir().unwrap();
    let archives = build_archives(folder.path());
    let names: Vec<_> =
        fs::read_dir(&archives).unwrap().map(|it| it.unwrap().file_name()).collect();
    let sums = fs::read_to_string(archives.join("SHA256SUMS")).unwrap();
    assert_eq!(sums.lines().count() + 1, names.len(), "{sums}");
    run(Command::new("sha256sum")
        .args(["--check", "--quiet", "SHA256SUMS"])
        .current_dir(&archives));
    let (npm, cache) = (folder.path().join("npm"), folder.path().join("cache"));
    let of_system = install_npm_packages(&archives, &npm);
    check_program(&npm.join("node_modules/.bin/turnwheel"), &npm).await;
    let script = "import('turnwheel/program.mjs').then(async (it) => console.log((await it.addLinuxProgram(['package', '--out', 'dist'], 'darwin-arm64')).join(' ')))";
    check_linux_program(&output(
        Command::new("node")
            .args(["-e", script])
            .current_dir(&npm)
            .env("XDG_CACHE_HOME", &cache)
            .env("TURNWHEEL_LINUX_PACKAGE", &of_system),
    ));

    let python = folder.path().join("python");
    run(Command::new("python3").args(["-m", "venv"]).arg(&python));
    let wheel = names.iter().find(|name| name.to_string_lossy().ends_with(".whl")).unwrap();
    let wheel = archives.join(wheel);
    run(Command::new(python.join("bin/pip"))
        .args(["install", "--quiet", "--no-index", "--disable-pip-version-check"])
        .arg(&wheel));
    check_program(&python.join("bin/turnwheel"), &python).await;
    let script =
        "import turnwheel; print(*turnwheel.add_linux_program(['package'], 'Darwin-arm64'))";
    check_linux_program(&output(
        Command::new(python.join("bin/python"))
            .args(["-c", script])
            .env("XDG_CACHE_HOME", folder.path().join("cache-of-python"))
            .env("TURNWHEEL_LINUX_PACKAGE", &wheel),
    ));
}
