//! Schedules in the store. Each is a document in its tenant's scope whose `due` is its next firing.
//! This module reads, lists and cancels schedules; [`create`] creates and [`fire`] fires them.

pub mod create;
pub mod fire;
mod tool_adapter;

use std::time::Duration;

use turnwheel_conversation::schedule::Schedule;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ScheduleId, TenantId, UserId, is_plain_text};
use turnwheel_record::certain_write::{BatchOutcome, write_until_certain_in};
use turnwheel_record::contract::{CommandError, Owner};
use turnwheel_record::documents;
use turnwheel_record::nudge::{NUDGE_WITHIN, Nudge};
use turnwheel_record::nudge_sender::enqueue_nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue;
use turnwheel_storage::store::conditional::{back_off, compare_and_set};
use turnwheel_storage::store::{
    Document, DocumentKind, ETag, Freshness, Partition, ResultPage, Selection, StoreError,
    StoredDocument, Write,
};
use turnwheel_tools::sha256_hex;

/// Maximum number of schedules of a user. Concurrent requests may exceed it by one or two.
pub const SCHEDULES_MAX: usize = 100;
/// Maximum length of a schedule's id, in characters.
pub const ID_LENGTH_MAX: usize = 64;
/// Maximum bytes of a schedule's input as JSON.
pub const INPUT_BYTES_MAX: usize = 32 * 1024;
/// Number of writes lost to other writers after which a change gives up.
const ATTEMPTS_MAX: usize = 10;

/// First part of the id of an idempotency receipt, before the owner's tag.
const RECEIPT_PREFIX: &str = "schedule-key";

pub fn scope_partition(tenant: &TenantId) -> Partition {
    Partition::Scope(tenant.clone())
}

/// Prefix of the ids of a user's documents. User ids may be long and contain hyphens. A tag of 16
/// hex digits keeps one user's documents together, and apart from those of others.
fn owner_prefix(kind: &str, user: &UserId) -> String {
    let mut tag = sha256_hex(user.as_str().as_bytes());
    tag.truncate(16);
    format!("{kind}-{tag}")
}

pub fn schedule_document_id(user: &UserId, id: &ScheduleId) -> String {
    format!("{}-{id}", owner_prefix(documents::SCHEDULE_PREFIX, user))
}

/// Selects documents of kind [`DocumentKind::Scope`] whose id continues with a hyphen after the prefix. A
/// dot sorts directly after the hyphen.
fn prefix_range(prefix: &str) -> Selection {
    Selection {
        from_id: Some(format!("{prefix}-")),
        to_id: Some(format!("{prefix}.")),
        ..Selection::all(DocumentKind::Scope)
    }
}

fn schedule_document(schedule: &Schedule) -> Document {
    let id = schedule_document_id(&schedule.user, &schedule.id);
    Document::new(id, DocumentKind::Scope, schedule, schedule.due())
}

async fn find_document(
    services: &Services,
    tenant: &TenantId,
    document_id: &str,
) -> Result<Option<(Schedule, ETag)>, StoreError> {
    let found =
        services.store.read(&scope_partition(tenant), document_id, Freshness::Latest).await?;
    found.map(|stored| Ok((documents::read(&stored.document)?, stored.etag))).transpose()
}

/// Moves a schedule to its next time if a clock that was ahead has set the current one.
///
/// # Errors
/// The store is unavailable: try again.
pub async fn correct_schedule(
    services: &Services,
    tenant: &TenantId,
    document_id: &str,
) -> Result<(), StoreError> {
    let Some((schedule, etag)) = find_document(services, tenant, document_id).await? else {
        return Ok(());
    };
    let Some(corrected) = schedule.corrected_at(services.clock.now()) else { return Ok(()) };
    let write = Write::Replace(schedule_document(&corrected), Some(etag));
    match services.store.write(&scope_partition(tenant), vec![write]).await {
        // Another writer came first: it has set a new time.
        Ok(_) | Err(StoreError::Conflict) => {}
        Err(error) => return Err(error),
    }
    enqueue_if_near(services, tenant, &corrected).await;
    Ok(())
}

/// Reads a schedule of the owner.
///
/// # Errors
/// Returns [`CommandError::NotFound`], or `Unavailable` if the store does not respond: repeat the
/// request.
pub async fn load_schedule(
    services: &Services,
    owner: &Owner,
    id: &str,
) -> Result<Schedule, CommandError> {
    find_owned_schedule(services, owner, id).await.map(|(schedule, _)| schedule)
}

async fn find_owned_schedule(
    services: &Services,
    owner: &Owner,
    id: &str,
) -> Result<(Schedule, ETag), CommandError> {
    const NONE: CommandError = CommandError::NotFound("schedule");
    if id.len() > ID_LENGTH_MAX || !is_plain_text(id) {
        return Err(NONE);
    }
    let document_id = schedule_document_id(&owner.user, &ScheduleId::new(id));
    let found = find_document(services, &owner.tenant, &document_id).await?;
    found.filter(|(schedule, _)| schedule.user == owner.user).ok_or(NONE)
}

