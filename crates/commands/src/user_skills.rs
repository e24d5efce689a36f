//! Changes of a user's skills: by the tool `create_skill`, and by the user.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::knowledge::Knowledge;
use crate::memory::write_user_documents;
use turnwheel_agent_files::find_broken_skill_rules;
use turnwheel_conversation::memory::NoteAuthor;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_conversation::user_skills::{
    ListedSkill, SKILL_LIST_BYTES_MAX, SKILL_TOOLS_MAX, SkillList, USER_SKILLS_MAX, UserSkill,
    check_instructions,
};
use turnwheel_json::raw::RawJson;
use turnwheel_json::text::one_line;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, EffectId, is_plain_text};
use turnwheel_queries::user_skills::skill_etag;
use turnwheel_record::contract::{CommandError, FieldError, Owner};
use turnwheel_record::services::Services;
use turnwheel_record::user_documents::{
    SKILL_LIST_ID, load_skill, load_user_documents, skill_id, user_partition,
};
use turnwheel_storage::store::conditional::{back_off, compare_and_set};
use turnwheel_storage::store::{Document, DocumentKind, ETag, Write};
use turnwheel_tools::user_skills::{NewSkill, SkillText, UserSkillStore};

/// Number of writes lost to other writers after which a change gives up.
const ATTEMPTS_MAX: usize = 5;
const RETRY_DELAY: Duration = Duration::from_millis(10);
const SCHEMA: u32 = 1;
/// A name without mistakes, for the check of a description.
const VALID_NAME: &str = "skill";
const NO_SKILL: CommandError = CommandError::NotFound("skill");

/// The new content of a skill.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SkillChange {
    /// When to use the skill: one line of at most 1,024 characters.
    pub description: String,
    pub instructions: String,
    /// Names of the tools that are offered once the skill is loaded.
    #[serde(default)]
    pub tools: Vec<String>,
}

/// The skill to change, and the version that the change needs.
pub struct SkillTarget<'a> {
    pub owner: &'a Owner,
    pub name: &'a str,
    /// Returns whether the skill with this ETag may be changed. A missing skill has one as well.
    pub is_wanted: &'a (dyn Fn(&str) -> bool + Sync),
}

impl fmt::Debug for SkillTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SkillTarget")
            .field("owner", &self.owner)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Creates or replaces a skill of the user. Returns the stored skill.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client.
pub async fn put_skill(
    services: &Services,
    target: &SkillTarget<'_>,
    change: SkillChange,
) -> Result<UserSkill, CommandError> {
    check_not_hidden(services, target.name)?;
    let content = check_content(target.name, &change).map_err(CommandError::Invalid)?;
    let content = UserSkill { at: services.clock.now(), by: NoteAuthor::User, ..content };
    let waits = back_off(ATTEMPTS_MAX, RETRY_DELAY);
    compare_and_set(waits, || async {
        let current = CurrentSkill::load(services, target.owner, target.name).await?;
        if let Some((stored, _)) = &current.skill
            && is_same_content(stored, &content)
        {
            return Ok(Some(stored.clone()));
        }
        current.check_version(target)?;
        let is_won = current.write(services, target.owner, &content).await?;
        Ok(is_won.then(|| content.clone()))
    })
    .await
}

/// Deletes a skill of the user.
///
/// # Errors
/// Returns [`CommandError::NotFound`] if the user has no such skill.
pub async fn delete_skill(
    services: &Services,
    target: &SkillTarget<'_>,
) -> Result<(), CommandError> {
    let mut is_sent = false;
    let mut waits = back_off(ATTEMPTS_MAX, RETRY_DELAY);
    loop {
        let mut current = CurrentSkill::load(services, target.owner, target.name).await?;
        let (Some((_, etag)), Some(list_etag)) = (&current.skill, &current.list_etag) else {
            // This request has deleted it if its response was lost.
            return if is_sent { Ok(()) } else { Err(NO_SKILL) };
        };
        current.check_version(target)?;
        current.list.items.retain(|skill| skill.name != target.name);
        let list =
            Document::new(SKILL_LIST_ID.to_owned(), DocumentKind::Scope, &current.list, None);
        let writes = vec![
            Write::Replace(list, Some(list_etag.clone())),
            Write::Delete(skill_id(target.name), Some(etag.clone())),
        ];
        is_sent = true;
        let partition = user_partition(&target.owner.tenant, &target.owner.user);
        if write_user_documents(services, &partition, writes).await? {
            return Ok(());
        }
        let Some(wait) = waits.next() else { return Err(CommandError::contended()) };
        tokio::time::sleep(wait).await;
    }
}

