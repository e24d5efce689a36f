//! Methods of the source's `AgentSession` (s3 §1.1): messages of programs, compaction, and the
//! conversations of an agent.

use std::sync::{Arc, Mutex};

use serde_json::{Map, Value};

use crate::embedded::replace_messages::{ConversationSwitch, queued_request};
use crate::embedded::run_state::{RunPermit, RunState};
use crate::embedded::{Agent, AgentError, AgentEvent, AgentInner, BUSY_PROMPT, lock};
use turnwheel_commands::append_entries::append_entries;
use turnwheel_commands::bash::{BashRecord, record_bash};
use turnwheel_commands::compact::{CompactRequest, compact};
use turnwheel_commands::conversation::is_model_configured;
use turnwheel_commands::extension_command::{CommandRequest, NamedCommand, run_extension_command};
use turnwheel_commands::fork::{ForkRequest, fork_conversation};
use turnwheel_commands::inbox_clear::clear_queues;
use turnwheel_commands::insert::{FinishedPromptRequest, insert_prompt};
use turnwheel_commands::message::{MessageRequest, accept_message};
use turnwheel_commands::patch::patch_conversation;
use turnwheel_commands::prompt::{Mode, PromptRequest};
use turnwheel_commands::request_hooks;
use turnwheel_commands::store_input::InputHandled;
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::{
    Compaction, Entry, EntryBody, ModelChange, ThinkingLevelChange,
};
use turnwheel_conversation::path::{last_model, last_thinking_level, path_to_leaf};
use turnwheel_conversation::settings::DEFAULT_MODEL;
use turnwheel_extensions::{CommandOutcome, ForkPosition};
use turnwheel_model::ModelRecord;
use turnwheel_platform::ids::{ConversationId, EntryId, InputId, PromptId};
use turnwheel_record::contract::CommandError;
use turnwheel_record::load;

/// Direction of [`Agent::cycle_model`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CycleDirection {
    #[default]
    Forward,
    Backward,
}

/// A copy of a conversation, made by [`Agent::fork`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    pub conversation_id: ConversationId,
    /// Text of the user message before which the copy ends. `None`: [`ForkPosition::At`].
    pub text: Option<String>,
}

impl Agent {
    /// Id of the current conversation. After a change of the messages, the next prompt begins
    /// another one.
    pub fn conversation_id(&self) -> ConversationId {
        self.inner.key().conversation_id
    }

    /// Sends a message of a program. With `trigger_turn` it starts a run if the agent is idle, and
    /// the method waits like [`Agent::prompt`].
    ///
    /// # Errors
    /// Returns [`AgentError::Refused`] if the message is invalid, and [`AgentError::NoModel`] if it
    /// starts a run without a model.
    pub async fn send_custom_message(&self, message: MessageRequest) -> Result<(), AgentError> {
        let inner = &self.inner;
        let starts_run = message.trigger_turn == Some(true);
        let permit = starts_run.then(|| RunPermit::acquire(&inner.run_state, BUSY_PROMPT).ok());
        let permit = permit.flatten();
        if permit.is_some() {
            inner.current_model().map_err(AgentError::NoModel)?;
        }
        {
            let mut switch = inner.switch.lock().await;
            if permit.is_some() {
                inner.switch_if_changed(&mut switch).await?;
            } else {
                inner.switch_if_idle(&mut switch).await?;
            }
            let (services, key, idempotency) =
                (&inner.services, inner.key(), inner.new_idempotency());
            accept_message(services, &key, message, &idempotency, None).await?;
        }
        if let Some(permit) = permit {
            permit.commit();
            self.wait_until_inactive().await;
        }
        Ok(())
    }

    /// Runs a prompt if the agent is idle. While a prompt runs, `mode` decides: it queues the input
    /// as a steer or follow-up, or refuses it. The text is never a command.
    ///
    /// # Errors
    /// Returns [`AgentError::Busy`] for [`Mode::Prompt`] while a prompt runs: select a queue, or
    /// wait.
    pub async fn send_user_message(
        &self,
        input: impl Into<Content>,
        mode: Mode,
    ) -> Result<(), AgentError> {
        let input = Some(input.into());
        let expand = Some(false);
        let request = PromptRequest {
            input: input.clone(),
            mode: Some(Mode::Prompt),
            expand,
            ..PromptRequest::default()
        };
        match self.run_prompt(request).await {
            Err(AgentError::Busy(_)) if mode != Mode::Prompt => {
                let request = PromptRequest { expand, ..queued_request(mode, input) };
                self.enqueue_input(request).await
            }
            result => result.map(drop),
        }
    }

