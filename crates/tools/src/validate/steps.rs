//! Steps of the check of a value by a schema, counted before the check is made.

use std::cell::OnceCell;
use std::collections::HashMap;

use serde_json::{Map, Value};

use super::bounds::{
    DEPTH_MAX, INNER_LISTS, REFERENCES, SAME_PLACE, SAME_PLACE_LISTS, SAME_PLACE_MAPS, SchemaIndex,
    address, list_of, map_of,
};
use super::pattern_size::PatternSizes;

/// Steps of the check of one value. About 0.2 s.
pub(super) const STEPS_MAX: u64 = 2_000_000;
/// Steps up to which a check is made on a thread that serves requests.
pub(super) const SHORT_STEPS_MAX: u64 = 20_000;
/// Checks of one value whose failures are reported one by one. Each failure takes memory.
pub(super) const REPORTED_STEPS_MAX: u64 = 60_000;
/// Checks of one place by a schema of JSON Schema itself.
const METASCHEMA_STEPS: u64 = 300;

/// Number of checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CheckCost {
    pub(super) steps: u64,
    /// Steps of the largest `anyOf` or `oneOf`, whose failures are reported together.
    pub(super) alternatives: u64,
    /// Size of the values that a coercion copies, one for each alternative.
    pub(super) copies: u64,
}

impl CheckCost {
    /// True if the check leaves the threads that serve requests.
    pub(super) fn is_long(self) -> bool {
        self.steps.max(self.copies) > SHORT_STEPS_MAX
    }

    fn add(&mut self, other: Self) {
        self.steps = self.steps.saturating_add(other.steps);
        self.alternatives = self.alternatives.max(other.alternatives);
        self.copies = self.copies.saturating_add(other.copies);
    }
}

/// The value is too large for the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManySteps;

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Size of a value that is copied or compared: its nodes, and its texts by 64 bytes.
fn nodes_of(value: &Value) -> u64 {
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
        visits: 0,
        counted: 0,
    };
    let cost = counter.cost(schema, value, 0)?;
    if cost.steps > steps_max { Err(TooManySteps) } else { Ok(cost) }
}

struct StepCounter<'s> {
    root: &'s Value,
    patterns: &'s PatternSizes,
    steps_max: u64,
    /// Made at the first reference: most schemas have none.
    index: OnceCell<SchemaIndex<'s>>,
    /// Cost of a referenced schema, by its address and that of the value.
    known: HashMap<(usize, usize), CheckCost>,
    visits: u64,
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
        let Some(members) = schema.as_object() else { return Ok(cost) };
        let depth = depth + 1;
        if REFERENCES.iter().any(|name| members.contains_key(*name)) {
            let index = self.index.get_or_init(|| SchemaIndex::of_checked(self.root));
            for targets in index.references(members) {
                cost.add(self.reference_cost(&targets, value, depth)?);
            }
        }
        cost.add(self.lists_cost(members, value, depth)?);
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
        cost.steps = cost.steps.saturating_add(self.own_steps(members, value));
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
        if cost.steps > self.steps_max { Err(TooManySteps) } else { Ok(cost) }
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

    fn lists_cost(
        &mut self,
        schema: &'s Map<String, Value>,
        value: &Value,
        depth: usize,
    ) -> Result<CheckCost, TooManySteps> {
        let mut cost = CheckCost::default();
        for keyword in SAME_PLACE_LISTS {
            let mut sum = CheckCost::default();
            for branch in list_of(schema, keyword) {
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
        Ok(cost)
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
                let steps = self.patterns.match_steps(pattern, name.len());
                cost.steps = cost.steps.saturating_add(steps);
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
            if cost.steps > self.steps_max {
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
            if cost.steps > self.steps_max {
                return Err(TooManySteps);
            }
        }
        Ok(cost)
    }

    /// Steps of the keywords without schemas.
    fn own_steps(&self, schema: &Map<String, Value>, value: &Value) -> u64 {
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
                steps = steps.saturating_add(self.patterns.match_steps(pattern, text.len()));
            }
            if schema.get("format").is_some_and(Value::is_string) {
                steps = steps.saturating_add(count(text.len()) * 2);
            }
            if schema.contains_key("contentMediaType") || schema.contains_key("contentEncoding") {
                steps = steps.saturating_add(count(text.len()) / 8);
            }
        }
        steps
    }
}
