//! Memory of the failures that a check reports, computed before it is made. The validator collects all of
//! them before it returns the first one.

use serde_json::{Map, Value};

use super::count;
use crate::validate::bounds::map_of;

/// Bytes of a failure with its text, without its paths and copies.
const FAILURE_BYTES: u64 = 600;
/// Bytes of a copied node, with the name of a member.
const NODE_BYTES: u64 = 160;
/// A failure has paths in the value and in the schema, and its text repeats the first one.
const PATHS: u64 = 3;

/// True if the keyword has no failures itself. Names of `required` and its kind count one by one.
fn never_fails(keyword: &str) -> bool {
    matches!(
        keyword,
        "$anchor"
            | "$comment"
            | "$defs"
            | "$dynamicAnchor"
            | "$dynamicRef"
            | "$id"
            | "$ref"
            | "$schema"
            | "allOf"
            | "default"
            | "definitions"
            | "dependencies"
            | "dependentRequired"
            | "dependentSchemas"
            | "deprecated"
            | "description"
            | "else"
            | "examples"
            | "if"
            | "items"
            | "patternProperties"
            | "prefixItems"
            | "properties"
            | "readOnly"
            | "required"
            | "then"
            | "title"
            | "writeOnly"
    )
}

/// Failures that a check may have, and their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Failures {
    pub(super) count: u64,
    pub(super) bytes: u64,
}

impl Failures {
    pub(super) fn new(count: u64) -> Self {
        Self { count, bytes: count.saturating_mul(FAILURE_BYTES) }
    }

    /// Failures of the keywords of a schema, without those of the schemas in it.
    pub(super) fn of_keywords(schema: &Map<String, Value>, value: &Value) -> Self {
        let keywords = schema.keys().filter(|keyword| !never_fails(keyword)).count();
        let mut found = Self::new(count(keywords));
        let pattern = schema.get("pattern").and_then(Value::as_str).unwrap_or_default();
        found.lengthen(pattern.len());
        if let Some(names) = schema.get("required") {
            found.add(Self::of_missing(names, value));
        }
        for (cause, names) in map_of(schema, "dependentRequired") {
            if value.get(cause).is_some() {
                let mut missing = Self::of_missing(names, value);
                missing.lengthen(cause.len());
                found.add(missing);
            }
        }
        found
    }

    /// Failures of names that an object must have.
    pub(super) fn of_missing(names: &Value, value: &Value) -> Self {
        let mut found = Self::default();
        let (Some(names), Some(members)) = (names.as_array(), value.as_object()) else {
            return found;
        };
        for name in names.iter().filter_map(Value::as_str) {
            if !members.contains_key(name) {
                let mut missing = Self::new(1);
                missing.lengthen(name.len());
                found.add(missing);
            }
        }
        found
    }

    /// The text of a failure for each member that no keyword has checked.
    pub(super) fn of_unevaluated(members: &Map<String, Value>) -> Self {
        let names = members.keys().map(|name| count(name.len())).sum::<u64>();
        let found = Self::new(count(members.len()));
        Self { bytes: found.bytes.saturating_add(names), ..found }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    pub(super) fn max(self, other: Self) -> Self {
        Self { count: self.count.max(other.count), bytes: self.bytes.max(other.bytes) }
    }

    /// Adds a part of that many bytes to the paths of each failure.
    pub(super) fn lengthen(&mut self, part: usize) {
        let paths = self.count.saturating_mul(PATHS).saturating_mul(count(part));
        self.bytes = self.bytes.saturating_add(paths);
    }

    /// Adds a copy of that many nodes to each failure.
    pub(super) fn copy(&mut self, nodes: u64) {
        self.add_copies(self.count.saturating_mul(nodes));
    }

    /// Adds that many copied nodes.
    pub(super) fn add_copies(&mut self, nodes: u64) {
        self.bytes = self.bytes.saturating_add(nodes.saturating_mul(NODE_BYTES));
    }
}
