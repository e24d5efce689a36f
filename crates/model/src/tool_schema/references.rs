//! Local references of a schema: the subschemas that they name, and new targets after parts of the schema were
//! replaced. References to other documents stay.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value, json};

/// Keywords whose value is data.
const DATA: [&str; 5] = ["const", "default", "enum", "example", "examples"];
/// Keywords whose value has schemas by name.
const SCHEMA_MAPS: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];
/// Keywords that name a schema. A copy has none of them.
const IDENTIFIERS: [&str; 4] = ["$id", "id", "$anchor", "$dynamicAnchor"];
/// Bytes of a target up to which each reference to it becomes a copy. A larger one becomes a definition.
const COPIED_BYTES_MAX: usize = 500;

/// The subschemas of a document that references name.
pub(super) struct ReferenceIndex<'s> {
    pub(super) root: &'s Value,
    /// Address of the document; may be empty.
    address: &'s str,
    /// Subschemas with an address of their own: a pointer may begin there.
    resources: Vec<&'s Value>,
    anchors: HashMap<&'s str, &'s Value>,
}

impl<'s> ReferenceIndex<'s> {
    pub(super) fn new(root: &'s Value) -> Self {
        let text = |schema: &'s Value, name: &str| schema.get(name).and_then(Value::as_str);
        let address = text(root, "$id").or_else(|| text(root, "id")).unwrap_or_default();
        let address = address.split('#').next().unwrap_or_default();
        let (mut resources, mut anchors) = (Vec::new(), HashMap::new());
        visit_schemas(root, false, &mut |schema: &'s Value| {
            for keyword in ["$anchor", "$dynamicAnchor"] {
                if let Some(name) = text(schema, keyword) {
                    anchors.entry(name).or_insert(schema);
                }
            }
            for id in ["$id", "id"].into_iter().filter_map(|keyword| text(schema, keyword)) {
                if let Some(name) = id.strip_prefix('#') {
                    anchors.entry(name).or_insert(schema);
                } else {
                    resources.push(schema);
                }
            }
        });
        Self { root, address, resources, anchors }
    }

    /// The schema that a reference names. `None`: it is in another document, or does not exist.
    pub(super) fn target(&self, reference: &str) -> Option<&'s Value> {
        self.resolve(&self.fragment(reference)?)
    }

    /// The decoded part of a reference after `#`. `None`: it names another document.
    fn fragment(&self, reference: &str) -> Option<String> {
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let is_local = document.is_empty() || document == self.address;
        is_local.then(|| decode_percent(fragment))
    }

    fn resolve(&self, fragment: &str) -> Option<&'s Value> {
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return self.anchors.get(fragment).copied();
        }
        let starts = std::iter::once(self.root).chain(self.resources.iter().copied());
        starts
            .filter_map(|start| start.pointer(fragment))
            .find(|target| target.is_object() || target.is_boolean())
    }
}

/// New form of a reference.
enum ReferenceChange {
    /// The reference names another part of the schema.
    Address(String),
    /// The members of the target replace the reference.
    Copy(Map<String, Value>),
    /// The target does not exist.
    Removal,
}

struct ReferenceRepair<'o, 's> {
    original: &'o ReferenceIndex<'s>,
    prepare: fn(&Value) -> Value,
    /// Changes by the text of the reference.
    changes: HashMap<String, ReferenceChange>,
    definitions: Map<String, Value>,
    /// Names of the definitions by the addresses of their originals in memory.
    names: HashMap<usize, String>,
}

/// Changes the local references that name no part of the schema. They receive the target that they have in the
/// original, as `prepare` makes it. Each larger target becomes one definition, so that targets may refer to
/// themselves.
pub(super) fn repair_references(
    schema: &mut Value,
    original: &ReferenceIndex<'_>,
    prepare: fn(&Value) -> Value,
) {
    let (changes, names) = (HashMap::new(), HashMap::new());
    let mut repair = ReferenceRepair { original, prepare, changes, definitions: Map::new(), names };
    repair.find_changes(&ReferenceIndex::new(schema));
    let ReferenceRepair { changes, mut definitions, .. } = repair;
    apply_changes(schema, &changes);
    for definition in definitions.values_mut() {
        apply_changes(definition, &changes);
    }
    if !definitions.is_empty()
        && let Some(members) = schema.as_object_mut()
        && let Value::Object(known) = members.entry("$defs").or_insert_with(|| json!({}))
    {
        known.extend(definitions);
    }
}

