//! One tool call: sent, converted into an input of the state machine, and stored if its result
//! could not be committed.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::agent::content::{Block, ToolCall};
use crate::agent::entry::{CallRef, Entry, EntryBody, ToolReturned};
use crate::agent::inbox::{Admission, InboxBody, InboxItem, LateResult};
use crate::agent::message::{Message, ToolResultMessage, WorkspaceFile};
use crate::agent::path::path;
use crate::agent::phase::CallStatus;
use crate::agent::raw::{Extra, RawJson};
use crate::agent::request::Effect;
use crate::agent::settings::{LoopKind, Settings};
use crate::agent::step::{CallResult, Input};
use crate::agent::workspace;
use crate::artifacts::Shelf;
use crate::ids::{EffectId, InputId};
use crate::live::{LiveEvent, ToolUpdate};
use crate::queue;
use crate::store::{StoreError, Write};
use crate::telemetry::trace;
use crate::tools::cap::ReadOn;
use crate::tools::validate::INVALID_JSON;
use crate::tools::{ToolContext, ToolOutcome, ToolResult, run, validate};
use crate::turn::commit::ring;
use crate::turn::delivery::{OUTCOME_EXPIRES, TurnError};
use crate::turn::gate::active_tool;
use crate::turn::hold::Hold;
use crate::turn::running::Running;
use crate::turn::spans::Calling;
use crate::turn::{World, record};

/// Context for converting a call's outcome into an input.
struct Ended<'w> {
    world: &'w World,
    index: usize,
    tool: String,
    loop_kind: LoopKind,
}

impl Ended<'_> {
    fn of(&self, outcome: ToolOutcome) -> Input {
        let index = self.index;
        match outcome {
            ToolOutcome::Returned(mut result) => {
                if result.is_error {
                    prefix_text(&mut result.content, &failure_prefix(self.loop_kind, &self.tool));
                }
                Input::Returned { index, result: Box::new(recorded(result)) }
            }
            ToolOutcome::Failed(text) => {
                let text = failure_text(self.loop_kind, &self.tool, text);
                Input::Returned { index, result: Box::new(CallResult::error(text)) }
            }
            ToolOutcome::Unknown { reason } => {
                let expires_at = self.world.clock.now().plus(OUTCOME_EXPIRES);
                Input::OutcomeUnknown { index, reason, expires_at }
            }
        }
    }
}

