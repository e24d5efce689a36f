//! What an agent is set to, and what it is to remember.

use std::sync::Arc;

use crate::agent::message::Message;
use crate::agent::settings::{QueueMode, ThinkingLevel};
use crate::app::agent::{Agent, AgentError, Config, lock, setup};
use crate::tools::code::{Tool, code_tool};
use crate::tools::{RunTool, name_conflicts};

impl Agent {
    /// From the next answer on.
    pub fn set_system_prompt(&self, text: impl Into<String>) {
        self.change(|config| config.system_prompt = text.into());
    }

    /// From the next answer on. A model that is not there is told by the next prompt.
    pub fn set_model(&self, id: impl Into<String>) {
        self.change(|config| config.settings.model = Some(id.into()));
    }

    /// From the next answer on.
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

    /// Groups calls for the provider's prompt cache, from the next answer on; `None`: each record is a group.
    pub fn set_session_id(&self, id: Option<String>) {
        self.change(|config| config.session_id = id);
    }

    /// Instead of the tools so far, from the next answer on; [`code_tool`] makes them.
    ///
    /// # Errors
    /// Two have one name; nothing was changed.
    pub fn set_tools(&self, tools: Vec<Arc<dyn RunTool>>) -> Result<(), AgentError> {
        let conflicts = name_conflicts(&tools);
        if !conflicts.is_empty() {
            return Err(AgentError::Mistakes(conflicts));
        }
        self.change(|config| config.tools = tools);
        Ok(())
    }

    /// Offered no more from the next answer on.
    pub fn clear_tools(&self) {
        self.change(|config| config.tools.clear());
    }

    /// Offered from the next answer on; in the place of one of the same name.
    ///
    /// # Errors
    /// The tool is written wrongly.
    pub fn add_tool<T: Tool>(&self, tool: T) -> Result<(), AgentError> {
        let tool = code_tool(tool).map_err(|mistake| AgentError::Mistakes(vec![mistake]))?;
        self.change(|config| {
            config.tools.retain(|known| known.definition().name != tool.definition().name);
            config.tools.push(tool);
        });
        Ok(())
    }

    /// What was said is this from now on. A run under way goes on with what it knows.
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
