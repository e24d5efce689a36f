//! Memory of a user: notes that an agent or the user wrote, and their form in the system prompt.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

use crate::profile::Profile;
use crate::unknown_members::{Extra, keep_unknown_members};
use crate::user_skills::SkillList;
use turnwheel_json::text::one_line;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::ConversationId;

#[cfg(test)]
mod tests;

pub const NOTE_CHARS_MAX: usize = 500;
/// Bytes of the notes of one project, as stored.
pub const MEMORY_BYTES_MAX: usize = 64 * 1024;
/// Bytes of the notes in a system prompt.
const INJECTED_BYTES_MAX: usize = 16 * 1024;
/// Projects of one user. They are read together.
pub const PROJECTS_MAX: usize = 16;
pub const PROJECT_NAME_CHARS_MAX: usize = 64;
const HEADING: &str = "## Remembered Context\n\n";

/// Author of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NoteAuthor {
    User,
    Agent,
}

/// One remembered fact.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct Note {
    /// The effect id of the call that wrote it, or `note_…` if the user wrote it.
    pub id: String,
    /// One line that [`clean_note`] returns.
    pub text: String,
    pub at: Timestamp,
    pub by: NoteAuthor,
    /// The conversation that wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<ConversationId>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Note({}, {} bytes)", self.id, self.text.len())
    }
}

/// The notes of a project, or those for all projects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct Memory {
    pub schema: u32,
    /// The oldest first. Ids are unique.
    pub items: Vec<Note>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

keep_unknown_members!([] Note, Memory);

impl Memory {
    /// Appends a note. A note with a known id is not appended again.
    pub fn add(&mut self, note: Note) {
        if !self.items.iter().any(|known| known.id == note.id) {
            self.items.push(note);
        }
    }

    /// Removes the notes with this id or text, without regard to case. Returns their number.
    pub fn forget(&mut self, target: &ForgetTarget) -> usize {
        let before = self.items.len();
        self.items.retain(|note| !target.matches(note));
        before - self.items.len()
    }

    /// The notes as a Markdown list, one a line.
    pub fn to_markdown(&self) -> String {
        self.items.iter().fold(String::new(), |mut text, note| {
            let _infallible = writeln!(text, "- {}", note.text);
            text
        })
    }
}

/// The notes to remove.
#[derive(Clone, Debug)]
pub enum ForgetTarget {
    Id(String),
    /// The whole text of a note.
    Text(String),
}

impl ForgetTarget {
    fn matches(&self, note: &Note) -> bool {
        match self {
            Self::Id(id) => note.id == *id,
            Self::Text(text) => note.text.to_lowercase() == one_line(text).to_lowercase(),
        }
    }
}

/// The documents of a user that the model calls of a prompt read.
#[derive(Debug, Default)]
pub struct UserDocuments {
    /// By project. The empty name: the notes for all projects.
    pub memories: BTreeMap<String, Memory>,
    /// `None`: nothing was learnt yet.
    pub profile: Option<Profile>,
    /// The user's own skills.
    pub skills: SkillList,
    /// True if all callers are this user.
    pub is_shared: bool,
}

impl UserDocuments {
    /// The part of the system prompt with the notes for all projects and those of one project.
    /// `None`: there are none.
    pub fn render_memory(&self, project: &str) -> Option<String> {
        let notes = |name: &str| self.memories.get(name).map_or(&[][..], |memory| &memory.items);
        let groups = [notes(""), notes(project)];
        let mut newest: Vec<&Note> = groups.into_iter().flatten().collect();
        newest.sort_by(|one, other| (other.at, &other.id).cmp(&(one.at, &one.id)));
        let mut bytes = HEADING.len();
        let fits = |note: &&&Note| {
            bytes += note.text.len() + "- \n\n".len();
            bytes <= INJECTED_BYTES_MAX
        };
        let shown: Vec<&str> =
            newest.iter().take_while(fits).map(|note| note.id.as_str()).collect();
        let hidden = newest.len() - shown.len();
        let is_shown = |note: &&Note| shown.contains(&note.id.as_str());
        let lists = groups.into_iter().map(|group| {
            let lines = group.iter().filter(is_shown).map(|note| format!("- {}", note.text));
            lines.collect::<Vec<_>>().join("\n")
        });
        let mut parts: Vec<String> = lists.filter(|list| !list.is_empty()).collect();
        if hidden > 0 {
            parts.push(format!("{hidden} older notes are not shown."));
        }
        (!parts.is_empty()).then(|| format!("{HEADING}{}", parts.join("\n\n")))
    }
}

/// The text of a note as one line, which a prompt shows as data: without control characters,
/// invisible characters and Markdown headings.
///
/// # Errors
/// The reason why the text cannot be a note. Report it to the author.
pub fn clean_note(text: &str) -> Result<String, String> {
    let note = one_line(text);
    let chars = note.chars().count();
    if note.is_empty() {
        return Err("A note needs a text.".to_owned());
    }
    if chars > NOTE_CHARS_MAX {
        return Err(format!(
            "The note has {chars} characters; at most {NOTE_CHARS_MAX} are allowed. Write a shorter one."
        ));
    }
    Ok(note)
}
