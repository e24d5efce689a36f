//! Check of strict tool schemas. The model service enforces a strict schema, and accepts only a
//! subset of JSON Schema.

use serde_json::Value;

/// Returns the first part of a strict schema that the service would reject; `None` if no problem is
/// known.
pub fn find_violation(schema: &Value) -> Option<String> {
    find_violation_at("#", schema)
}

fn find_violation_at(pointer: &str, schema: &Value) -> Option<String> {
    let members = schema.as_object()?;
    if let Some(properties) = members.get("properties").and_then(Value::as_object) {
        let required: Vec<&str> = members
            .get("required")
            .and_then(Value::as_array)
            .map(|names| names.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        if let Some(name) = properties.keys().find(|name| !required.contains(&name.as_str())) {
            return Some(format!(
                "`strict` needs every property in `required`: at {pointer} `{name}` is not (let it be null instead)"
            ));
        }
        if members.get("additionalProperties") != Some(&Value::Bool(false)) {
            return Some(format!("`strict` needs `additionalProperties: false` at {pointer}"));
        }
    }
    let below = |name: &str, value: &Value| find_violation_at(&format!("{pointer}/{name}"), value);
    members.iter().find_map(|(keyword, inside)| match (keyword.as_str(), inside) {
        ("properties" | "$defs" | "definitions", Value::Object(named)) => {
            named.iter().find_map(|(name, schema)| below(&format!("{keyword}/{name}"), schema))
        }
        ("anyOf" | "oneOf" | "allOf", Value::Array(listed)) => listed
            .iter()
            .enumerate()
            .find_map(|(number, schema)| below(&format!("{keyword}/{number}"), schema)),
        ("items", schema) => below(keyword, schema),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strict_schema_names_each_property_and_no_others() {
        let inner = json!({"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"], "additionalProperties": false});
        let whole = |inner: &Value| {
            json!({
                "type": "object", "properties": {"a": {"type": "array", "items": inner}},
                "required": ["a"], "additionalProperties": false,
            })
        };
        assert_eq!(find_violation(&whole(&inner)), None);
        let open = json!({"type": "object", "properties": {}});
        assert_eq!(
            find_violation(&whole(&open)).unwrap(),
            "`strict` needs `additionalProperties: false` at #/properties/a/items"
        );
        let optional =
            json!({"type": "object", "properties": {"x": {}}, "additionalProperties": false});
        assert!(
            find_violation(&json!({"anyOf": [optional]}))
                .unwrap()
                .contains("at #/anyOf/0 `x` is not")
        );
    }
}
