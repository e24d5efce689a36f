//! Arguments against a tool's parameters: every problem at once, in AJV's words, after AJV's coercions.

mod coerce;
pub mod response;
mod wording;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use jsonschema::{Validator, ValidatorMap};
use quick_cache::sync::Cache;
use serde_json::Value;

use crate::agent::raw::RawJson;
use crate::tools::{Arguments, ToolDefinition, sha256_hex};

/// Problems that the model is told; more of them teach it nothing.
const PROBLEMS_MAX: usize = 50;
/// Arguments above it are told their first problem only: each problem costs memory.
const ALL_PROBLEMS_BYTES_MAX: usize = 1024 * 1024;
/// How much of what it sent the model is shown again.
const ECHO_BYTES_MAX: usize = 50 * 1024;
/// Tools whose compiled parameters are kept.
const CHECKERS_MAX: usize = 1024;

/// Keyed by the hash of the parameters, so a changed tool can never meet an old checker.
static CHECKERS: LazyLock<Cache<String, Arc<Checker>>> = LazyLock::new(|| Cache::new(CHECKERS_MAX));

/// Checks a model's arguments for a tool; compiled once for each tool revision.
///
/// # Errors
/// The text for the model: what to send instead. For a tool whose parameters are no JSON Schema it says so.
pub fn validate(definition: &ToolDefinition, raw: &RawJson) -> Result<Arguments, String> {
    let key = sha256_hex(definition.parameters.to_string().as_bytes());
    let checker = CHECKERS
        .get_or_insert_with(&key, || Checker::new(&definition.parameters).map(Arc::new))
        .map_err(|problem| format!("Tool \"{}\" cannot be called: {problem}", definition.name))?;
    checker.check(&definition.name, raw)
}

/// A tool's parameters, compiled.
pub struct Checker {
    schema: Value,
    validator: Validator,
    /// Validators of the branches of `anyOf` and `oneOf`, made when coercion first needs one.
    branches: OnceLock<Option<ValidatorMap>>,
}

impl fmt::Debug for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checker").finish_non_exhaustive()
    }
}

impl Checker {
    /// # Errors
    /// The parameters are no JSON Schema, or refer to another document: the text says what is wrong and where.
    pub fn new(parameters: &Value) -> Result<Self, String> {
        let mut schema = parameters.clone();
        coerce::spell_out_nullable(&mut schema);
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .should_ignore_unknown_formats(true)
            .build(&schema)
            .map_err(|error| {
                let place = match error.instance_path().as_str() {
                    "" => String::new(),
                    path => format!(" at {path}"),
                };
                format!("its parameters are not a usable JSON Schema{place}: {error}")
            })?;
        Ok(Self { schema, validator, branches: OnceLock::new() })
    }

    /// # Errors
    /// The text for the model.
    pub fn check(&self, tool_name: &str, raw: &RawJson) -> Result<Arguments, String> {
        let received: Value =
            raw.read().map_err(|error| invalid_json(tool_name, &error.to_string()))?;
        if let Value::String(text) = &received {
            return Err(broken_text(tool_name, text));
        }
        if !received.is_object() {
            return Err(report(tool_name, &["root: must be object".to_owned()], 0, &received));
        }
        if self.validator.is_valid(&received) {
            return Ok(as_written(raw, received));
        }
        let mut coerced = received.clone();
        coerce::coerce(&self.schema, &|pointer, value| self.fits(pointer, value), &mut coerced);
        if coerced != received && self.validator.is_valid(&coerced) {
            return Ok(Arguments { text: RawJson::of(&coerced), value: coerced });
        }
        let (problems, left_out) = self.problems(&coerced, raw.text().len());
        Err(report(tool_name, &problems, left_out, &received))
    }

    /// Whether a value fits the subschema at a pointer that begins with `#`.
    fn fits(&self, pointer: &str, value: &Value) -> bool {
        let branches = self.branches.get_or_init(|| {
            jsonschema::options().should_validate_formats(true).build_map(&self.schema).ok()
        });
        branches
            .as_ref()
            .and_then(|branches| branches.get(pointer))
            .is_some_and(|branch| branch.is_valid(value))
    }

    /// In AJV's order, and how many were left out.
    fn problems(&self, value: &Value, bytes_count: usize) -> (Vec<String>, usize) {
        let mut errors: Vec<_> = if bytes_count > ALL_PROBLEMS_BYTES_MAX {
            self.validator.validate(value).err().into_iter().collect()
        } else {
            self.validator.iter_errors(value).collect()
        };
        errors.sort_by_cached_key(|error| wording::place(&self.schema, value, error));
        let mut lines: Vec<String> =
            errors.iter().flat_map(|error| wording::lines(&self.schema, error)).collect();
        let left_out = lines.len().saturating_sub(PROBLEMS_MAX);
        lines.truncate(PROBLEMS_MAX);
        (lines, left_out)
    }
}

/// The model's own text, unless a member stands in it twice: readers would differ on which one counts, and a person would
/// agree to one amount while another is paid.
fn as_written(raw: &RawJson, value: Value) -> Arguments {
    let text = if members_in_text(raw.text()) == members_of(&value) {
        raw.clone()
    } else {
        RawJson::of(&value)
    };
    Arguments { value, text }
}

/// Members of all objects, counted in the text: outside of strings each has one colon.
fn members_in_text(text: &str) -> usize {
    let mut count = 0;
    let mut in_string = false;
    let mut is_escaped = false;
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => in_string = !in_string,
            b':' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

fn members_of(value: &Value) -> usize {
    match value {
        Value::Object(members) => members.len() + members.values().map(members_of).sum::<usize>(),
        Value::Array(items) => items.iter().map(members_of).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// How the text of arguments that are no JSON object begins.
pub const INVALID_JSON: &str = "Invalid JSON in arguments for tool";

fn invalid_json(tool_name: &str, why: &str) -> String {
    format!("{INVALID_JSON} \"{tool_name}\": {why}. Send one complete JSON object.")
}

/// Arguments that are a string are what is kept of a model's text that is no JSON, or an object in quotes.
fn broken_text(tool_name: &str, text: &str) -> String {
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => invalid_json(tool_name, "the arguments are a string, not an object"),
        Err(error) => invalid_json(tool_name, &error.to_string()),
    }
}

fn report(tool_name: &str, problems: &[String], left_out: usize, received: &Value) -> String {
    use fmt::Write as _;

    let mut text = format!("Validation failed for tool \"{tool_name}\":\n");
    for problem in problems {
        let _ = writeln!(text, "  - {problem}");
    }
    if left_out > 0 {
        let _ = writeln!(text, "  - and {left_out} more problems");
    }
    let echo = serde_json::to_string_pretty(received).unwrap_or_default();
    let shown = echo.get(..echo.floor_char_boundary(ECHO_BYTES_MAX)).unwrap_or_default();
    let _ = write!(text, "\nReceived arguments:\n{shown}");
    if shown.len() < echo.len() {
        let _ = write!(text, "\n[{} more bytes]", echo.len() - shown.len());
    }
    text
}
