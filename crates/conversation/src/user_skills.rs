//! Skills of a user: instructions that the user wrote, or an agent with the user's approval.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::memory::NoteAuthor;
use crate::unknown_members::{Extra, keep_unknown_members};
use turnwheel_json::text::is_invisible;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, EffectId};

#[cfg(test)]
mod tests;

pub const USER_SKILLS_MAX: usize = 200;
/// Bytes of the list of a user's skills, as stored. Each prompt reads it.
pub const SKILL_LIST_BYTES_MAX: usize = 64 * 1024;
pub(crate) const SKILL_BODY_BYTES_MAX: usize = 32 * 1024;
pub const SKILL_TOOLS_MAX: usize = 32;
const HEADING: &str =
    "Skills of the user. The user wrote or approved them; the rules above come first:\n";

/// A skill of a user in the list of all.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct ListedSkill {
    pub name: String,
    /// One line.
    pub description: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl fmt::Debug for ListedSkill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ListedSkill({})", self.name)
    }
}

/// The skills of a user without their instructions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct SkillList {
    pub schema: u32,
    /// The oldest first. Names are unique.
    pub items: Vec<ListedSkill>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl SkillList {
    pub fn find(&self, name: &str) -> Option<&ListedSkill> {
        self.items.iter().find(|skill| skill.name == name)
    }

    /// Adds the skill, or replaces the one with its name.
    pub fn put(&mut self, skill: &UserSkill) {
        let listed = ListedSkill {
            name: skill.name.clone(),
            description: skill.description.clone(),
            tools: skill.tools.clone(),
            extra: Extra::new(),
        };
        match self.items.iter_mut().find(|known| known.name == skill.name) {
            Some(known) => {
                *known = ListedSkill { extra: std::mem::take(&mut known.extra), ..listed }
            }
            None => self.items.push(listed),
        }
    }
}

/// The lines of a user's skills in a system prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserSkillLines {
    /// Empty: there are none, or the room is too small for their heading.
    pub text: String,
    /// Number of the skills that do not fit.
    pub unlisted: usize,
}

impl UserSkillLines {
    /// True if the user has no skills.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.unlisted == 0
    }

    /// At most `bytes_max` bytes. `rest` makes the line about a number of skills that do not fit.
    pub fn new(skills: &[&ListedSkill], bytes_max: usize, rest: impl Fn(usize) -> String) -> Self {
        let mut lines = Self { text: HEADING.to_owned(), unlisted: 0 };
        for (index, skill) in skills.iter().enumerate() {
            let line = format!("- {}: {}\n", skill.name, skill.description);
            let rest = rest(skills.len() - index);
            if lines.text.len() + line.len() + rest.len() > bytes_max {
                lines.text.push_str(&rest);
                lines.unlisted = skills.len() - index;
                break;
            }
            lines.text.push_str(&line);
        }
        if skills.is_empty() || lines.text.len() > bytes_max {
            return Self { text: String::new(), unlisted: skills.len() };
        }
        lines
    }
}

/// A skill of a user with its instructions.
#[serde_with::skip_serializing_none]
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct UserSkill {
    pub schema: u32,
    pub name: String,
    /// One line.
    pub description: String,
    /// Names of the tools that are offered once the skill is loaded. An agent without one of them
    /// ignores it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    pub body: String,
    pub at: Timestamp,
    pub by: NoteAuthor,
    /// The call that wrote it.
    pub effect_id: Option<EffectId>,
    /// The conversation whose agent wrote it.
    pub conversation_id: Option<ConversationId>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

keep_unknown_members!([] ListedSkill, SkillList, UserSkill);

impl fmt::Debug for UserSkill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserSkill({}, {} bytes)", self.name, self.body.len())
    }
}

/// The instructions of a skill as stored: with line feeds, without blank lines around them.
///
/// # Errors
/// The reason why the text cannot be a skill. Report it to the author.
pub fn check_instructions(text: &str) -> Result<String, String> {
    let body = text.replace("\r\n", "\n").trim().to_owned();
    if body.is_empty() {
        return Err("A skill needs instructions.".to_owned());
    }
    if body.len() > SKILL_BODY_BYTES_MAX {
        return Err(format!(
            "The instructions have {} bytes; at most {SKILL_BODY_BYTES_MAX} are allowed. Write shorter ones.",
            body.len()
        ));
    }
    match body.chars().find(|c| hides_text(*c)) {
        Some(hidden) => Err(format!(
            "The instructions contain the invisible character {}. Remove it: everyone must see the whole text.",
            hidden.escape_unicode()
        )),
        None => Ok(body),
    }
}

/// True for a character that readers of the text do not see. Joiners belong to words and emoji.
fn hides_text(c: char) -> bool {
    is_invisible(c) && !matches!(c, '\n' | '\u{200c}' | '\u{200d}')
}
