//! Schemas of tools and responses as model services accept them: an object, without alternatives at the top level,
//! whose arrays have `items`. Arguments are validated by the tool's own schema.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use turnwheel_json::schema_words::{is_meaningful, read_types, tolerate};

/// Keywords that services refuse at the top level.
const REFUSED_AT_TOP: [&str; 5] = ["anyOf", "oneOf", "allOf", "not", "enum"];
/// Words of OpenAPI that JSON Schema does not have.
const OPEN_API: [&str; 4] = ["nullable", "discriminator", "xml", "externalDocs"];
/// Alternatives and references within one another that are followed to find properties.
const HOPS_MAX: u32 = 8;
/// Alternatives and references in all.
const VISITS_MAX: u32 = 2_000;

/// The parameters to send.
pub(crate) fn sent_parameters(parameters: &Map<String, Value>) -> Cow<'_, Map<String, Value>> {
    let has_plain_type = parameters.get("type").is_none_or(|kind| kind == "object");
    let is_plain = has_plain_type
        && !parameters.contains_key("$ref")
        && !REFUSED_AT_TOP.iter().any(|name| parameters.contains_key(*name))
        && is_accepted_object(parameters);
    if is_plain { Cow::Borrowed(parameters) } else { Cow::Owned(repair(parameters)) }
}

/// The response schema to send. `None`: services accept only objects, and it describes none. The response
/// is validated by the agent's own schema.
pub(crate) fn sent_format(schema: &Value) -> Option<Cow<'_, Value>> {
    let members = schema.as_object().filter(|members| describes_object(members, HOPS_MAX))?;
    if members.get("type").is_none_or(|kind| kind != "object") {
        return Some(Cow::Owned(Value::Object(repair(members))));
    }
    Some(match sent_parameters(members) {
        Cow::Borrowed(_) => Cow::Borrowed(schema),
        Cow::Owned(repaired) => Cow::Owned(Value::Object(repaired)),
    })
}

fn describes_object(schema: &Map<String, Value>, hops: u32) -> bool {
    let Some(hops) = hops.checked_sub(1) else { return false };
    match schema.get("type") {
        Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
        Some(kind) => kind == "object",
        None => {
            let lists = ["anyOf", "oneOf", "allOf"].into_iter();
            let mut branches = lists.filter_map(|name| schema.get(name)?.as_array()).flatten();
            schema.contains_key("properties")
                || schema.contains_key("$ref")
                || branches.any(|it| it.as_object().is_some_and(|it| describes_object(it, hops)))
        }
    }
}

fn is_accepted(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => is_accepted_object(members),
        Value::Bool(_) => true,
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => false,
    }
}

/// True if a service takes the schema as it is.
fn is_accepted_object(schema: &Map<String, Value>) -> bool {
    let types = schema.get("type");
    if types.is_some_and(|types| read_types(types).as_ref() != Some(types)) {
        return false;
    }
    if types.is_some_and(has_array) && !schema.get("items").is_some_and(Value::is_object) {
        return false;
    }
    schema.iter().all(|(name, value)| {
        let is_flag = value.is_boolean() && name.starts_with("exclusive");
        if is_flag || OPEN_API.contains(&name.as_str()) || !is_meaningful(name, value, &is_pattern)
        {
            return false;
        }
        match (name.as_str(), value) {
            (
                "properties" | "patternProperties" | "$defs" | "definitions",
                Value::Object(named),
            ) => named.values().all(is_accepted),
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(listed)) => {
                listed.iter().all(is_accepted)
            }
            ("items" | "additionalProperties" | "not" | "if" | "then" | "else", inner) => {
                is_accepted(inner)
            }
            _ => true,
        }
    })
}

fn has_array(types: &Value) -> bool {
    types == "array" || types.as_array().is_some_and(|names| names.contains(&json!("array")))
}

/// True if brackets and parentheses of the expression are closed.
fn is_pattern(pattern: &str) -> bool {
    let (mut groups, mut in_class, mut is_escaped) = (0_i32, false, false);
    for letter in pattern.chars() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ']' if in_class => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            '(' => groups += 1,
            ')' => groups -= 1,
            _ => {}
        }
        if groups < 0 {
            return false;
        }
    }
    groups == 0 && !in_class && !is_escaped && !pattern.starts_with(['*', '+', '?'])
}

