//! Schema of the responses to an input that is not only accepted.

use utoipa::openapi::{OneOfBuilder, Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::commands::extension_command::InputHandled;
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
