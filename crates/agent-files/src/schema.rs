//! JSON Schema of the front matter of agent files, for editors and for programs that write agents.

use serde_json::{Map, Value};

use crate::sections::SECTIONS;

/// The shapes of all keys. The rules that need more than the file, such as whether a tool exists,
/// are those of its readers.
const KEY_SHAPES: &str = include_str!("agent-file.schema.json");

/// The schema (draft 2020-12) of the keys of the section table. Each file that the readers accept is
/// valid by it.
pub fn agent_file_schema() -> Value {
    let mut schema: Map<String, Value> = serde_json::from_str(KEY_SHAPES).unwrap_or_default();
    let shapes = schema.get_mut("properties").and_then(Value::as_object_mut);
    if let Some(shapes) = shapes {
        let keys = SECTIONS.iter().flat_map(|section| section.keys);
        let keys: Vec<&str> = keys.copied().chain(["name"]).collect();
        shapes.retain(|key, _| keys.contains(&key.as_str()));
    }
    Value::Object(schema)
}
