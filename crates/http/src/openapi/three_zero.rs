//! Converts the document to OpenAPI 3.0, for generators that read no 3.1 or no unions: a union
//! becomes a base object from which its variants inherit.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::openapi::document::{binary_schema, object_mut};
use crate::openapi::generators::{SCHEMA_PREFIX, remove_null, schema_name, visit_mut};

/// The blocks of an input. A text is short for one block, so that inputs are lists of blocks alone.
const INPUT_BLOCK: &str = "InputBlock";

/// Returns the document in the terms of OpenAPI 3.0, without webhooks.
pub(super) fn convert(document: &Value) -> Value {
    let mut document = document.clone();
    if let Some(root) = document.as_object_mut() {
        root.insert("openapi".to_owned(), json!("3.0.3"));
        root.shift_remove("webhooks");
    }
    if let Some(schemas) = object_mut(&mut document, "/components/schemas") {
        let original = schemas.clone();
        let unions = Union::all(&original);
        let with_variants = unions_with_variants(&unions);
        for (name, union) in &unions {
            let replaced = if with_variants.contains(name) {
                union.as_inheritance(name, &original)
            } else {
                vec![(name.clone(), union.as_flat_object(&original))]
            };
            schemas.extend(replaced);
        }
    }
    let types = schema_types(&document);
    visit_mut(&mut document, &mut |members| convert_object(members, &types));
    document
}

/// The type of each schema that has one, by its reference.
fn schema_types(document: &Value) -> BTreeMap<String, Value> {
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
    let types = schemas.into_iter().flatten().filter_map(|(name, schema)| {
        let kind = match schema.get("type") {
            None if schema.get("allOf").is_some() => json!("object"),
            kind => kind.filter(|kind| kind.is_string())?.clone(),
        };
        Some((format!("{SCHEMA_PREFIX}{name}"), kind))
    });
    types.collect()
}

/// A `oneOf` with a discriminator.
struct Union {
    discriminator: Value,
    /// Name of the member that distinguishes the variants.
    tag: String,
    description: Option<Value>,
    variants: Vec<String>,
}

impl Union {
    fn all(schemas: &Map<String, Value>) -> BTreeMap<String, Self> {
        let unions = schemas.iter().filter_map(|(name, schema)| {
            let discriminator = schema.get("discriminator")?.clone();
            let tag = discriminator.get("propertyName")?.as_str()?.to_owned();
            let variants = schema.get("oneOf")?.as_array()?.iter();
            let variants = variants.filter_map(|variant| schema_name(variant.get("$ref")?));
            let variants = variants.map(ToOwned::to_owned).collect();
            let description = schema.get("description").cloned();
            Some((name.clone(), Self { discriminator, tag, description, variants }))
        });
        unions.collect()
    }

    fn objects<'a>(&self, schemas: &'a Map<String, Value>) -> Vec<(&str, VariantObject<'a>)> {
        let variants = self.variants.iter();
        variants
            .filter_map(|name| Some((name.as_str(), VariantObject::new(schemas.get(name)?)?)))
            .collect()
    }

    fn describe(&self, mut schema: Value) -> Value {
        if let (Some(text), Some(members)) = (&self.description, schema.as_object_mut()) {
            members.insert("description".to_owned(), text.clone());
        }
        schema
    }

    /// The base object, and the variants that inherit from it.
    fn as_inheritance(&self, name: &str, schemas: &Map<String, Value>) -> Vec<(String, Value)> {
        let variants = self.objects(schemas);
        let Some((_, first)) = variants.first() else { return Vec::new() };
        let is_shared = |(member, schema): &(&String, &Value)| {
            **member != self.tag
                && variants
                    .iter()
                    .all(|(_, variant)| variant.properties.get(*member) == Some(*schema))
        };
        let mut properties = Map::from_iter([(self.tag.clone(), json!({"type": "string"}))]);
        let shared = first.properties.iter().filter(is_shared);
        properties.extend(shared.map(|(member, schema)| (member.clone(), schema.clone())));
        let is_required =
            |member: &&String| variants.iter().all(|(_, variant)| variant.requires(member));
        let required: Vec<&String> = properties.keys().filter(is_required).collect();
        let mut replaced = Vec::new();
        for (variant_name, variant) in &variants {
            let own = variant.without(&properties, &required);
            let reference = json!({"$ref": format!("{SCHEMA_PREFIX}{name}")});
            let mut schema = json!({"allOf": [reference, own]});
            if let (Some(text), Some(members)) = (variant.description, schema.as_object_mut()) {
                members.insert("description".to_owned(), text.clone());
            }
            replaced.push(((*variant_name).to_owned(), schema));
        }
        let base = json!({
            "type": "object", "required": required, "properties": properties,
            "discriminator": self.discriminator,
        });
        replaced.push((name.to_owned(), self.describe(base)));
        replaced
    }

    /// One object with the members of all variants: they inherit from another union already.
    fn as_flat_object(&self, schemas: &Map<String, Value>) -> Value {
        let variants = self.objects(schemas);
        let kinds = variants.iter().filter_map(|(_, variant)| {
            variant.properties.get(&self.tag)?.get("enum")?.as_array()?.first()
        });
        let kinds = json!({"type": "string", "enum": kinds.collect::<Vec<_>>()});
        let mut properties = Map::from_iter([(self.tag.clone(), kinds)]);
        for (member, schema) in variants.iter().flat_map(|(_, variant)| variant.properties) {
            properties.entry(member.clone()).or_insert_with(|| schema.clone());
        }
        self.describe(json!({"type": "object", "required": [self.tag], "properties": properties}))
    }
}

