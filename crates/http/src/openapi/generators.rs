//! Brings the schemas into the forms that client generators read: constants as enumerations, flat
//! objects, values that may be added, and null only where it is sent.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::openapi::document::object_mut;

pub(super) const SCHEMA_PREFIX: &str = "#/components/schemas/";
/// A message of a queue, which is a request too.
const QUEUE_MESSAGE: &str = "PromptMessage";

/// Changes all schemas of the document. Its operations and webhooks are complete.
pub(super) fn adapt_schemas(document: &mut Value) {
    if let Some(schemas) = object_mut(document, "/components/schemas") {
        flatten_compositions(schemas);
    }
    visit_mut(document, &mut adapt_constant);
    for (_, _, operation) in operations_mut(document) {
        for parameter in operation.get_mut("parameters").into_iter().flat_map(list_mut) {
            if let Some(schema) = parameter.get_mut("schema").and_then(Value::as_object_mut) {
                remove_null(schema);
            }
        }
    }
    let of_responses = schemas_of_responses(document);
    let schemas = object_mut(document, "/components/schemas").into_iter().flatten();
    for (_, schema) in schemas.filter(|(name, _)| of_responses.contains(*name)) {
        visit_mut(schema, &mut adapt_response_schema);
    }
}

/// Path, method and members of each operation.
pub(super) fn operations_mut(
    document: &mut Value,
) -> impl Iterator<Item = (&String, &String, &mut Map<String, Value>)> {
    let paths = object_mut(document, "/paths").into_iter().flatten();
    paths.flat_map(|(path, methods)| {
        let methods = methods.as_object_mut().into_iter().flatten();
        methods
            .filter_map(move |(method, operation)| Some((path, method, operation.as_object_mut()?)))
    })
}

pub(super) fn list_mut(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    value.as_array_mut().into_iter().flatten()
}

