//! Summaries of a branch that the conversation leaves.

use std::fmt::Write as _;

use serde_json::json;

use crate::compaction::failed_summary;
use crate::compaction::summary_request::{
    CallUsage, SummaryCall, branch_output_max, branch_thinking, call_for_summary, fit_prompt,
};
use crate::leased_conversation::LeasedConversation;
use turnwheel_commands::leaf::plan_change;
use turnwheel_conversation::branch::{WriteLeft, find_writes_left, left_behind, summary_messages};
use turnwheel_conversation::compaction::file_lists::FileLists;
use turnwheel_conversation::compaction::prompts;
use turnwheel_conversation::entry::BranchSummary;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::phase::{BranchTarget, Phase};
use turnwheel_conversation::step::{SummarisedMove, SummaryAttempt, SummaryOutcome};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_record::error::TurnError;

/// Maximum number of writes that a summary names.
const WRITES_MAX: usize = 50;

/// Requests a summary of the part of the path that the move leaves.
pub(super) async fn summarise_branch(
    conversation: &mut LeasedConversation<'_>,
    target: &BranchTarget,
) -> Result<SummaryAttempt, TurnError> {
    let context = conversation.state.context(conversation.services);
    let record = match context.model_record(&*conversation.services.model, &conversation.state.head)
    {
        Ok(record) => record,
        Err(reason) => return Ok(failed_summary(reason)),
    };
    let entries = conversation.state.load_entries(conversation.services).await?;
    let head = &conversation.state.head;
    let old_path = path_to_leaf(&entries, head.leaf_id.as_ref());
    let path = path_to_leaf(&entries, target.leaf_id.as_ref());
    let left = left_behind(&old_path, &path);
    let messages = summary_messages(left);
    let (Some(from_id), false) = (head.leaf_id.clone(), messages.is_empty()) else {
        return Ok(failed_summary("The branch has no messages to summarise".to_owned()));
    };
    let Phase::Summary { instructions, .. } = &head.phase else {
        return Ok(failed_summary("no summary is pending".to_owned()));
    };
    let task = prompts::branch_prompt(instructions.as_deref());
    let output_tokens = branch_output_max(&record);
    // The reserve of a compaction also covers the response.
    let budget = context.context_budget(record.context_window);
    let reserved = output_tokens.max(budget.reserve());
    let attempt = conversation.state.attempt();
    let (prompt, omitted) = fit_prompt(budget.window, attempt, &messages, &task, reserved);
    let (leaf_move, _) = plan_change(conversation.services, head, target.leaf_id.clone(), &path);
    let call = SummaryCall {
        record: &record,
        context: &context,
        prompt,
        output_tokens,
        thinking: branch_thinking(&record),
        error_prefix: "Branch summarization failed",
    };
    let mut call_usage = CallUsage::default();
    let text = match call_for_summary(conversation, call, &mut call_usage).await {
        Ok(text) => text,
        Err(error) => return error.into_attempt(call_usage),
    };
    let mut files = FileLists::default();
    for entry in left {
        if let Some(Message::Assistant(response)) = entry.body.message() {
            files.add_calls(response);
        }
    }
    let writes = render_writes(&find_writes_left(&old_path, left));
    let details = json!({
        "readFiles": files.read_only(), "modifiedFiles": files.modified(), "shortened": omitted,
    });
    let summary = BranchSummary {
        from_id,
        summary: format!("{}{text}{}{writes}", prompts::BRANCH_PREAMBLE, files.render()),
        details: Some(RawJson::from_value(&details)),
        from_hook: None,
        usage: Some(RawJson::from_value(&call_usage.usage)),
        calls: Some(call_usage.calls),
        extra: Extra::new(),
    };
    let outcome = SummaryOutcome::Moved(Box::new(SummarisedMove { leaf_move, summary }));
    Ok(SummaryAttempt {
        usage: call_usage.usage,
        calls: call_usage.calls,
        outcome,
        oversized: None,
    })
}

/// The writes of the branch, for the model: the move does not undo them.
fn render_writes(writes: &[WriteLeft]) -> String {
    if writes.is_empty() {
        return String::new();
    }
    let mut text = "\n\n<writes>\nThese calls of the branch changed other systems. Leaving the branch did not undo them.".to_owned();
    let omitted = writes.len().saturating_sub(WRITES_MAX);
    if omitted > 0 {
        let _ = write!(text, "\n({omitted} earlier calls are left out)");
    }
    for write in writes.iter().skip(omitted) {
        let _ = write!(text, "\n{} ({}): {}", write.tool, write.effect_id, write.outcome.name());
    }
    text + "\n</writes>"
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_conversation::settings::ThinkingLevel;
    use turnwheel_model::catalogue::Catalogue;

    #[test]
    fn branch_summary_thinks_only_if_the_model_always_does() {
        for (model, thinking, tokens) in [
            ("gpt-4o", ThinkingLevel::Off, 2_048),
            ("gpt-5.1", ThinkingLevel::Off, 2_048),
            ("gpt-5-mini", ThinkingLevel::High, 32_000),
        ] {
            let record = Catalogue::default().record(model, "d");
            assert_eq!(
                (branch_thinking(&record), branch_output_max(&record)),
                (thinking, tokens),
                "{model}"
            );
        }
    }
}
