//! The schema to send for one property, made of its schemas in an object and in the alternatives of the object.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

/// Keywords that describe and do not restrict.
const ANNOTATIONS: [&str; 9] = [
    "title",
    "description",
    "default",
    "example",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
];

/// Schemas of one property. They are borrowed: each is copied once, for the schema to send.
pub(super) struct PropertySchemas<'s> {
    /// Schema that applies in any case; the first of several.
    base: Option<&'s Value>,
    /// Schemas of which one applies as well; empty: there are no alternatives. A schema may occur twice.
    any: Vec<&'s Value>,
    /// True if some alternatives of the object do not name the property.
    is_partial: bool,
}

impl<'s> PropertySchemas<'s> {
    pub(super) fn of(schema: &'s Value) -> Self {
        Self { base: Some(schema), any: Vec::new(), is_partial: false }
    }

    pub(super) fn into_partial(self) -> Self {
        Self { is_partial: true, ..self }
    }

    /// True if another alternative must decide about the property, because this one forbids it.
    pub(super) fn is_partial_ban(&self) -> bool {
        self.is_partial && self.any.is_empty() && self.base.is_some_and(is_never)
    }

    /// Applies other schemas to the same property, as `allOf` does. Schemas that are not part of every alternative
    /// restrict nothing.
    pub(super) fn narrow(&mut self, other: Self) {
        match (self.is_partial, other.is_partial) {
            (true, true) => self.widen(other),
            (true, false) => *self = other,
            (false, true) => {}
            (false, false) => self.conjoin(other),
        }
    }

    /// The first base stays. A list of values and the schema after an unrestricted one become alternatives of it.
    fn conjoin(&mut self, other: Self) {
        match (self.base, other.base) {
            (None, base) => self.base = base,
            (Some(known), Some(schema))
                if self.any.is_empty()
                    && !std::ptr::eq(known, schema)
                    && (lists_values(schema) || is_open(known)) =>
            {
                self.any.push(schema);
            }
            (Some(_), _) => {}
        }
        if self.any.is_empty() {
            self.any = other.any;
        }
    }

    /// Adds the schemas that another alternative of the object has for the property, as `anyOf` does.
    pub(super) fn widen(&mut self, other: Self) {
        self.is_partial |= other.is_partial;
        let bases = self.base.zip(other.base);
        if bases.is_some_and(|(known, base)| std::ptr::eq(known, base)) {
            if self.any.is_empty() || other.any.is_empty() {
                self.any.clear();
            } else {
                self.any.extend(other.any);
            }
            return;
        }
        if self.any.is_empty() {
            self.any.extend(self.base);
        }
        self.base = None;
        if other.any.is_empty() {
            self.any.extend(other.base);
        } else {
            self.any.extend(other.any);
        }
    }

    /// The schema to send.
    pub(super) fn to_schema(&self) -> Value {
        let alternatives = distinct(&self.any);
        let Some(base) = self.base else { return union_of(&alternatives) };
        let is_decided = alternatives.iter().any(|alternative| is_implied(alternative, base));
        if alternatives.is_empty() || is_decided {
            return base.clone();
        }
        let union = union_of(&alternatives);
        if *base == Value::Bool(true) {
            return union;
        }
        match (base, union) {
            (Value::Object(base), Value::Object(union)) => Value::Object(intersect(base, union)),
            (base, _) => base.clone(),
        }
    }
}

/// The schemas, each once. One that permits no value stays only if there is no other.
fn distinct<'s>(schemas: &[&'s Value]) -> Vec<&'s Value> {
    let (mut addresses, mut values) = (HashSet::new(), HashSet::new());
    let mut kept: Vec<&Value> = Vec::new();
    for schema in schemas.iter().copied() {
        // Many references may name one large schema. Its address is compared before its text.
        if addresses.insert(std::ptr::from_ref(schema).addr()) && values.insert(schema) {
            kept.push(schema);
        }
    }
    if kept.iter().any(|schema| !is_never(schema)) {
        kept.retain(|schema| !is_never(schema));
    }
    kept
}

fn union_of(alternatives: &[&Value]) -> Value {
    match alternatives {
        [] => json!({}),
        [only] => (*only).clone(),
        several => match several.iter().find(|schema| is_open(schema)) {
            Some(open) => (*open).clone(),
            None => merge_values(several).unwrap_or_else(|| json!({ "anyOf": several })),
        },
    }
}

