//! The tool `create_skill`: an agent writes a skill of its user, after an approval. The driver
//! supplies the port that stores skills.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::approval_summary::ApprovalSummary;
use crate::code::{Approval, CallContext, Tool, ToolError};
use crate::{CheckContext, ToolResult};
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::user_skills::ListedSkill;
use turnwheel_platform::ids::{ConversationKey, EffectId};

pub const CREATE_SKILL: &str = "create_skill";
/// Name of the widget that shows a new skill.
const WIDGET: &str = "skill";
pub const UNAVAILABLE: &str = "Skills of users are not available here.";

/// A skill that an agent writes.
#[derive(Debug)]
pub struct NewSkill<'a> {
    pub effect: &'a EffectId,
    pub name: &'a str,
    pub description: &'a str,
    pub instructions: &'a str,
    pub tools: &'a [String],
}

/// A skill as the model receives it.
#[derive(Debug, PartialEq, Eq)]
pub struct SkillText {
    pub tools: Vec<String>,
    pub body: String,
}

/// Port of the skills of a conversation's user. Errors are texts for the model.
#[async_trait]
pub trait UserSkillStore: Send + Sync + fmt::Debug {
    /// Stores a skill. Equal effect ids are one skill. A name that the user has is an error.
    async fn create(
        &self,
        conversation: &ConversationKey,
        skill: NewSkill<'_>,
    ) -> Result<(), String>;

    /// The error of [`UserSkillStore::create`], without storing the skill.
    async fn check(
        &self,
        conversation: &ConversationKey,
        skill: &NewSkill<'_>,
    ) -> Result<(), String>;

    /// All skills of the user, the oldest first.
    async fn list(&self, conversation: &ConversationKey) -> Result<Vec<ListedSkill>, String>;

    /// `None`: the user has no such skill.
    async fn load(
        &self,
        conversation: &ConversationKey,
        name: &str,
    ) -> Result<Option<SkillText>, String>;
}

/// The rules of the skills that an agent writes.
#[derive(Clone, Debug)]
pub struct SkillRules {
    /// `owner`, `link`, `role:NAME`.
    pub approvers: Arc<[String]>,
    /// The tools of the agent.
    pub tools: Arc<[String]>,
    /// Names of the app's skills.
    pub taken: Arc<[String]>,
}

impl SkillRules {
    fn check(&self, args: &CreateSkillArgs) -> Result<(), String> {
        let tools = args.tools.iter().flatten();
        let foreign: Vec<&str> =
            tools.filter(|name| !self.tools.contains(name)).map(String::as_str).collect();
        if !foreign.is_empty() {
            let names = foreign.join(", ");
            return Err(format!(
                "A skill may name only tools of this agent, and these are not: {names}."
            ));
        }
        if self.taken.contains(&args.name) {
            return Err(format!("The app has a skill `{}`. Choose another name.", args.name));
        }
        Ok(())
    }
}

/// Always needs an approval, whose arguments are the whole skill.
#[derive(Debug)]
pub struct CreateSkill(pub SkillRules);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSkillArgs {
    /// a-z, 0-9 and single hyphens, at most 64 characters
    name: String,
    /// When to use the skill, in one sentence
    description: String,
    /// The full instructions, as Markdown
    instructions: String,
    /// Names of your tools that the skill needs
    tools: Option<Vec<String>>,
}

impl CreateSkillArgs {
    fn as_skill<'a>(&'a self, effect: &'a EffectId) -> NewSkill<'a> {
        NewSkill {
            effect,
            name: &self.name,
            description: &self.description,
            instructions: &self.instructions,
            tools: self.tools.as_deref().unwrap_or_default(),
        }
    }
}

impl Tool for CreateSkill {
    type Args = CreateSkillArgs;

    fn name(&self) -> &'static str {
        CREATE_SKILL
    }

    fn description(&self) -> &'static str {
        "Create a skill for later conversations when the user wants one"
    }

    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalSummary::Always { approvers: self.0.approvers.to_vec() }
    }

    async fn check(&self, args: &CreateSkillArgs, cx: &CheckContext<'_>) -> Result<(), String> {
        let skills = cx.user_skills.ok_or(UNAVAILABLE)?;
        self.0.check(args)?;
        skills.check(cx.conversation, &args.as_skill(cx.effect_id)).await
    }

    fn approval(&self, args: &CreateSkillArgs) -> Option<Approval> {
        let reason = format!(
            "The agent wants to create the skill `{}`. Read all of its instructions: later conversations follow them.",
            args.name.escape_debug()
        );
        Some(Approval::because(reason).by(self.0.approvers.iter()))
    }

    async fn call(&self, args: CreateSkillArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let skills = cx.user_skills().ok_or_else(|| ToolError::failed(UNAVAILABLE))?;
        self.0.check(&args).map_err(ToolError::Failed)?;
        let skill = args.as_skill(cx.effect_id());
        skills.create(cx.conversation_key(), skill).await.map_err(ToolError::Failed)?;
        let data = json!({"action": "create", "name": args.name, "description": args.description});
        cx.display_widget(WIDGET, &data, &format!("Created the skill {}.", args.name));
        Ok(ToolResult::text(format!("Created the skill `{}`.", args.name)))
    }
}
