//! Moves of the leaf: with a prompt that starts there, or with a summary of the branch left behind.

use serde::{Deserialize, Serialize};

use crate::entry::{BranchSummary, EntryBody, Label};
use crate::event::{BranchSummaryEnd, Empty, EventBody, SessionTreeChange};
use crate::inbox::{CommandInput, InboxBody, InboxItem};
use crate::leaf_move::LeafMove;
use crate::phase::{BranchTarget, CompactionReason, Phase};
use crate::question::Answers;
use crate::step::next::Next;
use crate::step::queue;
use crate::transition::Transition;
use crate::waiting_command::PlannedMove;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::EntryId;

/// Name of the inbox command that moves the leaf with a summary.
pub(super) const NAVIGATE_COMMAND: &str = "navigate";

/// Arguments of the command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NavigateInput {
    pub target: BranchTarget,
    /// Topics that the summary should emphasise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

impl NavigateInput {
    pub fn to_inbox_body(&self) -> InboxBody {
        let args = RawJson::from_value(self);
        InboxBody::Command(CommandInput::new(NAVIGATE_COMMAND, Some(args)))
    }

    /// Returns `None` if the item is another one.
    pub fn from_item(item: &InboxItem) -> Option<Self> {
        let InboxBody::Command(command) = &item.body else { return None };
        Self::from_command(command)
    }

    /// Returns `None` for another command, and for arguments of a newer version.
    pub(super) fn from_command(command: &CommandInput) -> Option<Self> {
        command.args.as_ref().filter(|_| command.name == NAVIGATE_COMMAND)?.read().ok()
    }
}

/// Name of the inbox command that moves the leaf as soon as the conversation is idle.
const MOVE_COMMAND: &str = "moveLeaf";

/// Arguments of the command.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MoveInput {
    #[serde(rename = "move")]
    pub leaf_move: LeafMove,
    /// Text of the client. Its `fromId` is set with the move.
    pub summary: Option<BranchSummary>,
    /// Label of the summary, or else of `entry_id`.
    pub label: Option<String>,
    /// The entry that the request named.
    pub entry_id: Option<EntryId>,
}

impl MoveInput {
    pub fn to_inbox_body(&self) -> InboxBody {
        InboxBody::Command(CommandInput::new(MOVE_COMMAND, Some(RawJson::from_value(self))))
    }

    /// Returns `None` if the item is another one.
    pub(super) fn from_item(item: &InboxItem) -> Option<Self> {
        let InboxBody::Command(command) = &item.body else { return None };
        Self::from_command(command)
    }

    /// Returns `None` for another command, and for arguments of a newer version.
    pub(super) fn from_command(command: &CommandInput) -> Option<Self> {
        command.args.as_ref().filter(|_| command.name == MOVE_COMMAND)?.read().ok()
    }
}

/// A summary of the branch left behind, and the move that it is committed with.
#[derive(Clone, Debug)]
pub struct SummarisedMove {
    pub leaf_move: LeafMove,
    pub summary: BranchSummary,
}

/// Starts the summary. The leaf moves with its commit.
pub(super) fn apply_command(
    transition: &mut Transition,
    item: &InboxItem,
    input: NavigateInput,
) -> Next {
    let receipt = queue::new_receipt(transition, item);
    transition.receipts.push(receipt);
    transition.head.phase = Phase::Summary {
        attempt: 1,
        not_before: None,
        reason: CompactionReason::Manual,
        instructions: input.instructions,
        answers: Answers::default(),
        branch: Some(Box::new(input.target)),
    };
    transition.head.reset_suspicion();
    transition.emit(EventBody::BranchSummaryStart(Empty {}));
    Next::Wait
}

/// Moves the leaf to the place where the next prompt starts.
pub(super) fn move_before_prompt(transition: &mut Transition, to: &LeafMove) {
    let old_leaf_id = transition.head.leaf_id.clone();
    apply_move(transition, to);
    let new_leaf_id = to.leaf_id.clone();
    transition.emit(EventBody::SessionTree(SessionTreeChange {
        old_leaf_id,
        new_leaf_id,
        summary: None,
    }));
}

/// Makes a move of a waiting command, whose label was checked on the same entries.
pub(super) fn apply_planned(transition: &mut Transition, planned: &PlannedMove) {
    let MoveInput { leaf_move, summary, label, entry_id } = &planned.input;
    let label = label.as_deref().map(|label| (label, entry_id.clone()));
    let _checked = land(transition, leaf_move, summary.clone(), label);
}

fn apply_move(transition: &mut Transition, to: &LeafMove) {
    transition.head.move_leaf(to);
    if let Some(model) = &to.model {
        model.clone_into(&mut transition.policy.model);
    }
}

/// Moves the leaf after the end of the prompt that the request aborted.
pub(super) fn apply_move_command(transition: &mut Transition, item: &InboxItem, input: MoveInput) {
    let receipt = queue::new_receipt(transition, item);
    transition.receipts.push(receipt);
    let MoveInput { leaf_move, mut summary, label, entry_id } = input;
    if let (Some(summary), Some(left)) = (&mut summary, &transition.head.leaf_id) {
        summary.from_id.clone_from(left);
    }
    let label = label.as_deref().map(|label| (label, entry_id));
    land(transition, &leaf_move, summary, label);
    transition.head.reset_suspicion();
}

/// Moves the leaf, and appends the summary and its label.
pub(super) fn apply_summarised(
    transition: &mut Transition,
    summarised: &SummarisedMove,
    label: Option<&str>,
) {
    let SummarisedMove { leaf_move, summary } = summarised;
    let label = label.map(|label| (label, None));
    let error_message = land(transition, leaf_move, Some(summary.clone()), label);
    transition
        .emit(EventBody::BranchSummaryEnd(BranchSummaryEnd { aborted: false, error_message }));
}

/// Moves the leaf, and appends the summary and the label, which names the summary or else the given
/// entry. Returns the error of a label that became invalid meanwhile.
fn land(
    transition: &mut Transition,
    to: &LeafMove,
    summary: Option<BranchSummary>,
    label: Option<(&str, Option<EntryId>)>,
) -> Option<String> {
    let old_leaf_id = transition.head.leaf_id.clone();
    apply_move(transition, to);
    let summary = summary.map(|summary| transition.append(EntryBody::BranchSummary(summary)));
    let mut error_message = None;
    if let Some((label, entry_id)) = label {
        let summary_id = summary.as_ref().map(|entry| entry.base.entry_id.clone());
        if let Some(entry_id) = summary_id.or(entry_id) {
            match transition.head.set_label(&entry_id, Some(label)) {
                Ok(label) => {
                    transition.append(EntryBody::Label(Label::new(entry_id, label)));
                }
                Err(text) => error_message = Some(text),
            }
        }
    }
    transition.emit(EventBody::SessionTree(SessionTreeChange {
        old_leaf_id,
        new_leaf_id: transition.head.leaf_id.clone(),
        summary: summary.map(|entry| entry.base.seq),
    }));
    error_message
}
