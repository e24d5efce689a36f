//! Plugins: tools, texts of the system prompt and state that are prepared before every model call.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Extension;
use crate::http::HttpPlugin;
use crate::permissions::{Permissions, find_permission_mistakes};
use crate::prepare::{Prepare, PrepareInput, PrepareOutput};
use turnwheel_conversation::plugin_state::{PluginState, PluginStateChange, PluginStates};
use turnwheel_json::raw::{ENTRY_DEPTH_MAX, RawJson};
use turnwheel_platform::error_chain::error_chain;
use turnwheel_tools::code::{ServiceRegistry, Tool, build_code_tool_with_services, schema_of};
use turnwheel_tools::plugin_state::{StateAccess, read_state};
use turnwheel_tools::{CallableTool, find_name_conflicts};

#[cfg(test)]
mod tests;

/// Maximum number of tools of one plugin.
const TOOLS_MAX: usize = 128;

/// Failure of a plugin. `?` converts any error into a permanent failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginError {
    text: String,
    is_retryable: bool,
}

impl PluginError {
    /// A failure that another attempt would repeat. The text must hold no secrets: it is logged,
    /// and clients read it as the error of the prompt.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_retryable: false }
    }

    /// Like [`PluginError::new`], for a failure that another attempt may not repeat. The retry
    /// settings of the conversation apply.
    pub fn retryable(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_retryable: true }
    }

    pub fn is_retryable(&self) -> bool {
        self.is_retryable
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Includes the causes of the error. `PluginError` does not implement [`std::error::Error`]: that
/// would conflict with this conversion.
impl<E: std::error::Error> From<E> for PluginError {
    fn from(error: E) -> Self {
        Self::new(error_chain(&error))
    }
}

/// A plugin of an agent. Before every model call, [`Plugin::prepare`] of each plugin chooses tools
/// and adds texts to the system prompt. Plugins run in order of registration, or in the order of
/// the agent file.
///
/// A plugin holds no state of a conversation: its state is stored with the conversation.
pub trait Plugin: Send + Sync + fmt::Debug + 'static {
    /// State in a conversation, at most 8 KB of JSON. Without state: `()`.
    type State: JsonSchema + Serialize + DeserializeOwned + Send + Sync;

    /// `a-z 0-9 _ -`, at most 64 characters; unique in the app. Stored state has this name.
    fn name(&self) -> &str;

    /// Version of [`Plugin::State`]. Increase it if a state of the previous version is not valid
    /// any more.
    fn schema_version(&self) -> u32 {
        1
    }

    /// Converts a state of an earlier version. A state with a number that a double would round never
    /// gets here: reading it is an error.
    ///
    /// # Errors
    /// The state cannot be converted; without this method, always. The model call fails, and the
    /// stored state stays as it is.
    fn migrate(&self, from: u32, _state: Value) -> Result<Self::State, PluginError> {
        let to = self.schema_version();
        Err(PluginError::new(format!(
            "its stored state has schema {from}, and it has no migration to {to}"
        )))
    }

    /// Declares the tools that [`Plugin::prepare`] can activate. A model call offers the activated
    /// ones only. A call of an offered tool runs whatever later calls activate, also days later
    /// after an approval.
    fn tools(&self, _tools: &mut PluginTools) {}

    /// True if a model call is made without this plugin when it fails.
    fn is_optional(&self) -> bool {
        false
    }

    /// The hosts and settings that [`Plugin::prepare`] uses, and the plugins whose state it reads;
    /// see [`Extension::permissions`].
    fn permissions(&self) -> Permissions {
        Permissions::new()
    }

    /// Runs before every model call, again for each attempt, and again after a take-over. It must
    /// not cause an effect that must happen once. Its changes of the state are stored with the
    /// model response; if the call fails or is aborted, nothing is stored.
    ///
    /// It must end within `TURNWHEEL_HOOK_TIMEOUT`. After an error, a panic or a missed deadline
    /// the model call fails with the error type `plugin`, unless [`Plugin::is_optional`].
    fn prepare(
        &self,
        cx: &mut Prepare<'_, Self::State>,
    ) -> impl Future<Output = Result<(), PluginError>> + Send;
}

