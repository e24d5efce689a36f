//! Validators of the branches of `anyOf` and `oneOf`, for the coercion of one value. Each is compiled when
//! it is first needed, and none is kept.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;

use jsonschema::{Registry, Validator};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::bounded_schema::{BoundedSchema, options};
use super::bounds::{SchemaIndex, address};
use super::coerce::Branches;

/// Address that the validator gives a schema without `$id`: references to it stay the same.
const ROOT_ADDRESS: &str = "json-schema:///";
/// Address of a schema that consists of a reference to a branch.
const BRANCH_ADDRESS: &str = "turnwheel-branch:///";
/// Characters that a pointer in a URI has as escapes.
const POINTER: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'~').remove(b'-').remove(b'_').remove(b'.').remove(b'$');

/// Compiled branches of one schema.
pub(super) struct BranchValidators<'s> {
    bounded: &'s BoundedSchema,
    are_light: OnceCell<bool>,
    /// Has the whole schema, to which branches may refer. `None`: it cannot be referred to.
    registry: OnceCell<Option<Registry<'s>>>,
    /// By the address of the branch; `None`: it does not compile.
    compiled: RefCell<HashMap<usize, Option<Validator>>>,
}

impl<'s> BranchValidators<'s> {
    pub(super) fn new(bounded: &'s BoundedSchema) -> Self {
        let (are_light, registry) = (OnceCell::new(), OnceCell::new());
        Self { bounded, are_light, registry, compiled: RefCell::default() }
    }

    fn registry(&self) -> Option<&Registry<'s>> {
        let schema: &'s Value = self.bounded.schema();
        let build = || {
            let builder = Registry::new().add(ROOT_ADDRESS, schema).ok()?;
            let registry = builder.prepare().ok()?;
            // A schema with this address would be replaced by the reference to the branch.
            (!registry.contains_resource(BRANCH_ADDRESS)).then_some(registry)
        };
        self.registry.get_or_init(build).as_ref()
    }

    fn compile(&self, pointer: &str) -> Option<Validator> {
        let pointer = utf8_percent_encode(pointer.strip_prefix('#')?, POINTER);
        let reference = json!({ "$ref": format!("{ROOT_ADDRESS}#{pointer}") });
        let options = options(true).with_registry(self.registry()?);
        options.with_base_uri(BRANCH_ADDRESS).build(&reference).ok()
    }
}

impl Branches for BranchValidators<'_> {
    fn are_usable(&self) -> bool {
        *self.are_light.get_or_init(|| {
            let index = SchemaIndex::of_checked(self.bounded.schema());
            index.has_light_branches(self.bounded.patterns())
        })
    }

    fn is_valid(&self, pointer: &str, branch: &Value, value: &Value) -> bool {
        if let Value::Bool(is_valid) = branch {
            return *is_valid;
        }
        let mut compiled = self.compiled.borrow_mut();
        let validator = compiled.entry(address(branch)).or_insert_with(|| self.compile(pointer));
        validator.as_ref().is_some_and(|validator| validator.is_valid(value))
    }
}
