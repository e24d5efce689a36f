//! Outcome of the hooks of a move: cancelled, with a summary by the model, or at once.

use crate::leaf::{LeafRequest, MovePlan};
use crate::request_hooks::{HookResult, RequestHooks};
use turnwheel_conversation::branch::summary_messages;
use turnwheel_conversation::entry::BranchSummary;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_extensions::SummaryOverride;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::EntryId;

/// A move after its hooks.
pub(super) enum ResolvedMove {
    Cancelled,
    /// The model writes a summary first.
    Summarise,
    Move(Option<BranchSummary>),
}

/// Runs the hooks of a move that is made at once, after a question, or after the end of a prompt
/// (`is_aborting`).
pub(super) async fn decide_move(
    hooks: &RequestHooks<'_>,
    request: &LeafRequest,
    plan: &MovePlan,
    is_aborting: bool,
) -> HookResult<ResolvedMove> {
    let head = hooks.head;
    let pending = plan.pending(head, request.label.as_deref(), request.wants_summary());
    let decision = hooks.decide_move(&pending).await;
    decision.map(|decision| resolve_move(head, request, plan, decision, is_aborting))
}

fn resolve_move(
    head: &Head,
    request: &LeafRequest,
    plan: &MovePlan,
    decision: Option<SummaryOverride>,
    is_aborting: bool,
) -> ResolvedMove {
    let summary = match decision {
        Some(SummaryOverride::Cancel) => return ResolvedMove::Cancelled,
        Some(SummaryOverride::Summary { summary, details }) if request.wants_summary() => {
            Some(build_summary(head, summary, details, Some(true)))
        }
        Some(SummaryOverride::Summary { .. }) | None => {
            request.summary.clone().map(|text| build_summary(head, text, None, None))
        }
    };
    // The end of an aborted prompt adds messages.
    let has_messages = is_aborting || !summary_messages(&plan.left).is_empty();
    if summary.is_none() && request.is_model_asked() && has_messages {
        return ResolvedMove::Summarise;
    }
    ResolvedMove::Move(summary)
}

/// The entry with a summary of the branch left behind.
fn build_summary(
    head: &Head,
    summary: String,
    details: Option<RawJson>,
    from_hook: Option<bool>,
) -> BranchSummary {
    BranchSummary {
        from_id: head.leaf_id.clone().unwrap_or_else(|| EntryId::new("")),
        summary,
        details,
        from_hook,
        usage: None,
        calls: None,
        extra: Extra::new(),
    }
}
