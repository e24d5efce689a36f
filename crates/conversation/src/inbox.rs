//! The inbox: accepted requests that are not yet applied, and the receipts that replace them under
//! the same id.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::content::Content;
use crate::entry::{CustomMessageEntry, Source};
use crate::finished_prompt::FinishedPrompt;
use crate::leaf_move::LeafMove;
use crate::message::ToolResultMessage;
use crate::plugin_state::PluginStateChange;
use crate::request::{CallRef, Decision};
use crate::unknown_members::{Extra, keep_unknown_members};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{InputId, PromptId, UserId};

/// An accepted request. It is created before the client receives 2xx, and is the only copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InboxItem {
    pub input_id: InputId,
    /// Orders the inbox, before `input_id`.
    pub accepted_at: Timestamp,
    #[serde(default)]
    #[serde(rename = "admission")]
    pub idempotency: IdempotencyRecord,
    /// W3C trace context of a request that continues a prompt. A prompt has its own in the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    pub body: InboxBody,
}

/// The queue in which a message waits for the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputQueue {
    /// Starts a prompt.
    Prompt,
    /// Joins the running prompt before its next model call.
    Steering,
    /// Starts a prompt when the previous one ends.
    FollowUp,
    /// Joins the next prompt that a user starts.
    NextTurn,
}

/// Messages of [`InputQueue::NextTurn`] that may wait in a conversation, beside its other inputs.
pub const NEXT_TURN_MESSAGES_MAX: u32 = 64;

/// Prefix of the ids of items that actions of extensions make.
pub(crate) const EXTENSION_ITEM_PREFIX: &str = "hook_";

impl InboxItem {
    /// The message of a prompt, steer or follow-up.
    pub fn prompt(&self) -> Option<&PromptInput> {
        match &self.body {
            InboxBody::Prompt(prompt) | InboxBody::Steer(prompt) | InboxBody::FollowUp(prompt) => {
                Some(prompt)
            }
            InboxBody::Command(command) => command.prompt_at().map(|at| &at.prompt),
            InboxBody::Custom(_)
            | InboxBody::Decision(_)
            | InboxBody::Abort(_)
            | InboxBody::Continue(_)
            | InboxBody::LateResult(_) => None,
        }
    }

    /// W3C trace context of the request that sent the item.
    pub fn request_traceparent(&self) -> Option<&str> {
        let of_prompt = || self.prompt().and_then(|prompt| prompt.traceparent.as_deref());
        self.traceparent.as_deref().or_else(of_prompt)
    }

    /// The move of the leaf in the commit that starts the item's prompt.
    pub fn leaf_move(&self) -> Option<&LeafMove> {
        let InboxBody::Command(command) = &self.body else { return None };
        command.prompt_at().map(|at| &at.leaf_move)
    }

    /// The queue of the item. `None`: the item holds no message.
    pub fn queue(&self) -> Option<InputQueue> {
        match &self.body {
            InboxBody::Prompt(_) => Some(InputQueue::Prompt),
            InboxBody::Steer(_) => Some(InputQueue::Steering),
            InboxBody::FollowUp(_) => Some(InputQueue::FollowUp),
            InboxBody::Custom(custom) => Some(match custom.deliver_as {
                None | Some(DeliverAs::Steer) => InputQueue::Steering,
                Some(DeliverAs::FollowUp) => InputQueue::FollowUp,
                Some(DeliverAs::NextTurn) => InputQueue::NextTurn,
            }),
            InboxBody::Command(command) => command.prompt_at().map(|_| InputQueue::Prompt),
            InboxBody::Decision(_)
            | InboxBody::Abort(_)
            | InboxBody::Continue(_)
            | InboxBody::LateResult(_) => None,
        }
    }

    /// True if the item takes effect in an idle conversation. Such an item is pending work.
    pub fn has_effect_when_idle(&self) -> bool {
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

    /// True if an action of an extension made the item.
    pub(crate) fn is_made_by_extension(&self) -> bool {
        self.input_id.as_str().starts_with(EXTENSION_ITEM_PREFIX)
    }

    /// True if the item starts a prompt in an idle conversation.
    pub fn can_start_prompt(&self) -> bool {
        match &self.body {
            InboxBody::Prompt(_) | InboxBody::Steer(_) | InboxBody::FollowUp(_) => {
                self.has_effect_when_idle()
            }
            InboxBody::Custom(custom) => custom.trigger_turn && self.has_effect_when_idle(),
            InboxBody::Continue(_) => true,
            InboxBody::Command(command) => command.prompt_at().is_some(),
            InboxBody::Decision(_) | InboxBody::Abort(_) | InboxBody::LateResult(_) => false,
        }
    }
}

/// Idempotency record of a request: identifies a repeated request and holds the response to return.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IdempotencyRecord {
    /// SHA-256 of the request's JSON in canonical form.
    pub body_hash: String,
    /// HTTP status of the first response.
    pub status: u16,
    #[serde(rename = "answer")]
    pub response: Option<RawJson>,
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
    Command(CommandInput),
    Custom(CustomInput),
}

/// Effect of an input in an idle conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum WhenIdle {
    /// It starts a prompt.
    #[default]
    Start,
    /// It waits for the next prompt and is no pending work meanwhile.
    Hold,
}

