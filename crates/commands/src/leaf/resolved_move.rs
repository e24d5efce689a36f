//! Outcome of the hooks of a move: cancelled, with a summary by the model, or at once.

use crate::leaf::{LeafRequest, MovePlan};
use turnwheel_conversation::branch::summary_messages;
use turnwheel_conversation::entry::BranchSummary;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::raw::RawJson;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_extensions::SummaryOverride;
use turnwheel_platform::ids::EntryId;

/// A move after its hooks.
pub(super) enum ResolvedMove {
    Cancelled,
    /// The model writes a summary first.
    Summarise,
    Move(Option<BranchSummary>),
}

/// `is_aborting`: the move follows the end of a prompt.
pub(super) fn resolve_move(
    head: &Head,
    (request, plan): (&LeafRequest, &MovePlan),
    (decision, is_aborting): (Option<SummaryOverride>, bool),
) -> ResolvedMove {
    let (_, wants_summary) = request.hook_members();
    let summary = match decision {
        Some(SummaryOverride::Cancel) => return ResolvedMove::Cancelled,
        Some(SummaryOverride::Summary { summary, details }) if wants_summary => {
            Some(build_summary(head, summary, (details, Some(true))))
        }
        Some(SummaryOverride::Summary { .. }) | None => {
            request.summary.clone().map(|text| build_summary(head, text, (None, None)))
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
    (details, from_hook): (Option<RawJson>, Option<bool>),
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
