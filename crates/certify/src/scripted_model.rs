//! The model of a run: returns the responses of the conversation file, else those of the fake model
//! (scripted); counts its calls.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::conversation::{Conversation, RecordedResponse};
use turnwheel_conversation::content::{Block, ToolCall};
use turnwheel_conversation::message::{AssistantMessage, Message, StopReason};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_model::scripted::{ScriptedModel, protocol};
use turnwheel_model::{CallMetadata, Listener, Model, ModelRecord, ModelRequest, ModelResponse};

const NAME: &str = "recorded";

#[derive(Debug)]
pub(super) struct ConversationModel {
    conversation: Arc<Conversation>,
    /// Number of paid responses, including discarded ones.
    paid_responses: AtomicU32,
    /// Prompts for which the file has too few responses.
    incomplete_prompts: Mutex<BTreeSet<String>>,
}

impl ConversationModel {
    pub(super) fn new(conversation: &Conversation) -> Self {
        Self {
            conversation: Arc::new(conversation.clone()),
            paid_responses: AtomicU32::default(),
            incomplete_prompts: Mutex::default(),
        }
    }

    pub(super) fn paid_responses(&self) -> u32 {
        self.paid_responses.load(Ordering::SeqCst)
    }

    pub(super) fn incomplete_prompts(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.incomplete_prompts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the recorded response to a request; `None` if the fake model (scripted) runs the
    /// prompt.
    fn find_response(&self, request: &ModelRequest<'_>) -> Option<RecordedResponse> {
        let (mut prompt_text, mut response_count) = (String::new(), 0);
        for message in request.messages {
            if let Message::User(user) = message {
                (prompt_text, response_count) = (user.content.joined_text(), 0);
            } else if let Message::Assistant(_) = message {
                response_count += 1;
            }
        }
        let prompts = &self.conversation.prompts;
        let prompt = prompts.iter().find(|prompt| prompt.prompt.trim() == prompt_text.trim())?;
        let missing = || {
            self.incomplete_prompts().insert(prompt.prompt.clone());
            RecordedResponse {
                text: "(The conversation file has no further answer.)".to_owned(),
                calls: Vec::new(),
            }
        };
        (!prompt.responses.is_empty())
            .then(|| prompt.responses.get(response_count).cloned().unwrap_or_else(missing))
    }
}

#[async_trait]
impl Model for ConversationModel {
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        if protocol::is_protocol(&request) {
            return protocol::respond(self, &request, listener).await;
        }
        self.paid_responses.fetch_add(1, Ordering::SeqCst);
        match self.find_response(&request) {
            Some(response) => recorded_response(response, request.messages.len()),
            None => ScriptedModel.respond(request, listener).await,
        }
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        ScriptedModel.record(model)
    }
}

fn recorded_response(response: RecordedResponse, message_count: usize) -> ModelResponse {
    let stop_reason =
        if response.calls.is_empty() { StopReason::Stop } else { StopReason::ToolUse };
    let mut content = Vec::new();
    if !response.text.is_empty() {
        content.push(Block::text(response.text));
    }
    for (number, call) in response.calls.into_iter().enumerate() {
        content.push(Block::ToolCall(ToolCall {
            id: format!("call_{message_count}_{}", number + 1),
            name: call.tool,
            arguments: RawJson::from_value(&call.arguments),
            thought_signature: None,
            extra: Extra::new(),
        }));
    }
    let message = AssistantMessage::new_synthetic(NAME, content, stop_reason);
    ModelResponse { message, failure: None, metadata: CallMetadata::default() }
}
