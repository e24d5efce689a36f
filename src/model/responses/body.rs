//! The request's body: one stateless call, nothing kept by the service.

use serde_json::{Map, Value, json};

use crate::model::responses::effort::{effort, takes_parallel_calls};
use crate::model::responses::ids::{WIRE_ID_MAX, plain};
use crate::model::responses::input::plan_input;
use crate::model::responses::names::Names;
use crate::model::{ModelRequest, ToolOffer};

pub fn request_body(request: &ModelRequest<'_>, names: &Names) -> Value {
    let model = request.model;
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
    set("model", Value::from(model.deployment_name.as_str()));
    set("input", Value::Array(plan_input(request, names)));
    set("stream", Value::Bool(true));
    // With `true`, ids of earlier items are looked up in a store that forgets.
    set("store", Value::Bool(false));
    set("max_output_tokens", Value::from(model.output_max(request.max_output_tokens)));
    if !request.session_id.is_empty() {
        set("prompt_cache_key", Value::from(cache_key(request.session_id)));
    }
    let mut effort_sent = None;
    if model.reasoning {
        set("include", json!(["reasoning.encrypted_content"]));
        effort_sent = effort(&model.id, request.thinking);
        match effort_sent {
            None => {}
            Some("none") => {
                set("reasoning", json!({ "effort": "none" }));
            }
            Some(effort) => {
                set("reasoning", json!({ "effort": effort, "summary": "auto" }));
            }
        }
    } else if let Some(temperature) = request.temperature {
        // Reasoning models refuse it.
        set("temperature", Value::from(temperature));
    }
    if !request.tools.is_empty() {
        set(
            "tools",
            Value::Array(request.tools.iter().map(|tool| wire_tool(tool, names)).collect()),
        );
        set("tool_choice", Value::from("auto"));
        set("parallel_tool_calls", Value::Bool(takes_parallel_calls(effort_sent)));
    }
    if let Some(schema) = request.response_schema {
        // Not strict: that takes a part of JSON Schema only. The core holds the answer against the whole schema.
        set(
            "text",
            json!({ "format": { "type": "json_schema", "name": "answer", "schema": schema, "strict": false } }),
        );
    }
    Value::Object(body)
}

/// `strict` is always said: left out, the service makes every schema strict.
fn wire_tool(tool: &ToolOffer, names: &Names) -> Value {
    let mut parameters = match &tool.parameters {
        Value::Object(schema) => schema.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    };
    // An object schema without them is refused.
    parameters.entry("type").or_insert_with(|| Value::from("object"));
    if parameters.get("type").and_then(Value::as_str) == Some("object") {
        parameters.entry("properties").or_insert_with(|| json!({}));
    }
    json!({
        "type": "function",
        "name": names.wire(&tool.name),
        "description": tool.description,
        "parameters": parameters,
        "strict": tool.strict,
    })
}

fn cache_key(session_id: &str) -> String {
    if session_id.len() <= WIRE_ID_MAX { session_id.to_owned() } else { plain(session_id) }
}

#[cfg(test)]
mod tests;
