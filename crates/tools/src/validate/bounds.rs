//! Bounds of a schema from outside. A small one can stand for 2⁴⁰ checks, or for a compiled form that
//! fills the memory, so that both are computed before it is compiled.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::pattern_size::PatternSizes;

/// Schemas that apply to one place of a value, references followed.
const EXPANSION_MAX: u64 = 20_000;
/// Schemas within one another, references followed. Each takes a part of the stack.
pub(super) const DEPTH_MAX: usize = 400;
/// Nesting of the JSON of a schema.
const SCHEMA_DEPTH_MAX: usize = 64;
/// Bytes of a schema.
const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// States of all regular expressions. They are compiled before the first check.
const PATTERN_STATES_MAX: u64 = 200_000;
/// Schemas with `$id`, if there are references. The validator compiles a schema again for each path
/// through them.
const RESOURCES_MAX: usize = 6;
/// Schemas with the same anchor.
const NAMESAKES_MAX: usize = 8;
/// Schemas of all branches of `anyOf` and `oneOf`, each with all that it refers to.
const BRANCH_SCHEMAS_MAX: u64 = 20_000;
/// States of the regular expressions of these schemas.
const BRANCH_STATES_MAX: u64 = 200_000;

/// Keywords with a schema for the same place of the value.
pub(super) const SAME_PLACE: [&str; 4] = ["not", "if", "then", "else"];
pub(super) const SAME_PLACE_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
pub(super) const SAME_PLACE_MAPS: [&str; 2] = ["dependentSchemas", "dependencies"];
pub(super) const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Keywords with a schema for the items or members of the value.
const INNER: [&str; 8] = [
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "contentSchema",
];
pub(super) const INNER_LISTS: [&str; 2] = ["prefixItems", "items"];
const INNER_MAPS: [&str; 2] = ["properties", "patternProperties"];
/// Keywords with schemas that apply only where a reference names them.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// The subschemas that references name.
pub(crate) struct SchemaIndex<'s> {
    root: &'s Value,
    /// Schemas with `$id`, also the root: a reference may be relative to each.
    resources: Vec<&'s Value>,
    anchors: HashMap<&'s str, Vec<&'s Value>>,
    /// Each schema once, also those that only a reference names.
    all: Vec<&'s Value>,
    /// Their addresses.
    seen: HashSet<usize>,
    patterns: HashSet<&'s str>,
    /// True if `id` may be the identifier of a schema.
    has_draft_4: bool,
}

/// Sizes of a schema within its bounds.
pub(super) struct SchemaSize {
    pub(super) schemas: usize,
    pub(super) patterns: PatternSizes,
}

pub(super) fn address(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}

pub(super) fn list_of<'s>(schema: &'s Map<String, Value>, keyword: &str) -> &'s [Value] {
    schema.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn map_of<'s>(
    schema: &'s Map<String, Value>,
    keyword: &str,
) -> impl Iterator<Item = (&'s String, &'s Value)> {
    schema.get(keyword).and_then(Value::as_object).into_iter().flatten()
}

/// Nesting of JSON.
pub(crate) fn json_depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(json_depth).max().unwrap_or_default(),
        Value::Object(members) => 1 + members.values().map(json_depth).max().unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// The schemas in a schema that apply with it.
fn inner_schemas(members: &Map<String, Value>) -> Vec<&Value> {
    let mut inner = Vec::new();
    for keyword in SAME_PLACE.into_iter().chain(INNER) {
        inner.extend(members.get(keyword).filter(|it| it.is_object() || it.is_boolean()));
    }
    for keyword in SAME_PLACE_LISTS.into_iter().chain(INNER_LISTS) {
        inner.extend(list_of(members, keyword));
    }
    for keyword in SAME_PLACE_MAPS.into_iter().chain(INNER_MAPS) {
        inner.extend(map_of(members, keyword).map(|(_, schema)| schema));
    }
    inner
}

/// The regular expressions of a schema, without those of the schemas in it.
fn patterns_of(members: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let names = map_of(members, "patternProperties").map(|(pattern, _)| pattern.as_str());
    members.get("pattern").and_then(Value::as_str).into_iter().chain(names)
}

fn has_reference(members: &Map<String, Value>) -> bool {
    REFERENCES.iter().any(|name| members.contains_key(*name))
}

