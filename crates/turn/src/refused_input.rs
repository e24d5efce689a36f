//! Refusals of model requests: the part of the input that the error names.

use std::sync::Arc;

use crate::frame::Frame;
use turnwheel_conversation::compaction::{ContextBudget, tokens};
use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::input_repair::{
    Refusal, RefusedInput, RefusedRequest, RequestTool, find_oversized_input, find_refused_input,
    names_content, names_part,
};
use turnwheel_model::responses::names::ToolNames;
use turnwheel_model::tokens::count_tokens;
use turnwheel_model::{ModelFailure, ModelResponse, ToolOffer};
use turnwheel_platform::ids::ConversationKey;

/// Finds the part that the service refused, and logs it. `None`: the response is no refusal, or it
/// names no part.
pub(super) fn find_refused_part(
    key: &ConversationKey,
    response: &ModelResponse,
    path: &[Arc<Entry>],
    frame: &Frame<'_>,
    budget: &ContextBudget,
) -> Option<RefusedInput> {
    let is_too_large = response.failure == Some(ModelFailure::ContextOverflow);
    let refusal = read_refusal(response)?;
    let offers: Vec<ToolOffer<'_>> = frame.offers().collect();
    let names = ToolNames::new(&offers);
    let tools = frame.request_tools().zip(&offers).map(|((name, revision), offer)| {
        let schema_bytes = offer.parameters.to_string().len();
        RequestTool { wire_name: names.wire_name(name), name, revision, schema_bytes }
    });
    let tools: Vec<RequestTool<'_>> = tools.collect();
    let schema_hash = frame.response_schema_hash();
    let request = RefusedRequest {
        tools: &tools,
        response_schema: schema_hash.as_deref(),
        has_instructions: frame.system().is_some(),
    };
    let refused = if is_too_large {
        find_oversized_input(path, refusal)
            .filter(|found| budget.is_enabled || is_largest_part(path, found))
    } else {
        find_refused_input(path, &request, refusal)
    }?;
    let tool = refused.repair.tool.as_ref().map(|tool| tool.name.as_str());
    tracing::warn!(
        conversation.id = %key.conversation_id,
        part = ?refused.repair.part,
        tool.name = tool,
        error.code = refusal.code,
        "model service refused a part of the input; later requests leave it out"
    );
    Some(refused)
}

/// True if the service refused what the request contains.
pub(super) fn is_content_refused(response: &ModelResponse) -> bool {
    response.failure == Some(ModelFailure::Permanent)
        && read_refusal(response).is_some_and(names_content)
}

/// The refusal as the service worded it. `None`: the response is none.
fn read_refusal(response: &ModelResponse) -> Option<Refusal<'_>> {
    let metadata = &response.metadata;
    // A stream that fails has no status of its own.
    let is_refusal = matches!(metadata.status, None | Some(200 | 400 | 403..=422 | 500..=599));
    let is_permanent =
        matches!(response.failure, Some(ModelFailure::Permanent | ModelFailure::ContextOverflow));
    if !is_permanent || !response.message.is_from_model() || !is_refusal {
        return None;
    }
    let text = response.message.error_message.as_deref().unwrap_or_default();
    let status = metadata.status.map(|status| format!("HTTP {status}")).unwrap_or_default();
    let refusal = Refusal {
        code: metadata.error.as_deref().unwrap_or_default(),
        param: metadata.param.as_deref().unwrap_or_default(),
        text: text.strip_prefix(status.as_str()).unwrap_or(text),
    };
    let is_of_request = match metadata.status {
        // This status usually reports the model or the address.
        Some(404) => names_part(refusal),
        // Some servers report an input that their model cannot read as a failure of their own.
        Some(500..) => {
            response.failure == Some(ModelFailure::ContextOverflow) || names_content(refusal)
        }
        _ => true,
    };
    is_of_request.then_some(refusal)
}

/// True if the part has more tokens than the rest of the input. Without compaction, the rest may be the
/// part that is too large.
fn is_largest_part(path: &[Arc<Entry>], found: &RefusedInput) -> bool {
    let range = found.repair.from_seq..=found.repair.to_seq;
    let (part, rest) = path.iter().fold((0, 0), |(part, rest), entry| {
        let count = tokens::count_entry(entry, &count_tokens);
        if range.contains(&entry.base.seq) { (part + count, rest) } else { (part, rest + count) }
    });
    part > rest
}
