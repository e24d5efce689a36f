//! Command that deletes a conversation. The first commit hides it from every caller; the purge then
//! removes its documents and artifacts in two passes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::import::is_importing;
use crate::request_hooks::RequestHooks;
use crate::{key_reservation, wake_worker};
use turnwheel_conversation::budget::{AccountAlert, Metering};
use turnwheel_conversation::head::{Head, is_model_call_due};
use turnwheel_conversation::phase::{CallStatus, Phase};
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::settings::Settings;
use turnwheel_conversation::usage::{Usage, UsageTotals};
use turnwheel_extensions::Observation;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, InputId};
use turnwheel_record::certain_write::{write_and_confirm_head, write_head, write_until_certain};
use turnwheel_record::contract::CommandError;
use turnwheel_record::event_log::report_alerts;
use turnwheel_record::head_commit::{HeadCommit, stamp_head};
use turnwheel_record::ledger;
use turnwheel_record::load;
use turnwheel_record::load::any_head;
use turnwheel_record::notifications::GIVE_UP_AFTER;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::nudge_sender::enqueue_nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts::ArtifactScope;
use turnwheel_storage::artifacts::frame_documents::delete_all_artifacts;
use turnwheel_storage::live::LiveEvent;
use turnwheel_storage::queue;
use turnwheel_storage::store::conditional::{back_off, compare_and_set, write_once};
use turnwheel_storage::store::{
    BATCH_OPERATIONS_MAX, DocumentKind, ETag, Freshness, HEAD_ID, Partition, Selection, Write,
};

/// Time until the id of a deleted conversation is free again.
pub const TOMBSTONE_RETENTION: Duration = Duration::from_hours(7 * 24);
/// Delay until an unfinished purge is retried.
const PURGE_RETRY_AFTER: Duration = Duration::from_mins(1);
const ATTEMPTS_MAX: usize = 10;
const RETRY_DELAY: Duration = Duration::from_millis(10);
/// Time in which a worker must report a call that ran at the deletion. A worker notices a deletion
/// within seconds; after this time it counts as dead.
const REPORT_DEADLINE: Duration = Duration::from_secs(45);
const PURGED_KINDS: [DocumentKind; 7] = [
    DocumentKind::Inbox,
    DocumentKind::Events,
    DocumentKind::Entry,
    DocumentKind::Notification,
    DocumentKind::Receipt,
    DocumentKind::Live,
    DocumentKind::Watch,
];

/// Deletes a conversation. A failed purge is not reported to the caller: it is pending work for the
/// recovery sweep.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn delete_conversation(
    services: &Services,
    key: &ConversationKey,
) -> Result<(), CommandError> {
    let waits = back_off(ATTEMPTS_MAX, RETRY_DELAY);
    let deleted = compare_and_set(waits, || try_delete(services, key)).await?;
    let request = InputId::new(format!("delete_{}", deleted.incarnation));
    RequestHooks::new(services, &deleted, &request).observe(&Observation::SessionShutdown).await;
    services.live.publish(key, LiveEvent::Deleted);
    services.abort_signals.emit(key);
    if let Err(error) = purge(services, key).await {
        tracing::warn!(conversation.id = %key, error = %error, "purge failed: the recovery sweep will continue it");
        wake_worker(services, key, None).await;
    }
    Ok(())
}

/// Tries once to write the tombstone, and returns the head before it. `None`: another writer came
/// first.
async fn try_delete(
    services: &Services,
    key: &ConversationKey,
) -> Result<Option<Head>, CommandError> {
    let (head, etag) = load::head(services, key).await?;
    reject_writes_in_flight(services, &head)?;
    let tombstone = build_tombstone(services, head.clone());
    services.fail_points.hit("admission.delete").await;
    let commit = HeadCommit::replace(&tombstone, etag);
    Ok(write_and_confirm_head(services, key, commit).await?.map(|_| head))
}

/// Rejects the deletion while a `write` call awaits its response. The write may have happened, and
/// without its record its outcome would stay unknown.
fn reject_writes_in_flight(services: &Services, head: &Head) -> Result<(), CommandError> {
    let Phase::Calls { calls, .. } = &head.phase else { return Ok(()) };
    let now = services.clock.now();
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
        Some((effect_id, until)) => Err(CommandError::EffectInFlight {
            effect_id: effect_id.clone(),
            retry_after: now.until(until).max(Duration::from_secs(1)),
        }),
    }
}

