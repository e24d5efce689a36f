//! Stored requests whose hooks asked a question: a worker runs their hooks again.

use crate::extension_command;
use crate::fork::stored_fork;
use crate::leaf::stored_move;
pub use crate::request_hooks::HookInputs;
use crate::request_hooks::RequestHooks;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::InboxItem;
use turnwheel_conversation::waiting_command::{AskingRequest, CommandRun};
use turnwheel_record::services::Services;

/// Runs the hooks of a stored request again. `None`: a later turn does. `is_head_new`: the head has
/// entries that are not stored yet.
pub async fn run_again(
    services: &Services,
    head: &Head,
    is_head_new: bool,
    item: &InboxItem,
    inputs: HookInputs,
) -> Option<CommandRun> {
    let input_id = &item.input_id;
    let hooks = RequestHooks::new(services, head, input_id);
    let hooks = hooks.with_inputs(inputs.clone());
    let outcome = match AskingRequest::from_item(item)? {
        AskingRequest::Command { name, args } => {
            extension_command::run_again(&hooks, name, &args).await?
        }
        // A move is planned on the stored entries.
        AskingRequest::MoveLeaf { .. } if is_head_new => return None,
        AskingRequest::MoveLeaf { request, turn } => {
            stored_move::run_again(&hooks, &request, turn).await?
        }
        AskingRequest::Fork { request, key } => {
            Box::pin(stored_fork::run_again(services, head, &request, key, inputs)).await?
        }
    };
    let input_id = input_id.clone();
    Some(CommandRun { input_id, outcome })
}
