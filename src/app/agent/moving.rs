//! Messages that were changed: the next run begins another conversation with them, since a record is never rewritten, and
//! what waits in the queues goes along.

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

/// In the metadata of a conversation: the one whose queues come along. It stands in the record before any of them is
/// touched, so that a crash between leaves nothing behind.
const QUEUES_OF: &str = "turnwheel.queuesOf";

/// Where the agent stands between two conversations. Held while anything is kept: what is kept lands in one of them for sure.
#[derive(Debug, Default)]
pub(super) struct Moving {
    /// Number of the change of the messages that the conversation has begun with.
    pub(super) begun_with: u64,
    /// The conversation whose queues have not come along entirely.
    pub(super) left: Option<ConversationKey>,
}

/// What waits for the next run, when none is under way.
pub(super) fn held(mode: Mode, input: Option<Content>) -> PromptRequest {
    PromptRequest {
        input,
        mode: Some(mode),
        when_idle: Some(WhenIdle::Hold),
        ..PromptRequest::default()
    }
}

impl Inner {
    /// Another conversation, when the messages were changed since the last began. What waits goes with it.
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

    /// A conversation with the messages as they are now, which is followed from here; the number of the change they have.
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

    /// What a crash has left behind of a move.
    pub(super) fn left_by(&self, metadata: &BTreeMap<String, String>) -> Moving {
        Moving { begun_with: 0, left: metadata.get(QUEUES_OF).map(|id| self.owner.key(id)) }
    }

    /// Brings along what has not come yet. Begun again, it brings nothing twice.
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
        // By its name there, so that it has one name here however often it is brought.
        let key = item.input_id.as_str().to_owned();
        let name = Idempotency { key, is_repeatable: true, ..self.fresh() };
        self.keep(held(mode, waiting.input.clone()), &name).await?;
        Ok(())
    }

    /// Keeps a request in the conversation that is followed.
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
