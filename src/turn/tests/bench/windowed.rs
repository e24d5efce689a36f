//! Model that enforces its context window: it counts the tokens of each request, rejects a request
//! that is too large, and writes summaries.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Mutex;

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::agent::compaction::{tokens, wording};
use crate::agent::content::Content;
use crate::agent::message::{AssistantMessage, Message};
use crate::model::tokens::count;
use crate::model::{Answer, Failure, Listener, Model, ModelRecord, ModelRequest, Prices, Reply};

#[derive(Debug)]
pub(in crate::turn::tests) struct Windowed {
    window: u64,
    /// Context window in the model's record.
    pub(in crate::turn::tests) told_window: u64,
    counted: Mutex<HashMap<u64, u64>>,
    /// Tokens of each request, and true if the request was for a summary.
    pub(in crate::turn::tests) asked: Mutex<Vec<(u64, bool)>>,
    /// Number of requests that exceeded the window.
    pub(in crate::turn::tests) refused: Mutex<u32>,
    /// Failures of the next summaries, in reverse order.
    pub(in crate::turn::tests) bad_summaries: Mutex<Vec<&'static str>>,
}

impl Windowed {
    pub(in crate::turn::tests) fn of(window: u64) -> Self {
        Self {
            window,
            told_window: window,
            counted: Mutex::default(),
            asked: Mutex::default(),
            refused: Mutex::default(),
            bad_summaries: Mutex::default(),
        }
    }

    /// Number of tokens in a text; counts are cached.
    fn count(&self, text: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        *self.counted.lock().unwrap().entry(hasher.finish()).or_insert_with(|| count(text))
    }

    pub(in crate::turn::tests) fn summaries(&self) -> usize {
        self.asked.lock().unwrap().iter().filter(|(_, is_summary)| *is_summary).count()
    }
}

fn answer(content: &[Value], stop: &str, input: u64, output: u64) -> Answer {
    let message: AssistantMessage = serde_json::from_str(
        &json!({
            "content": content, "api": "a", "provider": "p", "model": "m", "stopReason": stop, "timestamp": 0,
            "usage": {"input": input, "output": output, "totalTokens": input + output},
        })
        .to_string(),
    )
    .unwrap();
    Answer { message, failure: None, reply: Reply::default() }
}

fn failed(text: &str, failure: Failure) -> Answer {
    let mut failed = answer(&[], "error", 0, 0);
    failed.message.error_message = Some(text.to_owned());
    Answer { failure: Some(failure), ..failed }
}

#[async_trait]
impl Model for Windowed {
    async fn answer(&self, request: ModelRequest<'_>, _listener: &dyn Listener) -> Answer {
        let count = |text: &str| self.count(text);
        let messages = request.messages.iter();
        let sent = count(request.system.unwrap_or_default())
            + messages.map(|message| tokens::of_message(message, &count)).sum::<u64>()
            + request.tools.iter().map(|tool| count(&tool.parameters.to_string())).sum::<u64>();
        let is_summary = request.system == Some(wording::SYSTEM);
        self.asked.lock().unwrap().push((sent, is_summary));
        if sent > self.window {
            *self.refused.lock().unwrap() += 1;
            return failed(
                "Your input exceeds the context window of this model.",
                Failure::Overflow,
            );
        }
        let said = match request.messages.last() {
            Some(Message::User(user)) => match &user.content {
                Content::Text(text) => text.clone(),
                blocks @ Content::Blocks(_) => blocks.joined_text(),
            },
            _ => String::new(),
        };
        if is_summary {
            match self.bad_summaries.lock().unwrap().pop() {
                Some("cut") => {
                    return answer(&[json!({"type": "text", "text": "## Go"})], "length", sent, 9);
                }
                Some("long") => {
                    let text = "very long ".repeat(3_000);
                    return answer(&[json!({"type": "text", "text": text})], "stop", sent, 9);
                }
                Some("503") => {
                    return failed("503 service unavailable", Failure::Retryable { after: None });
                }
                Some(other) => return failed(other, Failure::Final),
                None => {}
            }
            let is_update = said.contains("<previous-summary>");
            let text = format!("## Goal\nTo count.{}", if is_update { " Still." } else { "" });
            return answer(&[json!({"type": "text", "text": text})], "stop", sent, 8);
        }
        let (content, stop) = if said.starts_with("look") {
            (
                json!({"type": "toolCall", "id": "c1", "name": "look", "arguments": {"n": 1}}),
                "toolUse",
            )
        } else {
            (
                json!({"type": "text", "text": format!("An answer of some length, to «{said}».")}),
                "stop",
            )
        };
        let output = count(content["text"].as_str().unwrap_or("look"));
        answer(&[content], stop, sent, output)
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
            context_window: self.told_window,
            max_tokens: self.window / 4,
            deployment_name: model.to_owned(),
            headers: crate::model::responses::headers::ModelHeaders::default(),
            compat: crate::model::compat::Compat::default(),
        })
    }
}
