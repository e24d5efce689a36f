//! The key `userSkills` of agent files: skills that belong to the user of a conversation.

use std::sync::Arc;

use crate::approval::read_approvers;
use crate::fields;
use crate::mistakes::Findings;
use crate::skills::Skill;
use crate::yaml::{Member, Yaml};
use turnwheel_tools::CallableTool;
use turnwheel_tools::user_skills::SkillRules;

const KEYS: [&str; 2] = ["create", "approvers"];

/// The value of the key.
pub(super) struct UserSkillsKey {
    can_create: bool,
    approvers: Vec<String>,
}

impl Default for UserSkillsKey {
    fn default() -> Self {
        Self { can_create: true, approvers: vec!["owner".to_owned()] }
    }
}

/// The skills of users in an agent.
#[derive(Clone, Debug)]
pub(super) struct UserSkillRules {
    /// True if the agent may create skills.
    pub(super) can_create: bool,
    pub(super) rules: SkillRules,
}

/// Reads `true` or a map.
pub(super) fn read_user_skills(member: &Member, findings: &mut Findings) -> Option<UserSkillsKey> {
    let mut key = UserSkillsKey::default();
    match &member.value.yaml {
        Yaml::Bool(is_on) => is_on.then_some(key),
        Yaml::Map(_) => {
            for field in fields::read_members(&member.value, "`userSkills`", &KEYS, findings) {
                match field.key.as_str() {
                    "create" => key.can_create = fields::read_bool(field, findings)?,
                    "approvers" => key.approvers = read_approvers(field, findings),
                    _ => {}
                }
            }
            Some(key)
        }
        Yaml::Null | Yaml::Number(_) | Yaml::Text(_) | Yaml::List(_) => {
            let reason = "`userSkills` is true, or a map of create and approvers";
            findings.add(member.value.position, reason);
            None
        }
    }
}

impl UserSkillsKey {
    /// The rules for an agent with these tools and skills of the app.
    pub(super) fn into_rules(
        self,
        tools: &[Arc<dyn CallableTool>],
        skills: &[Arc<Skill>],
    ) -> UserSkillRules {
        let rules = SkillRules {
            approvers: self.approvers.into(),
            tools: tools.iter().map(|tool| tool.definition().name.clone()).collect(),
            taken: skills.iter().map(|skill| skill.name.clone()).collect(),
        };
        UserSkillRules { can_create: self.can_create, rules }
    }
}