impl ReferenceRepair<'_, '_> {
    fn find_changes(&mut self, schema: &ReferenceIndex<'_>) {
        let mut pending: VecDeque<String> = references_in(schema.root).into();
        let mut seen = HashSet::new();
        while let Some(reference) = pending.pop_front() {
            if !seen.insert(reference.clone()) {
                continue;
            }
            let Some(fragment) = self.original.fragment(&reference) else { continue };
            let change = if schema.resolve(&fragment).is_some() {
                let (_, written) = reference.split_once('#').unwrap_or_default();
                ReferenceChange::Address(format!("#{written}"))
            } else if let Some(target) = self.original.resolve(&fragment) {
                self.replace(target, schema, &mut pending)
            } else {
                ReferenceChange::Removal
            };
            self.changes.insert(reference, change);
        }
    }

    /// Copies or defines a target, and adds its references to the pending ones.
    fn replace(
        &mut self,
        target: &Value,
        schema: &ReferenceIndex<'_>,
        pending: &mut VecDeque<String>,
    ) -> ReferenceChange {
        let address = std::ptr::from_ref(target).addr();
        if let Some(name) = self.names.get(&address) {
            return ReferenceChange::Address(format!("#/$defs/{name}"));
        }
        let mut copy = (self.prepare)(target);
        if let Some(members) = copy.as_object_mut() {
            for name in IDENTIFIERS {
                members.remove(name);
            }
        }
        let references = references_in(&copy);
        if references.is_empty() && copy.to_string().len() <= COPIED_BYTES_MAX {
            return ReferenceChange::Copy(members_of(copy));
        }
        pending.extend(references);
        let known = schema.root.get("$defs");
        let is_taken = |name: &str| {
            known.is_some_and(|known| known.get(name).is_some())
                || self.definitions.contains_key(name)
        };
        let mut number = self.names.len() + 1;
        while is_taken(&format!("part{number}")) {
            number += 1;
        }
        let name = format!("part{number}");
        self.definitions.insert(name.clone(), copy);
        let change = ReferenceChange::Address(format!("#/$defs/{name}"));
        self.names.insert(address, name);
        change
    }
}

/// The members of a schema that may be a Boolean.
fn members_of(schema: Value) -> Map<String, Value> {
    match schema {
        Value::Object(members) => members,
        Value::Bool(false) => Map::from_iter([("not".to_owned(), json!({}))]),
        Value::Bool(true) | Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}

fn apply_changes(schema: &mut Value, changes: &HashMap<String, ReferenceChange>) {
    visit_schemas_mut(schema, false, &mut |members: &mut Map<String, Value>| {
        let Some(reference) = members.get("$ref").and_then(Value::as_str) else { return };
        match changes.get(reference) {
            Some(ReferenceChange::Address(address)) => {
                members.insert("$ref".to_owned(), json!(address));
            }
            Some(ReferenceChange::Copy(target)) => {
                members.remove("$ref");
                for (name, value) in target {
                    members.entry(name.as_str()).or_insert_with(|| value.clone());
                }
            }
            Some(ReferenceChange::Removal) => {
                members.remove("$ref");
            }
            None => {}
        }
    });
}

/// The texts of all references, in the order of the schema.
fn references_in(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    visit_schemas(schema, false, &mut |schema: &Value| {
        found.extend(schema.get("$ref").and_then(Value::as_str).map(str::to_owned));
    });
    found
}

/// Visits each object that may be a schema. `is_map`: the members of the value are schemas by name.
fn visit_schemas<'s>(value: &'s Value, is_map: bool, visit: &mut impl FnMut(&'s Value)) {
    match value {
        Value::Object(members) => {
            if !is_map {
                visit(value);
            }
            for (name, inner) in members {
                if is_map || !DATA.contains(&name.as_str()) {
                    let has_names = !is_map && SCHEMA_MAPS.contains(&name.as_str());
                    visit_schemas(inner, has_names, visit);
                }
            }
        }
        Value::Array(listed) => {
            for inner in listed {
                visit_schemas(inner, false, visit);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// As [`visit_schemas`], to change the members of the schemas.
fn visit_schemas_mut(
    value: &mut Value,
    is_map: bool,
    visit: &mut impl FnMut(&mut Map<String, Value>),
) {
    match value {
        Value::Object(members) => {
            if !is_map {
                visit(members);
            }
            for (name, inner) in members {
                if is_map || !DATA.contains(&name.as_str()) {
                    let has_names = !is_map && SCHEMA_MAPS.contains(&name.as_str());
                    visit_schemas_mut(inner, has_names, visit);
                }
            }
        }
        Value::Array(listed) => {
            for inner in listed {
                visit_schemas_mut(inner, false, visit);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn decode_percent(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}
