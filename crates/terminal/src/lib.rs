//! Terminal client of a service: `chat`, `send`, `show`, `tail`, and decisions. It uses the public API only.

mod agents;
mod approval;
mod arguments;
mod chat;
mod client;
mod decide;
mod error;
mod event_stream;
mod follow;
mod markdown;
mod members;
mod rows;
mod sanitize;
mod screen;
mod send;
mod show;
mod sse;
mod style;
mod transcript;
mod wrap;

use serde_json::Value;

pub use arguments::{ServiceArguments, TerminalCommand};
pub use error::TerminalError;
pub use sanitize::clean_text;

use client::{ApiRequest, Client, ClientCredentials, conversation_path};

/// Exit code of a command that did its work.
const DONE: u8 = 0;
/// Exit code after a prompt that failed or was aborted.
const FAILED: u8 = 1;
/// Exit code if a prompt waits for an approver.
const WAITING: u8 = 3;

/// A response of a service that this package does not render.
#[derive(Clone, Copy, Debug)]
pub enum ServiceRead<'a> {
    /// `GET /api/conversations/{id}/why`.
    Why { id: &'a str },
    /// `GET /api/work`. `stuck`: seconds for which the work is overdue.
    Work { stuck: Option<u64>, is_waiting_for_approver: bool },
}

impl ServiceRead<'_> {
    fn to_request(self) -> Result<ApiRequest, TerminalError> {
        match self {
            Self::Why { id } => Ok(ApiRequest::get(format!("{}/why", conversation_path(id)?))),
            Self::Work { stuck, is_waiting_for_approver } => {
                let stuck = stuck.map(|seconds| format!("&stuck={seconds}")).unwrap_or_default();
                let path = format!("/api/work?waiting={is_waiting_for_approver}{stuck}");
                Ok(ApiRequest::get_as_operator(path))
            }
        }
    }
}

/// Reads the response of the service at `address`. Its numbers are counts, which a tree keeps.
///
/// # Errors
/// As those of [`run_terminal`].
pub async fn read_service(
    read: ServiceRead<'_>,
    address: &str,
    service: &ServiceArguments,
) -> Result<Value, TerminalError> {
    let client = Client::new(address, ClientCredentials::read(service)?, service)?;
    let response = client.send_once(&read.to_request()?).await?;
    Ok(response.to_value())
}

/// Prints the agents of the service at `address`, or one of them with its tools and instructions.
///
/// # Errors
/// As those of [`run_terminal`].
pub async fn print_agents(
    name: Option<&str>,
    address: &str,
    service: &ServiceArguments,
    is_json: bool,
) -> Result<(), TerminalError> {
    let client = Client::new(address, ClientCredentials::read(service)?, service)?;
    agents::print_agents(&client, name, is_json).await
}

/// Runs a command against the service at `address`. Returns the exit code: 0 done, 1 failed, 3 a prompt waits for an
/// approver.
///
/// # Errors
/// Print the error. [`TerminalError::Arguments`] is exit code 2, each other one 1.
pub async fn run_terminal(command: TerminalCommand, address: &str) -> Result<u8, TerminalError> {
    let credentials = ClientCredentials::read(command.service())?;
    let client = Client::new(address, credentials, command.service())?;
    match command {
        TerminalCommand::Chat(arguments) => chat::run_chat(&client, &arguments).await,
        TerminalCommand::Send(arguments) => send::run_send(&client, &arguments).await,
        TerminalCommand::Show(arguments) => show::run_show(&client, &arguments).await,
        TerminalCommand::Tail(arguments) => show::run_tail(&client, &arguments).await,
        TerminalCommand::Approve(arguments) => decide::run_approve(&client, &arguments).await,
        TerminalCommand::Reject(arguments) => decide::run_reject(&client, &arguments).await,
        TerminalCommand::Decide(arguments) => decide::run_decide(&client, &arguments).await,
        TerminalCommand::Abort(arguments) => send::run_abort(&client, &arguments).await,
        TerminalCommand::Continue(arguments) => send::run_continue(&client, &arguments).await,
    }
}
