//! Tests of an in-process agent with a scripted model.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::*;
use turnwheel_conversation::content::Block;
use turnwheel_conversation::event::AssistantMessageEvent;
use turnwheel_conversation::message::{AssistantMessage, Message, StopReason};
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::settings::ThinkingLevel;
use turnwheel_model::{
    CallMetadata, Listener, Model, ModelFailure, ModelRecord, ModelRequest, ModelResponse,
};
use turnwheel_tools::ToolResult;
use turnwheel_tools::code::{Approval, CallContext, Tool, ToolError};

mod approvals;
mod branches;
mod commands;
mod events;
mod replace_messages;
mod runs;
mod session;
mod session_hooks;
mod system_prompt;

/// Model that returns scripted responses in order and records its requests.
#[derive(Debug)]
struct TestModel {
    script: Vec<Value>,
    requests: Mutex<Vec<Vec<String>>>,
    systems: Mutex<Vec<String>>,
    sessions: Mutex<Vec<String>>,
    /// Each response waits for a permit.
    permits: Semaphore,
}

impl TestModel {
    fn new(script: &[Value]) -> Arc<Self> {
        Arc::new(Self {
            script: script.to_vec(),
            requests: Mutex::default(),
            systems: Mutex::default(),
            sessions: Mutex::default(),
            permits: Semaphore::new(Semaphore::MAX_PERMITS),
        })
    }

    fn requests(&self) -> Vec<Vec<String>> {
        lock(&self.requests).clone()
    }
}

fn format_message(message: &Message) -> String {
    let message = serde_json::to_value(message).unwrap();
    let content = &message["content"];
    let text = content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or("");
    format!("{}:{text}", message["role"].as_str().unwrap())
}

#[async_trait]
impl Model for TestModel {
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        let number = {
            let mut requests = lock(&self.requests);
            requests.push(request.messages.iter().map(|message| format_message(message)).collect());
            lock(&self.systems).push(request.system.unwrap_or_default().to_owned());
            lock(&self.sessions).push(request.session_id.to_owned());
            requests.len() - 1
        };
        let step = self.script.get(number).cloned().unwrap_or(json!("end of the script"));
        if let Some(delta) = step["begins"].as_str() {
            listener.on_event(AssistantMessageEvent::TextStart { content_index: 0 });
            listener.on_event(AssistantMessageEvent::TextDelta {
                content_index: 0,
                delta: delta.to_owned(),
            });
        }
        self.permits.acquire().await.unwrap().forget();
        let (content, stop) = match &step {
            Value::String(text) => (json!([{"type": "text", "text": text}]), "stop"),
            Value::Array(calls) => (Value::Array(calls.clone()), "toolUse"),
            Value::Object(step) if !step.contains_key("error") => {
                (json!([{"type": "text", "text": step["begins"]}]), "stop")
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                (json!([]), "error")
            }
        };
        if step["begins"].is_null() {
            listener.on_event(AssistantMessageEvent::TextStart { content_index: 0 });
        }
        let message: AssistantMessage = serde_json::from_str(
            &json!({"content": content, "api": "a", "provider": "p", "model": "m", "timestamp": 0,
                "stopReason": stop, "errorMessage": step["error"].as_str()})
            .to_string(),
        )
        .unwrap();
        let has_failed = message.stop_reason == StopReason::Error;
        let is_retryable = step["passes"].as_bool().unwrap_or_default();
        let failure = if is_retryable {
            ModelFailure::Retryable { after: None }
        } else {
            ModelFailure::Permanent
        };
        ModelResponse {
            message,
            failure: has_failed.then_some(failure),
            metadata: CallMetadata::default(),
        }
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        if model == "missing" {
            return Err("set TURNWHEEL_MODEL".to_owned());
        }
        let id = if model == "high" { "high" } else { "scripted" }.to_owned();
        let record = turnwheel_model::scripted::ScriptedModel.record(model)?;
        Ok(ModelRecord { id, ..record })
    }
}

fn tool_call(name: &str, arguments: &Value) -> Value {
    numbered_call(name, "c", arguments)
}

fn numbered_call(name: &str, number: impl fmt::Display, arguments: &Value) -> Value {
    json!({"type": "toolCall", "id": format!("{number}_{name}"), "name": name, "arguments": arguments})
}

#[derive(Default)]
struct Echo(Arc<AtomicUsize>);

#[derive(Deserialize, JsonSchema)]
struct EchoArgs {
    value: String,
}

impl Tool for Echo {
    type Args = EchoArgs;

    fn name(&self) -> &'static str {
        "echo"
    }

    fn description(&self) -> &'static str {
        "Returns its argument."
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn approval(&self, args: &EchoArgs) -> Option<Approval> {
        args.value.starts_with("secret").then(|| Approval::because("It is a secret."))
    }

    async fn call(&self, args: EchoArgs, _cx: CallContext) -> Result<ToolResult, ToolError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(ToolResult::text(format!("echo:{}", args.value)))
    }
}

