//! Context of one call of a tool in Rust.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::code::{ServiceRegistry, ToolError};
use crate::memory::UserMemoryStore;
use crate::plugin_state::{CallPluginState, ToolPlugin};
use crate::recall::PastMessages;
use crate::result_limits::{custom_output, limit_progress};
use crate::schedule::ScheduleStore;
use crate::user_skills::UserSkillStore;
use crate::workspace::{Files, FolderPath, WorkspacePath};
use crate::{ToolContext, ToolResult};
use turnwheel_conversation::entry::{FileOutput, Output, WidgetOutput};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, ConversationKey, EffectId, TenantId, UserId};

/// One call. Clones are cheap and share the call's files and outputs.
#[derive(Clone)]
pub struct CallContext {
    context: ToolContext,
    output: Arc<Mutex<CallOutput>>,
    finished: CancellationToken,
    services: ServiceRegistry,
    plugin: Option<ToolPlugin>,
}

struct CallOutput {
    files: Files,
    outputs: Vec<Output>,
}

impl fmt::Debug for CallContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallContext").field("context", &self.context).finish_non_exhaustive()
    }
}

impl CallContext {
    pub(super) fn new(
        context: ToolContext,
        services: ServiceRegistry,
        plugin: Option<ToolPlugin>,
    ) -> Self {
        let files = Files::new(Arc::clone(&context.workspace), context.package_files.clone());
        let over = context.abort.child_token();
        let made = Arc::new(Mutex::new(CallOutput { files, outputs: Vec::new() }));
        Self { context, output: made, finished: over, services, plugin }
    }

    pub(super) fn finished_token(&self) -> CancellationToken {
        self.finished.clone()
    }

    /// Adds the call's outputs and file changes to its result.
    pub(super) fn complete_result(&self, mut result: ToolResult) -> ToolResult {
        self.with_output(|made| {
            result.outputs.append(&mut made.outputs);
            result.workspace.append(&mut made.files.take_changes());
        });
        result
    }

    /// Runs `act` under the lock, which is never held across an await. A panic of another clone
    /// leaves the value consistent.
    fn with_output<R>(&self, act: impl FnOnce(&mut CallOutput) -> R) -> R {
        act(&mut self.output.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Equal for every attempt of this call. Send it as the idempotency key.
    pub fn effect_id(&self) -> &EffectId {
        &self.context.effect_id
    }

    /// From 1.
    pub fn attempt(&self) -> u32 {
        self.context.attempt
    }

    /// The provider's id of the call. It is not unique.
    pub fn tool_call_id(&self) -> &str {
        &self.context.tool_call_id
    }

    pub fn conversation(&self) -> &ConversationId {
        &self.context.artifact_scope.key.conversation_id
    }

    pub fn tenant(&self) -> &TenantId {
        &self.context.artifact_scope.key.tenant
    }

    pub fn user(&self) -> &UserId {
        &self.context.artifact_scope.key.user
    }

    pub fn conversation_key(&self) -> &ConversationKey {
        &self.context.artifact_scope.key
    }

    pub fn schedules(&self) -> Option<&Arc<dyn ScheduleStore>> {
        self.context.knowledge.schedules.as_ref()
    }

    pub fn memory(&self) -> Option<&Arc<dyn UserMemoryStore>> {
        self.context.knowledge.memory.as_ref()
    }

    pub fn past_messages(&self) -> Option<&Arc<dyn PastMessages>> {
        self.context.knowledge.past_messages.as_ref()
    }

    /// The time of the host.
    pub fn now(&self) -> Timestamp {
        self.context.clock.now()
    }

    pub fn user_skills(&self) -> Option<&Arc<dyn UserSkillStore>> {
        self.context.knowledge.user_skills.as_ref()
    }

    /// Returns the value of this type that the app registered with `App::service`.
    ///
    /// # Errors
    /// The app registered no value of this type. Call this before any effect, because the error
    /// states that the call had no effect.
    pub fn service<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, ToolError> {
        self.services.get()
    }

    /// The state of the plugin that declares this tool, with the change of this call. `None`: it was
    /// never set, or it was cleared.
    ///
    /// # Errors
    /// The tool belongs to no plugin, or the plugin cannot read its state.
    pub fn state<S: DeserializeOwned>(&self) -> Result<Option<S>, ToolError> {
        let (plugin, call) = self.plugin_state()?;
        plugin.state(call).map_err(ToolError::Failed)
    }

    /// Sets the state of the plugin that declares this tool, which must declare
    /// [`Tool::writes_state`](crate::code::Tool::writes_state). The state is stored with the result of the
    /// call. If the call fails, or its outcome is unknown, nothing is stored.
    ///
    /// # Errors
    /// The tool may not set the state, the state does not match its JSON Schema, or it is larger
    /// than 8 KB, or the state of all plugins than 24 KB. The state stays as it was. Set it before
    /// an effect, because the error states that the call had no effect.
    pub fn set_state(&self, state: &impl Serialize) -> Result<(), ToolError> {
        let (plugin, call) = self.plugin_state()?;
        plugin.set_state(call, state).map_err(ToolError::Failed)
    }

    fn plugin_state(&self) -> Result<(&ToolPlugin, &CallPluginState), ToolError> {
        let state = self.plugin.as_ref().zip(self.context.plugin_state.as_ref());
        state.ok_or_else(|| {
            ToolError::failed("this tool belongs to no plugin: declare it in `Plugin::tools`")
        })
    }

    /// W3C trace context, for calls to other services.
    pub fn traceparent(&self) -> Option<&str> {
        self.context.traceparent.as_deref()
    }

    /// The call's future is dropped at this time.
    pub fn deadline(&self) -> Timestamp {
        self.context.deadline
    }

    pub fn remaining(&self) -> Duration {
        self.now().until(self.context.deadline)
    }

    /// True if the call is over: aborted, past its deadline, or finished.
    ///
    /// After an abort, a `Write` can observe this and has two seconds to return its outcome. Any
    /// other call is dropped at once. Work that the tool moved to another task or thread can always
    /// observe it.
    pub fn is_cancelled(&self) -> bool {
        self.finished.is_cancelled()
    }

    pub(crate) fn abort_token(&self) -> CancellationToken {
        self.context.abort.clone()
    }

    /// Completes when [`Self::is_cancelled`] becomes true.
    pub async fn cancelled(&self) {
        self.finished.cancelled().await;
    }

    /// Publishes progress to event readers. It is limited like a result and not stored.
    pub fn progress(&self, partial: &ToolResult) {
        (self.context.on_progress)(limit_progress(partial).as_ref().unwrap_or(partial));
    }

    /// The conversation's files. This call sees its own changes at once; other calls see them with
    /// its result.
    pub fn workspace(&self) -> Workspace<'_> {
        Workspace { cx: self }
    }

    /// Gives the user a file.
    ///
    /// # Errors
    /// The file is not saved. The text states the reason; return it with `?`.
    pub async fn add_file(
        &self,
        name: &str,
        mime_type: &str,
        bytes: impl Into<Bytes>,
    ) -> Result<(), ToolError> {
        let saved = self.context.save_artifact(name, mime_type, bytes.into()).await?;
        let file = Output::File(FileOutput {
            artifact_id: saved.id,
            path: name.to_owned(),
            mime_type: mime_type.to_owned(),
            size: saved.size,
            description: None,
            extra: Extra::new(),
        });
        self.with_output(|made| made.outputs.push(file));
        Ok(())
    }

    /// Shows the user a widget, which the model does not read. Clients that do not know the widget
    /// show `fallback`.
    pub fn display_widget(&self, widget: &str, data: &impl Serialize, fallback: &str) {
        let widget = Output::Widget(WidgetOutput {
            widget: widget.to_owned(),
            data: RawJson::from_value(data),
            fallback: fallback.to_owned(),
            extra: Extra::new(),
        });
        self.with_output(|made| made.outputs.push(widget));
    }

    /// Shows the user an output of a kind of your own, which the model does not read:
    /// `{"type": "citation", …}`. Clients skip kinds that they do not know.
    ///
    /// # Errors
    /// The type is missing, or `file` or `widget`, or the output has more than 12 KB.
    pub fn display_output(&self, output: &Value) -> Result<(), ToolError> {
        let output = custom_output(RawJson::from_value(output)).map_err(ToolError::Failed)?;
        self.with_output(|made| made.outputs.push(output));
        Ok(())
    }
}

/// The conversation's files, with the changes of this call.
#[derive(Debug)]
pub struct Workspace<'a> {
    cx: &'a CallContext,
}