    /// Runs a command of an extension, also while a prompt runs. Its actions are applied soon
    /// after. If the command asks a question, the method waits until it has its answer: answer it in
    /// another task with [`Agent::approvals`] and [`Agent::decide`].
    ///
    /// # Errors
    /// Returns [`AgentError::Command`] if the command failed, and [`AgentError::Refused`] if no
    /// extension has it.
    pub async fn run_command(
        &self,
        name: &str,
        args: impl Into<String>,
    ) -> Result<CommandOutcome, AgentError> {
        let inner = &self.inner;
        let request = CommandRequest { args: Some(args.into()) };
        let command = NamedCommand { name, request };
        let (services, idempotency) = (&inner.services, inner.new_idempotency());
        let (key, response) = {
            let mut switch = inner.switch.lock().await;
            inner.switch_if_idle(&mut switch).await?;
            let key = inner.key();
            let run = run_extension_command(services, &key, command, &idempotency, None);
            let response = run.await?;
            (key, response)
        };
        let handled = response.body.and_then(|body| body.read::<InputHandled>().ok());
        let handled = handled.ok_or_else(CommandError::contended)?;
        let InputHandled { output, error, .. } = self.finish_command(&key, handled).await?;
        error.map_or(Ok(CommandOutcome { output }), |error| Err(AgentError::Command(error)))
    }

    /// Records a shell command that your program ran. While a prompt runs, the result waits for the
    /// next prompt.
    ///
    /// # Errors
    /// Returns [`AgentError::Refused`] if the record has no output or exceeds a limit.
    pub async fn record_bash(&self, record: BashRecord) -> Result<(), AgentError> {
        let inner = &self.inner;
        let mut switch = inner.switch.lock().await;
        inner.switch_if_idle(&mut switch).await?;
        let (services, key, idempotency) = (&inner.services, inner.key(), inner.new_idempotency());
        record_bash(services, &key, record, &idempotency).await?;
        Ok(())
    }

    /// Inserts a prompt that ran outside the service, without a call of the model or a tool. While a
    /// prompt runs, the insertion waits for its end.
    ///
    /// # Errors
    /// Returns [`AgentError::Refused`] with the members to correct.
    pub async fn insert_prompt(
        &self,
        request: FinishedPromptRequest,
    ) -> Result<PromptId, AgentError> {
        let inner = &self.inner;
        let mut switch = inner.switch.lock().await;
        inner.switch_if_idle(&mut switch).await?;
        let (services, key, idempotency) = (&inner.services, inner.key(), inner.new_idempotency());
        insert_prompt(services, &key, request, &idempotency).await?;
        Ok(PromptId::from_input(&idempotency.input_id(&key)))
    }

    /// Replaces old messages by a summary in the model's input. First aborts a running prompt.
    ///
    /// # Errors
    /// Returns [`AgentError::Compaction`] with the reason if there is no summary.
    pub async fn compact(&self, instructions: Option<String>) -> Result<Compaction, AgentError> {
        let inner = &self.inner;
        let permit = self.abort_and_acquire().await?;
        let outcome: Arc<Mutex<Option<Value>>> = Arc::default();
        let observed = Arc::clone(&outcome);
        let _subscription = self.subscribe(move |event| {
            if let AgentEvent::Other { name, data } = event
                && name == "auto_compaction_end"
            {
                *lock(&observed) = Some(data.clone());
            }
        });
        let key = {
            let mut switch = inner.switch.lock().await;
            inner.switch_if_changed(&mut switch).await?;
            inner.key()
        };
        let (services, request) = (&inner.services, CompactRequest { instructions });
        compact(services, &key, request, &inner.new_idempotency()).await?;
        permit.commit();
        let _ = inner.run_state.subscribe().wait_for(RunState::is_idle).await;
        let end = lock(&outcome).take().unwrap_or_default();
        if end.get("result").is_none() {
            let reason = end.get("errorMessage").and_then(Value::as_str);
            let reason = reason.unwrap_or("Compaction cancelled").to_owned();
            return Err(AgentError::Compaction(reason));
        }
        let (head, _) = load::head(services, &key).await?;
        let entries = load::all_entries(services, &head).await?;
        let summary = entries.iter().rev().find_map(|entry| entry.body.compaction().cloned());
        summary.ok_or_else(|| AgentError::Compaction("The summary was removed".to_owned()))
    }

