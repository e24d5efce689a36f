//! Commands that wait for an answer: requests whose hooks ask a question. Each stays in the inbox
//! until its hooks have run with all answers.

use serde::{Deserialize, Serialize};

use crate::action::StoredActions;
use crate::inbox::{CommandInput, InboxBody, InboxItem};
use crate::question::QuestionSpec;
use crate::step::{MoveInput, NavigateInput};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::InputId;

/// Name of the inbox command that carries such a request.
const WAITING_COMMAND: &str = "asking";

/// A request whose hooks ask a question. A worker runs them again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum AskingRequest {
    /// A command of an extension.
    Command { name: String, args: String },
    /// A move of the leaf. `turn`: the turn of the conversation when it was requested.
    MoveLeaf { request: RawJson, turn: u64 },
    /// A fork of this conversation.
    Fork { request: RawJson, key: RequestKey },
}

/// Identity of a request, as its idempotency record has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestKey {
    pub key: String,
    pub is_repeatable: bool,
    pub route: String,
    pub body_hash: String,
}

impl AskingRequest {
    pub fn to_inbox_body(&self) -> InboxBody {
        let args = RawJson::from_value(self);
        InboxBody::Command(CommandInput::new(WAITING_COMMAND, Some(args)))
    }

    /// Returns `None` if the item is another one.
    pub fn from_item(item: &InboxItem) -> Option<Self> {
        let InboxBody::Command(command) = &item.body else { return None };
        Self::from_command(command)
    }

    /// Returns `None` for another command, and for a request of a newer version.
    pub(crate) fn from_command(command: &CommandInput) -> Option<Self> {
        command.args.as_ref().filter(|_| command.name == WAITING_COMMAND)?.read().ok()
    }
}

impl InboxItem {
    /// True if the item stays in the inbox until its hooks have their answers. Then the head has its
    /// pending work.
    pub fn is_waiting_command(&self) -> bool {
        matches!(&self.body, InboxBody::Command(command) if command.name == WAITING_COMMAND)
    }
}

/// A run of the hooks of a waiting command.
#[derive(Clone, Debug)]
pub struct CommandRun {
    pub input_id: InputId,
    pub outcome: RunOutcome,
}

impl CommandRun {
    /// Returns true if there were any.
    pub fn drop_actions(&mut self) -> bool {
        let RunOutcome::Done(finished) = &mut self.outcome else { return false };
        !std::mem::take(&mut finished.actions).is_empty()
    }
}

#[derive(Clone, Debug)]
pub enum RunOutcome {
    /// A hook asks. `subject`: the subject of the question, for its title.
    Asked {
        question: Box<QuestionSpec>,
        subject: String,
    },
    Done(Box<FinishedCommand>),
}

/// The end of a waiting command.
#[derive(Clone, Debug)]
pub struct FinishedCommand {
    /// The response that the request would have received without a question.
    pub result: RawJson,
    pub actions: Vec<StoredActions>,
    pub leaf_change: Option<LeafChange>,
}

/// Change of the leaf that a finished command makes.
#[derive(Clone, Debug)]
pub enum LeafChange {
    Move(Box<PlannedMove>),
    /// The leaf moves with a summary by the model.
    Summarise(NavigateInput),
}

/// A move of the leaf that was planned on stored entries.
#[derive(Clone, Debug)]
pub struct PlannedMove {
    /// `seq` of the newest entry when it was planned. A newer one makes the plan void.
    pub planned_seq: u64,
    pub input: MoveInput,
}
