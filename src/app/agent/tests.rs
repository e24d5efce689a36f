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
use crate::agent::content::Block;
use crate::agent::event::AnswerEvent;
use crate::agent::message::{AssistantMessage, Message, StopReason};
use crate::agent::request::Effect;
use crate::agent::settings::ThinkingLevel;
use crate::model::{Answer, Failure, Listener as Hearing, Model, ModelRecord, ModelRequest, Reply};
use crate::tools::ToolResult;
use crate::tools::code::{Approval, CallContext, Tool, ToolError};

mod deciding;
mod moving;
mod running;
mod telling;

/// Model that returns scripted responses in order and records its requests.
#[derive(Debug)]
struct Played {
    script: Vec<Value>,
    requests: Mutex<Vec<Vec<String>>>,
    systems: Mutex<Vec<String>>,
    sessions: Mutex<Vec<String>>,
    /// Each response waits for a permit.
    gate: Semaphore,
}

impl Played {
    fn new(script: &[Value]) -> Arc<Self> {
        Arc::new(Self {
            script: script.to_vec(),
            requests: Mutex::default(),
            systems: Mutex::default(),
            sessions: Mutex::default(),
            gate: Semaphore::new(Semaphore::MAX_PERMITS),
        })
    }

    fn requests(&self) -> Vec<Vec<String>> {
        lock(&self.requests).clone()
    }
}

fn said(message: &Message) -> String {
    let message = serde_json::to_value(message).unwrap();
    let content = &message["content"];
    let text = content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or("");
    format!("{}:{text}", message["role"].as_str().unwrap())
}

#[async_trait]
impl Model for Played {
    async fn answer(&self, request: ModelRequest<'_>, listener: &dyn Hearing) -> Answer {
        let number = {
            let mut requests = lock(&self.requests);
            requests.push(request.messages.iter().map(|message| said(message)).collect());
            lock(&self.systems).push(request.system.unwrap_or_default().to_owned());
            lock(&self.sessions).push(request.session_id.to_owned());
            requests.len() - 1
        };
        let play = self.script.get(number).cloned().unwrap_or(json!("end of the script"));
        if let Some(delta) = play["begins"].as_str() {
            listener.hear(AnswerEvent::TextStart { content_index: 0 });
            listener.hear(AnswerEvent::TextDelta { content_index: 0, delta: delta.to_owned() });
        }
        self.gate.acquire().await.unwrap().forget();
        let (content, stop) = match &play {
            Value::String(text) => (json!([{"type": "text", "text": text}]), "stop"),
            Value::Array(calls) => (Value::Array(calls.clone()), "toolUse"),
            Value::Object(play) if !play.contains_key("error") => {
                (json!([{"type": "text", "text": play["begins"]}]), "stop")
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                (json!([]), "error")
            }
        };
        if play["begins"].is_null() {
            listener.hear(AnswerEvent::TextStart { content_index: 0 });
        }
        let message: AssistantMessage = serde_json::from_str(
            &json!({"content": content, "api": "a", "provider": "p", "model": "m", "timestamp": 0,
                "stopReason": stop, "errorMessage": play["error"].as_str()})
            .to_string(),
        )
        .unwrap();
        let has_failed = message.stop_reason == StopReason::Error;
        let passes = play["passes"].as_bool().unwrap_or_default();
        let failure = if passes { Failure::Retryable { after: None } } else { Failure::Final };
        Answer { message, failure: has_failed.then_some(failure), reply: Reply::default() }
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        if model == "missing" {
            return Err("set TURNWHEEL_MODEL".to_owned());
        }
        crate::model::scripted::ScriptedModel.record("scripted")
    }
}

fn call(name: &str, arguments: &Value) -> Value {
    numbered(name, "c", arguments)
}

fn numbered(name: &str, number: impl fmt::Display, arguments: &Value) -> Value {
    json!({"type": "toolCall", "id": format!("{number}_{name}"), "name": name, "arguments": arguments})
}

#[derive(Default)]
struct Echo(Arc<AtomicUsize>);

#[derive(Deserialize, JsonSchema)]
struct Spoken {
    value: String,
}

impl Tool for Echo {
    type Args = Spoken;

    fn name(&self) -> &'static str {
        "echo"
    }

    fn description(&self) -> &'static str {
        "Returns its argument."
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn approval(&self, args: &Spoken) -> Option<Approval> {
        args.value.starts_with("secret").then(|| Approval::because("It is a secret."))
    }

    async fn call(&self, args: Spoken, _cx: CallContext) -> Result<ToolResult, ToolError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(ToolResult::text(format!("echo:{}", args.value)))
    }
}