/// All schedules of a user, the newest first; about [`SCHEDULES_MAX`] at most.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn list_user_schedules(
    services: &Services,
    owner: &Owner,
) -> Result<Vec<Schedule>, CommandError> {
    let selection = prefix_range(&owner_prefix(documents::SCHEDULE_PREFIX, &owner.user));
    let found = services
        .store
        .select(&scope_partition(&owner.tenant), &selection, Freshness::Latest)
        .await?;
    let mut schedules = parse_all(&found)?;
    schedules.sort_by(|one, other| (other.created_at, &other.id).cmp(&(one.created_at, &one.id)));
    Ok(schedules)
}

/// One page of a tenant's schedules, grouped by user. `from` is the end of the previous page.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn list_tenant_schedules(
    services: &Services,
    tenant: &TenantId,
    limit: usize,
    from: Option<String>,
) -> Result<ResultPage<Schedule>, CommandError> {
    let all = prefix_range(documents::SCHEDULE_PREFIX);
    let from_id = from.clone().or(all.from_id);
    // Two more than a page: the last schedule of the previous page, and one that shows whether
    // another page follows.
    let selection = Selection { from_id, limit: limit + 2, ..all };
    let mut found =
        services.store.select(&scope_partition(tenant), &selection, Freshness::Latest).await?;
    found.retain(|stored| Some(&stored.document.id) != from.as_ref());
    let is_more = found.len() > limit;
    found.truncate(limit);
    let last = found.last().map(|stored| stored.document.id.clone());
    Ok(ResultPage { items: parse_all(&found)?, continuation: last.filter(|_| is_more) })
}

fn parse_all(found: &[StoredDocument]) -> Result<Vec<Schedule>, StoreError> {
    found.iter().map(|stored| documents::read(&stored.document)).collect()
}

/// Cancels a schedule. A firing that has not been made is never made.
///
/// # Errors
/// Returns [`CommandError::NotFound`], or `Unavailable` if the store does not respond: repeat the
/// request.
pub async fn cancel_schedule(
    services: &Services,
    owner: &Owner,
    id: &str,
) -> Result<(), CommandError> {
    compare_and_set(back_off(ATTEMPTS_MAX, Duration::ZERO), || try_cancel(services, owner, id))
        .await
}

/// Cancels all schedules of a user. Returns their number.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn cancel_all_of_user(services: &Services, owner: &Owner) -> Result<usize, CommandError> {
    let all = list_user_schedules(services, owner).await?;
    for schedule in &all {
        match cancel_schedule(services, owner, schedule.id.as_str()).await {
            // Another request cancelled it.
            Ok(()) | Err(CommandError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all.len())
}

/// Tries the cancellation once. `None`: another writer came first.
async fn try_cancel(
    services: &Services,
    owner: &Owner,
    id: &str,
) -> Result<Option<()>, CommandError> {
    let (schedule, etag) = find_owned_schedule(services, owner, id).await?;
    let writes = removal_writes(&schedule, Some(etag));
    services.fail_points.hit("schedule.cancel").await;
    let partition = scope_partition(&owner.tenant);
    if let BatchOutcome::Won(_) = write_until_certain_in(services, &partition, writes).await? {
        return Ok(Some(()));
    }
    match find_owned_schedule(services, owner, id).await {
        // This request itself may have won with a lost response.
        Err(CommandError::NotFound(_)) => Ok(Some(())),
        Err(refusal) => Err(refusal),
        Ok(_) => Ok(None),
    }
}

/// Writes that remove a schedule and its idempotency receipt.
fn removal_writes(schedule: &Schedule, etag: Option<ETag>) -> Vec<Write> {
    let mut writes = vec![Write::Delete(schedule_document_id(&schedule.user, &schedule.id), etag)];
    writes.extend(schedule.receipt.clone().map(|receipt| Write::Delete(receipt, None)));
    writes
}

/// Enqueues a nudge if the firing is near. The recovery sweep enqueues the others.
async fn enqueue_if_near(services: &Services, tenant: &TenantId, schedule: &Schedule) {
    let Some(due) = schedule.due() else { return };
    let delay = delay_until(services.clock.now(), due);
    if delay <= NUDGE_WITHIN {
        let nudge =
            Nudge::for_schedule(tenant, &schedule_document_id(&schedule.user, &schedule.id));
        enqueue_nudge(services, queue::TURNS, &nudge, delay).await;
    }
}

/// Delay in whole seconds, the unit of queues, rounded up so that no nudge is early.
fn delay_until(now: Timestamp, due: Timestamp) -> Duration {
    let left = now.until(due);
    Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0))
}
