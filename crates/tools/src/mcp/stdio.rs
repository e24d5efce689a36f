//! A server as a child process of this one, for a developer's machine.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use rmcp::RoleClient;
use rmcp::model::{ClientRequest, JsonRpcMessage, RequestId};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::http::redactor::Redactor;
use crate::http::tool_response::RESPONSE_BYTES_MAX;
use crate::mcp::failure::McpFailure;
use crate::mcp::progress;
use crate::mcp::stdio::end_cause::find_cause;
use crate::mcp::stdio::message_reader::{MessageReader, OpenRequest};
use crate::mcp::stdio::process_group::ProcessGroup;
use crate::mcp::transport::{exchange_of, written_message};
use crate::mcp::unmatched_output::UnmatchedOutput;
use turnwheel_json::text::sanitize_line;

mod end_cause;
mod message_reader;
mod process_group;

/// Time in which a program that has closed its output ends.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of its standard error that are kept.
const ERROR_BYTES_MAX: usize = 4 * 1024;
/// Characters of the cause in an error.
const CAUSE_CHARS_MAX: usize = 300;

/// A program that speaks MCP on its standard input and output.
#[derive(Clone)]
pub struct ServerCommand {
    pub program: String,
    pub arguments: Vec<String>,
    /// Variables of the process besides `PATH` and `HOME`; values may be secrets.
    pub environment: Vec<(String, String)>,
    /// Folder in which it runs.
    pub folder: PathBuf,
    /// Removes the app settings in arguments and variables from all that the program writes.
    pub redactor: Redactor,
}

impl fmt::Debug for ServerCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCommand").finish_non_exhaustive()
    }
}

/// Pipes of a child that is killed when they are dropped.
pub(super) struct ChildTransport {
    /// `None`: closed.
    input: Arc<Mutex<Option<ChildStdin>>>,
    lines: LineReader<BufReader<ChildStdout>>,
    messages: MessageReader,
    /// Ends of calls: a program receives a notice for each one that is still open.
    ends: FuturesUnordered<BoxFuture<'static, RequestId>>,
    /// Lines that are not written yet.
    notices: VecDeque<String>,
    errors: ErrorOutput,
    end: ProgramEnd,
    /// Before `child`: the number of the group is free once the child has been waited for.
    _group: ProcessGroup,
    child: Child,
    /// Name of the program.
    name: String,
}

impl ServerCommand {
    /// Starts the program. Returns its pipes, and its end once there is one.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn start(&self) -> Result<(ChildTransport, ProgramEnd), McpFailure> {
        let name = self.name();
        let not_started = |reason: String| {
            McpFailure::NotSent(format!("`{name}` could not be started: {reason}"))
        };
        let mut command = tokio::process::Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter().cloned())
            .current_dir(&self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let (mut child, group) =
            process_group::spawn(&mut command).map_err(|error| not_started(error.to_string()))?;
        let pipes = (child.stdout.take(), child.stdin.take(), child.stderr.take());
        let (Some(output), Some(input), Some(errors)) = pipes else {
            return Err(not_started("it has no pipes".to_owned()));
        };
        let end = ProgramEnd::default();
        let transport = ChildTransport {
            input: Arc::new(Mutex::new(Some(input))),
            lines: LineReader::new(BufReader::new(output)),
            messages: MessageReader::new(self.redactor.clone()),
            ends: FuturesUnordered::new(),
            notices: VecDeque::new(),
            errors: ErrorOutput::new(errors),
            end: end.clone(),
            child,
            _group: group,
            name: name.into_owned(),
        };
        Ok((transport, end))
    }

    /// The existing files that the program and its arguments name.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let names = std::iter::once(&self.program).chain(&self.arguments);
        names.map(|name| self.folder.join(name)).filter(|path| path.is_file()).collect()
    }

    /// The program without its folder: the model reads no paths of the machine.
    fn name(&self) -> Cow<'_, str> {
        let name = Path::new(&self.program).file_name();
        name.map_or(Cow::Borrowed(self.program.as_str()), |name| name.to_string_lossy())
    }
}

