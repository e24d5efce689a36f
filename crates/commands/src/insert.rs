//! Command that inserts a prompt which ran outside the service. A worker appends it while the
//! conversation is idle; no model and no tool is called.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::input;
use crate::pipeline::{CommandContext, Signal};
use crate::prompt_request::{Disposition, PromptAccepted};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::Source;
use turnwheel_conversation::finished_prompt::{
    FinishedCall, FinishedFile, FinishedOutput, FinishedPrompt, FinishedResultKind, read_outputs,
};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{IdempotencyRecord, InboxItem};
use turnwheel_conversation::step::OUTPUTS_MAX;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_json::strict::pointer_token;
use turnwheel_platform::clock::{Timestamp, iso_option};
use turnwheel_platform::ids::{ConversationKey, PromptId};
use turnwheel_platform::telemetry::trace;
use turnwheel_record::contract::{CommandError, CommandResponse, FieldError};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts::{ArtifactError, ArtifactScope};

/// Maximum bytes of input and outputs. A result is stored as text and as JSON, and all entries must
/// fit one commit.
const PROMPT_BYTES_MAX: usize = 384 * 1024;
const NAME_BYTES_MAX: usize = 128;
const CALL_ID_BYTES_MAX: usize = 64;
/// Members that a prompt of the service shows and that an inserted one gets anew.
const OWN_MEMBERS: [&str; 3] = ["id", "startedAt", "endedAt"];

/// A prompt that ran outside the service.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FinishedPromptRequest {
    /// Text, or text, image and file blocks.
    #[schema(value_type = Option<Object>)]
    pub input: Option<Content>,
    /// Texts, tool calls with their results, files and widgets, in the shapes of `Prompt.output`: at
    /// most 32.
    #[serde(default, deserialize_with = "read_outputs")]
    #[schema(value_type = Vec<Object>)]
    pub output: Vec<FinishedOutput>,
    /// Origin of the prompt.
    pub source: Source,
    /// Absent: now.
    #[serde(default, with = "iso_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
}

/// Accepts a finished prompt for an existing conversation. While a prompt runs, it waits for its
/// end.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn insert_prompt(
    services: &Services,
    key: &ConversationKey,
    request: FinishedPromptRequest,
    idempotency: &Idempotency,
) -> Result<CommandResponse, CommandError> {
    let traceparent = trace::current_traceparent();
    let signal = Signal::Wake(traceparent.as_deref());
    let context = CommandContext { services, key, idempotency, signal };
    let accepted = context.accept(|head| async move {
        let input_id = context.input_id();
        let prompt = build_prompt(context, &head, request).await?;
        let body = PromptAccepted {
            conversation_id: key.conversation_id.clone(),
            prompt_id: prompt.prompt_id.clone(),
            input_id: input_id.clone(),
            disposition: Disposition::Queued,
            last_event_id: head.event_seq,
            writes_left: Vec::new(),
        };
        let location = format!("conversations/{}/prompts/{}", key.conversation_id, body.prompt_id);
        let item = InboxItem {
            input_id,
            accepted_at: services.clock.now(),
            idempotency: IdempotencyRecord::default(),
            traceparent: trace::current_traceparent(),
            body: prompt.to_inbox_body(),
        };
        let response = CommandResponse::new(202, &body).with_location(location);
        context.store(item.into(), response).await
    });
    accepted.await
}

async fn build_prompt(
    context: CommandContext<'_>,
    head: &Head,
    request: FinishedPromptRequest,
) -> Result<FinishedPrompt, CommandError> {
    let services = context.services;
    let now = services.clock.now();
    let FinishedPromptRequest { input, mut output, source, started_at } = request;
    validate(&output, started_at, now, input.is_none())?;
    let input_id = context.input_id();
    let input = match input {
        Some(input) => Some(input::prepare_input(services, head, &input_id, input).await?),
        None => None,
    };
    complete_files(services, head, &mut output).await?;
    let prompt = FinishedPrompt {
        prompt_id: PromptId::from_input(&input_id),
        user: head.user.clone(),
        input,
        output,
        source,
        started_at: started_at.unwrap_or(now),
    };
    let bytes = RawJson::from_value(&prompt).text().len();
    if bytes > PROMPT_BYTES_MAX {
        return Err(CommandError::TooLarge(format!(
            "the prompt has {bytes} bytes: send at most {PROMPT_BYTES_MAX}, and add long results as files"
        )));
    }
    Ok(prompt)
}