    /// Selects the next or previous configured model from the next model call on. `None` if there
    /// is no other model.
    pub fn cycle_model(&self, direction: CycleDirection) -> Option<ModelRecord> {
        let mut models = self.inner.services.model.models();
        let count = models.len();
        if count < 2 {
            return None;
        }
        let current = self.inner.current_model().ok();
        let index =
            models.iter().position(|model| Some(&model.id) == current.as_ref().map(|it| &it.id));
        let next = match (index, direction) {
            (Some(index), CycleDirection::Forward) => (index + 1) % count,
            (Some(index), CycleDirection::Backward) => (index + count - 1) % count,
            (None, _) => 0,
        };
        let model = models.swap_remove(next);
        self.set_model(model.id.clone());
        Some(model)
    }

    /// Sets the name of the current conversation. An empty name removes it.
    ///
    /// # Errors
    /// Returns [`AgentError::Refused`] if the name is too long or is not one line.
    pub async fn set_session_name(&self, name: impl Into<String>) -> Result<(), AgentError> {
        let inner = &self.inner;
        let mut switch = inner.switch.lock().await;
        inner.switch_if_idle(&mut switch).await?;
        let patch = Map::from_iter([("name".to_owned(), Value::String(name.into()))]);
        let (services, key, idempotency) = (&inner.services, inner.key(), inner.new_idempotency());
        patch_conversation(services, &key, &patch, &idempotency, |_| true).await?;
        Ok(())
    }

    /// Aborts the running prompt, removes the queued inputs and begins an empty conversation. The
    /// configuration of the agent stays. Returns false, and changes nothing, if an extension cancels.
    ///
    /// # Errors
    /// The store is unavailable: try again.
    pub async fn new_session(&self) -> Result<bool, AgentError> {
        let inner = &self.inner;
        if !inner.allows_switch(None).await? {
            return Ok(false);
        }
        let previous = inner.key().conversation_id;
        let _permit = self.abort_and_acquire().await?;
        let mut switch = inner.switch.lock().await;
        inner.leave_conversation(&mut switch).await?;
        lock(&inner.observed).clear();
        switch.messages_version = inner.create_conversation(None).await?;
        inner.observe_switch(previous).await?;
        Ok(true)
    }

    /// Aborts the running prompt, removes the queued inputs and continues another conversation of
    /// the data folder, with its model and thinking level. Returns false, and changes nothing, if an
    /// extension cancels.
    ///
    /// # Errors
    /// Returns [`AgentError::Refused`] if there is no such conversation. Nothing is aborted then.
    pub async fn switch_session(&self, id: &ConversationId) -> Result<bool, AgentError> {
        let inner = &self.inner;
        let key = inner.owner.conversation_key(id.as_str());
        load::head(&inner.services, &key).await?;
        if !inner.allows_switch(Some(id)).await? {
            return Ok(false);
        }
        let previous = inner.key().conversation_id;
        let permit = self.abort_and_acquire().await?;
        let mut switch = inner.switch.lock().await;
        inner.leave_conversation(&mut switch).await?;
        let path = inner.enter_conversation(key).await?;
        switch.messages_version = lock(&inner.observed).messages_version;
        permit.commit();
        self.follow_settings(&path);
        drop(switch);
        inner.observe_switch(previous).await?;
        Ok(true)
    }

    /// Takes over the model and the thinking level of a path. A model that is not configured stays
    /// unset.
    pub(super) fn follow_settings(&self, path: &[Arc<Entry>]) {
        let inner = &self.inner;
        let (model, level) = (last_model(path), last_thinking_level(path));
        let is_current =
            inner.current_model().is_ok_and(|current| Some(current.id.as_str()) == model);
        let model = model.filter(|id| !is_current && is_model_configured(&inner.services, id));
        self.update_config(|config| {
            if let Some(model) = model {
                config.settings.model = Some(model.to_owned());
            }
            config.settings.thinking_level = level.or(config.settings.thinking_level);
        });
    }

