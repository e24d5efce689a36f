//! Schemas without the words that validators refuse and that say nothing, as generators of schemas
//! write them. What is left out makes a schema accept more, never less.

use serde_json::{Map, Number, Value, json};

/// Keywords whose value is a text.
const TEXTS: [&str; 8] = [
    "title",
    "description",
    "$comment",
    "format",
    "$anchor",
    "$dynamicAnchor",
    "$ref",
    "contentMediaType",
];
const COUNTS: [&str; 8] = [
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
];
const NUMBERS: [&str; 5] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
const FLAGS: [&str; 4] = ["uniqueItems", "readOnly", "writeOnly", "deprecated"];
const SCHEMAS: [&str; 11] = [
    "additionalProperties",
    "additionalItems",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "propertyNames",
    "contentSchema",
    "not",
    "if",
    "then",
    "else",
];
const SCHEMA_LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
const SCHEMA_MAPS: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Dialects by a part of their address.
const DIALECTS: [(&str, &str); 5] = [
    ("draft-04", "http://json-schema.org/draft-04/schema#"),
    ("draft-06", "http://json-schema.org/draft-06/schema#"),
    ("draft-07", "http://json-schema.org/draft-07/schema#"),
    ("2019-09", "https://json-schema.org/draft/2019-09/schema"),
    ("2020-12", "https://json-schema.org/draft/2020-12/schema"),
];

/// Parts of the addresses of dialects in which `exclusiveMinimum` is a flag.
const FLAG_DIALECTS: [&str; 3] = ["draft-03", "draft-04", "draft-05"];

/// Predicate: true for a regular expression that the reader of the schema accepts.
pub(crate) type IsPattern<'a> = &'a dyn Fn(&str) -> bool;

/// A copy of a schema without such words.
pub fn tolerate(schema: &Value, is_pattern: IsPattern<'_>) -> Value {
    let address = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
    let is_known = address.contains("json-schema.org");
    let dialect = DIALECTS.iter().find(|(part, _)| is_known && address.contains(part));
    let mut tolerant = schema.clone();
    if let Some(members) = tolerant.as_object_mut() {
        members.remove("$schema");
    }
    let name = dialect.map_or("2020-12", |(part, _)| part);
    let (has_lists_in_items, is_draft_4) = (name != "2020-12", name == "draft-04");
    let tolerance = Tolerance { is_pattern, has_lists_in_items, is_draft_4, drops_ids: false };
    tolerance.visit(&mut tolerant);
    if let (Some(members), Some((_, address))) = (tolerant.as_object_mut(), dialect) {
        members.insert("$schema".to_owned(), json!(address));
    }
    tolerant
}

/// A copy as [`tolerate`] makes it. A schema of draft 4 or earlier receives the words of draft 2020-12 in place of
/// its own, without `$schema` and `id`.
pub fn to_current_draft(schema: &Value, is_pattern: IsPattern<'_>) -> Value {
    if !schema.as_object().is_some_and(is_before_draft_6) {
        return tolerate(schema, is_pattern);
    }
    let mut current = schema.clone();
    let (has_lists_in_items, is_draft_4) = (false, false);
    Tolerance { is_pattern, has_lists_in_items, is_draft_4, drops_ids: true }.visit(&mut current);
    current
}

/// True if `exclusiveMinimum` is a flag in the dialect that the schema names.
pub fn is_before_draft_6(schema: &Map<String, Value>) -> bool {
    let address = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
    let is_known = address.contains("json-schema.org");
    is_known && FLAG_DIALECTS.iter().any(|part| address.contains(part))
}

struct Tolerance<'a> {
    is_pattern: IsPattern<'a>,
    /// True if `items` may be a list, as before 2020-12.
    has_lists_in_items: bool,
    /// True if `exclusiveMinimum` is a flag.
    is_draft_4: bool,
    /// True if `id`, the `$id` of draft 4, is left out.
    drops_ids: bool,
}

