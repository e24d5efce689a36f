//! The log of tool calls: counts each call by its effect id, for real tools and stubs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde_json::json;

use crate::agent::content::joined_text;
use crate::agent::request::Effect;
use crate::agents::Agent;
use crate::tools::{
    Arguments, Ask, RunTool, ToolContext, ToolDefinition, ToolOutcome, ToolResult, sha256_hex,
};

const LATE: &str = "timed out";

#[derive(Debug, Default)]
pub(super) struct Ledger {
    done: Mutex<BTreeMap<String, (String, u32)>>,
    heard: Mutex<Heard>,
    /// True if the next call's response arrives too late.
    is_next_late: AtomicBool,
}

impl Ledger {
    /// Number of calls by effect id.
    pub(super) fn done(&self) -> BTreeMap<String, u32> {
        self.lock().iter().map(|(effect, (_, times))| (effect.clone(), *times)).collect()
    }

    /// Number of calls by tool.
    pub(super) fn called(&self) -> BTreeMap<String, u32> {
        let mut called = BTreeMap::new();
        for (tool, times) in self.lock().values() {
            *called.entry(tool.clone()).or_default() += times;
        }
        called
    }

    pub(super) fn has(&self, effect: &str) -> bool {
        self.lock().contains_key(effect)
    }

    /// The next call runs, and its response is lost.
    pub(super) fn make_next_late(&self) {
        self.is_next_late.store(true, Ordering::SeqCst);
    }

    fn note(&self, effect: &str, tool: &str) {
        self.lock().entry(effect.to_owned()).or_insert_with(|| (tool.to_owned(), 0)).1 += 1;
    }

    /// Tools that were called and never succeeded.
    pub(super) fn failed(&self) -> Vec<String> {
        let succeeded = self.heard().succeeded.clone();
        self.called().into_keys().filter(|tool| !succeeded.contains(tool)).collect()
    }

    /// Tools that are declared idempotent and returned another result for the same call, with the
    /// number of times.
    pub(super) fn otherwise(&self) -> BTreeMap<String, u32> {
        self.heard().otherwise.clone()
    }

    fn hear(&self, effect_id: &str, definition: &ToolDefinition, outcome: &ToolOutcome) {
        let ToolOutcome::Returned(result) = outcome else { return };
        if result.is_error {
            return;
        }
        let mut heard = self.heard();
        heard.succeeded.insert(definition.name.clone());
        if definition.effect != Effect::Idempotent {
            return;
        }
        let answer = sha256_hex(joined_text(&result.content).as_bytes());
        match heard.first.get(effect_id) {
            Some(first) if *first != answer => {
                *heard.otherwise.entry(definition.name.clone()).or_default() += 1;
            }
            Some(_) => {}
            None => {
                heard.first.insert(effect_id.to_owned(), answer);
            }
        }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (String, u32)>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Results of real tools.
#[derive(Debug, Default)]
struct Heard {
    /// Hash of the first result by effect id, for tools that are declared idempotent.
    first: BTreeMap<String, String>,
    /// How often a tool returned another result for the same call.
    otherwise: BTreeMap<String, u32>,
    succeeded: BTreeSet<String>,
}

/// Returns the agent with tools whose calls are counted. Tools that `is_stub` selects only return a
/// result.
pub(super) fn counted(
    agent: &Agent,
    ledger: &Arc<Ledger>,
    is_stub: impl Fn(&str) -> bool,
) -> Agent {
    let tools = agent.tools.iter().map(|tool| -> Arc<dyn RunTool> {
        Arc::new(Counted {
            inner: Arc::clone(tool),
            is_stub: is_stub(&tool.definition().name),
            ledger: Arc::clone(ledger),
        })
    });
    Agent {
        name: agent.name.clone(),
        description: agent.description.clone(),
        settings: agent.settings.clone(),
        instructions: agent.instructions.clone(),
        tools: tools.collect(),
        response_schema: agent.response_schema.clone(),
        revision: agent.revision.clone(),
        session_id: agent.session_id.clone(),
    }
}

#[derive(Debug)]
struct Counted {
    inner: Arc<dyn RunTool>,
    is_stub: bool,
    ledger: Arc<Ledger>,
}

#[async_trait]
impl RunTool for Counted {
    fn definition(&self) -> &ToolDefinition {
        self.inner.definition()
    }

    fn ask(&self, arguments: &Arguments) -> Option<Ask> {
        self.inner.ask(arguments)
    }

    fn changes_workspace(&self) -> bool {
        self.inner.changes_workspace()
    }

    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome {
        let name = &self.definition().name;
        // Counted first: a call that is polled at all counts as sent.
        self.ledger.note(context.effect_id.as_str(), name);
        let is_late = self.ledger.is_next_late.swap(false, Ordering::SeqCst);
        let effect_id = context.effect_id.clone();
        let outcome = if self.is_stub {
            let answer = json!({"ok": true, "tool": name, "arguments": arguments.value});
            ToolOutcome::Returned(ToolResult::json(&answer))
        } else {
            self.inner.call(arguments, context).await
        };
        self.ledger.hear(effect_id.as_str(), self.definition(), &outcome);
        // The result of a time-out, without its wait.
        if is_late { ToolOutcome::Unknown { reason: LATE.to_owned() } } else { outcome }
    }
}
