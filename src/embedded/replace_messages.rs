//! Replacement of an agent's messages.
//!
//! Stored entries are never rewritten, so the next run begins a new conversation with the changed
//! messages. The queued inputs move to the new conversation.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::embedded::{AgentError, AgentInner, CurrentConversation, lock, setup};
use turnwheel_commands::conversation::{NewConversation, create_conversation_of_any_length};
use turnwheel_commands::inbox_clear::clear_queues;
use turnwheel_commands::prompt::{Disposition, Mode, PromptRequest, accept_prompt};
use turnwheel_commands::store_input::InputHandled;
use turnwheel_conversation::content::{Content, joined_text};
use turnwheel_conversation::inbox::{InboxBody, InboxItem, WhenIdle};
use turnwheel_extensions::command::find_in_text;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::{ConversationKey, PromptId};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::load;

/// Metadata key: id of the conversation whose queued inputs move to this one. It is stored before
/// any input moves, so that a restart after a crash can complete the move.
const PREVIOUS_CONVERSATION: &str = "turnwheel.queuesOf";

/// State of the switch from one conversation to the next. Its lock is held while a request is
/// stored, so that each request is stored in a definite conversation.
#[derive(Debug, Default)]
pub(super) struct ConversationSwitch {
    /// Version of the messages with which the conversation began.
    pub(super) messages_version: u64,
    /// Previous conversation, while some of its queued inputs have not moved.
    pub(super) previous: Option<ConversationKey>,
}

/// Outcome of a request with an input.
#[derive(Debug)]
pub(super) enum AcceptedRequest {
    /// The input is stored. The id is that of the prompt that it may start.
    Input(PromptId),
    /// A command ran, or an extension has handled the input.
    Handled(Box<InputHandled>),
}

/// Request for an input that stays queued for the next run if the agent is idle.
pub(super) fn queued_request(mode: Mode, input: Option<Content>) -> PromptRequest {
    PromptRequest {
        input,
        mode: Some(mode),
        when_idle: Some(WhenIdle::Hold),
        ..PromptRequest::default()
    }
}

impl AgentInner {
    /// Begins a new conversation if the messages were changed, and moves the queued inputs to it.
    pub(super) async fn switch_if_changed(
        &self,
        switch: &mut ConversationSwitch,
    ) -> Result<(), AgentError> {
        self.move_queued_inputs(switch).await?;
        if switch.messages_version == lock(&self.observed).messages_version {
            return Ok(());
        }
        let previous = self.key();
        switch.messages_version = self.create_conversation(Some(&previous)).await?;
        switch.previous = Some(previous);
        self.move_queued_inputs(switch).await
    }

    /// Creates a conversation with the current messages and makes it the current one. Returns the
    /// version of these messages.
    pub(super) async fn create_conversation(
        &self,
        previous: Option<&ConversationKey>,
    ) -> Result<u64, AgentError> {
        let id = self.services.ids.new_id();
        let (messages, version) = {
            let observed = lock(&self.observed);
            (observed.messages.iter().map(RawJson::from_value).collect(), observed.messages_version)
        };
        let queues_of = previous.map(|previous| {
            (PREVIOUS_CONVERSATION.to_owned(), previous.conversation_id.as_str().to_owned())
        });
        let request = NewConversation {
            id: Some(id.clone()),
            agent: Some(setup::AGENT_NAME.to_owned()),
            metadata: Some(queues_of.into_iter().collect()),
            messages: Some(messages),
            ..NewConversation::default()
        };
        create_conversation_of_any_length(
            &self.services,
            &self.owner,
            request,
            &self.new_idempotency(),
        )
        .await?;
        let key = self.owner.conversation_key(&id);
        self.conversation.send_replace(CurrentConversation { key, last_event: 0 });
        Ok(version)
    }

    /// Returns the switch that a crash may have left incomplete.
    pub(super) fn find_pending_switch(
        &self,
        metadata: &BTreeMap<String, String>,
    ) -> ConversationSwitch {
        ConversationSwitch {
            messages_version: 0,
            previous: metadata.get(PREVIOUS_CONVERSATION).map(|id| self.owner.conversation_key(id)),
        }
    }

    /// Moves the remaining queued inputs. It is idempotent.
    pub(super) async fn move_queued_inputs(
        &self,
        switch: &mut ConversationSwitch,
    ) -> Result<(), AgentError> {
        let Some(previous) = &switch.previous else { return Ok(()) };
        let items = load::inbox(&self.services, previous).await?;
        for item in &items {
            self.move_input(item).await?;
        }
        if !items.is_empty() {
            clear_queues(&self.services, previous, None).await?;
        }
        switch.previous = None;
        Ok(())
    }

    pub(super) async fn move_input(&self, item: &InboxItem) -> Result<(), AgentError> {
        let (mode, input) = match &item.body {
            InboxBody::Steer(input) => (Mode::Steer, input),
            InboxBody::FollowUp(input) => (Mode::FollowUp, input),
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
        let idempotency = Idempotency { key, is_repeatable: true, ..self.new_idempotency() };
        let request = queued_request(mode, input.input.clone());
        let request = PromptRequest { is_moved: true, ..request };
        self.accept_request(request, &idempotency).await?;
        Ok(())
    }

    /// Like [`Self::switch_if_changed`], unless a run continues the current conversation.
    pub(super) async fn switch_if_idle(
        &self,
        switch: &mut ConversationSwitch,
    ) -> Result<(), AgentError> {
        if self.run_state.borrow().is_idle() {
            self.switch_if_changed(switch).await?;
        }
        Ok(())
    }

    /// True if the input names a command of an extension.
    pub(super) fn is_command(&self, request: &PromptRequest) -> bool {
        let text = match &request.input {
            Some(Content::Text(text)) => Cow::Borrowed(text.as_str()),
            Some(Content::Blocks(blocks)) => Cow::Owned(joined_text(blocks)),
            None => return false,
        };
        request.expand != Some(false)
            && find_in_text(self.services.extensions.iter(), &text).is_some()
    }

    /// Stores a request in the current conversation.
    pub(super) async fn accept_request(
        &self,
        request: PromptRequest,
        idempotency: &Idempotency,
    ) -> Result<AcceptedRequest, AgentError> {
        let services = &self.services;
        let key = self.key();
        let sender = setup::user_sender();
        let response = accept_prompt(services, &key, request, idempotency, &sender).await?;
        let handled = response.body.and_then(|body| body.read::<InputHandled>().ok());
        Ok(match handled {
            Some(handled)
                if matches!(handled.disposition, Disposition::Handled | Disposition::Waiting) =>
            {
                AcceptedRequest::Handled(Box::new(handled))
            }
            Some(_) | None => {
                AcceptedRequest::Input(PromptId::from_input(&idempotency.input_id(&key)))
            }
        })
    }
}
