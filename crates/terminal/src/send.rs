//! `turnwheel send`, `abort` and `continue`, and the input of `chat` without a terminal.

use std::io::Read as _;

use turnwheel_json::exact::ExactJson;
use turnwheel_json::raw::{RawJson, raw_object};
use turnwheel_platform::text_encoding::{decode_utf8, skip_byte_order_mark};

use crate::arguments::{AbortArguments, ContinueArguments, InputMode, SendArguments};
use crate::client::{ApiRequest, Client, conversation_path};
use crate::error::TerminalError;
use crate::follow::{Follower, OutputForm};
use crate::members::{items, number, text};
use crate::screen::{print_json, print_line, print_notice};
use crate::{DONE, WAITING};

/// An input for a conversation, or for a new one.
#[derive(Clone, Debug, Default)]
pub(crate) struct NewInput<'a> {
    pub(crate) text: &'a str,
    pub(crate) agent: Option<&'a str>,
    pub(crate) conversation: Option<&'a str>,
    pub(crate) mode: InputMode,
    /// Entry from which the prompt continues.
    pub(crate) at: Option<&'a str>,
}

impl NewInput<'_> {
    /// # Errors
    /// The id of the conversation is invalid.
    pub(crate) fn request(&self) -> Result<ApiRequest, TerminalError> {
        let member = |name: &str, value: &str| (name.to_owned(), RawJson::from_value(&value));
        let mut body = vec![member("input", self.text)];
        let Some(id) = self.conversation else {
            body.extend(self.agent.map(|agent| member("agent", agent)));
            return Ok(ApiRequest::post("/api/prompts", RawJson::from_members(body)));
        };
        if self.mode != InputMode::Prompt {
            body.push(member("mode", self.mode.name()));
        }
        body.extend(self.at.map(|entry| member("at", entry)));
        let path = format!("{}/prompts", conversation_path(id)?);
        Ok(ApiRequest::post(path, RawJson::from_members(body)))
    }
}

pub(crate) async fn run_send(
    client: &Client,
    arguments: &SendArguments,
) -> Result<u8, TerminalError> {
    let input = match arguments.input.as_str() {
        "-" => read_stdin()?,
        text => skip_byte_order_mark(text).to_owned(),
    };
    let input = NewInput {
        text: &input,
        agent: arguments.agent.as_deref(),
        conversation: arguments.conversation.as_deref(),
        mode: arguments.mode,
        at: arguments.at.as_deref(),
    };
    let accepted = client.send_once(&input.request()?).await?;
    follow_accepted(client, &accepted, arguments.no_wait, OutputForm::from_flag(arguments.json))
        .await
}

/// The standard input as one input, without the line break at its end.
///
/// # Errors
/// It is empty, or no UTF-8 text: exit code 2.
pub(crate) fn read_stdin() -> Result<String, TerminalError> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().read_to_end(&mut bytes);
    let text =
        read.map_err(|error| format!("cannot be read: {error}")).and_then(|_| parse_text(&bytes));
    text.map_err(|reason| TerminalError::Arguments(format!("the standard input {reason}")))
}

/// Returns the text of a pipe or of an editor's file, without the line break at its end. The error
/// completes "the text …".
pub(crate) fn parse_text(bytes: &[u8]) -> Result<String, String> {
    let text = decode_utf8(bytes).map_err(|error| error.to_string())?.trim_end();
    if text.is_empty() { Err("is empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// Follows an accepted input to the end of its prompt.
pub(crate) async fn follow_accepted(
    client: &Client,
    accepted: &ExactJson,
    is_unattended: bool,
    form: OutputForm,
) -> Result<u8, TerminalError> {
    let id = text(accepted, "conversationId");
    let prompt_id = text(accepted, "promptId");
    if form == OutputForm::Json && (is_unattended || prompt_id.is_empty()) {
        print_json(accepted);
        return Ok(DONE);
    }
    // An extension or a command responded: there is no prompt.
    if prompt_id.is_empty() {
        let output = [text(accepted, "commandOutput"), text(accepted, "commandError")];
        let output = output.into_iter().find(|output| !output.is_empty());
        print_line(output.unwrap_or_else(|| text(accepted, "disposition")));
        let is_waiting = text(accepted, "disposition") == "waiting";
        return Ok(if is_waiting { WAITING } else { DONE });
    }
    if form == OutputForm::Text {
        print_notice(&format!("conversation {id}"));
    }
    if is_unattended {
        print_line(prompt_id);
        return Ok(DONE);
    }
    let path = conversation_path(id)?;
    let mut follower = Follower::new(&path, number(accepted, "lastEventId"), form);
    follower.transcript.add_own_input(text(accepted, "inputId"), false);
    if text(accepted, "disposition") == "queued" {
        let conversation = client.send_once(&ApiRequest::get(&path)).await?;
        // The input waits behind the decision, for days if necessary.
        if let [approval, ..] = items(&conversation, "pendingApprovals") {
            follower.explain_wait(approval);
            return Ok(WAITING);
        }
    }
    follower.run(client, Some(prompt_id)).await
}

pub(crate) async fn run_abort(
    client: &Client,
    arguments: &AbortArguments,
) -> Result<u8, TerminalError> {
    let path = format!("{}/abort", conversation_path(&arguments.id)?);
    let body =
        if arguments.clear_inbox { raw_object!({ "clearInbox": true }) } else { raw_object!({}) };
    let accepted = client.send_once(&ApiRequest::post(path, body)).await?;
    if arguments.json {
        print_json(&accepted);
        return Ok(DONE);
    }
    let line = match text(&accepted, "promptId") {
        "" => "Nothing runs.".to_owned(),
        prompt => format!("The prompt {prompt} ends."),
    };
    print_line(&line);
    Ok(DONE)
}

pub(crate) async fn run_continue(
    client: &Client,
    arguments: &ContinueArguments,
) -> Result<u8, TerminalError> {
    let path = format!("{}/continue", conversation_path(&arguments.id)?);
    let accepted = client.send_once(&ApiRequest::post(path, raw_object!({}))).await?;
    follow_accepted(client, &accepted, arguments.no_wait, OutputForm::from_flag(arguments.json))
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_utf8_with_or_without_a_byte_order_mark() {
        for (bytes, expected) in [
            (&b"  Pay 40\nto Ada\r\n"[..], Ok("  Pay 40\nto Ada")),
            (b"\xef\xbb\xbfPay 40\n", Ok("Pay 40")),
            (b"\xef\xbb\xbf\n", Err("is empty")),
            (b"", Err("is empty")),
            (b"\xff\xfeP\0a\0y\0", Err("is UTF-16 text")),
            (b"\xfe\xff\0P\0a\0y", Err("is UTF-16 text")),
            (b"P\0a\0y\0", Err("is UTF-16 text")),
            (b"caf\xe9", Err("is not UTF-8 text: save it as UTF-8")),
        ] {
            let found = parse_text(bytes);
            match expected {
                Ok(text) => assert_eq!(found.as_deref(), Ok(text), "{bytes:?}"),
                Err(reason) => assert!(found.unwrap_err().starts_with(reason), "{bytes:?}"),
            }
        }
    }
}