/// One list of the values of all alternatives. `None`: an alternative is more than a list of values, or the
/// alternatives differ in type or description.
fn merge_values(alternatives: &[&Value]) -> Option<Value> {
    let lists: Vec<&Map<String, Value>> = alternatives
        .iter()
        .map(|schema| schema.as_object().filter(|_| lists_values(schema)))
        .collect::<Option<_>>()?;
    let mut types = lists.iter().filter_map(|list| list.get("type"));
    let first = types.next();
    if types.any(|name| Some(name) != first) {
        return None;
    }
    let mut merged = Map::new();
    for name in std::iter::once("type").chain(ANNOTATIONS) {
        let shared = lists.first()?.get(name);
        if lists.iter().any(|list| list.get(name) != shared) {
            if name == "description" {
                return None;
            }
        } else if let Some(shared) = shared {
            merged.insert(name.to_owned(), shared.clone());
        }
    }
    let mut seen = HashSet::new();
    let mut values: Vec<&Value> = Vec::new();
    for list in lists {
        values.extend(values_of(list).filter(|value| seen.insert(*value)));
    }
    merged.insert("enum".to_owned(), json!(values));
    Some(Value::Object(merged))
}

/// A base with the restrictions of its alternatives. If they cannot be combined, the result permits more.
fn intersect(base: &Map<String, Value>, mut union: Map<String, Value>) -> Map<String, Value> {
    if base.keys().all(|name| is_annotation(name)) {
        union.extend(base.clone());
        return union;
    }
    let is_list = lists_values_in(&union);
    if base.contains_key("$ref") {
        return if is_list { union } else { base.clone() };
    }
    let mut narrowed = base.clone();
    if is_list {
        let mut values: Vec<&Value> = values_of(&union).collect();
        if has_values(base) {
            let known: HashSet<&Value> = values_of(base).collect();
            values.retain(|value| known.contains(value));
        }
        if values.is_empty() {
            return narrowed;
        }
        narrowed.remove("const");
        narrowed.insert("enum".to_owned(), json!(values));
        for (name, value) in union.iter().filter(|(name, _)| *name != "const") {
            narrowed.entry(name.as_str()).or_insert_with(|| value.clone());
        }
    } else if !base.contains_key("anyOf") {
        let alternatives = match union.remove("anyOf") {
            Some(listed) if union.is_empty() => listed,
            Some(listed) => {
                union.insert("anyOf".to_owned(), listed);
                json!([union])
            }
            None => json!([union]),
        };
        narrowed.insert("anyOf".to_owned(), alternatives);
    }
    narrowed
}

/// True if every value that the base permits is permitted by the alternative.
fn is_implied(alternative: &Value, base: &Value) -> bool {
    if *alternative == Value::Bool(true) {
        return true;
    }
    alternative.as_object().is_some_and(|members| {
        members
            .iter()
            .all(|(name, value)| is_annotation(name) || base.get(name.as_str()) == Some(value))
    })
}

fn is_annotation(name: &str) -> bool {
    ANNOTATIONS.contains(&name)
}

/// True if the schema permits each value.
fn is_open(schema: &Value) -> bool {
    *schema == Value::Bool(true)
        || schema.as_object().is_some_and(|members| members.keys().all(|it| is_annotation(it)))
}

/// True if the schema permits no value.
fn is_never(schema: &Value) -> bool {
    *schema == Value::Bool(false)
        || schema
            .as_object()
            .is_some_and(|members| members.len() == 1 && members.get("not").is_some_and(is_open))
}

/// True if the schema lists values by `const` or `enum` and has no other restriction than a type.
fn lists_values(schema: &Value) -> bool {
    schema.as_object().is_some_and(lists_values_in)
}

fn lists_values_in(schema: &Map<String, Value>) -> bool {
    let is_known = |name: &String| matches!(name.as_str(), "const" | "enum" | "type");
    has_values(schema) && schema.keys().all(|name| is_known(name) || is_annotation(name))
}

fn has_values(schema: &Map<String, Value>) -> bool {
    schema.contains_key("const") || schema.get("enum").is_some_and(Value::is_array)
}

fn values_of(schema: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let only = schema.get("const");
    let listed = schema.get("enum").and_then(Value::as_array).filter(|_| only.is_none());
    only.into_iter().chain(listed.into_iter().flatten())
}
