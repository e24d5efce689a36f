//! The tools `bash` and `shell`: they run a command on the workspace's files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::command_rules::check_simple_command;
use super::{
    RefusalReason, ShellCommandEnd, ShellError, ShellLimits, ShellOutcome, ShellRequest,
    ShellRunner, WorkspaceChanges,
};
use crate::approval_summary::ApprovalSummary;
use crate::code::{Approval, CallContext, Tool, ToolError, build_code_tool};
use crate::destination::BoundDestination;
use crate::workspace::{FolderPath, is_reserved};
use crate::{
    ApprovalRequirement, Arguments, CallableTool, CheckContext, ToolContext, ToolDefinition,
    ToolOutcome, ToolResult,
};
use turnwheel_conversation::request::Effect;

pub const NAMES: [&str; 2] = [BashArgs::NAME, ShellArgs::NAME];

/// Time of a call: that of the command, and that to read and store files.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Files that a call reads at the same time.
const PARALLEL_READS: usize = 16;
/// Changes that the result names as refused.
const REFUSED_LINES_MAX: usize = 20;
/// Bytes of a command.
const COMMAND_BYTES_MAX: usize = 120 * 1024;
/// Bytes of a command with a quoted form of each word. Linux takes one argument of less than 128 KB.
const QUOTED_BYTES_MAX: usize = 128 * 1024 - 1;
/// Characters of a command that the reason of its approval repeats.
const REASON_CHARS_MAX: usize = 200;

/// The tools with that runner.
pub fn shell_tools(runner: &Arc<dyn ShellRunner>) -> Vec<Arc<dyn CallableTool>> {
    [CommandTool::<BashArgs>::build(runner), CommandTool::<ShellArgs>::build(runner)]
        .into_iter()
        .flatten()
        .collect()
}

/// A shell tool with the place in which its commands run.
#[derive(Debug)]
pub struct ShellTool {
    tool: Arc<dyn CallableTool>,
    destination: BoundDestination,
    is_approval_required: bool,
}

impl ShellTool {
    /// The shell tool, whose calls require no approval of their own.
    pub fn without_approval(tool: &Arc<dyn CallableTool>) -> Self {
        let destination = tool.destination();
        Self { tool: Arc::clone(tool), destination, is_approval_required: false }
    }
}

#[async_trait]
impl CallableTool for ShellTool {
    fn definition(&self) -> &ToolDefinition {
        self.tool.definition()
    }

    fn type_name(&self) -> &'static str {
        self.tool.type_name()
    }

    async fn check_arguments(
        &self,
        arguments: &Arguments,
        context: &CheckContext<'_>,
    ) -> Result<(), String> {
        self.tool.check_arguments(arguments, context).await
    }

    fn required_approval(&self, arguments: &Arguments) -> Option<ApprovalRequirement> {
        self.tool.required_approval(arguments).filter(|_| self.is_approval_required)
    }

    fn approval_rule(&self) -> Value {
        if self.is_approval_required { self.tool.approval_rule() } else { Value::Null }
    }

    fn approval_summary(&self) -> ApprovalSummary {
        if self.is_approval_required {
            ApprovalSummary::always_by_owner()
        } else {
            ApprovalSummary::Never
        }
    }

    fn destination(&self) -> BoundDestination {
        self.destination.clone()
    }

    fn changes_workspace(&self) -> bool {
        self.tool.changes_workspace()
    }

    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome {
        self.tool.call(arguments, context).await
    }
}

/// Arguments of a shell tool.
trait CommandArgs: JsonSchema + DeserializeOwned + Send + 'static {
    const NAME: &str;
    const DESCRIPTION: &str;

    /// The command as the model wrote it, which the approval shows.
    fn command(&self) -> &str;

    /// Returns the text for `bash -c`, and its folder. Refused arguments need no approval: the call
    /// fails without an effect.
    fn check(&self) -> Result<(String, FolderPath), String>;
}

#[derive(Deserialize, JsonSchema)]
struct BashArgs {
    /// Bash command to execute
    command: String,
}

impl CommandArgs for BashArgs {
    const NAME: &str = "bash";
    const DESCRIPTION: &str = "Execute a bash command in a sandbox whose current folder has the workspace's files. Returns stdout and \
        stderr. Changed files return to the workspace. There is no network unless the operator allows it, and no process outlives \
        the command.";

    fn command(&self) -> &str {
        &self.command
    }

    fn check(&self) -> Result<(String, FolderPath), String> {
        if self.command.trim().is_empty() || self.command.contains('\0') {
            return Err("Invalid input: the command is empty or has a NUL.".to_owned());
        }
        check_length(&self.command, COMMAND_BYTES_MAX, "")?;
        Ok((self.command.clone(), FolderPath::parse("")?))
    }
}

