//! The loop cases against the in-process `Agent`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use turnwheel::Agent;
use turnwheel::agent::message::Message;
use turnwheel::agent::settings::{LoopKind, Retry, Settings};
use turnwheel::app::{AgentBuilder, AgentError};
use turnwheel::model::responses::client::AzureResponses;
use turnwheel::model::responses::config::{ResponsesConfig, Secret};
use turnwheel::tools::code::Tool;

use super::acting::{QUEUED_BEFORE, during_call};
use super::case::Case;
use super::compare::assert_same;
use super::hooks::with_hooks;
use super::loops::{self, as_thrown, expected_events, history};
use super::notation;
use crate::support::fake_model::{FakeModel, Play};
use crate::support::gate::{Gate, Gatekept};
use crate::support::stream::Frame;
use crate::support::tools::{Add, Boom, Echo, Gated, Prog, Runs, Slow};

/// Longer than any step takes here.
const PATIENCE: Duration = Duration::from_secs(30);

struct Stage {
    agent: Agent,
    model: FakeModel,
    runs: Runs,
    gate: Gate,
    told: Arc<Mutex<Vec<Frame>>>,
    /// Number of frames.
    count: watch::Receiver<usize>,
    running: JoinSet<Result<(), AgentError>>,
    errors: Vec<String>,
}

pub(super) async fn play(case: &Case) {
    let id = case.id();
    let mut stage = Box::pin(set(case)).await;
    let told = Arc::clone(&stage.told);
    let (counts, count) = watch::channel(0);
    stage.count = count;
    let subscription = stage.agent.subscribe(move |event| {
        let data = serde_json::to_value(event).unwrap();
        let name = data["type"].as_str().unwrap_or_default().to_owned();
        let mut told = told.lock().unwrap();
        told.push(Frame { id: None, name, data });
        counts.send_replace(told.len());
    });
    for (given, mode) in QUEUED_BEFORE {
        for text in case.given(given).as_array().into_iter().flatten() {
            stage.perform(&json!({"do": mode, "text": text})).await.unwrap();
        }
    }
    for call in case.actions().iter().filter_map(during_call) {
        stage.gate.hold(call);
    }
    for action in case.actions() {
        stage.act(action).await;
    }
    stage.rest().await;

    let expected = &as_thrown(case);
    let live = stage.told.lock().unwrap().clone();
    let events = expected_events(case, expected);
    assert_same(&format!("{id}: events in process"), &notation::events(&live), &events);
    let list = |name: &str| expected[name].as_array().cloned().unwrap_or_default();
    assert_same(
        &format!("{id}: errors in process"),
        &stage.errors.iter().map(|error| json!(error)).collect::<Vec<_>>(),
        &list("errors"),
    );
    let requests: Vec<Value> = stage.model.requests().iter().map(notation::request).collect();
    assert_same(&format!("{id}: requests in process"), &requests, &list("model_requests"));
    let state = stage.agent.state();
    let messages: Vec<Value> = state
        .messages
        .iter()
        .map(|message| notation::message(&serde_json::to_value(message).unwrap()))
        .collect();
    assert_same(&format!("{id}: messages in process"), &messages, &list("messages_after"));
    let runs: Vec<Value> = list("tool_runs").iter().map(loops::run).collect();
    let ran = stage.runs.lock().unwrap().clone();
    let ran: Vec<Value> = ran.into_iter().filter(|run| run != "prog").map(Value::from).collect();
    assert_same(&format!("{id}: tool runs in process"), &ran, &runs);
    let after = &expected["state_after"];
    assert!(!state.is_streaming && state.pending_tool_calls.is_empty(), "{id}: {state:?}");
    assert_eq!(json!(state.error), after["error"], "{id}: the state's error");
    drop(subscription);
}

async fn set(case: &Case) -> Stage {
    let model = FakeModel::start(Play::script(case.given("model_script"))).await;
    let config = ResponsesConfig {
        base_url: Some(model.url.clone()),
        api_key: Some(Secret::new("a-key")),
        ..ResponsesConfig::default()
    };
    let (runs, gate) = (Runs::default(), Gate::default());
    let settings = Settings {
        loop_kind: Some(LoopKind::Agent),
        retry: Some(Retry { enabled: false, ..Retry::default() }),
        model: Some("gpt-5.1".to_owned()),
        ..Settings::default()
    };
    let message = |line: &Value| serde_json::from_str::<Message>(&line.to_string()).unwrap();
    let mut builder = with_hooks(Agent::builder(), case)
        .system_prompt(case.given("system_prompt").as_str().unwrap_or("You are helpful."))
        .settings(settings)
        .messages(history(case).iter().map(message).collect())
        .models(Arc::new(AzureResponses::new(&config, None).unwrap()));
    for tool in case.given("tools").as_array().into_iter().flatten() {
        let of = || Arc::clone(&runs);
        builder = match tool["name"].as_str().unwrap() {
            "echo" => kept(builder, Echo(of()), &gate),
            "boom" => kept(builder, Boom(of()), &gate),
            "add" => kept(builder, Add(of()), &gate),
            "slow" => kept(builder, Slow(of()), &gate),
            "prog" => kept(builder, Prog(of()), &gate),
            "test.gated" => kept(builder, Gated(of()), &gate),
            other => panic!("unknown tool: {other}"),
        };
    }
    Stage {
        agent: builder.start().await.unwrap(),
        model,
        runs,
        gate,
        told: Arc::default(),
        count: watch::channel(0).1,
        running: JoinSet::new(),
        errors: Vec::new(),
    }
}

fn kept(builder: AgentBuilder, tool: impl Tool, gate: &Gate) -> AgentBuilder {
    builder.tool(Gatekept(tool, gate.clone()))
}

impl Stage {
    async fn act(&mut self, action: &Value) {
        match action["when"].as_str() {
            None if begins(action) => self.rest().await,
            None => {}
            Some("running") => self.heard(|event| !event.is_null()).await,
            Some("after the first text_delta") => {
                self.heard(|event| event["type"] == "text_delta").await;
            }
            Some(when) => self.gate.begun(during_call(action).expect(when)).await,
        }
        let outcome = if action.get("expect_error_index").is_none() && begins(action) {
            let (agent, action) = (self.agent.clone(), action.clone());
            self.running.spawn(async move { perform(&agent, &action).await });
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
        perform(&self.agent, action).await
    }

    /// Waits for an event with a matching `assistantMessageEvent`.
    async fn heard(&mut self, is_it: fn(&Value) -> bool) {
        let told = Arc::clone(&self.told);
        let has_told = move |_: &usize| {
            let told = told.lock().unwrap();
            told.iter().any(|frame| is_it(&frame.data["assistantMessageEvent"]))
        };
        let heard = self.count.wait_for(has_told);
        tokio::time::timeout(PATIENCE, heard).await.expect("the event is emitted").unwrap();
    }

    /// Waits for the end of all started runs.
    async fn rest(&mut self) {
        while let Some(ended) = self.running.join_next().await {
            ended.unwrap().unwrap();
        }
    }
}

fn begins(action: &Value) -> bool {
    matches!(action["do"].as_str(), Some("prompt" | "continue"))
}

async fn perform(agent: &Agent, action: &Value) -> Result<(), AgentError> {
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