impl Workspace<'_> {
    /// Every path and its size in bytes, in byte order of the paths.
    pub fn list(&self) -> Vec<(String, u64)> {
        self.files().iter().map(|(path, size)| (path.to_owned(), size)).collect()
    }

    /// # Errors
    /// The path is invalid, or the file does not exist. The text contains the remedy for the model.
    pub async fn read(&self, path: &str) -> Result<Bytes, ToolError> {
        let path = WorkspacePath::parse(path).map_err(ToolError::Failed)?;
        self.files().read(&self.cx.context, &path).await.map_err(ToolError::Failed)
    }

    /// Creates or replaces a file.
    ///
    /// # Errors
    /// The path is invalid, or a limit of the workspace is reached. The text contains the remedy
    /// for the model.
    pub async fn write(&self, path: &str, bytes: impl Into<Bytes>) -> Result<(), ToolError> {
        let path = WorkspacePath::parse(path).map_err(ToolError::Failed)?;
        let bytes = bytes.into();
        let size = bytes.len() as u64;
        self.files().check_write(&path, size).map_err(ToolError::Failed)?;
        let mime_type = mime_guess::from_path(path.as_str()).first_raw().unwrap_or("text/plain");
        let saved = self.cx.context.save_artifact(path.as_str(), mime_type, bytes).await?;
        // `put` checks the limits again, because another clone may have written in the meantime.
        self.cx.with_output(|made| made.files.put(&path, saved.id, size)).map_err(ToolError::Failed)
    }

    /// # Errors
    /// The path is invalid, or the file does not exist. The text contains the remedy for the model.
    pub fn remove(&self, path: &str) -> Result<(), ToolError> {
        let path = WorkspacePath::parse(path).map_err(ToolError::Failed)?;
        self.cx.with_output(|made| made.files.remove(&path)).map_err(ToolError::Failed)
    }

    pub fn files(&self) -> Files {
        self.cx.with_output(|made| made.files.clone())
    }

    pub fn context(&self) -> &ToolContext {
        &self.cx.context
    }

    /// # Errors
    /// The path is not a valid folder path. The text contains the remedy for the model.
    pub(crate) fn parse_folder(path: Option<&str>) -> Result<FolderPath, ToolError> {
        FolderPath::parse(path.unwrap_or_default()).map_err(ToolError::Failed)
    }
}
