//! The context of a hook: the conversation, the agent and the prompt it runs for.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::http_access::HookClient;
use crate::permissions::ExtensionSettings;
use crate::questions::HookQuestions;
use crate::{Extension, Hook};
use turnwheel_conversation::action::HookActions;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::settings::{Settings, ThinkingLevel};
use turnwheel_model::Model;
use turnwheel_platform::digest::sha256_hex;
use turnwheel_platform::ids::{ConversationKey, InputId, PromptId};
use turnwheel_tools::CallableTool;

/// Facts that all extensions at one event share.
#[derive(Debug)]
pub struct HookSite {
    pub hook: Hook,
    pub subject: Arc<HookSubject>,
    pub prompt_id: Option<PromptId>,
    pub anchor: Anchor,
    pub facts: HookFacts,
    pub access: HookAccess,
}

/// The conversation of a hook, and its agent. All events of a turn share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookSubject {
    pub conversation: ConversationKey,
    pub incarnation: String,
    pub agent: String,
}

impl HookSubject {
    pub fn new(head: &Head) -> Arc<Self> {
        Arc::new(Self {
            conversation: head.key(),
            incarnation: head.incarnation.clone(),
            agent: head.agent.clone(),
        })
    }

    /// True if it is that of the same conversation's head, whose agent may have changed.
    pub fn is_current(&self, head: &Head) -> bool {
        self.incarnation == head.incarnation && self.agent == head.agent
    }
}

/// Services and settings that hooks use.
#[derive(Clone, Debug)]
pub struct HookAccess {
    /// Resolves the names of models.
    pub model: Arc<dyn Model>,
    pub client: HookClient,
    /// Those of the agent. `None`: there is no agent.
    pub extension_settings: Option<Arc<ExtensionSettings>>,
}

/// State of the conversation as a hook sees it.
#[derive(Clone, Debug)]
pub struct HookFacts {
    pub has_waiting_messages: bool,
    pub name: Option<String>,
    pub model: String,
    pub thinking_level: ThinkingLevel,
    /// The active tools of the agent.
    pub tools: Arc<[Arc<dyn CallableTool>]>,
    pub system_prompt: Arc<str>,
    pub context_tokens: Option<u64>,
}

#[cfg(any(test, feature = "testing"))]
thread_local! {
    /// Number of sites made by this thread: a turn without extensions makes none.
    pub static SITES_MADE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// An event of a conversation, for which hooks run.
#[derive(Clone, Debug)]
pub struct HookEvent {
    pub hook: Hook,
    pub anchor: Anchor,
    pub subject: Arc<HookSubject>,
}

impl HookSite {
    /// The prompt is that of `anchor`, if it names one; otherwise it is the running one.
    pub fn new(event: HookEvent, head: &Head, facts: HookFacts, access: HookAccess) -> Arc<Self> {
        #[cfg(any(test, feature = "testing"))]
        SITES_MADE.with(|made| made.set(made.get() + 1));
        let HookEvent { hook, anchor, subject } = event;
        let running = || head.prompt.as_ref().map(|run| run.id.clone());
        Arc::new(Self {
            hook,
            subject,
            prompt_id: if let Anchor::Prompt(id) = &anchor { Some(id.clone()) } else { running() },
            anchor,
            facts,
            access,
        })
    }
}

impl HookFacts {
    /// `settings` are the effective ones; `tools` are active.
    pub fn new(
        head: &Head,
        settings: &Settings,
        tools: Arc<[Arc<dyn CallableTool>]>,
        system_prompt: Arc<str>,
    ) -> Self {
        Self {
            has_waiting_messages: head.waiting_items > 0,
            name: head.name.clone(),
            model: head.model_name(settings).to_owned(),
            thinking_level: settings.thinking_level.unwrap_or_default(),
            tools,
            system_prompt,
            context_tokens: head.context_tokens,
        }
    }
}

/// Tokens of the last model call, and the context window of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextUsage {
    /// `None`: the model has not responded yet, or not since the last compaction.
    pub tokens: Option<u64>,
    /// 0: the model is not configured.
    pub context_window: u64,
}

