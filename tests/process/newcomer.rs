//! The path of a newcomer without Rust: the npm archive, a project with tools in Python, and the console in a browser.

use std::process::Command;

use crate::archives::{build_archives, install_npm_packages};
use crate::console::run_journeys;
use crate::new_project::{python_env, set_program_env};
use crate::support::dev_process::DevProcess;
use crate::support::npm::run;

#[tokio::test]
async fn newcomer_gets_from_archive_to_receipt() {
    let folder = tempfile::tempdir().unwrap();
    let archives = build_archives(folder.path());
    let npm = folder.path().join("npm");
    install_npm_packages(&archives, &npm);
    let new = ["new", "shop", "--template", "python-tools"];
    run(Command::new(npm.join("node_modules/.bin/turnwheel")).args(new).current_dir(folder.path()));
    let project = folder.path().join("shop");
    set_program_env(&project, python_env());
    // The program itself and not its script: a failed test ends it by SIGKILL, which a script does not pass on.
    let program = npm.join("node_modules/@turnwheel/linux-x64/bin/turnwheel");
    let dev = DevProcess::start_supervised_program(&program, &project, &project.join("data"));
    dev.wait_for_log(&["tool program started", "server=shop"]).await;
    run_journeys(&dev, "newcomer");
}
