//! Agent of the test environment: tools that count their calls, and a model that follows a script.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use turnwheel_agent_files::{AgentDefinition, Catalog};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::{Output, WidgetOutput};
use turnwheel_conversation::message::{AssistantMessage, Message, StopReason};
use turnwheel_conversation::phase::OnUnknown;
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_conversation::usage::Usage;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_json::raw::RawJson;
use turnwheel_model::{
    CallMetadata, Listener, Model, ModelFailure, ModelRecord, ModelRequest, ModelResponse, Prices,
};
use turnwheel_platform::ids::fault_plan::FaultPlan;
use turnwheel_tools::workspace::find_builtin;
use turnwheel_tools::{
    ApprovalRequirement, Arguments, CallableTool, ToolContext, ToolDefinition, ToolOutcome,
    ToolResult,
};

/// Number of executions by effect id.
pub(crate) type ExecutionCounts = Arc<Mutex<BTreeMap<String, u32>>>;

/// Time in which a `gated` call has to be decided.
pub(crate) const APPROVAL_EXPIRES: Duration = Duration::from_mins(30);

/// Time in which a `patient` call has to be decided.
pub(crate) const LONG_APPROVAL_EXPIRES: Duration = Duration::from_hours(30 * 24);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToolBehaviour {
    Plain,
    /// Requires an approval.
    NeedsApproval,
    /// Requires an approval, which may take thirty days.
    NeedsLongApproval,
    /// Loses half of its responses.
    LosesResponse,
    /// Creates more widgets than a commit holds.
    ManyWidgets,
    /// Returns more text than a result holds.
    LargeResult,
    /// Takes longer than half a turn.
    Slow,
    /// Takes the number of seconds in its argument `n`.
    Sleep,
}

#[derive(Debug)]
struct CountingTool {
    definition: ToolDefinition,
    behaviour: ToolBehaviour,
    executions: ExecutionCounts,
    /// Fault plan and share of lost responses of writes; without it only `wire` loses responses.
    response_loss: Option<(FaultPlan, f64)>,
}

/// More lines than a result may have.
const LARGE_RESULT_LINES: usize = 2_100;

impl CountingTool {
    fn is_response_lost(&self, effect: &str) -> bool {
        let Some((fault_plan, share)) = &self.response_loss else {
            return self.behaviour == ToolBehaviour::LosesResponse
                && effect.bytes().map(u32::from).sum::<u32>() % 2 == 0;
        };
        if self.definition.effect != Effect::Write {
            return false;
        }
        let share = if self.behaviour == ToolBehaviour::LosesResponse { 0.5 } else { *share };
        // Leaves out the incarnation, which differs between runs.
        let mut parts = effect.split('_');
        let (conversation, position) = (parts.nth(1).unwrap(), parts.skip(1).collect::<Vec<_>>());
        let at = format!("{conversation} {}", position.join("."));
        fault_plan.should_inject("a tool's response was lost", &at, share)
    }
}

#[async_trait]
impl CallableTool for CountingTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn required_approval(&self, _arguments: &Arguments) -> Option<ApprovalRequirement> {
        let expires_after = match self.behaviour {
            ToolBehaviour::NeedsApproval => APPROVAL_EXPIRES,
            ToolBehaviour::NeedsLongApproval => LONG_APPROVAL_EXPIRES,
            ToolBehaviour::Plain
            | ToolBehaviour::LosesResponse
            | ToolBehaviour::ManyWidgets
            | ToolBehaviour::LargeResult
            | ToolBehaviour::Slow
            | ToolBehaviour::Sleep => {
                return None;
            }
        };
        Some(ApprovalRequirement {
            reason: "Gated".to_owned(),
            approvers: vec!["owner".to_owned()],
            is_requester_excluded: false,
            expires_after,
        })
    }

    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome {
        let effect = context.effect_id.to_string();
        // Count before the first await: a call that is polled counts as sent.
        *self.executions.lock().unwrap().entry(effect.clone()).or_default() += 1;
        let millis = match self.behaviour {
            ToolBehaviour::Slow => 200_000,
            ToolBehaviour::Sleep => arguments.value["n"].as_u64().unwrap() * 1_000,
            ToolBehaviour::Plain
            | ToolBehaviour::NeedsApproval
            | ToolBehaviour::NeedsLongApproval
            | ToolBehaviour::LosesResponse
            | ToolBehaviour::ManyWidgets
            | ToolBehaviour::LargeResult => 50,
        };
        tokio::time::sleep(Duration::from_millis(millis)).await;
        if self.is_response_lost(&effect) {
            return ToolOutcome::Unknown { reason: "cut".to_owned() };
        }
        let mut result = ToolResult::text(format!("{} done", self.definition.name));
        if self.behaviour == ToolBehaviour::Sleep {
            result = ToolResult::text(arguments.value["n"].to_string());
        }
        if self.behaviour == ToolBehaviour::LargeResult {
            result = ToolResult::text("line\n".repeat(LARGE_RESULT_LINES));
        }
        if self.behaviour == ToolBehaviour::ManyWidgets {
            let widget = Output::Widget(WidgetOutput {
                widget: "w".to_owned(),
                data: RawJson::from_value(&json!({})),
                fallback: "w".to_owned(),
                extra: Extra::new(),
            });
            result.outputs = vec![widget; 100];
        }
        ToolOutcome::Returned(result)
    }
}