/// A pointer of a URI fragment.
pub(super) fn decode_percent(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Checks the bounds of a schema.
///
/// # Errors
/// The schema is larger than its bounds, or refers to itself without end.
pub(super) fn check_schema(root: &Value) -> Result<SchemaSize, String> {
    if json_depth(root) > SCHEMA_DEPTH_MAX {
        return Err(format!("it is nested over {SCHEMA_DEPTH_MAX} levels"));
    }
    if root.to_string().len() > SCHEMA_BYTES_MAX {
        return Err(format!("it has over {SCHEMA_BYTES_MAX} bytes"));
    }
    let index = SchemaIndex::of_checked(root);
    index.check_names()?;
    let patterns = index.pattern_sizes();
    if patterns.states() > PATTERN_STATES_MAX {
        return Err("it has too many regular expressions".to_owned());
    }
    if let Some(pattern) = patterns.find_too_large() {
        let shown: String = pattern.chars().take(100).collect();
        return Err(format!("its regular expression `{shown}` is too large"));
    }
    let mut known = HashMap::new();
    for schema in index.all.iter().copied() {
        index.expansion(schema, &mut known, 0)?;
    }
    Ok(SchemaSize { schemas: index.all.len(), patterns })
}

/// True if the regular expressions of a schema, without those that are too large, may be compiled.
pub(super) fn has_few_patterns(root: &Value) -> bool {
    SchemaIndex::of_checked(root).pattern_states() <= PATTERN_STATES_MAX
}

impl<'s> SchemaIndex<'s> {
    /// The index of a schema. Only that of a schema for which [`check_schema`] has succeeded is complete.
    pub(crate) fn of_checked(root: &'s Value) -> Self {
        let mut index = Self {
            root,
            resources: Vec::new(),
            anchors: HashMap::new(),
            all: Vec::new(),
            seen: HashSet::new(),
            patterns: HashSet::new(),
            has_draft_4: false,
        };
        index.collect(root);
        // A reference may name a schema at a place that no keyword has.
        let mut next = 0;
        while let Some(schema) = index.all.get(next).copied() {
            next += 1;
            let Some(members) = schema.as_object() else { continue };
            for target in index.references(members).into_iter().flatten() {
                index.collect(target);
            }
        }
        index
    }

    fn collect(&mut self, schema: &'s Value) {
        let mut open = vec![schema];
        while let Some(schema) = open.pop() {
            if !self.seen.insert(address(schema)) {
                continue;
            }
            self.all.push(schema);
            let Some(members) = schema.as_object() else { continue };
            self.collect_names(schema, members);
            self.patterns.extend(patterns_of(members));
            open.extend(inner_schemas(members));
            for keyword in DEFINITIONS {
                open.extend(map_of(members, keyword).map(|(_, schema)| schema));
            }
        }
    }

    fn collect_names(&mut self, schema: &'s Value, members: &'s Map<String, Value>) {
        let text = |keyword: &str| members.get(keyword).and_then(Value::as_str);
        self.has_draft_4 |= text("$schema").is_some_and(|dialect| dialect.contains("draft-04"));
        for name in ["$anchor", "$dynamicAnchor"].into_iter().filter_map(text) {
            self.anchors.entry(name).or_default().push(schema);
        }
        let ids = [text("$id"), text("id").filter(|_| self.has_draft_4)];
        for id in ids.into_iter().flatten() {
            if !id.starts_with('#') {
                self.resources.push(schema);
            }
            self.anchors.entry(id.trim_start_matches('#')).or_default().push(schema);
        }
    }

    fn check_names(&self) -> Result<(), String> {
        let has_references =
            self.all.iter().filter_map(|schema| schema.as_object()).any(has_reference);
        if has_references && self.resources.len() > RESOURCES_MAX {
            return Err(format!("it has references, and over {RESOURCES_MAX} schemas with `$id`"));
        }
        if has_references && self.anchors.values().any(|named| named.len() > NAMESAKES_MAX) {
            return Err(format!("it has over {NAMESAKES_MAX} schemas with the same anchor"));
        }
        Ok(())
    }

    /// The subschemas that a reference may mean, whatever its document is resolved to. Empty: a schema
    /// of JSON Schema itself; other documents do not compile.
    fn targets(&self, reference: &str) -> Vec<&'s Value> {
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let is_address = document.starts_with("http://") || document.starts_with("https://");
        if is_address && self.resources.is_empty() {
            return Vec::new();
        }
        let fragment = decode_percent(fragment);
        let mut found = Vec::new();
        if fragment.is_empty() || fragment.starts_with('/') {
            let resources = self.resources.iter().copied().take(RESOURCES_MAX);
            let starts = std::iter::once(self.root).chain(resources);
            found.extend(starts.filter_map(|start| start.pointer(&fragment)));
        }
        for name in [fragment.as_str(), reference, document] {
            if !name.is_empty() {
                let named = self.anchors.get(name).into_iter().flatten();
                found.extend(named.copied().take(NAMESAKES_MAX));
            }
        }
        let mut seen = HashSet::new();
        found.retain(|schema| seen.insert(address(schema)));
        found
    }

    /// The schemas that each reference of a schema may mean.
    pub(super) fn references(&self, members: &'s Map<String, Value>) -> Vec<Vec<&'s Value>> {
        let texts = REFERENCES.iter().filter_map(|name| members.get(*name)?.as_str());
        texts.map(|text| self.targets(text)).collect()
    }

    /// Number of schemas that apply to a place to which this one applies. `known`: by address; `None`
    /// while it is computed.
    fn expansion(
        &self,
        schema: &'s Value,
        known: &mut HashMap<usize, Option<u64>>,
        depth: usize,
    ) -> Result<u64, String> {
        match known.get(&address(schema)) {
            Some(Some(found)) => return Ok(*found),
            Some(None) => return Err("it refers to itself without end".to_owned()),
            None => {}
        }
        if depth > DEPTH_MAX {
            return Err(format!("its references follow each other over {DEPTH_MAX} times"));
        }
        known.insert(address(schema), None);
        let mut total = 1_u64;
        if let Some(members) = schema.as_object() {
            let mut inner: Vec<&Value> = Vec::new();
            inner.extend(SAME_PLACE.iter().filter_map(|keyword| members.get(*keyword)));
            inner.extend(SAME_PLACE_LISTS.iter().flat_map(|keyword| list_of(members, keyword)));
            for keyword in SAME_PLACE_MAPS {
                inner.extend(map_of(members, keyword).map(|(_, schema)| schema));
            }
            inner.extend(self.references(members).into_iter().flatten());
            for schema in inner {
                total = total.saturating_add(self.expansion(schema, known, depth + 1)?);
            }
        }
        if total > EXPANSION_MAX {
            return Err(format!("its references stand for over {EXPANSION_MAX} schemas"));
        }
        known.insert(address(schema), Some(total));
        Ok(total)
    }

    pub(super) fn pattern_sizes(&self) -> PatternSizes {
        PatternSizes::new(self.patterns.iter().copied())
    }

    /// States of all regular expressions that are compiled, of which each takes about 32 bytes.
    pub(crate) fn pattern_states(&self) -> u64 {
        self.pattern_sizes().states()
    }

    /// True if a validator of each branch of `anyOf` and `oneOf` takes little time and memory.
    pub(super) fn has_light_branches(&self, patterns: &PatternSizes) -> bool {
        let mut load = BranchLoad::default();
        for members in self.all.iter().filter_map(|schema| schema.as_object()) {
            for branch in ["anyOf", "oneOf"].iter().flat_map(|keyword| list_of(members, keyword)) {
                self.add_branch(branch, patterns, &mut load);
                if !load.is_light() {
                    return false;
                }
            }
        }
        true
    }

    /// Adds a branch with all that it refers to, as the validator compiles it.
    fn add_branch(&self, branch: &'s Value, patterns: &PatternSizes, load: &mut BranchLoad) {
        let (mut seen, mut texts) = (HashSet::new(), HashSet::new());
        let mut open = vec![branch];
        while let Some(schema) = open.pop() {
            if !load.is_light() {
                return;
            }
            if !seen.insert(address(schema)) {
                continue;
            }
            load.schemas += 1;
            let Some(members) = schema.as_object() else { continue };
            for pattern in patterns_of(members).filter(|pattern| texts.insert(*pattern)) {
                load.states = load.states.saturating_add(patterns.states_of(pattern));
            }
            open.extend(inner_schemas(members));
            open.extend(self.references(members).into_iter().flatten());
        }
    }
}

/// Sizes of branches.
#[derive(Default)]
struct BranchLoad {
    schemas: u64,
    states: u64,
}

impl BranchLoad {
    fn is_light(&self) -> bool {
        self.schemas <= BRANCH_SCHEMAS_MAX && self.states <= BRANCH_STATES_MAX
    }
}
