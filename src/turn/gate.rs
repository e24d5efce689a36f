//! Preflight of tool calls: checks the tool, its arguments, extensions, approval and the remaining
//! time before a call starts.

use std::sync::Arc;
use std::time::Duration;

use crate::agent::content::ToolCall;
use crate::agent::draft::Draft;
use crate::agent::raw::RawJson;
use crate::agent::request::Effect;
use crate::agent::settings::{LoopKind, Settings};
use crate::agent::step::{Asked, Gate, Input, Start, gives_way};
use crate::agents::Agent;
use crate::extensions::{CallAhead, Hook};
use crate::store::BATCH_OPERATIONS_MAX;
use crate::tools::{Arguments, RunTool, sha256_hex, validate};
use crate::turn::calling::failure_text;
use crate::turn::claiming::SEND_MARGIN;
use crate::turn::delivery::TurnError;
use crate::turn::hold::Hold;
use crate::turn::tried::Tried;

/// Above this number of operations no further call is checked in the same commit, so that the end
/// of turn and prompt still fit.
const PREPARED_OPERATIONS: usize = BATCH_OPERATIONS_MAX - 10;

/// Result text of a call that an extension blocks without a reason (EX-04). Also the prefix of a
/// failed hook's reason.
const BLOCKED: &str = "Tool execution was blocked";

/// A call whose tool exists and whose arguments are valid.
struct Runnable {
    tool: Arc<dyn RunTool>,
    arguments: Arguments,
}

/// Outcome of the check of a ready call.
enum Found {
    Gate(Gate),
    /// The call stays ready for the next turn.
    Left,
    /// The call stays ready until this pause is lifted.
    Braked(String),
}

