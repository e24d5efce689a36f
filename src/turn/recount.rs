//! Deaths of workers where no commit of theirs could count them (invariant 13): a process that died in the middle of turns,
//! or the one that ran a suspect step alone.

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
/// Until a conversation is read again whose nudge came to nothing.
const AGAIN: Duration = Duration::from_secs(30);

/// The queue gave a nudge up, which says nothing about any step: the conversation gets another one, later.
pub async fn nudge_again(world: &World, nudge: &Nudge) {
    ring(world, queue::TURNS, nudge, AGAIN).await;
}

/// Takes over from a worker whose process has died, and counts its death against the step that it ran alone.
///
/// # Errors
/// As a delivery's.
pub(super) async fn bury(world: &World, nudge: &Nudge, worker: &WorkerId) -> Result<(), TurnError> {
    if !Box::pin(follow(world, &nudge.key, worker, Death::Isolated)).await? {
        // It died before its lease or after it: that says nothing about a step. Something may still be due.
        nudge_again(world, nudge).await;
    }
    Ok(())
}

/// The same for a worker whose turn panicked in this process, which lives on.
///
/// # Errors
/// As a delivery's.
pub(super) async fn bury_panicked(
    world: &World,
    key: &ConversationKey,
    worker: &WorkerId,
) -> Result<(), TurnError> {
    Box::pin(follow(world, key, worker, Death::Presumed { is_delayed: true })).await.map(|_| ())
}

/// Whether the lease was still that worker's.
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

/// Commits what became of the step (invariant 6), with the death if there was one, and leaves its next try to a delivery.
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

/// Start-up of a store that forgets leases with its process: every turn that was under way is taken over; then the sweep
/// without grace enqueues all pending work.
///
/// # Errors
/// The store did not answer: do not start.
pub async fn start_up(world: &World) -> Result<usize, StoreError> {
    let now = world.clock.now();
    for key in open_conversations(world, now).await? {
        match Box::pin(take_up(world, &key)).await {
            Ok(()) => {}
            Err(TurnError::Store { source: source @ StoreError::Unavailable(_), .. }) => {
                return Err(source);
            }
            // One conversation that cannot be read is no reason to keep all others waiting.
            Err(error @ TurnError::Store { .. }) => {
                tracing::error!(conversation.id = %key.conversation_id, error = %error, "{key} cannot be taken over at start-up: an operator has to look");
            }
            Err(error @ TurnError::ClaimLost { .. }) => {
                tracing::warn!(conversation.id = %key.conversation_id, error = %error, "{key} has a live lease at start-up");
            }
        }
    }
    sweep::sweep(world, Duration::ZERO).await
}

/// A conversation that the process before this one left. A step that only waited was not tried.
async fn take_up(world: &World, key: &ConversationKey) -> Result<(), TurnError> {
    let has_died = world.store.has_died_with(key);
    let ends = world.clock.monotonic() + world.limits.turn;
    let Some((mut hold, _)) = hold::take(world, key, ends).await? else { return Ok(()) };
    if let Some(brake) = &hold.head.brake {
        // Where the pause was lifted, it goes on now.
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
    // A suspect step cannot hurt this process, in which it runs no more: it is retried at once.
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
