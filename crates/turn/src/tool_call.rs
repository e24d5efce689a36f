//! One tool call: sent, converted into an input of the state machine, and stored if its result
//! could not be committed.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::call_approval;
use crate::conversation_state::CallAttemptId;
use crate::late_result::LateResultWriter;
use crate::leased_conversation::LeasedConversation;
use crate::result_hooks::{CallAttempt, ResultHooks};
use crate::spans::ToolCallSpan;
use crate::tool_batch::{CallInFlight, RawOutcome};
use turnwheel_agent_files::AgentDefinition;
use turnwheel_conversation::approval_binding;
use turnwheel_conversation::content::{Block, ToolCall};
use turnwheel_conversation::entry::{Entry, EntryBody, ToolReturned};
use turnwheel_conversation::message::{Message, WorkspaceFile};
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::request::{CallRef, Effect};
use turnwheel_conversation::settings::LoopKind;
use turnwheel_conversation::step::{CallResult, Input};
use turnwheel_conversation::workspace;
use turnwheel_json::raw::RawJson;
use turnwheel_record::error::{OUTCOME_REQUEST_EXPIRES, TurnError};
use turnwheel_record::nudge_sender::enqueue_nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::live::{LiveEvent, ToolUpdate};
use turnwheel_storage::queue;
use turnwheel_tools::knowledge::KnowledgePorts;
use turnwheel_tools::plugin_state::CallPluginState;
use turnwheel_tools::validate::INVALID_JSON;
use turnwheel_tools::workspace::PackageFiles;
use turnwheel_tools::{
    Arguments, CallableTool, ToolContext, ToolOutcome, ToolResult, call_attempt, validate,
};

/// Context for converting a call's outcome into an input.
struct OutcomeContext<'w> {
    services: &'w Services,
    index: usize,
    tool: String,
    loop_kind: LoopKind,
    state: Option<CallPluginState>,
}

impl OutcomeContext<'_> {
    fn to_input(&self, outcome: ToolOutcome) -> Input {
        let index = self.index;
        match outcome {
            ToolOutcome::Returned(mut result) => {
                if result.is_error {
                    prepend_text(&mut result.content, &failure_prefix(self.loop_kind, &self.tool));
                }
                let state = self.state.as_ref().and_then(CallPluginState::change);
                let result = CallResult { state, ..call_result(result) };
                Input::ToolCallReturned { index, result: Box::new(result) }
            }
            ToolOutcome::Failed(text) => {
                let text = failure_text(self.loop_kind, &self.tool, text);
                Input::ToolCallReturned { index, result: Box::new(CallResult::error(text)) }
            }
            ToolOutcome::Unknown { reason } => {
                let expires_at = self.services.clock.now().plus(OUTCOME_REQUEST_EXPIRES);
                Input::ToolOutcomeUnknown { index, reason, expires_at }
            }
        }
    }
}

