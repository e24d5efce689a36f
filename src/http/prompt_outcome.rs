//! Schemas of the responses to an input, which depend on what it is.

use utoipa::openapi::schema::AnyOfBuilder;
use utoipa::openapi::{OneOfBuilder, Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::commands::extension_command::InputHandled;
use crate::commands::prompt::PromptAccepted;
use crate::http::schema::Prompt;

/// A prompt, or the response to an input that started none.
#[derive(Debug)]
pub(crate) struct PromptOutcome;

impl PartialSchema for PromptOutcome {
    fn schema() -> RefOr<Schema> {
        let schemas = [Prompt::name(), InputHandled::name()];
        let items = schemas.into_iter().map(Ref::from_schema_name);
        items.fold(OneOfBuilder::new(), OneOfBuilder::item).into()
    }
}

impl ToSchema for PromptOutcome {}

/// An accepted prompt, or a stored command that starts none. Both have a `disposition`.
#[derive(Debug)]
pub(crate) struct InputAccepted;

impl PartialSchema for InputAccepted {
    fn schema() -> RefOr<Schema> {
        let schemas = [PromptAccepted::name(), InputHandled::name()];
        let items = schemas.into_iter().map(Ref::from_schema_name);
        items.fold(AnyOfBuilder::new(), AnyOfBuilder::item).into()
    }
}

impl ToSchema for InputAccepted {}
