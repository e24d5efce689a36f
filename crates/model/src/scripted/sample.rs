//! Sample values for a JSON Schema, as far as its simple keywords determine them.

use serde_json::{Map, Value, json};

/// Depth at which objects stay empty. Real schemas are not nested deeper.
const DEPTH_MAX: usize = 8;

/// Returns a small value that fits the schema. Unconstrained strings become `text`.
pub fn sample_value(schema: &Value, text: &str) -> Value {
    sample_at_depth(schema, text, 0)
}

fn sample_at_depth(schema: &Value, text: &str, depth: usize) -> Value {
    if let Some(value) = ["const", "default"].iter().find_map(|name| schema.get(name)) {
        return value.clone();
    }
    if let Some(value) =
        ["enum", "examples"].iter().find_map(|name| schema.get(name)?.as_array()?.first())
    {
        return value.clone();
    }
    if let Some(first) =
        ["anyOf", "oneOf"].iter().find_map(|name| schema.get(name)?.as_array()?.first())
    {
        return sample_at_depth(first, text, depth + 1);
    }
    let kind = match schema.get("type") {
        Some(Value::String(kind)) => kind.as_str(),
        Some(Value::Array(kinds)) => kinds.first().and_then(Value::as_str).unwrap_or("object"),
        Some(_) | None => "object",
    };
    match kind {
        "string" => Value::from(text),
        "integer" | "number" => schema.get("minimum").cloned().unwrap_or_else(|| json!(1)),
        "boolean" => Value::Bool(true),
        "null" => Value::Null,
        "array" => {
            let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0).min(8);
            let item = schema.get("items").unwrap_or(&Value::Null);
            (0..least).map(|_| sample_at_depth(item, text, depth + 1)).collect()
        }
        _ => sample_object(schema, text, depth),
    }
}

fn sample_object(schema: &Value, text: &str, depth: usize) -> Value {
    let mut value = Map::new();
    let required =
        schema.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for name in required.iter().filter_map(Value::as_str).filter(|_| depth < DEPTH_MAX) {
        let inner = schema
            .get("properties")
            .and_then(|properties| properties.get(name))
            .unwrap_or(&Value::Null);
        let inner = match inner {
            Value::Object(_) => sample_at_depth(inner, text, depth + 1),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Value::from(text),
        };
        value.insert(name.to_owned(), inner);
    }
    Value::Object(value)
}
