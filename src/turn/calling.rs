//! Performing a tool call: the gate before it, the run under a renewed claim, and the commit of its result.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agent::content::ToolCall;
use crate::agent::draft::Draft;
use crate::agent::entry::{CallRef, Entry};
use crate::agent::inbox::{Admission, InboxBody, InboxItem, LateResult};
use crate::agent::message::{Message, ToolResultMessage, WorkspaceFile};
use crate::agent::path::path;
use crate::agent::phase::{CallStatus, Phase};
use crate::agent::raw::{Extra, RawJson};
use crate::agent::settings::{LoopKind, Settings};
use crate::agent::step::{Asked, CallResult, Gate, Input, Start};
use crate::agents::Agent;
use crate::artifacts::Shelf;
use crate::clock::Timestamp;
use crate::extensions::CallAhead;
use crate::ids::{EffectId, InputId};
use crate::live::{LiveEvent, ToolUpdate};
use crate::queue;
use crate::store::{StoreError, Write};
use crate::tools::cap::ReadOn;
use crate::tools::{
    Arguments, RunTool, ToolContext, ToolOutcome, ToolResult, run, sha256_hex, validate,
};
use crate::turn::commit::ring;
use crate::turn::delivery::{CLAIM, Hold, OUTCOME_EXPIRES, RENEWAL, SEND_MARGIN, TurnError};
use crate::turn::{Nudge, record};

impl Hold<'_> {
    /// Looks at every ready call that the inputs lead to, until one runs, waits, or none is left.
    pub(super) async fn prepare(&mut self, inputs: &mut Vec<Input>) -> Result<(), TurnError> {
        loop {
            let draft = self.try_out(inputs);
            let Some((index, CallStatus::Ready)) = draft.next_call() else { return Ok(()) };
            let Some(gate) = self.gate(&draft, index).await else {
                // It stays ready: the next turn, which has its whole time, starts it.
                return Ok(());
            };
            inputs.push(Input::Prepared { index, gate });
        }
    }

    /// `None`: its time-out no longer fits this turn.
    async fn gate(&self, draft: &Draft, index: usize) -> Option<Gate> {
        let Some(call) = draft.open_answer().and_then(|answer| answer.tool_calls().nth(index))
        else {
            return Some(Gate::Refused { text: "This call is not in the record.".to_owned() });
        };
        let settings = self.settings();
        let agent = self.world.agents.find(Some(&self.head.agent));
        let tool = agent.as_ref().ok().and_then(|agent| active_tool(agent, &settings, &call.name));
        let Some(tool) = tool else {
            let was_approved = draft.calls().get(index).is_some_and(|call| call.approved.is_some());
            let agent = agent.ok().map(|agent| &**agent);
            return Some(Gate::Refused {
                text: no_tool(&call.name, agent, &settings, was_approved),
            });
        };
        let arguments = match validate::validate(tool.definition(), &call.arguments) {
            Ok(arguments) => arguments,
            Err(text) => return Some(Gate::Refused { text }),
        };
        let ahead = CallAhead {
            conversation: &self.key,
            tool_call_id: &call.id,
            tool_name: &call.name,
            arguments: &arguments,
        };
        for extension in &self.world.extensions {
            if let Some(block) = extension.before_tool_call(&ahead).await {
                let text = block.reason.unwrap_or_else(|| "Tool execution was blocked".to_owned());
                return Some(Gate::Refused { text });
            }
        }
        let ask = tool.ask(&arguments);
        let timeout = tool.definition().timeout;
        let left = self.turn_ends.saturating_sub(self.world.clock.monotonic());
        // A call that will wait for a person starts in another turn, so its time-out is no matter here.
        if ask.is_none() && timeout + SEND_MARGIN > left {
            return None;
        }
        Some(Gate::Open(Box::new(Start {
            effect: tool.definition().effect,
            on_unknown: tool.definition().on_unknown,
            until: draft.now.plus(timeout),
            binding: binding(tool.as_ref(), call),
            fingerprint: fingerprint(call),
            ask: ask.map(|ask| Asked {
                reason: ask.reason,
                approvers: ask.approvers,
                not_requester: ask.not_requester,
                expires_at: draft.now.plus(ask.expires_after),
            }),
        })))
    }

    /// Runs a started call and commits its result, with the intent of the next.
    pub(super) async fn call(&mut self, index: usize) -> Result<(), TurnError> {
        let outcome = self.run_call(index).await?;
        self.world.probe.reached("tool.after").await;
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
        let mut inputs = vec![input.clone()];
        self.prepare(&mut inputs).await?;
        let answer = self.answer.clone();
        let committed = self.commit("result", &inputs, &[]).await;
        if let Err(TurnError::ClaimLost { .. }) = &committed {
            self.keep_late(&input, answer).await;
        }
        committed
    }

    async fn run_call(&mut self, index: usize) -> Result<ToolOutcome, TurnError> {
        let world = self.world;
        let lost = |text: &str| ToolOutcome::Failed(text.to_owned());
        let draft = self.try_out(&[]);
        let Some(call) =
            draft.open_answer().and_then(|answer| answer.tool_calls().nth(index)).cloned()
        else {
            return Ok(lost("This call is not in the record."));
        };
        let Some(CallStatus::Started { effect_id, until, .. }) =
            draft.calls().get(index).map(|call| call.status.clone())
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
        self.check_claim(tool.as_ref()).await?;
        let attempt = draft.calls().get(index).map_or(1, |call| call.attempts);
        let context = self.context(&call, effect_id, attempt, until).await?;
        world.probe.reached("tool.before").await;
        let read_on = self.read_on(&settings);
        self.attend(&*tool, (arguments, read_on), context).await
    }

    /// Just before sending: 20 s of the claim must remain on both clocks (invariant 6).
    async fn check_claim(&mut self, _tool: &dyn RunTool) -> Result<(), TurnError> {
        let wall = self.world.clock.now().until(self.until);
        let monotonic = self.until_monotonic.saturating_sub(self.world.clock.monotonic());
        if wall.min(monotonic) < SEND_MARGIN || wall > CLAIM {
            self.renew().await?;
        }
        Ok(())
    }

    async fn context(
        &self,
        call: &ToolCall,
        effect_id: EffectId,
        attempt: u32,
        deadline: Timestamp,
    ) -> Result<ToolContext, TurnError> {
        let entries = self.entries().await?;
        let path = path(&entries, self.head.leaf_id.as_ref());
        let run = self.head.prompt.as_ref();
        let update = ToolUpdate {
            prompt_id: self
                .try_out(&[])
                .prompt_id()
                .unwrap_or_else(|| crate::ids::PromptId::new("")),
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
            deadline,
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

    /// Runs the tool while the claim is renewed; a lost claim cancels it.
    async fn attend(
        &mut self,
        tool: &dyn RunTool,
        (arguments, read_on): (Arguments, ReadOn),
        context: ToolContext,
    ) -> Result<ToolOutcome, TurnError> {
        let mut running = std::pin::pin!(run::run(tool, arguments, context, read_on));
        loop {
            tokio::select! {
                outcome = &mut running => return Ok(outcome),
                () = tokio::time::sleep(RENEWAL) => self.renew_or_stop().await?,
            }
        }
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
        let name = self
            .try_out(&[])
            .open_answer()
            .and_then(|answer| answer.tool_calls().nth(index).map(|call| call.name.clone()));
        match self.settings().loop_kind.unwrap_or_default() {
            LoopKind::Prompt => format!("Error in tool \"{}\": {text}", name.unwrap_or_default()),
            LoopKind::Agent | LoopKind::Protocol => text.to_owned(),
        }
    }

    /// The claim was lost while a tool ran: its outcome is known all the same, and goes in by the inbox (invariant 3).
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
            body: InboxBody::LateResult(late),
        };
        let write = Write::Create(record::inbox_document(&self.key, &item, Some(now)));
        match self.world.store.write(&self.partition, vec![write]).await {
            Ok(_) | Err(StoreError::Conflict) => {}
            Err(error) => {
                tracing::warn!(conversation.id = %self.key.conversation_id, error = %error, "a late result of {} was not kept", self.key);
            }
        }
        ring(
            self.world,
            queue::TURNS,
            &Nudge { key: self.key.clone(), traceparent: None },
            std::time::Duration::ZERO,
        )
        .await;
    }
}

