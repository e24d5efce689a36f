//! AJV's `coerceTypes` on the arguments as they were written.
//!
//! Two differences are intended. In `anyOf` and `oneOf`, the coercion of a branch is used only if
//! the coerced value is valid by that branch; in AJV each branch changes the value for the next
//! one. Numbers and texts become each other with the same letters: `1.10` becomes `"1.10"`, and only
//! a text that is a JSON number becomes a number.

use std::cell::RefCell;
use std::collections::HashMap;

use serde_json::{Map, Number, Value};

use super::bounds::{decode_percent, list_of};
use turnwheel_json::decimal::Decimal;
use turnwheel_json::exact::ExactJson;

/// Number of `$ref`, `allOf` and branches that are followed at one depth of the value. It bounds
/// schemas that refer to themselves.
const HOPS_MAX: u32 = 16;

/// Bytes of a compiled pattern, and the number of patterns.
const PATTERN_BYTES_MAX: usize = 256 * 1024;
const PATTERNS_MAX: usize = 100;

/// The branches of `anyOf` and `oneOf` of a schema.
pub(super) trait Branches {
    /// False: they are too large, and convert no value.
    fn are_usable(&self) -> bool;

    /// True if a value is valid by the branch at a pointer like `#/properties/a/anyOf/0`.
    fn is_valid(&self, pointer: &str, branch: &Value, value: &Value) -> bool;
}

pub(super) fn coerce(schema: &Value, branches: &dyn Branches, value: &mut ExactJson) {
    let patterns = RefCell::default();
    Coercer { root: schema, branches, patterns }.visit(schema, "#", value, HOPS_MAX);
}

struct Coercer<'a> {
    root: &'a Value,
    branches: &'a dyn Branches,
    /// Compiled patterns; `None`: this regex engine does not support it.
    patterns: RefCell<HashMap<String, Option<regex::Regex>>>,
}