/// The tools that a plugin declares.
#[derive(Debug, Default)]
pub struct PluginTools {
    services: ServiceRegistry,
    state: Option<Arc<dyn StateAccess>>,
    tools: Vec<Arc<dyn CallableTool>>,
    mistakes: Vec<String>,
}

impl PluginTools {
    pub fn tool<T: Tool>(&mut self, tool: T) -> &mut Self {
        match build_code_tool_with_services(tool, self.services.clone(), self.state.clone()) {
            Ok(tool) => self.tools.push(tool),
            Err(mistake) => self.mistakes.push(mistake),
        }
        self
    }

    /// Adds a tool that the app or the agent has as well.
    pub fn existing_tool(&mut self, tool: Arc<dyn CallableTool>) {
        self.tools.push(tool);
    }
}

/// A plugin without the type of its state.
#[async_trait]
trait AnyPlugin: Send + Sync + fmt::Debug {
    async fn run_prepare(&self, input: PrepareInput<'_>) -> Result<PrepareOutput, PluginError>;
}

#[async_trait]
impl<P: Plugin> AnyPlugin for P {
    async fn run_prepare(&self, input: PrepareInput<'_>) -> Result<PrepareOutput, PluginError> {
        let stored = input.states.get(self.name());
        let schema = &input.plugin.schema;
        let state = stored.map(|stored| schema.read_state(self, stored)).transpose()?;
        let mut cx = Prepare::new(input, self.schema_version(), state);
        self.prepare(&mut cx).await?;
        cx.into_output()
    }
}

#[async_trait]
impl AnyPlugin for HttpPlugin {
    async fn run_prepare(&self, input: PrepareInput<'_>) -> Result<PrepareOutput, PluginError> {
        self.prepare(input).await
    }
}

/// JSON Schema of a plugin's state.
#[derive(Clone, Debug)]
pub struct StateSchema(Arc<jsonschema::Validator>);

impl StateSchema {
    fn new<S: JsonSchema>(plugin: &str) -> Result<Self, String> {
        let validator = jsonschema::validator_for(&schema_of::<S>());
        validator.map(|validator| Self(Arc::new(validator))).map_err(|error| {
            format!("the state of the plugin `{plugin}` has no usable JSON Schema: {error}")
        })
    }

    /// The text names the place, not the value.
    ///
    /// # Errors
    /// The state does not match the plugin's schema.
    pub fn check(&self, state: &Value) -> Result<(), PluginError> {
        self.0.validate(state).map_err(|error| {
            let place = error.instance_path().to_string();
            PluginError::new(format!("its state is not valid at \"{place}\": {}", error.masked()))
        })
    }

    /// The change that sets the state of a plugin with this name and schema version. Numbers stay as
    /// written.
    ///
    /// # Errors
    /// The state does not match the plugin's schema, has a number that no float has, or is too large.
    pub fn change(
        &self,
        plugin: &str,
        schema: u32,
        state: RawJson,
        states: &PluginStates,
    ) -> Result<PluginStateChange, PluginError> {
        let value = state.with_unique_members();
        self.check(&value.read::<Value>()?)?;
        let state = Some(PluginState { schema, value });
        let change = PluginStateChange { plugin: plugin.to_owned(), state };
        match change.size_error(states) {
            Some(text) => Err(PluginError::new(text)),
            None => Ok(change),
        }
    }

    /// Like [`Self::change`], for a state that must be readable as `S`: otherwise each later model call
    /// would fail.
    pub(crate) fn change_of<S: DeserializeOwned>(
        &self,
        plugin: &str,
        schema: u32,
        state: RawJson,
        states: &PluginStates,
    ) -> Result<PluginStateChange, PluginError> {
        let change = self.change(plugin, schema, state, states)?;
        if let Some(state) = &change.state {
            read_state::<S>(&state.value).map_err(|reason| {
                PluginError::new(format!("its state cannot be read: {reason}"))
            })?;
        }
        Ok(change)
    }

