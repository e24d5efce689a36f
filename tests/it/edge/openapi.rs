//! Test that a TypeScript client generated from the OpenAPI document compiles.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::test_app::TestApp;
use crate::support::npm::{install_pinned, run};

const PACKAGE: &str = include_str!("../../../typescript/package.json");
const PACKAGE_LOCK: &str = include_str!("../../../typescript/package-lock.json");
const CLIENT: &str = include_str!("../../../typescript/client.ts");

fn install_typescript_tools() -> PathBuf {
    let files = [("package.json", PACKAGE), ("package-lock.json", PACKAGE_LOCK)];
    install_pinned("typescript", &files)
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