fn repair(parameters: &Map<String, Value>) -> Map<String, Value> {
    let whole = tolerate(&Value::Object(parameters.clone()), &is_pattern);
    let Value::Object(mut schema) = whole.clone() else { return Map::new() };
    let mut merged = Merged::default();
    merged.add(&whole, &whole, &mut Visits { hops: HOPS_MAX, left: VISITS_MAX });
    for name in REFUSED_AT_TOP {
        schema.remove(name);
    }
    schema.remove("$ref");
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("properties".to_owned(), Value::Object(merged.properties));
    schema.remove("required");
    if !merged.required.is_empty() {
        schema.insert("required".to_owned(), json!(merged.required));
    }
    let mut repaired = Value::Object(schema);
    repair_inner(&mut repaired);
    match repaired {
        Value::Object(schema) => schema,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}

struct Visits {
    hops: u32,
    left: u32,
}

/// Properties of an object and of the alternatives that it may be.
#[derive(Default)]
struct Merged {
    properties: Map<String, Value>,
    /// Names that every alternative requires.
    required: Vec<String>,
}

impl Merged {
    fn add(&mut self, root: &Value, schema: &Value, visits: &mut Visits) {
        let Some(schema) = schema.as_object().filter(|_| visits.hops > 0 && visits.left > 0) else {
            return;
        };
        visits.hops -= 1;
        visits.left -= 1;
        for (name, property) in
            schema.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            self.properties.entry(name.clone()).or_insert_with(|| property.clone());
        }
        self.require(
            schema
                .get("required")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str),
        );
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|it| it.strip_prefix('#'));
        if let Some(target) = target.and_then(|pointer| root.pointer(pointer)) {
            self.add(root, target, visits);
        }
        let list_of = |name: &str| schema.get(name).and_then(Value::as_array).into_iter().flatten();
        for branch in list_of("allOf") {
            self.add(root, branch, visits);
        }
        for name in ["anyOf", "oneOf"] {
            let branches: Vec<Self> = list_of(name)
                .map(|branch| {
                    let mut merged = Self::default();
                    merged.add(root, branch, visits);
                    merged
                })
                .collect();
            let Some(first) = branches.first() else { continue };
            let shared = first
                .required
                .iter()
                .filter(|name| branches.iter().all(|branch| branch.required.contains(name)));
            self.require(shared.map(String::as_str));
            for (name, property) in branches.iter().flat_map(|branch| &branch.properties) {
                self.properties.entry(name.clone()).or_insert_with(|| property.clone());
            }
        }
        visits.hops += 1;
    }

    fn require<'n>(&mut self, names: impl Iterator<Item = &'n str>) {
        for name in names {
            if !self.required.iter().any(|known| known == name) {
                self.required.push(name.to_owned());
            }
        }
    }
}