impl Coercer<'_> {
    /// Skips patterns that this regex engine does not support. Validation still checks their members.
    fn patterns_of<'s>(
        &self,
        schema: &'s Map<String, Value>,
    ) -> Vec<(&'s str, regex::Regex, &'s Value)> {
        let mut known = self.patterns.borrow_mut();
        let mut compiled = |source: &String| {
            let is_full = known.len() >= PATTERNS_MAX;
            let compile =
                || regex::RegexBuilder::new(source).size_limit(PATTERN_BYTES_MAX).build().ok();
            let pattern = known.entry(source.clone());
            pattern.or_insert_with(|| if is_full { None } else { compile() }).clone()
        };
        schema
            .get("patternProperties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter_map(|(source, subschema)| Some((source.as_str(), compiled(source)?, subschema)))
            .collect()
    }

    fn visit(&self, schema: &Value, pointer: &str, value: &mut ExactJson, hops: u32) {
        let (Some(schema), Some(hops)) = (schema.as_object(), hops.checked_sub(1)) else { return };
        if let Some(coerced) = coerce_by_types(&types_of(schema), value) {
            *value = coerced;
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str)
            && let Some(path) = target.strip_prefix('#').map(decode_percent)
            && let Some(found) = self.root.pointer(&path)
        {
            self.visit(found, &format!("#{path}"), value, hops);
        }
        for (index, branch) in list_of(schema, "allOf").iter().enumerate() {
            self.visit(branch, &format!("{pointer}/allOf/{index}"), value, hops);
        }
        for keyword in ["anyOf", "oneOf"] {
            let place = format!("{pointer}/{keyword}");
            self.visit_branches(list_of(schema, keyword), &place, value, hops);
        }
        match value {
            ExactJson::Object(members) => self.visit_members(schema, pointer, members),
            ExactJson::List(items) => self.visit_items(schema, pointer, items),
            ExactJson::Null | ExactJson::Bool(_) | ExactJson::Number(_) | ExactJson::Text(_) => {}
        }
    }

    /// Coerces a value by the branches of `anyOf` or `oneOf`. A value that is valid by a branch
    /// stays unchanged. Otherwise the first branch wins whose coercion gives a valid value.
    fn visit_branches(&self, branches: &[Value], place: &str, value: &mut ExactJson, hops: u32) {
        if branches.is_empty() || !self.branches.are_usable() {
            return;
        }
        let pointer_of = |index: usize| format!("{place}/{index}");
        let is_valid = |index: usize, branch: &Value, value: &Value| {
            self.branches.is_valid(&pointer_of(index), branch, value)
        };
        let given = value.to_value();
        if branches.iter().enumerate().any(|(index, branch)| is_valid(index, branch, &given)) {
            return;
        }
        for (index, branch) in branches.iter().enumerate() {
            if !may_convert(branch, value) {
                continue;
            }
            let mut candidate = value.clone();
            self.visit(branch, &pointer_of(index), &mut candidate, hops);
            if candidate != *value && is_valid(index, branch, &candidate.to_value()) {
                *value = candidate;
                return;
            }
        }
    }

    fn visit_members(
        &self,
        schema: &Map<String, Value>,
        pointer: &str,
        members: &mut [(String, ExactJson)],
    ) {
        let properties = schema.get("properties").and_then(Value::as_object);
        let patterns = self.patterns_of(schema);
        for (name, member) in members {
            let escaped = escape_pointer(name);
            let mut is_declared = false;
            if let Some(property) = properties.and_then(|properties| properties.get(name.as_str()))
            {
                is_declared = true;
                let pointer = format!("{pointer}/properties/{escaped}");
                self.visit(property, &pointer, member, HOPS_MAX);
            }
            for (source, pattern, subschema) in &patterns {
                if pattern.is_match(name) {
                    is_declared = true;
                    let pointer = format!("{pointer}/patternProperties/{}", escape_pointer(source));
                    self.visit(subschema, &pointer, member, HOPS_MAX);
                }
            }
            if let Some(rest) = schema.get("additionalProperties")
                && !is_declared
            {
                let pointer = format!("{pointer}/additionalProperties");
                self.visit(rest, &pointer, member, HOPS_MAX);
            }
        }
    }

    fn visit_items(&self, schema: &Map<String, Value>, pointer: &str, items: &mut [ExactJson]) {
        let first = list_of(schema, "prefixItems");
        let rest = schema.get("items");
        for (index, item) in items.iter_mut().enumerate() {
            if let Some(subschema) = first.get(index) {
                let pointer = format!("{pointer}/prefixItems/{index}");
                self.visit(subschema, &pointer, item, HOPS_MAX);
            } else if let Some(subschema) = rest {
                self.visit(subschema, &format!("{pointer}/items"), item, HOPS_MAX);
            }
        }
    }
}

/// False if no keyword of a branch can convert a value, which then needs no copy.
fn may_convert(branch: &Value, value: &ExactJson) -> bool {
    const ANY: [&str; 4] = ["$ref", "allOf", "anyOf", "oneOf"];
    let Some(members) = branch.as_object() else { return false };
    let own: &[&str] = match value {
        ExactJson::Object(_) => &["properties", "patternProperties", "additionalProperties"],
        ExactJson::List(_) => &["prefixItems", "items"],
        ExactJson::Null | ExactJson::Bool(_) | ExactJson::Number(_) | ExactJson::Text(_) => {
            &["type"]
        }
    };
    ANY.iter().chain(own).any(|keyword| members.contains_key(*keyword))
}

