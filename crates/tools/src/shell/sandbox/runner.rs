//! Runner that starts the sandbox and exchanges messages with it.

use std::io::Cursor;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use super::frame::{
    ChangesHeader, RequestHeader, ResponseHeader, read_body, read_header, write_header,
};
use super::{COMMAND, Stage, THIS_PROGRAM};
use crate::shell::{
    ShellCommandEnd, ShellError, ShellLimits, ShellOutcome, ShellRequest, ShellRunner,
    WorkspaceChanges,
};

/// Time for the set-up and for the files, in addition to that of the command.
const MARGIN: Duration = Duration::from_secs(20);
/// Bytes of a response in addition to its files and output.
const RESPONSE_MARGIN: u64 = 32 * 1024 * 1024;

/// Runner of the local sandbox.
#[derive(Clone, Debug)]
pub struct SandboxRunner {
    program: PathBuf,
}

impl Default for SandboxRunner {
    fn default() -> Self {
        Self::new()
    }
}

impl SandboxRunner {
    /// This program, which must run `turnwheel::App::main`.
    pub fn new() -> Self {
        Self { program: PathBuf::from(THIS_PROGRAM) }
    }

    async fn exchange(&self, request: &ShellRequest) -> Result<ShellOutcome, ShellError> {
        let mut child = Command::new(&self.program)
            .args([COMMAND, Stage::Outer.name()])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| unavailable(&error))?;
        // The sandbox ends when this end of the pipe is closed, also by the end of this process.
        let input = child.stdin.take();
        let write = async {
            let mut input = input?;
            // If the sandbox has ended, its response has the reason.
            let _ = write_request(&mut input, request).await;
            Some(input)
        };
        let most = request.limits.workspace_bytes + request.limits.output_bytes + RESPONSE_MARGIN;
        let (input, response) = tokio::join!(write, read_response(&mut child, most));
        drop(input);
        let response = response.map_err(|error| unavailable(&error))?;
        let _ = child.wait().await;
        let limits = request.limits.clone();
        tokio::task::spawn_blocking(move || parse_response(&response, &limits))
            .await
            .map_err(|error| unavailable(&error))?
    }
}

fn unavailable(cause: &dyn std::fmt::Display) -> ShellError {
    ShellError::Unavailable(format!(
        "the sandbox ended without a result ({cause}). The workspace is unchanged; try again"
    ))
}

async fn write_request(
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
    request: &ShellRequest,
) -> std::io::Result<()> {
    let files = request.files.iter();
    let header = RequestHeader {
        command: request.command.clone(),
        folder: request.folder.clone(),
        limits: request.limits.clone(),
        files: files.map(|(path, bytes)| (path.clone(), bytes.len() as u64)).collect(),
    };
    let mut start = Vec::new();
    write_header(&mut start, &header)?;
    to.write_all(&start).await?;
    for bytes in request.files.values() {
        to.write_all(bytes).await?;
    }
    to.flush().await
}

async fn read_response(child: &mut Child, most: u64) -> std::io::Result<Vec<u8>> {
    let mut response = Vec::new();
    if let Some(output) = child.stdout.take() {
        output.take(most).read_to_end(&mut response).await?;
    }
    Ok(response)
}

fn parse_response(response: &[u8], limits: &ShellLimits) -> Result<ShellOutcome, ShellError> {
    let mut from = Cursor::new(response);
    let failed = |error: std::io::Error| unavailable(&error);
    let finished = match read_header(&mut from).map_err(failed)? {
        ResponseHeader::Unavailable(text) => return Err(ShellError::Unavailable(text)),
        ResponseHeader::Finished(finished) => finished,
    };
    let output =
        read_body(&mut from, finished.output_bytes, limits.output_bytes).map_err(failed)?;
    let changes = match finished.changes {
        Ok(header) => Ok(read_changes(header, &mut from, limits).map_err(failed)?),
        Err(text) => Err(text),
    };
    let dropped_bytes = finished.dropped_bytes;
    Ok(ShellOutcome { end: finished.end, output, dropped_bytes, changes })
}

fn read_changes(
    header: ChangesHeader,
    from: &mut Cursor<&[u8]>,
    limits: &ShellLimits,
) -> std::io::Result<WorkspaceChanges> {
    let mut changes = WorkspaceChanges {
        deleted: header.deleted,
        refused: header.refused,
        further_refused: header.further_refused,
        ..WorkspaceChanges::default()
    };
    for (path, size) in header.written {
        changes.written.insert(path, read_body(from, size, limits.file_bytes)?);
    }
    Ok(changes)
}

#[async_trait]
impl ShellRunner for SandboxRunner {
    async fn run(&self, request: ShellRequest) -> Result<ShellOutcome, ShellError> {
        let time = request.limits.time + MARGIN;
        tokio::select! {
            outcome = tokio::time::timeout(time, self.exchange(&request)) => {
                outcome.unwrap_or_else(|_| Err(unavailable(&"time limit")))
            }
            () = request.abort.cancelled() => Ok(ShellOutcome {
                end: ShellCommandEnd::Aborted,
                output: bytes::Bytes::new(),
                dropped_bytes: 0,
                changes: Ok(WorkspaceChanges::default()),
            }),
        }
    }
}
