//! Command that deletes the data of a user: conversations, schedules, memory, profile.

use serde::Serialize;
use utoipa::ToSchema;

use crate::delete::delete_conversation;
use turnwheel_record::contract::{CommandError, Owner};

use turnwheel_record::documents;
use turnwheel_record::services::Services;
use turnwheel_record::user_documents::user_partition;
use turnwheel_storage::store::conditional::write_once;
use turnwheel_storage::store::{
    BATCH_OPERATIONS_MAX, DocumentKind, Freshness, HeadQuery, Selection, Write,
};

/// Conversations that one request deletes.
const CONVERSATIONS_MAX: usize = 50;

/// The part of a user's data that a request deleted.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserDeletion {
    pub conversations: usize,
    pub schedules: usize,
    /// Documents of the memory, the profile and the skills.
    pub documents: usize,
    /// `false`: repeat the request, which deletes the rest.
    pub is_complete: bool,
}

/// Deletes up to [`CONVERSATIONS_MAX`] conversations of a user, and then the user's documents. The
/// caller has deleted the schedules, which would start new conversations. A repeated request
/// continues.
///
/// # Errors
/// A conversation whose write is running stays: everything else is deleted, and the error names the
/// write. After another error, repeat the request.
pub async fn delete_user_data(
    services: &Services,
    owner: &Owner,
) -> Result<UserDeletion, CommandError> {
    let mut deletion = UserDeletion::default();
    let mut in_flight = None;
    let mut continuation = None;
    loop {
        let query = HeadQuery {
            tenant: owner.tenant.clone(),
            user: Some(owner.user.clone()),
            state: None,
            limit: CONVERSATIONS_MAX,
            continuation,
        };
        let page = services.store.list_heads(&query).await?;
        for stored in &page.items {
            if deletion.conversations == CONVERSATIONS_MAX {
                return Ok(deletion);
            }
            let key = documents::read_head(stored)?.key();
            services.fail_points.hit("user.conversation").await;
            match Box::pin(delete_conversation(services, &key)).await {
                Ok(()) => deletion.conversations += 1,
                // Another request deleted it.
                Err(CommandError::NotFound(_)) => {}
                Err(error @ CommandError::EffectInFlight { .. }) => in_flight = Some(error),
                Err(error) => return Err(error),
            }
        }
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
    }
    services.fail_points.hit("user.documents").await;
    deletion.documents = delete_documents(services, owner).await?;
    deletion.is_complete = true;
    in_flight.map_or(Ok(deletion), Err)
}

async fn delete_documents(services: &Services, owner: &Owner) -> Result<usize, CommandError> {
    let partition = user_partition(&owner.tenant, &owner.user);
    let selection =
        Selection { limit: BATCH_OPERATIONS_MAX, ..Selection::all(DocumentKind::Scope) };
    let mut count = 0;
    loop {
        let left = services.store.select(&partition, &selection, Freshness::Latest).await?;
        if left.is_empty() {
            return Ok(count);
        }
        let deletes: Vec<Write> =
            left.into_iter().map(|stored| Write::Delete(stored.document.id, None)).collect();
        let deleted = deletes.len();
        // Lost: another request has deleted some of them, so read again.
        if write_once(&*services.store, &partition, deletes).await?.is_some() {
            count += deleted;
        }
    }
}
