//! Performing a tool call: the run under a renewed claim, and the commit of its result.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agent::content::ToolCall;
use crate::agent::entry::{CallRef, Entry};
use crate::agent::inbox::{Admission, InboxBody, InboxItem, LateResult};
use crate::agent::message::{Message, ToolResultMessage, WorkspaceFile};
use crate::agent::path::path;
use crate::agent::phase::{CallStatus, Phase};
use crate::agent::raw::{Extra, RawJson};
use crate::agent::settings::{LoopKind, Settings};
use crate::agent::step::{CallResult, Input};
use crate::artifacts::Shelf;
use crate::ids::{EffectId, InputId};
use crate::live::{LiveEvent, ToolUpdate};
use crate::queue;
use crate::store::{StoreError, Write};
use crate::telemetry::trace;
use crate::tools::cap::ReadOn;
use crate::tools::{ToolContext, ToolOutcome, ToolResult, run, validate};
use crate::turn::commit::ring;
use crate::turn::delivery::{OUTCOME_EXPIRES, TurnError};
use crate::turn::gate::active_tool;
use crate::turn::hold::Hold;
use crate::turn::record;
use crate::turn::spans::Calling;

impl Hold<'_> {
    /// Runs a started call and commits its result, with the intent of the next.
    pub(super) async fn call(&mut self, index: usize) -> Result<(), TurnError> {
        let outcome = self.run_call(index).await?;
        self.world.probe.reached("tool.after").await;
        self.has_run_tools = true;
        let input = match outcome {
            ToolOutcome::Returned(result) => {
                Input::Returned { index, result: Box::new(recorded(result)) }
            }
            ToolOutcome::Failed(text) => {
                let text = self.failure_text(index, &text);
                Input::Returned { index, result: Box::new(CallResult::error(text)) }
            }
            ToolOutcome::Unknown { reason } => {
                let expires_at = self.world.clock.now().plus(OUTCOME_EXPIRES);
                Input::OutcomeUnknown { index, reason, expires_at }
            }
        };
        let answer = self.answer.clone();
        let committed = self.commit_done("result", input.clone()).await;
        if committed.is_err() {
            self.keep_late(&input, answer).await;
        }
        committed
    }

    async fn run_call(&mut self, index: usize) -> Result<ToolOutcome, TurnError> {
        let world = self.world;
        let lost = |text: &str| ToolOutcome::Failed(text.to_owned());
        let Some(call) = self.open_call(index).cloned() else {
            return Ok(lost("This call is not in the record."));
        };
        let Phase::Calls { calls, .. } = &self.head.phase else {
            return Ok(lost("This call was not started."));
        };
        let Some((CallStatus::Started { effect_id, .. }, attempt)) =
            calls.get(index).map(|call| (call.status.clone(), call.attempts))
        else {
            return Ok(lost("This call was not started."));
        };
        let settings = self.settings();
        let Some(tool) = world
            .agents
            .find(Some(&self.head.agent))
            .ok()
            .and_then(|agent| active_tool(agent, &settings, &call.name))
        else {
            return Ok(lost(&format!("Tool \"{}\" no longer available", call.name)));
        };
        let arguments = match validate::validate(tool.definition(), &call.arguments) {
            Ok(arguments) => arguments,
            Err(text) => return Ok(ToolOutcome::Failed(text)),
        };
        let calling = Calling::begin(self, &call, &arguments, (&effect_id, attempt));
        let context = self.context(&call, effect_id, attempt).await?;
        self.check_claim().await?;
        // Counted from now: the commit of the intent may have taken its time, and the tool gets all of its own.
        let deadline = world.clock.now().plus(tool.definition().timeout);
        let traceparent = calling.span.traceparent().or(context.traceparent);
        let context = ToolContext { deadline, traceparent, ..context };
        world.probe.reached("tool.before").await;
        let read_on = self.read_on(&settings);
        // While the claim is kept; a lost one cancels the call.
        let running = async {
            tokio::select! {
                biased;
                outcome = run::run(&*tool, arguments, context, read_on) => Ok(outcome),
                error = self.keep() => Err(error),
            }
        };
        let outcome = calling.span.run(Box::pin(running)).await;
        calling.end(outcome.as_ref());
        outcome
    }

    async fn context(
        &self,
        call: &ToolCall,
        effect_id: EffectId,
        attempt: u32,
    ) -> Result<ToolContext, TurnError> {
        let entries = self.entries().await?;
        let path = path(&entries, self.head.leaf_id.as_ref());
        let run = self.head.prompt.as_ref();
        let update = ToolUpdate {
            epoch: self.epoch,
            prompt_id: self.prompt_id().unwrap_or_else(|| crate::ids::PromptId::new("")),
            turn: self.head.turn,
            tool_call_id: call.id.clone(),
            tool_name: call.name.clone(),
            args: call.arguments.clone(),
            partial_result: RawJson::of(&()),
        };
        let (live, key) = (Arc::clone(&self.world.live), self.key.clone());
        Ok(ToolContext {
            effect_id,
            attempt,
            tool_call_id: call.id.clone(),
            shelf: Shelf { key: self.key.clone(), incarnation: self.head.incarnation.clone() },
            artifacts: Arc::clone(&self.world.artifacts),
            clock: Arc::clone(&self.world.clock),
            workspace: Arc::new(workspace(&path)),
            deadline: self.until,
            progress: Arc::new(move |partial: &ToolResult| {
                let partial_result = RawJson::of(&serde_json::json!({
                    "content": partial.content,
                    "details": partial.details.clone().unwrap_or_else(|| RawJson::of(&serde_json::json!({}))),
                }));
                live.publish(
                    &key,
                    LiveEvent::ToolUpdate(ToolUpdate { partial_result, ..update.clone() }),
                );
            }),
            traceparent: run.and_then(|run| run.traceparent.clone()),
        })
    }

    /// Whether the model can read on in what was cut.
    fn read_on(&self, settings: &Settings) -> ReadOn {
        let agent = self.world.agents.find(Some(&self.head.agent)).ok();
        match agent.and_then(|agent| active_tool(agent, settings, "read")) {
            Some(_) => ReadOn::WithRead,
            None => ReadOn::WithNothing,
        }
    }

    /// The sources' loops word a tool's own failure differently.
    fn failure_text(&self, index: usize, text: &str) -> String {
        let name = self.open_call(index).map(|call| call.name.as_str());
        match self.settings().loop_kind.unwrap_or_default() {
            LoopKind::Prompt => format!("Error in tool \"{}\": {text}", name.unwrap_or_default()),
            LoopKind::Agent | LoopKind::Protocol => text.to_owned(),
        }
    }

    /// The result of a finished tool could not be committed: it is known all the same, and goes in by the inbox (invariant 3).
    async fn keep_late(&self, input: &Input, answer: Option<Arc<Entry>>) {
        let Input::Returned { index, result } = input else { return };
        let Phase::Calls { answer: answer_seq, .. } = &self.head.phase else { return };
        let Some(call) = answer
            .as_ref()
            .and_then(|entry| entry.body.message()?.as_assistant())
            .and_then(|answer| answer.tool_calls().nth(*index))
        else {
            return;
        };
        let now = self.world.clock.now();
        let effect = EffectId::of_call(
            &self.key.conversation_id,
            &self.head.incarnation,
            *answer_seq,
            *index,
        );
        let message = ToolResultMessage {
            tool_call_id: call.id.clone(),
            tool_name: call.name.clone(),
            content: result.content.clone(),
            details: result.details.clone(),
            structured_content: result.structured.clone(),
            is_error: result.is_error,
            timestamp: now,
            workspace: result.workspace.clone(),
            extra: Extra::new(),
        };
        let late = LateResult {
            call: CallRef { answer: *answer_seq, index: *index },
            message,
            outputs: result.outputs.clone(),
        };
        let item = InboxItem {
            input_id: InputId::new(format!("late-{effect}")),
            accepted_at: now,
            admission: Admission::default(),
            traceparent: trace::traceparent(),
            body: InboxBody::LateResult(late),
        };
        let write = Write::Create(record::inbox_document(&item, Some(now)));
        match self.world.store.write(&self.partition, vec![write]).await {
            Ok(_) | Err(StoreError::Conflict) => {}
            Err(error) => {
                tracing::warn!(conversation.id = %self.key.conversation_id, error = %error, "a late result of {} was not kept", self.key);
            }
        }
        ring(self.world, queue::TURNS, &self.nudge(), std::time::Duration::ZERO).await;
    }
}

/// The workspace as the path leaves it: what results changed, in order.
pub(super) fn workspace(path: &[Arc<Entry>]) -> BTreeMap<String, WorkspaceFile> {
    let mut files = BTreeMap::new();
    for entry in path {
        let Some(Message::ToolResult(result)) = entry.body.message() else { continue };
        for (path, file) in &result.workspace {
            match file {
                Some(file) => files.insert(path.clone(), file.clone()),
                None => files.remove(path),
            };
        }
    }
    files
}

fn recorded(result: ToolResult) -> CallResult {
    CallResult {
        content: result.content,
        details: result.details,
        structured: result.structured,
        is_error: result.is_error,
        outputs: result.outputs,
        workspace: result.workspace,
    }
}
