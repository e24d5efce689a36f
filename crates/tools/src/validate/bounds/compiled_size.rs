//! Size of the compiled form of a schema: the nodes that it copies, and the schemas that the validator
//! compiles again.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{SchemaIndex, address, inner_schemas, map_of, same_place_schemas};
use crate::validate::steps::nodes_of;

/// Nodes that are copied. A node in five `not`, each in the next one, counts five times.
const COPIED_NODES_MAX: u64 = 100_000;
/// Schemas that are compiled again, once for each path of references to them.
const RECOMPILED_MAX: u64 = 20_000;
/// Such schemas within one another. Each takes a part of the stack.
const RECOMPILED_DEPTH_MAX: usize = 32;
/// Schemas that are searched for constants by which alternatives differ.
const SEARCHED_MAX: u64 = 200_000;

/// Keywords whose schema is compiled again with those of the same place.
const RECOMPILED_PARTS: [&str; 4] =
    ["additionalProperties", "unevaluatedProperties", "contains", "unevaluatedItems"];

/// A keyword that compiles again what decides about the parts of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Unevaluated {
    Properties,
    Items,
}

/// Nodes of a schema that its compiled form copies, without those of its schemas: `not`, annotations,
/// and the keywords that the oldest draft does not have.
pub(super) fn copied_nodes(members: &Map<String, Value>, oldest_draft: u16) -> u64 {
    let is_copied = |keyword: &str| compiled_since(keyword).is_none_or(|it| it > oldest_draft);
    let copied = members.iter().filter(|(keyword, _)| is_copied(keyword));
    copied.map(|(_, value)| nodes_of(value)).sum()
}

/// The draft since which the value of the keyword is compiled without a copy. `None`: it is not.
fn compiled_since(keyword: &str) -> Option<u16> {
    match keyword {
        "additionalItems"
        | "additionalProperties"
        | "allOf"
        | "anyOf"
        | "definitions"
        | "dependencies"
        | "items"
        | "oneOf"
        | "patternProperties"
        | "properties" => Some(4),
        "contains" | "propertyNames" => Some(6),
        "else" | "if" | "then" => Some(7),
        "$defs" | "dependentSchemas" | "unevaluatedItems" | "unevaluatedProperties" => Some(2019),
        "prefixItems" => Some(2020),
        _ => None,
    }
}

impl<'s> SchemaIndex<'s> {
    /// Checks the bounds of the compiled form. `expansions`: by the addresses of the schemas.
    pub(super) fn check_compiled_size(
        &self,
        expansions: &HashMap<usize, Option<u64>>,
    ) -> Result<(), String> {
        let (mut copied, mut searched) = (0_u64, 0_u64);
        let mut recompilation = Recompilation::new(self, RECOMPILED_MAX);
        for schema in self.all.iter().copied() {
            let Some(members) = schema.as_object() else { continue };
            copied = copied.saturating_add(copied_nodes(members, self.oldest_draft));
            if members.contains_key("anyOf") || members.contains_key("oneOf") {
                let expansion = expansions.get(&address(schema)).copied().flatten();
                searched = searched.saturating_add(expansion.unwrap_or_default());
            }
            recompilation.add_unevaluated(schema, false, 0);
        }
        if copied > COPIED_NODES_MAX {
            return Err(format!("`not` and other keywords copy over {COPIED_NODES_MAX} values"));
        }
        if searched > SEARCHED_MAX {
            return Err(format!("its alternatives stand for over {SEARCHED_MAX} schemas"));
        }
        if recompilation.left == 0 {
            return Err(format!(
                "`unevaluatedProperties` and `unevaluatedItems` stand for over {RECOMPILED_MAX} schemas, or for over {RECOMPILED_DEPTH_MAX} within one another"
            ));
        }
        Ok(())
    }

    /// Schemas that are compiled again for a schema, up to `max`.
    pub(super) fn recompiled_schemas(&self, schema: &'s Value, max: u64) -> u64 {
        let mut recompilation = Recompilation::new(self, max);
        recompilation.add_unevaluated(schema, false, 0);
        max - recompilation.left
    }
}

/// Walk over the schemas that `unevaluatedProperties` and `unevaluatedItems` compile again, as the
/// validator makes it.
struct Recompilation<'i, 's> {
    index: &'i SchemaIndex<'s>,
    /// Schemas of the walk to the current one. A reference to them is followed no further.
    open: HashSet<(usize, Unevaluated)>,
    /// 0: there are too many.
    left: u64,
}

impl<'i, 's> Recompilation<'i, 's> {
    fn new(index: &'i SchemaIndex<'s>, max: u64) -> Self {
        Self { index, open: HashSet::new(), left: max }
    }

    /// Adds what such keywords of a schema compile again.
    fn add_unevaluated(&mut self, schema: &'s Value, is_below_reference: bool, depth: usize) {
        for (keyword, kind) in [
            ("unevaluatedProperties", Unevaluated::Properties),
            ("unevaluatedItems", Unevaluated::Items),
        ] {
            if schema.get(keyword).is_some() {
                self.add_checks(schema, kind, is_below_reference, depth);
            }
        }
    }

    /// Adds a schema, and those that decide with it about the same place. Below a reference nothing is
    /// compiled yet.
    fn add_checks(
        &mut self,
        schema: &'s Value,
        kind: Unevaluated,
        is_below_reference: bool,
        depth: usize,
    ) {
        self.left = if depth > RECOMPILED_DEPTH_MAX { 0 } else { self.left.saturating_sub(1) };
        let Some(members) = schema.as_object().filter(|_| self.left > 0) else { return };
        let is_first = self.open.insert((address(schema), kind));
        let depth = depth + 1;
        for inner in same_place_schemas(members) {
            if is_below_reference {
                self.add_compiled(inner, depth);
            }
            self.add_checks(inner, kind, is_below_reference, depth);
        }
        if is_below_reference {
            let parts = RECOMPILED_PARTS.iter().filter_map(|keyword| members.get(*keyword));
            let by_pattern = map_of(members, "patternProperties").map(|(_, schema)| schema);
            for part in parts.chain(by_pattern) {
                self.add_compiled(part, depth);
            }
        }
        for target in self.index.targets_of(members) {
            if !self.open.contains(&(address(target), kind)) {
                self.add_checks(target, kind, true, depth);
            }
        }
        if is_first {
            self.open.remove(&(address(schema), kind));
        }
    }

    /// Adds a schema with all schemas in it.
    fn add_compiled(&mut self, schema: &'s Value, depth: usize) {
        let mut open = vec![schema];
        while let Some(schema) = open.pop() {
            self.left = self.left.saturating_sub(1);
            let Some(members) = schema.as_object().filter(|_| self.left > 0) else { continue };
            self.add_unevaluated(schema, true, depth);
            open.extend(inner_schemas(members));
        }
    }
}
