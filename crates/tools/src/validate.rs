//! Validation of arguments by a tool's parameters, after AJV's coercions. It reports all problems
//! at once, with AJV's messages.

mod ajv_messages;
pub mod bounded_schema;
pub mod bounds;
mod branches;
mod coerce;
mod exact;
pub(crate) mod pattern_size;
pub mod response;
mod steps;

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, LazyLock};

use quick_cache::sync::Cache;
use serde_json::Value;

use crate::validate::bounded_schema::{BoundedSchema, SchemaVerdict, off_the_runtime};
use crate::validate::branches::BranchValidators;
use crate::validate::steps::CheckCost;
use crate::{Arguments, ToolDefinition};
use turnwheel_json::exact::ExactJson;
use turnwheel_json::foreign::FOREIGN_DEPTH_MAX;
use turnwheel_json::raw::RawJson;

/// Problems in the text for the model. More problems would not help it.
const PROBLEMS_MAX: usize = 50;
/// Larger arguments get only their first problem reported, because each problem costs memory.
const ALL_PROBLEMS_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of the received arguments that the text for the model repeats.
const ECHO_BYTES_MAX: usize = 50 * 1024;
/// Steps of a check up to which invalid arguments are coerced, and the size of the values that this may
/// copy.
const COERCED_STEPS_MAX: u64 = 200_000;
const COERCED_COPIES_MAX: u64 = 20_000_000;
/// Number of cached checkers.
const CHECKERS_MAX: usize = 1024;

/// Cache by the parameters themselves, so that a changed tool never uses an old checker.
static CHECKERS: LazyLock<Cache<Value, Arc<Checker>>> = LazyLock::new(|| Cache::new(CHECKERS_MAX));

/// Validates a model's arguments for a tool. Each set of parameters is compiled once.
///
/// # Errors
/// The arguments are invalid, or the tool's parameters are not a JSON Schema. Return the text to
/// the model.
pub fn validate(definition: &ToolDefinition, raw: &RawJson) -> Result<Arguments, String> {
    let checker = if let Some(checker) = CHECKERS.get(&definition.parameters) {
        checker
    } else {
        let compiled = Checker::new(&definition.parameters).map_err(|problem| {
            format!("Tool \"{}\" cannot be called: {problem}", definition.name)
        })?;
        let compiled = Arc::new(compiled);
        if !compiled.bounded.is_heavy() {
            CHECKERS.insert(definition.parameters.clone(), Arc::clone(&compiled));
        }
        compiled
    };
    checker.validate(&definition.name, raw)
}

/// Compiled parameters of a tool.
pub struct Checker {
    bounded: BoundedSchema,
}

impl fmt::Debug for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checker").finish_non_exhaustive()
    }
}

impl Checker {
    /// # Errors
    /// The parameters are not a JSON Schema, or refer to another document. Report the text, which
    /// has the reason and the place.
    pub fn new(parameters: &Value) -> Result<Self, String> {
        let mut schema = parameters.clone();
        coerce::expand_nullable(&mut schema);
        let bounded = BoundedSchema::with_formats(&schema).map_err(|problem| {
            let place = match problem.pointer.as_str() {
                "" => String::new(),
                pointer => format!(" at {pointer}"),
            };
            format!("its parameters are not a usable JSON Schema{place}: {}", problem.reason)
        })?;
        Ok(Self { bounded })
    }

    /// # Errors
    /// The arguments are invalid. Return the text to the model.
    pub fn validate(&self, tool_name: &str, raw: &RawJson) -> Result<Arguments, String> {
        let received: Value =
            raw.read().map_err(|error| invalid_json_error(tool_name, &error.to_string()))?;
        if let Value::String(text) = &received {
            return Err(string_arguments_error(tool_name, text));
        }
        if !received.is_object() {
            let problem = "root: must be object".to_owned();
            return Err(validation_error(tool_name, &[problem], 0, raw));
        }
        let Some(cost) = self.bounded.cost(&received) else {
            return Err(too_large_error(tool_name));
        };
        off_the_runtime(cost.is_long(), || self.validate_counted(tool_name, raw, received, cost))
    }

    /// Validates arguments whose check costs that much.
    fn validate_counted(
        &self,
        tool_name: &str,
        raw: &RawJson,
        received: Value,
        cost: CheckCost,
    ) -> Result<Arguments, String> {
        let nests_too_deep = || invalid_json_error(tool_name, "it nests too deep");
        let long = ExactJson::parse_if_long(raw.text()).map_err(|_| nests_too_deep())?;
        if self.check(cost, &received, long.as_ref()) == SchemaVerdict::Valid {
            return Ok(keep_written_text(raw, received));
        }
        let mut sent = ExactJson::parse(raw.text()).ok_or_else(nests_too_deep)?;
        if cost.steps <= COERCED_STEPS_MAX && cost.copies <= COERCED_COPIES_MAX {
            // Small schemas can have branches that are compiled for long.
            off_the_runtime(true, || {
                let branches = BranchValidators::new(&self.bounded);
                coerce::coerce(self.bounded.schema(), &branches, &mut sent);
            });
        }
        let coerced = sent.to_value();
        let Some(cost) = self.bounded.cost(&coerced) else {
            return Err(too_large_error(tool_name));
        };
        let long = sent.has_long_number().then_some(&sent);
        if coerced != received && self.check(cost, &coerced, long) == SchemaVerdict::Valid {
            return Ok(Arguments { text: RawJson::from_value(&sent), value: coerced });
        }
        let is_valid_as_float =
            long.is_some() && self.bounded.check_with(cost, &coerced) == SchemaVerdict::Valid;
        let (problems, left_out) = if is_valid_as_float {
            let problem = "root: a number with more than 15 digits does not satisfy the schema";
            (vec![problem.to_owned()], 0)
        } else {
            self.find_problems(&coerced, cost, raw.text().len())
        };
        Err(validation_error(tool_name, &problems, left_out, raw))
    }

