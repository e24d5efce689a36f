//! Commands that asked a question run again in the commit that drains the inbox.

use crate::leased_conversation::LeasedConversation;
use crate::plan::CommitPlan;
use turnwheel_commands::waiting_command::{self, HookInputs};
use turnwheel_conversation::step::{Input, ready_commands};
use turnwheel_record::error::TurnError;

/// Runs the commands that have an answer, and those that have not asked yet.
///
/// # Errors
/// The lease was lost: discard the work.
pub(crate) async fn run_waiting_commands(
    conversation: &mut LeasedConversation<'_>,
    plan: &mut CommitPlan,
) -> Result<(), TurnError> {
    if plan.transition().head.waiting_commands.is_empty() {
        return Ok(());
    }
    let services = conversation.services;
    for (item, answers) in ready_commands(plan.transition()) {
        let transition = plan.transition();
        let (head, is_head_new) = (transition.head.clone(), !transition.entries.is_empty());
        let time_left = conversation.progress.hook_time_left(&*services.clock);
        let inputs = HookInputs { answers, time_left };
        let run = waiting_command::run_again(services, &head, is_head_new, &item, inputs);
        if let Some(run) = conversation.renew_while(Box::pin(run)).await? {
            plan.add(Input::CommandRan(Box::new(run)));
        }
    }
    Ok(())
}