#[derive(Deserialize, JsonSchema)]
struct ShellArgs {
    /// One command with its arguments, without pipes, redirections and variables
    command: String,
    /// Folder to run it in, from the workspace's root
    cwd: Option<String>,
}

impl CommandArgs for ShellArgs {
    const NAME: &str = "shell";
    const DESCRIPTION: &str = "Execute one simple command in a sandbox whose current folder has the workspace's files. Returns stdout \
        and stderr. Changed files return to the workspace. No pipes, redirections, variables or command lists.";

    fn command(&self) -> &str {
        &self.command
    }

    fn check(&self) -> Result<(String, FolderPath), String> {
        check_length(&self.command, COMMAND_BYTES_MAX, "")?;
        let command = check_simple_command(&self.command)?;
        check_length(&command, QUOTED_BYTES_MAX, " with its quotes")?;
        Ok((command, FolderPath::parse(self.cwd.as_deref().unwrap_or_default())?))
    }
}

/// A tool that runs the command of its arguments.
struct CommandTool<A> {
    runner: Arc<dyn ShellRunner>,
    arguments: PhantomData<fn() -> A>,
}

impl<A: CommandArgs> CommandTool<A> {
    fn build(runner: &Arc<dyn ShellRunner>) -> Option<Arc<dyn CallableTool>> {
        let destination = runner.destination();
        let tool = Self { runner: Arc::clone(runner), arguments: PhantomData };
        let tool = build_code_tool(tool).ok()?;
        Some(Arc::new(ShellTool { tool, destination, is_approval_required: true }))
    }
}

impl<A: CommandArgs> Tool for CommandTool<A> {
    type Args = A;

    fn name(&self) -> &'static str {
        A::NAME
    }

    fn description(&self) -> &'static str {
        A::DESCRIPTION
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn timeout(&self) -> Duration {
        TIMEOUT
    }

    fn changes_workspace(&self) -> bool {
        true
    }

    fn check(
        &self,
        args: &A,
        _cx: &CheckContext<'_>,
    ) -> impl Future<Output = Result<(), String>> + Send {
        std::future::ready(args.check().map(drop))
    }

    fn approval(&self, args: &A) -> Option<Approval> {
        args.check().is_ok().then(|| command_approval(args.command()))
    }

    async fn call(&self, args: A, cx: CallContext) -> Result<ToolResult, ToolError> {
        let (command, folder) = args.check().map_err(ToolError::Failed)?;
        run_command(&*self.runner, command, folder.as_str().to_owned(), &cx).await
    }
}

/// `what`: the form of the command, for the text of the error.
fn check_length(command: &str, bytes_max: usize, what: &str) -> Result<(), String> {
    let bytes = command.len();
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(format!(
        "Invalid input: the command has {bytes} bytes{what}: at most {bytes_max} are allowed. Write its data to a file of the workspace, and read the file in the command."
    ))
}

/// The request also has the arguments, with the whole command.
fn command_approval(command: &str) -> Approval {
    let length = command.chars().count();
    if length <= REASON_CHARS_MAX {
        return Approval::because(format!("Run the command `{command}`?"));
    }
    let start: String = command.chars().take(REASON_CHARS_MAX).collect();
    Approval::because(format!(
        "Run a command of {length} characters, which begins with `{start}`? The arguments have all of it."
    ))
}

async fn run_command(
    runner: &dyn ShellRunner,
    command: String,
    folder: String,
    cx: &CallContext,
) -> Result<ToolResult, ToolError> {
    let limits = ShellLimits::default();
    let files = read_files(cx, &limits).await?;
    let abort = cx.abort_token();
    let request = ShellRequest {
        folder,
        files,
        abort,
        ..ShellRequest::new(cx.conversation_key().clone(), command)
    };
    let outcome = runner.run(request).await.map_err(|error| match error {
        ShellError::Unavailable(text) => ToolError::Failed(text),
        ShellError::Lost(text) => ToolError::Unknown(text),
    })?;
    let mut text = render_output(&outcome, &limits);
    let is_complete = match outcome.changes {
        Ok(changes) => store_changes(changes, cx, &mut text).await?,
        Err(cause) => {
            let _ = write!(text, "\n\n[No file of the workspace was changed: {cause}.]");
            false
        }
    };
    let is_success = outcome.end == ShellCommandEnd::Exited(0);
    Ok(ToolResult { is_error: !(is_success && is_complete), ..ToolResult::text(text) })
}

async fn read_files(
    cx: &CallContext,
    limits: &ShellLimits,
) -> Result<BTreeMap<String, Bytes>, ToolError> {
    let workspace = cx.workspace();
    let listed = workspace.list();
    let total =
        listed.iter().map(|(_, size)| size).fold(0, |sum: u64, size| sum.saturating_add(*size));
    if total > limits.workspace_bytes / 2 {
        return Err(ToolError::failed(format!(
            "The workspace has {total} bytes: a command can start with at most {}. Remove files first.",
            limits.workspace_bytes / 2
        )));
    }
    let reads = listed.into_iter().map(|(path, _)| async {
        let bytes = workspace.read(&path).await?;
        Ok((path, bytes))
    });
    stream::iter(reads).buffer_unordered(PARALLEL_READS).try_collect().await
}

