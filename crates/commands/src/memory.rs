//! Changes of a user's memory: by the tools of an agent, and by the user.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::knowledge::Knowledge;
use turnwheel_conversation::memory::{
    ForgetTarget, MEMORY_BYTES_MAX, Memory, Note, NoteAuthor, PROJECTS_MAX, clean_note,
};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, is_plain_text};
use turnwheel_queries::memory::memory_etag;
use turnwheel_record::certain_write::{BatchOutcome, write_until_certain_in};
use turnwheel_record::contract::{CommandError, FieldError, Owner};
use turnwheel_record::services::Services;
use turnwheel_record::user_documents::{
    StoredUserDocument, load_user_documents, memory_id, user_partition,
};
use turnwheel_storage::store::conditional::{back_off, compare_and_set};
use turnwheel_storage::store::{Document, DocumentKind, Partition, Write};
use turnwheel_tools::memory::{NewNote, UserMemoryStore};

/// Number of writes lost to other writers after which a change gives up.
const ATTEMPTS_MAX: usize = 5;
const RETRY_DELAY: Duration = Duration::from_millis(10);
const SCHEMA: u32 = 1;
const NO_NOTE: CommandError = CommandError::NotFound("note");

/// The new notes of a project.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemoryChange {
    items: Vec<NoteChange>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NoteChange {
    /// Id of a note that stays. Absent: a new note.
    #[serde(default)]
    id: Option<String>,
    text: String,
}

/// Where a change applies, and the version that it needs.
pub struct MemoryTarget<'a> {
    pub owner: &'a Owner,
    /// Empty: the notes for all projects.
    pub project: &'a str,
    /// Returns whether the notes with this ETag may be changed.
    pub is_wanted: &'a (dyn Fn(&str) -> bool + Sync),
}

impl fmt::Debug for MemoryTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTarget")
            .field("owner", &self.owner)
            .field("project", &self.project)
            .finish_non_exhaustive()
    }
}

/// Replaces the notes of a project. Returns the stored notes.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client.
pub async fn replace_memory(
    services: &Services,
    target: &MemoryTarget<'_>,
    change: MemoryChange,
) -> Result<Memory, CommandError> {
    let mut wanted = Vec::new();
    let mut errors = Vec::new();
    for (index, item) in change.items.into_iter().enumerate() {
        let id = item.id.unwrap_or_else(|| format!("note_{}", services.ids.new_id()));
        match clean_note(&item.text) {
            Ok(_) if !is_plain_text(&id) => {
                let detail = "an id is 1 to 255 of A-Z a-z 0-9 _ . -, not only dots: leave it out for a new note";
                errors.push(FieldError::new(format!("/items/{index}/id"), detail));
            }
            Ok(_) if wanted.iter().any(|(known, _)| *known == id) => {
                let detail = "another note has this id: leave it out for a new note";
                errors.push(FieldError::new(format!("/items/{index}/id"), detail));
            }
            Ok(text) => wanted.push((id, text)),
            Err(reason) => errors.push(FieldError::new(format!("/items/{index}/text"), reason)),
        }
    }
    if !errors.is_empty() {
        return Err(CommandError::Invalid(errors));
    }
    let at = services.clock.now();
    let replace = |memory: &mut Memory| {
        let notes = wanted.iter().map(|(id, text)| {
            let known = memory.items.iter().find(|note| note.id == *id);
            match known.filter(|note| note.text == *text) {
                Some(note) => note.clone(),
                None => Note {
                    id: id.clone(),
                    text: text.clone(),
                    at: known.map_or(at, |note| note.at),
                    by: NoteAuthor::User,
                    conversation_id: None,
                    extra: Extra::new(),
                },
            }
        });
        memory.items = notes.collect();
        Ok(())
    };
    change_memory(services, target, replace).await
}

