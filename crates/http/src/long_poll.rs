//! Long polling: waits until a prompt or conversation leaves `running`, by live events of this
//! instance and by polling.

use std::time::Duration;

use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use crate::Api;
use crate::client_connection::{is_client_gone, wait_until_client_gone};
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::head::{Head, State};
use turnwheel_conversation::prompt_view::PromptView;
use turnwheel_platform::ids::{ConversationKey, PromptId};
use turnwheel_queries::conversation::{ConversationView, current_view};
use turnwheel_queries::prompts;
use turnwheel_record::contract::CommandError;
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::live::{Interest, LiveEvent, LiveReader};

/// Maximum number of waiting requests of an instance. With the event streams they leave half of the
/// server's connections to all other requests.
pub(crate) const WAITS_MAX: usize = 500;

/// Takes a slot for a wait. Without a free one the wait is over at once: the caller gets the present
/// state, as at the end of its wait.
fn begin_wait(api: &Api, wait: Duration) -> (Option<SemaphorePermit<'_>>, Instant) {
    let slot = api.wait_slots.try_acquire().ok();
    let wait = if slot.is_some() { wait } else { Duration::ZERO };
    (slot, Instant::now() + wait)
}

/// Returns the prompt as soon as it is not running, or when `wait` is over.
pub(crate) async fn wait_for_prompt(
    api: &Api,
    key: &ConversationKey,
    id: &PromptId,
    wait: Duration,
) -> Result<PromptView, CommandError> {
    let services = &api.services;
    let (_slot, ends_at) = begin_wait(api, wait);
    let (_, mut reader) = services.live.subscribe(key);
    let _subscription = services.live.subscribe_remote(key, Interest::Commits);
    let (head, _) = load::head(services, key).await?;
    let mut view = prompts::read_prompt(services, &head, id).await?;
    while view.state == PromptState::Running && !is_over(services, ends_at) {
        if next_commit(services, &mut *reader, ends_at).await.as_ref() == Some(id) {
            continue;
        }
        let (head, _) = load::head(services, key).await?;
        if can_have_ended(&head, id) {
            view = prompts::read_prompt(services, &head, id).await?;
        }
    }
    Ok(view)
}

/// Returns the conversation as soon as nothing runs in it, or when `wait` is over.
pub(crate) async fn wait_for_conversation(
    api: &Api,
    key: &ConversationKey,
    wait: Duration,
) -> Result<(ConversationView, Head), CommandError> {
    let services = &api.services;
    let (_slot, ends_at) = begin_wait(api, wait);
    let (_, mut reader) = services.live.subscribe(key);
    let _subscription = services.live.subscribe_remote(key, Interest::Commits);
    loop {
        let (view, head) = current_view(services, key).await?;
        if view.state != State::Running || is_over(services, ends_at) {
            return Ok((view, head));
        }
        let is_running =
            |prompt_id: Option<PromptId>| prompt_id.is_some() && !is_over(services, ends_at);
        while is_running(next_commit(services, &mut *reader, ends_at).await) {}
    }
}

/// True if the wait is over: its time has passed, the client is gone, or the process ends.
fn is_over(services: &Services, ends_at: Instant) -> bool {
    Instant::now() >= ends_at || is_client_gone() || services.shutdown.is_begun()
}

/// Waits for the next commit, poll time, end of the process or of the connection. Returns the prompt that
/// certainly still runs, if it is known. Deltas do not signal an end, so they are ignored.
async fn next_commit(
    services: &Services,
    reader: &mut dyn LiveReader,
    ends_at: Instant,
) -> Option<PromptId> {
    let poll_at = ends_at.min(Instant::now() + services.live.poll_interval());
    let commit = tokio::time::timeout_at(poll_at, async {
        loop {
            match reader.next_event().await {
                LiveEvent::Committed { running_prompt: busy_with, .. } => return busy_with,
                LiveEvent::Deleted => return None,
                LiveEvent::ResponseStarted(_)
                | LiveEvent::Delta { .. }
                | LiveEvent::Snapshot(_)
                | LiveEvent::Reset { .. }
                | LiveEvent::ToolUpdate(_) => {}
            }
        }
    });
    tokio::select! {
        committed = commit => committed.unwrap_or_default(),
        () = services.shutdown.clone().wait_until_begun() => None,
        () = wait_until_client_gone() => None,
    }
}

/// True if the prompt may have ended, so that its entries must be read. While it certainly runs, a
/// poll reads only the head.
fn can_have_ended(head: &Head, id: &PromptId) -> bool {
    let is_running_here = head.prompt.as_ref().is_some_and(|run| &run.id == id);
    !is_running_here || head.step_requests().next().is_some()
}
