//! First stage of the sandbox: creates the namespaces and starts their first process.

use std::process::{Command, ExitCode, Stdio};

use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use super::frame::{ResponseHeader, write_header};
use super::{COMMAND, Stage, THIS_PROGRAM, setup_error};

/// The user `nobody` of the machine, which the sandbox has if this program runs as root.
const NOBODY: u32 = 65_534;

pub(super) fn run() -> ExitCode {
    match start_init() {
        Ok(code) => code,
        Err(text) => {
            let response = ResponseHeader::Unavailable(text);
            let _ = write_header(&mut std::io::stdout().lock(), &response);
            ExitCode::FAILURE
        }
    }
}

fn start_init() -> Result<ExitCode, String> {
    if Uid::effective().is_root() {
        give_up_root().map_err(|error| setup_error("change the user", &error))?;
    }
    let (user, group) = (Uid::effective(), Gid::effective());
    let namespaces = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    unshare(namespaces).map_err(|error| setup_error("create namespaces", &error))?;
    for (file, text) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("0 {user} 1")),
        ("/proc/self/gid_map", format!("0 {group} 1")),
    ] {
        std::fs::write(file, text).map_err(|error| setup_error(file, &error))?;
    }
    // The process is the first one of the new process namespace: when it ends, so do all others.
    let status = Command::new(THIS_PROGRAM)
        .args([COMMAND, Stage::Init.name()])
        .env_clear()
        .stderr(Stdio::null())
        .status()
        .map_err(|error| setup_error("start its first process", &error))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Limits on the number of processes do not apply to root.
fn give_up_root() -> nix::Result<()> {
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setgroups(&[])?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    // Else the files of `/proc/self` belong to root.
    prctl::set_dumpable(true)
}
