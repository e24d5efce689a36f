//! Commands that wait for an answer: they enter the head, ask, and end with a receipt.

use std::sync::Arc;

use crate::event::{CommandEnd, EventBody};
use crate::inbox::InboxItem;
use crate::question::{Answers, WaitingCommand};
use crate::request::{Decision, Request};
use crate::step::{actions, navigate, questions, queue, requests};
use crate::transition::Transition;
use crate::waiting_command::{CommandRun, FinishedCommand, LeafChange, RunOutcome};
use turnwheel_platform::ids::{InputId, PromptId};

/// Maximum number of commands that wait at the same time. Further ones stay in the inbox.
pub(crate) const WAITING_COMMANDS_MAX: usize = 16;

/// Enters new commands in the head, oldest first. Their hooks run next.
pub(super) fn enter(transition: &mut Transition) {
    let waiting = &mut transition.head.waiting_commands;
    for pending in &transition.pending {
        let input_id = &pending.item.input_id;
        if waiting.len() < WAITING_COMMANDS_MAX
            && pending.item.is_waiting_command()
            && !waiting.iter().any(|command| command.input_id == *input_id)
        {
            let input_id = input_id.clone();
            waiting.push(WaitingCommand { input_id, answers: Answers::default() });
        }
    }
}

/// The commands whose hooks can run now, with the answers so far.
pub fn ready_commands(transition: &Transition) -> Vec<(Arc<InboxItem>, Answers)> {
    let head = &transition.head;
    let ready = head.waiting_commands.iter().filter(|it| head.question_of(&it.input_id).is_none());
    let with_item = |command: &WaitingCommand| {
        let pending = transition.pending.iter().find(|it| it.item.input_id == command.input_id)?;
        Some((Arc::clone(&pending.item), command.answers.clone()))
    };
    ready.filter_map(with_item).collect()
}

/// Applies the outcome of the hooks. A command that has ended or waits stays as it is.
pub(super) fn apply_run(transition: &mut Transition, run: &CommandRun) {
    let id = &run.input_id;
    let is_ready = ready_commands(transition).iter().any(|(item, _)| item.input_id == *id);
    if !is_ready {
        return;
    }
    match &run.outcome {
        RunOutcome::Asked { question, subject } => {
            let base = Request {
                prompt_id: PromptId::new(""),
                input_id: Some(id.clone()),
                requested_by: transition.head.user.clone(),
                ..requests::new_request(transition)
            };
            let mut request = questions::new_request(transition, question, base, subject);
            let seq = requests::store(transition, &mut request);
            requests::emit_approval_requested(transition, &request, seq);
        }
        RunOutcome::Done(finished) => finish(transition, id, finished),
    }
}

fn finish(transition: &mut Transition, id: &InputId, finished: &FinishedCommand) {
    if let Some(LeafChange::Move(planned)) = &finished.leaf_change
        && planned.planned_seq != transition.head.seq
    {
        // The next delivery runs the command again.
        return;
    }
    let Some(item) = queue::pop_unbounded(transition, |item| item.input_id == *id) else { return };
    transition.head.waiting_commands.retain(|command| command.input_id != *id);
    let mut receipt = queue::new_receipt(transition, &item);
    receipt.result = Some(finished.result.clone());
    transition.receipts.push(receipt);
    transition.emit_outside_prompt(EventBody::CommandEnd(CommandEnd { input_id: id.clone() }));
    for stored in &finished.actions {
        actions::apply_stored(transition, stored);
    }
    match &finished.leaf_change {
        None => {}
        Some(LeafChange::Move(planned)) => navigate::apply_planned(transition, planned),
        Some(LeafChange::Summarise(input)) => actions::add_navigation(transition, input),
    }
    enter(transition);
}

/// Records the answer to the question of a command, whose hooks run again.
pub(super) fn record_answer(transition: &mut Transition, request: &Request, decision: &Decision) {
    let commands = transition.head.waiting_commands.iter_mut();
    let mut own = commands.filter(|command| Some(&command.input_id) == request.input_id.as_ref());
    if let (Some(command), Some(asker)) = (own.next(), &request.asker) {
        command.answers.add(asker, questions::answer_of(decision));
    }
}
