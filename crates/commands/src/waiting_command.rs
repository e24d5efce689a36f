//! Stored requests whose hooks asked a question: a worker runs their hooks again.

use std::time::Duration;

use crate::extension_command;
use crate::fork::stored_fork;
use crate::leaf::stored_move;
use crate::request_hooks::RequestHooks;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::InboxItem;
use turnwheel_conversation::question::Answers;
use turnwheel_conversation::waiting_command::{AskingRequest, CommandRun};
use turnwheel_record::services::Services;

/// Runs the hooks of a stored request again. `None`: a later turn does. `is_head_new`: the head has
/// entries that are not stored yet.
pub async fn run_again(
    services: &Services,
    (head, is_head_new): (&Head, bool),
    (item, answers): (&InboxItem, Answers),
    time_left: Option<Duration>,
) -> Option<CommandRun> {
    let input_id = &item.input_id;
    let hooks = RequestHooks::new(services, head, input_id);
    let hooks = hooks.with_answers(answers.clone(), time_left);
    let outcome = match AskingRequest::from_item(item)? {
        AskingRequest::Command { name, args } => {
            extension_command::run_again(&hooks, (&head.key(), input_id), (name, &args)).await?
        }
        // A move is planned on the stored entries.
        AskingRequest::MoveLeaf { .. } if is_head_new => return None,
        AskingRequest::MoveLeaf { request, turn } => {
            let place = (&hooks, head);
            stored_move::run_again(services, place, (&request, turn), input_id).await?
        }
        AskingRequest::Fork { request, key } => {
            let hook_inputs = (answers, time_left);
            let work = stored_fork::run_again(services, head, (&request, key), hook_inputs);
            Box::pin(work).await?
        }
    };
    let input_id = input_id.clone();
    Some(CommandRun { input_id, outcome })
}
