//! Changes of a user's profile: by the worker that learns from messages, and by the user.

use std::time::Duration;

use crate::memory::write_user_documents;
use crate::unleased_change::{
    UnleasedCalls, UnleasedChange, UnleasedOutcome, add_usage, change_without_lease,
};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::profile::ProfileFields;
use turnwheel_conversation::profile::document::{ProfileDocument, UnseenMessage};
use turnwheel_queries::profile::profile_etag;
use turnwheel_record::contract::{CommandError, Owner};
use turnwheel_record::services::Services;
use turnwheel_record::user_documents::{
    delete_profile, load_profile, user_partition, write_profile,
};
use turnwheel_storage::store::Partition;
use turnwheel_storage::store::conditional::{back_off, compare_and_set};

/// Number of writes lost to other writers after which a change gives up.
const ATTEMPTS_MAX: usize = 10;
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// The end of the model call of a claim.
#[derive(Clone, Debug)]
pub enum LearningOutcome {
    Learned(ProfileFields),
    Unchanged,
    /// There is no usable response.
    Failed,
}

/// The result of a claim.
#[derive(Debug)]
pub struct LearningReport<'a> {
    pub partition: &'a Partition,
    pub claim_id: &'a str,
    /// The messages that the model has received.
    pub received: &'a [UnseenMessage],
    pub outcome: LearningOutcome,
}

/// Records the result of a claim. If another worker has claimed since, or the profile was deleted, the
/// result is dropped. Returns the number of messages that are given up.
///
/// # Errors
/// The store is unavailable, or other writers came first: the claim expires.
pub async fn record_learning(
    services: &Services,
    report: &LearningReport<'_>,
) -> Result<usize, CommandError> {
    let now = services.clock.now();
    let record = |document: &mut ProfileDocument| {
        if !document.is_claimed_by(report.claim_id) {
            return 0;
        }
        let received = report.received;
        match &report.outcome {
            LearningOutcome::Learned(fields) => {
                document.record_learning(received, Some(fields.clone()), now);
                0
            }
            LearningOutcome::Unchanged => {
                document.record_learning(received, None, now);
                0
            }
            LearningOutcome::Failed => document.record_failure(received, now),
        }
    };
    let waits = back_off(ATTEMPTS_MAX, RETRY_DELAY);
    compare_and_set(waits, || try_change(services, report.partition, &record)).await
}

/// Removes what a conversation posted after its deletion, so that a deleted user has no document.
///
/// # Errors
/// The store is unavailable, or other writers came first.
pub async fn retract_messages(services: &Services, head: &Head) -> Result<(), CommandError> {
    let partition = user_partition(&head.tenant, &head.user);
    let retract = |document: &mut ProfileDocument| {
        document.retract(&head.conversation_id);
        0
    };
    let waits = back_off(ATTEMPTS_MAX, RETRY_DELAY);
    compare_and_set(waits, || try_change(services, &partition, &retract)).await.map(|_| ())
}

/// Tries a change once. `None`: another writer came first, or this write won with a lost response.
async fn try_change(
    services: &Services,
    partition: &Partition,
    change: &(impl Fn(&mut ProfileDocument) -> usize + Sync),
) -> Result<Option<usize>, CommandError> {
    let Some(stored) = load_profile(&*services.store, partition).await? else {
        return Ok(Some(0));
    };
    let mut changed = stored.document.clone();
    let count = change(&mut changed);
    if changed == stored.document {
        return Ok(Some(count));
    }
    let write = if changed.is_blank() {
        delete_profile(stored.etag)
    } else {
        write_profile(&changed, Some(&stored.etag))
    };
    let is_won = write_user_documents(services, partition, vec![write]).await?;
    Ok(is_won.then_some(count))
}

/// Removes the passed messages from the head, and adds the usage of the model calls.
///
/// # Errors
/// The store is unavailable, or other writers came first: a later delivery removes the messages.
pub async fn record_passed_messages(
    services: &Services,
    head_at_release: &Head,
    passed_seq: u64,
    calls: UnleasedCalls,
) -> Result<UnleasedOutcome, CommandError> {
    let change = |head: &mut Head, now| {
        let before = head.profile_messages.clone();
        let left = before.clone().and_then(|messages| messages.without_passed(passed_seq));
        head.profile_messages = left;
        if head.profile_messages == before && calls.count == 0 {
            return None;
        }
        if head.lease.is_none() {
            // Items accepted since the release may still be undrained.
            let has_items = head.inbox_count != Some(0);
            head.set_due(now, has_items.then_some(Duration::ZERO));
        }
        if calls.count > 0 {
            add_usage(services, head, calls, now);
        }
        Some(UnleasedChange { has_news: calls.count > 0, ..UnleasedChange::default() })
    };
    change_without_lease(services, head_at_release, change).await
}

/// Deletes the profile of a user with the messages that it has not learnt from. Without a profile it
/// does nothing. `is_wanted`: whether the profile with this `ETag` may be deleted.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client.
pub async fn clear_profile(
    services: &Services,
    owner: &Owner,
    is_wanted: &(dyn Fn(&str) -> bool + Sync),
) -> Result<(), CommandError> {
    let partition = user_partition(&owner.tenant, &owner.user);
    compare_and_set(back_off(ATTEMPTS_MAX, RETRY_DELAY), || async {
        let Some(stored) = load_profile(&*services.store, &partition).await? else {
            return Ok(Some(()));
        };
        let etag = profile_etag(&stored.document);
        if !is_wanted(&etag) {
            return Err(CommandError::PreconditionFailed { etag });
        }
        let write = delete_profile(stored.etag);
        let is_won = write_user_documents(services, &partition, vec![write]).await?;
        Ok(is_won.then_some(()))
    })
    .await
}
