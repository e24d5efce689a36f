//! Validation of arguments by a tool's parameters, after AJV's coercions. It reports all problems
//! at once, with AJV's messages.

mod ajv_messages;
mod coerce;
pub(crate) mod exact;
pub(crate) mod response;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use jsonschema::{ValidationError, Validator, ValidatorMap};
use quick_cache::sync::Cache;
use serde::Serialize;
use serde_json::Value;

use crate::agent::exact_json::ExactJson;
use crate::agent::raw::RawJson;
use crate::digest::sha256_hex;
use crate::tools::validate::exact::ExactTree;
use crate::tools::{Arguments, ToolDefinition};

/// Problems in the text for the model. More problems would not help it.
const PROBLEMS_MAX: usize = 50;
/// Larger arguments get only their first problem reported, because each problem costs memory.
const ALL_PROBLEMS_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of the received arguments that the text for the model repeats.
const ECHO_BYTES_MAX: usize = 50 * 1024;
/// Number of cached checkers.
const CHECKERS_MAX: usize = 1024;

/// Cache by the hash of the parameters, so that a changed tool never uses an old checker.
static CHECKERS: LazyLock<Cache<String, Arc<Checker>>> = LazyLock::new(|| Cache::new(CHECKERS_MAX));

/// Validates a model's arguments for a tool. Each set of parameters is compiled once.
///
/// # Errors
/// The arguments are invalid, or the tool's parameters are not a JSON Schema. Return the text to
/// the model.
pub(crate) fn validate(definition: &ToolDefinition, raw: &RawJson) -> Result<Arguments, String> {
    let key = sha256_hex(definition.parameters.to_string().as_bytes());
    let checker = CHECKERS
        .get_or_insert_with(&key, || Checker::new(&definition.parameters).map(Arc::new))
        .map_err(|problem| format!("Tool \"{}\" cannot be called: {problem}", definition.name))?;
    checker.validate(&definition.name, raw)
}

/// Compiled parameters of a tool.
pub struct Checker {
    schema: Value,
    validator: Validator,
    /// For arguments with numbers that floats change, built when first needed.
    exact: OnceLock<Option<Validator<ExactTree>>>,
    /// Validators of the branches of `anyOf` and `oneOf`, built when coercion first needs one.
    branches: OnceLock<Option<ValidatorMap<ExactTree>>>,
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
        Ok(Self { schema, validator, exact: OnceLock::new(), branches: OnceLock::new() })
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
            return Err(validation_error(
                tool_name,
                &["root: must be object".to_owned()],
                0,
                &received,
            ));
        }
        let Some(written) = ExactJson::parse(raw) else {
            return Err(invalid_json_error(tool_name, "a text is not Unicode"));
        };
        if self.is_valid(&written, &received) {
            return Ok(keep_written_text(raw, &written, received));
        }
        let mut coerced = written.clone();
        coerce::coerce(
            &self.schema,
            &|pointer, value| self.is_valid_at(pointer, value),
            &mut coerced,
        );
        let value = coerced.to_value();
        if coerced != written && self.is_valid(&coerced, &value) {
            return Ok(Arguments { text: RawJson::from_value(&coerced), value });
        }
        let (problems, left_out) = self.find_problems(&coerced, &value, raw.text().len());
        Err(validation_error(tool_name, &problems, left_out, &written))
    }

    /// `value`: the same tree with floats, which is faster to check.
    fn is_valid(&self, written: &ExactJson, value: &Value) -> bool {
        match self.exact_validator(written) {
            Some(exact) => exact.is_valid(written),
            None => self.validator.is_valid(value),
        }
    }

    /// The validator of arguments whose numbers floats change.
    fn exact_validator(&self, written: &ExactJson) -> Option<&Validator<ExactTree>> {
        if !written.has_long_number() {
            return None;
        }
        let build = || exact_options().build(&self.schema).ok();
        self.exact.get_or_init(build).as_ref()
    }

    /// True if a value is valid by the subschema at a pointer that begins with `#`.
    fn is_valid_at(&self, pointer: &str, value: &ExactJson) -> bool {
        let branches = self.branches.get_or_init(|| exact_options().build_map(&self.schema).ok());
        branches
            .as_ref()
            .and_then(|branches| branches.get(pointer))
            .is_some_and(|branch| branch.is_valid(value))
    }

    /// Returns the problems in AJV's order, and the number of problems left out.
    fn find_problems(
        &self,
        written: &ExactJson,
        value: &Value,
        bytes_count: usize,
    ) -> (Vec<String>, usize) {
        let is_first_only = bytes_count > ALL_PROBLEMS_BYTES_MAX;
        let mut errors: Vec<ValidationError<'_>> = match self.exact_validator(written) {
            Some(exact) if is_first_only => exact.validate(written).err().into_iter().collect(),
            Some(exact) => exact.iter_errors(written).collect(),
            None if is_first_only => self.validator.validate(value).err().into_iter().collect(),
            None => self.validator.iter_errors(value).collect(),
        };
        errors.sort_by_cached_key(|error| ajv_messages::sort_key(&self.schema, value, error));
        let mut lines: Vec<String> = errors
            .iter()
            .flat_map(|error| ajv_messages::error_lines(&self.schema, error))
            .collect();
        let left_out = lines.len().saturating_sub(PROBLEMS_MAX);
        lines.truncate(PROBLEMS_MAX);
        (lines, left_out)
    }
}

fn exact_options<'s>() -> jsonschema::ValidationOptions<'s, Arc<dyn jsonschema::Retrieve>, ExactTree>
{
    exact::options().should_validate_formats(true).should_ignore_unknown_formats(true)
}

/// Keeps the model's own text, unless it contains a duplicate member. JSON readers differ in the
/// duplicate that they use, so an approver could approve one amount while the tool pays another.
fn keep_written_text(raw: &RawJson, written: &ExactJson, value: Value) -> Arguments {
    let text = if count_members_in_text(raw.text()) == count_members(&value) {
        raw.clone()
    } else {
        RawJson::from_value(written)
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

/// Prefix of the error text for arguments that are not a JSON object.
pub(crate) const INVALID_JSON: &str = "Invalid JSON in arguments for tool";

fn invalid_json_error(tool_name: &str, why: &str) -> String {
    format!("{INVALID_JSON} \"{tool_name}\": {why}. Send one complete JSON object.")
}

/// Error for arguments that are a string: text of the model that is not JSON, or an object in
/// quotes.
fn string_arguments_error(tool_name: &str, text: &str) -> String {
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => invalid_json_error(tool_name, "the arguments are a string, not an object"),
        Err(error) => invalid_json_error(tool_name, &error.to_string()),
    }
}

fn validation_error(
    tool_name: &str,
    problems: &[String],
    left_out: usize,
    received: &impl Serialize,
) -> String {
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
