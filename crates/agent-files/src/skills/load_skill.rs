//! The tool `load_skill`: the model reads the instructions of a skill of the app or of the user.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::skills::plugin::{LoadedSkills, add_loaded};
use crate::skills::{LOAD_SKILL, Skill};
use crate::text_file::read_text_file;
use turnwheel_conversation::request::Effect;
use turnwheel_tools::ToolResult;
use turnwheel_tools::approval_summary::ApprovalSummary;
use turnwheel_tools::code::{CallContext, Tool, ToolError};

/// Bytes of another file of a skill that the model can load.
const REFERENCE_BYTES_MAX: u64 = 256 * 1024;
const NOT_FOUND: &str = "Skill not found";

/// Returns the instructions of a skill, or another file of its folder.
pub(super) struct LoadSkill {
    pub(super) skills: Arc<[Arc<Skill>]>,
    pub(super) has_user_skills: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LoadSkillArgs {
    /// Name of the skill
    name: String,
    /// Path of a file that the skill refers to, relative to the folder of the skill. Without it,
    /// the result is the instructions of the skill.
    file: Option<String>,
}

impl Tool for LoadSkill {
    type Args = LoadSkillArgs;

    fn name(&self) -> &'static str {
        LOAD_SKILL
    }

    fn description(&self) -> &'static str {
        "Load full instructions for a skill"
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalSummary::Never
    }

    fn writes_state(&self) -> bool {
        self.has_user_skills || self.skills.iter().any(|skill| !skill.tools.is_empty())
    }

    async fn call(&self, args: LoadSkillArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let Some(skill) = self.skills.iter().find(|skill| skill.name == args.name) else {
            return self.load_for_user(args, cx).await;
        };
        if skill.is_hidden {
            return Ok(ToolResult::error(NOT_FOUND));
        }
        if let Some(file) = args.file {
            return read_reference(skill, file).await.map(ToolResult::text);
        }
        let mut loaded: LoadedSkills = cx.state()?.unwrap_or_default();
        if add_loaded(&mut loaded.loaded, &skill.name, &skill.tools) {
            cx.set_state(&loaded)?;
        }
        Ok(ToolResult::text(skill.body.clone()))
    }
}

impl LoadSkill {
    async fn load_for_user(
        &self,
        args: LoadSkillArgs,
        cx: CallContext,
    ) -> Result<ToolResult, ToolError> {
        let skills = cx.user_skills().filter(|_| self.has_user_skills);
        let Some(skills) = skills else { return Ok(ToolResult::error(NOT_FOUND)) };
        let found = skills.load(cx.conversation_key(), &args.name).await;
        let Some(skill) = found.map_err(ToolError::Failed)? else {
            return Ok(ToolResult::error(NOT_FOUND));
        };
        if args.file.is_some() {
            let name = args.name;
            return Err(ToolError::failed(format!("The skill `{name}` has no other files.")));
        }
        let mut loaded: LoadedSkills = cx.state()?.unwrap_or_default();
        if add_loaded(&mut loaded.of_user, &args.name, &skill.tools) {
            cx.set_state(&loaded)?;
        }
        Ok(ToolResult::text(skill.body))
    }
}

pub(super) async fn read_reference(skill: &Skill, file: String) -> Result<String, ToolError> {
    let Some(folder) = skill.folder.clone() else {
        return Err(ToolError::failed(format!("The skill `{}` has no other files.", skill.name)));
    };
    let is_inside =
        |path: &str| !path.starts_with('/') && !path.split('/').any(|part| part == "..");
    if !is_inside(&file) {
        return Err(ToolError::failed("A file of a skill has a relative path without `..`."));
    }
    let read = tokio::task::spawn_blocking(move || {
        read_text_file(&folder, file.as_ref(), REFERENCE_BYTES_MAX)
    });
    let text = read.await.map_err(|error| ToolError::failed(error.to_string()))?;
    text.map_err(|reason| ToolError::failed(format!("The file cannot be loaded: {reason}.")))
}