    pub(crate) fn read_state<P: Plugin>(
        &self,
        plugin: &P,
        stored: &PluginState,
    ) -> Result<P::State, PluginError> {
        let version = plugin.schema_version();
        if stored.schema > version {
            return Err(PluginError::new(format!(
                "its stored state has schema {}, this version reads {version}",
                stored.schema
            )));
        }
        if stored.value.depth() > ENTRY_DEPTH_MAX {
            let text = format!("its stored state nests over {ENTRY_DEPTH_MAX} levels");
            return Err(PluginError::new(text));
        }
        let value = stored.value.clone().with_unique_members();
        if stored.schema < version {
            let state = value.read_exact::<Value>().map_err(|error| {
                let place = error.pointer;
                PluginError::new(format!(
                    "its stored state has a number at \"{place}\" that `migrate` would round"
                ))
            })?;
            return plugin.migrate(stored.schema, state);
        }
        self.check(&value.to_value())?;
        read_state(&value).map_err(|reason| {
            PluginError::new(format!("its stored state cannot be read: {reason}"))
        })
    }
}

/// Access of the tools of a plugin to its state.
#[derive(Debug)]
struct ToolStateAccess<P> {
    plugin: Arc<P>,
    schema: StateSchema,
}

impl<P: Plugin> ToolStateAccess<P> {
    fn error_text(&self, error: &PluginError) -> String {
        format!("plugin \"{}\": {error}", self.plugin.name())
    }
}

impl<P: Plugin> StateAccess for ToolStateAccess<P> {
    fn read(&self, states: &PluginStates) -> Result<Option<RawJson>, String> {
        let Some(stored) = states.get(self.plugin.name()) else { return Ok(None) };
        let state = self.schema.read_state(&*self.plugin, stored);
        let value = state.and_then(|state| Ok(RawJson::from_text(serde_json::to_string(&state)?)?));
        value.map(Some).map_err(|error| self.error_text(&error))
    }

    fn set(&self, state: RawJson, states: &PluginStates) -> Result<PluginStateChange, String> {
        let (name, version) = (self.plugin.name(), self.plugin.schema_version());
        let change = self.schema.change_of::<P::State>(name, version, state, states);
        change.map_err(|error| self.error_text(&error))
    }
}

/// Names a plugin where its hook runs.
#[derive(Debug)]
struct PluginHook {
    name: String,
    timeout: Option<Duration>,
    is_remote: bool,
    permissions: Permissions,
    /// Version of the state.
    schema_version: Option<u32>,
}

#[async_trait]
impl Extension for PluginHook {
    fn name(&self) -> &str {
        &self.name
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn is_remote(&self) -> bool {
        self.is_remote
    }

    fn permissions(&self) -> Permissions {
        self.permissions.clone()
    }

    fn version(&self) -> Option<String> {
        self.schema_version.map(|version| format!("schema {version}"))
    }
}

/// A registered plugin with its tools.
#[derive(Debug)]
pub struct RegisteredPlugin {
    plugin: Arc<dyn AnyPlugin>,
    hook: Arc<dyn Extension>,
    tools: Vec<Arc<dyn CallableTool>>,
    is_optional: bool,
    pub schema: StateSchema,
}

impl RegisteredPlugin {
    /// # Errors
    /// The mistakes in the declarations of the plugin. Report them to the developer at start-up.
    pub fn new<P: Plugin>(plugin: P, services: ServiceRegistry) -> Result<Self, Vec<String>> {
        let (plugin, name) = {
            let name = plugin.name().to_owned();
            (Arc::new(plugin), name)
        };
        let schema = StateSchema::new::<P::State>(&name).map_err(|mistake| vec![mistake])?;
        let access = ToolStateAccess { plugin: Arc::clone(&plugin), schema: schema.clone() };
        let state = Some(Arc::new(access) as Arc<dyn StateAccess>);
        let mut declared = PluginTools { services, state, ..PluginTools::default() };
        plugin.tools(&mut declared);
        let PluginTools { tools, mut mistakes, .. } = declared;
        mistakes.extend(find_name_conflicts(&tools));
        mistakes.extend(find_declaration_mistakes(&name, &tools));
        let permissions = plugin.permissions();
        mistakes.extend(find_permission_mistakes(&format!("plugin \"{name}\""), &permissions));
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let is_optional = plugin.is_optional();
        let is_remote = permissions.has_hosts();
        let schema_version = Some(plugin.schema_version());
        let hook = PluginHook { name, timeout: None, is_remote, permissions, schema_version };
        let hook = Arc::new(hook);
        Ok(Self { plugin, hook, tools, is_optional, schema })
    }

