//! Command that records a shell command which a client ran. The conversation shows it to the model
//! with the next prompt.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::message::MessageAccepted;
use crate::pipeline::{CommandContext, Signal};
use crate::prompt_request::Disposition;
use crate::request_hooks::RequestHooks;
use crate::store_input::store_with_actions;
use crate::target::Target;
use turnwheel_conversation::action::StoredActions;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{IdempotencyRecord, InboxItem};
use turnwheel_conversation::step::BashInput;
use turnwheel_extensions::{BashResult, UserBash};
use turnwheel_json::text::is_visible_line;
use turnwheel_platform::ids::{ConversationKey, InputId};
use turnwheel_platform::telemetry::trace;
use turnwheel_record::contract::{CommandError, CommandResponse};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::services::Services;

const COMMAND_BYTES_MAX: usize = 16 * 1024;
const OUTPUT_BYTES_MAX: usize = 256 * 1024;
const PATH_BYTES_MAX: usize = 4 * 1024;

/// A shell command that a client ran, with its result.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BashRecord {
    /// At most 16 KB.
    pub command: String,
    /// Standard output and standard error, at most 256 KB. Required: the service runs no commands.
    pub output: Option<String>,
    /// Absent: the command did not exit by itself.
    pub exit_code: Option<i64>,
    /// True if the user cancelled it.
    pub cancelled: Option<bool>,
    /// True if `output` is not the whole output.
    pub truncated: Option<bool>,
    /// True if the model does not receive it.
    pub exclude_from_context: Option<bool>,
    /// Where the client keeps the whole output: at most 4 KB. The model reads it beside a truncated
    /// output.
    pub full_output_path: Option<String>,
}

/// Accepts a record for an existing conversation. While a prompt runs, the record waits for the
/// next prompt.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn record_bash(
    services: &Services,
    key: &ConversationKey,
    record: BashRecord,
    idempotency: &Idempotency,
) -> Result<CommandResponse, CommandError> {
    let traceparent = trace::current_traceparent();
    let signal = Signal::Wake(traceparent.as_deref());
    let context = CommandContext { services, key, idempotency, signal };
    let accepted = context.accept(|head| async move {
        let path = validate_path(record.full_output_path.clone())?;
        let bash = validate(record)?;
        let input_id = context.input_id();
        let (input, actions) = apply_hooks(services, &head, &input_id, bash, path).await?;
        let body = MessageAccepted {
            conversation_id: key.conversation_id.clone(),
            input_id: input_id.clone(),
            prompt_id: None,
            disposition: Disposition::Queued,
            last_event_id: head.event_seq,
        };
        let location = format!("conversations/{}/inbox/{input_id}", key.conversation_id);
        let item = InboxItem {
            input_id,
            accepted_at: services.clock.now(),
            idempotency: IdempotencyRecord::default(),
            traceparent: trace::current_traceparent(),
            body: input.to_inbox_body(),
        };
        let response = CommandResponse::new(202, &body).with_location(location);
        store_with_actions(context, &Target::Existing(head), item, actions, response).await
    });
    accepted.await
}

fn validate(record: BashRecord) -> Result<UserBash, CommandError> {
    let bytes = record.command.len();
    if record.command.trim().is_empty() || bytes > COMMAND_BYTES_MAX {
        let detail = format!("`command` has {bytes} bytes: 1 to {COMMAND_BYTES_MAX} are allowed");
        return Err(CommandError::invalid("/command", detail));
    }
    let Some(output) = record.output else {
        let detail = "the service runs no shell commands: run the command, and send its `output`";
        return Err(CommandError::invalid("/output", detail));
    };
    let result = BashResult {
        output,
        exit_code: record.exit_code,
        is_cancelled: record.cancelled.unwrap_or(false),
        is_truncated: record.truncated.unwrap_or(false),
    };
    check_output(&result)?;
    let is_excluded_from_context = record.exclude_from_context.unwrap_or(false);
    Ok(UserBash { command: record.command, result, is_excluded_from_context })
}

fn validate_path(path: Option<String>) -> Result<Option<String>, CommandError> {
    let Some(path) = path else { return Ok(None) };
    if path.trim().is_empty() || path.len() > PATH_BYTES_MAX || !is_visible_line(&path) {
        let detail = format!(
            "`fullOutputPath` is one line of 1 to {PATH_BYTES_MAX} bytes without invisible characters"
        );
        return Err(CommandError::invalid("/fullOutputPath", detail));
    }
    Ok(Some(path))
}

fn check_output(result: &BashResult) -> Result<(), CommandError> {
    let bytes = result.output.len();
    if bytes <= OUTPUT_BYTES_MAX {
        return Ok(());
    }
    Err(CommandError::TooLarge(format!(
        "the output has {bytes} bytes: send at most {OUTPUT_BYTES_MAX}, with `truncated`"
    )))
}

async fn apply_hooks(
    services: &Services,
    head: &Head,
    input_id: &InputId,
    bash: UserBash,
    path: Option<String>,
) -> Result<(BashInput, Vec<StoredActions>), CommandError> {
    let hooks = RequestHooks::new(services, head, input_id);
    let (replaced, actions) = hooks.replace_bash_result(&bash).await;
    // The path is that of the output that the client recorded.
    let full_output_path = path.filter(|_| replaced.is_none());
    let result = replaced.unwrap_or(bash.result);
    check_output(&result)?;
    let input = BashInput {
        command: bash.command,
        output: result.output,
        exit_code: result.exit_code,
        cancelled: result.is_cancelled,
        truncated: result.is_truncated,
        full_output_path,
        exclude_from_context: bash.is_excluded_from_context.then_some(true),
    };
    Ok((input, actions))
}
