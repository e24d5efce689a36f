//! The memory of a user as clients see it.

use serde::Serialize;
use utoipa::ToSchema;

use turnwheel_conversation::memory::{Memory, Note, NoteAuthor};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::{Timestamp, iso};
use turnwheel_platform::digest::sha256_hex;
use turnwheel_record::contract::{CommandError, Owner};
use turnwheel_record::services::Services;
use turnwheel_record::user_documents::{load_user_documents, user_partition};

const ETAG_DIGITS: usize = 16;

/// The notes for all projects, or those of a project.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryView {
    /// Absent: the notes for all projects.
    project: Option<String>,
    /// The oldest first.
    items: Vec<NoteView>,
    /// Names of all projects with notes.
    projects: Option<Vec<String>>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct NoteView {
    id: String,
    text: String,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// `user` or `agent`.
    #[schema(value_type = String)]
    by: NoteAuthor,
    /// The conversation whose agent wrote the note.
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation_id: Option<String>,
}

impl MemoryView {
    pub fn new(project: &str, memory: &Memory) -> Self {
        let view = |note: &Note| NoteView {
            id: note.id.clone(),
            text: note.text.clone(),
            at: note.at,
            by: note.by,
            conversation_id: note.conversation_id.as_ref().map(ToString::to_string),
        };
        Self {
            project: Some(project.to_owned()).filter(|name| !name.is_empty()),
            items: memory.items.iter().map(view).collect(),
            projects: None,
        }
    }

    #[must_use]
    pub fn with_projects(self, projects: Vec<String>) -> Self {
        Self { projects: Some(projects), ..self }
    }
}

/// `ETag` of the notes of a project. No notes have one as well.
pub fn memory_etag(memory: &Memory) -> String {
    let mut hash = sha256_hex(RawJson::from_value(&memory.items).text().as_bytes());
    hash.truncate(ETAG_DIGITS);
    format!("\"{hash}\"")
}

/// Reads the notes of a project, and the names of all projects with notes.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn read_memory(
    services: &Services,
    owner: &Owner,
    project: &str,
) -> Result<(Memory, Vec<String>), CommandError> {
    let partition = user_partition(&owner.tenant, &owner.user);
    let mut found = load_user_documents(&*services.store, &partition).await?.memories;
    let projects = found.keys().filter(|name| !name.is_empty()).cloned().collect();
    let memory = found.remove(project).map(|stored| stored.document).unwrap_or_default();
    Ok((memory, projects))
}
