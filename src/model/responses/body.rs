//! Request body: one stateless call, nothing stored by the service.

use std::borrow::Cow;
use std::fmt;

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::model::compat::Compat;
use crate::model::responses::check::objection;
use crate::model::responses::config::CacheRetention;
use crate::model::responses::effort::{effort, takes_parallel_calls};
use crate::model::responses::ids::{WIRE_ID_MAX, plain};
use crate::model::responses::input::plan_input;
use crate::model::responses::item::Item;
use crate::model::responses::names::Names;
use crate::model::{ModelRequest, ToolOffer};

/// Estimated bytes of an item's names and ids.
const ITEM_BYTES: usize = 160;
/// Estimated bytes of the body without its items.
const FRAME_BYTES: usize = 4 * 1024;

/// The request body. It borrows the history and the tools. Members are serialised in this order.
#[derive(Serialize)]
pub struct Body<'a> {
    model: &'a str,
    input: Vec<Item<'a>>,
    stream: bool,
    /// Always `false`. With `true`, the service looks up ids of earlier items in a store that
    /// expires them.
    store: bool,
    max_output_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_key: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_retention: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    include: Option<[&'static str; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Reasoning>,
    /// Absent for reasoning models, which reject it.
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Function<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Answer<'a>>,
}

impl fmt::Debug for Body<'_> {
    /// Prints no content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestBody({} items)", self.input.len())
    }
}

impl Body<'_> {
    /// Sets the retention of the provider's prompt cache (AZ-23).
    #[must_use]
    pub fn retained(mut self, retention: CacheRetention, compat: Compat) -> Self {
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
    pub fn objection(&self) -> Option<String> {
        objection(&self.input)
    }

    /// Serialises the body.
    ///
    /// # Errors
    /// None is known: every value has a JSON form.
    pub fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let texts: usize = self.input.iter().map(|item| item.bytes() + ITEM_BYTES).sum();
        // Allowance for escaped characters.
        let mut bytes = Vec::with_capacity(FRAME_BYTES + texts + texts / 16);
        serde_json::to_writer(&mut bytes, self)?;
        Ok(bytes)
    }
}

pub fn request_body<'a>(request: &ModelRequest<'a>, names: &'a Names) -> Body<'a> {
    let model = request.model;
    let effort = effort(&model.id, request.thinking).filter(|_| model.reasoning);
    let has_tools = !request.tools.is_empty();
    Body {
        model: &model.deployment_name,
        input: plan_input(request, names),
        stream: true,
        store: false,
        max_output_tokens: model.output_max(request.max_output_tokens),
        prompt_cache_key: cache_key(request.session_id),
        prompt_cache_retention: None,
        include: model.reasoning.then_some(["reasoning.encrypted_content"]),
        reasoning: effort.map(Reasoning::of),
        temperature: request.temperature.filter(|_| !model.reasoning),
        tools: request.tools.iter().map(|tool| Function::of(tool, names, model.compat)).collect(),
        tool_choice: has_tools.then_some("auto"),
        parallel_tool_calls: has_tools.then(|| takes_parallel_calls(effort)),
        text: request.response_schema.map(Answer::of),
    }
}

#[derive(Serialize)]
struct Reasoning {
    effort: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<&'static str>,
}

impl Reasoning {
    fn of(effort: &'static str) -> Self {
        Self { effort, summary: (effort != "none").then_some("auto") }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "function")]
struct Function<'a> {
    name: Cow<'a, str>,
    description: &'a str,
    parameters: Parameters<'a>,
    /// Always sent, because Azure OpenAI treats an absent member as `true`. Omitted only for an
    /// endpoint without strict mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

impl<'a> Function<'a> {
    fn of(tool: &ToolOffer<'a>, names: &'a Names, compat: Compat) -> Self {
        Self {
            name: names.wire(tool.name),
            description: tool.description,
            parameters: Parameters(tool.parameters.as_object()),
            strict: compat.supports_strict_mode.then_some(tool.strict),
        }
    }
}

/// A tool's schema; `None` if it is not an object.
struct Parameters<'a>(Option<&'a Map<String, Value>>);

impl Serialize for Parameters<'_> {
    /// Adds missing `type` and `properties`: the service rejects an object schema without them.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let member = |name: &str| self.0.and_then(|schema| schema.get(name));
        let kind = member("type");
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.0.into_iter().flatten() {
            map.serialize_entry(name, value)?;
        }
        if kind.is_none() {
            map.serialize_entry("type", "object")?;
        }
        let is_of_object = kind.is_none_or(|kind| kind == "object");
        if is_of_object && member("properties").is_none() {
            map.serialize_entry("properties", &Map::new())?;
        }
        map.end()
    }
}

/// Required format of the response.
#[derive(Serialize)]
struct Answer<'a> {
    format: Format<'a>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "json_schema")]
struct Format<'a> {
    name: &'static str,
    schema: &'a Value,
    /// Not strict: strict mode supports only a part of JSON Schema. The core validates the response
    /// against the whole schema.
    strict: bool,
}

impl<'a> Answer<'a> {
    fn of(schema: &'a Value) -> Self {
        Self { format: Format { name: "answer", schema, strict: false } }
    }
}

/// Returns the prompt cache key; `None` without a session.
fn cache_key(session_id: &str) -> Option<Cow<'_, str>> {
    match session_id.len() {
        0 => None,
        1..=WIRE_ID_MAX => Some(Cow::Borrowed(session_id)),
        _ => Some(plain(session_id)),
    }
}

#[cfg(test)]
mod tests;
