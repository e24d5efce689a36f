//! State of a conversation as a delivery has loaded it: the head, and the response with open calls.

use std::sync::Arc;

use crate::context::TurnContext;
use crate::inbox::KnownInbox;
use turnwheel_conversation::content::ToolCall;
use turnwheel_conversation::context_ranges::SeqRange;
use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::phase::{CallState, CallStatus, Phase};
use turnwheel_conversation::run_prompt;
use turnwheel_platform::ids::{ConversationKey, EffectId, PromptId};
use turnwheel_record::entry_cache::Entries;
use turnwheel_record::error::{TurnError, store_error};
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts::ArtifactScope;
use turnwheel_storage::store::{ETag, Partition, StoreError};

const READ_ENTRIES: &str = "read the entries of";

#[derive(Debug)]
pub struct ConversationState {
    pub key: ConversationKey,
    pub partition: Partition,
    pub head: Head,
    pub etag: ETag,
    /// True until a commit or a read shows that the head is the newest: it is from the cache.
    pub is_unconfirmed: bool,
    pub inbox: KnownInbox,
    /// Approximate size of the stored head.
    pub head_bytes: usize,
    /// The model response whose calls are open.
    pub response: Option<Arc<Entry>>,
    /// Results of its calls, buffered until source order allows them.
    pub buffered: Vec<Arc<Entry>>,
    /// The system prompt of the agent run, if an extension changed it.
    pub run_prompt: Option<Arc<str>>,
}

/// One attempt of a started call.
pub(crate) struct CallAttemptId {
    /// Equal for every attempt.
    pub effect_id: EffectId,
    /// From 1.
    pub number: u32,
}

impl CallAttemptId {
    /// `None`: the call is not started.
    pub(crate) fn of(state: &CallState) -> Option<Self> {
        let CallStatus::Started { effect_id, .. } = &state.status else { return None };
        Some(Self { effect_id: effect_id.clone(), number: state.attempts })
    }
}

impl ConversationState {
    pub fn error(&self, what: &'static str, source: StoreError) -> TurnError {
        store_error(&self.key, what, source)
    }

    /// Namespace of the artifacts of the conversation.
    pub(crate) fn artifact_scope(&self) -> ArtifactScope {
        ArtifactScope { key: self.key.clone(), incarnation: self.head.incarnation.clone() }
    }

    pub(crate) fn lease_lost(&self) -> TurnError {
        TurnError::LeaseLost { key: self.key.clone() }
    }

    pub fn context(&self, services: &Services) -> TurnContext {
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
        let (mut response, mut buffered) = (None, Vec::new());
        if let Phase::Calls { response_seq, calls, .. } = &self.head.phase {
            response = self.load_entry(services, *response_seq).await?;
            for call in calls {
                if let CallStatus::Done { result_seq, buffered: Some(_) } = call.status {
                    buffered.extend(self.load_entry(services, result_seq).await?);
                }
            }
        }
        let prompt_seq = self.head.prompt.as_ref().and_then(|run| run.system_prompt_seq);
        let run_prompt = match prompt_seq {
            Some(seq) => {
                let entry = self.load_entry(services, seq).await?;
                self.run_prompt_after(&self.head, entry.as_slice())
            }
            None => None,
        };
        // Assign all only now: a cancelled renewal must not leave the conversation without its
        // response.
        (self.response, self.buffered, self.run_prompt) = (response, buffered, run_prompt);
        Ok(())
    }

    /// All entries.
    pub async fn load_entries(&self, services: &Services) -> Result<Entries, TurnError> {
        let entries = services.entry_cache.load_entries(&*services.store, &self.head).await;
        entries.map_err(|source| self.error(READ_ENTRIES, source))
    }

    /// Entries that include the context of the path to the leaf.
    pub async fn load_context(&self, services: &Services) -> Result<Entries, TurnError> {
        self.load_context_after(services, &self.head, &[]).await
    }

    /// As [`Self::load_context`], for the leaf of a transition: its head `next` and its entries `new`.
    pub(crate) async fn load_context_after(
        &self,
        services: &Services,
        next: &Head,
        new: &[Arc<Entry>],
    ) -> Result<Entries, TurnError> {
        let cache = &services.entry_cache;
        let entries = cache.load_context(&*services.store, &self.head, next, new).await;
        entries.map_err(|source| self.error(READ_ENTRIES, source))
    }

    /// Entries that include those from `from` to `to`.
    pub async fn load_range(
        &self,
        services: &Services,
        from: u64,
        to: u64,
    ) -> Result<Entries, TurnError> {
        let range = SeqRange { from, to: Some(to) };
        let cache = &services.entry_cache;
        let entries = cache.load_ranges(&*services.store, &self.head, &[range]).await;
        entries.map_err(|source| self.error(READ_ENTRIES, source))
    }

    /// The stored entry with that number. The context of the path usually includes it, so that is read
    /// first. `None`: it is not stored.
    pub(crate) async fn load_entry(
        &self,
        services: &Services,
        seq: u64,
    ) -> Result<Option<Arc<Entry>>, TurnError> {
        let of_context = self.load_context(services).await?;
        if let Some(entry) = find_by_seq(&of_context, seq) {
            return Ok(Some(entry));
        }
        Ok(find_by_seq(&self.load_range(services, seq, seq).await?, seq))
    }

    /// A call of the response whose calls are open.
    pub fn open_call(&self, index: usize) -> Option<&ToolCall> {
        self.response.as_ref()?.body.message()?.as_assistant()?.tool_calls().nth(index)
    }

    pub fn prompt_id(&self) -> Option<PromptId> {
        self.head.prompt.as_ref().map(|run| run.id.clone())
    }

    /// Number of this attempt at the same response.
    pub fn attempt(&self) -> u32 {
        match self.head.phase {
            Phase::Model { attempt, .. } | Phase::Summary { attempt, .. } => attempt,
            Phase::Idle | Phase::Calls { .. } | Phase::Deleted => 1,
        }
    }
}

/// `entries` are in order of `seq`.
fn find_by_seq(entries: &[Arc<Entry>], seq: u64) -> Option<Arc<Entry>> {
    let index = entries.binary_search_by_key(&seq, |entry| entry.base.seq).ok()?;
    entries.get(index).cloned()
}
