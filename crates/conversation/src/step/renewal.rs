//! New approval requests for calls that differ from what an approver decided.

use std::time::Duration;

use crate::approval_binding;
use crate::step::input::{ApprovalSpec, CallPlan};
use crate::transition::Transition;

/// Begins the reason of a request for a changed call. The changes follow.
const TOOL_CHANGED: &str =
    "The tool changed after this call was approved, so it needs a new decision.";

/// Begins the reason of a request for an equal call.
const MORE_REQUIRED: &str =
    "An extension requires an approval that the earlier decision does not cover.";

/// Reason of a request for a changed call whose tool requires no approval.
const NO_GATE: &str = "The tool no longer requires an approval of this call.";

/// Time in which an approver decides a request without a rule of the tool.
const EXPIRES: Duration = Duration::from_hours(7 * 24);

/// How a call differs from the decided one.
pub(super) struct Renewal {
    /// True if the call itself differs, and not only the extensions that require its approval.
    pub(super) is_changed: bool,
    /// Start of the reason. Empty: nobody decided about the call before.
    pub(super) prefix: String,
}

pub(super) fn describe(transition: &Transition, index: usize, plan: &CallPlan) -> Renewal {
    let call = transition.calls().get(index);
    let Some((call, decided)) = call.and_then(|call| Some((call, call.decided_binding()?))) else {
        return Renewal { is_changed: false, prefix: String::new() };
    };
    if approval_binding::is_same_call(decided, &plan.binding) {
        return Renewal { is_changed: false, prefix: format!("{MORE_REQUIRED} ") };
    }
    let shown = call.approval.as_deref().and_then(|approved| approved.destination.as_ref());
    let changes = approval_binding::describe_changes(
        decided,
        shown,
        &plan.binding,
        plan.destination.as_ref(),
    );
    Renewal { is_changed: true, prefix: format!("{TOOL_CHANGED} {changes} ") }
}

/// The approval that a call needs although its tool and the extensions require none: an approver
/// decided about another one. `None`: nobody decided, or the decision covers the call.
pub fn renew_approval(
    transition: &Transition,
    index: usize,
    binding: &str,
) -> Option<ApprovalSpec> {
    let call = transition.calls().get(index)?;
    call.decided_binding().filter(|decided| !approval_binding::covers(decided, binding))?;
    let approved = call.approval.as_deref();
    let approvers = approved.map(|approved| approved.approvers.clone());
    Some(ApprovalSpec {
        reason: NO_GATE.to_owned(),
        approvers: approvers.unwrap_or_else(|| vec!["owner".to_owned()]),
        not_requester: approved.is_some_and(|approved| approved.is_requester_excluded),
        expires_at: transition.now.plus(EXPIRES),
        refusal: None,
    })
}
