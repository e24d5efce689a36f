//! Extensions and plugins that run outside of this process, behind HTTP.

mod actions;
mod endpoint;
mod extension;
#[cfg(test)]
mod fuzz;
mod messages;
mod plugin;
mod question;
mod response_parts;
mod responses;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

pub use endpoint::HttpEndpoint;
pub(super) use endpoint::{RequestFailure, read_body, transport};
pub use extension::HttpExtension;
pub use plugin::HttpPlugin;

use crate::HookContext;
use turnwheel_conversation::question::Answer;
use turnwheel_platform::ids::PromptId;

/// Bytes of a request, and of a response.
pub const BODY_BYTES_MAX: usize = 256 * 1024;
/// Time of all attempts of one request, if the agent file sets none.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// The body of every request: the event and its place, then the data of the event.
#[serde_with::skip_serializing_none]
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HookRequest<'a, T> {
    event: &'static str,
    hook_id: &'a str,
    conversation_id: &'a str,
    tenant_id: &'a str,
    user_id: &'a str,
    agent: &'a str,
    prompt_id: Option<&'a str>,
    /// Answers to the questions of earlier responses, by key.
    answers: Option<&'a BTreeMap<String, Answer>>,
    #[serde(flatten)]
    data: T,
}

/// The request of this hook as JSON.
fn request_body<T: Serialize>(
    cx: &HookContext,
    hook_id: &str,
    user_id: &str,
    data: T,
) -> Result<String, serde_json::Error> {
    let conversation = cx.conversation();
    serde_json::to_string(&HookRequest {
        event: cx.hook().name(),
        hook_id,
        conversation_id: conversation.conversation_id.as_str(),
        tenant_id: conversation.tenant.as_str(),
        user_id,
        agent: cx.agent(),
        prompt_id: cx.prompt_id().map(PromptId::as_str),
        answers: cx.recorded_answers().filter(|answers| !answers.is_empty()),
        data,
    })
}
