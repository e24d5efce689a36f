//! A server as a child process of this one, for a developer's machine.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{
    ClientRequest, CustomRequest, ErrorData, JsonRpcMessage, PingRequest, RequestId,
    ServerJsonRpcMessage, ServerRequest,
};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::http::template::Redactor;
use crate::http::tool_response::RESPONSE_BYTES_MAX;
use crate::mcp::failure::RequestFailure;
use crate::mcp::message::{ServerAnswer, ServerMessage, read_messages, too_large_message};
use crate::mcp::transport::written_message;
use turnwheel_conversation::text::sanitize_line;

/// Time in which a program that has closed its output ends.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of its standard error that are kept.
const ERROR_BYTES_MAX: usize = 4 * 1024;
/// Characters of the last line in an error.
const ERROR_LINE_CHARS_MAX: usize = 300;

/// A program that speaks MCP on its standard input and output.
#[derive(Clone)]
pub struct Command {
    pub program: String,
    pub arguments: Vec<String>,
    /// Variables of the process besides `PATH` and `HOME`; values may be secrets.
    pub environment: Vec<(String, String)>,
    /// Folder in which it runs.
    pub folder: std::path::PathBuf,
    /// Removes the app settings in arguments and variables from all that the program writes.
    pub redactor: Redactor,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command").finish_non_exhaustive()
    }
}

/// Pipes of a child that is killed when they are dropped.
pub(super) struct ChildTransport {
    /// `None`: closed.
    input: Arc<Mutex<Option<ChildStdin>>>,
    lines: LineReader<BufReader<ChildStdout>>,
    messages: MessageReader,
    errors: ErrorOutput,
    end: ProgramEnd,
    child: Child,
    /// Name of the program.
    name: String,
}

impl Command {
    /// Starts the program. Returns its pipes, and its end once there is one.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn start(&self) -> Result<(ChildTransport, ProgramEnd), RequestFailure> {
        let name = self.name();
        let not_started = |reason: String| {
            RequestFailure::NotSent(format!("`{name}` could not be started: {reason}"))
        };
        let mut child = tokio::process::Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter().cloned())
            .current_dir(&self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| not_started(error.to_string()))?;
        let pipes = (child.stdout.take(), child.stdin.take(), child.stderr.take());
        let (Some(output), Some(input), Some(errors)) = pipes else {
            return Err(not_started("it has no pipes".to_owned()));
        };
        let end = ProgramEnd::default();
        let transport = ChildTransport {
            input: Arc::new(Mutex::new(Some(input))),
            lines: LineReader::new(BufReader::new(output)),
            messages: MessageReader::new(self.redactor.clone()),
            errors: ErrorOutput::new(errors),
            end: end.clone(),
            child,
            name: name.into_owned(),
        };
        Ok((transport, end))
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
        let last_line = self.messages.redactor.redact(&self.errors.last_line());
        let last_line = sanitize_line(&last_line, ERROR_LINE_CHARS_MAX);
        let said = if last_line.is_empty() { last_line } else { format!(": {last_line}") };
        self.end.set(format!("`{}` {how}{said}", self.name));
    }
}

impl rmcp::transport::Transport<RoleClient> for ChildTransport {
    type Error = std::io::Error;