fn escape_pointer(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn types_of(schema: &Map<String, Value>) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Coerces a value that has none of the types. The first possible type of AJV's table wins.
fn coerce_by_types(types: &[&str], value: &ExactJson) -> Option<ExactJson> {
    if types.iter().any(|name| has_type(name, value)) {
        return None;
    }
    types.iter().find_map(|name| match *name {
        "string" => match value {
            ExactJson::Number(written) => Some(ExactJson::Text(written.to_string())),
            ExactJson::Bool(flag) => Some(ExactJson::Text(flag.to_string())),
            ExactJson::Null => Some(ExactJson::Text(String::new())),
            ExactJson::Text(_) | ExactJson::List(_) | ExactJson::Object(_) => None,
        },
        "number" => to_number(value).map(|number| ExactJson::Number(number.into())),
        "integer" => to_number(value)
            .filter(|number| is_whole(number))
            .map(|number| ExactJson::Number(number.into())),
        "boolean" => match value {
            ExactJson::Null => Some(ExactJson::Bool(false)),
            ExactJson::Text(text) => text.parse().ok().map(ExactJson::Bool),
            ExactJson::Number(number) if is_equal(number, "0") => Some(ExactJson::Bool(false)),
            ExactJson::Number(number) if is_equal(number, "1") => Some(ExactJson::Bool(true)),
            ExactJson::Number(_)
            | ExactJson::Bool(_)
            | ExactJson::List(_)
            | ExactJson::Object(_) => None,
        },
        "null" => match value {
            ExactJson::Text(text) => text.is_empty().then_some(ExactJson::Null),
            ExactJson::Bool(flag) => (!flag).then_some(ExactJson::Null),
            ExactJson::Number(number) => is_equal(number, "0").then_some(ExactJson::Null),
            ExactJson::Null | ExactJson::List(_) | ExactJson::Object(_) => None,
        },
        _ => None,
    })
}

fn has_type(name: &str, value: &ExactJson) -> bool {
    match value {
        ExactJson::Null => name == "null",
        ExactJson::Bool(_) => name == "boolean",
        ExactJson::Number(number) => name == "number" || (name == "integer" && is_whole(number)),
        ExactJson::Text(_) => name == "string",
        ExactJson::List(_) => name == "array",
        ExactJson::Object(_) => name == "object",
    }
}

fn is_whole(number: &str) -> bool {
    Decimal::parse(number).is_some_and(|number| number.is_integer())
}

fn is_equal(number: &str, other: &str) -> bool {
    Decimal::parse(number).is_some_and(|number| Some(number) == Decimal::parse(other))
}

/// The text of the number. Only a JSON number has the same digits as a text, and readers of JSON refuse
/// one that is out of the range of floats.
fn to_number(value: &ExactJson) -> Option<&str> {
    match value {
        ExactJson::Null | ExactJson::Bool(false) => Some("0"),
        ExactJson::Bool(true) => Some("1"),
        ExactJson::Text(text) => {
            let text = text.trim();
            serde_json::from_str::<Number>(text).is_ok().then_some(text)
        }
        ExactJson::Number(number) => Some(number),
        ExactJson::List(_) | ExactJson::Object(_) => None,
    }
}

/// Formats a number like JavaScript: `5.0` is `5`, and large numbers have `e+`.
pub(super) fn format_js_number(number: &Number) -> String {
    let Some(real) = number.as_f64().filter(|_| number.is_f64()) else {
        return number.to_string();
    };
    if real == 0.0 {
        return "0".to_owned();
    }
    if real.abs() < 1e-6 || real.abs() >= 1e21 {
        let text = format!("{real:e}");
        return if text.contains("e-") { text } else { text.replace('e', "e+") };
    }
    real.to_string()
}

/// Replaces OpenAPI's `nullable: true` by the additional type `null`, as AJV does. JSON Schema has
/// no such keyword.
pub(super) fn expand_nullable(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    if object.get("nullable") == Some(&Value::Bool(true))
        && let Some(name @ Value::String(_)) = object.get_mut("type")
        && name != "null"
    {
        *name = Value::Array(vec![name.clone(), "null".into()]);
    }
    for (keyword, inner) in object {
        match (keyword.as_str(), inner) {
            (
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                Value::Object(named),
            ) => named.values_mut().for_each(expand_nullable),
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(listed)) => {
                listed.iter_mut().for_each(expand_nullable);
            }
            (
                "items"
                | "additionalProperties"
                | "contains"
                | "not"
                | "if"
                | "then"
                | "else"
                | "unevaluatedItems"
                | "unevaluatedProperties",
                inner @ Value::Object(_),
            ) => expand_nullable(inner),
            _ => {}
        }
    }
}