/// The tools `look`, `pay`, `gated`, `patient`, `put`, `wire` (loses responses), `mail` (its
/// unknown outcome creates no request), `make` (creates more than a commit holds), `dump` (returns
/// more than a result holds), `brew` and `study` (take long), `nap` (takes the given time), and the
/// built-ins `read`, `write`, `edit` and `schedule`.
pub(super) fn catalog(
    executions: &ExecutionCounts,
    response_loss: Option<&(FaultPlan, f64)>,
) -> Catalog {
    let tool = |name: &str, effect: Effect, behaviour: ToolBehaviour| -> Arc<dyn CallableTool> {
        let definition = ToolDefinition {
            is_strict: false,
            name: name.to_owned(),
            label: name.to_owned(),
            description: String::new(),
            parameters: json!({"type": "object"}),
            effect,
            on_unknown: if name == "mail" { OnUnknown::Tell } else { OnUnknown::Ask },
            timeout: Duration::from_secs(match behaviour {
                ToolBehaviour::Slow | ToolBehaviour::Sleep => 240,
                ToolBehaviour::Plain
                | ToolBehaviour::NeedsApproval
                | ToolBehaviour::NeedsLongApproval
                | ToolBehaviour::LosesResponse
                | ToolBehaviour::ManyWidgets
                | ToolBehaviour::LargeResult => 30,
            }),
            revision: "1".to_owned(),
        };
        Arc::new(CountingTool {
            definition,
            behaviour,
            executions: Arc::clone(executions),
            response_loss: response_loss.cloned(),
        })
    };
    let mut tools = vec![
        tool("look", Effect::Read, ToolBehaviour::Plain),
        tool("pay", Effect::Write, ToolBehaviour::Plain),
        tool("gated", Effect::Write, ToolBehaviour::NeedsApproval),
        tool("patient", Effect::Write, ToolBehaviour::NeedsLongApproval),
        tool("put", Effect::Idempotent, ToolBehaviour::Plain),
        tool("wire", Effect::Write, ToolBehaviour::LosesResponse),
        tool("mail", Effect::Write, ToolBehaviour::Plain),
        tool("make", Effect::Write, ToolBehaviour::ManyWidgets),
        tool("dump", Effect::Write, ToolBehaviour::LargeResult),
        tool("brew", Effect::Write, ToolBehaviour::Slow),
        tool("study", Effect::Read, ToolBehaviour::Slow),
        tool("nap", Effect::Read, ToolBehaviour::Sleep),
        find_builtin("read").unwrap(),
        find_builtin("write").unwrap(),
        find_builtin("edit").unwrap(),
    ];
    tools.extend(turnwheel_tools::schedule::schedule_tool());
    let agent = AgentDefinition {
        name: "clerk".to_owned(),
        instructions: "Be good.".into(),
        tools,
        audit: turnwheel_agent_files::Audit { is_logged: true, is_notified: false },
        revision: "r".to_owned(),
        ..AgentDefinition::default()
    };
    Catalog {
        agents: BTreeMap::from([("clerk".to_owned(), Arc::new(agent))]),
        ..Catalog::default()
    }
}

impl super::TestEnv {
    /// The agents of the environment, with a change.
    pub(crate) fn changed_agents(&self, change: impl Fn(&mut AgentDefinition)) -> Catalog {
        let mut catalog = catalog(&self.executions, self.response_loss.as_ref());
        for agent in catalog.agents.values_mut() {
            change(Arc::get_mut(agent).unwrap());
        }
        catalog
    }

    /// Changes the agent of all workers from now on.
    pub(crate) fn change_agent(&mut self, change: impl Fn(&mut AgentDefinition)) {
        self.agents.replace(self.changed_agents(change));
    }

    /// The agent of all workers has these plugins from now on.
    pub(crate) fn set_plugins(&mut self, plugins: &[Arc<RegisteredPlugin>]) {
        self.agents.replace(self.changed_agents(|agent| agent.plugins = plugins.to_vec()));
    }

    /// The agent of all workers has only this tool from now on.
    pub(crate) fn set_only_tool(&mut self, tool: &Arc<dyn CallableTool>) {
        self.agents.replace(self.changed_agents(|agent| agent.tools = vec![Arc::clone(tool)]));
    }