fn repair_inner(schema: &mut Value) {
    let Some(members) = schema.as_object_mut() else { return };
    let is_nullable = members.remove("nullable") == Some(Value::Bool(true));
    for name in OPEN_API {
        members.remove(name);
    }
    if is_nullable && let Some(name @ Value::String(_)) = members.get_mut("type") {
        *name = json!([name, "null"]);
    }
    if members.get("type").is_some_and(has_array)
        && !members.get("items").is_some_and(Value::is_object)
    {
        let listed = members.remove("items").filter(Value::is_array);
        let listed = listed.or_else(|| members.get("prefixItems").cloned());
        let any = listed.filter(|it| it.as_array().is_some_and(|listed| !listed.is_empty()));
        members.insert("items".to_owned(), any.map_or(json!({}), |any| json!({ "anyOf": any })));
        members.remove("prefixItems");
        members.remove("additionalItems");
    }
    for (name, value) in members {
        match (name.as_str(), value) {
            (
                "properties" | "patternProperties" | "$defs" | "definitions",
                Value::Object(named),
            ) => {
                named.values_mut().for_each(repair_inner);
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(listed)) => {
                listed.iter_mut().for_each(repair_inner);
            }
            ("items" | "additionalProperties" | "not" | "if" | "then" | "else", inner) => {
                repair_inner(inner);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(schema: &Value) -> Value {
        Value::Object(sent_parameters(schema.as_object().unwrap()).into_owned())
    }

    #[test]
    fn plain_schema_is_sent_as_it_is() {
        for schema in [
            json!({}),
            json!({"type": "object", "properties": {"required": {"type": "string", "pattern": "^[(]\\)$"}}, "required": ["required"]}),
            json!({"type": "object", "$defs": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, "properties": {"n": {"$ref": "#/$defs/n"}, "t": {"type": "array", "items": {}}}, "additionalProperties": false}),
        ] {
            let members = schema.as_object().unwrap();
            assert!(matches!(sent_parameters(members), Cow::Borrowed(_)), "{schema}");
        }
    }

    #[test]
    fn refused_schema_is_repaired() {
        let string = json!({"type": "string"});
        let object = |names: &[&str], required: Value| {
            let properties: Map<String, Value> =
                names.iter().map(|name| ((*name).to_owned(), string.clone())).collect();
            let mut schema = json!({"type": "object", "properties": properties});
            if required != json!([]) {
                schema["required"] = required;
            }
            schema
        };
        let with = |mut schema: Value, name: &str, value: Value| {
            schema[name] = value;
            schema
        };
        let plain = object(&["id", "slug"], json!([]));
        let one = json!([{"required": ["id"]}, {"required": ["slug"]}]);
        for (given, expected) in [
            (with(plain.clone(), "anyOf", one.clone()), plain.clone()),
            (with(plain.clone(), "not", json!({"required": ["id", "slug"]})), plain.clone()),
            (with(plain.clone(), "enum", json!([{}])), plain.clone()),
            (
                with(
                    plain.clone(),
                    "allOf",
                    json!([{"if": {"required": ["id"]}, "then": {"required": ["slug"]}}]),
                ),
                plain.clone(),
            ),
            (
                json!({"oneOf": [object(&["id"], json!(["id"])), object(&["id", "slug"], json!(["slug", "id"]))]}),
                object(&["id", "slug"], json!(["id"])),
            ),
            (
                json!({"allOf": [object(&["id"], json!(["id"])), {"$ref": "#/$defs/s"}], "$defs": {"s": object(&["slug"], json!(["slug"]))}}),
                with(
                    object(&["id", "slug"], json!(["id", "slug"])),
                    "$defs",
                    json!({"s": object(&["slug"], json!(["slug"]))}),
                ),
            ),
            (
                json!({"$ref": "#/$defs/a", "$defs": {"a": plain}}),
                with(plain.clone(), "$defs", json!({"a": plain})),
            ),
            (
                json!({"type": ["object", "null"], "properties": null}),
                json!({"type": "object", "properties": {}}),
            ),
        ] {
            assert_eq!(sent(&given), expected, "{given}");
        }
    }

    #[test]
    fn response_schema_is_an_object_or_not_sent() {
        let properties = json!({"a": {"type": "integer"}});
        let object = json!({"type": "object", "properties": properties});
        assert!(matches!(sent_format(&object), Some(Cow::Borrowed(_))));
        for given in [
            json!({"properties": properties}),
            json!({"type": ["object", "null"], "properties": properties}),
            json!({"anyOf": [object]}),
            json!({"type": "object", "properties": properties, "not": {"required": ["b"]}, "oneOf": [{"required": ["b"]}, {}]}),
        ] {
            assert_eq!(sent_format(&given).as_deref(), Some(&object), "{given}");
        }
        for given in [
            json!(true),
            json!({"type": "array", "items": {"type": "integer"}}),
            json!({"type": "string"}),
            json!({"anyOf": [{"type": "array"}, {"type": "null"}]}),
            json!({"enum": ["a", "b"]}),
        ] {
            assert_eq!(sent_format(&given), None, "{given}");
        }
    }

    #[test]
    fn odd_words_inside_are_repaired() {
        for (given, expected) in [
            (json!({"type": "array"}), json!({"type": "array", "items": {}})),
            (
                json!({"type": ["array", "null"], "items": true}),
                json!({"type": ["array", "null"], "items": {}}),
            ),
            (
                json!({"type": "array", "items": [{"type": "integer"}, {"type": "array"}]}),
                json!({"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {}}]}}),
            ),
            (json!({"type": "string", "nullable": true}), json!({"type": ["string", "null"]})),
            (
                json!({"type": "integer", "minimum": 0, "exclusiveMinimum": true}),
                json!({"type": "integer", "exclusiveMinimum": 0}),
            ),
            (json!({"type": "any", "required": true, "xml": {}}), json!({})),
            (json!({"type": "string", "pattern": "[0-9"}), json!({"type": "string"})),
            (
                json!({"anyOf": [{"type": "array"}]}),
                json!({"anyOf": [{"type": "array", "items": {}}]}),
            ),
        ] {
            let whole = |inner: &Value| json!({"type": "object", "properties": {"a": inner}});
            assert_eq!(sent(&whole(&given)), whole(&expected), "{given}");
            assert!(is_accepted(&whole(&expected)), "{expected}");
        }
    }

    #[test]
    fn endless_schema_is_sent_in_finite_time() {
        let mut defs = Map::new();
        for number in 0..40 {
            let next = json!({"$ref": format!("#/$defs/d{}", number + 1)});
            defs.insert(
                format!("d{number}"),
                json!({"allOf": [next, next], "anyOf": [next, next]}),
            );
        }
        let sent = sent(&json!({"allOf": [{"$ref": "#"}, {"$ref": "#/$defs/d0"}], "$defs": defs}));
        assert_eq!(sent["type"], "object");
    }
}
