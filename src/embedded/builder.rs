//! Builder of an agent.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use crate::embedded::{Agent, AgentError};
use crate::registrations::Registrations;
use turnwheel_agent_files::SystemPromptParts;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::settings::{QueueMode, Settings, ThinkingLevel, ToolExecution};
use turnwheel_extensions::permissions::ExtensionSettings;
use turnwheel_extensions::{Extension, ExtensionError, Plugin};
use turnwheel_model::Model;
use turnwheel_tools::code::Tool;

/// Configuration of a new agent; [`AgentBuilder::start`] creates the agent.
#[derive(Default)]
pub struct AgentBuilder {
    pub(super) system_prompt: String,
    pub(super) settings: Settings,
    pub(super) registrations: Registrations,
    pub(super) prompt_parts: SystemPromptParts,
    pub(super) has_default_prompt: bool,
    /// Folders.
    pub(super) skills: Vec<PathBuf>,
    pub(super) messages: Vec<Message>,
    pub(super) models: Option<Arc<dyn Model>>,
    pub(super) data: Option<PathBuf>,
    pub(super) session_id: Option<String>,
    pub(super) has_automatic_title: bool,
    pub(super) extension_settings: ExtensionSettings,
}

impl fmt::Debug for AgentBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentBuilder").field("data", &self.data).finish_non_exhaustive()
    }
}

impl AgentBuilder {
    #[must_use]
    pub fn system_prompt(mut self, text: impl Into<String>) -> Self {
        self.system_prompt = text.into();
        self
    }

    /// A model id, or `normal` or `high`.
    #[must_use]
    pub fn model(mut self, id: impl Into<String>) -> Self {
        self.settings.model = Some(id.into());
        self
    }

    /// Sets the model client. Default: the model of the environment variables, as for the service;
    /// without one, the fake model (scripted).
    #[must_use]
    pub fn models(mut self, models: Arc<dyn Model>) -> Self {
        self.models = Some(models);
        self
    }

    #[must_use]
    pub fn thinking_level(mut self, level: ThinkingLevel) -> Self {
        self.settings.thinking_level = Some(level);
        self
    }

    #[must_use]
    pub fn tool<T: Tool>(mut self, tool: T) -> Self {
        self.registrations.add_tool(tool);
        self
    }

    /// Registers a value that tools get by its type with [`CallContext::service`]. The order of
    /// tool and service registrations does not matter.
    ///
    /// [`CallContext::service`]: turnwheel_tools::code::CallContext::service
    #[must_use]
    pub fn service<T: Send + Sync + 'static>(mut self, service: T) -> Self {
        self.registrations.add_service(service);
        self
    }

    /// Registers an extension. Its hooks can change the model's input and block tool calls. Hooks
    /// run in the order of registration.
    #[must_use]
    pub fn extension(mut self, extension: impl Extension + 'static) -> Self {
        self.registrations.add_extension(extension);
        self
    }

    /// Registers a plugin. Plugins prepare each model call in the order of registration.
    #[must_use]
    pub fn plugin(mut self, plugin: impl Plugin) -> Self {
        self.registrations.add_plugin(plugin);
        self
    }

    /// Sets a value that an extension or a plugin reads with [`HookContext::setting`]. Its permissions
    /// declare the setting.
    ///
    /// [`HookContext::setting`]: turnwheel_extensions::HookContext::setting
    #[must_use]
    pub fn extension_setting(
        mut self,
        extension: impl Into<String>,
        name: impl Into<String>,
        value: impl Into<Value>,
    ) -> Self {
        let own = self.extension_settings.entry(extension.into()).or_default();
        own.insert(name.into(), value.into());
        self
    }

    /// Registers a listener for failures of hooks. It must not block: the turn waits for it.
    #[must_use]
    pub fn on_extension_error(
        mut self,
        listener: impl Fn(&ExtensionError) + Send + Sync + 'static,
    ) -> Self {
        self.registrations.error_listeners.add(listener);
        self
    }

    /// Sets earlier messages of the conversation.
    #[must_use]
    pub fn messages(mut self, messages: Vec<Message>) -> Self {
        self.messages = messages;
        self
    }

    #[must_use]
    pub fn steering_mode(mut self, mode: QueueMode) -> Self {
        self.settings.steering_mode = Some(mode);
        self
    }

    #[must_use]
    pub fn follow_up_mode(mut self, mode: QueueMode) -> Self {
        self.settings.follow_up_mode = Some(mode);
        self
    }

    #[must_use]
    pub fn tool_execution(mut self, execution: ToolExecution) -> Self {
        self.settings.tool_execution = Some(execution);
        self
    }

    /// Sets all settings of a conversation, for example rounds, retries and compaction. Replaces
    /// earlier calls of the individual setters.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the id that groups model calls for the provider's prompt cache. Default: one group for
    /// each conversation.
    #[must_use]
    pub fn session_id(mut self, id: impl Into<String>) -> Self {
        self.session_id = Some(id.into());
        self
    }

    /// Lets the model name a conversation after its first completed prompt, in a model call of its
    /// own. The event `session_info_changed` has the name.
    #[must_use]
    pub fn automatic_title(mut self) -> Self {
        self.has_automatic_title = true;
        self
    }

    /// Sets the data folder. A new agent on the same folder continues its conversation. Default: a
    /// temporary folder, which is deleted with the agent.
    #[must_use]
    pub fn data(mut self, folder: impl Into<PathBuf>) -> Self {
        self.data = Some(folder.into());
        self
    }

    /// Starts the agent. Its tasks run in this runtime until the last handle is dropped.
    ///
    /// # Errors
    /// A tool or a setting is invalid, or the data folder cannot be opened. Each error names the
    /// fix.
    pub async fn start(self) -> Result<Agent, AgentError> {
        Box::pin(Agent::start(self)).await
    }
}
