//! Commands whose question or result exceeds one commit.

use turnwheel_conversation::step::Input;
use turnwheel_conversation::waiting_command::{CommandRun, FinishedCommand, RunOutcome};
use turnwheel_json::raw::RawJson;

/// Bytes of a result of a command that is never the reason why a commit is too large.
pub(super) const SMALL_RESULT_BYTES_MAX: usize = 1024;

/// The step with the first of several commands. The next delivery runs the others again.
pub(super) fn first_of_commands(inputs: &[Input]) -> Option<Vec<Input>> {
    let first = inputs.iter().position(is_command)?;
    let kept =
        inputs.iter().enumerate().filter(|(index, input)| *index <= first || !is_command(input));
    let smaller: Vec<Input> = kept.map(|(_, input)| input.clone()).collect();
    (smaller.len() < inputs.len()).then_some(smaller)
}

/// The step in which a command with a question or a long result ends with an error. A command that has
/// ended already is left out: another input is too large.
pub(super) fn without_command(inputs: &[Input], excess: &str) -> Option<Vec<Input>> {
    let first = inputs.iter().position(is_command)?;
    let mut smaller = inputs.to_vec();
    if let Some(Input::CommandRan(run)) = smaller.get_mut(first)
        && end_command(run, excess)
    {
        return Some(smaller);
    }
    smaller.remove(first);
    Some(smaller)
}

/// Returns false if the command has ended with a short result.
fn end_command(run: &mut CommandRun, excess: &str) -> bool {
    if let RunOutcome::Done(finished) = &run.outcome
        && finished.leaf_change.is_none()
        && finished.result.text().len() <= SMALL_RESULT_BYTES_MAX
    {
        return false;
    }
    tracing::warn!(input.id = %run.input_id, excess, "command ended with an error: its commit is too large");
    let error = format!("The question or the result is too large for one commit: {excess}.");
    let result = RawJson::from_value(&serde_json::json!({ "error": error }));
    let (actions, leaf_change) = (Vec::new(), None);
    run.outcome = RunOutcome::Done(Box::new(FinishedCommand { result, actions, leaf_change }));
    true
}

fn is_command(input: &Input) -> bool {
    matches!(input, Input::CommandRan(_))
}
