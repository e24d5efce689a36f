//! The progress of `turnwheel package`: on one line of a terminal, and nowhere else.

use std::process::Command;

use super::screen::ChatTerminal;
use crate::commands::{agent_folder, minimal_elf};

const PROGRESS: &str = "copying the program: ";
const ARGUMENTS: [&str; 5] = ["package", "--out", "dist", "--binary", "handler"];

fn project() -> tempfile::TempDir {
    let folder = agent_folder();
    std::fs::write(folder.path().join("handler"), minimal_elf()).unwrap();
    folder
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn package_shows_progress_that_the_report_replaces() {
    let folder = project();
    let mut terminal = ChatTerminal::start(folder.path(), &ARGUMENTS, &[("NO_COLOR", "1")]);
    assert_eq!(terminal.wait_for_exit().await, 0, "{}", terminal.text());
    let text = terminal.wait_for("Next: cd dist").await;
    assert!(text.starts_with("Packaged into dist"), "the line is removed: {text}");
    let output = String::from_utf8(terminal.bytes()).unwrap();
    assert!(output.contains(PROGRESS) && output.contains("checking the package"), "{output}");
    assert!(!output.contains('\u{1b}'), "no escape sequences: {output:?}");
}

#[test]
fn package_without_a_terminal_prints_no_progress() {
    let folder = project();
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnwheel"));
    let output = command.args(ARGUMENTS).current_dir(folder.path()).env_clear().output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
