//! Body of a Chat Completions request. Models of OpenAI get the members that Azure OpenAI defines;
//! other models get only members that every compatible endpoint accepts.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::catalogue::is_openai_model_name;
use crate::chat::messages::{ChatMessage, to_messages};
use crate::compat::{Compat, MaxTokensField};
use crate::responses::body::{
    BODY_OVERHEAD_BYTES, ITEM_OVERHEAD_BYTES, RESPONSE_SCHEMA_NAME, ToolParameters, cache_key,
};
use crate::responses::config::CacheRetention;
use crate::responses::effort::{allows_parallel_calls, nearest_effort};
use crate::responses::input::build_input;
use crate::responses::item::InputItem;
use crate::responses::names::ToolNames;
use crate::responses::validate::find_violation;
use crate::tool_schema::sent_format;
use crate::{ModelRequest, ToolOffer};

#[cfg(test)]
mod tests;

/// The request body. It borrows the history and the tools. Members are serialised in this order.
#[derive(Serialize)]
pub struct ChatBody<'a> {
    model: &'a str,
    messages: Vec<ChatMessage<'a>>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_key: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_retention: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<ChatTool<'a>>,
    /// Sent only to forbid parallel calls, which are the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<ResponseFormat<'a>>,
    #[serde(skip)]
    violation: Option<String>,
    #[serde(skip)]
    capacity: usize,
}

impl fmt::Debug for ChatBody<'_> {
    /// Prints no content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChatBody({} messages)", self.messages.len())
    }
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "function")]
struct ChatTool<'a> {
    function: FunctionDefinition<'a>,
}

#[derive(Serialize)]
struct FunctionDefinition<'a> {
    name: Cow<'a, str>,
    description: &'a str,
    parameters: ToolParameters<'a>,
    /// Absent means `false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "json_schema")]
struct ResponseFormat<'a> {
    json_schema: NamedSchema<'a>,
}

#[derive(Serialize)]
struct NamedSchema<'a> {
    name: &'static str,
    schema: Cow<'a, Value>,
    /// As in the Responses API: the core validates the response against the whole schema.
    strict: bool,
}

pub fn build_chat_body<'a>(
    request: &ModelRequest<'a>,
    names: &'a ToolNames,
    retention: CacheRetention,
) -> ChatBody<'a> {
    let model = request.model;
    let compat = model.compat;
    let is_openai = is_openai_model_name(&model.id);
    let has_effort = model.reasoning && compat.supports_reasoning_effort.unwrap_or(is_openai);
    let effort = nearest_effort(&model.id, request.thinking).filter(|_| has_effort);
    let is_cached = is_openai && retention != CacheRetention::None;
    let is_kept_long = retention == CacheRetention::Long && compat.supports_long_cache_retention;
    let limit = model.output_token_limit(request.max_output_tokens);
    let field = compat.max_tokens_field.unwrap_or(if is_openai {
        MaxTokensField::MaxCompletionTokens
    } else {
        MaxTokensField::MaxTokens
    });
    let items = build_input(request, names);
    let violation = find_violation(&items);
    let texts: usize = items.iter().map(InputItem::text_bytes).sum();
    let capacity = BODY_OVERHEAD_BYTES + items.len() * ITEM_OVERHEAD_BYTES + texts + texts / 16;
    ChatBody {
        model: &model.deployment_name,
        messages: to_messages(items, compat.requires_reasoning_content_on_assistant_messages),
        stream: true,
        stream_options: compat
            .supports_usage_in_streaming
            .then_some(StreamOptions { include_usage: true }),
        max_completion_tokens: (field == MaxTokensField::MaxCompletionTokens).then_some(limit),
        max_tokens: (field == MaxTokensField::MaxTokens).then_some(limit),
        prompt_cache_key: cache_key(request.session_id).filter(|_| is_cached),
        prompt_cache_retention: (is_cached && is_kept_long).then_some("24h"),
        reasoning_effort: effort,
        temperature: request.temperature.filter(|_| !(is_openai && model.reasoning)),
        tools: request.tools.iter().map(|tool| ChatTool::from_tool(tool, names, compat)).collect(),
        parallel_tool_calls: (!request.tools.is_empty() && !allows_parallel_calls(effort))
            .then_some(false),
        response_format: request.response_schema.and_then(sent_format).map(|schema| {
            ResponseFormat {
                json_schema: NamedSchema { name: RESPONSE_SCHEMA_NAME, schema, strict: false },
            }
        }),
        violation,
        capacity,
    }
}

impl ChatBody<'_> {
    /// Returns the first reason why the service would reject the messages; `None` without any.
    pub fn find_violation(&self) -> Option<String> {
        self.violation.clone()
    }

    /// Serialises the body.
    ///
    /// # Errors
    /// None is known: every value has a JSON form.
    pub fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.capacity);
        serde_json::to_writer(&mut bytes, self)?;
        Ok(bytes)
    }
}

impl<'a> ChatTool<'a> {
    fn from_tool(tool: &ToolOffer<'a>, names: &'a ToolNames, compat: Compat) -> Self {
        let function = FunctionDefinition {
            name: names.wire_name(tool.name),
            description: tool.description,
            parameters: ToolParameters::of(tool),
            strict: (compat.supports_strict_mode && tool.strict).then_some(true),
        };
        Self { function }
    }
}
