//! The tasks of an agent: one turns the wheel for every bell, one tells what happens.

use std::sync::Arc;
use std::time::Duration;

use crate::app::agent::{AgentEvent, Inner};
use crate::http::events::{Feed, Frame, Until};
use crate::queue;
use crate::turn::delivery::handle;
use crate::turn::{Nudge, sweep};

/// How long a bell may be silent before it is looked for what is owed.
const SWEEP_EVERY: Duration = Duration::from_mins(1);
/// How long after a record that did not answer it is asked once more.
const ONCE_MORE_AFTER: Duration = Duration::from_secs(1);
/// A bell that was heard is hidden for longer than a turn takes.
const HIDE: Duration = Duration::from_mins(10);

/// Turns the wheel for every bell.
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
                tracing::warn!(error = %error, "what is owed was not looked for; it is in a minute");
            }
            continue;
        };
        let _ = inner.world.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await;
        let Ok(nudge) = serde_json::from_str::<Nudge>(&message.text) else { continue };
        if let Err(error) = Box::pin(handle(&inner.world, &nudge)).await {
            tracing::warn!(conversation.id = %nudge.key.conversation_id, error = %error, "a turn did not come to its end; it is tried again");
        }
    }
}

/// Tells the events of the conversation that is followed, behind the one of that number.
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
                // The record did not answer; the next goes on behind it.
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