/// The unions from which their variants inherit. A variant has one base: of unions with the same
/// variants, the one with the most, or of two with as many the first by its name.
fn unions_with_variants(unions: &BTreeMap<String, Union>) -> BTreeSet<String> {
    let mut ordered: Vec<(&String, &Union)> = unions.iter().collect();
    ordered.sort_by_key(|(_, union)| std::cmp::Reverse(union.variants.len()));
    let (mut names, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for (name, union) in ordered {
        if union.variants.iter().all(|variant| !taken.contains(variant)) {
            taken.extend(&union.variants);
            names.insert(name.clone());
        }
    }
    names
}

/// An object among the variants of a union.
struct VariantObject<'a> {
    properties: &'a Map<String, Value>,
    required: Vec<&'a str>,
    description: Option<&'a Value>,
}

impl<'a> VariantObject<'a> {
    fn new(schema: &'a Value) -> Option<Self> {
        let properties = schema.get("properties")?.as_object()?;
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        let required = required.filter_map(Value::as_str).collect();
        Some(Self { properties, required, description: schema.get("description") })
    }

    fn requires(&self, member: &str) -> bool {
        self.required.contains(&member)
    }

    /// The object without the members of its base, but with what the base does not require.
    fn without(&self, base: &Map<String, Value>, required: &[&String]) -> Value {
        let is_own = |(member, _): &(&String, &Value)| !base.contains_key(*member);
        let own = self.properties.iter().filter(is_own);
        let properties: Map<String, Value> =
            own.map(|(member, schema)| (member.clone(), schema.clone())).collect();
        let is_of_base = |member: &&str| required.iter().any(|name| name == member);
        let required: Vec<&str> =
            self.required.iter().copied().filter(|member| !is_of_base(member)).collect();
        let mut object = json!({"type": "object", "properties": properties});
        if let Some(members) = object.as_object_mut().filter(|_| !required.is_empty()) {
            members.insert("required".to_owned(), json!(required));
        }
        object
    }
}

/// Replaces the words that OpenAPI 3.0 does not have. Of a reference it reads nothing else.
fn convert_object(members: &mut Map<String, Value>, types: &BTreeMap<String, Value>) {
    let mut has_null = false;
    if let Some(Value::Array(types)) = members.get("type") {
        let is_nullable = types.contains(&json!("null"));
        remove_null(members);
        if members.get("type").is_some_and(Value::is_array) {
            members.shift_remove("type");
        } else if is_nullable {
            members.insert("nullable".to_owned(), json!(true));
        }
    }
    if members.contains_key("oneOf") || members.contains_key("anyOf") {
        has_null = has_null_variant(members);
        remove_null(members);
        convert_text_or_blocks(members);
        if has_null && members.contains_key("type") {
            members.insert("nullable".to_owned(), json!(true));
        }
    }
    if members.get("propertyNames").is_some_and(Value::is_object) {
        members.shift_remove("propertyNames");
    }
    // Generators make one class of the bytes of any type.
    if let Some(body) = members.shift_remove("*/*") {
        members.insert("application/octet-stream".to_owned(), body);
    }
    // Generators for it read a schema of events as that of the whole body.
    if let Some(stream) = members.get_mut("text/event-stream").and_then(Value::as_object_mut)
        && let Some(event) = stream.insert("schema".to_owned(), binary_schema())
    {
        stream.shift_remove("example");
        stream.insert("x-event-schema".to_owned(), event);
    }
    if let Some(reference) = members.get("$ref").filter(|reference| reference.is_string()).cloned()
    {
        members.clear();
        let kind = types.get(reference.as_str().unwrap_or_default());
        let schema = match kind.filter(|_| has_null) {
            Some(kind) => json!({"type": kind, "nullable": true, "allOf": [{"$ref": reference}]}),
            None => json!({"$ref": reference}),
        };
        members.extend(schema.as_object().cloned().unwrap_or_default());
    }
}

fn has_null_variant(members: &Map<String, Value>) -> bool {
    let variants = ["oneOf", "anyOf"].into_iter().filter_map(|keyword| members.get(keyword));
    variants
        .filter_map(Value::as_array)
        .flatten()
        .any(|variant| *variant == json!({"type": "null"}))
}

