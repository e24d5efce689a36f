//! A schema from outside: an agent file, a plugin, an MCP server or an extension. The check of a value
//! has bounds of steps, memory and stack, whatever schema and value are.

use std::fmt;
use std::sync::OnceLock;

use jsonschema::{FancyRegex, PatternOptions, ValidationError, ValidationOptions, Validator};
use serde_json::{Value, json};

use super::bounds::{CheckCost, REPORTED_STEPS_MAX, SchemaIndex};
use super::exact::{self, ExactTree};
use turnwheel_json::exact::ExactJson;
use turnwheel_json::raw::RawJson;
use turnwheel_json::schema_words::tolerate;

/// Bytes of a compiled regular expression.
const PATTERN_BYTES_MAX: usize = 10 * 1024 * 1024;
/// Weight of regular expressions above which a compiled schema is not kept.
const KEPT_PATTERNS_MAX: u64 = 100;
/// Steps back of a regular expression with lookaround. The check counts as failed after them.
const BACKTRACKS_MAX: usize = 1_000;
/// Steps above which a check leaves the threads that serve requests.
const SHORT_STEPS_MAX: u64 = 20_000;

/// A schema that compiles and has bounds.
pub struct BoundedSchema {
    schema: Value,
    validator: Validator,
    /// Compares numbers with all their digits; built for the first value that needs it.
    exact: OnceLock<Option<Validator<ExactTree>>>,
    checks_formats: bool,
}

impl fmt::Debug for BoundedSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedSchema").finish_non_exhaustive()
    }
}

/// Why a schema is refused.
#[derive(Debug)]
pub struct SchemaProblem {
    /// Pointer to the place; empty: the whole schema.
    pub pointer: String,
    pub reason: String,
}

impl fmt::Display for SchemaProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pointer.is_empty() {
            return f.write_str(&self.reason);
        }
        write!(f, "at {}: {}", self.pointer, self.reason)
    }
}

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaVerdict {
    Valid,
    Invalid,
    /// The check was not made: it needs too many steps.
    TooLarge,
}

fn pattern_options() -> PatternOptions<FancyRegex> {
    PatternOptions::fancy_regex()
        .backtrack_limit(BACKTRACKS_MAX)
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(PATTERN_BYTES_MAX)
}

pub(super) fn options() -> ValidationOptions<'static> {
    jsonschema::options().with_pattern_options(pattern_options())
}

fn is_pattern(pattern: &str) -> bool {
    options().build(&json!({ "pattern": pattern })).is_ok()
}

impl BoundedSchema {
    /// Compiles a schema. Words that are harmless and that the validator refuses do not count.
    ///
    /// # Errors
    /// It is no schema, or larger than its bounds. Report the text.
    pub fn new(schema: &Value) -> Result<Self, SchemaProblem> {
        Self::tolerant(schema, false)
    }