/// # Errors
/// A skill of the app has the name: agents with it would never load the user's.
fn check_not_hidden(services: &Services, name: &str) -> Result<(), CommandError> {
    let catalog = services.agents.current();
    let mut agents = catalog.agents.values().filter(|agent| agent.has_user_skills);
    let hiding = agents.find(|agent| agent.skills.iter().any(|skill| skill.name == name));
    hiding.map_or(Ok(()), |agent| {
        let detail = format!(
            "The agent `{}` has a skill `{name}` of the app, which would hide this one. Use another name.",
            agent.name
        );
        Err(CommandError::invalid("/name", detail))
    })
}

/// A skill with this name and content. The caller sets author and time.
fn check_content(name: &str, change: &SkillChange) -> Result<UserSkill, Vec<FieldError>> {
    let mut errors = Vec::new();
    let description = one_line(&change.description);
    for reason in find_broken_skill_rules(name, "") {
        errors.push(FieldError::new("/name", reason));
    }
    for reason in find_broken_skill_rules(VALID_NAME, &description) {
        errors.push(FieldError::new("/description", reason));
    }
    if description.is_empty() {
        errors.push(FieldError::new("/description", "A skill needs a description."));
    }
    let body = check_instructions(&change.instructions);
    let body = body.map_err(|reason| errors.push(FieldError::new("/instructions", reason)));
    if change.tools.len() > SKILL_TOOLS_MAX {
        let detail = format!("A skill names at most {SKILL_TOOLS_MAX} tools.");
        errors.push(FieldError::new("/tools", detail));
    }
    for (index, tool) in change.tools.iter().enumerate() {
        if !is_plain_text(tool) {
            let detail = "A tool has a name of A-Z a-z 0-9 _ . -";
            errors.push(FieldError::new(format!("/tools/{index}"), detail));
        }
    }
    let (Ok(body), true) = (body, errors.is_empty()) else { return Err(errors) };
    Ok(UserSkill {
        schema: SCHEMA,
        name: name.to_owned(),
        description,
        tools: change.tools.clone(),
        body,
        at: Timestamp(0),
        by: NoteAuthor::Agent,
        effect_id: None,
        conversation_id: None,
        extra: Extra::new(),
    })
}

fn check_new(skill: &NewSkill<'_>) -> Result<UserSkill, String> {
    let change = SkillChange {
        description: skill.description.to_owned(),
        instructions: skill.instructions.to_owned(),
        tools: skill.tools.to_vec(),
    };
    check_content(skill.name, &change).map_err(|errors| CommandError::Invalid(errors).to_string())
}

fn is_same_content(one: &UserSkill, other: &UserSkill) -> bool {
    (&one.description, &one.tools, &one.body) == (&other.description, &other.tools, &other.body)
}

/// The list of a user's skills, and the skill with a name, as stored.
struct CurrentSkill {
    list: SkillList,
    list_etag: Option<ETag>,
    skill: Option<(UserSkill, ETag)>,
}

impl CurrentSkill {
    async fn load(services: &Services, owner: &Owner, name: &str) -> Result<Self, CommandError> {
        let (store, partition) = (&*services.store, user_partition(&owner.tenant, &owner.user));
        let found = load_user_documents(store, &partition).await?.skills;
        let (list, list_etag) = match found {
            Some(stored) => (stored.document, Some(stored.etag)),
            None => (SkillList::default(), None),
        };
        let skill = match list.find(name) {
            Some(_) => load_skill(store, &partition, name).await?,
            None => None,
        };
        Ok(Self { list, list_etag, skill })
    }

    fn check_version(&self, target: &SkillTarget<'_>) -> Result<(), CommandError> {
        let etag = skill_etag(self.skill.as_ref().map(|(skill, _)| skill));
        if (target.is_wanted)(&etag) {
            Ok(())
        } else {
            Err(CommandError::PreconditionFailed { etag })
        }
    }