    /// Names of `tools` are unique.
    ///
    /// # Errors
    /// The mistakes in the declaration of the plugin. Report them as mistakes of the agent file.
    pub fn from_http(
        plugin: HttpPlugin,
        tools: Vec<Arc<dyn CallableTool>>,
        is_optional: bool,
    ) -> Result<Self, Vec<String>> {
        let name = plugin.name.clone();
        let mistakes = find_declaration_mistakes(&name, &tools);
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let schema = StateSchema::new::<serde_json::Map<String, Value>>(&name)
            .map_err(|mistake| vec![mistake])?;
        let timeout = Some(plugin.endpoint.timeout);
        let permissions = Permissions::new();
        let hook = PluginHook { name, timeout, is_remote: true, permissions, schema_version: None };
        let hook = Arc::new(hook);
        Ok(Self { plugin: Arc::new(plugin), hook, tools, is_optional, schema })
    }

    /// Registers a plugin after `others`.
    ///
    /// # Errors
    /// The mistakes in its declarations, or another plugin has its name.
    pub fn register<P: Plugin>(
        plugin: P,
        others: &mut Vec<Arc<Self>>,
        services: &ServiceRegistry,
    ) -> Result<(), Vec<String>> {
        let plugin = Self::new(plugin, services.clone())?;
        if others.iter().any(|other| other.name() == plugin.name()) {
            let name = plugin.name();
            return Err(vec![format!("two plugins are called `{name}`. Rename one of them")]);
        }
        others.push(Arc::new(plugin));
        Ok(())
    }

    pub fn name(&self) -> &str {
        self.hook.name()
    }

    /// The name in the context of its hook.
    pub fn hook(&self) -> Arc<dyn Extension> {
        Arc::clone(&self.hook)
    }

    pub fn tools(&self) -> &[Arc<dyn CallableTool>] {
        &self.tools
    }

    pub fn is_optional(&self) -> bool {
        self.is_optional
    }

    /// The same plugin with other tools, by name.
    #[must_use]
    pub fn with_tools(
        &self,
        replace: impl Fn(&Arc<dyn CallableTool>) -> Arc<dyn CallableTool>,
    ) -> Self {
        Self {
            plugin: Arc::clone(&self.plugin),
            hook: self.hook(),
            tools: self.tools.iter().map(replace).collect(),
            is_optional: self.is_optional,
            schema: self.schema.clone(),
        }
    }

    /// Runs the plugins' functions for the preparation of a prompt.
    ///
    /// # Errors
    /// A function of the plugin failed, or its result is invalid.
    pub async fn prepare(&self, input: PrepareInput<'_>) -> Result<PrepareOutput, PluginError> {
        self.plugin.run_prepare(input).await
    }
}

fn find_declaration_mistakes(name: &str, tools: &[Arc<dyn CallableTool>]) -> Vec<String> {
    let mut mistakes = Vec::new();
    if !is_plugin_name(name) {
        mistakes
            .push(format!("the plugin name `{name}` is not usable: use 1 to 64 of a-z 0-9 _ -"));
    }
    if tools.len() > TOOLS_MAX {
        let count = tools.len();
        mistakes.push(format!("the plugin `{name}` has {count} tools; the maximum is {TOOLS_MAX}"));
    }
    mistakes
}

pub fn is_plugin_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
}