async fn agent_of(model: &Arc<Played>) -> Agent {
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
async fn made_on(folder: &std::path::Path, model: &Arc<Played>) -> Agent {
    let made = async {
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
    soon(made).await
}

/// Runs a prompt in a task.
#[expect(clippy::disallowed_methods, reason = "the test awaits the task")]
fn beside(
    agent: &Agent,
    said: &'static str,
) -> tokio::task::JoinHandle<Result<PromptView, AgentError>> {
    let agent = agent.clone();
    tokio::spawn(async move { agent.prompt(said).await })
}

/// Records the type names of all events.
fn names(agent: &Agent) -> (Arc<Mutex<Vec<String>>>, Subscription) {
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&told);
    let subscription = agent.subscribe(move |event| {
        let event = serde_json::to_value(event).unwrap();
        lock(&kept).push(event["type"].as_str().unwrap_or("?").to_owned());
    });
    (told, subscription)
}

/// Waits until the condition is true.
async fn until(is_so: impl Fn() -> bool) {
    let comes = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    soon(comes).await;
}

/// Awaits the future with a time limit of 30 s, which no test needs.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), work).await.expect("time limit of the test")
}

fn messages(state: &AgentState) -> Vec<String> {
    state.messages.iter().map(said).collect()
}

#[tokio::test]
async fn a_prompt_is_answered_with_tools_and_everything_is_told_in_order() {
    let model = Played::new(&[json!([call("echo", &json!({"value": "x"}))]), json!("done")]);
    let agent = agent_of(&model).await;
    let (told, subscription) = names(&agent);
    let prompt = agent.prompt("go").await.unwrap();
    assert_eq!(prompt.state, crate::agent::entry::PromptState::Completed);
    let kinds: Vec<String> =
        lock(&told).iter().filter(|name| !name.contains('.')).cloned().collect();
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
    assert_eq!(messages(&state), ["user:go", "assistant:", "toolResult:echo:x", "assistant:done"]);
    assert!(!state.is_streaming && state.pending_tool_calls.is_empty() && state.error.is_none());
    subscription.unsubscribe();
    agent.prompt("again").await.unwrap();
    assert_eq!(lock(&told).iter().filter(|name| *name == "agent_start").count(), 1);
}

