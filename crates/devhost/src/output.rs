//! Queue outputs: sends the outputs of a handler's response to queues, message by message, as the
//! Functions host does.
//!
//! Source: azure-functions-host, `FunctionBinding.BindAsyncCollectorAsync`;
//! `HttpScriptInvocationResultExtensions.cs`.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::invoke::{InvocationError, InvocationInput};
use super::json::{Json, JsonReader};
use super::{Function, HostState};

/// An output binding of `function.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionOutput {
    pub name: String,
    pub queue: String,
}

/// The value that a response gives to each output name, unchanged.
pub(super) type Outputs = Vec<(String, Json)>;

impl HostState {
    /// Runs one invocation. Writes its outputs only after a 2xx response, and before anything else
    /// is done about it. Logs a failure.
    pub(super) async fn invoke(
        &self,
        function: &Function,
        invocation_id: &str,
        envelope: &serde_json::Value,
    ) -> Result<(), InvocationError> {
        let timeout = self.config.function_timeout;
        let input = InvocationInput { envelope, timeout, json: self.json };
        let outputs = self.handler.invoke(&function.name, invocation_id, input).await?;
        let written = self.write_outputs(function, invocation_id, outputs).await;
        if let Err(error) = &written {
            self.handler.record_failure(&function.name, invocation_id, error);
        }
        written
    }

    /// Writes the messages one after the other. The first failure ends the invocation; the messages
    /// before it stay, and a repeated delivery writes them again.
    async fn write_outputs(
        &self,
        function: &Function,
        invocation_id: &str,
        outputs: Outputs,
    ) -> Result<(), InvocationError> {
        let (mut written, mut target_queues) = (Ok(()), BTreeSet::new());
        for (name, value) in outputs {
            let declared = function.outputs.iter().find(|output| output.name == name);
            let Some(FunctionOutput { queue, .. }) = declared else {
                // Azure drops the output silently and the invocation succeeds; so does this host,
                // with a note.
                self.handler.record_failure(
                    &function.name,
                    invocation_id,
                    &InvocationError::UndeclaredOutput(name),
                );
                continue;
            };
            for text in queue_messages(&value, self.json) {
                let text = if self.config.queues.is_base64 { STANDARD.encode(text) } else { text };
                target_queues.insert(queue.as_str());
                if written.is_ok() {
                    written = self.queues.send(queue, text, Duration::ZERO).await;
                }
            }
        }
        for signal in target_queues.iter().filter_map(|queue| self.output_signals.get(*queue)) {
            signal.send_modify(|number| *number += 1);
        }
        written.map_err(|error| InvocationError::OutputNotSent(error.into()))
    }
}

/// Returns one message per element of an array or of a text that holds an array; none for null.
fn queue_messages(value: &Json, json: JsonReader) -> Vec<String> {
    let parsed = match value {
        Json::Null => return Vec::new(),
        Json::Text(text) => json.read_container(text),
        Json::Bool(_) | Json::Integer(_) | Json::Float(_) | Json::Array(_) | Json::Object(_) => {
            None
        }
    };
    let value = parsed.as_ref().unwrap_or(value);
    if let Json::Array(elements) = value {
        return elements.iter().map(queue_message).collect();
    }
    vec![queue_message(value)]
}

/// A text is unchanged unless it is a date, null is an empty message, and an object is indented.
fn queue_message(value: &Json) -> String {
    value.scalar_text().map_or_else(|| value.to_indented(), Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn output_array_becomes_one_message_per_element() {
        let messages = |value| queue_messages(&Json::from(value), JsonReader::default());
        assert_eq!(messages(json!(["jobs", r#"{"a":1}"#])), ["jobs", r#"{"a":1}"#]);
        assert_eq!(messages(json!([{"a": 1}, null])), ["{\n  \"a\": 1\n}", ""]);
        assert_eq!(messages(json!("[\"a\",\"b\"]")), ["a", "b"]);
        assert_eq!(messages(json!("{\"a\":1}")), ["{\n  \"a\": 1\n}"]);
        assert_eq!(messages(json!("not base64!")), ["not base64!"]);
        assert_eq!(messages(json!(null)), Vec::<String>::new());
    }
}
