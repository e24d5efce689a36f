//! Command that deletes a conversation. The first commit hides it from every caller; the purge then
//! removes its documents and artifacts in two passes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::agent::budget::{AccountAlert, Books};
use crate::agent::head::Head;
use crate::agent::phase::{CallStatus, Phase};
use crate::agent::request::Effect;
use crate::agent::settings::Settings;
use crate::agent::usage::{Tally, Usage};
use crate::artifacts::Shelf;
use crate::clock::Timestamp;
use crate::ids::{CommitId, ConversationKey};
use crate::live::LiveEvent;
use crate::queue;
use crate::store::{
    BATCH_OPERATIONS_MAX, ETag, Freshness, HEAD_ID, Kind, Partition, Selection, StoreError, Write,
};
use crate::turn::admission::held_key;
use crate::turn::admission::import::is_importing;
use crate::turn::admission::write::{Written, head_document, write_surely};
use crate::turn::admission::{Refusal, nudge};
use crate::turn::commit::ring;
use crate::turn::event_log::report_alerts;
use crate::turn::notify::GIVE_UP_AFTER;
use crate::turn::views::load::{self, any_head};
use crate::turn::{Nudge, World, books, paying, record};

/// Time until the id of a deleted conversation is free again.
pub const TOMBSTONE: Duration = Duration::from_hours(7 * 24);
/// Delay until an unfinished purge is retried.
const PURGE_AGAIN_AFTER: Duration = Duration::from_mins(1);
const TRIES_MAX: u32 = 10;
/// Time in which a worker must report a call that ran at the deletion. A worker notices a deletion
/// within seconds; after this time it counts as dead.
const REPORT_WITHIN: Duration = Duration::from_secs(45);
const KINDS: [Kind; 7] =
    [Kind::Inbox, Kind::Events, Kind::Entry, Kind::Notice, Kind::Receipt, Kind::Live, Kind::Watch];