fn validate(
    outputs: &[FinishedOutput],
    started_at: Option<Timestamp>,
    now: Timestamp,
    has_no_input: bool,
) -> Result<(), CommandError> {
    let mut errors = Vec::new();
    if has_no_input && outputs.is_empty() {
        errors.push(FieldError::new(
            "/output",
            "the prompt is empty: send `input`, `output` or both",
        ));
    }
    if outputs.len() > OUTPUTS_MAX {
        let count = outputs.len();
        let detail = format!(
            "there are {count} outputs: send at most {OUTPUTS_MAX} in a prompt, and the others in further prompts"
        );
        errors.push(FieldError::new("/output", detail));
    }
    if started_at.is_some_and(|at| at > now) {
        errors.push(FieldError::new("/startedAt", "`startedAt` is in the future"));
    }
    let mut call_ids = BTreeSet::new();
    for (position, output) in outputs.iter().enumerate() {
        let at = format!("/output/{position}");
        let mut add = |member: &str, detail: &str| {
            errors.push(FieldError::new(format!("{at}/{member}"), detail));
        };
        match output {
            FinishedOutput::Text(text) => {
                if text.content.trim().is_empty() {
                    add("content", "the text is empty: leave the output out");
                }
                errors.extend(unknown_members(&text.extra, &at));
            }
            FinishedOutput::Tool(call) => {
                validate_call(call, &mut add);
                if call.tool_call_id.as_ref().is_some_and(|id| !call_ids.insert(id)) {
                    add("toolCallId", "another output has this `toolCallId`");
                }
                errors.extend(unknown_members(&call.extra, &at));
            }
            FinishedOutput::File(file) => {
                errors.extend(unknown_members(&file.extra, &at));
            }
            FinishedOutput::Widget(widget) => {
                if widget.widget.is_empty() || widget.widget.len() > NAME_BYTES_MAX {
                    add("widget", "a widget's name has 1 to 128 bytes");
                }
                errors.extend(unknown_members(&widget.extra, &at));
            }
            FinishedOutput::Other(_) => {
                add("type", "an output is `text`, `tool`, `file` or `widget`");
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(CommandError::Invalid(errors)) }
}

fn validate_call(call: &FinishedCall, add: &mut impl FnMut(&str, &str)) {
    if call.function.is_empty() || call.function.len() > NAME_BYTES_MAX {
        add("function", "the name of a tool has 1 to 128 bytes");
    }
    if !matches!(call.input.to_value(), Value::Object(_)) {
        add("input", "`input` has the arguments of the call: an object");
    }
    let is_id = |id: &String| {
        let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || b"_-|.:".contains(&byte);
        !id.is_empty() && id.len() <= CALL_ID_BYTES_MAX && id.bytes().all(is_sign)
    };
    if call.tool_call_id.as_ref().is_some_and(|id| !is_id(id)) {
        add("toolCallId", "`toolCallId` has 1 to 64 letters, digits and the signs _ - | . :");
    }
    let result = &call.result;
    let (is_complete, detail) = match result.kind {
        FinishedResultKind::Success => (
            result.output.is_some() && result.error.is_none(),
            "a `success` has `output`, and no `error`",
        ),
        FinishedResultKind::Error => (
            result.error.is_some() && result.output.is_none(),
            "an `error` has `error`, and no `output`",
        ),
    };
    if !is_complete {
        add("result", detail);
    }
}

fn unknown_members(extra: &Extra, at: &str) -> Vec<FieldError> {
    let names = extra.keys().filter(|name| !OWN_MEMBERS.contains(&name.as_str()));
    let to_error = |name: &String| {
        let pointer = format!("{at}/{}", pointer_token(name));
        FieldError::new(pointer, format!("unknown field `{name}`"))
    };
    names.map(to_error).collect()
}

/// Takes name, type and size of files from their artifacts.
async fn complete_files(
    services: &Services,
    head: &Head,
    outputs: &mut [FinishedOutput],
) -> Result<(), CommandError> {
    let scope = ArtifactScope { key: head.key(), incarnation: head.incarnation.clone() };
    let mut errors = Vec::new();
    for (position, output) in outputs.iter_mut().enumerate() {
        let FinishedOutput::File(file) = output else { continue };
        match services.artifacts.metadata(&scope, &file.artifact_id).await {
            Ok(metadata) => {
                *file = FinishedFile {
                    path: file.path.take().or(metadata.name),
                    mime_type: Some(metadata.mime_type),
                    size: Some(metadata.size),
                    ..file.clone()
                };
            }
            Err(ArtifactError::NotFound) => errors.push(FieldError::new(
                format!("/output/{position}/artifactId"),
                format!("the conversation has no artifact `{}`: add it first", file.artifact_id),
            )),
            Err(error) => return Err(error.into()),
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(CommandError::Invalid(errors)) }
}