    /// Checks a value, with each digit if it has more of them than floats keep.
    fn check(&self, cost: CheckCost, value: &Value, long: Option<&ExactJson>) -> SchemaVerdict {
        match long {
            Some(written) => self.bounded.check_exactly(cost, written),
            None => self.bounded.check_with(cost, value),
        }
    }

    /// Returns the problems in AJV's order, and the number of problems left out.
    fn find_problems(
        &self,
        value: &Value,
        cost: CheckCost,
        bytes_count: usize,
    ) -> (Vec<String>, usize) {
        let schema = self.bounded.schema();
        let has_all = bytes_count <= ALL_PROBLEMS_BYTES_MAX;
        let mut errors = self.bounded.mistakes(cost, value, has_all);
        if errors.is_empty() {
            return (vec!["root: must match the schema of the tool".to_owned()], 0);
        }
        errors.sort_by_cached_key(|error| ajv_messages::sort_key(schema, value, error));
        let mut lines: Vec<String> =
            errors.iter().flat_map(|error| ajv_messages::error_lines(schema, error)).collect();
        let left_out = lines.len().saturating_sub(PROBLEMS_MAX);
        lines.truncate(PROBLEMS_MAX);
        (lines, left_out)
    }
}

/// Keeps the model's own text, unless it contains a duplicate member. JSON readers differ in the
/// duplicate that they use, so an approver could approve one amount while the tool pays another.
fn keep_written_text(raw: &RawJson, value: Value) -> Arguments {
    let text = if count_members_in_text(raw.text()) == count_members(&value) {
        raw.clone()
    } else {
        ExactJson::parse(raw.text())
            .map_or_else(|| RawJson::from_value(&value), |tree| RawJson::from_value(&tree))
    };
    Arguments { value, text }
}

/// Counts the members of all objects in the text. Each has one colon outside of strings.
fn count_members_in_text(text: &str) -> usize {
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

fn count_members(value: &Value) -> usize {
    match value {
        Value::Object(members) => {
            members.len() + members.values().map(count_members).sum::<usize>()
        }
        Value::Array(items) => items.iter().map(count_members).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn too_large_error(tool_name: &str) -> String {
    format!(
        "Validation failed for tool \"{tool_name}\":\n  - root: the arguments are too large or too complex to be checked by the schema of the tool\n\nSend less in one call."
    )
}

/// Prefix of the error text for arguments that are not a JSON object.
pub const INVALID_JSON: &str = "Invalid JSON in arguments for tool";

fn invalid_json_error(tool_name: &str, why: &str) -> String {
    format!("{INVALID_JSON} \"{tool_name}\": {why}. Send one complete JSON object.")
}

/// Error for arguments that are a string: text of the model that is not JSON, or an object in
/// quotes.
fn string_arguments_error(tool_name: &str, text: &str) -> String {
    match RawJson::from_text(text) {
        Ok(json) if json.depth() > FOREIGN_DEPTH_MAX => {
            let reason = format!("the JSON nests over {FOREIGN_DEPTH_MAX} levels");
            invalid_json_error(tool_name, &reason)
        }
        Ok(_) => invalid_json_error(tool_name, "the arguments are a string, not an object"),
        Err(error) => invalid_json_error(tool_name, &error.to_string()),
    }
}

fn validation_error(
    tool_name: &str,
    problems: &[String],
    left_out: usize,
    received: &RawJson,
) -> String {
    use fmt::Write as _;

    let mut text = format!("Validation failed for tool \"{tool_name}\":\n");
    for problem in problems {
        let _ = writeln!(text, "  - {problem}");
    }
    if left_out > 0 {
        let _ = writeln!(text, "  - and {left_out} more problems");
    }
    // The model repeats the digits that it reads here.
    let written = ExactJson::parse(received.text());
    let echo = written.and_then(|written| serde_json::to_string_pretty(&written).ok());
    let echo = echo.unwrap_or_else(|| received.text().to_owned());
    let shown = echo.get(..echo.floor_char_boundary(ECHO_BYTES_MAX)).unwrap_or_default();
    let _ = write!(text, "\nReceived arguments:\n{shown}");
    if shown.len() < echo.len() {
        let _ = write!(text, "\n[{} more bytes]", echo.len() - shown.len());
    }
    text
}
