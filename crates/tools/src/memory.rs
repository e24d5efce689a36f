//! The tools `remember` and `forget`: an agent keeps notes about its user. The driver supplies the
//! port that stores the notes.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::approval_summary::ApprovalSummary;
use crate::code::{Approval, CallContext, Tool, ToolError};
use crate::{CheckContext, ToolResult};
use turnwheel_conversation::memory::{ForgetTarget, clean_note};
use turnwheel_conversation::request::Effect;
use turnwheel_platform::ids::{ConversationKey, EffectId};

pub const REMEMBER: &str = "remember";
pub const FORGET: &str = "forget";
/// Name of the widget that shows a change of the memory.
const WIDGET: &str = "memory";
const NO_NOTE: &str = "There is no such note. Use its whole text, as in Remembered Context.";
const UNAVAILABLE: &str = "The memory is not available here.";

/// A note of an agent.
#[derive(Debug)]
pub struct NewNote<'a> {
    pub effect: &'a EffectId,
    /// Empty: for all projects.
    pub project: &'a str,
    pub text: &'a str,
}

/// Port of the memory of a conversation's user. Errors are texts for the model.
#[async_trait]
pub trait UserMemoryStore: Send + Sync + fmt::Debug {
    /// Stores a note. Equal effect ids are one note.
    async fn remember(
        &self,
        conversation: &ConversationKey,
        note: NewNote<'_>,
    ) -> Result<(), String>;

    /// The error of [`UserMemoryStore::remember`], without storing the note.
    async fn check_note(
        &self,
        conversation: &ConversationKey,
        note: &NewNote<'_>,
    ) -> Result<(), String>;

    /// Number of the notes that [`UserMemoryStore::forget`] would remove.
    async fn count(
        &self,
        conversation: &ConversationKey,
        project: &str,
        target: &ForgetTarget,
    ) -> Result<usize, String>;

    /// Removes notes for all projects and of one project. Returns their number.
    async fn forget(
        &self,
        conversation: &ConversationKey,
        project: &str,
        target: &ForgetTarget,
    ) -> Result<usize, String>;
}

/// The place and the rules of changes by an agent.
#[derive(Clone, Debug)]
pub struct MemoryAccess {
    pub project: Arc<str>,
    /// True if the user approves each change.
    pub needs_approval: bool,
}

impl MemoryAccess {
    fn project_of(&self, scope: Option<NoteScope>) -> &str {
        match scope.unwrap_or_default() {
            NoteScope::Project => &self.project,
            NoteScope::Global => "",
        }
    }

    fn approval(&self, reason: &str) -> Option<Approval> {
        self.needs_approval.then(|| Approval::because(reason))
    }

    fn approval_summary(&self) -> ApprovalSummary {
        if self.needs_approval {
            ApprovalSummary::always_by_owner()
        } else {
            ApprovalSummary::Never
        }
    }
}

#[derive(Debug)]
pub struct Remember(pub MemoryAccess);

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum NoteScope {
    #[default]
    Project,
    Global,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RememberArgs {
    /// The fact as one short sentence
    text: String,
    /// global: a fact about the user for all projects (default: project)
    scope: Option<NoteScope>,
}

impl Tool for Remember {
    type Args = RememberArgs;

    fn name(&self) -> &'static str {
        REMEMBER
    }

    fn description(&self) -> &'static str {
        "Remember a fact about the user or the project in later conversations"
    }

    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    async fn check(&self, args: &RememberArgs, cx: &CheckContext<'_>) -> Result<(), String> {
        let memory = cx.memory.ok_or(UNAVAILABLE)?;
        let text = clean_note(&args.text)?;
        let note =
            NewNote { effect: cx.effect_id, project: self.0.project_of(args.scope), text: &text };
        memory.check_note(cx.conversation, &note).await
    }

    fn approval(&self, _args: &RememberArgs) -> Option<Approval> {
        self.0.approval("The agent wants to remember this in later conversations.")
    }

    fn approval_summary(&self) -> ApprovalSummary {
        self.0.approval_summary()
    }

    async fn call(&self, args: RememberArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let memory = cx.memory().ok_or_else(|| ToolError::failed(UNAVAILABLE))?;
        let text = clean_note(&args.text).map_err(ToolError::Failed)?;
        let project = self.0.project_of(args.scope);
        let note = NewNote { effect: cx.effect_id(), project, text: &text };
        memory.remember(cx.conversation_key(), note).await.map_err(ToolError::Failed)?;
        let data = json!({
            "action": REMEMBER, "id": cx.effect_id(), "text": text,
            "project": Some(project).filter(|name| !name.is_empty()),
        });
        cx.display_widget(WIDGET, &data, &format!("Remembered: {text}"));
        Ok(ToolResult::text("Remembered."))
    }
}

#[derive(Debug)]
pub struct Forget(pub MemoryAccess);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForgetArgs {
    /// The whole text of the note, as in Remembered Context
    text: Option<String>,
    /// Id of the note, instead of its text
    id: Option<String>,
}

impl ForgetArgs {
    fn target(&self) -> Result<ForgetTarget, String> {
        match (self.id.clone(), self.text.clone()) {
            (Some(id), None) => Ok(ForgetTarget::Id(id)),
            (None, Some(text)) => Ok(ForgetTarget::Text(text)),
            (Some(_), Some(_)) | (None, None) => {
                Err("Give either the `text` or the `id` of the note.".to_owned())
            }
        }
    }
}

impl Tool for Forget {
    type Args = ForgetArgs;

    fn name(&self) -> &'static str {
        FORGET
    }

    fn description(&self) -> &'static str {
        "Forget a remembered fact"
    }

    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    async fn check(&self, args: &ForgetArgs, cx: &CheckContext<'_>) -> Result<(), String> {
        let memory = cx.memory.ok_or(UNAVAILABLE)?;
        let target = args.target()?;
        let count = memory.count(cx.conversation, &self.0.project, &target).await?;
        // An earlier attempt of this call may have removed the note.
        if count == 0 && cx.attempts == 0 { Err(NO_NOTE.to_owned()) } else { Ok(()) }
    }

    fn approval(&self, _args: &ForgetArgs) -> Option<Approval> {
        self.0.approval("The agent wants to forget this.")
    }

    fn approval_summary(&self) -> ApprovalSummary {
        self.0.approval_summary()
    }

    async fn call(&self, args: ForgetArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let memory = cx.memory().ok_or_else(|| ToolError::failed(UNAVAILABLE))?;
        let target = args.target().map_err(ToolError::Failed)?;
        let forgotten = memory.forget(cx.conversation_key(), &self.0.project, &target).await;
        // An earlier attempt of this call may have removed the note.
        if forgotten.map_err(ToolError::Failed)? == 0 && cx.attempt() == 1 {
            return Ok(ToolResult::error(NO_NOTE));
        }
        let (id, text) = match target {
            ForgetTarget::Id(id) => (Some(id), None),
            ForgetTarget::Text(text) => (None, Some(text)),
        };
        let shown = text.as_deref().or(id.as_deref()).unwrap_or_default();
        let fallback = format!("Forgotten: {shown}");
        cx.display_widget(WIDGET, &json!({"action": FORGET, "id": id, "text": text}), &fallback);
        Ok(ToolResult::text("Forgotten."))
    }
}