async fn start_agent(model: &Arc<TestModel>) -> Agent {
    Agent::builder()
        .system_prompt("Be brief.")
        .models(Arc::clone(model) as Arc<dyn Model>)
        .tool(Echo::default())
        .start()
        .await
        .unwrap()
}

/// Starts an agent once the data folder is unlocked: the tasks of a dropped agent hold the lock
/// until they end.
async fn start_agent_in(folder: &std::path::Path, model: &Arc<TestModel>) -> Agent {
    let starting = async {
        loop {
            let builder = Agent::builder()
                .models(Arc::clone(model) as Arc<dyn Model>)
                .tool(Echo::default())
                .data(folder);
            match builder.start().await {
                Ok(agent) => break agent,
                Err(AgentError::Start(_)) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    with_timeout(starting).await
}

/// Runs a prompt in a task.
#[expect(clippy::disallowed_methods, reason = "the test awaits the task")]
fn spawn_prompt(
    agent: &Agent,
    input: &'static str,
) -> tokio::task::JoinHandle<Result<PromptView, AgentError>> {
    let agent = agent.clone();
    tokio::spawn(async move { agent.prompt(input).await })
}

/// Records the type names of all events.
fn record_event_names(agent: &Agent) -> (Arc<Mutex<Vec<String>>>, Subscription) {
    let names: Arc<Mutex<Vec<String>>> = Arc::default();
    let recorded = Arc::clone(&names);
    let subscription = agent.subscribe(move |event| {
        let event = serde_json::to_value(event).unwrap();
        lock(&recorded).push(event["type"].as_str().unwrap_or("?").to_owned());
    });
    (names, subscription)
}

/// Waits until the condition is true.
async fn wait_until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    with_timeout(waiting).await;
}

/// Awaits the future with a time limit that no test needs.
async fn with_timeout<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(2), work).await.expect("time limit of the test")
}

fn message_texts(state: &AgentState) -> Vec<String> {
    state.messages.iter().map(format_message).collect()
}

#[tokio::test]
async fn prompt_emits_events_in_order() {
    let model =
        TestModel::new(&[json!([tool_call("echo", &json!({"value": "x"}))]), json!("done")]);
    let agent = start_agent(&model).await;
    let (names, subscription) = record_event_names(&agent);
    let prompt = agent.prompt("go").await.unwrap();
    assert_eq!(prompt.state, turnwheel_conversation::entry::PromptState::Completed);
    let kinds: Vec<String> =
        lock(&names).iter().filter(|name| !name.contains('.')).cloned().collect();
    assert_eq!(
        kinds,
        [
            "agent_start",
            "turn_start",
            "message_start",
            "message_end",
            "message_start",
            "message_update",
            "message_end",
            "tool_execution_start",
            "tool_execution_end",
            "message_start",
            "message_end",
            "turn_end",
            "turn_start",
            "message_start",
            "message_update",
            "message_end",
            "turn_end",
            "agent_end",
            "agent_settled",
        ]
    );
    let state = agent.state();
    assert_eq!(
        message_texts(&state),
        ["user:go", "assistant:", "toolResult:echo:x", "assistant:done"]
    );
    assert!(!state.is_streaming && state.pending_tool_calls.is_empty() && state.error.is_none());
    subscription.unsubscribe();
    agent.prompt("again").await.unwrap();
    assert_eq!(lock(&names).iter().filter(|name| *name == "agent_start").count(), 1);
}

#[tokio::test]
async fn prompt_is_busy_and_steer_is_read_while_running() {
    let model =
        TestModel::new(&[json!([tool_call("echo", &json!({"value": "x"}))]), json!("done")]);
    model.permits.forget_permits(Semaphore::MAX_PERMITS);
    let agent = start_agent(&model).await;
    let running = spawn_prompt(&agent, "go");
    while model.requests().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(agent.state().is_streaming);
    assert!(matches!(agent.prompt("too early").await, Err(AgentError::Busy(_))));
    agent.steer("stop, do this").await.unwrap();
    model.permits.add_permits(8);
    running.await.unwrap().unwrap();
    assert_eq!(
        model.requests()[1],
        [
            "user:go",
            "assistant:",
            "toolResult:Skipped due to queued user message.",
            "user:stop, do this"
        ]
    );
}

#[tokio::test]
async fn queued_inputs_join_next_run() {
    let model = TestModel::new(&[json!("r1"), json!("r2")]);
    let agent = start_agent(&model).await;
    agent.follow_up("f1").await.unwrap();
    agent.steer("extra").await.unwrap();
    agent.wait_for_idle().await;
    assert!(model.requests().is_empty());
    agent.prompt("go").await.unwrap();
    assert_eq!(
        message_texts(&agent.state()),
        ["user:go", "user:extra", "assistant:r1", "user:f1", "assistant:r2"]
    );
}