fn active_tool(agent: &Agent, settings: &Settings, name: &str) -> Option<Arc<dyn RunTool>> {
    let is_active =
        settings.active_tools.as_ref().is_none_or(|active| active.iter().any(|tool| tool == name));
    agent.tool(name).filter(|_| is_active).cloned()
}

/// The sources' loops word it differently; a tool that a person had approved is told apart.
fn no_tool(name: &str, agent: Option<&Agent>, settings: &Settings, was_approved: bool) -> String {
    if was_approved {
        return format!("Tool \"{name}\" no longer available");
    }
    match settings.loop_kind.unwrap_or_default() {
        LoopKind::Agent => format!("Tool {name} not found"),
        LoopKind::Protocol => format!("Tool '{name}' not registered"),
        LoopKind::Prompt => {
            let names: Vec<&str> = agent
                .map(|agent| {
                    agent.tools.iter().map(|tool| tool.definition().name.as_str()).collect()
                })
                .unwrap_or_default();
            format!("Tool \"{name}\" not found. Available tools: {}", names.join(", "))
        }
    }
}

/// What an approval is good for: this tool as it is now, with these arguments.
fn binding(tool: &dyn RunTool, call: &ToolCall) -> String {
    sha256_hex(
        format!("{}\n{}\n{}", call.name, tool.definition().revision, canonical(&call.arguments))
            .as_bytes(),
    )
}

fn fingerprint(call: &ToolCall) -> String {
    sha256_hex(format!("{}\n{}", call.name, canonical(&call.arguments)).as_bytes())
}

/// Members sorted, so that equal arguments have equal texts.
fn canonical(arguments: &RawJson) -> String {
    let mut value = arguments.value();
    value.sort_all_objects();
    value.to_string()
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
