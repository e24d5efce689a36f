//! Steps of the check of a value by a schema, counted before the check is made.

mod cost;
mod failures;

use std::cell::OnceCell;
use std::collections::HashMap;

use serde_json::{Map, Value};

use super::bounds::{
    DEPTH_MAX, INNER_LISTS, REFERENCES, Reference, SAME_PLACE, SAME_PLACE_LISTS, SAME_PLACE_MAPS,
    SchemaIndex, address, json_depth, list_of, map_of,
};
use super::pattern_size::PatternSizes;
pub(super) use cost::CheckCost;
use failures::Failures;

/// Steps of the check of one value. About 0.2 s.
pub(super) const STEPS_MAX: u64 = 2_000_000;
/// Steps up to which a check is made on a thread that serves requests.
pub(super) const SHORT_STEPS_MAX: u64 = 20_000;
/// Searches of ordinary patterns in shorter texts end before their bound.
const UNFINISHED_BYTES_MIN: usize = 64;
/// Checks of one value whose failures are reported one by one.
pub(super) const REPORTED_STEPS_MAX: u64 = 60_000;
/// Memory of the failures of one check.
pub(super) const FAILURE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Checks of one place by a schema of JSON Schema itself, and failures of them.
const METASCHEMA_STEPS: u64 = 300;
const METASCHEMA_FAILURES: u64 = 16;
/// Costs that are remembered. Above, they are computed again.
const KNOWN_MAX: usize = 200_000;
/// Bytes of a keyword in a path.
const KEYWORD_BYTES: usize = 24;
/// Bytes of an index in a path.
const INDEX_BYTES: usize = 8;