/// Calls `change` with each object, from the outermost to the innermost ones.
pub(super) fn visit_mut(value: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(members) => {
            change(members);
            members.values_mut().for_each(|value| visit_mut(value, change));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| visit_mut(value, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Adds the names of the schemas to which the value refers.
fn add_references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get("$ref").and_then(schema_name).map(ToOwned::to_owned));
            members.values().for_each(|value| add_references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| add_references(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The name in a reference to a schema.
pub(super) fn schema_name(reference: &Value) -> Option<&str> {
    reference.as_str()?.strip_prefix(SCHEMA_PREFIX)
}

/// The schemas of which the values consist.
fn reachable(document: &Value, roots: BTreeSet<String>) -> BTreeSet<String> {
    let mut open: Vec<String> = roots.into_iter().collect();
    let mut reached = BTreeSet::new();
    while let Some(name) = open.pop() {
        let schema = document.pointer(&format!("/components/schemas/{name}"));
        if let Some(schema) = schema.filter(|_| !reached.contains(&name)) {
            let mut references = BTreeSet::new();
            add_references(schema, &mut references);
            open.extend(references);
            reached.insert(name);
        }
    }
    reached
}

/// The schemas that no request uses: those of responses, events and webhooks.
fn schemas_of_responses(document: &Value) -> BTreeSet<String> {
    let mut received = BTreeSet::from([QUEUE_MESSAGE.to_owned()]);
    let paths = document.get("paths").and_then(Value::as_object).into_iter().flatten();
    for operation in paths.filter_map(|(_, item)| item.as_object()).flat_map(Map::values) {
        let body = operation.get("requestBody").into_iter();
        body.for_each(|part| add_references(part, &mut received));
    }
    let received = reachable(document, received);
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
    let names = schemas.into_iter().flat_map(Map::keys);
    names.filter(|name| !received.contains(*name)).cloned().collect()
}

/// Merges an object with the object that it extends: validators that close objects reject the
/// members of the other part.
fn flatten_compositions(schemas: &mut Map<String, Value>) {
    let others = schemas.clone();
    for schema in schemas.values_mut() {
        let Some(members) = schema.as_object_mut() else { continue };
        let Some(Value::Array(parts)) = members.shift_remove("allOf") else { continue };
        let mut whole = json!({"type": "object", "properties": {}, "required": []});
        for part in parts {
            let named = part.get("$ref").and_then(schema_name).and_then(|name| others.get(name));
            merge_object(&mut whole, named.unwrap_or(&part));
        }
        members.extend(whole.as_object_mut().map(std::mem::take).into_iter().flatten());
    }
}

fn merge_object(whole: &mut Value, part: &Value) {
    let properties = part.get("properties").and_then(Value::as_object).into_iter().flatten();
    if let Some(all) = object_mut(whole, "/properties") {
        all.extend(properties.map(|(name, schema)| (name.clone(), schema.clone())));
    }
    let required = part.get("required").and_then(Value::as_array).into_iter().flatten();
    if let Some(all) = whole.pointer_mut("/required").and_then(Value::as_array_mut) {
        all.extend(required.cloned());
    }
}

/// A value with one possibility is an enumeration: not every generator reads `const`. Objects are
/// open in JSON Schema; stated, it makes unknown members valid in the types of TypeScript.
fn adapt_constant(members: &mut Map<String, Value>) {
    if let Some(value) = members.shift_remove("const") {
        members.insert("enum".to_owned(), json!([value]));
    }
    let is_open = members.get("additionalProperties") == Some(&json!(true));
    if is_open && members.get("properties").is_some_and(Value::is_object) {
        members.shift_remove("additionalProperties");
    }
}

/// Later versions add values to enumerations, and the service omits members without a value.
fn adapt_response_schema(members: &mut Map<String, Value>) {
    let has_values =
        members.get("enum").and_then(Value::as_array).is_some_and(|values| values.len() > 1);
    if has_values && members.get("type").is_some_and(|kind| kind == "string") {
        let values = members.shift_remove("enum").unwrap_or_default();
        members.insert("x-extensible-enum".to_owned(), values);
    }
    let required = members.get("required").cloned().unwrap_or_default();
    let required: Vec<&str> =
        required.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = members.get_mut("properties").and_then(Value::as_object_mut);
    for (name, schema) in properties.into_iter().flatten() {
        if let Some(schema) = schema.as_object_mut()
            && !required.contains(&name.as_str())
        {
            remove_null(schema);
        }
    }
}

/// Removes null from the types of a schema. A union of one type becomes that type.
pub(super) fn remove_null(members: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = members.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [kind] = types.as_slice() {
            let kind = kind.clone();
            members.insert("type".to_owned(), kind);
        }
    }
    for keyword in ["oneOf", "anyOf"] {
        let Some(Value::Array(variants)) = members.get_mut(keyword) else { continue };
        variants.retain(|variant| *variant != json!({"type": "null"}));
        if let [variant] = variants.as_mut_slice() {
            let variant = variant.take();
            members.shift_remove(keyword);
            for (name, value) in variant.as_object().into_iter().flatten() {
                members.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::DOCUMENT;

    /// Calls `check` with each object of the document and its place.
    fn for_each_object(value: &Value, at: &str, check: &mut impl FnMut(&Map<String, Value>, &str)) {
        match value {
            Value::Object(members) => {
                check(members, at);
                for (name, value) in members.iter().filter(|(name, _)| *name != "example") {
                    for_each_object(value, &format!("{at}/{name}"), check);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    for_each_object(item, &format!("{at}/{index}"), check);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn unions_have_closed_variants_and_discriminator() {
        let schemas = &DOCUMENT["components"]["schemas"];
        let (mut mistakes, mut count) = (Vec::new(), 0);
        for_each_object(&DOCUMENT, "", &mut |object, at| {
            if object.contains_key("const") || object.contains_key("anyOf") {
                mistakes.push(format!("{at} has const or anyOf"));
            }
            let variants = object.get("oneOf").and_then(Value::as_array);
            let names: Vec<&str> = variants
                .into_iter()
                .flatten()
                .filter_map(|variant| schema_name(variant.get("$ref")?))
                .collect();
            if names.len() < 2 {
                return;
            }
            count += 1;
            let discriminator = object.get("discriminator").cloned().unwrap_or_default();
            let tag = discriminator["propertyName"].as_str().unwrap_or_default();
            let mapping = discriminator["mapping"].as_object().map_or(0, Map::len);
            let is_complete = names.iter().all(|name| {
                let kind = schemas[name]["properties"][tag]["enum"][0].as_str().unwrap_or_default();
                discriminator["mapping"][kind] == format!("{SCHEMA_PREFIX}{name}")
            });
            if mapping != names.len() || !is_complete {
                mistakes.push(format!("{at} has an incomplete discriminator"));
            }
        });
        assert_eq!(mistakes, [""; 0]);
        assert!(count >= 8, "{count}");
    }

    #[test]
    fn values_of_responses_are_extensible_and_not_null() {
        let schemas = &DOCUMENT["components"]["schemas"];
        let prompt_state = &schemas["PromptState"];
        assert_eq!(prompt_state["x-extensible-enum"][0], "running");
        assert_eq!(schemas["Mode"]["enum"][0], "prompt", "a request has closed values");
        let of_responses = schemas_of_responses(&DOCUMENT);
        assert!(
            of_responses.contains("PromptCompletedWebhook") && of_responses.contains("Problem")
        );
        let mut mistakes = Vec::new();
        for name in &of_responses {
            for_each_object(&schemas[name], name, &mut |object, at| {
                let values = object.get("enum").and_then(Value::as_array).map_or(0, Vec::len);
                if values > 1 {
                    mistakes.push(format!("{at} has closed values"));
                }
                let required = object.get("required").cloned().unwrap_or_default();
                let properties = object.get("properties").and_then(Value::as_object);
                for (member, schema) in properties.into_iter().flatten() {
                    let is_required = required
                        .as_array()
                        .is_some_and(|required| required.contains(&json!(member)));
                    let mut without_null = schema.clone();
                    without_null.as_object_mut().into_iter().for_each(remove_null);
                    if !is_required && without_null != *schema {
                        mistakes.push(format!("{at}/{member} is null or absent"));
                    }
                }
            });
        }
        assert_eq!(mistakes, [""; 0]);
        let leaf = &schemas["ConversationView"]["properties"]["leafId"]["type"];
        assert_eq!(*leaf, json!(["string", "null"]), "a conversation without entries has none");
    }
}
