//! Summary of the rule by which calls of a tool need an approval, for readers of an agent.

use std::fmt;

use serde::Serialize;
use serde_json::Value;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Calls of a tool that need an approval. The tool itself decides about each call.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum ApprovalSummary {
    /// No call.
    Never,
    /// Each call.
    Always {
        /// `owner`, `link`, `role:NAME`.
        approvers: Vec<String>,
    },
    /// Each call whose arguments are valid by a schema.
    When {
        /// JSON Schema of the arguments.
        when: Value,
        /// `owner`, `link`, `role:NAME`.
        approvers: Vec<String>,
    },
    /// The calls that the code of the tool selects.
    Code,
}

/// One object with the members of all rules: generators make one class of it.
impl PartialSchema for ApprovalSummary {
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        let rule = text().enum_values(Some(["never", "always", "when", "code"]));
        let when =
            ObjectBuilder::new().description(Some("With `when`: JSON Schema of the arguments."));
        let approvers = ArrayBuilder::new()
            .items(text())
            .description(Some("With `always` and `when`: `owner`, `link`, `role:NAME`."));
        ObjectBuilder::new()
            .description(Some(
                "Calls of a tool that need an approval. The tool itself decides about each call.",
            ))
            .property("rule", rule)
            .property("when", when)
            .property("approvers", approvers)
            .required("rule")
            .build()
            .into()
    }
}

impl ToSchema for ApprovalSummary {}

impl ApprovalSummary {
    /// Each call, by the owner of the conversation.
    pub(crate) fn always_by_owner() -> Self {
        Self::Always { approvers: vec!["owner".to_owned()] }
    }
}

impl fmt::Display for ApprovalSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("never"),
            Self::Always { approvers } => write!(f, "always, by {}", approvers.join(" or ")),
            Self::When { when, approvers } => {
                write!(f, "when {when}, by {}", approvers.join(" or "))
            }
            Self::Code => f.write_str("by the tool's code"),
        }
    }
}
