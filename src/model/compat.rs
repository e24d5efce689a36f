//! Abilities of the endpoint that serves a model (TY-15). A gateway or a deployment may accept less
//! than Azure OpenAI.

use serde::{Deserialize, Serialize};

/// The members of Pi's `OpenAIResponsesCompat` that change a request to Azure OpenAI. An absent
/// member means `true`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Compat {
    /// With `false`, the system prompt of a reasoning model has the role `system`.
    pub supports_developer_role: bool,
    /// With `false`, `prompt_cache_retention` is not sent.
    pub supports_long_cache_retention: bool,
    /// With `false`, tool definitions are sent without `strict`.
    pub supports_strict_mode: bool,
}

impl Default for Compat {
    fn default() -> Self {
        Self {
            supports_developer_role: true,
            supports_long_cache_retention: true,
            supports_strict_mode: true,
        }
    }
}

impl Compat {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
