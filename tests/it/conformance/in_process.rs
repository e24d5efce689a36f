//! The loop cases against the in-process `Agent`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use turnwheel::agent_settings::{LoopKind, RetrySettings, Settings};
use turnwheel::messages::Message;
use turnwheel::testing::model::responses::client::ModelApiClient;
use turnwheel::testing::model::responses::config::{ResponsesConfig, SecretText};
use turnwheel::{Agent, AgentBuilder, AgentError, Tool};

use super::actions::{QUEUED_BEFORE, during_call};
use super::case::Case;
use super::compare::assert_same;
use super::hooks::register_hooks;
use super::loops::{self, expected_events, history, with_http_error_text};
use super::notation;
use crate::support::call_blocker::{BlockableTool, CallBlocker};
use crate::support::event_stream::Frame;
use crate::support::fake_model::{FakeModel, ScriptedResponse};
use crate::support::tools::{Add, Boom, Echo, Gated, Prog, Runs, Slow};

/// Longer than any step takes here.
const TIMEOUT: Duration = Duration::from_mins(2);

struct TestEnv {
    agent: Agent,
    model: FakeModel,
    runs: Runs,
    gate: CallBlocker,
    frames: Arc<Mutex<Vec<Frame>>>,
    /// Number of frames.
    frame_count: watch::Receiver<usize>,
    running: JoinSet<Result<(), AgentError>>,
    errors: Vec<String>,
}

pub(super) async fn run_case(case: &Case) {
    let id = case.id();
    let mut env = Box::pin(start_env(case)).await;
    let frames = Arc::clone(&env.frames);
    let (frame_counts, count) = watch::channel(0);
    env.frame_count = count;
    let subscription = env.agent.subscribe(move |event| {
        let data = serde_json::to_value(event).unwrap();
        let name = data["type"].as_str().unwrap_or_default().to_owned();
        let mut frames = frames.lock().unwrap();
        frames.push(Frame { id: None, name, data });
        frame_counts.send_replace(frames.len());
    });
    for (given, mode) in QUEUED_BEFORE {
        for text in case.given(given).as_array().into_iter().flatten() {
            env.perform(&json!({"do": mode, "text": text})).await.unwrap();
        }
    }
    for call in case.actions().iter().filter_map(during_call) {
        env.gate.block(call);
    }
    for action in case.actions() {
        env.perform_when_due(action).await;
    }
    env.wait_for_runs().await;

    let expected = &with_http_error_text(case);
    let live = env.frames.lock().unwrap().clone();
    let events = expected_events(case, expected);
    assert_same(&format!("{id}: events in process"), &notation::events(&live), &events);
    let list = |name: &str| expected[name].as_array().cloned().unwrap_or_default();
    assert_same(
        &format!("{id}: errors in process"),
        &env.errors.iter().map(|error| json!(error)).collect::<Vec<_>>(),
        &list("errors"),
    );
    let requests: Vec<Value> = env.model.request_bodies().iter().map(notation::request).collect();
    assert_same(&format!("{id}: requests in process"), &requests, &list("model_requests"));
    let state = env.agent.state();
    let messages: Vec<Value> = state
        .messages
        .iter()
        .map(|message| notation::message(&serde_json::to_value(message).unwrap()))
        .collect();
    assert_same(&format!("{id}: messages in process"), &messages, &list("messages_after"));
    let runs: Vec<Value> = list("tool_runs").iter().map(loops::tool_run).collect();
    let ran = env.runs.lock().unwrap().clone();
    let ran: Vec<Value> = ran.into_iter().filter(|run| run != "prog").map(Value::from).collect();
    assert_same(&format!("{id}: tool runs in process"), &ran, &runs);
    let after = &expected["state_after"];
    assert!(!state.is_streaming && state.pending_tool_calls.is_empty(), "{id}: {state:?}");
    assert_eq!(json!(state.error), after["error"], "{id}: the state's error");
    drop(subscription);
}

