//! Counts worker deaths that no commit of the dead worker could count (invariant 13): a process
//! that died during turns, or one that ran a suspect step alone.

use std::time::Duration;

use crate::agent::phase::Phase;
use crate::agent::step::Input;
use crate::agent::suspicion::Death;
use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::queue;
use crate::store::{Kind, Partition, StoreError};
use crate::turn::commit::ring;
use crate::turn::delivery::{TurnError, lost_writes};
use crate::turn::hold::Hold;
use crate::turn::{Nudge, World, claiming, hold, sweep};

const PAGE: usize = 200;
/// Delay of the next nudge of a conversation whose nudge was given up.
const AGAIN: Duration = Duration::from_secs(30);

/// Enqueues a delayed nudge for a conversation whose message the queue gave up. That says nothing
/// about any step.
pub async fn nudge_again(world: &World, nudge: &Nudge) {
    ring(world, queue::TURNS, nudge, AGAIN).await;
}

/// Takes over from a worker whose process has died, and counts the death against the step that it
/// ran alone.
///
/// # Errors
/// The store is unavailable or the lease was lost: deliver the nudge again.
pub(super) async fn bury(world: &World, nudge: &Nudge, worker: &WorkerId) -> Result<(), TurnError> {
    if !Box::pin(follow(world, &nudge.key, worker, Death::Isolated)).await? {
        // The worker died before or after its lease, which says nothing about a step. Work may
        // still be due.
        nudge_again(world, nudge).await;
    }
    Ok(())
}

/// Like [`count_process_death`], for a worker whose turn panicked in this process, which lives on.
///
/// # Errors
/// The store is unavailable or the lease was lost: the death is not counted.
pub(super) async fn bury_panicked(
    world: &World,
    key: &ConversationKey,
    worker: &WorkerId,
) -> Result<(), TurnError> {
    Box::pin(follow(world, key, worker, Death::Presumed { is_delayed: true })).await.map(|_| ())
}

/// Returns true if that worker still had the lease.
async fn follow(
    world: &World,
    key: &ConversationKey,
    worker: &WorkerId,
    death: Death,
) -> Result<bool, TurnError> {
    let ends = world.clock.monotonic() + world.limits.turn;
    let held = world.store.holder(key).is_some_and(|(holder, _)| holder == *worker);
    let taken = hold::take_as(world, worker.clone(), key, ends).await?;
    let Some((mut hold, _)) = taken else { return Ok(false) };
    let is_its = held || hold.head.claim.as_ref().is_some_and(|claim| claim.worker == *worker);
    hold.death = is_its.then_some(death);
    if is_its {
        Box::pin(take_over(hold)).await?;
    } else {
        hold.let_go().await;
    }
    Ok(is_its)
}

/// Commits the outcome of the interrupted step (invariant 6), and the death if there was one.
/// Leaves the next attempt to a delivery.
async fn take_over(mut hold: Hold<'_>) -> Result<(), TurnError> {
    let now = hold.world.clock.now();
    let is_open = !matches!(hold.head.phase, Phase::Idle | Phase::Deleted)
        && hold.head.step_owed_at(now).is_some_and(|due| due <= now);
    let committed = if is_open { commit_take_over(&mut hold, now).await } else { Ok(()) };
    hold.let_go().await;
    committed
}

async fn commit_take_over(hold: &mut Hold<'_>, now: Timestamp) -> Result<(), TurnError> {
    hold.is_counting = true;
    hold.load_answer().await?;
    let mut inputs = vec![Input::TakenOver];
    inputs.extend(lost_writes(&hold.head, now));
    let mut tried = hold.try_out(inputs);
    hold.leave_turn_open(&mut tried);
    hold.commit("take-in", tried, &[]).await
}

/// Start-up with a store whose leases end with its process: takes over every interrupted turn. Then
/// the sweep without a grace period enqueues all pending work.
///
/// # Errors
/// The store is unavailable: do not start.
pub async fn start_up(world: &World) -> Result<usize, StoreError> {
    let now = world.clock.now();
    for key in open_conversations(world, now).await? {
        match Box::pin(take_up(world, &key)).await {
            Ok(()) => {}
            Err(TurnError::Store { source: source @ StoreError::Unavailable(_), .. }) => {
                return Err(source);
            }
            // One unreadable conversation must not delay all others.
            Err(error @ TurnError::Store { .. }) => {
                tracing::error!(conversation.id = %key.conversation_id, error = %error, "conversation not recovered at start-up; an operator has to inspect it");
            }
            Err(error @ TurnError::ClaimLost { .. }) => {
                tracing::warn!(conversation.id = %key.conversation_id, error = %error, "conversation has a live lease at start-up");
            }
        }
    }
    sweep::sweep(world, Duration::ZERO).await
}

/// Takes over a conversation that the previous process left. A step that only waited was not
/// attempted.
async fn take_up(world: &World, key: &ConversationKey) -> Result<(), TurnError> {
    let has_died = world.store.has_died_with(key);
    let ends = world.clock.monotonic() + world.limits.turn;
    let Some((mut hold, _)) = hold::take(world, key, ends).await? else { return Ok(()) };
    if let Some(brake) = &hold.head.brake {
        // The pause was lifted: continue now.
        let is_off = !world.brakes.has(&brake.on);
        hold.let_go().await;
        if is_off {
            ring(world, queue::TURNS, &Nudge::of(key.clone(), None), Duration::ZERO).await;
        }
        return Ok(());
    }
    let was_left = has_died || hold.head.claim.is_some() || hold.head.phase.batch().is_running();
    if !was_left {
        hold.let_go().await;
        return Ok(());
    }
    // A suspect step runs isolated and cannot harm this process, so it is retried at once.
    hold.death = has_died.then_some(Death::Presumed { is_delayed: false });
    Box::pin(take_over(hold)).await
}

async fn open_conversations(
    world: &World,
    now: Timestamp,
) -> Result<Vec<ConversationKey>, StoreError> {
    let mut keys = Vec::new();
    let mut continuation = None;
    // Leased heads are due only after their lease; none has outlived the process.
    let horizon = now.plus(claiming::CLAIM * 2);
    loop {
        let page = world.store.due(horizon, PAGE, continuation.as_deref()).await?;
        keys.extend(page.items.into_iter().filter_map(|owed| match (owed.partition, owed.kind) {
            (Partition::Conversation(key), Kind::Head) => Some(key),
            _ => None,
        }));
        continuation = page.continuation;
        if continuation.is_none() {
            return Ok(keys);
        }
    }
}