fn render_output(outcome: &ShellOutcome, limits: &ShellLimits) -> String {
    let mut text = String::new();
    if outcome.dropped_bytes > 0 {
        let _ =
            writeln!(text, "[The first {} bytes of output were dropped.]", outcome.dropped_bytes);
    }
    text.push_str(String::from_utf8_lossy(&outcome.output).trim_end());
    if outcome.output.is_empty() {
        text.push_str("(no output)");
    }
    let end = match outcome.end {
        ShellCommandEnd::Exited(0) => return text,
        ShellCommandEnd::Exited(code) => format!("Command exited with code {code}"),
        ShellCommandEnd::TimeLimit => {
            format!("Command timed out after {} seconds", limits.time.as_secs())
        }
        ShellCommandEnd::MemoryLimit => {
            format!("Command ended: it used more than {} MB of memory", limits.memory_bytes >> 20)
        }
        ShellCommandEnd::OutputLimit => {
            format!("Command ended: it wrote more than {} MB of output", limits.flood_bytes >> 20)
        }
        ShellCommandEnd::Aborted => "Command aborted".to_owned(),
    };
    let _ = write!(text, "\n\n{end}");
    text
}

/// Applies the changes to the workspace, and appends the refused ones to `text`. Returns false if
/// one was refused.
async fn store_changes(
    changes: WorkspaceChanges,
    cx: &CallContext,
    text: &mut String,
) -> Result<bool, ToolError> {
    let workspace = cx.workspace();
    let mut refused: Vec<String> = Vec::new();
    for path in &changes.deleted {
        if is_reserved(path) {
            refused.push(format!("{path}: it is reserved for Turnwheel and stays"));
        } else if let Err(ToolError::Failed(cause) | ToolError::Unknown(cause)) =
            workspace.remove(path)
        {
            refused.push(format!("{path}: {cause}"));
        }
    }
    for (path, bytes) in changes.written {
        if let Err(ToolError::Failed(cause) | ToolError::Unknown(cause)) =
            workspace.write(&path, bytes).await
        {
            refused.push(format!("{path}: {cause}"));
        }
    }
    for (path, reason) in &changes.refused {
        refused.push(format!("{}: {}", path.escape_debug(), refusal_text(*reason)));
    }
    let count = refused.len() as u64 + changes.further_refused;
    if count == 0 {
        return Ok(true);
    }
    let _ = write!(text, "\n\n[{count} changes did not return to the workspace:");
    for line in refused.iter().take(REFUSED_LINES_MAX) {
        let _ = write!(text, "\n{line}");
    }
    let further = count - refused.len().min(REFUSED_LINES_MAX) as u64;
    if further > 0 {
        let _ = write!(text, "\nand {further} more");
    }
    text.push(']');
    Ok(false)
}

fn refusal_text(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::SymbolicLink => "a symbolic link",
        RefusalReason::SpecialFile => "a device, a socket or a pipe",
        RefusalReason::TooLarge => "the file is too large",
        RefusalReason::InvalidName => "the name is not valid in a workspace",
        RefusalReason::TooManyFiles => "the workspace has too many files",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux would fail to start the command, after its approval.
    #[test]
    fn command_above_the_limit_is_refused_with_advice() {
        let bash = |command: String| BashArgs { command }.check().map(|(text, _)| text.len());
        let shell =
            |command: String| ShellArgs { command, cwd: None }.check().map(|(text, _)| text.len());
        let echo = |bytes: usize| format!("echo {}", "x".repeat(bytes - "echo ".len()));
        assert_eq!(bash(echo(COMMAND_BYTES_MAX)), Ok(COMMAND_BYTES_MAX));
        // The tool quotes both words, or each of 2,000.
        assert_eq!(shell(echo(COMMAND_BYTES_MAX)), Ok(COMMAND_BYTES_MAX + 4));
        let words = vec!["x".repeat(59); 2_000].join(" ");
        assert_eq!(shell(words), Ok(2_000 * (59 + 2) + 1_999));
        for refused in [bash(echo(COMMAND_BYTES_MAX + 1)), shell(echo(COMMAND_BYTES_MAX + 1))] {
            let refused = refused.unwrap_err();
            assert!(refused.contains("122881 bytes: at most 122880 are allowed"), "{refused}");
        }
        let apostrophes = format!("echo \"{}\"", "'".repeat(COMMAND_BYTES_MAX / 2));
        let refused = shell(apostrophes).unwrap_err();
        assert!(refused.contains("bytes with its quotes: at most 131071 are allowed"), "{refused}");
    }
}
