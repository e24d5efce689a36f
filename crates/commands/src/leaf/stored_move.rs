//! A move of the leaf whose hooks ask a question: it is stored, and a worker makes it.

use crate::leaf::resolved_move::{ResolvedMove, decide_move};
use crate::leaf::{LeafMoved, LeafRequest, MovePlan, check_label, unmoved};
use crate::pipeline::CommandContext;
use crate::request_hooks::{HookResult, RequestHooks};
use crate::target::Target;
use turnwheel_conversation::entry::BranchSummary;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::waiting_command::{
    AskingRequest, FinishedCommand, LeafChange, PlannedMove, RunOutcome,
};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::EntryId;
use turnwheel_record::contract::{CommandError, CommandResponse};

/// Error of a move whose conversation has continued while it waited.
const CONTINUED: &str = "the conversation has continued since the request: send the request again";
const NO_ROOM: &str = "other questions leave no room for the question of an extension: answer them, then send the request again";

pub(super) async fn store(
    context: CommandContext<'_>,
    head: Head,
    request: &LeafRequest,
    plan: MovePlan,
) -> Result<CommandResponse, CommandError> {
    check_label(&head, request)?;
    let input_id = Some(context.input_id());
    let last_event_id = Some(head.event_seq);
    let moved = LeafMoved { waiting: true, input_id, last_event_id, ..unmoved(&head) };
    let response = plan.into_response(moved);
    let stored = AskingRequest::MoveLeaf { request: RawJson::from_value(request), turn: head.turn };
    context.store_asking(&Target::Existing(head), &stored, &response).await
}

/// Makes the move as far as the answers allow. `None`: a later turn does. The head is the stored one.
pub(crate) async fn run_again(
    hooks: &RequestHooks<'_>,
    request: &RawJson,
    turn: u64,
) -> Option<RunOutcome> {
    let head = hooks.head;
    let failed = |error: &str| {
        let error = Some(error.to_owned());
        Some(finished(&LeafMoved { error, ..unmoved(head) }, None))
    };
    let Ok(request) = request.read::<LeafRequest>() else {
        return failed("this version cannot read the request: send it again");
    };
    if head.prompt.is_some() || head.phase != Phase::Idle || head.turn != turn {
        return failed(CONTINUED);
    }
    let plan = match MovePlan::new(hooks.services, head, request.entry_id.as_deref()).await {
        Ok(plan) => plan,
        Err(CommandError::Unavailable { .. }) => return None,
        Err(error) => return failed(&error.to_string()),
    };
    let resolved = match decide_move(hooks, &request, &plan, false).await {
        HookResult::Done(resolved) => resolved,
        HookResult::Asked(question) if !hooks.has_room_for(&question) => return failed(NO_ROOM),
        HookResult::Asked(question) => {
            let subject = "a move to another branch".to_owned();
            return Some(RunOutcome::Asked { question, subject });
        }
        HookResult::Deferred => return None,
    };
    Some(match resolved {
        ResolvedMove::Cancelled => finished(&LeafMoved { cancelled: true, ..unmoved(head) }, None),
        ResolvedMove::Summarise => {
            let change = LeafChange::Summarise(plan.navigate_input(&request));
            let input_id = Some(hooks.input_id.clone());
            let moved = plan.into_response(LeafMoved { input_id, ..unmoved(head) });
            finished(&moved, Some(change))
        }
        ResolvedMove::Move(summary) => plan_move(head, &request, plan, summary),
    })
}

fn plan_move(
    head: &Head,
    request: &LeafRequest,
    plan: MovePlan,
    summary: Option<BranchSummary>,
) -> RunOutcome {
    let id_of_new_entry = |number| EntryId::from_seq(&head.incarnation, head.seq + number);
    let summaries = u64::from(summary.is_some());
    let mut leaf_id = plan.change.leaf_id.clone();
    let mut labelled = plan.target_id.clone();
    if summary.is_some() {
        leaf_id = Some(id_of_new_entry(summaries));
        labelled.clone_from(&leaf_id);
    }
    if let (Some(entry_id), Some(label)) = (labelled, &request.label) {
        // Other labels may have been set while the move waited.
        if let Err(error) = head.clone().set_label(&entry_id, Some(label)) {
            return finished(&LeafMoved { error: Some(error), ..unmoved(head) }, None);
        }
        leaf_id = Some(id_of_new_entry(summaries + 1));
    }
    let input = plan.move_input(request, summary);
    let change = LeafChange::Move(Box::new(PlannedMove { planned_seq: head.seq, input }));
    let moved = LeafMoved { moved: true, leaf_id, ..unmoved(head) };
    finished(&plan.into_response(moved), Some(change))
}

fn finished(moved: &LeafMoved, leaf_change: Option<LeafChange>) -> RunOutcome {
    let result = RawJson::from_value(moved);
    RunOutcome::Done(Box::new(FinishedCommand { result, actions: Vec::new(), leaf_change }))
}
