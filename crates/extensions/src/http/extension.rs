//! An extension whose hooks are requests to a server.

use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::json;

use super::actions::add_actions;
use super::endpoint::HttpEndpoint;
use super::messages::{MESSAGES_BYTES_MAX, block_values, content_value, message_value, newest};
use super::request_body;
use super::responses::{
    ActionsResponse, BashResponse, BeforeAgentStartResponse, BeforeCompactResponse,
    BeforeForkResponse, BeforeTreeResponse, CommandEventResponse, EmptyResponse, EventResponse,
    InputResponse, ToolCallResponse, ToolResultResponse, TurnEndResponse,
};
use crate::{
    BashResult, ClosingTurn, CommandCall, CommandOutcome, CommandSpec, Events, Extension,
    FinishTurn, FinishedRun, FinishedToolCall, HookContext, HookError, InputDecision, Observation,
    PendingCompaction, PendingFork, PendingLeafMove, PendingToolCall, Permissions, PromptText,
    ResultChanges, RunChanges, SessionDecision, StartingRun, SummaryOverride, ToolCallDecision,
    UserBash,
};
use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::message::Message;
use turnwheel_json::raw::{RawJson, raw_object};

/// An extension of an agent file.
#[derive(Debug)]
pub struct HttpExtension {
    pub name: String,
    pub events: Events,
    pub endpoint: HttpEndpoint,
    /// Their names are valid, and none is reserved.
    pub commands: Vec<CommandSpec>,
    /// True if a tool call starts, and an input is accepted, although its request failed.
    pub is_optional: bool,
    /// The actions, tools and entry types that the agent file declares. The others are refused.
    pub permissions: Permissions,
}

#[derive(Serialize)]
struct EventData<T> {
    data: T,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolCallData<'a> {
    tool_call_id: &'a str,
    tool_name: &'a str,
    arguments: &'a RawJson,
    calls_count: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolResultData<'a> {
    tool_call_id: &'a str,
    tool_name: &'a str,
    arguments: &'a RawJson,
    content: Vec<RawJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a RawJson>,
    is_error: bool,
}

impl HttpExtension {
    async fn send<T: EventResponse>(
        &self,
        cx: &HookContext,
        data: impl Serialize + Send,
    ) -> Result<T, HookError> {
        let hook_id = cx.hook_id();
        let user_id = cx.conversation().user.as_str();
        let body = request_body(cx, &hook_id, user_id, EventData { data })?;
        let response = self.endpoint.post(&hook_id, body).await;
        let response = response.map_err(|failure| HookError::new(failure.text))?;
        let mut response = T::read(&response).map_err(|reason| invalid(&reason))?;
        add_actions(response.take_actions(), cx).map_err(|reason| invalid(&reason))?;
        Ok(response)
    }
}

fn invalid(reason: &str) -> HookError {
    HookError::new(format!("its response is not valid: {reason}"))
}

#[async_trait]
impl Extension for HttpExtension {
    fn name(&self) -> &str {
        &self.name
    }

    fn events(&self) -> Events {
        self.events
    }

    fn timeout(&self) -> Option<Duration> {
        Some(self.endpoint.timeout)
    }

    fn is_optional(&self) -> bool {
        self.is_optional
    }

    fn is_input_required(&self) -> bool {
        !self.is_optional
    }

    fn permissions(&self) -> Permissions {
        self.permissions.clone()
    }

    fn is_remote(&self) -> bool {
        true
    }

    async fn transform_input(
        &self,
        cx: &HookContext,
        input: &PromptText,
    ) -> Result<InputDecision, HookError> {
        let (text, images) = (&input.text, input.images.len());
        let data = json!({"text": text, "imagesCount": images, "source": input.source});
        let response: InputResponse = self.send(cx, data).await?;
        response.into_decision().map_err(|reason| invalid(&reason))
    }

    async fn before_agent_start(
        &self,
        cx: &HookContext,
        run: &StartingRun<'_>,
    ) -> Result<RunChanges, HookError> {
        let input = run.input.map(content_value);
        let data = raw_object!({"input": input, "systemPrompt": run.system_prompt});
        let response: BeforeAgentStartResponse = self.send(cx, data).await?;
        Ok(response.into_changes())
    }

    async fn finish_run(&self, cx: &HookContext, run: &FinishedRun<'_>) -> Result<(), HookError> {
        let (messages, omitted) = newest(run.messages.iter().copied(), MESSAGES_BYTES_MAX);
        let data = raw_object!({"messages": messages, "messagesOmitted": omitted, "willRetry": run.will_retry});
        self.send::<ActionsResponse>(cx, data).await.map(drop)
    }

    async fn observe(&self, cx: &HookContext, fact: &Observation) -> Result<(), HookError> {
        let data = match fact {
            Observation::AgentStart | Observation::SessionShutdown => json!({}),
            Observation::SessionStart { reason } => json!({"reason": reason}),
            Observation::SessionSwitch { previous } | Observation::SessionFork { previous } => {
                json!({"previous": previous})
            }
            Observation::SessionTree { old_leaf_id, new_leaf_id, summary } => {
                json!({"oldLeafId": old_leaf_id, "newLeafId": new_leaf_id, "summary": summary})
            }
            Observation::TurnStart { turn_index } => json!({"turnIndex": turn_index}),
            Observation::ModelSelect(change) => json!(change),
        };
        self.send(cx, data).await.map(|EmptyResponse {}| ())
    }

