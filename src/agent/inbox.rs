//! What has been accepted and not yet taken in, and the receipt that replaces it under the same id.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::content::Content;
use crate::agent::entry::{CallRef, CustomMessageEntry, Source};
use crate::agent::message::ToolResultMessage;
use crate::agent::raw::{Extra, RawJson};
use crate::agent::request::Decision;
use crate::clock::Timestamp;
use crate::ids::{InputId, PromptId, UserId};

/// An accepted request. It is created before the client hears 2xx, and nothing else holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InboxItem {
    pub input_id: InputId,
    /// Orders what waits, then `input_id`.
    pub accepted_at: Timestamp,
    #[serde(default)]
    pub admission: Admission,
    /// W3C trace context of a request that lets a prompt go on; a prompt has its own in the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    pub body: InboxBody,
}

/// Where what is said waits until the loop takes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Begins a prompt.
    Prompt,
    /// Joins the prompt that runs, before its next answer.
    Steering,
    /// Begins a prompt where the one before ends.
    FollowUp,
    /// Joins the next prompt that a person begins.
    NextTurn,
}

impl InboxItem {
    /// What a person says, or a program in the same way.
    pub fn prompt(&self) -> Option<&PromptInput> {
        match &self.body {
            InboxBody::Prompt(prompt) | InboxBody::Steer(prompt) | InboxBody::FollowUp(prompt) => {
                Some(prompt)
            }
            InboxBody::Custom(_)
            | InboxBody::Decision(_)
            | InboxBody::Abort(_)
            | InboxBody::Continue(_)
            | InboxBody::LateResult(_)
            | InboxBody::Command(_) => None,
        }
    }

    /// `None`: nothing is said by it.
    pub fn queue(&self) -> Option<Queue> {
        match &self.body {
            InboxBody::Prompt(_) => Some(Queue::Prompt),
            InboxBody::Steer(_) => Some(Queue::Steering),
            InboxBody::FollowUp(_) => Some(Queue::FollowUp),
            InboxBody::Custom(custom) => Some(match custom.deliver_as {
                None | Some(DeliverAs::Steer) => Queue::Steering,
                Some(DeliverAs::FollowUp) => Queue::FollowUp,
                Some(DeliverAs::NextTurn) => Queue::NextTurn,
            }),
            InboxBody::Decision(_)
            | InboxBody::Abort(_)
            | InboxBody::Continue(_)
            | InboxBody::LateResult(_)
            | InboxBody::Command(_) => None,
        }
    }

    /// Whether it changes something by itself in a conversation in which nothing runs: such an item is owed a look.
    pub fn starts_when_idle(&self) -> bool {
        match &self.body {
            InboxBody::Prompt(prompt) | InboxBody::Steer(prompt) | InboxBody::FollowUp(prompt) => {
                prompt.when_idle == WhenIdle::Start
            }
            InboxBody::Custom(custom) => custom.deliver_as != Some(DeliverAs::NextTurn),
            InboxBody::Decision(_)
            | InboxBody::Abort(_)
            | InboxBody::Continue(_)
            | InboxBody::LateResult(_)
            | InboxBody::Command(_) => true,
        }
    }

    /// Whether what it does then is to begin a prompt.
    pub fn begins_prompt(&self) -> bool {
        match &self.body {
            InboxBody::Prompt(_) | InboxBody::Steer(_) | InboxBody::FollowUp(_) => {
                self.starts_when_idle()
            }
            InboxBody::Custom(custom) => custom.trigger_turn && self.starts_when_idle(),
            InboxBody::Continue(_) => true,
            InboxBody::Decision(_)
            | InboxBody::Abort(_)
            | InboxBody::LateResult(_)
            | InboxBody::Command(_) => false,
        }
    }
}

/// What a repeated request is compared with and answered from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Admission {
    /// SHA-256 of the request's JSON in canonical form.
    pub body_hash: String,
    /// The first answer.
    pub status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<RawJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum InboxBody {
    Prompt(PromptInput),
    Steer(PromptInput),
    FollowUp(PromptInput),
    Decision(Decision),
    Abort(AbortInput),
    Continue(ContinueInput),
    LateResult(LateResult),
    Command(Command),
    Custom(CustomInput),
}

/// What an input does in a conversation in which nothing runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum WhenIdle {
    /// It begins a prompt.
    #[default]
    Start,
    /// It waits for the next prompt, and owes nothing meanwhile.
    Hold,
}

impl WhenIdle {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
    fn is_start(&self) -> bool {
        *self == Self::Start
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptInput {
    pub prompt_id: PromptId,
    pub user: UserId,
    /// What becomes of it when nothing runs.
    #[serde(default, skip_serializing_if = "WhenIdle::is_start")]
    pub when_idle: WhenIdle,
    /// Absent: begun by the system, adds no user message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Content>,
    pub visible: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub source: Source,
    /// W3C trace context of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// A message of a program's own kind: the model reads it as it reads a person's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CustomInput {
    /// Of the prompt that it may begin.
    pub prompt_id: PromptId,
    pub user: UserId,
    pub message: CustomMessageEntry,
    /// Absent: as a steer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver_as: Option<DeliverAs>,
    /// Whether it begins a prompt when nothing runs; otherwise it is only put on record then.
    #[serde(default)]
    pub trigger_turn: bool,
}

/// Which queue a custom message waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum DeliverAs {
    Steer,
    FollowUp,
    NextTurn,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AbortInput {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<PromptId>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContinueInput {
    pub prompt_id: PromptId,
    pub user: UserId,
    /// Whether the conversation ended with an answer: then it goes on with what waits in the queues.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_answered: bool,
    /// Of the conversation as this was accepted: in a later one something has run since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
}

/// The outcome of a tool whose worker lost its claim while it ran: known, so it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LateResult {
    pub call: CallRef,
    pub message: ToolResultMessage,
    #[serde(default)]
    pub outputs: Vec<crate::agent::entry::Output>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Command {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<RawJson>,
}

/// What became of an accepted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Landed,
    /// It changed nothing: it came too late, or was said before.
    Ignored,
    Cleared,
}

/// Replaces an inbox item in the commit that takes it in; lives as long as the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    pub input_id: InputId,
    pub accepted_at: Timestamp,
    #[serde(default)]
    pub admission: Admission,
    pub outcome: Outcome,
    /// The turn in which it landed.
    pub turn: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<PromptId>,
    /// What was decided, when it was a decision: a later, different one is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped_calls: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ran_calls: Vec<String>,
    /// Calls that a stop cut off: whether they happened is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_calls: Vec<String>,
    #[serde(flatten)]
    pub extra: Extra,
}

impl Receipt {
    /// That says no more than what became of it.
    pub fn new(
        input_id: InputId,
        accepted_at: Timestamp,
        admission: Admission,
        outcome: Outcome,
    ) -> Self {
        Self {
            input_id,
            accepted_at,
            admission,
            outcome,
            turn: 0,
            prompt_id: None,
            decision: None,
            skipped_calls: Vec::new(),
            ran_calls: Vec::new(),
            unknown_calls: Vec::new(),
            extra: Extra::new(),
        }
    }
}
