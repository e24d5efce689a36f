//! Views of accepted inputs, while they are queued and afterwards.

use serde::Serialize;
use utoipa::ToSchema;

use turnwheel_conversation::content::Content;
use turnwheel_conversation::inbox::{
    CustomInput, DeliverAs, InboxBody, InboxItem, InputOutcome, Receipt, WhenIdle,
};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::{Timestamp, iso};
use turnwheel_platform::ids::{ConversationKey, InputId, PromptId, is_plain_text};
use turnwheel_record::contract::CommandError;
use turnwheel_record::load;
use turnwheel_record::load::parse_body;
use turnwheel_record::services::Services;
use turnwheel_storage::store::{DocumentKind, Freshness, Partition, StoredDocument};
use turnwheel_tools::sha256_hex;

/// An accepted input.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InputView {
    #[schema(value_type = String)]
    pub input_id: InputId,
    /// `queued`, `landed`, `cleared`, or `ignored`: it arrived too late to change anything.
    #[schema(value_type = String)]
    pub state: InputState,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub accepted_at: Timestamp,
    /// Content of a queued input.
    #[serde(flatten)]
    pub waiting: Option<QueuedInputView>,
    /// Turn in which it was applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
    /// Prompt that it started or joined.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub prompt_id: Option<PromptId>,
    /// Ids of the calls that were skipped because of it.
    pub skipped_calls: Vec<String>,
    /// Ids of the calls of the same batch that had already run.
    pub ran_calls: Vec<String>,
    /// Ids of the calls that an abort interrupted; their outcome is unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_calls: Vec<String>,
    /// Response of a command that waited for an answer, as it would have been without a question.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub result: Option<RawJson>,
}

/// Content of a queued input.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueuedInputView {
    /// `prompt`, `steer`, `followUp`, `decision`, `abort`, `continue`, `lateResult`, `command` or
    /// `custom`.
    #[schema(value_type = String)]
    pub kind: &'static str,
    /// As sent: text, or blocks.
    #[schema(value_type = Option<Object>)]
    pub input: Option<Content>,
    pub visible: Option<bool>,
    /// Handling when nothing runs: `start` starts a prompt, `hold` waits for the next one.
    pub when_idle: Option<WhenIdle>,
    /// Only for a custom message.
    pub custom_type: Option<String>,
    /// Only for a custom message.
    pub deliver_as: Option<DeliverAs>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum InputState {
    Queued,
    #[serde(rename = "landed")]
    Applied,
    Cleared,
    Ignored,
}

/// One page of queued inputs after the cursor `after`, oldest first, and the cursor of the next
/// page.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn list_inputs(
    services: &Services,
    key: &ConversationKey,
    after: Option<&str>,
    limit: usize,
) -> Result<(Vec<InputView>, Option<String>), CommandError> {
    let inbox = load::inbox(services, key).await?;
    let mut rest = inbox
        .iter()
        .filter(|item| is_user_input(item))
        .filter(|item| after.is_none_or(|after| page_cursor(item).as_str() > after));
    let page: Vec<&InboxItem> = rest.by_ref().take(limit).collect();
    let next = page.last().filter(|_| rest.next().is_some()).map(|last| page_cursor(last));
    Ok((page.into_iter().map(queued_view).collect(), next))
}

/// Cursor in the order of the inbox. It stays valid when earlier items are applied.
fn page_cursor(item: &InboxItem) -> String {
    format!("{:020} {}", item.accepted_at.0, item.input_id)
}

/// Document that is stored under an input's id.
#[derive(Debug)]
pub enum StoredInput {
    Queued(Box<InboxItem>, StoredDocument),
    Finished(Box<Receipt>),
}

