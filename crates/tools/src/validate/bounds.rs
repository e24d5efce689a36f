//! Bounds of the check of a value by a schema from outside. A small schema can stand for 2⁴⁰ checks,
//! so that the number of checks is computed before any is made.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// Checks of one value. About 0.2 s.
pub(super) const STEPS_MAX: u64 = 2_000_000;
/// Checks of one value whose failures are reported one by one. Each failure takes memory.
pub(super) const REPORTED_STEPS_MAX: u64 = 60_000;
/// Schemas that apply to one place of a value, references followed.
const EXPANSION_MAX: u64 = 20_000;
/// Schemas within one another, references followed. Each takes a part of the stack.
const DEPTH_MAX: usize = 400;
/// Nesting of the JSON of a schema.
const SCHEMA_DEPTH_MAX: usize = 64;
/// Bytes of a schema.
const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// Sum of the weights of regular expressions. They are compiled before the first check.
const PATTERNS_MAX: u64 = 400;
/// Steps of an expression that may go back in its text.
const BACKTRACKING_STEPS: u64 = 4_000;
/// Checks of one place by a schema of JSON Schema itself.
const METASCHEMA_STEPS: u64 = 300;

/// Keywords with a schema for the same place of the value.
const SAME_PLACE: [&str; 4] = ["not", "if", "then", "else"];
const SAME_PLACE_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const SAME_PLACE_MAPS: [&str; 2] = ["dependentSchemas", "dependencies"];
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
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
const INNER_LISTS: [&str; 2] = ["prefixItems", "items"];
const INNER_MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Number of checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CheckCost {
    pub(super) steps: u64,
    /// Steps of the largest `anyOf` or `oneOf`, whose failures are reported together.
    pub(super) alternatives: u64,
    /// Values that a coercion copies, one for each alternative.
    pub(super) copies: u64,
}

impl CheckCost {
    fn add(&mut self, other: Self) {
        self.steps = self.steps.saturating_add(other.steps);
        self.alternatives = self.alternatives.max(other.alternatives);
        self.copies = self.copies.saturating_add(other.copies);
    }
}

/// The value is too large for the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManySteps;

/// The subschemas that references name.
pub(crate) struct SchemaIndex<'s> {
    root: &'s Value,
    /// Schemas with `$id` inside of the root: a reference may be relative to each.
    resources: Vec<&'s Value>,
    anchors: HashMap<&'s str, Vec<&'s Value>>,
    all: Vec<&'s Value>,
    /// Sum of the weights of regular expressions.
    patterns: u64,
}

fn address(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}

fn list_of<'s>(schema: &'s Map<String, Value>, keyword: &str) -> &'s [Value] {
    schema.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn map_of<'s>(
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

