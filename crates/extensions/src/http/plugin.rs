//! A plugin whose `prepare` is a request to a server.

use serde::Serialize;
use serde_json::Value;

use super::endpoint::HttpEndpoint;
use super::messages::{MESSAGES_BYTES_MAX, newest};
use super::request_body;
use super::response_parts::read_response;
use super::responses::{ContextText, ContextTextItem, PrepareResponse};
use crate::plugin::PluginError;
use crate::prepare::{ContextItem, PrepareInput, PrepareOutput};
use turnwheel_conversation::plugin_state::{PluginState, PluginStateChange};
use turnwheel_json::raw::RawJson;

/// A plugin of an agent file.
#[derive(Debug)]
pub struct HttpPlugin {
    pub name: String,
    pub endpoint: HttpEndpoint,
}

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PrepareData<'a> {
    rounds: u32,
    /// Absent: the plugin has no state.
    state: Option<&'a RawJson>,
    schema: Option<u32>,
    last_messages: Vec<RawJson>,
    /// Number of older messages of the history.
    messages_omitted: usize,
}

impl HttpPlugin {
    /// # Errors
    /// The request failed, or its response is not valid. Failures that may pass are retryable.
    pub async fn prepare(&self, input: PrepareInput<'_>) -> Result<PrepareOutput, PluginError> {
        let stored = input.states.get(&self.name);
        let history = input.history.iter().map(AsRef::as_ref);
        let (last_messages, messages_omitted) = newest(history, MESSAGES_BYTES_MAX);
        let data = PrepareData {
            rounds: input.prompt.rounds,
            state: stored.map(|stored| &stored.value),
            schema: stored.map(|stored| stored.schema),
            last_messages,
            messages_omitted,
        };
        let hook_id = input.cx.hook_id();
        let body = request_body(input.cx, &hook_id, input.user.as_str(), data)?;
        let response = self.endpoint.post(&hook_id, body).await.map_err(|failure| {
            if failure.is_transient {
                PluginError::retryable(failure.text)
            } else {
                PluginError::new(failure.text)
            }
        })?;
        let response: PrepareResponse =
            read_response(&response).map_err(|reason| invalid(&reason))?;
        self.read_output(response, &input)
    }

    fn read_output(
        &self,
        response: PrepareResponse,
        input: &PrepareInput<'_>,
    ) -> Result<PrepareOutput, PluginError> {
        let mut output = PrepareOutput::default();
        let declared = input.plugin.tools();
        for (index, tool) in response.tools.into_iter().enumerate() {
            if !declared.iter().any(|own| own.definition().name == tool) {
                let reason = format!("/tools/{index} is not among the tools of the agent file");
                return Err(invalid(&reason));
            }
            output.tools.push(tool);
        }
        let items = response.context.into_iter().map(|item| match item {
            ContextText::Stable(text) => ContextItem { text, is_volatile: false },
            ContextText::Item(ContextTextItem { text, volatile }) => {
                ContextItem { text, is_volatile: volatile }
            }
        });
        output.items.extend(items);
        if response.schema.is_some() && response.state.is_none() {
            return Err(invalid("schema needs state"));
        }
        output.change =
            response.state.map(|state| self.change(state, response.schema)).transpose()?;
        if let Some(text) = output.change.as_ref().and_then(|it| it.size_error(input.states)) {
            return Err(PluginError::new(text));
        }
        output.check(input.items_bytes)
    }

    /// `state` is JSON of any kind.
    fn change(
        &self,
        state: RawJson,
        schema: Option<u32>,
    ) -> Result<PluginStateChange, PluginError> {
        let state = match state.to_value() {
            Value::Null => None,
            Value::Object(_) => {
                let value = state.with_unique_members();
                Some(PluginState { schema: schema.unwrap_or(1), value })
            }
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(invalid("state is an object or null"));
            }
        };
        Ok(PluginStateChange { plugin: self.name.clone(), state })
    }
}

fn invalid(reason: &str) -> PluginError {
    PluginError::new(format!("its response is not valid: {reason}"))
}
