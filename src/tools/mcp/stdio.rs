//! A server as a child process of this one, for a developer's machine.

use std::process::Stdio;

use rmcp::RoleClient;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::tools::http::tool_response::RESPONSE_BYTES_MAX;
use crate::tools::mcp::failure::RequestFailure;

/// A program that speaks MCP on its standard input and output.
#[derive(Clone)]
pub(crate) struct Command {
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
    /// Variables of the process besides `PATH` and `HOME`; values may be secrets.
    pub(crate) environment: Vec<(String, String)>,
    /// Folder in which it runs.
    pub(crate) folder: std::path::PathBuf,
}

/// Pipes of a child that is killed when they are dropped.
pub(super) struct ChildTransport {
    pipes: AsyncRwTransport<RoleClient, ChildStdout, ChildStdin>,
    _child: Child,
}

impl Command {
    /// # Errors
    /// The program cannot be started.
    pub(super) fn start(&self) -> Result<ChildTransport, RequestFailure> {
        let not_started = |reason: String| {
            RequestFailure::NotSent(format!("`{}` could not be started: {reason}", self.program))
        };
        let mut child = tokio::process::Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter().cloned())
            .current_dir(&self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| not_started(error.to_string()))?;
        let (Some(output), Some(input)) = (child.stdout.take(), child.stdin.take()) else {
            return Err(not_started("it has no pipes".to_owned()));
        };
        let pipes =
            AsyncRwTransport::new_client(output, input).with_max_line_length(RESPONSE_BYTES_MAX);
        Ok(ChildTransport { pipes, _child: child })
    }
}

impl rmcp::transport::Transport<RoleClient> for ChildTransport {
    type Error = std::io::Error;

    fn send(
        &mut self,
        item: rmcp::service::TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.pipes.send(item)
    }

    async fn receive(&mut self) -> Option<rmcp::service::RxJsonRpcMessage<RoleClient>> {
        self.pipes.receive().await
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.pipes.close().await
    }
}
