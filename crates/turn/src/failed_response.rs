//! Responses of model calls that failed without one, and the class of a failure.

use crate::prepare::PluginFailure;
use turnwheel_conversation::content::Block;
use turnwheel_conversation::message::{AssistantMessage, StopReason};
use turnwheel_conversation::step::FailureKind;
use turnwheel_conversation::usage::Usage;
use turnwheel_extensions::runner::{FailureCause, HookFailure};
use turnwheel_json::raw::RawJson;
use turnwheel_model::catalogue::find_tariff;
use turnwheel_model::responses::provider_error::is_throttled;
use turnwheel_model::tokens::count_tokens;
use turnwheel_model::{CallMetadata, ModelFailure, ModelRecord, ModelResponse};
use turnwheel_platform::ids::Ids;
use turnwheel_record::error_domain::NO_MODEL;

/// The source's text (s3 §5.7).
const ABORTED_TEXT: &str = "Request was aborted";

/// The failure class for the state machine. It adds the random number for the back-off.
pub(super) fn failure_kind(ids: &dyn Ids, response: &ModelResponse) -> FailureKind {
    match &response.failure {
        Some(ModelFailure::Retryable { after }) => FailureKind::Transient {
            retry_after: *after,
            jitter_share: ids.random_fraction(),
            is_throttled: is_throttled(&response.metadata),
        },
        Some(ModelFailure::ContextOverflow) => FailureKind::ContextOverflow,
        Some(ModelFailure::Permanent) | None => FailureKind::Permanent,
    }
}

/// The recorded response of a call that could not be made.
pub(super) fn failed_response(model: &str, reason: String) -> ModelResponse {
    ModelResponse {
        message: AssistantMessage {
            model: model.to_owned(),
            error_message: Some(reason),
            ..AssistantMessage::new_synthetic("turnwheel", Vec::new(), StopReason::Error)
        },
        failure: Some(ModelFailure::Permanent),
        metadata: CallMetadata::default(),
    }
}

/// The recorded response of a call prevented by a failed hook. A retry may find what the hook
/// needs, but not after a panic.
pub(super) fn hook_failure_response(failure: &HookFailure) -> ModelResponse {
    let reply = CallMetadata { error: Some("hook_failed".to_owned()), ..CallMetadata::default() };
    let is_final = failure.cause == FailureCause::Panic;
    let failure_class =
        if is_final { ModelFailure::Permanent } else { ModelFailure::Retryable { after: None } };
    let reason = format!("The model was not called: {failure}");
    ModelResponse {
        failure: Some(failure_class),
        metadata: reply,
        ..failed_response(NO_MODEL, reason)
    }
}

/// The recorded response of a call that a plugin prevented.
pub(super) fn plugin_failure_response(plugin: &PluginFailure) -> ModelResponse {
    let failure_class = if plugin.is_retryable {
        ModelFailure::Retryable { after: None }
    } else {
        ModelFailure::Permanent
    };
    let metadata = CallMetadata { error: Some("plugin".to_owned()), ..CallMetadata::default() };
    let failed = failed_response(NO_MODEL, plugin.failure.to_string());
    ModelResponse { failure: Some(failure_class), metadata, ..failed }
}

/// The response of an aborted call. The service bills the tokens read and written, but reports no
/// usage to a client that disconnects. The usage is therefore an estimate from the tokens sent and
/// received.
pub(super) fn aborted_response(
    record: &ModelRecord,
    content: Vec<Block>,
    input: u64,
) -> ModelResponse {
    let response = failed_response(&record.id, ABORTED_TEXT.to_owned());
    let output =
        if content.is_empty() { 0 } else { count_tokens(RawJson::from_value(&content).text()) };
    let mut usage = Usage { input, output, total_tokens: input + output, ..Usage::default() };
    usage.cost = find_tariff(record).cost(&usage);
    let message = AssistantMessage {
        content,
        api: record.api.clone(),
        provider: record.provider.clone(),
        usage: usage.into(),
        stop_reason: StopReason::Aborted,
        ..response.message
    };
    ModelResponse { message, failure: None, metadata: CallMetadata::default() }
}