    fn send(
        &mut self,
        item: rmcp::service::TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let mut is_handshake = false;
        if let JsonRpcMessage::Request(request) = &item {
            is_handshake = matches!(request.request, ClientRequest::InitializeRequest(_));
            self.messages.open.push((request.id.clone(), is_handshake));
        }
        let (input, line) = (Arc::clone(&self.input), written_message(&item));
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
            let line = tokio::select! {
                line = self.lines.next() => line,
                () = self.errors.read(), if !self.errors.is_ended => continue,
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

/// How a program ended; empty while it runs.
#[derive(Clone, Debug, Default)]
pub(super) struct ProgramEnd(Arc<OnceLock<String>>);

impl ProgramEnd {
    /// The failure of the handshake that the end of the program caused.
    pub(super) fn failure(&self) -> Option<RequestFailure> {
        self.0.get().map(|end| RequestFailure::NotSent(end.clone()))
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

    /// The last line that is not blank.
    fn last_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.kept);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        last.unwrap_or_default().trim().to_owned()
    }
}

/// Messages of the lines of a program.
struct MessageReader {
    /// Requests without an answer, and whether each is the handshake.
    open: Vec<(RequestId, bool)>,
    received: VecDeque<ServerJsonRpcMessage>,
    redactor: Redactor,
}

impl MessageReader {
    fn new(redactor: Redactor) -> Self {
        Self { open: Vec::new(), received: VecDeque::new(), redactor }
    }

    fn read(&mut self, line: ProgramLine) {
        let ProgramLine::Whole(line) = line else {
            // Only one request can have it.
            if let [(id, false)] = self.open.as_slice() {
                self.received.push_back(too_large_message(id.clone()));
                self.open.clear();
            }
            return;
        };
        let text = encoding_rs::UTF_8.decode(&line).0;
        let redact = |string: &str| {
            let redacted = self.redactor.redact(string);
            (redacted != string).then_some(redacted)
        };
        // Lines that are no JSON are logs of the program.
        for message in read_messages(&text, &redact).unwrap_or_default() {
            match message {
                ServerMessage::Answer(answer) => self.add_answer(answer),
                ServerMessage::Request { id, method } => {
                    let request = if method == "ping" {
                        ServerRequest::PingRequest(PingRequest::default())
                    } else {
                        ServerRequest::CustomRequest(CustomRequest::new(method, None))
                    };
                    self.received.push_back(JsonRpcMessage::request(request, id));
                }
                ServerMessage::Notification { .. } | ServerMessage::Unknown => {}
            }
        }
    }

    /// An error without an id answers the only open request.
    fn add_answer(&mut self, answer: ServerAnswer) {
        let is_for = |(id, _): &(RequestId, bool)| {
            answer.has_id(id) || (answer.has_no_id() && answer.is_error() && self.open.len() == 1)
        };
        let Some(index) = self.open.iter().position(is_for) else {
            tracing::debug!("answer of an MCP server to no open request");
            return;
        };
        let (id, is_handshake) = self.open.remove(index);
        let message = answer.into_message(id.clone(), is_handshake).unwrap_or_else(|failure| {
            JsonRpcMessage::error(ErrorData::internal_error(failure.to_string(), None), Some(id))
        });
        self.received.push_back(message);
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

    /// `None`: the output has ended.
    async fn next(&mut self) -> Option<ProgramLine> {
        loop {
            let bytes = self.output.fill_buf().await.ok().filter(|it| !it.is_empty())?;
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let length = end.map_or(bytes.len(), |end| end + 1);
            self.is_too_long |= self.line.len() + length > RESPONSE_BYTES_MAX;
            if self.is_too_long {
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(bytes.get(..length).unwrap_or_default());
            }
            self.output.consume(length);
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                let is_too_long = std::mem::take(&mut self.is_too_long);
                return Some(if is_too_long {
                    ProgramLine::TooLong
                } else {
                    ProgramLine::Whole(line)
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::template::SettingSecret;
    use crate::mcp::message::received_result;

    fn reader() -> MessageReader {
        let secrets =
            [("KEY", "s3\"cret-ü"), ("DB", "postgres://u:p4ssword@host/db"), ("PIN", "12345678")];
        let secrets = secrets
            .map(|(name, value)| SettingSecret { name: name.to_owned(), value: value.to_owned() });
        let mut reader = MessageReader::new(Redactor::new(secrets.iter()));
        reader.open = vec![(RequestId::Number(1), false)];
        reader
    }

    fn received(reader: &mut MessageReader, line: &str) -> Option<Result<String, String>> {
        reader.read(ProgramLine::Whole(line.as_bytes().to_vec()));
        let JsonRpcMessage::Response(response) = reader.received.pop_front()? else { return None };
        let received = received_result(response.result);
        Some(received.map(|it| it.json.text().to_owned()).map_err(|it| it.to_string()))
    }

    #[test]
    fn program_never_shows_app_settings() {
        for (written, expected) in [
            (json!("a s3\"cret-ü b").to_string(), "\"a [KEY] b\""),
            (r#""a s3\u0022cret-\u00fc b""#.to_owned(), "\"a [KEY] b\""),
            (r#"{"s3\"cret-ü":[12345678]}"#.to_owned(), r#"{"[KEY]":["[PIN]"]}"#),
            (r#""postgres:\/\/u:p4ssword@host\/db""#.to_owned(), "\"[DB]\""),
        ] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{written}}}"#);
            assert_eq!(received(&mut reader(), &line), Some(Ok(expected.to_owned())));
        }
        let line = r#"{"id":1,"error":{"code":5,"message":"no s3\"cret-ü"}}"#;
        let refused = received(&mut reader(), line).unwrap().unwrap_err();
        assert_eq!(refused, "it responded with the error 5: no [KEY]");
    }

    #[test]
    fn error_without_id_answers_only_open_request() {
        let line = r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"no"}}"#;
        assert!(received(&mut reader(), line).unwrap().is_err());
        let mut two = reader();
        two.open.push((RequestId::Number(2), false));
        assert_eq!(received(&mut two, line), None);
        assert_eq!(received(&mut two, "[INFO] {not json}"), None);
        assert!(received(&mut two, r#"{"id":"2","result":{}}"#).unwrap().is_ok());
        assert!(received(&mut two, line).unwrap().is_err());
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn ended_program_is_named_with_its_last_line() {
        use rmcp::transport::Transport as _;

        let secret = SettingSecret { name: "KEY".to_owned(), value: "s3cret-value".to_owned() };
        let command = |script: &str| Command {
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
            ("exit 0", "`sh` ended with exit code 0"),
            ("kill -9 $$", "`sh` ended (signal: 9 (SIGKILL))"),
        ] {
            let (mut transport, end) = command(script).start().unwrap();
            assert!(transport.receive().await.is_none());
            assert_eq!(end.failure(), Some(RequestFailure::NotSent(expected.to_owned())));
        }
        let missing = Command { program: "/opt/none/server".to_owned(), ..command("") };
        let RequestFailure::NotSent(reason) = missing.start().err().unwrap() else { panic!() };
        assert!(reason.starts_with("`server` could not be started: "), "{reason}");
    }

    #[tokio::test]
    async fn long_line_is_an_answer_and_costs_no_memory() {
        let long = format!("{}\nshort\nrest", "x".repeat(RESPONSE_BYTES_MAX + 1));
        let mut lines = LineReader::new(long.as_bytes());
        assert_eq!(lines.next().await, Some(ProgramLine::TooLong));
        assert_eq!(lines.next().await, Some(ProgramLine::Whole(b"short\n".to_vec())));
        assert_eq!(lines.next().await, None);
        let mut reader = reader();
        reader.read(ProgramLine::TooLong);
        let JsonRpcMessage::Response(response) = reader.received.pop_front().unwrap() else {
            panic!("no response")
        };
        let failure = received_result(response.result).unwrap_err();
        assert_eq!(failure, RequestFailure::too_large());
    }
}
