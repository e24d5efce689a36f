//! Properties of an object and of the alternatives that it may be, merged into those of one object. The merged object
//! permits the arguments of each alternative.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde_json::{Map, Value};

use turnwheel_json::schema_words::read_types;

use super::property::PropertySchemas;
use super::references::ReferenceIndex;

/// Alternatives and references within one another that are followed to find properties.
const HOPS_MAX: u32 = 16;
/// Alternatives, references, properties and required names in all.
const VISITS_MAX: usize = 50_000;

/// Values by name, in the order in which the names occurred first.
struct OrderedMap<'s, T> {
    names: Vec<&'s str>,
    values: HashMap<&'s str, T>,
}

impl<T> Default for OrderedMap<'_, T> {
    fn default() -> Self {
        Self { names: Vec::new(), values: HashMap::new() }
    }
}

impl<'s, T> OrderedMap<'s, T> {
    fn join(&mut self, name: &'s str, value: T, join: impl FnOnce(&mut T, T)) {
        match self.values.entry(name) {
            Entry::Occupied(mut known) => join(known.get_mut(), value),
            Entry::Vacant(free) => {
                self.names.push(name);
                free.insert(value);
            }
        }
    }

    fn into_pairs(self) -> impl Iterator<Item = (&'s str, T)> {
        let Self { names, mut values } = self;
        names.into_iter().filter_map(move |name| Some((name, values.remove(name)?)))
    }
}

/// An object and its alternatives as one object.
#[derive(Default)]
pub(super) struct MergedObject<'s> {
    properties: OrderedMap<'s, PropertySchemas<'s>>,
    /// Names that every alternative requires.
    required: OrderedMap<'s, ()>,
    /// True if no object is valid.
    is_impossible: bool,
}

impl<'s> MergedObject<'s> {
    pub(super) fn new(index: &ReferenceIndex<'s>) -> Self {
        let mut merged = Self::default();
        let mut merger = Merger { index, hops: HOPS_MAX, visits: VISITS_MAX };
        merger.add(index.root, &mut merged);
        merged
    }

    pub(super) fn permits_objects(&self) -> bool {
        !self.is_impossible
    }

    pub(super) fn required(&self) -> &[&'s str] {
        &self.required.names
    }

    pub(super) fn to_properties(&self) -> Map<String, Value> {
        let values = &self.properties.values;
        let names = self.properties.names.iter();
        names.filter_map(|name| Some(((*name).to_owned(), values.get(name)?.to_schema()))).collect()
    }

    fn restrict(&mut self, name: &'s str, schemas: PropertySchemas<'s>) {
        if !schemas.is_partial_ban() {
            self.properties.join(name, schemas, PropertySchemas::narrow);
        }
    }

    fn require(&mut self, name: &'s str) {
        self.required.join(name, (), |(), ()| {});
    }
}

/// Walk through the parts of a schema that describe the same object.
struct Merger<'i, 's> {
    index: &'i ReferenceIndex<'s>,
    hops: u32,
    visits: usize,
}

impl<'s> Merger<'_, 's> {
    /// Applies a schema to the object. A schema behind the bounds restricts nothing.
    fn add(&mut self, schema: &'s Value, merged: &mut MergedObject<'s>) {
        merged.is_impossible |= excludes_objects(schema);
        let Some(members) = schema.as_object() else { return };
        if self.hops == 0 || self.visits == 0 {
            return;
        }
        self.hops -= 1;
        self.add_members(members, merged);
        let reference = members.get("$ref").and_then(Value::as_str);
        if let Some(target) = reference.and_then(|reference| self.index.target(reference)) {
            self.add(target, merged);
        }
        for branch in list_of(members, "allOf") {
            self.add(branch, merged);
        }
        for keyword in ["anyOf", "oneOf"] {
            self.add_alternatives(list_of(members, keyword), merged);
        }
        for keyword in ["then", "else"] {
            if let Some(branch) = members.get(keyword) {
                self.add_condition(branch, merged);
            }
        }
        self.hops += 1;
    }

    fn add_members(&mut self, members: &'s Map<String, Value>, merged: &mut MergedObject<'s>) {
        let properties = members.get("properties").and_then(Value::as_object);
        let required = list_of(members, "required");
        let visits = 1 + properties.map_or(0, Map::len) + required.len();
        self.visits = self.visits.saturating_sub(visits);
        for (name, property) in properties.into_iter().flatten() {
            merged.restrict(name, PropertySchemas::of(property));
        }
        for name in required.iter().filter_map(Value::as_str) {
            merged.require(name);
        }
    }

    /// Applies `anyOf` or `oneOf`. An alternative that no object fulfils counts for nothing.
    fn add_alternatives(&mut self, branches: &'s [Value], merged: &mut MergedObject<'s>) {
        let mut objects = Vec::new();
        for branch in branches {
            let mut object = MergedObject::default();
            self.add(branch, &mut object);
            if object.permits_objects() {
                objects.push(object);
            }
        }
        merged.is_impossible |= objects.is_empty() && !branches.is_empty();
        let count = objects.len();
        let mut required: OrderedMap<'s, usize> = OrderedMap::default();
        let mut properties: OrderedMap<'s, (usize, PropertySchemas<'s>)> = OrderedMap::default();
        for object in objects {
            for (name, ()) in object.required.into_pairs() {
                required.join(name, 1, |times, one| *times += one);
            }
            for (name, schemas) in object.properties.into_pairs() {
                properties.join(name, (1, schemas), |known, other| {
                    known.0 += other.0;
                    known.1.widen(other.1);
                });
            }
        }
        for (name, times) in required.into_pairs() {
            if times == count {
                merged.require(name);
            }
        }
        for (name, (times, schemas)) in properties.into_pairs() {
            let schemas = if times == count { schemas } else { schemas.into_partial() };
            merged.restrict(name, schemas);
        }
    }

    /// Applies a schema that counts for some objects only: it names properties, and requires none.
    fn add_condition(&mut self, branch: &'s Value, merged: &mut MergedObject<'s>) {
        let mut object = MergedObject::default();
        self.add(branch, &mut object);
        for (name, schemas) in object.properties.into_pairs() {
            merged.restrict(name, schemas.into_partial());
        }
    }
}

/// True if the schema itself permits no object.
fn excludes_objects(schema: &Value) -> bool {
    if *schema == Value::Bool(false) {
        return true;
    }
    match schema.get("type").and_then(read_types) {
        Some(Value::String(name)) => name != "object",
        Some(Value::Array(names)) => !names.iter().any(|name| name == "object"),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => false,
    }
}

fn list_of<'s>(schema: &'s Map<String, Value>, keyword: &str) -> &'s [Value] {
    schema.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
