//! Summary of the rule by which calls of a tool need an approval, for readers of an agent.

use std::fmt;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// Calls of a tool that need an approval. The tool itself decides about each call.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
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
        #[schema(value_type = Object)]
        when: Value,
        /// `owner`, `link`, `role:NAME`.
        approvers: Vec<String>,
    },
    /// The calls that the code of the tool selects.
    Code,
}

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