/// Finds the document of an input.
///
/// # Errors
/// Returns [`CommandError::NotFound`], or `Unavailable` if the store does not respond: repeat the
/// request.
pub async fn find_input(
    services: &Services,
    key: &ConversationKey,
    id: &str,
) -> Result<StoredInput, CommandError> {
    const NO_INPUT: CommandError = CommandError::NotFound("input");
    if !is_plain_text(id) {
        return Err(NO_INPUT);
    }
    let partition = Partition::Conversation(key.clone());
    let stored = services.store.read(&partition, id, Freshness::Latest).await?.ok_or(NO_INPUT)?;
    match stored.document.kind {
        DocumentKind::Inbox => Ok(StoredInput::Queued(Box::new(parse_body(&stored)?), stored)),
        DocumentKind::Receipt => Ok(StoredInput::Finished(Box::new(parse_body(&stored)?))),
        DocumentKind::Head
        | DocumentKind::Entry
        | DocumentKind::Events
        | DocumentKind::Notification
        | DocumentKind::Live
        | DocumentKind::Watch
        | DocumentKind::Scope => Err(NO_INPUT),
    }
}

/// Reads the input with that id, and its `ETag` while it is queued.
///
/// # Errors
/// Returns [`CommandError::NotFound`], or `Unavailable` if the store does not respond: repeat the
/// request.
pub async fn read_input(
    services: &Services,
    key: &ConversationKey,
    id: &str,
) -> Result<(InputView, Option<String>), CommandError> {
    Ok(match find_input(services, key, id).await? {
        StoredInput::Queued(item, _) => (queued_view(&item), Some(input_etag(&item))),
        StoredInput::Finished(receipt) => (receipt_view(&receipt), None),
    })
}

/// True for a prompt, steer, follow-up or custom message, which the sender may remove.
pub fn is_user_input(item: &InboxItem) -> bool {
    item.queue().is_some()
}

fn custom_input(item: &InboxItem) -> Option<&CustomInput> {
    if let InboxBody::Custom(custom) = &item.body { Some(custom) } else { None }
}

/// `ETag` of a queued input. It changes with the members that clients may change, not with every
/// stored version.
pub fn input_etag(item: &InboxItem) -> String {
    let mut hash = sha256_hex(RawJson::from_value(&item.body).text().as_bytes());
    hash.truncate(16);
    format!("\"{hash}\"")
}

pub fn queued_view(item: &InboxItem) -> InputView {
    let (prompt, custom) = (item.prompt(), custom_input(item));
    let content = custom.map(|custom| &custom.message.content);
    InputView {
        input_id: item.input_id.clone(),
        state: InputState::Queued,
        accepted_at: item.accepted_at,
        waiting: Some(QueuedInputView {
            kind: kind_name(&item.body),
            input: prompt.and_then(|prompt| prompt.input.as_ref()).or(content).cloned(),
            visible: prompt
                .map(|prompt| prompt.visible)
                .or(custom.map(|custom| custom.message.display)),
            when_idle: prompt.map(|prompt| prompt.when_idle),
            custom_type: custom.map(|custom| custom.message.custom_type.clone()),
            deliver_as: custom.and_then(|custom| custom.deliver_as),
        }),
        turn: None,
        prompt_id: None,
        skipped_calls: Vec::new(),
        ran_calls: Vec::new(),
        unknown_calls: Vec::new(),
        result: None,
    }
}

pub fn receipt_view(receipt: &Receipt) -> InputView {
    let is_applied = receipt.outcome == InputOutcome::Applied;
    InputView {
        input_id: receipt.input_id.clone(),
        state: match receipt.outcome {
            InputOutcome::Applied => InputState::Applied,
            InputOutcome::Ignored => InputState::Ignored,
            InputOutcome::Cleared => InputState::Cleared,
        },
        accepted_at: receipt.accepted_at,
        waiting: None,
        turn: is_applied.then_some(receipt.turn),
        prompt_id: receipt.prompt_id.clone(),
        skipped_calls: receipt.skipped_calls.clone(),
        ran_calls: receipt.ran_calls.clone(),
        unknown_calls: receipt.outcome_unknown_calls.clone(),
        result: receipt.result.clone(),
    }
}

fn kind_name(body: &InboxBody) -> &'static str {
    match body {
        InboxBody::Prompt(_) => "prompt",
        InboxBody::Steer(_) => "steer",
        InboxBody::FollowUp(_) => "followUp",
        InboxBody::Decision(_) => "decision",
        InboxBody::Abort(_) => "abort",
        InboxBody::Continue(_) => "continue",
        InboxBody::LateResult(_) => "lateResult",
        InboxBody::Command(command) if command.prompt_at().is_some() => "prompt",
        InboxBody::Command(_) => "command",
        InboxBody::Custom(_) => "custom",
    }
}