impl WhenIdle {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_start(&self) -> bool {
        *self == Self::Start
    }
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptInput {
    pub prompt_id: PromptId,
    pub user: UserId,
    /// Effect in an idle conversation.
    #[serde(default, skip_serializing_if = "WhenIdle::is_start")]
    pub when_idle: WhenIdle,
    /// Absent: the system starts the prompt, without a user message.
    pub input: Option<Content>,
    pub visible: bool,
    pub model: Option<String>,
    pub source: Source,
    /// W3C trace context of the request.
    pub traceparent: Option<String>,
    /// The input as sent, if an extension changed it.
    pub original: Option<Content>,
    /// Idempotency key as its client sent it, for notifications. Absent: it sent none.
    pub idempotency_key: Option<String>,
}

/// A message of an application-defined kind. The model receives it as a user message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CustomInput {
    /// Id of the prompt that it may start.
    pub prompt_id: PromptId,
    pub user: UserId,
    pub message: CustomMessageEntry,
    /// Absent: like a steer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver_as: Option<DeliverAs>,
    /// True if it starts a prompt in an idle conversation. Otherwise it is only appended.
    #[serde(default)]
    pub trigger_turn: bool,
}

/// The queue of a custom message.
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
    /// True if the conversation ended with a model response. It then continues with the queued
    /// messages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "isAnswered")]
    pub has_model_response: bool,
    /// Turn of the conversation when the request was accepted. In a later turn something has run
    /// since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
}

/// The outcome of a tool whose worker lost the lease during the call. It is known, so it is
/// recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LateResult {
    pub call: CallRef,
    pub message: ToolResultMessage,
    #[serde(default)]
    pub outputs: Vec<crate::entry::Output>,
    /// Change of the state of the tool's plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PluginStateChange>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "StoredCommand")]
pub struct CommandInput {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<RawJson>,
    /// The arguments of [`PROMPT_AT_COMMAND`], as `args` has them.
    #[serde(skip)]
    prompt_at: Option<Box<PromptAt>>,
    /// The arguments of the command that inserts a prompt, as `args` has them.
    #[serde(skip)]
    finished_prompt: Option<Box<FinishedPrompt>>,
}

/// Name of the inbox command that moves the leaf and starts a prompt there.
const PROMPT_AT_COMMAND: &str = "promptAt";

/// A prompt, and the move of the leaf in the commit that starts it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptAt {
    pub prompt: PromptInput,
    #[serde(rename = "move")]
    pub leaf_move: LeafMove,
}

#[derive(Deserialize)]
struct StoredCommand {
    name: String,
    #[serde(default)]
    args: Option<RawJson>,
}

impl From<StoredCommand> for CommandInput {
    fn from(stored: StoredCommand) -> Self {
        Self::new(stored.name, stored.args)
    }
}

impl CommandInput {
    pub fn new(name: impl Into<String>, args: Option<RawJson>) -> Self {
        let name = name.into();
        let own_args = args.as_ref().filter(|_| name == PROMPT_AT_COMMAND);
        // Arguments of a newer version stay unread: the item waits for a newer worker.
        let prompt_at = own_args.and_then(|args| args.read().ok());
        let finished_prompt = FinishedPrompt::from_command(&name, args.as_ref());
        Self { name, args, prompt_at, finished_prompt }
    }

    pub fn from_prompt_at(prompt_at: &PromptAt) -> Self {
        Self::new(PROMPT_AT_COMMAND, Some(RawJson::from_value(prompt_at)))
    }

    pub fn prompt_at(&self) -> Option<&PromptAt> {
        self.prompt_at.as_deref()
    }

    pub fn finished_prompt(&self) -> Option<&FinishedPrompt> {
        self.finished_prompt.as_deref()
    }
}

/// Outcome of an accepted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputOutcome {
    #[serde(rename = "landed")]
    Applied,
    /// It changed nothing: it came too late or was a repetition.
    Ignored,
    Cleared,
}

/// Replaces an inbox item in the commit that applies it. It lives as long as the conversation.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct Receipt {
    pub input_id: InputId,
    pub accepted_at: Timestamp,
    #[serde(default)]
    #[serde(rename = "admission")]
    pub idempotency: IdempotencyRecord,
    pub outcome: InputOutcome,
    /// The turn in which the item was applied.
    pub turn: u64,
    pub prompt_id: Option<PromptId>,
    /// The decision, if the item was one. A later, different decision is rejected with it.
    pub decision: Option<Decision>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped_calls: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ran_calls: Vec<String>,
    /// Calls that an abort interrupted: their outcome is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "unknownCalls")]
    pub outcome_unknown_calls: Vec<String>,
    /// The response of a request that waited for an answer: the one it would have received at once
    /// without a question.
    pub result: Option<RawJson>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

keep_unknown_members!([] Receipt);

impl Receipt {
    /// A receipt with nothing but the outcome.
    pub fn new(
        input_id: InputId,
        accepted_at: Timestamp,
        idempotency: IdempotencyRecord,
        outcome: InputOutcome,
    ) -> Self {
        Self {
            input_id,
            accepted_at,
            idempotency,
            outcome,
            turn: 0,
            prompt_id: None,
            decision: None,
            skipped_calls: Vec::new(),
            ran_calls: Vec::new(),
            outcome_unknown_calls: Vec::new(),
            result: None,
            extra: Extra::new(),
        }
    }
}