/// Declares an input as the list of its blocks. Contents of messages, which may be texts, have any
/// type: a generated class for lists fails at a text.
fn convert_text_or_blocks(members: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = members.get("oneOf") else { return };
    if !variants.contains(&json!({"type": "string"})) {
        return;
    }
    let list = variants.iter().find(|variant| variant.get("items").is_some()).cloned();
    members.shift_remove("oneOf");
    let Some(Value::Object(list)) = list else { return };
    let item = list.get("items").and_then(|items| items.get("$ref")).and_then(schema_name);
    if item == Some(INPUT_BLOCK) {
        members.extend(list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::{DOCUMENT, DOCUMENT_3_0};

    fn find_words(value: &Value, at: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                let words = ["oneOf", "anyOf", "const", "propertyNames", "*/*"];
                let has_word = words.iter().any(|word| members.contains_key(*word));
                let has_types = members.get("type").is_some_and(Value::is_array);
                if has_word || has_types || (members.contains_key("$ref") && members.len() > 1) {
                    found.push(at.to_owned());
                }
                for (name, value) in members {
                    find_words(value, &format!("{at}/{name}"), found);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| find_words(item, at, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn document_has_only_words_of_three_zero() {
        let mut found = Vec::new();
        find_words(&DOCUMENT_3_0, "", &mut found);
        assert_eq!(found, [""; 0]);
        assert_eq!(DOCUMENT_3_0["openapi"], "3.0.3");
        assert_eq!(DOCUMENT_3_0["webhooks"], Value::Null);
        for (path, methods) in DOCUMENT["paths"].as_object().unwrap() {
            let other = DOCUMENT_3_0["paths"][path].as_object().unwrap();
            assert!(methods.as_object().unwrap().keys().eq(other.keys()), "{path}");
        }
    }

    #[test]
    fn union_becomes_base_object_with_variants() {
        let schemas = &DOCUMENT_3_0["components"]["schemas"];
        let base = &schemas["Output"];
        assert_eq!(base["discriminator"]["propertyName"], "type");
        assert_eq!(base["properties"]["type"], json!({"type": "string"}));
        assert_eq!(base["required"], json!(["type", "id"]));
        assert_eq!(schemas["TextOutput"]["allOf"][0]["$ref"], "#/components/schemas/Output");
        let own = &schemas["TextOutput"]["allOf"][1];
        assert!(own["properties"]["content"].is_object() && own["properties"]["id"].is_null());
        assert_eq!(own["required"], json!(["content", "startedAt", "endedAt"]));
        let flat = [INPUT_BLOCK, "NewMessage"];
        for (name, union) in Union::all(DOCUMENT["components"]["schemas"].as_object().unwrap()) {
            for variant in union.variants.iter().filter(|_| !flat.contains(&name.as_str())) {
                let reference = &schemas[variant]["allOf"][0]["$ref"];
                assert_eq!(*reference, format!("{SCHEMA_PREFIX}{name}"), "{variant}");
            }
        }
    }

    #[test]
    fn input_is_list_of_flat_blocks() {
        let schemas = &DOCUMENT_3_0["components"]["schemas"];
        let reference = json!({"$ref": "#/components/schemas/InputBlock"});
        assert_eq!(schemas["Content"]["items"], reference);
        let block = &schemas["InputBlock"];
        assert_eq!(block["required"], json!(["type"]));
        assert_eq!(block["properties"]["type"]["enum"], json!(["text", "image", "file"]));
        assert!(block["properties"]["artifactId"].is_object(), "{block}");
        let nullable = &schemas["TreeView"]["properties"]["leafId"];
        assert_eq!(*nullable, json!({"type": "string", "nullable": true}));
    }

    #[test]
    fn members_that_may_be_null_are_nullable() {
        let others = &DOCUMENT_3_0["components"]["schemas"];
        let find_member = |name: &str, member: &str| {
            let schema = &others[name];
            let base = schema_name(&schema["allOf"][0]["$ref"]).unwrap_or_default();
            let mut parts = [schema, &schema["allOf"][1], &others[base]].into_iter();
            parts.find_map(|part| part["properties"].get(member)).cloned().unwrap_or_default()
        };
        let contains =
            |list: &Value, null: Value| list.as_array().is_some_and(|list| list.contains(&null));
        let mut count = 0;
        for (name, schema) in DOCUMENT["components"]["schemas"].as_object().unwrap() {
            for (member, value) in schema["properties"].as_object().into_iter().flatten() {
                let has_null = contains(&value["type"], json!("null"))
                    || contains(&value["oneOf"], json!({"type": "null"}));
                let other = find_member(name, member);
                let has_any_type = other.get("type").is_none() && other.get("$ref").is_none();
                if has_null && !has_any_type {
                    assert_eq!(other["nullable"], true, "{name}.{member}: {other}");
                    count += 1;
                }
            }
        }
        assert!(count > 60, "{count}");
        let mode = &others["PromptRequest"]["properties"]["mode"];
        let reference = json!([{"$ref": format!("{SCHEMA_PREFIX}Mode")}]);
        assert_eq!(*mode, json!({"type": "string", "nullable": true, "allOf": reference}));
    }
}
