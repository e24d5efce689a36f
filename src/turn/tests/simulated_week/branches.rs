//! Users who continue idle conversations from random entries, with summaries and edited prompts.

use std::sync::Arc;
use std::time::Duration;

use crate::agent::content::Content;
use crate::agent::entry::Source;
use crate::commands::contract::CommandError;
use crate::commands::leaf::{LeafRequest, move_leaf};
use crate::commands::prompt::{PromptRequest, Sender, WhenBusy, accept_prompt};
use crate::fail_points::NoFailPoints;
use crate::ids::ConversationKey;
use crate::turn::tests::test_env::{TestEnv, idempotency};

/// Lines of the run log.
pub(super) const MOVED: &str = "the leaf moved";
pub(super) const SUMMARISED: &str = "a summary is requested";

/// Moves the leaf of each conversation, and sends an edited prompt, both at random entries.
///
/// # Errors
/// If the conversations never become idle.
pub(super) async fn navigate_and_edit(env: &mut TestEnv, moves: usize) -> Result<(), String> {
    for number in 0..moves {
        for key in env.conversations.clone() {
            let target = random_entry(env, &key).await;
            navigate(env, (&key, number), target).await;
            if !env.try_run_until_idle().await {
                return Err("the move never ended".to_owned());
            }
            let at = random_entry(env, &key).await;
            send_edited_prompt(env, (&key, number), at).await;
            if !env.try_run_until_idle().await {
                return Err("the edited prompt never ended".to_owned());
            }
        }
    }
    Ok(())
}

/// `None`: the position before the first entry.
async fn random_entry(env: &mut TestEnv, key: &ConversationKey) -> Option<String> {
    let entries = env.entries_of(key).await;
    let at = env.rng.usize(..=entries.len());
    entries.get(at).map(|entry| entry.base.entry_id.to_string())
}

/// A move that the conversation refuses is left out.
async fn navigate(
    env: &mut TestEnv,
    (key, number): (&ConversationKey, usize),
    entry_id: Option<String>,
) {
    let summarize = Some(number.is_multiple_of(2));
    let request = LeafRequest { entry_id, summarize, ..LeafRequest::default() };
    let idempotency = idempotency(&format!("move {key} {number}"));
    for _ in 0..100 {
        let services = env.new_worker(Arc::new(NoFailPoints));
        match move_leaf(&services, key, &request, &idempotency).await {
            Ok(response) => {
                let line = if response.status == 202 { SUMMARISED } else { MOVED };
                return env.run_log.push(line);
            }
            Err(CommandError::Unavailable { .. }) => {}
            Err(error) => return env.run_log.push(format_args!("not moved: {error}")),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Repeats the request until it is accepted.
async fn send_edited_prompt(
    env: &mut TestEnv,
    (key, number): (&ConversationKey, usize),
    at: Option<String>,
) {
    let request = PromptRequest {
        input: Some(Content::Text("ask".to_owned())),
        at: Some(at),
        ..PromptRequest::default()
    };
    let idempotency = idempotency(&format!("edit {key} {number}"));
    let sender = Sender { source: Source::User, traceparent: None, when_busy: WhenBusy::Reject };
    loop {
        let services = env.new_worker(Arc::new(NoFailPoints));
        match accept_prompt(&services, key, request.clone(), &idempotency, &sender).await {
            Ok(_) => return,
            Err(error) => env.run_log.push(format_args!("edit not accepted: {error}")),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
