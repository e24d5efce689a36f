//! Replacement of an agent's messages.
//!
//! Stored entries are never rewritten, so the next run begins a new conversation with the changed
//! messages. The queued inputs move to the new conversation.

use std::collections::BTreeMap;

use crate::agent::content::Content;
use crate::agent::inbox::{InboxBody, InboxItem, WhenIdle};
use crate::agent::raw::RawJson;
use crate::app::agent::{AgentError, Inner, lock, setup};
use crate::ids::{ConversationKey, PromptId};
use crate::turn::admission::conversation::{NewConversation, create_of_any_length};
use crate::turn::admission::idempotency::Idempotency;
use crate::turn::admission::prompt::{Mode, PromptRequest, accept_prompt};
use crate::turn::admission::waiting::clear_all;
use crate::turn::views::load;

/// Metadata key: id of the conversation whose queued inputs move to this one. It is stored before
/// any input moves, so that a restart after a crash can complete the move.
const QUEUES_OF: &str = "turnwheel.queuesOf";

/// State of the switch from one conversation to the next. Its lock is held while a request is
/// stored, so that each request is stored in a definite conversation.
#[derive(Debug, Default)]
pub(super) struct Moving {
    /// Version of the messages with which the conversation began.
    pub(super) begun_with: u64,
    /// Previous conversation, while some of its queued inputs have not moved.
    pub(super) left: Option<ConversationKey>,
}

/// Request for an input that stays queued for the next run if the agent is idle.
pub(super) fn held(mode: Mode, input: Option<Content>) -> PromptRequest {
    PromptRequest {
        input,
        mode: Some(mode),
        when_idle: Some(WhenIdle::Hold),
        ..PromptRequest::default()
    }
}

impl Inner {
    /// Begins a new conversation if the messages were changed, and moves the queued inputs to it.
    pub(super) async fn begin_anew(&self, moving: &mut Moving) -> Result<(), AgentError> {
        self.bring_left(moving).await?;
        if moving.begun_with == lock(&self.seen).changes {
            return Ok(());
        }
        let before = self.key.borrow().clone();
        moving.begun_with = self.begin(Some(&before)).await?;
        moving.left = Some(before);
        self.bring_left(moving).await
    }

    /// Creates a conversation with the current messages and makes it the current one. Returns the
    /// version of these messages.
    pub(super) async fn begin(&self, before: Option<&ConversationKey>) -> Result<u64, AgentError> {
        let id = self.world.ids.fresh();
        let (messages, changes) = {
            let seen = lock(&self.seen);
            (seen.messages.iter().map(RawJson::of).collect(), seen.changes)
        };
        let queues_of =
            before.map(|before| (QUEUES_OF.to_owned(), before.conversation_id.as_str().to_owned()));
        let request = NewConversation {
            id: Some(id.clone()),
            agent: Some(setup::NAME.to_owned()),
            metadata: Some(queues_of.into_iter().collect()),
            messages: Some(messages),
            ..NewConversation::default()
        };
        create_of_any_length(&self.world, &self.owner, request, &self.fresh()).await?;
        self.key.send_replace(self.owner.key(&id));
        Ok(changes)
    }

    /// Returns the switch that a crash may have left incomplete.
    pub(super) fn left_by(&self, metadata: &BTreeMap<String, String>) -> Moving {
        Moving { begun_with: 0, left: metadata.get(QUEUES_OF).map(|id| self.owner.key(id)) }
    }

    /// Moves the remaining queued inputs. It is idempotent.
    pub(super) async fn bring_left(&self, moving: &mut Moving) -> Result<(), AgentError> {
        let Some(before) = &moving.left else { return Ok(()) };
        let waiting = load::inbox(&self.world, before).await?;
        for item in &waiting {
            self.bring(item).await?;
        }
        if !waiting.is_empty() {
            clear_all(&self.world, before, None).await?;
        }
        moving.left = None;
        Ok(())
    }

    pub(super) async fn bring(&self, item: &InboxItem) -> Result<(), AgentError> {
        let (mode, waiting) = match &item.body {
            InboxBody::Steer(waiting) => (Mode::Steer, waiting),
            InboxBody::FollowUp(waiting) => (Mode::FollowUp, waiting),
            InboxBody::Prompt(_)
            | InboxBody::Decision(_)
            | InboxBody::Abort(_)
            | InboxBody::Continue(_)
            | InboxBody::Custom(_)
            | InboxBody::LateResult(_)
            | InboxBody::Command(_) => return Ok(()),
        };
        // The old input id is the idempotency key, so that a repeated move stores the input once.
        let key = item.input_id.as_str().to_owned();
        let name = Idempotency { key, is_repeatable: true, ..self.fresh() };
        self.keep(held(mode, waiting.input.clone()), &name).await?;
        Ok(())
    }

    /// Stores a request in the current conversation.
    pub(super) async fn keep(
        &self,
        request: PromptRequest,
        name: &Idempotency,
    ) -> Result<PromptId, AgentError> {
        let world = &self.world;
        let key = self.key.borrow().clone();
        accept_prompt(world, &key, request, name, &setup::sender()).await?;
        Ok(PromptId::of(&name.input_id(&key)))
    }
}
