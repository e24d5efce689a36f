//! Questions of extensions to approvers, and their recorded answers.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::InputId;

/// Maximum bytes of one answer as JSON.
pub const ANSWER_BYTES_MAX: usize = 2 * 1024;
/// Maximum bytes of the answers of one step: a tool call, or a compaction.
pub const STEP_ANSWERS_BYTES_MAX: usize = 4 * 1024;

/// The extension that asks, and its name for the question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Asker {
    pub extension: String,
    pub key: String,
}

/// A recorded answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Answer {
    Confirmation(bool),
    Text(String),
    /// `null`: the request expired, or the approver declined it.
    Missing(()),
}

impl Answer {
    pub fn from_value(value: &Value) -> Self {
        match value {
            Value::Bool(is_confirmed) => Self::Confirmation(*is_confirmed),
            Value::String(text) => Self::Text(text.clone()),
            Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                Self::Missing(())
            }
        }
    }

    /// Bytes as JSON.
    pub fn byte_count(&self) -> usize {
        RawJson::from_value(self).text().len()
    }
}

/// The recorded answers of one step, by extension and key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Answers(BTreeMap<String, BTreeMap<String, Answer>>);

impl Answers {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, asker: &Asker, answer: Answer) {
        let of_extension = self.0.entry(asker.extension.clone()).or_default();
        of_extension.insert(asker.key.clone(), answer);
    }

    /// The answers to one extension, by key.
    pub fn of_extension(&self, extension: &str) -> BTreeMap<String, Answer> {
        self.0.get(extension).cloned().unwrap_or_default()
    }

    /// Bytes as JSON.
    pub fn byte_count(&self) -> usize {
        if self.is_empty() { 0 } else { RawJson::from_value(self).text().len() }
    }
}

/// A question that an extension asks.
#[derive(Clone, Debug, PartialEq)]
pub struct QuestionSpec {
    pub asker: Asker,
    pub text: String,
    /// JSON Schema of the answer: a boolean, one of several texts, or any text.
    pub schema: RawJson,
    pub approvers: Vec<String>,
    pub expires_after: Duration,
}

impl QuestionSpec {
    /// Maximum bytes of its recorded answer, with its names.
    pub fn answer_bytes_max(&self) -> usize {
        answer_bytes_max(&self.asker, &self.schema)
    }
}

/// Maximum bytes of the recorded answer to a question with this schema.
pub fn answer_bytes_max(asker: &Asker, schema: &RawJson) -> usize {
    let schema = schema.to_value();
    let value = match schema.get("enum").and_then(Value::as_array) {
        Some(options) => options.iter().map(|it| it.to_string().len()).max().unwrap_or_default(),
        None if schema.get("type").is_some_and(|kind| kind == "boolean") => "false".len(),
        None => ANSWER_BYTES_MAX,
    };
    RawJson::from_value(asker).text().len() + value
}

/// A command whose hooks wait for an answer, or run again next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingCommand {
    /// Its item in the inbox.
    pub input_id: InputId,
    #[serde(default, skip_serializing_if = "Answers::is_empty")]
    pub answers: Answers,
}
