//! The model of a run: returns the responses of the conversation file, else those of the fake model
//! (scripted); counts its calls.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::agent::content::{Block, ToolCall};
use crate::agent::message::{AssistantMessage, Message, StopReason};
use crate::agent::raw::{Extra, RawJson};
use crate::certify::conversation::{Conversation, Said};
use crate::model::scripted::ScriptedModel;
use crate::model::{Answer, Listener, Model, ModelRecord, ModelRequest, Reply};

const NAME: &str = "recorded";

#[derive(Debug)]
pub(super) struct Player {
    conversation: Arc<Conversation>,
    /// Number of paid responses, including discarded ones.
    paid: AtomicU32,
    /// Prompts for which the file has too few responses.
    unanswered: Mutex<BTreeSet<String>>,
}

impl Player {
    pub(super) fn of(conversation: &Conversation) -> Self {
        Self {
            conversation: Arc::new(conversation.clone()),
            paid: AtomicU32::default(),
            unanswered: Mutex::default(),
        }
    }

    pub(super) fn paid(&self) -> u32 {
        self.paid.load(Ordering::SeqCst)
    }

    pub(super) fn unanswered(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the recorded response to a request; `None` if the fake model (scripted) runs the
    /// prompt.
    fn said(&self, request: &ModelRequest<'_>) -> Option<Said> {
        let (mut asked, mut answered) = (String::new(), 0);
        for message in request.messages {
            if let Message::User(user) = message {
                (asked, answered) = (user.content.joined_text(), 0);
            } else if let Message::Assistant(_) = message {
                answered += 1;
            }
        }
        let prompts = &self.conversation.prompts;
        let prompt = prompts.iter().find(|prompt| prompt.prompt.trim() == asked.trim())?;
        let missing = || {
            self.unanswered().insert(prompt.prompt.clone());
            Said {
                say: "(The conversation file has no further answer.)".to_owned(),
                calls: Vec::new(),
            }
        };
        (!prompt.answers.is_empty())
            .then(|| prompt.answers.get(answered).cloned().unwrap_or_else(missing))
    }
}

#[async_trait]
impl Model for Player {
    async fn answer(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> Answer {
        self.paid.fetch_add(1, Ordering::SeqCst);
        match self.said(&request) {
            Some(said) => recorded(said, request.messages.len()),
            None => ScriptedModel.answer(request, listener).await,
        }
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        ScriptedModel.record(model)
    }
}

fn recorded(said: Said, at: usize) -> Answer {
    let stop_reason = if said.calls.is_empty() { StopReason::Stop } else { StopReason::ToolUse };
    let mut content = Vec::new();
    if !said.say.is_empty() {
        content.push(Block::text(said.say));
    }
    for (number, call) in said.calls.into_iter().enumerate() {
        content.push(Block::ToolCall(ToolCall {
            id: format!("call_{at}_{}", number + 1),
            name: call.tool,
            arguments: RawJson::of(&call.arguments),
            thought_signature: None,
            extra: Extra::new(),
        }));
    }
    let message = AssistantMessage::of_ours(NAME, content, stop_reason);
    Answer { message, failure: None, reply: Reply::default() }
}
