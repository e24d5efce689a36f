//! The model port: one request, one model response. Failures are part of the response.

pub mod catalogue;
pub mod chat;
pub mod compat;
pub(crate) mod lost_content;
pub mod payload;
pub mod protocol;
pub(crate) mod response_text;
pub mod responses;
pub mod scripted;
pub(crate) mod split_characters;
pub(crate) mod token_counts;
pub mod tokens;
pub(crate) mod tool_schema;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;
use utoipa::ToSchema;

use crate::compat::Compat;
pub use crate::payload::{ModelPayload, PayloadHook};
pub use crate::responses::connection::ModelConnection;
use crate::responses::effort::supported_levels;
use crate::responses::headers::ModelHeaders;
use turnwheel_conversation::event::AssistantMessageEvent;
use turnwheel_conversation::message::{AssistantMessage, Message};
use turnwheel_conversation::settings::{DEFAULT_MODEL, ThinkingLevel};
use turnwheel_conversation::usage::{Cost, Usage};

/// Identity, abilities and prices of a model. Prices are US dollars per million tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelRecord {
    pub id: String,
    pub name: String,
    pub api: String,
    pub provider: String,
    /// Base URL of the API; empty for a model in this process.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub base_url: String,
    pub reasoning: bool,
    /// True if the model accepts images.
    #[serde(rename = "input", with = "input_kinds")]
    pub images: bool,
    pub cost: Prices,
    pub context_window: u64,
    pub max_tokens: u64,
    pub deployment_name: String,
    /// Extra headers of each request to this model. They may contain a gateway's key and are not
    /// serialised.
    #[serde(skip)]
    pub headers: ModelHeaders,
    #[serde(default, skip_serializing_if = "Compat::is_default")]
    pub compat: Compat,
}

/// Stored form of [`ModelRecord::images`], as in the sources (TY-15): `["text", "image"]` or
/// `["text"]`.
mod input_kinds {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn serialize<S: Serializer>(images: &bool, to: S) -> Result<S::Ok, S::Error> {
        let kinds: &[&str] = if *images { &["text", "image"] } else { &["text"] };
        kinds.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
        Ok(Vec::<String>::deserialize(from)?.iter().any(|kind| kind == "image"))
    }
}

/// Smallest output limit; the service rejects lower values.
const OUTPUT_TOKENS_MIN: u64 = 16;
/// Output limit of a request that sets none. The service counts the limit against the quota before
/// the response exists.
const OUTPUT_TOKENS_DEFAULT: u64 = 32_000;

impl ModelRecord {
    /// Output token limit of a response: `requested` or the default, at most the model's maximum.
    pub fn output_token_limit(&self, requested: Option<u64>) -> u64 {
        requested.unwrap_or(OUTPUT_TOKENS_DEFAULT).min(self.max_tokens).max(OUTPUT_TOKENS_MIN)
    }

    /// The record for documents: of its address only scheme, host and port, because a key may be in its path.
    #[must_use]
    pub fn without_credentials(&self) -> Self {
        let origin = Url::parse(&self.base_url).map(|url| url.origin().ascii_serialization());
        let (base_url, headers) = (origin.unwrap_or_default(), ModelHeaders::default());
        Self { base_url, headers, ..self.clone() }
    }

    /// Thinking levels of the model, lowest first. `off` is always one of them; another level has
    /// the effect of the nearest one.
    pub fn thinking_levels(&self) -> Vec<ThinkingLevel> {
        if self.reasoning { supported_levels(&self.id) } else { vec![ThinkingLevel::Off] }
    }
}

/// US dollars per million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Prices {
    pub input: f64,
    pub output: f64,
    pub cache_read: f64,
    pub cache_write: f64,
}

impl Prices {
    /// Cost of these tokens.
    pub fn cost(&self, usage: &Usage) -> Cost {
        #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
        let part = |tokens: u64, price: f64| price / 1_000_000.0 * tokens as f64;
        let (input, output) = (part(usage.input, self.input), part(usage.output, self.output));
        let (cache_read, cache_write) =
            (part(usage.cache_read, self.cache_read), part(usage.cache_write, self.cache_write));
        Cost {
            input,
            output,
            cache_read,
            cache_write,
            total: input + output + cache_read + cache_write,
        }
        .rounded()
    }
}

/// A tool definition in a model request. `name` is the tool's own name; the client maps it to its
/// wire name and back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToolOffer<'a> {
    pub name: &'a str,
    pub description: &'a str,
    pub parameters: &'a Value,
    pub strict: bool,
}

