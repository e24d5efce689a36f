//! Setters for the configuration and messages of an agent.

use std::sync::Arc;

use crate::agent::message::Message;
use crate::agent::settings::{QueueMode, ThinkingLevel};
use crate::app::agent::{Agent, AgentError, Config, lock, setup};
use crate::tools::code::{Tool, code_tool};
use crate::tools::{RunTool, name_conflicts};

impl Agent {
    /// Sets the system prompt from the next model call on.
    pub fn set_system_prompt(&self, text: impl Into<String>) {
        self.change(|config| config.system_prompt = text.into());
    }

    /// Sets the model from the next model call on. The next prompt fails if the model is unknown.
    pub fn set_model(&self, id: impl Into<String>) {
        self.change(|config| config.settings.model = Some(id.into()));
    }

    /// Sets the thinking level from the next model call on.
    pub fn set_thinking_level(&self, level: ThinkingLevel) {
        self.change(|config| config.settings.thinking_level = Some(level));
    }

    pub fn set_steering_mode(&self, mode: QueueMode) {
        self.change(|config| config.settings.steering_mode = Some(mode));
    }

    pub fn set_follow_up_mode(&self, mode: QueueMode) {
        self.change(|config| config.settings.follow_up_mode = Some(mode));
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
        self.change(|config| config.session_id = id);
    }

    /// Replaces the tools from the next model call on; [`code_tool`] creates them.
    ///
    /// # Errors
    /// Two tools have the same name: rename one. The tools stay unchanged.
    pub fn set_tools(&self, tools: Vec<Arc<dyn RunTool>>) -> Result<(), AgentError> {
        let conflicts = name_conflicts(&tools);
        if !conflicts.is_empty() {
            return Err(AgentError::Mistakes(conflicts));
        }
        self.change(|config| config.tools = tools);
        Ok(())
    }

    /// Removes all tools from the next model call on.
    pub fn clear_tools(&self) {
        self.change(|config| config.tools.clear());
    }

    /// Adds a tool from the next model call on. It replaces a tool of the same name.
    ///
    /// # Errors
    /// The definition of the tool is invalid; the error names the fix.
    pub fn add_tool<T: Tool>(&self, tool: T) -> Result<(), AgentError> {
        let tool = code_tool(tool).map_err(|mistake| AgentError::Mistakes(vec![mistake]))?;
        self.change(|config| {
            config.tools.retain(|known| known.definition().name != tool.definition().name);
            config.tools.push(tool);
        });
        Ok(())
    }

    /// Replaces the messages for the next run. An active run continues with its own messages.
    pub fn replace_messages(&self, messages: Vec<Message>) {
        self.rewrite(|all| *all = messages);
    }

    pub fn append_message(&self, message: Message) {
        self.rewrite(|all| all.push(message));
    }

    pub fn clear_messages(&self) {
        self.rewrite(Vec::clear);
    }

    fn change(&self, change: impl FnOnce(&mut Config)) {
        let mut config = lock(&self.inner.config);
        change(&mut config);
        self.inner.world.agents.replace(setup::catalog(&config));
    }

    fn rewrite(&self, change: impl FnOnce(&mut Vec<Message>)) {
        let mut seen = lock(&self.inner.seen);
        change(&mut seen.messages);
        seen.changes += 1;
    }
}
