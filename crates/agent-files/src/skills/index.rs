//! The part of the system prompt that lists the skills of an agent, in two forms.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::skills::{FIND_SKILLS, LOAD_SKILL, Skill};
use turnwheel_conversation::user_skills::{ListedSkill, UserSkillLines};
use turnwheel_extensions::prepare::ITEMS_BYTES_MAX;

/// Maximum number of skills of the app in the system prompt.
pub(super) const LISTED_SKILLS_MAX: usize = 200;
/// Bytes of the sentence after the list.
const SENTENCE_ROOM: usize = 128;
/// Bytes for sentences and skills of the user, if the skills of the app are more than fit.
const REST_ROOM: usize = 1024;
/// Folder of the files of skills in the workspace of a conversation.
const FOLDER: &str = ".turnwheel/skills";

/// How the model loads the skills of the app.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SkillIndex {
    /// A list; the model calls `load_skill`.
    #[default]
    List,
    /// XML elements with paths; the model calls `read`.
    Files,
}

/// Path of a skill's folder in the workspace, without the slash of the root.
pub(super) fn folder_of(name: &str) -> String {
    format!("{FOLDER}/{name}")
}

/// Path of the file of a skill in the workspace, as the model receives it.
pub(super) fn workspace_location(name: &str) -> String {
    format!("/{}/SKILL.md", folder_of(name))
}

/// The skills of the app that fit into the system prompt.
#[derive(Clone, Debug, Default)]
pub(super) struct AppLines {
    /// Empty without any.
    pub(super) text: String,
    /// Number of the skills that do not fit.
    pub(super) unlisted: usize,
}

impl AppLines {
    /// The lines of the visible skills.
    pub(super) fn new(skills: &[Arc<Skill>], form: SkillIndex) -> Self {
        let skills: Vec<&Skill> =
            skills.iter().filter(|skill| !skill.is_hidden).map(|skill| &**skill).collect();
        let all = render_skills(&skills, form);
        let bytes = render_index(&all, &UserSkillLines::default(), 0, form).len();
        if skills.len() <= LISTED_SKILLS_MAX && bytes <= ITEMS_BYTES_MAX {
            return Self { text: all, unlisted: 0 };
        }
        let mut listed = Vec::new();
        let mut room = ITEMS_BYTES_MAX - REST_ROOM;
        for &skill in &skills {
            let bytes = render_skill(skill, form).len();
            if bytes <= room && listed.len() < LISTED_SKILLS_MAX {
                listed.push(skill);
                room -= bytes;
            }
        }
        Self { text: render_skills(&listed, form), unlisted: skills.len() - listed.len() }
    }
}

/// Room for the skills of the user beside the lines of those of the app.
pub(super) fn user_room(of_app: &AppLines, form: SkillIndex) -> usize {
    let index = render_index(&of_app.text, &UserSkillLines::default(), of_app.unlisted, form);
    ITEMS_BYTES_MAX.saturating_sub(index.len() + SENTENCE_ROOM)
}

/// The block of the skills. Empty without any.
pub(super) fn render_skills(skills: &[&Skill], form: SkillIndex) -> String {
    let lines: String = skills.iter().map(|skill| render_skill(skill, form)).collect();
    match form {
        _ if skills.is_empty() => String::new(),
        SkillIndex::List => format!("Available skills:\n{lines}"),
        // The text of Pi 0.52.9 (`formatSkillsForPrompt`).
        SkillIndex::Files => format!(
            "The following skills provide specialized instructions for specific tasks.\nUse the read tool to load a skill's file when the task matches its description.\nWhen a skill file references a relative path, resolve it against the skill directory (parent of SKILL.md / dirname of the path) and use that absolute path in tool commands.\n\n<available_skills>\n{lines}</available_skills>"
        ),
    }
}

fn render_skill(skill: &Skill, form: SkillIndex) -> String {
    let Skill { name, description, .. } = skill;
    match form {
        SkillIndex::List => format!("- {name}: {}\n", as_one_line(description)),
        SkillIndex::Files => {
            let location = escape_xml(&workspace_location(name));
            let (name, description) = (escape_xml(name), escape_xml(description));
            format!(
                "  <skill>\n    <name>{name}</name>\n    <description>{description}</description>\n    <location>{location}</location>\n  </skill>\n"
            )
        }
    }
}

/// A description is one line of the list.
fn as_one_line(description: &str) -> String {
    description.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn escape_xml(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&apos;")
}

/// The part of the system prompt that lists the skills of the app and of the user. Empty without any.
/// `unlisted` is the number of skills of the app that are not in `of_app`.
pub(super) fn render_index(
    of_app: &str,
    of_user: &UserSkillLines,
    unlisted: usize,
    form: SkillIndex,
) -> String {
    let mut text = of_app.to_owned();
    if unlisted > 0 {
        let separator = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let _infallible = write!(text, "{separator}{}", unlisted_sentence(unlisted));
    }
    if !of_user.text.is_empty() {
        if !text.is_empty() {
            text.push_str(if text.ends_with('\n') { "\n" } else { "\n\n" });
        }
        text.push_str(&of_user.text);
    }
    let has_list = form == SkillIndex::List && !text.is_empty();
    if has_list || !of_user.text.is_empty() {
        let _infallible = write!(text, "\nUse {LOAD_SKILL}(name) to access full instructions.");
    }
    text
}

/// The sentence about skills that are not in the system prompt.
pub(super) fn unlisted_sentence(count: usize) -> String {
    format!("{count} more skills are not listed. Use {FIND_SKILLS}(query) to find them.\n")
}

/// True if each word of the query is in the name or the description, without regard to case.
pub(super) fn is_match(query: &str, name: &str, description: &str) -> bool {
    let text = format!("{name}\n{description}").to_lowercase();
    query.to_lowercase().split_whitespace().all(|word| text.contains(word))
}

/// The lines of skills of the user that a search found.
pub(super) fn render_found_user_skills(skills: &[&ListedSkill]) -> String {
    skills.iter().fold(String::new(), |mut text, skill| {
        let _infallible = writeln!(text, "- {}: {}", skill.name, skill.description);
        text
    })
}
