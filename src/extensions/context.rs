//! The context of a hook: the conversation, the agent and the prompt it runs for.

use std::fmt;
use std::sync::Arc;

use crate::digest::sha256_hex;
use crate::extensions::questions::HookQuestions;
use crate::extensions::{Extension, Hook};
use crate::ids::{ConversationKey, PromptId};

/// Facts that all extensions at one event share.
#[derive(Debug)]
pub(crate) struct HookSite {
    pub(crate) hook: Hook,
    pub(crate) conversation: ConversationKey,
    pub(crate) incarnation: String,
    pub(crate) agent: String,
    pub(crate) prompt_id: Option<PromptId>,
    pub(crate) anchor: Anchor,
}

/// Place of a hook in the conversation. A repetition of the hook has the same one.
#[derive(Clone, Debug)]
pub(crate) enum Anchor {
    /// Number of the model response, and index of the call in it.
    ToolCall { response: u64, index: usize },
    /// Number of the model response.
    Response(u64),
    /// A compaction: the last entry before it, the number of the attempt, and the earlier model
    /// calls of the attempt.
    Summary { after: u64, attempt: u32, earlier_calls: u32 },
    /// A committed entry.
    Entry(u64),
}

impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ToolCall { response, index } => write!(f, "t{response}.{index}"),
            Self::Response(number) => write!(f, "r{number}"),
            Self::Summary { after, attempt, earlier_calls } => {
                write!(f, "c{after}.{attempt}.{earlier_calls}")
            }
            Self::Entry(seq) => write!(f, "e{seq}"),
        }
    }
}

/// The context of a hook.
#[derive(Clone, Debug)]
pub struct HookContext {
    site: Arc<HookSite>,
    extension: Arc<dyn Extension>,
    /// `None`: this hook may not ask.
    pub(super) questions: Option<Arc<HookQuestions>>,
}

impl HookContext {
    pub(crate) fn new(site: Arc<HookSite>, extension: Arc<dyn Extension>) -> Self {
        Self { site, extension, questions: None }
    }

    pub(crate) fn extension(&self) -> &dyn Extension {
        &*self.extension
    }

    pub fn hook(&self) -> Hook {
        self.site.hook
    }

    pub fn conversation(&self) -> &ConversationKey {
        &self.site.conversation
    }

    /// Name of the conversation's agent.
    pub fn agent(&self) -> &str {
        &self.site.agent
    }

    /// The running prompt. `None` in a compaction outside a prompt.
    pub fn prompt_id(&self) -> Option<&PromptId> {
        self.site.prompt_id.as_ref()
    }

    /// Identifies this call of the hook. A repetition after a take-over, a lost commit, an approval
    /// or an answer has the same id; every other call of a hook has another one.
    pub fn hook_id(&self) -> String {
        let HookSite { hook, conversation, incarnation, anchor, .. } = &*self.site;
        let (id, event) = (&conversation.conversation_id, hook.name());
        let name = self.extension.name();
        sha256_hex(format!("{id}\n{incarnation}\n{anchor}\n{event}\n{name}").as_bytes())
    }
}
