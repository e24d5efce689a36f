//! Actions of hooks: changes of the conversation that the commit of the hook's step applies.

use std::sync::{MutexGuard, PoisonError};

use serde::Serialize;

use crate::{HookContext, HookError};
use turnwheel_conversation::action::{
    Action, HookActions, MessageSpec, StoredActions, UserMessageQueue,
};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::ModelChange;
use turnwheel_conversation::event::Severity;
use turnwheel_conversation::name;
use turnwheel_conversation::settings::ThinkingLevel;
use turnwheel_conversation::step::Input;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::EntryId;

/// Changes of the conversation. The commit of the step in which the hook runs applies them, in
/// order, or none of them: those of a failed hook are dropped. Those of a command, an input hook and
/// a shell record are stored with the request, and the next commit of a worker applies them. One hook may have 16 actions of 64 KB
/// together.
///
/// Events that only observe have no actions, and neither have `context`, `on_payload` and `prepare`.
impl HookContext {
    /// Appends a `custom` entry, which the model never receives.
    ///
    /// # Errors
    /// The event has no actions, the type begins with `turnwheel/` or is not among the declared
    /// ones, or a limit is exceeded.
    pub fn append_entry(
        &self,
        custom_type: impl Into<String>,
        data: &impl Serialize,
    ) -> Result<(), HookError> {
        let custom_type = custom_type.into();
        if !self.extension().permissions().allows_storage(&custom_type) {
            return Err(self.refusal(&format!("entry type `{custom_type}`"), "with_storage"));
        }
        let data = RawJson::from_text(serde_json::to_string(data)?)?;
        self.add_action(Action::AppendEntry { custom_type, data: Some(data) })
    }

    /// Sends a custom message: the model receives it like a message of the user.
    ///
    /// # Errors
    /// The event has no actions, or a limit is exceeded.
    pub fn send_message(&self, message: MessageSpec) -> Result<(), HookError> {
        message.check().map_err(HookError::new)?;
        self.add_action(Action::SendMessage(message))
    }

    /// Sends a message as the user. It starts a prompt if none runs.
    ///
    /// # Errors
    /// The event has no actions, or a limit is exceeded.
    pub fn send_user_message(
        &self,
        content: impl Into<Content>,
        queue: UserMessageQueue,
    ) -> Result<(), HookError> {
        self.add_action(Action::SendUserMessage { content: content.into(), queue })
    }

    /// Sets the model of the conversation: an id, or `normal` or `high`.
    ///
    /// # Errors
    /// The event has no actions, or the model is not configured.
    pub fn set_model(&self, model: &str) -> Result<(), HookError> {
        let record = self.site().access.model.record(model).map_err(HookError::new)?;
        let change = ModelChange::new(record.provider, record.id);
        self.add_action(Action::SetModel { model: model.to_owned(), change })
    }

    /// # Errors
    /// The event has no actions.
    pub fn set_thinking_level(&self, level: ThinkingLevel) -> Result<(), HookError> {
        self.add_action(Action::SetThinkingLevel(level))
    }

    /// Names of the agent's tools that the model receives from the next call on. Unknown names are
    /// ignored.
    ///
    /// # Errors
    /// The event has no actions, or the extension declares tools, and not this one.
    pub fn set_active_tools<N: Into<String>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<(), HookError> {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let permissions = self.extension().permissions();
        if let Some(refused) = names.iter().find(|name| !permissions.allows_tool(name)) {
            return Err(self.refusal(&format!("tool `{refused}`"), "with_tools"));
        }
        self.add_action(Action::SetActiveTools(names))
    }

    /// Sets the name of the conversation. An empty one removes it.
    ///
    /// # Errors
    /// The event has no actions, or the name has more than 512 bytes or control characters.
    pub fn set_session_name(&self, name: &str) -> Result<(), HookError> {
        let name = name::parse(name).map_err(|why| HookError::new(format!("the name {why}")))?;
        self.add_action(Action::SetName(name))
    }

    /// Sets the label of an entry. `None` removes it.
    ///
    /// # Errors
    /// The event has no actions.
    pub fn set_label(&self, entry_id: EntryId, label: Option<String>) -> Result<(), HookError> {
        self.add_action(Action::SetLabel { entry_id, label })
    }

    /// Aborts the running prompt. Without one it has no effect.
    ///
    /// # Errors
    /// The event has no actions.
    pub fn abort(&self) -> Result<(), HookError> {
        self.add_action(Action::Abort)
    }

    /// Requests a compaction, which starts when no prompt runs.
    ///
    /// # Errors
    /// The event has no actions.
    pub fn compact(&self, instructions: Option<String>) -> Result<(), HookError> {
        self.add_action(Action::Compact { instructions })
    }

    /// Emits the event `notify`, which clients show to the user.
    ///
    /// # Errors
    /// The event has no actions, or a limit is exceeded.
    pub fn notify(&self, text: impl Into<String>, severity: Severity) -> Result<(), HookError> {
        self.add_action(Action::Notify { text: text.into(), severity })
    }

    fn add_action(&self, action: Action) -> Result<(), HookError> {
        let event = self.hook().name();
        let Some(origin) = self.hook().action_origin() else {
            return Err(HookError::new(format!("a hook of {event} has no actions")));
        };
        if !self.extension().permissions().allows_action(action.name()) {
            return Err(self.refusal(&format!("action `{}`", action.name()), "with_actions"));
        }
        let new = || HookActions::new(self.extension().name(), event, origin);
        self.lock_actions().get_or_insert_with(new).add(action).map_err(HookError::new)
    }

    fn lock_actions(&self) -> MutexGuard<'_, Option<HookActions>> {
        self.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The actions for the inbox item of a request. `None`: there are none.
    pub fn take_stored_actions(&self) -> Option<StoredActions> {
        let taken = self.lock_actions().take()?;
        let (by, actions) = (taken.by.clone(), taken.actions().to_vec());
        (!actions.is_empty()).then_some(StoredActions { by, actions })
    }

    /// Like [`Self::take_actions`], with the aborts only.
    pub fn take_aborts(&self) -> Option<Input> {
        self.lock_actions().as_mut()?.retain_aborts();
        self.take_actions()
    }

    /// The actions as an input of the commit. `None`: there are none.
    pub fn take_actions(&self) -> Option<Input> {
        let taken = self.lock_actions().take()?;
        (!taken.actions().is_empty()).then(|| Input::HookActions(Box::new(taken)))
    }
}