#[tokio::test]
async fn setters_apply_from_next_model_call() {
    let model = TestModel::new(&[json!("1"), json!("2"), json!("3")]);
    let agent = start_agent(&model).await;
    agent.prompt("a").await.unwrap();
    agent.set_system_prompt("Be long.");
    agent.clear_tools();
    agent.set_thinking_level(ThinkingLevel::High);
    agent.prompt("b").await.unwrap();
    assert_eq!(*lock(&model.systems), ["Be brief.", "Be long."]);
    let state = agent.state();
    assert_eq!((state.tools.len(), state.thinking_level), (0, ThinkingLevel::High));
    agent.set_model("missing");
    let error = agent.prompt("c").await.unwrap_err().to_string();
    assert_eq!(error, "No model configured: set TURNWHEEL_MODEL");
    assert!(!agent.state().is_streaming);
}

#[tokio::test]
async fn replaced_messages_are_sent_with_next_prompt() {
    let model = TestModel::new(&[json!("1"), json!("2")]);
    let agent = start_agent(&model).await;
    agent.prompt("a").await.unwrap();
    let state = agent.state();
    let first = state.messages.first().unwrap().clone();
    agent.clear_messages();
    agent.append_message(first);
    agent.prompt("b").await.unwrap();
    assert_eq!(model.requests()[1], ["user:a", "user:b"]);
    assert_eq!(message_texts(&agent.state()), ["user:a", "user:b", "assistant:2"]);
}

#[tokio::test]
async fn run_continues_after_approval() {
    let model =
        TestModel::new(&[json!([tool_call("echo", &json!({"value": "secret"}))]), json!("done")]);
    let agent = start_agent(&model).await;
    let prompt = agent.prompt("go").await.unwrap();
    assert_eq!(prompt.state, turnwheel_conversation::entry::PromptState::WaitingForApproval);
    let approval = agent.approvals().await.unwrap().remove(0);
    let decision = DecisionRequest { decision: "approve".to_owned(), reason: None, value: None };
    agent.decide(approval.id.as_str(), decision).await.unwrap();
    assert_eq!(message_texts(&agent.state())[2..], ["toolResult:echo:secret", "assistant:done"]);
}

#[tokio::test]
async fn failed_response_is_in_state_error() {
    let model = TestModel::new(&[json!({"error": "bad key"})]);
    let agent = start_agent(&model).await;
    let prompt = agent.prompt("go").await.unwrap();
    assert_eq!(prompt.state, turnwheel_conversation::entry::PromptState::Failed);
    assert_eq!(agent.state().error.as_deref(), Some("bad key"));
}

#[tokio::test]
async fn restarted_agent_continues_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let model = TestModel::new(&[json!("1"), json!("2")]);
    let agent = start_agent_in(folder.path(), &model).await;
    agent.prompt("a").await.unwrap();
    drop(agent);
    let agent = start_agent_in(folder.path(), &model).await;
    assert_eq!(message_texts(&agent.state()), ["user:a", "assistant:1"]);
    agent.prompt("b").await.unwrap();
    assert_eq!(model.requests()[1], ["user:a", "assistant:1", "user:b"]);
}

#[tokio::test]
async fn abort_ends_run_and_continue_retries() {
    let model = TestModel::new(&[json!("never"), json!("done")]);
    model.permits.forget_permits(Semaphore::MAX_PERMITS);
    let agent = start_agent(&model).await;
    agent.abort().await.unwrap();
    let empty = agent.continue_().await.unwrap_err().to_string();
    assert_eq!(empty, "No messages to continue from");
    let running = spawn_prompt(&agent, "go");
    while model.requests().is_empty() {
        tokio::task::yield_now().await;
    }
    let busy = agent.continue_().await.unwrap_err().to_string();
    assert_eq!(busy, "Agent is already processing. Wait for completion before continuing.");
    agent.abort().await.unwrap();
    let prompt = running.await.unwrap().unwrap();
    assert_eq!(prompt.state, turnwheel_conversation::entry::PromptState::Aborted);
    assert_eq!(agent.state().error.as_deref(), Some("Request was aborted"));
    model.permits.add_permits(8);
    agent.continue_().await.unwrap();
    assert_eq!(message_texts(&agent.state()).last().unwrap(), "assistant:done");
    let after_response = agent.continue_().await.unwrap_err().to_string();
    assert_eq!(after_response, "Cannot continue from message role: assistant");
}

#[tokio::test]
async fn queued_inputs_can_be_cleared_or_move_with_messages() {
    let model = TestModel::new(&[json!("1"), json!("2"), json!("3")]);
    let agent = start_agent(&model).await;
    agent.steer("never").await.unwrap();
    agent.clear_steering_queue().await.unwrap();
    agent.follow_up("later").await.unwrap();
    agent.clear_messages();
    agent.prompt("go").await.unwrap();
    let all = ["user:go", "assistant:1", "user:later", "assistant:2"];
    assert_eq!(message_texts(&agent.state()), all);
    agent.steer("never").await.unwrap();
    agent.reset().await.unwrap();
    agent.prompt("again").await.unwrap();
    assert_eq!(message_texts(&agent.state()), ["user:again", "assistant:3"]);
}
