//! Certification of agents with extensions and plugins that fail, act and count.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::*;
use turnwheel_conversation::content::Block;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_extensions::{
    ClosingTurn, FinishTurn, FinishedRun, FinishedToolCall, Hook, HookContext, HookError,
    Observation, Plugin, PluginError, PluginTools, Prepare, ResultChanges, RunChanges, StartingRun,
};
use turnwheel_tools::code::{CallContext, ServiceRegistry, Tool, ToolError};

/// Acts at every event, and then fails in the way of the event.
#[derive(Debug)]
struct Unruly;

impl Unruly {
    /// The actions of `acting` land; those of a failed hook do not.
    async fn act(&self, cx: &HookContext) -> Result<(), HookError> {
        cx.append_entry(format!("dropped/{}", cx.hook().name()), &json!({}))?;
        assert!(cx.hook() != Hook::TurnEnd, "unruly");
        if matches!(cx.hook(), Hook::AgentEnd | Hook::ToolResult) {
            return Err(HookError::new("unruly"));
        }
        std::future::pending().await
    }
}

#[async_trait]
impl Extension for Unruly {
    fn name(&self) -> &'static str {
        "unruly"
    }

    fn timeout(&self) -> Option<Duration> {
        Some(Duration::from_millis(5))
    }

    fn is_optional(&self) -> bool {
        true
    }

    async fn before_agent_start(
        &self,
        cx: &HookContext,
        _run: &StartingRun<'_>,
    ) -> Result<RunChanges, HookError> {
        self.act(cx).await.map(|()| RunChanges::default())
    }

    async fn observe(&self, _cx: &HookContext, _fact: &Observation) -> Result<(), HookError> {
        panic!("unruly");
    }

    async fn before_tool_call(
        &self,
        cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        self.act(cx).await.map(|()| ToolCallDecision::Allow)
    }

    async fn after_tool_call(
        &self,
        cx: &HookContext,
        _call: &FinishedToolCall<'_>,
    ) -> Result<ResultChanges, HookError> {
        self.act(cx).await.map(|()| ResultChanges::default())
    }

    async fn finish_turn(
        &self,
        cx: &HookContext,
        _turn: &ClosingTurn<'_>,
    ) -> Result<Option<FinishTurn>, HookError> {
        self.act(cx).await.map(|()| None)
    }

    async fn finish_run(&self, cx: &HookContext, _run: &FinishedRun<'_>) -> Result<(), HookError> {
        self.act(cx).await
    }
}

/// Appends an entry at every event with actions, and a text to each result: once each, although
/// hooks run again after a fault.
#[derive(Debug)]
struct Acting;

#[async_trait]
impl Extension for Acting {
    fn name(&self) -> &'static str {
        "acting"
    }

    async fn before_agent_start(
        &self,
        cx: &HookContext,
        run: &StartingRun<'_>,
    ) -> Result<RunChanges, HookError> {
        cx.append_entry("start", &json!({}))?;
        let system_prompt = Some(format!("{} Be brief.", run.system_prompt));
        Ok(RunChanges { messages: Vec::new(), system_prompt })
    }

    async fn before_tool_call(
        &self,
        cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        cx.append_entry("call", &json!({}))?;
        Ok(ToolCallDecision::Allow)
    }

    async fn after_tool_call(
        &self,
        cx: &HookContext,
        call: &FinishedToolCall<'_>,
    ) -> Result<ResultChanges, HookError> {
        cx.append_entry("result", &json!({}))?;
        let content = Some([call.content, &[Block::text("seen")]].concat());
        Ok(ResultChanges { content, ..ResultChanges::default() })
    }

    async fn finish_turn(
        &self,
        cx: &HookContext,
        _turn: &ClosingTurn<'_>,
    ) -> Result<Option<FinishTurn>, HookError> {
        cx.append_entry("turn", &json!({}))?;
        Ok(None)
    }

    async fn finish_run(&self, cx: &HookContext, _run: &FinishedRun<'_>) -> Result<(), HookError> {
        cx.append_entry("end", &json!({}))
    }
}

/// Counts model responses, and offers the tool `counted`.
#[derive(Debug)]
struct Counter;

impl Plugin for Counter {
    type State = u64;