#[tokio::test]
async fn who_asks_while_it_runs_is_told_so_and_steers_are_taken_in() {
    let model = Played::new(&[json!([call("echo", &json!({"value": "x"}))]), json!("done")]);
    model.gate.forget_permits(Semaphore::MAX_PERMITS);
    let agent = agent_of(&model).await;
    let running = beside(&agent, "go");
    while model.requests().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(agent.state().is_streaming);
    assert!(matches!(agent.prompt("too early").await, Err(AgentError::Busy(_))));
    agent.steer("stop, do this").await.unwrap();
    model.gate.add_permits(8);
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
async fn what_is_queued_before_a_run_joins_it() {
    let model = Played::new(&[json!("r1"), json!("r2")]);
    let agent = agent_of(&model).await;
    agent.follow_up("f1").await.unwrap();
    agent.steer("extra").await.unwrap();
    agent.wait_for_idle().await;
    assert!(model.requests().is_empty());
    agent.prompt("go").await.unwrap();
    assert_eq!(
        messages(&agent.state()),
        ["user:go", "user:extra", "assistant:r1", "user:f1", "assistant:r2"]
    );
}

#[tokio::test]
async fn what_is_set_counts_from_the_next_answer_on() {
    let model = Played::new(&[json!("1"), json!("2"), json!("3")]);
    let agent = agent_of(&model).await;
    agent.prompt("a").await.unwrap();
    agent.set_system_prompt("Be long.");
    agent.clear_tools();
    agent.set_thinking_level(ThinkingLevel::High);
    agent.prompt("b").await.unwrap();
    assert_eq!(*lock(&model.systems), ["Be brief.", "Be long."]);
    let state = agent.state();
    assert_eq!((state.tools.len(), state.thinking_level), (0, ThinkingLevel::High));
    agent.set_model("missing");
    let refused = agent.prompt("c").await.unwrap_err().to_string();
    assert_eq!(refused, "No model configured: set TURNWHEEL_MODEL");
    assert!(!agent.state().is_streaming);
}

#[tokio::test]
async fn messages_can_be_replaced_and_the_next_prompt_knows_them_only() {
    let model = Played::new(&[json!("1"), json!("2")]);
    let agent = agent_of(&model).await;
    agent.prompt("a").await.unwrap();
    let state = agent.state();
    let first = state.messages.first().unwrap().clone();
    agent.clear_messages();
    agent.append_message(first);
    agent.prompt("b").await.unwrap();
    assert_eq!(model.requests()[1], ["user:a", "user:b"]);
    assert_eq!(messages(&agent.state()), ["user:a", "user:b", "assistant:2"]);
}

#[tokio::test]
async fn a_person_is_asked_and_the_run_goes_on_with_the_decision() {
    let model = Played::new(&[json!([call("echo", &json!({"value": "secret"}))]), json!("done")]);
    let agent = agent_of(&model).await;
    let prompt = agent.prompt("go").await.unwrap();
    assert_eq!(prompt.state, crate::agent::entry::PromptState::WaitingForApproval);
    let approval = agent.approvals().await.unwrap().remove(0);
    let said = Said { decision: "approve".to_owned(), reason: None, value: None };
    agent.decide(approval.id.as_str(), said).await.unwrap();
    assert_eq!(messages(&agent.state())[2..], ["toolResult:echo:secret", "assistant:done"]);
}

#[tokio::test]
async fn a_failed_answer_is_no_error_of_the_call_but_the_states() {
    let model = Played::new(&[json!({"error": "bad key"})]);
    let agent = agent_of(&model).await;
    let prompt = agent.prompt("go").await.unwrap();
    assert_eq!(prompt.state, crate::agent::entry::PromptState::Failed);
    assert_eq!(agent.state().error.as_deref(), Some("bad key"));
}

#[tokio::test]
async fn an_agent_that_is_made_again_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let model = Played::new(&[json!("1"), json!("2")]);
    let agent = made_on(folder.path(), &model).await;
    agent.prompt("a").await.unwrap();
    drop(agent);
    let agent = made_on(folder.path(), &model).await;
    assert_eq!(messages(&agent.state()), ["user:a", "assistant:1"]);
    agent.prompt("b").await.unwrap();
    assert_eq!(model.requests()[1], ["user:a", "assistant:1", "user:b"]);
}

#[tokio::test]
async fn a_stop_ends_what_runs_and_going_on_tries_again() {
    let model = Played::new(&[json!("never"), json!("done")]);
    model.gate.forget_permits(Semaphore::MAX_PERMITS);
    let agent = agent_of(&model).await;
    agent.abort().await.unwrap();
    let nothing = agent.continue_().await.unwrap_err().to_string();
    assert_eq!(nothing, "No messages to continue from");
    let running = beside(&agent, "go");
    while model.requests().is_empty() {
        tokio::task::yield_now().await;
    }
    let busy = agent.continue_().await.unwrap_err().to_string();
    assert_eq!(busy, "Agent is already processing. Wait for completion before continuing.");
    agent.abort().await.unwrap();
    let prompt = running.await.unwrap().unwrap();
    assert_eq!(prompt.state, crate::agent::entry::PromptState::Aborted);
    assert_eq!(agent.state().error.as_deref(), Some("Request was aborted"));
    model.gate.add_permits(8);
    agent.continue_().await.unwrap();
    assert_eq!(messages(&agent.state()).last().unwrap(), "assistant:done");
    let answered = agent.continue_().await.unwrap_err().to_string();
    assert_eq!(answered, "Cannot continue from message role: assistant");
}

#[tokio::test]
async fn what_is_queued_can_be_taken_back_and_goes_along_when_messages_are_replaced() {
    let model = Played::new(&[json!("1"), json!("2"), json!("3")]);
    let agent = agent_of(&model).await;
    agent.steer("never").await.unwrap();
    agent.clear_steering_queue().await.unwrap();
    agent.follow_up("later").await.unwrap();
    agent.clear_messages();
    agent.prompt("go").await.unwrap();
    let all = ["user:go", "assistant:1", "user:later", "assistant:2"];
    assert_eq!(messages(&agent.state()), all);
    agent.steer("never").await.unwrap();
    agent.reset().await.unwrap();
    agent.prompt("again").await.unwrap();
    assert_eq!(messages(&agent.state()), ["user:again", "assistant:3"]);
}
