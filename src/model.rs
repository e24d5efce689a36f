//! The model: one answer to one request. Whatever goes wrong is in the answer; nothing is thrown.

pub mod catalogue;
pub mod compat;
pub mod responses;
pub mod scripted;
pub mod tokens;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::event::AnswerEvent;
use crate::agent::message::{AssistantMessage, Message};
use crate::agent::settings::ThinkingLevel;
use crate::agent::usage::{Cost, Usage};
use crate::model::compat::Compat;
use crate::model::responses::headers::ModelHeaders;

/// What is known of a model. Prices are US dollars per million tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelRecord {
    pub id: String,
    pub name: String,
    pub api: String,
    pub provider: String,
    /// Where it answers; empty: nowhere, it is in this process.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub base_url: String,
    pub reasoning: bool,
    /// Whether images may be sent.
    #[serde(rename = "input", with = "input_kinds")]
    pub images: bool,
    pub cost: Prices,
    pub context_window: u64,
    pub max_tokens: u64,
    pub deployment_name: String,
    /// Of each request to this model; they may hold a gateway's key and are not serialised.
    #[serde(skip)]
    pub headers: ModelHeaders,
    #[serde(default, skip_serializing_if = "Compat::is_default")]
    pub compat: Compat,
}

/// As the sources have it (TY-15): `["text", "image"]`, or `["text"]`.
mod input_kinds {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
    pub(super) fn serialize<S: Serializer>(images: &bool, to: S) -> Result<S::Ok, S::Error> {
        let kinds: &[&str] = if *images { &["text", "image"] } else { &["text"] };
        kinds.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
        Ok(Vec::<String>::deserialize(from)?.iter().any(|kind| kind == "image"))
    }
}

/// The service refuses fewer.
const OUTPUT_TOKENS_MIN: u64 = 16;
/// Asked for when nobody says how much: it counts against the quota before the answer is there.
const OUTPUT_TOKENS_DEFAULT: u64 = 32_000;

impl ModelRecord {
    /// Tokens that an answer is limited to, when so many are wanted.
    pub fn output_max(&self, wanted: Option<u64>) -> u64 {
        wanted.unwrap_or(OUTPUT_TOKENS_DEFAULT).min(self.max_tokens).max(OUTPUT_TOKENS_MIN)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Prices {
    pub input: f64,
    pub output: f64,
    pub cache_read: f64,
    pub cache_write: f64,
}

impl Prices {
    /// What these tokens cost.
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

/// A tool as the model is told of it. `name` is the tool's own; the client maps it to the wire and back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToolOffer<'a> {
    pub name: &'a str,
    pub description: &'a str,
    pub parameters: &'a Value,
    pub strict: bool,
}

/// One request. Messages and tools are references: neither the history nor a schema is copied for a call.
#[derive(Debug)]
pub struct ModelRequest<'a> {
    pub model: &'a ModelRecord,
    pub system: Option<&'a str>,
    /// Well-formed: each call has one output, no failed answer among them (`agent::projection`).
    pub messages: &'a [&'a Message],
    pub tools: &'a [ToolOffer<'a>],
    pub thinking: ThinkingLevel,
    pub temperature: Option<f64>,
    pub max_output_tokens: Option<u64>,
    /// JSON Schema that the last answer fits.
    pub response_schema: Option<&'a Value>,
    /// Groups calls for the provider's prompt cache.
    pub session_id: &'a str,
    pub traceparent: Option<&'a str>,
    /// Sees the request's body before it is sent; `None`: nobody does.
    pub payload: Option<&'a dyn PayloadHook>,
}

/// Changes the body of a request just before it is sent (AZ-23).
#[async_trait]
pub trait PayloadHook: Send + Sync + fmt::Debug {
    /// # Errors
    /// Why the request must not be sent: a sentence.
    async fn on_payload(&self, payload: Value) -> Result<Value, String>;
}

/// What the caller does differently about a failed call.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// Try again, not before that long.
    Retryable { after: Option<Duration> },
    /// The input no longer fits the window.
    Overflow,
    /// The same request will fail again.
    Final,
}

/// `failure` is set exactly when the message's stop reason is `error`.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub message: AssistantMessage,
    pub failure: Option<Failure>,
    pub reply: Reply,
}

/// What the provider said of the call itself: told to collectors, and not recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    pub id: Option<String>,
    /// The model that answered, as the provider names it.
    pub model: Option<String>,
    /// Of a failure that was an HTTP response.
    pub status: Option<u16>,
    /// Of a failure: the provider's code, the HTTP status, or `connection`.
    pub error: Option<String>,
}

/// Told what the answer is made of, as it comes.
pub trait Listener: Send + Sync {
    fn hear(&self, event: AnswerEvent);
}

#[async_trait]
pub trait Model: Send + Sync + fmt::Debug {
    /// One answer. Dropping the future cancels the call. The message's `timestamp` is left 0: the driver sets it.
    async fn answer(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> Answer;

    /// What is known of a model id (tiers `normal`, `high` included).
    ///
    /// # Errors
    /// No such model is configured: the sentence that says what to set.
    fn record(&self, model: &str) -> Result<ModelRecord, String>;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::catalogue::Catalogue;

    #[test]
    fn model_record_has_the_members_of_the_sources() {
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
