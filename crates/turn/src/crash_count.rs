//! Counts worker deaths that no commit of the dead worker could count (invariant 13): a process
//! that died during turns, or one that ran a suspect step alone.

use std::time::Duration;

use crate::commit::CommitKind;
use crate::finish_turn::leave_turn_open;
use crate::inbox;
use crate::late_result::{KeptResults, SentWrite, lost_writes, sent_writes};
use crate::leased_conversation::{LeasedConversation, NextNudge};
use crate::{clock_change, leased_conversation, sweep};
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::step::Input;
use turnwheel_conversation::suspicion::{Death, LOCAL_DELAY_DEATHS, SUSPECT_DEATHS};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, WorkerId};
use turnwheel_record::documents;
use turnwheel_record::error::{TurnError, store_error};
use turnwheel_record::lease::LEASE_DURATION;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::nudge_sender::enqueue_nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue;
use turnwheel_storage::store::{DocumentKind, Freshness, HEAD_ID, Partition, StoreError};

const PAGE_SIZE: usize = 200;
/// Delay of the next nudge of a conversation whose nudge was given up.
const NUDGE_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Delay of a nudge that arrives while the process ends.
const PUT_BACK_DELAY: Duration = Duration::from_secs(5);

/// Enqueues a delayed nudge for a conversation whose message the queue gave up. That says nothing
/// about any step.
pub async fn requeue_nudge(services: &Services, nudge: &Nudge) {
    enqueue_nudge(services, queue::TURNS, nudge, NUDGE_RETRY_DELAY).await;
}

/// Enqueues a nudge that arrived while this process ends, for another one.
pub async fn put_back_nudge(services: &Services, queue: &str, nudge: &Nudge) {
    enqueue_nudge(services, queue, nudge, PUT_BACK_DELAY).await;
}

/// Gives a conversation back because this process ends. The step counts as interrupted, not as one
/// that killed its worker.
pub(crate) async fn give_back(conversation: &mut LeasedConversation<'_>) -> Result<(), TurnError> {
    let key = &conversation.state.key;
    tracing::info!(conversation.id = %key.conversation_id, "turn given back: the process ends conversation={}", key.conversation_id);
    let now = conversation.services.clock.now();
    Box::pin(commit_take_over(conversation, now)).await
}

/// Takes over from a worker whose process has died, and counts the death against the step that it
/// ran alone.
///
/// # Errors
/// The store is unavailable or the lease was lost: deliver the nudge again.
pub(crate) async fn count_process_death(
    services: &Services,
    nudge: &Nudge,
    worker: &WorkerId,
) -> Result<(), TurnError> {
    let next = Box::pin(take_over_from(services, &nudge.key, worker, Death::Isolated)).await?;
    if next.is_none_or(|next| next == NextNudge::Refused) {
        // The worker died before or after its lease, which says nothing about a step, or the queue
        // refused the nudge. Work may still be due.
        requeue_nudge(services, nudge).await;
    }
    Ok(())
}

/// Ends the lease of a process of this machine that has died, and wakes a worker: the message of
/// that process may stay hidden for minutes.
///
/// # Errors
/// As for [`count_process_death`]. Also if the queue refuses the nudge: recover it again.
pub async fn recover_from_process(
    services: &Services,
    key: &ConversationKey,
    process: &WorkerId,
) -> Result<(), TurnError> {
    let partition = Partition::Conversation(key.clone());
    let read = services.store.read(&partition, HEAD_ID, Freshness::Latest).await;
    let stored = read.map_err(|source| store_error(key, "read", source))?;
    let lease = stored.and_then(|stored| documents::read_head(&stored).ok()?.lease);
    let is_of_process = |worker: &WorkerId| {
        let rest = worker.as_str().strip_prefix(process.as_str());
        rest.is_some_and(|rest| rest.starts_with('.'))
    };
    if let Some(lease) = lease.filter(|lease| is_of_process(&lease.worker)) {
        let death = Death::Presumed { delay_deaths: SUSPECT_DEATHS };
        let next = Box::pin(take_over_from(services, key, &lease.worker, death)).await?;
        if next.is_some() {
            tracing::info!(conversation.id = %key.conversation_id, "turn of a dead process taken over conversation={}", key.conversation_id);
        }
        if next.is_some_and(|next| next != NextNudge::Refused) {
            return Ok(());
        }
    }
    let nudge = Nudge::for_conversation(key.clone(), None);
    if enqueue_nudge(services, queue::TURNS, &nudge, Duration::ZERO).await {
        return Ok(());
    }
    let refused = StoreError::Unavailable("the queue did not accept the message".into());
    Err(store_error(key, "enqueue the nudge of", refused))
}