    async fn before_tool_call(
        &self,
        cx: &HookContext,
        call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        let data = ToolCallData {
            tool_call_id: call.tool_call_id,
            tool_name: call.tool_name,
            arguments: &call.arguments.text,
            calls_count: call.calls_count,
        };
        let mut response: ToolCallResponse = self.send(cx, data).await?;
        if let Some(question) = response.take_question().map_err(|reason| invalid(&reason))? {
            return Err(question.ask(cx));
        }
        response.into_decision(call.calls_count).map_err(|reason| invalid(&reason))
    }

    async fn after_tool_call(
        &self,
        cx: &HookContext,
        call: &FinishedToolCall<'_>,
    ) -> Result<ResultChanges, HookError> {
        let data = ToolResultData {
            tool_call_id: call.tool_call_id,
            tool_name: call.tool_name,
            arguments: &call.arguments.text,
            content: block_values(call.content),
            details: call.details,
            is_error: call.is_error,
        };
        let response: ToolResultResponse = self.send(cx, data).await?;
        Ok(response.into_changes())
    }

    async fn finish_turn(
        &self,
        cx: &HookContext,
        turn: &ClosingTurn<'_>,
    ) -> Result<Option<FinishTurn>, HookError> {
        let results = turn.tool_results.iter().map(|result| Message::ToolResult((*result).clone()));
        let results: Vec<RawJson> = results.map(|message| message_value(&message)).collect();
        let response = message_value(&Message::Assistant(turn.response.clone()));
        let data = raw_object!({
            "response": response,
            "toolResults": results,
            "rounds": turn.rounds,
            "turnIndex": turn.turn_index,
        });
        let response: TurnEndResponse = self.send(cx, data).await?;
        Ok(response.into_decision())
    }

    async fn before_compaction(
        &self,
        cx: &HookContext,
        compaction: &PendingCompaction<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        let texts = [compaction.instructions, compaction.previous_summary];
        let bytes = texts.into_iter().flatten().map(|text| json!(text).to_string().len()).sum();
        let messages = compaction.messages.iter().map(AsRef::as_ref);
        let (messages, omitted) = newest(messages, MESSAGES_BYTES_MAX.saturating_sub(bytes));
        let data = raw_object!({
            "reason": compaction.reason,
            "instructions": compaction.instructions,
            "tokensBefore": compaction.tokens_before,
            "previousSummary": compaction.previous_summary,
            "firstKeptEntryId": compaction.first_kept_entry_id,
            "messages": messages,
            "messagesOmitted": omitted,
            "canAsk": cx.has_ui(),
        });
        let mut response: BeforeCompactResponse = self.send(cx, data).await?;
        if let Some(question) = response.take_question().map_err(|reason| invalid(&reason))? {
            return Err(question.ask(cx));
        }
        response.into_override().map_err(|reason| invalid(&reason))
    }

    fn commands(&self) -> Vec<CommandSpec> {
        self.commands.clone()
    }

    async fn run_command(
        &self,
        cx: &HookContext,
        call: &CommandCall<'_>,
    ) -> Result<CommandOutcome, HookError> {
        let data = json!({"name": call.name, "args": call.args});
        let mut response: CommandEventResponse = self.send(cx, data).await?;
        if let Some(question) = response.take_question().map_err(|reason| invalid(&reason))? {
            return Err(question.ask(cx));
        }
        Ok(CommandOutcome { output: response.output })
    }

    async fn replace_bash_result(
        &self,
        cx: &HookContext,
        bash: &UserBash,
    ) -> Result<Option<BashResult>, HookError> {
        let data = json!({
            "command": bash.command,
            "output": bash.result.output,
            "exitCode": bash.result.exit_code,
            "cancelled": bash.result.is_cancelled,
            "truncated": bash.result.is_truncated,
            "excludeFromContext": bash.is_excluded_from_context,
        });
        let response: BashResponse = self.send(cx, data).await?;
        Ok(response.into_result())
    }

    async fn before_leaf_move(
        &self,
        cx: &HookContext,
        pending: &PendingLeafMove<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        let messages = pending.entries_left.iter().filter_map(|entry| entry.body.message());
        let (messages, omitted) = newest(messages, MESSAGES_BYTES_MAX);
        let data = raw_object!({
            "targetId": pending.target_id,
            "oldLeafId": pending.old_leaf_id,
            "newLeafId": pending.new_leaf_id,
            "commonAncestorId": pending.common_ancestor_id,
            "messagesLeft": messages,
            "messagesOmitted": omitted,
            "wantsSummary": pending.wants_summary,
            "label": pending.label,
        });
        let mut response: BeforeTreeResponse = self.send(cx, data).await?;
        if let Some(question) = response.take_question().map_err(|reason| invalid(&reason))? {
            return Err(question.ask(cx));
        }
        response.into_override().map_err(|reason| invalid(&reason))
    }

    async fn before_session_fork(
        &self,
        cx: &HookContext,
        fork: &PendingFork<'_>,
    ) -> Result<SessionDecision, HookError> {
        let data = json!({"entryId": fork.entry_id, "position": fork.position});
        let mut response: BeforeForkResponse = self.send(cx, data).await?;
        if let Some(question) = response.take_question().map_err(|reason| invalid(&reason))? {
            return Err(question.ask(cx));
        }
        Ok(response.into_decision())
    }

    async fn after_compaction(&self, cx: &HookContext, entry: &Entry) -> Result<(), HookError> {
        self.send(cx, raw_object!({"entry": entry})).await.map(|EmptyResponse {}| ())
    }
}
