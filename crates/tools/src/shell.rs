//! Shell tools: the port of their runners. A runner executes one command on a copy of the
//! workspace, apart from this process and its machine, and returns the files that the command
//! changed.

mod command_rules;
#[cfg(target_os = "linux")]
pub mod sandbox;
pub mod sessions;
pub mod tool;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::destination::BoundDestination;
use turnwheel_platform::ids::ConversationKey;

/// Limits of one command. A runner enforces all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellLimits {
    pub time: Duration,
    /// Of all processes of the command together, with the files that they write.
    pub memory_bytes: u64,
    pub processes: u64,
    /// Bytes of output that the result keeps.
    pub output_bytes: u64,
    /// Bytes of output after which the command is ended.
    pub flood_bytes: u64,
    /// Bytes of one file that returns to the workspace.
    pub file_bytes: u64,
    /// Bytes of all files in the command's workspace.
    pub workspace_bytes: u64,
    /// Files and folders in the command's workspace.
    pub files: u64,
}

impl Default for ShellLimits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(30),
            memory_bytes: 512 * 1024 * 1024,
            processes: 64,
            output_bytes: 64 * 1024,
            flood_bytes: 16 * 1024 * 1024,
            file_bytes: 10 * 1024 * 1024,
            workspace_bytes: 100 * 1024 * 1024,
            files: 5_000,
        }
    }
}

/// One command and the files that it starts with.
#[derive(Clone)]
pub struct ShellRequest {
    /// A runner that keeps sessions derives a session's identifier from it. Two conversations never
    /// share a session.
    pub conversation: ConversationKey,
    /// Text for `bash -c`.
    pub command: String,
    /// Folder below the workspace in which the command starts; empty: the workspace itself. It
    /// exists if a file of `files` is below it.
    pub folder: String,
    /// Workspace paths and contents. No path begins with `/` or has a segment `..`.
    pub files: BTreeMap<String, Bytes>,
    pub limits: ShellLimits,
    /// Cancelled if the prompt is aborted. The runner then ends the command and returns
    /// [`ShellCommandEnd::Aborted`].
    pub abort: CancellationToken,
}

impl ShellRequest {
    /// A request of the default limits, without files and abort.
    pub fn new(conversation: ConversationKey, command: String) -> Self {
        Self {
            conversation,
            command,
            folder: String::new(),
            files: BTreeMap::new(),
            limits: ShellLimits::default(),
            abort: CancellationToken::new(),
        }
    }
}

impl fmt::Debug for ShellRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShellRequest")
            .field("files", &self.files.len())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// End of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShellCommandEnd {
    /// 128 plus the number of the signal if a signal ended the command, as a shell reports it.
    Exited(i32),
    TimeLimit,
    MemoryLimit,
    OutputLimit,
    Aborted,
}

/// Result of a command that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellOutcome {
    pub end: ShellCommandEnd,
    /// Standard output and standard error in the order of their writes; at most
    /// [`ShellLimits::output_bytes`], the last ones.
    pub output: Bytes,
    /// Bytes of output before `output` that were discarded.
    pub dropped_bytes: u64,
    /// Without a reading of the whole workspace there are no changes.
    pub changes: Result<WorkspaceChanges, String>,
}

/// Differences of the workspace before and after a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceChanges {
    /// New files and files with another content.
    pub written: BTreeMap<String, Bytes>,
    pub deleted: BTreeSet<String>,
    /// Entries that the workspace cannot hold, with the reasons.
    pub refused: BTreeMap<String, RefusalReason>,
    /// Refused entries beyond those of `refused`, which is bounded.
    pub further_refused: u64,
}

/// Reason why an entry of the command's workspace does not return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalReason {
    SymbolicLink,
    /// A device, a socket or a pipe.
    SpecialFile,
    TooLarge,
    /// The name is not UTF-8, or no path of a workspace.
    InvalidName,
    TooManyFiles,
}

/// A command that did not run, or whose result is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShellError {
    /// The command did not start, or had no effect. The text names the cause and the remedy.
    #[error("{0}")]
    Unavailable(String),
    /// The command started and its result is lost. It may have had an effect.
    #[error("{0}")]
    Lost(String),
}

/// Port of a runner. Dropping the future ends the command.
#[async_trait]
pub trait ShellRunner: Send + Sync + fmt::Debug {
    /// The place in which commands run.
    fn destination(&self) -> BoundDestination {
        BoundDestination::shell(None)
    }

    /// # Errors
    /// There is no result: see [`ShellError`].
    async fn run(&self, request: ShellRequest) -> Result<ShellOutcome, ShellError>;
}
