//! The responses of HTTP extensions and plugins. An unknown member or value is an error: a misspelt
//! `block` must not let a call start.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::actions::HookAction;
use super::question::HookQuestion;
use super::response_parts::{
    Checked, ResultContent, into_blocks, read_approvers, read_exact_response, read_expiry,
    read_response,
};
use crate::{
    ApprovalRequest, BashResult, CallBlock, FinishTurn, InputDecision, ResultChanges, RunChanges,
    SessionDecision, SummaryOverride, ToolCallDecision,
};
use turnwheel_conversation::content::Block;
use turnwheel_conversation::entry::CustomMessageEntry;
use turnwheel_json::raw::RawJson;

/// Bytes of a text for approvers or the model.
const TEXT_BYTES_MAX: usize = 2 * 1024;
/// Bytes of the reasons of all calls of a model response. Open requests are stored in the head.
const REASONS_BYTES_MAX: usize = 12 * 1024;

/// A response to an event.
pub(super) trait EventResponse: DeserializeOwned {
    fn read(body: &str) -> Checked<Self> {
        read_response(body)
    }

    /// Removes the changes of the conversation from the response.
    fn take_actions(&mut self) -> Vec<HookAction> {
        Vec::new()
    }
}

macro_rules! responses_with_actions {
    ($($response:ty),*) => {$(
        impl EventResponse for $response {
            fn take_actions(&mut self) -> Vec<HookAction> {
                std::mem::take(&mut self.actions)
            }
        }
    )*};
}

responses_with_actions!(
    ActionsResponse,
    BashResponse,
    BeforeAgentStartResponse,
    BeforeCompactResponse,
    CommandEventResponse,
    InputResponse,
    ToolResultResponse,
    TurnEndResponse
);

impl EventResponse for ToolCallResponse {
    /// The tool must receive the arguments that the extension wrote.
    fn read(body: &str) -> Checked<Self> {
        read_exact_response(body)
    }

    fn take_actions(&mut self) -> Vec<HookAction> {
        std::mem::take(&mut self.actions)
    }
}

impl EventResponse for BeforeForkResponse {}
impl EventResponse for BeforeTreeResponse {}
impl EventResponse for EmptyResponse {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum CallDecision {
    Allow,
    Block,
    Change,
    RequireApproval,
}

/// Response to `tool_call`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ToolCallResponse {
    #[serde(default)]
    actions: Vec<HookAction>,
    /// In place of a decision.
    ask: Option<HookQuestion>,
    decision: Option<CallDecision>,
    /// For the decision `change`.
    arguments: Option<RawJson>,
    reason: Option<String>,
    terminate: Option<bool>,
    approvers: Option<Vec<String>>,
    not_requester: Option<bool>,
    expires_after: Option<String>,
    refusal: Option<String>,
}

impl ToolCallResponse {
    /// Removes the question from the response.
    ///
    /// # Errors
    /// The response has another member, too.
    pub(super) fn take_question(&mut self) -> Checked<Option<HookQuestion>> {
        let Some(question) = self.ask.take() else { return Ok(None) };
        if self.decision.is_some()
            || self.arguments.is_some()
            || self.reason.is_some()
            || self.has_approval_members()
        {
            return Err("ask needs no decision: the event is sent again with the answer".to_owned());
        }
        Ok(Some(question))
    }

    fn has_approval_members(&self) -> bool {
        self.approvers.is_some()
            || self.not_requester.is_some()
            || self.expires_after.is_some()
            || self.refusal.is_some()
    }

    /// `calls_count` is the number of calls of the model response.
    pub(super) fn into_decision(self, calls_count: usize) -> Checked<ToolCallDecision> {
        let decision = self.decision.ok_or("decision or ask is missing")?;
        let is_approval = decision == CallDecision::RequireApproval;
        if self.has_approval_members() && !is_approval {
            return Err("approvers, notRequester, expiresAfter and refusal need the decision requireApproval".to_owned());
        }
        if self.terminate.is_some() && decision != CallDecision::Block {
            return Err("terminate needs the decision block".to_owned());
        }
        check_text("reason", self.reason.as_deref(), TEXT_BYTES_MAX)?;
        if self.arguments.is_some() != (decision == CallDecision::Change) {
            return Err("the decision change, and no other one, needs arguments".to_owned());
        }
        match decision {
            CallDecision::Change => {
                let arguments = self.arguments.ok_or("arguments are missing")?;
                Ok(ToolCallDecision::ChangeText(arguments.with_unique_members()))
            }
            CallDecision::Allow => Ok(ToolCallDecision::Allow),
            CallDecision::Block => Ok(ToolCallDecision::Block(CallBlock {
                reason: self.reason,
                terminate: self.terminate.unwrap_or_default(),
            })),
            CallDecision::RequireApproval => {
                self.into_approval(calls_count).map(ToolCallDecision::RequireApproval)
            }
        }
    }

