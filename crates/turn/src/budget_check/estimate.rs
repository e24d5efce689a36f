//! Upper bound of the next model call's cost, as far as it can be computed before the call.

use crate::compaction::{branch_output_max, summary_output_max};
use crate::conversation_state::ConversationState;
use crate::plan::CommitPlan;
use turnwheel_conversation::compaction::prompts;
use turnwheel_conversation::entry::{EntryBody, Output};
use turnwheel_conversation::message::Message;
use turnwheel_conversation::path::path_from_leaf;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::projection::render::{
    render_branch_summary, render_compaction_summary,
};
use turnwheel_conversation::settings::LoopKind;
use turnwheel_conversation::usage::{Usage, UsageTotals};
use turnwheel_json::raw::RawJson;
use turnwheel_model::ModelRecord;
use turnwheel_model::catalogue::find_tariff;
use turnwheel_model::protocol::{call_escape_bytes, result_bytes};
use turnwheel_record::error::TurnError;
use turnwheel_record::services::Services;

/// Bytes of JSON counted as one token. Non-text has more bytes a token, and few texts have fewer.
const BYTES_PER_TOKEN: usize = 3;

/// Upper bound of the next call: the last response's context, the entries after it, and the
/// longest response. A summary may take two calls, whose inputs together are the same context.
pub(super) async fn estimate_call_cost(
    services: &Services,
    state: &ConversationState,
    plan: &CommitPlan,
) -> Result<UsageTotals, TurnError> {
    let (transition, context) = (plan.transition(), plan.context());
    let Ok(record) = context.model_record(&*services.model, &transition.head) else {
        // The call cannot be made, and costs nothing.
        return Ok(UsageTotals { calls: 1, ..UsageTotals::default() });
    };
    let (next, new) = (&transition.head, &transition.entries);
    let entries = state.load_context_after(services, next, new).await?;
    let (mut known_tokens, mut bytes) = (0, 0);
    let leaf = transition.head.leaf_id.as_ref();
    // Protocol text has escapes for characters outside ASCII.
    let is_protocol = context.loop_kind() == LoopKind::Protocol;
    for entry in path_from_leaf(entries.iter().chain(&transition.entries), leaf) {
        if let Some(Message::Assistant(response)) = entry.body.message()
            && response.usage.total_tokens > 0
        {
            known_tokens = response.usage.total_tokens;
            bytes += if is_protocol { call_escape_bytes(response) } else { 0 };
            break;
        }
        bytes += match entry.body.tool_result() {
            Some(result) if is_protocol => result_bytes(result),
            Some(_) | None => input_bytes(&entry.body),
        };
        if bytes as u64 > record.context_window.saturating_mul(BYTES_PER_TOKEN as u64) {
            break;
        }
    }
    if known_tokens == 0 {
        // Later calls know them from the last response's usage.
        match transition.head.frame.as_ref().filter(|frame| !frame.is_own) {
            Some(frame) => known_tokens = frame.tokens,
            None => bytes += context.frame_bytes_max(),
        }
    }
    let context_tokens = known_tokens + bytes.div_ceil(BYTES_PER_TOKEN) as u64;
    Ok(match &transition.head.phase {
        Phase::Summary { branch, instructions, .. } => {
            let focus = instructions.as_deref();
            let prompts = [prompts::summary_prompt(None, focus), prompts::prefix_prompt()];
            let prompt_bytes =
                prompts.iter().map(|prompts| prompts::SYSTEM_PROMPT.len() + prompts.len());
            let prompt_tokens = prompt_bytes.sum::<usize>().div_ceil(BYTES_PER_TOKEN) as u64;
            let input = context_tokens + prompt_tokens;
            let budget = context.context_budget(record.context_window);
            let window = record.context_window.saturating_mul(2);
            let output = match branch {
                Some(_) => branch_output_max(&record),
                None => summary_output_max(&record, &budget),
            };
            maximum_cost(&record, input.min(window), output)
        }
        Phase::Idle | Phase::Model { .. } | Phase::Calls { .. } | Phase::Deleted => {
            let output = record.output_token_limit(context.settings.max_output_tokens);
            maximum_cost(&record, context_tokens.min(record.context_window), output)
        }
    })
}

/// Bytes of what the model reads of an entry.
#[expect(clippy::wildcard_enum_match_arm, reason = "the model reads few kinds of entry")]
fn input_bytes(body: &EntryBody) -> usize {
    match body {
        EntryBody::Message(entry) => RawJson::from_value(&entry.message).text().len(),
        EntryBody::CustomMessage(message) => RawJson::from_value(message).text().len(),
        EntryBody::Compaction(compaction) => render_compaction_summary(&compaction.summary).len(),
        EntryBody::BranchSummary(branch) => render_branch_summary(&branch.summary).len(),
        EntryBody::Output(output) => match &output.output {
            Output::File(file) => RawJson::from_value(file).text().len(),
            Output::Widget(_) | Output::Other(_) => 0,
        },
        _ => 0,
    }
}

/// Uses the highest input price, because the service may write the input to its cache.
fn maximum_cost(record: &ModelRecord, input: u64, output: u64) -> UsageTotals {
    let cost = find_tariff(record).max_cost(input, output);
    UsageTotals::from_usage(&Usage {
        input,
        output,
        total_tokens: input + output,
        cost,
        ..Usage::default()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use turnwheel_conversation::entry::Entry;
    use turnwheel_conversation::projection::project_messages;
    use turnwheel_conversation::usage::dollars_to_nanos;
    use turnwheel_model::catalogue::Catalogue;

    #[test]
    fn every_entry_that_the_model_reads_is_counted() {
        let lines = include_str!("../../../../tests/fixtures/entries-v1.jsonl").lines();
        let mut kinds = 0;
        for line in lines {
            let entry: Arc<Entry> = Arc::new(serde_json::from_str(line).unwrap());
            let path = [Arc::clone(&entry)];
            if !project_messages(&path).is_empty() {
                kinds += 1;
                assert!(input_bytes(&entry.body) > 0, "{line}");
            }
        }
        assert!(kinds > 9, "{kinds}");
    }

    #[test]
    fn model_call_never_costs_more_than_estimate() {
        for model in ["gpt-4o", "gpt-5.1", "gpt-5.4", "gpt-6-sol", "nobody-knows"] {
            let record = Catalogue::default().record(model, model);
            for input in [10, 272_000, 272_001, 900_000] {
                let estimate = maximum_cost(&record, input, 500);
                let parts = [
                    Usage { input, ..Usage::default() },
                    Usage { cache_write: input, ..Usage::default() },
                    Usage { cache_read: input, ..Usage::default() },
                    Usage { input: input / 2, cache_write: input / 2, ..Usage::default() },
                ];
                for usage in parts.map(|usage| Usage { output: 500, ..usage }) {
                    let cost = find_tariff(&record).cost(&usage).total;
                    assert!(dollars_to_nanos(cost) <= estimate.nanos, "{model} {usage:?}: {cost}");
                }
            }
        }
        let record = Catalogue::default().record("gpt-6-sol", "d");
        assert_eq!(
            maximum_cost(&record, 1_000_000, 0).nanos,
            dollars_to_nanos(5.0),
            "written to the cache, long"
        );
        assert_eq!(
            maximum_cost(&record, 100_000, 0).nanos,
            dollars_to_nanos(0.25),
            "written to the cache"
        );
    }
}
