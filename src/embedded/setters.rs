//! Setters for the configuration and messages of an agent.

use crate::embedded::{Agent, AgentConfig, AgentError, lock, setup};
use turnwheel_conversation::message::Message;
use turnwheel_conversation::settings::{QueueMode, ThinkingLevel};
use turnwheel_tools::code::{DynTool, Tool, build_code_tool};

impl Agent {
    /// Sets the system prompt from the next model call on. Its other parts stay.
    pub fn set_system_prompt(&self, text: impl Into<String>) {
        self.update_config(|config| config.system_prompt = text.into());
    }

    /// Sets the model from the next model call on. The next prompt fails if the model is unknown.
    pub fn set_model(&self, id: impl Into<String>) {
        self.update_config(|config| config.settings.model = Some(id.into()));
    }

    /// Sets the thinking level from the next model call on.
    pub fn set_thinking_level(&self, level: ThinkingLevel) {
        self.update_config(|config| config.settings.thinking_level = Some(level));
    }

    pub fn set_steering_mode(&self, mode: QueueMode) {
        self.update_config(|config| config.settings.steering_mode = Some(mode));
    }

    pub fn set_follow_up_mode(&self, mode: QueueMode) {
        self.update_config(|config| config.settings.follow_up_mode = Some(mode));
    }

    pub fn steering_mode(&self) -> QueueMode {
        lock(&self.inner.config).settings.steering_mode.unwrap_or_default()
    }

    pub fn follow_up_mode(&self) -> QueueMode {
        lock(&self.inner.config).settings.follow_up_mode.unwrap_or_default()
    }

    /// Sets the id that groups calls for the provider's prompt cache, from the next model call on.
    /// `None`: one group for each conversation.
    pub fn set_session_id(&self, id: Option<String>) {
        self.update_config(|config| config.session_id = id);
    }

    /// Replaces the tools from the next model call on.
    ///
    /// # Errors
    /// Two tools, plugins included, have the same name: rename one. The tools stay unchanged.
    pub fn set_tools(&self, tools: Vec<DynTool>) -> Result<(), AgentError> {
        let tools: Vec<_> = tools.into_iter().map(|DynTool(tool)| tool).collect();
        let conflicts = setup::find_conflicts(&lock(&self.inner.config), &tools);
        if !conflicts.is_empty() {
            return Err(AgentError::Mistakes(conflicts));
        }
        self.update_config(|config| config.tools = tools);
        Ok(())
    }

    /// Removes all tools from the next model call on.
    pub fn clear_tools(&self) {
        self.update_config(|config| config.tools.clear());
    }

    /// Adds a tool from the next model call on. It replaces a tool of the same name.
    ///
    /// # Errors
    /// The definition of the tool is invalid, or a plugin has a tool of this name; the error names
    /// the fix.
    pub fn add_tool<T: Tool>(&self, tool: T) -> Result<(), AgentError> {
        let tool = build_code_tool(tool).map_err(|mistake| AgentError::Mistakes(vec![mistake]))?;
        let conflicts =
            setup::find_conflicts(&lock(&self.inner.config), std::slice::from_ref(&tool));
        if !conflicts.is_empty() {
            return Err(AgentError::Mistakes(conflicts));
        }
        self.update_config(|config| {
            config.tools.retain(|existing| existing.definition().name != tool.definition().name);
            config.tools.push(tool);
        });
        Ok(())
    }

    /// Replaces the messages for the next run. An active run continues with its own messages.
    pub fn replace_messages(&self, messages: Vec<Message>) {
        self.update_messages(|all| *all = messages);
    }

    pub fn append_message(&self, message: Message) {
        self.update_messages(|all| all.push(message));
    }

    pub fn clear_messages(&self) {
        self.update_messages(Vec::clear);
    }

    pub(super) fn update_config(&self, change: impl FnOnce(&mut AgentConfig)) {
        let mut config = lock(&self.inner.config);
        change(&mut config);
        self.inner.services.agents.replace(setup::build_catalog(&config));
    }

    fn update_messages(&self, change: impl FnOnce(&mut Vec<Message>)) {
        let mut observed = lock(&self.inner.observed);
        change(&mut observed.messages);
        observed.messages_version += 1;
    }
}
