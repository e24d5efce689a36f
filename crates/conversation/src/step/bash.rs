//! Results of commands that clients ran. A result is appended while no prompt runs, so it waits for
//! the end of a running prompt.

use serde::{Deserialize, Serialize};

use crate::entry::MessageEntry;
use crate::inbox::{CommandInput, InboxBody, InboxItem, InputOutcome};
use crate::message::{BashExecutionMessage, Message};
use crate::step::queue;
use crate::transition::Transition;
use crate::unknown_members::Extra;
use turnwheel_json::raw::RawJson;

/// Name of the inbox command that records a result.
const BASH_COMMAND: &str = "bash";

/// Arguments of the command.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BashInput {
    pub command: String,
    pub output: String,
    pub exit_code: Option<i64>,
    #[serde(default)]
    pub cancelled: bool,
    /// True if `output` is not the whole output.
    #[serde(default)]
    pub truncated: bool,
    /// True if the model does not receive it.
    pub exclude_from_context: Option<bool>,
    /// Where the client keeps the whole output.
    pub full_output_path: Option<String>,
}

impl BashInput {
    pub fn to_inbox_body(&self) -> InboxBody {
        let args = RawJson::from_value(self);
        InboxBody::Command(CommandInput::new(BASH_COMMAND, Some(args)))
    }
}

pub(super) fn is_bash_command(command: &CommandInput) -> bool {
    command.name == BASH_COMMAND
}

fn is_bash(item: &InboxItem) -> bool {
    matches!(&item.body, InboxBody::Command(command) if is_bash_command(command))
}

/// Appends the waiting results, oldest first. Returns false if one has no room in this commit.
pub(super) fn append_results(transition: &mut Transition) -> bool {
    while let Some(item) = queue::pop(transition, is_bash) {
        let mut receipt = queue::new_receipt(transition, &item);
        let InboxBody::Command(command) = &item.body else { continue };
        match command.args.as_ref().and_then(|args| args.read().ok()) {
            Some(input) => append_result(transition, input),
            None => receipt.outcome = InputOutcome::Ignored,
        }
        transition.receipts.push(receipt);
    }
    !queue::has_pending(transition, is_bash)
}

fn append_result(transition: &mut Transition, input: BashInput) {
    let message = Message::BashExecution(BashExecutionMessage {
        command: input.command,
        output: input.output,
        exit_code: input.exit_code,
        cancelled: input.cancelled,
        truncated: input.truncated,
        full_output_path: input.full_output_path,
        exclude_from_context: input.exclude_from_context,
        timestamp: transition.now,
        extra: Extra::new(),
    });
    transition.append_message(MessageEntry::new(message));
}
