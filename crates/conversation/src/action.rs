//! Changes that extensions ask for. They are applied in the commit of the step in which the hook
//! ran, or not at all. Those of a request travel in an inbox item, and its commit applies them.

use serde::{Deserialize, Serialize};

use crate::content::Content;
use crate::entry::{CustomMessageEntry, ModelChange};
use crate::event::Severity;
use crate::inbox::{CommandInput, DeliverAs, InboxBody};
use crate::settings::ThinkingLevel;
use turnwheel_json::raw::{BODY_DEPTH_MAX, RawJson};
use turnwheel_platform::ids::{EntryId, PromptId};

/// Maximum number of actions of one hook.
const ACTIONS_MAX: usize = 16;
/// Maximum bytes of the actions of one hook.
const ACTIONS_BYTES_MAX: usize = 64 * 1024;
/// Maximum bytes of the type of a custom message.
const MESSAGE_TYPE_BYTES_MAX: usize = 128;
/// Prefix of the types of custom entries that only the service writes.
const RESERVED_PREFIX: &str = "turnwheel/";

/// A change that an extension asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Action {
    /// Appends an entry that is never sent to the model.
    AppendEntry {
        custom_type: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<RawJson>,
    },
    /// Adds a custom message to the inbox.
    SendMessage(MessageSpec),
    /// Adds a user message to the inbox. It starts a prompt if none runs.
    SendUserMessage {
        content: Content,
        queue: UserMessageQueue,
    },
    /// Sets the conversation's model: an id, or `normal`, `high`. `change`: the model that it
    /// stands for.
    SetModel {
        model: String,
        change: ModelChange,
    },
    SetThinkingLevel(ThinkingLevel),
    /// Names of the tools offered to the model.
    SetActiveTools(Vec<String>),
    /// `None` removes the name.
    SetName(Option<String>),
    /// `None` removes the label.
    SetLabel {
        entry_id: EntryId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<String>,
    },
    /// Aborts the running prompt. Without one it has no effect.
    Abort,
    /// Requests a summary. It starts when no prompt runs.
    Compact {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instructions: Option<String>,
    },
    /// Emits an event for the user.
    Notify {
        text: String,
        severity: Severity,
    },
}

/// A custom message to send.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageSpec {
    pub message: CustomMessageEntry,
    /// `None`: like a steer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver_as: Option<DeliverAs>,
    /// True if it starts a prompt in an idle conversation.
    pub trigger_turn: bool,
}

/// The queue of a user message while a prompt runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UserMessageQueue {
    Steer,
    FollowUp,
}

/// The fate of actions when their commit is computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionOrigin {
    /// The hook runs again, so its earlier actions are dropped.
    Recomputed,
    /// The hook decides on the turn that the commit closes: its actions stay or are dropped as its
    /// decision is.
    WithTurnDecision,
    /// The effect of the hook is done, so its actions stay.
    Kept,
}

/// The actions of one hook, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct HookActions {
    /// Name of the extension.
    pub by: String,
    /// Name of the event.
    pub event: &'static str,
    pub origin: ActionOrigin,
    actions: Vec<Action>,
    bytes: usize,
}

impl HookActions {
    pub fn new(by: impl Into<String>, event: &'static str, origin: ActionOrigin) -> Self {
        Self { by: by.into(), event, origin, actions: Vec::new(), bytes: 0 }
    }

    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    pub fn retain_aborts(&mut self) {
        self.actions.retain(|action| matches!(action, Action::Abort));
    }

    /// # Errors
    /// The action exceeds a limit: report the text to the hook.
    pub fn add(&mut self, action: Action) -> Result<(), String> {
        if let Action::AppendEntry { custom_type, .. } = &action
            && custom_type.starts_with(RESERVED_PREFIX)
        {
            return Err(format!(
                "the entry type `{custom_type}` is reserved: use another than `{RESERVED_PREFIX}…`"
            ));
        }
        let bytes = self.bytes + action.byte_count();
        if self.actions.len() >= ACTIONS_MAX {
            return Err(format!("one hook may have at most {ACTIONS_MAX} actions"));
        }
        if bytes > ACTIONS_BYTES_MAX {
            return Err(format!(
                "the actions of one hook have {bytes} bytes: at most {ACTIONS_BYTES_MAX} are allowed"
            ));
        }
        // A value that nests deeper could be stored in an entry that cannot be read again.
        if RawJson::from_value(&action).depth() > BODY_DEPTH_MAX {
            return Err(format!("an action may nest at most {BODY_DEPTH_MAX} levels"));
        }
        self.bytes = bytes;
        self.actions.push(action);
        Ok(())
    }
}

/// Name of the inbox command that carries actions.
const ACTIONS_COMMAND: &str = "actions";

/// The actions of one extension on a request, as its inbox item stores them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredActions {
    /// Name of the extension.
    pub by: String,
    pub actions: Vec<Action>,
}

