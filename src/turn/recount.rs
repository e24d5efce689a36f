//! Counting tries that came to nothing where no commit could count them (invariant 13): a process that died in the middle, a
//! nudge that the host gave up.

use std::time::Duration;

use crate::agent::phase::Phase;
use crate::agent::step::Input;
use crate::clock::Timestamp;
use crate::ids::ConversationKey;
use crate::queue;
use crate::store::{Kind, Partition, StoreError};
use crate::turn::commit::ring;
use crate::turn::delivery::TurnError;
use crate::turn::{Nudge, World, claiming, hold, sweep};

const PAGE: usize = 200;

/// Counts one claim without progress on a conversation whose step is open; the step is tried again, later each time.
///
/// # Errors
/// As a delivery's.
pub async fn count(world: &World, key: &ConversationKey) -> Result<(), TurnError> {
    let ends = world.clock.monotonic() + world.limits.turn;
    let Some((mut hold, _)) = hold::take(world, key, ends).await? else { return Ok(()) };
    if let Some(brake) = &hold.head.brake {
        // Nobody has tried it; where the brake was taken off, it goes on now.
        let is_off = !world.brakes.has(&brake.on);
        hold.let_go().await;
        if is_off {
            ring(world, queue::TURNS, &Nudge::of(key.clone(), None), Duration::ZERO).await;
        }
        return Ok(());
    }
    let now = world.clock.now();
    let is_open = !matches!(hold.head.phase, Phase::Idle)
        && hold.head.step_owed_at(now).is_some_and(|due| due <= now);
    let counted = if is_open {
        hold.is_counting = true;
        hold.load_answer().await?;
        {
            let tried = hold.try_out(vec![Input::TakenOver]);
            hold.commit("take-in", tried, &[]).await
        }
    } else {
        Ok(())
    };
    hold.let_go().await;
    counted
}

/// Start-up of a store that forgets claims with its process: every open step was tried once for nothing; then the sweep
/// without grace rings for all that is owed.
///
/// # Errors
/// The store did not answer: do not start.
pub async fn start_up(world: &World) -> Result<usize, StoreError> {
    let now = world.clock.now();
    for key in open_conversations(world, now).await? {
        match count(world, &key).await {
            Ok(()) => {}
            Err(TurnError::Store { source: source @ StoreError::Unavailable(_), .. }) => {
                return Err(source);
            }
            // One conversation that cannot be read is no reason to keep all others waiting.
            Err(error @ TurnError::Store { .. }) => {
                tracing::error!(conversation.id = %key.conversation_id, error = %error, "{key} cannot be counted at start-up: a person has to look");
            }
            Err(error @ TurnError::ClaimLost { .. }) => {
                tracing::warn!(conversation.id = %key.conversation_id, error = %error, "{key} is held at start-up");
            }
        }
    }
    sweep::sweep(world, Duration::ZERO).await
}

async fn open_conversations(
    world: &World,
    now: Timestamp,
) -> Result<Vec<ConversationKey>, StoreError> {
    let mut keys = Vec::new();
    let mut continuation = None;
    // Claimed heads are due only after their claim; nobody's claim has outlived the process.
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