/// Deletes all notes of a project. Without notes it does nothing.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client.
pub async fn clear_memory(
    services: &Services,
    target: &MemoryTarget<'_>,
) -> Result<(), CommandError> {
    let waits = back_off(ATTEMPTS_MAX, RETRY_DELAY);
    compare_and_set(waits, || async {
        let partition = user_partition(&target.owner.tenant, &target.owner.user);
        let mut found = load_user_documents(&*services.store, &partition).await?.memories;
        let Some(stored) = found.remove(target.project) else { return Ok(Some(())) };
        check_version(target, &stored.document)?;
        let write = Write::Delete(memory_id(target.project), Some(stored.etag));
        let is_won = write_user_documents(services, &partition, vec![write]).await?;
        Ok::<_, CommandError>(is_won.then_some(()))
    })
    .await
}

/// Deletes one note, wherever it is.
///
/// # Errors
/// Returns [`CommandError::NotFound`] if the user has no such note.
pub async fn delete_note(services: &Services, owner: &Owner, id: &str) -> Result<(), CommandError> {
    let partition = user_partition(&owner.tenant, &owner.user);
    let found = load_user_documents(&*services.store, &partition).await?.memories;
    let has_note = |memory: &Memory| memory.items.iter().any(|note| note.id == id);
    let project = found.into_iter().find(|(_, stored)| has_note(&stored.document));
    let (project, _) = project.ok_or(NO_NOTE)?;
    let target = MemoryTarget { owner, project: &project, is_wanted: &|_| true };
    let forget = |memory: &mut Memory| {
        memory.forget(&ForgetTarget::Id(id.to_owned()));
        Ok(())
    };
    change_memory(services, &target, forget).await.map(|_| ())
}

/// Changes the notes of a project until the change wins. Applied to its own result, a change must
/// change nothing: a lost response repeats it.
async fn change_memory(
    services: &Services,
    target: &MemoryTarget<'_>,
    change: impl Fn(&mut Memory) -> Result<(), CommandError>,
) -> Result<Memory, CommandError> {
    let waits = back_off(ATTEMPTS_MAX, RETRY_DELAY);
    compare_and_set(waits, || try_change(services, target, &change)).await
}

/// Tries the change once. `None`: another writer came first, or this write won with a lost response.
async fn try_change(
    services: &Services,
    target: &MemoryTarget<'_>,
    change: &impl Fn(&mut Memory) -> Result<(), CommandError>,
) -> Result<Option<Memory>, CommandError> {
    let partition = user_partition(&target.owner.tenant, &target.owner.user);
    let found = load_user_documents(&*services.store, &partition).await?.memories;
    let (changed, write) = plan_change(&found, target, change)?;
    let Some(write) = write else { return Ok(Some(changed)) };
    let is_won = write_user_documents(services, &partition, vec![write]).await?;
    Ok(is_won.then_some(changed))
}

/// The changed notes, and the write that stores them unless nothing changes.
fn plan_change(
    found: &BTreeMap<String, StoredUserDocument<Memory>>,
    target: &MemoryTarget<'_>,
    change: &impl Fn(&mut Memory) -> Result<(), CommandError>,
) -> Result<(Memory, Option<Write>), CommandError> {
    let stored = found.get(target.project);
    let current = stored.map(|stored| stored.document.clone()).unwrap_or_default();
    let mut changed = current.clone();
    change(&mut changed)?;
    if changed == current {
        return Ok((changed, None));
    }
    check_version(target, &current)?;
    changed.schema = changed.schema.max(SCHEMA);
    let body = RawJson::from_value(&changed);
    if body.text().len() > MEMORY_BYTES_MAX && changed.items.len() >= current.items.len() {
        return Err(CommandError::TooLarge(format!(
            "The memory would have {} bytes; at most {MEMORY_BYTES_MAX} are allowed. Forget notes that are no longer needed.",
            body.text().len()
        )));
    }
    if stored.is_none() && found.keys().filter(|name| !name.is_empty()).count() >= PROJECTS_MAX {
        return Err(CommandError::TooLarge(format!(
            "There are notes of {PROJECTS_MAX} projects, the maximum. Delete those of a project first."
        )));
    }
    let document = Document::new(memory_id(target.project), DocumentKind::Scope, &changed, None);
    let write = match stored {
        Some(stored) => Write::Replace(document, Some(stored.etag.clone())),
        None => Write::Create(document),
    };
    Ok((changed, Some(write)))
}