impl ChildTransport {
    /// Records how the program ended, after the end of its output.
    async fn record_end(&mut self) {
        let ended = async {
            while !self.errors.is_ended {
                self.errors.read().await;
            }
            self.child.wait().await
        };
        let how = match timeout(END_TIMEOUT, ended).await {
            Ok(Ok(status)) => match status.code() {
                Some(code) => format!("ended with exit code {code}"),
                None => format!("ended ({status})"),
            },
            Ok(Err(_)) | Err(_) => "closed its standard output".to_owned(),
        };
        let errors = self.messages.redactor.redact(&self.errors.last_lines());
        let cause = sanitize_line(&find_cause(&errors), CAUSE_CHARS_MAX);
        let cause = if cause.is_empty() { cause } else { format!(": {cause}") };
        self.end.set(format!("`{}` {how}{cause}", self.name));
    }
}

impl rmcp::transport::Transport<RoleClient> for ChildTransport {
    type Error = std::io::Error;

    fn send(
        &mut self,
        item: rmcp::service::TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let (input, line) = (Arc::clone(&self.input), written_message(&item));
        let mut is_handshake = false;
        if let JsonRpcMessage::Request(request) = &item {
            is_handshake = matches!(request.request, ClientRequest::InitializeRequest(_));
            let exchange = exchange_of(&item);
            self.messages.has_older_line |= !self.lines.line.is_empty();
            self.messages.open.push(OpenRequest {
                id: request.id.clone(),
                is_handshake,
                progress_token: line.as_ref().ok().and_then(progress::requested_token),
                on_progress: exchange.and_then(|exchange| exchange.on_progress.clone()),
                output: exchange.and_then(|exchange| exchange.output.clone()),
            });
            if let Some(exchange) = exchange {
                let (end, id) = (exchange.cancellation.clone(), request.id.clone());
                let ended = async move {
                    end.cancelled().await;
                    id
                };
                self.ends.push(ended.boxed());
            }
        }
        async move {
            let line = format!("{}\n", line?.text());
            let mut input = input.lock().await;
            let input = input.as_mut().ok_or(std::io::ErrorKind::NotConnected)?;
            let sent = async {
                input.write_all(line.as_bytes()).await?;
                input.flush().await
            };
            // `receive` says how a program ended that does not read the handshake.
            sent.await.or_else(|error| if is_handshake { Ok(()) } else { Err(error) })
        }
    }

    async fn receive(&mut self) -> Option<rmcp::service::RxJsonRpcMessage<RoleClient>> {
        loop {
            if let Some(message) = self.messages.received.pop_front() {
                return Some(message);
            }
            let notice = self.notices.front().map(String::as_str);
            let output = self.messages.output_of_only_request().cloned();
            let line = tokio::select! {
                line = self.lines.next(output.as_ref()) => line,
                () = self.errors.read(), if !self.errors.is_ended => continue,
                Some(id) = self.ends.next() => {
                    self.notices.extend(self.messages.cancel(&id));
                    continue;
                }
                () = write_notice(&self.input, notice.unwrap_or_default()), if notice.is_some() => {
                    self.notices.pop_front();
                    continue;
                }
            };
            let Some(line) = line else {
                self.record_end().await;
                return None;
            };
            self.messages.read(line);
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.input.lock().await.take();
        Ok(())
    }
}

/// Writes a line that is shorter than the buffer of a pipe: at once or not at all, so that nothing is lost or
/// written in part if the future is dropped.
async fn write_notice(input: &Mutex<Option<ChildStdin>>, line: &str) {
    if let Some(input) = input.lock().await.as_mut() {
        // `receive` returns the end of the program.
        let _is_written = input.write_all(line.as_bytes()).await;
    }
}

/// How a program ended; empty while it runs.
#[derive(Clone, Debug, Default)]
pub(super) struct ProgramEnd(Arc<OnceLock<String>>);

impl ProgramEnd {
    /// The failure of the handshake that the end of the program caused.
    pub(super) fn failure(&self) -> Option<McpFailure> {
        self.0.get().map(|end| McpFailure::NotSent(end.clone()))
    }

    fn set(&self, end: String) {
        let _is_first = self.0.set(end);
    }
}

/// Standard error of a program. It is read to its end, so that the program never waits, and only its
/// last lines are kept.
struct ErrorOutput {
    output: ChildStderr,
    kept: Vec<u8>,
    is_ended: bool,
}

impl ErrorOutput {
    fn new(output: ChildStderr) -> Self {
        Self { output, kept: Vec::new(), is_ended: false }
    }