    /// The agent of all workers has `title: auto` from now on.
    pub(crate) fn set_automatic_title(&mut self) {
        self.agents.replace(self.changed_agents(|agent| agent.has_automatic_title = true));
    }

    /// Responses of the agent must match `schema` from now on.
    pub(crate) fn set_response_schema(&mut self, schema: &Value) {
        let set = |agent: &mut AgentDefinition| agent.response_schema = Some(schema.clone());
        self.agents = self.changed_agents(set).into();
    }
}

/// Content of the next model response, computed from the number of results since the last user
/// message and from that message.
pub(crate) type Script = fn(results: usize, said: &str) -> Vec<Value>;

pub(crate) fn text(content: &str) -> Value {
    json!({"type": "text", "text": content})
}

pub(crate) fn call(id: &str, name: &str, n: usize) -> Value {
    json!({"type": "toolCall", "id": id, "name": name, "arguments": {"n": n}})
}

/// Three rounds of tools, then a text.
pub(crate) fn three_rounds(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![text("first"), call("c1", "look", 0), call("c2", "pay", 0)],
        1 | 2 => {
            vec![
                call("c1", "nope", results),
                call("c2", "gated", results),
                call("c3", "put", results),
            ]
        }
        _ => vec![text("done")],
    }
}

#[derive(Debug)]
pub(crate) struct ScriptedModel {
    /// Number of calls, including those whose response was never committed.
    pub calls: Mutex<u32>,
    pub script: Mutex<Script>,
    /// Time that a response takes.
    pub response_time: Mutex<Duration>,
    /// Error code of the provider for the next response.
    pub next_error: Mutex<Option<&'static str>>,
    /// Usage of each response.
    pub usage: Mutex<Usage>,
    /// Number of next responses that fail with a retryable error.
    pub failures_left: Mutex<u32>,
    /// The `traceparent` of each request.
    pub traceparents: Mutex<Vec<Option<String>>>,
}

impl Default for ScriptedModel {
    fn default() -> Self {
        Self {
            calls: Mutex::new(0),
            script: Mutex::new(three_rounds),
            response_time: Mutex::new(Duration::from_millis(100)),
            next_error: Mutex::default(),
            usage: Mutex::default(),
            failures_left: Mutex::default(),
            traceparents: Mutex::default(),
        }
    }
}

#[async_trait]
impl Model for ScriptedModel {
    async fn respond(&self, request: ModelRequest<'_>, _listener: &dyn Listener) -> ModelResponse {
        *self.calls.lock().unwrap() += 1;
        self.traceparents.lock().unwrap().push(request.traceparent.map(ToOwned::to_owned));
        let response_time = *self.response_time.lock().unwrap();
        tokio::time::sleep(response_time).await;
        let (mut results, mut input) = (0, String::new());
        for message in request.messages {
            match message {
                Message::User(user) => {
                    results = 0;
                    if let Content::Text(text) = &user.content {
                        input.clone_from(text);
                    }
                }
                Message::ToolResult(_) => results += 1,
                _ => {}
            }
        }
        let content = self.script.lock().unwrap()(results, &input);
        let is_call = content.iter().any(|block| block["type"] == "toolCall");
        let stop = if is_call { "toolUse" } else { "stop" };
        let message: AssistantMessage = serde_json::from_str(
            &json!({"content": content, "api": "a", "provider": "p", "model": "m", "stopReason": stop, "timestamp": 0}).to_string(),
        )
        .unwrap();
        let message = AssistantMessage { usage: (*self.usage.lock().unwrap()).into(), ..message };
        let is_failing = {
            let mut failures = self.failures_left.lock().unwrap();
            let left = failures.checked_sub(1);
            *failures = left.unwrap_or_default();
            left.is_some()
        };
        let next_error = self.next_error.lock().unwrap().take();
        let Some(code) = next_error.or(is_failing.then_some("server_error")) else {
            return ModelResponse { message, failure: None, metadata: CallMetadata::default() };
        };
        ModelResponse {
            message: AssistantMessage { stop_reason: StopReason::Error, ..message },
            failure: Some(ModelFailure::Retryable { after: None }),
            metadata: CallMetadata { error: Some(code.to_owned()), ..CallMetadata::default() },
        }
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        Ok(ModelRecord {
            id: model.to_owned(),
            name: model.to_owned(),
            api: "a".to_owned(),
            provider: "p".to_owned(),
            base_url: String::new(),
            reasoning: false,
            images: false,
            cost: Prices::default(),
            context_window: 1_000_000,
            max_tokens: 100,
            deployment_name: model.to_owned(),
            headers: turnwheel_model::responses::headers::ModelHeaders::default(),
            compat: turnwheel_model::compat::Compat::default(),
        })
    }
}
