//! The log of tool calls: counts each call by its effect id, for real tools and stubs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde_json::{Value, json};

use turnwheel_agent_files::AgentDefinition;
use turnwheel_conversation::content::joined_text;
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::settings::Settings;
use turnwheel_platform::digest::sha256_hex;
use turnwheel_tools::destination::BoundDestination;
use turnwheel_tools::mcp::McpServer;
use turnwheel_tools::plugin_state::ToolPlugin;
use turnwheel_tools::{
    ApprovalRequirement, Arguments, CallableTool, CheckContext, ToolContext, ToolDefinition,
    ToolOutcome, ToolResult,
};

const TIMEOUT_REASON: &str = "timed out";

#[derive(Debug, Default)]
pub(super) struct CallLog {
    calls: Mutex<BTreeMap<String, (String, u32)>>,
    results: Mutex<ResultLog>,
    /// True if the next call's response arrives too late.
    is_next_late: AtomicBool,
}

impl CallLog {
    /// Number of calls by effect id.
    pub(super) fn calls_by_effect(&self) -> BTreeMap<String, u32> {
        self.lock_calls().iter().map(|(effect, (_, times))| (effect.clone(), *times)).collect()
    }

    /// Number of calls by tool.
    pub(super) fn calls_by_tool(&self) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        for (tool, times) in self.lock_calls().values() {
            *counts.entry(tool.clone()).or_default() += times;
        }
        counts
    }

    pub(super) fn has_call(&self, effect: &str) -> bool {
        self.lock_calls().contains_key(effect)
    }

    /// The next call runs, and its response is lost.
    pub(super) fn make_next_late(&self) {
        self.is_next_late.store(true, Ordering::SeqCst);
    }

    fn record_call(&self, effect: &str, tool: &str) {
        self.lock_calls().entry(effect.to_owned()).or_insert_with(|| (tool.to_owned(), 0)).1 += 1;
    }

    /// Tools that were called and never succeeded.
    pub(super) fn failed_tools(&self) -> Vec<String> {
        let succeeded = self.lock_results().succeeded.clone();
        self.calls_by_tool().into_keys().filter(|tool| !succeeded.contains(tool)).collect()
    }

    /// Tools that are declared idempotent and returned another result for the same call, with the
    /// number of times.
    pub(super) fn changed_results(&self) -> BTreeMap<String, u32> {
        self.lock_results().changed_results.clone()
    }

    fn record_result(&self, effect_id: &str, definition: &ToolDefinition, outcome: &ToolOutcome) {
        let ToolOutcome::Returned(result) = outcome else { return };
        if result.is_error {
            return;
        }
        let mut results = self.lock_results();
        results.succeeded.insert(definition.name.clone());
        if definition.effect != Effect::Idempotent {
            return;
        }
        let hash = sha256_hex(joined_text(&result.content).as_bytes());
        match results.first_results.get(effect_id) {
            Some(first) if *first != hash => {
                *results.changed_results.entry(definition.name.clone()).or_default() += 1;
            }
            Some(_) => {}
            None => {
                results.first_results.insert(effect_id.to_owned(), hash);
            }
        }
    }

    fn lock_results(&self) -> MutexGuard<'_, ResultLog> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_calls(&self) -> MutexGuard<'_, BTreeMap<String, (String, u32)>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Results of real tools.
#[derive(Debug, Default)]
struct ResultLog {
    /// Hash of the first result by effect id, for tools that are declared idempotent.
    first_results: BTreeMap<String, String>,
    /// How often a tool returned another result for the same call.
    changed_results: BTreeMap<String, u32>,
    succeeded: BTreeSet<String>,
}

/// Returns the agent with tools whose calls are counted. Tools that `is_stub` selects only return a
/// result.
pub(super) fn with_counted_tools(
    agent: &AgentDefinition,
    call_log: &Arc<CallLog>,
    is_stub: impl Fn(&str) -> bool,
) -> AgentDefinition {
    let count = |tool: &Arc<dyn CallableTool>| -> Arc<dyn CallableTool> {
        Arc::new(CountedTool {
            inner: Arc::clone(tool),
            is_stub: is_stub(&tool.definition().name),
            call_log: Arc::clone(call_log),
        })
    };
    let plugins = agent.plugins.iter().map(|plugin| Arc::new(plugin.with_tools(count)));
    AgentDefinition {
        name: agent.name.clone(),
        description: agent.description.clone(),
        examples: agent.examples.clone(),
        settings: agent.settings.clone(),
        instructions: Arc::clone(&agent.instructions),
        mcp: Vec::new(),
        // Those of servers whose definitions were read.
        tools: agent.active_tools(&Settings::default()).iter().map(count).collect(),
        extensions: agent.extensions.clone(),
        extension_settings: Arc::clone(&agent.extension_settings),
        // No call of it is real.
        audit: turnwheel_agent_files::Audit::default(),
        security: agent.security.clone(),
        // The scripted model has no response for it.
        has_automatic_title: false,
        execution: agent.execution,
        memory: agent.memory.clone(),
        profile: None,
        skills: Vec::new(),
        skill_index: agent.skill_index,
        package_files: agent.package_files.clone(),
        has_user_skills: false,
        context_files: Vec::new(),
        has_default_prompt: agent.has_default_prompt,
        plugins: plugins.collect(),
        response_schema: agent.response_schema.clone(),
        revision: agent.revision.clone(),
        session_id: agent.session_id.clone(),
    }
}

#[derive(Debug)]
struct CountedTool {
    inner: Arc<dyn CallableTool>,
    is_stub: bool,
    call_log: Arc<CallLog>,
}

#[async_trait]
impl CallableTool for CountedTool {
    fn definition(&self) -> &ToolDefinition {
        self.inner.definition()
    }

    async fn check_arguments(
        &self,
        arguments: &Arguments,
        context: &CheckContext<'_>,
    ) -> Result<(), String> {
        self.inner.check_arguments(arguments, context).await
    }

    fn required_approval(&self, arguments: &Arguments) -> Option<ApprovalRequirement> {
        self.inner.required_approval(arguments)
    }

    fn approval_rule(&self) -> Value {
        self.inner.approval_rule()
    }

    fn destination(&self) -> BoundDestination {
        self.inner.destination()
    }

    fn changes_workspace(&self) -> bool {
        self.inner.changes_workspace()
    }

    fn plugin(&self) -> Option<&ToolPlugin> {
        self.inner.plugin()
    }

    fn mcp_server(&self) -> Option<&Arc<McpServer>> {
        self.inner.mcp_server()
    }

    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome {
        let name = &self.definition().name;
        // Counted first: a call that is polled at all counts as sent.
        self.call_log.record_call(context.effect_id.as_str(), name);
        let is_late = self.call_log.is_next_late.swap(false, Ordering::SeqCst);
        let effect_id = context.effect_id.clone();
        let outcome = if self.is_stub {
            let result = json!({"ok": true, "tool": name, "arguments": arguments.value});
            ToolOutcome::Returned(ToolResult::json(&result))
        } else {
            self.inner.call(arguments, context).await
        };
        self.call_log.record_result(effect_id.as_str(), self.definition(), &outcome);
        // The result of a time-out, without its wait.
        if is_late { ToolOutcome::Unknown { reason: TIMEOUT_REASON.to_owned() } } else { outcome }
    }
}
