//! Abilities of the endpoint that serves a model (TY-15). A gateway or a deployment may accept less
//! than Azure OpenAI.

use serde::{Deserialize, Serialize};

/// The members of Pi's `OpenAIResponsesCompat` and `OpenAICompletionsCompat` that change a request.
/// An absent member has the value of [`Compat::default`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "independent members of the sources")]
pub struct Compat {
    /// With `false`, the system prompt of a reasoning model has the role `system`.
    pub supports_developer_role: bool,
    /// With `false`, `prompt_cache_retention` is not sent.
    pub supports_long_cache_retention: bool,
    /// With `false`, tool definitions are sent without `strict`.
    pub supports_strict_mode: bool,
    /// Chat Completions: with `false`, the usage of a stream is not requested.
    pub supports_usage_in_streaming: bool,
    /// Chat Completions: `reasoning_effort` is sent. Absent: only to models of OpenAI.
    pub supports_reasoning_effort: Option<bool>,
    /// Chat Completions: the member with the output limit. Absent: by the model's name.
    pub max_tokens_field: Option<MaxTokensField>,
    /// Chat Completions: earlier responses are sent with their reasoning, empty if they have none.
    pub requires_reasoning_content_on_assistant_messages: bool,
}

/// Name of the output limit in a Chat Completions request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaxTokensField {
    MaxTokens,
    MaxCompletionTokens,
}

impl Default for Compat {
    fn default() -> Self {
        Self {
            supports_developer_role: true,
            supports_long_cache_retention: true,
            supports_strict_mode: true,
            supports_usage_in_streaming: true,
            supports_reasoning_effort: None,
            max_tokens_field: None,
            requires_reasoning_content_on_assistant_messages: false,
        }
    }
}

impl Compat {
    /// Abilities by the model's name. Version 4 of `DeepSeek` requires the reasoning of a response
    /// with its tool results.
    pub fn of_model(id: &str) -> Self {
        let needs_reasoning = id.to_ascii_lowercase().starts_with("deepseek-v4");
        Self {
            requires_reasoning_content_on_assistant_messages: needs_reasoning,
            ..Self::default()
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
