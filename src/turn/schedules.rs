//! Schedules in the store. Each is a document in its tenant's scope whose `due` is its next firing.
//! This module reads, lists and cancels schedules; [`create`] creates and [`fire`] fires them.

pub mod create;
mod desk;
pub mod fire;

use std::time::Duration;

use crate::agent::raw::RawJson;
use crate::agent::schedule::Schedule;
use crate::clock::Timestamp;
use crate::ids::{ScheduleId, TenantId, UserId, is_plain};
use crate::queue;
use crate::store::{
    Document, ETag, Freshness, Kind, Page, Partition, Selection, StoreError, Stored, Write,
};
use crate::tools::sha256_hex;
use crate::turn::admission::write::{Written, write_surely_in};
use crate::turn::admission::{Owner, Refusal};
use crate::turn::commit::{NUDGE_WITHIN, ring};
use crate::turn::{Nudge, World, record};

/// Maximum number of schedules of a user. Concurrent requests may exceed it by one or two.
pub const SCHEDULES_MAX: usize = 100;
/// Maximum length of a schedule's id, in characters.
pub const ID_MAX: usize = 64;
/// Maximum bytes of a schedule's input as JSON.
pub const INPUT_BYTES_MAX: usize = 32 * 1024;
const TRIES_MAX: u32 = 10;

/// First part of the id of a schedule's document, before the owner's tag.
const SCHEDULE: &str = "schedule-of";
/// First part of the id of an idempotency receipt, before the owner's tag.
const RECEIPT: &str = "schedule-key";

pub(crate) fn partition(tenant: &TenantId) -> Partition {
    Partition::Scope(tenant.clone())
}

/// True if the id of a scope document belongs to a schedule.
pub(crate) fn is_schedule(document_id: &str) -> bool {
    document_id.strip_prefix(SCHEDULE).is_some_and(|rest| rest.starts_with('-'))
}

/// Prefix of the ids of a user's documents. User ids may be long and contain hyphens. A tag of 16
/// hex digits keeps one user's documents together, and apart from those of others.
fn of_owner(kind: &str, user: &UserId) -> String {
    let mut tag = sha256_hex(user.as_str().as_bytes());
    tag.truncate(16);
    format!("{kind}-{tag}")
}

pub(crate) fn id_of(user: &UserId, id: &ScheduleId) -> String {
    format!("{}-{id}", of_owner(SCHEDULE, user))
}

/// Selects documents of kind [`Kind::Scope`] whose id continues with a hyphen after the prefix. A
/// dot sorts directly after the hyphen.
fn range(prefix: &str) -> Selection {
    Selection {
        from_id: Some(format!("{prefix}-")),
        to_id: Some(format!("{prefix}.")),
        ..Selection::all(Kind::Scope)
    }
}

fn document(schedule: &Schedule) -> Document {
    Document {
        id: id_of(&schedule.user, &schedule.id),
        kind: Kind::Scope,
        body: RawJson::of(schedule),
        due: schedule.due(),
        created_at: None,
        state: None,
        ttl: None,
    }
}

async fn find(
    world: &World,
    tenant: &TenantId,
    document_id: &str,
) -> Result<Option<(Schedule, ETag)>, StoreError> {
    let found = world.store.read(&partition(tenant), document_id, Freshness::Latest).await?;
    found.map(|stored| Ok((record::read(&stored.document)?, stored.etag))).transpose()
}

/// Reads a schedule of the owner.
///
/// # Errors
/// Returns [`CommandError::NotFound`], or `Unavailable` if the store does not respond: repeat the
/// request.
pub async fn read(world: &World, owner: &Owner, id: &str) -> Result<Schedule, Refusal> {
    own(world, owner, id).await.map(|(schedule, _)| schedule)
}