    fn into_approval(self, calls_count: usize) -> Checked<ApprovalRequest> {
        let reason = self.reason.filter(|reason| !reason.trim().is_empty());
        let reason = reason.ok_or("requireApproval needs a reason")?;
        let bytes_max = TEXT_BYTES_MAX.min(REASONS_BYTES_MAX / calls_count.max(1));
        check_text("reason", Some(&reason), bytes_max)?;
        check_text("refusal", self.refusal.as_deref(), TEXT_BYTES_MAX)?;
        let default = ApprovalRequest::because(reason);
        let approvers = read_approvers(self.approvers)?;
        let is_requester_excluded = self.not_requester.unwrap_or_default();
        if is_requester_excluded && approvers.iter().all(|approver| approver == "owner") {
            return Err("notRequester needs link or role:NAME among approvers".to_owned());
        }
        let expires_after = read_expiry(self.expires_after.as_deref())?;
        let expires_after = expires_after.unwrap_or(default.expires_after);
        let refusal = self.refusal;
        Ok(ApprovalRequest { approvers, is_requester_excluded, expires_after, refusal, ..default })
    }
}

fn check_text(name: &str, text: Option<&str>, bytes_max: usize) -> Checked<()> {
    match text.map(str::len).filter(|bytes| *bytes > bytes_max) {
        Some(bytes) => Err(format!("{name} has {bytes} bytes; the maximum is {bytes_max}")),
        None => Ok(()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum InputAction {
    Continue,
    Transform,
    Handled,
}

/// Response to `input`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct InputResponse {
    #[serde(default)]
    actions: Vec<HookAction>,
    action: InputAction,
    text: Option<String>,
}

impl InputResponse {
    pub(super) fn into_decision(self) -> Checked<InputDecision> {
        match (self.action, self.text) {
            (InputAction::Continue, None) => Ok(InputDecision::Continue),
            (InputAction::Handled, None) => Ok(InputDecision::Handled),
            (InputAction::Transform, Some(text)) => {
                Ok(InputDecision::Transform { text, images: None })
            }
            (InputAction::Transform, None) => Err("transform needs text".to_owned()),
            (InputAction::Continue | InputAction::Handled, Some(_)) => {
                Err("text needs the action transform".to_owned())
            }
        }
    }
}

/// Response to `tool_result`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ToolResultResponse {
    #[serde(default)]
    actions: Vec<HookAction>,
    content: Option<ResultContent>,
    details: Option<RawJson>,
    is_error: Option<bool>,
}

impl ToolResultResponse {
    pub(super) fn into_changes(self) -> ResultChanges {
        let content = self.content.map(|content| match content {
            ResultContent::Text(text) => vec![Block::text(text)],
            ResultContent::Blocks(blocks) => into_blocks(blocks),
        });
        ResultChanges { content, details: self.details, is_error: self.is_error }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RunMessage {
    custom_type: String,
    content: ResultContent,
    display: Option<bool>,
    details: Option<RawJson>,
}

/// Response to `before_agent_start`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct BeforeAgentStartResponse {
    #[serde(default)]
    actions: Vec<HookAction>,
    #[serde(default)]
    messages: Vec<RunMessage>,
    system_prompt: Option<String>,
}

impl BeforeAgentStartResponse {
    pub(super) fn into_changes(self) -> RunChanges {
        let messages = self.messages.into_iter().map(|message| CustomMessageEntry {
            display: message.display.unwrap_or(true),
            details: message.details,
            ..CustomMessageEntry::new(message.custom_type, message.content.into_content())
        });
        RunChanges { messages: messages.collect(), system_prompt: self.system_prompt }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum TurnDecision {
    End,
    Continue,
}

/// Response to `turn_end`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TurnEndResponse {
    #[serde(default)]
    actions: Vec<HookAction>,
    decision: Option<TurnDecision>,
}

impl TurnEndResponse {
    pub(super) fn into_decision(self) -> Option<FinishTurn> {
        self.decision.map(|decision| match decision {
            TurnDecision::End => FinishTurn::End,
            TurnDecision::Continue => FinishTurn::Continue,
        })
    }
}

/// Response to `session_before_compact`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct BeforeCompactResponse {
    #[serde(default)]
    actions: Vec<HookAction>,
    /// In place of a decision.
    ask: Option<HookQuestion>,
    #[serde(default)]
    cancel: bool,
    summary: Option<String>,
    details: Option<RawJson>,
}

impl BeforeCompactResponse {
    /// Removes the question from the response.
    ///
    /// # Errors
    /// The response has another member, too.
    pub(super) fn take_question(&mut self) -> Checked<Option<HookQuestion>> {
        take_question(&mut self.ask, self.cancel || self.summary.is_some())
    }

    pub(super) fn into_override(self) -> Checked<Option<SummaryOverride>> {
        to_override(self.cancel, self.summary, self.details)
    }
}

fn to_override(
    cancel: bool,
    summary: Option<String>,
    details: Option<RawJson>,
) -> Checked<Option<SummaryOverride>> {
    match (cancel, summary, details) {
        (false, None, None) => Ok(None),
        (true, None, None) => Ok(Some(SummaryOverride::Cancel)),
        (false, Some(summary), details) => Ok(Some(SummaryOverride::Summary { summary, details })),
        (true, _, _) => Err("cancel needs neither summary nor details".to_owned()),
        (false, None, Some(_)) => Err("details needs summary".to_owned()),
    }
}

/// Response to `session_before_tree`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BeforeTreeResponse {
    /// In place of a decision.
    ask: Option<HookQuestion>,
    #[serde(default)]
    cancel: bool,
    summary: Option<String>,
    details: Option<RawJson>,
}

impl BeforeTreeResponse {
    /// Removes the question from the response.
    ///
    /// # Errors
    /// The response has another member, too.
    pub(super) fn take_question(&mut self) -> Checked<Option<HookQuestion>> {
        take_question(&mut self.ask, self.cancel || self.summary.is_some())
    }

    pub(super) fn into_override(self) -> Checked<Option<SummaryOverride>> {
        to_override(self.cancel, self.summary, self.details)
    }
}

/// Response to `session_before_fork`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BeforeForkResponse {
    /// In place of a decision.
    ask: Option<HookQuestion>,
    #[serde(default)]
    cancel: bool,
}

