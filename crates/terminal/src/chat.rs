//! `turnwheel chat`: rows are appended above an input line, and nothing that was printed changes.

mod actions;
mod command;
mod input;
mod modes;
mod session;
mod status;

use std::pin::pin;

use crate::arguments::ChatArguments;
use crate::arguments::InputMode;
use crate::client::Client;
use crate::error::TerminalError;
use crate::follow::OutputForm;
use crate::screen::{is_interactive, print_line};
use crate::send::{NewInput, follow_accepted, read_stdin};
use crate::{DONE, FAILED};

use modes::{KeyModes, wait_for_end};
use session::Session;
use status::SharedStatus;

pub(crate) async fn run_chat(
    client: &Client,
    arguments: &ChatArguments,
) -> Result<u8, TerminalError> {
    if !is_interactive() || arguments.json {
        return run_once(client, arguments).await;
    }
    let status = SharedStatus::default();
    let mut end = pin!(wait_for_end(&status));
    // From here on, so that keys during the first requests are kept as well.
    let modes = KeyModes::set();
    let (mut session, mut keyboard) = tokio::select! {
        started = Session::start(client, arguments, &status, modes) => started?,
        () = &mut end => return Ok(FAILED),
    };
    let outcome = tokio::select! {
        outcome = session.run(&mut keyboard) => outcome,
        () = &mut end => Ok(()),
    };
    let id = session.end();
    outcome?;
    if let Some(id) = id {
        print_line(&format!("The conversation continues. Resume: {}", client.resume_command(&id)));
    }
    Ok(DONE)
}

/// Reads the standard input as one input, and prints the response.
async fn run_once(client: &Client, arguments: &ChatArguments) -> Result<u8, TerminalError> {
    let input = read_stdin()?;
    // An input joins the queue of a conversation that runs.
    let is_new = arguments.conversation.is_none();
    let mode = if is_new { InputMode::Prompt } else { InputMode::FollowUp };
    let input = NewInput {
        text: &input,
        agent: arguments.agent.as_deref(),
        conversation: arguments.conversation.as_deref(),
        mode,
        at: None,
    };
    let accepted = client.send_once(&input.request()?).await?;
    follow_accepted(client, &accepted, false, OutputForm::from_flag(arguments.json)).await
}
