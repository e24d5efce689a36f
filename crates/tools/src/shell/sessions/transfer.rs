//! Contents that move between a workspace and a session: the input file, and the report of a run.
//! A report comes from a machine on which the command ran, so nothing in it is trusted.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use crate::shell::{RefusalReason, ShellCommandEnd, ShellLimits, ShellRequest, WorkspaceChanges};
use turnwheel_platform::digest::sha256_hex;

/// Folder of a session that the file routes of the pool read and write.
pub(super) const DATA_FOLDER: &str = "/mnt/data";
const HELPER: &str = include_str!("helper.py");
const LAUNCHER: &str = include_str!("launch.py");
const REFUSED_MAX: usize = 100;

/// A line of JSON with command, limits and file sizes, then the files' bytes.
pub(super) fn build_input(request: &ShellRequest) -> Vec<u8> {
    let limits = &request.limits;
    let files: Vec<_> = request
        .files
        .iter()
        .map(|(path, content)| json!({"path": path, "size": content.len()}))
        .collect();
    let header = json!({
        "command": request.command,
        "folder": request.folder,
        "files": files,
        "limits": {
            "time": limits.time.as_secs_f64(),
            "memory_bytes": limits.memory_bytes,
            "processes": limits.processes,
            "output_bytes": limits.output_bytes,
            "flood_bytes": limits.flood_bytes,
            "file_bytes": limits.file_bytes,
            "workspace_bytes": limits.workspace_bytes,
            "files": limits.files,
        },
    });
    let mut input = header.to_string().into_bytes();
    input.push(b'\n');
    for content in request.files.values() {
        input.extend_from_slice(content);
    }
    input
}

/// Python code that runs the input file. It contains neither the command nor a file.
pub(super) fn build_code(name: &str, input: &[u8]) -> String {
    let digest = sha256_hex(input);
    let helper = format!("NAME={name:?}\nDIGEST={digest:?}\nDATA={DATA_FOLDER:?}\n{HELPER}");
    format!("HELPER={}\n{LAUNCHER}", json!(helper))
}

#[derive(Deserialize)]
struct ExecutionResponse {
    result: Option<ExecutionResult>,
}

#[derive(Deserialize)]
struct ExecutionResult {
    stdout: Option<String>,
}

/// Report of the helper script.
#[derive(Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(super) enum HelperReport {
    /// The session has no input file: it is another session, or the file was used already.
    Missing,
    Damaged,
    NoFolder,
    Ran(RunReport),
}

#[derive(Deserialize)]
pub(super) struct RunReport {
    pub(super) end: ShellCommandEnd,
    output: String,
    pub(super) dropped: u64,
    /// Present if the workspace could not be read; the other members are then absent.
    unreadable: Option<String>,
    #[serde(default)]
    written: Vec<WrittenFile>,
    #[serde(default)]
    deleted: BTreeSet<String>,
    #[serde(default)]
    refused: BTreeMap<String, RefusalReason>,
    #[serde(default)]
    further: u64,
}

#[derive(Deserialize)]
struct WrittenFile {
    path: String,
    size: u64,
    sha256: String,
}

/// Finds the report in the response of an execution.
pub(super) fn parse_report(name: &str, response: &[u8]) -> Result<HelperReport, String> {
    let response: ExecutionResponse = serde_json::from_slice(response)
        .map_err(|_| "the session pool's response is not the JSON of an execution".to_owned())?;
    let stdout = response.result.and_then(|result| result.stdout).unwrap_or_default();
    let line = stdout.lines().rev().find_map(|line| line.strip_prefix(name));
    let line = line.ok_or("the execution ended without a report")?;
    serde_json::from_str(line).map_err(|_| "the report of the execution is damaged".to_owned())
}

impl RunReport {
    pub(super) fn output(&self, limits: &ShellLimits) -> Result<Bytes, String> {
        let output = STANDARD.decode(&self.output).ok();
        let output = output.filter(|output| output.len() as u64 <= limits.output_bytes);
        output.map(Bytes::from).ok_or_else(|| "the report's output is damaged".to_owned())
    }

    /// Bytes of the file of contents; `None`: there is none.
    pub(super) fn contents_size(&self, limits: &ShellLimits) -> Result<Option<usize>, String> {
        let mut sum: u64 = 0;
        for file in &self.written {
            sum = sum.saturating_add(file.size);
        }
        if self.written.len() as u64 > limits.files || sum > limits.workspace_bytes {
            return Err("the report names more files than the limits allow".to_owned());
        }
        let size = usize::try_from(sum).map_err(|error| error.to_string())?;
        Ok((!self.written.is_empty()).then_some(size))
    }

    /// Differences of the workspace, with `contents` in the order of the report.
    pub(super) fn changes(
        self,
        mut contents: Bytes,
        request: &ShellRequest,
    ) -> Result<WorkspaceChanges, String> {
        if let Some(reason) = self.unreadable {
            return Err(format!("the workspace could not be read after the command: {reason}"));
        }
        let mut changes =
            WorkspaceChanges { further_refused: self.further, ..WorkspaceChanges::default() };
        for file in self.written {
            let size = usize::try_from(file.size).map_err(|error| error.to_string())?;
            if size > contents.len() {
                return Err("the changed files are incomplete".to_owned());
            }
            let content = contents.split_to(size);
            if sha256_hex(&content) != file.sha256 {
                return Err("the changed files were altered on their way".to_owned());
            }
            if !is_workspace_path(&file.path) {
                refuse(&mut changes, file.path, RefusalReason::InvalidName);
            } else if file.size > request.limits.file_bytes {
                refuse(&mut changes, file.path, RefusalReason::TooLarge);
            } else {
                changes.written.insert(file.path, content);
            }
        }
        for (path, reason) in self.refused {
            refuse(&mut changes, path, reason);
        }
        // Only files that were sent can be deleted.
        let is_sent = |path: &String| request.files.contains_key(path);
        changes.deleted = self.deleted.into_iter().filter(is_sent).collect();
        Ok(changes)
    }
}

fn refuse(changes: &mut WorkspaceChanges, path: String, reason: RefusalReason) {
    if changes.refused.len() < REFUSED_MAX {
        changes.refused.insert(path, reason);
    } else {
        changes.further_refused = changes.further_refused.saturating_add(1);
    }
}

fn is_workspace_path(path: &str) -> bool {
    !path.contains(|c: char| c == '\\' || c.is_control())
        && path.split('/').all(|segment| !matches!(segment, "" | "." | ".."))
}