    /// As [`Self::new`], and `format` counts.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(super) fn with_formats(schema: &Value) -> Result<Self, SchemaProblem> {
        Self::tolerant(schema, true)
    }

    fn tolerant(schema: &Value, checks_formats: bool) -> Result<Self, SchemaProblem> {
        match Self::strict(schema.clone(), checks_formats) {
            Ok(strict) => Ok(strict),
            Err(problem) => {
                let tolerant = tolerate(schema, &is_pattern);
                Self::strict(tolerant, checks_formats).map_err(|_| problem)
            }
        }
    }

    /// Compiles a schema that decides about a right: no word of it is left out.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn new_strict(schema: &Value) -> Result<Self, SchemaProblem> {
        Self::strict(schema.clone(), false)
    }

    fn strict(schema: Value, checks_formats: bool) -> Result<Self, SchemaProblem> {
        let mut options = options();
        if checks_formats {
            options = options.should_validate_formats(true).should_ignore_unknown_formats(true);
        }
        let whole = |reason: String| SchemaProblem { pointer: String::new(), reason };
        SchemaIndex::new(&schema).map(drop).map_err(whole)?;
        let validator = options.build(&schema).map_err(|error| SchemaProblem {
            pointer: error.instance_path().as_str().to_owned(),
            reason: error.to_string(),
        })?;
        Ok(Self { schema, validator, exact: OnceLock::new(), checks_formats })
    }

    /// The schema as it is checked.
    pub(crate) fn schema(&self) -> &Value {
        &self.schema
    }

    pub(super) fn subschema_count(&self) -> usize {
        SchemaIndex::of_checked(&self.schema).len()
    }

    /// True if it takes much memory.
    pub(super) fn is_heavy(&self) -> bool {
        SchemaIndex::of_checked(&self.schema).pattern_weights() > KEPT_PATTERNS_MAX
    }

    /// `None`: the check needs too many steps.
    pub(super) fn cost(&self, value: &Value) -> Option<CheckCost> {
        SchemaIndex::of_checked(&self.schema).cost(value).ok()
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn check(&self, value: &Value) -> SchemaVerdict {
        match self.cost(value) {
            Some(cost) => self.check_with(cost, value),
            None => SchemaVerdict::TooLarge,
        }
    }

    pub(super) fn check_with(&self, cost: CheckCost, value: &Value) -> SchemaVerdict {
        let is_valid = off_the_runtime(cost, || self.validator.is_valid(value));
        if is_valid { SchemaVerdict::Valid } else { SchemaVerdict::Invalid }
    }

    /// As [`Self::check_with`], with each digit of the numbers. Only values with numbers that floats
    /// change need it.
    pub(super) fn check_exactly(&self, cost: CheckCost, written: &ExactJson) -> SchemaVerdict {
        let build = || {
            let mut options = exact::options().with_pattern_options(pattern_options());
            if self.checks_formats {
                options = options.should_validate_formats(true).should_ignore_unknown_formats(true);
            }
            options.build(&self.schema).ok()
        };
        let Some(exact) = self.exact.get_or_init(build) else { return SchemaVerdict::TooLarge };
        let is_valid = off_the_runtime(cost, || exact.is_valid(written));
        if is_valid { SchemaVerdict::Valid } else { SchemaVerdict::Invalid }
    }

    /// Checks a value with each digit of its numbers. `raw` is its text.
    pub fn check_written(&self, raw: &RawJson, value: &Value) -> SchemaVerdict {
        let Some(cost) = self.cost(value) else { return SchemaVerdict::TooLarge };
        match ExactJson::parse_if_long(raw.text()) {
            Ok(Some(written)) => self.check_exactly(cost, &written),
            Ok(None) => self.check_with(cost, value),
            Err(_) => SchemaVerdict::TooLarge,
        }
    }

    /// The first mistakes of an invalid value. Empty: they are too many to be reported.
    pub(super) fn mistakes<'v>(
        &'v self,
        cost: CheckCost,
        value: &'v Value,
        has_all: bool,
    ) -> Vec<ValidationError<'v>> {
        if has_all && cost.steps <= REPORTED_STEPS_MAX {
            self.validator.iter_errors(value).collect()
        } else if cost.alternatives <= REPORTED_STEPS_MAX {
            off_the_runtime(cost, || self.validator.validate(value)).err().into_iter().collect()
        } else {
            Vec::new()
        }
    }

    /// The first mistakes of a value. Empty: it is valid.
    pub fn find_mistakes(&self, value: &Value, max: usize) -> Vec<SchemaMistake> {
        let whole =
            |text: &str| vec![SchemaMistake { pointer: String::new(), text: text.to_owned() }];
        let Some(cost) = self.cost(value) else {
            return whole("it is too large to be checked by its schema");
        };
        if self.check_with(cost, value) == SchemaVerdict::Valid {
            return Vec::new();
        }
        let errors = self.mistakes(cost, value, true);
        if errors.is_empty() {
            return whole("it does not match its schema");
        }
        let mistakes = errors.iter().take(max).map(|error| SchemaMistake {
            pointer: error.instance_path().as_str().to_owned(),
            text: error.to_string(),
        });
        mistakes.collect()
    }
}

/// A part of a value that does not match its schema.
#[derive(Debug)]
pub struct SchemaMistake {
    /// Pointer to the part; empty: the whole value.
    pub pointer: String,
    pub text: String,
}

/// Runs a long check so that other tasks of this thread go on elsewhere.
fn off_the_runtime<T>(cost: CheckCost, check: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};

    let has_others = cost.steps > SHORT_STEPS_MAX
        && Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if has_others { tokio::task::block_in_place(check) } else { check() }
}
