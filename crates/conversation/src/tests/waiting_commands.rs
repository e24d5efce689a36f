//! Commands that waited for an answer and whose hooks have run again.

use super::insert::inserted;
use super::*;
use crate::leaf_move::LeafMove;
use crate::step::MoveInput;
use crate::waiting_command::{
    AskingRequest, CommandRun, FinishedCommand, LeafChange, PlannedMove, RunOutcome,
};
use turnwheel_json::raw::RawJson;

/// A move before the first entry that was planned when the newest entry had that number.
fn planned_move(input_id: &InputId, planned_seq: u64) -> Input {
    let leaf_move = LeafMove::default();
    let input = MoveInput { leaf_move, summary: None, label: None, entry_id: None };
    let finished = FinishedCommand {
        result: RawJson::from_value(&json!({"moved": true})),
        actions: Vec::new(),
        leaf_change: Some(LeafChange::Move(Box::new(PlannedMove { planned_seq, input }))),
    };
    let outcome = RunOutcome::Done(Box::new(finished));
    Input::CommandRan(Box::new(CommandRun { input_id: input_id.clone(), outcome }))
}

#[test]
fn move_that_was_planned_on_older_entries_waits_for_another_run() {
    let mut transition = transition();
    let text = json!([{"type": "text", "content": "Done."}]);
    apply_inputs(&mut transition, &[inbox_read_one(inserted("1", &text))]);
    let request = AskingRequest::MoveLeaf { request: RawJson::from_value(&json!({})), turn: 0 };
    let waiting = InboxItem { body: request.to_inbox_body(), ..inserted("2", &text) };
    let input_id = waiting.input_id.clone();
    apply_inputs(&mut transition, &[inbox_read_one(waiting)]);
    let (seq, leaf_id) = (transition.head.seq, transition.head.leaf_id.clone());
    assert_eq!((transition.head.waiting_commands.len(), leaf_id.is_some()), (1, true));

    apply_inputs(&mut transition, &[planned_move(&input_id, seq - 1)]);
    assert_eq!(transition.head.leaf_id, leaf_id);
    assert_eq!((transition.head.waiting_commands.len(), transition.receipts.len()), (1, 1));

    apply_inputs(&mut transition, &[planned_move(&input_id, seq)]);
    assert_eq!(transition.head.leaf_id, None);
    assert_eq!((transition.head.waiting_commands.len(), transition.receipts.len()), (0, 2));
}
