//! Commands: the write side of the API. A 2xx response follows the commit of the request. After a
//! crash in a command, the caller repeats it with the same key; no effect happens twice.

pub mod abort;
mod admission;
pub mod append_entries;
pub mod artifact;
pub mod bash;
mod command_run;
pub mod compact;
pub mod continue_prompt;
pub mod conversation;
pub mod decide;
pub mod delete;
pub mod delete_user;
mod expansion;
pub mod extension_command;
pub mod fork;
mod head_change;
pub mod import;
pub mod inbox_clear;
pub mod inbox_edit;
pub mod input;
mod input_events;
pub mod insert;
mod key_reservation;
pub mod knowledge;
pub mod label;
pub mod leaf;
pub mod memory;
pub mod message;
pub mod patch;
mod pipeline;
pub mod profile;
pub mod prompt;
pub mod prompt_queue;
mod prompt_request;
pub mod request_hooks;
pub mod routing;
pub mod schedules;
pub mod session_import;
pub mod store_input;
mod target;
pub mod title;
pub mod unleased_change;
pub mod user_skills;
pub mod waiting_client;
pub mod waiting_command;

use std::time::Duration;

use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, QueueError};

/// Sends a nudge for the conversation. A failure is only logged: the work is stored, and the
/// recovery sweep finds it.
pub(crate) async fn wake_worker(
    services: &Services,
    key: &ConversationKey,
    traceparent: Option<&str>,
) {
    services.fail_points.hit("admission.nudge").await;
    let nudge = Nudge::for_conversation(key.clone(), traceparent.map(ToOwned::to_owned));
    let text = RawJson::from_value(&nudge).text().to_owned();
    let sent = services.queue.send(queue::TURNS, text, Duration::ZERO).await;
    if let Some(metrics) = services.telemetry.metrics() {
        metrics.record_queue_message(queue::TURNS, "send", sent.is_ok());
    }
    if let Err(error) = sent {
        let cause: &dyn std::error::Error = match &error {
            QueueError::Unavailable(source) => source.as_ref(),
            QueueError::Gone | QueueError::TooLarge(_) | QueueError::BadCharacter(_) => &error,
        };
        tracing::warn!(conversation.id = %key, error = %cause, "nudge send failed: the recovery sweep will enqueue the conversation");
    }
}
