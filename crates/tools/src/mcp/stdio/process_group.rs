//! The processes of a program.

use std::io;

use tokio::process::{Child, Command};

/// Informs a program that it has a group of its own, which it ends with itself: this process cannot do that
/// after a kill.
const OWN_GROUP: &str = "TURNWHEEL_TOOLS_OWN_GROUP";

/// A program and the processes that it has started. They are killed when this is dropped.
pub(super) struct ProcessGroup {
    /// `None`: the system has no process groups.
    #[cfg(unix)]
    leader: Option<rustix::process::Pid>,
}

/// Starts a program in a group of its own. So Ctrl-C in a terminal does not end it, and a call under way is
/// completed.
///
/// # Errors
/// The program cannot be started.
pub(super) fn spawn(command: &mut Command) -> io::Result<(Child, ProcessGroup)> {
    #[cfg(unix)]
    command.env(OWN_GROUP, "1").process_group(0);
    let child = command.spawn()?;
    #[cfg(unix)]
    let leader = child.id().and_then(|id| i32::try_from(id).ok());
    let group = ProcessGroup {
        #[cfg(unix)]
        leader: leader.and_then(rustix::process::Pid::from_raw),
    };
    Ok((child, group))
}

#[cfg(unix)]
impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.leader {
            // All have ended already, if it fails.
            let _ = rustix::process::kill_process_group(leader, rustix::process::Signal::KILL);
        }
    }
}