/// Builds the tombstone, which keeps ids and numbers but no content.
fn build_tombstone(services: &Services, mut head: Head) -> Head {
    let now = services.clock.now();
    // The worker of a running model call reports its cost. Without a report the reservation counts
    // as the cost.
    if is_model_call_due(&head, now) {
        head.unreported_call = Some(now.plus(REPORT_DEADLINE));
    } else {
        head.record_lost_reservation(now, now);
    }
    let extra = key_reservation::tombstone_members(&head);
    let mut tombstone = Head {
        lease: None,
        phase: Phase::Deleted,
        settings: Settings::default(),
        prompt: None,
        prompts: Vec::new(),
        requests: Vec::new(),
        waiting_commands: Vec::new(),
        indeterminate_writes: BTreeMap::new(),
        plugin_state: BTreeMap::new(),
        profile_messages: None,
        frame: None,
        name: None,
        labels: BTreeMap::new(),
        metadata: BTreeMap::new(),
        parent: None,
        waiting_items: 0,
        inbox_count: None,
        due: Some(now.plus(PURGE_RETRY_AFTER)),
        deleted_at: Some(now),
        extra,
        ..head
    };
    stamp_head(services, &mut tombstone, Some(now));
    tombstone
}

/// Purges a deleted conversation, and removes its tombstone after [`TOMBSTONE_RETENTION`]. Runs on
/// every delivery of a conversation in [`Phase::Deleted`]; does nothing for others.
///
/// # Errors
/// Returns an error if a service did not respond. The tombstone stays due, and the recovery sweep
/// retries.
pub async fn purge(services: &Services, key: &ConversationKey) -> Result<(), CommandError> {
    let Some((head, etag)) = any_head(services, key).await? else { return Ok(()) };
    let now = services.clock.now();
    if head.phase != Phase::Deleted || (is_importing(&head) && !is_due(&head, now)) {
        return Ok(());
    }
    let scope = ArtifactScope { key: key.clone(), incarnation: head.incarnation.clone() };
    let ends_at = head.deleted_at.unwrap_or(now).plus(TOMBSTONE_RETENTION);
    // A finished purge sets this time. The notifications that are left are its budget alerts, which
    // are still to be sent.
    let purged_until = head.due.filter(|due| *due >= ends_at);
    let is_kept = |kind: &DocumentKind| {
        *kind == DocumentKind::Notification && purged_until.is_some_and(|at| at > now)
    };
    // A request that was accepted just before the deletion may write just after the first pass.
    for _ in 0..2 {
        for kind in PURGED_KINDS.into_iter().filter(|kind| !is_kept(kind)) {
            purge_kind(services, key, kind).await?;
        }
        delete_all_artifacts(&*services.artifacts, &scope).await?;
        services.fail_points.hit("admission.purged").await;
    }
    key_reservation::release(services, &head).await?;
    let Some((head, etag)) = close_unreported_call(services, key, head, etag).await? else {
        return Ok(());
    };
    let mut alerts = Vec::new();
    if head.metering.settle_at.is_some() {
        alerts = ledger::post(services, &head).await?.alerts;
    }
    let mut ends_at = purged_until.unwrap_or(ends_at);
    if !alerts.is_empty() {
        ends_at = ends_at.max(now.plus(GIVE_UP_AFTER));
    }
    if ends_at <= now || is_importing(&head) {
        ledger::delete_line(services, &head).await?;
        let write = Write::Delete(HEAD_ID.to_owned(), Some(etag));
        // Lost: another delivery purges, with the same result.
        return write_until_certain(services, key, vec![write]).await.map(|_| ());
    }
    let account_alerts = alerts.last().map_or(head.metering.account_alerts, |it| it.number);
    let metering = Metering { days: Vec::new(), settle_at: None, account_alerts, ..head.metering };
    let tombstone = Head { due: Some(ends_at), metering, ..head };
    finish_purge(services, &tombstone, etag, alerts).await
}