fn nodes_of(value: &Value) -> u64 {
    match value {
        Value::Array(items) => 1 + items.iter().map(nodes_of).sum::<u64>(),
        Value::Object(members) => 1 + members.values().map(nodes_of).sum::<u64>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// True if the expression may need an engine that goes back in its text.
fn is_backtracking(pattern: &str) -> bool {
    const SIGNS: [&str; 11] =
        ["(?=", "(?!", "(?<=", "(?<!", "(?>", "(?(", "\\k", "++", "*+", "?+", "}+"];
    let has_back_reference =
        || pattern.split('\\').skip(1).any(|after| after.starts_with(|c: char| c.is_ascii_digit()));
    SIGNS.iter().any(|sign| pattern.contains(sign)) || has_back_reference()
}

/// Size of a compiled expression, roughly: a repeated class of Unicode is large.
fn pattern_weight(pattern: &str) -> u64 {
    const LARGE: [&str; 7] = ["\\w", "\\W", "\\p", "\\P", "\\S", "\\D", "."];
    let factor = if LARGE.iter().any(|class| pattern.contains(class)) { 4 } else { 1 };
    let repeated = pattern.split('{').skip(1).map(|rest| {
        let counts = rest.split('}').next().unwrap_or_default().split(',');
        let largest = counts.filter_map(|it| it.trim().parse::<u64>().ok()).max();
        (largest.unwrap_or_default() / 8).saturating_mul(factor).saturating_add(4)
    });
    repeated.fold(1, u64::saturating_add)
}

/// Steps of one match in a text of that many bytes.
fn match_steps(pattern: &str, bytes: usize) -> u64 {
    let length = count(bytes) / 32 + 1;
    let own = if is_backtracking(pattern) { BACKTRACKING_STEPS } else { 0 };
    own.saturating_add(length.saturating_mul(pattern_weight(pattern)))
}

impl<'s> SchemaIndex<'s> {
    /// # Errors
    /// The schema is larger than its bounds, or refers to itself without end.
    pub(super) fn new(root: &'s Value) -> Result<Self, String> {
        if json_depth(root) > SCHEMA_DEPTH_MAX {
            return Err(format!("it is nested over {SCHEMA_DEPTH_MAX} levels"));
        }
        if root.to_string().len() > SCHEMA_BYTES_MAX {
            return Err(format!("it has over {SCHEMA_BYTES_MAX} bytes"));
        }
        let index = Self::of_checked(root);
        if index.patterns > PATTERNS_MAX {
            return Err("it has too many regular expressions".to_owned());
        }
        let mut known = HashMap::new();
        for schema in index.all.iter().copied() {
            index.expansion(schema, &mut known, 0)?;
        }
        Ok(index)
    }

    /// The index of a schema for which [`Self::new`] has succeeded.
    pub(crate) fn of_checked(root: &'s Value) -> Self {
        let (resources, anchors, all) = (Vec::new(), HashMap::new(), Vec::new());
        let mut index = Self { root, resources, anchors, all, patterns: 0 };
        index.collect(root);
        index
    }

    fn collect(&mut self, schema: &'s Value) {
        self.all.push(schema);
        let Some(members) = schema.as_object() else { return };
        for keyword in ["$anchor", "$dynamicAnchor"] {
            if let Some(name) = members.get(keyword).and_then(Value::as_str) {
                self.anchors.entry(name).or_default().push(schema);
            }
        }
        for keyword in ["$id", "id"] {
            if let Some(id) = members.get(keyword).and_then(Value::as_str) {
                self.resources.push(schema);
                self.anchors.entry(id.trim_start_matches('#')).or_default().push(schema);
            }
        }
        if let Some(pattern) = members.get("pattern").and_then(Value::as_str) {
            self.patterns = self.patterns.saturating_add(pattern_weight(pattern));
        }
        for (pattern, _) in map_of(members, "patternProperties") {
            self.patterns = self.patterns.saturating_add(pattern_weight(pattern));
        }
        for keyword in SAME_PLACE.into_iter().chain(INNER) {
            if let Some(inner @ (Value::Object(_) | Value::Bool(_))) = members.get(keyword) {
                self.collect(inner);
            }
        }
        for keyword in SAME_PLACE_LISTS.into_iter().chain(INNER_LISTS) {
            for inner in list_of(members, keyword) {
                self.collect(inner);
            }
        }
        for keyword in SAME_PLACE_MAPS.into_iter().chain(INNER_MAPS) {
            map_of(members, keyword).for_each(|(_, inner)| self.collect(inner));
        }
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
            let starts = std::iter::once(self.root).chain(self.resources.iter().copied());
            found.extend(starts.filter_map(|start| start.pointer(&fragment)));
        }
        for name in [fragment.as_str(), reference, document] {
            if !name.is_empty() {
                found.extend(self.anchors.get(name).into_iter().flatten());
            }
        }
        let mut seen = HashSet::new();
        found.retain(|schema| seen.insert(address(schema)));
        found
    }

    fn references(&self, members: &'s Map<String, Value>) -> Vec<Vec<&'s Value>> {
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

    /// Sum of the weights of regular expressions, of which each may take a megabyte.
    pub(crate) fn pattern_weights(&self) -> u64 {
        self.patterns
    }

    /// Number of subschemas.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Number of checks of a value.
    ///
    /// # Errors
    /// They are more than [`STEPS_MAX`], or need too much of the stack.
    pub(super) fn cost(&self, value: &Value) -> Result<CheckCost, TooManySteps> {
        let mut counter = StepCounter { index: self, known: HashMap::new(), visits: 0, counted: 0 };
        let cost = counter.cost(self.root, value, 0)?;
        if cost.steps > STEPS_MAX { Err(TooManySteps) } else { Ok(cost) }
    }
}

/// A pointer of a URI fragment.
fn decode_percent(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

struct StepCounter<'i, 's> {
    index: &'i SchemaIndex<'s>,
    /// Cost of a referenced schema, by its address and that of the value.
    known: HashMap<(usize, usize), CheckCost>,
    visits: u64,
    /// Nodes that [`Self::nodes_of`] has counted.
    counted: u64,
}

impl<'s> StepCounter<'_, 's> {
    fn cost(
        &mut self,
        schema: &'s Value,
        value: &Value,
        depth: usize,
    ) -> Result<CheckCost, TooManySteps> {
        self.visits += 1;
        if depth > DEPTH_MAX || self.visits > STEPS_MAX {
            return Err(TooManySteps);
        }
        let mut cost = CheckCost { steps: 1, ..CheckCost::default() };
        let Some(members) = schema.as_object() else { return Ok(cost) };
        let depth = depth + 1;
        for targets in self.index.references(members) {
            cost.add(self.reference_cost(&targets, value, depth)?);
        }
        for keyword in SAME_PLACE_LISTS {
            let mut sum = CheckCost::default();
            for branch in list_of(members, keyword) {
                sum.add(self.cost(branch, value, depth)?);
            }
            if keyword == "oneOf" {
                sum.steps = sum.steps.saturating_mul(2);
            }
            if keyword != "allOf" && sum.steps > 0 {
                sum.alternatives = sum.alternatives.max(sum.steps);
                let copied = self.nodes_of(value).saturating_mul(sum.steps);
                sum.copies = sum.copies.saturating_add(copied);
            }
            cost.add(sum);
        }
        for inner in SAME_PLACE.iter().filter_map(|keyword| members.get(*keyword)) {
            cost.add(self.cost(inner, value, depth)?);
        }
        for keyword in SAME_PLACE_MAPS {
            for (name, inner) in map_of(members, keyword) {
                if value.get(name).is_some() {
                    cost.add(self.cost(inner, value, depth)?);
                }
                cost.steps += 1;
            }
        }
        cost.steps = cost.steps.saturating_add(own_steps(members, value));
        match value {
            Value::Object(inner) => cost.add(self.members_cost(members, inner, depth)?),
            Value::Array(items) => cost.add(self.items_cost(members, items, depth)?),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        // The check of what is left over looks at all schemas of the place again, for each of it.
        if members.contains_key("unevaluatedProperties") || members.contains_key("unevaluatedItems")
        {
            let length =
                value.as_object().map_or(0, Map::len) + value.as_array().map_or(0, Vec::len);
            cost.steps = cost.steps.saturating_mul(2 + count(length));
        }
        if cost.steps > STEPS_MAX { Err(TooManySteps) } else { Ok(cost) }
    }

    /// Nodes of a value. Many: after the counting itself has taken too long.
    fn nodes_of(&mut self, value: &Value) -> u64 {
        if self.counted > STEPS_MAX {
            return STEPS_MAX;
        }
        let nodes = nodes_of(value);
        self.counted = self.counted.saturating_add(nodes);
        nodes
    }

    fn reference_cost(
        &mut self,
        targets: &[&'s Value],
        value: &Value,
        depth: usize,
    ) -> Result<CheckCost, TooManySteps> {
        let mut largest = CheckCost::default();
        if targets.is_empty() {
            // Other documents than the schemas of JSON Schema do not compile.
            largest.steps = nodes_of(value).saturating_mul(METASCHEMA_STEPS);
        }
        for target in targets.iter().copied() {
            let key = (address(target), address(value));
            let known = self.known.get(&key).copied();
            let cost = if let Some(cost) = known {
                cost
            } else {
                let cost = self.cost(target, value, depth)?;
                self.known.insert(key, cost);
                cost
            };
            largest.steps = largest.steps.max(cost.steps);
            largest.alternatives = largest.alternatives.max(cost.alternatives);
            largest.copies = largest.copies.max(cost.copies);
        }
        Ok(largest)
    }

    fn members_cost(
        &mut self,
        schema: &'s Map<String, Value>,
        members: &Map<String, Value>,
        depth: usize,
    ) -> Result<CheckCost, TooManySteps> {
        let mut cost = CheckCost::default();
        let properties = schema.get("properties").and_then(Value::as_object);
        cost.steps += count(properties.map_or(0, Map::len)) / 4;
        let patterns: Vec<(&String, &Value)> = map_of(schema, "patternProperties").collect();
        let others = ["additionalProperties", "unevaluatedProperties"];
        let others: Vec<&Value> = others.iter().filter_map(|name| schema.get(*name)).collect();
        let names = schema.get("propertyNames");
        for (name, member) in members {
            cost.steps += 1;
            let declared = properties.and_then(|properties| properties.get(name));
            if let Some(inner) = declared {
                cost.add(self.cost(inner, member, depth)?);
            }
            for (pattern, inner) in patterns.iter().copied() {
                cost.steps = cost.steps.saturating_add(match_steps(pattern, name.len()));
                cost.add(self.cost(inner, member, depth)?);
            }
            for inner in others.iter().copied().filter(|_| declared.is_none()) {
                cost.add(self.cost(inner, member, depth)?);
            }
            if let Some(inner) = names {
                // Not remembered: the value lives for this step only.
                let known = std::mem::take(&mut self.known);
                cost.add(self.cost(inner, &Value::String(name.clone()), depth)?);
                self.known = known;
            }
            if cost.steps > STEPS_MAX {
                return Err(TooManySteps);
            }
        }
        Ok(cost)
    }

    fn items_cost(
        &mut self,
        schema: &'s Map<String, Value>,
        items: &[Value],
        depth: usize,
    ) -> Result<CheckCost, TooManySteps> {
        let mut cost = CheckCost::default();
        let first: Vec<&Value> =
            INNER_LISTS.iter().flat_map(|keyword| list_of(schema, keyword)).collect();
        let every: Vec<&Value> = ["items", "additionalItems", "unevaluatedItems", "contains"]
            .iter()
            .filter_map(|keyword| schema.get(*keyword).filter(|inner| !inner.is_array()))
            .collect();
        if schema.get("uniqueItems") == Some(&Value::Bool(true)) {
            cost.steps += items.iter().map(nodes_of).sum::<u64>().saturating_mul(4);
        }
        for (number, item) in items.iter().enumerate() {
            cost.steps += 1;
            for inner in every.iter().chain(first.get(number)).copied() {
                cost.add(self.cost(inner, item, depth)?);
            }
            if cost.steps > STEPS_MAX {
                return Err(TooManySteps);
            }
        }
        Ok(cost)
    }
}

/// Steps of the keywords without schemas.
fn own_steps(schema: &Map<String, Value>, value: &Value) -> u64 {
    let mut steps = count(schema.len()) / 4;
    if let Some(Value::Array(options)) = schema.get("enum") {
        steps += count(options.len()) / 8;
        if value.is_object() || value.is_array() {
            steps += options.iter().map(nodes_of).sum::<u64>();
        }
    }
    if let Some(constant) = schema.get("const") {
        steps += nodes_of(constant);
    }
    if let Value::String(text) = value {
        steps += count(text.len()) / 256;
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
            steps = steps.saturating_add(match_steps(pattern, text.len()));
        }
        if schema.get("format").is_some_and(Value::is_string) {
            steps += count(text.len()) * 2;
        }
        if schema.contains_key("contentMediaType") || schema.contains_key("contentEncoding") {
            steps += count(text.len()) / 8;
        }
    }
    steps
}