    /// Copies the conversation up to an entry and continues the copy. Aborts the running prompt and
    /// removes the queued inputs. Returns the text of the user message before which the copy ends.
    /// `None`, and no change, if an extension cancels.
    ///
    /// # Errors
    /// Returns [`AgentError::Refused`] if there is no such entry, or if it is no user message and the
    /// position is [`ForkPosition::Before`].
    pub async fn fork(
        &self,
        entry_id: &EntryId,
        position: ForkPosition,
    ) -> Result<Option<Fork>, AgentError> {
        let inner = &self.inner;
        let request = ForkRequest {
            entry_id: entry_id.to_string(),
            position: Some(position),
            conversation_id: None,
        };
        let (services, key, idempotency) = (&inner.services, inner.key(), inner.new_idempotency());
        let response = fork_conversation(services, &key, request, &idempotency).await?;
        let mut body = response.body.map(|body| body.to_value()).unwrap_or_default();
        if response.status == 202 {
            let input_id = idempotency.input_id(&key);
            body = self.wait_for_result::<Value>(&key, &input_id).await?;
        }
        if let Some(error) = body.get("error").and_then(Value::as_str) {
            return Err(AgentError::Command(error.to_owned()));
        }
        if body.get("conversation").is_none() {
            return Ok(None);
        }
        let id = ConversationId::new(idempotency.conversation_id(&inner.owner));
        let permit = self.abort_and_acquire().await?;
        let mut switch = inner.switch.lock().await;
        inner.leave_conversation(&mut switch).await?;
        inner.enter_conversation(inner.owner.conversation_key(id.as_str())).await?;
        switch.messages_version = lock(&inner.observed).messages_version;
        permit.commit();
        let text = body.get("text").and_then(Value::as_str).map(ToOwned::to_owned);
        Ok(Some(Fork { conversation_id: id, text }))
    }

    /// Aborts runs until none is left.
    pub(super) async fn abort_and_acquire(&self) -> Result<RunPermit<'_>, AgentError> {
        let mut run_state = self.inner.run_state.subscribe();
        loop {
            if let Ok(permit) = RunPermit::acquire(&self.inner.run_state, BUSY_PROMPT) {
                return Ok(permit);
            }
            self.abort().await?;
            let _ = run_state.changed().await;
        }
    }
}

impl AgentInner {
    /// True unless an extension cancels the switch to `target`, or to a new conversation.
    async fn allows_switch(&self, target: Option<&ConversationId>) -> Result<bool, AgentError> {
        let (head, _) = load::head(&self.services, &self.key()).await?;
        let request = InputId::new(self.services.ids.new_id());
        Ok(request_hooks::allows_switch(&self.services, &head, target, &request).await)
    }

    async fn observe_switch(&self, previous: ConversationId) -> Result<(), AgentError> {
        let (head, _) = load::head(&self.services, &self.key()).await?;
        let request = InputId::new(self.services.ids.new_id());
        request_hooks::observe_switch(&self.services, &head, previous, &request).await;
        Ok(())
    }

    /// Record of the model of the next prompt.
    ///
    /// # Errors
    /// The model is not configured; the text names the setting to set.
    pub(super) fn current_model(&self) -> Result<ModelRecord, String> {
        let model = lock(&self.config).settings.model.clone();
        self.services.model.record(model.as_deref().unwrap_or(DEFAULT_MODEL))
    }

    /// Removes the queued inputs of the current conversation, and records model and thinking level
    /// for the return to it.
    async fn leave_conversation(&self, switch: &mut ConversationSwitch) -> Result<(), AgentError> {
        self.move_queued_inputs(switch).await?;
        let (services, key) = (&self.services, self.key());
        clear_queues(services, &key, None).await?;
        let (head, _) = load::head(services, &key).await?;
        let entries = load::all_entries(services, &head).await?;
        let path = path_to_leaf(&entries, head.leaf_id.as_ref());
        let mut changes = Vec::new();
        if let Ok(model) = self.current_model()
            && last_model(&path) != Some(model.id.as_str())
        {
            let change = ModelChange::new(model.provider, model.id);
            changes.push(EntryBody::ModelChange(change));
        }
        let level = lock(&self.config).settings.thinking_level.unwrap_or_default();
        if last_thinking_level(&path) != Some(level) {
            changes.push(EntryBody::ThinkingLevelChange(ThinkingLevelChange::new(level)));
        }
        if !changes.is_empty() {
            append_entries(services, &key, &changes).await?;
        }
        Ok(())
    }
}
