//! The tool `find_skills`: the model searches the skills that do not fit into the system prompt.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::skills::index::{SkillIndex, is_match, render_found_user_skills, render_skills};
use crate::skills::{FIND_SKILLS, LOAD_SKILL, Skill};
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::user_skills::ListedSkill;
use turnwheel_tools::ToolResult;
use turnwheel_tools::approval_summary::ApprovalSummary;
use turnwheel_tools::code::{CallContext, Tool, ToolError};

/// Maximum number of skills in a result.
const FOUND_MAX: usize = 20;
const QUERY_BYTES_MAX: usize = 256;

/// Returns the names and descriptions of skills of the app, then of the user.
pub(super) struct FindSkills {
    pub(super) skills: Arc<[Arc<Skill>]>,
    pub(super) has_user_skills: bool,
    /// True if the model may read the files of the skills of the app.
    pub(super) has_files: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FindSkillsArgs {
    /// Words that the name or the description of the skill contains
    query: String,
}

impl Tool for FindSkills {
    type Args = FindSkillsArgs;

    fn name(&self) -> &'static str {
        FIND_SKILLS
    }

    fn description(&self) -> &'static str {
        "Find skills by words of their names and descriptions"
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalSummary::Never
    }

    async fn call(&self, args: FindSkillsArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let query = args.query.trim();
        if query.is_empty() || query.len() > QUERY_BYTES_MAX {
            let reason = format!("The query must have 1 to {QUERY_BYTES_MAX} bytes.");
            return Err(ToolError::failed(reason));
        }
        let visible = self.skills.iter().filter(|skill| !skill.is_hidden);
        let of_app: Vec<&Skill> = visible
            .filter(|skill| is_match(query, &skill.name, &skill.description))
            .map(|skill| &**skill)
            .collect();
        let list = self.list_of_user(&cx).await?;
        let is_taken = |name: &str| self.skills.iter().any(|skill| skill.name == name);
        let of_user: Vec<&ListedSkill> = list
            .iter()
            .filter(|skill| !is_taken(&skill.name))
            .filter(|skill| is_match(query, &skill.name, &skill.description))
            .collect();
        Ok(ToolResult::text(self.render(&of_app, &of_user)))
    }
}

impl FindSkills {
    async fn list_of_user(&self, cx: &CallContext) -> Result<Vec<ListedSkill>, ToolError> {
        match cx.user_skills().filter(|_| self.has_user_skills) {
            Some(skills) => skills.list(cx.conversation_key()).await.map_err(ToolError::Failed),
            None => Ok(Vec::new()),
        }
    }

    fn render(&self, of_app: &[&Skill], of_user: &[&ListedSkill]) -> String {
        let form = if self.has_files { SkillIndex::Files } else { SkillIndex::List };
        let count = of_app.len() + of_user.len();
        if count == 0 {
            return "No skill matches.".to_owned();
        }
        let of_app = of_app.get(..FOUND_MAX).unwrap_or(of_app);
        let room = FOUND_MAX - of_app.len();
        let of_user = of_user.get(..room).unwrap_or(of_user);
        let mut parts = vec![render_skills(of_app, form)];
        if !of_user.is_empty() {
            parts.push(format!("Skills of the user:\n{}", render_found_user_skills(of_user)));
        }
        if form == SkillIndex::List || !of_user.is_empty() {
            parts.push(format!("Use {LOAD_SKILL}(name) to access full instructions."));
        }
        let rest = count - of_app.len() - of_user.len();
        if rest > 0 {
            parts.push(format!("{rest} more skills match. Use more words."));
        }
        let parts: Vec<&str> =
            parts.iter().map(|part| part.trim_end()).filter(|part| !part.is_empty()).collect();
        parts.join("\n\n")
    }
}