async fn start_env(case: &Case) -> TestEnv {
    let model = FakeModel::start(ScriptedResponse::parse_script(case.given("model_script"))).await;
    let config = ResponsesConfig {
        base_url: Some(model.url.clone()),
        api_key: Some(SecretText::new("a-key")),
        ..ResponsesConfig::default()
    };
    let (runs, gate) = (Runs::default(), CallBlocker::default());
    let settings = Settings {
        loop_kind: Some(LoopKind::Agent),
        retry: Some(RetrySettings { enabled: false, ..RetrySettings::default() }),
        model: Some("gpt-5.1".to_owned()),
        ..Settings::default()
    };
    let message = |line: &Value| serde_json::from_str::<Message>(&line.to_string()).unwrap();
    let mut builder = register_hooks(Agent::builder(), case)
        .system_prompt(case.given("system_prompt").as_str().unwrap_or("You are helpful."))
        .settings(settings)
        .messages(history(case).iter().map(message).collect())
        .models(Arc::new(ModelApiClient::new(&config, None).unwrap()));
    for tool in case.given("tools").as_array().into_iter().flatten() {
        let runs_handle = || Arc::clone(&runs);
        builder = match tool["name"].as_str().unwrap() {
            "echo" => add_tool(builder, Echo(runs_handle()), &gate),
            "boom" => add_tool(builder, Boom(runs_handle()), &gate),
            "add" => add_tool(builder, Add(runs_handle()), &gate),
            "slow" => add_tool(builder, Slow(runs_handle()), &gate),
            "prog" => add_tool(builder, Prog(runs_handle()), &gate),
            "test.gated" => add_tool(builder, Gated(runs_handle()), &gate),
            other => panic!("unknown tool: {other}"),
        };
    }
    TestEnv {
        agent: builder.start().await.unwrap(),
        model,
        runs,
        gate,
        frames: Arc::default(),
        frame_count: watch::channel(0).1,
        running: JoinSet::new(),
        errors: Vec::new(),
    }
}

fn add_tool(builder: AgentBuilder, tool: impl Tool, gate: &CallBlocker) -> AgentBuilder {
    builder.tool(BlockableTool(tool, gate.clone()))
}

impl TestEnv {
    async fn perform_when_due(&mut self, action: &Value) {
        match action["when"].as_str() {
            None if starts_run(action) => self.wait_for_runs().await,
            None => {}
            Some("running") => self.wait_for_update(|event| !event.is_null()).await,
            Some("after the first text_delta") => {
                self.wait_for_update(|event| event["type"] == "text_delta").await;
            }
            Some(when) => self.gate.started(during_call(action).expect(when)).await,
        }
        let outcome = if action.get("expect_error_index").is_none() && starts_run(action) {
            let (agent, action) = (self.agent.clone(), action.clone());
            self.running.spawn(async move { perform_action(&agent, &action).await });
            Ok(())
        } else {
            self.perform(action).await
        };
        if let Some(call) = during_call(action) {
            self.gate.release(call);
        }
        match (outcome, action.get("expect_error_index")) {
            (Ok(()), None) => {}
            (Err(error), Some(_)) => self.errors.push(error.to_string()),
            (outcome, _) => panic!("{action}: {outcome:?}"),
        }
    }

    async fn perform(&self, action: &Value) -> Result<(), AgentError> {
        perform_action(&self.agent, action).await
    }

    /// Waits for an event with a matching `assistantMessageEvent`.
    async fn wait_for_update(&mut self, is_wanted: fn(&Value) -> bool) {
        let frames = Arc::clone(&self.frames);
        let has_update = move |_: &usize| {
            let frames = frames.lock().unwrap();
            frames.iter().any(|frame| is_wanted(&frame.data["assistantMessageEvent"]))
        };
        let update = self.frame_count.wait_for(has_update);
        tokio::time::timeout(TIMEOUT, update).await.expect("the event is emitted").unwrap();
    }

    /// Waits for the end of all started runs.
    async fn wait_for_runs(&mut self) {
        while let Some(ended) = self.running.join_next().await {
            ended.unwrap().unwrap();
        }
    }
}

fn starts_run(action: &Value) -> bool {
    matches!(action["do"].as_str(), Some("prompt" | "continue"))
}

async fn perform_action(agent: &Agent, action: &Value) -> Result<(), AgentError> {
    let text = action["text"].as_str().unwrap_or_default();
    match action["do"].as_str().unwrap() {
        "prompt" => agent.prompt(text).await.map(|_| ()),
        "continue" => agent.continue_().await.map(|_| ()),
        "steer" => agent.steer(text).await,
        "followUp" | "follow_up" => agent.follow_up(text).await,
        "abort" => agent.abort().await,
        other => panic!("unknown action: {other}"),
    }
}
