//! Abort signals: immediate within this process, polled once a second across processes.

use std::time::Duration;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::agent::inbox::{InboxBody, InboxItem};
use crate::agent::phase::Phase;
use crate::agent::request::Verdict;
use crate::agent::step::Input;
use crate::ids::{ConversationKey, InputId, PromptId};
use crate::store::{Freshness, HEAD_ID, Kind, Partition, StoreError};
use crate::turn::delivery::TurnError;
use crate::turn::hold::Hold;
use crate::turn::inbox::Waiting;
use crate::turn::{World, expiry, inbox, record};

/// Interval at which a running effect polls for an abort. One poll reads one document.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Every so many polls also read the head, because a deletion leaves no abort item.
const HEAD_EVERY: u32 = 5;
/// Time for a running write to finish after an abort.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// Signals that a receiver may lag behind. Beyond that it reads the store.
const BEHIND_MAX: usize = 64;

/// Id of the inbox item and the receipt that abort a prompt: at most one exists.
pub fn stop_id(prompt: &PromptId) -> InputId {
    InputId::new(format!("stop-{prompt}"))
}

/// Aborts accepted by this process. Missing a signal is harmless: the abort is in the store.
#[derive(Clone, Debug)]
pub struct Stops(broadcast::Sender<ConversationKey>);

impl Default for Stops {
    fn default() -> Self {
        Self(broadcast::Sender::new(BEHIND_MAX))
    }
}

impl Stops {
    pub(super) fn tell(&self, key: &ConversationKey) {
        // An error only means that this process has no receivers.
        let _ = self.0.send(key.clone());
    }
}

/// Completes when the prompt is aborted or the conversation is deleted. It listens from the call
/// on, not from the first poll.
pub(super) fn comes(
    world: &World,
    key: &ConversationKey,
    prompt: Option<PromptId>,
) -> impl Future<Output = ()> + use<> {
    let (world, key) = (world.clone(), key.clone());
    let mut told = world.stops.0.subscribe();
    async move {
        for look in 1_u32.. {
            let was_told = tokio::time::timeout(LOOK_EVERY, heard(&mut told, &key)).await.is_ok();
            let has_ended = async {
                if let Some(prompt) = &prompt
                    && waits(&world, &key, prompt).await?
                {
                    return Ok(true);
                }
                let looks_at_head = was_told || look % HEAD_EVERY == 0;
                Ok::<_, StoreError>(looks_at_head && is_deleted(&world, &key).await?)
            };
            match has_ended.await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(conversation.id = %key.conversation_id, error = %error, "abort check failed, retrying");
                }
            }
        }
    }
}

/// True if the conversation is deleted or has no head.
pub(super) async fn is_deleted(world: &World, key: &ConversationKey) -> Result<bool, StoreError> {
    let partition = Partition::Conversation(key.clone());
    let stored = world.store.read(&partition, HEAD_ID, Freshness::Latest).await?;
    let Some(stored) = stored else { return Ok(true) };
    Ok(record::read_head(&stored).is_ok_and(|head| head.phase == Phase::Deleted))
}

async fn heard(told: &mut broadcast::Receiver<ConversationKey>, key: &ConversationKey) {
    loop {
        match told.recv().await {
            Ok(stopped) if &stopped != key => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

async fn waits(
    world: &World,
    key: &ConversationKey,
    prompt: &PromptId,
) -> Result<bool, StoreError> {
    let partition = Partition::Conversation(key.clone());
    let found = world.store.read(&partition, stop_id(prompt).as_str(), Freshness::Latest).await?;
    Ok(found.is_some_and(|stored| stored.document.kind == Kind::Inbox))
}

/// True if the item aborts that prompt.
fn stops(item: &InboxItem, prompt: Option<&PromptId>) -> bool {
    matches!(&item.body, InboxBody::Abort(abort) if abort.prompt_id.as_ref() == prompt && prompt.is_some())
}

impl Hold<'_> {
    /// True if the inbox aborts the running prompt.
    pub(super) fn is_stopped_by(&self, inbox: &[Waiting]) -> bool {
        let prompt = self.head.prompt.as_ref().map(|run| &run.id);
        inbox.iter().any(|waiting| stops(&waiting.item, prompt))
    }

    /// Decides all open requests of an aborted prompt, by creating the same inbox item as an
    /// approver's decision. Create-if-absent picks the winner. Returns the inbox, including the
    /// decisions.
    pub(super) async fn with_decisions(
        &self,
        inbox: Vec<Waiting>,
    ) -> Result<Vec<Waiting>, StoreError> {
        if self.head.requests.is_empty() || !self.is_stopped_by(&inbox) {
            return Ok(inbox);
        }
        let now = self.world.clock.now();
        for request in &self.head.requests {
            let decision = expiry::decision(request, (Verdict::Aborted, "abort"), now);
            expiry::decide(self.world, &self.key, decision).await?;
        }
        inbox::look(self.world, &self.key).await
    }

    /// Commits the end of a prompt whose calls were cancelled, after the inputs of the finished
    /// calls. The state machine derives the outcome of the others from their declared effects.
    ///
    /// # Errors
    /// The abort was not applied, or the commit failed: stop, and leave the calls to the worker
    /// that takes over. Otherwise the cancelled calls would seem to run and be sent again.
    pub(super) async fn commit_stop(&mut self, done: Vec<Input>) -> Result<(), TurnError> {
        let prompt = self.prompt_id();
        let looked = inbox::look(self.world, &self.key).await;
        let inbox = looked.map_err(|source| self.error("read the inbox of", source))?;
        let inbox = self.with_decisions(inbox).await;
        let inbox = inbox.map_err(|source| self.error("decide the open requests of", source))?;
        let inputs: Vec<Input> =
            [inbox::looked(&inbox)].into_iter().chain(done).chain([Input::TakeIn]).collect();
        let tried = self.try_out(inputs);
        self.commit("result", tried, &inbox).await?;
        if self.prompt_id() == prompt {
            return Err(TurnError::ClaimLost { key: self.key.clone() });
        }
        Ok(())
    }
}