async fn own(world: &World, owner: &Owner, id: &str) -> Result<(Schedule, ETag), Refusal> {
    const NONE: Refusal = Refusal::NotFound("schedule");
    if id.len() > ID_MAX || !is_plain(id) {
        return Err(NONE);
    }
    let document_id = id_of(&owner.user, &ScheduleId::new(id));
    let found = find(world, &owner.tenant, &document_id).await?;
    found.filter(|(schedule, _)| schedule.user == owner.user).ok_or(NONE)
}

/// All schedules of a user, the newest first; about [`SCHEDULES_MAX`] at most.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn of_user(world: &World, owner: &Owner) -> Result<Vec<Schedule>, Refusal> {
    let selection = range(&of_owner(SCHEDULE, &owner.user));
    let found =
        world.store.select(&partition(&owner.tenant), &selection, Freshness::Latest).await?;
    let mut schedules = read_all(&found)?;
    schedules.sort_by(|one, other| (other.created_at, &other.id).cmp(&(one.created_at, &one.id)));
    Ok(schedules)
}

/// One page of a tenant's schedules, grouped by user. `from` is the end of the previous page.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn of_tenant(
    world: &World,
    tenant: &TenantId,
    limit: usize,
    from: Option<String>,
) -> Result<Page<Schedule>, Refusal> {
    let all = range(SCHEDULE);
    let from_id = from.clone().or(all.from_id);
    // Two more than a page: the last schedule of the previous page, and one that shows whether
    // another page follows.
    let selection = Selection { from_id, limit: limit + 2, ..all };
    let mut found = world.store.select(&partition(tenant), &selection, Freshness::Latest).await?;
    found.retain(|stored| Some(&stored.document.id) != from.as_ref());
    let is_more = found.len() > limit;
    found.truncate(limit);
    let last = found.last().map(|stored| stored.document.id.clone());
    Ok(Page { items: read_all(&found)?, continuation: last.filter(|_| is_more) })
}

fn read_all(found: &[Stored]) -> Result<Vec<Schedule>, StoreError> {
    found.iter().map(|stored| record::read(&stored.document)).collect()
}

/// Cancels a schedule. A firing that has not been made is never made.
///
/// # Errors
/// Returns [`CommandError::NotFound`], or `Unavailable` if the store does not respond: repeat the
/// request.
pub async fn cancel(world: &World, owner: &Owner, id: &str) -> Result<(), Refusal> {
    for _ in 0..TRIES_MAX {
        let (schedule, etag) = own(world, owner, id).await?;
        let writes = removal(&schedule, Some(etag));
        world.probe.reached("schedule.cancel").await;
        match write_surely_in(world, &partition(&owner.tenant), writes).await? {
            Written::Won(_) => return Ok(()),
            Written::Lost => {}
        }
        match own(world, owner, id).await {
            // This request itself may have won with a lost response.
            Err(Refusal::NotFound(_)) => return Ok(()),
            Err(refusal) => return Err(refusal),
            Ok(_) => {}
        }
    }
    Err(Refusal::contended())
}

/// Writes that remove a schedule and its idempotency receipt.
fn removal(schedule: &Schedule, etag: Option<ETag>) -> Vec<Write> {
    let mut writes = vec![Write::Delete(id_of(&schedule.user, &schedule.id), etag)];
    writes.extend(schedule.receipt.clone().map(|receipt| Write::Delete(receipt, None)));
    writes
}

/// Enqueues a nudge if the firing is near. The recovery sweep enqueues the others.
async fn ring_if_soon(world: &World, tenant: &TenantId, schedule: &Schedule) {
    let Some(due) = schedule.due() else { return };
    let delay = delay_until(world.clock.now(), due);
    if delay <= NUDGE_WITHIN {
        let nudge = Nudge::of_schedule(tenant, &id_of(&schedule.user, &schedule.id));
        ring(world, queue::TURNS, &nudge, delay).await;
    }
}

/// Delay in whole seconds, the unit of queues, rounded up so that no nudge is early.
fn delay_until(now: Timestamp, due: Timestamp) -> Duration {
    let left = now.until(due);
    Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0))
}