impl StoredActions {
    /// The body of the inbox item with the actions of all extensions, in order.
    pub fn to_inbox_body(of_extensions: &[Self]) -> InboxBody {
        let args = RawJson::from_value(&of_extensions);
        InboxBody::Command(CommandInput::new(ACTIONS_COMMAND, Some(args)))
    }

    /// `None`: the command carries no actions, or one that this version does not know.
    pub(crate) fn from_command(command: &CommandInput) -> Option<Vec<Self>> {
        let args = command.args.as_ref().filter(|_| command.name == ACTIONS_COMMAND)?;
        args.read().ok()
    }
}

impl MessageSpec {
    /// A message that is shown, and only recorded if no prompt runs.
    pub fn new(custom_type: impl Into<String>, content: impl Into<Content>) -> Self {
        let message = CustomMessageEntry::new(custom_type, content);
        Self { message, deliver_as: None, trigger_turn: false }
    }

    /// # Errors
    /// The type is not usable, or a `nextTurn` message is to start a prompt. Report the text.
    pub fn check(&self) -> Result<(), String> {
        if !is_message_type(&self.message.custom_type) {
            return Err(format!(
                "the type of a message is a text of 1 to {MESSAGE_TYPE_BYTES_MAX} bytes"
            ));
        }
        if self.trigger_turn && self.deliver_as == Some(DeliverAs::NextTurn) {
            return Err("a `nextTurn` message starts no prompt".to_owned());
        }
        Ok(())
    }
}

/// True if a custom message can have this type.
pub fn is_message_type(custom_type: &str) -> bool {
    (1..=MESSAGE_TYPE_BYTES_MAX).contains(&custom_type.len())
}

impl Action {
    /// Names of all actions over HTTP, under which extensions declare them.
    pub const NAMES: [&'static str; 11] = [
        "appendEntry",
        "sendMessage",
        "sendUserMessage",
        "setModel",
        "setThinkingLevel",
        "setActiveTools",
        "setSessionName",
        "setLabel",
        "abort",
        "compact",
        "notify",
    ];

    /// One of [`Self::NAMES`].
    pub fn name(&self) -> &'static str {
        match self {
            Self::AppendEntry { .. } => "appendEntry",
            Self::SendMessage(_) => "sendMessage",
            Self::SendUserMessage { .. } => "sendUserMessage",
            Self::SetModel { .. } => "setModel",
            Self::SetThinkingLevel(_) => "setThinkingLevel",
            Self::SetActiveTools(_) => "setActiveTools",
            Self::SetName(_) => "setSessionName",
            Self::SetLabel { .. } => "setLabel",
            Self::Abort => "abort",
            Self::Compact { .. } => "compact",
            Self::Notify { .. } => "notify",
        }
    }

    /// True if it can start a prompt or a compaction.
    pub(crate) fn can_start_work(&self) -> bool {
        match self {
            Self::SendMessage(spec) => spec.trigger_turn,
            Self::SendUserMessage { .. } | Self::Compact { .. } => true,
            Self::AppendEntry { .. }
            | Self::SetModel { .. }
            | Self::SetThinkingLevel(_)
            | Self::SetActiveTools(_)
            | Self::SetName(_)
            | Self::SetLabel { .. }
            | Self::Abort
            | Self::Notify { .. } => false,
        }
    }

    /// Bytes of its texts and JSON.
    fn byte_count(&self) -> usize {
        match self {
            Self::AppendEntry { custom_type, data } => {
                custom_type.len() + json_bytes(data.as_ref())
            }
            Self::SendMessage(spec) => RawJson::from_value(&spec.message).text().len(),
            Self::SendUserMessage { content, .. } => RawJson::from_value(content).text().len(),
            Self::SetModel { model, change } => {
                model.len() + RawJson::from_value(change).text().len()
            }
            Self::SetActiveTools(names) => names.iter().map(String::len).sum(),
            Self::SetName(text)
            | Self::SetLabel { label: text, .. }
            | Self::Compact { instructions: text } => text.as_ref().map_or(0, String::len),
            Self::Notify { text, .. } => text.len(),
            Self::SetThinkingLevel(_) | Self::Abort => 0,
        }
    }
}

fn json_bytes(data: Option<&RawJson>) -> usize {
    data.map_or(0, |data| data.text().len())
}

/// Changes of extensions to an agent run, before its first model call. They concern one prompt and
/// have no effect on another.
#[derive(Clone, Debug, PartialEq)]
pub struct StartChanges {
    /// The prompt that starts the run.
    pub prompt_id: PromptId,
    /// Messages after those of the user.
    pub messages: Vec<CustomMessageEntry>,
    /// The system prompt of the run. `None`: the agent's instructions.
    pub system_prompt: Option<String>,
}