/// Deletes a conversation. A failed purge is not reported to the caller: it is pending work for the
/// recovery sweep.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn delete_conversation(world: &World, key: &ConversationKey) -> Result<(), Refusal> {
    let mut pause = Duration::from_millis(10);
    for _ in 0..TRIES_MAX {
        let (head, etag) = load::head(world, key).await?;
        refuse_writes_in_flight(world, &head)?;
        let tombstone = tombstone(world, head);
        world.probe.reached("admission.delete").await;
        if is_written(world, key, &tombstone, etag).await? {
            world.live.publish(key, LiveEvent::Gone);
            world.stops.tell(key);
            if let Err(error) = purge(world, key).await {
                tracing::warn!(conversation.id = %key, error = %error, "purge failed: the recovery sweep will continue it");
                nudge(world, key, None).await;
            }
            return Ok(());
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Err(Refusal::contended())
}

async fn is_written(
    world: &World,
    key: &ConversationKey,
    tombstone: &Head,
    etag: ETag,
) -> Result<bool, Refusal> {
    let writes = vec![Write::Replace(head_document(tombstone)?, Some(etag))];
    Ok(match write_surely(world, key, writes).await? {
        Written::Won(_) => true,
        Written::Lost => {
            let found = any_head(world, key).await?;
            found.is_some_and(|(head, _)| head.commit_id == tombstone.commit_id)
        }
    })
}

/// Rejects the deletion while a `write` call awaits its response. The write may have happened, and
/// without its record its outcome would stay unknown.
fn refuse_writes_in_flight(world: &World, head: &Head) -> Result<(), Refusal> {
    let Phase::Calls { calls, .. } = &head.phase else { return Ok(()) };
    let now = world.clock.now();
    let in_flight = calls.iter().find_map(|call| match &call.status {
        CallStatus::Started { effect: Effect::Write, until, effect_id, .. } => {
            Some((effect_id, *until))
        }
        CallStatus::Started { .. }
        | CallStatus::Ready
        | CallStatus::Waiting { .. }
        | CallStatus::Done { .. } => None,
    });
    match in_flight {
        None => Ok(()),
        Some((effect_id, until)) => Err(Refusal::EffectInFlight {
            effect_id: effect_id.clone(),
            retry_after: now.until(until).max(Duration::from_secs(1)),
        }),
    }
}

/// Builds the tombstone, which keeps ids and numbers but no content.
fn tombstone(world: &World, mut head: Head) -> Head {
    let now = world.clock.now();
    // The worker of a running model call reports its cost. Without a report the reservation counts
    // as the cost.
    if paying::is_call_due(&head, now) {
        head.unreported_call = Some(now.plus(REPORT_WITHIN));
        head.min_reader = head.min_reader.max(head.reader_needed());
    } else {
        head.lose_hold((now, now));
    }
    let extra = held_key::kept(&head);
    Head {
        commit_id: CommitId::new(world.ids.fresh()),
        revision: head.revision + 1,
        claim: None,
        phase: Phase::Deleted,
        settings: Settings::default(),
        prompt: None,
        prompts: Vec::new(),
        requests: Vec::new(),
        unknown_writes: BTreeMap::new(),
        plugin_state: BTreeMap::new(),
        provider_state: None,
        hold: None,
        name: None,
        labels: BTreeMap::new(),
        metadata: BTreeMap::new(),
        parent: None,
        waiting: 0,
        due: Some(now.plus(PURGE_AGAIN_AFTER)),
        updated_at: now,
        deleted_at: Some(now),
        extra,
        ..head
    }
}

/// Purges a deleted conversation, and removes its tombstone after [`TOMBSTONE_RETENTION`]. Runs on
/// every delivery of a conversation in [`Phase::Deleted`]; does nothing for others.
///
/// # Errors
/// Returns an error if a service did not respond. The tombstone stays due, and the recovery sweep
/// retries.
pub async fn purge(world: &World, key: &ConversationKey) -> Result<(), Refusal> {
    let Some((head, etag)) = any_head(world, key).await? else { return Ok(()) };
    let now = world.clock.now();
    if head.phase != Phase::Deleted || (is_importing(&head) && !is_due(&head, now)) {
        return Ok(());
    }
    let shelf = Shelf { key: key.clone(), incarnation: head.incarnation.clone() };
    let ends_at = head.deleted_at.unwrap_or(now).plus(TOMBSTONE);
    // A finished purge sets this time. The notifications that are left are its budget alerts, which
    // are still to be sent.
    let purged_until = head.due.filter(|due| *due >= ends_at);
    let is_kept = |kind: &Kind| *kind == Kind::Notice && purged_until.is_some_and(|at| at > now);
    // A request that was accepted just before the deletion may write just after the first pass.
    for _ in 0..2 {
        for kind in KINDS.into_iter().filter(|kind| !is_kept(kind)) {
            purge_kind(world, key, kind).await?;
        }
        world.artifacts.delete_all(&shelf).await?;
        world.probe.reached("admission.purged").await;
    }
    held_key::forget(world, &head).await?;
    let Some((head, etag)) = lose_unreported_call(world, key, (head, etag)).await? else {
        return Ok(());
    };
    let mut alerts = Vec::new();
    if head.books.settle_at.is_some() {
        alerts = books::enter(world, &head).await?.alerts;
    }
    let mut ends_at = purged_until.unwrap_or(ends_at);
    if !alerts.is_empty() {
        ends_at = ends_at.max(now.plus(GIVE_UP_AFTER));
    }
    if ends_at <= now || is_importing(&head) {
        books::forget(world, &head).await?;
        let write = Write::Delete(HEAD_ID.to_owned(), Some(etag));
        // Lost: another delivery purges, with the same result.
        return write_surely(world, key, vec![write]).await.map(|_| ());
    }
    let account_alerts = alerts.last().map_or(head.books.account_alerts, |it| it.number);
    let books = Books { days: Vec::new(), settle_at: None, account_alerts, ..head.books };
    let kept = Head { due: Some(ends_at), books, ..head };
    end_purge(world, &kept, etag, alerts).await
}

/// Writes the tombstone of a finished purge with the alerts that the ledger reported. If the write
/// is lost, another delivery purges with the same result.
async fn end_purge(
    world: &World,
    kept: &Head,
    etag: ETag,
    alerts: Vec<AccountAlert>,
) -> Result<(), Refusal> {
    let (key, now) = (kept.key(), world.clock.now());
    let mut writes = vec![Write::Replace(head_document(kept)?, Some(etag))];
    if world.herald.is_some() {
        writes.extend(alerts.iter().map(|AccountAlert { number, alert }| {
            let notification = alert.notification(kept, &format!("account{number}"), now);
            Write::Create(record::notice_document(&notification, Some(now)))
        }));
    }
    let is_won = matches!(write_surely(world, &key, writes).await?, Written::Won(_));
    if is_won && !alerts.is_empty() {
        let alerts: Vec<_> = alerts.into_iter().map(|it| it.alert).collect();
        report_alerts(world, &key, &alerts);
        ring(world, queue::NOTIFY, &Nudge::of(key, None), Duration::ZERO).await;
    }
    Ok(())
}

/// Closes the open call of a tombstone. A call that was not reported in time counts as its
/// reservation. `None`: its time is not over, or another delivery was first.
async fn lose_unreported_call(
    world: &World,
    key: &ConversationKey,
    (head, etag): (Head, ETag),
) -> Result<Option<(Head, ETag)>, Refusal> {
    let now = world.clock.now();
    match head.unreported_call {
        None => return Ok(Some((head, etag))),
        Some(until) if until > now => return Ok(None),
        Some(_) => {}
    }
    let mut lost = Head { unreported_call: None, ..head };
    lost.lose_hold((now, now));
    lost.commit_id = CommitId::new(world.ids.fresh());
    let write = Write::Replace(head_document(&lost)?, Some(etag));
    let Written::Won(etags) = write_surely(world, key, vec![write]).await? else {
        return Ok(None);
    };
    Ok(etags.into_iter().next().map(|etag| (lost, etag)))
}

/// Model calls whose responses arrived after the conversation was deleted.
#[derive(Debug)]
pub(in crate::turn) struct LostCall<'a> {
    pub(in crate::turn) incarnation: &'a str,
    /// Epoch of the worker that made the calls.
    pub(in crate::turn) epoch: u64,
    pub(in crate::turn) usage: Usage,
    pub(in crate::turn) calls: u32,
}