/// Like [`count_process_death`], for a worker whose turn panicked in this process, which lives on.
///
/// # Errors
/// The store is unavailable or the lease was lost: the death is not counted.
pub(crate) async fn count_panic(
    services: &Services,
    key: &ConversationKey,
    worker: &WorkerId,
) -> Result<(), TurnError> {
    Box::pin(take_over_from(
        services,
        key,
        worker,
        Death::Presumed { delay_deaths: SUSPECT_DEATHS },
    ))
    .await
    .map(|_| ())
}

/// Returns the nudge of the released conversation. `None`: that worker had the lease no longer.
async fn take_over_from(
    services: &Services,
    key: &ConversationKey,
    worker: &WorkerId,
    death: Death,
) -> Result<Option<NextNudge>, TurnError> {
    let ends = services.clock.monotonic() + services.limits.turn_duration;
    let had_lease = services.store.lease_holder(key).is_some_and(|(owner, _)| owner == *worker);
    let leased =
        Box::pin(leased_conversation::acquire_lease_as(services, worker.clone(), key, ends, None))
            .await?;
    let Some(mut conversation) = leased else { return Ok(None) };
    let is_same_worker = had_lease
        || conversation.state.head.lease.as_ref().is_some_and(|lease| lease.worker == *worker);
    conversation.crash.death = is_same_worker.then_some(death);
    if is_same_worker {
        return Box::pin(take_over(conversation)).await.map(Some);
    }
    conversation.release().await;
    Ok(None)
}

/// Commits the outcome of the interrupted step (invariant 6), and the death if there was one.
/// Leaves the next attempt to a delivery.
async fn take_over(mut conversation: LeasedConversation<'_>) -> Result<NextNudge, TurnError> {
    let now = conversation.services.clock.now();
    let is_open = !matches!(conversation.state.head.phase, Phase::Idle | Phase::Deleted)
        && conversation.state.head.next_step_due(now).is_some_and(|due| due <= now);
    let committed = if is_open { commit_take_over(&mut conversation, now).await } else { Ok(()) };
    let next = conversation.release().await;
    committed.map(|()| next)
}

async fn commit_take_over(
    conversation: &mut LeasedConversation<'_>,
    now: Timestamp,
) -> Result<(), TurnError> {
    conversation.crash.is_commit_only = true;
    conversation.state.load_run(conversation.services).await?;
    let mut inputs = vec![Input::LeaseTakenOver];
    let (services, state) = (conversation.services, &mut conversation.state);
    if state.head.phase.call_batch().has_running_write() {
        let read = state.read_inbox(services).await;
        let inbox = read.map_err(|source| state.error("read the inbox of", source))?;
        inputs.extend(lost_writes(&state.head, &inbox, now));
        // So that the commit reads the inbox again if the stored head counts a result that this one
        // does not. The next delivery applies the results, and runs the hooks of the turn that they end.
        inputs.push(inbox::inbox_input(&inbox));
    }
    let mut plan = state.plan(services, inputs);
    leave_turn_open(conversation, &mut plan);
    conversation.commit(CommitKind::PendingWork, plan).await
}

/// Start-up with a store whose leases end with its process: takes over every interrupted turn. Then
/// the sweep without a grace period enqueues all pending work.
///
/// # Errors
/// The store is unavailable: do not start.
pub async fn recover_at_start_up(services: &Services) -> Result<usize, StoreError> {
    let open = find_open_conversations(services, services.clock.now()).await?;
    let most = most_deaths(services, &open).await?;
    recover_all(services, open, Some(most)).await
}

/// As [`recover_at_start_up`], after a kill that an operator requested: no step is blamed for it.
///
/// # Errors
/// The store is unavailable: do not start.
pub async fn recover_after_requested_kill(services: &Services) -> Result<usize, StoreError> {
    let open = find_open_conversations(services, services.clock.now()).await?;
    recover_all(services, open, None).await
}

/// `most`: the deaths of the conversations that are blamed. `None`: none is.
async fn recover_all(
    services: &Services,
    open: Vec<ConversationKey>,
    most: Option<u32>,
) -> Result<usize, StoreError> {
    let of_past_clock = clock_change::repair_waits(services).await?;
    for key in open.into_iter().chain(of_past_clock.iter().cloned()) {
        match Box::pin(recover_conversation(services, &key, most)).await {
            Ok(()) => {}
            Err(TurnError::Store { source: source @ StoreError::Unavailable(_), .. }) => {
                return Err(source);
            }
            // One unreadable conversation must not delay all others.
            Err(error @ TurnError::Store { .. }) => {
                tracing::error!(conversation.id = %key.conversation_id, error = %error, "conversation not recovered at start-up; an operator has to inspect it");
            }
            Err(error @ (TurnError::LeaseLost { .. } | TurnError::Stopped { .. })) => {
                tracing::warn!(conversation.id = %key.conversation_id, error = %error, "conversation has a live lease at start-up");
            }
        }
    }
    for key in of_past_clock {
        let nudge = Nudge::for_conversation(key, None);
        enqueue_nudge(services, queue::TURNS, &nudge, Duration::ZERO).await;
    }
    sweep::sweep(services, Duration::ZERO).await
}

