//! Tests of the events for subscribers and of the state between them.

use super::*;
use turnwheel_conversation::settings::{RetrySettings, Settings};

/// Records all events.
fn record_events(agent: &Agent) -> (Arc<Mutex<Vec<AgentEvent>>>, Subscription) {
    let events: Arc<Mutex<Vec<AgentEvent>>> = Arc::default();
    let recorded = Arc::clone(&events);
    let subscription = agent.subscribe(move |event| lock(&recorded).push(event.clone()));
    (events, subscription)
}

#[tokio::test]
async fn source_events_have_typed_variants() {
    let model =
        TestModel::new(&[json!([tool_call("echo", &json!({"value": "x"}))]), json!("done")]);
    let agent = start_agent(&model).await;
    let (events, _subscription) = record_events(&agent);
    agent.prompt("go").await.unwrap();
    let events = lock(&events).clone();
    for event in &events {
        if let AgentEvent::Other { name, data } = event {
            assert!(name.starts_with("prompt."), "{name}: {data}");
        }
    }
    let begins: Vec<&AssistantMessage> = events
        .iter()
        .filter_map(|event| {
            let AgentEvent::MessageStart { message, .. } = event else { return None };
            message.as_assistant()
        })
        .collect();
    assert_eq!(begins.len(), 2, "{events:#?}");
    let record = model.record("scripted").unwrap();
    for begun in begins {
        assert!(begun.content.is_empty() && begun.stop_reason == StopReason::Stop);
        assert_eq!(
            (&begun.api, &begun.provider, &begun.model),
            (&record.api, &record.provider, &record.id)
        );
    }
}

#[tokio::test]
async fn new_agent_has_default_state() {
    let agent = Agent::builder().models(TestModel::new(&[])).start().await.unwrap();
    let state = agent.state();
    assert_eq!(state, AgentState::default());
    assert_eq!((state.thinking_level, state.is_streaming), (ThinkingLevel::Off, false));
}

#[tokio::test]
async fn aborted_run_keeps_partial_response() {
    let model = TestModel::new(&[json!({"begins": "par"})]);
    model.permits.forget_permits(Semaphore::MAX_PERMITS);
    let agent = start_agent(&model).await;
    let running = spawn_prompt(&agent, "go");
    wait_until(|| agent.state().stream_message == Some(vec![Block::text("par")])).await;
    assert!(agent.state().is_streaming);
    agent.abort().await.unwrap();
    running.await.unwrap().unwrap();
    let state = agent.state();
    assert_eq!(message_texts(&state), ["user:go", "assistant:par"]);
    let response = state.messages[1].as_assistant().unwrap();
    assert_eq!(response.stop_reason, StopReason::Aborted);
    assert_eq!((state.is_streaming, state.stream_message), (false, None));
}

/// Tool that returns when it gets a permit.
struct SlowTool(Arc<Semaphore>);

impl Tool for SlowTool {
    type Args = EchoArgs;

    fn name(&self) -> &'static str {
        "slow"
    }

    fn description(&self) -> &'static str {
        "Takes its time."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, args: EchoArgs, _cx: CallContext) -> Result<ToolResult, ToolError> {
        self.0.acquire().await.unwrap().forget();
        Ok(ToolResult::text(args.value))
    }
}

#[tokio::test]
async fn state_lists_pending_tool_calls() {
    let model =
        TestModel::new(&[json!([tool_call("slow", &json!({"value": "x"}))]), json!("done")]);
    let permits = Arc::new(Semaphore::new(0));
    let agent = start_agent(&model).await;
    agent.add_tool(SlowTool(Arc::clone(&permits))).unwrap();
    let running = spawn_prompt(&agent, "go");
    wait_until(|| agent.state().pending_tool_calls.contains("c_slow")).await;
    assert!(agent.state().is_streaming);
    permits.add_permits(1);
    running.await.unwrap().unwrap();
    assert!(agent.state().pending_tool_calls.is_empty());
}

#[tokio::test]
async fn transient_model_failure_is_retried() {
    let model = TestModel::new(&[json!({"error": "overloaded", "passes": true}), json!("done")]);
    let retry = RetrySettings { base_delay_ms: 1, ..RetrySettings::default() };
    let agent = Agent::builder()
        .models(Arc::clone(&model) as Arc<dyn Model>)
        .settings(Settings { retry: Some(retry), ..Settings::default() })
        .start()
        .await
        .unwrap();
    let (events, _subscription) = record_events(&agent);
    let prompt = with_timeout(agent.prompt("go")).await.unwrap();
    assert_eq!(prompt.state, turnwheel_conversation::entry::PromptState::Completed);
    let ends: Vec<bool> = lock(&events)
        .iter()
        .filter_map(|event| {
            let AgentEvent::AgentEnd { will_retry, .. } = event else { return None };
            Some(*will_retry)
        })
        .collect();
    assert_eq!(ends, [true, false]);
    let state = agent.state();
    assert_eq!(
        (message_texts(&state).last().unwrap().as_str(), state.error),
        ("assistant:done", None)
    );
}
