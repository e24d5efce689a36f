//! Schemas of tools and responses as model services accept them: an object, without alternatives at the top level,
//! whose arrays have `items`. Arguments are validated by the tool's own schema.

mod merge;
mod property;
mod references;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use turnwheel_json::schema_words::{
    is_before_draft_6, is_meaningful, read_types, to_current_draft,
};

use self::merge::MergedObject;
use self::references::{ReferenceIndex, repair_references};

/// Keywords that services refuse at the top level.
const REFUSED_AT_TOP: [&str; 5] = ["anyOf", "oneOf", "allOf", "not", "enum"];
/// Words of OpenAPI that JSON Schema does not have.
const OPEN_API: [&str; 4] = ["nullable", "discriminator", "xml", "externalDocs"];
/// Alternatives within one another that are read to find an object.
const NESTED_MAX: u32 = 8;

/// The parameters to send.
pub(crate) fn sent_parameters(parameters: &Map<String, Value>) -> Cow<'_, Map<String, Value>> {
    if parameters.get("type").is_none_or(|kind| kind == "object") && is_plain(parameters) {
        return Cow::Borrowed(parameters);
    }
    let original = Value::Object(parameters.clone());
    let index = ReferenceIndex::new(&original);
    Cow::Owned(repair(parameters, &index, &MergedObject::new(&index)))
}

/// The response schema to send. `None`: services accept only objects, and it describes none. The response
/// is validated by the agent's own schema.
pub(crate) fn sent_format(schema: &Value) -> Option<Cow<'_, Value>> {
    let members = schema.as_object().filter(|members| describes_object(members, NESTED_MAX))?;
    if members.get("type").is_some_and(|kind| kind == "object") && is_plain(members) {
        return Some(Cow::Borrowed(schema));
    }
    let index = ReferenceIndex::new(schema);
    let merged = MergedObject::new(&index);
    let repaired = || Cow::Owned(Value::Object(repair(members, &index, &merged)));
    merged.permits_objects().then(repaired)
}

/// True if no part of the object schema needs a repair.
fn is_plain(schema: &Map<String, Value>) -> bool {
    !schema.contains_key("$ref")
        && !is_before_draft_6(schema)
        && !REFUSED_AT_TOP.iter().any(|name| schema.contains_key(*name))
        && is_accepted_object(schema)
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

/// The schema to send for one that services refuse.
fn repair(
    parameters: &Map<String, Value>,
    index: &ReferenceIndex<'_>,
    merged: &MergedObject<'_>,
) -> Map<String, Value> {
    let mut schema = parameters.clone();
    for name in REFUSED_AT_TOP {
        schema.remove(name);
    }
    schema.remove("$ref");
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("properties".to_owned(), Value::Object(merged.to_properties()));
    schema.remove("required");
    if !merged.required().is_empty() {
        schema.insert("required".to_owned(), json!(merged.required()));
    }
    let mut repaired = repair_words(&Value::Object(schema));
    repair_references(&mut repaired, index, repair_words);
    let Value::Object(mut schema) = repaired else { return Map::new() };
    // New members come last, so that requests keep their bytes.
    for name in ["properties", "required"].into_iter().filter(|it| !parameters.contains_key(*it)) {
        if let Some(added) = schema.shift_remove(name) {
            schema.insert(name.to_owned(), added);
        }
    }
    schema
}

/// A copy of a schema, or of a part of one, with words that services accept.
fn repair_words(schema: &Value) -> Value {
    let mut repaired = to_current_draft(schema, &is_pattern);
    repair_inner(&mut repaired);
    repaired
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