impl Tolerance<'_> {
    fn visit(&self, schema: &mut Value) {
        let Some(members) = schema.as_object_mut() else {
            if !schema.is_boolean() {
                *schema = json!({});
            }
            return;
        };
        members.remove("$schema");
        if self.drops_ids {
            members.remove("id");
        }
        members.retain(|name, value| is_meaningful(name, value, self.is_pattern));
        self.convert_exclusive_bounds(members);
        for name in NUMBERS.into_iter().filter(|name| !(self.is_draft_4 && name.starts_with("ex")))
        {
            convert(members, name, |value| {
                let is_usable =
                    |number: &Number| name != "multipleOf" || number.as_f64() > Some(0.0);
                read_number(value).filter(is_usable)
            });
        }
        for name in COUNTS {
            convert(members, name, |value| read_number(value).filter(is_count));
        }
        if let Some(types) = members.remove("type").and_then(|types| read_types(&types)) {
            members.insert("type".to_owned(), types);
        }
        if let Some(Value::Array(names)) = members.get_mut("required") {
            let mut kept: Vec<Value> = Vec::new();
            for name in names.drain(..).filter(Value::is_string) {
                if !kept.contains(&name) {
                    kept.push(name);
                }
            }
            *names = kept;
        }
        if !self.has_lists_in_items && members.get("items").is_some_and(Value::is_array) {
            let first = members.remove("items").unwrap_or_default();
            members.insert("prefixItems".to_owned(), first);
            if let Some(rest) = members.remove("additionalItems") {
                members.insert("items".to_owned(), rest);
            }
        }
        self.visit_inner(members);
    }

    fn convert_exclusive_bounds(&self, members: &mut Map<String, Value>) {
        if self.is_draft_4 {
            return;
        }
        for (exclusive, inclusive) in
            [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")]
        {
            let Some(Value::Bool(is_exclusive)) = members.get(exclusive) else { continue };
            let is_exclusive = *is_exclusive;
            members.remove(exclusive);
            if let Some(bound) = members.get(inclusive).cloned().filter(|_| is_exclusive) {
                members.remove(inclusive);
                members.insert(exclusive.to_owned(), bound);
            }
        }
    }

    fn visit_inner(&self, members: &mut Map<String, Value>) {
        for name in SCHEMAS {
            if let Some(inner) = members.get_mut(name) {
                self.visit(inner);
            }
        }
        match members.get_mut("items") {
            Some(Value::Array(listed)) => listed.iter_mut().for_each(|inner| self.visit(inner)),
            Some(inner) => self.visit(inner),
            None => {}
        }
        for name in SCHEMA_LISTS {
            if let Some(Value::Array(listed)) = members.get_mut(name) {
                for inner in listed {
                    self.visit(inner);
                }
            }
        }
        for name in SCHEMA_MAPS {
            if let Some(Value::Object(named)) = members.get_mut(name) {
                if name == "patternProperties" {
                    named.retain(|pattern, _| (self.is_pattern)(pattern));
                }
                named.values_mut().for_each(|inner| self.visit(inner));
            }
        }
        if let Some(Value::Object(named)) = members.get_mut("dependencies") {
            named.values_mut().filter(|it| !it.is_array()).for_each(|inner| self.visit(inner));
        }
    }
}

fn convert(members: &mut Map<String, Value>, name: &str, read: impl Fn(&Value) -> Option<Number>) {
    if let Some(value) = members.get(name) {
        match read(value) {
            Some(number) => members.insert(name.to_owned(), Value::Number(number)),
            None => members.remove(name),
        };
    }
}

fn read_number(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) => Some(number.clone()),
        Value::String(text) => serde_json::from_str(text.trim()).ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn is_count(number: &Number) -> bool {
    number.is_u64() || number.as_f64().is_some_and(|real| real >= 0.0 && real.fract() == 0.0)
}

/// The types, each once. `None`: any type. A misspelt name stays, and is a mistake.
pub fn read_types(types: &Value) -> Option<Value> {
    match types {
        Value::Null => None,
        Value::String(name) if name == "any" => None,
        Value::Array(names) if names.is_empty() || names.iter().any(|name| name == "any") => None,
        Value::Array(names) => {
            let mut kept: Vec<Value> = Vec::new();
            for name in names {
                if !kept.contains(name) {
                    kept.push(name.clone());
                }
            }
            Some(Value::Array(kept))
        }
        Value::String(_) | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            Some(types.clone())
        }
    }
}

