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
use super::{Function, Shared};

/// An output binding of `function.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    pub name: String,
    pub queue: String,
}

/// The value that a response gives to each output name, unchanged.
pub(super) type Outputs = Vec<(String, Value)>;

impl Shared {
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
        let written = self.write(function, invocation_id, outputs).await;
        if let Err(error) = &written {
            self.handler.note(&function.name, invocation_id, error);
        }
        written
    }

    async fn write(
        &self,
        function: &Function,
        invocation_id: &str,
        outputs: Outputs,
    ) -> Result<(), InvocationError> {
        let (mut sending, mut filled) = (Vec::new(), BTreeSet::new());
        for (name, value) in outputs {
            let declared = function.outputs.iter().find(|output| output.name == name);
            let Some(Output { queue, .. }) = declared else {
                // Azure drops the output silently and the invocation succeeds; so does this host,
                // with a note.
                self.handler.note(
                    &function.name,
                    invocation_id,
                    &InvocationError::Undeclared(name),
                );
                continue;
            };
            for text in messages(&value) {
                let text = if self.config.queues.is_base64 { STANDARD.encode(text) } else { text };
                filled.insert(queue.as_str());
                sending.push(self.queues.send(queue, text, Duration::ZERO));
            }
        }
        let written = try_join_all(sending).await;
        for woken in filled.iter().filter_map(|queue| self.woken.get(*queue)) {
            woken.send_modify(|number| *number += 1);
        }
        written.map(drop).map_err(|error| InvocationError::Output(error.into()))
    }
}

/// Returns one message per element of an array or of a text that holds an array; none for null.
fn messages(value: &Value) -> Vec<String> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(elements) => elements.iter().filter_map(message).collect(),
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(Value::Array(elements)) => elements.iter().filter_map(message).collect(),
            Ok(object @ Value::Object(_)) => message(&object).into_iter().collect(),
            Ok(_) | Err(_) => vec![text.clone()],
        },
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            message(value).into_iter().collect()
        }
    }
}

/// A text is unchanged; an object is indented, as Newtonsoft writes it.
fn message(value: &Value) -> Option<String> {
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
    fn an_array_is_a_message_for_each_element() {
        assert_eq!(messages(&json!(["jobs", r#"{"a":1}"#])), ["jobs", r#"{"a":1}"#]);
        assert_eq!(messages(&json!([{"a": 1}, null])), ["{\n  \"a\": 1\n}"]);
        assert_eq!(messages(&json!("[\"a\",\"b\"]")), ["a", "b"]);
        assert_eq!(messages(&json!("{\"a\":1}")), ["{\n  \"a\": 1\n}"]);
        assert_eq!(messages(&json!("not base64!")), ["not base64!"]);
        assert_eq!(messages(&json!(null)), Vec::<String>::new());
    }
}
