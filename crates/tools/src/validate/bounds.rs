//! Bounds of a schema from outside. A small one can stand for 2⁴⁰ checks, or for a compiled form that
//! fills the memory, so that both are computed before it is compiled.

mod compiled_size;

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use self::compiled_size::copied_nodes;
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
pub(crate) const PATTERN_STATES_MAX: u64 = 200_000;
/// Schemas with `$id`, if there are references. The validator compiles a schema again for each path
/// through them.
const RESOURCES_MAX: usize = 6;
/// Schemas with the same anchor.
const NAMESAKES_MAX: usize = 8;
/// Copied nodes that count as a schema of a branch.
const COPIES_OF_A_SCHEMA: u64 = 8;
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
/// Parts of `$schema` in drafts before 2020.
const DRAFTS: [(&str, u16); 4] =
    [("draft-04", 4), ("draft-06", 6), ("draft-07", 7), ("2019-09", 2019)];
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
    /// The oldest draft that a schema names: 4, 6, 7, 2019, or 2020 if none names an older one.
    oldest_draft: u16,
    /// True if a schema may be what a reference in a schema of JSON Schema itself means.
    has_dynamic_anchor: bool,
    /// True if relative references may mean schemas of JSON Schema itself.
    has_metaschema_id: bool,
}

/// A reference, with the subschemas that it may mean, whatever its document is resolved to.
pub(super) struct Reference<'s> {
    pub(super) text: &'s str,
    pub(super) targets: Vec<&'s Value>,
    /// True if it may mean a schema of JSON Schema itself. Schemas of other documents do not compile.
    pub(super) may_be_metaschema: bool,
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

/// The schemas of keywords with one schema each.
fn schemas_of<'s>(
    members: &'s Map<String, Value>,
    keywords: &'static [&'static str],
) -> impl Iterator<Item = &'s Value> {
    let found = keywords.iter().filter_map(move |keyword| members.get(*keyword));
    found.filter(|schema| schema.is_object() || schema.is_boolean())
}

/// The schemas in a schema that apply to the same place of the value.
fn same_place_schemas(members: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let lists = SAME_PLACE_LISTS.into_iter().flat_map(move |keyword| list_of(members, keyword));
    let maps = SAME_PLACE_MAPS.into_iter().flat_map(move |keyword| map_of(members, keyword));
    schemas_of(members, &SAME_PLACE).chain(lists).chain(maps.map(|(_, schema)| schema))
}

/// The schemas in a schema that apply to the items or members of the value.
fn part_schemas(members: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let lists = INNER_LISTS.into_iter().flat_map(move |keyword| list_of(members, keyword));
    let maps = INNER_MAPS.into_iter().flat_map(move |keyword| map_of(members, keyword));
    schemas_of(members, &INNER).chain(lists).chain(maps.map(|(_, schema)| schema))
}

/// The schemas in a schema that apply with it.
fn inner_schemas(members: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    same_place_schemas(members).chain(part_schemas(members))
}

/// The regular expressions of a schema, without those of the schemas in it.
fn patterns_of(members: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let names = map_of(members, "patternProperties").map(|(pattern, _)| pattern.as_str());
    members.get("pattern").and_then(Value::as_str).into_iter().chain(names)
}

/// True if an address may be that of a schema of JSON Schema itself. The validator decodes escapes.
fn may_be_metaschema(address: &str) -> bool {
    address.contains('%') || address.to_ascii_lowercase().contains("json-schema.org")
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
    index.check_compiled_size(&known)?;
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
            oldest_draft: 2020,
            has_dynamic_anchor: false,
            has_metaschema_id: false,
        };
        index.collect(root);
        // A reference may name a schema at a place that no keyword has.
        let mut next = 0;
        while let Some(schema) = index.all.get(next).copied() {
            next += 1;
            let Some(members) = schema.as_object() else { continue };
            for target in index.targets_of(members) {
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
        let draft_of = |dialect: &str| DRAFTS.iter().find(|(name, _)| dialect.contains(name));
        if let Some((_, draft)) = text("$schema").and_then(draft_of) {
            self.oldest_draft = self.oldest_draft.min(*draft);
        }
        for name in ["$anchor", "$dynamicAnchor"].into_iter().filter_map(text) {
            self.anchors.entry(name).or_default().push(schema);
        }
        let anchors = ["$dynamicAnchor", "$recursiveAnchor"];
        self.has_dynamic_anchor |= anchors.iter().any(|name| members.contains_key(*name));
        let ids = [text("$id"), text("id").filter(|_| self.oldest_draft == 4)];
        for id in ids.into_iter().flatten() {
            self.has_metaschema_id |= may_be_metaschema(id);
            if !id.starts_with('#') {
                self.resources.push(schema);
            }
            self.anchors.entry(id.trim_start_matches('#')).or_default().push(schema);
        }
    }

    fn check_names(&self) -> Result<(), String> {
        let all = self.all.iter().filter_map(|schema| schema.as_object());
        let mut references = all.flat_map(|members| self.references(members)).peekable();
        let has_references = references.peek().is_some();
        if self.has_dynamic_anchor && references.any(|reference| reference.may_be_metaschema) {
            let problem = "it has dynamic anchors, and refers to a schema of JSON Schema itself";
            return Err(problem.to_owned());
        }
        if has_references && self.resources.len() > RESOURCES_MAX {
            return Err(format!("it has references, and over {RESOURCES_MAX} schemas with `$id`"));
        }
        if has_references && self.anchors.values().any(|named| named.len() > NAMESAKES_MAX) {
            return Err(format!("it has over {NAMESAKES_MAX} schemas with the same anchor"));
        }
        Ok(())
    }

    fn reference(&self, text: &'s str) -> Reference<'s> {
        let (document, fragment) = text.split_once('#').unwrap_or((text, ""));
        let is_address = document.starts_with("http://") || document.starts_with("https://");
        let targets = if is_address && self.resources.is_empty() {
            Vec::new()
        } else {
            self.targets(text, document, fragment)
        };
        let is_metaschema =
            !document.is_empty() && (self.has_metaschema_id || may_be_metaschema(document));
        Reference { text, may_be_metaschema: is_metaschema || targets.is_empty(), targets }
    }

    fn targets(&self, reference: &str, document: &str, fragment: &str) -> Vec<&'s Value> {
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

    /// The references of a schema.
    pub(super) fn references(&self, members: &'s Map<String, Value>) -> Vec<Reference<'s>> {
        let texts = REFERENCES.iter().filter_map(|name| members.get(*name)?.as_str());
        texts.map(|text| self.reference(text)).collect()
    }

    /// The schemas that the references of a schema may mean.
    fn targets_of(&self, members: &'s Map<String, Value>) -> Vec<&'s Value> {
        self.references(members).into_iter().flat_map(|reference| reference.targets).collect()
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
            for schema in same_place_schemas(members).chain(self.targets_of(members)) {
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
            load.schemas += 1 + self.recompiled_schemas(schema, BRANCH_SCHEMAS_MAX);
            let Some(members) = schema.as_object() else { continue };
            load.schemas += copied_nodes(members, self.oldest_draft) / COPIES_OF_A_SCHEMA;
            for pattern in patterns_of(members).filter(|pattern| texts.insert(*pattern)) {
                load.states = load.states.saturating_add(patterns.states_of(pattern));
            }
            open.extend(inner_schemas(members));
            open.extend(self.targets_of(members));
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