/// False for a keyword whose value has another form than the keyword.
pub fn is_meaningful(name: &str, value: &Value, is_pattern: IsPattern<'_>) -> bool {
    match name {
        "const" | "default" | "example" => true,
        "pattern" => value.as_str().is_some_and(is_pattern),
        "$id" | "id" => value.as_str().is_some_and(|id| !id.contains(char::is_whitespace)),
        "enum" | "required" | "examples" => value.is_array(),
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => {
            value.as_array().is_some_and(|listed| !listed.is_empty())
        }
        "items" => value.is_object() || value.is_boolean() || value.is_array(),
        _ if TEXTS.contains(&name) => value.is_string(),
        _ if FLAGS.contains(&name) => value.is_boolean(),
        _ if SCHEMAS.contains(&name) => value.is_object() || value.is_boolean(),
        _ if SCHEMA_MAPS.contains(&name)
            || name == "dependencies"
            || name == "dependentRequired" =>
        {
            value.is_object()
        }
        _ => !value.is_null(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_words_are_left_out() {
        let cases = [
            (json!({"minimum": 0, "exclusiveMinimum": true}), json!({"exclusiveMinimum": 0})),
            (json!({"maximum": 9, "exclusiveMaximum": false}), json!({"maximum": 9})),
            (json!({"type": "any", "description": null}), json!({})),
            (json!({"type": ["string", "string", "null"]}), json!({"type": ["string", "null"]})),
            (json!({"type": ["string", "any"]}), json!({})),
            (json!({"required": true, "minLength": "5"}), json!({"minLength": 5})),
            (json!({"required": ["a", 5, "a"]}), json!({"required": ["a"]})),
            (json!({"required": null, "properties": null}), json!({})),
            (json!({"$id": "my tool.v1", "$schema": "https://x.example/y"}), json!({})),
            (
                json!({"$schema": "https://json-schema.org/draft-07/schema", "items": [{}]}),
                json!({"items": [{}], "$schema": "http://json-schema.org/draft-07/schema#"}),
            ),
            (
                json!({"items": [{"type": "any"}, null], "additionalItems": false}),
                json!({"prefixItems": [{}, {}], "items": false}),
            ),
            (
                json!({"properties": {"required": {"pattern": "[0-9"}, "id": 5}}),
                json!({"properties": {"required": {}, "id": {}}}),
            ),
            (
                json!({"patternProperties": {"[": {}, "^a": {}}}),
                json!({"patternProperties": {"^a": {}}}),
            ),
            (json!({"anyOf": [], "const": null, "enum": "a"}), json!({"const": null})),
        ];
        for (given, expected) in cases {
            assert_eq!(tolerate(&given, &|pattern| !pattern.starts_with('[')), expected, "{given}");
            assert!(jsonschema::validator_for(&expected).is_ok(), "{expected}");
        }
    }

    #[test]
    fn draft_4_becomes_the_current_draft() {
        let with = |part: &str, mut schema: Value| {
            schema["$schema"] = json!(format!("http://json-schema.org/{part}/schema#"));
            schema
        };
        let flags = json!({"id": "x", "minimum": 0, "exclusiveMinimum": true});
        let lists = json!({"items": [{}], "additionalItems": false});
        let cases = [
            (with("draft-04", flags.clone()), json!({"exclusiveMinimum": 0})),
            (with("draft-03", lists.clone()), json!({"prefixItems": [{}], "items": false})),
            (
                with(
                    "draft-04",
                    json!({"properties": {"id": {"id": "#a", "maximum": 9, "exclusiveMaximum": false}}}),
                ),
                json!({"properties": {"id": {"maximum": 9}}}),
            ),
            (with("draft-07", lists.clone()), with("draft-07", lists)),
            (
                json!({"id": "x", "maximum": 9, "exclusiveMaximum": true}),
                json!({"id": "x", "exclusiveMaximum": 9}),
            ),
        ];
        for (given, expected) in cases {
            assert_eq!(to_current_draft(&given, &|_| true), expected, "{given}");
        }
        let own = with("draft-04", flags);
        assert_eq!(tolerate(&own, &|_| true), own);
    }
}