    fn name(&self) -> &'static str {
        "counter"
    }

    fn tools(&self, tools: &mut PluginTools) {
        tools.tool(PluginTool("counted")).tool(PluginTool("idle"));
    }

    async fn prepare(&self, cx: &mut Prepare<'_, u64>) -> Result<(), PluginError> {
        cx.activate("counted")?;
        cx.set_state(cx.state().copied().unwrap_or_default() + 1)
    }
}

struct PluginTool(&'static str);

#[derive(Deserialize, JsonSchema)]
struct NoArguments {}

impl Tool for PluginTool {
    type Args = NoArguments;

    fn name(&self) -> &str {
        self.0
    }

    fn description(&self) -> &'static str {
        "Counts."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, _args: NoArguments, _cx: CallContext) -> Result<ToolResult, ToolError> {
        Ok(ToolResult::text("done"))
    }
}

fn options_with_counter(extensions: Vec<Arc<dyn Extension>>) -> CertifyOptions {
    let mut options = certify_options(Settings::default(), extensions);
    let agent = Arc::get_mut(&mut options.agents[0].0).unwrap();
    agent.plugins =
        vec![Arc::new(RegisteredPlugin::new(Counter, ServiceRegistry::default()).unwrap())];
    options
}

#[tokio::test]
async fn failing_and_acting_extensions_pass_every_fault() {
    let report = run_certify(&options_with_counter(vec![Arc::new(Acting), Arc::new(Unruly)])).await;
    let report = report.unwrap();
    assert!(report.is_ok(), "{report}");
    let agent = &report.agents[0];
    let ok = agent.runs.iter().filter(|run| run.verdict == RunVerdict::Ok).count();
    assert!(ok > 300 / run_interval(), "{ok} runs");
    for needed in ["prepare.after", "tool-result.after"] {
        let is_needed = |(fail_point, _): &(&str, u32)| *fail_point == needed;
        assert!(agent.fail_points.iter().any(is_needed), "{needed}: {report}");
    }
}

/// Counts its calls.
#[derive(Debug)]
struct CallCount {
    is_remote: bool,
    calls: AtomicU32,
}

#[async_trait]
impl Extension for CallCount {
    fn name(&self) -> &'static str {
        "call-count"
    }

    fn is_remote(&self) -> bool {
        self.is_remote
    }

    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Ok(ToolCallDecision::Allow)
    }
}

#[tokio::test]
async fn remote_extensions_run_only_with_real_tools() {
    for (tools, is_remote, runs) in
        [(ToolMode::Stub, true, false), (ToolMode::Stub, false, true), (ToolMode::Real, true, true)]
    {
        let [of_app, of_agent] =
            [(); 2].map(|()| Arc::new(CallCount { is_remote, calls: AtomicU32::default() }));
        let mut options = certify_options(Settings::default(), vec![Arc::clone(&of_app) as _]);
        Arc::get_mut(&mut options.agents[0].0).unwrap().extensions =
            vec![Arc::clone(&of_agent) as _];
        options.tools = tools;
        options.filter = Some("tool.after#1:kill".parse().unwrap());
        let report = run_certify(&options).await.unwrap();
        assert!(report.is_ok(), "{report}");
        for calls in [&of_app.calls, &of_agent.calls] {
            assert_eq!(calls.load(Ordering::SeqCst) > 0, runs, "{tools:?} {is_remote}");
        }
    }
}

#[tokio::test]
async fn conversation_calls_tools_of_plugins_and_report_names_the_others() {
    let mut options = options_with_counter(Vec::new());
    let (agent, conversation) = &mut options.agents[0];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("clerk.certify.yaml");
    std::fs::write(&file, "- prompt: Go.\n  answers: [{calls: [{tool: counted}]}, {say: ok}]\n")
        .unwrap();
    *conversation = Conversation::for_agent(agent, folder.path()).unwrap();
    options.filter = Some("tool.after#1:kill".parse().unwrap());
    let report = run_certify(&options).await.unwrap();
    assert!(report.is_ok(), "{report}");
    let agent = &report.agents[0];
    assert_eq!(agent.calls["counted"], 1);
    assert_eq!(agent.uncalled_tools, ["look", "pay", "gated", "report", "put", "idle"]);
}
