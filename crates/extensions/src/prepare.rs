//! The context in which a plugin prepares a model call, and its result.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::HookContext;
use crate::plugin::{Plugin, PluginError, RegisteredPlugin};
use turnwheel_conversation::memory::UserDocuments;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::plugin_state::{PluginStateChange, PluginStates};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{PromptId, UserId};
use turnwheel_tools::CallableTool;

/// Maximum bytes of the context items of one plugin.
pub const ITEMS_BYTES_MAX: usize = 32 * 1024;
/// Maximum bytes of the context items of all plugins of a model call.
pub const ALL_ITEMS_BYTES_MAX: usize = 64 * 1024;

/// The prompt that the model call belongs to.
#[derive(Debug)]
pub struct CurrentPrompt<'a> {
    pub id: &'a PromptId,
    pub started_at: Timestamp,
    /// Model responses of the prompt so far.
    pub rounds: u32,
    /// The input of the prompt, and the responses, results and inputs since then. Compaction
    /// removes none of them.
    pub messages: Vec<&'a Message>,
}

/// Input of `prepare` of one plugin.
#[derive(Debug)]
pub struct PrepareInput<'a> {
    pub cx: &'a HookContext,
    pub plugin: &'a RegisteredPlugin,
    /// All plugins of the agent.
    pub plugins: &'a [Arc<RegisteredPlugin>],
    /// With the changes of earlier plugins.
    pub states: &'a PluginStates,
    pub history: &'a [Cow<'a, Message>],
    pub prompt: &'a CurrentPrompt<'a>,
    pub user: &'a UserId,
    /// The active tools of the agent.
    pub active_tools: &'a [Arc<dyn CallableTool>],
    /// `None`: the agent reads none, or there is none.
    pub workspace_context: Option<&'a str>,
    /// `None` if the agent reads none.
    pub user_documents: Option<&'a UserDocuments>,
    /// Bytes of the context items of earlier plugins.
    pub items_bytes: usize,
}

/// Output of `prepare` of one plugin.
#[derive(Debug, Default)]
pub struct PrepareOutput {
    pub change: Option<PluginStateChange>,
    /// Names of the activated tools.
    pub tools: Vec<String>,
    pub items: Vec<ContextItem>,
}

#[derive(Debug)]
pub struct ContextItem {
    pub text: String,
    pub is_volatile: bool,
}

/// The context in which a plugin with the state `S` prepares a model call.
pub struct Prepare<'a, S> {
    input: PrepareInput<'a>,
    schema_version: u32,
    state: Option<S>,
    output: PrepareOutput,
}

impl<S> fmt::Debug for Prepare<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepare").field("cx", self.input.cx).finish_non_exhaustive()
    }
}

impl<'a, S> Prepare<'a, S> {
    pub fn new(input: PrepareInput<'a>, schema_version: u32, state: Option<S>) -> Self {
        Self { input, schema_version, state, output: PrepareOutput::default() }
    }

    /// The conversation, the agent and the id of this call of the plugin.
    pub fn hook(&self) -> &HookContext {
        self.input.cx
    }

    /// The messages that the model receives with this call, before `transform_context` of
    /// extensions. They include those of the current prompt, and after a compaction its summary.
    pub fn history(&self) -> &[Cow<'a, Message>] {
        self.input.history
    }

