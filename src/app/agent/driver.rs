//! Tasks of an agent: one processes nudges, one publishes events.

use std::sync::Arc;
use std::time::Duration;

use crate::app::agent::{AgentEvent, Inner};
use crate::http::events::{Feed, Frame, Until};
use crate::queue;
use crate::turn::delivery::handle;
use crate::turn::{Nudge, sweep};

/// Time without a nudge until the recovery sweep runs.
const SWEEP_EVERY: Duration = Duration::from_mins(1);
/// Delay before the next attempt after a failed read of the conversation.
const ONCE_MORE_AFTER: Duration = Duration::from_secs(1);
/// Visibility timeout of a received nudge: longer than any turn.
const HIDE: Duration = Duration::from_mins(10);

/// Runs one delivery for each nudge.
pub(super) async fn turn(inner: Arc<Inner>) {
    let mut arrivals = inner.world.queue.arrivals(queue::TURNS);
    loop {
        if let Some(arrivals) = &mut arrivals {
            arrivals.borrow_and_update();
        }
        let received = inner.world.queue.receive(queue::TURNS, 1, HIDE).await;
        let Some(message) = received.ok().and_then(|messages| messages.into_iter().next()) else {
            let arrived = async {
                match &mut arrivals {
                    Some(arrivals) => drop(arrivals.changed().await),
                    None => std::future::pending().await,
                }
            };
            if tokio::time::timeout(SWEEP_EVERY, arrived).await.is_err()
                && let Err(error) = sweep::sweep(&inner.world, sweep::GRACE).await
            {
                tracing::warn!(error = %error, "recovery sweep failed; will retry in a minute");
            }
            continue;
        };
        let _ = inner.world.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await;
        let Ok(nudge) = serde_json::from_str::<Nudge>(&message.text) else { continue };
        if let Err(error) = Box::pin(handle(&inner.world, &nudge)).await {
            tracing::warn!(conversation.id = %nudge.key.conversation_id, error = %error, "turn failed; will retry");
        }
    }
}

/// Publishes the events of the current conversation that follow event number `after`.
pub(super) async fn tell(inner: Arc<Inner>, mut after: u64) {
    let mut followed = inner.key.subscribe();
    let mut key = followed.borrow_and_update().clone();
    loop {
        let mut feed = Feed::new(inner.world.clone(), key.clone(), after, Until::Dropped);
        loop {
            let frame = tokio::select! {
                biased;
                frame = feed.next() => frame,
                changed = followed.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    break;
                }
            };
            match frame {
                // The read failed; a new reader continues after the last event.
                None => {
                    tokio::time::sleep(ONCE_MORE_AFTER).await;
                    break;
                }
                Some(Frame::Event { id, name, data }) => {
                    after = id.unwrap_or(after);
                    inner.hear(&AgentEvent::of(&name, &data));
                }
                Some(Frame::IdOnly(id)) => after = id,
                Some(Frame::Retry | Frame::Comment) => {}
            }
        }
        let now = followed.borrow_and_update().clone();
        if now != key {
            (key, after) = (now, 0);
        }
    }
}
