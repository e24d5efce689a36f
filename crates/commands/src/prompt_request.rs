//! Requests with the input of a prompt, and the responses to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::pipeline::Signal;
use crate::waiting_client::WaitingClients;
use turnwheel_conversation::branch::WriteLeft;
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::Source;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{InboxBody, PromptInput, WhenIdle};
use turnwheel_conversation::settings::Settings;
use turnwheel_platform::ids::{InputId, PromptId};
use turnwheel_record::services::Services;

/// The position before the first entry, in place of an entry's id.
const ROOT: &str = "root";

#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PromptRequest {
    /// Text, or text, image and file blocks; absent: the prompt starts without a user message.
    #[schema(value_type = Option<Object>)]
    pub input: Option<Content>,
    /// Absent: `prompt`.
    pub mode: Option<Mode>,
    /// For `steer` and `followUp`; absent: `start`.
    pub when_idle: Option<WhenIdle>,
    /// True if clients show it; the default is true.
    pub visible: Option<bool>,
    /// A model id for this prompt only.
    pub model: Option<String>,
    /// False: a text that begins with `/` runs no command. The default is true.
    pub expand: Option<bool>,
    /// Id of the entry after which the prompt starts, or `root`: before the first entry. The id of a
    /// user's message stands for the position before it. Absent: at the leaf.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub at: PromptPosition,
    /// True for an input that was accepted before: no extension handles it again.
    #[serde(skip)]
    #[schema(ignore)]
    pub is_moved: bool,
}

/// Place of a prompt in the session tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PromptPosition {
    #[default]
    Leaf,
    /// The id of an entry. `None`: before the first entry.
    Entry(Option<String>),
}

/// Reads the id of an entry. `None`: the root, which stored requests have as null.
pub(super) fn read_position<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let position = Option::<String>::deserialize(deserializer)?;
    Ok(position.filter(|position| position != ROOT))
}

impl<'de> Deserialize<'de> for PromptPosition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read_position(deserializer).map(Self::Entry)
    }
}

/// A prompt, and the conversation that is created with it.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FirstPromptRequest {
    pub agent: Option<String>,
    pub conversation_id: Option<String>,
    /// The same as `conversationId`.
    pub id: Option<String>,
    pub settings: Option<Settings>,
    pub metadata: Option<BTreeMap<String, String>>,
    #[schema(value_type = Option<Object>)]
    pub input: Option<Content>,
    pub mode: Option<Mode>,
    pub when_idle: Option<WhenIdle>,
    pub visible: Option<bool>,
    pub model: Option<String>,
    pub expand: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// Starts a prompt in a conversation without a running prompt.
    Prompt,
    /// Joins the running prompt before its next model call.
    Steer,
    /// Starts a prompt of its own when the running prompt would end.
    FollowUp,
}

impl Mode {
    pub fn to_inbox_body(self, prompt: PromptInput) -> InboxBody {
        match self {
            Self::Prompt => InboxBody::Prompt(prompt),
            Self::Steer => InboxBody::Steer(prompt),
            Self::FollowUp => InboxBody::FollowUp(prompt),
        }
    }
}

/// Origin of a prompt.
#[derive(Clone, Debug)]
pub struct Sender {
    pub source: Source,
    pub traceparent: Option<String>,
    pub when_busy: WhenBusy,
    /// `None`: workers take all turns.
    pub clients: Option<Arc<WaitingClients>>,
}

impl Sender {
    pub(crate) fn wake_signal(&self) -> Signal<'_> {
        Signal::Wake(self.traceparent.as_deref())
    }

    pub(crate) fn start_signal(&self, services: &Services, head: &Head) -> Signal<'_> {
        Signal::start_or_wake(services, head, self.clients.as_deref(), self.traceparent.as_deref())
    }
}

/// Handling of a prompt while another prompt has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenBusy {
    Reject,
    Queue,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromptAccepted {
    #[schema(value_type = String)]
    pub conversation_id: turnwheel_platform::ids::ConversationId,
    /// Prompt that it starts or joins.
    #[schema(value_type = String)]
    pub prompt_id: PromptId,
    /// Id of the input; `GET …/inbox/{inputId}` returns its state.
    #[schema(value_type = String)]
    pub input_id: InputId,
    pub disposition: Disposition,
    /// Newest event of the conversation before this input: events of the input come after it.
    #[serde(default)]
    pub last_event_id: u64,
    /// With `at`: writes on the branch that the conversation leaves, at most the newest 100. They are
    /// not undone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes_left: Vec<WriteLeft>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Disposition {
    Started,
    Queued,
    /// No prompt starts: a command ran, or an extension has handled the input.
    Handled,
    /// No prompt starts: a command asks a question, and runs again after the answer.
    Waiting,
}