/// Writes the tombstone of a finished purge with the alerts that the ledger reported. If the write
/// is lost, another delivery purges with the same result.
async fn finish_purge(
    services: &Services,
    tombstone: &Head,
    etag: ETag,
    alerts: Vec<AccountAlert>,
) -> Result<(), CommandError> {
    let (key, now) = (tombstone.key(), services.clock.now());
    let sent = alerts.iter().filter(|_| services.notification_sender.is_some());
    let notifications: Vec<_> = sent
        .map(|it| it.alert.notification(tombstone, &format!("account{}", it.number), now))
        .collect();
    let commit = HeadCommit::replace(tombstone, etag).with_notifications(&notifications);
    if write_head(services, &key, commit).await?.is_some() && !alerts.is_empty() {
        let alerts: Vec<_> = alerts.into_iter().map(|it| it.alert).collect();
        report_alerts(services, &key, &alerts);
        enqueue_nudge(services, queue::NOTIFY, &Nudge::for_conversation(key, None), Duration::ZERO)
            .await;
    }
    Ok(())
}

/// Closes the open call of a tombstone. A call that was not reported in time counts as its
/// reservation. `None`: its time is not over, or another delivery was first.
async fn close_unreported_call(
    services: &Services,
    key: &ConversationKey,
    head: Head,
    etag: ETag,
) -> Result<Option<(Head, ETag)>, CommandError> {
    let now = services.clock.now();
    match head.unreported_call {
        None => return Ok(Some((head, etag))),
        Some(until) if until > now => return Ok(None),
        Some(_) => {}
    }
    let mut closed = Head { unreported_call: None, ..head };
    closed.record_lost_reservation(now, now);
    stamp_head(services, &mut closed, None);
    let etag = write_head(services, key, HeadCommit::replace(&closed, etag)).await?;
    Ok(etag.map(|etag| (closed, etag)))
}

/// Model calls whose responses arrived after the conversation was deleted.
#[derive(Debug)]
pub struct LateUsage<'a> {
    pub incarnation: &'a str,
    /// Epoch of the worker that made the calls.
    pub epoch: u64,
    pub usage: Usage,
    pub calls: u32,
}

/// Records the usage of calls that ran at the deletion. The tombstone accepts one report, before
/// its deadline.
///
/// # Errors
/// Returns an error if a service did not respond. Without a report the reservation counts as the
/// cost.
pub async fn record_late_usage(
    services: &Services,
    key: &ConversationKey,
    late: &LateUsage<'_>,
) -> Result<(), CommandError> {
    let waits = back_off(ATTEMPTS_MAX, Duration::ZERO);
    if compare_and_set(waits, || try_record_late_usage(services, key, late)).await? {
        Box::pin(purge(services, key)).await?;
    }
    Ok(())
}

/// Tries the report once. `None`: another writer came first; `false`: no report is expected.
async fn try_record_late_usage(
    services: &Services,
    key: &ConversationKey,
    late: &LateUsage<'_>,
) -> Result<Option<bool>, CommandError> {
    let Some((mut head, etag)) = any_head(services, key).await? else { return Ok(Some(false)) };
    let is_report_expected = head.phase == Phase::Deleted
        && head.incarnation == late.incarnation
        && head.epoch <= late.epoch
        && head.unreported_call.is_some();
    if !is_report_expected {
        return Ok(Some(false));
    }
    let now = services.clock.now();
    head.unreported_call = None;
    head.reservation = None;
    head.usage += late.usage;
    let cost = UsageTotals { calls: u64::from(late.calls), ..UsageTotals::from_usage(&late.usage) };
    head.metering.add_cost(cost, now, now);
    stamp_head(services, &mut head, None);
    let etag = write_head(services, key, HeadCommit::replace(&head, etag)).await?;
    Ok(etag.map(|_| true))
}

fn is_due(head: &Head, now: Timestamp) -> bool {
    head.due.is_some_and(|due| due <= now)
}

async fn purge_kind(
    services: &Services,
    key: &ConversationKey,
    kind: DocumentKind,
) -> Result<(), CommandError> {
    let partition = Partition::Conversation(key.clone());
    let selection = Selection { limit: BATCH_OPERATIONS_MAX, ..Selection::all(kind) };
    loop {
        let left = services.store.select(&partition, &selection, Freshness::Latest).await?;
        if left.is_empty() {
            return Ok(());
        }
        let deletes =
            left.into_iter().map(|stored| Write::Delete(stored.document.id, None)).collect();
        // Lost: another purge has removed some of them, so read again.
        write_once(&*services.store, &partition, deletes).await?;
    }
}
