//! Request body: one stateless call, nothing stored by the service.

use std::borrow::Cow;
use std::fmt;

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::compat::Compat;
use crate::responses::config::CacheRetention;
use crate::responses::effort::{allows_parallel_calls, nearest_effort};
use crate::responses::ids::{WIRE_ID_MAX, plain_id};
use crate::responses::input::build_input;
use crate::responses::item::InputItem;
use crate::responses::names::ToolNames;
use crate::responses::validate::find_violation;
use crate::tool_schema::{sent_format, sent_parameters};
use crate::{ModelRequest, ToolOffer};

/// Estimated bytes of an item's names and ids.
pub(crate) const ITEM_OVERHEAD_BYTES: usize = 160;
/// Estimated bytes of the body without its items.
pub(crate) const BODY_OVERHEAD_BYTES: usize = 4 * 1024;
/// Name of the schema of a final response.
pub(crate) const RESPONSE_SCHEMA_NAME: &str = "answer";

/// The request body. It borrows the history and the tools. Members are serialised in this order.
#[serde_with::skip_serializing_none]
#[derive(Serialize)]
pub struct RequestBody<'a> {
    model: &'a str,
    input: Vec<InputItem<'a>>,
    stream: bool,
    /// Always `false`. With `true`, the service looks up ids of earlier items in a store that
    /// expires them.
    store: bool,
    max_output_tokens: u64,
    prompt_cache_key: Option<Cow<'a, str>>,
    prompt_cache_retention: Option<&'static str>,
    include: Option<[&'static str; 1]>,
    reasoning: Option<Reasoning>,
    /// Absent for reasoning models, which reject it.
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<FunctionTool<'a>>,
    tool_choice: Option<&'static str>,
    parallel_tool_calls: Option<bool>,
    text: Option<TextOptions<'a>>,
}

impl fmt::Debug for RequestBody<'_> {
    /// Prints no content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestBody({} items)", self.input.len())
    }
}

impl RequestBody<'_> {
    /// Sets the retention of the provider's prompt cache (AZ-23).
    #[must_use]
    pub(crate) fn with_cache_retention(
        mut self,
        retention: CacheRetention,
        compat: Compat,
    ) -> Self {
        match retention {
            CacheRetention::None => self.prompt_cache_key = None,
            CacheRetention::Long if compat.supports_long_cache_retention => {
                self.prompt_cache_retention = Some("24h");
            }
            CacheRetention::Short | CacheRetention::Long => {}
        }
        self
    }

    /// Returns the first reason why the service would reject the input; `None` without any.
    pub fn find_violation(&self) -> Option<String> {
        find_violation(&self.input)
    }

    /// Serialises the body.
    ///
    /// # Errors
    /// None is known: every value has a JSON form.
    pub fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let texts: usize =
            self.input.iter().map(|item| item.text_bytes() + ITEM_OVERHEAD_BYTES).sum();
        // Allowance for escaped characters.
        let mut bytes = Vec::with_capacity(BODY_OVERHEAD_BYTES + texts + texts / 16);
        serde_json::to_writer(&mut bytes, self)?;
        Ok(bytes)
    }
}

pub fn build_request_body<'a>(request: &ModelRequest<'a>, names: &'a ToolNames) -> RequestBody<'a> {
    let model = request.model;
    let effort = nearest_effort(&model.id, request.thinking).filter(|_| model.reasoning);
    let has_tools = !request.tools.is_empty();
    RequestBody {
        model: &model.deployment_name,
        input: build_input(request, names),
        stream: true,
        store: false,
        max_output_tokens: model.output_token_limit(request.max_output_tokens),
        prompt_cache_key: cache_key(request.session_id),
        prompt_cache_retention: None,
        include: model.reasoning.then_some(["reasoning.encrypted_content"]),
        reasoning: effort.map(Reasoning::from_effort),
        temperature: request.temperature.filter(|_| !model.reasoning),
        tools: request
            .tools
            .iter()
            .map(|tool| FunctionTool::from_tool(tool, names, model.compat))
            .collect(),
        tool_choice: has_tools.then_some("auto"),
        parallel_tool_calls: has_tools.then(|| allows_parallel_calls(effort)),
        text: request.response_schema.and_then(sent_format).map(TextOptions::from_schema),
    }
}

#[derive(Serialize)]
struct Reasoning {
    effort: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<&'static str>,
}

impl Reasoning {
    fn from_effort(effort: &'static str) -> Self {
        Self { effort, summary: (effort != "none").then_some("auto") }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "function")]
struct FunctionTool<'a> {
    name: Cow<'a, str>,
    description: &'a str,
    parameters: ToolParameters<'a>,
    /// Always sent, because Azure OpenAI treats an absent member as `true`. Omitted only for an
    /// endpoint without strict mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

impl<'a> FunctionTool<'a> {
    fn from_tool(tool: &ToolOffer<'a>, names: &'a ToolNames, compat: Compat) -> Self {
        Self {
            name: names.wire_name(tool.name),
            description: tool.description,
            parameters: ToolParameters::of(tool),
            strict: compat.supports_strict_mode.then_some(tool.strict),
        }
    }
}

/// A tool's schema; `None` if it is not an object.
pub(crate) struct ToolParameters<'a>(Option<Cow<'a, Map<String, Value>>>);

impl<'a> ToolParameters<'a> {
    /// A strict schema is checked when it is read, and sent as it is.
    pub(crate) fn of(tool: &ToolOffer<'a>) -> Self {
        let schema = tool.parameters.as_object();
        Self(schema.map(|it| if tool.strict { Cow::Borrowed(it) } else { sent_parameters(it) }))
    }
}

impl Serialize for ToolParameters<'_> {
    /// Adds missing `type` and `properties`: the service rejects an object schema without them.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let schema = self.0.as_deref();
        let member = |name: &str| schema.and_then(|schema| schema.get(name));
        let kind = member("type");
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in schema.into_iter().flatten() {
            map.serialize_entry(name, value)?;
        }
        if kind.is_none() {
            map.serialize_entry("type", "object")?;
        }
        let is_object_schema = kind.is_none_or(|kind| kind == "object");
        if is_object_schema && member("properties").is_none() {
            map.serialize_entry("properties", &Map::new())?;
        }
        map.end()
    }
}

/// Required format of the response.
#[derive(Serialize)]
struct TextOptions<'a> {
    format: SchemaFormat<'a>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "json_schema")]
struct SchemaFormat<'a> {
    name: &'static str,
    schema: Cow<'a, Value>,
    /// Not strict: strict mode supports only a part of JSON Schema. The core validates the response
    /// against the whole schema.
    strict: bool,
}

impl<'a> TextOptions<'a> {
    fn from_schema(schema: Cow<'a, Value>) -> Self {
        Self { format: SchemaFormat { name: RESPONSE_SCHEMA_NAME, schema, strict: false } }
    }
}

/// Returns the prompt cache key; `None` without a session.
pub(crate) fn cache_key(session_id: &str) -> Option<Cow<'_, str>> {
    match session_id.len() {
        0 => None,
        1..=WIRE_ID_MAX => Some(Cow::Borrowed(session_id)),
        _ => Some(plain_id(session_id)),
    }
}

#[cfg(test)]
mod tests;