impl<'w> LeasedConversation<'w> {
    /// Sends a started call. Returns the remaining work, which borrows nothing from the
    /// conversation.
    pub(crate) async fn send_call(
        &mut self,
        index: usize,
        abort: &CancellationToken,
    ) -> Result<CallInFlight<'w>, TurnError> {
        let services = self.services;
        let turn_context = self.state.context(self.services);
        let outcome_context = self.outcome_context(index, turn_context.loop_kind());
        let failed = |text: &str| {
            let ended = outcome_context.to_input(ToolOutcome::Failed(text.to_owned()));
            let work = Box::pin(std::future::ready(vec![ended]));
            let raw = RawOutcome::default();
            Ok(CallInFlight { index, call_span: None, effect: Effect::Read, work, raw })
        };
        let Some(mut call) = self.state.open_call(index).cloned() else {
            return failed("This call is not in the record.");
        };
        let state = self.state.head.phase.call_batch().calls.get(index);
        let changed = state.and_then(|state| state.changed_arguments.clone());
        let checked = state.and_then(|state| state.approved.clone());
        let Some(attempt) = state.and_then(CallAttemptId::of) else {
            return failed("This call was not started.");
        };
        let Some(tool) = turn_context.find_tool(&call.name).cloned() else {
            return failed(&format!("Tool \"{}\" no longer available", call.name));
        };
        let arguments = match changed {
            Some(text) => {
                call.arguments = text.clone();
                Arguments::from_text(text)
            }
            None => match validate::validate(tool.definition(), &call.arguments) {
                Ok(arguments) => arguments,
                Err(text) => return failed(&text),
            },
        };
        // Agent files may be reloaded after the check.
        let binding = call_approval::bind(&*tool, &call, &[]);
        if checked.is_some_and(|checked| !approval_binding::covers(&checked, &binding)) {
            let name = &call.name;
            return failed(&format!(
                "Tool \"{name}\" changed before this call was sent, so it was not sent. Call it again."
            ));
        }
        let call_span =
            Arc::new(ToolCallSpan::start(services, &self.state.head, &call, &arguments, &attempt));
        let finished = CancellationToken::new();
        let context = self.tool_context(&call, index, attempt, finished.clone()).await?;
        let context = match &turn_context.agent {
            Ok(agent) => self.with_agent(context, agent),
            Err(_) => context,
        };
        self.ensure_lease().await?;
        // Counts from now: the commit of the intent may have taken time, and the tool gets its
        // whole time-out.
        let deadline = services.clock.now().plus(tool.definition().timeout);
        let traceparent = call_span.span.traceparent().or(context.traceparent);
        let plugin_state = self.plugin_state_of_call(&*tool);
        let outcome_context = OutcomeContext { state: plugin_state.clone(), ..outcome_context };
        let context =
            ToolContext { deadline, abort: abort.clone(), traceparent, plugin_state, ..context };
        let attempt =
            CallAttempt { tool, arguments, context, read_access: turn_context.read_access() };
        let hooks = self.result_hooks(index, &call, &turn_context, &attempt);
        services.fail_points.hit("tool.before").await;
        Ok(start_attempt(attempt, call_span, finished, outcome_context, hooks))
    }

    /// State for the tool of a plugin, or for a session of the conversation.
    fn plugin_state_of_call(&self, tool: &dyn CallableTool) -> Option<CallPluginState> {
        (tool.conversation_session().is_some() || tool.plugin().is_some())
            .then(|| CallPluginState::new(self.state.head.plugin_state.clone()))
    }

    fn outcome_context(&self, index: usize, loop_kind: LoopKind) -> OutcomeContext<'w> {
        OutcomeContext {
            services: self.services,
            index,
            tool: self.state.open_call(index).map(|call| call.name.clone()).unwrap_or_default(),
            loop_kind,
            state: None,
        }
    }

    /// Adds what the agent gives its tools.
    fn with_agent(&self, context: ToolContext, agent: &AgentDefinition) -> ToolContext {
        let may_recall = agent.may_recall(self.services.limits.has_shared_user);
        ToolContext {
            package_files: agent.package_files.clone(),
            knowledge: KnowledgePorts {
                past_messages: context.knowledge.past_messages.filter(|_| may_recall),
                ..context.knowledge
            },
            ..context
        }
    }

    async fn tool_context(
        &self,
        call: &ToolCall,
        index: usize,
        attempt: CallAttemptId,
        finished: CancellationToken,
    ) -> Result<ToolContext, TurnError> {
        let entries = self.state.load_context(self.services).await?;
        let path = path_to_leaf(&entries, self.state.head.leaf_id.as_ref());
        let run = self.state.head.prompt.as_ref();
        let update = ToolUpdate {
            epoch: self.lease.epoch,
            event_seq: self.state.head.event_seq,
            prompt_id: self
                .state
                .prompt_id()
                .unwrap_or_else(|| turnwheel_platform::ids::PromptId::new("")),
            turn: self.state.head.turn,
            tool_call_id: call.id.clone(),
            tool_name: call.name.clone(),
            args: call.arguments.clone(),
            partial_result: RawJson::from_value(&()),
        };
        let (live, key) = (Arc::clone(&self.services.live), self.state.key.clone());
        Ok(ToolContext {
            effect_id: attempt.effect_id,
            attempt: attempt.number,
            tool_call_id: call.id.clone(),
            artifact_scope: self.state.artifact_scope(),
            artifacts: Arc::clone(&self.services.artifacts),
            clock: Arc::clone(&self.services.clock),
            workspace: Arc::new(workspace_before(&path, &self.state.buffered, index)),
            package_files: PackageFiles::default(),
            deadline: self.lease.until,
            abort: CancellationToken::new(),
            on_progress: Arc::new(move |partial: &ToolResult| {
                if finished.is_cancelled() {
                    return;
                }
                let empty = || RawJson::from_members(Vec::new());
                let partial_result = RawJson::from_members(vec![
                    ("content".to_owned(), RawJson::from_value(&partial.content)),
                    ("details".to_owned(), partial.details.clone().unwrap_or_else(empty)),
                ]);
                live.publish(
                    &key,
                    LiveEvent::ToolUpdate(ToolUpdate { partial_result, ..update.clone() }),
                );
            }),
            traceparent: run.and_then(|run| run.traceparent.clone()),
            knowledge: self.knowledge().clone(),
            plugin_state: None,
        })
    }

    /// Stores the result of a finished tool that could not be committed. It becomes a `late-result`
    /// inbox item (invariant 3).
    pub async fn store_late_result(&self, input: &Input, response: &Entry) {
        let Input::ToolCallReturned { index, result } = input else { return };
        let call = CallRef { response_seq: response.base.seq, index: *index };
        let Some(tool_call) = response
            .body
            .message()
            .and_then(Message::as_assistant)
            .and_then(|response| response.tool_calls().nth(*index))
        else {
            return;
        };
        LateResultWriter::new(self.services, &self.state, call, tool_call).store(result).await;
        enqueue_nudge(self.services, queue::TURNS, &self.nudge(), std::time::Duration::ZERO).await;
    }
}

