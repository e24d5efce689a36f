//! The profile of a user as clients see it.

use serde::Serialize;
use utoipa::ToSchema;

use turnwheel_conversation::profile::document::ProfileDocument;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::{Timestamp, iso, iso_option};
use turnwheel_platform::digest::sha256_hex;
use turnwheel_record::contract::{CommandError, Owner};
use turnwheel_record::services::Services;
use turnwheel_record::user_documents::{load_profile, user_partition};

const ETAG_DIGITS: usize = 16;

/// The profile of a user, and the messages that it has not learnt from.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProfileView {
    /// Absent: nothing was learnt yet.
    profile: Option<ProfileFieldsView>,
    /// Time of the last change by the model.
    #[serde(with = "iso_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    last_learned_at: Option<Timestamp>,
    /// The messages that the profile has not learnt from, the oldest first.
    unseen_messages: Vec<UnseenMessageView>,
}

/// A member without content is absent.
#[derive(Debug, Serialize, ToSchema)]
struct ProfileFieldsView {
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    who: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    style: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    focus: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    interests: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    misc: String,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct UnseenMessageView {
    conversation_id: String,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// The first 512 characters.
    text: String,
}

impl ProfileView {
    pub fn new(document: &ProfileDocument) -> Self {
        let profile = document.profile.as_ref();
        let fields = profile.map(|profile| {
            let fields = profile.fields.clone();
            ProfileFieldsView {
                who: fields.who,
                style: fields.style,
                focus: fields.focus,
                interests: fields.interests,
                misc: fields.misc,
            }
        });
        let unseen = document.unseen.iter().map(|message| UnseenMessageView {
            conversation_id: message.conversation_id.to_string(),
            at: message.at,
            text: message.text.clone(),
        });
        Self {
            profile: fields,
            last_learned_at: profile.map(|profile| profile.meta.last_learned_at),
            unseen_messages: unseen.collect(),
        }
    }
}

/// `ETag` of a profile with its unseen messages. No profile has one as well.
pub fn profile_etag(document: &ProfileDocument) -> String {
    let view = ProfileView::new(document);
    let mut hash = sha256_hex(RawJson::from_value(&view).text().as_bytes());
    hash.truncate(ETAG_DIGITS);
    format!("\"{hash}\"")
}

/// Reads the profile of a user. Blank if there is none.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn read_profile(
    services: &Services,
    owner: &Owner,
) -> Result<ProfileDocument, CommandError> {
    let partition = user_partition(&owner.tenant, &owner.user);
    let found = load_profile(&*services.store, &partition).await?;
    Ok(found.map(|stored| stored.document).unwrap_or_default())
}
