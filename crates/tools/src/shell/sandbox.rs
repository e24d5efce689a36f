//! Sandbox of shell commands on Linux: three hidden stages of this program, each started by the
//! previous one. `outer` creates the namespaces, `init` is their first process with a root of its
//! own, and `command` gives up all rights and executes the shell.

mod changes;
mod command;
mod frame;
mod init;
mod outer;
mod root;
mod runner;
mod syscalls;
mod usage;

use std::process::ExitCode;

pub use runner::SandboxRunner;

/// Hidden command that runs a stage.
pub const COMMAND: &str = "shell-sandbox";

/// The program of every stage: this one, even if its file has been replaced.
const THIS_PROGRAM: &str = "/proc/self/exe";
const WORKSPACE: &str = "/workspace";
const TEMP: &str = "/tmp";
/// Bytes of `/tmp`.
const TEMP_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stage {
    Outer,
    Init,
    Command,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Outer => "outer",
            Self::Init => "init",
            Self::Command => "command",
        }
    }
}

/// Runs a stage. The process must have one thread.
pub fn run_stage(stage: Stage) -> ExitCode {
    match stage {
        Stage::Outer => outer::run(),
        Stage::Init => init::run(),
        Stage::Command => command::run(),
    }
}

/// Text for a step of the set-up that failed: the cause and the remedy.
fn setup_error(step: &str, cause: &dyn std::fmt::Display) -> String {
    format!(
        "the sandbox for commands could not be set up: {step}: {cause}. It needs unprivileged user namespaces of Linux. \
         Allow them: `sysctl user.max_user_namespaces=10000`; on Debian also `sysctl kernel.unprivileged_userns_clone=1`, \
         on Ubuntu `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, in a container a seccomp profile that permits \
         `unshare` and `mount`. Or set TURNWHEEL_SHELL=off"
    )
}
