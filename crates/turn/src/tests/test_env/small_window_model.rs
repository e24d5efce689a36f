//! Model that enforces its context window: it counts the tokens of each request, rejects a request
//! that is too large, and writes summaries.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Mutex;

use async_trait::async_trait;
use serde_json::{Value, json};

use turnwheel_conversation::compaction::{prompts, tokens};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::message::{AssistantMessage, Message};
use turnwheel_model::tokens::count_tokens;
use turnwheel_model::{
    CallMetadata, Listener, Model, ModelFailure, ModelRecord, ModelRequest, ModelResponse, Prices,
};

#[derive(Debug)]
pub(crate) struct SmallWindowModel {
    window: u64,
    /// Context window in the model's record.
    pub declared_window: u64,
    token_counts: Mutex<HashMap<u64, u64>>,
    /// Tokens of each request, and true if the request was for a summary.
    pub requests: Mutex<Vec<(u64, bool)>>,
    /// Number of requests that exceeded the window.
    pub rejected: Mutex<u32>,
    /// Failures of the next summaries, in reverse order.
    pub summary_failures: Mutex<Vec<&'static str>>,
}

impl SmallWindowModel {
    pub(crate) fn new(window: u64) -> Self {
        Self {
            window,
            declared_window: window,
            token_counts: Mutex::default(),
            requests: Mutex::default(),
            rejected: Mutex::default(),
            summary_failures: Mutex::default(),
        }
    }

    /// Number of tokens in a text; counts are cached.
    fn count_tokens(&self, text: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        *self
            .token_counts
            .lock()
            .unwrap()
            .entry(hasher.finish())
            .or_insert_with(|| count_tokens(text))
    }

    pub(crate) fn summary_count(&self) -> usize {
        self.requests.lock().unwrap().iter().filter(|(_, is_summary)| *is_summary).count()
    }
}

fn response(content: &[Value], stop: &str, input: u64, output: u64) -> ModelResponse {
    let message: AssistantMessage = serde_json::from_str(
        &json!({
            "content": content, "api": "a", "provider": "p", "model": "m", "stopReason": stop, "timestamp": 0,
            "usage": {"input": input, "output": output, "totalTokens": input + output},
        })
        .to_string(),
    )
    .unwrap();
    ModelResponse { message, failure: None, metadata: CallMetadata::default() }
}

fn failed_response(text: &str, failure: ModelFailure) -> ModelResponse {
    let mut failed = response(&[], "error", 0, 0);
    failed.message.error_message = Some(text.to_owned());
    ModelResponse { failure: Some(failure), ..failed }
}

#[async_trait]
impl Model for SmallWindowModel {
    async fn respond(&self, request: ModelRequest<'_>, _listener: &dyn Listener) -> ModelResponse {
        let count = |text: &str| self.count_tokens(text);
        let messages = request.messages.iter();
        let sent = count(request.system.unwrap_or_default())
            + messages.map(|message| tokens::count_message(message, &count)).sum::<u64>()
            + request.tools.iter().map(|tool| count(&tool.parameters.to_string())).sum::<u64>();
        let is_summary = request.system == Some(prompts::SYSTEM_PROMPT);
        self.requests.lock().unwrap().push((sent, is_summary));
        if sent > self.window {
            *self.rejected.lock().unwrap() += 1;
            return failed_response(
                "Your input exceeds the context window of this model.",
                ModelFailure::ContextOverflow,
            );
        }
        let input = match request.messages.last() {
            Some(Message::User(user)) => match &user.content {
                Content::Text(text) => text.clone(),
                blocks @ Content::Blocks(_) => blocks.joined_text(),
            },
            _ => String::new(),
        };
        if is_summary {
            match self.summary_failures.lock().unwrap().pop() {
                Some("cut") => {
                    return response(
                        &[json!({"type": "text", "text": "## Go"})],
                        "length",
                        sent,
                        9,
                    );
                }
                Some("long") => {
                    let text = "very long ".repeat(3_000);
                    return response(&[json!({"type": "text", "text": text})], "stop", sent, 9);
                }
                Some("503") => {
                    return failed_response(
                        "503 service unavailable",
                        ModelFailure::Retryable { after: None },
                    );
                }
                Some(other) => return failed_response(other, ModelFailure::Permanent),
                None => {}
            }
            let is_update = input.contains("<previous-summary>");
            let text = format!("## Goal\nTo count.{}", if is_update { " Still." } else { "" });
            return response(&[json!({"type": "text", "text": text})], "stop", sent, 8);
        }
        let (content, stop) = if input.starts_with("look") {
            (
                json!({"type": "toolCall", "id": "c1", "name": "look", "arguments": {"n": 1}}),
                "toolUse",
            )
        } else {
            (
                json!({"type": "text", "text": format!("An answer of some length, to «{input}».")}),
                "stop",
            )
        };
        let output = count(content["text"].as_str().unwrap_or("look"));
        response(&[content], stop, sent, output)
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        Ok(ModelRecord {
            id: model.to_owned(),
            name: model.to_owned(),
            api: "a".to_owned(),
            provider: "p".to_owned(),
            base_url: String::new(),
            reasoning: false,
            images: false,
            cost: Prices::default(),
            context_window: self.declared_window,
            max_tokens: self.window / 4,
            deployment_name: model.to_owned(),
            headers: turnwheel_model::responses::headers::ModelHeaders::default(),
            compat: turnwheel_model::compat::Compat::default(),
        })
    }
}