/// Writes documents of a user. `false`: another writer came first, or this write won with a lost
/// response.
///
/// # Errors
/// The store is unavailable.
pub async fn write_user_documents(
    services: &Services,
    partition: &Partition,
    writes: Vec<Write>,
) -> Result<bool, CommandError> {
    services.fail_points.hit("user.write").await;
    let outcome = write_until_certain_in(services, partition, writes).await?;
    services.fail_points.hit("user.written").await;
    Ok(matches!(outcome, BatchOutcome::Won(_)))
}

fn check_version(target: &MemoryTarget<'_>, current: &Memory) -> Result<(), CommandError> {
    let etag = memory_etag(current);
    if (target.is_wanted)(&etag) { Ok(()) } else { Err(CommandError::PreconditionFailed { etag }) }
}

fn new_note(note: &NewNote<'_>, conversation: &ConversationKey, at: Timestamp) -> Note {
    Note {
        id: note.effect.to_string(),
        text: note.text.to_owned(),
        at,
        by: NoteAuthor::Agent,
        conversation_id: Some(conversation.conversation_id.clone()),
        extra: Extra::new(),
    }
}

/// The notes of a user by project. The error is for the model.
async fn load_memories(
    services: &Services,
    owner: &Owner,
) -> Result<BTreeMap<String, StoredUserDocument<Memory>>, String> {
    let partition = user_partition(&owner.tenant, &owner.user);
    let found = load_user_documents(&*services.store, &partition).await;
    Ok(found.map_err(|error| CommandError::from(error).to_string())?.memories)
}

#[async_trait]
impl UserMemoryStore for Knowledge {
    async fn remember(
        &self,
        conversation: &ConversationKey,
        note: NewNote<'_>,
    ) -> Result<(), String> {
        let owner = Owner::from_key(conversation);
        let target = MemoryTarget { owner: &owner, project: note.project, is_wanted: &|_| true };
        let new_note = new_note(&note, conversation, self.services().clock.now());
        let add = |memory: &mut Memory| {
            memory.add(new_note.clone());
            Ok(())
        };
        change_memory(self.services(), &target, add)
            .await
            .map(|_| ())
            .map_err(|error| error.to_string())
    }

    async fn check_note(
        &self,
        conversation: &ConversationKey,
        note: &NewNote<'_>,
    ) -> Result<(), String> {
        let owner = Owner::from_key(conversation);
        let target = MemoryTarget { owner: &owner, project: note.project, is_wanted: &|_| true };
        let new_note = new_note(note, conversation, self.services().clock.now());
        let add = |memory: &mut Memory| {
            memory.add(new_note.clone());
            Ok(())
        };
        let found = load_memories(self.services(), &owner).await?;
        plan_change(&found, &target, &add).map(drop).map_err(|error| error.to_string())
    }

    async fn count(
        &self,
        conversation: &ConversationKey,
        project: &str,
        target: &ForgetTarget,
    ) -> Result<usize, String> {
        let mut found = load_memories(self.services(), &Owner::from_key(conversation)).await?;
        // The project may have no name.
        let mut count = 0;
        for project in ["", project] {
            count += found.remove(project).map_or(0, |mut it| it.document.forget(target));
        }
        Ok(count)
    }

    async fn forget(
        &self,
        conversation: &ConversationKey,
        project: &str,
        forgotten: &ForgetTarget,
    ) -> Result<usize, String> {
        let owner = Owner::from_key(conversation);
        let mut found = load_memories(self.services(), &owner).await?;
        let mut count = 0;
        for project in ["", project] {
            let Some(mut stored) = found.remove(project) else { continue };
            let removed = stored.document.forget(forgotten);
            if removed == 0 {
                continue;
            }
            let target = MemoryTarget { owner: &owner, project, is_wanted: &|_| true };
            let forget = |memory: &mut Memory| {
                memory.forget(forgotten);
                Ok(())
            };
            change_memory(self.services(), &target, forget)
                .await
                .map_err(|error| error.to_string())?;
            count += removed;
        }
        Ok(count)
    }
}
