//! A stop on its way to whoever works: told at once in this process, seen within a second from any other.

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

/// How often who performs something looks whether it is to be stopped: one read of one document.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Each so many looks it also reads the head: a deletion leaves nothing else behind.
const HEAD_EVERY: u32 = 5;
/// What a write that is under way gets to come to an end, once it has been told.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// Stops that a listener may be behind; who is further behind looks at the store.
const BEHIND_MAX: usize = 64;

/// The inbox item and receipt of a prompt's stop: there can be only one.
pub fn stop_id(prompt: &PromptId) -> InputId {
    InputId::new(format!("stop-{prompt}"))
}

/// Stops that were accepted in this process. Nobody relies on hearing of one: it stands in the store.
#[derive(Clone, Debug)]
pub struct Stops(broadcast::Sender<ConversationKey>);

impl Default for Stops {
    fn default() -> Self {
        Self(broadcast::Sender::new(BEHIND_MAX))
    }
}

impl Stops {
    pub(super) fn tell(&self, key: &ConversationKey) {
        // An error only says that nobody works here.
        let _ = self.0.send(key.clone());
    }
}

/// Completes when the prompt is to be stopped, or the conversation is deleted. Its listening begins with the call, not with
/// the first poll.
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
                    tracing::debug!(conversation.id = %key.conversation_id, error = %error, "whether {key} is to be stopped could not be read, trying again");
                }
            }
        }
    }
}

/// Whether the conversation is gone for everyone.
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

/// Whether an item stops that prompt.
fn stops(item: &InboxItem, prompt: Option<&PromptId>) -> bool {
    matches!(&item.body, InboxBody::Abort(abort) if abort.prompt_id.as_ref() == prompt && prompt.is_some())
}

impl Hold<'_> {
    /// Whether the prompt that runs is to be stopped.
    pub(super) fn is_stopped_by(&self, inbox: &[Waiting]) -> bool {
        let prompt = self.head.prompt.as_ref().map(|run| &run.id);
        inbox.iter().any(|waiting| stops(&waiting.item, prompt))
    }

    /// What a stopped prompt still asks is decided by the stop, in the same way as by a person: the create is the arbiter. With
    /// what was decided, the inbox that is taken in.
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

    /// Commits the end of a prompt whose calls were cut off, after what had come to its end: by its effect the core knows what
    /// became of each.
    ///
    /// # Errors
    /// Also where the stop did not land: what was cut would seem to run, and be sent again; whoever takes over judges it.
    pub(super) async fn commit_stop(&mut self, done: Vec<Input>) -> Result<(), TurnError> {
        let prompt = self.prompt_id();
        let looked = inbox::look(self.world, &self.key).await;
        let inbox = looked.map_err(|source| self.error("look at", source))?;
        let inbox = self.with_decisions(inbox).await;
        let inbox = inbox.map_err(|source| self.error("decide what was asked in", source))?;
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