impl BeforeForkResponse {
    /// Removes the question from the response.
    ///
    /// # Errors
    /// The response has another member, too.
    pub(super) fn take_question(&mut self) -> Checked<Option<HookQuestion>> {
        take_question(&mut self.ask, self.cancel)
    }

    pub(super) fn into_decision(self) -> SessionDecision {
        if self.cancel { SessionDecision::Cancel } else { SessionDecision::Continue }
    }
}

/// Response to `agent_end`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ActionsResponse {
    #[serde(default)]
    actions: Vec<HookAction>,
}

/// Response to `command`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CommandEventResponse {
    #[serde(default)]
    actions: Vec<HookAction>,
    /// In place of a result.
    ask: Option<HookQuestion>,
    pub(super) output: Option<String>,
}

impl CommandEventResponse {
    /// Removes the question from the response.
    ///
    /// # Errors
    /// The response has another member, too.
    pub(super) fn take_question(&mut self) -> Checked<Option<HookQuestion>> {
        take_question(&mut self.ask, self.output.is_some())
    }
}

/// Removes the question from a response. `has_result`: the response has a result, too.
fn take_question(
    ask: &mut Option<HookQuestion>,
    has_result: bool,
) -> Checked<Option<HookQuestion>> {
    match ask.take() {
        Some(_) if has_result => {
            Err("ask needs no result: the event is sent again with the answer".to_owned())
        }
        question => Ok(question),
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewBashResult {
    output: String,
    exit_code: Option<i64>,
    #[serde(default)]
    cancelled: bool,
    #[serde(default)]
    truncated: bool,
}

/// Response to `user_bash`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct BashResponse {
    #[serde(default)]
    actions: Vec<HookAction>,
    result: Option<NewBashResult>,
}

impl BashResponse {
    pub(super) fn into_result(self) -> Option<BashResult> {
        self.result.map(|result| BashResult {
            output: result.output,
            exit_code: result.exit_code,
            is_cancelled: result.cancelled,
            is_truncated: result.truncated,
        })
    }
}

/// Response to an event that an extension only observes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EmptyResponse {}

/// A text of a plugin for the system prompt.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum ContextText {
    Stable(String),
    Item(ContextTextItem),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ContextTextItem {
    pub(super) text: String,
    #[serde(default)]
    pub(super) volatile: bool,
}

/// Response to `prepare`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PrepareResponse {
    /// Absent: the state stays. `null` removes it.
    #[serde(default, deserialize_with = "read_present")]
    pub(super) state: Option<RawJson>,
    /// Version of the schema of `state`.
    pub(super) schema: Option<u32>,
    #[serde(default)]
    pub(super) context: Vec<ContextText>,
    #[serde(default)]
    pub(super) tools: Vec<String>,
}

fn read_present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RawJson>, D::Error> {
    RawJson::deserialize(deserializer).map(Some)
}