/// The value is too large for the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManySteps;

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Size of a value that is copied or compared: its nodes, and its texts by 64 bytes.
pub(super) fn nodes_of(value: &Value) -> u64 {
    match value {
        Value::Array(items) => 1 + items.iter().map(nodes_of).sum::<u64>(),
        Value::Object(members) => {
            let sizes = members.iter().map(|(name, it)| count(name.len()) / 64 + nodes_of(it));
            1 + sizes.sum::<u64>()
        }
        Value::String(text) => 1 + count(text.len()) / 64,
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

/// Number of checks of a value by a schema for which [`super::bounds::check_schema`] has succeeded.
///
/// # Errors
/// They are more than `steps_max`, which is at most [`STEPS_MAX`], or need too much of the stack.
pub(super) fn check_cost(
    schema: &Value,
    patterns: &PatternSizes,
    value: &Value,
    steps_max: u64,
) -> Result<CheckCost, TooManySteps> {
    let mut counter = StepCounter {
        root: schema,
        patterns,
        steps_max,
        index: OnceCell::new(),
        known: HashMap::new(),
        negated: HashMap::new(),
        // The validator compares failures by their texts, which have the value.
        copies_values: patterns.has_backtracking(),
        visits: 0,
        nodes: HashMap::new(),
        counted: 0,
    };
    let cost = counter.cost(schema, value, 0)?.with_searches();
    if cost.repeated_steps() > steps_max { Err(TooManySteps) } else { Ok(cost) }
}

struct StepCounter<'s> {
    root: &'s Value,
    patterns: &'s PatternSizes,
    steps_max: u64,
    /// Made at the first reference: most schemas have none.
    index: OnceCell<SchemaIndex<'s>>,
    /// Cost of a referenced schema, by its address, that of the value, and [`Self::copies_values`].
    known: HashMap<(usize, usize, bool), CheckCost>,
    /// Nodes of the schemas of `not`, by their addresses.
    negated: HashMap<usize, u64>,
    /// True if each failure has a copy of its part of the value, as in `anyOf`.
    copies_values: bool,
    visits: u64,
    /// Nodes of the lists and objects of the value, by their addresses.
    nodes: HashMap<usize, u64>,
    /// Nodes that [`Self::nodes_of`] has counted.
    counted: u64,
}

impl<'s> StepCounter<'s> {
    fn cost(
        &mut self,
        schema: &'s Value,
        value: &Value,
        depth: usize,
    ) -> Result<CheckCost, TooManySteps> {
        self.visits += 1;
        if depth > DEPTH_MAX || self.visits > self.steps_max {
            return Err(TooManySteps);
        }
        let mut cost = CheckCost { steps: 1, ..CheckCost::default() };
        let Some(members) = schema.as_object() else {
            // `false`, or the names of `dependencies`.
            cost.steps += count(schema.as_array().map_or(0, Vec::len)) / 4;
            cost.failures = Failures::new(u64::from(*schema == Value::Bool(false)));
            cost.failures.add(Failures::of_missing(schema, value));
            self.copy_values(&mut cost.failures, value);
            return Ok(cost);
        };
        let depth = depth + 1;
        self.add_references(members, value, depth, &mut cost)?;
        self.add_lists(members, value, depth, &mut cost)?;
        self.add_same_place(members, value, depth, &mut cost)?;
        self.add_own_cost(members, value, &mut cost);
        self.add_members(members, value, depth, &mut cost)?;
        self.add_items(members, value, depth, &mut cost)?;
        // The check of what is left over looks at all schemas of the place again, for each of it.
        if members.contains_key("unevaluatedProperties") || members.contains_key("unevaluatedItems")
        {
            let length =
                value.as_object().map_or(0, Map::len) + value.as_array().map_or(0, Vec::len);
            cost.multiply(2 + count(length));
        }
        cost.lengthen_paths(KEYWORD_BYTES);
        if cost.is_over(self.steps_max) { Err(TooManySteps) } else { Ok(cost) }
    }

    /// Nodes of a value. Many: after the counting itself has taken too long.
    fn nodes_of(&mut self, value: &Value) -> u64 {
        if !value.is_array() && !value.is_object() {
            return nodes_of(value);
        }
        if let Some(known) = self.nodes.get(&address(value)) {
            return *known;
        }
        if self.counted > STEPS_MAX {
            return STEPS_MAX;
        }
        let nodes = nodes_of(value);
        self.counted = self.counted.saturating_add(nodes);
        if self.nodes.len() < KNOWN_MAX {
            self.nodes.insert(address(value), nodes);
        }
        nodes
    }

    fn add_lists(
        &mut self,
        schema: &'s Map<String, Value>,
        value: &Value,
        depth: usize,
        cost: &mut CheckCost,
    ) -> Result<(), TooManySteps> {
        for keyword in SAME_PLACE_LISTS {
            let mut sum = CheckCost::default();
            let are_alternatives = keyword != "allOf";
            let copies_values = self.copies_values;
            self.copies_values |= are_alternatives;
            for branch in list_of(schema, keyword) {
                sum.add(self.cost(branch, value, depth)?);
                if sum.is_over(self.steps_max) {
                    return Err(TooManySteps);
                }
            }
            self.copies_values = copies_values;
            if keyword == "oneOf" {
                sum.multiply(2);
            }
            if are_alternatives && sum.steps > 0 {
                sum.alternatives = sum.alternatives.max(sum.failures);
                let copied = self.nodes_of(value).saturating_mul(sum.steps);
                sum.copies = sum.copies.saturating_add(copied);
            }
            cost.add(sum);
        }
        Ok(())
    }

    fn add_same_place(
        &mut self,
        schema: &'s Map<String, Value>,
        value: &Value,
        depth: usize,
        cost: &mut CheckCost,
    ) -> Result<(), TooManySteps> {
        for keyword in SAME_PLACE {
            let Some(inner) = schema.get(keyword) else { continue };
            let found = self.cost(inner, value, depth)?;
            let decides = matches!(keyword, "not" | "if");
            cost.add(if decides { found.without_failures() } else { found });
        }
        for keyword in SAME_PLACE_MAPS {
            for (name, inner) in map_of(schema, keyword) {
                if value.get(name).is_some() {
                    let mut found = self.cost(inner, value, depth)?;
                    found.lengthen_paths(name.len());
                    cost.add(found);
                }
                cost.steps += 1;
            }
        }
        Ok(())
    }

    fn add_references(
        &mut self,
        schema: &'s Map<String, Value>,
        value: &Value,
        depth: usize,
        cost: &mut CheckCost,
    ) -> Result<(), TooManySteps> {
        if !REFERENCES.iter().any(|name| schema.contains_key(*name)) {
            return Ok(());
        }
        let index = self.index.get_or_init(|| SchemaIndex::of_checked(self.root));
        for Reference { text, targets, may_be_metaschema } in index.references(schema) {
            let mut largest = CheckCost::default();
            for target in targets {
                largest = largest.max(self.target_cost(target, value, depth)?);
            }
            if may_be_metaschema {
                largest.add(self.metaschema_cost(value));
            }
            largest.lengthen_paths(text.len());
            cost.add(largest);
        }
        Ok(())
    }

    fn target_cost(
        &mut self,
        target: &'s Value,
        value: &Value,
        depth: usize,
    ) -> Result<CheckCost, TooManySteps> {
        let key = (address(target), address(value), self.copies_values);
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        let cost = self.cost(target, value, depth)?;
        if self.known.len() < KNOWN_MAX {
            self.known.insert(key, cost);
        }
        Ok(cost)
    }

    /// Cost of the check by a schema of JSON Schema itself, which has alternatives at each place.
    fn metaschema_cost(&mut self, value: &Value) -> CheckCost {
        let nodes = self.nodes_of(value);
        let mut failures = Failures::new(nodes.saturating_mul(METASCHEMA_FAILURES));
        failures.copy(count(json_depth(value) + 1));
        CheckCost {
            steps: nodes.saturating_mul(METASCHEMA_STEPS),
            failures,
            alternatives: failures,
            ..CheckCost::default()
        }
    }

    fn add_members(
        &mut self,
        schema: &'s Map<String, Value>,
        value: &Value,
        depth: usize,
        cost: &mut CheckCost,
    ) -> Result<(), TooManySteps> {
        let Some(members) = value.as_object() else { return Ok(()) };
        let properties = schema.get("properties").and_then(Value::as_object);
        cost.steps += count(properties.map_or(0, Map::len)) / 4;
        let patterns: Vec<(&String, &Value)> = map_of(schema, "patternProperties").collect();
        let others = ["additionalProperties", "unevaluatedProperties"];
        let others: Vec<&Value> = others.iter().filter_map(|name| schema.get(*name)).collect();
        for (name, member) in members {
            let mut found = CheckCost { steps: 1, ..CheckCost::default() };
            let declared = properties.and_then(|properties| properties.get(name));
            if let Some(inner) = declared {
                found.add(self.cost(inner, member, depth)?);
            }
            for (pattern, inner) in patterns.iter().copied() {
                self.add_search(pattern, name.len(), &mut found);
                let mut matched = self.cost(inner, member, depth)?;
                matched.lengthen_paths(pattern.len());
                found.add(matched);
            }
            for inner in others.iter().copied().filter(|_| declared.is_none()) {
                found.add(self.cost(inner, member, depth)?);
            }
            // The paths in the value and in the schema.
            found.lengthen_paths(2 * name.len());
            cost.add(found);
            if let Some(inner) = schema.get("propertyNames") {
                cost.add(self.name_cost(inner, name, value, depth)?);
            }
            if cost.is_over(self.steps_max) {
                return Err(TooManySteps);
            }
        }
        Ok(())
    }

    /// Cost of the check of a name by the schema of `propertyNames`. Each failure is in another one,
    /// which is about the object.
    fn name_cost(
        &mut self,
        schema: &'s Value,
        name: &str,
        object: &Value,
        depth: usize,
    ) -> Result<CheckCost, TooManySteps> {
        // Not remembered: the value lives for this step only.
        let known = std::mem::take(&mut self.known);
        let copies_values = std::mem::replace(&mut self.copies_values, true);
        let mut cost = self.cost(schema, &Value::String(name.to_owned()), depth)?;
        (self.known, self.copies_values) = (known, copies_values);
        let mut outer = Failures::new(cost.failures.count);
        self.copy_values(&mut outer, object);
        cost.failures.add(outer);
        Ok(cost)
    }

    fn add_items(
        &mut self,
        schema: &'s Map<String, Value>,
        value: &Value,
        depth: usize,
        cost: &mut CheckCost,
    ) -> Result<(), TooManySteps> {
        let Some(items) = value.as_array() else { return Ok(()) };
        let first: Vec<&Value> =
            INNER_LISTS.iter().flat_map(|keyword| list_of(schema, keyword)).collect();
        let every: Vec<&Value> = ["items", "additionalItems", "unevaluatedItems"]
            .iter()
            .filter_map(|keyword| schema.get(*keyword).filter(|inner| !inner.is_array()))
            .collect();
        if schema.get("uniqueItems") == Some(&Value::Bool(true)) {
            cost.steps += items.iter().map(nodes_of).sum::<u64>().saturating_mul(4);
        }
        for (number, item) in items.iter().enumerate() {
            let mut found = CheckCost { steps: 1, ..CheckCost::default() };
            for inner in every.iter().chain(first.get(number)).copied() {
                found.add(self.cost(inner, item, depth)?);
            }
            if let Some(inner) = schema.get("contains") {
                found.add(self.cost(inner, item, depth)?.without_failures());
            }
            found.lengthen_paths(INDEX_BYTES);
            cost.add(found);
            if cost.is_over(self.steps_max) {
                return Err(TooManySteps);
            }
        }
        Ok(())
    }

    /// Adds the cost of the keywords without schemas, and of their failures.
    fn add_own_cost(
        &mut self,
        schema: &'s Map<String, Value>,
        value: &Value,
        cost: &mut CheckCost,
    ) {
        cost.steps = cost.steps.saturating_add(own_steps(schema, value));
        if let (Value::String(text), Some(Value::String(pattern))) = (value, schema.get("pattern"))
        {
            self.add_search(pattern, text.len(), cost);
        }
        let mut own = Failures::of_keywords(schema, value);
        self.copy_values(&mut own, value);
        if let Some(negated) = schema.get("not") {
            let nodes = *self.negated.entry(address(negated)).or_insert_with(|| nodes_of(negated));
            own.add_copies(nodes);
        }
        if let Some(members) = value.as_object()
            && schema.contains_key("unevaluatedProperties")
        {
            own.add(Failures::of_unevaluated(members));
        }
        if value.is_array() && schema.contains_key("unevaluatedItems") {
            own.add_copies(self.nodes_of(value));
        }
        cost.failures.add(own);
    }

    /// Adds the search of a regular expression in a text of that many bytes.
    fn add_search(&self, pattern: &str, bytes: usize, cost: &mut CheckCost) {
        let steps = self.patterns.match_steps(pattern, bytes);
        if self.patterns.is_backtracking(pattern) {
            cost.searches = cost.searches.saturating_add(steps);
            let is_long = bytes >= UNFINISHED_BYTES_MIN;
            cost.unfinished = cost.unfinished.saturating_add(is_long.into());
        } else {
            cost.steps = cost.steps.saturating_add(steps);
        }
    }

    /// Adds the copies of a value to failures, each of which has one.
    fn copy_values(&mut self, failures: &mut Failures, value: &Value) {
        if self.copies_values && failures.count > 0 {
            failures.copy(self.nodes_of(value));
        }
    }
}

/// Steps of the keywords without schemas and regular expressions.
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
    if value.is_object() {
        let dependent = map_of(schema, "dependentRequired").map(|(_, names)| names);
        let names = schema.get("required").into_iter().chain(dependent);
        steps += names.filter_map(Value::as_array).map(|it| count(it.len()) / 4).sum::<u64>();
    }
    if let Value::String(text) = value {
        steps += count(text.len()) / 256;
        if schema.get("format").is_some_and(Value::is_string) {
            steps = steps.saturating_add(count(text.len()) * 2);
        }
        if schema.contains_key("contentMediaType") || schema.contains_key("contentEncoding") {
            steps = steps.saturating_add(count(text.len()) / 8);
        }
    }
    steps
}