impl Hold<'_> {
    /// Checks the ready calls in source order, until the concurrency limit is reached, none is
    /// left, or the commit is full.
    ///
    /// # Errors
    /// The lease was lost while a hook ran: discard the work.
    pub(super) async fn prepare(&mut self, tried: &mut Tried) -> Result<(), TurnError> {
        let (mut passed_over, mut braked, mut is_left) = (None, None, false);
        while tried.draft().operations() < PREPARED_OPERATIONS {
            let draft = tried.draft();
            let Some(index) = draft.batch().next(passed_over) else { break };
            let found =
                if gives_way(draft, index) { Found::Left } else { self.gate(draft, index).await? };
            let gate = match found {
                Found::Gate(gate) => gate,
                // Without a decision the call stays ready: the next turn, which has its whole time,
                // starts it.
                Found::Left => {
                    (passed_over, is_left) = (Some(index), true);
                    continue;
                }
                Found::Braked(on) => {
                    (passed_over, braked) = (Some(index), braked.or(Some(on)));
                    continue;
                }
            };
            tried.add(Input::Prepared { index, gate });
        }
        let draft = tried.draft();
        let goes_on =
            is_left || draft.batch().is_performing() || draft.operations() >= PREPARED_OPERATIONS;
        if let Some(on) = braked.filter(|_| !goes_on) {
            tried.add(self.braked(&on));
        }
        Ok(())
    }

    async fn gate(&mut self, draft: &Draft, index: usize) -> Result<Found, TurnError> {
        let Some(call) = draft.open_answer().and_then(|answer| answer.tool_calls().nth(index))
        else {
            return Ok(Found::Gate(refused("This call is not in the record.")));
        };
        if let Some(on) = self.brake_of_call(&call.name) {
            return Ok(Found::Braked(on.to_owned()));
        }
        let ready = match self.runnable(draft, index, call) {
            Ok(ready) => ready,
            Err(gate) => return Ok(Found::Gate(gate)),
        };
        // The hooks of the remaining calls run in the next turn, which has its whole time.
        if self.turn_left().is_zero() && !self.world.extensions.is_empty() {
            return Ok(Found::Left);
        }
        if let Some(gate) = self.blocked(call, &ready.arguments).await? {
            return Ok(Found::Gate(gate));
        }
        Ok(self.open(draft, index, call, &ready).map_or(Found::Left, Found::Gate))
    }

    fn turn_left(&self) -> Duration {
        self.turn_ends.saturating_sub(self.world.clock.monotonic())
    }

    /// The tool and the checked arguments of a call that no earlier call blocks.
    fn runnable(&self, draft: &Draft, index: usize, call: &ToolCall) -> Result<Runnable, Gate> {
        let settings = self.settings();
        let agent = self.world.agents.find(Some(&self.head.agent));
        let tool = agent.as_ref().ok().and_then(|agent| active_tool(agent, &settings, &call.name));
        let Some(tool) = tool else {
            let was_approved = approved(draft, index).is_some();
            let agent = agent.as_deref().ok();
            return Err(refused(no_tool(&call.name, agent, &settings, was_approved)));
        };
        let loop_kind = settings.loop_kind.unwrap_or_default();
        let arguments = validate::validate(tool.definition(), &call.arguments)
            .map_err(|text| refused(failure_text(loop_kind, &call.name, text)))?;
        match self.before(draft, index, &*tool) {
            Some(earlier) => Err(Gate::Behind { earlier }),
            None => Ok(Runnable { tool, arguments }),
        }
    }

    /// The rejection by the first extension that blocks the call or fails.
    async fn blocked(
        &mut self,
        call: &ToolCall,
        arguments: &Arguments,
    ) -> Result<Option<Gate>, TurnError> {
        let (world, conversation) = (self.world, self.key.clone());
        let ahead = CallAhead {
            conversation: &conversation,
            tool_call_id: &call.id,
            tool_name: &call.name,
            arguments,
        };
        for extension in &world.extensions {
            // The hook is called inside the future, so that a panic before its first await is
            // caught too.
            let work = async { extension.before_tool_call(&ahead).await };
            match self.run_hook(&**extension, Hook::BeforeToolCall, work).await? {
                Ok(None) => {}
                Ok(Some(block)) => {
                    let text = block.reason.unwrap_or_else(|| BLOCKED.to_owned());
                    return Ok(Some(Gate::Refused { text, terminate: block.terminate }));
                }
                Err(failure) => return Ok(Some(refused(format!("{BLOCKED}: {failure}")))),
            }
        }
        Ok(None)
    }

    /// Returns `None` if the tool's time-out no longer fits this turn.
    fn open(&self, draft: &Draft, index: usize, call: &ToolCall, ready: &Runnable) -> Option<Gate> {
        let Runnable { tool, arguments } = ready;
        let timeout = tool.definition().timeout;
        if timeout + SEND_MARGIN > self.world.limits.turn {
            // Deferring it would defer it for ever.
            return Some(refused(format!(
                "The time-out of tool \"{}\", {} s, is longer than a turn here can be ({} s), so it was not started.",
                call.name,
                timeout.as_secs(),
                self.world.limits.turn.as_secs()
            )));
        }
        let binding = binding(tool.as_ref(), call);
        let ask = tool.ask(arguments).filter(|_| approved(draft, index) != Some(&binding));
        // A call that waits for an approval starts in another turn, so its time-out does not matter
        // here.
        if ask.is_none() && timeout + SEND_MARGIN > self.turn_left() {
            return None;
        }
        Some(Gate::Open(Box::new(Start {
            effect: tool.definition().effect,
            on_unknown: tool.definition().on_unknown,
            until: draft.now.plus(timeout),
            binding,
            fingerprint: fingerprint(call),
            ask: ask.map(|ask| Asked {
                reason: ask.reason,
                approvers: ask.approvers,
                not_requester: ask.not_requester,
                expires_at: draft.now.plus(ask.expires_after),
            }),
        })))
    }

    /// Index of the latest earlier call that must finish first, even in parallel mode. Either both
    /// calls modify workspace files, or both are the same `write` with equal arguments. The model
    /// may have requested the second write by mistake; it is rejected if the first one's outcome
    /// stays unknown.
    fn before(&self, draft: &Draft, index: usize, tool: &dyn RunTool) -> Option<usize> {
        let calls: Vec<&ToolCall> = draft.open_answer()?.tool_calls().take(index + 1).collect();
        let (call, earlier) = calls.split_last()?;
        let settings = self.settings();
        let agent = self.world.agents.find(Some(&self.head.agent)).ok()?;
        let is_before = |other: &ToolCall| {
            let changes_files = || {
                active_tool(&agent, &settings, &other.name)
                    .is_some_and(|other| other.changes_workspace())
            };
            let is_same = || {
                other.name == call.name && canonical(&other.arguments) == canonical(&call.arguments)
            };
            (tool.changes_workspace() && changes_files())
                || (tool.definition().effect == Effect::Write && is_same())
        };
        earlier.iter().enumerate().rev().find_map(|(index, other)| {
            let is_open = draft.calls().get(index).is_some_and(|call| !call.is_done());
            (is_open && is_before(other)).then_some(index)
        })
    }
}

/// The binding that the call was approved for.
fn approved(draft: &Draft, index: usize) -> Option<&String> {
    draft.calls().get(index).and_then(|call| call.approved.as_ref())
}

fn refused(text: impl Into<String>) -> Gate {
    Gate::Refused { text: text.into(), terminate: false }
}

pub(super) fn active_tool(
    agent: &Agent,
    settings: &Settings,
    name: &str,
) -> Option<Arc<dyn RunTool>> {
    let is_active =
        settings.active_tools.as_ref().is_none_or(|active| active.iter().any(|tool| tool == name));
    agent.tool(name).filter(|_| is_active).cloned()
}

/// The texts of the sources' loops. A tool that an approver had allowed has its own text.
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

/// Identifies what an approval covers: this tool in its current revision, with these arguments.
fn binding(tool: &dyn RunTool, call: &ToolCall) -> String {
    sha256_hex(
        format!("{}\n{}\n{}", call.name, tool.definition().revision, canonical(&call.arguments))
            .as_bytes(),
    )
}

fn fingerprint(call: &ToolCall) -> String {
    sha256_hex(format!("{}\n{}", call.name, canonical(&call.arguments)).as_bytes())
}

/// JSON with sorted members, so that equal arguments have equal texts.
fn canonical(arguments: &RawJson) -> String {
    let mut value = arguments.value();
    value.sort_all_objects();
    value.to_string()
}