    pub fn prompt(&self) -> &CurrentPrompt<'a> {
        self.input.prompt
    }

    /// The user who started the prompt.
    pub fn user(&self) -> &UserId {
        self.input.user
    }

    /// True if the tool of the agent is active in this call.
    pub fn is_active(&self, tool: &str) -> bool {
        self.input.active_tools.iter().any(|active| active.definition().name == tool)
    }

    /// The text of the context file of the workspace. `None`: the agent reads none, or there is none.
    pub fn workspace_context(&self) -> Option<&'a str> {
        self.input.workspace_context
    }

    /// The documents of the user. `None` if the agent reads none.
    pub fn user_documents(&self) -> Option<&'a UserDocuments> {
        self.input.user_documents
    }

    /// The state of the plugin. `None`: it was never set, or it was cleared.
    pub fn state(&self) -> Option<&S> {
        self.state.as_ref()
    }

    /// Sets the state of the plugin. Later plugins read it at once; it is stored with the response.
    ///
    /// # Errors
    /// The state does not match its JSON Schema, cannot be read as its type, has a number that no
    /// float has, nests over 110 levels, or is larger than 8 KB, or the state of all plugins is
    /// larger than 24 KB. The state stays as it was.
    pub fn set_state(&mut self, state: S) -> Result<(), PluginError>
    where
        S: Serialize + DeserializeOwned,
    {
        let plugin = self.input.plugin;
        let value = RawJson::from_text(serde_json::to_string(&state)?)?;
        let (name, version) = (plugin.name(), self.schema_version);
        let change = plugin.schema.change_of::<S>(name, version, value, self.input.states)?;
        (self.state, self.output.change) = (Some(state), Some(change));
        Ok(())
    }

    /// Removes the state of the plugin.
    pub fn clear_state(&mut self) {
        let plugin = self.input.plugin.name().to_owned();
        self.state = None;
        self.output.change = Some(PluginStateChange { plugin, state: None });
    }

    /// The state of another plugin, with the changes of plugins that run before this one.
    ///
    /// # Errors
    /// That plugin cannot read its state, for example because it has a newer schema; or this one
    /// declares whose state it reads, and not this name.
    pub fn state_of<P: Plugin>(&self, plugin: &P) -> Result<Option<P::State>, PluginError> {
        let name = plugin.name();
        let cx = self.input.cx;
        if !cx.extension().permissions().allows_storage(name) {
            let refusal = cx.refusal(&format!("state of the plugin `{name}`"), "with_storage");
            return Err(PluginError::new(refusal.to_string()));
        }
        let registered = self.input.plugins.iter().find(|other| other.name() == name);
        let stored = self.input.states.get(name);
        let (Some(registered), Some(stored)) = (registered, stored) else { return Ok(None) };
        let state = registered.schema.read_state(plugin, stored);
        state.map(Some).map_err(|error| PluginError::new(format!("plugin \"{name}\": {error}")))
    }

    /// Offers one of the plugin's tools to the model in this call.
    ///
    /// # Errors
    /// The plugin has not declared a tool of this name.
    pub fn activate(&mut self, tool: &str) -> Result<(), PluginError> {
        if !self.input.plugin.tools().iter().any(|own| own.definition().name == tool) {
            return Err(PluginError::new(format!("it has no tool \"{tool}\"")));
        }
        self.output.tools.push(tool.to_owned());
        Ok(())
    }

    /// Adds a text to the system prompt of this call, after the texts of earlier plugins.
    pub fn context(&mut self, text: impl Into<String>) {
        self.output.items.push(ContextItem { text: text.into(), is_volatile: false });
    }

    /// Like [`Prepare::context`], for a text that changes often. It comes after all other texts, so
    /// that the part before it stays in the prompt cache of the model service.
    pub fn volatile_context(&mut self, text: impl Into<String>) {
        self.output.items.push(ContextItem { text: text.into(), is_volatile: true });
    }

    pub(crate) fn into_output(self) -> Result<PrepareOutput, PluginError> {
        self.output.check(self.input.items_bytes)
    }
}

impl PrepareOutput {
    /// `earlier_bytes` are those of the context items of earlier plugins.
    ///
    /// # Errors
    /// The context items are too large: the plugin fails.
    pub fn check(self, earlier_bytes: usize) -> Result<Self, PluginError> {
        let bytes: usize = self.items.iter().map(|item| item.text.len()).sum();
        let together = bytes + earlier_bytes;
        if bytes > ITEMS_BYTES_MAX {
            return Err(PluginError::new(format!(
                "its context items are {bytes} bytes; the maximum is {ITEMS_BYTES_MAX}"
            )));
        }
        if together > ALL_ITEMS_BYTES_MAX {
            return Err(PluginError::new(format!(
                "its context items bring those of all plugins to {together} bytes; the maximum is {ALL_ITEMS_BYTES_MAX}"
            )));
        }
        Ok(self)
    }
}