/// Place of a hook in the conversation. A repetition of the hook has the same one.
#[derive(Clone, Debug)]
pub enum Anchor {
    /// Number of the model response, and index of the call in it.
    ToolCall { response: u64, index: usize },
    /// Number of the model response.
    Response(u64),
    /// A compaction: the last entry before it, the number of the attempt, and the earlier model
    /// calls of the attempt.
    Summary { after: u64, attempt: u32, earlier_calls: u32 },
    /// A committed entry.
    Entry(u64),
    /// A committed event.
    Event(u64),
    /// A prompt that has not started.
    Prompt(PromptId),
    /// A request that is being accepted.
    Request(InputId),
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
            Self::Event(number) => write!(f, "v{number}"),
            Self::Prompt(id) => write!(f, "p{id}"),
            Self::Request(id) => write!(f, "q{id}"),
        }
    }
}

/// The context of a hook.
#[derive(Debug)]
pub struct HookContext {
    site: Arc<HookSite>,
    extension: Arc<dyn Extension>,
    /// `None`: there are none yet.
    pub(super) actions: Mutex<Option<HookActions>>,
    /// `None`: this hook may not ask. Boxed, because most hooks may not, and contexts are moved.
    pub(super) questions: Option<Box<HookQuestions>>,
}

impl HookContext {
    pub fn new(site: Arc<HookSite>, extension: Arc<dyn Extension>) -> Self {
        Self { site, extension, actions: Mutex::default(), questions: None }
    }

    pub(super) fn site(&self) -> &HookSite {
        &self.site
    }

    pub fn extension(&self) -> &dyn Extension {
        &*self.extension
    }

    pub fn hook(&self) -> Hook {
        self.site.hook
    }

    pub fn conversation(&self) -> &ConversationKey {
        &self.site.subject.conversation
    }

    /// Name of the conversation's agent.
    pub fn agent(&self) -> &str {
        &self.site.subject.agent
    }

    /// The running prompt. `None` in a compaction outside a prompt.
    pub fn prompt_id(&self) -> Option<&PromptId> {
        self.site.prompt_id.as_ref()
    }

    /// True if no prompt runs.
    pub fn is_idle(&self) -> bool {
        self.site.prompt_id.is_none()
    }

    /// True if messages wait in the inbox of the conversation.
    pub fn has_pending_messages(&self) -> bool {
        self.site.facts.has_waiting_messages
    }

    /// Name of the conversation.
    pub fn session_name(&self) -> Option<&str> {
        self.site.facts.name.as_deref()
    }

    /// The model of the next call: an id, or `normal` or `high`.
    pub fn model(&self) -> &str {
        &self.site.facts.model
    }

    pub fn thinking_level(&self) -> ThinkingLevel {
        self.site.facts.thinking_level
    }

    /// Names of the agent's active tools.
    pub fn active_tools(&self) -> impl Iterator<Item = &str> {
        self.site.facts.tools.iter().map(|tool| tool.definition().name.as_str())
    }

    /// The system prompt of the agent, or of the agent run if an extension changed it; without the
    /// texts of plugins.
    pub fn system_prompt(&self) -> &str {
        &self.site.facts.system_prompt
    }

    pub fn context_usage(&self) -> ContextUsage {
        let HookSite { facts, access, .. } = &*self.site;
        let window = access.model.record(&facts.model).map_or(0, |record| record.context_window);
        ContextUsage { tokens: facts.context_tokens, context_window: window }
    }

    /// Identifies this call of the hook. A repetition after a take-over, a lost commit, an approval
    /// or an answer has the same id; every other call of a hook has another one.
    pub fn hook_id(&self) -> String {
        let HookSite { hook, subject, anchor, .. } = &*self.site;
        let HookSubject { conversation, incarnation, .. } = &**subject;
        let (id, event) = (&conversation.conversation_id, hook.name());
        let name = self.extension.name();
        sha256_hex(format!("{id}\n{incarnation}\n{anchor}\n{event}\n{name}").as_bytes())
    }
}