/// A model request. Messages and tools are references, so that a call copies neither the history
/// nor a schema.
#[derive(Debug)]
pub struct ModelRequest<'a> {
    pub model: &'a ModelRecord,
    pub system: Option<&'a str>,
    /// Well-formed messages: each call has one output, and failed responses are omitted
    /// (`turnwheel_conversation::projection`).
    pub messages: &'a [&'a Message],
    pub tools: &'a [ToolOffer<'a>],
    pub thinking: ThinkingLevel,
    pub temperature: Option<f64>,
    pub max_output_tokens: Option<u64>,
    /// JSON Schema of the final response.
    pub response_schema: Option<&'a Value>,
    /// Key that groups calls in the provider's prompt cache.
    pub session_id: &'a str,
    pub traceparent: Option<&'a str>,
    /// Hook that may change the request body just before it is sent.
    pub payload: Option<&'a dyn PayloadHook>,
}

impl<'a> ModelRequest<'a> {
    /// A request that has only messages, and no reasoning.
    pub const fn new(model: &'a ModelRecord, messages: &'a [&'a Message]) -> Self {
        Self {
            model,
            system: None,
            messages,
            tools: &[],
            thinking: ThinkingLevel::Off,
            temperature: None,
            max_output_tokens: None,
            response_schema: None,
            session_id: "",
            traceparent: None,
            payload: None,
        }
    }
}

/// Class of a failed call, by what the caller does about it.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelFailure {
    /// Retry the call, after this delay at the earliest.
    Retryable { after: Option<Duration> },
    /// The input exceeds the context window.
    ContextOverflow,
    /// The same request fails again.
    Permanent,
}

/// Result of one model call. `failure` is set exactly when the stop reason of the message is
/// `error`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelResponse {
    pub message: AssistantMessage,
    pub failure: Option<ModelFailure>,
    pub metadata: CallMetadata,
}

/// The provider's data about a call. It is exported as telemetry and not recorded in the
/// conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallMetadata {
    pub id: Option<String>,
    /// The provider's name of the model that responded.
    pub model: Option<String>,
    /// HTTP status of a failed call; absent if the failure was no HTTP response.
    pub status: Option<u16>,
    /// The member of the request that the error of a failed call names.
    pub param: Option<String>,
    /// Error type of a failed call: the provider's code, the HTTP status, or `connection`.
    pub error: Option<String>,
}

/// Receives the events of a model response while it streams.
pub trait Listener: Send + Sync {
    fn on_event(&self, event: AssistantMessageEvent);
}

#[async_trait]
pub trait Model: Send + Sync + fmt::Debug {
    /// Calls the model once. Dropping the future cancels the call. The message's `timestamp` stays
    /// 0: the driver sets it.
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse;

    /// As [`Model::respond`], over the connection of a delivery if the model's API has such
    /// connections, and otherwise as without one. The default has none.
    async fn respond_on_connection(
        &self,
        _connection: &ModelConnection,
        request: ModelRequest<'_>,
        listener: &dyn Listener,
    ) -> ModelResponse {
        self.respond(request, listener).await
    }

    /// Returns the record of a model id or of a tier (`normal`, `high`).
    ///
    /// # Errors
    /// The model is not configured. Show the text: it names the setting to set.
    fn record(&self, model: &str) -> Result<ModelRecord, String>;

    /// True if the settings of the app name the model or the tier. Default: it has a record.
    fn is_configured(&self, model: &str) -> bool {
        self.record(model).is_ok()
    }

    /// Returns the record of each configured model once. Default: the models of the tiers.
    fn models(&self) -> Vec<ModelRecord> {
        distinct_records(self, TIERS)
    }
}

/// Member of a recorded response whose usage is an estimate, because the service reported none.
pub const USAGE_ESTIMATED: &str = "usageEstimated";

/// Names that select a model by the settings of the app.
pub const TIERS: [&str; 2] = [DEFAULT_MODEL, "high"];

/// Records of model ids and tiers, each model once. Models that are not configured are left out.
pub fn distinct_records<'a>(
    model: &(impl Model + ?Sized),
    names: impl IntoIterator<Item = &'a str>,
) -> Vec<ModelRecord> {
    let mut records: Vec<ModelRecord> = Vec::new();
    for record in names.into_iter().flat_map(|name| model.record(name)) {
        if records.iter().all(|known| known.id != record.id) {
            records.push(record);
        }
    }
    records
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::catalogue::Catalogue;

    #[test]
    fn model_record_serialises_source_members() {
        let record = ModelRecord {
            base_url: "https://r.openai.azure.com/openai/v1".to_owned(),
            ..Catalogue::default().record("o3-mini", "mine")
        };
        let json = serde_json::to_value(&record).unwrap();
        assert_eq!(json["input"], json!(["text"]));
        assert_eq!(json["baseUrl"], "https://r.openai.azure.com/openai/v1");
        for name in [
            "id",
            "name",
            "api",
            "provider",
            "reasoning",
            "cost",
            "contextWindow",
            "maxTokens",
            "deploymentName",
        ] {
            assert!(!json[name].is_null(), "{name}");
        }
        assert_eq!(serde_json::from_value::<ModelRecord>(json).unwrap(), record);
    }
}
