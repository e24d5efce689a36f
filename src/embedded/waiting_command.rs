//! Waiting for a command that asked a question.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use crate::embedded::{Agent, AgentError, AgentEvent};
use turnwheel_commands::prompt::Disposition;
use turnwheel_commands::store_input::InputHandled;
use turnwheel_conversation::prompt_view::PromptView;
use turnwheel_platform::ids::{ConversationKey, InputId, PromptId};
use turnwheel_queries::inbox::read_input;
use turnwheel_queries::prompts;
use turnwheel_record::load;

/// Interval between reads if no event reports the end, because the agent has left the conversation.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl Agent {
    /// A prompt that is not stored, with the result of the command.
    pub(super) async fn handled_view(
        &self,
        key: &ConversationKey,
        handled: InputHandled,
    ) -> Result<PromptView, AgentError> {
        let handled = self.finish_command(key, handled).await?;
        let services = &self.inner.services;
        let (head, _) = load::head(services, key).await?;
        let InputHandled { input_id, output, error, .. } = handled;
        let id = PromptId::from_input(&input_id);
        Ok(prompts::handled_view(services, &head, &id, output, error))
    }

    /// The result of a command. If it asked a question, this waits until it has its answer.
    pub(super) async fn finish_command(
        &self,
        key: &ConversationKey,
        handled: InputHandled,
    ) -> Result<InputHandled, AgentError> {
        if handled.disposition != Disposition::Waiting {
            return Ok(handled);
        }
        self.wait_for_result(key, &handled.input_id).await
    }

    /// The result of a stored request whose hooks ask a question, as soon as they have the answers.
    pub(super) async fn wait_for_result<T: DeserializeOwned>(
        &self,
        key: &ConversationKey,
        input_id: &InputId,
    ) -> Result<T, AgentError> {
        let ended = Arc::<Notify>::default();
        let observer = Arc::clone(&ended);
        let _subscription = self.subscribe(move |event| {
            if matches!(event, AgentEvent::Other { name, .. } if name == "command_end") {
                observer.notify_one();
            }
        });
        loop {
            let (view, _) = read_input(&self.inner.services, key, input_id.as_str()).await?;
            if let Some(result) = view.result.and_then(|result| result.read().ok()) {
                return Ok(result);
            }
            let _elapsed = tokio::time::timeout(POLL_INTERVAL, ended.notified()).await;
        }
    }
}