    /// The list with the skill.
    fn next_list(&self, skill: &UserSkill) -> Result<SkillList, CommandError> {
        let mut list = self.list.clone();
        list.schema = list.schema.max(SCHEMA);
        list.put(skill);
        let bytes = RawJson::from_value(&list).text().len();
        if list.items.len() > USER_SKILLS_MAX {
            return Err(CommandError::TooLarge(format!(
                "There are {USER_SKILLS_MAX} skills, the maximum. Delete one first."
            )));
        }
        if bytes > SKILL_LIST_BYTES_MAX {
            return Err(CommandError::TooLarge(format!(
                "The list of the skills would have {bytes} bytes; at most {SKILL_LIST_BYTES_MAX} are allowed. Delete skills, or shorten their descriptions."
            )));
        }
        Ok(list)
    }

    /// True if the call has stored the skill already.
    ///
    /// # Errors
    /// The user has another skill of that name.
    fn is_stored_by(&self, effect: &EffectId) -> Result<bool, CommandError> {
        match &self.skill {
            None => Ok(false),
            Some((known, _)) if known.effect_id.as_ref() == Some(effect) => Ok(true),
            Some((known, _)) => Err(CommandError::Conflict {
                detail: format!(
                    "The user has a skill `{}`. Choose another name, or ask the user to delete it.",
                    known.name
                ),
                retry_after: None,
            }),
        }
    }

    /// Writes the skill and the list in one batch. `false`: another writer came first, or this write
    /// won with a lost response.
    async fn write(
        &self,
        services: &Services,
        owner: &Owner,
        skill: &UserSkill,
    ) -> Result<bool, CommandError> {
        let list = self.next_list(skill)?;
        let document =
            |id: String, body: &RawJson| Document::new(id, DocumentKind::Scope, body, None);
        let list = document(SKILL_LIST_ID.to_owned(), &RawJson::from_value(&list));
        let body = document(skill_id(&skill.name), &RawJson::from_value(skill));
        let list = match &self.list_etag {
            Some(etag) => Write::Replace(list, Some(etag.clone())),
            None => Write::Create(list),
        };
        let body = match &self.skill {
            Some((_, etag)) => Write::Replace(body, Some(etag.clone())),
            None => Write::Create(body),
        };
        let partition = user_partition(&owner.tenant, &owner.user);
        write_user_documents(services, &partition, vec![list, body]).await
    }
}

#[async_trait]
impl UserSkillStore for Knowledge {
    async fn create(
        &self,
        conversation: &ConversationKey,
        skill: NewSkill<'_>,
    ) -> Result<(), String> {
        let content = UserSkill {
            at: self.services().clock.now(),
            effect_id: Some(skill.effect.clone()),
            conversation_id: Some(conversation.conversation_id.clone()),
            ..check_new(&skill)?
        };
        let owner = Owner::from_key(conversation);
        let waits = back_off(ATTEMPTS_MAX, RETRY_DELAY);
        let stored: Result<(), CommandError> = compare_and_set(waits, || async {
            let current = CurrentSkill::load(self.services(), &owner, skill.name).await?;
            if current.is_stored_by(skill.effect)? {
                return Ok(Some(()));
            }
            Ok(current.write(self.services(), &owner, &content).await?.then_some(()))
        })
        .await;
        stored.map_err(|error| error.to_string())
    }

    async fn check(
        &self,
        conversation: &ConversationKey,
        skill: &NewSkill<'_>,
    ) -> Result<(), String> {
        let content = check_new(skill)?;
        let owner = Owner::from_key(conversation);
        let checked = async {
            let current = CurrentSkill::load(self.services(), &owner, skill.name).await?;
            if !current.is_stored_by(skill.effect)? {
                current.next_list(&content)?;
            }
            Ok::<_, CommandError>(())
        };
        checked.await.map_err(|error| error.to_string())
    }

    async fn list(&self, conversation: &ConversationKey) -> Result<Vec<ListedSkill>, String> {
        let partition = user_partition(&conversation.tenant, &conversation.user);
        let found = load_user_documents(&*self.services().store, &partition).await;
        let found = found.map_err(|error| CommandError::from(error).to_string())?;
        Ok(found.skills.map(|stored| stored.document.items).unwrap_or_default())
    }

    async fn load(
        &self,
        conversation: &ConversationKey,
        name: &str,
    ) -> Result<Option<SkillText>, String> {
        let partition = user_partition(&conversation.tenant, &conversation.user);
        let found = load_skill(&*self.services().store, &partition, name).await;
        let found = found.map_err(|error| CommandError::from(error).to_string())?;
        Ok(found.map(|(skill, _)| SkillText { tools: skill.tools, body: skill.body }))
    }
}
