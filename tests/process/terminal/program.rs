//! Runs a command of the terminal to its end, without a terminal.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// The end of a command.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Finished {
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap()
    }

    pub(super) fn json_lines(&self) -> Vec<serde_json::Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn finish(mut command: Command, input: &str) -> Finished {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads no input may have ended.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs `turnwheel` with these arguments.
pub(super) fn run(arguments: &[&str], input: &str) -> Finished {
    run_with(arguments, &[], input)
}

pub(super) fn run_with(arguments: &[&str], variables: &[(&str, &str)], input: &str) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnwheel"));
    command.args(arguments).env_clear().envs(variables.iter().copied());
    finish(command, input)
}

/// Runs a command line in a shell that finds `turnwheel`, as a user would.
pub(super) fn run_in_shell(line: &str) -> Finished {
    let folder = Path::new(env!("CARGO_BIN_EXE_turnwheel")).parent().unwrap();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]).env_clear().env("PATH", folder);
    finish(command, "")
}