    /// Reads what has been written. Nothing is lost if the future is dropped.
    async fn read(&mut self) {
        let mut chunk = [0; 1024];
        match self.output.read(&mut chunk).await {
            Ok(0) | Err(_) => self.is_ended = true,
            Ok(length) => {
                self.kept.extend_from_slice(chunk.get(..length).unwrap_or_default());
                let excess = self.kept.len().saturating_sub(ERROR_BYTES_MAX);
                self.kept.drain(..excess);
            }
        }
    }

    /// The kept lines. A first line that may be cut, and with it a secret, is left out if others follow.
    fn last_lines(&self) -> String {
        let text = String::from_utf8_lossy(&self.kept);
        let is_cut = self.kept.len() == ERROR_BYTES_MAX;
        let whole = text.split_once('\n').filter(|(_, rest)| is_cut && !rest.trim().is_empty());
        whole.map_or(&*text, |(_, rest)| rest).to_owned()
    }
}

/// Lines of at most [`RESPONSE_BYTES_MAX`].
struct LineReader<R> {
    output: R,
    /// The beginning of a line. It stays if the future of [`Self::next`] is dropped.
    line: Vec<u8>,
    is_too_long: bool,
}

#[derive(Debug, PartialEq)]
enum ProgramLine {
    Whole(Vec<u8>),
    TooLong,
}

impl<R: AsyncBufRead + Unpin> LineReader<R> {
    fn new(output: R) -> Self {
        Self { output, line: Vec::new(), is_too_long: false }
    }

    /// The last line counts even without its end. `None`: the output has ended. `output` records a line
    /// that has not ended.
    async fn next(&mut self, output: Option<&UnmatchedOutput>) -> Option<ProgramLine> {
        loop {
            let bytes = self.output.fill_buf().await.unwrap_or_default();
            let has_ended = bytes.is_empty();
            if has_ended && self.line.is_empty() && !self.is_too_long {
                return None;
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let length = end.map_or(bytes.len(), |end| end + 1);
            self.is_too_long |= self.line.len() + length > RESPONSE_BYTES_MAX;
            if self.is_too_long {
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(bytes.get(..length).unwrap_or_default());
            }
            self.output.consume(length);
            if end.is_some() || has_ended {
                let line = std::mem::take(&mut self.line);
                let is_too_long = std::mem::take(&mut self.is_too_long);
                return Some(if is_too_long {
                    ProgramLine::TooLong
                } else {
                    ProgramLine::Whole(line)
                });
            }
            if let Some(output) = output {
                output.set_open_line(&self.line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::template::SettingSecret;

    #[tokio::test]
    async fn last_line_counts_without_its_end() {
        let mut lines = LineReader::new(&b"{\"id\":1}\n{\"id\":2}"[..]);
        for expected in ["{\"id\":1}\n", "{\"id\":2}"] {
            let expected = ProgramLine::Whole(expected.as_bytes().to_vec());
            assert_eq!(lines.next(None).await, Some(expected));
        }
        assert_eq!(lines.next(None).await, None);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn ended_program_is_named_with_its_last_line() {
        use rmcp::transport::Transport as _;

        let secret = SettingSecret { name: "KEY".to_owned(), value: "s3cret-value".to_owned() };
        let command = |script: &str| ServerCommand {
            program: "/bin/sh".to_owned(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            environment: Vec::new(),
            folder: std::env::temp_dir(),
            redactor: Redactor::new([&secret].into_iter()),
        };
        for (script, expected) in [
            (
                "echo a >&2; echo 'npm error 404 s3cret-value' >&2; echo >&2; exit 3",
                "`sh` ended with exit code 3: npm error 404 [KEY]",
            ),
            (
                "printf 'Error: no file /srv/app/x.mjs of s3cret-value\\n    at a\\n\\nNode.js v20\\n' >&2; exit 1",
                "`sh` ended with exit code 1: Error: no file x.mjs of [KEY]",
            ),
            ("exit 0", "`sh` ended with exit code 0"),
            ("kill -9 $$", "`sh` ended (signal: 9 (SIGKILL))"),
        ] {
            let (mut transport, end) = command(script).start().unwrap();
            assert!(transport.receive().await.is_none());
            assert_eq!(end.failure(), Some(McpFailure::NotSent(expected.to_owned())));
        }
        let missing = ServerCommand { program: "/opt/none/server".to_owned(), ..command("") };
        let McpFailure::NotSent(reason) = missing.start().err().unwrap() else { panic!() };
        assert!(reason.starts_with("`server` could not be started: "), "{reason}");
    }
}
