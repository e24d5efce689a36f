//! A schema from outside: an agent file, a plugin, an MCP server or an extension. The check of a value
//! has bounds of steps, memory and stack, whatever schema and value are.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

use jsonschema::{FancyRegex, PatternOptions, ValidationError, ValidationOptions, Validator};
use serde_json::{Value, json};

use super::bounds::{check_schema, has_few_patterns};
use super::exact::{self, ExactTree};
use super::pattern_size::{PatternSize, PatternSizes};
use super::steps::{
    CheckCost, FAILURE_BYTES_MAX, REPORTED_STEPS_MAX, SHORT_STEPS_MAX, STEPS_MAX, check_cost,
};
use turnwheel_json::exact::ExactJson;
use turnwheel_json::raw::RawJson;
use turnwheel_json::schema_words::tolerate;

/// Bytes of a compiled regular expression: `^.{0,2000}$` takes half of them.
const PATTERN_BYTES_MAX: usize = 4 * 1024 * 1024;
/// States of regular expressions above which a compiled schema is not kept.
const KEPT_STATES_MAX: u64 = 40_000;
/// Steps back of a regular expression with lookaround. The check counts as failed after them.
const BACKTRACKS_MAX: usize = 1_000;
/// Subschemas above which a schema is compiled away from the threads that serve requests.
const FEW_SCHEMAS_MAX: usize = 500;

/// A schema that compiles and has bounds.
pub struct BoundedSchema {
    schema: Value,
    validator: Validator,
    /// Compares numbers with all their digits; built for the first value that needs it.
    exact: OnceLock<Option<Validator<ExactTree>>>,
    checks_formats: bool,
    patterns: PatternSizes,
    /// True if it is compiled away from the threads that serve requests.
    is_large: bool,
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

pub(super) fn options<'r>(checks_formats: bool) -> ValidationOptions<'r> {
    let options = jsonschema::options().with_pattern_options(pattern_options());
    if checks_formats {
        options.should_validate_formats(true).should_ignore_unknown_formats(true)
    } else {
        options
    }
}

fn is_pattern(pattern: &str) -> bool {
    PatternSize::of_schema(pattern).is_compilable()
        && options(false).build(&json!({ "pattern": pattern })).is_ok()
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
        let problem = match Self::strict(schema.clone(), checks_formats) {
            Ok(strict) => return Ok(strict),
            Err(problem) => problem,
        };
        // The second reading compiles each regular expression.
        if !has_few_patterns(schema) {
            return Err(problem);
        }
        let known = RefCell::new(HashMap::new());
        let is_known_pattern = |pattern: &str| -> bool {
            let mut known = known.borrow_mut();
            *known.entry(pattern.to_owned()).or_insert_with(|| is_pattern(pattern))
        };
        let tolerant = off_the_runtime(true, || tolerate(schema, &is_known_pattern));
        Self::strict(tolerant, checks_formats).map_err(|_| problem)
    }

    /// Compiles a schema that decides about a right: no word of it is left out.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn new_strict(schema: &Value) -> Result<Self, SchemaProblem> {
        Self::strict(schema.clone(), false)
    }

    fn strict(schema: Value, checks_formats: bool) -> Result<Self, SchemaProblem> {
        let whole = |reason: String| SchemaProblem { pointer: String::new(), reason };
        let size = check_schema(&schema).map_err(whole)?;
        let is_large = size.schemas > FEW_SCHEMAS_MAX || size.patterns.states() > KEPT_STATES_MAX;
        let built = off_the_runtime(is_large, || options(checks_formats).build(&schema));
        let validator = built.map_err(|error| SchemaProblem {
            pointer: error.instance_path().as_str().to_owned(),
            reason: error.to_string(),
        })?;
        let (exact, patterns) = (OnceLock::new(), size.patterns);
        Ok(Self { schema, validator, exact, checks_formats, patterns, is_large })
    }

    /// The schema as it is checked.
    pub(crate) fn schema(&self) -> &Value {
        &self.schema
    }

    pub(super) fn patterns(&self) -> &PatternSizes {
        &self.patterns
    }

    /// True if it takes much memory.
    pub(super) fn is_heavy(&self) -> bool {
        self.patterns.states() > KEPT_STATES_MAX
    }

    /// `None`: the check needs too many steps.
    pub(super) fn cost(&self, value: &Value) -> Option<CheckCost> {
        let within =
            |steps_max: u64| check_cost(&self.schema, &self.patterns, value, steps_max).ok();
        within(SHORT_STEPS_MAX).or_else(|| off_the_runtime(true, || within(STEPS_MAX)))
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn check(&self, value: &Value) -> SchemaVerdict {
        match self.cost(value) {
            Some(cost) => self.check_with(cost, value),
            None => SchemaVerdict::TooLarge,
        }
    }

    pub(super) fn check_with(&self, cost: CheckCost, value: &Value) -> SchemaVerdict {
        let is_valid = off_the_runtime(cost.is_long(), || self.validator.is_valid(value));
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
        let exact = off_the_runtime(self.is_large, || self.exact.get_or_init(build).as_ref());
        let Some(exact) = exact else { return SchemaVerdict::TooLarge };
        let is_valid = off_the_runtime(cost.is_long(), || exact.is_valid(written));
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

    /// The first mistakes of an invalid value. Empty: they take too much memory to be reported.
    pub(super) fn mistakes<'v>(
        &'v self,
        cost: CheckCost,
        value: &'v Value,
        has_all: bool,
    ) -> Vec<ValidationError<'v>> {
        let is_short = cost.steps <= REPORTED_STEPS_MAX;
        if has_all && is_short && cost.failure_bytes() <= FAILURE_BYTES_MAX {
            // The iterator has already collected all of them.
            self.validator.iter_errors(value).collect()
        } else if cost.first_failure_bytes() <= FAILURE_BYTES_MAX {
            let checked = off_the_runtime(cost.is_long(), || self.validator.validate(value));
            checked.err().into_iter().collect()
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

/// Runs long work so that other tasks of this thread go on elsewhere.
pub(super) fn off_the_runtime<T>(is_long: bool, work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};

    let has_others = is_long
        && Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if has_others { tokio::task::block_in_place(work) } else { work() }
}