/// Records the usage of calls that ran at the deletion. The tombstone accepts one report, before
/// its deadline.
///
/// # Errors
/// Returns an error if a service did not respond. Without a report the reservation counts as the
/// cost.
pub(in crate::turn) async fn report_call(
    world: &World,
    key: &ConversationKey,
    call: &LostCall<'_>,
) -> Result<(), Refusal> {
    for _ in 0..TRIES_MAX {
        let Some((mut head, etag)) = any_head(world, key).await? else { return Ok(()) };
        let is_awaited = head.phase == Phase::Deleted
            && head.incarnation == call.incarnation
            && head.epoch <= call.epoch
            && head.unreported_call.is_some();
        if !is_awaited {
            return Ok(());
        }
        let now = world.clock.now();
        head.unreported_call = None;
        head.held = None;
        head.usage += call.usage;
        let cost = Tally { calls: u64::from(call.calls), ..Tally::of(&call.usage) };
        head.books.add(cost, (now, now));
        head.commit_id = CommitId::new(world.ids.fresh());
        let write = Write::Replace(head_document(&head)?, Some(etag));
        if let Written::Won(_) = write_surely(world, key, vec![write]).await? {
            return Box::pin(purge(world, key)).await;
        }
    }
    Err(Refusal::contended())
}

fn is_due(head: &Head, now: Timestamp) -> bool {
    head.due.is_some_and(|due| due <= now)
}

async fn purge_kind(world: &World, key: &ConversationKey, kind: Kind) -> Result<(), Refusal> {
    let partition = Partition::Conversation(key.clone());
    let selection = Selection { limit: BATCH_OPERATIONS_MAX, ..Selection::all(kind) };
    loop {
        let left = world.store.select(&partition, &selection, Freshness::Latest).await?;
        if left.is_empty() {
            return Ok(());
        }
        let deletes =
            left.into_iter().map(|stored| Write::Delete(stored.document.id, None)).collect();
        match world.store.write(&partition, deletes).await {
            // Another purge has removed some of them: read again.
            Ok(_) | Err(StoreError::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