/// The most deaths of a conversation that had a lease when the previous process died. Only those
/// conversations are blamed for its death: the others, which happened to run beside them, go on.
async fn most_deaths(services: &Services, open: &[ConversationKey]) -> Result<u32, StoreError> {
    let mut most = 0;
    for key in open.iter().filter(|key| services.store.has_lease_from_crash(key)) {
        let partition = Partition::Conversation(key.clone());
        let stored = services.store.read(&partition, HEAD_ID, Freshness::Latest).await?;
        let head = stored.and_then(|stored| documents::read_head(&stored).ok());
        most = most.max(head.map_or(0, |head| head.leases_without_progress));
    }
    Ok(most)
}

/// Takes over a conversation that the previous process left. A step that only waited was not
/// attempted.
async fn recover_conversation(
    services: &Services,
    key: &ConversationKey,
    most: Option<u32>,
) -> Result<(), TurnError> {
    let had_lease = services.store.has_lease_from_crash(key);
    let ends = services.clock.monotonic() + services.limits.turn_duration;
    let Some(mut conversation) =
        leased_conversation::acquire_lease(services, key, ends, None).await?
    else {
        return Ok(());
    };
    if let Some(pause) = &conversation.state.head.pause {
        // The pause was lifted: continue now.
        let is_off = !services.pauses.contains(&pause.target);
        conversation.release().await;
        if is_off {
            enqueue_nudge(
                services,
                queue::TURNS,
                &Nudge::for_conversation(key.clone(), None),
                Duration::ZERO,
            )
            .await;
        }
        return Ok(());
    }
    let was_left = had_lease
        || conversation.state.head.lease.is_some()
        || conversation.state.head.phase.call_batch().is_running();
    if !was_left {
        conversation.release().await;
        return Ok(());
    }
    let deaths = conversation.state.head.leases_without_progress;
    let is_blamed = had_lease && most == Some(deaths);
    // A suspect step runs isolated, so it is retried at once. One that ends this process even so
    // waits longer each time.
    let death = Death::Presumed { delay_deaths: LOCAL_DELAY_DEATHS };
    conversation.crash.death = is_blamed.then_some(death);
    Box::pin(take_over(conversation)).await.map(|_| ())
}

async fn find_open_conversations(
    services: &Services,
    now: Timestamp,
) -> Result<Vec<ConversationKey>, StoreError> {
    let mut keys = Vec::new();
    let mut continuation = None;
    // Leased heads are due only after their lease; none has outlived the process.
    let horizon = now.plus(LEASE_DURATION * 2);
    loop {
        let page = services.store.list_due(horizon, PAGE_SIZE, continuation.as_deref()).await?;
        keys.extend(page.items.into_iter().filter_map(|document| {
            match (document.partition, document.kind) {
                (Partition::Conversation(key), DocumentKind::Head) => Some(key),
                _ => None,
            }
        }));
        continuation = page.continuation;
        if continuation.is_none() {
            return Ok(keys);
        }
    }
}

/// Settles the writes of earlier workers that the first commit of this delivery has left open,
/// because it had no room for their results. They must not be sent again.
///
/// # Errors
/// A write cannot be settled, or the lease was lost: stop the delivery.
pub(crate) async fn settle_open_writes(
    conversation: &mut LeasedConversation<'_>,
    earlier: &[SentWrite],
) -> Result<(), TurnError> {
    if earlier.is_empty() {
        return Ok(());
    }
    loop {
        let left = sent_writes(&conversation.state.head).filter(|write| earlier.contains(write));
        let mut left = left.map(|write| write.call);
        let first = left.next();
        let kept = KeptResults::default();
        // A commit has room for one result.
        for call in left {
            kept.add(call);
        }
        conversation.kept_results = kept;
        let Some(first) = first else { return Ok(()) };
        let (services, state) = (conversation.services, &mut conversation.state);
        let read = state.read_inbox(services).await;
        let inbox = read.map_err(|source| state.error("read the inbox of", source))?;
        let mut lost = lost_writes(&state.head, &inbox, services.clock.now());
        lost.retain(
            |input| matches!(input, Input::ToolOutcomeUnknown { index, .. } if *index == first.index),
        );
        Box::pin(conversation.commit_with_inbox(CommitKind::ToolResults, lost)).await?;
        let head = &conversation.state.head;
        if sent_writes(head).any(|write| write.call == first && earlier.contains(&write)) {
            return Err(conversation.state.error("settle the calls of", StoreError::Conflict));
        }
    }
}
