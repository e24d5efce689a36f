//! The skills of a user as clients see them.

use std::fmt::Write as _;

use serde::Serialize;
use utoipa::ToSchema;

use turnwheel_conversation::memory::NoteAuthor;
use turnwheel_conversation::user_skills::{ListedSkill, SkillList, UserSkill};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::{Timestamp, iso};
use turnwheel_platform::digest::sha256_hex;
use turnwheel_record::contract::{CommandError, Owner};
use turnwheel_record::services::Services;
use turnwheel_record::user_documents::{load_skill, load_user_documents, user_partition};

const ETAG_DIGITS: usize = 16;

/// The skills of a user without their instructions.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserSkills {
    /// The oldest first.
    items: Vec<UserSkillSummary>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct UserSkillSummary {
    name: String,
    description: String,
    tools: Vec<String>,
}

/// A skill of a user.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserSkillView {
    name: String,
    description: String,
    tools: Vec<String>,
    instructions: String,
    /// Time of the last change.
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// `user` or `agent`.
    #[schema(value_type = String)]
    by: NoteAuthor,
    /// The conversation whose agent wrote the skill.
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation_id: Option<String>,
}

impl UserSkillView {
    pub fn new(skill: &UserSkill) -> Self {
        Self {
            name: skill.name.clone(),
            description: skill.description.clone(),
            tools: skill.tools.clone(),
            instructions: skill.body.clone(),
            at: skill.at,
            by: skill.by,
            conversation_id: skill.conversation_id.as_ref().map(ToString::to_string),
        }
    }
}

/// `ETag` of a skill. A missing skill has one as well.
pub fn skill_etag(skill: Option<&UserSkill>) -> String {
    let mut hash = sha256_hex(RawJson::from_value(&skill).text().as_bytes());
    hash.truncate(ETAG_DIGITS);
    format!("\"{hash}\"")
}

/// The skill as the text of a skill file.
pub fn skill_file(skill: &UserSkill) -> String {
    // A JSON text is a YAML text, and a JSON list a YAML list.
    let quoted = |text: &str| RawJson::from_value(&text).text().to_owned();
    let mut file =
        format!("---\nname: {}\ndescription: {}\n", skill.name, quoted(&skill.description));
    if !skill.tools.is_empty() {
        let tools = RawJson::from_value(&skill.tools);
        let _infallible = writeln!(file, "tools: {}", tools.text());
    }
    let _infallible = writeln!(file, "---\n{}", skill.body);
    file
}

/// Lists the skills of a user.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn list_skills(services: &Services, owner: &Owner) -> Result<UserSkills, CommandError> {
    let items = read_list(services, owner).await?.items.into_iter().map(|skill| {
        let ListedSkill { name, description, tools, extra: _ } = skill;
        UserSkillSummary { name, description, tools }
    });
    Ok(UserSkills { items: items.collect() })
}

/// Reads the list of a user's skills.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn read_list(services: &Services, owner: &Owner) -> Result<SkillList, CommandError> {
    let partition = user_partition(&owner.tenant, &owner.user);
    let found = load_user_documents(&*services.store, &partition).await?;
    Ok(found.skills.map(|stored| stored.document).unwrap_or_default())
}

/// Reads a skill of a user.
///
/// # Errors
/// Returns [`CommandError::NotFound`] if the user has no such skill.
pub async fn read_skill(
    services: &Services,
    owner: &Owner,
    name: &str,
) -> Result<UserSkill, CommandError> {
    let partition = user_partition(&owner.tenant, &owner.user);
    let found = load_skill(&*services.store, &partition, name).await?;
    found.map(|(skill, _)| skill).ok_or(CommandError::NotFound("skill"))
}
