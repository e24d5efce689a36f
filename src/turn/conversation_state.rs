//! State of a conversation as a delivery has loaded it: the head, and the response with open calls.

use std::sync::Arc;

use crate::agent::content::ToolCall;
use crate::agent::entry::Entry;
use crate::agent::head::Head;
use crate::agent::phase::{CallStatus, Phase};
use crate::agent::run_prompt;
use crate::ids::{ConversationKey, PromptId};
use crate::services::Services;
use crate::store::{ETag, Partition, StoreError};
use crate::turn::context::TurnContext;
use crate::turn::error::{TurnError, store_error};

pub(crate) struct ConversationState {
    pub(crate) key: ConversationKey,
    pub(crate) partition: Partition,
    pub(crate) head: Head,
    pub(crate) etag: ETag,
    /// Approximate size of the stored head.
    pub(crate) head_bytes: usize,
    /// The model response whose calls are open.
    pub(crate) response: Option<Arc<Entry>>,
    /// Results of its calls, buffered until source order allows them.
    pub(crate) buffered: Vec<Arc<Entry>>,
    /// The system prompt of the agent run, if an extension changed it.
    pub(crate) run_prompt: Option<Arc<str>>,
}

impl ConversationState {
    pub(crate) fn error(&self, what: &'static str, source: StoreError) -> TurnError {
        store_error(&self.key, what, source)
    }

    pub(crate) fn lease_lost(&self) -> TurnError {
        TurnError::LeaseLost { key: self.key.clone() }
    }

    pub(crate) fn context(&self, services: &Services) -> TurnContext {
        TurnContext::resolve(services, &self.head, self.run_prompt.clone())
    }

    /// The system prompt of the agent run of `head`, which appended the entries `new`, if an
    /// extension changed it.
    pub(crate) fn run_prompt_after(&self, head: &Head, new: &[Arc<Entry>]) -> Option<Arc<str>> {
        let seq = head.prompt.as_ref()?.system_prompt_seq?;
        let added = new.iter().find(|entry| entry.base.seq == seq);
        let text = added.and_then(|entry| run_prompt::from_entry(&entry.body));
        text.map_or_else(|| self.run_prompt.clone(), |text| Some(text.into()))
    }

    /// Loads the model response whose calls are pending, its buffered results, and the system prompt
    /// of the agent run.
    pub(crate) async fn load_run(&mut self, services: &Services) -> Result<(), TurnError> {
        let (response, buffered) = match &self.head.phase {
            Phase::Calls { response_seq: response, calls, .. } => {
                let entries = self.load_entries(services).await?;
                let at = |seq: u64| {
                    let index = usize::try_from(seq.saturating_sub(1)).unwrap_or(usize::MAX);
                    entries.get(index).cloned()
                };
                let buffered = calls.iter().filter_map(|call| match call.status {
                    CallStatus::Done { result_seq: result, buffered: Some(_) } => at(result),
                    CallStatus::Done { buffered: None, .. }
                    | CallStatus::Ready
                    | CallStatus::Waiting { .. }
                    | CallStatus::Started { .. } => None,
                });
                (at(*response), buffered.collect())
            }
            Phase::Idle | Phase::Model { .. } | Phase::Summary { .. } | Phase::Deleted => {
                (None, Vec::new())
            }
        };
        let prompt_seq = self.head.prompt.as_ref().and_then(|run| run.system_prompt_seq);
        let run_prompt = match prompt_seq {
            Some(_) => self.run_prompt_after(&self.head, &self.load_entries(services).await?),
            None => None,
        };
        // Assign all only now: a cancelled renewal must not leave the conversation without its
        // response.
        (self.response, self.buffered, self.run_prompt) = (response, buffered, run_prompt);
        Ok(())
    }

    pub(crate) async fn load_entries(
        &self,
        services: &Services,
    ) -> Result<Arc<Vec<Arc<Entry>>>, TurnError> {
        let entries = services.entry_cache.load_entries(&*services.store, &self.head).await;
        entries.map_err(|source| self.error("read the entries of", source))
    }

    /// A call of the response whose calls are open.
    pub(crate) fn open_call(&self, index: usize) -> Option<&ToolCall> {
        self.response.as_ref()?.body.message()?.as_assistant()?.tool_calls().nth(index)
    }

    pub(crate) fn prompt_id(&self) -> Option<PromptId> {
        self.head.prompt.as_ref().map(|run| run.id.clone())
    }

    /// Number of this attempt at the same response.
    pub(crate) fn attempt(&self) -> u32 {
        match self.head.phase {
            Phase::Model { attempt, .. } | Phase::Summary { attempt, .. } => attempt,
            Phase::Idle | Phase::Calls { .. } | Phase::Deleted => 1,
        }
    }
}
