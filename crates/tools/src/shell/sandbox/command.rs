//! Last stage of the sandbox: gives up all rights and executes the shell.

use std::io::{self, Write};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{close, setsid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
};

use super::frame::{SandboxCommand, read_header};
use super::{WORKSPACE, syscalls};
use crate::shell::ShellLimits;

const OPEN_FILES: u64 = 256;
/// Address space of one process, as a multiple of the memory of all.
const ADDRESS_SPACE_FACTOR: u64 = 2;
/// Exit code of a shell for a command that cannot be executed.
const NOT_EXECUTED: u8 = 126;

pub(super) fn run() -> ExitCode {
    let cause = match restrict() {
        Ok(request) => execute(&request),
        Err(error) => error,
    };
    let _ = writeln!(io::stderr(), "the sandbox could not start the command: {cause}");
    ExitCode::from(NOT_EXECUTED)
}

/// Everything that precedes the execution; the request is read first.
fn restrict() -> io::Result<SandboxCommand> {
    let request: SandboxCommand = read_header(&mut io::stdin().lock())?;
    setsid()?;
    std::fs::write("/proc/self/oom_score_adj", "1000")?;
    set_limits(&request.limits)?;
    close_inherited_files()?;
    prctl::set_no_new_privs()?;
    drop_capabilities()?;
    syscalls::restrict().map_err(io::Error::other)?;
    Ok(request)
}

fn set_limits(limits: &ShellLimits) -> io::Result<()> {
    for (resource, value) in [
        (Resource::RLIMIT_CPU, limits.time.as_secs().saturating_add(1)),
        (Resource::RLIMIT_NPROC, limits.processes),
        (Resource::RLIMIT_FSIZE, limits.workspace_bytes),
        (Resource::RLIMIT_NOFILE, OPEN_FILES),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_AS, limits.memory_bytes.saturating_mul(ADDRESS_SPACE_FACTOR)),
    ] {
        setrlimit(resource, value, value)?;
    }
    Ok(())
}

fn close_inherited_files() -> io::Result<()> {
    let open = std::fs::read_dir("/proc/self/fd")?;
    let open: Vec<i32> =
        open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for file in open.into_iter().filter(|file| *file > 2) {
        // The one that listed them is closed already.
        let _ = close(file);
    }
    Ok(())
}

/// Without capabilities in the bounding set, an executed program gains none, although the user is
/// root within the sandbox.
fn drop_capabilities() -> io::Result<()> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The kernel knows no further ones.
            Err(rustix::io::Errno::INVAL) if number > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    let none = CapabilitySet::empty();
    Ok(set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )?)
}

/// Returns only if the shell cannot be executed.
fn execute(request: &SandboxCommand) -> io::Error {
    let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    Command::new(shell)
        .arg("-c")
        .arg(&request.command)
        .current_dir(Path::new(WORKSPACE).join(&request.folder))
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .env("HOME", WORKSPACE)
        .env("LANG", "C.UTF-8")
        .stdin(Stdio::null())
        .exec()
}
