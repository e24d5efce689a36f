//! Test that a TypeScript client generated from the OpenAPI document compiles.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use turnwheel::testing::tools::sha256_hex;

use super::test_app::TestApp;

const PACKAGE: &str = include_str!("../../../typescript/package.json");
const PACKAGE_LOCK: &str = include_str!("../../../typescript/package-lock.json");
const CLIENT: &str = include_str!("../../../typescript/client.ts");

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}:\n{text}");
}

/// Installs the pinned generator and compiler once. The folder gets its final name when it is
/// complete.
fn install_typescript_tools() -> PathBuf {
    let parent = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/typescript");
    let folder = parent.join(sha256_hex(PACKAGE_LOCK.as_bytes()));
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
    fs::write(staging.join("package.json"), PACKAGE).unwrap();
    fs::write(staging.join("package-lock.json"), PACKAGE_LOCK).unwrap();
    let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
    let arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
    run(Command::new(npm).args(arguments).current_dir(&staging));
    fs::rename(&staging, &folder).unwrap();
    folder
}

#[tokio::test]
async fn generated_typescript_client_compiles() {
    let app = TestApp::new();
    let description = app.get("/api/openapi.json").send().await.expect_status(200).text;
    let tools = install_typescript_tools().join("node_modules");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("openapi.json"), description).unwrap();
    fs::write(folder.path().join("client.ts"), CLIENT).unwrap();
    let node = || {
        let mut node = Command::new("node");
        node.current_dir(folder.path());
        node
    };
    let generator = tools.join("openapi-typescript/bin/cli.js");
    run(node().arg(generator).args(["openapi.json", "--output", "api.ts"]));
    let compiler = tools.join("typescript/bin/tsc");
    run(node()
        .arg(compiler)
        .args(["--noEmit", "--strict", "--target", "es2022", "--module", "esnext"])
        .args(["--moduleResolution", "bundler", "client.ts"]));
}
