//! Long polling: waits until a prompt or conversation leaves `running`, by live events of this
//! instance and by polling.

use std::time::Duration;

use tokio::time::Instant;

use crate::agent::entry::PromptState;
use crate::agent::head::{Head, State};
use crate::agent::view::PromptView;
use crate::ids::{ConversationKey, PromptId};
use crate::live::{Interest, LiveEvent, LiveReader};
use crate::turn::World;
use crate::turn::admission::Refusal;
use crate::turn::views::conversation::{ConversationView, current_view};
use crate::turn::views::{load, prompts};

/// Returns the prompt as soon as it is not running, or when `wait` is over.
pub(crate) async fn prompt(
    world: &World,
    key: &ConversationKey,
    id: &PromptId,
    wait: Duration,
) -> Result<PromptView, Refusal> {
    let ends_at = Instant::now() + wait;
    let (_, mut reader) = world.live.subscribe(key);
    let _attention = world.live.attend(key, Interest::Commits);
    let (head, _) = load::head(world, key).await?;
    let mut view = prompts::prompt(world, &head, id).await?;
    while view.state == PromptState::Running && Instant::now() < ends_at {
        if commit(world, &mut *reader, ends_at).await.as_ref() == Some(id) {
            continue;
        }
        let (head, _) = load::head(world, key).await?;
        if may_have_ended(&head, id) {
            view = prompts::prompt(world, &head, id).await?;
        }
    }
    Ok(view)
}

/// Returns the conversation as soon as nothing runs in it, or when `wait` is over.
pub(crate) async fn conversation(
    world: &World,
    key: &ConversationKey,
    wait: Duration,
) -> Result<(ConversationView, Head), Refusal> {
    let ends_at = Instant::now() + wait;
    let (_, mut reader) = world.live.subscribe(key);
    let _attention = world.live.attend(key, Interest::Commits);
    loop {
        let (view, head) = current_view(world, key).await?;
        if view.state != State::Running || Instant::now() >= ends_at {
            return Ok((view, head));
        }
        let goes_on = |told: Option<PromptId>| told.is_some() && Instant::now() < ends_at;
        while goes_on(commit(world, &mut *reader, ends_at).await) {}
    }
}

/// Waits for the next commit or poll time. Returns the prompt that certainly still runs, if it is
/// known. Deltas do not signal an end, so they are ignored.
async fn commit(world: &World, reader: &mut dyn LiveReader, ends_at: Instant) -> Option<PromptId> {
    let look_at = ends_at.min(Instant::now() + world.live.look_every());
    let told = tokio::time::timeout_at(look_at, async {
        loop {
            match reader.next().await {
                LiveEvent::Committed { busy_with, .. } => return busy_with,
                LiveEvent::Gone => return None,
                LiveEvent::AnswerStarted(_)
                | LiveEvent::Delta { .. }
                | LiveEvent::SoFar(_)
                | LiveEvent::Reset { .. }
                | LiveEvent::ToolUpdate(_) => {}
            }
        }
    });
    told.await.unwrap_or_default()
}

/// True if the prompt may have ended, so that its entries must be read. While it certainly runs, a
/// poll reads only the head.
fn may_have_ended(head: &Head, id: &PromptId) -> bool {
    let is_running_here = head.prompt.as_ref().is_some_and(|run| &run.id == id);
    !is_running_here || !head.requests.is_empty()
}