impl<'w> Hold<'w> {
    /// Sends a started call. Returns the remaining work, which borrows nothing from the
    /// conversation.
    pub(super) async fn send(
        &mut self,
        index: usize,
        stop: &CancellationToken,
    ) -> Result<Running<'w>, TurnError> {
        let world = self.world;
        let failed = |text: &str| {
            let ended = self.ended(index).of(ToolOutcome::Failed(text.to_owned()));
            let work = Box::pin(std::future::ready(ended));
            Ok(Running { index, calling: None, effect: Effect::Read, work })
        };
        let Some(call) = self.open_call(index).cloned() else {
            return failed("This call is not in the record.");
        };
        let Some((CallStatus::Started { effect_id, .. }, attempt)) = self
            .head
            .phase
            .batch()
            .calls
            .get(index)
            .map(|call| (call.status.clone(), call.attempts))
        else {
            return failed("This call was not started.");
        };
        let settings = self.settings();
        let Some(tool) = world
            .agents
            .find(Some(&self.head.agent))
            .ok()
            .and_then(|agent| active_tool(&agent, &settings, &call.name))
        else {
            return failed(&format!("Tool \"{}\" no longer available", call.name));
        };
        let arguments = match validate::validate(tool.definition(), &call.arguments) {
            Ok(arguments) => arguments,
            Err(text) => return failed(&text),
        };
        let calling = Arc::new(Calling::begin(self, &call, &arguments, (&effect_id, attempt)));
        let over = CancellationToken::new();
        let context = self.context(&call, index, (effect_id, attempt), over.clone()).await?;
        self.check_claim().await?;
        // Counts from now: the commit of the intent may have taken time, and the tool gets its
        // whole time-out.
        let deadline = world.clock.now().plus(tool.definition().timeout);
        let traceparent = calling.span.traceparent().or(context.traceparent);
        let stop = stop.clone();
        let context = ToolContext { deadline, stop, traceparent, ..context };
        world.probe.reached("tool.before").await;
        let read_on = self.read_on(&settings);
        let effect = tool.definition().effect;
        let (told, ended) = (Arc::clone(&calling), self.ended(index));
        let work = async move {
            // Progress that another task of the tool reports after the end is dropped.
            let _over = over.drop_guard();
            let outcome =
                told.span.run(Box::pin(run::run(&*tool, arguments, context, read_on))).await;
            told.end(Ok(&outcome));
            ended.of(outcome)
        };
        Ok(Running { index, calling: Some(calling), effect, work: Box::pin(work) })
    }

    fn ended(&self, index: usize) -> Ended<'w> {
        Ended {
            world: self.world,
            index,
            tool: self.open_call(index).map(|call| call.name.clone()).unwrap_or_default(),
            loop_kind: self.settings().loop_kind.unwrap_or_default(),
        }
    }

    async fn context(
        &self,
        call: &ToolCall,
        index: usize,
        (effect_id, attempt): (EffectId, u32),
        over: CancellationToken,
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
            workspace: Arc::new(self.workspace_before(&path, index)),
            deadline: self.until,
            stop: CancellationToken::new(),
            progress: Arc::new(move |partial: &ToolResult| {
                if over.is_cancelled() {
                    return;
                }
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
            schedules: Some(Arc::new(self.world.clone())),
        })
    }

    /// The workspace files after the earlier calls, including buffered results.
    fn workspace_before(
        &self,
        path: &[Arc<Entry>],
        index: usize,
    ) -> BTreeMap<String, WorkspaceFile> {
        let mut files = workspace::files(path);
        let mut kept: Vec<&ToolReturned> = self
            .kept
            .iter()
            .filter_map(|entry| {
                let EntryBody::ToolReturned(returned) = &entry.body else { return None };
                Some(returned)
            })
            .filter(|returned| returned.call.index < index)
            .collect();
        kept.sort_by_key(|returned| returned.call.index);
        for returned in kept {
            workspace::apply(&mut files, &returned.message);
        }
        files
    }

    /// Returns whether the model can read the rest of a truncated result.
    fn read_on(&self, settings: &Settings) -> ReadOn {
        let agent = self.world.agents.find(Some(&self.head.agent)).ok();
        match agent.and_then(|agent| active_tool(&agent, settings, "read")) {
            Some(_) => ReadOn::WithRead,
            None => ReadOn::WithNothing,
        }
    }

    /// Stores the result of a finished tool that could not be committed. It becomes a `late-result`
    /// inbox item (invariant 3).
    pub(super) async fn keep_late(&self, input: &Input, answer: &Entry) {
        let Input::Returned { index, result } = input else { return };
        let answer_seq = answer.base.seq;
        let Some(call) = answer
            .body
            .message()
            .and_then(Message::as_assistant)
            .and_then(|answer| answer.tool_calls().nth(*index))
        else {
            return;
        };
        let now = self.world.clock.now();
        let effect = EffectId::of_call(
            &self.key.conversation_id,
            &self.head.incarnation,
            answer_seq,
            *index,
        );
        let message = ToolResultMessage {
            tool_call_id: call.id.clone(),
            tool_name: call.name.clone(),
            content: result.content.clone(),
            details: result.details.clone(),
            structured_content: result.structured.clone(),
            usage: result.usage.clone(),
            is_error: result.is_error,
            terminate: result.terminate,
            rejected: None,
            timestamp: now,
            workspace: result.workspace.clone(),
            extra: Extra::new(),
        };
        let late = LateResult {
            call: CallRef { answer: answer_seq, index: *index },
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
                tracing::warn!(conversation.id = %self.key.conversation_id, error = %error, "late tool result not stored");
            }
        }
        ring(self.world, queue::TURNS, &self.nudge(), std::time::Duration::ZERO).await;
    }
}

/// Prefix of each tool failure's text; empty except in the prompt loop (VA-05).
fn failure_prefix(loop_kind: LoopKind, tool: &str) -> String {
    match loop_kind {
        LoopKind::Prompt => format!("Error in tool \"{tool}\": "),
        LoopKind::Agent | LoopKind::Protocol => String::new(),
    }
}

/// The text of a tool failure in that loop. Invalid JSON arguments have a text of their own.
pub(super) fn failure_text(loop_kind: LoopKind, tool: &str, text: String) -> String {
    if text.starts_with(INVALID_JSON) {
        return text;
    }
    failure_prefix(loop_kind, tool) + &text
}

fn prefix_text(content: &mut Vec<Block>, prefix: &str) {
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

fn recorded(result: ToolResult) -> CallResult {
    let none = || result.is_error.then(|| RawJson::of(&serde_json::Map::new()));
    CallResult {
        details: result.details.or_else(none),
        content: result.content,
        structured: result.structured,
        usage: result.usage.map(Box::new),
        is_error: result.is_error,
        rejected: None,
        terminate: result.terminate,
        outputs: result.outputs,
        workspace: result.workspace,
    }
}
