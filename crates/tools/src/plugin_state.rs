//! State of a plugin in the calls of its tools. A call reads the stored state, and its change is
//! stored with its result.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use turnwheel_conversation::plugin_state::{PluginState, PluginStateChange, PluginStates};
use turnwheel_json::raw::{RawJson, redacted_error};

/// Reads and sets the state of one plugin.
pub trait StateAccess: Send + Sync + fmt::Debug {
    /// The state in the version of this program. `None`: the plugin has no state.
    ///
    /// # Errors
    /// The plugin cannot read it: report the text.
    fn read(&self, states: &PluginStates) -> Result<Option<RawJson>, String>;

    /// # Errors
    /// The state is not valid, or larger than allowed: report the text.
    fn set(&self, state: RawJson, states: &PluginStates) -> Result<PluginStateChange, String>;
}

/// Reads a state as a type of the plugin.
///
/// # Errors
/// The type does not match, or it would round a number that has more digits than a double, and a later
/// change would store the rounded one: report the text, which names the place and no value.
pub fn read_state<S: DeserializeOwned>(state: &RawJson) -> Result<S, String> {
    // Earlier versions stored the double nearest to an `f32`, which `f32` may read.
    if state.read_exact::<Value>().is_ok() {
        return state.read().map_err(|error| redacted_error(&error));
    }
    state.read_exact().map_err(|error| {
        let place = match error.pointer.as_str() {
            "" => "the whole state".to_owned(),
            pointer => format!("\"{pointer}\""),
        };
        format!("the type does not match {place}, or would round a number there")
    })
}

/// The state of plugins during one call. Clones share it.
#[derive(Clone, Debug)]
pub struct CallPluginState(Arc<Mutex<StateOfCall>>);

#[derive(Debug)]
struct StateOfCall {
    /// With the change of this call.
    states: PluginStates,
    change: Option<PluginStateChange>,
}

impl CallPluginState {
    /// `states`: as stored before the call.
    pub fn new(states: PluginStates) -> Self {
        Self(Arc::new(Mutex::new(StateOfCall { states, change: None })))
    }

    /// The change that the call has made.
    pub fn change(&self) -> Option<PluginStateChange> {
        self.lock().change.clone()
    }

    /// The state under this name, with the change of this call.
    pub fn find(&self, name: &str) -> Option<PluginState> {
        self.lock().states.get(name).cloned()
    }

    /// Sets the change of this call.
    ///
    /// # Errors
    /// The state is larger than allowed: report the text.
    pub fn set(&self, change: PluginStateChange) -> Result<(), String> {
        let mut call = self.lock();
        if let Some(error) = change.size_error(&call.states) {
            return Err(error);
        }
        change.set(&mut call.states);
        call.change = Some(change);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, StateOfCall> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The plugin of a tool.
#[derive(Clone, Debug)]
pub struct ToolPlugin {
    pub access: Arc<dyn StateAccess>,
    /// True if the tool declares that it sets the state.
    pub writes_state: bool,
}

impl ToolPlugin {
    /// # Errors
    /// The state cannot be read as this type: report the text.
    pub fn state<S: DeserializeOwned>(&self, call: &CallPluginState) -> Result<Option<S>, String> {
        let state = self.access.read(&call.lock().states)?;
        let read = |state: RawJson| {
            read_state(&state)
                .map_err(|reason| format!("the state of the plugin cannot be read: {reason}"))
        };
        state.map(read).transpose()
    }

    /// # Errors
    /// The tool may not set the state, or the state is not accepted: report the text.
    pub fn set_state(&self, call: &CallPluginState, state: &impl Serialize) -> Result<(), String> {
        if !self.writes_state {
            return Err(
                "this tool sets the state of its plugin: `Tool::writes_state` must return true"
                    .to_owned(),
            );
        }
        let state = serde_json::to_string(state).and_then(RawJson::from_text);
        let state = state.map_err(|error| error.to_string())?;
        let mut call = call.lock();
        let change = self.access.set(state, &call.states)?;
        change.set(&mut call.states);
        call.change = Some(change);
        Ok(())
    }
}
