//! Queue outputs: sends the outputs of a handler's response to queues, message by message, as the
//! Functions host does.
//!
//! Source: azure-functions-host, `FunctionBinding.BindAsyncCollectorAsync`;
//! `HttpScriptInvocationResultExtensions.cs`.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::try_join_all;
use serde_json::Value;

use super::invoke::InvocationError;
use super::{Function, HostState};

/// An output binding of `function.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    pub name: String,
    pub queue: String,
}

/// The value that a response gives to each output name, unchanged.
pub(super) type Outputs = Vec<(String, Value)>;

impl HostState {
    /// Runs one invocation. Writes its outputs only after a 2xx response, all at once, and before
    /// anything else is done about it. Logs a failure.
    pub(super) async fn invoke(
        &self,
        function: &Function,
        invocation_id: &str,
        envelope: &Value,
    ) -> Result<(), InvocationError> {
        let input = (envelope, self.config.function_timeout);
        let outputs = self.handler.invoke(&function.name, invocation_id, input).await?;
        let written = self.write_outputs(function, invocation_id, outputs).await;
        if let Err(error) = &written {
            self.handler.record_failure(&function.name, invocation_id, error);
        }
        written
    }

    async fn write_outputs(
        &self,
        function: &Function,
        invocation_id: &str,
        outputs: Outputs,
    ) -> Result<(), InvocationError> {
        let (mut sends, mut target_queues) = (Vec::new(), BTreeSet::new());
        for (name, value) in outputs {
            let declared = function.outputs.iter().find(|output| output.name == name);
            let Some(Output { queue, .. }) = declared else {
                // Azure drops the output silently and the invocation succeeds; so does this host,
                // with a note.
                self.handler.record_failure(
                    &function.name,
                    invocation_id,
                    &InvocationError::UndeclaredOutput(name),
                );
                continue;
            };
            for text in queue_messages(&value) {
                let text = if self.config.queues.is_base64 { STANDARD.encode(text) } else { text };
                target_queues.insert(queue.as_str());
                sends.push(self.queues.send(queue, text, Duration::ZERO));
            }
        }
        let written = try_join_all(sends).await;
        for signal in target_queues.iter().filter_map(|queue| self.output_signals.get(*queue)) {
            signal.send_modify(|number| *number += 1);
        }
        written.map(drop).map_err(|error| InvocationError::OutputNotSent(error.into()))
    }
}

/// Returns one message per element of an array or of a text that holds an array; none for null.
fn queue_messages(value: &Value) -> Vec<String> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(elements) => elements.iter().filter_map(queue_message).collect(),
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(Value::Array(elements)) => elements.iter().filter_map(queue_message).collect(),
            Ok(object @ Value::Object(_)) => queue_message(&object).into_iter().collect(),
            Ok(_) | Err(_) => vec![text.clone()],
        },
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            queue_message(value).into_iter().collect()
        }
    }
}

/// A text is unchanged; an object is indented, as Newtonsoft writes it.
fn queue_message(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            serde_json::to_string_pretty(value).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn output_array_becomes_one_message_per_element() {
        assert_eq!(queue_messages(&json!(["jobs", r#"{"a":1}"#])), ["jobs", r#"{"a":1}"#]);
        assert_eq!(queue_messages(&json!([{"a": 1}, null])), ["{\n  \"a\": 1\n}"]);
        assert_eq!(queue_messages(&json!("[\"a\",\"b\"]")), ["a", "b"]);
        assert_eq!(queue_messages(&json!("{\"a\":1}")), ["{\n  \"a\": 1\n}"]);
        assert_eq!(queue_messages(&json!("not base64!")), ["not base64!"]);
        assert_eq!(queue_messages(&json!(null)), Vec::<String>::new());
    }
}