/// Sends one attempt of a call. Its hooks run within its work.
fn start_attempt<'w>(
    attempt: CallAttempt,
    call_span: Arc<ToolCallSpan<'w>>,
    finished: CancellationToken,
    outcome_context: OutcomeContext<'w>,
    hooks: Option<ResultHooks<'w>>,
) -> CallInFlight<'w> {
    let (index, effect) = (outcome_context.index, attempt.tool.definition().effect);
    let raw = RawOutcome::default();
    let (work_span, work_raw) = (Arc::clone(&call_span), Arc::clone(&raw));
    let work = async move {
        let CallAttempt { tool, arguments, context, read_access } = attempt;
        let outcome = {
            // Progress that another task of the tool reports after the end is dropped.
            let _over = finished.drop_guard();
            let attempted = call_attempt::attempt_call(&*tool, arguments, context, read_access);
            work_span.span.run(Box::pin(attempted)).await
        };
        work_span.end(Ok(&outcome));
        let is_unknown = matches!(outcome, ToolOutcome::Unknown { .. });
        let Some(hooks) = hooks.filter(|_| !is_unknown) else {
            return vec![outcome_context.to_input(outcome)];
        };
        let raw = work_raw.get_or_init(|| outcome_context.to_input(outcome.clone()));
        let outcome = Box::pin(hooks.apply(outcome, raw)).await;
        [outcome_context.to_input(outcome)].into_iter().chain(hooks.take_actions()).collect()
    };
    CallInFlight { index, call_span: Some(call_span), effect, work: Box::pin(work), raw }
}

/// The workspace files after the earlier calls, including buffered results.
fn workspace_before(
    path: &[Arc<Entry>],
    buffered: &[Arc<Entry>],
    index: usize,
) -> BTreeMap<String, WorkspaceFile> {
    let mut files = workspace::collect_files(path);
    let mut buffered: Vec<&ToolReturned> = buffered
        .iter()
        .filter_map(|entry| {
            let EntryBody::ToolReturned(returned) = &entry.body else { return None };
            Some(returned)
        })
        .filter(|returned| returned.call.index < index)
        .collect();
    buffered.sort_by_key(|returned| returned.call.index);
    for returned in buffered {
        workspace::apply_result(&mut files, &returned.message);
    }
    files
}

/// Prefix of each tool failure's text; empty except in the prompt loop (VA-05).
fn failure_prefix(loop_kind: LoopKind, tool: &str) -> String {
    match loop_kind {
        LoopKind::Prompt => format!("Error in tool \"{tool}\": "),
        LoopKind::Agent | LoopKind::Protocol => String::new(),
    }
}

/// The text of a tool failure in that loop. Invalid JSON arguments have a text of their own.
pub(crate) fn failure_text(loop_kind: LoopKind, tool: &str, text: String) -> String {
    if text.starts_with(INVALID_JSON) {
        return text;
    }
    failure_prefix(loop_kind, tool) + &text
}

fn prepend_text(content: &mut Vec<Block>, prefix: &str) {
    let first = content.iter_mut().find_map(|block| match block {
        Block::Text(text) => Some(&mut text.text),
        Block::Thinking(_)
        | Block::ToolCall(_)
        | Block::Image(_)
        | Block::File(_)
        | Block::Other(_) => None,
    });
    match first {
        Some(text) => text.insert_str(0, prefix),
        None if prefix.is_empty() => {}
        None => content.insert(0, Block::text(prefix.trim_end())),
    }
}

fn call_result(result: ToolResult) -> CallResult {
    let empty_details = || result.is_error.then(|| RawJson::from_value(&serde_json::Map::new()));
    CallResult {
        details: result.details.or_else(empty_details),
        content: result.content,
        structured: result.structured,
        usage: result.usage.map(Box::new),
        is_error: result.is_error,
        rejected: None,
        terminate: result.terminate,
        outputs: result.outputs,
        workspace: result.workspace,
        state: None,
    }
}
